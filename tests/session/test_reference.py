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
    """Return the logarithms of the times of a planted machine.

    Its speed differs between processes and drifts within them, by 8% in total.

    Args:
        random: Generator of the noise.
        slope: True slope of step times on kernel times.
        own: Slowdown of the kernels that the model itself causes, as a logarithm.
        slow: Slowdown of the whole machine, as a logarithm.
        processes: Number of processes.

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
        # Moments are half a block and half a reference apart, and correlated for about a second.
        for moment in range(1, 43):
            speed[moment] = 0.966 * speed[moment - 1] + 0.0145 * random.normal()
        speed += random.normal(0, 0.056) + slow
        before.append(float(np.mean(speed[:12] + random.normal(0, 0.02, 12))))
        between_blocks = speed[12:]
        taken = between_blocks[::2] + own + random.normal(0, 0.02, 16)
        steps.append(slope * between_blocks[1::2] + random.normal(0, 0.04, 15))
        kernels.append((taken[1:] + taken[:-1]) / 2)
    return np.transpose(steps), np.transpose(kernels), before


def planted_results(
    count: int = POINTS, seed: int = 0, **settings: float
) -> list[dict[str, float]]:
    random = np.random.default_rng(seed)
    return [at_reference(*planted(random, **settings), best=0.0) for _ in range(count)]  # type: ignore[arg-type]


def half_width(entry: dict[str, float]) -> float:
    return (
        math.log(entry["step_time_at_reference_high_ms"] / entry["step_time_at_reference_low_ms"])
        / 2
    )


def coverage(entries: list[dict[str, float]], log: float = 0.0) -> float:
    """Return the share of intervals that contain exp(`log`) seconds, by default 1 s."""
    ends = [
        (entry["step_time_at_reference_low_ms"], entry["step_time_at_reference_high_ms"])
        for entry in entries
    ]
    return float(np.mean([low <= 1e3 * math.exp(log) <= high for low, high in ends]))


@pytest.mark.parametrize("best", [0.0, -0.15])
@pytest.mark.parametrize(
    ("processes", "slope", "largest_ratio"),
    [
        pytest.param(3, 0.4, 1.0, id="three processes"),
        pytest.param(5, 0.0, 1.001, id="no slope"),
        pytest.param(5, 0.4, 1.0, id="moderate slope"),
        pytest.param(5, 1.0, 0.8, id="full slope"),
    ],
)
def test_the_corrected_interval_is_not_wider_and_covers_the_truth(
    processes: int, slope: float, largest_ratio: float, best: float
) -> None:
    """Compare intervals with and without the correction, also 15% from the reference speed.

    If the slope is not used, the truth is the step time without correction.
    """
    random = np.random.default_rng(1)
    half_widths = []
    holds = 0
    for _ in range(POINTS):
        steps, kernels, before = planted(random, slope, processes=processes)
        entry = at_reference(steps, kernels, before, best)
        low, high = mean_interval(np.exp(np.median(steps, axis=0)).tolist())
        half_widths.append((half_width(entry), math.log(high / low) / 2))
        holds += coverage([entry], slope * best * bool(entry["reference_slope"]))
    with_correction, without_correction = np.median(half_widths, axis=0)
    assert with_correction <= largest_ratio * without_correction
    assert 0.91 <= holds / POINTS <= 0.985


def test_a_slow_machine_is_detected_and_corrected() -> None:
    """Plant a machine that is 15% slower; at least 93% of the intervals must contain the truth.

    Only intervals with a slope that is precise enough for such a correction count.
    """
    entries = planted_results(slow=0.15)
    corrected = [entry for entry in entries if entry["reference_slope"]]
    assert len(corrected) > 0.6 * POINTS
    assert coverage(corrected) >= 0.93
    assert -np.median(np.log([entry["reference_speed"] for entry in entries])) == pytest.approx(
        0.15, abs=0.02
    )


@pytest.mark.parametrize("own", [0.02, 0.05, 0.15])
def test_a_model_that_slows_the_reference_kernels_does_not_look_fast(own: float) -> None:
    """Plant a model that slows its reference kernels, which must not make it look fast.

    The whole interval may rarely be below the truth. The median error must be far smaller than the
    slowdown of the kernels.
    """
    entries = planted_results(own=own)
    assert np.mean([entry["step_time_at_reference_high_ms"] < 1e3 for entry in entries]) <= 0.05
    assert (
        abs(np.median(np.log([entry["step_time_at_reference_ms"] / 1e3 for entry in entries])))
        < own / 4
    )


def test_a_single_process_is_corrected_to_the_reference_speed() -> None:
    """Plant a machine at 90% of its best speed that varies by 5%; steps follow its speed."""
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
    assert half_width(entry) < 0.005


def timing(blocks: int, kernel: dict[str, float], between: int = 1) -> Timing:
    references = [
        References(-1, kernel),
        *(References(at, kernel) for at in range(0, blocks + 1, between)),
    ]
    return Timing(10, [], [], [0.1] * blocks, True, "", None, references=references)


def test_times_are_corrected_only_with_a_best_time_of_the_same_environment() -> None:
    """Without a best time in the same environment, the kernel times allow no correction."""
    kernel = {"arithmetic": 1e-3, "memory": 2e-3, "dispatch": 1e-5}
    assert "step_time_at_reference_ms" not in reference_metrics([timing(10, kernel)], {}, 8)
    known = reference_metrics([timing(10, kernel)], {"best_reference_arithmetic_ms": 0.8}, 8)
    assert known["reference_speed"] == pytest.approx(0.8)
    assert known["reference_arithmetic_ms"] == pytest.approx(1.0)
    # Constant times do not show that the steps follow the kernel, so there is no correction.
    assert known["step_time_at_reference_ms"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("before", "during", "slow"),
    [
        pytest.param(2, 2, True, id="slow machine"),
        pytest.param(1, 2, False, id="model slows kernels"),
        pytest.param(1.2, 1.2, False, id="slightly slow"),
    ],
)
def test_a_slow_machine_is_reported(before: float, during: float, slow: bool) -> None:
    references = [
        References(at, dict.fromkeys(KERNELS, 1e-3 * taken))
        for at, taken in ((-1, before), (0, during), (6, during))
    ]
    result = answered(replace(timing(6, {}), references=references), {"contention": QUIET})
    tags = recorded(
        read_point({"model": {"name": "fc"}}), result, peaks={"best_reference_arithmetic_ms": 1.0}
    ).tags
    if slow:
        reason = "the machine ran at 50% of its best speed (arithmetic)"
    else:
        reason = None
    assert (tags["contended"], tags.get("contended_reason")) == (str(slow).lower(), reason)


def test_adjustment_reduces_the_differences_between_processes() -> None:
    random = np.random.default_rng(4)
    steps, kernels, _ = planted(random)
    timings = []
    for step, kernel in zip(steps.T, kernels.T, strict=True):
        references = [
            References(at, {"arithmetic": math.exp(value), "memory": 1.0, "dispatch": 1.0})
            for at, value in enumerate([*kernel, kernel[-1]])
        ]
        timings.append(
            Timing(1, [], [], np.exp(step).tolist(), True, "", None, references=references)
        )
    times = adjusted_times(timings)
    assert [len(each) for each in times] == [15] * 5
    before, after = (
        np.std([np.median(np.log(each)) for each in table]) for table in (np.exp(steps.T), times)
    )
    assert after < before / 2
    assert np.mean(np.log(np.concatenate(times))) == pytest.approx(np.mean(steps), abs=0.01)
    alone = [Timing(10, [], [], [0.1, 0.2], True, "", None)]
    assert adjusted_times(alone) == [[0.01, 0.02]]


def test_too_few_references_give_no_metrics() -> None:
    assert chosen_kernel([timing(10, {"arithmetic": 1e-3}, between=20)]) is None
    assert reference_metrics([Timing(10, [], [], [0.1], True, "", None)], {}, 8) == {}


class SlowingMachine(Machine):
    """Machine with steps of 3 ms, except for the first step after a reference, which takes 5 ms.

    A reference takes 15 ms. The four steps after it are not timed.
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
def test_references_take_their_share_and_do_not_change_the_blocks(share: float) -> None:
    machine = SlowingMachine()
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


class ChangingMachine(Machine):
    """Machine with random noise whose times are multiplied by a function of its clock.

    Args:
        slow: Function of the machine's clock in seconds that returns the factor.
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


def measure_changing_machine(
    slow: Callable[[float], float], between_blocks: bool, model: bool = False, **protocol: float
) -> Timing:
    machine = ChangingMachine(slow, model)
    reference = machine.reference if between_blocks else None
    protocol = replace(PROTOCOL, reference=True, **protocol)
    return measure_steps(machine.run, protocol, machine.phase, machine.clock, reference=reference)


def test_a_slowing_machine_does_not_make_a_point_unsteady() -> None:
    """Plant drifts of the machine and of the model, with and without references.

    A drift of the model, which no kernel shows, makes the point unsteady. Without references, any
    drift does.
    """
    drift = partial(np.interp, xp=[1.0, 5.0], fp=[1.0, 1.3])
    references = {
        (between_blocks, model): measure_changing_machine(drift, between_blocks, model)
        for between_blocks in (True, False)
        for model in (True, False)
    }
    assert {key for key, timing in references.items() if not timing.repeated} == {(True, False)}
    assert references[True, False].steady


def test_a_process_ends_once_its_adjusted_interval_is_narrow() -> None:
    """Plant a machine whose speed oscillates by 10% within seconds."""
    alone, between_blocks = (
        measure_changing_machine(
            lambda now: 1 + 0.1 * math.sin(now), with_references, relative_interval=0.01
        )
        for with_references in (0, 1)
    )
    assert len(between_blocks.blocks) == 40
    assert len(alone.blocks) > 80
    low, high = block_interval(adjusted_times([between_blocks])[0])
    assert (high - low) / 2 / 0.003 < 0.01
