"""Requests to a served model through the OpenAI API (`model=endpoint`).

vLLM, SGLang, llama.cpp and other servers provide this API. Each process of a point sends requests
independently and measures the streamed answers (docs/how-to/serving.md).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from paradnn.config.rules import PointRules, require_time
from paradnn.core.errors import ConfigError, PointEnded, UnavailableError, require_value
from paradnn.core.layers import UNKNOWN, Costs
from paradnn.core.messages import Answer, messages_of_kind
from paradnn.core.metric import Metric, MetricSnapshot, in_section
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.words import counted, rounded
from paradnn.core.workload import Workload
from paradnn.families import Family, Model
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.arrivals import process_seed
from paradnn.worker.peak_search import Probe, find_peak, percentile, verdict
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.endpoint.client import MAX_IN_FLIGHT, Client
from paradnn.workloads.endpoint.records import EndpointRequest, Requests, window_seconds

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.session.overview.drawing import BarChart, Chart
    from paradnn.worker.point import PointRun

#: Reported percentiles of latency, time to first token and time per output token.
_PERCENTILES = (50, 90, 99)
#: Minimum duration of a probe of one rate in seconds, unless endpoint.min_seconds is shorter.
_PROBE_SECONDS = 10.0
#: The search stops when the lowest failed rate exceeds the highest passed rate by at most this
#: fraction.
_PRECISION = 0.05
METRICS = (
    Metric(
        "time_to_first_token_p99_ms",
        "ms",
        "lower",
        "99th percentile of the time from when a request was due until its first token",
        has_interval=True,
    ),
    Metric(
        "time_per_output_token_p99_ms",
        "ms",
        "lower",
        "99th percentile over requests of the mean time between a request's tokens",
        has_interval=True,
    ),
    *in_section(
        "latency",
        Metric(
            "time_to_first_token_p90_ms",
            "ms",
            "lower",
            "90th percentile of the time from when a request was due until its first token",
            has_interval=True,
        ),
        Metric(
            "time_per_output_token_p90_ms",
            "ms",
            "lower",
            "90th percentile over requests of the mean time between a request's tokens",
            has_interval=True,
        ),
    ),
    *in_section(
        "load",
        Metric(
            "failed_queries",
            "1",
            "lower",
            "requests that were rejected, timed out, or got an incomplete answer",
        ),
    ),
    *in_section(
        "generation",
        Metric("prompt_tokens", "1", None, "mean tokens per prompt as reported by the server"),
        Metric(
            "output_tokens",
            "1",
            None,
            "mean tokens per answer as reported by the server; if it reports none, mean chunks "
            "with text",
        ),
    ),
)


@dataclass(frozen=True)
class ServedModel(Model):
    """A model behind an endpoint. Only its server knows its layers and costs."""

    is_communication: ClassVar[bool] = True
    size_template: ClassVar[str] = "served"

    name: str = option("endpoint", "the kind of workload", choices=("endpoint",))

    def costs(self, **_: Any) -> Costs:
        return UNKNOWN

    def layer_count(self) -> int:
        return 1

    def canonical_point(self, point: Any) -> Any:
        """Return `point`, with settings that do not affect a server reset to their defaults.

        These settings are the optimizer, the compilation and the profile.

        Args:
            point: A `Point`, one configuration to measure, whose model is this one.

        Raises:
            ConfigError: If the point sets a key whose value only the server decides, such as
                precision.
        """
        reason = "is decided by the server of model=endpoint"
        tokens = "omit it, and set endpoint.input_tokens"
        load = "omit it, and set endpoint.concurrency or endpoint.rate"
        trains = "model=endpoint cannot be trained"
        profile = "model=endpoint runs no operations that could be profiled"
        for key, value, required, why, remedy in (
            ("precision", point.precision, "float32", reason, "omit it"),
            ("data", point.data.name, "synthetic", reason, tokens),
            ("mode", point.workload.mode, "inference", trains, "omit it"),
            ("batch_size", point.batch_size, 1, "model=endpoint has no batch", load),
            ("devices", point.devices, 1, reason, "omit it"),
            ("measure.keep_trace", point.measure.keep_trace, False, profile, ""),
        ):
            require_value(key, value, required=required, reason=why, remedy=remedy)
        return replace(
            point,
            optimizer=type(point.optimizer)(),
            measure=replace(point.measure, profile=False),
            compile=type(point).__dataclass_fields__["compile"].default,
        )


class _Overload(PointEnded):
    """The server or the client cannot sustain the load.

    Either no tried rate meets the time limits, or requests could not be sent when they were due.
    """

    outcome = "overload"


@dataclass(frozen=True)
class Endpoint(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """Send requests to an endpoint, measure its answers, and compare them with time limits."""

    name = "endpoint"
    group = "endpoint"
    key = "model"
    order = 55
    unit = "request"
    conflict_reason = "sends requests to a server, and cannot train"
    declared_metrics = METRICS
    message_types = (Requests,)
    headlines: ClassVar[Mapping[str, str]] = {"time_to_first_token_ms": "ms to the first token"}
    phases: ClassVar[Mapping[str, str]] = {"requests": "warmup"}
    added_defaults: ClassVar[Mapping[str, Any]] = {
        "endpoint.token_limit": "max_tokens",
        "endpoint.ignore_eos": True,
        "endpoint.stream_usage": True,
        "endpoint.temperature": 0.0,
        "endpoint.startup_seconds": None,
    }
    quick_defaults: ClassVar[Mapping[str, Any]] = {"min_seconds": 5.0}

    url: str = option(
        "http://localhost:8000/v1",
        "base URL of the API",
        pattern=(r"https?://[^@\s?#]+", "write http://host:port/v1, without a password"),
    )
    model: str | None = option(None, "name of the model; null: the first that the server lists")
    api: str = option(
        "chat",
        "chat: /chat/completions; completions: /completions, with a plain prompt",
        choices=("chat", "completions"),
    )
    input_tokens: int = option(
        128, "words of a prompt, drawn at random for each request", low=1, high=1_000_000
    )
    output_tokens: int = option(64, "maximum tokens of an answer", low=1, high=1_000_000)
    token_limit: str = option(
        "max_tokens",
        "request parameter that holds the value of endpoint.output_tokens",
        choices=("max_tokens", "max_completion_tokens"),
    )
    ignore_eos: bool = option(
        True, "send ignore_eos=true, so that answers have full length; false: omit the parameter"
    )
    stream_usage: bool = option(
        True, "request token counts from the server (stream_options); false: omit the parameter"
    )
    temperature: float | None = option(
        0.0, "sampling temperature; null: omit the parameter", low=0.0, high=2.0
    )
    concurrency: int = option(
        1, "requests in flight at any time, if endpoint.rate=null", low=1, high=MAX_IN_FLIGHT
    )
    rate: float | str | None = option(
        None,
        "mean rate, in requests per second, of requests that are sent at random times without "
        "waiting for earlier answers; null: keep endpoint.concurrency requests in flight; peak: "
        "search for the highest rate that meets the limits",
        low=1e-3,
        high=1e5,
        choices=("peak",),
        shown=("null", "peak", "a number"),
    )
    first_token_ms: float | None = option(
        None, "limit: time from when a request is due to its first token, in ms", low=1e-3
    )
    token_ms: float | None = option(
        None, "limit: mean time between the tokens of an answer, in ms", low=1e-3
    )
    request_ms: float | None = option(
        None, "limit: time from when a request is due to its last token, in ms", low=1e-3
    )
    percentile: float = option(
        99.0,
        "endpoint.rate=peak: percentage of requests that must meet the limits",
        low=1,
        high=99.999,
    )
    confidence: float = option(
        0.95, "endpoint.rate=peak: confidence that the limits are met", low=0.5, high=0.9999
    )
    min_seconds: float = option(60.0, "minimum duration, in seconds", low=0.0, high=86_400.0)
    min_queries: int = option(50, "minimum number of requests", low=1, high=1_000_000)
    patience: float = option(
        120.0, "seconds without data after which a request fails", low=0.1, high=86_400.0
    )
    startup_seconds: float | None = option(
        None,
        "seconds to wait for a server that is starting; null: 30 if it responds that it is not "
        "ready, 0 if it refuses connections",
        low=0.0,
        high=86_400.0,
    )
    key_variable: str = option(
        "OPENAI_API_KEY", "environment variable that holds the API key, which is never recorded"
    )
    seed: int = option(1, "seed of prompts and arrival times", low=0, high=2**32 - 1)

    @property
    def is_limited(self) -> bool:
        """Whether any time limit (first_token_ms, token_ms or request_ms) is set."""
        limits = (self.first_token_ms, self.token_ms, self.request_ms)
        return any(limit is not None for limit in limits)

    def canonical(self, point: Point) -> Point:
        """Return a point in canonical form: `concurrency` has its default if a rate is set.

        Args:
            point: One configuration to measure, whose kind of work is this one.

        Raises:
            ConfigError: If the URL is invalid, if endpoint.rate=peak has no time limit, or if
                measure.timeout is too short.
        """
        self._check_address()
        if self.rate == "peak" and not self.is_limited:
            remedy = "set endpoint.first_token_ms, endpoint.token_ms or endpoint.request_ms"
            raise ConfigError("endpoint.rate", "peak", "needs a time limit", remedy)
        require_time("endpoint", self.min_seconds, point)
        if self.rate is None:
            return point
        return replace(point, workload=replace(self, concurrency=type(self).concurrency))

    def _check_address(self) -> None:
        """Raise ConfigError if the URL has no host or an invalid port."""
        parts = urlsplit(self.url)
        try:
            is_valid = bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            remedy = "write http://host:port/v1"
            raise ConfigError("endpoint.url", self.url, "has no valid host and port", remedy)

    def for_process(self, replicate: int, process: int) -> Endpoint:
        return replace(self, seed=process_seed(self.seed, replicate, process))

    def name_parts(self, point: Point) -> list[str]:
        if self.rate is None:
            load = f"x{self.concurrency}"
        elif self.rate == "peak":
            load = "peak"
        else:
            load = f"{self.rate:g}/s"
        parts = [f"{self.input_tokens}+{self.output_tokens}", load]
        if self.url != type(self).url:
            parts.append(urlsplit(self.url).netloc)
        if self.model is not None:
            parts.insert(0, self.model)
        return parts

    def open_devices(self, run: PointRun) -> None:
        """Do nothing: only the server uses devices."""

    def measure(self, run: PointRun) -> None:
        seconds_left = run.seconds_left - self.min_seconds / 10 - 1
        client = Client(self, deadline=time.monotonic() + seconds_left)
        with run.phases("warmup"):
            client.wait_until_ready()
            client.run_requests(
                concurrency=self.concurrency,
                seconds=run.request["measure"]["warmup_seconds"],
                queries=1,
            )
        with run.phases("requests"):
            probes: list[Probe] = []
            rate = None
            if self.rate == "peak":
                rate = self._peak_rate(client, run, probes)
            elif self.rate is not None:
                rate = float(self.rate)
            requests = client.run_requests(
                concurrency=self.concurrency,
                seconds=self.min_seconds,
                queries=self.min_queries,
                rate=rate,
            )
            run.note(work=Requests.packed(requests, client.model, rate, probes))
            client.check_alive()
        self._check_answered(client, requests)
        if rate is not None:
            _check_punctual(rate, requests)

    def _check_answered(self, client: Client, requests: Sequence[EndpointRequest]) -> None:
        """Check that the server answered some requests and has not stopped answering.

        Args:
            client: The client that sent the requests.
            requests: The requests, including failed ones.

        Raises:
            UnavailableError: If no request was answered, or if the server counts as gone.
        """
        answered = sum(not request.problem for request in requests)
        problems = [request.problem for request in requests if request.problem]
        if not answered:
            raise UnavailableError(
                f"endpoint.url={self.url}: no request was answered; the last problem: "
                f"{problems[-1]}"
            )
        if client.is_gone:
            raise UnavailableError(
                f"endpoint.url={self.url}: the server stopped answering after "
                f"{answered:,} of {counted(len(requests), 'request')}; the last problem: "
                f"{problems[-1]}"
            )

    def _peak_rate(self, client: Client, run: PointRun, probes: list[Probe]) -> float:
        """Search for the highest request rate that meets the time limits.

        Args:
            client: Sends the requests.
            run: Provides the time that is left for this measurement.
            probes: A list to which the result of every tried rate is appended.

        Returns:
            The rate, in requests per second.

        Raises:
            _Overload: If the search ended without a rate that was shown to meet the limits.
            UnavailableError: If the server has stopped answering.
        """
        share = self.percentile / 100
        seconds = min(_PROBE_SECONDS, self.min_seconds)
        sample = client.run_requests(concurrency=16, seconds=seconds, queries=16)
        self._check_answered(client, sample)

        def meets_limits(rate: float, seconds: float, queries: int) -> bool:
            requests = client.run_requests(
                concurrency=1, seconds=seconds, queries=queries, rate=rate
            )
            self._check_answered(client, requests)
            cumulative_late = list(accumulate(not self.is_in_time(request) for request in requests))
            is_met = verdict(cumulative_late, share, 1 - self.confidence)
            latency = percentile((request.latency for request in requests), share) / 1e9
            probe = Probe(
                rate=rate,
                queries=len(requests),
                late=cumulative_late[-1],
                seconds=window_seconds(requests),
                latency=latency,
                held=is_met,
                reason=None,
            )
            probes.append(probe)
            return is_met is True

        # If all requests are in time, this number of them suffices to show, with the required
        # confidence, that the limits are met.
        required_requests = math.ceil(math.log(1 - self.confidence) / math.log(share)) + 1

        def has_time(rate: float) -> bool:
            probe_seconds = _PROBE_SECONDS + required_requests / rate
            return run.seconds_left > 2 * (self.min_seconds + probe_seconds)

        search = find_peak(
            probe=lambda rate: meets_limits(rate, seconds, required_requests),
            run_full_length=lambda rate: (
                meets_limits(rate, self.min_seconds, max(required_requests, self.min_queries)),
                None,
            ),
            capacity=2 * len(sample) / window_seconds(sample),
            precision=_PRECISION,
            has_time=has_time,
        )
        if not search.held or search.rate is None:
            raise _Overload(
                "endpoint.rate=peak: the search confirmed no rate that meets the limits "
                f"({counted(len(probes), 'probe')}); raise measure.timeout or the limits"
            )
        return search.rate

    def is_in_time(self, request: EndpointRequest) -> bool:
        """Return whether a request was answered within all time limits.

        Args:
            request: The request and its outcome; a failed request is not in time.
        """
        if request.problem:
            return False
        checks = (
            (request.latency, self.request_ms),
            (request.time_to_first_token, self.first_token_ms),
            (request.time_per_output_token or 0.0, self.token_ms),
        )
        return all(limit is None or taken <= limit * 1e6 for taken, limit in checks)

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        return False

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        from paradnn.session.peak_metrics import peak_metrics

        messages = messages_of_kind(measured.answers, Requests)
        processes = [message.requests() for message in messages]
        answered = [
            [request for request in process if not request.problem] for process in processes
        ]
        if not answered or not all(answered):
            return {}
        total = sum(map(len, processes))
        done = [request for process in answered for request in process]
        metrics = {
            "processes": float(len(processes)),
            "queries": float(len(done)),
            "failed_queries": float(total - len(done)),
            "output_tokens": statistics.fmean(request.tokens for request in done),
        }
        if any(request.prompt for request in done):
            metrics["prompt_tokens"] = statistics.fmean(request.prompt for request in done)
        metrics |= _time_metrics(answered)
        metrics |= self._rate_metrics(processes)
        scheduled = [message.rate for message in messages if message.rate is not None]
        if scheduled:
            lateness = (request.sent - request.due for process in processes for request in process)
            metrics["scheduled_queries_per_second"] = statistics.fmean(scheduled)
            metrics["generator_late_max_ms"] = max(lateness) / 1e6
        if self.rate == "peak":
            metrics |= peak_metrics(scheduled, [message.probes for message in messages])
        return metrics

    def _rate_metrics(self, processes: Sequence[Sequence[EndpointRequest]]) -> dict[str, float]:
        """Return rates of answers, tokens and goodput per second, as means over the processes.

        Goodput counts only answers within the time limits. A rate refers to the whole time in which
        a process sent requests, including failed ones (`window_seconds`).

        Args:
            processes: All requests of each process.
        """
        from paradnn.session.measured import mean_interval

        metrics: dict[str, float] = {}
        seconds = [window_seconds(process) for process in processes]
        counts = {
            "queries_per_second": [
                sum(not request.problem for request in process) for process in processes
            ],
            "tokens_per_second": [
                sum(request.tokens for request in process) for process in processes
            ],
        }
        if self.is_limited:
            in_time = [sum(map(self.is_in_time, process)) for process in processes]
            counts["goodput_per_second"] = in_time
            metrics["in_time_fraction"] = sum(in_time) / sum(map(len, processes))
        for name, values in counts.items():
            rates = [value / length for value, length in zip(values, seconds, strict=True)]
            metrics[name] = statistics.fmean(rates)
            if name == "tokens_per_second" and len(rates) > 1 and min(rates) > 0:
                low, high = mean_interval(rates)
                metrics["tokens_per_second_low"] = low
                metrics["tokens_per_second_high"] = high
        return metrics

    def tags(self, measured: Measured) -> dict[str, str]:
        messages = messages_of_kind(measured.answers, Requests)
        if not messages:
            return {}
        processes = [message.requests() for message in messages]
        tags = {"endpoint_model": messages[0].model, **_steady_tags(processes)}
        requests = [request for process in processes for request in process]
        problems = [request.problem for request in requests if request.problem]
        if problems:
            tags["request_problem"] = (
                f"{len(problems):,} of {counted(len(requests), 'request')} failed; "
                f"the first: {problems[0]}"
            )
        answered = [request for request in requests if not request.problem]
        if not all(request.has_usage for request in answered):
            tags["token_counts"] = "chunks with text, since the server reports no usage"
        tags |= self._length_tags(answered)
        at_once = sum(request.is_at_once for request in answered)
        if at_once:
            tags["tokens_at_once"] = (
                f"{at_once:,} of {counted(len(answered), 'answer')}: the server or a proxy sends "
                "tokens together, so the times to the first token and between tokens are unknown"
            )
        return tags

    def _length_tags(self, answered: Sequence[EndpointRequest]) -> dict[str, str]:
        """Return the tag `answer_lengths`: how many answers are shorter or longer than requested.

        Only answers whose tokens the server counted are compared. The result is empty if all
        lengths are right.

        Args:
            answered: The requests that were answered, of all processes.
        """
        lengths = [request.tokens for request in answered if request.has_usage]
        longer = sum(length > self.output_tokens for length in lengths)
        # Without ignore_eos the model chooses when to end.
        shorter = sum(length < self.output_tokens for length in lengths) if self.ignore_eos else 0
        counts = [(shorter, "shorter"), (longer, "longer")]
        differences = [f"{count:,} {name}" for count, name in counts if count]
        if not differences:
            return {}
        text = " and ".join(differences)
        return {
            "answer_lengths": (
                f"{text} than endpoint.output_tokens={self.output_tokens}, of "
                f"{counted(len(lengths), 'answer')}"
            )
        }

    def series(self, measured: Measured) -> list[MetricSnapshot]:
        """Return the latencies over time, for the first process with answered requests.

        Args:
            measured: Results of all processes of one measured configuration.
        """
        from paradnn.session.run_series import latency_series

        for process in _answered_requests(measured):
            requests = [(request.due, request.latency) for request in process]
            return latency_series(requests, measured.start_time)
        return []

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        from paradnn.session.overview import distribution_chart

        answered = _answered_requests(measured)
        if not answered:
            return []
        charts: list[Chart | BarChart] = []
        shown = {
            "Latency of a request": ("latency", self.request_ms),
            "Time to the first token": ("time_to_first_token", self.first_token_ms),
            "Time per output token": ("time_per_output_token", self.token_ms),
        }
        for title, (name, limit) in shown.items():
            times = [[getattr(request, name) for request in process] for process in answered]
            processes = [[ns / 1e6 for ns in process if ns is not None] for process in times]
            if all(processes):
                charts.append(distribution_chart(title, processes, limit))
        return charts

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        processes = [
            [vars(request) for request in message.requests()]
            for message in messages_of_kind(measured.answers, Requests)
        ]
        if not processes:
            return {}
        return {"requests.json": {"unit": "ns", "processes": processes}}

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "endpoint_model" not in tags or "queries" not in metrics:
            return None
        clauses = []
        first = metrics.get("time_to_first_token_ms")
        if first is not None:
            clause = f"first token after {rounded(first)} ms"
            low = metrics.get("time_to_first_token_low_ms")
            high = metrics.get("time_to_first_token_high_ms")
            if low is not None and high is not None:
                clause += f" (95% CI {rounded(low)} .. {rounded(high)})"
            clauses.append(clause)
        per_token = metrics.get("time_per_output_token_ms")
        unit = "chunks" if "token_counts" in tags else "tokens"
        speed = f"{rounded(metrics['tokens_per_second'])} {unit}/s"
        if "tokens_at_once" in tags:
            count = tags["tokens_at_once"].partition(":")[0]
            clauses.append(f"all {unit} at once in {count}, {speed}")
        elif per_token is not None:
            clauses.append(f"then {rounded(per_token)} ms per {unit[:-1]}, {speed}")
        rate = rounded(metrics["queries_per_second"], 3)
        clause = f"{counted(int(metrics['queries']), 'request')}, {rate}/s"
        if metrics["failed_queries"]:
            clause += f", {metrics['failed_queries']:,.0f} failed"
        clauses.append(clause)
        if "answer_lengths" in tags:
            clauses.append(f"answers {tags['answer_lengths']}")
        if "in_time_fraction" in metrics:
            goodput = rounded(metrics["goodput_per_second"], 3)
            clauses.append(f"{metrics['in_time_fraction']:.2%} in time, {goodput}/s")
        if "peak_queries_per_second" in metrics:
            peak = rounded(metrics["peak_queries_per_second"], 3)
            clauses.append(f"{peak}/s is the highest rate that met the limits")
        return ResultText("answers", clauses, replaces_steps=True)

    def require_predictable(self) -> None:
        if self.rate == "peak":
            raise ConfigError(
                "endpoint.rate",
                "peak",
                "cannot be planned, because the number of rates that the search tries is unknown",
                "plan a fixed rate, such as endpoint.rate=10",
            )


def _answered_requests(measured: Measured) -> list[list[EndpointRequest]]:
    processes = [message.requests() for message in messages_of_kind(measured.answers, Requests)]
    answered = [[request for request in process if not request.problem] for process in processes]
    return [process for process in answered if process]


def _check_punctual(rate: float, requests: Sequence[EndpointRequest]) -> None:
    """Check that requests of an open loop were sent when they were due.

    The median delay may be at most 5 ms or 5% of the median latency (the larger value counts).

    Args:
        rate: Scheduled requests per second.
        requests: The requests of this process.

    Raises:
        _Overload: If the median delay is larger.
    """
    late = statistics.median(request.sent - request.due for request in requests)
    latency = statistics.median(request.latency for request in requests)
    if late > max(5e6, latency / 20):
        raise _Overload(
            f"endpoint.rate={rate:g}: requests were sent {late / 1e6:,.0f} ms late (median), "
            f"because {MAX_IN_FLIGHT} requests were in flight or this machine was too slow to send "
            "more; lower endpoint.rate"
        )


def _time_metrics(processes: Sequence[Sequence[EndpointRequest]]) -> dict[str, float]:
    """Return percentiles of the latency, time to first token and time per output token, in ms.

    The result contains a percentile only if each process has enough requests to expect at least one
    slower than the percentile. It has a 95% interval if the data suffice (`quantile_metrics`).

    Args:
        processes: The answered requests of each process.
    """
    from paradnn.session.measured import quantile, quantile_metrics

    metrics: dict[str, float] = {}
    for name in ("latency", "time_to_first_token", "time_per_output_token"):
        times = [[getattr(request, name) for request in process] for process in processes]
        values = [[time / 1e6 for time in process if time is not None] for process in times]
        for percent in _PERCENTILES:
            has_enough = all(len(process) * (100 - percent) >= 100 for process in values)
            if not has_enough:
                continue
            metric = f"{name}_p{percent}"
            if percent == 50 and name != "latency":
                # The headline metrics time_to_first_token_ms and time_per_output_token_ms.
                metric = name
            metrics |= quantile_metrics(metric, percent / 100, values, quantile)
    return metrics


def _steady_tags(processes: Sequence[Sequence[EndpointRequest]]) -> dict[str, str]:
    """Return the tags `steady` and `steady_reason`: whether latencies changed during the run.

    `steady` is "false" if a change matters, or if there are too few requests to decide.

    Args:
        processes: All requests of each process, in the order in which they were due.
    """
    from paradnn.worker.series import MIN_VALUES, find_change

    changes = [
        find_change([float(request.latency) for request in process])
        for process in processes
        if len(process) >= MIN_VALUES
    ]
    relevant = [str(change) for change in changes if change.matters]
    if not changes:
        return {"steady": "false", "steady_reason": "too few requests to decide"}
    if relevant:
        return {"steady": "false", "steady_reason": relevant[0]}
    return {"steady": "true", "steady_reason": "no change that matters"}


ENDPOINT = Endpoint()
FAMILY = Family(
    "endpoint",
    ServedModel,
    "vectors",
    (),
    "endpoint.concurrency=1,4,16 endpoint.input_tokens=128,1024",
    order=60,
    summary="A served model behind the OpenAI API: time to first token, token rates, goodput.",
    defaults={"step": {"mode": "inference", "batch_size": 1, "endpoint": asdict(ENDPOINT)}},
)
