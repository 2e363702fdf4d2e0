"""Analysis of a series of block times in the order of measurement.

The module decides whether a series is steady, computes the confidence interval of its median, and
removes the variation of the machine's speed. The worker and the driver both use it.

Blocks of one process are not independent: on a shared machine, their lag-one correlation is 0.6 to
0.8. The steadiness verdict and the interval both account for this correlation, with a first-order
autoregression, AR(1), as the model.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from paradnn.core.messages import Timing
from paradnn.core.words import counted
from paradnn.worker.chance import quantile_ranks

#: A series with fewer values has neither a verdict nor an interval.
MIN_VALUES = 6
#: For series of up to this many values, the interval may be the range of the values (see
#: `block_interval`).
_FEW_VALUES = 16
#: Series lengths at which the estimated AR(1) coefficient may be 0.6 although the true one is 0.9.
#: The interval would then be widened too little.
_UNSURE_LENGTHS = range(20, 80)
#: Changes below this share of the median are ignored, however significant they are.
SMALLEST_CHANGE = 0.02

#: Critical share of the variance that the best line or jump explains: by chance, 10% of steady
#: series exceed it. Rows: the length of the series. Columns: the lag-one correlation of the
#: residuals (`_CORRELATIONS`). `python -m benchmarks.steadiness --table` simulated the values from
#: AR(1) series with the coefficients 0, 0.5, 0.7 and 0.9, equally often.
_CRITICAL_SHARES = {
    6: (0.87, 0.89, 0.89, 0.86, 0.86),
    8: (0.83, 0.84, 0.82, 0.82, 0.81),
    10: (0.78, 0.80, 0.80, 0.80, 0.66),
    14: (0.71, 0.75, 0.77, 0.72, 0.65),
    20: (0.47, 0.69, 0.73, 0.72, 0.62),
    30: (0.23, 0.41, 0.60, 0.68, 0.66),
    40: (0.16, 0.22, 0.44, 0.60, 0.65),
    60: (0.10, 0.12, 0.27, 0.37, 0.58),
    80: (0.08, 0.09, 0.20, 0.26, 0.51),
    160: (0.04, 0.05, 0.09, 0.12, 0.36),
    320: (0.02, 0.02, 0.03, 0.06, 0.22),
}
_CORRELATIONS = (-0.2, 0.0, 0.2, 0.4, 0.6)


@dataclass(frozen=True)
class Change:
    """Largest change in a series of block times: a jump, or a linear drift from start to end.

    Attributes:
        size: The change as a share of the series' median.
        at: The index of the first value after the jump; None for a drift.
        explained: The share of the variance that the change explains.
        correlation: The lag-one correlation of the residuals.
        chance_share: Critical value of `explained`. In 10% of series without a change, the best
            line or jump explains a larger share by chance.
        relative_size: The change relative to the level before the change; at least -1.
    """

    size: float
    at: int | None
    explained: float
    correlation: float
    chance_share: float
    relative_size: float = 0.0

    @property
    def matters(self) -> bool:
        """Whether the change is large and unlikely to be chance, so the series is not steady."""
        return abs(self.size) > SMALLEST_CHANGE and self.explained > self.chance_share

    def __str__(self) -> str:
        if self.at is None:
            kind = "drift"
        else:
            kind = f"jump before block {self.at + 1}"
        evidence = (
            f"explains {self.explained:.0%} of the variance (chance: up to {self.chance_share:.0%})"
        )
        return f"{kind} of {self.relative_size:+.1%} {evidence}"


def find_change(values: Sequence[float]) -> Change:
    """Return the linear drift or the jump that explains the largest share of a series' variance.

    The series consists of block times. Drift and jump are fitted by least squares. Each side of a
    jump has at least two values and at least a tenth of the series. The share of the variance that
    a fit explains by chance depends on the correlation of the residuals.

    Args:
        values: At least `MIN_VALUES` positive values, in the order of measurement.
    """
    n = len(values)
    centered = np.asarray(values) - np.mean(values)
    times = np.arange(n) - (n - 1) / 2
    slope = times @ centered / (times @ times)
    rest = centered - slope * times
    size = slope * (n - 1)
    at = None
    edge = max(2, n // 10)
    positions = np.arange(edge, n - edge + 1)
    sums = np.cumsum(centered)[positions - 1]
    best = int(np.argmax(sums**2 / (positions * (n - positions))))
    jump = int(positions[best])
    before = sums[best] / jump
    after = -sums[best] / (n - jump)
    stepped = centered - np.where(np.arange(n) < jump, before, after)
    if stepped @ stepped < rest @ rest:
        rest = stepped
        size = after - before
        at = jump
    total = centered @ centered
    correlation = _lag_one(rest)
    explained = 1 - rest @ rest / total if total else 0.0
    # Interpolate the share explained by chance in the correlation and in the logarithm of n.
    by_length = [
        np.interp(correlation, _CORRELATIONS, shares) for shares in _CRITICAL_SHARES.values()
    ]
    chance = np.interp(math.log(n), np.log(list(_CRITICAL_SHARES)), by_length)
    if at is None:
        first, last = np.mean(values) - size / 2, np.mean(values) + size / 2
        # A line through positive values may reach below 0. If so, compare the mean of the first
        # `edge` values with the mean of the last.
        if min(first, last) <= 0:
            first, last = np.mean(values[:edge]), np.mean(values[-edge:])
    else:
        first, last = np.mean(values[:at]), np.mean(values[at:])
    return Change(
        size=float(size / np.median(values)),
        at=at,
        explained=float(explained),
        correlation=correlation,
        chance_share=float(chance),
        relative_size=float(last / first - 1),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the median of independent values.

    The sign test gives the interval, which runs from the k-th smallest to the k-th largest value
    (Conover, Practical Nonparametric Statistics, section 3.2). The result is None for fewer than
    six values.
    """
    first, last = quantile_ranks(len(values), 0.5)
    if first is None or last is None:
        return None
    ordered = sorted(values)
    return ordered[first], ordered[last]


def block_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the median of positive, autocorrelated values.

    The interval is the `widened_interval`, clipped to the range from the smallest to the largest
    value. If both widened ends lie outside the range, the values do not determine an interval, and
    the result is None. There are two exceptions:

    - At most `_FEW_VALUES` values are too few to estimate their correlation. If both widened ends
      lie outside the range, the interval is the whole range, provided that the range covers the
      median with 95% probability.
    - With a number of values in `_UNSURE_LENGTHS`, the AR(1) coefficient is uncertain. If the
      values are compatible with 0.9, the interval is the whole range.

    `python -m benchmarks.steadiness --coverage` measures how many intervals contain a known median;
    see docs/explanation/method.md.

    Args:
        values: Block times, in the order of measurement.

    Returns:
        The lower and the upper end, in the unit of the values; None if there is no interval.
    """
    ends = widened_interval(values)
    if ends is None:
        return None
    least = min(values)
    most = max(values)
    n = len(values)
    if ends[0] < least and ends[1] > most:
        # In an AR(1) with coefficient r, two neighbors are on the same side of the median with
        # probability p = 1/2 + asin(r) / pi (Sheppard 1899). If the sides form a Markov chain, all
        # n values are on one side with probability p^(n - 1): 3% if n is 6 and r is 0.
        one_side = 0.5 + math.asin(min(max(_rank_correlation(values), 0.0), 1.0)) / math.pi
        if n > _FEW_VALUES or one_side ** (n - 1) > 0.05:
            return None
    elif n in _UNSURE_LENGTHS and most > least and _odds_of_long_memory(values) > -2:
        return least, most
    return max(ends[0], least), min(ends[1], most)


def missing_interval_reason(values: Sequence[float]) -> str:
    """Say why `block_interval` returns None, and what the user should do.

    Args:
        values: The block times for which `block_interval` returns None.
    """
    blocks = counted(len(values), "block")
    if len(values) < MIN_VALUES:
        return (
            f"{blocks}, but an interval needs {MIN_VALUES}; "
            "raise measure.max_seconds or measure.min_blocks"
        )
    remedy = "raise measure.min_seconds, or measure in several processes (measure.processes=5)"
    return (
        f"{blocks} are too strongly autocorrelated "
        f"(worth fewer than {MIN_VALUES} independent blocks); {remedy}"
    )


def widened_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the median of positive, autocorrelated values, before clipping.

    On a logarithmic scale, the distances of both ends of the `median_interval` from the median are
    multiplied by sqrt((1 + r) / (1 - r)). With correlation r, the standard error of the mean of an
    AR(1) process grows by this factor.

    r is the lag-one correlation of the normal scores of the values. A short series underestimates
    the correlation, so r is replaced by (n r + 5) / (n - 6). This is more cautious than Kendall's
    correction (n r + 1) / (n - 3), since r is itself uncertain. For n below 20 the constants 5 and
    6 are replaced by n / 4 and 0.3 n. The result is limited to the range from 0 to 1 - 0.3 / n.

    Args:
        values: n positive values, such as block times, in the order of measurement.

    Returns:
        The ends of the interval, which may lie outside the range of the values; None for fewer than
        six values.
    """
    interval = median_interval(values)
    n = len(values)
    if interval is None:
        return None
    r = (n * _rank_correlation(values) + min(5.0, n / 4)) / (n - min(6.0, 0.3 * n))
    r = min(max(r, 0.0), 1 - 0.3 / n)
    middle = statistics.median(values)
    factor = math.sqrt((1 + r) / (1 - r))
    low, high = (math.log(middle) + factor * math.log(end / middle) for end in interval)
    # The limits keep the ends within the range of a float.
    return math.exp(max(low, -700.0)), math.exp(min(high, 700.0))


def _rank_correlation(values: Sequence[float]) -> float:
    """Return the lag-one correlation of the values' normal scores."""
    normal = statistics.NormalDist()
    scores = np.zeros(len(values))
    for rank, index in enumerate(np.argsort(values, kind="stable")):
        scores[index] = normal.inv_cdf((rank + 0.5) / len(values))
    return _lag_one(scores)


def _odds_of_long_memory(values: Sequence[float]) -> float:
    """Return the log likelihood ratio of the AR(1) coefficients 0.9 and 0.6; positive favors 0.9.

    The likelihood of the logarithms is the restricted one, in which mean and variance are nuisance
    parameters (Harville, Biometrika 61, 1974).
    """
    logs = np.log(values)

    def likelihood(r: float) -> float:
        weights = np.full(len(logs), 1 - r)  # weights of the values in the estimated mean
        weights[[0, -1]] = 1.0
        rest = logs - weights @ logs / weights.sum()
        squares = (1 - r * r) * rest[0] ** 2 + np.sum((rest[1:] - r * rest[:-1]) ** 2)
        return 0.5 * math.log((1 + r) / weights.sum()) - 0.5 * (len(logs) - 1) * math.log(squares)

    return likelihood(0.9) - likelihood(0.6)


def _lag_one(centered: np.ndarray) -> float:
    power = centered @ centered
    return float(centered[:-1] @ centered[1:] / power) if power else 0.0


# The times of fixed reference kernels, which run between the blocks, are a control variate
# (Lavenberg and Welch, Management Science 27, 1981). Subtracting slope x log kernel time from the
# log step time estimates the step time at a constant speed of the machine. The slope is estimated
# from the blocks of all processes together. The larger its standard error, the more it is shrunk
# toward zero. If step and kernel times are not correlated, the slope is zero, and the measured
# times stay unchanged.

#: Names of the reference kernels (`paradnn.worker.reference`).
KERNELS = ("arithmetic", "memory", "dispatch")
#: The slope is shrunk to zero if it is below this multiple of its standard error.
_CAUTION = 2.0


class Slope(NamedTuple):
    """Regression slope of the logarithms of step times on the logarithms of kernel times.

    The kernel is a reference kernel with fixed work, whose times show the speed of the machine.

    Attributes:
        shrunk: The slope to use for an adjustment, from 0 to 1. It is the estimated slope, shrunk
            toward zero.
        correlation: The correlation of log step times and log kernel times.
        seen: The estimated slope without shrinkage, corrected for the noise of the kernel times.
        error: The standard error of the slope; NaN if there are too few blocks to estimate a slope,
            or if the times do not vary.
    """

    shrunk: float
    correlation: float
    seen: float
    error: float


def adjusted_times(timings: Sequence[Timing]) -> list[list[float]]:
    """Return the step times, adjusted to the mean speed of the machine over all processes.

    Reference kernels with fixed work, which run between the blocks of steps, show the speed of the
    machine. The times are unchanged if no reference kernel ran, or if the step times correlate with
    the times of no kernel.

    Args:
        timings: The timing of each process in which the same configuration was measured.

    Returns:
        For each process, the seconds of a step in each block.
    """
    kernel = chosen_kernel(timings)
    if kernel is None:
        return [timing.step_times for timing in timings]
    steps = step_logs(timings)
    kernels = slowness(timings, kernel)
    times = np.exp(steps - learn_slope(steps, kernels).shrunk * (kernels - process_mean(kernels)))
    return [process[np.isfinite(process)].tolist() for process in times.T]


def chosen_kernel(timings: Sequence[Timing]) -> str | None:
    """Return the reference kernel whose times correlate most with the step times over all blocks.

    Args:
        timings: The timing of each process in which the same configuration was measured.

    Returns:
        A name of `KERNELS`; None if a process has fewer than two runs of the reference kernels, or
        if there is no process.
    """
    if not timings or not all(
        sum(entry.blocks >= 0 for entry in timing.references) > 1 for timing in timings
    ):
        return None
    steps = step_logs(timings)
    return max(KERNELS, key=lambda name: learn_slope(steps, slowness(timings, name)).correlation)


def learn_slope(steps: np.ndarray, kernels: np.ndarray) -> Slope:
    """Estimate how much step times change with the speed of the machine.

    The estimate is the regression slope of log step times on the log times of a reference kernel.
    Because neighboring blocks are correlated, the variance of the slope is multiplied by
    (1 + r s) / (1 - r s) (Bartlett 1935). Here r is the lag-one correlation of the kernel times,
    and s the lag-one correlation of the residuals; r s is limited to 0..0.95.

    Noise of the kernel times biases the slope toward zero. `Slope.seen` avoids this bias: it
    relates step times to kernel times two blocks away, whose noise is independent.

    Args:
        steps: Log step times (blocks, processes); NaN where a process has fewer blocks.
        kernels: Log kernel times of the same shape.
    """
    y = steps - np.nanmean(steps)
    x = kernels - np.nanmean(kernels)
    kernel_power = _mean_product(x, x)
    covariance = _mean_product(x, y)
    step_power = _mean_product(y, y)
    count = int(np.isfinite(y).sum())
    if count < MIN_VALUES or kernel_power <= 0 or step_power <= 0:
        return Slope(0.0, 0.0, 0.0, math.nan)
    slope = covariance / kernel_power
    residuals = y - slope * x
    residual_power = _mean_product(residuals, residuals)
    correlation_product = 0.0  # r s
    if residual_power:
        neighbors = _mean_product(x, x, 1) * _mean_product(residuals, residuals, 1)
        correlation_product = min(0.95, max(0.0, neighbors / (kernel_power * residual_power)))
    inflation = (1 + correlation_product) / (1 - correlation_product)
    variance = residual_power / (count - 2) / kernel_power * inflation
    if slope > 0:
        kept_share = max(0.0, 1 - _CAUTION**2 * variance / slope**2)
    else:
        kept_share = 0.0
    shrunk = min(1.0, slope * kept_share)
    kernel_power_without_noise = _mean_product(x, x, 2)
    if kernel_power_without_noise > 0:
        unbiased_slope = min(1.2, _mean_product(x, y, 2) / kernel_power_without_noise)
    else:
        unbiased_slope = slope
    return Slope(
        shrunk=shrunk,
        correlation=covariance / math.sqrt(kernel_power * step_power),
        seen=unbiased_slope,
        error=math.sqrt(variance),
    )


def _mean_product(left: np.ndarray, right: np.ndarray, lag: int = 0) -> float:
    """Return the mean product of the values of two arrays, with a lag between the arrays.

    Products that are NaN are ignored. The result is 0 if all products are NaN.

    Args:
        left: Array (blocks, processes).
        right: Array of the same shape.
        lag: Distance in blocks between the two factors of a product.
    """
    end = max(0, len(left) - lag)
    products = left[lag:] * right[:end] + left[:end] * right[lag:]
    finite = products[np.isfinite(products)]
    if not finite.size:
        return 0.0
    return float(finite.mean()) / 2


def process_mean(values: np.ndarray) -> float:
    """Return the mean of the processes' means, so that each process has the same weight.

    NaN values are ignored.

    Args:
        values: Array of shape (blocks, processes).
    """
    return float(np.nanmean(values, axis=0).mean())


def _columns(series: Iterable[Iterable[float]]) -> np.ndarray:
    return np.array(list(zip_longest(*series, fillvalue=math.nan)))


def step_logs(timings: Sequence[Timing]) -> np.ndarray:
    """Return the natural logarithm of the mean step time, in seconds, of each block.

    Args:
        timings: The timing of each process in which the same configuration was measured.

    Returns:
        An array (blocks, processes); NaN where a process has fewer blocks.
    """
    return _columns(np.log(timing.blocks) - math.log(timing.steps_per_block) for timing in timings)


def slowness(timings: Sequence[Timing], kernel: str) -> np.ndarray:
    """Return how slow the machine is in each block: the log time of a call of a reference kernel.

    The values are natural logarithms of seconds. They are interpolated linearly to the middle of
    each block, between the runs of the kernel before and after the block.

    Args:
        timings: The timing of each process in which the same configuration was measured.
        kernel: A name of `KERNELS`.

    Returns:
        An array (blocks, processes); NaN where a process has fewer blocks.
    """
    kernel_times = []
    for timing in timings:
        references = [entry for entry in timing.references if entry.blocks >= 0]
        positions = [entry.blocks for entry in references]
        times = [math.log(entry.seconds[kernel]) for entry in references]
        kernel_times.append(np.interp(np.arange(len(timing.blocks)) + 0.5, positions, times))
    return _columns(kernel_times)
