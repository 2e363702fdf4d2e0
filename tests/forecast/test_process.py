"""Gaussian process and robust regression, compared with textbook formulas on planted surfaces.

The model of operation times is compared with planted times.
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
    """Return the inputs of a process for points of shape (n, k).

    Args:
        points: Coordinates of the points.
        words: Category of each point; by default all are equal.
        steps: Identifier of the step of each point; by default all differ.
    """
    count = len(points)
    columns = {"level": (np.ones(count), 2.0), "slope": (points[:, 0], 1.0)}
    coordinates = {**dict(enumerate(points.T)), "word": np.array(words or ["one"] * count)}
    return Inputs(np.full(count, 0.5), columns, coordinates, steps or list(range(count)))


def surface(points: Array) -> Array:
    return np.asarray(
        1.0 + 0.5 * points[:, 0] + 0.4 * np.sin(2 * points[:, 0]) * np.cos(1.5 * points[:, 1])
    )


def fit_process(random: np.random.Generator, count: int, noise: float = 0.02) -> Process:
    points = random.uniform(-2, 2, (count, 2))
    values = surface(points) + noise * random.standard_normal(count)
    return Process.fit(inputs(points), values, np.full(count, noise), noise)


def textbook(process: Process, points: Inputs) -> tuple[Array, Array]:
    """Return mean and variance without noise, by Rasmussen and Williams (2.25, 2.26)."""
    known = process.inputs
    scales = process.scales

    def prior(decodes: Inputs, other: Inputs) -> Array:
        line = np.zeros((len(decodes), len(other)))
        for name, (column, spread) in decodes.columns.items():
            line += spread**2 * np.outer(column, other.columns[name][0])
        squares = np.zeros((len(decodes), len(other)))
        for name, length in scales.lengths.items():
            distances = decodes.coordinates[name][:, None] - other.coordinates[name]
            squares += (distances / length) ** 2
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


def test_predictions_agree_with_the_textbook() -> None:
    random = np.random.default_rng(0)
    process = fit_process(random, 40)
    new = replace(inputs(random.uniform(-2, 2, (30, 2))), steps=list(range(100, 130)))
    prediction, (mean, variance) = process.predict(new), textbook(process, new)
    assert prediction.mean == pytest.approx(mean, abs=1e-3)
    assert prediction.spread**2 - prediction.noise**2 == pytest.approx(
        variance, rel=0.02, abs=20 * JITTER
    )


def test_fast_leave_one_out_errors_equal_refitting() -> None:
    process = fit_process(np.random.default_rng(1), 25)
    for place in (0, 7, 24):
        others = np.delete(np.arange(25), place)
        without = replace(
            process,
            inputs=process.inputs.rows(others),
            values=process.values[others],
            noise=process.noise[others],
            disturbed=process.disturbed[others],
        )
        decodes = process.inputs.rows(np.array([place]))
        mean, _ = textbook(without, decodes)
        assert process.leave_one_out.error[place] == pytest.approx(
            process.values[place] + 0.5 - mean[0], abs=2e-3
        )


@pytest.mark.parametrize("count", [25, 60])
def test_predictions_recover_a_surface_and_intervals_have_their_coverage(count: int) -> None:
    errors = []
    inside = []
    left_out = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        process = fit_process(random, count)
        points = random.uniform(-2, 2, (200, 2))
        prediction = process.predict(replace(inputs(points), steps=list(range(1000, 1200))))
        values = surface(points) + 0.02 * random.standard_normal(200)
        low, high = prediction.interval()
        errors.append(np.median(np.abs(prediction.mean - values)))
        inside.append(((low <= values) & (values <= high)).mean())
        left_out.append(process.leave_one_out.median_error)
    assert np.mean(errors) < {25: 0.1, 60: 0.04}[count]
    assert 0.9 <= np.mean(inside) <= 0.995
    assert np.mean(left_out) == pytest.approx(np.mean(errors), rel=0.6)


def test_a_disturbed_run_does_not_change_the_predictions_of_its_neighbors() -> None:
    random = np.random.default_rng(3)
    points = random.uniform(-2, 2, (80, 2))
    values = surface(points)
    values[5] += 2.0
    process = Process.fit(inputs(points), values, np.full(80, 0.02), 0.02)
    neighbor = replace(inputs(points[5:6] + 0.15), steps=[999])
    assert process.predict(neighbor).mean[0] == pytest.approx(
        surface(points[5:6] + 0.15)[0], abs=0.25
    )
    assert np.argmax(process.disturbed) == 5


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_data_give_wide_intervals(count: int) -> None:
    points = np.linspace(-1, 1, 5)[:, None] * np.ones((1, 2))
    known = inputs(points).rows(np.arange(count))
    process = Process.fit(known, surface(points)[:count], np.full(count, 0.02), 0.02)
    prediction = process.predict(inputs(points))
    assert np.isfinite(prediction.spread).all()
    assert (prediction.spread[count:] > 0.1).all()
    assert len(process.leave_one_out.error) == count


def test_the_approximation_for_many_observations_is_accurate() -> None:
    """With 700 observations, only a sample of them determines the smooth part."""
    random = np.random.default_rng(6)
    process = fit_process(random, 700)
    points = random.uniform(-2, 2, (50, 2))
    prediction = process.predict(replace(inputs(points), steps=list(range(10_000, 10_050))))
    assert prediction.mean == pytest.approx(surface(points), abs=0.05)


def columns(features: Array, prior: Array) -> Columns:
    """Return columns named by their number."""
    return {index: (features[:, index], float(spread)) for index, spread in enumerate(prior)}


def test_robust_regression_recovers_coefficients_despite_disturbed_runs() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack([np.ones(400), random.normal(0, 1, (400, 2))])
    coefficients = np.array([0.5, -0.3, 0.8])
    values = features @ coefficients + 0.05 * random.standard_normal(400)
    values[::20] += 3.0
    line = RobustRegression(columns(features, np.ones(3)), values).predict(
        columns(np.eye(3), np.ones(3)), 3
    )
    assert line.mean == pytest.approx(coefficients, abs=0.02)
    plain = np.linalg.lstsq(features, values, rcond=None)[0]
    assert abs(plain[0] - coefficients[0]) > 0.1  # the least-squares estimate


@pytest.mark.parametrize("count", [4, 15, 60])
def test_intervals_of_the_regression_have_their_coverage(count: int) -> None:
    """Draw coefficients from the prior, and data from the coefficients.

    The 95% intervals must contain about 95% of new values.
    """
    random = np.random.default_rng(count)
    prior = np.array([1.0, 0.5, 0.3])
    inside = []
    for _ in range(300):
        coefficients = prior * random.standard_normal(3)
        features = np.column_stack([np.ones(count + 1), random.normal(0, 1, (count + 1, 2))])
        values = features @ coefficients + 0.2 * random.standard_normal(count + 1)
        line = RobustRegression(columns(features[:-1], prior), values[:-1])
        draws = line.predict(columns(features[-1:], prior), 1).draws(400, random)
        low, high = np.quantile(draws[0], [0.025, 0.975])
        inside.append(low <= values[-1] <= high)
    assert 0.92 <= np.mean(inside) <= 0.985


def thread_counts() -> set[int]:
    return {
        pool["num_threads"]
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    }


def test_a_fit_uses_one_thread_and_restores_the_number_of_threads() -> None:
    random = np.random.default_rng(0)
    points = grid(random, 12)
    with threadpoolctl.threadpool_limits(3, "blas"):
        with one_thread():
            assert thread_counts() == {1}
        assert one_thread()(thread_counts)() == {1}
        runs = RunHistory.from_runs(Machine(random).session("one", points), rates)
        model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
        model.predict(planned_table(points))
        assert thread_counts() == {3}


BANDWIDTH = 1e11
DISPATCH_SECONDS = 2e-5


def test_the_fit_separates_the_time_of_a_call_from_that_of_its_operations() -> None:
    chains = [
        make_model(
            {"name": "elementwise", "elements": elements, "operations": operations}
        ).as_operation(1, "float32")
        for elements in (10, 1000, 100_000, 10_000_000)
        for operations in (1, 10, 100)
    ]
    seconds = np.array(
        [DISPATCH_SECONDS + 4e-6 * decodes.calls + decodes.bytes / BANDWIDTH for decodes in chains]
    )
    fit = OperationTimes.fit(chains, seconds)
    assert fit.dispatch == pytest.approx(DISPATCH_SECONDS, rel=0.3)
    assert fit.step == pytest.approx(4e-6, rel=0.3)
    assert np.exp(fit.predict([elementwise_operation(3e8, "float32")]).mean[0]) == pytest.approx(
        3e-3, rel=0.2
    )


def test_the_fit_recovers_the_faster_reads_of_cached_data() -> None:
    """Plant attention of one token that reads cached data five times as fast, below 50 MB.

    Every sequence adds a constant time.
    """
    random = np.random.default_rng(0)
    sizes = [(int(2 ** random.uniform(0, 10)), int(2 ** random.uniform(5, 14))) for _ in range(150)]
    decodes = [
        Operation("decode", "", 4, n, 128, 2048.0 * b * n, 512.0 * b * n, batch=b) for b, n in sizes
    ]
    bytes_read = np.array([each.bytes for each in decodes])
    seconds = (
        DISPATCH_SECONDS / 10
        + 3e-8 * np.array([b for b, _ in sizes])
        + bytes_read / np.where(bytes_read < 5e7, 5e12, 1e12)
    )
    fit = OperationTimes.fit(decodes[:110], seconds[:110])
    assert np.median(np.abs(fit.predict(decodes[110:]).mean - np.log(seconds[110:]))) < 0.05
    assert fit.line["cached"] > 0.8


def test_the_uncertainty_of_operations_equals_their_scatter() -> None:
    """Plant operations whose scatter depends on their size.

    The noise of a run is 2%, which exceeds the scatter of large operations.
    """
    random = np.random.default_rng(0)
    sizes = np.exp(random.uniform(np.log(1e3), np.log(1e9), 200))
    known = [elementwise_operation(size, "float32") for size in sizes]
    scatter = np.where(sizes < 1e6, 0.03, 0.001) * random.standard_normal(len(sizes))
    fit = OperationTimes.fit(known, (DISPATCH_SECONDS + sizes / BANDWIDTH) * np.exp(scatter))
    small_spread, large_spread = fit.predict(
        [elementwise_operation(size, "float32") for size in (1e3, 1e9)]
    ).spread
    assert small_spread == pytest.approx(np.hypot(0.03, 0.02), rel=0.3)
    assert large_spread == pytest.approx(0.02, rel=0.3)
