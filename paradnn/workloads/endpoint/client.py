"""A client of the OpenAI API that measures streamed answers.

It needs only the standard library, because the interpreter under test may lack an HTTP library.
Each thread has one connection, so the thread that receives a token also records its arrival.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from paradnn.core.errors import UnavailableError
from paradnn.worker.arrivals import arrivals
from paradnn.workloads.endpoint.failures import (
    REQUEST_ERRORS,
    ParameterOptions,
    RequestError,
    as_request_error,
    check_is_stream,
    check_status,
)
from paradnn.workloads.endpoint.records import EndpointRequest
from paradnn.workloads.endpoint.stream import MAX_LINE_BYTES, printable, read_answer

#: Maximum number of requests in flight.
MAX_IN_FLIGHT = 512
#: A request fails if its answer has more tokens than endpoint.output_tokens times this factor.
_MAX_EXCESS = 4
#: Shortest and longest pause after a failed request, in seconds. Pauses double with each failure.
_FIRST_PAUSE = 0.1
_LAST_PAUSE = 2.0
#: A server counts as gone after a certain number of consecutive failures. In a closed loop, this
#: number is _FAILURES_IN_FLIGHT per request in flight. In an open loop, it is the number of
#: requests that are due in _FAILURE_SECONDS. It is limited to _MIN_FAILURES .. _MAX_FAILURES.
_MIN_FAILURES = 10
_FAILURES_IN_FLIGHT = 5
_FAILURE_SECONDS = 3.0
_MAX_FAILURES = 1000
#: Default time to wait for a server that responds that it is not ready, in seconds.
_LOADING_SECONDS = 30.0
#: Time to read the rest of a response after its last token, in seconds.
_DRAIN_SECONDS = 1.0
#: Statuses of interim responses, which precede the final response.
_INTERIM_STATUSES = (102, 103, 104)
#: Time from the start of a loop to its first request, in ns.
_LEAD_NS = 2_000_000
#: Words of the prompts. Most tokenizers encode each of them as one token.
_WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
)

Result = TypeVar("Result")


class ClientOptions(ParameterOptions, Protocol):
    """The options of `model=endpoint` that `Client` reads."""

    @property
    def model(self) -> str | None: ...
    @property
    def api(self) -> str: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def startup_seconds(self) -> float | None: ...
    @property
    def seed(self) -> int: ...


class _FailureMonitor:
    """Counts consecutive failures over all threads of a loop.

    Args:
        limit: Number of consecutive failures after which the server counts as gone. It is limited
            to `_MIN_FAILURES` .. `_MAX_FAILURES`.
        patience: Time in seconds. The server also counts as gone after two or more consecutive
            failures, if no request has succeeded for this time.

    Attributes:
        failures: Consecutive failures so far.
        gone: An event that is set once the server counts as gone.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self.failures = 0
        self.gone = threading.Event()
        self._limit = max(_MIN_FAILURES, min(limit, _MAX_FAILURES))
        self._patience = patience
        self._last_success = time.monotonic()
        self._lock = threading.Lock()

    def record_success(self) -> None:
        with self._lock:
            self.failures = 0
            self._last_success = time.monotonic()

    def record_failure(self) -> None:
        with self._lock:
            self.failures += 1
            silence = time.monotonic() - self._last_success
            is_silent = self.failures >= 2 and silence > self._patience
            if self.failures >= self._limit or is_silent:
                self.gone.set()


class _FinalResponse(http.client.HTTPResponse):
    """A response whose status is final: interim responses are skipped (RFC 9110, section 15.2).

    An example is 103 Early Hints. `http.client` skips only 100 Continue.
    """

    def begin(self) -> None:
        super().begin()
        while self.status in _INTERIM_STATUSES:
            self.headers = None  # type: ignore[assignment]
            super().begin()


class Client:
    """Sends requests to a server of the OpenAI API and measures the answers.

    Args:
        options: The options of `model=endpoint`.
        deadline: Time of `time.monotonic()`, in seconds, at which all waits, loops and answers end.

    Attributes:
        model: Name of the requested model: endpoint.model, or else the first that the server lists.

    Raises:
        UnavailableError: If the API key is not a valid header; or, without endpoint.model, if the
            server cannot be reached or lists no model.
    """

    def __init__(self, options: ClientOptions, deadline: float = math.inf) -> None:
        self._options = options
        self._deadline = deadline
        parts = urlsplit(options.url)
        self._address = parts.netloc
        self._path = parts.path.rstrip("/")
        self._is_encrypted = parts.scheme == "https"
        self._headers = {"Content-Type": "application/json", **self._authorization()}
        self._loops = 0
        self._monitor = _FailureMonitor(_MIN_FAILURES, options.patience)
        self.model = options.model or self._when_ready(self._first_model)

    @property
    def is_gone(self) -> bool:
        """Whether the server counts as gone after consecutive failures (see `_FailureMonitor`).

        Only failures since the most recent call of `run_requests` began count.
        """
        return self._monitor.gone.is_set()

    def wait_until_ready(self) -> None:
        """Send one request, and repeat it while the server is starting.

        Raises:
            UnavailableError: If the request failed for another reason, or if the server was not
                ready within endpoint.startup_seconds.
        """

        def send_request() -> None:
            with closing(self._connection()) as connection:
                self._answer(connection, number=0, due=time.monotonic_ns())

        self._when_ready(send_request)

    def check_alive(self) -> None:
        """Determine whether the server still answers, if the most recent requests failed.

        Repeats a request until it succeeds, the server counts as gone, or the deadline passes.
        `is_gone` contains the result. Does nothing if the most recent request succeeded.
        """
        monitor = self._monitor
        pauses = _pauses()
        with closing(self._connection()) as connection:
            while monitor.failures and not monitor.gone.is_set():
                if time.monotonic() > self._deadline:
                    return
                _, error = self._send_and_record(connection, number=0, due=time.monotonic_ns())
                if error:
                    monitor.gone.wait(self._pause(error, next(pauses)))

    def run_requests(
        self,
        concurrency: int,
        seconds: float,
        queries: int,
        rate: float | None = None,
    ) -> list[EndpointRequest]:
        """Send at least `queries` requests, for at least `seconds`, and return their outcomes.

        Ends early if the server is gone or the deadline has passed, but sends at least one request.

        Args:
            concurrency: Requests in flight in a closed loop, each sent by a separate thread;
                ignored in an open loop. A thread sends its next request when its previous one has
                ended, and pauses after a failure.
            seconds: Minimum duration in seconds.
            queries: Minimum number of requests.
            rate: Mean requests per second of an open loop. Requests are sent at random times
                without waiting for earlier answers. None for a closed loop.

        Returns:
            All requests, including failed ones, in the order in which they were due.
        """
        self._loops += 1
        begin = time.monotonic_ns() + _LEAD_NS
        end = begin + round(seconds * 1e9)
        if rate is None:
            threads = concurrency
            failure_limit = _FAILURES_IN_FLIGHT * concurrency
            due_times = _closed_loop(begin, end, queries)
        else:
            arrival_times = arrivals(
                rate=rate,
                seed=(self._options.seed + self._loops) % 2**32,
                seconds=seconds,
                queries=queries,
            )
            threads = min(MAX_IN_FLIGHT, len(arrival_times))
            failure_limit = math.ceil(_FAILURE_SECONDS * rate)
            due_times = (begin + arrival for arrival in arrival_times)
        schedule = enumerate(due_times)
        schedule_lock = threading.Lock()
        monitor = _FailureMonitor(failure_limit, self._options.patience)
        self._monitor = monitor
        requests: list[EndpointRequest] = []

        def send_requests() -> None:
            pauses = _pauses()
            with closing(self._connection()) as connection:
                while not monitor.gone.is_set():
                    with schedule_lock:
                        number, due = next(schedule, (0, None))
                    is_late = bool(number) and time.monotonic() > self._deadline
                    if due is None or is_late:
                        return
                    time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
                    request, error = self._send_and_record(connection, number, due)
                    requests.append(request)
                    if error is None:
                        pauses = _pauses()
                    elif rate is None:
                        pause = self._pause(error, next(pauses))
                        if len(requests) >= queries:
                            pause = min(pause, max(0.0, (end - time.monotonic_ns()) / 1e9))
                        monitor.gone.wait(pause)

        with ThreadPoolExecutor(threads) as pool:
            for running in [pool.submit(send_requests) for _ in range(threads)]:
                running.result()
        return sorted(requests, key=lambda request: request.due)

    def _authorization(self) -> dict[str, str]:
        """Return the Authorization header with the API key.

        The key is the value of the environment variable that the options name. Without a key, the
        result is empty.

        Raises:
            UnavailableError: If the key has characters that are invalid in a header. The message
                does not contain the key.
        """
        variable = self._options.key_variable
        key = os.environ.get(variable, "").strip()
        if not key:
            return {}
        if not (key.isascii() and key.isprintable()):
            raise UnavailableError(
                f"the API key in the environment variable {variable} contains characters that "
                "are invalid in an HTTP header; set the variable to the exact key"
            )
        return {"Authorization": f"Bearer {key}"}

    def _first_model(self) -> str:
        """Return the name of the first model that the server lists.

        Raises:
            RequestError: If the request failed or its response lists no model.
        """
        path = f"{self._path}/models"
        with closing(self._connection()) as connection, self._request_errors(connection):
            self._connect(connection)
            connection.request("GET", path, headers=self._headers)
            response = connection.getresponse()
            check_status(response, path, self._options)
            content = response.read(MAX_LINE_BYTES)
        try:
            name = json.loads(content)["data"][0]["id"]
        except (ValueError, LookupError, TypeError, RecursionError):
            name = None
        if not isinstance(name, str) or not printable(name):
            problem = f"{path} lists no model: {printable(content)[:80]}"
            raise RequestError(problem, "set endpoint.model")
        return printable(name)[:200]

    def _when_ready(self, send: Callable[[], Result]) -> Result:
        """Call a function, repeatedly while the server is starting, and return its result.

        Args:
            send: Sends one request; it raises RequestError if the request fails.

        Raises:
            UnavailableError: If the request failed for another reason, or if the server was not
                ready within endpoint.startup_seconds.
        """
        begun = time.monotonic()
        pauses = _pauses()
        while True:
            try:
                return send()
            except RequestError as error:
                last_try = min(begun + self._startup_seconds(error), self._deadline)
                pause = self._pause(error, next(pauses))
                if time.monotonic() + pause > last_try:
                    remedy = error.remedy
                    if error.is_unreachable or error.is_not_ready:
                        remedy = "start the server, or set endpoint.startup_seconds to wait for it"
                    if error.retry_after is not None:
                        seconds = math.ceil(error.retry_after) + 1
                        remedy = (
                            f"set endpoint.startup_seconds={seconds} to wait as long as the server "
                            "requests"
                        )
                    text = f"endpoint.url={self._options.url}: {error.problem}"
                    raise UnavailableError(f"{text}; {remedy}" if remedy else text) from None
                time.sleep(pause)

    def _startup_seconds(self, error: RequestError) -> float:
        """Return how long to repeat a request that failed while the server may be starting.

        Args:
            error: The failure of the request.

        Returns:
            Seconds; 0 if the failure does not suggest that the server is starting.
        """
        seconds = self._options.startup_seconds
        if error.is_not_ready:
            return _LOADING_SECONDS if seconds is None else seconds
        if error.is_unreachable:
            return seconds or 0.0
        return 0.0

    def _pause(self, error: RequestError, pause: float) -> float:
        """Return the seconds to wait after a failure.

        This is `pause`, or the server's Retry-After if that is longer. A Retry-After counts only up
        to endpoint.patience, so that it cannot use up the time of the run. The wait ends no later
        than the deadline of the client.

        Args:
            error: The failure.
            pause: Seconds of the exponential back-off.
        """
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._options.patience))
        return max(0.0, min(pause, self._deadline - time.monotonic()))

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._is_encrypted:
            connection = http.client.HTTPSConnection(self._address)
        else:
            connection = http.client.HTTPConnection(self._address)
        connection.response_class = _FinalResponse
        return connection

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        """Open the connection if it is not open, or if the server has closed it.

        Args:
            connection: The connection. Its timeout is set to endpoint.patience, or to the time
                until the deadline if that is shorter, but to at least 0.1 s.
        """
        timeout = max(0.1, min(self._options.patience, self._deadline - time.monotonic()))
        connection.timeout = timeout
        if connection.sock is not None and _is_readable(connection.sock):
            connection.close()
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(timeout)

    @contextlib.contextmanager
    def _request_errors(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Return a context in which a request error closes the connection.

        Exceptions of the types `REQUEST_ERRORS` are converted to RequestError.

        Args:
            connection: The connection on which the request is sent.
        """
        try:
            yield
        except RequestError:
            connection.close()
            raise
        except REQUEST_ERRORS as error:
            connection.close()
            is_past_deadline = time.monotonic() >= self._deadline
            raise as_request_error(
                error, self._options, is_past_deadline=is_past_deadline
            ) from None

    def _send_and_record(
        self, connection: http.client.HTTPConnection, number: int, due: int
    ) -> tuple[EndpointRequest, RequestError | None]:
        """Send one request, and record its success or failure in the failure monitor.

        A failure because the deadline has passed is not recorded.

        Args:
            connection: The connection, which is closed if the request fails.
            number: Index of the request in the current loop, from 0; it selects the random prompt.
            due: When the request was due, in ns of `time.monotonic_ns()`.

        Returns:
            The request, and its error. The error is None if the request succeeded.
        """
        begun = time.monotonic_ns()
        try:
            request = self._answer(connection, number, due)
        except RequestError as error:
            if not error.is_deadline:
                self._monitor.record_failure()
            now = time.monotonic_ns()
            failed = EndpointRequest(due, sent=begun, first=now, last=now, problem=str(error))
            return failed, error
        self._monitor.record_success()
        return request, None

    def _answer(
        self, connection: http.client.HTTPConnection, number: int, due: int
    ) -> EndpointRequest:
        """Send one request, read its answer to the end, and return the measured request.

        Args:
            connection: The connection, which is closed if the request fails.
            number: Index of the request in the current loop, from 0; it selects the random prompt.
            due: When the request was due, in ns of `time.monotonic_ns()`.

        Raises:
            RequestError: If the request failed.
        """
        body = json.dumps(self._body(number)).encode()
        with self._request_errors(connection):
            is_reused = connection.sock is not None
            self._connect(connection)
            sent = time.monotonic_ns()
            try:
                response = self._response(connection, body)
            except (ConnectionResetError, BrokenPipeError):
                # The server closed the idle connection while this request was being sent.
                if not is_reused:
                    raise
                connection.close()
                self._connect(connection)
                response = self._response(connection, body)
            check_status(response, self._request_path(), self._options)
            check_is_stream(response)
            max_tokens = _MAX_EXCESS * self._options.output_tokens
            answer = read_answer(response, self._deadline, max_tokens)
            _drain(connection, response)
        return EndpointRequest(
            due=due,
            sent=sent,
            first=answer.first,
            last=answer.last,
            prompt=answer.prompt_tokens,
            tokens=answer.tokens,
            has_usage=answer.has_usage,
        )

    def _response(
        self, connection: http.client.HTTPConnection, body: bytes
    ) -> http.client.HTTPResponse:
        connection.request("POST", self._request_path(), body, self._headers)
        return connection.getresponse()

    def _request_path(self) -> str:
        if self._options.api == "chat":
            return f"{self._path}/chat/completions"
        return f"{self._path}/completions"

    def _body(self, number: int) -> dict[str, Any]:
        """Return the body of a request as a JSON object.

        The prompt of the request is random, so that no prefix cache of the server contains it.

        Args:
            number: Index of the request in its loop, from 0. The prompt depends on the index, on
                the number of the loop, and on endpoint.seed.
        """
        options = self._options
        generator = random.Random(f"{options.seed} {self._loops} {number}")
        text = " ".join(generator.choices(_WORDS, k=options.input_tokens))
        body: dict[str, Any] = {
            "model": self.model,
            options.token_limit: options.output_tokens,
            "stream": True,
        }
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.ignore_eos:
            body["ignore_eos"] = True
        if options.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if options.api == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        return body


def _closed_loop(begin: int, end: int, queries: int) -> Iterator[int]:
    """Yield the due times of a closed loop: the current time, but at least `begin`.

    The iterator ends once it has yielded `queries` times and the time `end` has passed. All times
    are in ns of `time.monotonic_ns()`.

    Args:
        begin: Start of the loop.
        end: Time at which the loop may end.
        queries: Minimum number of requests, and therefore of due times.
    """
    for number in itertools.count():
        now = time.monotonic_ns()
        if number >= queries and now >= end:
            return
        yield max(begin, now)


def _pauses() -> Iterator[float]:
    """Yield the pauses of an exponential back-off in seconds: 0.1, 0.2, 0.4 and so on, up to 2."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LAST_PAUSE)


def _drain(connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
    """Read the rest of a response after a complete answer, so that the connection can be reused.

    If the server does not end the response within 1 s, the connection is closed. The request counts
    as successful in either case.
    """
    if response.isclosed():
        return
    with contextlib.suppress(OSError, http.client.HTTPException):
        if connection.sock is not None:
            connection.sock.settimeout(_DRAIN_SECONDS)
        response.read(MAX_LINE_BYTES)
    if not response.isclosed():
        response.close()
        connection.close()


def _is_readable(idle: socket.socket) -> bool:
    """Return whether an idle connection has data to read: the server has then closed it."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))
