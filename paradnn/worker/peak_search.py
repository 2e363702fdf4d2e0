"""The search for the highest rate at which a percentile of the latency meets a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paradnn.worker.chance import beta_share, events_factor, passes

#: A search begins at this fraction of the capacity.
_FIRST_FRACTION = 0.5
#: A search gives up below this fraction of the capacity.
_LOWEST_FRACTION = 1e-3
#: Factor between rates while none has met the limit, and while none has failed.
_STEP_DOWN = 0.4
_STEP_UP = 1.6
#: Runs of full length that may fail.
_MAX_RUNS = 4

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Probe:
    """One tried rate of a search.

    Attributes:
        rate: Queries per second.
        queries: Number of queries that were served.
        late: Number of them that took longer than the limit.
        seconds: Duration.
        latency: Latency at the percentile of the limit, in s.
        held: Whether the limit was met; None if that is undecided.
        reason: Why the load was not the requested one; None if it was.
    """

    rate: float
    queries: int
    late: int
    seconds: float
    latency: float
    held: bool | None
    reason: str | None


def percentile(values: Iterable[Number], share: float) -> Number:
    """Return LoadGen's percentile: of n sorted values, the one at index n x share."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def verdict(cumulative: Sequence[int], share: float, error: float) -> bool | None:
    """Decide whether `share` of the queries is in time.

    Neighboring queries resemble each other, so all counts are divided by the factor by which they
    scatter more than independent ones.

    Args:
        cumulative: Number of late queries up to each query.
        share: Required fraction of queries in time.
        error: Probability of error of either verdict.

    Returns:
        Whether it is; None if that is undecided.
    """
    if not cumulative:
        return None
    count = len(cumulative)
    late = cumulative[-1]
    factor = events_factor(cumulative)
    if passes((count - late) / factor, late / factor, share, 1 - error):
        return True
    if late <= (1 - share) * count:
        return None
    # The probability of this many late queries or more, if exactly as many as allowed were late.
    probability = beta_share(1 - share, late / factor, (count - late) / factor + 1)
    return False if probability < error else None


@dataclass
class PeakSearch:
    """State and result of a search.

    Attributes:
        rate: Rate of the last full-length run, in queries per second; None before the first.
        run: That run.
        held: Whether it met the limit.
        lowest_failed: The lowest rate that failed.
        passed: Rates whose probe met the limit, and 0.
    """

    rate: float | None = None
    run: Any = None
    held: bool = False
    lowest_failed: float = math.inf
    passed: list[float] = field(default_factory=lambda: [0.0])

    @property
    def highest_passed(self) -> float:
        """The highest rate that met the limit below all failed rates; 0 if no rate did."""
        return max(rate for rate in self.passed if rate < self.lowest_failed)

    def next_rate(self, capacity: float) -> float:
        """Return the rate to try next: between the highest that passed and the lowest that failed.

        Args:
            capacity: Queries per second that can be served at most.
        """
        passed = self.highest_passed
        has_failed = self.lowest_failed < math.inf
        if passed and has_failed:
            return math.sqrt(passed * self.lowest_failed)
        if passed:
            return passed * _STEP_UP
        if has_failed:
            return self.lowest_failed * _STEP_DOWN
        return capacity * _FIRST_FRACTION


def find_peak(
    probe: Callable[[float], bool],
    run: Callable[[float], tuple[bool, Any]],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> PeakSearch:
    """Search for the highest rate that meets a limit, by bisection in logarithms.

    Probes are short. A run of full length follows at the highest rate that passed. If the run
    fails, the search goes on below it.

    Args:
        probe: Whether a short run at a rate met the limit.
        run: Whether a run of full length met it, with the run.
        capacity: Queries per second that can be served at most. The search begins at half of it.
        precision: Relative difference of the rates that passed and failed at which it ends.
        has_time: Whether another probe at a rate leaves enough time for the run.
    """
    search = PeakSearch()
    for number in range(_MAX_RUNS):
        is_exhausted = _bisect(search, probe, capacity, precision, has_time)
        passed = search.highest_passed
        if is_exhausted or not passed:
            return search
        if search.run is not None and not has_time(passed):
            return search
        search.rate = passed
        search.held, search.run = run(passed)
        if search.held:
            return search
        # A short probe nearby would pass again: go down, further each time.
        search.lowest_failed = passed / (1 + precision) ** 2**number
    return search


def _bisect(
    search: PeakSearch,
    probe: Callable[[float], bool],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> bool:
    """Probe rates until the precision is reached or the time is up.

    Returns:
        Whether no rate is left that is worth a try.
    """
    while True:
        passed = search.highest_passed
        if passed and search.lowest_failed <= passed * (1 + precision):
            return False
        rate = search.next_rate(capacity)
        if not has_time(rate):
            return False
        if rate < _LOWEST_FRACTION * capacity:
            return True
        if probe(rate):
            search.passed.append(rate)
        else:
            search.lowest_failed = rate
