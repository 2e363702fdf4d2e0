"""Variances of measurements that are repeated a few times each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paradnn.statistics.dependence import MINIMUM_POINTS, Component
from paradnn.statistics.lazy import np, optimize, special, stats

#: p of chance below which the scatter of measurements differs between the values of a
#: hyperparameter.
_UNLIKE = 0.01
_MOST_CELLS = 500  # whose runs are looked at for two levels


def rarer_level(cells: Sequence[np.ndarray]) -> tuple[float, float]:
    """The chance that a run takes the rarer of two levels, from the logarithms of each point's
    runs, and how far apart runs of a point lie at most; 0 where scatter is normal, or points are
    few.

    A process may choose one of two kernels, or lay out its memory in one of two ways. Runs of a
    point that chose alike by chance look exact; those that did not lie in two heaps, and the share
    of such points tells how often the others did. The p of Shapiro and Wilk's test (Biometrika 52,
    1965) is even between 0 and 1 where scatter is normal, of whatever size, so that share is what p
    above 1/2 lack (Storey, J. Royal Statistical Society B 64, 2002), and a standard error more,
    since some points may have two levels and others one.
    """
    cells = [cell for cell in cells[:: max(len(cells) // _MOST_CELLS, 1)] if len(cell) > 2]
    if len(cells) < MINIMUM_POINTS:
        return 0.0, 0.0
    sizes, spans = np.array([(len(cell), np.ptp(cell)) for cell in cells]).T
    normal = [
        span == 0 or stats.shapiro(cell).pvalue > 0.5
        for span, cell in zip(spans, cells, strict=True)
    ]

    def alike(rarer: float) -> float:
        """The chance that all runs of a point take one level."""
        return float(np.mean(rarer**sizes + (1 - rarer) ** sizes))

    seen = np.clip(2 * np.mean(normal) - 1 / math.sqrt(len(cells)), alike(0.5), 1.0)
    return float(optimize.brentq(lambda rarer: alike(rarer) - seen, 0.0, 0.5)), float(spans.max())


def moderate_variances(
    variances: np.ndarray, degrees: np.ndarray, axes: Sequence[np.ndarray] = ()
) -> Component:
    """Variances (n,) of like measurements, each of few `degrees` of freedom (n,), drawn towards
    what they share.

    They are taken as s0^2 F(d, d0), s0 and d0 from the mean and the variance of their logarithms;
    each becomes (d0 s0^2 + d s^2) / (d0 + d) with d0 + d degrees of freedom, at most all there are
    (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, article 3). So a
    point whose few values agree by chance is not taken for exact, and one among many like it needs
    fewer. Few variances may look alike that are not, so their variance is taken as larger by a
    standard error. Where they differ by the values (n,) of one of the `axes`, those of a value are
    alike. As they are below MINIMUM_POINTS, and where none scatters.
    """
    known = (variances > 0) & (degrees > 0)
    if known.sum() < MINIMUM_POINTS:
        return Component(variances, degrees)
    half = degrees[known] / 2
    logs = np.log(variances[known]) - special.digamma(half) + np.log(half)
    for axis in axes:
        parts = [axis == value for value in np.unique(axis)]
        logs_of = [logs[part[known]] for part in parts]
        if (
            len(parts) > 1
            and min(map(len, logs_of)) >= MINIMUM_POINTS
            and stats.f_oneway(*logs_of).pvalue < _UNLIKE
        ):
            found = np.empty((2, len(variances)))
            for part in parts:
                found[:, part] = moderate_variances(variances[part], degrees[part])
            return Component(*found)
    chance = special.polygamma(1, half).mean()
    most = float(2 * half.sum())
    error = math.sqrt((special.polygamma(3, half).mean() + 2 * chance**2) / len(logs))
    excess = max(logs.var(ddof=1) - chance, 0.0) + error
    prior = 2 * optimize.brentq(lambda each: special.polygamma(1, each) - excess, 1e-3, most / 2)
    common = math.exp(logs.mean() + special.digamma(prior / 2) - math.log(prior / 2))
    drawn = (prior * common + degrees * np.nan_to_num(variances)) / (prior + degrees)
    able = degrees > 0
    return Component(
        np.where(able, drawn, variances), np.where(able, np.minimum(prior + degrees, most), degrees)
    )
