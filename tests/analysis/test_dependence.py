"""Intervals over points that share a model or a batch size, against planted truths and plain arithmetic."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics.dependence import (
    crossed_mean,
    crossed_quantile,
    crossed_share,
    crossed_variance,
    geometric_mean,
    levels_of,
)
from analysis.statistics.quantiles import quantile_interval
from analysis.statistics.regression import regress
from benchmarks.verdicts import found_under, shared_effects
from tests.analysis.test_pairing import plain_pairs, published_folder


def points(models: int, batches: int) -> pd.DataFrame:
    """A complete grid of models and batch sizes."""
    index = pd.MultiIndex.from_product([range(models), range(batches)], names=["model.nodes", "batch_size"])
    return index.to_frame(index=False)


def exact(hits: int, count: int) -> tuple[float, float, float]:
    """A share of independent points with its exact interval."""
    low, high = stats.binomtest(hits, count).proportion_ci()
    return hits / count, low, high


def test_what_is_taken_as_a_sample() -> None:
    grid = points(23, 9)
    assert levels_of(grid).words == "23 models and 9 batch sizes"
    assert levels_of(grid, "model").words == "23 models"
    assert levels_of(grid, "point").words == "207 points"
    assert levels_of(points(23, 5)).words == "23 models", "five batch sizes are taken as given"
    assert levels_of(points(1, 9)).words == "9 batch sizes"
    assert levels_of(grid.assign(precision="x")).counts == (23, 9)


def test_points_that_share_nothing_are_the_textbook() -> None:
    values = np.random.default_rng(0).normal(1, 2, 40)
    alone = levels_of(points(40, 1))
    low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert crossed_mean(values, alone) == pytest.approx((values.mean(), low, high))
    assert geometric_mean(np.exp(values), alone) == pytest.approx(np.exp([values.mean(), low, high]))
    assert crossed_quantile(values, alone, 0.3) == quantile_interval(values, 0.3)
    assert crossed_share(values > 0, alone) == pytest.approx(exact(int((values > 0).sum()), 40), abs=0.01)


def test_two_way_variance_as_by_hand() -> None:
    """Of a complete grid V is the variance of the rows' means plus that of the columns' less that of what is left."""
    grid = np.random.default_rng(1).normal(size=(7, 6)) + np.arange(7)[:, None] + np.arange(6)
    rows, columns = grid.mean(axis=1), grid.mean(axis=0)
    rest = grid - rows[:, None] - columns + grid.mean()
    expected = rows.var(ddof=1) / 7 + columns.var(ddof=1) / 6 - (rest**2).sum() / 30 / 42
    assert crossed_variance(grid.ravel(), levels_of(points(7, 6))).variance == pytest.approx(expected)


def test_where_all_agree_a_share_is_worth_its_models() -> None:
    """Five models at nine batch sizes that all win are five wins, not 45."""
    found = crossed_share(np.ones(45, dtype=bool), levels_of(points(5, 9)))
    assert found == pytest.approx(exact(5, 5))
    assert np.isnan(crossed_share([], levels_of(points(0, 0)))).all()


def test_a_mean_of_few_has_no_interval() -> None:
    assert np.isnan(crossed_mean([1.0, 2, 3, 4, 5], levels_of(points(5, 1)))[1:]).all()
    assert np.isnan(crossed_mean([], levels_of(points(0, 0)))).all()


@pytest.mark.parametrize(("models", "batches", "unit"), [(12, 9, "model"), (12, 9, "crossed"), (30, 1, "crossed")])
def test_intervals_cover_at_their_rate(models: int, batches: int, unit: Literal["crossed", "model"]) -> None:
    """200 draws of models, and of batch sizes where they are a sample: mean, share above zero and median.

    benchmarks/verdicts.py draws 1,000 and prints the rates."""
    random = np.random.default_rng(models)
    where, hits = levels_of(points(models, batches), unit), np.zeros(3)
    fixed = np.linspace(-1.2, 1.2, batches) if batches > 1 else np.zeros(1)
    middle = fixed if unit == "model" else random.normal(0, 0.8, 4000)
    scatter = np.sqrt(0.9**2 + 0.6**2)
    share = stats.norm.cdf((0.5 + middle) / scatter).mean()
    for _ in range(200):
        batch = fixed if unit == "model" else random.normal(0, 0.8 * (batches > 1), batches)
        values = 0.5 + random.normal(0, 0.9, (models, 1)) + batch + random.normal(0, 0.6, (models, batches))
        for place, (truth, found) in enumerate(
            (
                (0.5, crossed_mean(values.ravel(), where)),
                (share if batches > 1 else stats.norm.cdf(0.5 / scatter), crossed_share(values.ravel() > 0, where)),
                (0.5, crossed_quantile(values.ravel(), where)),
            )
        ):
            hits[place] += found.low <= truth <= found.high
    assert (hits >= 0.89 * 200).all(), hits


def test_every_analysis_takes_what_points_share_into_account() -> None:
    """40 draws of models with all their batch sizes; points in their own right hold the truth in half of them, or in
    fewer. benchmarks/verdicts.py draws 1,000."""
    random, units = np.random.default_rng(11), ("point", "crossed")
    hits = pd.DataFrame(0, index=found_under(shared_effects(random), "point"), columns=units)
    for _ in range(40):
        frame = shared_effects(random)
        for unit in units:
            for name, (true, low, high) in found_under(frame, unit).items():
                hits.loc[name, unit] += low <= true <= high
    assert (hits["crossed"] >= 0.85 * 40).all(), hits
    assert (hits["point"] <= 0.8 * 40).all(), hits


def test_a_weight_of_models_is_judged_by_models() -> None:
    """A hyperparameter of models that has no effect: with the model's own effect on top, points in their own right call
    it one in half of 200 draws, models in one of twenty."""
    random, grid = np.random.default_rng(3), points(12, 6)
    design, where = grid[["model.nodes"]].astype(float), levels_of(grid)
    found = {"points": 0, "models": 0}
    for _ in range(200):
        response = (random.normal(0, 1, (12, 1)) + random.normal(0, 0.3, (12, 6))).ravel()
        for name, levels in (("points", None), ("models", where)):
            found[name] += regress(design, response, levels=levels).weights["p"].iloc[0] <= 0.05
    assert found["points"] > 60
    assert found["models"] <= 20


def test_the_published_pairs_are_23_models(tmp_path: Path) -> None:
    folder = published_folder(tmp_path)
    pairs = plain_pairs(folder)
    if len(pairs) == 2:
        pytest.skip("the published files are not here")
    ratios, where = pairs["speedup"].to_numpy(), levels_of(pairs.rename(columns=str))
    assert where.words == "23 models and 9 batch sizes"
    np.testing.assert_allclose(crossed_share(ratios > 1, where), (0.773, 0.544, 0.907), atol=0.002)
    np.testing.assert_allclose(geometric_mean(ratios, where), (2.78, 1.37, 5.66), atol=0.01)
