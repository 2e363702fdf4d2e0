"""Analysis of a series of block times in the order of measurement.

The module decides whether a series is steady, gives the confidence interval of its median, and
separates the variation of the machine's speed. The worker and the driver both use it.

Blocks of one process are not independent: on a shared machine, their lag-one correlation is 0.6 to
0.8. The steadiness verdict and the interval both allow for it, under the model of a first-order
autoregression, AR(1).
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from paradnn.core.messages import Timing
from paradnn.worker.chance import quantile_ranks

#: A series with fewer values than MIN_VALUES has neither a verdict nor an interval. A series of up
#: to _FEW_VALUES values has the interval of its extremes if widening would lead beyond them.
MIN_VALUES = 6
_FEW_VALUES = 16
#: Numbers of values for which the estimate sometimes mistakes a coefficient of 0.9 for 0.6, which
#: widens the interval too little.
_UNSURE_LENGTHS = range(20, 80)
#: Changes below this share of the median are ignored, however significant they are.
SMALLEST_CHANGE = 0.02

#: Share of the variance that the best line or jump explains by chance in one of ten steady series.
#: Rows: the length of the series. Columns: the lag-one correlation of the residuals
#: (`_CORRELATIONS`). Simulated by `python -m benchmarks.steadiness --table` from AR(1) series whose
#: coefficient is 0, 0.5, 0.7 or 0.9, equally often.
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
    """Largest change over a series: a jump before value `at`, or a drift from end to end.

    Attributes:
        size: The change as a share of the series' median.
        at: The index of the first value after the jump; None for a drift.
        explained: The share of the variance that the change explains.
        correlation: The lag-one correlation of the residuals.
        usual: The share of the variance that chance may explain.
        relative_size: The change relative to the level before it. For a fall it is at least -1.
    """

    size: float
    at: int | None
    explained: float
    correlation: float
    usual: float
    relative_size: float = 0.0

    @property
    def matters(self) -> bool:
        """Whether the series is not steady."""
        return abs(self.size) > SMALLEST_CHANGE and self.explained > self.usual

    def __str__(self) -> str:
        if self.at is None:
            kind = "drift"
        else:
            kind = f"jump before block {self.at + 1}"
        seen = f"explains {self.explained:.0%} of the variance, chance up to {self.usual:.0%}"
        return f"{kind} of {self.relative_size:+.1%} {seen}"


def find_change(values: Sequence[float]) -> Change:
    """Return the line or the jump that explains most of a series.

    Both are fitted by least squares. A jump may come before each value that has at least two
    values, and a tenth of the series, on either side. The residuals give the correlation of the
    noise, and thus the share of the variance that chance would have explained.

    Args:
        values: A series of at least `MIN_VALUES` values.
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
    # The share explained by chance, interpolated in the logarithm of n and in the correlation.
    by_length = [
        np.interp(correlation, _CORRELATIONS, shares) for shares in _CRITICAL_SHARES.values()
    ]
    chance = np.interp(math.log(n), np.log(list(_CRITICAL_SHARES)), by_length)
    if at is None:
        first, last = np.mean(values) - size / 2, np.mean(values) + size / 2
        # A line through positive values may end below 0. If so, compare the means of the ends.
        if min(first, last) <= 0:
            first, last = np.mean(values[:edge]), np.mean(values[-edge:])
    else:
        first, last = np.mean(values[:at]), np.mean(values[at:])
    return Change(
        size=float(size / np.median(values)),
        at=at,
        explained=float(explained),
        correlation=correlation,
        usual=float(chance),
        relative_size=float(last / first - 1),
    )


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the median of independent values.

    It is the interval of the sign test, from the k-th smallest to the k-th largest value (Conover,
    Practical Nonparametric Statistics, section 3.2). It is None for fewer than six values.
    """
    first, last = quantile_ranks(len(values), 0.5)
    if first is None or last is None:
        return None
    ordered = sorted(values)
    return ordered[first], ordered[last]


def block_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the median of positive, autocorrelated values.

    It is the `widened_interval`, clipped to the extremes of the values. It is None if both widened
    ends lie beyond all values, which do not determine it then. There are two exceptions.

    - Up to `_FEW_VALUES` values show too little of their correlation to widen the interval by it.
      The interval then consists of the extremes, whose coverage is known, if that is sufficient.
    - A number of values in `_UNSURE_LENGTHS` shows the correlation of neighbors, but not over how
      many values it extends. If their coefficient may well be 0.9, the interval consists of the
      extremes.

    `python -m benchmarks.steadiness --coverage` measures how many intervals contain a known median;
    see docs/explanation/method.md.
    """
    ends = widened_interval(values)
    if ends is None:
        return None
    least = min(values)
    most = max(values)
    n = len(values)
    if ends[0] < least and ends[1] > most:
        # Neighbors in an AR(1) with coefficient r are on the same side of the median with
        # probability 1/2 + asin(r) / pi (Sheppard 1899). As a Markov chain, all n are on one side
        # with the (n - 1)-th power of it: 3% if n is 6 and r is 0.
        one_side = 0.5 + math.asin(min(max(_rank_correlation(values), 0.0), 1.0)) / math.pi
        if n > _FEW_VALUES or one_side ** (n - 1) > 0.05:
            return None
    elif n in _UNSURE_LENGTHS and most > least and _odds_of_long_memory(values) > -2:
        return least, most
    return max(ends[0], least), min(ends[1], most)


def missing_interval_reason(values: Sequence[float]) -> str:
    """Return why `block_interval` is None and what to do, as one line."""
    if len(values) < MIN_VALUES:
        return f"{len(values)} blocks, but an interval takes {MIN_VALUES}; raise measure.max_seconds or measure.min_blocks"
    remedy = "raise measure.min_seconds, or measure in several processes (measure.processes=5)"
    return f"{len(values)} blocks resemble their neighbors too much: they count as fewer than {MIN_VALUES}; {remedy}"


def widened_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the median of positive, autocorrelated values.

    The `median_interval` is widened on both sides, in logarithms, by the factor
    sqrt((1 + r) / (1 - r)), by which an AR(1) process widens the error of a mean.

    r is the lag-one correlation of the normal scores of the values. A short series underestimates
    it, so r is replaced by (n r + 5) / (n - 6). This is more cautious than Kendall's
    (n r + 1) / (n - 3), since r is itself uncertain. For n below 20 the two constants are n / 4 and
    0.3 n, and r is at most 1 - 0.3 / n.

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
    wider = math.sqrt((1 + r) / (1 - r))
    # In logarithms, limited to the range of a float.
    low, high = (math.log(middle) + wider * math.log(end / middle) for end in interval)
    return math.exp(max(low, -700.0)), math.exp(min(high, 700.0))


def _rank_correlation(values: Sequence[float]) -> float:
    """Return the lag-one correlation of the values' normal scores."""
    normal = statistics.NormalDist()
    scores = np.zeros(len(values))
    for rank, index in enumerate(np.argsort(values, kind="stable")):
        scores[index] = normal.inv_cdf((rank + 0.5) / len(values))
    return _lag_one(scores)


def _odds_of_long_memory(values: Sequence[float]) -> float:
    """Return the log likelihood ratio of AR(1) coefficients 0.9 and 0.6.

    It is positive if 0.9 is more likely. The restricted likelihood leaves the mean and the variance
    open (Harville, Biometrika 61, 1974).
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


# The times of fixed reference kernels, run between the blocks, are a control variate (Lavenberg and
# Welch, Management Science 27, 1981). Subtracting slope times log kernel time from the log step
# time gives the step time at a constant speed of the machine. The slope is estimated from the
# blocks of all processes together, and shrunk toward zero by its uncertainty. If step and kernel
# times do not move together, the slope is zero and the measured times are unchanged.

KERNELS = ("arithmetic", "memory", "dispatch")
_CAUTION = 2.0  # factor on the slope's standard error when the slope is shrunk


class Slope(NamedTuple):
    """Regression slope of log step times on log kernel times.

    Attributes:
        shrunk: The slope to apply: shrunk toward zero, from 0 to 1.
        correlation: The correlation of step times and kernel times.
        seen: The estimated slope, corrected for the noise of the kernel's own times.
        error: The standard error of the estimate; NaN if it is not estimated.
    """

    shrunk: float
    correlation: float
    seen: float
    error: float


def adjusted_times(timings: Sequence[Timing]) -> list[list[float]]:
    """Return the seconds of a step per block and process at the mean speed of the machine.

    The mean is over all processes. The times are unchanged if no reference kernel moves with them.
    """
    kernel = chosen_kernel(timings)
    if kernel is None:
        return [timing.step_times for timing in timings]
    steps = step_logs(timings)
    kernels = slowness(timings, kernel)
    times = np.exp(steps - learn_slope(steps, kernels).shrunk * (kernels - process_mean(kernels)))
    return [process[np.isfinite(process)].tolist() for process in times.T]


def chosen_kernel(timings: Sequence[Timing]) -> str | None:
    """Return the kernel whose times correlate most with the step's, over all blocks.

    It is None if there are too few references.
    """
    if not timings or not all(
        sum(entry.blocks >= 0 for entry in timing.references) > 1 for timing in timings
    ):
        return None
    steps = step_logs(timings)
    return max(KERNELS, key=lambda name: learn_slope(steps, slowness(timings, name)).correlation)


def learn_slope(steps: np.ndarray, kernels: np.ndarray) -> Slope:
    """Return the slope of log step times on log kernel times, shrunk and limited to 0..1.

    If neighbors are correlated, the variance of the slope is multiplied by (1 + r s) / (1 - r s)
    (Bartlett 1935). Here r is the lag-one correlation of the kernel times, and s that of the
    residuals; r s is limited to 0..0.95.

    The noise of the kernel's own times biases the slope toward zero. The slope of each block on
    the kernel two blocks away shows by how much.

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
    correlations = 0.0  # r s
    if residual_power:
        neighbors = _mean_product(x, x, 1) * _mean_product(residuals, residuals, 1)
        correlations = min(0.95, max(0.0, neighbors / (kernel_power * residual_power)))
    inflation = (1 + correlations) / (1 - correlations)
    variance = residual_power / (count - 2) / kernel_power * inflation
    if slope > 0:
        kept_share = max(0.0, 1 - _CAUTION**2 * variance / slope**2)
    else:
        kept_share = 0.0
    shrunk = min(1.0, slope * kept_share)
    shared = _mean_product(x, x, 2)
    if shared > 0:
        without_noise = min(1.2, _mean_product(x, y, 2) / shared)
    else:
        without_noise = slope
    return Slope(
        shrunk=shrunk,
        correlation=covariance / math.sqrt(kernel_power * step_power),
        seen=without_noise,
        error=math.sqrt(variance),
    )


def _mean_product(one: np.ndarray, other: np.ndarray, lag: int = 0) -> float:
    """Return the mean product of values that are `lag` blocks apart; 0 without such values."""
    end = max(0, len(one) - lag)
    products = one[lag:] * other[:end] + one[:end] * other[lag:]
    finite = products[np.isfinite(products)]
    if not finite.size:
        return 0.0
    return float(finite.mean()) / 2


def process_mean(each: np.ndarray) -> float:
    """Return the mean over processes of the means of their blocks."""
    return float(np.nanmean(each, axis=0).mean())


def _columns(each: Iterable[Iterable[float]]) -> np.ndarray:
    return np.array(list(zip_longest(*each, fillvalue=math.nan)))


def step_logs(timings: Sequence[Timing]) -> np.ndarray:
    """Return log seconds of a step (blocks, processes); NaN where a process has fewer blocks."""
    return _columns(np.log(timing.blocks) - math.log(timing.steps_per_block) for timing in timings)


def slowness(timings: Sequence[Timing], kernel: str) -> np.ndarray:
    """Return log seconds of a kernel call at the middle of each block (blocks, processes).

    The values are interpolated linearly between the references around the block.
    """
    found = []
    for timing in timings:
        taken = [entry for entry in timing.references if entry.blocks >= 0]
        times = [math.log(entry.seconds[kernel]) for entry in taken]
        found.append(
            np.interp(np.arange(len(timing.blocks)) + 0.5, [entry.blocks for entry in taken], times)
        )
    return _columns(found)
