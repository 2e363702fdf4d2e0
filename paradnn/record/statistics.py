"""Summaries of raw step times, of one process or of several: pure Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from paradnn.worker.series import block_interval
from paradnn.worker.serving.chance import events_factor, quantile_ranks

__all__ = ["Summarised", "mean_interval", "quantile", "quantile_ends", "quantile_metrics", "summarise", "t_quantile"]

#: 97.5% quantiles of Student's t for 1 to 6 degrees of freedom.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469)


@dataclass(frozen=True)
class Summarised:
    """Location and spread of positive values that one or more processes took, in their own unit.

    `low` and `high` are the 95% interval of `value`, None where there is too little for one. `cv` is the standard
    deviation over the mean within a process. `process_cv` is the standard deviation of the processes' medians (of their
    logarithms), `between_cv` what of it the spread within the processes does not explain.
    """

    value: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float
    cv: float | None
    process_cv: float | None = None
    between_cv: float | None = None


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
    """The 97.5% quantile of Student's t, to 0.0001: tabulated, beyond by an expansion.

    The expansion about the normal quantile: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if degrees <= len(_T):
        return _T[degrees - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the geometric mean of two or more independent positive values: Student's, of their logarithms."""
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    half = t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle + half)


def summarise(processes: Sequence[Sequence[float]]) -> Summarised:
    """What values say that each process took one after the other.

    One process: their median, with the interval for values that are correlated in time (`block_interval`), which knows
    nothing of what another process would give. Several: the geometric mean of the processes' medians, and the interval
    that those medians alone give (Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013: the spread
    at the highest level holds that of the levels below it).
    """
    medians = [statistics.median(values) for values in processes]
    spreads = [statistics.stdev(values) / statistics.fmean(values) for values in processes if len(values) > 1]
    cv = math.sqrt(statistics.fmean(spread**2 for spread in spreads)) if spreads else None
    minimum, maximum = min(map(min, processes)), max(map(max, processes))
    if len(medians) == 1:
        interval = block_interval(processes[0])
        low, high = interval if interval else (None, None)
        return Summarised(medians[0], low, high, minimum, maximum, cv)
    low, high = mean_interval(medians)
    process_cv = statistics.stdev(math.log(value) for value in medians)
    errors = [_standard_error(values) for values in processes]
    known = [error for error in errors if error is not None]
    within = statistics.fmean(error**2 for error in known) if len(known) == len(errors) else None
    between = None if within is None else math.sqrt(max(0.0, process_cv**2 - within))
    return Summarised(statistics.geometric_mean(medians), low, high, minimum, maximum, cv, process_cv, between)


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the logarithm of the median of values that are correlated in time."""
    interval = block_interval(values)
    return math.log(interval[1] / interval[0]) / (2 * 1.96) if interval else None
