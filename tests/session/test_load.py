"""What a run holds of a planted load, beside plain NumPy, pandas and the histogram library's own reader."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paradnn.config.point import Point, costs_of, read_point
from paradnn.session.measured import quantile_metrics
from paradnn.session.record import headline
from paradnn.store.runs import Record
from paradnn.workloads.serve.queries import Load, Probe, QueryLog, percentile
from tests.session.records import answered, recorded, timing

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
    measured = {"parameters": costs_of(point).parameters}
    results = [answered(timing([0.1] * 6), measured, outcome=outcome, reason=reason, work=load) for load in loads]
    return recorded(point, *(replace(result, outcome=outcome, reason=reason) for result in results))


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
    assert (made.tags["limit"], made.tags["valid"]) == (verdict, str(verdict == "held").lower())
    assert made.description.index("Load: ") < made.description.index("examples/s"), "before the steps alone"
    found = headline(made.metrics)
    assert found
    assert (found.value, found.unit) == (made.metrics["goodput_per_second"], "queries/s in time")
    assert made.tags["limit_reason"].endswith(f"took longer than {limit:g} ms, 1% may, confidence 99%")


#: Of each process the rate that held, and its probes; what is said of the peak: held, failed, the interval's high end.
PEAKS = [
    ([(200.0, [(100.0, True), (400.0, False), (200.0, True), (310.0, False)])], (200.0, 310.0, 310.0)),
    # A probe that ended undecided counts as failed for the search, though the peak may be above it.
    ([(200.0, [(210.0, None), (400.0, False), (300.0, None)])], (200.0, 210.0, 400.0)),
    ([(200.0, [(210.0, None)])], (200.0, 210.0, None)),
    ([(2000.0, [(2100.0, False)]), (3000.0, [(3100.0, False)])], ((2e3 * 3e3) ** 0.5, (2100 * 3100) ** 0.5, ...)),
]


@pytest.mark.parametrize(("processes", "expected"), PEAKS)
def test_the_peak_lies_between_what_held_and_what_failed(processes: list[Any], expected: tuple[Any, ...]) -> None:
    loads = [
        Load(held, 0.003, planted(4).packed(), [Probe(rate, 700, 9, 1.0, 0.1, said, None) for rate, said in probes])
        for held, probes in processes
    ]
    made = record(asked(latency_ms=60.0), loads)
    names = [f"{name}_queries_per_second" for name in ("peak", "failed")]
    assert [made.metrics[name] for name in names] == pytest.approx(expected[:2])
    low, high = (made.metrics.get(f"peak_queries_per_second_{end}") for end in ("low", "high"))
    if expected[2] is ...:  # Student's interval of two logarithms, with SciPy
        for found, rates, index in ((low, (2e3, 3e3), 0), (high, (2100, 3100), 1)):
            logs = np.log(rates)
            assert found == pytest.approx(math.exp(stats.t.interval(0.95, 1, logs.mean(), stats.sem(logs))[index]))
    else:
        assert (low, high) == (pytest.approx(200.0), expected[2] and pytest.approx(expected[2]))
    probed = [rate for _, probes in processes for rate, _ in probes]
    assert [probe["rate"] for probe in made.artifacts["probes.json"]["probes"]] == probed


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
