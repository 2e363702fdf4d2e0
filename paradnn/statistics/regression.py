"""Standardized least squares with intervals that allow for dependent measurements.

Intervals are Student's t with one of these covariance estimates:

- HC3 (MacKinnon and White, J. Econometrics 29, 1985), which allows for a residual variance that
  differs from row to row. If a single row determines a coefficient, HC3 would divide by zero, and
  HC1 replaces it.
- `dependence.Crossing`, if rows share `levels`, such as models and batch sizes.
- `value_variances`, if `by_value` is true, for columns with enough distinct values.

Intervals treat the standard deviations s_x and s_y, which standardize the rows, as known.

If `when` gives the measurement times, the shift of each session is removed from the response. If a
quarter or more of a column's variance lies between sessions, sessions are random effects instead.
`paradnn.statistics.priors` gives the variance of these effects. If the rows were measured in the
order of a column, intervals also include a drift of the machine.

In a simulation with 60 points, the residual scatter differed 4-fold between points, and 94.7% of
3,000 intervals contained the true slope. With a 16-fold difference, 93.8% contained it.
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

#: If this share of a column's variance, or more, lies between sessions, sessions are random effects.
#: Otherwise, the shifts of sessions are removed.
_BETWEEN_SESSIONS_SHARE = 0.25
#: Step in the logarithm of the values for the numerical derivative of a scale.
_LOG_STEP = 0.01
#: Minimum number of rows per coefficient, including the intercept, for a fit.
_ROWS_PER_COEFFICIENT = 2
_FOLDS = 10
#: If the p-value of a random order is below this level, rows count as measured in the order of a
#: column.
_ORDER_P = 0.01
#: A column is collinear if earlier columns leave a smaller share of its variance unexplained.
_INDEPENDENT_SHARE = 1e-9
#: Values count as constant if their range, relative to the largest absolute value, is not larger.
_CONSTANT = 1e-12
#: Minimum number of distinct values of a column for an estimate of their scatter about its line.
_MINIMUM_VALUES = 3
_TINY = 1e-300


@dataclass(frozen=True)
class Regression:
    """A fitted linear regression with standardized coefficients (weights).

    Attributes:
        weights: One row per term (column of the design). `weight` is the change of the response, in
            its standard deviations, for one standard deviation of the term; its 95% interval is
            `low` to `high`. `p` is the two-sided p-value of no effect. `p_given` is the same
            p-value under the assumption that the values of a column have no separate effects.
            `error` is the standard error, and `freedom` its degrees of freedom. `vif` is the
            variance inflation factor. `slope` is in the response's unit per unit of the term.
            `limit` is "sessions" or "order" if the interval includes 0 only because of sessions or
            of a drift, else empty.
        correlation: (terms, terms) correlation of the weights.
        rows: Number of rows.
        r2: R2 of the fit.
        r2_held_out: R2 of ten-fold cross-validation, 1 - sum (y - prediction)^2 / sum (y - mean of
            the training rows)^2.
        rmse_held_out: Root mean square error of the cross-validation, in the response's unit.
        covariance: Covariance estimate: "HC3", "HC1" or "crossed".
        constant: Dropped constant column -> its value.
        collinear: Dropped collinear column -> the terms whose linear combination equals it.
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
    """Fit a linear regression of standardized values on standardized columns by least squares.

    The response is scale(values). Every column and the response are replaced by z = (x - mean) / s,
    with the sample standard deviation s. The weights are the coefficients of z_x in a regression of
    z_y on z_x and an intercept. A weight equals slope x s_x / s_y (paper, section 4.1: "normalize
    to the same scale").

    Args:
        design: (n, k) the explanatory columns, such as hyperparameters.
        values: (n,) the explained values, such as speeds, before scaling.
        scale: Function that is applied to the values, such as `np.log`.
        levels: The model, batch size and other factors of each row (`shared_levels`), by which rows
            depend on each other; None if the rows are independent.
        by_value: Whether each value of a column may have a separate effect. Unless `scale` is the
            identity, these effects have a prior.
        when: Measurement times of the rows; None if they are unknown.
        products: Product column -> its two factors (n, 2). Each value of a factor may have a
            separate slope along the other factor. None if no column is a product.
        priors: Priors of the scatter of repeated measurements; by default those of shared machines.

    Raises:
        InsufficientData: If there are fewer than two rows per coefficient, or if the values or all
            columns are constant.
    """
    values = np.asarray(values, dtype="float64")
    if len(values) < 2:
        raise InsufficientData("a regression needs at least two points")
    if np.ptp(values) <= _CONSTANT * np.abs(values).max():
        raise InsufficientData(f"the metric is the same in all {len(values)} rows")
    standardized = _standardize(design.astype("float64"))
    x = np.column_stack([np.ones(len(values)), standardized.scores])
    priors = priors or scatter_priors()
    time_effects = _estimate_time_effects(x, values, scale, when, priors.session.update())
    y = time_effects.response
    spread = float(y.std(ddof=1))
    z = (y - y.mean()) / spread
    fitted, covariance, row_component = _fit_terms(x, z, levels)
    value_component = row_component
    if by_value:
        prior = None if scale is _identity else priors.value
        of_values = value_variances(x, fitted.resid, prior)
        value_component = _replace_known(
            value_component, Component(of_values.variance[1:], of_values.freedom[1:])
        )
    if products is not None:
        factors = [products.get(str(name)) for name in standardized.scores]
        value_component = _replace_known(
            value_component, _product_variances(x, fitted.resid, factors)
        )
    table = _weight_table(
        standardized,
        fitted.params[1:],
        row_component=row_component,
        value_component=value_component,
        time_components=time_effects.components(spread),
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
        levels: The model, batch size and other factors of each row; None if the rows are
            independent.

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
    row_component: Component,
    value_component: Component,
    time_components: Sequence[Component],
    spread: float,
) -> pd.DataFrame:
    """Return the table `Regression.weights`, with one row per term.

    Args:
        standardized: The standardized columns.
        weights: (terms,) weights of the columns.
        row_component: Variances of the weights if the values of a column have no separate effects.
        value_component: Variances of the weights if the values of a column have separate effects.
        time_components: Variances of the weights from sessions, and from a drift.
        spread: Standard deviation of the response.
    """
    total = combine([value_component, *time_components])
    correlations = np.atleast_2d(np.corrcoef(standardized.scores.to_numpy(), rowvar=False))
    return pd.DataFrame(
        {
            "weight": weights,
            "low": weights - total.half_width,
            "high": weights + total.half_width,
            "p": _p_values(weights, *total),
            "p_given": _p_values(weights, *combine([row_component, *time_components])),
            "error": np.sqrt(total.variance),
            "freedom": total.freedom,
            "vif": np.diag(np.linalg.inv(correlations)),
            "slope": weights * spread / standardized.deviations.to_numpy(),
            "limit": _limits(weights, value_component, time_components),
        },
        index=pd.Index(standardized.scores.columns, name="term"),
    )


class _TimeEffects(NamedTuple):
    """Effect of sessions and of a drift of the machine on the coefficients of a regression.

    Attributes:
        response: (n,) the scaled response, from which the shifts of sessions may be removed.
        sessions: (terms,) variances that sessions add to the coefficients; 0 if their shifts are
            removed.
        drift: (terms,) variances that a drift adds to the coefficients.
    """

    response: np.ndarray
    sessions: Component
    drift: Component

    def components(self, spread: float) -> list[Component]:
        """Return two variances of the weights: from sessions, and from a drift of the machine.

        Args:
            spread: Standard deviation of the response, by which coefficients are divided.
        """
        parts = (self.sessions, self.drift)
        return [Component(part.variance / spread**2, part.freedom) for part in parts]


def _estimate_time_effects(
    x: np.ndarray,
    values: np.ndarray,
    scale: Callable[[np.ndarray], np.ndarray],
    when: MeasurementTimes | None,
    session: Component,
) -> _TimeEffects:
    """Estimate the effect of sessions and of drift on the coefficients of a regression.

    The shifts of sessions are removed unless a quarter or more of a column's variance lies between
    sessions. A drift is added if the rows were measured in the order of some column. In a random
    order, the drift is part of the residuals.

    Args:
        x: (n, k) the explanatory columns. The first column is the intercept.
        values: (n,) the explained values before scaling.
        scale: Function that scales the values.
        when: Measurement times of the rows; None if they are unknown.
        session: Variance of a session's effect on the logarithm of the values.
    """
    response = scale(values)
    terms = x.shape[1] - 1
    nothing = Component(np.zeros(terms), session.freedom)
    if when is None:
        return _TimeEffects(response, nothing, nothing)
    between, within = _without_sessions(x, response, when)
    is_removed = bool((between[1:] < _BETWEEN_SESSIONS_SHARE).all())
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
    return _TimeEffects(response, sessions, drift)


def _log_derivative(values: np.ndarray, scale: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the derivative (n,) of each scaled value with respect to the logarithm of the value.

    If `scale` returns ranks, they do not change if all values are multiplied by the same factor.
    The derivative of a rank is therefore computed for a change of a single value.
    """
    more = values * math.exp(_LOG_STEP)
    less = values * math.exp(-_LOG_STEP)
    derivative = (scale(more) - scale(less)) / (2 * _LOG_STEP)
    if np.any(derivative):
        return np.asarray(derivative)
    order = np.argsort(values, kind="stable")
    ranks = scale(values)[order]
    change = np.interp(more, values[order], ranks) - np.interp(less, values[order], ranks)
    return np.asarray(change / (2 * _LOG_STEP))


def _is_in_order(x: np.ndarray, when: MeasurementTimes) -> bool:
    """Return whether the rows were measured in the order of some column, not in a random order.

    Args:
        x: (n, k) the explanatory columns. The first column is the intercept.
        when: Measurement times of the rows.
    """
    from statsmodels.regression.linear_model import OLS

    if not np.ptp(when.position):
        return False
    if OLS(when.position, x).fit().f_pvalue < _ORDER_P:
        return True
    # In a random order, the expected square of (number of rises - number of falls) is (n + 1) / 3.
    in_order = x[np.lexsort((when.position, when.session)), 1:]
    rises = np.sign(np.diff(in_order, axis=0)).sum(axis=0)
    limit = stats.norm.isf(_ORDER_P / 2) * math.sqrt((len(x) + 1) / 3)
    return bool((np.abs(rises) > limit).any())


def _without_sessions(
    x: np.ndarray, y: np.ndarray, when: MeasurementTimes | None
) -> tuple[np.ndarray, np.ndarray]:
    """Remove the shift of each session from a response.

    The shifts are fitted together with the slopes of the columns. A regression of the remaining
    response on the columns gives the slopes within sessions.

    Args:
        x: (n, k) the explanatory columns. The first column is the intercept.
        y: (n,) the response.
        when: Measurement times of the rows; None if they are unknown.

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
    """The columns of a regression, divided by their standard deviations after subtracting means.

    Attributes:
        scores: (n, terms) the standardized columns, without constant and collinear columns.
        deviations: (terms,) standard deviations of the original columns.
        constant: Constant column -> its value.
        collinear: Collinear column -> the columns whose linear combination equals it.
    """

    scores: pd.DataFrame
    deviations: pd.Series
    constant: dict[str, float]
    collinear: dict[str, tuple[str, ...]]


def _standardize(values: pd.DataFrame) -> _Standardized:
    """Drop constant and collinear columns, and standardize the remaining columns.

    Raises:
        InsufficientData: If no column remains, or there are fewer than two rows per coefficient.
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
            f"a regression with {counted(terms, 'term')} needs at least {needed} points, "
            f"but has only {count}"
        )
    return _Standardized(scores, values.std()[scores.columns], constant, collinear)


def _limits(
    weights: np.ndarray, value_component: Component, time_components: Sequence[Component]
) -> np.ndarray:
    """Return why the interval of each weight includes 0.

    The reasons are an array (k,) of "sessions", "order" or "". "order" means a drift of the machine
    while values were measured one after the other. The reason is "" if the interval excludes 0, or
    would include 0 even without the variance from sessions and drift.

    Args:
        weights: (k,) the weights.
        value_component: Variances of the weights without the variance from sessions and drift.
        time_components: Two components: the variances of the weights from sessions, and those from
            a drift.
    """
    sessions, drift = time_components
    size = np.abs(weights)
    total = combine([value_component, *time_components])
    is_limited = (size > value_component.half_width) & (size <= total.half_width)
    cause = np.where(drift.variance > sessions.variance, "order", "sessions")
    return np.where(is_limited, cause, "")


def _p_values(weights: np.ndarray, variance: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return two-sided p-values (k,) of the hypothesis of no effect, from Student's t test.

    Args:
        weights: (k,) the weights.
        variance: (k,) their variances.
        freedom: (k,) degrees of freedom of the variances.
    """
    errors = np.sqrt(np.maximum(variance, _TINY))
    p_values: np.ndarray = 2 * stats.t.sf(np.abs(weights) / errors, freedom)
    return p_values


class _ValueScatter(NamedTuple):
    """Scatter of the distinct values of a column about its regression line.

    The deviation of a value is the mean residual of the rows with this value.

    Attributes:
        position: Index of the column in the design.
        effects: Variance of the mean residuals of the values; the degrees of freedom are the number
            of values minus 2.
        noise: The part of the variance of `effects` that the scatter of single rows explains.
        moved: (values, k) change of each coefficient per unit effect of each value.
    """

    position: int
    effects: Component
    noise: float
    moved: np.ndarray


def value_variances(
    design: np.ndarray, residual: np.ndarray, prior: VariancePrior | None = None
) -> Component:
    """Return variances of least-squares coefficients if column values have separate effects.

    If a column has few distinct values, their scatter about the regression line limits the
    precision of the slope, however many rows repeat each value. For each column with 3 to n / 2
    values, the mean residuals of the values have the variance s^2 = sum mean^2 / (values - 2). This
    is exact for a balanced grid. The effect of a value changes a coefficient by the effect times
    the coefficient's influence, summed over the rows with this value.

    The prior describes only the effects, so the noise of a mean residual is added to its scale.
    The scale also grows if the values of the other columns have larger effects than the prior
    expects.

    Args:
        design: (n, k) the explanatory columns.
        residual: (n,) the residuals of the fit.
        prior: Prior of the variance of the effects; None if the data alone determine it.

    Returns:
        The variances (k,). The degrees of freedom are (values - 2) plus those of the prior. If
        several columns contribute, they are Satterthwaite's (Biometrics Bulletin 2, 1946). They are
        NaN for a column with fewer than 3 or more than n / 2 values.
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
    """Return the scatter of the values of each column that has 3 to n / 2 distinct values.

    Args:
        design: (n, k) the columns.
        residual: (n,) the residuals of the fit.
    """
    grouped = []
    noise = residual  # the part of the residuals that the mean residuals of values do not explain
    freedom = len(residual) - 1
    for position, column in enumerate(design.T):
        values, code = np.unique(column, return_inverse=True)
        if not _MINIMUM_VALUES <= len(values) <= len(column) / 2:
            continue
        means = np.bincount(code, residual) / np.bincount(code)
        grouped.append((position, code, means))
        noise = noise - means[code]
        freedom -= len(values) - 1
    row_variance = float(noise @ noise) / max(freedom, 1)
    influence = np.linalg.pinv(design)
    scatters = []
    for position, code, means in grouped:
        value_freedom = len(means) - 2
        scatter = _ValueScatter(
            position=position,
            effects=Component((means**2).sum() / value_freedom, value_freedom),
            noise=row_variance * float((1 / np.bincount(code)).mean()),
            moved=np.array([np.bincount(code, of_coefficient) for of_coefficient in influence]).T,
        )
        scatters.append(scatter)
    return scatters


def _prior_of_values(
    prior: VariancePrior, scatter: _ValueScatter, others: Sequence[_ValueScatter]
) -> VariancePrior:
    """Return the prior of the variance of a column's mean residuals.

    A mean residual is that of all rows with the same value in the column.

    Args:
        prior: Prior of the variance of the effects of values, without noise.
        scatter: Scatter of the column's values.
        others: Scatter of the values of the other columns. Large effects in these columns raise the
            scale. Small effects do not lower it, because a good fit for one hyperparameter does not
            imply a good fit for another.
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
    """Return the `product_variance` of each column after the intercept; NaN if it is no product.

    Args:
        design: (n, k) the explanatory columns. The first column is the intercept.
        residual: (n,) the residuals of the fit.
        factors: For each of the k - 1 columns after the intercept, its two factors (n, 2); None if
            the column is not a product.
    """
    found = np.full((2, len(factors)), np.nan)
    for position, pair in enumerate(factors):
        if pair is not None:
            found[:, position] = product_variance(design, residual, position + 1, pair)
    return Component(*found)


def _replace_known(default: Component, override: Component) -> Component:
    """Return `default`, with every entry replaced for which `override` is not NaN."""
    is_known = np.isfinite(override.freedom)
    return Component(
        np.where(is_known, override.variance, default.variance),
        np.where(is_known, override.freedom, default.freedom),
    )


def product_variance(
    design: np.ndarray, residual: np.ndarray, position: int, factors: np.ndarray
) -> Component:
    """Return the variance of the coefficient of a product a x b if values have separate slopes.

    Each value of a may have a separate slope along b, and each value of b a separate slope along a.
    As in `value_variances`, the scatter of the residual slopes gives one variance per factor, with
    (values - 2) degrees of freedom. Both variances contain the scatter of single cells (pairs of
    values), which is therefore subtracted once. The degrees of freedom of the result are
    Satterthwaite's.

    Args:
        design: (n, k) the explanatory columns.
        residual: (n,) the residuals of the fit.
        position: Index of the product among the columns of `design`.
        factors: (n, 2) the factors a and b of the product.

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
    """Return the variance of a product's coefficient if a factor's values have separate slopes.

    Args:
        influence: (n,) change of the coefficient per unit change of each row's response.
        residual: (n,) the residuals.
        factor: (n,) the factor whose values have separate slopes.
        other: (n,) the other factor of the product, along which the slopes are fitted.

    Returns:
        The variance and its degrees of freedom. Both are NaN if fewer than 3 values have a slope,
        or if the factor has more than n / 2 values.
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

    A cell is a pair of values of the two factors. Effects of single values, such as a bend in the
    line of a factor, are not an interaction. Therefore, an effect of each value and the product are
    first fitted to the mean residuals of the cells. On a complete grid of a x b cells, the
    remaining residuals have (a - 1)(b - 1) - 1 degrees of freedom (Mandel, J. American Statistical
    Association 56, 1961).

    Args:
        influence: (n,) change of the coefficient per unit change of each row's response.
        residual: (n,) the residuals.
        product: (n,) the product.
        factors: (n, 2) the factors of the product.

    Returns:
        The variance and its degrees of freedom; both are NaN if no degree of freedom remains.
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
    """Drop the columns that are linear combinations of earlier columns.

    Args:
        columns: The columns. A constant column is not allowed.

    Returns:
        The remaining columns, and a mapping from each dropped column to the columns whose linear
        combination equals it.
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
    """Return R2 and root mean square error of a cross-validation.

    R2 compares the predictions with the mean of the training rows.

    Args:
        design: (n, k) the explanatory columns.
        y: (n,) the response.
        fold: (n,) number of the fold that predicts each row from the rows of all other folds.
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
