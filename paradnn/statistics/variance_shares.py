"""Shares of a metric's variance that hyperparameters explain, with intervals.

The share of a hyperparameter is its Shapley value: the increase of R2 when its terms enter the
regression, averaged over all orders in which hyperparameters can enter (Lindeman, Merenda and Gold,
Introduction to Bivariate and Multivariate Analysis, 1980; Owen, SIAM/ASA J. Uncertainty
Quantification 2, 2014). The shares sum to the R2 of the whole regression, even if hyperparameters
are correlated. The product of two hyperparameters enters as soon as both hyperparameters have
entered. On a complete grid, the share of a hyperparameter is therefore its first-order Sobol index
plus half of the Sobol index of each of its products.

R2 is adjusted for the number of terms. A hyperparameter without an effect therefore has a share of
0 on average, and estimates may be negative. A share is quadratic in the coefficients, so its square
root is closer to a normal distribution. Intervals are therefore computed for the square root.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paradnn.core.errors import InsufficientData
from paradnn.statistics.dependence import Component, Levels
from paradnn.statistics.lazy import np

#: Maximum number of hyperparameters, because n hyperparameters require 2^n regressions.
MAX_FACTORS = 10
#: Maximum number of groups of points that a jackknife omits, one after another.
_MAX_GROUPS = 200
#: Ridge relative to the mean variance of the terms, with which equations of collinear terms can be
#: solved.
_RIDGE = 1e-10


class Share(NamedTuple):
    """Share of a metric's variance that a hyperparameter explains, with its 95% interval.

    The value may be negative by chance, but the ends of the interval are never negative.
    """

    value: float
    low: float
    high: float


def variance_shares(
    columns: np.ndarray,
    owners: Sequence[frozenset[str]],
    values: np.ndarray,
    levels: Levels | None,
) -> Mapping[str, Share]:
    """Return the share of a metric's variance that each hyperparameter explains.

    Intervals of the square roots are Student's t intervals with jackknife variances (Tukey 1958).
    If points share levels, such as models and batch sizes, the jackknife omits whole levels. The
    variances of the factors are then combined by the rule of Cameron, Gelbach and Miller (J.
    Business and Economic Statistics 29, 2011).

    Args:
        columns: (n, k) terms of the regression at n points (configurations).
        owners: The hyperparameters of each of the k terms; a product has two.
        values: (n,) the metric at each point.
        levels: The model, batch size and other factors of each point (`shared_levels`); None for
            independent points.

    Returns:
        Hyperparameter -> its share.

    Raises:
        InsufficientData: If there are more than MAX_FACTORS hyperparameters, or fewer than
            3 (k + 1) points.
    """
    names = list(dict.fromkeys(name for owner in owners for name in sorted(owner)))
    count, terms = columns.shape
    if len(names) > MAX_FACTORS:
        raise InsufficientData(
            f"shares of {len(names)} hyperparameters need 2^{len(names)} regressions; "
            f"choose at most {MAX_FACTORS} hyperparameters with --on"
        )
    if count < 3 * (terms + 1):
        raise InsufficientData(
            f"shares of {terms} terms need at least {3 * (terms + 1)} points, but there are only {count}"
        )
    data = np.column_stack([_standardize(columns), _standardize(values[:, None])])
    estimates = _statistics(data, np.ones((1, count)), owners, names)[0][: len(names)]
    component = _jackknife(data, owners, names, levels)
    of_shares, of_coefficients = np.split(component.variance, [len(names)])
    ownership = np.array([[name in owner for owner in owners] for name in names], dtype="float64")
    ownership /= ownership.sum(axis=0)  # each factor of a product owns half of it
    noise = ownership @ of_coefficients
    positive = np.maximum(estimates, 0.0)
    # The delta method, var(sqrt(s)) = var(s) / 4s, fails near zero. There, the variance of the
    # coefficients is the lower bound.
    of_roots = np.maximum(of_shares / (4 * np.maximum(positive, noise)), noise)
    half_width = Component(of_roots, component.freedom).half_width
    low = np.maximum(np.sqrt(positive) - half_width, 0.0) ** 2
    high = (np.sqrt(positive) + half_width) ** 2
    ends = zip(estimates, np.minimum(low, estimates.clip(0)), high, strict=True)
    return {name: Share(*map(float, share)) for name, share in zip(names, ends, strict=True)}


def _standardize(columns: np.ndarray) -> np.ndarray:
    standardized: np.ndarray = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return standardized


def _statistics(
    data: np.ndarray, kept: np.ndarray, owners: Sequence[frozenset[str]], names: Sequence[str]
) -> np.ndarray:
    """Return shares and standardized coefficients for m subsets of the points.

    Args:
        data: (n, k + 1) the k terms, followed by the metric.
        kept: (m, n) 1 if the point is in the subset, else 0.
        owners: The hyperparameters of each of the k terms.
        names: The hyperparameters.

    Returns:
        (m, hyperparameters + k) one row per subset: the share of each hyperparameter, then the
        coefficient of each term in the regression on all terms.
    """
    counts = kept.sum(axis=1)
    sums = kept @ data
    products = (data[:, :, None] * data[:, None, :]).reshape(len(data), -1)
    gram = (kept @ products).reshape(len(kept), data.shape[1], data.shape[1])
    gram -= sums[:, :, None] * sums[:, None, :] / counts[:, None, None]
    explained: dict[frozenset[str], np.ndarray] = {}
    for size in range(len(names) + 1):
        for subset in map(frozenset, itertools.combinations(names, size)):
            terms = [position for position, owner in enumerate(owners) if owner <= subset]
            explained[subset] = _adjusted_r2(gram, counts, terms)
    shares = np.zeros((len(kept), len(names)))
    for position, name in enumerate(names):
        for subset, r2 in explained.items():
            if name in subset:
                continue
            gain = explained[subset | {name}] - r2
            orders = math.factorial(len(subset)) * math.factorial(len(names) - len(subset) - 1)
            shares[:, position] += gain * orders / math.factorial(len(names))
    everything = list(range(len(owners)))
    return np.column_stack([shares, _coefficients(gram, everything)])


def _coefficients(gram: np.ndarray, terms: Sequence[int]) -> np.ndarray:
    """Return the coefficients (m, terms) of the regression of the metric on the given terms.

    Args:
        gram: (m, k + 1, k + 1) centered sums of products of the k terms and the metric, which is
            last, for m subsets of the points.
        terms: Indices of the explanatory variables.
    """
    inner = gram[:, terms][:, :, terms]
    ridge = _RIDGE * np.trace(inner, axis1=1, axis2=2) / len(terms)
    inner = inner + ridge[:, None, None] * np.eye(len(terms))
    coefficients: np.ndarray = np.linalg.solve(inner, gram[:, terms, -1:])[:, :, 0]
    return coefficients


def _adjusted_r2(gram: np.ndarray, counts: np.ndarray, terms: Sequence[int]) -> np.ndarray:
    """Return the adjusted R2 (m,) of the regression of the metric on the given terms.

    Args:
        gram: (m, k + 1, k + 1) centered sums of products of the k terms and the metric, which is
            last, for m subsets of the points.
        counts: (m,) number of points in each subset.
        terms: Indices of the explanatory variables.
    """
    if not terms:
        return np.zeros(len(gram))
    explained = (_coefficients(gram, terms) * gram[:, terms, -1]).sum(axis=1)
    r2 = explained / gram[:, -1, -1]
    adjusted: np.ndarray = 1 - (1 - r2) * (counts - 1) / (counts - len(terms) - 1)
    return adjusted


def _jackknife(
    data: np.ndarray,
    owners: Sequence[frozenset[str]],
    names: Sequence[str],
    levels: Levels | None,
) -> Component:
    """Return jackknife variances of the shares and coefficients that `_statistics` returns.

    The jackknife omits one point after another, or one shared level, such as a model.

    Args:
        data: (n, k + 1) the k terms, followed by the metric.
        owners: The hyperparameters of each of the k terms.
        names: The hyperparameters.
        levels: The factors of each point; None for independent points.
    """
    points = np.arange(len(data))
    of_points = _jackknife_variance(data, points, owners, names)
    if levels is None or levels.independent:
        return of_points
    shared = [code for code in levels.factors if len(np.unique(code)) < len(data)]
    parts = [_jackknife_variance(data, code, owners, names) for code in shared]
    variance = np.sum([part.variance for part in parts], axis=0)
    variance -= (len(parts) - 1) * of_points.variance
    freedom = min(part.freedom for part in parts)
    return Component(np.maximum(variance, of_points.variance), freedom)


def _jackknife_variance(
    data: np.ndarray, code: np.ndarray, owners: Sequence[frozenset[str]], names: Sequence[str]
) -> Component:
    """Return the jackknife variances of `_statistics` if one level after another is omitted.

    If there are more than _MAX_GROUPS levels, the jackknife omits random groups of levels.

    Args:
        data: (n, k + 1) the k terms, followed by the metric.
        code: (n,) number of each point's level.
        owners: The hyperparameters of each of the k terms.
        names: The hyperparameters.
    """
    groups = int(code.max()) + 1
    if groups > _MAX_GROUPS:
        group_of_level = np.random.default_rng(0).permutation(groups) % _MAX_GROUPS
        code = group_of_level[code]
        groups = _MAX_GROUPS
    kept = (code[None, :] != np.arange(groups)[:, None]).astype("float64")
    found = _statistics(data, kept, owners, names)
    variance = (groups - 1) / groups * ((found - found.mean(axis=0)) ** 2).sum(axis=0)
    return Component(variance, groups - 1.0)
