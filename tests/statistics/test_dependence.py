"""Variances over points that share levels, compared with a brute-force jackknife."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from paradnn.statistics.dependence import (
    Component,
    Levels,
    Unit,
    crossed_quantile,
    crossed_ratio,
    crossed_share,
    crossed_variance,
    crossed_variances,
    geometric_mean,
    quantile_interval,
    shared_levels,
    sum_components,
)


def grid(models: int, batches: int) -> pd.DataFrame:
    """Return a complete grid of models and batch sizes."""
    index = pd.MultiIndex.from_product(
        [range(models), range(batches)], names=["model.nodes", "batch_size"]
    )
    return index.to_frame(index=False)


def incomplete_grid() -> pd.DataFrame:
    """Return 8 models, each at 6 or 7 of 7 batch sizes."""
    complete = grid(8, 7)
    is_kept = (complete["model.nodes"] + 3 * complete["batch_size"]) % 8 != 0
    return complete[is_kept].reset_index(drop=True)


def indicators(code: np.ndarray) -> np.ndarray:
    return (code[:, None] == np.unique(code)).astype(float)


def brute_force(
    design: np.ndarray,
    response: np.ndarray,
    factors: list[np.ndarray],
    sizes: np.ndarray,
    coefficient: int,
) -> Component:
    """Return the variance of a coefficient from omitting each level of each factor.

    The changes are linear in the response, so the jackknife of a factor contains known shares of
    the variances of all factors. Weights make their sum unbiased. The degrees of freedom of a part
    are those of a quadratic form under effects of its factor (Bell and McCaffrey 2002). With
    several factors, the variance is at least that of the last factor, the points.

    Args:
        design: Design matrix, shape (n, k).
        response: Response, shape (n,).
        factors: Level of each point, shape (n,), per factor; the points are the last factor.
        sizes: Factor on the effects at each point, shape (n,).
        coefficient: Index of the coefficient.
    """
    with_all_rows = np.linalg.pinv(design)[coefficient]
    effects = [sizes[:, None] * indicators(code) for code in factors]
    parts = []
    degrees = []
    contained = []
    for code, own_effects in zip(factors, effects, strict=True):
        changes = []
        for level in np.unique(code):
            is_kept = code != level
            without = np.zeros(len(code))
            without[is_kept] = np.linalg.pinv(design[is_kept])[coefficient]
            changes.append(without - with_all_rows)
        scale = (len(changes) - 1) / len(changes)
        rows = np.array(changes)
        parts.append(scale * np.sum((rows @ response) ** 2))
        contained.append([scale * np.sum((rows @ effect) ** 2) for effect in effects])
        covariance = rows @ own_effects @ own_effects.T @ rows.T
        degrees.append(np.trace(covariance) ** 2 / np.trace(covariance @ covariance))
    expected = [np.sum((with_all_rows @ effect) ** 2) for effect in effects]
    weighted = np.linalg.solve(np.transpose(contained), expected) * parts
    variance = weighted.sum()
    if len(factors) > 1 and variance <= parts[-1]:
        return Component(parts[-1], degrees[-1])
    return Component(variance, variance**2 / np.sum(weighted**2 / degrees))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(grid(7, 6), id="complete grid"),
        pytest.param(incomplete_grid(), id="incomplete grid"),
    ],
)
@pytest.mark.parametrize(
    "effect",
    [pytest.param(1.0, id="effects of levels"), pytest.param(0.0, id="no effects of levels")],
)
def test_the_variance_of_a_mean_equals_a_jackknife_over_each_factor(
    points: pd.DataFrame, effect: float
) -> None:
    random = np.random.default_rng(1)
    model, batch = points.to_numpy().T
    values = random.normal(0, 0.5, len(points)) + effect * (
        random.normal(0, 1, 8)[model] + random.normal(0, 0.7, 7)[batch]
    )

    found = crossed_variance(values, shared_levels(points))

    ones = np.ones(len(points))
    factors = [model, batch, np.arange(len(points))]

    assert found == pytest.approx(brute_force(ones[:, None], values, factors, ones, 0))


def test_the_variance_of_independent_points_is_that_of_a_sample() -> None:
    values = np.random.default_rng(2).normal(0, 1, 12)

    found = crossed_variance(values, shared_levels(grid(12, 1)))

    assert found == pytest.approx((stats.sem(values) ** 2, 11.0))


@pytest.mark.parametrize("coefficient", [0, 1, 2])
def test_variances_of_coefficients_equal_a_jackknife_over_each_factor(coefficient: int) -> None:
    """The first hyperparameter differs between models, and the second between points."""
    random = np.random.default_rng(3)
    points = incomplete_grid()
    model, batch = points.to_numpy().T
    design = np.column_stack(
        [np.ones(len(points)), model + 0.5, random.normal(0, 1, len(points)) + 0.2 * batch]
    )
    response = random.normal(0, 1, len(points)) + random.normal(0, 1, 8)[model]
    sizes = random.uniform(0.5, 2, len(points))

    found = crossed_variances(design, response, shared_levels(points), sizes)

    factors = [model, batch, np.arange(len(points))]
    expected = brute_force(design, response, factors, sizes, coefficient)

    assert found.variance[coefficient] == pytest.approx(expected.variance)
    assert found.freedom[coefficient] == pytest.approx(expected.freedom)


def test_the_variance_over_one_factor_equals_its_jackknife() -> None:
    """With models as the only sample, the variance is that of their means on a complete grid."""
    values = np.random.default_rng(4).normal(0, 1, (9, 4))

    found = crossed_variance(values.ravel(), shared_levels(grid(9, 4), "model"))

    assert found == pytest.approx((stats.sem(values.mean(axis=1)) ** 2, 8.0))


def test_the_variance_of_a_slope_within_models_is_that_of_the_slopes_of_models() -> None:
    """On a complete grid the slope is the mean of the slopes of the models."""
    points = grid(9, 4)
    model, batch = points.to_numpy().T
    values = np.random.default_rng(12).normal(0, 1, 36)
    design = np.column_stack([np.ones(36), batch])

    found = crossed_variances(design, values, shared_levels(points, "model"))

    slopes = [np.polyfit(np.arange(4), values[model == number], 1)[0] for number in range(9)]

    assert found.variance[1] == pytest.approx(stats.sem(slopes) ** 2)
    assert found.freedom[1] == 8.0


def test_models_with_one_batch_size_each_are_not_a_factor() -> None:
    points = pd.DataFrame({"model.nodes": range(18), "batch_size": np.arange(18) ** 2 % 13})
    batch = pd.factorize(points["batch_size"])[0]
    random = np.random.default_rng(13)
    values = random.normal(0, 1, 18) + random.normal(0, 2, 7)[batch]

    found = crossed_variance(values, shared_levels(points))

    ones = np.ones(18)

    assert found == pytest.approx(
        brute_force(ones[:, None], values, [batch, np.arange(18)], ones, 0)
    )


def test_levels_of_unequal_size_have_fewer_degrees_of_freedom() -> None:
    """One model has ten of the points, and six models have one each."""
    points = pd.DataFrame({"model.nodes": [0] * 10 + [1, 2, 3, 4, 5, 6], "batch_size": 64})
    values = np.random.default_rng(5).normal(0, 1, 16)
    model = points["model.nodes"].to_numpy()

    found = crossed_variance(values, shared_levels(points, "model"))

    weights = np.array([10] + [1] * 6) / 16
    jackknife = [values[model != level].mean() - values.mean() for level in range(7)]
    contained = [
        [
            (level != omitted) * 16 * weights[level] / (16 - 16 * weights[omitted]) - weights[level]
            for level in range(7)
        ]
        for omitted in range(7)
    ]
    ratio = np.sum(weights**2) / np.sum(np.square(contained))
    covariance = np.array(contained) @ np.transpose(contained)

    assert found.variance == pytest.approx(ratio * np.sum(np.square(jackknife)))
    assert found.freedom == pytest.approx(
        np.trace(covariance) ** 2 / np.trace(covariance @ covariance)
    )
    assert found.freedom < 3


def test_a_geometric_mean_adds_independent_variances() -> None:
    logs = np.random.default_rng(6).normal(0.1, 0.2, 20)
    session = Component(0.002, 4.0)

    found = geometric_mean(np.exp(logs), shared_levels(grid(20, 1)), [session])

    variance_of_points = stats.sem(logs) ** 2
    variance = variance_of_points + 0.002
    freedom = variance**2 / (variance_of_points**2 / 19 + 0.002**2 / 4)
    half_width = stats.t.ppf(0.975, freedom) * math.sqrt(variance)

    assert np.log(found) == pytest.approx(
        [logs.mean(), logs.mean() - half_width, logs.mean() + half_width]
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([Component(2.0, 5.0)], (2.0, 5.0), id="one component"),
        pytest.param(
            [Component(2.0, 5.0), Component(1.0, 2.0)], (3.0, 9 / 1.3), id="two components"
        ),
        pytest.param([Component(0.0, 5.0), Component(0.0, 2.0)], (0.0, 2.0), id="no variance"),
        pytest.param([], (0, math.inf), id="no component"),
    ],
)
def test_variances_add_up(parts: list[Component], expected: tuple[float, float]) -> None:
    assert sum_components(parts) == pytest.approx(expected)


def test_a_ratio_of_sums_is_a_weighted_regression() -> None:
    """For independent points, the variance is the jackknife of sum(above) / sum(below).

    The first point has zero above and zero below.
    """
    random = np.random.default_rng(7)
    below = random.uniform(0.5, 3, 15)
    below[0] = 0.0
    above = below * random.normal(0.4, 0.1, 15)

    found = crossed_ratio(above, below, shared_levels(grid(15, 1)))

    root = np.sqrt(below)
    response = above / np.maximum(root, 0.1)
    expected = brute_force(root[:, None], response, [np.arange(15)], sizes=root, coefficient=0)
    ratio = above.sum() / below.sum()
    half_width = stats.t.ppf(0.975, expected.freedom) * math.sqrt(expected.variance)

    assert found == pytest.approx((ratio, ratio - half_width, ratio + half_width))


def test_a_ratio_to_zero_is_unknown() -> None:
    levels = shared_levels(grid(6, 1))

    assert all(map(math.isnan, crossed_ratio(np.ones(6), np.zeros(6), levels)))


@pytest.mark.parametrize(
    ("points", "is_known"),
    [pytest.param(5, False, id="too few"), pytest.param(6, True, id="fewest")],
)
def test_an_interval_needs_six_points(points: int, is_known: bool) -> None:
    values = np.linspace(1.0, 2.0, points)
    levels = shared_levels(grid(points, 1))

    mean = geometric_mean(values, levels)
    ratio = crossed_ratio(values, np.ones(points), levels)

    assert mean.value == pytest.approx(stats.gmean(values))
    assert ratio.value == pytest.approx(1.5)
    assert math.isfinite(mean.low) == math.isfinite(ratio.low) == is_known


def wilson(share: float, count: float, freedom: float, level: float = 0.95) -> tuple[float, float]:
    """Return the roots p of |share - p| = t sqrt(p (1 - p) / count) (Wilson 1927)."""
    t = stats.t.ppf((1 + level) / 2, freedom)
    middle = (share + t**2 / (2 * count)) / (1 + t**2 / count)
    half_width = (
        t * math.sqrt(share * (1 - share) / count + (t / (2 * count)) ** 2) / (1 + t**2 / count)
    )
    return middle - half_width, middle + half_width


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_a_share_has_wilsons_interval_for_the_effective_number_of_points(level: float) -> None:
    points = grid(12, 8)
    model = points["model.nodes"].to_numpy()
    random = np.random.default_rng(8)
    hits = random.normal(0, 1, 12)[model] + random.normal(0, 0.5, len(points)) > -0.3
    levels = shared_levels(points)

    found = crossed_share(hits, levels, level)

    share = hits.mean()
    factors = [*points.to_numpy().T, np.arange(len(points))]
    ones = np.ones(len(points))
    variance, freedom = brute_force(ones[:, None], hits.astype(float), factors, ones, 0)
    effective = share * (1 - share) / variance

    assert effective < 60
    assert found == pytest.approx((share, *wilson(share, effective, freedom, level)))


@pytest.mark.parametrize(
    "hits_of_models",
    [
        pytest.param([4] * 7 + [5], id="models nearly agree"),
        pytest.param([4] * 8, id="models agree exactly"),
        pytest.param([3] * 8, id="models agree except for rounding"),
    ],
)
def test_the_effective_number_is_at_most_the_number_of_points(hits_of_models: list[int]) -> None:
    points = grid(8, 8)
    hits = points["batch_size"].to_numpy() < np.repeat(hits_of_models, 8)
    levels = shared_levels(points, "model")

    found = crossed_share(hits, levels)

    share = sum(hits_of_models) / 64

    assert found == pytest.approx((share, *wilson(share, 64, freedom=7)))


@pytest.mark.parametrize("hit", [True, False])
def test_the_effective_number_of_equal_points_follows_from_latent_numbers(hit: bool) -> None:
    """The interval of Clopper and Pearson for n equal values ends at the n-th root of 2.5%."""
    points = grid(10, 7)
    model = points["model.nodes"].to_numpy()
    random = np.random.default_rng(9)
    latent = random.normal(0, 0.3, 10)[model] + random.normal(0, 1, len(points))
    levels = shared_levels(points)

    found = crossed_share(np.full(70, hit), levels, latent=latent)

    effective_number = latent.var(ddof=1) / crossed_variance(latent, levels).variance
    end = 0.025 ** (1 / effective_number)

    assert 10 < effective_number < 70
    assert found == pytest.approx((1.0, end, 1.0) if hit else (0.0, 0.0, 1 - end))


BALANCED = np.tile([1.0, -1.0], 40)


@pytest.mark.parametrize(
    ("unit", "latent", "effective_number"),
    [
        pytest.param("crossed", None, 8, id="no latent numbers, crossed"),
        pytest.param("crossed", np.full(80, 3.0), 8, id="equal latent numbers, crossed"),
        pytest.param("model", None, 10, id="no latent numbers, models"),
        pytest.param("model", BALANCED, 80, id="latent numbers with equal means of models"),
        pytest.param(
            "model", BALANCED + np.arange(80) / 1e3, 80, id="at most the number of points"
        ),
        pytest.param("point", None, 80, id="independent points"),
    ],
)
def test_equal_points_have_an_effective_number(
    unit: Unit, latent: np.ndarray | None, effective_number: float
) -> None:
    found = crossed_share(np.ones(80), shared_levels(grid(10, 8), unit), latent=latent)

    assert found.low == pytest.approx(0.025 ** (1 / effective_number))


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_quantile_has_woodruffs_interval(share: float) -> None:
    """The shares of points below the ends are the ends of Wilson's interval."""
    points = grid(14, 9)
    model = points["model.nodes"].to_numpy()
    random = np.random.default_rng(10)
    values = random.normal(0, 0.7, 14)[model] + random.normal(0, 1, len(points))
    levels = shared_levels(points)

    found = crossed_quantile(values, levels, share)

    below = values <= np.quantile(values, share)
    factors = [*points.to_numpy().T, np.arange(len(points))]
    ones = np.ones(len(points))
    variance, freedom = brute_force(ones[:, None], below.astype(float), factors, ones, 0)
    effective = below.mean() * (1 - below.mean()) / variance
    least, most = wilson(share, effective, freedom)
    ordered = np.sort(values)

    assert found.value == np.quantile(values, share)
    assert found.low == ordered[math.floor(least * len(values))]
    assert found.high == ordered[math.ceil(most * len(values))]


def test_an_extreme_quantile_of_few_models_has_an_open_interval() -> None:
    """All points of a model are equal, and 8 models are too few for one end of the interval."""
    points = grid(8, 6)
    values = points["model.nodes"].to_numpy(dtype=float)
    levels = shared_levels(points, "model")

    lower = crossed_quantile(values, levels, 0.1)
    upper = crossed_quantile(values, levels, 0.9)

    assert lower.low == -math.inf
    assert 0.0 < lower.high < 7.0
    assert upper.high == math.inf
    assert 0.0 < upper.low < 7.0


def test_a_quantile_that_no_point_exceeds_has_the_interval_of_the_smallest_factor() -> None:
    """All points are at most the quantile, so the share of points below it has no variance."""
    points = grid(40, 6)
    distinct = points["model.nodes"] + 40 * points["batch_size"]
    values = np.minimum(distinct, 80).to_numpy(dtype=float)

    found = crossed_quantile(values, shared_levels(points), 0.5)

    least, _ = wilson(0.5, 6, freedom=5)

    assert found.value == 80.0
    assert found.low == math.floor(least * 240)


def test_the_upper_end_of_a_quantile_may_be_the_largest_value() -> None:
    """With three models, the upper end is at a share of 99.3%, which is the 120th value."""
    points = grid(3, 40)
    values = (3 * points["batch_size"] + points["model.nodes"]).to_numpy(dtype=float)

    found = crossed_quantile(values, shared_levels(points, "model"), 0.96)

    assert found.high == 119.0


def test_quantiles_are_medians_by_default() -> None:
    points = grid(8, 6)
    values = np.random.default_rng(11).normal(0, 1, 48)

    assert quantile_interval(values).value == np.median(values)
    assert crossed_quantile(values, shared_levels(points)).value == np.median(values)
    assert all(map(math.isnan, crossed_quantile([], shared_levels(grid(0, 0)))))


def factor_sizes(levels: Levels) -> tuple[list[int], str]:
    return [len(set(code)) for code in levels.codes], levels.description


@pytest.mark.parametrize(
    ("points", "unit", "axes", "sizes", "description"),
    [
        pytest.param(grid(1, 1), "crossed", 0, [1], "1 point", id="one point"),
        pytest.param(grid(2, 1), "crossed", 0, [2], "2 models", id="models"),
        pytest.param(grid(1, 2), "crossed", 0, [2], "2 batch sizes", id="batch sizes"),
        pytest.param(grid(2, 5), "crossed", 0, [2], "2 models", id="few batch sizes"),
        pytest.param(
            grid(2, 6), "crossed", 0, [2, 6], "2 models and 6 batch sizes", id="many batch sizes"
        ),
        pytest.param(grid(2, 6), "model", 0, [2], "2 models", id="models as the sample"),
        pytest.param(grid(2, 6), "point", 0, [12], "12 points", id="points as the sample"),
        pytest.param(
            grid(2, 5), "crossed", 2, [2, 5], "2 models", id="values of a batch size as a factor"
        ),
        pytest.param(grid(2, 5), "crossed", 6, [2], "2 models", id="too few values of an axis"),
        pytest.param(grid(1, 5), "crossed", 2, [5], "5 batch sizes", id="an axis of one model"),
        pytest.param(
            grid(2, 6),
            "crossed",
            2,
            [2, 6],
            "2 models and 6 batch sizes",
            id="an axis that is a factor already",
        ),
    ],
)
def test_levels_follow_from_the_points_and_the_unit(
    points: pd.DataFrame, unit: Unit, axes: int, sizes: list[int], description: str
) -> None:
    found = shared_levels(points, unit, axes)

    assert factor_sizes(found) == (sizes, description)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        pytest.param(3, [12, 3, 4], id="both hyperparameters"),
        pytest.param(4, [12, 4], id="one hyperparameter with enough values"),
        pytest.param(5, [12], id="no hyperparameter with enough values"),
    ],
)
def test_values_of_hyperparameters_are_factors_if_they_are_numerous(
    axes: int, sizes: list[int]
) -> None:
    """Three values of layers and four of nodes each occur in several models."""
    index = pd.MultiIndex.from_product([range(3), range(4)], names=["model.layers", "model.nodes"])
    points = index.to_frame(index=False).assign(family="fc", batch_size=64)

    assert factor_sizes(shared_levels(points, axes=axes))[0] == sizes


def test_a_hyperparameter_with_a_value_per_model_is_not_a_factor() -> None:
    points = grid(8, 1).assign(**{"model.layers": [0, 0, 1, 1, 2, 2, 3, 4]})

    assert factor_sizes(shared_levels(points, axes=5))[0] == [8]
    assert factor_sizes(shared_levels(points.head(6), axes=3))[0] == [6, 3]
