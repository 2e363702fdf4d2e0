"""Variances of coefficients over points that share levels, against a jackknife by brute force."""

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
    """Return 8 models at 6 to 7 of 7 batch sizes."""
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
    """Return the variance of a coefficient by omitting each level in turn.

    The changes are linear in the response. So the jackknife of a factor contains known shares of
    the variances of all factors, which the weights make right on average. The degrees of freedom of
    a part are those of a quadratic form under effects of its factor (Bell and McCaffrey 2002). With
    several factors the variance is at least the variance of the last factor, the points.
    """
    whole = np.linalg.pinv(design)[coefficient]
    effects = [sizes[:, None] * indicators(code) for code in factors]
    parts = []
    degrees = []
    contained = []
    for code, own in zip(factors, effects, strict=True):
        changes = []
        for level in np.unique(code):
            is_kept = code != level
            without = np.zeros(len(code))
            without[is_kept] = np.linalg.pinv(design[is_kept])[coefficient]
            changes.append(without - whole)
        scale = (len(changes) - 1) / len(changes)
        rows = np.array(changes)
        parts.append(scale * np.sum((rows @ response) ** 2))
        contained.append([scale * np.sum((rows @ each) ** 2) for each in effects])
        covariance = rows @ own @ own.T @ rows.T
        degrees.append(np.trace(covariance) ** 2 / np.trace(covariance @ covariance))
    wanted = [np.sum((whole @ each) ** 2) for each in effects]
    weighted = np.linalg.solve(np.transpose(contained), wanted) * parts
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
    "effect", [pytest.param(1.0, id="effects of levels"), pytest.param(0.0, id="points alone")]
)
def test_a_mean_has_the_variance_of_a_jackknife_over_each_factor(
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


def test_points_without_common_levels_scatter_as_a_sample() -> None:
    values = np.random.default_rng(2).normal(0, 1, 12)

    found = crossed_variance(values, shared_levels(grid(12, 1)))

    assert found == pytest.approx((stats.sem(values) ** 2, 11.0))


@pytest.mark.parametrize("coefficient", [0, 1, 2])
def test_coefficients_have_the_variance_of_a_jackknife_over_each_factor(coefficient: int) -> None:
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


def test_one_factor_alone_is_its_jackknife() -> None:
    """With models as the only sample, the variance is that of their means on a complete grid."""
    values = np.random.default_rng(4).normal(0, 1, (9, 4))

    found = crossed_variance(values.ravel(), shared_levels(grid(9, 4), "model"))

    assert found == pytest.approx((stats.sem(values.mean(axis=1)) ** 2, 8.0))


def test_a_slope_that_effects_of_models_do_not_move_scatters_between_models() -> None:
    """On a complete grid the slope is the mean of the slopes of the models."""
    points = grid(9, 4)
    model, batch = points.to_numpy().T
    values = np.random.default_rng(12).normal(0, 1, 36)
    design = np.column_stack([np.ones(36), batch])

    found = crossed_variances(design, values, shared_levels(points, "model"))

    slopes = [np.polyfit(np.arange(4), values[model == each], 1)[0] for each in range(9)]
    assert found.variance[1] == pytest.approx(stats.sem(slopes) ** 2)
    assert found.freedom[1] == 8.0


def test_models_at_one_batch_size_each_have_effects_of_batch_sizes_and_points() -> None:
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
    jackknife = [values[model != each].mean() - values.mean() for each in range(7)]
    contained = [
        [
            (each != g) * 16 * weights[each] / (16 - 16 * weights[g]) - weights[each]
            for each in range(7)
        ]
        for g in range(7)
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

    own = stats.sem(logs) ** 2
    variance = own + 0.002
    freedom = variance**2 / (own**2 / 19 + 0.002**2 / 4)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert np.log(found) == pytest.approx([logs.mean(), logs.mean() - half, logs.mean() + half])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([Component(2.0, 5.0)], (2.0, 5.0), id="one"),
        pytest.param([Component(2.0, 5.0), Component(1.0, 2.0)], (3.0, 9 / 1.3), id="two"),
        pytest.param([Component(0.0, 5.0), Component(0.0, 2.0)], (0.0, 2.0), id="no variance"),
        pytest.param([], (0, math.inf), id="none"),
    ],
)
def test_variances_add_up(parts: list[Component], expected: tuple[float, float]) -> None:
    assert sum_components(parts) == pytest.approx(expected)


def test_a_ratio_of_sums_is_a_weighted_regression() -> None:
    """For independent points the variance is the jackknife of sum(above) / sum(below).

    Both terms of the first point are 0.
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
    half = stats.t.ppf(0.975, expected.freedom) * math.sqrt(expected.variance)
    assert found == pytest.approx((ratio, ratio - half, ratio + half))


def test_a_ratio_to_zero_is_unknown() -> None:
    levels = shared_levels(grid(6, 1))

    assert all(map(math.isnan, crossed_ratio(np.ones(6), np.zeros(6), levels)))


@pytest.mark.parametrize(
    ("points", "is_known"),
    [pytest.param(5, False, id="too few"), pytest.param(6, True, id="fewest")],
)
def test_six_points_have_an_interval(points: int, is_known: bool) -> None:
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
    half = t * math.sqrt(share * (1 - share) / count + (t / (2 * count)) ** 2) / (1 + t**2 / count)
    return middle - half, middle + half


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_a_share_has_wilsons_interval_of_the_effective_number_of_points(level: float) -> None:
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
        pytest.param([3] * 8, id="models agree but for rounding"),
    ],
)
def test_points_are_worth_no_more_than_their_number(hits_of_models: list[int]) -> None:
    points = grid(8, 8)
    hits = points["batch_size"].to_numpy() < np.repeat(hits_of_models, 8)
    levels = shared_levels(points, "model")

    found = crossed_share(hits, levels)

    share = sum(hits_of_models) / 64
    assert found == pytest.approx((share, *wilson(share, 64, freedom=7)))


@pytest.mark.parametrize("hit", [True, False])
def test_points_that_all_agree_are_worth_their_latent_numbers(hit: bool) -> None:
    """Clopper and Pearson's interval of n equal values ends at the n-th root of 2.5%."""
    points = grid(10, 7)
    model = points["model.nodes"].to_numpy()
    random = np.random.default_rng(9)
    latent = random.normal(0, 0.3, 10)[model] + random.normal(0, 1, len(points))
    levels = shared_levels(points)

    found = crossed_share(np.full(70, hit), levels, latent=latent)

    worth = latent.var(ddof=1) / crossed_variance(latent, levels).variance
    end = 0.025 ** (1 / worth)
    assert 10 < worth < 70
    assert found == pytest.approx((1.0, end, 1.0) if hit else (0.0, 0.0, 1 - end))


BALANCED = np.tile([1.0, -1.0], 40)


@pytest.mark.parametrize(
    ("unit", "latent", "worth"),
    [
        pytest.param("crossed", None, 8, id="unknown numbers are worth the batch sizes"),
        pytest.param("crossed", np.full(80, 3.0), 8, id="equal numbers are worth as little"),
        pytest.param("model", None, 10, id="unknown numbers are worth the models"),
        pytest.param("model", BALANCED, 80, id="models with one mean are worth all points"),
        pytest.param(
            "model", BALANCED + np.arange(80) / 1e3, 80, id="numbers are worth at most all points"
        ),
        pytest.param("point", None, 80, id="independent points"),
    ],
)
def test_points_that_all_agree_are_worth_a_number_of_independent_ones(
    unit: Unit, latent: np.ndarray | None, worth: float
) -> None:
    found = crossed_share(np.ones(80), shared_levels(grid(10, 8), unit), latent=latent)

    assert found.low == pytest.approx(0.025 ** (1 / worth))


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_quantile_has_woodruffs_interval(share: float) -> None:
    """The shares of points below its ends are Wilson's interval of the share below the quantile."""
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


def test_an_extreme_quantile_of_few_models_has_no_end() -> None:
    """All points of a model are equal, so 8 models show no end of the 10th or 90th percentile."""
    points = grid(8, 6)
    values = points["model.nodes"].to_numpy(dtype=float)
    levels = shared_levels(points, "model")

    lower = crossed_quantile(values, levels, 0.1)
    upper = crossed_quantile(values, levels, 0.9)

    assert lower.low == -math.inf
    assert 0.0 < lower.high < 7.0
    assert upper.high == math.inf
    assert 0.0 < upper.low < 7.0


def test_a_quantile_that_no_point_exceeds_has_the_interval_of_the_fewest_levels() -> None:
    """All points are at most the quantile, so their shares below it do not depend on the model."""
    points = grid(40, 6)
    distinct = points["model.nodes"] + 40 * points["batch_size"]
    values = np.minimum(distinct, 80).to_numpy(dtype=float)

    found = crossed_quantile(values, shared_levels(points), 0.5)

    least, _ = wilson(0.5, 6, freedom=5)
    assert found.value == 80.0
    assert found.low == math.floor(least * 240)


def test_the_upper_end_of_a_quantile_may_be_the_largest_value() -> None:
    """Three models with nearly equal shares allow 99.3% below the quantile: the 120th value."""
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
            grid(2, 6), "crossed", 2, [2, 6], "2 models and 6 batch sizes", id="a factor only once"
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
        pytest.param(4, [12, 4], id="one has enough values"),
        pytest.param(5, [12], id="none has enough values"),
    ],
)
def test_values_of_hyperparameters_are_factors(axes: int, sizes: list[int]) -> None:
    """3 layers x 4 nodes; each value occurs in several models."""
    index = pd.MultiIndex.from_product([range(3), range(4)], names=["model.layers", "model.nodes"])
    points = index.to_frame(index=False).assign(family="fc", batch_size=64)

    assert factor_sizes(shared_levels(points, axes=axes))[0] == sizes


def test_a_hyperparameter_that_numbers_the_models_is_no_factor() -> None:
    points = grid(8, 1).assign(**{"model.layers": [0, 0, 1, 1, 2, 2, 3, 4]})

    assert factor_sizes(shared_levels(points, axes=5))[0] == [8]
    assert factor_sizes(shared_levels(points.head(6), axes=3))[0] == [6, 3]
