"""The highest rate at which a limit holds: bisection over probes, then a run of full length at what it found.

A probe that holds says so with the confidence asked for, one that fails likewise; one that is undecided at its end
counts as failed, since the limit was not shown to hold. Where the full run does not hold the limit either, which has
more time to go wrong, the search goes on below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Found", "find_peak"]

Run = TypeVar("Run")
#: The search begins at this share of what the model can do at most, and gives up at this one.
_FIRST, _LOWEST = 0.5, 1e-3
#: Where nothing has held yet, and where nothing has failed yet, the next rate is so many times the last.
_DOWN, _UP = 0.4, 1.6
#: Runs of full length that may fail.
_RUNS = 4


@dataclass
class Found(Generic[Run]):
    """The rate of the last run of full length, queries/s, None where there was none; that run; whether the limit held.

    `passed` and `failed` bound the search.
    """

    rate: float | None = None
    run: Run | None = None
    held: bool = False
    passed: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)

    @property
    def low(self) -> float:
        """The highest rate below every failure at which a probe held; 0 where there is none."""
        return max((rate for rate in self.passed if rate < self.high), default=0.0)

    @property
    def high(self) -> float:
        """The lowest rate that failed."""
        return min(self.failed, default=math.inf)


def find_peak(
    probe: Callable[[float], bool],
    run: Callable[[float], tuple[bool, Run]],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> Found[Run]:
    """Search from half of `capacity` (queries/s) until what held and what failed differ by a share `precision`.

    `probe(rate)` says whether the limit held, `run(rate)` the same of a run of full length, with the run.
    `has_time(rate)`: whether another probe leaves enough time for the run.
    """
    found: Found[Run] = Found()
    for number in range(_RUNS):
        while (found.low == 0 or found.high > found.low * (1 + precision)) and has_time(rate := _next(found, capacity)):
            if rate < _LOWEST * capacity:
                return found
            (found.passed if probe(rate) else found.failed).append(rate)
        if found.low == 0 or (found.run is not None and not has_time(found.low)):
            return found
        found.rate = found.low
        found.held, found.run = run(found.low)
        if found.held:
            return found
        # Probes are shorter, and will say again that it holds nearby: step down, further each time.
        found.failed.append(found.low / (1 + precision) ** 2**number)
    return found


def _next(found: Found[Run], capacity: float) -> float:
    """The rate to be tried next."""
    if found.low and found.high < math.inf:
        return math.sqrt(found.low * found.high)
    if found.low:
        return found.low * _UP
    return found.high * _DOWN if found.high < math.inf else capacity * _FIRST
