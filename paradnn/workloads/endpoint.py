"""A model that is served elsewhere (`model=endpoint`), asked by the OpenAI protocol: vLLM, SGLang,
llama.cpp, any.

Each process of a point sends requests of its own and streams their answers, by the standard library
alone (docs/how-to/serving.md).
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, PointEnded, UnavailableError, require_value
from paradnn.core.messages import Answer, WorkloadMessage, messages_of_kind
from paradnn.core.metric import declared
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.words import rounded
from paradnn.core.workload import Workload
from paradnn.families import Family
from paradnn.families.kernels import ALONE, Messages
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.serve import check_seconds, peak_metrics, process_seed
from paradnn.workloads.serve.generator import arrivals
from paradnn.workloads.serve.load import find_peak, verdict
from paradnn.workloads.serve.queries import Probe, packed, percentile, unpacked

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun

_SHARES = (50, 90, 99)
#: Requests that an open loop may have under way; a line of an answer may have so many bytes.
_MOST_OPEN = 512
_LINE = 1 << 20
#: A search of the highest rate tries each for so long; it takes this share of rates as the same.
_PROBE_SECONDS = 10.0
_PRECISION = 0.05
#: An answer of so many times the tokens that were asked for is not waited for any longer.
_BEYOND = 4
#: The whole of an answer that is no stream of tokens is read so far, for its reason.
_REASON = 300
#: What is raised by a server that is gone, or that answers something else.
_NO_ANSWER = (
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)
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


@dataclass(frozen=True)
class ServedModel(Messages):
    """A model behind an endpoint: what it is, its server knows."""

    shown: ClassVar[str] = "served"
    instead_of_batch: ClassVar[str] = "endpoint.concurrency or endpoint.rate"

    name: str = option("endpoint", "the kind of workload", choices=("endpoint",))

    def work(self, batch_size: int, width: int) -> tuple[int, int]:
        return 0, 0

    def in_point(self, point: Any) -> Any:
        reason = "is known to the server of model=endpoint alone"
        require_value(
            "precision", point.precision, required="float32", reason=reason, remedy="leave it out"
        )
        require_value(
            "data",
            point.data.name,
            required="synthetic",
            reason=reason,
            remedy="leave it out, and set endpoint.input_tokens",
        )
        return super().in_point(point)


@dataclass(frozen=True)
class EndpointRequest:
    """One request: when it was due, was sent, gave its first token and its last, ns; tokens of
    prompt and answer; problem: why it failed.
    """

    due: int
    sent: int
    first: int
    last: int
    prompt: int = 0
    tokens: int = 0
    problem: str = ""

    @property
    def times(self) -> dict[str, float | None]:
        """ns from when it was due to its end and to its first token; between its tokens, None of
        fewer than two.
        """
        if self.tokens > 1:
            each = (self.last - self.first) / (self.tokens - 1)
        else:
            each = None
        until = {"latency": self.last - self.due, "time_to_first_token": self.first - self.due}
        return {**until, "time_per_output_token": each}


@dataclass(frozen=True)
class Requests(WorkloadMessage):
    """What one process asked for, and when (`EndpointRequest`, packed). model: what the server
    calls itself. rate: requests/s of an open loop, None of a closed one. probes: the rates that a
    search tried.
    """

    wire_name: ClassVar[str] = "requests"

    rows: str
    model: str = ""
    rate: float | None = None
    probes: list[Probe] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError where the requests cannot be read."""
        self.requests()

    def requests(self) -> list[EndpointRequest]:
        """In the order in which they were due."""
        try:
            return [EndpointRequest(*row) for row in json.loads(unpacked(self.rows))]
        except TypeError as error:
            raise ValueError(f"the requests cannot be read: {error}") from error

    @classmethod
    def packed(cls, requests: Sequence[EndpointRequest], *others: Any) -> Requests:
        """Of requests, which end in their order."""
        rows = [list(vars(each).values()) for each in sorted(requests, key=lambda each: each.due)]
        return cls(packed(json.dumps(rows).encode()), *others)


class _Overload(PointEnded):
    """No rate holds the limits, or the requests could not be sent as they were due."""

    outcome = "overload"


@dataclass(frozen=True)
class Endpoint(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """Who asks, for what, and what answers are in time."""

    name = "endpoint"
    group = "endpoint"
    key = "model"
    order = 55
    unit = "request"
    conflict_reason = "is asked, not trained"
    declared_metrics = declared(__file__)
    message_types = (Requests,)
    headlines: ClassVar[Mapping[str, str]] = {"time_to_first_token_ms": "ms to the first token"}
    phases: ClassVar[Mapping[str, str]] = {"requests": "warmup"}
    quick_defaults: ClassVar[Mapping[str, Any]] = {"min_seconds": 5.0}

    url: str = option(
        "http://localhost:8000/v1",
        "of the server, up to where the names of the protocol begin",
        pattern=(r"https?://[^@\s?#]+", "write http://host:port/v1, without a password"),
    )
    model: str | None = option(None, "which of its models; null: the first that it names")
    api: str = option(
        "chat", "chat/completions, or completions of a plain text", choices=("chat", "completions")
    )
    input_tokens: int = option(
        128, "words of a prompt, drawn anew for each request", low=1, high=1_000_000
    )
    output_tokens: int = option(64, "tokens of an answer, at most", low=1, high=1_000_000)
    concurrency: int = option(
        1, "without a rate: requests under way at any time", low=1, high=_MOST_OPEN
    )
    rate: float | str | None = option(
        None,
        "requests a second, at random, whether or not others are answered; peak: the most that holds the limits",
        low=1e-3,
        high=1e5,
        choices=("peak",),
        shown=("null", "peak", "a number"),
    )
    first_token_ms: float | None = option(
        None, "in time: the first token within so many ms", low=1e-3
    )
    token_ms: float | None = option(
        None, "and a further token every so many ms, in the mean", low=1e-3
    )
    request_ms: float | None = option(None, "and the whole within so many ms", low=1e-3)
    percentile: float = option(
        99.0, "rate=peak: share of requests, in percent, to be in time", low=1, high=99.999
    )
    confidence: float = option(
        0.95, "with which rate=peak is to hold the limits", low=0.5, high=0.9999
    )
    min_seconds: float = option(60.0, "ask for at least so many seconds", low=0.0, high=86_400.0)
    min_queries: int = option(50, "and for at least so many requests", low=1, high=1_000_000)
    patience: float = option(
        120.0, "seconds after which a silent server has failed a request", low=0.1, high=86_400.0
    )
    key_variable: str = option(
        "OPENAI_API_KEY", "environment variable that holds the key; it is recorded nowhere"
    )
    seed: int = option(1, "of prompts and arrivals", low=0, high=2**32 - 1)

    @property
    def limited(self) -> bool:
        """Whether anything says what is in time."""
        return any(
            limit is not None for limit in (self.first_token_ms, self.token_ms, self.request_ms)
        )

    def canonical(self, point: Point) -> Point:
        """Asked for no longer than its point may take; `concurrency` says nothing of an open loop."""
        if self.rate == "peak" and not self.limited:
            remedy = "set endpoint.first_token_ms, endpoint.token_ms or endpoint.request_ms"
            raise ConfigError("endpoint.rate", "peak", "needs a limit that it is to hold", remedy)
        check_seconds("endpoint", self.min_seconds, point)
        if self.rate is None:
            return point
        return replace(point, workload=replace(self, concurrency=type(self).concurrency))

    def for_process(self, replicate: int, process: int) -> Endpoint:
        return replace(self, seed=process_seed(self.seed, replicate, process))

    def name_parts(self, point: Point) -> list[str]:
        if self.rate is None:
            asked = f"x{self.concurrency}"
        elif self.rate == "peak":
            asked = "peak"
        else:
            asked = f"{self.rate:g}/s"
        return [f"{self.input_tokens}+{self.output_tokens}", asked]

    def open_devices(self, run: PointRun) -> None:
        """No device is needed."""

    def measure(self, run: PointRun) -> None:
        client = Client(self, time.monotonic() + run.seconds_left - self.min_seconds / 10 - 1)
        with run.phases("warmup"):
            problem = client.loop(1, 0.0, 1)[0].problem
            if problem:
                raise UnavailableError(f"endpoint.url={self.url}: {problem}; is it served there?")
            client.loop(self.concurrency, run.request["measure"]["warmup_seconds"], 1)
        with run.phases("requests"):
            probes: list[Probe] = []
            if self.rate == "peak":
                rate = self._peak(client, run, probes)
            else:
                rate = self.rate
            rate = None if rate is None else float(rate)
            asked = client.loop(self.concurrency, self.min_seconds, self.min_queries, rate)
            run.note(work=Requests.packed(asked, client.model, rate, probes))
        if all(each.problem for each in asked):
            raise UnavailableError(
                f"endpoint.url={self.url}: no request was answered: {asked[-1].problem}"
            )
        late = statistics.median(each.sent - each.due for each in asked)
        if rate and late > max(5e6, statistics.median(each.last - each.due for each in asked) / 20):
            many = (
                f"{_MOST_OPEN} requests were under way, or this machine was too slow to send more"
            )
            raise _Overload(
                f"endpoint.rate={rate:g}: {many}: they were {late / 1e6:,.0f} ms late; ask for less"
            )

    def _peak(self, client: Client, run: PointRun, probes: list[Probe]) -> float:
        """The highest rate at which so many are in time; every rate that is tried is noted in
        `probes`.
        """
        share = self.percentile / 100
        seconds = min(_PROBE_SECONDS, self.min_seconds)
        sample = client.loop(16, seconds, 16)

        def held(rate: float, seconds: float, queries: int) -> bool:
            asked = client.loop(1, seconds, queries, rate)
            late = [*accumulate(not self.in_time(each) for each in asked)]
            said = verdict(late, share, 1 - self.confidence)
            latency = percentile((each.last - each.due for each in asked), share) / 1e9
            probes.append(Probe(rate, len(asked), late[-1], _seconds(asked), latency, said, None))
            return said is True

        fewest = math.ceil(math.log(1 - self.confidence) / math.log(share)) + 1
        found = find_peak(
            lambda rate: held(rate, seconds, fewest),
            lambda rate: (held(rate, self.min_seconds, max(fewest, self.min_queries)), None),
            2 * len(sample) / _seconds(sample),
            _PRECISION,
            lambda rate: run.seconds_left > 2 * (self.min_seconds + _PROBE_SECONDS + fewest / rate),
        )
        if not found.held or found.rate is None:
            reason = "no rate was shown to hold the limits in the time"
            raise _Overload(f"endpoint.rate=peak: {reason}; raise measure.timeout")
        return found.rate

    def in_time(self, request: EndpointRequest) -> bool:
        """Whether a request was answered within the limits."""
        limits = (self.request_ms, self.first_token_ms, self.token_ms)
        taken = zip(request.times.values(), limits, strict=True)
        return not request.problem and all(
            limit is None or (ns or 0.0) <= limit * 1e6 for ns, limit in taken
        )

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        return False

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        from paradnn.session.measured import mean_interval, quantile, quantile_metrics

        given = messages_of_kind(measured.answers, Requests)
        asked = [one.requests() for one in given]
        each = [[request for request in process if not request.problem] for process in asked]
        if not each or not all(each):
            return {}
        done = [request for process in each for request in process]
        metrics = {
            "processes": float(len(each)),
            "queries": float(len(done)),
            "failed_queries": float(sum(map(len, asked)) - len(done)),
            "prompt_tokens": statistics.fmean(request.prompt for request in done),
            "output_tokens": statistics.fmean(request.tokens for request in done),
        }
        for name in ("latency", "time_to_first_token", "time_per_output_token"):
            values = [
                [ns / 1e6 for request in process if (ns := request.times[name]) is not None]
                for process in each
            ]
            for share in _SHARES if all(values) else ():
                if all(len(process) * (100 - share) >= 100 for process in values):
                    if share != 50 or name == "latency":
                        found = f"{name}_p{share}"
                    else:
                        found = name
                    metrics |= quantile_metrics(found, share / 100, values, quantile)
        rates = {
            "queries_per_second": [len(process) for process in each],
            "tokens_per_second": [sum(one.tokens for one in process) for process in each],
        }
        if self.limited:
            in_time = rates["goodput_per_second"] = [
                sum(map(self.in_time, process)) for process in each
            ]
            metrics["in_time_fraction"] = sum(in_time) / sum(map(len, asked))
        for name, counts in rates.items():
            speeds = [
                count / _seconds(process) for count, process in zip(counts, each, strict=True)
            ]
            metrics[name] = statistics.fmean(speeds)
            if name == "tokens_per_second" and len(speeds) > 1 and min(speeds) > 0:
                metrics[f"{name}_low"], metrics[f"{name}_high"] = mean_interval(speeds)
        scheduled = [one.rate for one in given if one.rate is not None]
        if scheduled:
            metrics["scheduled_queries_per_second"] = statistics.fmean(scheduled)
            metrics["generator_late_max_ms"] = max(
                (one.sent - one.due) / 1e6 for process in asked for one in process
            )
        return metrics | (
            peak_metrics(scheduled, [one.probes for one in given]) if self.rate == "peak" else {}
        )

    def tags(self, measured: Measured) -> dict[str, str]:
        from paradnn.worker.series import FEWEST, find_change

        given = messages_of_kind(measured.answers, Requests)
        if not given:
            return {}
        asked = [each.requests() for each in given]
        problems = [request.problem for each in asked for request in each if request.problem]
        changes = [
            find_change([float(one.last - one.due) for one in each])
            for each in asked
            if len(each) >= FEWEST
        ]
        if changes:
            said = [str(change) for change in changes if change.matters]
        else:
            said = ["too few requests to tell"]
        tags = {
            "steady": str(not said).lower(),
            "steady_reason": (said or ["no change that matters"])[0],
        }
        tags["endpoint_model"] = given[0].model
        return tags | (
            {"request_problem": f"{len(problems)} failed, as: {problems[0]}"} if problems else {}
        )

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        processes = [
            [vars(request) for request in each.requests()]
            for each in messages_of_kind(measured.answers, Requests)
        ]
        if processes:
            return {"requests.json": {"unit": "ns", "processes": processes}}
        return {}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "endpoint_model" not in tags or "queries" not in metrics:
            return None
        clauses = [
            f"{metrics['queries']:,.0f} requests, {rounded(metrics['queries_per_second'], 3)}/s"
        ]
        if metrics["failed_queries"]:
            clauses[0] += f", {metrics['failed_queries']:,.0f} failed"
        first = metrics.get("time_to_first_token_ms")
        if first is not None:
            low, high = (metrics.get(f"time_to_first_token_{end}_ms") for end in ("low", "high"))
            if low is not None and high is not None:
                between = f" (95% CI {rounded(low)} .. {rounded(high)})"
            else:
                between = ""
            clauses.insert(0, f"first token after {rounded(first)} ms{between}")
        each = metrics.get("time_per_output_token_ms")
        if each is not None:
            clauses.insert(
                1,
                f"then {rounded(each)} ms a token, {rounded(metrics['tokens_per_second'])} tokens/s",
            )
        if "in_time_fraction" in metrics:
            clauses.append(
                f"{metrics['in_time_fraction']:.2%} in time, {rounded(metrics['goodput_per_second'], 3)}/s"
            )
        if "peak_queries_per_second" in metrics:
            peak = rounded(metrics["peak_queries_per_second"], 3)
            clauses.append(f"{peak}/s is the highest rate that held the limits")
        return ResultText("answers", clauses, replaces_steps=True)

    def require_predictable(self) -> None:
        if self.rate == "peak":
            raise ConfigError(
                "endpoint.rate", "peak", "has no forecast", "plan a rate such as endpoint.rate=10"
            )


def _seconds(asked: Sequence[EndpointRequest]) -> float:
    """From when the first request was due until the last token."""
    return (max(one.last for one in asked) - min(one.due for one in asked)) / 1e9


class Client:
    """Sends requests, each thread over a connection of its own that stays open, until the clock
    shows `until`.
    """

    def __init__(self, options: Endpoint, until: float = math.inf) -> None:
        self._options = options
        self._until = until
        parts = urlsplit(options.url)
        self._address = parts.netloc
        self._path = parts.path.rstrip("/")
        self._secure = parts.scheme == "https"
        key = os.environ.get(options.key_variable, "")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        self._runs = 0
        self.model = options.model or self._first_model()

    def _first_model(self) -> str:
        """What the server names first; UnavailableError where it answers nothing of the kind."""
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", f"{self._path}/models", headers=self._headers)
                answer = json.loads(connection.getresponse().read(_LINE))
            return "".join(filter(str.isprintable, str(answer["data"][0]["id"])))[:200]
        except _NO_ANSWER as error:
            where = f"endpoint.url={self._options.url}: {type(error).__name__}: {error}"[:_REASON]
            raise UnavailableError(
                f"{where}; start the server, or set endpoint.model where it names none"
            ) from None

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            kind = http.client.HTTPSConnection
        else:
            kind = http.client.HTTPConnection
        return kind(self._address, timeout=self._patience())

    def _patience(self) -> float:
        """Seconds that a server may be silent now."""
        return max(0.1, min(self._options.patience, self._until - time.monotonic()))

    def loop(
        self, threads: int, seconds: float, queries: int, rate: float | None = None
    ) -> list[EndpointRequest]:
        """Ask with so many threads, or at `rate` a second, for so long and so often, once at least."""
        self._runs += 1
        begin = time.monotonic_ns() + 2_000_000
        lock = threading.Lock()
        done = []
        if rate is None:
            numbered = itertools.chain(
                range(queries), iter(lambda: time.monotonic_ns() < begin + seconds * 1e9, False)
            )
            due: Iterator[int] = (max(begin, time.monotonic_ns()) for _ in numbered)
        else:
            times = arrivals(rate, (self._options.seed + self._runs) % 2**32, seconds, queries)
            threads = min(_MOST_OPEN, len(times))
            due = (begin + after for after in times)
        numbers = itertools.count()

        def work() -> None:
            with closing(self._connection()) as connection:
                while True:
                    with lock:
                        when = next(due, None)
                        number = next(numbers)
                    if when is None or (number and time.monotonic() > self._until):
                        return
                    time.sleep(max(0.0, (when - time.monotonic_ns()) / 1e9))
                    done.append(self._ask(connection, number, when))

        with ThreadPoolExecutor(threads) as pool:
            for running in [pool.submit(work) for _ in range(threads)]:
                running.result()
        return sorted(done, key=lambda request: request.due)

    def _prompt(self, number: int) -> dict[str, Any]:
        """Words drawn anew, so that no cache of prefixes knows them."""
        draw = random.Random(f"{self._options.seed} {self._runs} {number}")
        text = " ".join(draw.choices(_WORDS, k=self._options.input_tokens))
        if self._options.api == "chat":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}

    def _ask(
        self, connection: http.client.HTTPConnection, number: int, due: int
    ) -> EndpointRequest:
        """Send one request and read its answer to the end."""
        wanted = {
            "model": self.model,
            "max_tokens": self._options.output_tokens,
            "temperature": 0.0,
        }
        stream = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({**wanted, **stream, **self._prompt(number)})
        path = f"{self._path}/{'chat/' if self._options.api == 'chat' else ''}completions"
        sent = time.monotonic_ns()
        try:
            connection.timeout = self._patience()
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(connection.timeout)
            sent = time.monotonic_ns()
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(_REASON).decode(errors="replace")
                raise http.client.HTTPException(
                    f"status {response.status} {response.reason}: {' '.join(said.split())}"
                )
            found = _streamed(response, self._until, _BEYOND * self._options.output_tokens)
            return replace(found, due=due, sent=sent)
        except _NO_ANSWER as error:
            connection.close()
            now = time.monotonic_ns()
            problem = f"{type(error).__name__}: {error}"[:_REASON]
            return EndpointRequest(
                due, sent, now, now, problem="".join(filter(str.isprintable, problem))
            )


def _streamed(response: http.client.HTTPResponse, until: float, most: int) -> EndpointRequest:
    """Tokens of an answer of server-sent events, and when they came; raises ValueError or OSError
    for anything else, also for one that does not end until the clock shows `until`, or with `most`
    tokens.
    """
    first = last = parts = 0
    ended = False
    usage = dict[str, Any]()
    while line := response.readline(_LINE):
        now = time.monotonic_ns()
        if now > until * 1e9:
            raise TimeoutError("the answer did not end before the point had to")
        if not line.startswith(b"data:"):
            continue
        if line[5:].strip() == b"[DONE]":
            ended = True
            continue
        event = json.loads(line[5:])
        if "error" in event:
            raise ValueError(str(event["error"]))
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice
            if (
                delta.get("content")
                or delta.get("text")
                or delta.get("reasoning_content")
                or delta.get("reasoning")
            ):
                first = first or now
                last = now
                parts = parts + 1
        if parts > most:
            raise ValueError(f"the answer goes on after {most} tokens")
    if not parts or not ended:
        raise ValueError("the answer broke off" if parts else "the answer held no token")
    tokens = usage.get("completion_tokens") or parts
    prompt = usage.get("prompt_tokens") or 0
    return EndpointRequest(0, 0, first, last, int(prompt), int(tokens))


ENDPOINT = Endpoint()
FAMILY = Family(
    "endpoint",
    ServedModel,
    "vectors",
    (),
    "endpoint.concurrency=1,4,16 endpoint.input_tokens=128,1024",
    order=60,
    words="A model that a server answers for by the OpenAI protocol: first token, tokens, requests in time.",
    chosen={"step": {**ALONE["step"], "endpoint": asdict(ENDPOINT)}},
)
