"""Summaries of raw block times: robust, nonparametric, pure Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SampleStatistics", "median_interval", "quantile", "summarise"]


@dataclass(frozen=True)
class SampleStatistics:
    """Location and spread of a sample, in its own unit; `low` and `high` are None for fewer than six values."""

    median: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float
    cv: float | None


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Nonparametric interval of the median from order statistics (the sign test's), or None where n is too small.

    With B ~ Binomial(n, 1/2), the interval from the k-th smallest to the k-th largest value covers the median with
    probability 1 - 2 P(B < k); k is the largest that keeps this at `confidence` or more. For 95% n must be 6 or more.
    Source: Conover, Practical Nonparametric Statistics, section 3.2. The values are taken as independent.
    """
    ordered = sorted(values)
    n, tail, k = len(ordered), 0.0, 0
    while k < n // 2:
        tail += math.comb(n, k) / 2**n
        if tail > (1 - confidence) / 2:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def quantile(values: Sequence[float], share: float) -> float:
    """Linearly interpolated quantile (type 7, as NumPy's default); `share` in 0..1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def summarise(values: Sequence[float]) -> SampleStatistics:
    """Median with its 95% interval, extremes, and standard deviation over mean."""
    interval = median_interval(values)
    return SampleStatistics(
        median=statistics.median(values),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        minimum=min(values),
        maximum=max(values),
        cv=statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None,
    )
