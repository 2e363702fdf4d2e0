"""Shares of variance, compared with all orders of regressions and brute-force jackknives."""

import itertools
import math
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paradnn.core.errors import InsufficientData
from paradnn.statistics.dependence import shared_levels
from paradnn.statistics.variance_shares import Share, variance_shares


def lindeman_merenda_gold(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the increase of adjusted R2 by each column, averaged over all orders of columns."""
    count, terms = columns.shape

    def r2(chosen: tuple[int, ...]) -> float:
        design = np.column_stack([np.ones(count), columns[:, list(chosen)]])
        residuals = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
        unexplained = (residuals @ residuals) / ((values - values.mean()) ** 2).sum()
        return float(1 - unexplained * (count - 1) / (count - len(chosen) - 1))

    shares = np.zeros(terms)
    orders = list(itertools.permutations(range(terms)))
    for order in orders:
        for position, term in enumerate(order):
            before = r2(order[:position]) if position else 0.0
            shares[term] += (r2(order[: position + 1]) - before) / len(orders)
    return shares


def test_shares_of_correlated_columns_equal_the_average_over_all_orders() -> None:
    draw = np.random.default_rng(4)
    columns = draw.normal(size=(60, 4))
    columns[:, 1] += columns[:, 0]
    values = columns @ np.array([1.0, 0.5, -0.3, 0.0]) + draw.normal(size=60)
    owners = [frozenset([name]) for name in "abcd"]
    shares = variance_shares(columns, owners, values, None)
    found = [shares[name].value for name in "abcd"]

    np.testing.assert_allclose(found, lindeman_merenda_gold(columns, values), atol=1e-8)


def test_a_share_is_a_sobol_index_plus_half_of_the_products() -> None:
    """The Sobol indices of x + 2 y + x y are 1/6, 4/6 and 1/6 for independent unit variances."""
    x, y = np.meshgrid([-1.0, 1.0], [-1.0, 1.0])
    columns = np.tile(np.column_stack([x.ravel(), y.ravel()]), (5_000, 1))
    product = columns.prod(axis=1)
    values = columns @ np.array([1.0, 2.0]) + product
    owners = [frozenset("x"), frozenset("y"), frozenset("xy")]
    shares = variance_shares(np.column_stack([columns, product]), owners, values, None)

    assert shares["x"].value == pytest.approx(1 / 6 + 1 / 12, abs=1e-3)
    assert shares["y"].value == pytest.approx(4 / 6 + 1 / 12, abs=1e-3)


def test_too_many_hyperparameters_for_shares_are_rejected() -> None:
    columns = np.random.default_rng(6).normal(size=(100, 11))
    owners = [frozenset([str(place)]) for place in range(11)]
    with pytest.raises(InsufficientData, match="choose at most 10 hyperparameters with --on"):
        variance_shares(columns, owners, columns[:, 0], None)


def test_shares_need_three_points_per_coefficient() -> None:
    draw = np.random.default_rng(9)
    columns = draw.normal(size=(9, 2))
    owners = [frozenset("a"), frozenset("b")]

    shares = variance_shares(columns, owners, draw.normal(size=9), None)

    assert math.isfinite(shares["a"].low)
    with pytest.raises(
        InsufficientData, match="2 terms need at least 9 points, but there are only 8"
    ):
        variance_shares(columns[:8], owners, draw.normal(size=8), None)


#: Owners of the columns: two hyperparameters and their product.
OWNERS = [frozenset("a"), frozenset("b"), frozenset("ab")]


def two_factor_estimates(columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of a and b, each with half of their product, and the three coefficients."""
    count = len(values)

    def fit(*terms: int) -> tuple[float, np.ndarray]:
        design = np.column_stack([np.ones(count), columns[:, list(terms)]])
        coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
        residuals = values - design @ coefficients
        unexplained = residuals @ residuals / (count - len(terms) - 1) / values.var(ddof=1)
        return float(1 - unexplained), coefficients[1:]

    a, _ = fit(0)
    b, _ = fit(1)
    both, coefficients = fit(0, 1, 2)
    return np.array([a + both - b, b + both - a]) / 2, coefficients


def jackknife(columns: np.ndarray, values: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Return jackknife variances over levels: of the two shares and of the three coefficients."""
    estimates = []
    for level in np.unique(code):
        is_kept = code != level
        estimates.append(np.concatenate(two_factor_estimates(columns[is_kept], values[is_kept])))
    count = len(estimates)
    return np.asarray((count - 1) * np.var(estimates, axis=0))


def interval(share: float, variance: float, noise: float, freedom: float) -> Share:
    """Return a share with the squared interval of its root, whose variance is at least `noise`."""
    root = math.sqrt(max(share, 0.0))
    variance_of_root = max(variance / (4 * max(share, noise)), noise)
    half_width = stats.t.ppf(0.975, freedom) * math.sqrt(variance_of_root)
    return Share(
        share, min(max(root - half_width, 0.0) ** 2, max(share, 0.0)), (root + half_width) ** 2
    )


def standardized(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean(axis=0)) / values.std(axis=0))


@pytest.mark.parametrize(
    "effects",
    [
        pytest.param([1.0, 0.5, 0.4], id="effects of both factors"),
        pytest.param([1.0, 0.0, 0.0], id="one factor without an effect"),
        pytest.param([0.0, 0.0, 0.0], id="noise alone"),
    ],
)
def test_intervals_of_independent_points_equal_a_jackknife_over_points(
    effects: list[float],
) -> None:
    draw = np.random.default_rng(10)
    a, b = draw.normal(size=(2, 30))
    columns = standardized(np.column_stack([a, b, a * b]))
    values = standardized(columns @ effects + draw.normal(size=30))

    found = variance_shares(columns, OWNERS, values, None)

    shares, _ = two_factor_estimates(columns, values)
    variance = jackknife(columns, values, np.arange(30))
    noise = variance[2:4] + variance[4] / 2
    for name, *numbers in zip("ab", shares, variance[:2], noise, strict=True):
        assert found[name] == pytest.approx(interval(*numbers, freedom=29), abs=1e-8)


@pytest.mark.parametrize(
    ("unit", "freedom"),
    [
        pytest.param("model", 8, id="models"),
        pytest.param("crossed", 5, id="models and batch sizes"),
    ],
)
@pytest.mark.parametrize(
    "effect",
    [pytest.param(1.0, id="effects of levels"), pytest.param(0.0, id="no effects of levels")],
)
def test_intervals_of_points_that_share_levels_equal_a_jackknife_over_levels(
    unit: Literal["model", "crossed"], freedom: int, effect: float
) -> None:
    """Nine models ran at six batch sizes. The variance is at least that of independent points."""
    draw = np.random.default_rng(11)
    index = pd.MultiIndex.from_product([range(9), range(6)], names=["model.nodes", "batch_size"])
    points = index.to_frame(index=False)
    model, batch = points.to_numpy().T
    columns = standardized(np.column_stack([model, batch, (model - 4) * (batch - 2.5)]))
    values = columns @ [0.6, 0.4, 0.2] + draw.normal(0, 0.3, 54)
    values += effect * (draw.normal(0, 1, 9)[model] + draw.normal(0, 1, 6)[batch])
    values = standardized(values)

    found = variance_shares(columns, OWNERS, values, shared_levels(points, unit))

    shares, _ = two_factor_estimates(columns, values)
    of_points = jackknife(columns, values, np.arange(54))
    variance = jackknife(columns, values, model)
    if unit == "crossed":
        variance += jackknife(columns, values, batch) - of_points
    variance = np.maximum(variance, of_points)
    noise = variance[2:4] + variance[4] / 2
    for name, *numbers in zip("ab", shares, variance[:2], noise, strict=True):
        assert found[name] == pytest.approx(interval(*numbers, freedom=freedom), abs=1e-8)


def test_many_points_are_omitted_in_groups() -> None:
    """Omitting each of 200 groups gives about the same interval as omitting each of 600 points."""
    draw = np.random.default_rng(12)
    a, b = draw.normal(size=(2, 600))
    columns = standardized(np.column_stack([a, b, a * b]))
    values = standardized(columns @ [1.0, 0.5, 0.4] + draw.normal(size=600))

    found = variance_shares(columns, OWNERS, values, None)["a"]

    shares, _ = two_factor_estimates(columns, values)
    variance = jackknife(columns, values, np.arange(600))
    expected = interval(shares[0], variance[0], variance[2] + variance[4] / 2, freedom=199)

    assert found.high - found.value == pytest.approx(expected.high - expected.value, rel=0.15)
    assert found.value - found.low == pytest.approx(expected.value - expected.low, rel=0.15)


@pytest.mark.long
def test_intervals_cover_planted_shares_at_the_nominal_rate() -> None:
    """Thirty models of random size ran at 8 batch sizes. One hyperparameter has no effect."""
    draw = np.random.default_rng(8)
    models = 30
    batches = 8
    batch = np.linspace(-1.5, 1.5, batches)
    true_variances = np.array([0.36, 0.09, 0.0, 0.25 * batch.var()])
    true_shares = true_variances / (true_variances.sum() + 0.3**2 + 0.3**2)
    repeats = 200
    covered = np.zeros(4)
    for _ in range(repeats):
        sizes = draw.normal(size=(models, 3))
        own_effect = draw.normal(0, 0.3, models)
        columns = np.column_stack([np.repeat(sizes, batches, axis=0), np.tile(batch, models)])
        values = columns @ np.array([0.6, 0.3, 0.0, 0.5]) + np.repeat(own_effect, batches)
        values += draw.normal(0, 0.3, len(values))
        names = ["model.layers", "model.nodes", "model.input_size", "batch_size"]
        points = pd.DataFrame(columns, columns=names).assign(family="fc")
        owners = [frozenset([name]) for name in names]
        levels = shared_levels(points, "model")
        shares = variance_shares(columns, owners, values, levels)
        for index, (name, share) in enumerate(zip(names, true_shares, strict=True)):
            covered[index] += shares[name].low <= share <= shares[name].high

    assert (covered / repeats >= 0.915).all()
