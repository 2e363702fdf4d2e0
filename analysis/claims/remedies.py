"""Advice for undecided checks of claims: the data that would decide them.

The advice is a further published measurement, or more runs with their command and time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from analysis.claims.kinds import Bound
from analysis.labels import label
from analysis.lazy import np, pd
from analysis.more_runs import describe_more_values, describe_runs_for, describe_sessions
from paradnn.core.words import counted
from paradnn.statistics.contrast import Contrast
from paradnn.statistics.estimate import Estimate

#: Number of shifts of the log ratios to try, and the largest one: a factor of ten.
_SHIFTS = 1000
_LARGEST_SHIFT = math.log(10)
#: A negligible margin, since a bound is a number without a range around it.
_NO_MARGIN = 1e-9
#: Maximum number of sessions to propose.
_MAX_SESSIONS = 50


def decide_ratios(
    contrast: Contrast,
    sides: Sequence[pd.DataFrame],
    bound: Bound,
    statistic: Callable[[np.ndarray], float],
) -> str:
    """State which data would decide a check of a statistic of log ratios.

    Args:
        contrast: The points (configurations) that both sides measured, with their ratios of A to B.
        sides: Runs of A and of B.
        bound: The range that the claim requires.
        statistic: Computes the number to check, such as a median, from the log ratios (n,).
    """
    critical = critical_shift(np.log(contrast.ratios), bound, statistic)
    allowed = contrast.shift
    if critical < allowed:
        reason = (
            "the check would be decided if a session could shift one side by less than "
            f"{math.expm1(critical):.0%}, but the interval allows {math.expm1(allowed):.0%}"
        )
    elif allowed > 0:
        reason = (
            f"a shift of one side by {math.expm1(allowed):.0%}, which a session may cause, would "
            "not change the answer, but together with the noise of single points it may"
        )
    else:
        reason = "the noise of single points leaves the check undecided"
    if is_published(*sides):
        return (
            f"{reason}; a second published measurement of both sides at these points would decide "
            "it"
        )
    remedy = describe_runs_for(sides[0], sides[1], contrast, critical, _NO_MARGIN)
    return f"{reason}; {remedy}" if remedy else reason


def critical_shift(
    logs: np.ndarray, bound: Bound, statistic: Callable[[np.ndarray], float]
) -> float:
    """Return the smallest common shift of log ratios that changes the answer to a check.

    The shift, in either direction, moves the statistic into the bound or out of it.

    Args:
        logs: Log ratios (n,).
        bound: The range that the claim requires.
        statistic: Computes the number to check, such as a median, from the log ratios (n,).

    Returns:
        The shift, as a logarithm; at most a factor of ten.
    """

    def is_within(shift: float) -> bool:
        return bound.low <= statistic(logs + shift) <= bound.high

    now = is_within(0.0)
    for shift in np.linspace(0.0, _LARGEST_SHIFT, _SHIFTS):
        if is_within(shift) != now or is_within(-shift) != now:
            return float(shift)
    return _LARGEST_SHIFT


def decide_slope(
    rows: pd.DataFrame, of: str, weight: Estimate, sides: Sequence[pd.DataFrame]
) -> str:
    """State how many values of a hyperparameter would decide whether its effect differs from 0.

    Args:
        rows: The points (measured configurations), one row each.
        of: Column of the hyperparameter.
        weight: Its weight in a regression, with the interval.
        sides: The runs, of one side or of two.
    """
    values = int(rows[of].nunique())
    ratio = (weight.high - weight.low) / 2 / max(abs(weight.value), 1e-9)
    needed = max(values + 1, math.ceil(values * min(ratio, 10.0) ** 2))
    text = f"about {needed} values of {label(of)} instead of {values} would decide it"
    if is_published(*sides):
        return f"{text}; no other values are published for these platforms"
    remedy = describe_more_values(sides, rows, of, needed)
    return f"{text}; {remedy}" if remedy else text


def decide_level(runs: pd.DataFrame, estimate: Estimate, bound: Bound) -> str:
    """State how many sessions would decide a check of a number that sessions shift.

    A session is a series of runs measured in one go; its conditions shift all of them together.

    Args:
        runs: The runs.
        estimate: The number with its interval.
        bound: The range that the claim requires.
    """
    ends = [end for end in (bound.low, bound.high) if math.isfinite(end) and end > 0]
    if not ends or not 0 < estimate.low <= estimate.high < math.inf:
        return "more sessions would decide it"
    distance = min(abs(math.log(estimate.value / end)) for end in ends)
    half_width = math.log(estimate.high / estimate.low) / 2
    if half_width > distance * math.sqrt(_MAX_SESSIONS):
        return f"more than {_MAX_SESSIONS} sessions, since the number is close to the bound"
    sessions = math.ceil((half_width / distance) ** 2)
    if is_published(runs):
        return f"about {counted(sessions, 'independent measurement')} would decide it"
    return describe_sessions(runs, sessions)


def is_published(*sides: pd.DataFrame) -> bool:
    """Return whether all runs are published ones, which the user cannot repeat.

    Args:
        *sides: Runs of each side, one row each.
    """
    return all("source" in side and side["source"].eq("published").all() for side in sides)
