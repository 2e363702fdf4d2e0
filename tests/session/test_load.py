"""What a run holds of a planted load, beside plain NumPy, pandas and the histogram library's own reader."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, costs_of, read_point
from paradnn.core.messages import Answer, Compilation, Measurement, Timing, Trial
from paradnn.session.design import RecordedPoint
from paradnn.session.measured import quantile_metrics
from paradnn.session.progress import describe_point
from paradnn.session.record import headline
from paradnn.store.runs import Record
from paradnn.workloads.serve.queries import Load, Probe, QueryLog, percentile
from tests.session.records import recorded

MS = 1_000_000


def asked(scenario: str = "server", **keys: Any) -> Point:
    measure = {"timeout": 1800}
    config = {"model": {"name": "fc"}, "batch_size": 4, "mode": "inference", "scenario": scenario, "measure": measure}
    return read_point({**config, scenario: {"min_seconds": 1.0, **keys}})


def planted(seed: int, count: int = 2_000) -> QueryLog:
    """A query every 5 ms, two at once, exponential waits of 2 ms in the mean, served in 3 ms, issued 0.1 ms late."""
    log, random = QueryLog(), np.random.default_rng(seed)
    for index in range(0, count, 2):
        due = 10**12 + index * 5 * MS
        start = due + 5 * MS + int(random.exponential(2) * MS)
        log.add([(due, due + MS // 10), (due + 5 * MS, due + 5 * MS + MS // 10)], start, start + 3 * MS)
    return log


def record(point: Point, loads: list[Load], outcome: str = "ok", reason: str | None = None) -> Record:
    timing = Timing(1, [Trial(1, 0.1)], [0.1], [0.1] * 6, True, "", None)
    compiled = Compilation([1.0], [1], None)
    measurement = Measurement(costs_of(point).parameters, compiled, {}, None, timing, None, "unavailable")
    answers = [Answer(outcome, reason, {"load": 1.0}, measurement=measurement, work=load) for load in loads]
    results = [PointResult(outcome, reason, answer, {}) for answer in answers]
    return recorded(point, *results)


def test_metrics_are_those_of_the_queries() -> None:
    log = planted(1)
    made = record(asked(rate=200, latency_ms=12.0), [Load(200.0, 0.003, log.packed(), [])])
    latency = (np.array(log.ended) - np.array(log.scheduled)) / MS
    queue = (np.array(log.started) - np.array(log.scheduled)) / MS
    duration = (max(log.ended) - min(log.scheduled)) / 1e9
    expected = {
        "queries": 2_000,
        "queries_per_second": 2_000 / duration,
        "queries_per_batch": 2.0,
        "goodput_per_second": (latency <= 12).sum() / duration,
        "in_time_fraction": (latency <= 12).mean(),
        "latency_mean_ms": latency.mean(),
        "latency_max_ms": latency.max(),
        "latency_p50_ms": np.sort(latency)[1_000],
        "latency_p99.9_ms": np.sort(latency)[1_998],
        "queue_mean_ms": queue.mean(),
        "queue_p99_ms": np.sort(queue)[1_980],
        "service_mean_ms": 3.0,
        "single_query_ms": 3.0,
        "scheduled_queries_per_second": 200.0,
        "generator_late_p99_ms": 0.1,
    }
    assert {name: made.metrics[name] for name in expected} == pytest.approx(expected)
    assert made.metrics["latency_p90_low_ms"] < made.metrics["latency_p90_ms"] < made.metrics["latency_p90_high_ms"]
    assert "peak_queries_per_second" not in made.metrics


@pytest.mark.parametrize(("limit", "verdict"), [(30.0, "held"), (11.0, "missed")])
def test_a_limit_is_held_or_missed(limit: float, verdict: str) -> None:
    made = record(asked(rate=200, latency_ms=limit), [Load(200.0, 0.003, planted(3).packed(), [])])
    assert made.tags["limit"] == verdict
    assert made.tags["limit_reason"].endswith(f"took longer than {limit:g} ms, 1% may, confidence 99%")


@pytest.mark.parametrize(("limit", "said"), [(60.0, "limit held: 0 of "), (5.0, "INVALID: limit missed: ")])
def test_what_the_scenario_says_comes_before_the_steps_alone(limit: float, said: str) -> None:
    made = record(asked(rate=200, latency_ms=limit), [Load(200.0, 0.003, planted(3).packed(), [])])
    row = RecordedPoint.of_record("a run", made)
    assert made.tags["valid"] == str(limit == 60.0).lower()
    assert describe_point(row, "a store").splitlines()[1].startswith(f"  load         {said}")
    assert made.description.index(f"Load: {said}") < made.description.index("examples/s")
    found = headline(made.metrics)
    assert found
    assert (found.value, found.unit) == (made.metrics["goodput_per_second"], "queries/s in time")


def test_the_peak_lies_between_what_held_and_what_failed() -> None:
    probes = [Probe(rate, 700, 0, 1.0, 0.01, rate < 300, None) for rate in (100.0, 400.0, 200.0, 310.0)]
    made = record(asked(latency_ms=60.0), [Load(200.0, 0.003, planted(4).packed(), probes)])
    assert made.metrics["peak_queries_per_second"] == pytest.approx(200.0)
    assert made.metrics["failed_queries_per_second"] == pytest.approx(310.0)
    assert made.metrics["peak_queries_per_second_low"] == pytest.approx(200.0)
    assert made.metrics["peak_queries_per_second_high"] == pytest.approx(310.0)
    assert [probe["rate"] for probe in made.artifacts["probes.json"]["probes"]] == [100.0, 400.0, 200.0, 310.0]


def test_what_was_not_shown_to_hold_is_no_end_of_the_peaks_interval() -> None:
    """A probe that ended undecided counts as failed for the search, though the peak may be above it."""
    probes = [
        Probe(rate, 700, 9, 1.0, 0.1, held, None) for rate, held in ((210.0, None), (400.0, False), (300.0, None))
    ]
    load = Load(200.0, 0.003, planted(4).packed(), probes)
    metrics = record(asked(latency_ms=60.0), [load]).metrics
    assert metrics["failed_queries_per_second"] == pytest.approx(210.0)
    assert metrics["peak_queries_per_second_high"] == pytest.approx(400.0)
    undecided = record(asked(latency_ms=60.0), [replace(load, probes=probes[:1])]).metrics
    assert undecided["failed_queries_per_second"] == pytest.approx(210.0)
    assert "peak_queries_per_second_high" not in undecided


def test_what_failed_in_several_processes_is_above_what_held_in_all_of_them() -> None:
    each = [(2000.0, 2100.0), (3000.0, 3100.0)]
    found = [Load(held, 0.003, planted(4).packed(), [Probe(bad, 700, 9, 1.0, 0.1, False, None)]) for held, bad in each]
    metrics = record(asked(latency_ms=60.0), found).metrics
    assert metrics["peak_queries_per_second"] == pytest.approx((2000 * 3000) ** 0.5)
    assert metrics["failed_queries_per_second"] == pytest.approx((2100 * 3100) ** 0.5)
    # Student's interval of two logarithms, with SciPy.
    for end, pair in (("low", each[0][:1] + each[1][:1]), ("high", each[0][1:] + each[1][1:])):
        logs = np.log(pair)
        ends = stats.t.interval(0.95, 1, logs.mean(), stats.sem(logs))
        expected = math.exp(ends[0] if end == "low" else ends[1])
        assert metrics[f"peak_queries_per_second_{end}"] == pytest.approx(expected)


def test_the_interval_of_several_processes_reaches_as_far_as_their_quantiles_lie_apart() -> None:
    made = record(asked(rate=200), [Load(200.0, 0.003, planted(seed).packed(), []) for seed in range(5, 9)])
    single = [record(asked(rate=200), [Load(200.0, 0.003, planted(seed).packed(), [])]) for seed in range(5, 9)]
    values = np.log([entry.metrics["latency_p99_ms"] for entry in single])
    half = 3.1824 * values.std(ddof=1) / 2
    assert made.metrics["latency_p99_high_ms"] >= np.exp(values.mean() + half) * (1 - 1e-4)
    assert made.metrics["queries"] == 8_000


@pytest.mark.parametrize(("load", "share"), [(0.5, 0.5), (0.5, 0.9), (0.8, 0.9), (0.95, 0.9), (0.95, 0.99)])
def test_a_queue_of_known_quantiles_is_not_said_to_be_shorter(load: float, share: float) -> None:
    """M/M/1: times in the system are exponential with mean 1 / (1 - load); five processes of 500, from empty."""
    random, truth, held = np.random.default_rng(3), -math.log(1 - share) / (1 - load), 0
    for _ in range(60):
        each = []
        for _ in range(5):
            service, gaps = random.exponential(1, 500), random.exponential(1 / load, 500)
            walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
            each.append((walk - np.minimum.accumulate(walk) + service).tolist())  # Lindley's recursion
        found = quantile_metrics("x", share, each, percentile)
        held += found.get("x_low_ms", 0.0) <= truth <= found.get("x_high_ms", math.inf)
    assert held >= 52


def test_nothing_is_lost_of_a_load_that_could_not_be_served() -> None:
    made = record(asked(rate=200), [Load(200.0, 0.003, planted(10).packed(), [])], "overload", "queries come faster")
    assert (made.outcome, made.tags["reason"]) == ("overload", "queries come faster")
    assert made.metrics["queries"] == 2_000
    assert made.metrics["step_time_ms"] == pytest.approx(100.0)
    assert "queries.parquet" in made.artifacts
    nothing = record(asked(latency_ms=0.1), [Load(None, 0.003, QueryLog().packed(), [])], "overload", "too long")
    assert "queries" not in nothing.metrics
