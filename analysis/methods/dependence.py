"""Intervals over points that share a model or a batch size: one notion for means, shares, quantiles.

176 points that are 23 models at up to nine batch sizes are not 176 independent ones: what holds of a model at one batch
size mostly holds at the next. A point has a crossed effect of its model (family and all model.*) and of its batch size;
an interval says how far a number would move had other models and other batch sizes of the same kind been measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from analysis.methods.quantiles import LEVEL, Estimate, quantile_interval

__all__ = [
    "MINIMUM_POINTS",
    "Component",
    "Levels",
    "Unit",
    "crossed_mean",
    "crossed_quantile",
    "crossed_share",
    "crossed_variance",
    "geometric_mean",
    "levels_of",
    "satterthwaite",
]

#: What is taken as a sample: models and batch sizes, models at the given batch sizes, or every point by itself.
Unit = Literal["crossed", "model", "point"]

#: Points that an interval of a mean needs.
MINIMUM_POINTS = 6

#: Fewer batch sizes than this are no sample of batch sizes: an answer is then about those that were measured.
_FEWEST_BATCHES = 6


@dataclass(frozen=True)
class Levels:
    """Which points belong together: `codes` (factors, n) numbers the levels of each factor, `point` (n,) the points.

    `words` says what is taken as a sample, such as "23 models and 9 batch sizes".
    """

    codes: np.ndarray
    point: np.ndarray
    words: str

    @property
    def counts(self) -> tuple[int, ...]:
        """How many levels each factor has."""
        return tuple(int(code.max()) + 1 if len(code) else 0 for code in self.codes)

    def of(self, chosen: np.ndarray) -> Levels:
        """Those of some of the points (mask or positions); a factor with one level left is none."""
        codes = [np.unique(code[chosen], return_inverse=True)[1] for code in self.codes]
        point = np.unique(self.point[chosen], return_inverse=True)[1]
        kept = [code for code in codes if len(code) and code.max() > 0] or [point]
        return Levels(np.array(kept), point, self.words)


class Component(NamedTuple):
    """A variance and its degrees of freedom."""

    variance: float
    freedom: float


def levels_of(points: pd.DataFrame, unit: Unit = "crossed") -> Levels:
    """The levels that points (rows with model.* and batch_size) share.

    A model is everything under model.* with its family. Batch sizes are a sample from six different ones on; fewer are
    taken as given, as are precisions, compile modes and devices: points that differ in these alone share their model.
    """
    count = len(points)
    model = _numbered(points, [str(name) for name in points if name == "family" or str(name).startswith("model.")])
    batch = _numbered(points, [name for name in ("batch_size",) if name in points])
    each = np.arange(count)
    models, batches = len(set(model)), len(set(batch))
    if unit == "point" or (models < 2 and batches < 2):
        return Levels(each[None], each, _counted(count, "point"))
    factors, words = [], []
    if models > 1:
        factors.append(model)
        words.append(_counted(models, "model"))
    if batches > 1 and (models < 2 or (unit == "crossed" and batches >= _FEWEST_BATCHES)):
        factors.append(batch)
        words.append(_counted(batches, "batch size"))
    return Levels(np.array(factors), each, " and ".join(words))


def crossed_variance(values: np.ndarray, levels: Levels) -> Component:
    """The variance of the mean of n values, with effects of every factor, and its degrees of freedom.

    Of each factor the delete-one-level jackknife, V = (G - 1) / G x sum (mean without the level - mean)^2 (MacKinnon,
    Nielsen and Webb, J. Applied Econometrics 38, 2023). Levels of crossed factors share the scatter of single points,
    so V = sum V_factor - (factors - 1) V_point (Cameron, Gelbach and Miller, J. Business and Economic Statistics 29,
    2011), and at least the largest of them. Degrees of freedom by Satterthwaite from G - 1 of each factor.
    """
    parts = [_jackknife(values, code) for code in levels.codes]
    points = _jackknife(values, levels.point)
    total = sum(part.variance for part in parts) - (len(parts) - 1) * points.variance
    variance = max(total, *(part.variance for part in parts), points.variance)
    return Component(variance, satterthwaite(parts))


def crossed_mean(values: ArrayLike, levels: Levels, level: float = LEVEL, more: tuple[Component, ...] = ()) -> Estimate:
    """A mean with its interval: Student's, variance and degrees of freedom of `crossed_variance`.

    `more` are variances beside that of points, such as that between sessions. NaN ends below MINIMUM_POINTS.
    """
    numbers = np.asarray(values, dtype="float64")
    if len(numbers) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    mean = float(numbers.mean())
    if len(numbers) < MINIMUM_POINTS:
        return Estimate(mean, np.nan, np.nan)
    parts = [crossed_variance(numbers, levels), *more]
    reach = _quantile_of_t((1 + level) / 2, satterthwaite(parts)) * math.sqrt(sum(part.variance for part in parts))
    return Estimate(mean, mean - reach, mean + reach)


def geometric_mean(
    ratios: ArrayLike, levels: Levels, level: float = LEVEL, more: tuple[Component, ...] = ()
) -> Estimate:
    """The geometric mean of ratios above zero with the interval of `crossed_mean` of their logarithms."""
    return Estimate(
        *(float(np.exp(end)) for end in crossed_mean(np.log(np.asarray(ratios, float)), levels, level, more))
    )


def crossed_share(hits: ArrayLike, levels: Levels, level: float = LEVEL) -> Estimate:
    """The share of true values (n) with Clopper and Pearson's interval of the effective number of points.

    n_effective = share (1 - share) / V, V of `crossed_variance`, times (t of n - 1 / t of V's degrees of freedom)^2
    (Korn and Graubard, Survey Methodology 24, 1998), at most n. Where all points agree the scatter says nothing, and it
    is the number of levels of the factor with the fewest. NaN for no points.
    """
    there = np.asarray(hits, dtype="float64")
    if len(there) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    share = float(there.mean())
    n = _effective(there, levels, level)
    low, high = _clopper_pearson(share * n, n, level)
    return Estimate(share, low, high)


def crossed_quantile(values: ArrayLike, levels: Levels, share: float = 0.5, level: float = LEVEL) -> Estimate:
    """The `share` quantile with the interval of order statistics at the effective number of points.

    The ends are the values below which the shares lie that `crossed_share` of the points below the quantile allows
    (Woodruff, J. American Statistical Association 47, 1952). An end is infinite where so few points have none. Points
    that share nothing get `quantile_interval`.
    """
    ordered = np.asarray(values, dtype="float64")
    if len(ordered) == 0 or max(levels.counts) == len(ordered):
        return quantile_interval(ordered, share, level)
    value = float(np.quantile(ordered, share))
    n = _effective((ordered <= value).astype(float), levels, level)
    ends = quantile_interval(np.arange(math.floor(n)), share, level)
    scale = len(ordered) / max(math.floor(n), 1)
    ordered = np.sort(ordered)
    low = ordered[min(int(ends.low * scale), len(ordered) - 1)] if np.isfinite(ends.low) else -np.inf
    high = ordered[min(math.ceil((ends.high + 1) * scale) - 1, len(ordered) - 1)] if np.isfinite(ends.high) else np.inf
    return Estimate(value, float(low), float(high))


def _numbered(points: pd.DataFrame, names: list[str]) -> np.ndarray:
    if not names:
        return np.zeros(len(points), dtype="int64")
    return points.groupby(names, dropna=False, sort=False).ngroup().to_numpy()


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s'[: count != 1]}"


def _jackknife(values: np.ndarray, code: np.ndarray) -> Component:
    sums, sizes = np.bincount(code, values), np.bincount(code)
    groups, n = len(sizes), len(values)
    if groups < 2:
        return Component(0.0, np.inf)
    moved = (values.sum() - sums) / (n - sizes) - values.mean()
    return Component(float((groups - 1) / groups * (moved**2).sum()), groups - 1.0)


def satterthwaite(parts: list[Component]) -> float:
    """Degrees of freedom of a sum of variances (Biometrics Bulletin 2, 1946)."""
    total = sum(part.variance for part in parts)
    below = sum(part.variance**2 / part.freedom for part in parts)
    return total**2 / below if below > 0 else min((part.freedom for part in parts), default=np.inf)


def _quantile_of_t(probability: float, freedom: float) -> float:
    return float(stats.t.ppf(probability, freedom) if np.isfinite(freedom) else stats.norm.ppf(probability))


def _effective(there: np.ndarray, levels: Levels, level: float) -> float:
    """How many independent points a share over dependent ones is worth."""
    n, share = len(there), there.mean()
    fewest = float(min(levels.counts))
    variance, freedom = crossed_variance(there, levels)
    if variance <= 0 or share in (0.0, 1.0):
        return fewest
    tail = (1 + level) / 2
    correction = (_quantile_of_t(tail, max(n - 1, 1)) / _quantile_of_t(tail, freedom)) ** 2
    return float(min(share * (1 - share) / variance * correction, n))


def _clopper_pearson(hits: float, n: float, level: float) -> tuple[float, float]:
    """The exact interval of a share (Biometrika 26, 1934), of a number of points that need not be whole."""
    tail = (1 - level) / 2
    low: Any = stats.beta.ppf(tail, hits, n - hits + 1) if hits > 0 else 0.0
    high: Any = stats.beta.ppf(1 - tail, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)
