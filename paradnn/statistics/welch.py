"""The difference of two means whose variances may differ."""

import math
import statistics
from collections.abc import Sequence

from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.lazy import stats


def welch_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of one sample minus that of another, with Welch's 95% interval.

    Degrees of freedom: Welch, "The generalization of Student's problem when several different
    population variances are involved" (Biometrika 34, 1947).

    Args:
        first: At least two numbers.
        second: At least two numbers.

    Returns:
        The difference. Its interval has no width if all numbers of each sample are equal.
    """
    difference = statistics.fmean(first) - statistics.fmean(second)
    variances = [statistics.variance(sample) / len(sample) for sample in (first, second)]
    total = sum(variances)
    if total == 0:
        return Estimate(difference, difference, difference)
    squares = sum(
        variance**2 / (len(sample) - 1)
        for variance, sample in zip(variances, (first, second), strict=True)
    )
    half = float(stats.t.ppf((1 + LEVEL) / 2, total**2 / squares)) * math.sqrt(total)
    return Estimate(difference, difference - half, difference + half)
