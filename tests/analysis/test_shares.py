"""Shares of the variance against functions whose Sobol indices are known, statsmodels' ANOVA, and their own rate."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from analysis.analyses.sensitivity import SensitivityOptions
from analysis.analyses.sensitivity import sensitivity as analyse
from analysis.statistics.dependence import levels_of
from analysis.statistics.shares import Shares, variance_shares
from paradnn.errors import NotEnoughData
from tests.analysis.planted import grid, runs


def shares_of(columns: pd.DataFrame, response: np.ndarray) -> Shares:
    return variance_shares(columns, response, levels_of(columns, "point"))


def full(**values: np.ndarray) -> pd.DataFrame:
    """Every combination of the values."""
    return pd.DataFrame(list(itertools.product(*values.values())), columns=list(values))


def test_ishigami_has_its_known_indices() -> None:
    """sin x1 + 7 sin^2 x2 + 0.1 x3^4 sin x1 over (-pi, pi): first-order 0.314 and 0.442, of x1 and x3 together 0.244
    (Ishigami and Homma 1990); a Shapley value is the first-order index and half of what is of two together."""
    axis = np.pi * (2 * (np.arange(12) + 0.5) / 12 - 1)
    points = full(x1=axis, x2=axis, x3=axis)
    x1, x2, x3 = points.to_numpy().T
    found = shares_of(points, np.sin(x1) + 7 * np.sin(x2) ** 2 + 0.1 * x3**4 * np.sin(x1))
    expected = pd.DataFrame({"share": [0.436, 0.442, 0.122], "alone": [0.314, 0.442, 0.0]}, index=["x1", "x2", "x3"])
    np.testing.assert_allclose(found.table.loc[expected.index, ["share", "alone"]], expected, atol=0.02)
    assert found.together.value == pytest.approx(1)
    assert found.table["share"].sum() == pytest.approx(found.together.value)


def test_a_balanced_grid_agrees_with_anova() -> None:
    draw = np.random.default_rng(4)
    points = full(a=np.arange(4), b=np.arange(5), again=np.arange(3)).drop(columns="again")
    values = points["a"] * (1 + points["b"]) + draw.normal(0, 2, len(points))
    table = anova_lm(ols("y ~ C(a) * C(b)", points.assign(y=values)).fit())
    squares, freedom = table["sum_sq"], table["df"]

    def adjusted(*terms: str) -> float:
        left = squares.sum() - squares[list(terms)].sum()
        return float(1 - left / (59 - freedom[list(terms)].sum()) / (squares.sum() / 59))

    one, two, both = adjusted("C(a)"), adjusted("C(b)"), adjusted("C(a)", "C(b)", "C(a):C(b)")
    found = shares_of(points, values.to_numpy())
    assert found.table.loc["a", ["share", "alone"]].tolist() == pytest.approx([(one + both - two) / 2, one])
    assert found.table.loc["b", ["share", "alone"]].tolist() == pytest.approx([(two + both - one) / 2, two])
    assert found.together.value == pytest.approx(both)


def test_leaving_rows_out_is_fitting_without_them() -> None:
    """The jackknife by the hat matrix against fits of what is left, on a grid with holes."""
    draw = np.random.default_rng(8)
    points = (
        grid((64, 256, 1024), (2, 4), (16, 32, 64, 128, 256, 512)).sample(30, random_state=1).reset_index(drop=True)
    )
    response = draw.normal(size=30) + np.log(points["model.nodes"].astype(float)).to_numpy()
    names = ["model.nodes", "batch_size"]
    levels = levels_of(points)
    whole = variance_shares(points[names], response, levels)

    def without(code: np.ndarray) -> np.ndarray:
        parts = [code != level for level in range(code.max() + 1)]
        found = [variance_shares(points.loc[part, names], response[part], levels_of(points[part])) for part in parts]
        return np.array([[*one.table.loc[names, "share"], one.together.value] for one in found])

    value = np.array([*whole.table.loc[names, "share"], whole.together.value])
    squares = np.array([((without(code) - value) ** 2).sum(axis=0) for code in levels.factors])
    expected = levels.of_mean.combined(squares)
    from scipy import stats

    reach = stats.t.ppf(0.975, expected.freedom) * np.sqrt(expected.variance)
    highs = [*whole.table.loc[names, "high"], whole.together.high]
    np.testing.assert_allclose(highs, np.minimum(value + reach, 1), atol=1e-6)


def test_intervals_hold_the_truth_where_models_are_drawn() -> None:
    """60 draws of 40 models at six batch sizes; x + y + xy of two uniform sizes of four values, and scatter."""
    draw, hits = np.random.default_rng(2), np.zeros(3)
    size = np.array([-1.5, -0.5, 0.5, 1.5])
    variance = size.var()
    whole = 2 * variance + variance**2 + 0.25
    truth = np.array([variance + variance**2 / 2, variance + variance**2 / 2, whole - 0.25]) / whole
    for _ in range(60):
        sizes = draw.choice(size, (40, 2))
        model = np.repeat(np.arange(40), 6)
        x, y = sizes[model].T
        points = pd.DataFrame({"x": x, "y": y, "model.id": model, "batch_size": np.tile(2 ** np.arange(6), 40)})
        response = x + y + x * y + draw.normal(0, 0.5, 240)
        found = variance_shares(points[["x", "y"]], response, levels_of(points))
        ends = [*found.table.loc[["x", "y"], ["low", "high"]].to_numpy(), found.together[1:]]
        hits += [low <= true <= high for true, (low, high) in zip(truth, ends, strict=True)]
    assert (hits >= 0.85 * 60).all(), hits


def test_many_values_are_cut_into_ranges_and_too_few_points_have_no_shares() -> None:
    draw = np.random.default_rng(3)
    points = pd.DataFrame(draw.random((200, 2)), columns=["a", "b"])
    found = shares_of(points, points["a"].to_numpy() + draw.normal(0, 0.01, 200))
    assert set(found.ranges) == {"a", "b"}
    assert found.table.loc["a", "share"] > 0.9
    with pytest.raises(NotEnoughData, match="11 points for shares of 2 hyperparameters, at least 12 are needed"):
        shares_of(points[:11], points["a"].to_numpy()[:11])
    wide = pd.DataFrame(draw.random((50, 11)))
    with pytest.raises(NotEnoughData, match="11 hyperparameters, shares are of at most 10; choose with --on"):
        shares_of(wide, draw.random(50))


def test_the_answer_tells_and_draws_shares_and_the_rest(tmp_path: Path) -> None:
    points = grid()
    speed = points["batch_size"].astype(float) ** 0.5 / points["model.layers"].astype(float)
    frame = runs(points, examples_per_second=speed * np.exp(np.random.default_rng(0).normal(0, 0.1, len(points))))
    result = analyse(frame, SensitivityOptions(metric="examples_per_second", log_scale="both", shares=True))
    text = result.text()
    assert "Of its variance is due to model.layers " in text
    assert "the rest, " in text
    table = result.table.set_index("term")
    assert table.loc["batch_size", "share"] > 0.4 > table.loc["model.nodes", "share_high"]
    result.figure().savefig(tmp_path / "shares.png")
    few = analyse(
        frame[:10], SensitivityOptions(metric="examples_per_second", shares=True, on=("layers", "batch_size"))
    )
    assert "No shares of the variance: 10 points for shares of 2 hyperparameters, at least 12" in few.text()
