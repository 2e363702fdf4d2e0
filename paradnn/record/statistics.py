"""Summaries of raw step times, of one process or of several: pure Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from paradnn.worker.chance import events_factor, quantile_ranks
from paradnn.worker.series import block_interval, why_no_interval, widened_interval

__all__ = [
    "Summarised",
    "mean_interval",
    "narrow_enough",
    "quantile",
    "quantile_ends",
    "quantile_metrics",
    "summarise",
    "t_quantile",
]

#: By so much wider is the interval of processes whose number it has itself decided.
LOOKED = 1.1


@dataclass(frozen=True)
class Summarised:
    """Location and spread of positive values that one or more processes took, in their own unit.

    `low` and `high` are the 95% interval of `value`, None where there is too little for one; `error` is the standard
    error of its logarithm, None for fewer than six values of one process. `cv` is the standard
    deviation over the mean within a process. `process_cv` is the standard deviation of the processes' medians (of their
    logarithms), `between_cv` what of it the spread within the processes does not explain. `reason` says why there is no
    interval: of one process it ends at the extremes of its blocks, or is none; of several it is none where it would go
    further beyond all blocks than they lie apart.
    """

    value: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float
    cv: float | None
    error: float | None = None
    process_cv: float | None = None
    between_cv: float | None = None
    reason: str | None = None


def quantile(values: Sequence[float], share: float) -> float:
    """Linearly interpolated quantile (type 7, as NumPy's default); `share` in 0..1."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def quantile_ends(values: Sequence[float], value: float, share: float) -> dict[str, float]:
    """ "low" and "high" of the 95% interval of a quantile `value` of values in the order of their measurement, each
    where there is one: order statistics, with what neighbours have in common taken off their number."""
    above = list(accumulate(entry > value for entry in values))
    ordered = sorted(values)
    first, last = quantile_ranks(len(ordered), share, events_factor(above))
    low = {} if first is None else {"low": ordered[max(first, 0)]}
    return low if last is None else {**low, "high": ordered[last]}


def quantile_metrics(
    name: str,
    share: float,
    each: Sequence[Sequence[float]],
    of: Callable[[Sequence[float], float], float],
    scale: float = 1.0,
) -> dict[str, float]:
    """A quantile, as `of` takes it of the values of each process, and its 95% interval, in ms (values times `scale`).

    Of one process by order statistics. Of several by the spread of their own quantiles: pooled values would be those of
    one process to each interval, and hold 80 to 88% where processes lie 3 to 10% apart.
    """
    values = [of(process, share) for process in each]
    if len(values) == 1:
        ends = quantile_ends(each[0], values[0], share)
    else:
        ends = dict(zip(("low", "high"), mean_interval(values), strict=True))
    found = {f"{name}_ms": statistics.geometric_mean(values)}
    return {key: scale * value for key, value in {**found, **{f"{name}_{end}_ms": ends[end] for end in ends}}.items()}


def t_quantile(degrees: int) -> float:
    """The 97.5% quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def mean_interval(values: Sequence[float], widening: float = 1.0) -> tuple[float, float]:
    """95% interval of the geometric mean of two or more independent positive values: Student's, of their logarithms."""
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    half = widening * t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return _exp(middle - half), _exp(middle + half)


def narrow_enough(processes: Sequence[Sequence[float]], goal: float) -> bool:
    """Whether no more processes are needed for an interval whose half is the share `goal` of the value.

    Who looks after each process and stops at the first interval that is narrow finds those that are so by chance: such
    intervals hold 88 to 94%. Hence the interval of what stops this way is wider (`LOOKED`), and the decision adds to
    its half width, squared, what the chance of few processes would add (after Chow and Robbins, Annals of Mathematical
    Statistics 36, 1965). Simulated from two, three or five processes on, goals of 0.3 to 3 times their spread: 93.9 to
    96.5% (`tests/record/test_statistics.py` draws some).
    """
    found, count = summarise(processes, looked=True), len(processes)
    if found.low is None or found.high is None:
        return False
    student = LOOKED * t_quantile(count - 1) / statistics.NormalDist().inv_cdf(0.975)
    return ((found.high - found.low) / 2 / found.value) ** 2 + 2 * (student * goal / count) ** 2 <= goal**2


def summarise(processes: Sequence[Sequence[float]], looked: bool = False) -> Summarised:
    """What values say that each process took one after the other.

    One process: their median, with the interval for values that are correlated in time (`block_interval`), which knows
    nothing of what another process would give. Several: the geometric mean of the processes' medians, and the interval
    that those medians alone give (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013: the spread
    at the highest level holds that of the levels below it). `looked`: their number came from their interval
    (`narrow_enough`).
    """
    medians = [statistics.median(values) for values in processes]
    spreads = [statistics.stdev(values) / statistics.fmean(values) for values in processes if len(values) > 1]
    cv = math.sqrt(statistics.fmean(spread**2 for spread in spreads)) if spreads else None
    minimum, maximum = min(map(min, processes)), max(map(max, processes))
    errors = [_standard_error(values) for values in processes]
    if len(medians) == 1:
        interval = block_interval(processes[0])
        low, high = interval or (None, None)
        reason = None if interval else why_no_interval(processes[0])
        return Summarised(medians[0], low, high, minimum, maximum, cv, errors[0], reason=reason)
    low, high = mean_interval(medians, LOOKED if looked else 1.0)
    reason = None
    if low < minimum / (maximum / minimum) or high > maximum * (maximum / minimum):
        apart = f"{len(medians)} processes lie {max(medians) / min(medians) - 1:.0%} apart"
        low, high, reason = None, None, f"{apart}, which says too little of further ones; raise measure.processes"
    process_cv = statistics.stdev(math.log(value) for value in medians)
    known = [error for error in errors if error is not None]
    within = statistics.fmean(error**2 for error in known) if len(known) == len(errors) else None
    between = None if within is None else math.sqrt(max(0.0, process_cv**2 - within))
    value, error = statistics.geometric_mean(medians), process_cv / math.sqrt(len(medians))
    return Summarised(value, low, high, minimum, maximum, cv, error, process_cv, between, reason)


def _exp(logarithm: float) -> float:
    """Within what a float holds."""
    return math.exp(min(max(logarithm, -700.0), 700.0))


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the logarithm of the median of values that are correlated in time."""
    interval = widened_interval(values)
    return math.log(interval[1] / interval[0]) / (2 * 1.96) if interval else None
