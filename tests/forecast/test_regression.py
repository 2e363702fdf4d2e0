"""The regression on planted laws: recovered where there are data, honest where there are none."""

import numpy as np
import pytest
import threadpoolctl

from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Array, Columns, Regression, one_thread
from paradnn.forecast.table import PastRuns
from tests.forecast.planted import Machine, grid, planned_table, rates


def columns(features: Array, prior: Array) -> Columns:
    """Columns that are named by their number."""
    return {index: (features[:, index], float(spread)) for index, spread in enumerate(prior)}


def test_a_law_is_recovered_in_spite_of_runs_that_were_disturbed() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack([np.ones(400), random.normal(0, 1, (400, 2))])
    law = np.array([0.5, -0.3, 0.8])
    values = features @ law + 0.05 * random.standard_normal(400)
    values[::20] += 3.0
    line = Regression(columns(features, np.ones(3)), values).predict(columns(np.eye(3), np.ones(3)), 3)
    assert line.mean == pytest.approx(law, abs=0.02)
    plain = np.linalg.lstsq(features, values, rcond=None)[0]
    assert abs(plain[0] - law[0]) > 0.1  # what least squares make of it


@pytest.mark.parametrize("count", [4, 15, 60])
def test_intervals_cover_as_often_as_they_say(count: int) -> None:
    """Coefficients drawn from the prior, data from them: 95% intervals of new values hold 95% of these."""
    random = np.random.default_rng(count)
    prior, inside = np.array([1.0, 0.5, 0.3]), []
    for _ in range(300):
        law = prior * random.standard_normal(3)
        features = np.column_stack([np.ones(count + 1), random.normal(0, 1, (count + 1, 2))])
        values = features @ law + 0.2 * random.standard_normal(count + 1)
        line = Regression(columns(features[:-1], prior), values[:-1])
        draws = line.predict(columns(features[-1:], prior), 1).draws(400, random)
        low, high = np.quantile(draws[0], [0.025, 0.975])
        inside.append(low <= values[-1] <= high)
    assert 0.92 <= np.mean(inside) <= 0.985


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_a_fit_takes_one_thread_and_leaves_them_as_they_were() -> None:
    random = np.random.default_rng(0)
    points = grid(random, 12)
    with threadpoolctl.threadpool_limits(3, "blas"):
        with one_thread():
            assert threads() == {1}
        assert one_thread()(threads)() == {1}
        runs = PastRuns.of(Machine(random).session("one", points), rates)
        model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
        model.predict(planned_table(points))
        assert threads() == {3}
