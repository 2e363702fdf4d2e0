"""Intervals over points that share a model or a batch size: means, shares, quantiles, coefficients.

For example, 23 models with up to nine batch sizes each give 176 points. These points are not
independent: a result for a model at one batch size mostly holds at the next batch size, too. The
statistical model therefore has crossed random effects of models (the family and all `model.*`
options) and of batch sizes. An interval states how far a number may be from its value for other
models and batch sizes of the same kind.
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

#: The unit of sampling: models and batch sizes ("crossed"), models with fixed batch sizes ("model"),
#: or points ("point").
Unit = Literal["crossed", "model", "point"]
#: Minimum number of points for an interval of a mean.
MINIMUM_POINTS = 6

#: Minimum number of batch sizes that count as a sample. With fewer batch sizes, a result holds only
#: for the measured ones.
_MINIMUM_BATCH_SIZES = 6
#: Eigenvalues below this share of the largest eigenvalue count as 0.
_SINGULAR = 1e-10
#: An effect below this share of the variance of a coefficient counts as 0.
_NEGLIGIBLE_EFFECT = 1e-9
#: A change below this share of the sum of squared influences counts as a rounding error.
_ROUNDING = 1e-12
#: Singular values below this share of the largest singular value count as 0, because the effects of
#: the factors cannot be separated.
_INSEPARABLE = 0.02
#: Numbers whose range is not larger count as equal, apart from rounding errors.
_EQUAL_RANGE = 1e-9
_TINY = 1e-300


@dataclass(frozen=True)
class Levels:
    """Grouping of n measurements by factors, such as their model and their batch size.

    Measurements with the same level of a factor, such as the same model, are not independent.

    Attributes:
        codes: (factors, n) number of each row's level, from 0.
        point: (n,) number of each row's point, that is, of its configuration.
        description: The sample as text, such as "23 models and 9 batch sizes".
    """

    codes: np.ndarray
    point: np.ndarray
    description: str

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of levels of each factor."""
        return tuple(int(code.max()) + 1 if len(code) else 0 for code in self.codes)

    @property
    def independent(self) -> bool:
        """Whether no two rows share a level of any factor."""
        return min(self.counts) == len(self.point)

    @cached_property
    def factors(self) -> tuple[np.ndarray, ...]:
        """Numbers (n,) of the rows' levels, for each factor with separate effects.

        The last of several factors is the point. A factor is omitted if no two points share one of
        its levels, because the effects of the factor then equal the effects of points.
        """
        if len(self.codes) == 1:
            return tuple(self.codes)
        points = int(self.point.max()) + 1
        shared = [code for code in self.codes if int(code.max()) + 1 < points]
        return (*shared, self.point)

    @cached_property
    def mean_crossing(self) -> Crossing:
        """Estimator of the variance of the mean over all rows, from their residuals."""
        return Crossing.of(np.ones((len(self.point), 1)), self.factors)


class Component(NamedTuple):
    """A variance and its degrees of freedom: two numbers, or two arrays (k,) for k estimates."""

    variance: Any
    freedom: Any

    @property
    def half_width(self) -> Any:
        """Half width of the 95% interval of an estimate with this variance, from Student's t."""
        return stats.t.ppf((1 + LEVEL) / 2, self.freedom) * np.sqrt(self.variance)


def sum_components(parts: Sequence[Component]) -> Component:
    """Return the sum of independent variances, with Satterthwaite's degrees of freedom.

    Source: Satterthwaite, Biometrics Bulletin 2, 1946.

    Args:
        parts: Variances with their degrees of freedom. If empty, the sum is 0 with infinite degrees
            of freedom.
    """
    variance = sum(part.variance for part in parts)
    below = sum(part.variance**2 / part.freedom for part in parts)
    if below > 0:
        freedom = variance**2 / below
    else:
        freedom = min((part.freedom for part in parts), default=np.inf)
    return Component(variance, freedom)


def shared_levels(points: pd.DataFrame, unit: Unit = "crossed", axes: int = 0) -> Levels:
    """Group points (configurations) by their models, batch sizes and other factors.

    A model is a family with all `model.*` options. Six or more batch sizes count as a sample; fewer
    batch sizes are fixed. Precisions, compile modes and devices are always fixed: points that
    differ only in these share their model.

    Args:
        points: One row per point, with the columns `model.*` and `batch_size`.
        unit: Unit of sampling: models and batch sizes ("crossed"), models with fixed batch sizes
            ("model"), or points ("point").
        axes: If `unit` is "crossed", a hyperparameter of the model with at least this number of
            values is a factor, too. The number of values must also be at most half the number of
            models. 0: hyperparameters are never factors.
    """
    count = len(points)
    names = [str(name) for name in points]
    model_columns = [name for name in names if name.startswith("model.")]
    identity = [name for name in names if name == "family" or name.startswith("model.")]
    model = _group_indices(points, identity)
    batch = _group_indices(points, ["batch_size"] if "batch_size" in points else [])
    point = np.arange(count)
    models = len(set(model))
    batches = len(set(batch))
    if unit == "point" or (models < 2 and batches < 2):
        return Levels(point[None], point, counted(count, "point"))
    factors = []
    descriptions = []
    if models > 1:
        factors.append(model)
        descriptions.append(counted(models, "model"))
    batches_are_sample = unit == "crossed" and batches >= _MINIMUM_BATCH_SIZES
    if models < 2 or batches_are_sample:
        factors.append(batch)
        descriptions.append(counted(batches, "batch size"))
    if unit == "crossed" and axes:
        factors.extend(
            _group_indices(points, [name])
            for name in model_columns
            if axes <= points[name].nunique() <= models / 2
        )
        if models > 1 and axes <= batches < _MINIMUM_BATCH_SIZES:
            factors.append(batch)
    return Levels(np.array(factors), point, " and ".join(descriptions))


def _group_indices(points: pd.DataFrame, names: list[str]) -> np.ndarray:
    """Return the group index (n,) of each row; rows of a group have equal values in `names`."""
    if not names:
        return np.zeros(len(points), dtype="int64")
    return points.groupby(names, dropna=False, sort=False).ngroup().to_numpy()


def crossed_variance(values: np.ndarray, levels: Levels) -> Component:
    """Return the variance of the mean of values that share models or batch sizes.

    Each factor of the values, such as the model, has random effects.

    Args:
        values: (n,) the values, one per point.
        levels: The model, batch size and other factors of each point (`shared_levels`).
    """
    components = levels.mean_crossing.components(values - values.mean())
    return Component(float(components.variance[0]), float(components.freedom[0]))


def crossed_variances(
    design: np.ndarray, response: np.ndarray, levels: Levels, sizes: np.ndarray | None = None
) -> Component:
    """Return the variances (k,) of the coefficients of a least-squares fit.

    The rows are not independent: each of their factors, such as the model, has random effects.

    Args:
        design: (n, k) the explanatory columns.
        response: (n,) the explained values.
        levels: The model, batch size and other factors of each row (`shared_levels`).
        sizes: (n,) change of each row's response per unit of a random effect; by default 1 for all
            rows.
    """
    fitted = design @ np.linalg.lstsq(design, response, rcond=None)[0]
    return Crossing.of(design, levels.factors, sizes).components(response - fitted)


def geometric_mean(
    ratios: np.typing.ArrayLike, levels: Levels, more: Sequence[Component] = ()
) -> Estimate:
    """Return the geometric mean of ratios with its 95% interval.

    The interval is Student's t interval of the mean logarithm, with the variance and the degrees of
    freedom of `crossed_variance`.

    Args:
        ratios: (n,) positive ratios, one per point.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.
        more: Further variances of the mean logarithm, such as the variance between sessions.

    Returns:
        The mean. The ends of its interval are NaN for fewer than MINIMUM_POINTS points.
    """
    logs = np.log(np.asarray(ratios, dtype="float64"))
    mean = float(np.exp(logs.mean())) if len(logs) else np.nan
    if len(logs) < MINIMUM_POINTS:
        return Estimate(mean, np.nan, np.nan)
    component = sum_components([crossed_variance(logs, levels), *more])
    factor = float(np.exp(component.half_width))
    return Estimate(mean, mean / factor, mean * factor)


def crossed_ratio(
    above: np.typing.ArrayLike, below: np.typing.ArrayLike, levels: Levels
) -> Estimate:
    """Return the ratio sum(above) / sum(below) with its 95% interval.

    The ratio is the coefficient in the regression above = ratio x below with weights 1 / below
    (Cochran, Sampling Techniques, section 6.4). Random effects let the ratio differ between models,
    batch sizes and points.

    Args:
        above: (n,) numerators.
        below: (n,) denominators, positive.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.

    Returns:
        The ratio; NaN if all denominators are 0. The ends of its interval are NaN for fewer than
        MINIMUM_POINTS points.
    """
    top = np.asarray(above, dtype="float64")
    bottom = np.asarray(below, dtype="float64")
    ratio = float(top.sum() / bottom.sum()) if bottom.any() else np.nan
    if len(top) < MINIMUM_POINTS or not bottom.any():
        return Estimate(ratio, np.nan, np.nan)
    root = np.sqrt(bottom)
    response = np.divide(top, root, where=root > 0, out=np.zeros_like(top))
    half_width = float(crossed_variances(root[:, None], response, levels, root).half_width[0])
    return Estimate(ratio, ratio - half_width, ratio + half_width)


def crossed_share(
    hits: np.typing.ArrayLike,
    levels: Levels,
    level: float = LEVEL,
    latent: np.ndarray | None = None,
) -> Estimate:
    """Return the share of points that are hits, with its interval.

    The interval is Wilson's (J. American Statistical Association 22, 1927) for the effective number
    of points, n_effective = share (1 - share) / V. V is the variance from `crossed_variance`, and
    n_effective is at most n. The quantile is Student's t with the degrees of freedom of V. Franco,
    Little, Louis and Slud (J. Survey Statistics and Methodology 7, 2019) compare such intervals.

    If all points or no points are hits, V is 0. The interval is then Clopper and Pearson's
    (Biometrika 26, 1934) for the effective number of points of `latent` (after Korn and Graubard,
    Survey Methodology 24, 1998). Without `latent`, the effective number is the number of levels of
    the smallest factor. Points that share no level also have Clopper and Pearson's interval.

    Args:
        hits: (n,) booleans.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.
        level: Coverage of the interval, from 0 to 1.
        latent: (n,) the continuous numbers whose comparison with a limit yielded the hits; None if
            they are unknown.

    Returns:
        The share, from 0 to 1, with its interval; NaN without points.
    """
    from statsmodels.stats.proportion import proportion_confint

    values = np.asarray(hits, dtype="float64")
    if len(values) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    share = float(values.mean())
    if not levels.independent and share not in (0.0, 1.0):
        count, freedom = _effective_count(values, levels)
        return Estimate(share, *_wilson(share, count, freedom, level))
    count = float(min(levels.counts))
    if latent is not None and not levels.independent:
        count = max(count, _effective_count_of_numbers(latent, levels))
    low, high = proportion_confint(share * count, count, 1 - level, "beta")
    return Estimate(share, float(low), float(high))


def _effective_count_of_numbers(latent: np.ndarray, levels: Levels) -> float:
    """Return the number of independent values whose mean would be as uncertain.

    The mean of this number of independent values has the same variance as the mean of `latent`.

    Args:
        latent: (n,) the dependent numbers, one per point.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.

    Returns:
        The effective number, at most n; 0 if the numbers are equal.
    """
    if np.ptp(latent) <= _EQUAL_RANGE:
        return 0.0
    variance = float(crossed_variance(latent, levels).variance)
    if variance <= 0:
        return float(len(latent))
    return min(float(np.var(latent, ddof=1)) / variance, float(len(latent)))


def quantile_interval(
    values: np.typing.ArrayLike, share: float = 0.5, level: float = LEVEL
) -> Estimate:
    """Return a quantile of a sample, with an interval between two order statistics.

    Source: Conover, Practical Nonparametric Statistics, section 3.2.

    Args:
        values: (n,) the sample.
        share: Which quantile, from 0 to 1; 0.5 is the median.
        level: Coverage of the interval, from 0 to 1.

    Returns:
        The quantile, linearly interpolated (type 7), with its interval; NaN for an empty sample. An
        end of the interval is infinite if the sample is too small to determine it.
    """
    known = np.asarray(values, dtype="float64")
    if len(known) == 0:
        return Estimate(np.nan, np.nan, np.nan)
    low, high = stats.quantile_test(known, p=share).confidence_interval(level)
    return Estimate(
        value=float(np.quantile(known, share)),
        low=-np.inf if np.isnan(low) else float(low),
        high=np.inf if np.isnan(high) else float(high),
    )


def crossed_quantile(
    values: np.typing.ArrayLike, levels: Levels, share: float = 0.5, level: float = LEVEL
) -> Estimate:
    """Return a quantile over points that share models or batch sizes, with its interval.

    The share of points up to the quantile has Wilson's interval, as in `crossed_share`. The values
    of the sorted sample at the two ends of this interval are the ends of the result (Woodruff, J.
    American Statistical Association 47, 1952). For independent points, the result is that of
    `quantile_interval`.

    Args:
        values: (n,) the sample.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.
        share: Which quantile, from 0 to 1; 0.5 is the median.
        level: Coverage of the interval, from 0 to 1.

    Returns:
        The quantile with its interval. An end of the interval is infinite if the effective number
        of points is too small to determine it.
    """
    known = np.asarray(values, dtype="float64")
    count = len(known)
    if count == 0 or levels.independent:
        return quantile_interval(known, share, level)
    value = float(np.quantile(known, share))
    effective, freedom = _effective_count((known <= value).astype(float), levels)
    _, has_low, has_high = np.isfinite(
        quantile_interval(np.arange(math.floor(effective)), share, level)
    )
    least, most = _wilson(share, effective, freedom, level)
    ordered = np.sort(known)
    low = -np.inf
    high = np.inf
    if has_low:
        low = float(ordered[math.floor(least * count)])
    if has_high:
        high = float(ordered[min(math.ceil(most * count), count - 1)])
    return Estimate(value, low, high)


def _effective_count(hits: np.ndarray, levels: Levels) -> tuple[float, float]:
    """Return the number of independent points that would determine a share equally well.

    The share of hits among these points would have the same variance as among the given points.

    Args:
        hits: (n,) 1 for a hit, else 0.
        levels: The model, batch size and other factors of each point (`shared_levels`). Points with
            the same level of a factor share its effect.

    Returns:
        The effective number of points, and the degrees of freedom of the share's variance.
    """
    share = hits.mean()
    if share in (0.0, 1.0):
        return float(min(levels.counts)), min(levels.counts) - 1.0
    variance, freedom = crossed_variance(hits, levels)
    spread = share * (1 - share)
    return float(spread / max(variance, spread / len(hits))), freedom


def _wilson(share: float, count: float, freedom: float, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a share, with Student's t in place of the normal quantile.

    Args:
        share: The share, from 0 to 1.
        count: Effective number of points.
        freedom: Degrees of freedom of the share's variance.
        level: Coverage of the interval, from 0 to 1.
    """
    from statsmodels.stats.proportion import proportion_confint

    # statsmodels expects a level, not a quantile. Pass the level whose normal quantile equals the
    # quantile of Student's t.
    alpha = 2 * stats.norm.sf(stats.t.ppf((1 + level) / 2, freedom))
    low, high = proportion_confint(share * count, count, alpha, "wilson")
    return float(low), float(high)


@dataclass(frozen=True)
class Crossing:
    """Estimator of the variances of k least-squares coefficients with crossed random effects.

    Factors, such as the model and the batch size, have random effects. An object is valid for one
    design (n, k) and one set of factors.

    The variance estimate of a factor with G levels is its delete-one-level jackknife, V_f =
    (G - 1) / G x sum (coefficient without the level - coefficient)^2 (MacKinnon, Nielsen and Webb,
    J. Applied Econometrics 38, 2023). V_f also contains part of the effects of other factors. On a
    complete grid, V_models and V_batches both contain the scatter of single points. On an
    incomplete grid, V_models also contains part of the effects of batch sizes.

    The estimate of the variance is therefore V = sum w_f V_f over all factors, including points.
    The weights w make V unbiased for random effects of any size. On a complete grid, V = V_models +
    V_batches - V_rest. On a grid with many missing points, V is near V_models + V_batches -
    V_points (Cameron, Gelbach and Miller, J. Business and Economic Statistics 29, 2011). V is at
    least V_points.

    The degrees of freedom of each V_f assume that only this factor has effects (Bell and McCaffrey,
    Survey Methodology 28, 2002). For a mean over levels of equal size they are G - 1. The degrees
    of freedom of V are Satterthwaite's.

    Attributes:
        codes: For each factor, the levels of the rows (n,). The last of several factors is the
            point.
        influence: For each factor, an array (n, k): the change of the coefficients, per unit of a
            row's residual, if the level of the row is omitted.
        weights: (factors, k) the weights w, times (G - 1) / G.
        freedom: (factors, k) degrees of freedom of each V_f.
    """

    codes: tuple[np.ndarray, ...]
    influence: tuple[np.ndarray, ...]
    weights: np.ndarray
    freedom: np.ndarray

    @classmethod
    def of(
        cls, design: np.ndarray, codes: Sequence[np.ndarray], sizes: np.ndarray | None = None
    ) -> Crossing:
        """Create the estimator for a design, with its weights and degrees of freedom.

        Args:
            design: (n, k) the explanatory columns.
            codes: For each factor, the number (n,) of each row's level. The last of several factors
                is the point.
            sizes: (n,) change of each row's response per unit of a random effect; by default 1 for
                all rows.
        """
        if sizes is None:
            sizes = np.ones(len(design))
        gram = design.T @ design
        inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
        effects = [inverse @ _level_sums(design * sizes[:, None], code).T for code in codes]
        influence = [_influence(design, gram, code) for code in codes]
        wanted = np.array([(effect**2).sum(axis=1) for effect in effects])
        contained = np.array(
            [
                [
                    _contained_variance(design, sizes, code, moved, other, effect)
                    for other, effect in zip(codes, effects, strict=True)
                ]
                for code, moved in zip(codes, influence, strict=True)
            ]
        )
        scale = np.array([1 - 1 / (code.max() + 1) for code in codes])
        weights = np.zeros(wanted.shape)
        freedom = np.ones(wanted.shape)
        for k in range(design.shape[1]):
            weights[:, k] = scale * _unbiased_weights(
                wanted[:, k],
                scale[:, None] * contained[:, :, k],
                _NEGLIGIBLE_EFFECT * inverse[k, k],
            )
            for number, code in enumerate(codes):
                freedom[number, k] = _jackknife_freedom(
                    design, sizes, influence[number][:, k], code, effects[number]
                )
        return cls(tuple(codes), tuple(influence), weights, freedom)

    def components(self, residual: np.ndarray) -> Component:
        """Return the variances (k,) of the coefficients.

        Args:
            residual: (n,) residuals of the least-squares fit.
        """
        squares = np.array(
            [
                (_level_sums(moved * residual[:, None], code) ** 2).sum(axis=0)
                for code, moved in zip(self.codes, self.influence, strict=True)
            ]
        )
        parts = self.weights * squares
        variance = parts.sum(axis=0)
        points_variance = np.zeros_like(variance)
        if len(self.codes) > 1:
            points_variance = squares[-1] * (1 - 1 / (self.codes[-1].max() + 1))
        below = np.maximum((parts**2 / self.freedom).sum(axis=0), _TINY)
        freedom = np.where(variance > points_variance, variance**2 / below, self.freedom[-1])
        return Component(np.maximum(variance, points_variance), freedom)


def _unbiased_weights(wanted: np.ndarray, contained: np.ndarray, negligible: float) -> np.ndarray:
    """Return weights (f,) of the jackknife variances of f factors that make their sum unbiased.

    The weights w solve sum_f w_f contained_fh = wanted_h for every factor h. If there is only one
    factor, and it has no effect, its weight is 1.

    Args:
        wanted: (f,) variance of the coefficient per unit variance of each factor's effects.
        contained: (f, f) expectation of the jackknife of factor f (row) per unit variance of the
            effects of factor h (column).
        negligible: Variances up to this value count as 0.
    """
    if len(wanted) == 1:
        ratio = wanted / np.maximum(contained[0], negligible)
        return np.where(contained[0] > negligible, ratio, 1.0)
    unit = np.maximum(np.maximum(contained.max(axis=0), wanted), negligible)
    weights: np.ndarray = np.linalg.lstsq((contained / unit).T, wanted / unit, rcond=_INSEPARABLE)[
        0
    ]
    return weights


def _level_sums(rows: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Sum the rows (n, k) of each level, and return the sums (levels, k).

    Args:
        rows: (n, k) the rows.
        code: (n,) number of each row's level.
    """
    return np.column_stack([np.bincount(code, column) for column in rows.T])


def _influence(design: np.ndarray, gram: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Return the change (n, k) of the coefficients per unit of residual if a level is omitted.

    This influence of the rows X_g of a level g is X_g (X'X - X_g'X_g)^-1.

    Args:
        design: (n, k) the explanatory columns X.
        gram: (k, k) the matrix X'X.
        code: (n,) number of each row's level.
    """
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    if len(starts) == len(code):
        # Each row is a level. By Sherman and Morrison's formula, one inverse suffices for all
        # levels.
        single = design @ np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
        rest = 1 - (single * design).sum(axis=1)
        if rest.min() > 1e-6:
            return np.asarray(single / rest[:, None])
    products = design[order][:, :, None] * design[order][:, None, :]
    remaining = gram - np.add.reduceat(products, starts)
    inverses = np.linalg.pinv(remaining, rcond=_SINGULAR, hermitian=True)
    influence: np.ndarray = np.einsum("nk,nkj->nj", design, inverses[code])
    return influence


def _contained_variance(
    design: np.ndarray,
    sizes: np.ndarray,
    code: np.ndarray,
    influence: np.ndarray,
    other_code: np.ndarray,
    effect: np.ndarray,
) -> np.ndarray:
    """Return the contribution of one factor's effects to another factor's jackknife sum of squares.

    If level g of the factor is omitted, a coefficient changes by the sum, over all levels l of the
    other factor, of effect_l x (c_gl - U_g Q_l). Here c_gl is the sum of influence x size over the
    rows in both g and l. U_g is the sum of influence x row of the design over the rows in g.

    Args:
        design: (n, k) the explanatory columns X.
        sizes: (n,) change of each row's response per unit of a random effect.
        code: (n,) number of each row's level of the factor.
        influence: (n, k) change of the coefficients per unit of each row's residual if the row's
            level is omitted (`_influence`).
        other_code: (n,) number of each row's level of the other factor.
        effect: Q = (X'X)^-1 X'Z, (k, levels of the other factor). Z are the indicators of these
            levels, times `sizes`.

    Returns:
        (k,) expected sum of squares per unit variance of the other factor's effects.
    """
    levels = int(other_code.max()) + 1
    pairs, position = np.unique(code * levels + other_code, return_inverse=True)
    pair_codes = pairs // levels
    pair_others = pairs % levels
    square = effect @ effect.T
    contained = np.empty(design.shape[1])
    for k, column in enumerate(influence.T):
        both = np.bincount(position, column * sizes)
        fitted = _level_sums(column[:, None] * design, code)
        cross = np.einsum("pk,kp->p", fitted[pair_codes], effect[:, pair_others])
        direct = (both**2).sum() - 2 * (both * cross).sum()
        contained[k] = direct + ((fitted @ square) * fitted).sum()
    return contained


def _jackknife_freedom(
    design: np.ndarray, sizes: np.ndarray, column: np.ndarray, code: np.ndarray, effect: np.ndarray
) -> float:
    """Return the degrees of freedom of the jackknife of one factor, (trace C)^2 / trace C^2.

    C = M M' is the covariance of the changes of the coefficient if one level is omitted, where M =
    diag(d) - rows @ effect. C equals diag(d^2) - A B', where A and B have 2 k columns. This form
    avoids a matrix of levels x levels.

    Args:
        design: (n, k) the explanatory columns X.
        sizes: (n,) change of each row's response per unit of a random effect.
        column: (n,) influence of the rows on one coefficient, a column of `_influence`.
        code: (n,) number of each row's level of the factor.
        effect: (X'X)^-1 X'Z, (k, levels). Z are the indicators of the levels, times `sizes`.
    """
    d = np.bincount(code, column * sizes)
    rows = _level_sums(column[:, None] * design, code)
    pulled = d[:, None] * effect.T
    a = np.hstack([rows, pulled - rows @ (effect @ effect.T)])
    b = np.hstack([pulled, rows])
    diagonal = (a * b).sum(axis=1)
    inner = b.T @ a
    trace = float((d**2 - diagonal).sum())
    if trace <= _ROUNDING * (column**2).sum():
        return len(d) - 1.0
    trace_of_square = float(d**2 @ (d**2 - 2 * diagonal) + np.trace(inner @ inner))
    return trace**2 / trace_of_square
