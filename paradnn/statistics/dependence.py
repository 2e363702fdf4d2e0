"""Intervals over points that share a model or a batch size: one notion for means, shares, quantiles
and coefficients.

176 points that are 23 models at up to nine batch sizes are not 176 independent ones: what holds of
a model at one batch size mostly holds at the next. A point has a crossed effect of its model
(family and all model.*) and of its batch size; an interval says how far a number would move had
other models and other batch sizes of the same kind been measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from paradnn.core.words import counted
from paradnn.statistics.estimate import LEVEL, Estimate
from paradnn.statistics.lazy import np, pd, stats

#: What is taken as a sample: models and batch sizes, models at the given batch sizes, or every
#: point by itself.
Unit = Literal["crossed", "model", "point"]
#: Points that an interval of a mean needs.
MINIMUM_POINTS = 6

_FEWEST_BATCHES = (
    6  # fewer are no sample of batch sizes: an answer is then about those that were measured
)
_SINGULAR = 1e-10  # of the largest eigenvalue: less is no direction that the rows settle
_NOTHING = 1e-9  # of the variance of a coefficient: less is no effect on it
_NO_CHANGE = 1e-12  # of the sum of squared influences: less is the rounding of none
_CLOSE = (
    0.02  # of the largest singular value: factors that are less apart than this cannot be separated
)


@dataclass(frozen=True)
class Levels:
    """Which rows belong together: `codes` (factors, n) numbers the levels of each factor, `point`
    (n,) the points.

    `words` says what is taken as a sample, such as "23 models and 9 batch sizes".
    """

    codes: np.ndarray
    point: np.ndarray
    words: str

    @property
    def counts(self) -> tuple[int, ...]:
        """How many levels each factor has."""
        return tuple(int(code.max()) + 1 if len(code) else 0 for code in self.codes)

    @property
    def independent(self) -> bool:
        """Whether no row shares anything with another."""
        return min(self.counts) == len(self.point)

    @cached_property
    def factors(self) -> tuple[np.ndarray, ...]:
        """What effects are of: one factor alone, or several and the points; what no two points
        share is of points.
        """
        if len(self.codes) == 1:
            return tuple(self.codes)
        points = int(self.point.max()) + 1
        return (*(code for code in self.codes if int(code.max()) + 1 < points), self.point)

    @cached_property
    def of_mean(self) -> Crossing:
        """How the variance of a mean follows."""
        return Crossing.of(np.ones((len(self.point), 1)), self.factors)


class Component(NamedTuple):
    """A variance and its degrees of freedom; both (k,) of k numbers."""

    variance: Any
    freedom: Any

    @property
    def half_width(self) -> Any:
        """From a number to either end of its 95% interval, which is Student's."""
        return stats.t.ppf((1 + LEVEL) / 2, self.freedom) * np.sqrt(self.variance)


def shared_levels(points: pd.DataFrame, unit: Unit = "crossed", axes: int = 0) -> Levels:
    """The levels that points (rows with model.* and batch_size) share. With `axes` every
    hyperparameter of so many values or more, each of two models or more, is a factor: it may have
    effects.

    A model is everything under model.* with its family. Batch sizes are a sample from six different
    ones on; fewer are taken as given, as are precisions, compile modes and devices: points that
    differ in these alone share their model.
    """
    count = len(points)
    model = _numbered(
        points, [str(name) for name in points if name == "family" or str(name).startswith("model.")]
    )
    batch = _numbered(points, [name for name in ("batch_size",) if name in points])
    each = np.arange(count)
    models = len(set(model))
    batches = len(set(batch))
    if unit == "point" or (models < 2 and batches < 2):
        return Levels(each[None], each, counted(count, "point"))
    factors = []
    words = []
    if models > 1:
        factors.append(model)
        words.append(counted(models, "model"))
    if batches > 1 and (models < 2 or (unit == "crossed" and batches >= _FEWEST_BATCHES)):
        factors.append(batch)
        words.append(counted(batches, "batch size"))
    if unit == "crossed" and axes:
        names = [str(name) for name in points if str(name).startswith("model.")]
        counts = {name: points[name].nunique() for name in names}
        factors += [
            _numbered(points, [name]) for name in names if axes <= counts[name] <= models / 2
        ]
        if models > 1 and 1 < axes <= batches < _FEWEST_BATCHES:
            factors.append(batch)
    return Levels(np.array(factors), each, " and ".join(words))


def crossed_variance(values: np.ndarray, levels: Levels) -> Component:
    """The variance of the mean of n values, with effects of every factor, and its degrees of
    freedom.
    """
    found = levels.of_mean.components(values - values.mean())
    return Component(float(found.variance[0]), float(found.freedom[0]))


def crossed_variances(
    design: np.ndarray, response: np.ndarray, levels: Levels, sizes: np.ndarray | None = None
) -> Component:
    """Those of the least-squares coefficients of a response (n,) on a design (n, k), see
    `Crossing`.
    """
    fitted = design @ np.linalg.lstsq(design, response, rcond=None)[0]
    return Crossing.of(design, levels.factors, sizes).components(response - fitted)


def geometric_mean(
    ratios: np.typing.ArrayLike, levels: Levels, more: Sequence[Component] = ()
) -> Estimate:
    """The geometric mean of ratios above zero with its interval: Student's of the mean logarithm,
    variance and degrees of freedom of `crossed_variance`.

    `more` are variances beside that of points, such as that between sessions. NaN ends below
    MINIMUM_POINTS.
    """
    logs = np.log(np.asarray(ratios, dtype="float64"))
    mean = float(np.exp(logs.mean())) if len(logs) else np.nan
    if len(logs) < MINIMUM_POINTS:
        return Estimate(mean, np.nan, np.nan)
    reach = float(np.exp(sum_components([crossed_variance(logs, levels), *more]).half_width))
    return Estimate(mean, mean / reach, mean * reach)


def crossed_ratio(
    above: np.typing.ArrayLike, below: np.typing.ArrayLike, levels: Levels
) -> Estimate:
    """sum(above) / sum(below) over points, (n,) each, `below` positive, with its interval: that of
    the coefficient of above = ratio x below by weights 1 / below (Cochran, Sampling Techniques,
    section 6.4), where models, batch sizes and points have ratios of their own. NaN ends below
    MINIMUM_POINTS.
    """
    top = np.asarray(above, dtype="float64")
    bottom = np.asarray(below, dtype="float64")
    ratio = float(top.sum() / bottom.sum()) if bottom.any() else np.nan
    if len(top) < MINIMUM_POINTS or not bottom.any():
        return Estimate(ratio, np.nan, np.nan)
    root = np.sqrt(bottom)
    response = np.divide(top, root, where=root > 0, out=0 * top)
    reach = float(crossed_variances(root[:, None], response, levels, root).half_width[0])
    return Estimate(ratio, ratio - reach, ratio + reach)


def crossed_share(
    hits: np.typing.ArrayLike,
    levels: Levels,
    level: float = LEVEL,
    latent: np.ndarray | None = None,
) -> Estimate:
    """The share of true values (n) with Wilson's interval of the effective number of points.

    n_effective = share (1 - share) / V, V of `crossed_variance`, at most n; the interval is
    Wilson's (J. American Statistical Association 22, 1927) with Student's t of V's degrees of
    freedom (Franco, Little, Louis and Slud, J. Survey Statistics and Methodology 7, 2019, compare
    such). Where all points agree their scatter says nothing, and it is Clopper and Pearson's
    (Biometrika 26, 1934): of as many points as the `latent` numbers (n,) behind the hits are worth
    (after Korn and Graubard, Survey Methodology 24, 1998), else as the factor of fewest levels has.
    So it is of points that share nothing. NaN for no points.
    """
    from statsmodels.stats.proportion import proportion_confint

    there = np.asarray(hits, dtype="float64")
    if len(there) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    share = float(there.mean())
    if levels.independent or share in (0.0, 1.0):
        n = float(min(levels.counts))
        if (
            latent is not None
            and not levels.independent
            and len(there) > 1
            and np.ptp(latent) > 1e-9
        ):
            error = crossed_variance(latent, levels).variance
            n = max(
                n,
                min(float(np.var(latent, ddof=1)) / error, len(there)) if error > 0 else len(there),
            )
        return Estimate(share, *map(float, proportion_confint(share * n, n, 1 - level, "beta")))
    return Estimate(share, *_wilson(share, *_effective(there, levels), level))


def quantile_interval(
    values: np.typing.ArrayLike, share: float = 0.5, level: float = LEVEL
) -> Estimate:
    """The `share` quantile of a sample with the interval of its order statistics.

    An end is infinite where there is no such order statistic. The value is linearly interpolated
    (type 7). Source: Conover, Practical Nonparametric Statistics, section 3.2. NaN for an empty
    sample.
    """
    known = np.asarray(values, dtype="float64")
    if len(known) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    low, high = stats.quantile_test(known, p=share).confidence_interval(level)
    ends = (
        float(end) if end == end else beyond for end, beyond in ((low, -np.inf), (high, np.inf))
    )
    return Estimate(float(np.quantile(known, share)), *ends)


def crossed_quantile(
    values: np.typing.ArrayLike, levels: Levels, share: float = 0.5, level: float = LEVEL
) -> Estimate:
    """The `share` quantile with the interval of order statistics at the effective number of points.

    The ends are the values below which the shares lie that `crossed_share` of the points below the
    quantile allows (Woodruff, J. American Statistical Association 47, 1952). An end is infinite
    where so few points have none. Points that share nothing get `quantile_interval`.
    """
    ordered = np.asarray(values, dtype="float64")
    count = len(ordered)
    if count == 0 or levels.independent:
        return quantile_interval(ordered, share, level)
    value = float(np.quantile(ordered, share))
    n, freedom = _effective((ordered <= value).astype(float), levels)
    known = np.isfinite(quantile_interval(np.arange(math.floor(n)), share, level)[1:])
    least, most = _wilson(share, n, freedom, level)
    ordered = np.sort(ordered)
    if known[0]:
        low = ordered[min(math.floor(least * count), count - 1)]
    else:
        low = -np.inf
    if known[1]:
        high = ordered[min(math.ceil(most * count), count - 1)]
    else:
        high = np.inf
    return Estimate(value, float(low), float(high))


def _numbered(points: pd.DataFrame, names: list[str]) -> np.ndarray:
    if not names:
        return np.zeros(len(points), dtype="int64")
    return points.groupby(names, dropna=False, sort=False).ngroup().to_numpy()


def sum_components(parts: Sequence[Component]) -> Component:
    """The sum of variances with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946)."""
    total = sum(part.variance for part in parts)
    below = sum(part.variance**2 / part.freedom for part in parts)
    if below > 0:
        freedom = total**2 / below
    else:
        freedom = min((part.freedom for part in parts), default=np.inf)
    return Component(total, freedom)


def _effective(there: np.ndarray, levels: Levels) -> tuple[float, float]:
    """How many independent points a share over dependent ones is worth, and the degrees of freedom
    of its variance.
    """
    share = there.mean()
    variance, freedom = crossed_variance(there, levels)
    if variance <= 0 or share in (0.0, 1.0):
        return float(min(levels.counts)), min(levels.counts) - 1.0
    return float(min(share * (1 - share) / variance, len(there))), freedom


def _wilson(share: float, n: float, freedom: float, level: float) -> tuple[float, float]:
    """Wilson's interval with Student's t in place of the normal quantile."""
    from statsmodels.stats.proportion import proportion_confint

    beyond = 2 * stats.norm.sf(stats.t.ppf((1 + level) / 2, freedom))
    low, high = proportion_confint(share * n, n, beyond, "wilson")
    return float(low), float(high)


@dataclass(frozen=True)
class Crossing:
    """How the variance of each of k coefficients follows from residuals, for one design and one set
    of factors.

    The estimate of one factor is its delete-one-level jackknife, V_f = (G - 1) / G x sum (coefficient without the level
    - coefficient)^2 (MacKinnon, Nielsen and Webb, J. Applied Econometrics 38, 2023). It holds some of the effects of
    the others: of a complete grid V_models holds the scatter of single points, as V_batches does, of an incomplete one
    effects of batch sizes too. So V = sum w_f V_f over factors and points, w such that V is unbiased where every factor
    and every point has a random effect of any size: V_models + V_batches - V_rest of a complete grid, and near V_models
    + V_batches - V_points (Cameron, Gelbach and Miller, J. Business and Economic Statistics 29, 2011) of one with many
    holes. V is at least V_points. Degrees of freedom of a part are those that its V would have with effects of
    this factor alone (Bell and McCaffrey, Survey Methodology 28, 2002; G - 1 of a mean over levels of one size), of V
    Satterthwaite's.

    `codes` (factors, n) are the levels of each row, the last one's the points; `influence` of each
    (n, k): what a residual moves the coefficients by when its level is left out.
    """

    codes: tuple[np.ndarray, ...]
    influence: tuple[np.ndarray, ...]
    weights: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of(
        cls, design: np.ndarray, codes: Sequence[np.ndarray], sizes: np.ndarray | None = None
    ) -> Crossing:
        """For a design (n, k) and the levels of its rows, (n,) each; `sizes` (n,): what an effect
        of 1 adds (1).
        """
        sizes = np.ones(len(design)) if sizes is None else sizes
        gram = design.T @ design
        inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
        effects = [inverse @ _summed(design * sizes[:, None], code).T for code in codes]
        influence = [_influence(design, gram, code) for code in codes]
        wanted = np.array([(effect**2).sum(axis=1) for effect in effects])
        factors = list(zip(codes, influence, strict=True))
        others = list(zip(codes, effects, strict=True))
        held = np.array(
            [[_held(design, sizes, *factor, *other) for other in others] for factor in factors]
        )
        scale = np.array([1 - 1 / (code.max() + 1) for code in codes])
        weights = np.zeros(wanted.shape)
        freedom = np.ones(wanted.shape)
        for k in range(design.shape[1]):
            weights[:, k] = scale * _weights(
                wanted[:, k], scale[:, None] * held[:, :, k], _NOTHING * inverse[k, k]
            )
            for number, code in enumerate(codes):
                freedom[number, k] = _freedom(
                    design, sizes, influence[number][:, k], code, effects[number]
                )
        return cls(tuple(codes), tuple(influence), weights, freedom)

    def components(self, residual: np.ndarray) -> Component:
        """The variances of the coefficients, from the residuals (n,) of the fit."""
        moves = zip(self.codes, self.influence, strict=True)
        squares = np.array(
            [(_summed(moved * residual[:, None], code) ** 2).sum(axis=0) for code, moved in moves]
        )
        parts = self.weights * squares
        total = parts.sum(axis=0)
        if len(self.codes) > 1:
            points = squares[-1] * (1 - 1 / (self.codes[-1].max() + 1))
        else:
            points = np.zeros_like(total)
        below = np.maximum((parts**2 / self.freedom).sum(axis=0), 1e-300)
        freedom = np.where(total > points, total**2 / below, self.freedom[-1])
        return Component(np.maximum(total, points), freedom)


def _weights(wanted: np.ndarray, held: np.ndarray, nothing: float) -> np.ndarray:
    """w (f,) such that sum w_f held_fh = wanted_h for every component h; an alone factor without
    effect has 1.
    """
    if len(wanted) == 1:
        return np.where(held[0] > nothing, wanted / np.maximum(held[0], nothing), 1.0)
    unit = np.maximum(np.maximum(held.max(axis=0), wanted), nothing)
    found: np.ndarray = np.linalg.lstsq((held / unit).T, wanted / unit, rcond=_CLOSE)[0]
    return found


def _summed(rows: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Sums (levels, k) of rows (n, k) by level."""
    return np.column_stack([np.bincount(code, column) for column in rows.T])


def _influence(design: np.ndarray, gram: np.ndarray, code: np.ndarray) -> np.ndarray:
    """What each row's residual (n, k) moves the coefficients by when its level is left out: X_g
    (X'X - X_g'X_g)^-1.
    """
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    if len(starts) == len(
        code
    ):  # each row alone, where Sherman and Morrison's formula needs one inverse for all
        alone = design @ np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
        if (rest := 1 - (alone * design).sum(axis=1)).min() > 1e-6:
            return np.asarray(alone / rest[:, None])
    products = design[order][:, :, None] * design[order][:, None, :]
    left = gram - np.add.reduceat(products, starts)
    inverses = np.linalg.pinv(left, rcond=_SINGULAR, hermitian=True)
    moved: np.ndarray = np.einsum("nk,nkj->nj", design, inverses[code])
    return moved


def _held(
    design: np.ndarray,
    sizes: np.ndarray,
    code: np.ndarray,
    moved: np.ndarray,
    other: np.ndarray,
    effect: np.ndarray,
) -> np.ndarray:
    """How much of a unit variance of the effects of `other` the sum of squares of `code` holds,
    (k,).

    The change that a level g makes is a sum over levels l of `other` of effect_l x (c_gl - U_g
    Q_l), with c_gl the influence of the rows in both times their `sizes`, U_g = sum of influence x
    row over g, Q = (X'X)^-1 X'Z (`effect`).
    """
    levels = int(other.max()) + 1
    pairs, place = np.unique(code * levels + other, return_inverse=True)
    own = pairs // levels
    others = pairs % levels
    square = effect @ effect.T
    found = np.empty(design.shape[1])
    for k, column in enumerate(moved.T):
        both = np.bincount(place, column * sizes)
        fitted = _summed(column[:, None] * design, code)
        cross = np.einsum("pk,kp->p", fitted[own], effect[:, others])
        found[k] = (both**2).sum() - 2 * (both * cross).sum() + ((fitted @ square) * fitted).sum()
    return found


def _freedom(
    design: np.ndarray, sizes: np.ndarray, column: np.ndarray, code: np.ndarray, effect: np.ndarray
) -> float:
    """Degrees of freedom of the jackknife of one factor: (trace C)^2 / trace C^2, C the covariance
    of its changes: M M' with M = diag(own) - rows @ effect, which is diag(own^2) - one two', of two
    columns for each of the design's.
    """
    own = np.bincount(code, column * sizes)
    rows = _summed(column[:, None] * design, code)
    pulled = own[:, None] * effect.T
    one = np.hstack([rows, pulled - rows @ (effect @ effect.T)])
    two = np.hstack([pulled, rows])
    taken = (one * two).sum(axis=1)
    within = two.T @ one
    trace = float((own**2 - taken).sum())
    if trace <= _NO_CHANGE * (column**2).sum():
        return len(own) - 1.0
    return trace**2 / float(own**2 @ (own**2 - 2 * taken) + np.trace(within @ within))
