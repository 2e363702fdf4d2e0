"""The Gaussian process and its regression, compared with explicit formulas on planted surfaces.

Operation times are compared with planted times.
"""

from dataclasses import replace

import numpy as np
import pytest
import threadpoolctl

from paradnn.families import make_model
from paradnn.families.operations import Operation, elementwise_operation
from paradnn.forecast.operation_times import OperationTimes
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.process import JITTER, Inputs, Process
from paradnn.forecast.table import RunHistory
from paradnn.statistics.robust_regression import Array, Columns, RobustRegression, one_thread
from tests.forecast.planted import Machine, grid, planned_table, rates


def inputs(points: Array, words: list[str] | None = None, steps: list[int] | None = None) -> Inputs:
    """Return points (n, k) with columns for the level, the first coordinate and a category."""
    count = len(points)
    columns = {"level": (np.ones(count), 2.0), "slope": (points[:, 0], 1.0)}
    coordinates = {**dict(enumerate(points.T)), "word": np.array(words or ["one"] * count)}
    return Inputs(np.full(count, 0.5), columns, coordinates, steps or list(range(count)))


def surface(points: Array) -> Array:
    return np.asarray(
        1.0 + 0.5 * points[:, 0] + 0.4 * np.sin(2 * points[:, 0]) * np.cos(1.5 * points[:, 1])
    )


def fitted(random: np.random.Generator, count: int, noise: float = 0.02) -> Process:
    points = random.uniform(-2, 2, (count, 2))
    values = surface(points) + noise * random.standard_normal(count)
    return Process.fit(inputs(points), values, np.full(count, noise), noise)


def textbook(process: Process, points: Inputs) -> tuple[Array, Array]:
    """Return mean and variance without a run's noise, by Rasmussen and Williams (2.25, 2.26)."""
    known = process.inputs
    scales = process.scales

    def prior(one: Inputs, other: Inputs) -> Array:
        line = np.zeros((len(one), len(other)))
        for name, (column, spread) in one.columns.items():
            line += spread**2 * np.outer(column, other.columns[name][0])
        squares = np.zeros((len(one), len(other)))
        for name, length in scales.lengths.items():
            apart = one.coordinates[name][:, None] - other.coordinates[name]
            squares += (apart / length) ** 2
        root = np.sqrt(3 * squares)
        return np.asarray(line + scales.smooth**2 * (1 + root) * np.exp(-root))

    own = scales.nugget_variance(known.coordinates) * process.disturbed
    inverse = np.linalg.inv(
        prior(known, known) + np.diag(own + process.noise) + 1e-12 * np.eye(len(known))
    )
    across = prior(points, known)
    mean = points.base + across @ inverse @ process.values
    variance = np.diag(prior(points, points) - across @ inverse @ across.T)
    return mean, process.allowance * (variance + scales.nugget_variance(points.coordinates))


def test_predictions_are_the_textbooks() -> None:
    random = np.random.default_rng(0)
    process = fitted(random, 40)
    new = replace(inputs(random.uniform(-2, 2, (30, 2))), steps=list(range(100, 130)))
    found, (mean, variance) = process.predict(new), textbook(process, new)
    assert found.mean == pytest.approx(mean, abs=1e-3)
    assert found.spread**2 - found.noise**2 == pytest.approx(variance, rel=0.02, abs=20 * JITTER)


def test_fast_leave_one_out_errors_equal_refitting() -> None:
    process = fitted(np.random.default_rng(1), 25)
    for place in (0, 7, 24):
        others = np.delete(np.arange(25), place)
        without = replace(
            process,
            inputs=process.inputs.rows(others),
            values=process.values[others],
            noise=process.noise[others],
            disturbed=process.disturbed[others],
        )
        one = process.inputs.rows(np.array([place]))
        mean, _ = textbook(without, one)
        assert process.leave_one_out.error[place] == pytest.approx(
            process.values[place] + 0.5 - mean[0], abs=2e-3
        )


@pytest.mark.parametrize("count", [25, 60])
def test_a_surface_is_learned_and_intervals_have_their_coverage(count: int) -> None:
    errors = []
    inside = []
    left_out = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        process = fitted(random, count)
        points = random.uniform(-2, 2, (200, 2))
        found = process.predict(replace(inputs(points), steps=list(range(1000, 1200))))
        values = surface(points) + 0.02 * random.standard_normal(200)
        low, high = found.interval()
        errors.append(np.median(np.abs(found.mean - values)))
        inside.append(((low <= values) & (values <= high)).mean())
        left_out.append(process.leave_one_out.median_error)
    assert np.mean(errors) < {25: 0.1, 60: 0.04}[count]
    assert 0.9 <= np.mean(inside) <= 0.995
    assert np.mean(left_out) == pytest.approx(np.mean(errors), rel=0.6)


def test_a_disturbed_run_does_not_bend_its_neighbors() -> None:
    random = np.random.default_rng(3)
    points = random.uniform(-2, 2, (80, 2))
    values = surface(points)
    values[5] += 2.0
    process = Process.fit(inputs(points), values, np.full(80, 0.02), 0.02)
    near = replace(inputs(points[5:6] + 0.15), steps=[999])
    assert process.predict(near).mean[0] == pytest.approx(surface(points[5:6] + 0.15)[0], abs=0.25)
    assert np.argmax(process.disturbed) == 5


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_next_to_no_data_gives_wide_intervals(count: int) -> None:
    points = np.linspace(-1, 1, 5)[:, None] * np.ones((1, 2))
    known = inputs(points).rows(np.arange(count))
    process = Process.fit(known, surface(points)[:count], np.full(count, 0.02), 0.02)
    found = process.predict(inputs(points))
    assert np.isfinite(found.spread).all()
    assert (found.spread[count:] > 0.1).all()
    assert len(process.leave_one_out.error) == count


def test_many_observations_are_as_good_as_all_of_their_carriers() -> None:
    """Above a number of observations, a sample of them determines the smooth part.

    The result stays close to the exact solution.
    """
    random = np.random.default_rng(6)
    process = fitted(random, 700)
    points = random.uniform(-2, 2, (50, 2))
    found = process.predict(replace(inputs(points), steps=list(range(10_000, 10_050))))
    assert found.mean == pytest.approx(surface(points), abs=0.05)


def columns(features: Array, prior: Array) -> Columns:
    """Return columns named by their number."""
    return {index: (features[:, index], float(spread)) for index, spread in enumerate(prior)}


def test_a_law_is_recovered_in_spite_of_runs_that_were_disturbed() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack([np.ones(400), random.normal(0, 1, (400, 2))])
    law = np.array([0.5, -0.3, 0.8])
    values = features @ law + 0.05 * random.standard_normal(400)
    values[::20] += 3.0
    line = RobustRegression(columns(features, np.ones(3)), values).predict(
        columns(np.eye(3), np.ones(3)), 3
    )
    assert line.mean == pytest.approx(law, abs=0.02)
    plain = np.linalg.lstsq(features, values, rcond=None)[0]
    assert abs(plain[0] - law[0]) > 0.1  # the least-squares estimate


@pytest.mark.parametrize("count", [4, 15, 60])
def test_intervals_cover_as_often_as_they_say(count: int) -> None:
    """Coefficients are drawn from the prior and data from the coefficients.

    The 95% intervals contain 95% of new values.
    """
    random = np.random.default_rng(count)
    prior = np.array([1.0, 0.5, 0.3])
    inside = []
    for _ in range(300):
        law = prior * random.standard_normal(3)
        features = np.column_stack([np.ones(count + 1), random.normal(0, 1, (count + 1, 2))])
        values = features @ law + 0.2 * random.standard_normal(count + 1)
        line = RobustRegression(columns(features[:-1], prior), values[:-1])
        draws = line.predict(columns(features[-1:], prior), 1).draws(400, random)
        low, high = np.quantile(draws[0], [0.025, 0.975])
        inside.append(low <= values[-1] <= high)
    assert 0.92 <= np.mean(inside) <= 0.985


def threads() -> set[int]:
    return {
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    }


def test_a_fit_takes_one_thread_and_leaves_them_as_they_were() -> None:
    random = np.random.default_rng(0)
    points = grid(random, 12)
    with threadpoolctl.threadpool_limits(3, "blas"):
        with one_thread():
            assert threads() == {1}
        assert one_thread()(threads)() == {1}
        runs = RunHistory.from_runs(Machine(random).session("one", points), rates)
        model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
        model.predict(planned_table(points))
        assert threads() == {3}


BANDWIDTH = 1e11
CALL = 2e-5


def test_chains_tell_a_call_from_an_operation_within_it() -> None:
    chains = [
        make_model(
            {"name": "elementwise", "elements": elements, "operations": operations}
        ).as_operation(1, "float32")
        for elements in (10, 1000, 100_000, 10_000_000)
        for operations in (1, 10, 100)
    ]
    seconds = np.array([CALL + 4e-6 * one.calls + one.bytes / BANDWIDTH for one in chains])
    found = OperationTimes.fit(chains, seconds)
    assert found.dispatch == pytest.approx(CALL, rel=0.3)
    assert found.step == pytest.approx(4e-6, rel=0.3)
    assert np.exp(found.predict([elementwise_operation(3e8, "float32")]).mean[0]) == pytest.approx(
        3e-3, rel=0.2
    )


def test_cached_data_is_read_faster() -> None:
    """Attention of one token: a cache of 50 MB is five times as fast.

    Every sequence adds a constant time.
    """
    random = np.random.default_rng(0)
    sizes = [(int(2 ** random.uniform(0, 10)), int(2 ** random.uniform(5, 14))) for _ in range(150)]
    one = [
        Operation("decode", "", 4, n, 128, 2048.0 * b * n, 512.0 * b * n, batch=b) for b, n in sizes
    ]
    moved = np.array([each.bytes for each in one])
    seconds = (
        CALL / 10
        + 3e-8 * np.array([b for b, _ in sizes])
        + moved / np.where(moved < 5e7, 5e12, 1e12)
    )
    fit = OperationTimes.fit(one[:110], seconds[:110])
    assert np.median(np.abs(fit.predict(one[110:]).mean - np.log(seconds[110:]))) < 0.05
    assert fit.line["cached"] > 0.8


def test_small_operations_that_scatter_more_are_no_less_certain_than_they_scatter() -> None:
    """A run's noise of 2% exceeds the scatter of large operations."""
    random = np.random.default_rng(0)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e9), 200))
    known = [elementwise_operation(size, "float32") for size in sizes]
    scatter = np.where(sizes < 1e6, 0.03, 0.001) * random.standard_normal(len(sizes))
    fit = OperationTimes.fit(known, (CALL + sizes / BANDWIDTH) * np.exp(scatter))
    least, most = fit.predict(
        [elementwise_operation(size, "float32") for size in (1e3, 1e9)]
    ).spread
    assert least == pytest.approx(np.hypot(0.03, 0.02), rel=0.3)
    assert most == pytest.approx(0.02, rel=0.3)
