"""Statistics of series of block times, compared with dense linear algebra and plain NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg, stats

from paradnn.core.messages import References, Timing
from paradnn.worker.series import (
    _CRITICAL_SHARES,
    MIN_VALUES,
    _odds_of_long_memory,
    adjusted_times,
    block_interval,
    chosen_kernel,
    find_change,
    learn_slope,
    missing_interval_reason,
    process_mean,
    slowness,
    step_logs,
    widened_interval,
)


def restricted_likelihood(logs: np.ndarray, r: float) -> float:
    """Return the log restricted likelihood of an AR(1), from its dense covariance matrix."""
    n = len(logs)
    covariance = linalg.toeplitz(r ** np.arange(n)) / (1 - r * r)
    inverse = linalg.inv(covariance)
    ones = np.ones(n)
    information = ones @ inverse @ ones
    mean = ones @ inverse @ logs / information
    squares = (logs - mean) @ inverse @ (logs - mean)
    _, log_determinant = np.linalg.slogdet(covariance)
    return -0.5 * (log_determinant + math.log(information) + (n - 1) * math.log(squares))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [20, 50])
def test_odds_of_long_memory_equal_the_dense_likelihood(n: int, seed: int) -> None:
    values = np.exp(np.random.default_rng(seed).normal(0, 0.1, n).cumsum())

    odds = _odds_of_long_memory(values.tolist())

    logs = np.log(values)
    expected = restricted_likelihood(logs, 0.9) - restricted_likelihood(logs, 0.6)
    assert odds == pytest.approx(expected, rel=1e-9, abs=1e-9)


def planted_series(slope: float, noise: float, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return log step times and log kernel times of one process, as columns."""
    random = np.random.default_rng(5)
    kernels = random.normal(0, 0.1, n).cumsum()
    steps = slope * kernels + random.normal(0, noise, n)
    return steps[:, None], kernels[:, None]


@pytest.mark.parametrize(
    ("slope", "noise"),
    [
        pytest.param(0.6, 0.05, id="follows the kernel"),
        pytest.param(0.6, 0.5, id="noisy"),
        pytest.param(0.02, 0.1, id="hardly follows"),
    ],
)
def test_a_slope_agrees_with_least_squares(slope: float, noise: float) -> None:
    steps, kernels = planted_series(slope, noise)
    x = kernels[:, 0] - kernels.mean()
    y = steps[:, 0] - steps.mean()
    n = len(x)
    fitted = np.polyfit(x, y, 1)[0]
    residuals = y - fitted * x
    variance = residuals @ residuals / (n - 2) / (x @ x)
    # Bartlett's factor, from correlations of neighbors with means instead of sums.
    neighbors = (x[1:] @ x[:-1]) * (residuals[1:] @ residuals[:-1]) / (n - 1) ** 2
    product = neighbors / (x @ x * (residuals @ residuals) / n**2)
    variance *= (1 + max(product, 0)) / (1 - max(product, 0))
    two_apart = (x[2:] @ y[:-2] + x[:-2] @ y[2:]) / (2 * x[2:] @ x[:-2])

    result = learn_slope(steps, kernels)

    assert result.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert result.error == pytest.approx(math.sqrt(variance))
    assert result.shrunk == pytest.approx(min(1, max(0, fitted - 4 * variance / fitted)))
    assert result.seen == pytest.approx(two_apart)


@pytest.mark.parametrize(
    ("slope", "shrunk"),
    [pytest.param(-0.6, 0.0, id="opposite"), pytest.param(1.8, 1.0, id="steeper than the kernel")],
)
def test_a_slope_is_limited(slope: float, shrunk: float) -> None:
    assert learn_slope(*planted_series(slope, 0.01)).shrunk == shrunk


@pytest.mark.parametrize(
    ("steps", "kernels"),
    [
        pytest.param(np.arange(MIN_VALUES - 1.0), np.arange(MIN_VALUES - 1.0), id="too few blocks"),
        pytest.param(np.arange(20.0), np.ones(20), id="constant kernel"),
        pytest.param(np.ones(20), np.arange(20.0), id="constant step"),
    ],
)
def test_without_information_the_slope_is_zero(steps: np.ndarray, kernels: np.ndarray) -> None:
    result = learn_slope(steps[:, None], kernels[:, None])

    assert result[:3] == (0.0, 0.0, 0.0)
    assert math.isnan(result.error)


def test_the_minimum_number_of_blocks_suffices_for_a_slope() -> None:
    steps, kernels = planted_series(0.6, 0.001, MIN_VALUES)

    assert learn_slope(steps, kernels).shrunk == pytest.approx(0.6, abs=0.05)


def test_an_interval_within_the_extremes_is_not_clipped() -> None:
    values = np.exp(np.random.default_rng(3).normal(0, 0.1, 200)).tolist()

    interval = block_interval(values)

    assert interval == widened_interval(values)
    assert min(values) < interval[0] < np.median(values) < interval[1] < max(values)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        pytest.param([1.0, 2.0, 1.1, 1.9, 1.2, 1.8], (1.0, 2.0), id="alternating"),
        pytest.param([1.0, 1.1, 1.2, 1.8, 1.9, 2.0], None, id="rising"),
        pytest.param([1.0, 2.0, 1.1, 1.9, 1.2], None, id="five values"),
    ],
)
def test_six_values_keep_their_extremes_unless_they_are_correlated(
    values: list[float], interval: tuple[float, float] | None
) -> None:
    result = block_interval(values)

    if interval is None:
        assert result is None
    else:
        assert result == pytest.approx(interval)


@pytest.mark.parametrize(
    ("count", "start"),
    [
        pytest.param(5, "5 blocks, but an interval needs 6; raise measure.max_seconds", id="few"),
        pytest.param(6, "6 blocks are too strongly autocorrelated", id="correlated"),
    ],
)
def test_a_missing_interval_has_a_reason_and_a_remedy(count: int, start: str) -> None:
    reason = missing_interval_reason([1.0] * count)

    assert reason.startswith(start)
    assert "measure." in reason.partition(";")[2]


def lag_one(scores: np.ndarray) -> float:
    return float(scores[1:] @ scores[:-1] / (scores @ scores))


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("n", [8, 19, 60, 200])
def test_an_interval_is_widened_as_documented(n: int, memory: float) -> None:
    """Compare with normal scores and the sign test's binomial ranks from SciPy."""
    random = np.random.default_rng(n)
    noise = random.normal(0, 0.1, n)
    for index in range(1, n):
        noise[index] += memory * noise[index - 1]
    values = np.exp(noise)
    scores = stats.norm.ppf((stats.rankdata(values) - 0.5) / n)
    corrected = (n * lag_one(scores) + min(5, n / 4)) / (n - min(6, 0.3 * n))
    r = np.clip(corrected, 0, 1 - 0.3 / n)
    rank = int(stats.binom.ppf(0.025, n, 0.5))
    ends = np.log(np.sort(values)[[rank - 1, n - rank]] / np.median(values))

    interval = widened_interval(values.tolist())

    expected = np.median(values) * np.exp(ends * np.sqrt((1 + r) / (1 - r)))
    assert interval == pytest.approx(expected.tolist())


@pytest.mark.parametrize("n", [6, 8, 12, 16])
def test_few_values_keep_their_extremes_if_their_coverage_suffices(n: int) -> None:
    """Compare with the probability that all values are on the same side of the median.

    Two neighbors are on the same side with probability 1/2 + asin(r) / pi (Sheppard 1899).
    """
    random = np.random.default_rng(n)
    outcomes = set()
    for memory in np.linspace(0, 0.95, 40):
        noise = random.normal(0, 0.1, n)
        for index in range(1, n):
            noise[index] += memory * noise[index - 1]
        values = np.exp(noise)
        low, high = widened_interval(values.tolist())
        if low >= values.min() or high <= values.max():
            continue
        scores = stats.norm.ppf((stats.rankdata(values) - 0.5) / n)
        same_side = 0.5 + np.arcsin(np.clip(lag_one(scores), 0, 1)) / np.pi
        is_sufficient = bool(same_side ** (n - 1) <= 0.05)

        assert (block_interval(values.tolist()) is not None) == is_sufficient
        outcomes.add(is_sufficient)
    assert outcomes


def series_with_possible_long_memory(n: int) -> np.ndarray:
    """Return a series that may have a long memory: its AR(1) coefficient may be 0.9.

    One end of its widened interval is inside its range.
    """
    for seed in range(1000):
        noise = np.random.default_rng(seed).normal(0, 0.1, n)
        for index in range(1, n):
            noise[index] += 0.6 * noise[index - 1]
        values = np.exp(noise)
        low, high = widened_interval(values.tolist())
        has_inner_end = low > values.min() or high < values.max()
        if has_inner_end and _odds_of_long_memory(values.tolist()) > -2:
            return values
    raise AssertionError(f"no such series of {n} values in 1,000 seeds")


@pytest.mark.parametrize(
    ("n", "has_extremes"),
    [
        pytest.param(19, False, id="below the range"),
        pytest.param(20, True, id="fewest of the range"),
        pytest.param(79, True, id="most of the range"),
        pytest.param(80, False, id="above the range"),
    ],
)
def test_a_possible_long_memory_extends_the_interval_to_the_extremes(
    n: int, has_extremes: bool
) -> None:
    values = series_with_possible_long_memory(n)
    low, high = widened_interval(values.tolist())
    extremes = (values.min(), values.max())
    clipped = (max(low, extremes[0]), min(high, extremes[1]))

    interval = block_interval(values.tolist())

    assert clipped != extremes
    assert interval == (extremes if has_extremes else clipped)


def test_an_interval_stays_within_the_range_of_a_float() -> None:
    """Plant rising values: they are strongly correlated, so the interval extends far beyond."""
    values = np.logspace(-250, 250, 8).tolist()

    assert widened_interval(values) == pytest.approx((math.exp(-700), math.exp(700)))


def test_the_slope_corrected_for_noise_is_limited() -> None:
    assert learn_slope(*planted_series(1.8, 0.01)).seen == 1.2


def test_kernels_that_reverse_within_two_blocks_keep_the_plain_slope() -> None:
    """Plant opposite kernel times two blocks apart, from which no noise can be estimated."""
    kernels = np.tile([0.1, 0.1, -0.1, -0.1], 10)
    steps = 0.6 * kernels + np.random.default_rng(1).normal(0, 0.01, 40)

    result = learn_slope(steps[:, None], kernels[:, None])

    assert result.seen == pytest.approx(np.polyfit(kernels, steps, 1)[0])


def test_an_exact_slope_has_no_error() -> None:
    kernels = np.tile([1.0, 1.0, -1.0, -1.0], 4)

    result = learn_slope(0.5 * kernels[:, None], kernels[:, None])

    assert result == (0.5, 1.0, 0.5, 0.0)


def test_the_correction_for_correlated_neighbors_is_limited() -> None:
    """Plant orthogonal trends, one straight and one quadratic, whose neighbors nearly agree."""
    kernels = np.linspace(-1, 1, 400)
    quadratic = kernels**2 - np.mean(kernels**2)
    variance = (quadratic @ quadratic) / (400 - 2) / (kernels @ kernels)

    result = learn_slope((0.6 * kernels + quadratic)[:, None], kernels[:, None])

    assert result.error == pytest.approx(math.sqrt(variance * 1.95 / 0.05))


def process_with_references(
    seconds: list[float], at: list[int], kernel_seconds: list[float], steps_per_block: int = 1
) -> Timing:
    """Return the timing of a process with reference kernels.

    Args:
        seconds: Block times.
        at: Number of blocks before each reference; -1 is before the model was built.
        kernel_seconds: Times of the dispatch kernel; the other kernels always take 1 s.
        steps_per_block: Steps of each block.
    """
    references = [
        References(blocks, {"arithmetic": 1.0, "memory": 1.0, "dispatch": taken})
        for blocks, taken in zip(at, kernel_seconds, strict=True)
    ]
    return Timing(steps_per_block, [], [], seconds, True, "", None, references=references)


def test_kernel_times_are_interpolated_at_the_middle_of_each_block() -> None:
    """Ignore the reference that ran before the model was built."""
    process = process_with_references([1.0] * 4, [-1, 0, 2, 4], [9.0, 1.0, 4.0, 1.0])

    logs = slowness([process], "dispatch")

    expected = np.log(4) * np.array([0.25, 0.75, 0.75, 0.25])
    assert logs[:, 0] == pytest.approx(expected)


def test_a_process_with_fewer_blocks_has_missing_values() -> None:
    logs = step_logs(
        [process_with_references([2.0, 4.0], [], [], 2), process_with_references([8.0], [], [], 4)]
    )

    assert logs == pytest.approx(np.log([[1.0, 2.0], [2.0, math.nan]]), nan_ok=True)
    assert process_mean(logs) == pytest.approx((np.log(2) / 2 + np.log(2)) / 2)


@pytest.mark.parametrize(
    ("at", "kernel"),
    [
        pytest.param([], None, id="no reference"),
        pytest.param([-1, 0], None, id="one reference during the blocks"),
        pytest.param([0, 8], "dispatch", id="two references"),
    ],
)
def test_a_kernel_is_chosen_if_two_references_ran_during_the_blocks(
    at: list[int], kernel: str | None
) -> None:
    blocks = np.exp(0.5 * np.arange(8) / 8).tolist()
    process = process_with_references(blocks, at, [2.0 + place for place in at])

    assert chosen_kernel([process]) == kernel


def test_without_processes_no_kernel_is_chosen() -> None:
    assert chosen_kernel([]) is None


def test_times_are_adjusted_to_the_mean_speed_of_all_processes() -> None:
    """Plant steps with exactly half of the kernels' slowdown, and a 2% slower second process."""
    speed = np.tile([0.2, 0.2, -0.2, -0.2], 4)
    turning_points = np.arange(17)
    turning_logs = 0.3 + np.interp(turning_points, np.arange(16) + 0.5, speed)
    processes = []
    for factor in (1.0, 1.02):
        process = process_with_references(
            [1.0] * 16, turning_points.tolist(), np.exp(turning_logs).tolist()
        )
        kernels = slowness([process], "dispatch")[:, 0]
        blocks = (factor * np.exp(0.5 * kernels)).tolist()
        processes.append(replace(process, blocks=blocks))

    adjusted = adjusted_times(processes)

    shift = math.exp(0.5 * float(np.mean(kernels)))
    slope = learn_slope(step_logs(processes), slowness(processes, "dispatch"))
    assert slope.shrunk == pytest.approx(0.5, abs=0.05)
    for times, factor in zip(adjusted, (1.0, 1.02), strict=True):
        expected = factor * np.exp((0.5 - slope.shrunk) * (kernels - np.mean(kernels))) * shift
        assert times == pytest.approx(expected.tolist())


def test_the_critical_share_falls_with_the_length_of_a_series() -> None:
    """Check the table of critical shares; its simulation noise is up to 0.05."""
    table = np.array(list(_CRITICAL_SHARES.values()))

    assert (np.diff(table, axis=0) < 0.05).all()
    assert ((table > 0) & (table < 1)).all()
    assert list(_CRITICAL_SHARES) == sorted(_CRITICAL_SHARES)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        pytest.param(2, 2, id="two values before"),
        pytest.param(10, 10, id="two values after"),
        pytest.param(11, 10, id="one value after counts with its neighbor"),
    ],
)
def test_a_jump_has_at_least_two_values_on_either_side(at: int, expected: int) -> None:
    values = np.where(np.arange(12) < at, 1.0, 1.5) + 1e-3 * (np.arange(12) % 2)

    change = find_change(values.tolist())

    assert change.at == expected


def test_equal_values_show_no_change() -> None:
    change = find_change([2.0] * 10)

    assert (change.size, change.explained, change.correlation) == (0.0, 0.0, 0.0)
    assert not change.matters


@pytest.mark.parametrize(
    ("n", "has_interval"), [pytest.param(9, False, id="nine"), pytest.param(10, True, id="ten")]
)
def test_fewer_than_ten_rising_values_have_no_interval(n: int, has_interval: bool) -> None:
    """All values are on one side with a probability of 5.7% (nine values) or 4.6% (ten)."""
    scores = stats.norm.ppf((np.arange(n) + 0.5) / n)
    same_side = 0.5 + np.arcsin(lag_one(scores)) / np.pi

    interval = block_interval(np.linspace(1.0, 2.0, n).tolist())

    assert (same_side ** (n - 1) <= 0.05) == has_interval
    assert (interval is not None) == has_interval
