"""Shrinkage of the best of several estimates, which owes part of its lead to chance."""

from __future__ import annotations

import math

from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.lazy import np, stats

#: Estimates are in the top group up to this distance from the best estimate, in standard errors.
GROUP_ERRORS = 2.0


def shrinkage(means: np.ndarray, sampling: np.ndarray, place: int) -> float:
    """Return the expected excess of one of several similar means over its true value.

    The true values are modeled as a sample from a normal distribution. The variance of this
    distribution is the variance of the observed means minus their sampling variance (DerSimonian
    and Laird, Controlled Clinical Trials 7, 1986). A mean shrinks toward the common mean in
    proportion to the share of its variance that is sampling variance.

    Args:
        means: (n,) the means.
        sampling: (n,) sampling variances of the means.
        place: Index of the mean whose excess is returned.

    Returns:
        The amount to subtract from the mean; negative for a mean below the common mean, and 0 for a
        single mean.
    """
    if len(means) < 2:
        return 0.0
    between = max(float(means.var(ddof=1)) - float(sampling.mean()), 0.0)
    share = sampling[place] / max(sampling[place] + between, 1e-300)
    return float(share * (means[place] - means.mean()))


def shrink_largest(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, processes: np.ndarray
) -> Estimate:
    """Return the largest of several positive estimates, corrected for its selection.

    The largest of several similar values is partly large by chance, which its interval does not
    take into account. The value is therefore shrunk, on a log scale, toward the mean of the values
    that may be equally large. The ends of its interval are multiplied by the same factor.

    Args:
        values: (n,) the estimates.
        low: (n,) lower ends of the 95% intervals of the estimates; NaN if unknown.
        high: (n,) upper ends of the intervals; NaN if unknown.
        processes: (n,) number of processes from which each interval was computed with Student's t;
            1 or NaN if the interval is based on the normal distribution.
    """
    largest = int(np.nanargmax(values))
    unchanged = Estimate(float(values[largest]), float(low[largest]), float(high[largest]))
    logs = np.log(values)
    freedom = np.where(processes > 1, processes - 1, np.inf)
    errors = np.log(high / low) / 2 / stats.t.ppf((1 + LEVEL) / 2, freedom)
    factor = math.exp(-luck_of_largest(logs, errors))
    return Estimate(*(factor * end for end in unchanged))


def luck_of_largest(estimates: np.ndarray, errors: np.ndarray) -> float:
    """Return the expected excess of the largest of several estimates over its true value.

    The expected true value is the largest estimate, shrunk toward the mean of its group
    (`shrinkage`). The group consists of the estimates within `GROUP_ERRORS` standard errors of the
    largest estimate. The result is 0 if the standard error of the largest estimate is unknown.

    Args:
        estimates: (n,) the estimates.
        errors: (n,) standard errors; NaN if unknown. Such estimates are not in the group.
    """
    largest = int(np.nanargmax(estimates))
    if not np.isfinite(errors[largest]):
        return 0.0
    known = np.flatnonzero(np.isfinite(errors))
    distance = estimates[largest] - estimates[known]
    group = known[distance <= GROUP_ERRORS * np.hypot(errors[known], errors[largest])]
    place = int(np.flatnonzero(group == largest)[0])
    return shrinkage(estimates[group], errors[group] ** 2, place)
