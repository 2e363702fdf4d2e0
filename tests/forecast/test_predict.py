"""Predictions from planted stores: the law is found, intervals hold what they promise, what is unknown stays wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paradnn.config.point import Point
from paradnn.costs.point import costs_of
from paradnn.forecast.history import Past
from paradnn.forecast.past_runs import known_of
from paradnn.forecast.predict import Forecast, predict
from paradnn.forecast.table import of_points, row_of
from paradnn.store.metrics import PHASES
from tests.forecast.planted import CORES, HOME, Machine, again, fc, grid, lstm, peaks


def forecast(runs: Sequence[Past], points: Sequence[Point], draws: int = 300, environment: str = HOME) -> Forecast:
    known = known_of(runs)
    table = of_points([row_of(p) for p in points], [costs_of(p) for p in points], [environment] * len(points))
    count = len(known) + len(points)
    load = np.full(count, float(CORES))
    load[len(known) :] = 0.0
    return predict(known, table, peaks(count), load, draws)


def width(draws: np.ndarray) -> float:
    """Half the logarithm of the 95% interval."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=-1)
    return float(np.mean(np.log(high / low))) / 2


def test_a_planted_law_is_recovered() -> None:
    random = np.random.default_rng(0)
    machine = Machine(random, noise=0.05, session=0.0)
    points = grid(random, 160)
    found = forecast(machine.session("first", points[:100]), points[100:])
    ratio = np.median(found.step, axis=1) / [machine.law(point) for point in points[100:]]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
    assert np.quantile(np.abs(np.log(ratio)), 0.9) < 0.2


@pytest.mark.slow
def test_intervals_cover_over_many_plantings() -> None:
    """Points are covered, and so are sums, in which the points' common errors must not average out."""
    each, sums = [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        machine = Machine(random)
        points = grid(random, 60)
        runs = machine.session("first", points[:15]) + machine.session("second", points[15:30])
        found = forecast(runs, points[30:])
        machine.begin_session("third")
        steps = np.array([machine.step(point) for point in points[30:]])
        low, high = np.quantile(found.step, [0.025, 0.975], axis=1)
        each.append(((low <= steps) & (steps <= high)).mean())
        low, high = np.quantile(found.step.sum(axis=0), [0.025, 0.975])
        sums.append(low <= steps.sum() <= high)
    assert 0.93 <= np.mean(each) <= 1.0
    assert 0.85 <= np.mean(sums) <= 1.0


def test_what_nothing_is_known_of_stays_uncertain() -> None:
    random = np.random.default_rng(3)
    machine = Machine(random)
    runs = machine.session("first", [fc(layers, nodes, 256) for layers in (1, 4, 16) for nodes in (64, 256, 1024)] * 3)
    known, other = forecast(runs, [fc(2, 128, 256)]), forecast(runs, [lstm(200, 64)])
    nothing = forecast([], [fc(2, 128, 256)])
    assert width(known.step) < width(other.step)
    assert width(known.step) < width(nothing.step)
    elsewhere = forecast(runs, [fc(2, 128, 256)], environment="another software")
    assert width(known.step) < width(elsewhere.step) < width(nothing.step)
    # The cost model alone is right to a factor of five, say.
    assert np.median(nothing.step) == pytest.approx(machine.law(fc(2, 128, 256)), rel=4.0)


def test_a_step_that_was_measured_is_known_better_than_its_like() -> None:
    """One step has a peculiarity of its own: its further replicates are expected to have it, its neighbours not."""
    random = np.random.default_rng(4)
    machine = Machine(random, noise=0.02, session=0.02)
    points = grid(random, 80)
    runs = machine.session("first", points)
    odd = points[7]
    slow = [
        replace(run, metrics={**run.metrics, "step_time_ms": 1.5e3 * machine.law(odd)})
        for run in (machine.run(again(odd, number), 100 + number) for number in range(1, 4))
    ]
    runs = [run for run in runs if run.params != row_of(odd)] + slow
    found = forecast(runs, [again(odd, 9), again(points[8], 9)])
    ratio = np.median(found.step, axis=1) / [machine.law(odd), machine.law(points[8])]
    assert ratio[0] > 1.2
    assert ratio[1] == pytest.approx(1.0, abs=0.1)


def test_a_point_is_the_sum_of_its_phases_and_ends_at_its_limit() -> None:
    found = forecast([], [fc(4, 512, 256)])
    assert found.seconds == pytest.approx(np.sum(list(found.phases.values()), axis=0))
    assert set(found.phases) <= {*PHASES, "between"}
    assert "profile" not in found.phases
    large = fc(128, 8192, 16384)
    short = replace(large, measure=replace(large.measure, timeout=5.0, profile=True))
    late = forecast([], [short])
    assert late.timed_out.all()
    inside = late.seconds - np.sum([late.phases[name] for name in ("schedule", "record", "between")], axis=0)
    assert inside == pytest.approx(5.0)


def test_profiles_and_latencies_take_their_time() -> None:
    plain = fc(4, 512, 256)
    profiled = replace(plain, measure=replace(plain.measure, profile=True))
    inference = replace(plain, mode="inference")
    found = forecast([], [plain, profiled, inference])
    assert np.all(found.phases["profile"][0] == 0)
    assert np.all(found.phases["profile"][1] > 0.25)
    assert np.all(found.phases["latency"][:2] == 0)
    assert np.median(found.phases["latency"][2]) == pytest.approx(min(10.0, 200 * np.median(found.step[2])), rel=0.3)


def test_a_pause_and_a_failed_run_between_two_points_are_no_overhead() -> None:
    random = np.random.default_rng(5)
    machine = Machine(random, session=0.0)
    points = grid(random, 40)
    runs = [
        replace(run, start=3.0 * index + (3600.0 if index > 20 else 0.0))
        for index, run in enumerate(machine.session("first", points))
    ]
    lost = {"outcome": "timeout"}
    runs[10] = replace(runs[10], tags={**runs[10].tags, **lost}, metrics={})
    found = forecast(runs, [fc(2, 128, 256)])
    assert np.median(found.phases["between"]) < 2.0
    assert len(known_of(runs)) == 39


def test_runs_of_other_versions_are_read_as_far_as_they_go() -> None:
    random = np.random.default_rng(6)
    machine = Machine(random)
    runs = machine.session("first", grid(random, 20))
    strange = {**runs[0].params, "model.name": "a family of tomorrow", "model.knobs": "[1, 2]", "data.name": "other"}
    older = {key: value for key, value in runs[1].params.items() if not key.startswith(("data", "seed"))}
    broken = {**runs[2].params, "measure.block_seconds": "soon"}
    runs = [
        replace(runs[0], params=strange),
        replace(runs[1], params=older),
        replace(runs[2], params=broken),
        *runs[3:],
    ]
    assert len(known_of(runs)) == 19
    assert np.isfinite(forecast(runs, [fc(2, 128, 256)]).seconds).all()
