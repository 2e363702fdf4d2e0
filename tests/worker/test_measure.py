"""The protocol on a clock that the test turns, and series of block times: no real time decides
anything.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import binom, norm, rankdata
from statsmodels.tsa.stattools import acf

from benchmarks.steadiness import PROTOCOLS, coverage, errors_of_steady, planted, stopped
from paradnn.core.messages import Timing
from paradnn.worker.measure import FEWEST_TO_STOP, REPEATS, NotFinite, Protocol, measure_steps
from paradnn.worker.series import block_interval, find_change, median_interval, widened_interval

PROTOCOL = Protocol(
    min_seconds=1.0, min_blocks=10, max_seconds=60.0, block_seconds=0.1, warmup_seconds=5.0
)


class Machine:
    """Runs steps in simulated time: `cost(n)` is the duration of the n-th step."""

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


def measured(machine: Machine, protocol: Protocol = PROTOCOL) -> Timing:
    return measure_steps(machine.run, protocol, machine.phase, machine.clock)


def test_constant_steps_are_steady_and_exact() -> None:
    machine = Machine(lambda _: 0.003)
    result = measured(machine)
    assert result.steady
    assert machine.phases == ["warmup", "measure"]
    assert result.steps_per_block * 0.003 >= PROTOCOL.block_seconds
    assert all(block / result.steps_per_block == pytest.approx(0.003) for block in result.blocks)
    assert len(result.blocks) >= PROTOCOL.min_blocks
    assert sum(result.blocks) >= PROTOCOL.min_seconds
    assert result.final_loss == 1.0


def test_a_machine_that_never_settles_is_said_not_to() -> None:
    machine = Machine(lambda n: 0.01 * 1.0005**n)
    result = measured(machine)
    assert not result.steady
    assert "drift of +" in result.steady_reason
    assert len(result.blocks) >= 2**REPEATS * PROTOCOL.min_blocks


class Noise:
    """A watch that finds each attempt as disturbed as is planted, the last value ever after; `kept`
    is what counts.
    """

    def __init__(self, machine: Machine, *taken: float) -> None:
        self.begun: list[float] = []
        self.kept = -1
        self._machine = machine
        self._taken = taken

    def start(self) -> None:
        self.begun.append(self._machine.now)

    def stop(self) -> float:
        return self._taken[min(len(self.begun), len(self._taken)) - 1]

    def keep(self, attempt: int) -> None:
        self.kept = attempt


def watched(machine: Machine, *taken: float, protocol: Protocol = PROTOCOL) -> tuple[Timing, Noise]:
    noise = Noise(machine, *taken)
    return measure_steps(machine.run, protocol, machine.phase, machine.clock, noise), noise


def test_no_measurement_is_repeated_beyond_the_longest_time() -> None:
    machine = Machine(lambda n: 0.01 * 1.0005**n)
    result = measured(machine, replace(PROTOCOL, max_seconds=2.5))
    assert not result.steady
    assert len(result.blocks) < 2 * PROTOCOL.min_blocks


def restless(seed: int, noise: float = 0.05) -> Machine:
    """Steps whose times differ at random by five per cent, each for some blocks."""
    random = np.random.default_rng(seed)
    return Machine(lambda _: 0.1 * (1 + noise * float(random.standard_normal())))


def half_width(result: Timing) -> float:
    interval = block_interval(result.blocks)
    return (interval[1] - interval[0]) / 2 / statistics.median(result.blocks)


@pytest.mark.parametrize("wanted", [0.05, 0.02, 0.01])
def test_a_point_is_measured_until_its_interval_is_narrow(wanted: float) -> None:
    for seed in range(5):
        result = measured(restless(seed), replace(PROTOCOL, relative_interval=wanted))
        assert half_width(result) <= wanted
        assert len(result.blocks) >= FEWEST_TO_STOP


def test_the_longest_time_ends_a_wide_interval() -> None:
    machine = restless(0)
    result = measured(machine, replace(PROTOCOL, relative_interval=0.0001, max_seconds=8.0))
    assert sum(result.blocks) == pytest.approx(8.0, abs=0.2)
    assert half_width(result) > 0.0001


def test_a_loss_that_is_not_finite_ends_the_point() -> None:
    machine = Machine(lambda _: 0.01, lambda steps: float("nan") if steps > 50 else 1.0)
    with pytest.raises(NotFinite, match="nan"):
        measured(machine)


def test_disturbed_blocks_become_warm_up_and_are_measured_again() -> None:
    """The first attempt is disturbed, and slower; the second says nothing of a jump between the
    two.
    """
    machine = Machine(lambda _: 0.006)
    machine._cost = lambda _: 0.003 if len(noise.begun) > 1 else 0.006
    noise = Noise(machine, 0.5, 0.0)
    result = measure_steps(machine.run, PROTOCOL, machine.phase, machine.clock, noise)
    assert (len(noise.begun), noise.kept, result.steady) == (2, 1, True)
    assert statistics.median(result.blocks) == pytest.approx(0.003 * result.steps_per_block)
    assert max(result.warmup) == pytest.approx(0.006 * result.steps_per_block)


@pytest.mark.parametrize(("taken", "kept"), [((0.2, 0.6), 0), ((0.6, 0.2), 1), ((0.3, 0.3), 1)])
def test_where_every_attempt_is_disturbed_the_least_disturbed_counts(
    taken: tuple[float, float], kept: int
) -> None:
    """It costs one attempt more, and every block is kept."""
    machine = Machine(lambda _: 0.003)
    result, noise = watched(machine, *taken)
    assert (len(noise.begun), noise.kept) == (2, kept)
    assert (len(result.discarded) > 0) == (kept == 0)
    assert result.repeated == pytest.approx(sum(result.blocks), rel=0.2)
    per_block = result.steps_per_block
    trials = sum(trial.steps for trial in result.calibration)
    blocks = len(result.warmup) - 1 + len(result.blocks) + len(result.discarded)
    assert trials + per_block * blocks == machine.steps
    short, once = watched(
        Machine(lambda _: 0.003), 0.5, protocol=replace(PROTOCOL, max_seconds=1.5)
    )
    assert (len(once.begun), short.repeated) == (1, 0.0)


@pytest.mark.parametrize("n", [6, 7, 10, 25, 41, 90, 100])
def test_interval_is_the_narrowest_that_keeps_its_confidence(n: int) -> None:
    interval = median_interval(range(n))
    rank = interval[0] + 1  # of the lower end, from one
    assert interval[1] == n - rank
    assert 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(rank, n, 0.5) < 0.95


@pytest.mark.parametrize("n", [8, 25, 120])
def test_an_interval_is_widened_as_an_ar1_is(n: int) -> None:
    """By the correlation of the normal scores, as statsmodels has it, raised for what a short
    series hides.
    """
    values = np.exp(
        0.01 * lfilter([1.0], [1.0, -0.6], np.random.default_rng(n).standard_normal(n))
    ).tolist()
    seen = acf(norm.ppf((rankdata(values) - 0.5) / n), nlags=1)[1]
    r = np.clip((n * seen + min(5, n / 4)) / (n - min(6, 0.3 * n)), 0, 1 - 0.3 / n)
    middle = np.median(values)
    wider = math.sqrt((1 + r) / (1 - r))
    expected = [middle * (end / middle) ** wider for end in median_interval(values) or ()]
    assert widened_interval(values) == pytest.approx(expected)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("n", [20, 48, 120])
def test_few_series_of_correlated_values_get_an_interval_that_is_wrong(n: int, rho: float) -> None:
    """6% at most, and of 48 values 3%; of 600 series three standard deviations are 3%. Independent
    ones have one.
    """
    found = coverage(n, f"ar {rho}", 600)
    assert found.wrong < (0.035 if n == 48 else 0.09)
    assert rho or (found.given > 0.94 and found.width < 1.6)


def test_a_line_is_fitted_as_numpy_does() -> None:
    values = np.array([1 + 0.02 * index + 0.01 * (index % 3) for index in range(30)])
    change = find_change(values.tolist())
    slope, offset = np.polyfit(range(30), values, 1)
    rest = values - offset - slope * np.arange(30)
    assert change.at is None
    assert change.size * np.median(values) == pytest.approx(29 * slope)
    assert change.explained == pytest.approx(
        1 - (rest**2).sum() / ((values - values.mean()) ** 2).sum()
    )
    assert change.matters


def test_a_jump_is_found_where_it_is() -> None:
    values = [2.0 + 0.001 * (index % 2) for index in range(14)] + [
        3.0 + 0.001 * (index % 2) for index in range(6)
    ]
    change = find_change(values)
    assert change.at == 14
    assert change.size * statistics.median(values) == pytest.approx(1.0)
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
        pytest.param([0.01 * 1.6**-index for index in range(12)], "of -", id="towards zero"),
    ],
)
def test_a_fall_is_reported_relative_to_the_level_before(values: list[float], text: str) -> None:
    change = find_change(values)

    assert text in str(change)
    assert -1 < change.relative_size < 0


def test_a_clear_change_that_is_small_does_not_matter() -> None:
    assert not find_change([1.0] * 10 + [1.015] * 10).matters
    assert find_change([1.0] * 10 + [1.025] * 10).matters
    assert not find_change([1.0] * 6).matters


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
def test_few_steady_machines_are_called_unsteady(label: str, rho: float) -> None:
    timings, _ = planted("nothing", PROTOCOLS[label], rho, 0.03, 100)
    assert sum(not timing.steady for timing in timings) <= 8


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("name", ["jump of 50%", "slow warm-up"])
def test_what_is_reported_of_a_machine_that_settles_is_after_it(label: str, name: str) -> None:
    errors = errors_of_steady(*planted(name, PROTOCOLS[label], 0.7, 0.01, 40))
    assert not errors or statistics.median(errors) < 0.05


@pytest.mark.parametrize("label", list(PROTOCOLS))
def test_a_drift_is_seldom_called_steady(label: str) -> None:
    timings, _ = planted("drift of 5%/s", PROTOCOLS[label], 0.5, 0.01, 40)
    assert sum(timing.steady for timing in timings) <= 20


def test_a_jump_has_no_interval() -> None:
    """Two levels look like perfectly correlated noise, which says nothing of the median."""
    random = np.random.default_rng(0)
    for n in (8, 24, 60, 120):
        series = (np.repeat([1.0, 1.5], n // 2) * np.exp(random.normal(0, 0.01, n))).tolist()
        assert block_interval(series) is None


def test_a_stop_by_the_interval_holds_the_true_median() -> None:
    looking = replace(PROTOCOLS["standard"], relative_interval=0.02)
    held, _, _ = stopped(looking, rho=0.7, noise=0.03, series=60)
    assert held > 0.9
