"""Products take one thread while a model is fitted, and as many as before afterwards."""

from __future__ import annotations

import numpy as np
import threadpoolctl

from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import one_thread
from paradnn.forecast.table import PastRuns
from tests.forecast.planted import Machine, grid, planned_table, rates


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_holds_as_long_as_it_is_asked_for() -> None:
    with threadpoolctl.threadpool_limits(3, "blas"):
        assert threads() == {3}
        with one_thread():
            assert threads() == {1}
        assert threads() == {3}
        assert one_thread()(threads)() == {1}


def test_a_fit_leaves_the_threads_as_they_were() -> None:
    random = np.random.default_rng(0)
    points = grid(random, 12)
    with threadpoolctl.threadpool_limits(3, "blas"):
        model = StepTimeModel.fit(PastRuns.of(Machine(random).session("one", points), rates))
        model.predict(planned_table(points))
        assert threads() == {3}
