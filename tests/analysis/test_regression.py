"""The regression itself against plain NumPy: weights, intervals, errors on what was left out, many terms."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.statistics.contrast import adjusted
from analysis.statistics.regression import regress
from tests.analysis.planted import sandwich


def slopes(design: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares by the normal equations, intercept first."""
    x = np.column_stack([np.ones(len(y)), design])
    return np.linalg.solve(x.T @ x, x.T @ y)


def test_weights_r2_and_hc3_errors_agree_with_plain_numpy() -> None:
    draw = np.random.default_rng(2)
    design = pd.DataFrame(draw.normal(size=(60, 3)) @ [[1, 0.6, 0], [0, 1, 0], [0, 0, 5]], columns=list("abc"))
    y = design @ [2.0, -1.0, 0.1] + draw.normal(size=60) * (1 + design["a"].abs())
    found = regress(design, y.to_numpy())
    z = ((design - design.mean()) / design.std()).to_numpy()
    zy = ((y - y.mean()) / y.std()).to_numpy()
    beta = slopes(z, zy)
    np.testing.assert_allclose(found.weights["weight"], beta[1:])
    np.testing.assert_allclose(found.weights["slope"], slopes(design.to_numpy(), y.to_numpy())[1:])
    x = np.column_stack([np.ones(60), z])
    residual, bread = zy - x @ beta, np.linalg.inv(x.T @ x)
    leverage = np.einsum("ij,jk,ik->i", x, bread, x)
    covariance = bread @ (x.T * (residual / (1 - leverage)) ** 2 @ x) @ bread
    half = stats.t.ppf(0.975, 56) * np.sqrt(np.diag(covariance))[1:]
    np.testing.assert_allclose(found.weights["high"] - found.weights["weight"], half)
    np.testing.assert_allclose(found.r2, 1 - residual @ residual / (zy @ zy))
    for i, name in enumerate(design):
        others = np.delete(z, i, axis=1)
        left = z[:, i] - np.column_stack([np.ones(60), others]) @ slopes(others, z[:, i])
        np.testing.assert_allclose(found.weights.loc[name, "vif"], z[:, i] @ z[:, i] / (left @ left))


def assert_regress_gives(low: np.ndarray, high: np.ndarray, design: np.ndarray, y: np.ndarray) -> None:
    """The method's intervals are these, so that what is found of many of these holds of the method."""
    frame = pd.DataFrame(design, columns=[f"x{number}" for number in range(design.shape[1])])
    for one, (bottom, top) in zip(y, zip(low, high, strict=True), strict=False):
        found = regress(frame, one).weights
        scale = design.std(axis=0, ddof=1) / one.std(ddof=1)
        np.testing.assert_allclose(found[["low", "high"]], np.column_stack([bottom, top]) * scale[:, None], atol=1e-9)


@pytest.mark.parametrize("uneven", [False, True])
def test_intervals_cover_the_planted_slopes_at_their_rate(uneven: bool) -> None:
    draw, count = np.random.default_rng(3), 8000
    grid = np.array([[a, b] for a in (1, 2, 4, 8, 16) for b in (1, 2, 3, 4) for _ in range(3)], dtype=float)
    truth = np.array([0.3, -0.5])
    scatter = 0.3 * np.sqrt(grid[:, 0]) if uneven else np.ones(len(grid))
    y = grid @ truth + draw.normal(0, scatter, (count, len(grid)))
    low, high, even = sandwich(grid, y)
    assert_regress_gives(low[:25], high[:25], grid, y[:25])
    covered = ((low <= truth) & (truth <= high)).mean(axis=0)
    assert covered.min() >= 0.935
    assert covered.max() <= 0.96
    plain = (np.abs((low + high) / 2 - truth) <= even)[:, 0].mean()
    assert (plain < 0.89) == uneven, "errors that take scatter as even claim too much"


def test_held_out_error_is_that_of_unseen_points() -> None:
    draw = np.random.default_rng(5)
    design = pd.DataFrame(draw.normal(size=(100, 2)), columns=["a", "b"])
    y = (design @ [1.0, 2.0] + draw.normal(0, 0.5, 100)).to_numpy()
    found = regress(design, y)
    fold = np.random.default_rng(0).permutation(100) % 10
    error = np.empty(100)
    for k in range(10):
        train, test = fold != k, fold == k
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


@pytest.mark.long
def test_terms_of_noise_seldom_matter_however_many_they_are() -> None:
    """15 terms without effect: some p below 0.05 in about half of 200 fits, some adjusted p in one of twenty. The
    adjustment is statsmodels' own."""
    random, found = np.random.default_rng(0), np.zeros(2)
    for draw in range(200):
        design = pd.DataFrame(random.normal(size=(120, 15))).add_prefix("x")
        p = regress(design, random.normal(size=120)).weights["p"].to_numpy()
        if draw < 10:  # statsmodels collects garbage each time, a second where much is imported
            np.testing.assert_allclose(adjusted(p), multipletests(p, method="holm")[1])
        found += [(p <= 0.05).any(), (adjusted(p) <= 0.05).any()]
    assert found[0] >= 80
    assert found[1] <= 20


def test_a_line_is_no_surer_than_the_scatter_of_its_values() -> None:
    """On a balanced grid it is the t test of a line through the means of the values."""
    draw = np.random.default_rng(6)
    x, other = (each.ravel() for each in np.meshgrid(np.arange(5.0), np.arange(3.0)))
    x, other = np.tile(x, 4), np.tile(other, 4)
    y = draw.normal(0, 0.5, 5)[x.astype(int)] + draw.normal(0, 0.05, 60) + other
    found = regress(pd.DataFrame({"x": x, "other": other}), y, by_value=True).weights.loc["x"]
    line = stats.linregress(np.arange(5.0), [y[x == value].mean() for value in range(5)])
    assert found["p"] == pytest.approx(line.pvalue)
    assert found["p_given"] < found["p"]
    assert found["freedom"] == pytest.approx(3)
    reach = stats.t.ppf(0.975, 3) * line.stderr * x.std(ddof=1) / y.std(ddof=1)
    assert found["high"] - found["weight"] == pytest.approx(reach)
