"""How the machine drifts over a session: told by points that were measured several times, minutes or hours apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paradnn.record.statistics import t_quantile

__all__ = ["Drift", "DriftEstimate"]

#: Fewer repeated measurements than this tell no drift.
_FEWEST = 6


@dataclass(frozen=True)
class DriftEstimate:
    """How much longer a step takes an hour later, as a share, with its 95% interval; and over how many hours."""

    per_hour: float
    low: float
    high: float
    hours: float

    @property
    def matters(self) -> bool:
        """Whether it is clear, and has changed step times by over 1% from the first process to the last."""
        return self.low * self.high > 0 and abs(self.per_hour) * self.hours > 0.01

    def __str__(self) -> str:
        what = "slower" if self.per_hour > 0 else "faster"
        low, high = sorted((abs(self.low), abs(self.high)))
        return (
            f"the machine became {abs(self.per_hour):.1%} {what} an hour (95% CI {low:.1%} .. {high:.1%}), seen over "
            f"{self.hours:.1f} h"
        )


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

        Its interval is Student's, widened for the correlation of neighbours in time: sqrt((1 + r) / (1 - r)).
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
        r = max(0.0, sum(a * b for a, b in pairwise(rest)) / square) if square else 0.0
        half = t_quantile(count - 1) * math.sqrt(square / (count - 1) / power * (1 + r) / (1 - r))
        low, middle, high = (math.expm1(value) for value in (slope - half, slope, slope + half))
        return DriftEstimate(middle, low, high, whole[-1][0] - whole[0][0])


def _centred(point: list[tuple[float, float]]) -> list[tuple[float, float]]:
    times, values = zip(*point, strict=True)
    time, value = statistics.fmean(times), statistics.fmean(values)
    return [(t - time, v - value) for t, v in point]


def _residuals(point: list[tuple[float, float]], slope: float) -> list[tuple[float, float]]:
    """What the slope leaves, with the time itself."""
    centred = _centred(point)
    return [(whole[0], v - slope * t) for whole, (t, v) in zip(point, centred, strict=True)]
