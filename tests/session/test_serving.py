"""Scenarios as a user measures them: a real model, a real generator, the run that comes of them."""

import pytest

from tests.conftest import TINY, Store, run

pytestmark = pytest.mark.framework

#: An hour is 3,600 s: a million queries at 200 a second take 5,000.
PRICE = "platform.price_per_hour=3.6"
ASK = ["paradnn.train", *TINY, "mode=inference", "server.min_seconds=0.5"]


#: A machine that wakes the generator late, or pauses it, is one outcome; what is recorded is the same.
LATE = "server.rate=50: the load generator could not keep up: "


def test_a_server_is_measured_and_recorded(store: Store) -> None:
    server = ["server.rate=50", "server.latency_ms=60000", "server.percentile=50", "batch_size=8"]
    others = [word for word in ASK if not word.startswith("batch_size=")]
    done = run([*others, "scenario=server", *server, "server.delay_ms=1000", PRICE], store)
    assert done.returncode == 0, done.stderr
    [point] = store.runs()
    metrics, params = store.values("latest_metrics", point["run_id"]), store.values("params", point["run_id"])
    assert (params["server.rate"], params["batch_size"]) == ("50.0", "8")
    assert point["outcome"] == "ok" or (point["outcome"] == "overload" and point["reason"].startswith(LATE))
    assert metrics["queries"] >= 100
    assert metrics["latency_mean_ms"] == pytest.approx(metrics["queue_mean_ms"] + metrics["service_mean_ms"])
    assert 0 < metrics["latency_p50_ms"] <= metrics["latency_p99_ms"] <= metrics["latency_max_ms"]
    assert 1 <= metrics["queries_per_batch"] <= 8
    assert metrics["cost_per_million_queries"] == pytest.approx(20.0)
    assert "queries, " in done.stdout
    files = {path.name for path in store.files(point["run_id"]).iterdir()}
    assert {"queries.parquet", "latency.hgrm", "latency.hdr"} <= files


def test_the_other_scenarios_are_too(store: Store) -> None:
    scenarios = ("single_stream", "multi_stream", "offline")
    grids = ",".join(f"{{scenario: {name}, {name}.min_seconds: 0.1, {name}.min_queries: 20}}" for name in scenarios)
    done = run(["paradnn.train", "-m", *TINY, "mode=inference", f"sweep.grids=[{grids}]"], store)
    assert done.returncode == 0, done.stderr
    assert [store.values("latest_metrics", each["run_id"])["queries"] >= 20 for each in store.runs()] == [True] * 3


def test_a_limit_that_no_query_can_hold_is_told(store: Store) -> None:
    done = run([*ASK, "scenario=server", "server.latency_ms=0.001"], store)
    assert "overload (server.latency_ms=0.001: even a single query takes longer: " in done.stdout
    [point] = store.runs()
    assert point["outcome"] == "overload"
    assert store.values("latest_metrics", point["run_id"])["step_time_ms"] > 0
