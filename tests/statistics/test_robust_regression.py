"""Robust regression: prior, limit with much data, outliers, and distributions of predictions."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from threadpoolctl import threadpool_info

from paradnn.statistics.robust_regression import Prediction, RobustRegression, one_thread


def columns(x: np.ndarray, prior: float = 10.0) -> dict[str, tuple[np.ndarray, float]]:
    return {"level": (np.ones(len(x)), prior), "slope": (x, prior)}


def test_linear_algebra_uses_one_thread() -> None:
    with one_thread():
        pools = threadpool_info()

    assert {pool["num_threads"] for pool in pools if pool["user_api"] == "blas"} == {1}


def test_without_observations_a_prediction_is_the_prior() -> None:
    """The prior of the error is 0.2 with 4 degrees of freedom; coefficients have a prior of 3."""
    empty = np.zeros(0)
    x = np.array([0.0, 2.0])

    found = RobustRegression(columns(empty, 3.0), empty).predict(columns(x, 3.0), 2)

    assert found.mean.tolist() == [0.0, 0.0]
    assert found.spread == pytest.approx(np.sqrt([9 + 0.04, 9 + 9 * 4 + 0.04]))
    assert found.freedom == 4.0

    half_width = stats.t.ppf(0.975, 4) * found.spread
    low, high = found.interval()

    assert high == pytest.approx(half_width)
    assert low == pytest.approx(-half_width)


def test_much_data_overrides_the_prior() -> None:
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, 2000)
    y = 0.5 + 2 * x + random.normal(0, 0.3, 2000)

    model = RobustRegression(columns(x), y)

    expected = sm.OLS(y, np.column_stack([np.ones(2000), x])).fit()

    assert list(model.coefficients.values()) == pytest.approx(expected.params, abs=0.01)
    assert model.spread == pytest.approx(0.3, rel=0.05)
    assert model.freedom == 2004.0


def test_a_few_outliers_do_not_change_the_line() -> None:
    random = np.random.default_rng(2)
    x = np.linspace(-1, 1, 40)
    y = 0.5 + 2 * x + random.normal(0, 0.02, 40)
    y[:3] += 5.0

    model = RobustRegression(columns(x), y)

    assert list(model.coefficients.values()) == pytest.approx([0.5, 2.0], abs=0.05)
    assert model.spread < 1.0


def test_observations_with_half_weight_count_half() -> None:
    random = np.random.default_rng(3)
    x = random.uniform(-1, 1, 20)
    y = x + random.normal(0, 0.1, 20)

    full_weight = RobustRegression(columns(x), y)
    half_weight = RobustRegression(columns(np.tile(x, 2)), np.tile(y, 2), np.full(40, 0.5))

    assert half_weight.freedom == full_weight.freedom == 24.0
    assert list(half_weight.coefficients.values()) == pytest.approx(
        list(full_weight.coefficients.values())
    )
    assert half_weight.spread == pytest.approx(full_weight.spread)


def test_the_prediction_of_an_unknown_group_adds_the_prior_of_its_column() -> None:
    x = np.linspace(-1, 1, 200)
    model = RobustRegression(columns(x), 3 * x)
    new = columns(np.array([0.5, 0.5])) | {"family": (np.array([0.0, 1.0]), 0.7)}

    found = model.predict(new, 2)

    variance_of_known, variance_of_unknown = found.spread**2

    assert variance_of_unknown - variance_of_known == pytest.approx(0.7**2)
    assert found.mean == pytest.approx([1.5, 1.5], abs=1e-3)


def test_a_missing_column_adds_nothing() -> None:
    x = np.linspace(-1, 1, 50)
    model = RobustRegression(columns(x), 3 * x + 1)

    found = model.predict({"level": (np.ones(1), 10.0)}, 1)

    assert found.mean == pytest.approx([1.0], abs=1e-3)


def prediction(noise: float = 0.0, freedom: float = 1e6) -> Prediction:
    """Return a prediction of three values.

    The first two share an error of coefficients, and the last two share a group.
    """
    return Prediction(
        mean=np.array([1.0, 2.0, 3.0]),
        root=np.array([[0.3, 0.0], [0.3, 0.4], [0.0, 0.0]]),
        own=np.array([0.04, 0.09, 0.09]),
        group=np.array([0, 1, 1]),
        noise=noise,
        freedom=freedom,
    )


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_draws_have_the_stated_covariance(noise: float) -> None:
    found = prediction(noise)

    draws = found.draws(200_000, np.random.default_rng(4))

    covariance = found.root @ found.root.T + np.diag(found.own + noise**2)
    covariance[1, 2] += 0.09
    covariance[2, 1] += 0.09

    assert draws.mean(axis=1) == pytest.approx(found.mean, abs=0.01)
    assert np.cov(draws) == pytest.approx(covariance, abs=0.01)
    assert found.spread == pytest.approx(np.sqrt(np.diag(covariance)))


def test_draws_from_few_degrees_of_freedom_scatter_more() -> None:
    """The errors are multiplied by the square root of d / chi-square(d), limited to 2."""
    draws = prediction(freedom=4.0).draws(200_000, np.random.default_rng(5))

    factors = np.minimum(4 / np.random.default_rng(6).chisquare(4, 200_000), 4)
    expected = (0.09 + 0.04) * factors.mean()

    assert draws[0].var() == pytest.approx(expected, rel=0.03)
