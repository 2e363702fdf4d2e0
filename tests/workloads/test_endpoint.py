"""Runs of `model=endpoint` against a server of the OpenAI protocol, from the command line."""

import json
from pathlib import Path

import pytest

from paradnn.config.point import step_costs
from paradnn.config.reading import read_point
from paradnn.core.errors import ConfigError
from paradnn.platform.environment import Environment
from paradnn.session.measured import Measured
from paradnn.workloads.endpoint import ENDPOINT, Endpoint
from paradnn.workloads.endpoint.records import EndpointRequest, Requests, window_seconds
from tests.conftest import Store, run, succeeded
from tests.session.records import answered, timing
from tests.workloads.openai_server import (
    BEHAVIORS,
    FIRST_TOKEN_SECONDS,
    GOOD_REQUESTS,
    TOKEN_SECONDS,
    OpenAIServer,
)

TOKENS = 5
QUICK = ["measure=quick", "measure.warmup_seconds=0"]
#: Behaviors of the server that let every request fail.
FAILURES = (
    "busy",
    "failing",
    "garbage",
    "cut",
    "empty",
    "odd",
    "sorry",
    "hangup",
    "late",
    "broken",
    "endless",
)


#: Nanoseconds of a millisecond.
MS = 1_000_000


@pytest.mark.parametrize(
    ("limits", "is_in_time"),
    [
        pytest.param({}, True, id="no-limit"),
        pytest.param({"first_token_ms": 20.0}, True, id="first-token-at-limit"),
        pytest.param({"first_token_ms": 19.9}, False, id="first-token-late"),
        pytest.param({"token_ms": 10.0}, True, id="token-at-limit"),
        pytest.param({"token_ms": 9.9}, False, id="token-late"),
        pytest.param({"request_ms": 60.0, "token_ms": 10.0}, True, id="request-at-limit"),
        # The request was due at 0 and sent after 1 ms; the limit starts at 0.
        pytest.param({"request_ms": 59.9}, False, id="request-late"),
    ],
)
def test_limits_decide_which_requests_are_in_time(
    limits: dict[str, float], is_in_time: bool
) -> None:
    request = EndpointRequest(due=0, sent=MS, first=20 * MS, last=60 * MS, prompt=3, tokens=5)

    assert Endpoint(**limits).is_in_time(request) is is_in_time


def test_a_failed_request_is_never_in_time() -> None:
    request = EndpointRequest(due=0, sent=0, first=1, last=1, problem="gone")

    assert not Endpoint().is_in_time(request)


def test_the_window_of_a_rate_includes_failed_requests() -> None:
    answered = EndpointRequest(due=0, sent=0, first=1, last=1_000_000_000, tokens=1)
    failed = EndpointRequest(due=3_000_000_000, sent=0, first=0, last=4_000_000_000, problem="gone")

    assert window_seconds([answered, failed]) == 4.0


@pytest.fixture(scope="module")
def measured_endpoint() -> Measured:
    """Return a request per second for ten seconds, each 1 ms slower, and a failed request."""
    requests = [
        EndpointRequest(
            due=second * 10**9,
            sent=second * 10**9,
            first=second * 10**9 + 20 * MS,
            last=second * 10**9 + (60 + second) * MS,
            tokens=5,
        )
        for second in range(10)
    ]
    failed = EndpointRequest(due=10**10, sent=10**10, first=0, last=2 * 10**10, problem="gone")
    return measured_requests([*requests, failed])


def test_charts_show_distributions_with_limits(measured_endpoint: Measured) -> None:
    charts = Endpoint(first_token_ms=50.0).charts(measured_endpoint, {})

    assert [chart.title for chart in charts] == [
        "Latency of a request",
        "Time to the first token",
        "Time per output token",
    ]
    assert ["limit 50 ms" in str(chart) for chart in charts] == [False, True, False]


def test_the_series_shows_latencies_over_time(measured_endpoint: Measured) -> None:
    series = Endpoint().series(measured_endpoint)

    assert [moment.step for moment in series] == pytest.approx(range(0, 10_000, 1000), abs=200)
    latencies = [moment.metrics["window_latency_max_ms"] for moment in series]
    assert latencies == [60 + second for second in range(10)]


def measured_requests(requests: list[EndpointRequest]) -> Measured:
    result = answered(timing([1.0]), work=Requests.packed(requests, "tiny"))
    environment = Environment("a server", {}, {}, {})
    point = read_point({"model": {"name": "fc"}})
    return Measured(point, environment, step_costs(point), [result], {}, {}, None, 7, 8)


@pytest.mark.parametrize(
    ("token_ms", "has_usage", "speed"),
    [
        pytest.param(2.0, True, "then 2.000 ms per token, 125.0 tokens/s", id="usage"),
        pytest.param(2.0, False, "then 2.000 ms per chunk, 125.0 chunks/s", id="no-usage"),
        pytest.param(
            0.0, True, "all tokens at once in 50 of 50 answers, 125.0 tokens/s", id="burst"
        ),
    ],
)
def test_a_result_states_the_unit_of_its_token_times(
    token_ms: float, has_usage: bool, speed: str
) -> None:
    requests = [
        EndpointRequest(
            due=number * 40 * MS,
            sent=number * 40 * MS,
            first=number * 40 * MS + round((40 - 4 * token_ms) * MS),
            last=(number + 1) * 40 * MS,
            prompt=3,
            tokens=5,
            has_usage=has_usage,
        )
        for number in range(50)
    ]
    measured = measured_requests(requests)

    metrics = ENDPOINT.metrics(measured, {})
    tags = ENDPOINT.tags(measured)

    text = ENDPOINT.describe(metrics, tags)
    assert text is not None
    assert speed in text.clauses
    assert ("time_per_output_token_ms" in metrics) == (token_ms > 0)


@pytest.mark.parametrize(
    ("ignore_eos", "lengths", "clause"),
    [
        pytest.param(True, [8, 8, 8], None, id="as-requested"),
        pytest.param(
            True,
            [8, 3, 1],
            "answers 2 shorter than endpoint.output_tokens=8, of 3 answers",
            id="shorter",
        ),
        pytest.param(False, [8, 3, 1], None, id="the-model-may-end"),
        pytest.param(
            False,
            [8, 9, 1],
            "answers 1 longer than endpoint.output_tokens=8, of 3 answers",
            id="longer",
        ),
        pytest.param(
            True,
            [3, 8, 9],
            "answers 1 shorter and 1 longer than endpoint.output_tokens=8, of 3 answers",
            id="both",
        ),
    ],
)
def test_answers_of_unexpected_length_are_reported(
    ignore_eos: bool, lengths: list[int], clause: str | None
) -> None:
    requests = [
        EndpointRequest(due=0, sent=0, first=MS, last=(1 + length) * MS, tokens=length)
        for length in lengths
    ]
    without_usage = EndpointRequest(due=0, sent=0, first=MS, last=2 * MS, tokens=2, has_usage=False)
    measured = measured_requests([*requests, without_usage])
    endpoint = Endpoint(output_tokens=8, ignore_eos=ignore_eos)

    text = endpoint.describe(endpoint.metrics(measured, {}), endpoint.tags(measured))

    assert text is not None
    assert [entry for entry in text.clauses if entry.startswith("answers")] == (
        [clause] if clause else []
    )


def test_unpacked_requests_are_in_order() -> None:
    late = EndpointRequest(due=5, sent=6, first=7, last=8, prompt=1, tokens=2)
    early = EndpointRequest(due=1, sent=2, first=3, last=4, problem="gone")

    assert Requests.packed([late, early], "tiny").requests() == [early, late]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param("no base64!", id="no-base64"),
        pytest.param("aGVsbG8=", id="not-compressed"),
        pytest.param(Requests.packed([]).rows[:-4], id="cut"),
    ],
)
def test_malformed_requests_are_rejected(rows: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Requests(rows)


@pytest.mark.parametrize("url", ["http:///v1", "http://host:99999/v1", "http://host:port/v1"])
def test_an_address_without_host_or_port_is_rejected(url: str, store: Store) -> None:
    completed = run(["paradnn.train", "model=endpoint", f"endpoint.url={url}"], store)

    assert completed.returncode == 2
    assert "endpoint.url" in completed.stderr
    assert "has no valid host and port" in completed.stderr


def test_the_forecast_of_a_search_is_rejected() -> None:
    with pytest.raises(ConfigError, match="cannot be planned"):
        Endpoint(rate="peak", request_ms=1.0).require_predictable()


@pytest.mark.framework
def test_a_sweep_is_recorded_with_intervals(server: OpenAIServer, store: Store) -> None:
    completed = succeeded(
        [
            "paradnn.train",
            "-m",
            "model=endpoint",
            f"endpoint.url={server.url}",
            "endpoint.concurrency=1,3",
            f"endpoint.output_tokens={TOKENS}",
            "endpoint.min_seconds=0.1",
            "endpoint.min_queries=24",
            "endpoint.first_token_ms=1e5",
            "measure=quick",
            "measure.processes=2",
            "measure.warmup_seconds=0.05",
        ],
        store,
    )

    assert "ms to the first token" in completed.stdout
    runs = {
        str(store.values("params", tags["run_id"])["endpoint.concurrency"]): tags
        for tags in store.runs()
    }
    assert sorted(runs) == ["1", "3"]
    for concurrency, tags in runs.items():
        assert tags["outcome"] == "ok"
        assert tags["endpoint_model"] == "tiny"
        assert "Answers" in tags["mlflow.note.content"]
        metrics = store.values("latest_metrics", tags["run_id"])
        assert metrics["queries"] >= 48
        assert metrics["output_tokens"] == TOKENS
        assert metrics["failed_queries"] == 0
        assert metrics["in_time_fraction"] == 1
        first = metrics["time_to_first_token_ms"]
        assert first >= FIRST_TOKEN_SECONDS * 1e3
        low = metrics["time_to_first_token_low_ms"]
        high = metrics["time_to_first_token_high_ms"]
        assert low <= first <= high
        assert metrics["time_per_output_token_ms"] > 0
        answer_seconds = FIRST_TOKEN_SECONDS + (TOKENS - 1) * TOKEN_SECONDS
        assert 0 < metrics["queries_per_second"] <= int(concurrency) / answer_seconds
        tokens_per_second = TOKENS * metrics["queries_per_second"]
        assert metrics["tokens_per_second"] == pytest.approx(tokens_per_second)


def failing_sweep(server: OpenAIServer, models: list[str], load: str) -> list[str]:
    return [
        "paradnn.train",
        "-m",
        "model=endpoint",
        f"endpoint.url={server.url}",
        f"endpoint.{load}",
        f"endpoint.model={','.join(models)}",
        f"endpoint.output_tokens={TOKENS}",
        "endpoint.patience=2",
        "endpoint.startup_seconds=0",
        "endpoint.min_seconds=0.1",
        "endpoint.min_queries=24",
        *QUICK,
    ]


@pytest.mark.framework
def test_points_of_a_failing_server_are_unavailable(server: OpenAIServer, store: Store) -> None:
    assert set(FAILURES) <= set(BEHAVIORS)

    completed = run(failing_sweep(server, [*FAILURES], "concurrency=4"), store)

    assert "Traceback" not in completed.stdout + completed.stderr
    runs = store.runs()
    assert len(runs) == len(FAILURES)
    for tags in runs:
        assert tags["outcome"] == "unavailable", tags
        assert f"endpoint.url={server.url}: " in tags["reason"]


@pytest.mark.framework
@pytest.mark.parametrize("load", ["concurrency=4", "rate=200"])
def test_a_server_that_fails_during_a_run_is_reported_as_gone(
    server: OpenAIServer, store: Store, load: str
) -> None:
    models = [f"later-{name}" for name in FAILURES]

    completed = run(failing_sweep(server, models, load), store)

    assert "Traceback" not in completed.stdout + completed.stderr
    runs = store.runs()
    assert len(runs) == len(FAILURES)
    for tags in runs:
        assert tags["outcome"] == "unavailable", tags
        assert "the server stopped answering after" in tags["reason"]
        assert "failed; the first: " in tags["request_problem"]
        metrics = store.values("latest_metrics", tags["run_id"])
        # The requests that wait for the server and warm it up are among the good ones.
        assert 1 <= metrics["queries"] <= GOOD_REQUESTS - 2
        assert metrics["failed_queries"] >= 2


@pytest.mark.framework
def test_a_server_that_fails_occasionally_is_measured(server: OpenAIServer, store: Store) -> None:
    [command, *overrides] = failing_sweep(server, ["limited"], "concurrency=4")

    succeeded([command, *overrides], store)

    [tags] = store.runs()
    assert tags["outcome"] == "ok"
    assert "status 429 Too Many Requests: slow down" in tags["request_problem"]
    metrics = store.values("latest_metrics", tags["run_id"])
    assert metrics["queries"] >= 1
    assert metrics["failed_queries"] >= 1


@pytest.mark.framework
def test_two_endpoints_are_compared(server: OpenAIServer, store: Store, tmp_path: Path) -> None:
    result_file = tmp_path / "result.json"

    completed = run(
        [
            "paradnn.compare.__main__",
            "--rounds",
            "5",
            "--most",
            "5",
            "--json",
            str(result_file),
            f"endpoint.url={server.url}",
            f"endpoint.url={server.url.replace('127.0.0.1', 'localhost')}",
            "--",
            "model=endpoint",
            "endpoint.output_tokens=2",
            "endpoint.min_seconds=0",
            "endpoint.min_queries=3",
            *QUICK,
        ],
        store,
    )

    assert completed.returncode in (0, 1), completed.stderr
    result = json.loads(result_file.read_text())
    assert result["rounds"] == 5
    assert 0 < result["low"] <= result["ratio"] <= result["high"]
