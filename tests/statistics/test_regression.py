"""Regression, quantiles and intervals over points that share a model.

The references are plain NumPy, SciPy and planted truths.
"""

from typing import Literal

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paradnn.statistics.dependence import (
    crossed_quantile,
    crossed_ratio,
    crossed_share,
    crossed_variance,
    geometric_mean,
    quantile_interval,
    shared_levels,
)
from paradnn.statistics.regression import regress
from tests.conftest import depth


def slopes(design: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Solve least squares by the normal equations, intercept first."""
    x = np.column_stack([np.ones(len(y)), design])
    return np.linalg.solve(x.T @ x, x.T @ y)


def test_weights_r2_and_hc3_errors_agree_with_plain_numpy() -> None:
    draw = np.random.default_rng(2)
    design = pd.DataFrame(
        draw.normal(size=(60, 3)) @ [[1, 0.6, 0], [0, 1, 0], [0, 0, 5]], columns=list("abc")
    )
    y = design @ [2.0, -1.0, 0.1] + draw.normal(size=60) * (1 + design["a"].abs())
    found = regress(design, y.to_numpy())
    z = ((design - design.mean()) / design.std()).to_numpy()
    zy = ((y - y.mean()) / y.std()).to_numpy()
    beta = slopes(z, zy)
    np.testing.assert_allclose(found.weights["weight"], beta[1:])
    np.testing.assert_allclose(found.weights["slope"], slopes(design.to_numpy(), y.to_numpy())[1:])
    x = np.column_stack([np.ones(60), z])
    residual = zy - x @ beta
    bread = np.linalg.inv(x.T @ x)
    leverage = np.einsum("ij,jk,ik->i", x, bread, x)
    covariance = bread @ (x.T * (residual / (1 - leverage)) ** 2 @ x) @ bread
    half = stats.t.ppf(0.975, 56) * np.sqrt(np.diag(covariance))[1:]
    np.testing.assert_allclose(
        found.weights[["low", "high"]], np.column_stack([beta[1:] - half, beta[1:] + half])
    )
    np.testing.assert_allclose(found.r2, 1 - residual @ residual / (zy @ zy))
    for i, name in enumerate(design):
        others = np.delete(z, i, axis=1)
        left = z[:, i] - np.column_stack([np.ones(60), others]) @ slopes(others, z[:, i])
        np.testing.assert_allclose(
            found.weights.loc[name, "vif"], z[:, i] @ z[:, i] / (left @ left)
        )


def test_held_out_error_is_that_of_unseen_points() -> None:
    draw = np.random.default_rng(5)
    design = pd.DataFrame(draw.normal(size=(100, 2)), columns=["a", "b"])
    y = (design @ [1.0, 2.0] + draw.normal(0, 0.5, 100)).to_numpy()
    found = regress(design, y)
    fold = np.random.default_rng(0).permutation(100) % 10
    error = np.empty(100)
    for k in range(10):
        train = fold != k
        test = fold == k
        b = slopes(design[train].to_numpy(), y[train])
        error[test] = y[test] - b[0] - design[test].to_numpy() @ b[1:]
    np.testing.assert_allclose(found.rmse_held_out, np.sqrt((error**2).mean()))
    assert found.r2_held_out < found.r2
    noise = regress(design, draw.normal(size=100))
    assert noise.r2_held_out < 0.05 < noise.r2 + 0.05


def test_one_row_that_settles_a_term_gets_hc1() -> None:
    design = pd.DataFrame({"a": np.arange(20.0), "only": [1.0] + [0.0] * 19})
    found = regress(design, np.random.default_rng(12).normal(size=20))
    assert found.covariance == "HC1"
    assert np.isfinite(found.weights[["low", "high"]]).all(axis=None)


def test_a_line_is_no_surer_than_the_scatter_of_its_values() -> None:
    """On a balanced grid the test equals the t test of a line through the means of the values."""
    draw = np.random.default_rng(6)
    x, other = (each.ravel() for each in np.meshgrid(np.arange(5.0), np.arange(3.0)))
    x = np.tile(x, 4)
    other = np.tile(other, 4)
    y = draw.normal(0, 0.5, 5)[x.astype(int)] + draw.normal(0, 0.05, 60) + other
    found = regress(pd.DataFrame({"x": x, "other": other}), y, by_value=True).weights.loc["x"]
    line = stats.linregress(np.arange(5.0), [y[x == value].mean() for value in range(5)])
    assert found["p"] == pytest.approx(line.pvalue)
    assert found["p_given"] < found["p"]
    assert found["freedom"] == pytest.approx(3)
    reach = stats.t.ppf(0.975, 3) * line.stderr * x.std(ddof=1) / y.std(ddof=1)
    assert found["high"] - found["weight"] == pytest.approx(reach)


def test_quantile_intervals_are_those_of_the_binomial_by_hand() -> None:
    for n, share in ((6, 0.5), (25, 0.5), (60, 0.9), (40, 0.1)):
        lower, upper = stats.binom.ppf([0.025, 0.975], n, share)
        ends = (lower or -np.inf, upper + 1 if upper < n else np.inf)
        assert quantile_interval(np.arange(1, n + 1), share)[1:] == ends
    # The sign test's table: the 6th to the 15th of 20 values, the 2nd to the 9th of 10.
    assert quantile_interval(np.arange(1, 21)) == (10.5, 6, 15)
    assert quantile_interval(np.arange(1, 11)) == (5.5, 2, 9)
    assert quantile_interval([3.0]) == (3, -np.inf, np.inf)
    assert quantile_interval(np.arange(35), 0.9).high == np.inf
    assert quantile_interval(np.arange(36), 0.9).high == 35
    assert np.isnan(quantile_interval([])).all()


@pytest.mark.parametrize("n", [20, 40])
def test_ratios_of_sums_cover_at_their_stated_rate(n: int) -> None:
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


def test_few_have_no_interval_and_where_all_agree_a_share_is_worth_its_models() -> None:
    assert crossed_ratio([1, 2], [2, 4], shared_levels(points(2, 1))).value == 0.5
    assert np.isnan(crossed_ratio([1, 2], [2, 4], shared_levels(points(2, 1))).low)
    assert crossed_ratio(np.ones(6), np.full(6, 2), shared_levels(points(6, 1))) == pytest.approx(
        (0.5, 0.5, 0.5)
    )
    assert np.isnan(geometric_mean([1.0, 2, 3, 4, 5], shared_levels(points(5, 1)))[1:]).all()
    none = shared_levels(points(0, 0))
    for nothing in (geometric_mean([], none), crossed_ratio([], [], none), crossed_share([], none)):
        assert np.isnan(nothing).all()
    # Five models that win at all nine batch sizes are five wins, not 45.
    assert crossed_share(np.ones(45, dtype=bool), shared_levels(points(5, 9))) == pytest.approx(
        exact(5, 5)
    )


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


def test_the_unit_decides_what_counts_as_a_sample() -> None:
    grid = points(23, 9)
    assert shared_levels(grid).description == "23 models and 9 batch sizes"
    assert shared_levels(grid, "model").description == "23 models"
    assert shared_levels(grid, "point").description == "207 points"
    assert shared_levels(points(23, 5)).description == "23 models", (
        "five batch sizes are taken as given"
    )
    assert shared_levels(points(1, 9)).description == "9 batch sizes"
    assert shared_levels(grid.assign(precision="x")).counts == (23, 9)


def test_points_that_share_nothing_are_the_textbook() -> None:
    values = np.random.default_rng(0).normal(1, 2, 40)
    alone = shared_levels(points(40, 1))
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert geometric_mean(np.exp(values), alone) == pytest.approx(
        np.exp([values.mean(), low, high])
    )
    assert crossed_quantile(values, alone, 0.3) == quantile_interval(values, 0.3)
    assert crossed_share(values > 0, alone) == pytest.approx(
        exact(int((values > 0).sum()), 40), abs=0.01
    )


def test_two_way_variance_as_by_hand() -> None:
    """On a complete grid, V is the variance of the row means plus that of the column means.

    The variance of the residuals' mean is subtracted.
    """
    grid = np.random.default_rng(1).normal(size=(7, 6)) + np.arange(7)[:, None] + np.arange(6)
    rows = grid.mean(axis=1)
    columns = grid.mean(axis=0)
    rest = grid - rows[:, None] - columns + grid.mean()
    expected = rows.var(ddof=1) / 7 + columns.var(ddof=1) / 6 - (rest**2).sum() / 30 / 42
    assert crossed_variance(grid.ravel(), shared_levels(points(7, 6))).variance == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("models", "batches", "unit"), [(12, 9, "model"), (12, 9, "crossed"), (30, 1, "crossed")]
)
def test_intervals_cover_at_their_rate(
    models: int, batches: int, unit: Literal["crossed", "model"]
) -> None:
    """Draw models, and batch sizes if they are a sample, 200 times.

    Returns the mean, the share above zero and the median.
    """
    random = np.random.default_rng(models)
    where = shared_levels(points(models, batches), unit)
    hits = np.zeros(3)
    if batches > 1:
        fixed = np.linspace(-1.2, 1.2, batches)
    else:
        fixed = np.zeros(1)
    middle = fixed if unit == "model" else random.normal(0, 0.8, 4000)
    scatter = np.sqrt(0.9**2 + 0.6**2)
    share = stats.norm.cdf((0.5 + middle) / scatter).mean()
    for _ in range(200):
        if unit == "model":
            batch = fixed
        else:
            batch = random.normal(0, 0.8 * (batches > 1), batches)
        values = (
            0.5
            + random.normal(0, 0.9, (models, 1))
            + batch
            + random.normal(0, 0.6, (models, batches))
        )
        for place, (truth, found) in enumerate(
            (
                (np.exp(0.5), geometric_mean(np.exp(values.ravel()), where)),
                (
                    share if batches > 1 else stats.norm.cdf(0.5 / scatter),
                    crossed_share(values.ravel() > 0, where),
                ),
                (0.5, crossed_quantile(values.ravel(), where)),
            )
        ):
            hits[place] += found.low <= truth <= found.high
    assert (hits >= 0.89 * 200).all(), hits


@depth(60, 200)
def test_a_weight_of_models_is_judged_by_models(draws: int) -> None:
    """A hyperparameter of models without an effect, while each model has a random effect.

    Treated as independent, points call it significant in half of the draws. Models call it
    significant in one of twenty.
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
