"""Variances of points (configurations) that were measured only a few times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paradnn.statistics.dependence import MINIMUM_POINTS, Component
from paradnn.statistics.lazy import np, optimize, special, stats

#: If the p-value is below this level, the scatter of measurements counts as different between the
#: values of a hyperparameter.
_UNEQUAL_P = 0.01
#: Approximate maximum number of points whose runs are examined for two levels.
_MAX_CELLS = 500


def rarer_level(cells: Sequence[np.ndarray]) -> tuple[float, float]:
    """Estimate the probability that a run has the rarer of two speed levels.

    A process may choose one of two kernels, or lay out its memory in one of two ways, so its runs
    have one of two speeds (levels). If all runs of a point have the same level by chance, they seem
    exact. Otherwise, the runs of a point form two clusters. The share of points with a single level
    determines how often a run has the rarer level.

    For normal scatter, the p-value of Shapiro and Wilk's test (Biometrika 52, 1965) is uniform from
    0 to 1. Twice the share of points with a p-value above 1/2 is therefore an estimate of the share
    of points with a single level (Storey, J. Royal Statistical Society B 64, 2002). One standard
    error is subtracted, because some points may have two levels and other points one.

    Args:
        cells: For each point (configuration), the logarithms of the values of its runs.

    Returns:
        The probability that a run has the rarer level, and the largest difference between two
        logarithms of the same point. The probability is near 0 if the scatter is normal. Both
        numbers are 0 if fewer than MINIMUM_POINTS points have three runs or more.
    """
    step = max(len(cells) // _MAX_CELLS, 1)
    cells = [cell for cell in cells[::step] if len(cell) > 2]
    if len(cells) < MINIMUM_POINTS:
        return 0.0, 0.0
    sizes = np.array([len(cell) for cell in cells])
    spans = np.array([np.ptp(cell) for cell in cells])
    has_high_p = [
        span == 0 or stats.shapiro(cell).pvalue > 0.5
        for span, cell in zip(spans, cells, strict=True)
    ]

    def share_on_one_level(chance: float) -> float:
        """Return the expected share of points whose runs all have the same of two speed levels.

        Args:
            chance: Probability that a run has the rarer level.
        """
        return float(np.mean(chance**sizes + (1 - chance) ** sizes))

    observed = 2 * np.mean(has_high_p) - 1 / math.sqrt(len(cells))
    observed = np.clip(observed, share_on_one_level(0.5), 1.0)
    chance = optimize.brentq(lambda rarer: share_on_one_level(rarer) - observed, 0.0, 0.5)
    return float(chance), float(spans.max())


def moderate_variances(
    variances: np.ndarray, degrees: np.ndarray, axes: Sequence[np.ndarray] = ()
) -> Component:
    """Shrink variances of similar measurements toward their common value.

    The variances are modeled as s0^2 F(d, d0), where F is a random variable with the F
    distribution. The mean and the variance of their logarithms determine s0 and d0. A variance s^2
    becomes (d0 s0^2 + d s^2) / (d0 + d) with d0 + d degrees of freedom, but at most the sum of the
    degrees of freedom of all variances (Smyth, Statistical Applications in Genetics and Molecular
    Biology 3, 2004, article 3).

    As a result, a point whose few values agree by chance does not count as exact, and a point among
    many similar points needs fewer values. A few variances may be similar by chance, so the
    variance of their logarithms is raised by one standard error.

    Args:
        variances: (n,) sample variances.
        degrees: (n,) degrees of freedom of the variances.
        axes: Values (n,) of each hyperparameter. If the variances differ significantly between the
            values of a hyperparameter, the variances of each value are shrunk separately.

    Returns:
        The shrunk variances (n,) and their degrees of freedom (n,). They are unchanged if fewer
        than MINIMUM_POINTS variances are positive.
    """
    known = (variances > 0) & (degrees > 0)
    if known.sum() < MINIMUM_POINTS:
        return Component(variances, degrees)
    half = degrees[known] / 2
    logs = np.log(variances[known]) - special.digamma(half) + np.log(half)
    for axis in axes:
        parts = [axis == value for value in np.unique(axis)]
        part_logs = [logs[part[known]] for part in parts]
        if len(parts) < 2 or min(map(len, part_logs)) < MINIMUM_POINTS:
            continue
        if stats.f_oneway(*part_logs).pvalue < _UNEQUAL_P:
            moderated = np.empty((2, len(variances)))
            for part in parts:
                moderated[:, part] = moderate_variances(variances[part], degrees[part])
            return Component(*moderated)
    expected = special.polygamma(1, half).mean()
    all_degrees = float(2 * half.sum())
    error = math.sqrt((special.polygamma(3, half).mean() + 2 * expected**2) / len(logs))
    excess = max(logs.var(ddof=1) - expected, 0.0) + error
    prior = 2 * optimize.brentq(
        lambda half_degrees: special.polygamma(1, half_degrees) - excess, 1e-3, all_degrees / 2
    )
    common = math.exp(logs.mean() + special.digamma(prior / 2) - math.log(prior / 2))
    shrunk = (prior * common + degrees * np.nan_to_num(variances)) / (prior + degrees)
    has_degrees = degrees > 0
    return Component(
        np.where(has_degrees, shrunk, variances),
        np.where(has_degrees, np.minimum(prior + degrees, all_degrees), degrees),
    )
