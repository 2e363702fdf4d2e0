"""A served model is asked by the OpenAI protocol; a server of this file's own answers, with times
that it is told.
"""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from paradnn.workloads.endpoint import Client, Endpoint, EndpointRequest, Requests
from tests.conftest import Store, run, succeeded
from tests.processes import PATIENCE

FIRST = 0.03
EACH = 0.002
TOKENS = 5
INSTEAD = yaml.safe_load(Path(__file__).with_name("instead.yaml").read_text())
#: A server may answer so many requests before it begins with that, of a model called later-...
SANE = 10


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "_Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._whole(200, b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        begun = time.monotonic()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append(
                {**asked, "key": self.headers.get("Authorization"), "path": self.path}
            )
            self.server.peers.add(self.client_address)
            count = sum(entry["model"] == asked["model"] for entry in self.server.seen)
        later, _, kind = asked["model"].rpartition("-")
        kind = "tiny" if later and count <= SANE else kind
        if kind in ("hangup", "late"):
            time.sleep(0.6 if kind == "late" else 0.0)
            self.close_connection = True
            return
        status = INSTEAD.get(kind, (0,))[0]
        if status > 0:
            self._whole(status, INSTEAD[kind][1].encode())
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(100 if kind == "dripping" else 0):
            self._send(b": still there\n\n")
            time.sleep(0.05)
        for number in range(1000 if kind == "endless" else asked["max_tokens"]):
            time.sleep(max(0.0, begun + FIRST + number * EACH - time.monotonic()))
            if self.path.endswith("/v1/completions"):
                part = {"text": "x"}
            else:
                part = {"delta": {"content": "x"}}
            self._event(json.dumps({"choices": [part]}))
            if kind == "broken":
                self.close_connection = True
                return
        usage = {"prompt_tokens": 3, "completion_tokens": asked["max_tokens"]}
        self._event(json.dumps({"choices": [], "usage": usage}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        self._send(f"data: {text}\n\n".encode())

    def _send(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def _whole(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.lock = threading.Lock()
        self.seen = list[dict[str, Any]]()
        self.peers = set[Any]()

    def handle_error(self, *_: object) -> None:
        """Who asks may hang up."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def options(server: _Server) -> dict[str, Any]:
    server.seen.clear()
    server.peers.clear()
    return {"url": server.url, "output_tokens": TOKENS, "input_tokens": 7, "patience": 20.0}


def test_a_request_says_when_its_tokens_came_and_how_many(
    server: _Server, options: dict[str, Any]
) -> None:
    client = Client(Endpoint(**options))
    asked = client.loop(1, 0.0, 3)
    assert client.model == "tiny"
    assert [(each.prompt, each.tokens, each.problem) for each in asked] == [(3, TOKENS, "")] * 3
    for each in asked:  # no server answers before the time for which it sleeps
        assert each.first - each.sent >= FIRST * 1e9
        assert each.last - each.sent >= (FIRST + (TOKENS - 1) * EACH) * 1e9
        assert each.due <= each.sent
    texts = [entry["messages"][0]["content"] for entry in server.seen]
    assert [len(text.split()) for text in texts] == [7] * 3
    assert len(set(texts)) == 3, "each prompt is new"
    assert len(server.peers) == 1, "a thread keeps its connection"


def test_texts_and_a_key_are_sent(
    server: _Server, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    asked = Client(Endpoint(**options, api="completions", key_variable="MY_KEY")).loop(1, 0.0, 1)
    assert asked[0].tokens == TOKENS
    assert (server.seen[0]["key"], server.seen[0]["path"]) == ("Bearer secret", "/v1/completions")


def test_an_open_loop_asks_as_scheduled_whether_or_not_others_are_answered(
    options: dict[str, Any],
) -> None:
    asked = Client(Endpoint(**options)).loop(1, 0.3, 30, rate=200.0)
    assert len(asked) >= 30
    assert asked[-1].due - asked[0].due >= 0.3e9
    assert any(later.sent < sooner.last for sooner, later in pairwise(asked)), "they overlap"
    again = Client(Endpoint(**options)).loop(1, 0.0, 30, rate=200.0)
    gaps = [[later.due - sooner.due for sooner, later in pairwise(each)] for each in (asked, again)]
    assert gaps[0][: len(gaps[1])] == gaps[1], "the same seed gives the same arrivals"


def test_limits_say_what_is_in_time() -> None:
    request = EndpointRequest(0, 1_000_000, 20_000_000, 60_000_000, 3, 5)
    held = [{"first_token_ms": 20.0}, {"token_ms": 10.0}, {"request_ms": 60.0, "token_ms": 10.0}]
    missed = [
        {"first_token_ms": 19.9},
        {"token_ms": 9.9},
        {"request_ms": 59.9},
    ]  # from when it was due, not sent
    for limits in held + missed:
        assert Endpoint(**limits).in_time(request) is (limits in held), limits
    assert not Endpoint().in_time(EndpointRequest(0, 0, 1, 1, problem="gone"))


def test_requests_are_read_back_and_nonsense_is_refused() -> None:
    given = [EndpointRequest(5, 6, 7, 8, 1, 2), EndpointRequest(1, 2, 3, 4, problem="gone")]
    assert Requests.packed(given, "tiny").requests() == given[::-1]
    for rows in ("no base64!", "aGVsbG8=", Requests.packed([]).rows[:-4]):
        with pytest.raises(ValueError, match=r"."):
            Requests(rows)


@pytest.mark.framework
def test_a_sweep_over_an_endpoint_is_recorded_with_intervals(server: _Server, store: Store) -> None:
    sweep = [
        f"endpoint.url={server.url}",
        "endpoint.concurrency=1,3",
        f"endpoint.output_tokens={TOKENS}",
    ]
    sweep += ["endpoint.min_seconds=0.1", "endpoint.min_queries=24", "endpoint.first_token_ms=1e5"]
    short = ["measure=quick", "measure.processes=2", "measure.warmup_seconds=0.05"]
    done = succeeded(["paradnn.train", "-m", "model=endpoint", *sweep, *short], store)
    assert "ms to the first token" in done.stdout
    runs = {
        store.values("params", each["run_id"])["endpoint.concurrency"]: each
        for each in store.runs()
    }
    assert {key: (tags["outcome"], tags["endpoint_model"]) for key, tags in runs.items()} == {
        "1": ("ok", "tiny"),
        "3": ("ok", "tiny"),
    }
    for concurrency, tags in runs.items():
        metrics = store.values("latest_metrics", tags["run_id"])
        assert metrics["queries"] >= 48
        assert (
            metrics["output_tokens"],
            metrics["failed_queries"],
            metrics["in_time_fraction"],
        ) == (TOKENS, 0, 1)
        low, first, high = (
            metrics[f"time_to_first_token{end}_ms"] for end in ("_low", "", "_high")
        )
        assert first >= FIRST * 1e3
        assert low <= first <= high
        assert metrics["time_per_output_token_ms"] > 0
        most = int(concurrency) / (FIRST + (TOKENS - 1) * EACH)
        assert 0 < metrics["queries_per_second"] <= most
        assert metrics["tokens_per_second"] == pytest.approx(TOKENS * metrics["queries_per_second"])
        assert (
            "Answers: first token after" in tags["mlflow.note.content"]
            or "Answers of" in tags["mlflow.note.content"]
        )


@pytest.mark.framework
@pytest.mark.parametrize("loop", ["concurrency=4", "rate=200"])
def test_whatever_a_server_does_instead_is_an_outcome_that_says_so(
    server: _Server, store: Store, loop: str
) -> None:
    server.seen.clear()
    models = ",".join(f"{when}{kind}" for when in ("", "later-") for kind in INSTEAD)
    sweep = [
        f"endpoint.url={server.url}",
        f"endpoint.{loop}",
        f"endpoint.model={models}",
        "endpoint.patience=0.3",
    ]
    sweep += [
        "endpoint.min_seconds=0.1",
        "endpoint.min_queries=24",
        f"endpoint.output_tokens={TOKENS}",
    ]
    begun = time.monotonic()
    sweep += ["measure=quick", "measure.warmup_seconds=0", "measure.timeout=4"]
    done = run(["paradnn.train", "-m", "model=endpoint", *sweep], store)
    assert time.monotonic() - begun < PATIENCE, "no server is waited for without end"
    assert "Traceback" not in done.stdout + done.stderr
    for tags in store.runs():
        later, _, kind = str(store.values("params", tags["run_id"])["endpoint.model"]).rpartition(
            "-"
        )
        if "ms late; ask for less" in tags.get("reason", ""):
            continue  # a busy machine wakes who asks too late
        assert tags["outcome"] == ("ok" if later else "unavailable"), (later, kind, tags)
        assert INSTEAD[kind][2] in tags["request_problem" if later else "reason"], (
            later,
            kind,
            tags,
        )
        metrics = store.values("latest_metrics", tags["run_id"])
        assert not later or min(metrics["queries"], metrics["failed_queries"]) >= 1
    assert len(store.runs()) == 2 * len(INSTEAD)
    done = run(
        ["paradnn.train", "model=endpoint", "endpoint.url=http://127.0.0.1:9/v1", "measure=quick"],
        store,
    )
    assert "Connection refused; start the server" in done.stderr + done.stdout


@pytest.mark.framework
def test_two_endpoints_are_compared(server: _Server, store: Store, tmp_path: Path) -> None:
    sides = [
        f"endpoint.url={server.url}",
        f"endpoint.url={server.url.replace('127.0.0.1', 'localhost')}",
    ]
    short = [
        "model=endpoint",
        "endpoint.output_tokens=2",
        "endpoint.min_seconds=0",
        "endpoint.min_queries=3",
    ]
    limits = ["--rounds", "5", "--most", "5", "--json", str(tmp_path / "found.json")]
    done = run(
        [
            "paradnn.compare.__main__",
            *limits,
            *sides,
            "--",
            *short,
            "measure=quick",
            "measure.warmup_seconds=0",
        ],
        store,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rounds"] == 5
    assert 0 < found["low"] <= found["ratio"] <= found["high"]
