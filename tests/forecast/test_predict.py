"""Step times predicted from planted runs: their errors, and the coverage of their intervals."""

from dataclasses import replace

import numpy as np
import pytest

from paradnn.config.point import Point
from paradnn.families.kernels import Gemm
from paradnn.forecast.predict import StepTimeModel, _groups
from paradnn.forecast.table import RunHistory, point_params
from tests.conftest import depth
from tests.forecast.planted import (
    QUICK,
    Machine,
    expected_times,
    fc,
    grid,
    lstm,
    planned_table,
    rates,
    replicate_of,
)


def half_width(draws: np.ndarray) -> float:
    """Return the mean half-width of the 95% intervals of draws, in logarithms."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=-1)
    return float(np.mean(np.log(high / low))) / 2


@depth(12, 40)
def test_intervals_of_points_and_sums_have_their_coverage(draws: int) -> None:
    """Check the intervals of points and of sums, in which common errors must not average out."""
    point_coverage = []
    sum_coverage = []
    for seed in range(draws):
        random = np.random.default_rng(seed)
        machine = Machine(random)
        points = grid(random, 60)
        runs = machine.session("first", points[:15]) + machine.session("second", points[15:30])
        expected = expected_times(runs, points[30:])
        machine.begin_session("third")
        steps = np.array([machine.step(point) for point in points[30:]])
        low, high = np.quantile(expected.step, [0.025, 0.975], axis=1)
        point_coverage.append(((low <= steps) & (steps <= high)).mean())
        low, high = np.quantile(expected.step.sum(axis=0), [0.025, 0.975])
        sum_coverage.append(low <= steps.sum() <= high)
    assert 0.92 <= np.mean(point_coverage) <= 1.0
    assert 0.83 <= np.mean(sum_coverage) <= 1.0


def test_predictions_of_an_unknown_family_are_uncertain() -> None:
    random = np.random.default_rng(3)
    machine = Machine(random)
    runs = machine.session(
        "first", [fc(layers, nodes, 256) for layers in (1, 4, 16) for nodes in (64, 256, 1024)] * 3
    )
    known = expected_times(runs, [fc(2, 128, 256)])
    other_family = expected_times(runs, [lstm(200, 64)])
    without_runs = expected_times([], [fc(2, 128, 256)])
    assert half_width(known.step) < half_width(other_family.step)
    assert half_width(known.step) < half_width(without_runs.step)
    other_environment = expected_times(runs, [fc(2, 128, 256)], environment="another software")
    assert (
        half_width(known.step) < half_width(other_environment.step) < half_width(without_runs.step)
    )
    # The cost model alone is right within a factor of about five.
    assert np.median(without_runs.step) == pytest.approx(machine.law(fc(2, 128, 256)), rel=4.0)


def test_predictions_of_a_measured_point_follow_its_deviation() -> None:
    """Plant a point whose steps are slower than those of similar points.

    Predictions of its replicates must be slower, too, but not those of its neighbors.
    """
    random = np.random.default_rng(4)
    machine = Machine(random, noise=0.02, session=0.02)
    points = grid(random, 80)
    runs = machine.session("first", points)
    deviating = points[7]
    deviating_runs = [
        replace(run, metrics={**run.metrics, "step_time_ms": 1.5e3 * machine.law(deviating)})
        for run in (
            machine.run(replicate_of(deviating, number), 100 + number) for number in range(1, 4)
        )
    ]
    runs = [run for run in runs if run.params != point_params(deviating)] + deviating_runs
    expected = expected_times(runs, [replicate_of(deviating, 9), replicate_of(points[8], 9)])
    ratio = np.median(expected.step, axis=1) / [machine.law(deviating), machine.law(points[8])]
    assert ratio[0] > 1.2
    assert ratio[1] == pytest.approx(1.0, abs=0.1)


def test_the_covariance_of_draws_agrees_with_the_model() -> None:
    """Check covariances: high between replicates, lower in a family, lowest between families."""
    random = np.random.default_rng(8)
    machine = Machine(random)
    runs = RunHistory.from_runs(machine.session("first", grid(random, 30)), rates)
    points = [fc(4, 512, 256), replicate_of(fc(4, 512, 256), 1), fc(4, 1024, 256), lstm(100, 64)]
    times = StepTimeModel.fit(runs.table, runs.step, runs.noise).predict(planned_table(points))
    certain = replace(times, freedom=1e9)  # without the heavy tails of few observations
    same = times.group[:, None] == times.group
    covariance = times.root @ times.root.T + same * times.own + times.noise**2 * np.eye(4)
    assert np.cov(certain.draws(40_000, random)) == pytest.approx(covariance, rel=0.1, abs=0.005)
    replicate, family, other_family = covariance[0, 1:]
    assert covariance[0, 0] > replicate > family > other_family > 0


def test_runs_of_other_versions_are_read_if_possible() -> None:
    random = np.random.default_rng(6)
    machine = Machine(random)
    runs = machine.session("first", grid(random, 20))
    unknown_family = {
        **runs[0].params,
        "model.name": "a family of tomorrow",
        "model.knobs": "[1, 2]",
        "data.name": "other",
    }
    older = {
        key: value for key, value in runs[1].params.items() if not key.startswith(("data", "seed"))
    }
    broken = {**runs[2].params, "measure.block_seconds": "soon"}
    runs = [
        replace(runs[0], params=unknown_family),
        replace(runs[1], params=older),
        replace(runs[2], params=broken),
        *runs[3:],
    ]
    assert len(RunHistory.from_runs(runs, rates)) == 19
    assert np.isfinite(expected_times(runs, [fc(2, 128, 256)]).seconds).all()


@pytest.mark.parametrize("text", ["0", "-1", "NaN", "Infinity", "1e308", "9" * 320])
def test_impossible_sizes_in_a_store_leave_predictions_finite(text: str) -> None:
    random = np.random.default_rng(7)
    runs = Machine(random).session("first", grid(random, 12))
    for index, key in enumerate(("batch_size", "model.nodes", "model.layers")):
        runs[index] = replace(runs[index], params={**runs[index].params, key: text})
    assert np.isfinite(expected_times(runs, [fc(2, 128, 256)]).step).all()


def test_kernels_without_parameters_are_learned_and_predicted() -> None:
    machine = Machine(np.random.default_rng(0), noise=0.01, session=0.0)
    sizes = [
        Point(model=Gemm(m=2**power, n=64, k=2**power), batch_size=1, measure=QUICK)
        for power in range(6, 12)
    ]
    runs = machine.session("first", [fc(2, 128, 256), *sizes[::2], *sizes[::2]])
    unknown = expected_times(runs[:1], sizes)
    known = expected_times(runs, sizes)
    assert np.isfinite(unknown.step).all()
    assert half_width(known.step) < half_width(unknown.step)


def test_a_prediction_does_not_depend_on_the_order_of_a_set() -> None:
    table = planned_table(
        [fc(4, 64, 32), fc(4, 64, 32, precision="bfloat16", compile="xla", devices=2)]
    )
    words = {pair for row in table.settings for pair in row}
    assert len(words) >= 3
    columns = [pair for name in _groups(table) for pair in words if name == ("group", pair)]
    assert columns == sorted(words), "the order must not depend on the hashes of a process"
