"""The client of `model=endpoint`, with servers that answer correctly and servers that fail."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paradnn.core.errors import UnavailableError
from paradnn.workloads.endpoint import Endpoint
from paradnn.workloads.endpoint.client import Client
from paradnn.workloads.endpoint.failures import retry_seconds
from paradnn.workloads.endpoint.records import EndpointRequest
from tests.workloads.openai_server import (
    FIRST_TOKEN_SECONDS,
    GOOD_REQUESTS,
    PROMPT_TOKENS,
    TOKEN_SECONDS,
    Handler,
    OpenAIServer,
    serving,
)

TOKENS = 5
#: Seconds after which tests of silent servers give up on a request.
SHORT_PATIENCE = 2.0


def options(server: OpenAIServer, **changes: Any) -> Endpoint:
    keys = {
        "url": server.url,
        "output_tokens": TOKENS,
        "input_tokens": 7,
        "patience": 20.0,
        "startup_seconds": 0.0,
        **changes,
    }
    return Endpoint(**keys)


def one_request(endpoint: Endpoint) -> EndpointRequest:
    [request] = Client(endpoint).run_requests(concurrency=1, seconds=0, queries=1)
    return request


# Requests that succeed


def test_a_request_records_its_times_and_tokens(server: OpenAIServer) -> None:
    client = Client(options(server))

    requests = client.run_requests(concurrency=1, seconds=0, queries=3)

    assert client.model == "tiny"
    for request in requests:
        assert (request.prompt, request.tokens, request.problem) == (PROMPT_TOKENS, TOKENS, "")
        # The server never answers early.
        assert request.first - request.sent >= FIRST_TOKEN_SECONDS * 1e9
        answer_seconds = FIRST_TOKEN_SECONDS + (TOKENS - 1) * TOKEN_SECONDS
        assert request.last - request.sent >= answer_seconds * 1e9
        assert request.due <= request.sent


def test_prompts_differ_and_share_one_connection(server: OpenAIServer) -> None:
    Client(options(server)).run_requests(concurrency=1, seconds=0, queries=3)

    prompts = [request["messages"][0]["content"] for request in server.requests]
    assert [len(prompt.split()) for prompt in prompts] == [7, 7, 7]
    assert len(set(prompts)) == 3
    assert len(server.peers) == 1


def test_a_request_uses_the_configured_api_and_key(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", " secret\n")

    request = one_request(options(server, api="completions", key_variable="MY_KEY"))

    assert request.tokens == TOKENS
    assert server.requests[0]["key"] == "Bearer secret"
    assert server.requests[0]["path"] == "/v1/completions"


def test_the_error_of_an_invalid_key_does_not_contain_the_key(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sec\nret")

    with pytest.raises(UnavailableError, match="OPENAI_API_KEY") as raised:
        Client(options(server))

    assert "sec" not in str(raised.value).replace("endpoint.startup_seconds", "")


def test_an_open_loop_keeps_its_schedule(server: OpenAIServer) -> None:
    endpoint = options(server)

    first = Client(endpoint).run_requests(concurrency=1, seconds=0.3, queries=30, rate=200.0)
    second = Client(endpoint).run_requests(concurrency=1, seconds=0, queries=30, rate=200.0)

    assert len(first) >= 30
    assert first[-1].due - first[0].due >= 0.3e9
    assert any(later.sent < earlier.last for earlier, later in pairwise(first)), (
        "no requests overlap"
    )
    first_gaps = [later.due - earlier.due for earlier, later in pairwise(first)]
    second_gaps = [later.due - earlier.due for earlier, later in pairwise(second)]
    assert first_gaps[: len(second_gaps)] == second_gaps, (
        "the same seed must give the same arrivals"
    )


@pytest.mark.parametrize("model", ["nodone", "nullerrors", "bytes", "http10", "open", "hints"])
def test_unusual_streams_are_complete(server: OpenAIServer, model: str) -> None:
    requests = Client(options(server, model=model)).run_requests(
        concurrency=1, seconds=0, queries=2
    )

    assert [request.problem for request in requests] == ["", ""]
    assert all(request.tokens >= 1 for request in requests)


def test_a_connection_that_the_server_closed_is_opened_again(server: OpenAIServer) -> None:
    requests = Client(options(server, model="closing")).run_requests(
        concurrency=1, seconds=0, queries=4
    )

    assert [request.problem for request in requests] == [""] * 4
    assert len(server.peers) == 4


@pytest.mark.parametrize(
    ("changes", "sent", "omitted"),
    [
        pytest.param(
            {},
            {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0},
            "max_completion_tokens",
            id="defaults",
        ),
        pytest.param({"ignore_eos": False}, {"max_tokens": TOKENS}, "ignore_eos", id="ignore-eos"),
        pytest.param(
            {"token_limit": "max_completion_tokens"},
            {"max_completion_tokens": TOKENS},
            "max_tokens",
            id="token-limit",
        ),
        pytest.param({"stream_usage": False}, {"stream": True}, "stream_options", id="usage"),
        pytest.param({"temperature": None}, {"stream": True}, "temperature", id="temperature"),
    ],
)
def test_parameters_can_be_omitted(
    server: OpenAIServer, changes: dict[str, Any], sent: dict[str, Any], omitted: str
) -> None:
    one_request(options(server, **changes))

    [body] = server.requests
    assert body.items() >= sent.items()
    assert omitted not in body


# Requests that fail


def test_the_proposed_remedies_satisfy_a_strict_server(server: OpenAIServer) -> None:
    keys: dict[str, Any] = {"model": "strict"}
    remedies = [
        ("endpoint.ignore_eos=false", {"ignore_eos": False}),
        ("endpoint.stream_usage=false", {"stream_usage": False}),
        ("endpoint.temperature=null", {"temperature": None}),
        ("endpoint.token_limit=max_completion_tokens", {"token_limit": "max_completion_tokens"}),
    ]
    for remedy, change in remedies:
        with pytest.raises(UnavailableError, match=remedy):
            Client(options(server, **keys)).wait_until_ready()
        keys |= change

    assert one_request(options(server, **keys)).problem == ""


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        pytest.param("busy", "status 429 Too Many Requests: slow down", id="busy"),
        pytest.param("failing", "status 500 Internal Server Error", id="failing"),
        pytest.param("missing", "status 404 Not Found: Not Found; check endpoint.url", id="404"),
        pytest.param("forbidden", "no key; put the API key into the environment", id="401"),
        pytest.param("moved", "set endpoint.url=https://elsewhere.example/v1", id="redirect"),
        pytest.param("garbage", "an event is not JSON: {]", id="garbage"),
        pytest.param("cut", "broke off within an event", id="cut"),
        pytest.param("empty", "the answer contains no token", id="empty"),
        pytest.param("odd", "'delta' is not an object", id="odd"),
        pytest.param("sorry", "out of memory", id="error-event"),
        pytest.param("whole", "answered with application/json, not with a stream", id="document"),
        pytest.param("hangup", "closed the connection without a response", id="hangup"),
        pytest.param("late", "silent for endpoint.patience=2 s", id="late"),
        pytest.param("broken", "the answer broke off after 1 token", id="broken"),
        pytest.param("endless", "the answer does not end after 20 tokens", id="endless"),
        pytest.param("harmony", "set endpoint.ignore_eos=false", id="past-the-end"),
        pytest.param("gzip", "compresses its answers (Content-Encoding: gzip)", id="compressed"),
        pytest.param("login", "text/html, not with a stream: Please log in", id="html-page"),
        pytest.param("proxy", "status 502 Bad Gateway: nginx", id="html-error"),
        pytest.param("plain", "contains no token: no healthy upstream", id="plain-text"),
        pytest.param("circle", "/v1/chat/completions/, which no value of", id="circle"),
        pytest.param("nowhere", "status 302 Found; check endpoint.url", id="no-location"),
        pytest.param("toolong", "128 tokens; lower endpoint.input_tokens", id="too-long"),
        pytest.param("basemodel", "set endpoint.api=completions", id="no-chat-template"),
        pytest.param("toobig", "lower endpoint.input_tokens", id="413"),
        pytest.param("nopost", "check endpoint.url", id="405"),
        pytest.param("portal", "/login: check endpoint.url", id="login-redirect"),
        pytest.param("tgi", "lower endpoint.input_tokens or", id="tgi-length"),
        pytest.param("longest", "lower endpoint.input_tokens or", id="longest-answer"),
        pytest.param("hidden", "raise endpoint.output_tokens", id="hidden-reasoning"),
        pytest.param("badchunk", "the response ends early or is not valid HTTP", id="chunks"),
    ],
)
def test_failed_requests_have_a_reason(server: OpenAIServer, model: str, reason: str) -> None:
    request = one_request(options(server, model=model, patience=SHORT_PATIENCE))

    assert reason in request.problem
    assert "secret" not in request.problem


def test_the_address_of_a_redirect_is_a_valid_url(server: OpenAIServer) -> None:
    request = one_request(options(server, model="neighbor"))

    base = server.url.removesuffix("/v1")
    assert request.problem.endswith(f"set endpoint.url={base}/api/v2")


def test_a_relative_redirect_is_resolved_against_the_requested_address(
    server: OpenAIServer,
) -> None:
    request = one_request(options(server, model="relative"))

    base = server.url.removesuffix("/v1")
    assert request.problem.endswith(f"set endpoint.url={base}/v3")


def test_the_remedy_for_a_server_that_expects_tls_is_an_https_url(server: OpenAIServer) -> None:
    request = one_request(options(server, model="needstls"))

    assert request.problem.endswith(f"set endpoint.url={server.url.replace('http:', 'https:')}")


def test_tokens_that_arrive_at_once_have_no_time_per_token(server: OpenAIServer) -> None:
    request = one_request(options(server, model="burst"))

    assert request.tokens == TOKENS
    assert request.is_at_once
    assert request.time_per_output_token is None


def test_the_remedy_includes_the_wait_that_a_server_requests(server: OpenAIServer) -> None:
    client = Client(options(server, model="patient", startup_seconds=None))

    with pytest.raises(UnavailableError, match=r"429 Too Many Requests; set .*_seconds=3601 to"):
        client.wait_until_ready()


def test_a_server_that_requests_too_long_a_wait_is_gone(server: OpenAIServer) -> None:
    endpoint = options(server, model="later-patient", patience=SHORT_PATIENCE)
    client = Client(endpoint, deadline=time.monotonic() + 60)

    requests = client.run_requests(concurrency=1, seconds=0, queries=100)

    assert client.is_gone
    assert requests[-1].problem == "status 429 Too Many Requests"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param('{"data": []}', id="empty"),
        pytest.param('{"data": [{"id": null}]}', id="null"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_server_without_models_needs_the_key_of_the_model(
    server: OpenAIServer, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.send_document(200, document))

    with pytest.raises(UnavailableError, match=r"lists no model: .*; set endpoint\.model"):
        Client(options(server))


def test_the_deadline_of_the_point_ends_a_request(server: OpenAIServer) -> None:
    client = Client(options(server, model="comments"), deadline=time.monotonic() + 0.5)

    [request] = client.run_requests(concurrency=1, seconds=0, queries=50)

    assert request.problem == "the answer did not end within the time limit of the point"
    assert not client.is_gone, "the deadline says nothing about the server"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("no-such-host.invalid", "the host is unknown", id="unknown-host"),
        # Nothing listens on the discard port, for which a server needs privileges.
        pytest.param("127.0.0.1:9", "Connection refused; start the server", id="refused"),
    ],
)
def test_a_server_that_does_not_exist_is_unavailable(name: str, message: str) -> None:
    with pytest.raises(UnavailableError, match=message):
        Client(Endpoint(url=f"http://{name}/v1"))


# Servers that start late, limit the rate, or stop answering


def test_the_client_waits_for_a_loading_server(server: OpenAIServer) -> None:
    Client(options(server, model="loading", startup_seconds=None)).wait_until_ready()

    assert len(server.requests) == 4


def test_a_server_that_keeps_loading_is_unavailable(server: OpenAIServer) -> None:
    client = Client(options(server, model="loading", startup_seconds=0.1))

    with pytest.raises(UnavailableError, match="Loading model; start the server, or set endpoint"):
        client.wait_until_ready()


def test_the_client_waits_for_a_server_that_starts_late_if_requested() -> None:
    clients: list[Client] = []
    begun = threading.Event()
    # A bound socket that does not listen refuses connections, and reserves the port.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"

    def connect() -> None:
        begun.set()
        clients.append(Client(Endpoint(url=url, startup_seconds=60.0)))

    thread = threading.Thread(target=connect)
    thread.start()
    begun.wait()
    time.sleep(0.3)
    with reserved, serving(OpenAIServer(port)):
        thread.join(timeout=60)

    assert [client.model for client in clients] == ["tiny"]


def test_a_closed_loop_waits_as_long_as_the_server_requests(server: OpenAIServer) -> None:
    client = Client(options(server, model="limited"))

    requests = client.run_requests(concurrency=1, seconds=0, queries=3)

    problems = [request.problem for request in requests]
    assert problems == ["", "status 429 Too Many Requests: slow down", ""]
    assert server.requests[2]["time"] - server.requests[1]["time"] >= 1.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("7", 7, id="seconds"),
        pytest.param("-1", 0, id="negative"),
        pytest.param("Fri, 31 Dec 1999 23:59:59 GMT", 0, id="past date"),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, expected: float) -> None:
    assert retry_seconds(value) == expected


def test_retry_after_of_a_future_date_is_the_time_until_then() -> None:
    before = datetime.datetime.now(datetime.UTC)
    value = format_datetime(before + datetime.timedelta(hours=1))

    seconds = retry_seconds(value)

    elapsed = (datetime.datetime.now(datetime.UTC) - before).total_seconds()
    assert seconds is not None
    # A date has whole seconds.
    assert 3600 - 1 - elapsed <= seconds <= 3600


def test_a_date_without_a_time_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT+12")
    time.tzset()
    try:
        in_an_hour = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        seconds = retry_seconds(in_an_hour.strftime("%a %b %d %H:%M:%S %Y"))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert seconds is not None
    assert seconds <= 3600


@pytest.mark.parametrize("value", [None, "", "soon", "nan", "inf"])
def test_other_values_of_retry_after_are_ignored(value: str | None) -> None:
    assert retry_seconds(value) is None


@pytest.mark.parametrize(
    ("concurrency", "rate"),
    [
        pytest.param(1, None, id="one-in-flight"),
        pytest.param(4, None, id="four-in-flight"),
        pytest.param(1, 500.0, id="open-loop"),
    ],
)
def test_a_failing_server_is_gone_after_few_requests(
    server: OpenAIServer, concurrency: int, rate: float | None
) -> None:
    client = Client(options(server, model="later-failing", patience=20.0))

    requests = client.run_requests(concurrency, seconds=60, queries=100_000, rate=rate)
    client.check_alive()

    assert client.is_gone
    answered = sum(not request.problem for request in requests)
    assert answered == GOOD_REQUESTS
    assert len(requests) <= GOOD_REQUESTS + 1500 + 512, (
        "at most the allowed failures and the requests in flight"
    )
    if rate is None:
        assert len(requests) <= GOOD_REQUESTS + 5 * concurrency + 10


def test_a_server_is_checked_if_the_loop_ends_with_few_failures(server: OpenAIServer) -> None:
    client = Client(options(server, model="later-failing"))

    requests = client.run_requests(concurrency=1, seconds=0, queries=GOOD_REQUESTS + 2)
    was_gone = client.is_gone
    client.check_alive()

    assert [bool(request.problem) for request in requests] == [False] * GOOD_REQUESTS + [True] * 2
    assert not was_gone
    assert client.is_gone


def test_a_server_that_recovers_is_not_gone(server: OpenAIServer) -> None:
    client = Client(options(server, model="limited"))

    requests = client.run_requests(concurrency=1, seconds=0, queries=2)
    client.check_alive()

    assert requests[-1].problem
    assert not client.is_gone


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a PEM file with a self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture(scope="module")
def secure_server(certificate: Path) -> Iterator[OpenAIServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = OpenAIServer()
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    with serving(server):
        yield server


def secure_url(server: OpenAIServer) -> str:
    return server.url.replace("http://", "https://")


def test_a_trusted_server_is_measured_over_one_encrypted_connection(
    secure_server: OpenAIServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure_server.forget()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    client = Client(options(secure_server, url=secure_url(secure_server)))

    requests = client.run_requests(concurrency=1, seconds=0, queries=3)

    assert [request.problem for request in requests] == [""] * 3
    assert len(secure_server.peers) == 1


def test_the_error_names_an_untrusted_certificate(secure_server: OpenAIServer) -> None:
    with pytest.raises(UnavailableError, match=r"certificate is not trusted.*SSL_CERT_FILE"):
        Client(options(secure_server, url=secure_url(secure_server)))


def test_the_wrong_scheme_is_named(server: OpenAIServer, secure_server: OpenAIServer) -> None:
    with pytest.raises(UnavailableError, match=r"does the server need http://\?"):
        Client(options(server, url=secure_url(server)))
    with pytest.raises(UnavailableError, match=r"without a response|need https://"):
        Client(options(secure_server, patience=5.0))


# Connections that fail below HTTP


def test_the_error_names_a_server_of_a_different_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def greet() -> None:
            connection, _ = listener.accept()
            with contextlib.closing(connection):
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.recv(1 << 16)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(UnavailableError, match="does not answer with HTTP"):
            Client(Endpoint(url=f"http://127.0.0.1:{port}/v1"))
        thread.join()
