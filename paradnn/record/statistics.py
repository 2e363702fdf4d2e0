"""Summaries of raw block times: robust, pure Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paradnn.worker.series import block_interval

__all__ = ["SampleStatistics", "quantile", "summarise"]


@dataclass(frozen=True)
class SampleStatistics:
    """Location and spread of a sample, in its own unit; `low` and `high` are None for fewer than six values."""

    median: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float
    cv: float | None


def quantile(values: Sequence[float], share: float) -> float:
    """Linearly interpolated quantile (type 7, as NumPy's default); `share` in 0..1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def summarise(values: Sequence[float]) -> SampleStatistics:
    """Median of values taken one after the other with its 95% interval, extremes, and standard deviation over mean."""
    interval = block_interval(values)
    return SampleStatistics(
        median=statistics.median(values),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        minimum=min(values),
        maximum=max(values),
        cv=statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None,
    )
