"""Load tests and token generation: records of planted data, and real measurements.

Records of planted data are compared with plain NumPy and SciPy. The real measurements use a model
and the load generator, as a user would.
"""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paradnn.config.point import Point, prefill_costs, step_costs
from paradnn.config.reading import read_point
from paradnn.core.messages import Compilation, Timing
from paradnn.session.measured import quantile_metrics
from paradnn.session.record import headline
from paradnn.store.metrics import stored_name
from paradnn.store.runs import Record
from paradnn.worker.peak_search import Probe, percentile
from paradnn.workloads.generate import Generation
from paradnn.workloads.serve.queries import Load, QueryLog
from tests.conftest import SHORT, TINY, Store, run, succeeded
from tests.session.records import answered, recorded, timing

MS = 1_000_000


def load_point(scenario: str = "server", **keys: Any) -> Point:
    measure = {"timeout": 1800}
    config = {
        "model": {"name": "fc"},
        "batch_size": 4,
        "mode": "inference",
        "scenario": scenario,
        "measure": measure,
    }
    return read_point({**config, scenario: {"min_seconds": 1.0, **keys}})


def planted_log(seed: int, count: int = 2_000) -> QueryLog:
    """Return a log of `count` queries, one every 5 ms, served in pairs.

    Waits are exponential with mean 2 ms. Service takes 3 ms. Queries are issued 0.1 ms late.
    """
    log = QueryLog()
    random = np.random.default_rng(seed)
    for index in range(0, count, 2):
        due = 10**12 + index * 5 * MS
        start = due + 5 * MS + int(random.exponential(2) * MS)
        log.add(
            [(due, due + MS // 10), (due + 5 * MS, due + 5 * MS + MS // 10)], start, start + 3 * MS
        )
    return log


def record(
    point: Point, loads: list[Load], outcome: str = "ok", reason: str | None = None
) -> Record:
    """Return the record of a point with one load per process."""
    measured = {"parameters": step_costs(point).parameters}
    results = [
        answered(timing([0.1] * 6), measured, outcome=outcome, reason=reason, work=load)
        for load in loads
    ]
    return recorded(point, *(replace(result, outcome=outcome, reason=reason) for result in results))


def test_metrics_summarize_the_queries() -> None:
    log = planted_log(1)
    recorded_point = record(
        load_point(rate=200, latency_ms=12.0), [Load(200.0, 0.003, log.packed(), [])]
    )
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
    assert {name: recorded_point.metrics[name] for name in expected} == pytest.approx(expected)
    assert (
        recorded_point.metrics["latency_p90_low_ms"]
        < recorded_point.metrics["latency_p90_ms"]
        < recorded_point.metrics["latency_p90_high_ms"]
    )
    assert "peak_queries_per_second" not in recorded_point.metrics


@pytest.fixture(scope="module")
def server_log() -> QueryLog:
    return planted_log(1)


@pytest.fixture(scope="module")
def server_record(server_log: QueryLog) -> Record:
    probe = Probe(210.0, 700, 9, 1.0, 0.1, None, None)
    load = Load(200.0, 0.003, server_log.packed(), [probe])
    return record(load_point(latency_ms=60.0), [load])


@pytest.fixture(scope="module")
def latencies(server_log: QueryLog) -> np.ndarray:
    """Return the latencies of the queries in `server_log`, in milliseconds."""
    return (np.array(server_log.ended) - np.array(server_log.scheduled)) / MS


def test_a_run_shows_latencies_over_time(server_record: Record, latencies: np.ndarray) -> None:
    longest = [
        moment.metrics["window_latency_max_ms"]
        for moment in server_record.history
        if "window_latency_max_ms" in moment.metrics
    ]

    # 2,000 queries in 10 s: 50 windows of 40 queries.
    assert longest == pytest.approx(latencies.reshape(50, 40).max(axis=1))


def test_a_run_shows_latencies_as_a_distribution(
    server_record: Record, latencies: np.ndarray
) -> None:
    picture = server_record.artifacts["overview.svg"]

    assert ">Latency of a query</text>" in picture
    assert ">limit 60 ms</text>" in picture
    assert f">{1 - 1 / 2000:.4%} within {latencies.max():.4g} ms<" in picture


def test_a_run_has_few_headlines(server_record: Record) -> None:
    headlines = [name for name in server_record.metrics if "/" not in stored_name(name)]

    assert "peak_queries_per_second" in headlines
    assert len(headlines) <= 20


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [
        pytest.param(30.0, "held", id="met"),
        pytest.param(11.0, "missed", id="missed"),
    ],
)
def test_the_verdict_on_a_limit_is_recorded(limit: float, verdict: str) -> None:
    recorded_point = record(
        load_point(rate=200, latency_ms=limit), [Load(200.0, 0.003, planted_log(3).packed(), [])]
    )
    assert (recorded_point.tags["limit"], recorded_point.tags["valid"]) == (
        verdict,
        str(verdict == "held").lower(),
    )
    assert recorded_point.description.index("Load: ") < recorded_point.description.index(
        "examples/s"
    ), "the load precedes the rate of steps"
    summary = headline(recorded_point.metrics)
    assert summary
    assert (summary.value, summary.unit) == (
        recorded_point.metrics["goodput_per_second"],
        "queries/s in time",
    )
    assert recorded_point.tags["limit_reason"].endswith(
        f"took longer than {limit:g} ms, allowed: 1% with 99% confidence"
    )


def searched_load(peak: float, probes: dict[float, bool | None]) -> Load:
    """Return the load of a process that searched for the peak rate.

    Args:
        peak: The highest rate that met the limit.
        probes: Whether each rate met the limit, in the order of the search; None if undecided.
    """
    results = [Probe(rate, 700, 9, 1.0, 0.1, met, None) for rate, met in probes.items()]
    return Load(peak, 0.003, planted_log(4).packed(), results)


def probed_rates(recorded_point: Record) -> list[float]:
    return [probe["rate"] for probe in recorded_point.artifacts["probes.json"]["probes"]]


@pytest.mark.parametrize(
    ("probes", "failed", "high"),
    [
        pytest.param(
            {100.0: True, 400.0: False, 200.0: True, 310.0: False}, 310.0, 310.0, id="decided"
        ),
        pytest.param({210.0: None, 400.0: False, 300.0: None}, 210.0, 400.0, id="some undecided"),
        pytest.param({210.0: None}, 210.0, None, id="undecided"),
    ],
)
def test_the_peak_lies_between_passed_and_failed_rates(
    probes: dict[float, bool | None], failed: float, high: float | None
) -> None:
    """Treat an undecided probe as failed in the search, although the peak may be higher."""
    recorded_point = record(load_point(latency_ms=60.0), [searched_load(200.0, probes)])

    assert recorded_point.metrics["peak_queries_per_second"] == pytest.approx(200.0)
    assert recorded_point.metrics["failed_queries_per_second"] == pytest.approx(failed)
    assert recorded_point.metrics["peak_queries_per_second_low"] == pytest.approx(200.0)
    assert recorded_point.metrics.get("peak_queries_per_second_high") == high
    assert probed_rates(recorded_point) == list(probes)


def test_peaks_of_several_processes_have_students_interval() -> None:
    passed = [2000.0, 3000.0]
    failed = [2100.0, 3100.0]
    loads = [searched_load(low, {high: False}) for low, high in zip(passed, failed, strict=True)]

    recorded_point = record(load_point(latency_ms=60.0), loads)

    metrics = recorded_point.metrics
    assert metrics["peak_queries_per_second"] == pytest.approx(stats.gmean(passed))
    assert metrics["failed_queries_per_second"] == pytest.approx(stats.gmean(failed))
    low, _ = student_interval(passed)
    _, high = student_interval(failed)
    assert metrics["peak_queries_per_second_low"] == pytest.approx(low)
    assert metrics["peak_queries_per_second_high"] == pytest.approx(high)
    assert probed_rates(recorded_point) == failed


def student_interval(rates: list[float]) -> tuple[float, float]:
    """Return the 95% interval of the geometric mean from SciPy."""
    logs = np.log(rates)
    low, high = stats.t.interval(0.95, len(rates) - 1, logs.mean(), stats.sem(logs))
    return math.exp(low), math.exp(high)


def test_the_interval_of_several_processes_includes_their_differences() -> None:
    recorded_point = record(
        load_point(rate=200),
        [Load(200.0, 0.003, planted_log(seed).packed(), []) for seed in range(5, 9)],
    )
    single = [
        record(load_point(rate=200), [Load(200.0, 0.003, planted_log(seed).packed(), [])])
        for seed in range(5, 9)
    ]
    values = np.log([entry.metrics["latency_p99_ms"] for entry in single])
    half = 3.1824 * values.std(ddof=1) / 2
    assert recorded_point.metrics["latency_p99_high_ms"] >= np.exp(values.mean() + half) * (
        1 - 1e-4
    )
    assert recorded_point.metrics["queries"] == 8_000


@pytest.mark.parametrize(
    ("load", "share", "processes"),
    [
        pytest.param(0.5, 0.5, 5, id="median, half load"),
        pytest.param(0.5, 0.9, 5, id="90th percentile, half load"),
        pytest.param(0.8, 0.9, 5, id="90th percentile, high load"),
        pytest.param(0.95, 0.9, 5, id="90th percentile, near saturation"),
        pytest.param(0.95, 0.99, 5, id="99th percentile, near saturation"),
        pytest.param(0.95, 0.5, 1, id="median of one process, near saturation"),
    ],
)
def test_quantiles_of_a_known_queue_are_not_underestimated(
    load: float, share: float, processes: int
) -> None:
    """Compare with an M/M/1 queue, whose sojourn times are exponential with mean 1 / (1 - load).

    Each process has 500 queries and starts with an empty queue.
    """
    random = np.random.default_rng(3)
    truth = -math.log(1 - share) / (1 - load)
    covered = 0
    for _ in range(60):
        sojourn_times = []
        for _ in range(processes):
            service = random.exponential(1, 500)
            gaps = random.exponential(1 / load, 500)
            # Lindley's recursion
            walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
            sojourn_times.append((walk - np.minimum.accumulate(walk) + service).tolist())
        metrics = quantile_metrics("x", share, sojourn_times, percentile)
        covered += metrics.get("x_low_ms", 0.0) <= truth <= metrics.get("x_high_ms", math.inf)
    assert covered >= 54


def test_metrics_of_an_overload_are_recorded() -> None:
    recorded_point = record(
        load_point(rate=200),
        [Load(200.0, 0.003, planted_log(10).packed(), [])],
        "overload",
        "queries come faster",
    )
    assert (recorded_point.outcome, recorded_point.tags["reason"]) == (
        "overload",
        "queries come faster",
    )
    assert recorded_point.metrics["queries"] == 2_000
    assert recorded_point.metrics["step_time_ms"] == pytest.approx(100.0)
    assert "queries.parquet" in recorded_point.artifacts
    without_queries = record(
        load_point(latency_ms=0.1),
        [Load(None, 0.003, QueryLog().packed(), [])],
        "overload",
        "too long",
    )
    assert "queries" not in without_queries.metrics


#: An hour has 3,600 s. A million queries at 200 per second take 5,000 s.
PRICE = "platform.price_per_hour=3.6"
TRAIN = ["paradnn.train", *TINY, "mode=inference", "server.min_seconds=0.5"]
#: Begin of the reason if the machine paused the load generator or woke it late. Tests accept this
#: outcome, because its record has the same metrics.
LATE_GENERATOR = "server.rate=50: the load generator could not keep up ("


@pytest.mark.framework
def test_the_server_scenario_is_measured_and_recorded(store: Store) -> None:
    server = ["server.rate=50", "server.latency_ms=60000", "server.percentile=50", "batch_size=8"]
    options = [word for word in TRAIN if not word.startswith("batch_size=")]
    completed = succeeded(
        [*options, "scenario=server", *server, "server.delay_ms=1000", PRICE], store
    )
    [point] = store.runs()
    metrics = store.values("latest_metrics", point["run_id"])
    params = store.values("params", point["run_id"])
    assert (params["server.rate"], params["batch_size"]) == ("50.0", "8")
    assert point["outcome"] == "ok" or (
        point["outcome"] == "overload" and point["reason"].startswith(LATE_GENERATOR)
    )
    assert metrics["queries"] >= 100
    assert metrics["latency_mean_ms"] == pytest.approx(
        metrics["queue_mean_ms"] + metrics["service_mean_ms"]
    )
    assert 0 < metrics["latency_p50_ms"] <= metrics["latency_p99_ms"] <= metrics["latency_max_ms"]
    assert 1 <= metrics["queries_per_batch"] <= 8
    assert metrics["cost_per_million_queries"] == pytest.approx(20.0)
    assert "queries, " in completed.stdout
    files = {path.name for path in store.files(point["run_id"]).iterdir()}
    assert {"queries.parquet", "latency.hgrm", "latency.hdr"} <= files


@pytest.mark.framework
def test_the_other_scenarios_are_measured_and_recorded(store: Store) -> None:
    scenarios = ("single_stream", "multi_stream", "offline")
    grids = ",".join(
        f"{{scenario: {name}, {name}.min_seconds: 0.1, {name}.min_queries: 20}}"
        for name in scenarios
    )
    succeeded(["paradnn.train", "-m", *TINY, "mode=inference", f"sweep.grids=[{grids}]"], store)
    queries = [store.values("latest_metrics", each["run_id"])["queries"] for each in store.runs()]
    assert len(queries) == 3
    assert min(queries) >= 20


@pytest.mark.framework
def test_a_limit_below_every_query_is_reported(store: Store) -> None:
    done = run([*TRAIN, "scenario=server", "server.latency_ms=0.001"], store)
    assert "overload (server.latency_ms=0.001: a single query takes " in done.stdout
    [point] = store.runs()
    assert point["outcome"] == "overload"
    assert store.values("latest_metrics", point["run_id"])["step_time_ms"] > 0


GPT = ["model=gpt", "model.layers=1", "model.width=8", "model.heads=2", "model.sequence_length=12"]
GENERATE = [
    "paradnn.train",
    "-m",
    *GPT,
    "model.vocab_size=20",
    "batch_size=4",
    *SHORT,
    "generate.prompt=5",
]


@pytest.mark.framework
def test_generation_lengths_are_swept_recorded_and_resumed(store: Store) -> None:
    grids = (
        "{model: gpt, compile: graph, precision: float16}, "
        "{model: gpt, compile: xla, precision: bfloat16}"
    )
    command = [*GENERATE, "mode=generate", "generate.tokens=3,7", f"sweep.grids=[{grids}]"]
    succeeded(command, store)
    points = store.runs()
    assert [(point["outcome"], point["checks"]) for point in points] == [("ok", "passed")] * 4
    for point in points:
        metrics = store.values("latest_metrics", point["run_id"])
        params = store.values("params", point["run_id"])
        length = 5 + int(str(params["generate.tokens"]))
        assert metrics["cache_bytes"] == 4 * 2 * 2 * length * 8
        assert metrics["tokens_per_second"] == pytest.approx(metrics["examples_per_second"])
        assert metrics["time_to_first_token_ms"] > 0
        assert metrics["latency_steps"] == 200
        assert metrics["phase_prefill_seconds"] > 0
        [process] = json.loads((store.files(point["run_id"]) / "prefill.json").read_text())[
            "processes"
        ]
        assert len(process["prefill"]["blocks"]) >= 6
    repeated = run(command, store)
    assert "4 skipped, the store holds their outcome already (4 ok)" in repeated.stdout
    assert len(store.runs()) == 4


BANDWIDTH = 1e10
PEAK = 1e11


def generation_point() -> Point:
    return read_point(
        {"model": {"name": "gpt"}, "batch_size": 4, "mode": "generate", "generate": {"tokens": 11}}
    )


def thirty_blocks(step: float, steps: int) -> Timing:
    """Return the timing of 30 blocks of `steps` steps, with about `step` seconds per step."""
    return timing([steps * step * (1 + 0.01 * (number % 3 - 1)) for number in range(30)], steps)


def record_generation(point: Point, cache_bytes: int | None = None) -> Record:
    costs = step_costs(point)
    compilation = Compilation([0.5, 0.1], [1, 0], None)
    generation = Generation(
        thirty_blocks(0.2, 1),
        compilation,
        costs.cache_bytes if cache_bytes is None else cache_bytes,
    )
    measured = {"parameters": costs.parameters, "compilation": compilation}
    result = answered(thirty_blocks(0.005, 20), measured, latencies=[0.006] * 200, work=generation)
    peaks = {"peak_bytes_per_second": BANDWIDTH, "peak_flops_per_second": PEAK}
    return recorded(point, result, peaks=peaks)


def test_metrics_count_one_token_of_each_example_per_step() -> None:
    point = generation_point()
    record = record_generation(point)
    costs = step_costs(point)
    first = prefill_costs(point)
    expected = {
        "time_to_first_token_ms": 200.0,
        "time_per_output_token_ms": 5.0,
        "tokens_per_second": 800.0,
        "tokens_per_second_per_user": 200.0,
        "examples_per_second": 800.0,
        "generation_ms": 250.0,
        "prompt_tokens_per_second": 4 * 64 / 0.2,
        "latency_p50_ms": 6.0,
        "cache_bytes": 4 * 4 * 2 * (64 + 11) * 256 * 4,
        "decode_bytes": costs.bytes_per_step,
        "decode_bandwidth_fraction": costs.bytes_per_step / 0.005 / BANDWIDTH,
        "prefill_intensity": first.flops_per_step / first.bytes_per_step,
        "prefill_flops_utilization": first.flops_per_step / 0.2 / PEAK,
        "prefill_compile_seconds": 0.6,
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected)
    for name in ("time_to_first_token_ms", "time_per_output_token_ms"):
        low, high = (record.metrics[name.replace("_ms", f"_{end}_ms")] for end in ("low", "high"))
        assert low < record.metrics[name] < high
    for name in ("tokens_per_second", "tokens_per_second_per_user"):
        assert record.metrics[f"{name}_low"] < record.metrics[name] < record.metrics[f"{name}_high"]
    assert record.tags["checks"] == "passed"
    assert record.tags["prefill_steady"] == "true"
    assert len(record.artifacts["prefill.json"]["processes"][0]["prefill"]["blocks"]) == 30
    assert "token of each example of **gpt" in record.description
    assert (
        "\n\nGeneration: first token after 200.000 ms, then 5.000 ms per token; "
        in record.description
    )


def test_a_cache_of_unexpected_size_fails_the_check() -> None:
    recorded_point = record_generation(generation_point(), cache_bytes=5)

    assert recorded_point.tags["checks"].startswith("failed: the cache has 5 bytes, the analytic")
