"""Least squares with intervals that allow for unequal scatter, shared levels and sessions.

Intervals are Student's t with one of these covariances:

- HC3 of MacKinnon and White (J. Econometrics 29, 1985), which allows for scatter that differs from
  point to point. HC1 if a single row determines a coefficient, since HC3 divides by zero there.
- With `levels` (models, batch sizes) that rows share, that of `dependence.Crossing`.
- With `by_value`, that of `value_variances` for columns with enough values.

They are intervals of the slopes, in units of s_x and s_y of these rows. With `when` the rows were
measured, differences between sessions are removed. If a term changed only between sessions,
sessions are random effects instead, with the variance of `paradnn.statistics.priors`. So is the
drift of the machine if values were measured one after the other. Of 3,000 intervals for 60 points,
94.7% contained the planted slope where scatter differed 4-fold, and 93.8% where it differed
16-fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.dependence import Component, Levels, crossed_variances, sum_components
from paradnn.statistics.effects import combine, drift_weights
from paradnn.statistics.lazy import np, pd, stats
from paradnn.statistics.priors import ScatterPriors, VariancePrior, scatter_priors
from paradnn.statistics.sessions import MeasurementTimes

#: Share of a term's variance between sessions above which sessions are random effects. Below, the
#: slopes within sessions are estimated.
_BETWEEN = 0.25
#: Logarithm of a small factor, by which the derivative of a scale is taken.
_SMALL_LOG = 0.01
#: Rows per coefficient, intercept included, below which no fit is attempted.
_ROWS_PER_COEFFICIENT = 2
_FOLDS = 10
#: p of a random order below which values count as measured in order.
_ORDER_P = 0.01
#: Share of a column's variance that others must leave unexplained for it to have a weight.
_INDEPENDENT_SHARE = 1e-9
#: Range relative to the largest value below which values are constant.
_CONSTANT = 1e-12
#: Values that a column needs to show how they scatter about a line.
_MINIMUM_VALUES = 3
_TINY = 1e-300


@dataclass(frozen=True)
class Regression:
    """A standardized fit.

    Attributes:
        weights: A row per term. `weight` is the change of the response, in its standard deviations,
            for one standard deviation of the term, with its interval `low` to `high`. `p` is
            two-sided, of no effect; `p_given` is the same with the values of a term fixed. `error`
            is the standard error with degrees of `freedom`. `vif` is the variance inflation factor.
            `slope` is in the response's unit per unit of the term. `limit` is "sessions" or "order"
            if the interval includes 0 because of them alone, else empty.
        correlation: Correlation of the weights.
        rows: Number of rows.
        r2: R2 of the fit.
        r2_held_out: R2 of ten-fold cross-validation, 1 - sum (y - prediction)^2 / sum (y - mean of
            the training rows)^2.
        rmse_held_out: Root mean square error of the same, in the response's unit.
        covariance: "HC3", "HC1" or "crossed".
        constant: The value of each dropped constant column.
        collinear: The terms that each dropped collinear column is a combination of.
    """

    weights: pd.DataFrame
    correlation: pd.DataFrame
    rows: int
    r2: float
    r2_held_out: float
    rmse_held_out: float
    covariance: str
    constant: Mapping[str, float]
    collinear: Mapping[str, tuple[str, ...]]


def _identity(values: np.ndarray) -> np.ndarray:
    return values


def regress(
    design: pd.DataFrame,
    values: np.ndarray,
    scale: Callable[[np.ndarray], np.ndarray] = _identity,
    *,
    levels: Levels | None = None,
    by_value: bool = False,
    when: MeasurementTimes | None = None,
    products: Mapping[str, np.ndarray] | None = None,
    priors: ScatterPriors | None = None,
) -> Regression:
    """Fit scale(values) on the columns of a design by least squares, everything standardized.

    With z = (x - mean) / s for every column and the response, s being sample standard deviations,
    the weights are the coefficients of z_y on z_x and an intercept: weight = slope x s_x / s_y
    (paper, section 4.1: "normalize to the same scale").

    Args:
        design: (n, k) the columns.
        values: (n,) the response before scaling.
        scale: Applied to the values, such as `np.log`.
        levels: Levels that the rows share.
        by_value: Whether each value of a column may have a separate effect. On a scale of
            logarithms or ranks, these effects have a prior.
        when: When the rows were measured.
        products: (n, 2) the two factors of each column that is a product. Each value of a factor
            may have its own slope along the other.
        priors: Priors of the scatter; None for those of shared machines.

    Raises:
        InsufficientData: If there are fewer than two rows per coefficient, or nothing varies.
    """
    values = np.asarray(values, dtype="float64")
    if len(values) < 2:
        raise InsufficientData("there is one point")
    if np.ptp(values) <= _CONSTANT * np.abs(values).max():
        raise InsufficientData(f"the metric is the same in all {len(values)} rows")
    standardized = _standardize(design.astype("float64"))
    x = np.column_stack([np.ones(len(values)), standardized.scores])
    priors = priors or scatter_priors()
    disturbance = _disturb(x, values, scale, when, priors.session.update())
    y = disturbance.response
    spread = float(y.std(ddof=1))
    z = (y - y.mean()) / spread
    fitted, covariance, given = _fit_terms(x, z, levels)
    own = given
    if by_value:
        prior = None if scale is _identity else priors.value
        of_values = value_variances(x, fitted.resid, prior)
        own = _replace_known(own, Component(of_values.variance[1:], of_values.freedom[1:]))
    if products is not None:
        factors = [products.get(str(name)) for name in standardized.scores]
        own = _replace_known(own, _product_variances(x, fitted.resid, factors))
    table = _weight_table(
        standardized,
        fitted.params[1:],
        given=given,
        own=own,
        shared=disturbance.components(spread),
        spread=spread,
    )
    weight_correlation = np.corrcoef(np.linalg.pinv(x)[1:])
    folds = np.random.default_rng(0).permutation(len(y)) % min(_FOLDS, len(y))
    r2_held_out, rmse_held_out = _cross_validate(x, y, folds)
    return Regression(
        weights=table,
        correlation=pd.DataFrame(weight_correlation, table.index, table.index),
        rows=len(y),
        r2=float(fitted.rsquared),
        r2_held_out=r2_held_out,
        rmse_held_out=rmse_held_out,
        covariance=covariance,
        constant=standardized.constant,
        collinear=standardized.collinear,
    )


def _fit_terms(x: np.ndarray, z: np.ndarray, levels: Levels | None) -> tuple[Any, str, Component]:
    """Fit a standardized response by least squares.

    Args:
        x: (n, k + 1) the intercept and the standardized columns.
        z: (n,) the standardized response.
        levels: Levels that the rows share.

    Returns:
        The fit of statsmodels, the name of its covariance as in `Regression`, and the variances
        (k,) of the weights.
    """
    from statsmodels.regression.linear_model import OLS

    # HC3 divides residuals by 1 - leverage.
    largest_leverage = np.sum(np.linalg.qr(x)[0] ** 2, axis=1).max()
    covariance = "HC3" if largest_leverage < 1 - 1e-8 else "HC1"
    fitted = OLS(z, x).fit(cov_type=covariance, use_t=True)
    if levels is not None and not levels.independent:
        crossed = crossed_variances(x, z, levels)
        return fitted, "crossed", Component(crossed.variance[1:], crossed.freedom[1:])
    freedoms = np.full(x.shape[1] - 1, fitted.df_resid)
    return fitted, covariance, Component(fitted.bse[1:] ** 2, freedoms)


def _weight_table(
    standardized: _Standardized,
    weights: np.ndarray,
    *,
    given: Component,
    own: Component,
    shared: Sequence[Component],
    spread: float,
) -> pd.DataFrame:
    """Return `Regression.weights`.

    Args:
        standardized: The columns.
        weights: (terms,) their weights.
        given: Variances of the weights with the values of the columns fixed.
        own: The same if the values of a column have separate effects.
        shared: Variances by sessions, and by a drift.
        spread: Standard deviation of the response.
    """
    total = combine([own, *shared])
    correlations = np.atleast_2d(np.corrcoef(standardized.scores.to_numpy(), rowvar=False))
    return pd.DataFrame(
        {
            "weight": weights,
            "low": weights - total.half_width,
            "high": weights + total.half_width,
            "p": _p_values(weights, *total),
            "p_given": _p_values(weights, *combine([given, *shared])),
            "error": np.sqrt(total.variance),
            "freedom": total.freedom,
            "vif": np.diag(np.linalg.inv(correlations)),
            "slope": weights * spread / standardized.deviations.to_numpy(),
            "limit": _limits(weights, own, shared),
        },
        index=pd.Index(standardized.scores.columns, name="term"),
    )


class _Disturbance(NamedTuple):
    """Effect of sessions and of drift on the coefficients of a regression.

    Attributes:
        response: (n,) the response, without the shifts of sessions if those are removed.
        sessions: (k - 1,) variances of the coefficients by sessions that are not removed.
        drift: (k - 1,) the same by a drift.
    """

    response: np.ndarray
    sessions: Component
    drift: Component

    def components(self, spread: float) -> list[Component]:
        """Return both variances in units of the weights, for a response of this spread."""
        parts = (self.sessions, self.drift)
        return [Component(part.variance / spread**2, part.freedom) for part in parts]


def _disturb(
    x: np.ndarray,
    values: np.ndarray,
    scale: Callable[[np.ndarray], np.ndarray],
    when: MeasurementTimes | None,
    session: Component,
) -> _Disturbance:
    """Return the effect of sessions and drift on the coefficients of the columns.

    The shifts of sessions are removed unless a column varies along with them. A drift counts if
    the rows were measured in the order of some column; in a random order it is part of the
    residuals.

    Args:
        x: (n, k) the columns; the first one is the intercept.
        values: (n,) the response before scaling.
        scale: Scale of the response.
        when: When the rows were measured.
        session: Variance of a session's effect on the logarithm of the values.
    """
    response = scale(values)
    terms = x.shape[1] - 1
    nothing = Component(np.zeros(terms), session.freedom)
    if when is None:
        return _Disturbance(response, nothing, nothing)
    between, within = _without_sessions(x, response, when)
    is_removed = bool((between[1:] < _BETWEEN).all())
    indicators = np.zeros((len(x), 0))
    if is_removed:
        response = within
        indicators = np.eye(int(when.session.max()) + 1)[when.session]
    influence = np.linalg.pinv(np.column_stack([x[:, 1:], indicators, x[:, :1]]))[:terms]
    influence = influence * _log_derivative(values, scale)
    sessions = nothing
    if not is_removed:
        sums = np.array([np.bincount(when.session, row) for row in influence])
        sessions = Component(session.variance * (sums**2).sum(axis=1), session.freedom)
    drift = nothing
    if _is_in_order(x, when) and np.isfinite(when.hours).all():
        weights = np.zeros(terms)
        for number in range(int(when.session.max()) + 1):
            rows = when.session == number
            weights += drift_weights(influence[:, rows], when.hours[rows])
        drift = Component(session.variance * weights, session.freedom)
    return _Disturbance(response, sessions, drift)


def _log_derivative(values: np.ndarray, scale: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the derivative (n,) of the scaled values by the logarithm of a value.

    Ranks do not change if all values do. Theirs is the slope of the ranks among the other values.
    """
    more, less = values * math.exp(_SMALL_LOG), values * math.exp(-_SMALL_LOG)
    derivative = (scale(more) - scale(less)) / (2 * _SMALL_LOG)
    if np.any(derivative):
        return np.asarray(derivative)
    order = np.argsort(values, kind="stable")
    ranks = scale(values)[order]
    change = np.interp(more, values[order], ranks) - np.interp(less, values[order], ranks)
    return np.asarray(change / (2 * _SMALL_LOG))


def _is_in_order(x: np.ndarray, when: MeasurementTimes) -> bool:
    """Return whether the rows were measured in the order of some column, not in a random one.

    Args:
        x: (n, k) the columns; the first one is the intercept.
        when: When the rows were measured.
    """
    from statsmodels.regression.linear_model import OLS

    if not np.ptp(when.position):
        return False
    if OLS(when.position, x).fit().f_pvalue < _ORDER_P:
        return True
    # In a random order the square of rises less falls is (n + 1) / 3 on average.
    in_order = x[np.lexsort((when.position, when.session)), 1:]
    rises = np.sign(np.diff(in_order, axis=0)).sum(axis=0)
    limit = stats.norm.isf(_ORDER_P / 2) * math.sqrt((len(x) + 1) / 3)
    return bool((np.abs(rises) > limit).any())


def _without_sessions(
    x: np.ndarray, y: np.ndarray, when: MeasurementTimes | None
) -> tuple[np.ndarray, np.ndarray]:
    """Remove the shift of each session from a response by least squares along with the columns.

    The weights of the columns are then those of slopes within sessions.

    Returns:
        (k,) share (adjusted R2) of each column's variance that lies between sessions, and the
        response (n,) without the shifts.
    """
    if when is None or not when.session.any():
        return np.zeros(x.shape[1]), y
    count = len(y)
    sizes = np.bincount(when.session)
    if count <= len(sizes):
        return np.ones(x.shape[1]), y
    sums = np.array([np.bincount(when.session, column) for column in (*x.T, y)]).T
    column_means = sums[:, :-1] / sizes[:, None]
    within = x - column_means[when.session]
    with np.errstate(invalid="ignore"):
        share_within = (within**2).sum(axis=0) / (x.var(axis=0) * count)
        share_within = share_within * (count - 1) / (count - len(sizes))
    # Normal equations of x and an indicator per session, without a column for every session.
    columns = x[:, 1:]
    column_sums = sums[:, 1:-1]
    products = np.block([[np.diag(sizes), column_sums], [column_sums.T, columns.T @ columns]])
    inverse = np.linalg.pinv(products, rcond=_INDEPENDENT_SHARE, hermitian=True)
    coefficients = inverse @ np.append(sums[:, -1], columns.T @ y)
    shift = coefficients[when.session]
    return 1 - share_within, y - shift + shift.mean()


class _Standardized(NamedTuple):
    """Columns on one scale.

    Attributes:
        scores: (n, terms) the columns that have a weight.
        deviations: (terms,) their standard deviations.
        constant: The value of each constant column.
        collinear: The columns that each collinear column is a combination of.
    """

    scores: pd.DataFrame
    deviations: pd.Series
    constant: dict[str, float]
    collinear: dict[str, tuple[str, ...]]


def _standardize(values: pd.DataFrame) -> _Standardized:
    """Standardize columns, without the constant and the collinear ones.

    Raises:
        InsufficientData: If no column is left, or there are too few rows.
    """
    varies = values.max() - values.min() > _CONSTANT * values.abs().max()
    constant = {str(name): float(values[name].iloc[0]) for name in values.columns[~varies]}
    values = values.loc[:, varies]
    scores, collinear = independent_columns((values - values.mean()) / values.std())
    count, terms = scores.shape
    if not terms:
        raise InsufficientData("no hyperparameter varies")
    needed = _ROWS_PER_COEFFICIENT * (terms + 1)
    if count < needed:
        raise InsufficientData(
            f"{counted(count, 'point')} for {counted(terms, 'term')}, at least {needed} are needed"
        )
    return _Standardized(scores, values.std()[scores.columns], constant, collinear)


def _limits(weights: np.ndarray, own: Component, shared: Sequence[Component]) -> np.ndarray:
    """Return the cause without which the interval of each weight (k,) would exclude 0; else "".

    Args:
        weights: (k,) the weights.
        own: Their variances without sessions and drift.
        shared: Variances by sessions, and by a drift.
    """
    sessions, drift = shared
    size = np.abs(weights)
    is_limited = (size > own.half_width) & (size <= combine([own, *shared]).half_width)
    cause = np.where(drift.variance > sessions.variance, "order", "sessions")
    return np.where(is_limited, cause, "")


def _p_values(weights: np.ndarray, variance: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return two-sided p values (k,) of no effect, by Student's t."""
    errors = np.sqrt(np.maximum(variance, _TINY))
    p_values: np.ndarray = 2 * stats.t.sf(np.abs(weights) / errors, freedom)
    return p_values


class _ValueScatter(NamedTuple):
    """How the values of a column scatter about its line.

    Attributes:
        position: Index of the column in the design.
        effects: Variance of the mean residuals of the values, with values - 2 degrees of freedom.
        noise: The part of that variance that the scatter of single rows explains.
        moved: (values, k) change of each coefficient for an effect of each value.
    """

    position: int
    effects: Component
    noise: float
    moved: np.ndarray


def value_variances(
    design: np.ndarray, residual: np.ndarray, prior: VariancePrior | None = None
) -> Component:
    """Return the variances of least-squares coefficients if each value has a separate effect.

    A line through few values cannot be known better than their scatter about it allows, however
    many rows have them. For each column of 3 to n / 2 values, the mean residuals of the values have
    the variance s^2 = sum mean^2 / (values - 2), which is exact for a balanced grid. A coefficient
    moves by the sum of its influences over each value times the effect of the value.

    A prior is of the effects alone: the noise of a mean residual is added to it. It expects larger
    effects if the values of the other columns have larger ones.

    Args:
        design: (n, k) the columns.
        residual: (n,) the residuals.
        prior: Prior of the effects.

    Returns:
        The variances (k,). The degrees of freedom are values - 2 and those of the prior, or
        Satterthwaite's (Biometrics Bulletin 2, 1946) if several columns contribute. They are NaN
        for a column of fewer or more values, which says nothing about their scatter.
    """
    columns = design.shape[1]
    total = np.zeros(columns)
    below = np.zeros(columns)
    is_known = np.zeros(columns, dtype=bool)
    scatters = _value_scatters(design, residual)
    for scatter in scatters:
        variance = scatter.effects
        if prior is not None:
            others = [other for other in scatters if other is not scatter]
            variance = _prior_of_values(prior, scatter, others).update(*scatter.effects)
        part = (scatter.moved**2).sum(axis=0) * variance.variance
        total += part
        below += part**2 / variance.freedom
        is_known[scatter.position] = True
    freedom = np.maximum(total**2 / np.maximum(below, _TINY), 1.0)
    return Component(total, np.where(is_known, freedom, np.nan))


def _value_scatters(design: np.ndarray, residual: np.ndarray) -> list[_ValueScatter]:
    """Return the scatter of each column that has 3 to n / 2 values."""
    influence = np.linalg.pinv(design).T
    found = []
    rest = residual
    freedom = len(residual) - 1
    for position, column in enumerate(design.T):
        values, code = np.unique(column, return_inverse=True)
        if not _MINIMUM_VALUES <= len(values) <= len(column) / 2:
            continue
        counts = np.bincount(code)
        means = np.bincount(code, residual) / counts
        rest = rest - means[code]
        freedom -= len(values) - 1
        scatter = _ValueScatter(
            position=position,
            effects=Component((means**2).sum() / (len(values) - 2), len(values) - 2),
            noise=float((1 / counts).mean()),
            moved=np.array([np.bincount(code, of_row) for of_row in influence.T]).T,
        )
        found.append(scatter)
    of_row = float(rest @ rest) / max(freedom, 1)
    return [scatter._replace(noise=scatter.noise * of_row) for scatter in found]


def _prior_of_values(
    prior: VariancePrior, scatter: _ValueScatter, others: Sequence[_ValueScatter]
) -> VariancePrior:
    """Return the prior of the variance of a column's mean residuals.

    Args:
        prior: Prior of the effects of values.
        scatter: The values of the column.
        others: Those of other columns, whose effects may raise the scale. They do not lower it: a
            line through the values of one hyperparameter says little about another.
    """
    freedom = sum(other.effects.freedom for other in others)
    squares = sum(
        other.effects.freedom * max(other.effects.variance - other.noise, 0.0) for other in others
    )
    updated = prior.update(squares / max(freedom, 1), freedom)
    effects = max(updated.variance, prior.scale**2)
    return replace(prior, scale=math.sqrt(effects + scatter.noise))


def _product_variances(
    design: np.ndarray, residual: np.ndarray, factors: Sequence[np.ndarray | None]
) -> Component:
    """Return the `product_variance` of each column after the intercept; NaN if it is not a product.

    Args:
        design: (n, k) the columns, intercept first.
        residual: (n,) the residuals.
        factors: (n, 2) the factors of each of the k - 1 columns; None if it is not a product.
    """
    found = np.full((2, len(factors)), np.nan)
    for position, pair in enumerate(factors):
        if pair is not None:
            found[:, position] = product_variance(design, residual, position + 1, pair)
    return Component(*found)


def _replace_known(given: Component, found: Component) -> Component:
    """Replace variances and degrees of freedom by those found, where these are not NaN."""
    is_known = np.isfinite(found.freedom)
    return Component(
        np.where(is_known, found.variance, given.variance),
        np.where(is_known, found.freedom, given.freedom),
    )


def product_variance(
    design: np.ndarray, residual: np.ndarray, position: int, factors: np.ndarray
) -> Component:
    """Return the variance of the coefficient of a product a x b if values have separate effects.

    Each value of a may have its own slope along b, and each value of b its own along a. As for
    `value_variances`, the residual slopes of the values show how they scatter, with values - 2
    degrees of freedom. Both variances contain the scatter of single cells (pairs of values), which
    is therefore subtracted once. The degrees of freedom are Satterthwaite's.

    Args:
        design: (n, k) the columns.
        residual: (n,) the residuals.
        position: Index of the product among the columns.
        factors: (n, 2) the factors a and b.

    Returns:
        The variance and its degrees of freedom. Both are NaN if neither factor has 3 to n / 2
        values.
    """
    influence = np.linalg.pinv(design)[position]
    a, b = factors.T
    slopes = (_slope_variance(influence, residual, *pair) for pair in ((a, b), (b, a)))
    parts = [part for part in slopes if np.isfinite(part.freedom)]
    if not parts:
        return Component(np.nan, np.nan)
    largest = max(parts, key=lambda part: part.variance)
    if len(parts) == 1:
        return largest
    cells = _cell_variance(influence, residual, design[:, position], factors)
    if not np.isfinite(cells.freedom):
        return sum_components(parts)
    variance = sum(part.variance for part in parts) - cells.variance
    if variance <= largest.variance:
        return largest
    below = sum(part.variance**2 / part.freedom for part in (*parts, cells))
    return Component(variance, max(variance**2 / below, 1.0))


def _slope_variance(
    influence: np.ndarray, residual: np.ndarray, factor: np.ndarray, other: np.ndarray
) -> Component:
    """Return the variance of a product's coefficient if each value of a factor has its own slope.

    Args:
        influence: (n,) change of the coefficient for a change of the response of each row.
        residual: (n,) the residuals.
        factor: (n,) the factor whose values have slopes.
        other: (n,) the factor along which the slopes are.
    """
    values, code = np.unique(factor, return_inverse=True)
    deviation = other - (np.bincount(code, other) / np.bincount(code))[code]
    squares = np.bincount(code, deviation**2)
    has_slope = squares > _CONSTANT * max(float(squares.max()), _TINY)
    count = int(has_slope.sum())
    if not _MINIMUM_VALUES <= count <= len(values) <= len(factor) / 2:
        return Component(np.nan, np.nan)
    slopes = np.bincount(code, residual * deviation)[has_slope] / squares[has_slope]
    moved = np.bincount(code, influence * (other - other.mean()))
    freedom = count - 2
    return Component((moved**2).sum() * (slopes**2).sum() / freedom, float(freedom))


def _cell_variance(
    influence: np.ndarray, residual: np.ndarray, product: np.ndarray, factors: np.ndarray
) -> Component:
    """Return the variance of a product's coefficient if each cell has an independent effect.

    Effects of values, such as a bend of a factor's own slope, are not an interaction. So the mean
    residuals of the cells are fitted by an effect of each value and by the product. What remains
    has (a - 1)(b - 1) - 1 degrees of freedom on a complete grid of a x b cells (Mandel, J. American
    Statistical Association 56, 1961).

    Args:
        influence: (n,) change of the coefficient for a change of the response of each row.
        residual: (n,) the residuals.
        product: (n,) the product.
        factors: (n, 2) its factors.
    """
    cells, code = np.unique(factors, axis=0, return_inverse=True)
    code = code.ravel()
    counts = np.bincount(code)
    means = np.bincount(code, residual) / counts
    indicators = [column == value for column in cells.T for value in np.unique(column)[1:]]
    columns = [np.ones(len(cells)), *indicators, np.bincount(code, product) / counts]
    additive = np.column_stack(columns)
    coefficients, _, rank, _ = np.linalg.lstsq(additive, means, rcond=None)
    freedom = len(cells) - int(rank)
    if freedom < 1:
        return Component(np.nan, np.nan)
    rest = means - additive @ coefficients
    moved = np.bincount(code, influence)
    return Component((moved**2).sum() * (rest**2).sum() / freedom, float(freedom))


def independent_columns(columns: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, tuple[str, ...]]]:
    """Drop the columns that are combinations of earlier ones.

    Args:
        columns: Columns that vary.

    Returns:
        The other columns, and for each dropped one the columns it is a combination of.
    """
    centered = (columns - columns.mean()).to_numpy()
    kept: list[int] = []
    collinear: dict[str, tuple[str, ...]] = {}
    for j, name in enumerate(map(str, columns)):
        column = centered[:, j]
        earlier = centered[:, kept]
        coefficients = np.linalg.lstsq(earlier, column, rcond=None)[0]
        rest = np.sum((column - earlier @ coefficients) ** 2)
        if rest > _INDEPENDENT_SHARE * np.sum(column**2):
            kept.append(j)
        else:
            contributions = np.abs(coefficients) * np.linalg.norm(earlier, axis=0)
            is_part = contributions > 1e-6 * np.linalg.norm(column)
            collinear[name] = tuple(columns.columns[kept][is_part])
    return columns.iloc[:, kept], collinear


def _cross_validate(design: np.ndarray, y: np.ndarray, fold: np.ndarray) -> tuple[float, float]:
    """Return R2 and root mean square error of fits on the rows outside each fold (n,).

    R2 compares the predictions with the mean of the rows outside the fold.
    """
    error = np.empty_like(y)
    deviation = np.empty_like(y)
    for number in np.unique(fold):
        is_held_out = fold == number
        training = ~is_held_out
        coefficients = np.linalg.lstsq(design[training], y[training], rcond=1e-7)[0]
        error[is_held_out] = y[is_held_out] - design[is_held_out] @ coefficients
        deviation[is_held_out] = y[is_held_out] - y[training].mean()
    r2 = 1 - np.sum(error**2) / np.sum(deviation**2)
    return float(r2), float(np.sqrt(np.mean(error**2)))
