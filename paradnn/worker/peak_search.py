"""Search for the highest query rate at which a percentile of the latency meets a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paradnn.worker.chance import beta_share, events_factor, passes

#: A search begins at this fraction of the capacity.
_FIRST_FRACTION = 0.5
#: A search ends without result below this fraction of the capacity.
_LOWEST_FRACTION = 1e-3
#: Factor between successive rates while no rate has passed.
_STEP_DOWN = 0.4
#: Factor between successive rates while no rate has failed.
_STEP_UP = 1.6
#: Largest number of full-length runs.
_MAX_RUNS = 4

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Probe:
    """A short run at one query rate, in a search for the highest rate that meets a latency limit.

    Attributes:
        rate: Queries per second.
        queries: Number of served queries.
        late: Number of queries whose latency exceeded the limit.
        seconds: Duration of the run.
        latency: Latency at the percentile to which the limit applies, in seconds.
        held: Whether the run met the limit; None if it has too few queries to decide.
        reason: Why the actual load differed from the requested rate; None if it did not differ.
    """

    rate: float
    queries: int
    late: int
    seconds: float
    latency: float
    held: bool | None
    reason: str | None


def percentile(values: Iterable[Number], share: float) -> Number:
    """Return a percentile as LoadGen defines it: element floor(n * share) of n sorted values.

    Indices count from 0. For a share of 1, the last element is returned.

    Args:
        values: The values, in any order.
        share: The percentile as a fraction, from 0 to 1.
    """
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def verdict(cumulative: Sequence[int], share: float, error: float) -> bool | None:
    """Decide whether enough queries meet a latency limit: at least `share` of them.

    Neighboring queries are correlated. All counts are therefore divided by the factor by which
    their variance exceeds the variance of independent queries (`events_factor`).

    Args:
        cumulative: For each query, the number of queries up to and including it whose latency
            exceeded the limit.
        share: Required fraction of queries that meet the limit.
        error: Allowed probability that a verdict, True or False, is wrong.

    Returns:
        The verdict; None if there are too few queries to decide.
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
    # The probability of at least this number of late queries, if the true share of late queries
    # were exactly the allowed share.
    probability = beta_share(1 - share, late / factor, (count - late) / factor + 1)
    return False if probability < error else None


@dataclass
class PeakSearch:
    """State and result of a search for the highest query rate that meets a latency limit.

    A probe is a short run at one rate. Rates are in queries per second.

    Attributes:
        rate: Rate of the last full-length run; None before the first run.
        result: Result of the last full-length run, as `find_peak` received it from
            `run_full_length`; None before the first run.
        held: Whether the last full-length run met the limit.
        lowest_failed: Upper bound of the search, infinite at the beginning. A failed probe sets it
            to the rate of the probe, and a failed full-length run to a lower rate than its own.
        passed: Rates whose probes met the limit; the list also contains 0 as a lower bound.
    """

    rate: float | None = None
    result: Any = None
    held: bool = False
    lowest_failed: float = math.inf
    passed: list[float] = field(default_factory=lambda: [0.0])

    @property
    def highest_passed(self) -> float:
        """The highest passed rate below all failed rates; 0 if no rate below them has passed."""
        return max(rate for rate in self.passed if rate < self.lowest_failed)

    def next_rate(self, capacity: float) -> float:
        """Return the rate to try next, in queries per second.

        Once rates have passed and failed, it is the geometric mean of the highest passed rate and
        the lowest failed rate.

        Args:
            capacity: Largest number of queries per second that can be served.
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
    run_full_length: Callable[[float], tuple[bool, Any]],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> PeakSearch:
    """Search for the highest query rate that meets a latency limit, by bisection.

    The bisection is on a logarithmic scale. Its probes are short runs. A run of full length follows
    at the highest rate that passed. If that run fails, the search continues below its rate.

    Args:
        probe: Function that runs a short probe at a rate in queries per second, and returns whether
            it met the limit.
        run_full_length: Function that makes a run of full length at a rate. It returns whether the
            run met the limit, and the result of the run.
        capacity: Largest number of queries per second that can be served. The search begins at half
            of it.
        precision: The bisection ends once the lowest failed rate exceeds the highest passed rate by
            at most this fraction.
        has_time: Function that returns whether a probe at a rate leaves enough time for the
            full-length run.

    Returns:
        The final state of the search. Its `rate` is None if no full-length run was made.
    """
    search = PeakSearch()
    for number in range(_MAX_RUNS):
        is_exhausted = _bisect(search, probe, capacity, precision, has_time)
        passed = search.highest_passed
        if is_exhausted or not passed:
            return search
        # Before the first full-length run, each probe left enough time for it. A further run needs
        # a new check.
        if search.rate is not None and not has_time(passed):
            return search
        search.rate = passed
        search.held, search.result = run_full_length(passed)
        if search.held:
            return search
        # A short probe at a nearby rate would pass again. Lower the rate by more after each run.
        exponent = 2**number
        search.lowest_failed = passed / (1 + precision) ** exponent
    return search


def _bisect(
    search: PeakSearch,
    probe: Callable[[float], bool],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> bool:
    """Probe rates until the precision or the time limit is reached, and update `search`.

    The other arguments are those of `find_peak`.

    Returns:
        Whether the rates have become too low, so that the search cannot succeed.
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
