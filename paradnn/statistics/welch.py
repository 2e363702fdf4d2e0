"""The difference of two means whose variances may differ."""

import statistics
from collections.abc import Sequence

from paradnn.statistics.dependence import Component
from paradnn.statistics.estimate import Estimate


def welch_variance(first: Sequence[float], second: Sequence[float]) -> Component:
    """Return the variance of the difference of two means, with Welch's degrees of freedom.

    Source: Welch, "The generalization of Student's problem when several different population
    variances are involved" (Biometrika 34, 1947).

    Args:
        first: The first sample: at least two numbers.
        second: The second sample: at least two numbers. At least one sample must contain different
            numbers.
    """
    variances = [statistics.variance(sample) / len(sample) for sample in (first, second)]
    total = sum(variances)
    squares = sum(
        variance**2 / (len(sample) - 1)
        for variance, sample in zip(variances, (first, second), strict=True)
    )
    return Component(total, total**2 / squares)


def welch_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of the first sample minus that of the second, with Welch's 95% interval.

    Args:
        first: The first sample: at least two numbers.
        second: The second sample: at least two numbers.

    Returns:
        The difference. The width of its interval is 0 if all numbers within each sample are equal.
    """
    difference = statistics.fmean(first) - statistics.fmean(second)
    if not any(statistics.variance(sample) for sample in (first, second)):
        return Estimate(difference, difference, difference)
    half = float(welch_variance(first, second).half_width)
    return Estimate(difference, difference - half, difference + half)
