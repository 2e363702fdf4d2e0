"""Disturbances of a measurement: planted counters, a planted /proc, and this host's counters."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paradnn.core.messages import Contention, Timing
from paradnn.worker import contention
from paradnn.worker.contention import (
    ContentionMonitor,
    Counters,
    TurnsMonitor,
    contention_between,
    counter_growth,
    judge_growth,
    read_counters,
    sum_growths,
)
from paradnn.worker.measure import AttemptRecorder, single_latencies
from tests.platform.test_findings import plant
from tests.processes import run_in_new_interpreter

#: Two seconds on two cores: the point used 3 of the 4 core-seconds, and 1 was idle.
BEFORE = Counters(
    seconds=10.0,
    cores=2,
    own=5.0,
    idle=100.0,
    steal=1.0,
    accounted=300.0,
    switches=10,
    throttled=0.0,
)
QUIET = replace(BEFORE, seconds=12.0, own=8.0, idle=101.0, steal=1.0, accounted=304.0, switches=30)


@pytest.mark.parametrize(
    ("changes", "shares", "reason"),
    [
        pytest.param({}, (0.75, 0.0, 0.0), None, id="quiet"),
        pytest.param(
            {"own": 6.0, "idle": 100.0, "steal": 2.0},
            (0.25, 0.5, 0.25),
            "other processes took 1.0 of 2 cores; "
            "the hypervisor took 25% of the cores' time (steal)",
            id="other processes and steal",
        ),
        pytest.param(
            {"throttled": 0.5},
            (0.75, 0.0, 0.0),
            "the control group's CPU quota stopped the point for 25% of the time",
            id="quota",
        ),
        pytest.param({"throttled": 0.02}, (0.75, 0.0, 0.0), None, id="a quota of just 1%"),
        pytest.param(
            {"own": 5.0, "idle": 100.0, "accounted": 300.0},
            (0.0, None, None),
            None,
            id="unchanged counters",
        ),
        pytest.param(
            {"idle": None, "steal": None, "accounted": None},
            (0.75, None, None),
            None,
            id="no counters",
        ),
    ],
)
def test_shares_and_reasons_follow_from_the_counters(
    changes: dict[str, Any], shares: tuple[float | None, ...], reason: str | None
) -> None:
    observed = contention_between(BEFORE, replace(QUIET, **changes))

    own, foreign, steal = shares
    assert observed.own_cpu_fraction == pytest.approx(own)
    assert observed.foreign_cpu_fraction == pytest.approx(foreign)
    assert observed.steal_fraction == pytest.approx(steal)
    assert observed.reason == reason
    assert observed.involuntary_switches_per_second == 10.0


def test_the_total_of_turns_excludes_the_time_between_them() -> None:
    """Split the same two seconds into two turns, ten seconds apart.

    Other processes used both cores between the turns.
    """
    middle = replace(BEFORE, seconds=11.0, own=6.5, idle=100.5, accounted=302.0, switches=20)
    resumed = replace(middle, seconds=21.0, accounted=322.0)
    end = replace(QUIET, seconds=22.0, accounted=324.0)

    growth = sum_growths(counter_growth(BEFORE, middle), counter_growth(resumed, end))

    assert judge_growth(growth, periods=2) == contention_between(BEFORE, QUIET)


def growth_on_one_core(seconds: float) -> Counters:
    """Return the growth over a phase in which other processes used 6% of the only core."""
    return Counters(
        seconds=seconds,
        cores=1,
        own=0.94 * seconds,
        idle=0.0,
        steal=0.0,
        accounted=seconds,
        switches=0,
        throttled=0.0,
    )


@pytest.mark.parametrize(
    ("periods", "reason"),
    [
        pytest.param(1, "other processes took 0.1 of 1 core", id="one period"),
        pytest.param(9, "other processes took 0.1 of 1 core", id="60 ms above 3 x 12.5 ms"),
        pytest.param(25, None, id="60 ms below 5 x 12.5 ms"),
        pytest.param(100, None, id="60 ms below 10 x 12.5 ms"),
    ],
)
def test_rounding_errors_grow_with_the_square_root_of_the_periods(
    periods: int, reason: str | None
) -> None:
    """The error of each of n periods is 1/80 s, so that of their total is sqrt(n) / 80 s."""
    assert judge_growth(growth_on_one_core(1.0), periods).reason == reason


@pytest.mark.parametrize(
    ("idle", "reason"),
    [
        pytest.param(32.0, None, id="80% used"),
        pytest.param(17.6, None, id="89% used"),
        pytest.param(14.4, "other processes took 0.6 of 16 cores", id="91% used"),
    ],
)
def test_one_busy_core_counts_if_hardly_any_core_is_idle(idle: float, reason: str | None) -> None:
    """Plant other processes that use a small share: 6 of 160 core-seconds."""
    growth = Counters(
        seconds=10.0,
        cores=16,
        own=154.0 - idle,
        idle=idle,
        steal=0.0,
        accounted=160.0,
        switches=0,
        throttled=None,
    )

    assert judge_growth(growth).reason == reason


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        pytest.param(16, "other processes took 0.1 of 1 core", id="16 turns"),
        pytest.param(32, None, id="32 turns"),
    ],
)
def test_turns_have_one_verdict_and_one_rounding_error_each(
    turns: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant 60 ms of other processes: above sqrt(16) x 12.5 ms, below sqrt(32) x 12.5 ms."""
    begin = growth_on_one_core(0.0)
    end = replace(growth_on_one_core(1 / turns), switches=3)
    moments = iter([begin, end] * turns)
    monkeypatch.setattr(contention, "read_counters", lambda: next(moments))
    monitor = TurnsMonitor()

    for _ in range(turns):
        monitor.start()
        monitor.stop()

    observed = monitor.contention()
    assert observed
    assert observed.own_cpu_fraction == pytest.approx(0.94)
    assert observed.involuntary_switches_per_second == pytest.approx(3 * turns)
    assert observed.reason == reason


@pytest.mark.parametrize(
    "first_idle",
    [pytest.param(None, id="first turn"), pytest.param(2.0, id="second turn")],
)
def test_a_counter_that_one_turn_lacks_is_unknown_in_the_total(first_idle: float | None) -> None:
    growth = counter_growth(BEFORE, QUIET)
    second_idle = None if first_idle else 2.0

    total = sum_growths(replace(growth, idle=first_idle), replace(growth, idle=second_idle))

    assert total.idle is None
    assert total.accounted == 8.0


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        pytest.param(0.2, None, id="12 ms in 0.2 s"),
        pytest.param(0.25, "other processes took 0.1 of 1 core", id="15 ms in 0.25 s"),
    ],
)
def test_contention_below_the_counters_resolution_is_ignored(
    seconds: float, reason: str | None
) -> None:
    """The resolution of the counters is 12.5 ms."""
    assert judge_growth(growth_on_one_core(seconds)).reason == reason


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGCONT")
def test_every_sigcont_during_a_measurement_counts_as_a_stop() -> None:
    monitor = ContentionMonitor()
    before = signal.getsignal(signal.SIGCONT)

    stops = []
    for count in (2, 1):
        monitor.start()
        for _ in range(count):
            signal.raise_signal(signal.SIGCONT)
        observed = monitor.stop()
        assert observed
        stops.append((observed.stops, (observed.reason or "").rpartition("; ")[2]))

    assert stops == [
        (2, "the point was stopped (SIGSTOP) 2 times"),
        (1, "the point was stopped (SIGSTOP) 1 time"),
    ]
    assert signal.getsignal(signal.SIGCONT) == before


def test_without_turns_nothing_is_reported() -> None:
    assert TurnsMonitor().contention() is None


def test_a_monitor_that_never_started_reports_nothing() -> None:
    assert ContentionMonitor().stop() is None


#: Resumes a process once it has stopped.
CONTINUE = """
import psutil, sys, time
stopped = psutil.Process(int(sys.argv[1]))
while stopped.status() != psutil.STATUS_STOPPED:
    time.sleep(0.01)
stopped.resume()
"""


def test_a_stopped_measurement_is_not_steady() -> None:
    run_in_new_interpreter(_observe_while_stopped)


def _observe_while_stopped() -> None:
    recorder = AttemptRecorder()
    recorder.start()
    helper = subprocess.Popen([sys.executable, "-c", CONTINUE, str(os.getpid())])
    os.kill(os.getpid(), signal.SIGSTOP)
    disturbance = recorder.stop()
    helper.wait()

    observed = recorder.contention
    checked = recorder.checked(Timing(1, [], [], [1.0], True, "no change", None))
    assert observed
    assert not checked.steady
    assert checked.steady_reason == "the measured steps were stopped (SIGSTOP); no change"
    assert (observed.reason or "").endswith("the point was stopped (SIGSTOP) 1 time")
    assert disturbance == observed.taken >= 1
    assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL


def test_counters_cover_the_cores_that_the_process_and_its_helpers_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    affinities = {0: {1}, 1: {0, 1, 2, 3}}  # of this process and of process 1
    monkeypatch.setattr(os, "sched_getaffinity", affinities.__getitem__, raising=False)
    monkeypatch.setattr(contention, "_watched_cores", set())
    contention.watch_cores([3])
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    cores = [f"cpu{core} {core}00 0 0 {core}000 50 0 0 {core}0 9 9" for core in range(4)]
    plant(
        tmp_path,
        {
            "proc/stat": "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *cores, "intr 5"]),
            "proc/self/cgroup": "3:cpuset:/\n0::/a/b",
            "sys/fs/cgroup/a/b/cpu.stat": "nr_periods 4\nnr_throttled 2\nthrottled_usec 1500000",
        },
    )

    counters = read_counters(tmp_path)

    assert counters.cores == 2
    assert counters.idle == 41.0
    assert counters.steal == 0.4
    assert counters.accounted == pytest.approx(45.4)
    assert counters.throttled == 1.5


def test_version_1_of_control_groups_reports_throttling(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/a\n0::/",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": "nr_throttled 2\nthrottled_time 2500000000",
        },
    )

    assert read_counters(tmp_path).throttled == 2.5  # converted from nanoseconds


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has processor clocks of other processes"
)
def test_the_time_of_descendants_belongs_to_the_point() -> None:
    run_in_new_interpreter(_observe_child_and_grandchild)


def _observe_child_and_grandchild() -> None:
    """Compare the CPU time of a child and a grandchild with the result of wait4."""
    before = read_counters()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        while time.process_time() < 0.2:
            pass
        if grandchild:
            os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    while_running = read_counters()
    try:
        assert while_running.own - before.own >= 0.2
    finally:
        for path in Path(f"/proc/{child}/task").glob("*/children"):
            for grandchild in path.read_text().split():
                os.kill(int(grandchild), signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        _, _, usage = os.wait4(child, 0)
    after = read_counters()
    assert after.own >= before.own + usage.ru_utime + usage.ru_stime
    assert after.switches >= before.switches


class PlantedMonitor(ContentionMonitor):
    """Monitor that reports one planted foreign share per measurement."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        super().__init__()
        self._shares = iter(shares)

    def stop(self) -> Contention | None:
        super().stop()
        share = next(self._shares)
        return Contention(
            cores=2,
            own_cpu_fraction=0.5,
            foreign_cpu_fraction=share,
            steal_fraction=0.0,
            involuntary_switches_per_second=0.0,
            throttled_fraction=None,
            reason="others" if share else None,
        )


class SlowingStep:
    """Steps of 10 ms in simulated time, and of 20 ms after the 200th."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0

    def run(self, count: int) -> None:
        self.steps += count
        self.now += 0.01 if self.steps <= 200 else 0.02


@pytest.mark.parametrize(
    ("foreign_shares", "seconds"),
    [
        pytest.param((0.0,), 0.01, id="undisturbed, timed once"),
        pytest.param((0.5, 0.0), 0.02, id="disturbed once, the second try counts"),
        pytest.param((0.2, 0.6), 0.01, id="disturbed twice, the less disturbed try counts"),
    ],
)
def test_disturbed_single_steps_are_timed_again(
    foreign_shares: tuple[float, ...], seconds: float
) -> None:
    step = SlowingStep()
    monitor = PlantedMonitor(foreign_shares)

    latencies, observed = single_latencies(step.run, 60.0, clock=lambda: step.now, monitor=monitor)

    assert latencies == pytest.approx([seconds] * 200)
    assert observed
    assert observed.foreign_cpu_fraction == min(foreign_shares)
    assert step.steps == 200 * len(foreign_shares)
