"""A server of the OpenAI protocol for tests, which answers correctly or fails in a chosen way.

The model that a request names is a key of `BEHAVIORS` and selects how the server behaves. If the
name has the prefix "later-", the server answers the first `GOOD_REQUESTS` requests correctly.
"""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Seconds from a request to its first token, and between tokens.
FIRST_TOKEN_SECONDS = 0.03
TOKEN_SECONDS = 0.002
PROMPT_TOKENS = 3
GOOD_REQUESTS = 10
#: Seconds for which a late server waits before it hangs up. The patience in tests is much shorter.
LATE_SECONDS = 3.0


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection, with HTTP/1.1 and chunked responses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "OpenAIServer"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_document(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        begun = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = {
            **body,
            "key": self.headers.get("Authorization"),
            "path": self.path,
            "time": begun,
        }
        model = body["model"]
        with self.server.lock:
            self.server.requests.append(request)
            self.server.peers.add(self.client_address)
            count = sum(entry["model"] == model for entry in self.server.requests)
        later, _, name = model.rpartition("-")
        if later and count <= GOOD_REQUESTS:
            name = "tiny"
        BEHAVIORS.get(name, answer)(self, body)

    def send_document(
        self, status: int, content: str, *, headers: dict[str, str] | None = None
    ) -> None:
        """Send a whole response."""
        data = content.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def send_event(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_chunk(f"data: {text}\n\n".encode())

    def send_token(self, text: str = "x", finish_reason: str | None = None) -> None:
        if self.path.endswith("/v1/completions"):
            choice: dict[str, Any] = {"text": text}
        else:
            choice = {"delta": {"content": text}}
        self.send_event({"choices": [{**choice, "finish_reason": finish_reason}]})

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


def token_count(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens") or body["max_completion_tokens"])


def answer(handler: Handler, body: dict[str, Any]) -> None:
    """Answer correctly, at the times that the constants of this module set."""
    begun = time.monotonic()
    tokens = token_count(body)
    handler.begin_stream()
    for number in range(tokens):
        due = begun + FIRST_TOKEN_SECONDS + number * TOKEN_SECONDS
        time.sleep(max(0.0, due - time.monotonic()))
        handler.send_token(finish_reason="length" if number == tokens - 1 else None)
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    handler.send_event({"choices": [], "usage": usage})
    handler.send_event("[DONE]")
    handler.end_stream()


def document(status: int, content: str, **headers: str) -> Callable[[Handler, Any], None]:
    """Return a behavior that sends a whole response."""

    def behave(handler: Handler, _: Any) -> None:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.send_document(status, content, headers=names)

    return behave


def hang_up(handler: Handler, _: Any) -> None:
    handler.close_connection = True


def be_late(handler: Handler, _: Any) -> None:
    time.sleep(LATE_SECONDS)
    handler.close_connection = True


def break_off(handler: Handler, _: Any) -> None:
    handler.begin_stream()
    handler.send_token()
    handler.close_connection = True


def never_end(handler: Handler, _: Any) -> None:
    handler.begin_stream()
    for _ in range(1000):
        handler.send_token()


def send_comments(handler: Handler, _: Any) -> None:
    """Keep the connection alive with comments, without a token."""
    handler.begin_stream()
    for _ in range(100):
        handler.send_chunk(b": still there\n\n")
        time.sleep(0.05)


def reject_unknown_parameters(handler: Handler, body: dict[str, Any]) -> None:
    for parameter in ("ignore_eos", "stream_options", "temperature", "max_tokens"):
        if parameter in body:
            message = f"Unrecognized request argument supplied: {parameter}"
            handler.send_document(400, json.dumps({"error": {"message": message}}))
            return
    answer(handler, body)


def fail_past_the_end(handler: Handler, body: dict[str, Any]) -> None:
    """Report an error within the stream if a request sets `ignore_eos`."""
    if not body.get("ignore_eos"):
        answer(handler, body)
        return
    handler.begin_stream()
    handler.send_token()
    handler.send_event({"error": {"message": "Unexpected token 200002"}})
    handler.end_stream()


def omit_done(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    tokens = token_count(body)
    for number in range(tokens):
        handler.send_token(finish_reason="length" if number == tokens - 1 else None)
    handler.end_stream()


def leave_stream_open(handler: Handler, body: dict[str, Any]) -> None:
    """Send the whole response except for its last, empty chunk, and keep the connection open."""
    handler.begin_stream()
    handler.send_token(finish_reason="stop")
    handler.send_event("[DONE]")
    time.sleep(LATE_SECONDS)
    handler.close_connection = True


def send_null_errors(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.send_event({"choices": [{"delta": {"content": "x"}}], "error": None})
    handler.send_event({"choices": [{"delta": {"content": "x"}}], "error": {}})
    handler.send_event("[DONE]")
    handler.end_stream()


def split_characters(handler: Handler, body: dict[str, Any]) -> None:
    """Send one byte per chunk: boundaries lie within characters, JSON and line ends."""
    handler.begin_stream()
    choice = {"delta": {"content": "grüße 🙂"}, "finish_reason": "stop"}
    event = json.dumps({"choices": [choice]}, ensure_ascii=False)
    for byte in f"data: {event}\r\n\r\ndata: [DONE]\r\n\r\n".encode():
        handler.send_chunk(bytes([byte]))
    handler.end_stream()


def answer_with_http_1_0(handler: Handler, body: dict[str, Any]) -> None:
    """Answer without a length or chunks, so that the end of the connection ends the response."""
    handler.protocol_version = "HTTP/1.0"
    handler.send_response(200)
    handler.end_headers()
    event = json.dumps({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    handler.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())
    handler.close_connection = True


def close_idle_connections(handler: Handler, body: dict[str, Any]) -> None:
    """Answer, and close the connection without a `Connection: close` header."""
    answer(handler, body)
    handler.close_connection = True


def load_first(handler: Handler, body: dict[str, Any]) -> None:
    """Answer that the model is loading, for the first three requests."""
    with handler.server.lock:
        count = len(handler.server.requests)
    if count <= 3:
        handler.send_document(503, '{"error": {"code": 503, "message": "Loading model"}}')
    else:
        answer(handler, body)


def limit_rate(handler: Handler, body: dict[str, Any]) -> None:
    """Reject every second request with a `Retry-After` of one second."""
    with handler.server.lock:
        count = len(handler.server.requests)
    if count % 2:
        answer(handler, body)
    else:
        content = '{"error": {"message": "slow down"}}'
        handler.send_document(429, content, headers={"Retry-After": "1"})


def compress(handler: Handler, _: Any) -> None:
    """Send a compressed stream, although clients do not accept compression."""
    event = 'data: {"choices": [{"text": "x", "finish_reason": "stop"}]}\n\n'
    data = gzip.compress(event.encode())
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def send_at_once(handler: Handler, body: dict[str, Any]) -> None:
    """Send all tokens together, like a server behind a buffering proxy."""
    tokens = token_count(body)
    choice = {"delta": {"content": "x " * tokens}, "finish_reason": "length"}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    handler.begin_stream()
    handler.send_event({"choices": [choice], "usage": usage})
    handler.send_event("[DONE]")
    handler.end_stream()


def send_interim_responses(handler: Handler, body: dict[str, Any]) -> None:
    """Send interim responses before the answer."""
    handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    handler.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" * 2)
    answer(handler, body)


def hide_reasoning(handler: Handler, body: dict[str, Any]) -> None:
    """Spend all tokens on reasoning that the server does not show."""
    handler.begin_stream()
    handler.send_token("", finish_reason="length")
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": token_count(body)}
    handler.send_event({"choices": [], "usage": usage})
    handler.send_event("[DONE]")
    handler.end_stream()


def break_chunks(handler: Handler, _: Any) -> None:
    """Announce a chunked response, but send an invalid chunk."""
    handler.begin_stream()
    handler.wfile.write(b"no chunk\r\n")
    handler.close_connection = True


def reject(message: str) -> Callable[[Handler, Any], None]:
    """Return a behavior that rejects a request as the OpenAI API does."""
    return document(400, json.dumps({"error": {"message": message}}))


BEHAVIORS: dict[str, Callable[[Handler, dict[str, Any]], None]] = {
    "tiny": answer,
    "busy": document(429, '{"error": "slow down"}'),
    "failing": document(500, ""),
    "missing": document(404, '{"detail": "Not Found"}'),
    "forbidden": document(401, '{"error": {"message": "no key"}}'),
    "moved": document(
        307, "", Location="https://elsewhere.example/v1/chat/completions?token=secret"
    ),
    "garbage": document(200, "data: {]\n\n"),
    "cut": document(200, 'data: {"choices": [{"delta": {"con'),
    "empty": document(200, "data: [DONE]\n\n"),
    "odd": document(200, 'data: {"choices": [{"delta": 3}]}\n\n'),
    "sorry": document(200, 'data: {"error": {"message": "out of memory"}}\n\n'),
    "whole": document(200, '{"choices": []}', Content_Type="application/json"),
    "hangup": hang_up,
    "late": be_late,
    "broken": break_off,
    "endless": never_end,
    "comments": send_comments,
    "strict": reject_unknown_parameters,
    "harmony": fail_past_the_end,
    "nodone": omit_done,
    "open": leave_stream_open,
    "nullerrors": send_null_errors,
    "bytes": split_characters,
    "http10": answer_with_http_1_0,
    "closing": close_idle_connections,
    "loading": load_first,
    "limited": limit_rate,
    "gzip": compress,
    "burst": send_at_once,
    "login": document(200, "<html><b>Please</b> log in</html>", Content_Type="text/html"),
    "proxy": document(
        502, "<html><style>b {}</style>nginx</html>", Content_Type="text/html; charset=utf-8"
    ),
    "plain": document(200, "no healthy upstream", Content_Type="text/plain"),
    "circle": document(308, "", Location="/v1/chat/completions/"),
    "nowhere": document(302, ""),
    "relative": document(307, "", Location="../../v3/chat/completions"),
    "portal": document(302, "", Location="/login?next=/v1/chat/completions"),
    "needstls": document(400, "Client sent an HTTP request to an HTTPS server.\n"),
    "hints": send_interim_responses,
    "hidden": hide_reasoning,
    "tgi": document(422, '{"error": "`inputs` tokens + `max_new_tokens` must be <= 4096"}'),
    "longest": reject("max_tokens is too large: 64. This model supports at most 16 tokens"),
    "badchunk": break_chunks,
    "neighbor": document(307, "", Location="/api/v2/chat/completions"),
    "toolong": reject(
        "'max_tokens' is too large: 64. This model's maximum context length is 128 tokens"
    ),
    "basemodel": reject("you must provide a chat template if the tokenizer does not define one"),
    "toobig": document(413, ""),
    "nopost": document(405, '{"detail": "Method Not Allowed"}'),
    "patient": document(429, "{}", Retry_After="3600"),
}


class OpenAIServer(ThreadingHTTPServer):
    """Server that keeps its requests.

    Attributes:
        requests: Body of each request, with its API key, path and time of arrival.
        peers: Addresses of the clients' connections.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.peers: set[Any] = set()

    def handle_error(self, *_: object) -> None:
        """Ignore clients that hang up."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def forget(self) -> None:
        """Clear the lists of requests and of connections."""
        with self.lock:
            self.requests.clear()
            self.peers.clear()


@contextmanager
def serving(server: OpenAIServer) -> Iterator[OpenAIServer]:
    """Run a server in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
