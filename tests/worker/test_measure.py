"""The timing protocol on a simulated clock, and the statistics of series of block times.

No test depends on real time.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom

from benchmarks.steadiness import PROTOCOLS, coverage, errors_of_steady, planted, stopped
from paradnn.core.messages import Contention, Timing
from paradnn.worker.cold_cache import cache_bytes
from paradnn.worker.contention import ContentionMonitor, TurnsMonitor
from paradnn.worker.energy import STOPPED_COUNTER, EnergyMeter, Reading
from paradnn.worker.frameworks import Step
from paradnn.worker.measure import (
    MIN_BLOCKS_TO_STOP,
    REPEATS,
    AttemptRecorder,
    NotFinite,
    Protocol,
    SynchronizedRun,
    compile_steps,
    measure_steps,
    single_latencies,
)
from paradnn.worker.series import (
    KERNELS,
    block_interval,
    find_change,
    median_interval,
    widened_interval,
)
from paradnn.worker.turns import TurnConnection

PROTOCOL = Protocol(
    min_seconds=1.0, min_blocks=10, max_seconds=60.0, block_seconds=0.1, warmup_seconds=5.0
)


class Machine:
    """Machine that runs steps in simulated time.

    Args:
        cost: Returns the seconds of the n-th step.
        loss: Returns the loss after n steps.
    """

    def __init__(
        self, cost: Callable[[int], float], loss: Callable[[int], float] = lambda _: 1.0
    ) -> None:
        self.now = 0.0
        self.steps = 0
        self.phases: list[str] = []
        self._cost = cost
        self._loss = loss

    def run(self, steps: int) -> float:
        for _ in range(steps):
            self.now += self._cost(self.steps)
            self.steps += 1
        return self._loss(self.steps)

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield


class SynchronizedMachine(SynchronizedRun):
    """Blocks of a machine with a barrier of 7 s before and of 3 s after each block."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._loss = 0.0

    def begin(self, steps: int) -> None:
        self._machine.now += 7.0

    def run(self, steps: int) -> None:
        self._loss = self._machine.run(steps)

    def end(self) -> float:
        self._machine.now += 3.0
        return 2 * self._loss


def test_a_block_of_several_processes_excludes_their_barriers() -> None:
    machine = Machine(lambda _: 0.05)
    protocol = replace(PROTOCOL, min_seconds=0.0, warmup_seconds=0.0)

    timing = measure_steps(SynchronizedMachine(machine), protocol, machine.phase, machine.clock)

    assert timing.step_times == pytest.approx([0.05] * len(timing.blocks))
    assert timing.final_loss == 2.0


class PlantedRecorder(AttemptRecorder):
    """Recorder that reports a planted share of disturbance per attempt; the last share repeats."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self.attempts = 0
        self._shares = shares

    def start(self) -> None:
        self.attempts += 1

    def stop(self) -> float:
        return self._shares[min(self.attempts, len(self._shares)) - 1]


def measure(
    machine: Machine, protocol: Protocol = PROTOCOL, recorder: AttemptRecorder | None = None
) -> Timing:
    return measure_steps(machine.run, protocol, machine.phase, machine.clock, recorder=recorder)


def test_constant_steps_are_steady_and_timed_exactly() -> None:
    machine = Machine(lambda _: 0.003)

    timing = measure(machine)

    assert timing.steady
    assert machine.phases == ["warmup", "measure"]
    assert timing.steps_per_block * 0.003 >= PROTOCOL.block_seconds
    assert timing.step_times == pytest.approx([0.003] * len(timing.blocks))
    assert len(timing.blocks) >= PROTOCOL.min_blocks
    assert sum(timing.blocks) >= PROTOCOL.min_seconds
    assert timing.final_loss == 1.0


def test_a_drifting_machine_is_not_steady() -> None:
    machine = Machine(lambda n: 0.01 * 1.0005**n)

    timing = measure(machine)

    assert not timing.steady
    assert "drift of +" in timing.steady_reason
    assert len(timing.blocks) >= 2**REPEATS * PROTOCOL.min_blocks


def test_no_attempt_exceeds_max_seconds() -> None:
    machine = Machine(lambda n: 0.01 * 1.0005**n)

    timing = measure(machine, replace(PROTOCOL, max_seconds=2.5))

    assert not timing.steady
    assert len(timing.blocks) < 2 * PROTOCOL.min_blocks


def noisy_machine(seed: int, noise: float = 0.05) -> Machine:
    """Return a machine whose steps of 0.1 s differ at random, by 5% by default."""
    random = np.random.default_rng(seed)
    return Machine(lambda _: 0.1 * (1 + noise * float(random.standard_normal())))


def relative_half_width(timing: Timing) -> float:
    interval = block_interval(timing.blocks)
    assert interval
    low, high = interval
    return (high - low) / 2 / statistics.median(timing.blocks)


@pytest.mark.parametrize("goal", [0.05, 0.02, 0.01])
def test_a_point_is_measured_until_its_interval_is_narrow(goal: float) -> None:
    for seed in range(5):
        timing = measure(noisy_machine(seed), replace(PROTOCOL, relative_interval=goal))

        assert relative_half_width(timing) <= goal
        assert len(timing.blocks) >= MIN_BLOCKS_TO_STOP


def test_max_seconds_ends_a_measurement_with_a_wide_interval() -> None:
    protocol = replace(PROTOCOL, relative_interval=0.0001, max_seconds=8.0)

    timing = measure(noisy_machine(0), protocol)

    assert sum(timing.blocks) == pytest.approx(8.0, abs=0.2)
    assert relative_half_width(timing) > 0.0001


def test_cold_steps_are_timed_without_the_time_to_fill_caches() -> None:
    cold = True
    filled = 0

    def cost(_step: int) -> float:
        """Return 20 ms for a cold step and 10 ms for a warm one."""
        nonlocal cold
        seconds = 0.02 if cold else 0.01
        cold = False
        return seconds

    machine = Machine(cost)

    def fill_caches() -> None:
        nonlocal cold, filled
        cold = True
        filled += 1
        machine.now += 0.03

    timing = measure_steps(
        machine.run, PROTOCOL, machine.phase, machine.clock, fill_caches=fill_caches
    )
    latencies, _ = single_latencies(machine.run, 1.0, machine.clock, fill_caches=fill_caches)

    assert filled == machine.steps
    # The minimum duration of a block includes the filling: three steps of 50 ms exceed 0.1 s.
    assert timing.steps_per_block == 3
    assert timing.blocks == pytest.approx([0.06] * len(timing.blocks))
    assert latencies == pytest.approx([0.02] * len(latencies))


def test_every_cache_is_counted_once(tmp_path: Path) -> None:
    caches = [
        ("cpu0", "index0", "Data", "1", "0", "32K"),
        ("cpu0", "index1", "Instruction", "1", "0", "32K"),
        ("cpu0", "index2", "Unified", "2", "0", "1024K"),
        ("cpu0", "index3", "Unified", "3", "0-1", "32M"),
        ("cpu1", "index0", "Data", "1", "1", "32K"),
        ("cpu1", "index2", "Unified", "2", "1", "1024K"),
        ("cpu1", "index3", "Unified", "3", "0-1", "32M"),
    ]
    for cpu, index, *values in caches:
        folder = tmp_path / cpu / "cache" / index
        folder.mkdir(parents=True)
        for name, value in zip(("type", "level", "shared_cpu_list", "size"), values, strict=True):
            (folder / name).write_text(f"{value}\n")

    assert cache_bytes(tmp_path) == 2 * 32 * 1024 + 2 * 1024 * 1024 + 32 * 1024 * 1024
    assert cache_bytes(tmp_path / "nowhere") == 0


def test_a_non_finite_loss_ends_the_point() -> None:
    machine = Machine(lambda _: 0.01, lambda steps: float("nan") if steps > 50 else 1.0)

    with pytest.raises(NotFinite, match="nan"):
        measure(machine)


def test_disturbed_blocks_become_warm_up_and_are_measured_again() -> None:
    """Plant a faster second attempt; the jump between the attempts must not make it unsteady."""
    recorder = PlantedRecorder(0.5, 0.0)
    machine = Machine(lambda _: 0.003 if recorder.attempts > 1 else 0.006)

    timing = measure(machine, recorder=recorder)

    assert recorder.attempts == 2
    assert recorder.reported == 1
    assert timing.steady
    assert statistics.median(timing.step_times) == pytest.approx(0.003)
    assert max(timing.warmup) == pytest.approx(0.006 * timing.steps_per_block)


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        pytest.param((0.2, 0.6), 0, id="first is less disturbed"),
        pytest.param((0.6, 0.2), 1, id="second is less disturbed"),
        pytest.param((0.3, 0.3), 1, id="equally disturbed"),
    ],
)
def test_the_less_disturbed_of_two_attempts_counts(shares: tuple[float, float], kept: int) -> None:
    recorder = PlantedRecorder(*shares)
    machine = Machine(lambda _: 0.003)

    timing = measure(machine, recorder=recorder)

    assert recorder.attempts == 2
    assert recorder.reported == kept
    assert bool(timing.discarded) == (kept == 0)
    assert timing.repeated == pytest.approx(sum(timing.blocks), rel=0.2)


def test_every_block_of_disturbed_attempts_is_kept() -> None:
    machine = Machine(lambda _: 0.003)

    timing = measure(machine, recorder=PlantedRecorder(0.2, 0.6))

    calibration_steps = sum(trial.steps for trial in timing.calibration)
    # The first block of the warm-up is the last trial of the calibration.
    blocks = len(timing.warmup) - 1 + len(timing.blocks) + len(timing.discarded)
    assert calibration_steps + timing.steps_per_block * blocks == machine.steps


def test_a_disturbed_attempt_is_not_repeated_beyond_max_seconds() -> None:
    recorder = PlantedRecorder(0.5)
    protocol = replace(PROTOCOL, max_seconds=1.5)

    timing = measure(Machine(lambda _: 0.003), protocol, recorder)

    assert recorder.attempts == 1
    assert timing.repeated == 0.0


@pytest.mark.parametrize(
    ("step_seconds", "trial_steps"),
    [
        # 37 steps of 3 ms last 0.1 s plus a margin of 10%. A trial has at most ten times the
        # steps of the previous one.
        pytest.param(lambda _: 0.003, [1, 10, 37, 37], id="short steps"),
        pytest.param(lambda _: 0.07, [1, 2, 2], id="two steps"),
        pytest.param(lambda _: 0.1, [1, 1], id="one step"),
        pytest.param(lambda n: 0.003 if n else 0.5, [1, 1, 10, 37, 37], id="a slow first step"),
    ],
)
def test_two_trials_in_a_row_last_as_long_as_a_block(
    step_seconds: Callable[[int], float], trial_steps: list[int]
) -> None:
    timing = measure(Machine(step_seconds))

    assert [trial.steps for trial in timing.calibration] == trial_steps
    assert timing.steps_per_block == trial_steps[-1]
    assert timing.calibration[-1].seconds == pytest.approx(trial_steps[-1] * step_seconds(9))


def test_a_block_of_very_short_steps_has_a_million_steps() -> None:
    machine = Machine(lambda _: 0.0)

    def run(steps: int) -> None:
        machine.now += 1e-8 * steps

    timing = measure_steps(run, PROTOCOL, machine.phase, machine.clock)

    assert [trial.steps for trial in timing.calibration] == [
        *(10**power for power in range(7)),
        10**6,
    ]
    assert timing.final_loss is None


def test_calibration_works_with_a_coarse_clock() -> None:
    """Use a clock with a resolution of 10 ms and steps of 1.2 ms."""
    machine = Machine(lambda _: 0.0012)

    timing = measure_steps(
        machine.run, PROTOCOL, machine.phase, lambda: math.floor(machine.now * 100) / 100
    )

    assert [trial.steps for trial in timing.calibration] == [1, 10, 100, 100]


def test_a_steady_warm_up_ends_after_two_windows() -> None:
    timing = measure(Machine(lambda _: 0.003))

    # The last trial of the calibration is the first block of the warm-up.
    assert timing.warmup == pytest.approx([37 * 0.003] * 8)
    assert timing.repeated == 0.0


def test_a_warm_up_lasts_until_its_last_three_windows_show_no_change() -> None:
    """Plant five slow blocks; the last 12 of 16 blocks contain one of them, which is no jump."""
    machine = Machine(lambda n: 0.2 if n < 6 else 0.1)

    timing = measure(machine, replace(PROTOCOL, warmup_seconds=60.0))

    assert timing.warmup == pytest.approx([0.2] * 5 + [0.1] * 11)
    assert timing.repeated == 0.0


def test_a_drifting_warm_up_ends_at_its_limit() -> None:
    machine = Machine(lambda n: 0.1 + 0.001 * n)

    timing = measure(machine, replace(PROTOCOL, warmup_seconds=5.0, max_seconds=1.5))

    calibration_seconds = sum(trial.seconds for trial in timing.calibration[:-1])
    spent = calibration_seconds + sum(timing.warmup)
    assert 5.0 <= spent < 5.0 + timing.warmup[-1]


def one_block_per_step(cost: Callable[[int], float], **protocol: float) -> Timing:
    """Return the timing of steps of about 0.1 s, one per block, without a warm-up."""
    settings = {"min_seconds": 0.0, "warmup_seconds": 0.0} | protocol
    return measure(Machine(cost), replace(PROTOCOL, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"min_seconds": 1.0}, id="minimum duration"),
        pytest.param({"min_blocks": 8}, id="minimum number of blocks"),
        pytest.param({"min_seconds": 60.0, "max_seconds": 1.0}, id="maximum duration"),
    ],
)
def test_a_measurement_ends_with_the_block_that_reaches_a_limit(limits: dict[str, float]) -> None:
    """Measure eight blocks of an eighth of a second, which is exact in binary."""
    timing = one_block_per_step(lambda _: 0.125, **{"min_seconds": 0.0, "min_blocks": 6, **limits})

    assert timing.blocks == [0.125] * 8


def test_reference_kernels_take_their_share_of_the_time() -> None:
    """Plant reference runs that take as long as three blocks, with the untimed step after each.

    With a share of a quarter, a run is due after nine more blocks. The first run is due before the
    first block, and the last run follows the last block.
    """
    machine = Machine(lambda _: 0.125)
    protocol = replace(PROTOCOL, warmup_seconds=0.0, min_seconds=0.0, min_blocks=30, reference=0.25)

    def run_reference() -> dict[str, float]:
        machine.now += 0.25
        return dict.fromkeys(KERNELS, 0.125)

    timing = measure_steps(
        machine.run, protocol, machine.phase, machine.clock, reference=run_reference
    )

    assert [each.blocks for each in timing.references] == [0, 18, 27, 30]
    assert timing.reference_seconds == 3 * 0.375
    assert timing.blocks == [0.125] * 30


def test_untimed_steps_after_a_reference_last_ten_milliseconds() -> None:
    """Use steps of 1/1024 s; with the calibration's margin, a block of 1/8 s has 141 steps."""
    machine = Machine(lambda _: 2.0**-10)
    protocol = replace(PROTOCOL, block_seconds=0.125, warmup_seconds=0.0, reference=0.001)

    def run_reference() -> dict[str, float]:
        machine.now += 0.25
        return dict.fromkeys(KERNELS, 0.125)

    timing = measure_steps(
        machine.run, protocol, machine.phase, machine.clock, reference=run_reference
    )

    assert timing.steps_per_block == 141
    assert timing.reference_seconds == 0.25 + 12 * 2.0**-10  # 12 of 141 steps are 10 of 125 ms


def test_attempts_that_are_not_steady_become_warm_up_and_double_in_length() -> None:
    def cost(step: int) -> float:
        return 0.1 + 0.0005 * step

    timing = one_block_per_step(cost)

    # There are two trials, and the second is the first block of the warm-up. Three attempts of
    # 10, 20 and 40 blocks follow.
    assert not timing.steady
    assert timing.warmup == pytest.approx([cost(step) for step in range(1, 32)])
    assert timing.blocks == pytest.approx([cost(step) for step in range(32, 72)])
    assert timing.repeated == pytest.approx(sum(cost(step) for step in range(2, 32)))


@pytest.mark.parametrize(
    ("max_seconds", "attempts"),
    [
        # The first attempt takes 1.0325 s. The second has twice the blocks, and ends at 3.0975 s.
        pytest.param(3.05, 1, id="the second would end too late"),
        pytest.param(3.15, 2, id="the second ends in time"),
    ],
)
def test_a_second_attempt_must_end_in_time(max_seconds: float, attempts: int) -> None:
    timing = one_block_per_step(lambda step: 0.1 + 0.0005 * step, max_seconds=max_seconds)

    assert (timing.repeated > 0) == (attempts == 2)
    assert len(timing.blocks) >= 10 * attempts - 1


@pytest.mark.parametrize(
    ("max_seconds", "attempts"),
    [pytest.param(2.1, 1, id="too late"), pytest.param(2.3, 2, id="in time")],
)
def test_a_disturbed_attempt_is_repeated_with_the_same_number_of_blocks(
    max_seconds: float, attempts: int
) -> None:
    """Each attempt has ten blocks of 0.111 s."""
    recorder = PlantedRecorder(0.5)

    timing = measure(Machine(lambda _: 0.003), replace(PROTOCOL, max_seconds=max_seconds), recorder)

    assert recorder.attempts == attempts
    assert len(timing.blocks) == 10


@pytest.mark.parametrize(
    ("min_blocks", "reason"),
    [
        pytest.param(2, "too few blocks for a verdict (measured 3, needed 6)", id="two"),
        pytest.param(4, "too few blocks for a verdict (measured 5, needed 6)", id="one too few"),
        pytest.param(5, "no change that matters: ", id="enough"),
    ],
)
def test_too_few_blocks_have_no_verdict(min_blocks: int, reason: str) -> None:
    """The verdict includes one block of the warm-up."""
    timing = one_block_per_step(lambda _: 0.1, min_blocks=min_blocks)

    assert timing.steady == (min_blocks == 5)
    assert timing.steady_reason.startswith(reason)
    assert len(timing.blocks) == min_blocks


def test_a_verdict_includes_two_windows_of_the_warm_up() -> None:
    """Plant a warm-up of eight blocks that are slower than the blocks after it."""
    timing = one_block_per_step(
        lambda step: 0.12 if step < 9 else 0.1, warmup_seconds=60.0, max_seconds=1.5
    )

    assert len(timing.warmup) == 8
    assert not timing.steady
    assert timing.steady_reason.startswith("jump before block 9 of -16.7%")


def test_the_error_of_a_non_finite_loss_names_the_steps_of_the_block() -> None:
    machine = Machine(lambda _: 0.003, lambda steps: math.inf if steps > 50 else 1.0)

    with pytest.raises(NotFinite, match="the loss is inf after a block of 37 steps"):
        measure(machine)


@pytest.mark.parametrize(
    ("step_seconds", "max_seconds", "count"),
    [
        pytest.param(0.01, 60.0, 200, id="number of steps"),
        pytest.param(0.3, 60.0, 34, id="ten seconds"),
        pytest.param(0.125, 60.0, 80, id="just ten seconds"),
        pytest.param(0.3, 3.1, 11, id="longest measurement"),
    ],
)
def test_the_number_of_single_steps_is_limited(
    step_seconds: float, max_seconds: float, count: int
) -> None:
    machine = Machine(lambda _: step_seconds)

    latencies, _ = single_latencies(machine.run, max_seconds, machine.clock)

    assert latencies == pytest.approx([step_seconds] * count)


class PlantedTurn(TurnConnection):
    """Planted turns: each wait takes five seconds of the other point, up to `count` turns."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.reported: list[float] = []
        self._machine = machine
        self._left = count

    def wait(self) -> bool:
        self._machine.now += 5.0
        self._left -= 1
        return self._left >= 0

    def end(self, seconds: float = 0.0) -> None:
        self.reported.append(seconds)


class TimedTurns(TurnsMonitor):
    """Monitor that records the seconds of a machine in each of its turns."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.observed: list[float] = []
        self._machine = machine
        self._start = 0.0

    def start(self) -> None:
        super().start()
        self._start = self._machine.now

    def stop(self) -> None:
        super().stop()
        self.observed.append(self._machine.now - self._start)


@pytest.mark.parametrize(
    ("step_seconds", "steps", "lead"),
    [
        pytest.param(0.003, 37, 1, id="many steps"),
        pytest.param(0.036, 4, 1, id="four steps"),
        pytest.param(0.05, 3, 0, id="three steps"),
    ],
)
def test_a_point_in_turns_times_one_block_per_turn(
    step_seconds: float, steps: int, lead: int
) -> None:
    """Blocks of more than three steps begin with an untimed step."""
    machine = Machine(lambda _: step_seconds)
    turn = PlantedTurn(machine, 7)
    monitor = TimedTurns(machine)

    timing = measure_steps(
        machine.run, PROTOCOL, machine.phase, machine.clock, turn=turn, turns_monitor=monitor
    )

    assert timing.blocks == pytest.approx([steps * step_seconds] * 7)
    assert timing.steady
    assert turn.reported == pytest.approx([0.0] + [step_seconds] * 7)
    assert monitor.observed == pytest.approx([(steps + lead) * step_seconds] * 7)
    assert monitor.contention()


def test_a_point_in_turns_is_not_steady_if_it_jumps_after_the_warm_up() -> None:
    machine = Machine(lambda step: 0.1 if step < 9 else 0.15)

    timing = measure_steps(
        machine.run, PROTOCOL, machine.phase, machine.clock, turn=PlantedTurn(machine, 9)
    )

    assert not timing.steady
    assert timing.steady_reason.startswith("jump before block 9 of +50.0%")


class PlantedStep(Step):
    """Step that takes two seconds and compiles a planted number of programs in each run."""

    def __init__(self, *programs: int, note: str | None = None) -> None:
        self.now = 0.0
        self._note = note
        self._programs = iter(programs)
        self._compiled = 5  # by the warm-up of the framework
        self._runs = 0

    def run(self, steps: int) -> float:
        self.now += 2.0 * steps
        self._compiled += next(self._programs)
        self._runs += 1
        return 10.0 / self._runs

    def compilations(self) -> int:
        return self._compiled

    def compile_note(self) -> str | None:
        return self._note


@pytest.mark.parametrize(
    ("programs", "note", "expected_note"),
    [
        pytest.param([0], None, None, id="nothing to compile"),
        pytest.param([3, 1, 0], "traced", "traced", id="compiles twice"),
        pytest.param(
            [1] * 7 + [2],
            "traced",
            "traced; step 8 still compiled 2 programs",
            id="compiles in every step",
        ),
    ],
)
def test_steps_run_until_one_compiles_nothing(
    programs: list[int], note: str | None, expected_note: str | None
) -> None:
    step = PlantedStep(*programs, 1, 1, note=note)

    compilation, first_loss = compile_steps(step, lambda: step.now)

    assert compilation.programs == programs
    assert compilation.seconds == [2.0] * len(programs)
    assert compilation.note == expected_note
    assert first_loss == 10.0


@pytest.mark.parametrize(
    ("compiled", "stops", "problem"),
    [
        pytest.param(0, 0, None, id="nothing"),
        pytest.param(2, 0, "compiled 2 programs", id="compiled"),
        pytest.param(0, 1, "were stopped (SIGSTOP)", id="stopped"),
    ],
)
def test_an_attempt_with_compilations_or_stops_is_not_steady(
    compiled: int, stops: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a problem in the first attempt, which is kept; the second compiles one program."""
    quiet = Contention(2, 1.0, 0.0, 0.0, 0.0, None, None)
    observed = iter([replace(quiet, stops=stops), quiet])
    monkeypatch.setattr(ContentionMonitor, "stop", lambda _: next(observed))
    counts = iter([4, 4 + compiled, 9, 10])
    joules = iter([[Reading(100.0, 0.0)], [Reading(130.0, 0.0)]] * 2)
    recorder = AttemptRecorder(EnergyMeter("rapl", lambda: next(joules)), lambda: next(counts))
    timing = Timing(1, [], [], [1.0], True, "no change", None)

    for _ in range(2):
        recorder.start()
        recorder.stop()
    last = recorder.checked(timing)
    recorder.reported = 0
    first = recorder.checked(timing)

    assert last.steady_reason == "the measured steps compiled 1 program; no change"
    assert first.steady == (problem is None)
    if problem:
        assert first == replace(
            timing, steady=False, steady_reason=f"the measured steps {problem}; no change"
        )
    assert recorder.energy == (30.0, "rapl")
    assert recorder.contention == replace(quiet, stops=stops)


@pytest.mark.parametrize(
    ("reading", "energy"),
    [
        pytest.param(100.0, (None, STOPPED_COUNTER), id="stopped counter"),
        pytest.param(101.0, (1.0, "rapl"), id="one joule"),
    ],
)
def test_an_energy_counter_that_never_advances_reports_no_energy(
    reading: float, energy: tuple[float | None, str]
) -> None:
    readings = iter([[Reading(100.0, 0.0)], [Reading(reading, 0.0)]])
    recorder = AttemptRecorder(EnergyMeter("rapl", lambda: next(readings)))

    recorder.start()
    recorder.stop()

    assert recorder.energy == energy


@pytest.mark.parametrize(
    ("contention", "taken"),
    [
        pytest.param(None, 0.0, id="unknown"),
        pytest.param(Contention(2, 0.5, 0.3, 0.1, 0.0, None, None), 0.0, id="below the limits"),
        pytest.param(Contention(2, 0.5, 0.3, 0.1, 0.0, None, "others"), 0.4, id="disturbed"),
    ],
)
def test_only_a_disturbed_attempt_reports_a_disturbance(
    contention: Contention | None, taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContentionMonitor, "stop", lambda _: contention)
    recorder = AttemptRecorder()

    recorder.start()

    assert recorder.stop() == pytest.approx(taken)
    assert recorder.energy == (None, "unavailable")


@pytest.mark.parametrize(
    ("reference", "share"),
    [
        pytest.param(True, 0.2, id="on"),
        pytest.param(False, 0.0, id="off"),
        pytest.param(0.05, 0.05, id="a share"),
    ],
)
def test_the_protocol_follows_the_settings(reference: bool | float, share: float) -> None:
    settings = {
        "min_seconds": 1.0,
        "min_blocks": 10,
        "max_seconds": 60.0,
        "block_seconds": 0.1,
        "warmup_seconds": 5.0,
        "reference": reference,
        "processes": 3,
    }

    protocol = Protocol.from_settings(settings)

    assert protocol == replace(PROTOCOL, reference=reference)
    assert protocol.reference_share == share


@pytest.mark.parametrize("n", [6, 7, 10, 25, 41, 90, 100])
def test_the_interval_of_a_median_is_the_narrowest_of_95_percent(n: int) -> None:
    interval = median_interval(range(n))

    assert interval
    rank = interval[0] + 1  # of the lower end, from 1
    assert interval[1] == n - rank
    assert 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(rank, n, 0.5) < 0.95


def ar1_block_times(length: int, rho: float, seed: int) -> list[float]:
    """Return block times whose logarithms are a stationary AR(1) series."""
    transient = 200
    noise = np.random.default_rng(seed).standard_normal(length + transient)
    return np.exp(0.01 * lfilter([1.0], [1.0, -rho], noise)[transient:]).tolist()


def widening_factor(values: list[float]) -> float:
    """Return the width of the interval relative to that for independent values, in logarithms."""
    plain = median_interval(values)
    widened = widened_interval(values)
    assert plain
    assert widened
    return math.log(widened[1] / widened[0]) / math.log(plain[1] / plain[0])


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_the_interval_of_a_long_series_widens_like_that_of_an_ar1_mean(rho: float) -> None:
    """The standard error of the mean of an AR(1) grows by sqrt((1 + rho) / (1 - rho))."""
    factors = [widening_factor(ar1_block_times(2000, rho, seed)) for seed in range(40)]

    textbook = math.sqrt((1 + rho) / (1 - rho))
    assert statistics.fmean(factors) == pytest.approx(textbook, rel=0.05)


@pytest.mark.parametrize("n", [8, 25, 120])
def test_the_interval_of_a_short_series_widens_enough(n: int) -> None:
    """A short series underestimates its correlation; the median estimate compensates for that."""
    rho = 0.6
    factors = [widening_factor(ar1_block_times(n, rho, seed)) for seed in range(100)]

    estimates = [(factor**2 - 1) / (factor**2 + 1) for factor in factors]
    assert statistics.median(estimates) >= rho


def test_negative_correlation_widens_no_interval() -> None:
    values = [1.0 + 0.01 * (-1) ** index + 0.0001 * index for index in range(40)]

    assert widened_interval(values) == pytest.approx(median_interval(values))


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("n", [20, 48, 120])
def test_few_intervals_of_correlated_values_miss_the_median(n: int, rho: float) -> None:
    """Require that at most 6% of intervals miss the median, and 3% with 48 values.

    The tolerance of three standard deviations over 600 series is 3%. Nearly all series of
    independent values must have an interval.
    """
    result = coverage(n, f"ar {rho}", 600)

    assert result.wrong < (0.035 if n == 48 else 0.09)
    if rho == 0.0:
        assert result.given > 0.94
        assert result.width < 1.6


def test_a_drift_equals_the_line_that_numpy_fits() -> None:
    values = np.array([1 + 0.02 * index + 0.01 * (index % 3) for index in range(30)])

    change = find_change(values.tolist())

    slope, offset = np.polyfit(range(30), values, 1)
    residuals = values - offset - slope * np.arange(30)
    deviations = values - values.mean()
    assert change.at is None
    assert change.size * np.median(values) == pytest.approx(29 * slope)
    assert change.explained == pytest.approx(1 - (residuals**2).sum() / (deviations**2).sum())
    assert change.matters


def test_a_jump_is_found_at_its_position() -> None:
    before = [2.0 + 0.001 * (index % 2) for index in range(14)]
    after = [3.0 + 0.001 * (index % 2) for index in range(6)]

    change = find_change(before + after)

    assert change.at == 14
    assert change.size * statistics.median(before + after) == pytest.approx(1.0)
    assert change.matters
    assert str(change).startswith("jump before block 15 of +50.0% explains 100% of the variance")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        pytest.param(
            [5.0 + 0.001 * (index % 2) for index in range(4)]
            + [1.0 + 0.001 * (index % 2) for index in range(16)],
            "jump before block 5 of -80.0%",
            id="jump",
        ),
        pytest.param([40.0 / (index + 1) for index in range(20)], "of -", id="steep curve"),
        pytest.param([20.0 - index for index in range(20)], "drift of -95.0%", id="line"),
        pytest.param([0.01 * 1.6**-index for index in range(12)], "of -", id="toward zero"),
    ],
)
def test_a_decrease_is_relative_to_the_level_before_it(values: list[float], text: str) -> None:
    change = find_change(values)

    assert text in str(change)
    assert -1 < change.relative_size < 0


@pytest.mark.parametrize(
    ("values", "matters"),
    [
        pytest.param([1.0] * 10 + [1.015] * 10, False, id="jump of 1.5%"),
        pytest.param([1.0] * 10 + [1.025] * 10, True, id="jump of 2.5%"),
        pytest.param([1.0] * 6, False, id="constant"),
    ],
)
def test_a_change_of_less_than_two_percent_does_not_matter(
    values: list[float], matters: bool
) -> None:
    assert find_change(values).matters == matters


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
def test_at_most_8_percent_of_steady_machines_are_called_unsteady(label: str, rho: float) -> None:
    timings, _ = planted("nothing", PROTOCOLS[label], rho, 0.03, 100)

    assert sum(not timing.steady for timing in timings) <= 8


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("name", ["jump of 50%", "slow warm-up"])
def test_steady_results_of_a_settling_machine_are_from_after_it_settled(
    label: str, name: str
) -> None:
    errors = errors_of_steady(*planted(name, PROTOCOLS[label], 0.7, 0.01, 40))

    assert not errors or statistics.median(errors) < 0.05


@pytest.mark.parametrize("label", list(PROTOCOLS))
def test_a_drift_is_rarely_called_steady(label: str) -> None:
    timings, _ = planted("drift of 5%/s", PROTOCOLS[label], 0.5, 0.01, 40)

    assert sum(timing.steady for timing in timings) <= 20


@pytest.mark.parametrize("n", [24, 60, 120])
def test_a_series_with_a_jump_has_no_interval(n: int) -> None:
    """Plant two levels, which look like perfectly correlated noise around an unknown median.

    Fewer values show too little of the correlation; their interval consists of the extremes.
    """
    levels = np.repeat([1.0, 1.5], n // 2)
    for seed in range(20):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.01, n))

        assert block_interval((levels * noise).tolist()) is None


def test_the_interval_that_ends_a_measurement_covers_the_true_median() -> None:
    protocol = replace(PROTOCOLS["standard"], relative_interval=0.02)

    covered_share, _, _ = stopped(protocol, rho=0.7, noise=0.03, series=60)

    assert covered_share > 0.9
