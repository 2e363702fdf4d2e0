"""The best of several estimates: how much of its lead is luck."""

from __future__ import annotations

import math

from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.lazy import np, stats

#: Standard errors behind the best up to which an estimate is one of the top group.
GROUP_ERRORS = 2.0


def shrinkage(means: np.ndarray, sampling: np.ndarray, place: int) -> float:
    """Return by how much one of several similar means exceeds its expected true value.

    The means are one sample of a normal distribution. Its variance is that of the observed means
    without their sampling variance (DerSimonian and Laird, Controlled Clinical Trials 7, 1986). A
    mean moves toward the mean of all by the share of its variance that is sampling.

    Args:
        means: (n,) the means of the group.
        sampling: (n,) their sampling variances.
        place: Position of the mean.
    """
    if len(means) < 2:
        return 0.0
    between = max(float(means.var(ddof=1)) - float(sampling.mean()), 0.0)
    share = sampling[place] / max(sampling[place] + between, 1e-300)
    return float(share * (means[place] - means.mean()))


def shrink_largest(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, processes: np.ndarray
) -> Estimate:
    """Return the largest of several positive estimates, corrected for having been selected.

    The largest of similar values is also a lucky one, and its own interval does not allow for that.
    So it moves toward the mean of the values that may be as large, on a log scale, and the interval
    moves along.

    Args:
        values: (n,) the estimates.
        low: (n,) lower ends of their 95% intervals; NaN where unknown.
        high: (n,) upper ends.
        processes: (n,) processes behind each interval, which is Student's over them; 1 or NaN for
            one whose quantile is normal.
    """
    largest = int(np.nanargmax(values))
    unchanged = Estimate(float(values[largest]), float(low[largest]), float(high[largest]))
    logs = np.log(values)
    freedom = np.where(processes > 1, processes - 1, np.inf)
    errors = np.log(high / low) / 2 / stats.t.ppf((1 + LEVEL) / 2, freedom)
    factor = math.exp(-luck_of_largest(logs, errors))
    return Estimate(*(factor * end for end in unchanged))


def luck_of_largest(estimates: np.ndarray, errors: np.ndarray) -> float:
    """Return by how much the largest of several estimates exceeds its expected true value.

    It is drawn toward the mean of the estimates that may be as large (see `shrinkage`).

    Args:
        estimates: (n,) the estimates.
        errors: (n,) their standard errors; NaN where unknown. Such an estimate does not count.
    """
    largest = int(np.nanargmax(estimates))
    if not np.isfinite(errors[largest]):
        return 0.0
    known = np.flatnonzero(np.isfinite(errors))
    distance = estimates[largest] - estimates[known]
    group = known[distance <= GROUP_ERRORS * np.hypot(errors[known], errors[largest])]
    place = int(np.flatnonzero(group == largest)[0])
    return shrinkage(estimates[group], errors[group] ** 2, place)
