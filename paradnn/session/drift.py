"""How the machine drifts over a session: told by points that were measured several times, minutes or hours apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paradnn.record.statistics import t_quantile

__all__ = ["Drift", "DriftEstimate"]

#: Fewer repeated measurements than this tell no drift: whether neighbours are correlated cannot be told either.
_FEWEST = 20


@dataclass(frozen=True)
class DriftEstimate:
    """Growth of the logarithm of the step time in an hour (0.01: 1%), with its 95% interval; over how many hours."""

    per_hour: float
    low: float
    high: float
    hours: float

    @property
    def matters(self) -> bool:
        """Whether it is clear, and has changed step times by over 1% from the first process to the last."""
        return self.low * self.high > 0 and abs(self.per_hour) * self.hours > 0.01

    def __str__(self) -> str:
        """The change that was seen: a few minutes say nothing of an hour."""
        sign = 1 if self.per_hour > 0 else -1
        low, middle, high = (
            f"{math.expm1(min(50.0, sign * slope * self.hours)):.1%}"
            for slope in sorted((self.low, self.per_hour, self.high), key=abs)
        )
        span = f"{self.hours:.1f} h" if self.hours >= 1 else f"{60 * self.hours:.1f} min"
        what = "longer" if sign > 0 else "shorter"
        return f"steps took {middle} {what} at the end than at the beginning, {span} before (95% CI {low} .. {high})"


class Drift:
    """Collects when a point's processes began and what they took."""

    def __init__(self) -> None:
        self._points: list[list[tuple[float, float]]] = []

    def add(self, steps: Sequence[tuple[float, float]]) -> None:
        """Note a point: when each of its processes began (Unix seconds), and its step time in seconds."""
        if len(steps) > 1:
            self._points.append([(begun / 3600, math.log(seconds)) for begun, seconds in steps])

    def estimate(self) -> DriftEstimate | None:
        """The slope of log step time over time that all points share, each with a level of its own (least squares).

        Its interval is Student's, widened for the correlation of neighbours in time by sqrt((1 + r) / (1 - r)). Each
        point's level takes of that correlation what it takes of the degrees of freedom, and a short series
        underestimates it: hence (n r + 7) / (n - 8), found by simulation (`python -m benchmarks.drift`).
        """
        count = sum(map(len, self._points)) - len(self._points)
        if count < _FEWEST:
            return None
        centred = [pair for point in self._points for pair in _centred(point)]
        power = sum(time**2 for time, _ in centred)
        if not power:
            return None
        slope = sum(time * value for time, value in centred) / power
        whole = sorted(pair for point in self._points for pair in _residuals(point, slope))
        rest = [value for _, value in whole]
        square = sum(value**2 for value in rest)
        r = sum(a * b for a, b in pairwise(rest)) / square * len(rest) / count if square else 0.0
        r = min(max((count * r + 7) / (count - 8), 0.0), 1 - 1.5 / count)
        half = t_quantile(count - 1) * math.sqrt(square / (count - 1) / power * (1 + r) / (1 - r))
        return DriftEstimate(slope, slope - half, slope + half, whole[-1][0] - whole[0][0])


def _centred(point: list[tuple[float, float]]) -> list[tuple[float, float]]:
    times, values = zip(*point, strict=True)
    time, value = statistics.fmean(times), statistics.fmean(values)
    return [(t - time, v - value) for t, v in point]


def _residuals(point: list[tuple[float, float]], slope: float) -> list[tuple[float, float]]:
    """What the slope leaves, with the time itself."""
    centred = _centred(point)
    return [(whole[0], v - slope * t) for whole, (t, v) in zip(point, centred, strict=True)]
