"""Regression, quantiles and intervals over points that share a model.

Expected values come from NumPy, SciPy, statsmodels and planted truths.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import optimize, stats
from statsmodels.formula.api import ols

from paradnn.core.errors import InsufficientData
from paradnn.statistics.dependence import (
    crossed_quantile,
    crossed_ratio,
    crossed_share,
    crossed_variance,
    geometric_mean,
    quantile_interval,
    shared_levels,
)
from paradnn.statistics.priors import scatter_priors
from paradnn.statistics.regression import Regression, regress
from paradnn.statistics.sessions import MeasurementTimes
from tests.conftest import depth


def slopes(design: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Solve least squares by the normal equations, intercept first."""
    x = np.column_stack([np.ones(len(y)), design])
    return np.linalg.solve(x.T @ x, x.T @ y)


def standard_scores(design: pd.DataFrame) -> np.ndarray:
    """Return the columns, scaled to mean 0 and standard deviation 1."""
    return ((design - design.mean()) / design.std()).to_numpy()


def slope_influence(design: pd.DataFrame) -> np.ndarray:
    """Return the derivatives of the standardized slopes (rows) by the response values (columns)."""
    return np.linalg.pinv(sm.add_constant(standard_scores(design)))[1:]


@pytest.fixture
def heteroscedastic() -> tuple[pd.DataFrame, pd.Series]:
    """Return 60 rows of three columns, two of them correlated, and a response with uneven noise."""
    draw = np.random.default_rng(2)
    design = pd.DataFrame(
        draw.normal(size=(60, 3)) @ [[1, 0.6, 0], [0, 1, 0], [0, 0, 5]], columns=list("abc")
    )
    return design, design @ [2.0, -1.0, 0.1] + draw.normal(size=60) * (1 + design["a"].abs())


def test_weights_r2_and_hc3_errors_agree_with_plain_numpy(
    heteroscedastic: tuple[pd.DataFrame, pd.Series],
) -> None:
    design, y = heteroscedastic

    found = regress(design, y.to_numpy())

    z = standard_scores(design)
    scaled_y = ((y - y.mean()) / y.std()).to_numpy()
    beta = slopes(z, scaled_y)
    np.testing.assert_allclose(found.weights["weight"], beta[1:])
    np.testing.assert_allclose(found.weights["slope"], slopes(design.to_numpy(), y.to_numpy())[1:])

    x = np.column_stack([np.ones(60), z])
    residual = scaled_y - x @ beta
    bread = np.linalg.inv(x.T @ x)
    leverage = np.einsum("ij,jk,ik->i", x, bread, x)
    covariance = bread @ (x.T * (residual / (1 - leverage)) ** 2 @ x) @ bread
    half_width = stats.t.ppf(0.975, 56) * np.sqrt(np.diag(covariance))[1:]
    np.testing.assert_allclose(
        found.weights[["low", "high"]],
        np.column_stack([beta[1:] - half_width, beta[1:] + half_width]),
    )
    np.testing.assert_allclose(found.r2, 1 - residual @ residual / (scaled_y @ scaled_y))


def test_variance_inflation_agrees_with_plain_numpy(
    heteroscedastic: tuple[pd.DataFrame, pd.Series],
) -> None:
    design, y = heteroscedastic

    found = regress(design, y.to_numpy())

    z = standard_scores(design)
    for i, name in enumerate(design):
        others = np.delete(z, i, axis=1)
        unexplained = z[:, i] - np.column_stack([np.ones(60), others]) @ slopes(others, z[:, i])
        np.testing.assert_allclose(
            found.weights.loc[name, "vif"], z[:, i] @ z[:, i] / (unexplained @ unexplained)
        )


def test_the_held_out_error_equals_that_of_ten_fold_cross_validation() -> None:
    draw = np.random.default_rng(5)
    design = pd.DataFrame(draw.normal(size=(100, 2)), columns=["a", "b"])
    y = (design @ [1.0, 2.0] + draw.normal(0, 0.5, 100)).to_numpy()
    found = regress(design, y)
    fold = np.random.default_rng(0).permutation(100) % 10
    error = np.empty(100)
    for k in range(10):
        train = fold != k
        test = fold == k
        coefficients = slopes(design[train].to_numpy(), y[train])
        error[test] = y[test] - coefficients[0] - design[test].to_numpy() @ coefficients[1:]

    np.testing.assert_allclose(found.rmse_held_out, np.sqrt((error**2).mean()))
    assert found.r2_held_out < found.r2

    noise = regress(design, draw.normal(size=100))
    assert noise.r2_held_out < 0.05 < noise.r2 + 0.05


def test_one_row_that_determines_a_coefficient_gets_hc1_errors() -> None:
    design = pd.DataFrame({"a": np.arange(20.0), "only": [1.0] + [0.0] * 19})
    found = regress(design, np.random.default_rng(12).normal(size=20))

    assert found.covariance == "HC1"
    assert np.isfinite(found.weights[["low", "high"]]).all(axis=None)


def test_the_error_of_a_slope_includes_the_scatter_of_its_values() -> None:
    """On a balanced grid, the test equals a t test of the line through the means of the values."""
    draw = np.random.default_rng(6)
    x, other = (axis.ravel() for axis in np.meshgrid(np.arange(5.0), np.arange(3.0)))
    x = np.tile(x, 4)
    other = np.tile(other, 4)
    y = draw.normal(0, 0.5, 5)[x.astype(int)] + draw.normal(0, 0.05, 60) + other
    found = regress(pd.DataFrame({"x": x, "other": other}), y, by_value=True).weights.loc["x"]
    line = stats.linregress(np.arange(5.0), [y[x == value].mean() for value in range(5)])

    assert found["p"] == pytest.approx(line.pvalue)
    assert found["p_given"] < found["p"]
    assert found["freedom"] == pytest.approx(3)

    half_width = stats.t.ppf(0.975, 3) * line.stderr * x.std(ddof=1) / y.std(ddof=1)
    assert found["high"] - found["weight"] == pytest.approx(half_width)


@pytest.mark.parametrize(
    ("count", "share"),
    [
        pytest.param(6, 0.5, id="median of 6"),
        pytest.param(25, 0.5, id="median of 25"),
        pytest.param(60, 0.9, id="90% of 60"),
        pytest.param(40, 0.1, id="10% of 40"),
    ],
)
def test_quantile_intervals_equal_those_of_the_binomial_distribution(
    count: int, share: float
) -> None:
    lower, upper = stats.binom.ppf([0.025, 0.975], count, share)

    found = quantile_interval(np.arange(1, count + 1), share)

    assert found.low == (lower or -np.inf)
    assert found.high == (upper + 1 if upper < count else np.inf)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(20, (10.5, 6, 15), id="the 6th to the 15th of 20"),
        pytest.param(10, (5.5, 2, 9), id="the 2nd to the 9th of 10"),
        pytest.param(1, (1, -np.inf, np.inf), id="open for one value"),
    ],
)
def test_intervals_of_medians_equal_the_table_of_the_sign_test(
    count: int, expected: tuple[float, float, float]
) -> None:
    assert quantile_interval(np.arange(1, count + 1)) == expected


def test_an_upper_quantile_of_too_few_values_has_no_upper_end() -> None:
    """0.9^36 is below 2.5%, and 0.9^35 is above."""
    assert quantile_interval(np.arange(35), 0.9).high == np.inf
    assert quantile_interval(np.arange(36), 0.9).high == 35


def test_the_quantile_of_no_values_is_unknown() -> None:
    assert np.isnan(quantile_interval([])).all()


def points(models: int, batches: int) -> pd.DataFrame:
    """Return a complete grid of models and batch sizes."""
    index = pd.MultiIndex.from_product(
        [range(models), range(batches)], names=["model.nodes", "batch_size"]
    )
    return index.to_frame(index=False)


def exact(hits: int, count: int) -> tuple[float, float, float]:
    """Return a share of independent points with its exact interval."""
    low, high = stats.binomtest(hits, count).proportion_ci()
    return hits / count, low, high


@pytest.mark.parametrize("n", [20, 40])
def test_ratios_of_sums_have_their_nominal_coverage(n: int) -> None:
    generator = np.random.default_rng(11)
    covered = 0
    where = shared_levels(points(n, 1), "point")
    for _ in range(400):
        below = generator.uniform(0.5, 1.5, n)
        above = below * (0.2 + 0.1 * generator.standard_normal(n))
        found = crossed_ratio(above, below, where)
        assert found.value == pytest.approx(above.sum() / below.sum())
        covered += found.low <= 0.2 <= found.high

    assert 0.92 <= covered / 400 <= 0.98


def test_few_points_have_a_value_without_an_interval() -> None:
    ratio = crossed_ratio([1, 2], [2, 4], shared_levels(points(2, 1)))
    mean = geometric_mean([1.0, 2, 3, 4, 5], shared_levels(points(5, 1)))

    assert ratio.value == 0.5
    assert mean.value == pytest.approx(120 ** (1 / 5))
    assert np.isnan([ratio.low, ratio.high, mean.low, mean.high]).all()


def test_equal_ratios_have_an_interval_of_width_zero() -> None:
    found = crossed_ratio(np.ones(6), np.full(6, 2), shared_levels(points(6, 1)))

    assert found == pytest.approx((0.5, 0.5, 0.5))


def test_no_points_have_no_value() -> None:
    levels = shared_levels(points(0, 0))

    for found in (
        geometric_mean([], levels),
        crossed_ratio([], [], levels),
        crossed_share([], levels),
    ):
        assert np.isnan(found).all()


def test_models_that_win_at_all_batch_sizes_count_once() -> None:
    wins = np.ones(45, dtype=bool)

    found = crossed_share(wins, shared_levels(points(5, 9)))

    assert found == pytest.approx(exact(5, 5))


def test_the_unit_decides_which_levels_are_the_sample() -> None:
    grid = points(23, 9)
    assert shared_levels(grid).description == "23 models and 9 batch sizes"
    assert shared_levels(grid, "model").description == "23 models"
    assert shared_levels(grid, "point").description == "207 points"
    assert shared_levels(points(23, 5)).description == "23 models", (
        "five batch sizes are fixed, not a sample"
    )
    assert shared_levels(points(1, 9)).description == "9 batch sizes"
    assert shared_levels(grid.assign(precision="x")).counts == (23, 9)


def test_independent_points_have_textbook_intervals() -> None:
    values = np.random.default_rng(0).normal(1, 2, 40)
    independent = shared_levels(points(40, 1))
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))

    assert geometric_mean(np.exp(values), independent) == pytest.approx(
        np.exp([values.mean(), low, high])
    )
    assert crossed_quantile(values, independent, 0.3) == quantile_interval(values, 0.3)
    assert crossed_share(values > 0, independent) == pytest.approx(
        exact(int((values > 0).sum()), 40), abs=0.01
    )


def test_the_two_way_variance_equals_a_computation_by_hand() -> None:
    """On a complete grid, the variances of the means of rows and of columns add up.

    The variance of the mean of the residuals is subtracted once.
    """
    grid = np.random.default_rng(1).normal(size=(7, 6)) + np.arange(7)[:, None] + np.arange(6)
    rows = grid.mean(axis=1)
    columns = grid.mean(axis=0)
    residuals = grid - rows[:, None] - columns + grid.mean()
    expected = rows.var(ddof=1) / 7 + columns.var(ddof=1) / 6 - (residuals**2).sum() / 30 / 42

    assert crossed_variance(grid.ravel(), shared_levels(points(7, 6))).variance == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("models", "batches", "unit"),
    [
        pytest.param(12, 9, "model", id="fixed batch sizes"),
        pytest.param(12, 9, "crossed", id="models and batch sizes"),
        pytest.param(30, 1, "crossed", id="one batch size"),
    ],
)
def test_intervals_have_their_nominal_coverage(
    models: int, batches: int, unit: Literal["crossed", "model"]
) -> None:
    """Draw models 200 times, and also batch sizes unless they are fixed."""
    random = np.random.default_rng(models)
    where = shared_levels(points(models, batches), unit)
    fixed_batches = np.linspace(-1.2, 1.2, batches)
    batch_scatter = 0.8 if batches > 1 else 0.0
    many_batches = fixed_batches if unit == "model" else random.normal(0, batch_scatter, 4000)
    share = stats.norm.cdf((0.5 + many_batches) / np.hypot(0.9, 0.6)).mean()
    truths = {"mean": np.exp(0.5), "share": share, "median": 0.5}
    hits = dict.fromkeys(truths, 0)
    for _ in range(200):
        batch = fixed_batches if unit == "model" else random.normal(0, batch_scatter, batches)
        model = random.normal(0, 0.9, (models, 1))
        values = (0.5 + model + batch + random.normal(0, 0.6, (models, batches))).ravel()

        found = {
            "mean": geometric_mean(np.exp(values), where),
            "share": crossed_share(values > 0, where),
            "median": crossed_quantile(values, where),
        }

        for name, interval in found.items():
            hits[name] += interval.low <= truths[name] <= interval.high

    assert min(hits.values()) >= 0.89 * 200, hits


@depth(60, 200)
def test_the_weight_of_a_property_of_models_is_tested_over_models(draws: int) -> None:
    """A hyperparameter has no effect, but each model has a random effect.

    If points count as independent, the hyperparameter is significant in half of the draws. If
    models are the sample, it is significant in one of twenty.
    """
    random = np.random.default_rng(3)
    grid = points(12, 6)
    design = grid[["model.nodes"]].astype(float)
    where = shared_levels(grid)
    found = {"points": 0, "models": 0}
    for _ in range(draws):
        response = (random.normal(0, 1, (12, 1)) + random.normal(0, 0.3, (12, 6))).ravel()
        for name, levels in (("points", None), ("models", where)):
            found[name] += regress(design, response, levels=levels).weights["p"].iloc[0] <= 0.05

    assert found["points"] > 0.3 * draws
    assert found["models"] <= 1 + 0.1 * draws


def measured_in(session: np.ndarray, position: np.ndarray | None = None) -> MeasurementTimes:
    """Return times of rows in sessions; without positions, their order is unknown."""
    if position is None:
        position = np.zeros(len(session))
    return MeasurementTimes(session, position, 2 * position)


def half_widths(found: Regression) -> np.ndarray:
    table = found.weights
    return ((table["high"] - table["low"]) / 2).to_numpy()


def hc3_half_widths(design: pd.DataFrame, y: np.ndarray) -> np.ndarray:
    """Return HC3 half-widths of the standardized slopes, computed by statsmodels."""
    scores = sm.add_constant(standard_scores(design))
    fit = sm.OLS((y - y.mean()) / y.std(ddof=1), scores).fit(cov_type="HC3", use_t=True)
    return np.diff(fit.conf_int(0.05)[1:], axis=1)[:, 0] / 2


def test_p_values_and_the_correlation_of_weights_equal_statsmodels() -> None:
    draw = np.random.default_rng(20)
    design = pd.DataFrame(draw.normal(size=(30, 2)) @ [[1, 0.7], [0, 1]], columns=["a", "b"])
    y = (design @ [0.3, 0.0] + draw.normal(size=30)).to_numpy()

    found = regress(design, y)

    x = sm.add_constant(design.to_numpy())
    robust = sm.OLS(y, x).fit(cov_type="HC3", use_t=True)
    covariance = sm.OLS(y, x).fit().normalized_cov_params[1:, 1:]

    assert found.weights["p"].to_numpy() == pytest.approx(robust.pvalues[1:])
    assert found.weights["p_given"].to_numpy() == pytest.approx(robust.pvalues[1:])
    assert found.weights["freedom"].tolist() == [27.0, 27.0]

    units = design.std().to_numpy() / y.std(ddof=1)
    assert found.weights["error"].to_numpy() == pytest.approx(robust.bse[1:] * units)
    assert found.correlation.loc["a", "b"] == pytest.approx(
        covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    )
    assert (found.rows, found.covariance) == (30, "HC3")


def test_the_held_out_r2_compares_with_the_mean_of_the_training_rows() -> None:
    draw = np.random.default_rng(21)
    x = draw.normal(size=25)
    y = x + draw.normal(size=25)

    found = regress(pd.DataFrame({"x": x}), y)

    fold = np.random.default_rng(0).permutation(25) % 10
    lines = [stats.linregress(x[fold != k], y[fold != k]) for k in fold]
    error = y - [line.intercept + line.slope * value for line, value in zip(lines, x, strict=True)]
    deviation = y - [y[fold != k].mean() for k in fold]

    assert found.r2_held_out == pytest.approx(1 - error @ error / (deviation @ deviation))


def test_one_term_has_no_variance_inflation() -> None:
    found = regress(pd.DataFrame({"x": np.arange(6.0)}), np.arange(6.0) ** 2)

    assert found.weights["vif"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("design", "values", "message"),
    [
        pytest.param({"x": [1.0]}, [1.0], "needs at least two points", id="one point"),
        pytest.param(
            {"x": [1.0, 2]},
            [1.0, 2],
            "a regression with 1 term needs at least 4 points, but has only 2",
            id="two points",
        ),
        pytest.param(
            {"x": [1.0, 2, 3, 4]},
            [5.0] * 4,
            "the metric is the same in all 4 rows",
            id="constant metric",
        ),
        pytest.param(
            {"x": [1.0, 1, 1, 1]}, [1.0, 2, 3, 4], "no hyperparameter varies", id="nothing varies"
        ),
        pytest.param(
            {"x": [1.0, 2, 3, 4, 5], "y": [1.0, 0, 0, 1, 0]},
            [1.0, 2, 3, 4, 6],
            "a regression with 2 terms needs at least 6 points, but has only 5",
            id="fewer than two rows per coefficient",
        ),
    ],
)
def test_a_regression_needs_rows_that_vary(
    design: dict[str, list[float]], values: list[float], message: str
) -> None:
    with pytest.raises(InsufficientData, match=message):
        regress(pd.DataFrame(design), np.array(values))


def test_two_rows_per_coefficient_are_enough() -> None:
    design = pd.DataFrame({"x": [1.0, 2, 3, 4, 5, 6], "y": [1.0, 0, 0, 1, 0, 0]})

    assert regress(design, np.array([1.0, 2, 3, 4, 6, 5])).rows == 6


def test_constant_and_collinear_columns_are_dropped_and_named() -> None:
    draw = np.random.default_rng(22)
    a, b, c = draw.normal(size=(3, 20))
    design = pd.DataFrame({"a": a, "k": 7.0, "b": b, "sum": a + 2 * b, "twice": 2 * c, "c": c})

    found = regress(design, a + b + draw.normal(size=20))

    assert list(found.weights.index) == ["a", "b", "twice"]
    assert found.constant == {"k": 7.0}
    assert found.collinear == {"sum": ("a", "b"), "c": ("twice",)}


@pytest.mark.parametrize(
    ("part", "terms"),
    [
        pytest.param(1e-4, ["a", "near"], id="a share of 1e-8 is a separate effect"),
        pytest.param(1e-5, ["a"], id="a share of 1e-10 is rounding"),
    ],
)
def test_a_nearly_collinear_column_has_a_weight_unless_it_differs_by_rounding(
    part: float, terms: list[str]
) -> None:
    draw = np.random.default_rng(23)
    a, independent = draw.normal(size=(2, 20))
    design = pd.DataFrame({"a": a, "near": a + part * independent})

    found = regress(design, draw.normal(size=20))

    assert list(found.weights.index) == terms


def test_slopes_are_within_sessions_if_each_session_has_all_values() -> None:
    """In the reference by statsmodels, each session has an indicator."""
    draw = np.random.default_rng(24)
    session = np.repeat([0, 1, 2], [8, 10, 12])
    design = pd.DataFrame({"a": draw.normal(size=30), "b": draw.normal(size=30)})
    y = np.exp(design @ [0.4, -0.2] + np.array([0.0, 0.7, -0.5])[session])
    y *= np.exp(draw.normal(0, 0.1, 30))

    found = regress(design, y.to_numpy(), np.log, when=measured_in(session))

    table = design.assign(y=np.log(y), session=session)
    expected = ols("y ~ a + b + C(session)", table).fit().params[["a", "b"]]

    assert found.weights["slope"].to_numpy() == pytest.approx(expected.to_numpy())
    assert found.weights["limit"].tolist() == ["", ""]


@pytest.mark.parametrize(
    ("scale", "derivative"),
    [
        pytest.param(np.log, lambda y: np.ones(len(y)), id="logarithms"),
        pytest.param(np.asarray, lambda y: y, id="measured values"),
        pytest.param(
            stats.rankdata,
            # The values are powers of 2. A change by a factor of 1 +- d passes log(1 +- d) / log 2
            # ranks, except beyond the largest and the smallest value.
            lambda y: (
                (np.expm1(0.01) * (y < y.max()) + 2 * -np.expm1(-0.01) * (y > y.min())) / 0.02
            ),
            id="ranks",
        ),
    ],
)
def test_sessions_of_one_value_each_are_random_effects(
    scale: Callable[[np.ndarray], np.ndarray], derivative: Callable[[np.ndarray], np.ndarray]
) -> None:
    """A session shifts the logarithms of all its values by the same random amount."""
    draw = np.random.default_rng(25)
    session = np.repeat([0, 1, 2, 3], 6)
    design = pd.DataFrame({"between": session.astype(float), "within": np.tile([1.0, 2, 3], 8)})
    y = 2.0 ** draw.permutation(24)

    found = regress(design, y, scale, when=measured_in(session))

    scaled = scale(y)
    session_prior = scatter_priors().session
    influence = slope_influence(design) * derivative(y)
    shifts = np.array([[row[session == number].sum() for number in range(4)] for row in influence])
    deviation = session_prior.scale * np.sqrt((shifts**2).sum(axis=1)) / scaled.std(ddof=1)
    session_half_widths = stats.t.ppf(0.975, session_prior.freedom) * deviation
    expected = np.hypot(hc3_half_widths(design, scaled), session_half_widths)

    assert half_widths(found) == pytest.approx(expected)
    assert session_half_widths[0] > 10 * session_half_widths[1] or scale is not np.log


def test_drift_widens_intervals_of_values_measured_in_order() -> None:
    """A Brownian motion W adds the variance sum_ij w_i w_j min(t_i, t_j) to a sum of w_i W(t_i)."""
    draw = np.random.default_rng(26)
    x = np.repeat(np.arange(5.0), 4)
    design = pd.DataFrame({"in order": x, "random": draw.normal(size=20)})
    y = np.exp(0.01 * x + draw.normal(0, 0.01, 20))
    position = np.linspace(-0.5, 0.5, 20)
    when = MeasurementTimes(np.zeros(20, dtype=int), position, 1 + position)

    found = regress(design, y, np.log, when=when)

    session_prior = scatter_priors().session
    influence = slope_influence(design)
    times = when.hours - when.hours.min()
    squares = np.diag(influence @ np.minimum.outer(times, times) @ influence.T)
    # The variance of the Brownian motion grows by 6 session variances in two hours.
    variance = 6 * session_prior.scale**2 / 2 * squares
    drift_half_widths = stats.t.ppf(0.975, session_prior.freedom) * np.sqrt(variance)
    expected = np.hypot(
        hc3_half_widths(design, np.log(y)), drift_half_widths / np.log(y).std(ddof=1)
    )

    assert half_widths(found) == pytest.approx(expected)
    assert found.weights["limit"].tolist() == ["order", ""]


@pytest.mark.parametrize(
    ("order", "has_drift"),
    [
        pytest.param([0, 1, 2, 3, 4, 5, 6, 7], True, id="rising"),
        pytest.param([7, 6, 5, 4, 3, 2, 1, 0], True, id="falling"),
        pytest.param([0, 5, 2, 7, 1, 6, 3, 4], False, id="random"),
        pytest.param([0, 1, 2, 3, 3, 2, 1, 0], False, id="rising, then falling"),
    ],
)
def test_drift_counts_only_if_values_rise_or_fall_with_time(
    order: list[int], has_drift: bool
) -> None:
    """Two sessions measure the same values in the same order."""
    position = np.tile(np.linspace(-0.5, 0.5, 8), 2)
    session = np.repeat([0, 1], 8)
    design = pd.DataFrame({"x": np.tile(order, 2).astype(float)})
    y = np.exp(np.random.default_rng(27).normal(0, 0.1, 16))

    timed = regress(design, y, np.log, when=measured_in(session, position))
    untimed = regress(design, y, np.log, when=measured_in(session))

    assert (half_widths(timed)[0] > 1.01 * half_widths(untimed)[0]) == has_drift


def test_drift_counts_if_values_are_an_inner_loop() -> None:
    """Of 23 steps between rows, 16 rise and 7 fall.

    In random order, (rises - falls) of n values has a mean square of (n + 1) / 3. The difference is
    2.9 standard deviations, and the limit is 2.6.
    """
    x = np.tile([1.0, 2.0, 3.0], 8)
    position = np.linspace(-0.5, 0.5, 24)
    y = np.exp(np.random.default_rng(35).normal(0, 0.1, 24))
    session = np.zeros(24, dtype=int)

    timed = regress(pd.DataFrame({"x": x}), y, np.log, when=measured_in(session, position))
    untimed = regress(pd.DataFrame({"x": x}), y, np.log, when=measured_in(session))

    assert stats.linregress(x, position).pvalue > 0.5
    assert half_widths(timed)[0] > 1.001 * half_widths(untimed)[0]


@pytest.mark.parametrize(
    ("explained", "is_random"),
    [
        pytest.param(0.24, False, id="24%, slopes within sessions"),
        pytest.param(0.26, True, id="26%, sessions are random effects"),
    ],
)
def test_sessions_are_random_effects_if_they_explain_a_quarter_of_a_column(
    explained: float, is_random: bool
) -> None:
    """The share is the adjusted R2 of the column on indicators of sessions."""
    session = np.repeat([0, 1], 4)
    within = np.tile([-3.0, -1.0, 1.0, 3.0], 2)

    def excess(shift: float) -> float:
        fit = sm.OLS(within + shift * session, sm.add_constant(session)).fit()
        return float(fit.rsquared_adj) - explained

    x = within + optimize.brentq(excess, 0.0, 10.0) * session
    design = pd.DataFrame({"x": x})
    y = np.exp(np.random.default_rng(36).normal(0, 0.1, 8) + 2.0 * session)

    found = regress(design, y, np.log, when=measured_in(session))

    table = design.assign(y=np.log(y), session=session)
    formula = "y ~ x" if is_random else "y ~ x + C(session)"
    expected = ols(formula, table).fit().params["x"]

    assert found.weights["slope"].tolist() == pytest.approx([expected])


def test_drift_does_not_count_if_times_are_unknown() -> None:
    x = np.arange(12.0)
    y = np.exp(np.random.default_rng(28).normal(0, 0.1, 12))
    position = np.linspace(-0.5, 0.5, 12)
    unknown = MeasurementTimes(np.zeros(12, dtype=int), position, np.full(12, np.nan))

    found = regress(pd.DataFrame({"x": x}), y, np.log, when=unknown)

    assert half_widths(found) == pytest.approx(hc3_half_widths(pd.DataFrame({"x": x}), np.log(y)))


def test_sessions_without_a_second_row_explain_everything() -> None:
    """With one row per session, the random effects of sessions explain every residual."""
    x = np.arange(8.0)
    y = np.exp(0.3 * x + np.random.default_rng(29).normal(0, 0.01, 8))

    found = regress(pd.DataFrame({"x": x}), y, np.log, when=measured_in(np.arange(8)))

    session_prior = scatter_priors().session
    session_half_widths = session_prior.scale / np.sqrt(((x - x.mean()) ** 2).sum()) * x.std(ddof=1)
    session_half_widths *= stats.t.ppf(0.975, session_prior.freedom) / np.log(y).std(ddof=1)
    expected = np.hypot(hc3_half_widths(pd.DataFrame({"x": x}), np.log(y)), session_half_widths)

    assert half_widths(found) == pytest.approx(expected)


def test_a_small_effect_between_sessions_is_limited_by_sessions() -> None:
    session = np.repeat([0, 1], 6)
    draw = np.random.default_rng(30)
    design = pd.DataFrame({"small": session * 1.0, "within": np.tile([1.0, 2, 3], 4)})
    y = np.exp(0.05 * session + 0.5 * design["within"] + draw.normal(0, 0.001, 12))

    found = regress(design, y.to_numpy(), np.log, when=measured_in(session))

    assert found.weights["limit"].tolist() == ["sessions", ""]
    assert found.weights.loc["small", "low"] < 0 < found.weights.loc["within", "low"]


def balanced(a: int, b: int, repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two factors of a complete a x b grid, with `repeats` rows per cell."""
    first, second = np.meshgrid(np.arange(a) ** 1.5, np.arange(b) ** 1.2, indexing="ij")
    return np.tile(first.ravel(), repeats), np.tile(second.ravel(), repeats)


def with_product(a: np.ndarray, b: np.ndarray) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Return a design with two factors and their product, and the factors of the product."""
    design = pd.DataFrame({"a": a, "b": b, "a x b": (a - a.mean()) * (b - b.mean())})
    return design, {"a x b": np.column_stack([a, b])}


def scatter_about_a_line(x: np.ndarray, logs: np.ndarray) -> float:
    """Return the sum of squares of the means of values about their line.

    The unit is the variance of the response.
    """
    values = np.unique(x)
    means = [logs[x == value].mean() for value in values]
    line = stats.linregress(values, means)
    residuals = (means - line.intercept - line.slope * values) / logs.std(ddof=1)
    return float(residuals @ residuals)


def test_the_scatter_of_values_is_pooled_with_its_prior() -> None:
    """The means of five values scatter about their line with 3 degrees of freedom."""
    x, other = balanced(5, 2, 3)
    effects = np.array([0.3, -0.2, 0.1, 0.2, -0.3])
    logs = x + other + effects[np.unique(x, return_inverse=True)[1]]

    found = regress(pd.DataFrame({"x": x, "other": other}), np.exp(logs), np.log, by_value=True)

    prior = scatter_priors().value

    assert prior is not None

    freedom = prior.freedom + 3
    variance = (prior.freedom * prior.scale**2 + scatter_about_a_line(x, logs)) / freedom
    error = np.sqrt(variance / (5 * np.unique(x).var())) * x.std(ddof=1)

    assert found.weights.loc["x", "freedom"] == pytest.approx(freedom)
    assert found.weights.loc["x", "error"] == pytest.approx(error)


def test_the_noise_of_means_is_added_to_the_prior_of_values() -> None:
    """Without effects of values, means scatter only by the noise of a row / sqrt(repeats)."""
    x = np.repeat(np.arange(5.0), 8)
    logs = np.random.default_rng(18).normal(0, 0.2, 40)

    found = regress(pd.DataFrame({"x": x}), np.exp(logs), np.log, by_value=True)

    prior = scatter_priors().value

    assert prior is not None

    within = np.mean([logs[x == value].var(ddof=1) for value in range(5)])
    expected = prior.scale**2 + within / 8 / logs.var(ddof=1)
    variance = (2 * expected + scatter_about_a_line(x, logs)) / 5
    error = np.sqrt(variance / (5 * np.arange(5.0).var())) * x.std(ddof=1)

    assert found.weights.loc["x", "error"] == pytest.approx(error)


@pytest.mark.parametrize(
    ("size", "raises"),
    [
        pytest.param(0.6, True, id="larger than the prior expects"),
        pytest.param(0.01, False, id="smaller than the prior expects"),
    ],
)
def test_effects_of_other_values_raise_the_prior_but_do_not_lower_it(
    size: float, raises: bool
) -> None:
    """The means of the values of `other` have 4 degrees of freedom, and those of x have one."""
    x, other = balanced(3, 6, 1)
    of_x = 0.1 * np.array([1.0, -2.0, 1.0])
    of_other = size * np.array([0.4, -0.5, 0.1, 0.3, -0.6, 0.3])
    logs = x + of_x[np.unique(x, return_inverse=True)[1]]
    logs += of_other[np.unique(other, return_inverse=True)[1]]

    found = regress(pd.DataFrame({"x": x, "other": other}), np.exp(logs), np.log, by_value=True)

    prior = scatter_priors().value

    assert prior is not None

    expected = prior.scale**2
    updated = (2 * expected + scatter_about_a_line(other, logs)) / 6

    assert (updated > expected) == raises

    variance = (2 * max(updated, expected) + scatter_about_a_line(x, logs)) / 3
    error = np.sqrt(variance / (3 * np.unique(x).var())) * x.std(ddof=1)

    assert found.weights.loc["x", "error"] == pytest.approx(error)


def test_two_values_or_too_many_values_have_no_scatter_about_a_line() -> None:
    """For 12 rows, 2 values are too few, and 7 values are more than half of the rows."""
    draw = np.random.default_rng(31)
    design = pd.DataFrame({"two": np.tile([0.0, 1.0], 6), "many": np.arange(12.0) // 2})
    design.loc[0, "many"] = 9.0
    y = draw.normal(size=12)

    found = regress(design, y, by_value=True)

    assert half_widths(found) == pytest.approx(hc3_half_widths(design, y))


def slope_scatter(factor: np.ndarray, other: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    """Fit slopes along `other` per value of `factor`, and a line through these slopes.

    Returns the squared standard error of the slope of that line, and its degrees of freedom.
    """
    values = np.unique(factor)
    slopes_along_other = [
        stats.linregress(other[factor == value], y[factor == value]).slope for value in values
    ]
    return float(stats.linregress(values, slopes_along_other).stderr ** 2), len(values) - 2


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        pytest.param(1.0, 0.5, id="slopes of both factors differ"),
        pytest.param(1.0, 0.0, id="slopes of one factor differ"),
        pytest.param(0.0, 0.0, id="only cells differ"),
    ],
)
def test_the_error_of_a_product_follows_from_the_slopes_of_its_factors(
    of_a: float, of_b: float
) -> None:
    """Compare with lines through slopes, less the scatter of cells (Mandel 1961)."""
    draw = np.random.default_rng(32)
    a, b = balanced(6, 5, 2)
    y = 0.3 * a * b + 0.1 * draw.normal(size=30)[np.tile(np.arange(30), 2)]
    y += of_a * draw.normal(size=6)[np.unique(a, return_inverse=True)[1]] * b
    y += of_b * draw.normal(size=5)[np.unique(b, return_inverse=True)[1]] * a
    design, products = with_product(a, b)

    found = regress(design, y, products=products).weights.loc["a x b"]

    parts = [slope_scatter(a, b, y), slope_scatter(b, a, y)]
    product = design["a x b"].to_numpy()
    table = pd.DataFrame({"a": a, "b": b, "product": product, "y": y})
    cells = table.groupby(["a", "b"], as_index=False)
    fit = ols("y ~ C(a) + C(b) + product", cells.mean()).fit()
    of_cells = float(fit.bse["product"] ** 2)
    variance = parts[0][0] + parts[1][0] - of_cells
    below = sum(part**2 / freedom for part, freedom in [*parts, (of_cells, 19)])
    freedom = max(variance**2 / below, 1.0)
    if variance <= max(parts)[0]:
        variance, freedom = max(parts)
    unit = product.std(ddof=1) / y.std(ddof=1)

    assert found["freedom"] == pytest.approx(freedom)
    assert found["error"] == pytest.approx(np.sqrt(variance) * unit)


def test_the_error_of_a_product_with_a_binary_factor_follows_from_one_factor() -> None:
    draw = np.random.default_rng(33)
    a, b = balanced(6, 2, 3)
    y = draw.normal(size=36)
    design, products = with_product(a, b)

    found = regress(design, y, products=products).weights

    variance, freedom = slope_scatter(a, b, y)
    unit = design["a x b"].std() / y.std(ddof=1)

    assert found.loc["a x b", "freedom"] == freedom == 4
    assert found.loc["a x b", "error"] == pytest.approx(np.sqrt(variance) * unit)
    assert found["freedom"].tolist()[:2] == [32.0, 32.0]


def test_a_product_of_two_binary_factors_has_the_error_of_rows() -> None:
    draw = np.random.default_rng(34)
    a, b = balanced(2, 2, 5)
    y = draw.normal(size=20)
    design, products = with_product(a, b)

    found = regress(design, y, products=products)

    assert half_widths(found) == pytest.approx(hc3_half_widths(design, y))
