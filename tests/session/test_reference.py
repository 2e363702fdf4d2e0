"""Correction for the machine's speed, on simulated machines with a known true step time."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from paradnn.config.reading import read_point
from paradnn.core.messages import References, Timing
from paradnn.session.measured import mean_interval
from paradnn.session.reference import at_reference, reference_metrics
from paradnn.worker.measure import Protocol, measure_steps
from paradnn.worker.series import KERNELS, adjusted_times, block_interval, chosen_kernel
from tests.session.records import answered, recorded
from tests.session.test_record import QUIET
from tests.worker.test_measure import PROTOCOL, Machine

POINTS = 300


def planted(
    random: np.random.Generator,
    slope: float = 1.0,
    own: float = 0.0,
    slow: float = 0.0,
    processes: int = 5,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Return the times of a planted machine as logarithms.

    Its speed differs between processes and wanders within them, by 8% in total.

    Args:
        random: The random generator.
        slope: The true slope of step times on kernel times.
        own: Slowdown of the kernels that the model itself causes.
        slow: Slowdown of the whole machine.
        processes: The number of processes.

    Returns:
        Log step times around 0 and log kernel times, (blocks, processes) each. The third item
        contains the log kernel times before the model, per process.
    """
    steps = []
    kernels = []
    before = []
    for _ in range(processes):
        speed = np.empty(43)
        speed[0] = random.normal(0, 0.056)
        for moment in range(
            1, 43
        ):  # half a block and half a reference apart, correlated for about a second
            speed[moment] = 0.966 * speed[moment - 1] + 0.0145 * random.normal()
        speed += random.normal(0, 0.056) + slow
        before.append(float(np.mean(speed[:12] + random.normal(0, 0.02, 12))))
        between_blocks = speed[12:]
        taken = between_blocks[::2] + own + random.normal(0, 0.02, 16)
        steps.append(slope * between_blocks[1::2] + random.normal(0, 0.04, 15))
        kernels.append((taken[1:] + taken[:-1]) / 2)
    return np.transpose(steps), np.transpose(kernels), before


def found(count: int = POINTS, seed: int = 0, **settings: float) -> list[dict[str, float]]:
    random = np.random.default_rng(seed)
    return [at_reference(*planted(random, **settings), best=0.0) for _ in range(count)]  # type: ignore[arg-type]


def half(entry: dict[str, float]) -> float:
    return (
        math.log(entry["step_time_at_reference_high_ms"] / entry["step_time_at_reference_low_ms"])
        / 2
    )


def held(entries: list[dict[str, float]], log: float = 0.0) -> float:
    """Return the share of intervals that contain 1 s, or exp(`log`) seconds."""
    ends = [
        (entry["step_time_at_reference_low_ms"], entry["step_time_at_reference_high_ms"])
        for entry in entries
    ]
    return float(np.mean([low <= 1e3 * math.exp(log) <= high for low, high in ends]))


@pytest.mark.parametrize("best", [0.0, -0.15])
@pytest.mark.parametrize(
    ("processes", "slope", "wide"), [(3, 0.4, 1.0), (5, 0.0, 1.001), (5, 0.4, 1.0), (5, 1.0, 0.8)]
)
def test_the_interval_is_no_wider_and_covers_the_truth(
    processes: int, slope: float, wide: float, best: float
) -> None:
    """The cases include a machine that is 15% from the reference speed, which is far.

    If the slope is not used, the truth is the step time without correction.
    """
    random = np.random.default_rng(1)
    halves = []
    holds = 0
    for _ in range(POINTS):
        steps, kernels, before = planted(random, slope, processes=processes)
        entry = at_reference(steps, kernels, before, best)
        low, high = mean_interval(np.exp(np.median(steps, axis=0)).tolist())
        halves.append((half(entry), math.log(high / low) / 2))
        holds += held([entry], slope * best * bool(entry["reference_slope"]))
    ours, without = np.median(halves, axis=0)
    assert ours <= wide * without
    assert 0.91 <= holds / POINTS <= 0.985


def test_a_session_on_a_slow_machine_is_detected() -> None:
    """On a machine that is 15% slower, at least 93% of the intervals contain the truth.

    Only intervals with a slope that is precise enough for such a correction count.
    """
    entries = found(slow=0.15)
    assert len(used := [entry for entry in entries if entry["reference_slope"]]) > 0.6 * POINTS
    assert held(used) >= 0.93
    assert -np.median(np.log([entry["reference_speed"] for entry in entries])) == pytest.approx(
        0.15, abs=0.02
    )


@pytest.mark.parametrize("own", [0.02, 0.05, 0.15])
def test_a_side_that_slows_its_own_reference_does_not_win(own: float) -> None:
    """A side wins if its whole interval lies below the truth, which must be rare.

    It never wins by as much as it slowed the kernel.
    """
    entries = found(own=own)
    assert np.mean([entry["step_time_at_reference_high_ms"] < 1e3 for entry in entries]) <= 0.05
    assert (
        abs(np.median(np.log([entry["step_time_at_reference_ms"] / 1e3 for entry in entries])))
        < own / 4
    )


def test_one_process_is_brought_to_the_reference_speed_by_its_own_blocks() -> None:
    """The machine runs at 90% of its best speed and wanders by 5%; the steps follow its speed."""
    random = np.random.default_rng(0)
    kernels = 0.05 * random.standard_normal((20, 1))
    steps = kernels + 0.001 * random.standard_normal((20, 1))
    middle = float(kernels.mean())
    entry = at_reference(steps, kernels, [middle], middle + math.log(0.9), batch_size=64)
    assert (entry["reference_speed"], entry["reference_own"]) == pytest.approx((0.9, 0.0))
    assert entry["step_time_at_reference_ms"] == pytest.approx(900 * math.exp(middle), rel=1e-3)
    assert entry["examples_per_second_at_reference"] == pytest.approx(
        64e3 / entry["step_time_at_reference_ms"]
    )
    assert half(entry) < 0.005


def timing(blocks: int, kernel: dict[str, float], between: int = 1) -> Timing:
    references = [
        References(-1, kernel),
        *(References(at, kernel) for at in range(0, blocks + 1, between)),
    ]
    return Timing(10, [], [], [0.1] * blocks, True, "", None, references=references)


def test_devices_are_never_adjusted_to_each_other() -> None:
    """Without a best time in the same environment, a kernel has no information about the point."""
    kernel = {"arithmetic": 1e-3, "memory": 2e-3, "dispatch": 1e-5}
    assert "step_time_at_reference_ms" not in reference_metrics([timing(10, kernel)], {}, 8)
    known = reference_metrics([timing(10, kernel)], {"best_reference_arithmetic_ms": 0.8}, 8)
    assert known["reference_speed"] == pytest.approx(0.8)
    assert known["reference_arithmetic_ms"] == pytest.approx(1.0)
    assert known["step_time_at_reference_ms"] == pytest.approx(
        10.0
    )  # step and kernel do not move together


@pytest.mark.parametrize(
    ("before", "during", "slow"),
    [
        pytest.param(2, 2, True, id="slow machine"),
        pytest.param(1, 2, False, id="model slows kernels"),
        pytest.param(1.2, 1.2, False, id="slightly slow"),
    ],
)
def test_a_slow_machine_is_reported(before: float, during: float, slow: bool) -> None:
    seen = [
        References(at, dict.fromkeys(KERNELS, 1e-3 * taken))
        for at, taken in ((-1, before), (0, during), (6, during))
    ]
    result = answered(replace(timing(6, {}), references=seen), {"contention": QUIET})
    tags = recorded(
        read_point({"model": {"name": "fc"}}), result, peaks={"best_reference_arithmetic_ms": 1.0}
    ).tags
    if slow:
        reason = "the machine ran at 50% of its best speed (arithmetic)"
    else:
        reason = None
    assert (tags["contended"], tags.get("contended_reason")) == (str(slow).lower(), reason)


def test_processes_are_enough_once_their_times_at_one_speed_are_near_each_other() -> None:
    random = np.random.default_rng(4)
    steps, kernels, _ = planted(random)
    timings = []
    for step, kernel in zip(steps.T, kernels.T, strict=True):
        seen = [
            References(at, {"arithmetic": math.exp(value), "memory": 1.0, "dispatch": 1.0})
            for at, value in enumerate([*kernel, kernel[-1]])
        ]
        timings.append(Timing(1, [], [], np.exp(step).tolist(), True, "", None, references=seen))
    times = adjusted_times(timings)
    assert [len(each) for each in times] == [15] * 5
    before, after = (
        np.std([np.median(np.log(each)) for each in table]) for table in (np.exp(steps.T), times)
    )
    assert after < before / 2
    assert np.mean(np.log(np.concatenate(times))) == pytest.approx(np.mean(steps), abs=0.01)
    alone = [Timing(10, [], [], [0.1, 0.2], True, "", None)]
    assert adjusted_times(alone) == [[0.01, 0.02]]


def test_too_few_references_say_nothing() -> None:
    assert chosen_kernel([timing(10, {"arithmetic": 1e-3}, between=20)]) is None
    assert reference_metrics([Timing(10, [], [], [0.1], True, "", None)], {}, 8) == {}


class Slowing(Machine):
    """Machine with steps of 3 ms, and of 5 ms for the first step after a reference.

    A reference takes 15 ms. Four steps after it are not timed.
    """

    def __init__(self) -> None:
        super().__init__(lambda _: 0.003)
        self.cold = False

    def run(self, steps: int) -> float:
        self.now += 0.002 * self.cold
        self.cold = False
        return super().run(steps)

    def reference(self) -> dict[str, float]:
        self.now += 0.015
        self.cold = True
        return {"arithmetic": 0.005, "memory": 0.005, "dispatch": 0.005}


@pytest.mark.parametrize("share", [0.2, 0.05])
def test_references_take_their_share_and_leave_the_blocks_as_they_are(share: float) -> None:
    machine = Slowing()
    alone = Machine(lambda _: 0.003)
    protocol = Protocol(1.0, 10, 60.0, 0.05, 5.0, reference=share)
    result = measure_steps(
        machine.run, protocol, machine.phase, machine.clock, reference=machine.reference
    )
    plain = measure_steps(alone.run, protocol, alone.phase, alone.clock)
    assert result.blocks == pytest.approx(plain.blocks)
    assert (plain.references, plain.reference_seconds) == ([], 0.0)
    assert result.references[0].blocks == 0
    assert result.references[-1].blocks == len(result.blocks)
    taken = 0.029 * (len(result.references) - 1)
    assert result.reference_seconds == pytest.approx(taken)
    assert taken <= share * (taken + sum(result.blocks)) + 0.029


class Changing(Machine):
    """Machine whose times are multiplied by a function of its clock, apart from noise.

    Args:
        slow: The factor at a time of the machine's clock.
        model: Whether the factor applies only to the steps, and not to the kernels.
    """

    def __init__(self, slow: Callable[[float], float], model: bool = False) -> None:
        super().__init__(lambda _: 0.003 * slow(self.now) * self.random.normal(1, 0.05))
        self.slow = slow
        self.model = model
        self.random = np.random.default_rng(0)

    def reference(self) -> dict[str, float]:
        slow = 1.0 if self.model else self.slow(self.now)
        taken = {
            name: 0.005 * slow * self.random.normal(1, 0.01)
            for name in ("arithmetic", "memory", "dispatch")
        }
        self.now += sum(taken.values())
        return taken


def changing(
    slow: Callable[[float], float], between_blocks: bool, model: bool = False, **protocol: float
) -> Timing:
    machine = Changing(slow, model)
    reference = machine.reference if between_blocks else None
    protocol = replace(PROTOCOL, reference=True, **protocol)
    return measure_steps(machine.run, protocol, machine.phase, machine.clock, reference=reference)


def test_a_machine_that_gets_slower_does_not_make_a_point_unsteady() -> None:
    """A drift of the model itself, which no kernel shows, still makes a point unsteady.

    Without references, a drift of the model or of the machine makes it unsteady.
    """
    drift = partial(np.interp, xp=[1.0, 5.0], fp=[1.0, 1.3])
    seen = {
        (between_blocks, model): changing(drift, between_blocks, model)
        for between_blocks in (True, False)
        for model in (True, False)
    }
    assert {key for key, timing in seen.items() if not timing.repeated} == {(True, False)}
    assert seen[True, False].steady


def test_a_process_stops_on_its_times_at_one_speed_of_the_machine() -> None:
    """The speed of the machine oscillates by 10% within seconds."""
    alone, between_blocks = (
        changing(lambda now: 1 + 0.1 * math.sin(now), one, relative_interval=0.01) for one in (0, 1)
    )
    assert len(between_blocks.blocks) == 40
    assert len(alone.blocks) > 80
    low, high = block_interval(adjusted_times([between_blocks])[0])
    assert (high - low) / 2 / 0.003 < 0.01
