"""Shrunk variances and frequencies of a rarer level, for planted data and as invariants."""

import numpy as np
import pytest
from scipy import stats

from paradnn.statistics.dependence import MINIMUM_POINTS
from paradnn.statistics.variances import moderate_variances, rarer_level


def sample_variances(scale: float, seed: int, points: int = 40) -> np.ndarray:
    """Return sample variances with 4 degrees of freedom whose true variance is `scale`."""
    return scale * np.random.default_rng(seed).chisquare(4, points) / 4


def test_shrunk_variances_have_the_unit_of_the_sample_variances() -> None:
    variances = sample_variances(1.0, 1)
    degrees = np.full(len(variances), 4.0)

    found = moderate_variances(variances, degrees)
    scaled = moderate_variances(100 * variances, degrees)

    assert scaled.variance == pytest.approx(100 * found.variance)
    assert scaled.freedom == pytest.approx(found.freedom)


def test_shrunk_variances_are_between_the_sample_and_a_common_variance() -> None:
    variances = sample_variances(2.0, 2)

    found = moderate_variances(variances, np.full(len(variances), 4.0))

    order = np.argsort(variances)

    assert (np.diff(found.variance[order]) > 0).all()

    lowest, highest = order[[0, -1]]
    assert variances[lowest] < found.variance[lowest] < 2.0
    assert 2.0 < found.variance[highest] < variances[highest]

    # The common variance has the weight d0 / (d0 + d), so distances shrink by d / (d0 + d).
    span = found.variance[highest] - found.variance[lowest]
    sample_span = variances[highest] - variances[lowest]

    assert span / sample_span == pytest.approx(4 / found.freedom[0])


@pytest.mark.parametrize(
    "spread",
    [pytest.param(0.0, id="equal true variances"), pytest.param(1.5, id="unequal true variances")],
)
def test_the_prior_matches_mean_and_variance_of_the_logarithms(spread: float) -> None:
    """The logarithm of an F(d, d0) variate is a difference of two log-gamma variates."""
    degrees = np.tile([2.0, 4.0, 9.0], 20)
    random = np.random.default_rng(11)
    variances = random.chisquare(degrees) / degrees * np.exp(spread * random.normal(size=60))

    found = moderate_variances(variances, degrees)

    freedom = found.freedom[0] - degrees[0]
    prior = stats.loggamma(freedom / 2)
    _, variance, kurtosis = stats.loggamma(degrees / 2).stats("mvk")
    logs = np.log(variances) - stats.loggamma(degrees / 2).mean() + np.log(degrees / 2)
    fourth = np.mean(kurtosis * variance**2)
    error = np.sqrt((fourth + 2 * variance.mean() ** 2) / 60)

    assert prior.var() == pytest.approx(max(logs.var(ddof=1) - variance.mean(), 0.0) + error)

    common = np.exp(logs.mean() + prior.mean()) / (freedom / 2)
    shrunk = (freedom * common + degrees * variances) / (freedom + degrees)

    assert found.variance == pytest.approx(shrunk)
    assert found.freedom == pytest.approx(freedom + degrees)


def test_a_sample_variance_of_zero_is_shrunk_to_a_positive_one() -> None:
    variances = np.append(sample_variances(1.0, 3), 0.0)

    found = moderate_variances(variances, np.full(len(variances), 4.0))

    assert 0.3 < found.variance[-1] < 1.0
    assert found.freedom[-1] == found.freedom[0]


@pytest.mark.parametrize("variance", [np.nan, 0.7])
def test_points_without_degrees_of_freedom_are_unchanged(variance: float) -> None:
    variances = np.append(sample_variances(1.0, 4), variance)
    degrees = np.append(np.full(40, 4.0), 0.0)

    found = moderate_variances(variances, degrees)

    without = moderate_variances(variances[:40], degrees[:40])

    assert found.variance == pytest.approx(np.append(without.variance, variance), nan_ok=True)
    assert found.freedom == pytest.approx(np.append(without.freedom, 0.0))


def test_nearly_equal_variances_share_their_degrees_of_freedom() -> None:
    variances = np.linspace(1.0, 1.001, 8)

    found = moderate_variances(variances, np.full(8, 2.0))

    assert (found.freedom <= 16.0).all()
    assert found.variance == pytest.approx(np.full(8, np.median(variances)), rel=0.5)


def test_degrees_of_freedom_are_at_most_the_sum_over_points_that_vary() -> None:
    """The ninth point has many equal runs. The eight others have 16 degrees of freedom together."""
    variances = np.append(sample_variances(1.0, 14, 8), 0.0)

    found = moderate_variances(variances, np.append(np.full(8, 2.0), 40.0))

    assert found.freedom[-1] == 16.0
    assert (found.freedom[:-1] < 16.0).all()


@pytest.mark.parametrize(
    ("points", "is_shrunk"),
    [
        pytest.param(MINIMUM_POINTS - 1, False, id="one point too few"),
        pytest.param(MINIMUM_POINTS, True, id="just enough points"),
    ],
)
def test_few_positive_variances_are_unchanged(points: int, is_shrunk: bool) -> None:
    variances = np.append(sample_variances(1.0, 5, points), [0.0, 0.0])

    found = moderate_variances(variances, np.full(points + 2, 4.0))

    assert (found.variance[-1] > 0) == is_shrunk


def test_values_of_a_hyperparameter_with_unequal_scatter_are_shrunk_separately() -> None:
    parts = [sample_variances(1.0, 6), sample_variances(100.0, 7)]
    axis = np.repeat([1, 2], 40)
    degrees = np.full(80, 4.0)

    found = moderate_variances(np.concatenate(parts), degrees, [np.zeros(80), axis])

    separate = [moderate_variances(part, degrees[:40]) for part in parts]

    assert found.variance == pytest.approx(np.concatenate([part.variance for part in separate]))
    assert found.freedom == pytest.approx(np.concatenate([part.freedom for part in separate]))


@pytest.mark.parametrize(
    ("axis", "scale_of_last_five"),
    [
        pytest.param(np.tile([1, 2], 40), 1.0, id="equal scatter"),
        pytest.param(
            np.append(np.ones(75), np.full(5, 2)), 100.0, id="a value with too few points"
        ),
    ],
)
def test_points_with_equal_scatter_or_rare_values_are_shrunk_together(
    axis: np.ndarray, scale_of_last_five: float
) -> None:
    variances = np.concatenate([sample_variances(1.0, 8), sample_variances(1.0, 9)])
    variances[75:] *= scale_of_last_five
    degrees = np.full(80, 4.0)

    found = moderate_variances(variances, degrees, [axis])

    assert found.variance == pytest.approx(moderate_variances(variances, degrees).variance)


@pytest.mark.parametrize(("chance", "seed"), [(0.1, 1), (0.3, 3)])
def test_the_frequency_of_a_planted_rarer_level_is_found(chance: float, seed: int) -> None:
    """One standard error is added, so the estimate is at least the truth in most draws."""
    random = np.random.default_rng(seed)
    runs = random.normal(0, 0.01, (500, 4)) + 0.5 * (random.random((500, 4)) < chance)

    rarer, span = rarer_level(list(runs))

    assert rarer == pytest.approx(chance, abs=0.08)
    assert span == pytest.approx(np.ptp(runs, axis=1).max())


def test_points_with_two_runs_have_no_levels() -> None:
    pairs = [np.array([0.0, 1.0])] * 100

    assert rarer_level(pairs) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("points", "has_levels"),
    [
        pytest.param(MINIMUM_POINTS - 1, False, id="one point too few"),
        pytest.param(MINIMUM_POINTS, True, id="just enough points"),
    ],
)
def test_few_points_have_no_levels(points: int, has_levels: bool) -> None:
    runs = [np.array([0.0, 0.0, 1.0])] * points

    assert rarer_level(runs) == ((0.5, 1.0) if has_levels else (0.0, 0.0))


def test_points_whose_runs_agree_exactly_count_as_one_level() -> None:
    random = np.random.default_rng(3)
    exact = [np.zeros(4)] * 400
    mixed = [np.array([0.0, 0.0, 0.0, 1.0]) + random.normal(0, 1e-3, 4) for _ in range(100)]

    rarer, _ = rarer_level([*exact, *mixed])

    # A fifth of the points have two levels, so 1 - (p^4 + (1 - p)^4) = 0.2, and p = 0.055.
    assert rarer < 0.1


@pytest.mark.parametrize(
    ("exact", "share_on_one_level"),
    [
        # Twice the share of points without two levels, less a standard error of 1 / sqrt(100).
        pytest.param(30, 2 * 0.3 - 0.1, id="some points have one level"),
        pytest.param(0, (1 / 4 + 1 / 16) / 2, id="all points have two levels"),
        pytest.param(60, 1.0, id="few points have two levels"),
    ],
)
def test_the_frequency_of_the_rarer_level_follows_from_points_with_one_level(
    exact: int, share_on_one_level: float
) -> None:
    runs = [np.zeros(3), np.zeros(5)] * (exact // 2)
    runs += [np.append(np.zeros(2), 1.0), np.append(np.zeros(4), 1.0)] * (50 - exact // 2)

    rarer, span = rarer_level(runs)

    shares = [rarer**size + (1 - rarer) ** size for size in (3, 5)]

    assert np.mean(shares) == pytest.approx(share_on_one_level)
    assert span == 1.0


def test_many_points_are_represented_by_a_sample() -> None:
    random = np.random.default_rng(4)
    runs = random.normal(0, 0.01, (3000, 3)) + 0.5 * (random.random((3000, 3)) < 0.2)

    rarer, span = rarer_level(list(runs))

    assert rarer == pytest.approx(0.2, abs=0.07)
    assert span == pytest.approx(np.ptp(runs[::6], axis=1).max())


def test_a_value_with_just_enough_points_has_its_own_scatter() -> None:
    parts = [sample_variances(1.0, 12, MINIMUM_POINTS), sample_variances(1e4, 13, MINIMUM_POINTS)]
    axis = np.repeat([1, 2], MINIMUM_POINTS)
    degrees = np.full(2 * MINIMUM_POINTS, 4.0)

    found = moderate_variances(np.concatenate(parts), degrees, [axis])

    separate = [moderate_variances(part, degrees[:MINIMUM_POINTS]) for part in parts]

    assert found.variance == pytest.approx(np.concatenate([part.variance for part in separate]))
