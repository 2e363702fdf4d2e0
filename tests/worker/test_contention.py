"""What disturbed a measurement: planted counters, a planted /proc, and this machine's own."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from paradnn.core.messages import Contention, Timing
from paradnn.worker.measure import AttemptRecorder, single_latencies
from paradnn.worker.meters import (
    ContentionMonitor,
    Counters,
    TurnsMonitor,
    between,
    contention_of,
    difference,
    read_counters,
    total,
)
from tests.platform.test_findings import plant
from tests.processes import in_fresh_process

#: Two seconds on two cores in which the point took 3 of 4 core-seconds and 1 was idle.
BEFORE = Counters(
    10.0, 2, own=5.0, idle=100.0, steal=1.0, counted=300.0, switches=10, throttled=0.0
)
AFTER = Counters(12.0, 2, own=8.0, idle=101.0, steal=1.0, counted=304.0, switches=30, throttled=0.0)
CASES = yaml.safe_load(Path(__file__).with_name("contention.yaml").read_text())


@pytest.mark.parametrize(("changed", "shares", "reason"), CASES)
def test_what_was_neither_idle_nor_stolen_nor_its_own_was_foreign(
    changed: dict[str, Any], shares: list[float | None], reason: str | None
) -> None:
    seen = between(BEFORE, replace(AFTER, **changed))
    found = (seen.own_cpu_fraction, seen.foreign_cpu_fraction, seen.steal_fraction)
    assert found == pytest.approx(tuple(shares))
    assert (seen.involuntary_switches_per_second, seen.reason) == (10.0, reason)
    assert ContentionMonitor().stop() is None


def test_turns_add_up_and_what_is_between_them_does_not_count() -> None:
    # The same two seconds in two turns; in the ten seconds between them others took both cores.
    middle = replace(BEFORE, seconds=11.0, own=6.5, idle=100.5, counted=302.0, switches=20)
    resumed = replace(middle, seconds=21.0, counted=322.0)
    end = replace(AFTER, seconds=22.0, counted=324.0)
    spent = total(difference(BEFORE, middle), difference(resumed, end))
    assert contention_of(spent, periods=2) == between(BEFORE, AFTER)


def test_rounding_errors_of_turns_add_up_as_their_root() -> None:
    # 0.06 of the capacity went to others, in one second on one core.
    spent = Counters(1.0, 1, own=0.94, idle=0.0, steal=0.0, counted=1.0, switches=0, throttled=0.0)
    assert contention_of(spent, periods=1).reason == "other processes took 0.1 of 1 core"
    assert contention_of(spent, periods=100).reason is None


def test_without_turns_nothing_is_known() -> None:
    assert TurnsMonitor().contention() is None


#: Goes on with a process once that has stopped.
AGAIN = """
import psutil, sys, time
stopped = psutil.Process(int(sys.argv[1]))
while stopped.status() != psutil.STATUS_STOPPED:
    time.sleep(0.01)
stopped.resume()
"""


def test_a_process_that_was_stopped_meanwhile_says_so() -> None:
    in_fresh_process(_watch_while_stopped)


def _watch_while_stopped() -> None:
    watch = AttemptRecorder()
    watch.start()
    helper = subprocess.Popen([sys.executable, "-c", AGAIN, str(os.getpid())])
    os.kill(os.getpid(), signal.SIGSTOP)
    taken = watch.stop()
    seen = watch.contention
    helper.wait()
    assert seen
    judged = watch.judged(Timing(1, [], [], [1.0], True, "no change", None))
    assert (judged.steady, judged.steady_reason) == (
        False,
        "the measured steps were stopped (SIGSTOP); no change",
    )
    assert (seen.reason or "").endswith("the point was stopped (SIGSTOP) 1 time")
    assert taken == seen.taken >= 1
    assert signal.getsignal(signal.SIGCONT) is signal.SIG_DFL


def test_counters_are_those_of_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    rows = [f"cpu{core} {core}00 0 0 {core}000 50 0 0 {core}0 0 0" for core in range(4)]
    plant(
        tmp_path,
        {
            "proc/stat": "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *rows, "intr 5"]),
            "proc/self/cgroup": "3:cpuset:/\n0::/a/b",
            "sys/fs/cgroup/a/b/cpu.stat": "nr_periods 4\nnr_throttled 2\nthrottled_usec 1500000",
        },
    )
    seen = read_counters(tmp_path)
    assert (seen.cores, seen.idle, seen.steal, seen.throttled) == (2, 41.0, 0.4, 1.5)
    assert seen.counted == pytest.approx(45.4)
    (tmp_path / "proc/self/cgroup").write_text("3:cpuset:/\n2:cpu,cpuacct:/a\n0::/")
    plant(
        tmp_path,
        {"sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": "nr_throttled 2\nthrottled_time 2500000000"},
    )
    assert read_counters(tmp_path).throttled == 2.5  # of version 1, in nanoseconds


@pytest.mark.skipif(
    sys.platform != "linux", reason="processor clocks of other processes are Linux's"
)
def test_work_of_processes_below_the_point_is_its_own() -> None:
    in_fresh_process(_watch_a_child_and_a_grandchild)


def _watch_a_child_and_a_grandchild() -> None:
    """Their processor time, against what wait4 says of it in the end."""
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
    middle = read_counters()
    try:
        assert middle.own - before.own >= 0.2
    finally:
        for path in Path(f"/proc/{child}/task").glob("*/children"):
            for grandchild in path.read_text().split():
                os.kill(int(grandchild), signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        _, _, usage = os.wait4(child, 0)
    after = read_counters()
    assert after.own >= before.own + usage.ru_utime + usage.ru_stime
    assert after.switches >= before.switches


class Hogged(ContentionMonitor):
    """A watch that finds each phase as disturbed as is planted."""

    def __init__(self, *taken: float) -> None:
        super().__init__()
        self.planted = iter(taken)

    def stop(self) -> Contention | None:
        super().stop()
        taken = next(self.planted)
        return Contention(2, 0.5, taken, 0.0, 0.0, None, "others" if taken else None)


@pytest.mark.parametrize(
    ("taken", "seconds"), [((0.0,), 0.01), ((0.5, 0.0), 0.02), ((0.2, 0.6), 0.01)]
)
def test_disturbed_single_steps_are_timed_again_and_the_best_count(
    taken: tuple[float, ...], seconds: float
) -> None:
    """Steps of 10 ms, of 20 ms from the 201st on, by a clock that the steps turn."""
    now = [0.0]
    steps = [0]

    def run(count: int) -> None:
        steps[0] += count
        now[0] += 0.01 if steps[0] <= 200 else 0.02

    latencies, seen = single_latencies(run, 60.0, clock=lambda: now[0], watch=Hogged(*taken))
    assert latencies == pytest.approx([seconds] * 200)
    assert seen
    assert seen.foreign_cpu_fraction == min(taken)
    assert steps[0] == 200 * len(taken)
