"""Inference under load (`scenario=...`): who asks, how it is served, what comes of it
(docs/how-to/serving.md).

Definitions and defaults are MLPerf Inference's, of mlperf.conf and test_settings.h of LoadGen 6.0.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, require_value
from paradnn.core.messages import Answer, messages_of_kind
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.words import rounded
from paradnn.core.workload import Workload
from paradnn.families import Model
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.chance import required_in_time_queries
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.serve.generator import LOADGEN_SEED
from paradnn.workloads.serve.load import (
    OFFLINE_SLACK,
    ScheduledRuns,
    Service,
    measure_served,
    serve_closed,
    verdict,
)
from paradnn.workloads.serve.metrics import METRICS
from paradnn.workloads.serve.queries import Load, Probe, QueryLog, load_artifacts, percentile

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.worker.meters import EnergyMeter
    from paradnn.worker.point import PointRun

_PERCENTILE = "percentile of the latency that the scenario is about"
_SECONDS = "ask for at least so many seconds"
_QUERIES = "and for at least so many queries"
_SEED = "of the arrivals of the first process; the default is LoadGen's, others' follow from it"
_PERCENTILES = (50, 90, 95, 99, 99.9)
#: LoadGen's, of its early stopping in streams.
_CONFIDENCE = 0.99


def process_seed(seed: int, replicate: int, process: int) -> int:
    """That of one process' arrivals: such steps, odd and far apart, that neighbouring seeds of an
    axis share none.
    """
    return (seed + replicate * 0x85EBCA77 + process * 0x9E3779B1) % 2**32


class Scenario(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """What all scenarios have in common."""

    key = "scenario"
    conflict_reason = "is for inference"
    declared_metrics = METRICS
    message_types = (Load,)
    headlines: ClassVar[Mapping[str, str]] = {
        "peak_queries_per_second": "queries/s",
        "goodput_per_second": "queries/s in time",
        "latency_early_stopping_ms": "ms a query",
        "queries_per_second": "queries/s",
    }
    quick_defaults: ClassVar[Mapping[str, Any]] = {"min_seconds": 15.0}
    #: Only a schedule asks for a rate.
    objectives = (
        "cost_per_million_queries",
        "scheduled_queries_per_second",
        "queries_per_second",
        "latency_p99_ms",
    )
    phases: ClassVar[Mapping[str, str]] = {"load": "latency"}
    contention_prefixes: ClassVar[Mapping[str, str]] = {"load": "under load: "}

    min_seconds: float
    min_queries: int

    def check_model(self, model: Model) -> None:
        if model.is_kernel or model.is_communication:
            reason = f"model={model.name} is one operation, which is not queried"
            raise ConfigError("scenario", self.name, reason, "choose another model")

    def canonical(self, point: Point) -> Point:
        """On one device, whose input is there, asked for no longer than its point may take."""
        inputs = f"scenario={self.name} takes queries whose input is on the device"
        require_value(
            "devices", point.devices, required=1, reason=f"scenario={self.name} is for one device"
        )
        require_value("data", point.data.name, required="synthetic", reason=inputs)
        check_seconds(self.name, self.min_seconds, point)
        return point

    def measure(self, run: PointRun) -> None:
        """A step as any other's, then let the scenario ask; what it gave is in the answer, however
        it ends.
        """
        measure_served(run, self)

    def batches(self, largest: int) -> dict[int, int]:
        """The examples of each batch that is compiled, by the queries that it serves; of a stream
        one is all of it.
        """
        return {1: largest}

    def ask(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        """Let it ask until the clock shows so many ns, at most; one query after the other. Raises
        NotServed.
        """
        return self._closed(service, until, meter, self.min_queries, self.min_seconds)

    def _closed(
        self,
        service: Service,
        until: int,
        meter: EnergyMeter,
        queries: int,
        seconds: float,
        batch: int = 0,
    ) -> Load:
        meter.start()
        served = serve_closed(service.run, time.monotonic_ns, queries, seconds, batch, until)
        return service.load(None, served.told(f"scenario={self.name}", meter.joules()), [])

    def name_parts(self, point: Point) -> list[str]:
        return [self.mode, self.name]

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        """A load that is too much for the steps, or cut short, costs none of them."""
        return outcome in ("ok", "overload") or bool(
            outcome == "timeout" and last_answer and isinstance(last_answer.work, Load)
        )

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        from paradnn.session.measured import quantile_metrics

        given = [load for load in messages_of_kind(measured.answers, Load) if load.log()]
        if not given or "step_time_ms" not in known:
            return {}
        logs = [load.log() for load in given]
        each = [log.parts() for log in logs]
        parts = {name: [one[name] for one in each] for name in each[0]}
        metrics = {
            "queries": float(sum(map(len, logs))),
            "queries_per_second": statistics.fmean(len(log) / log.seconds() for log in logs),
            "queries_per_batch": 1
            / statistics.fmean(1 / count for log in logs for count in log.together),
            "single_query_ms": 1e3 * statistics.median(load.single_seconds for load in given),
            "latency_max_ms": max(map(max, parts["latency"])),
        }
        for name, values in parts.items():
            metrics[f"{name}_mean_ms"] = statistics.fmean(
                value for process in values for value in process
            )
            for rank in (50, 99) if name != "latency" else ():
                metrics[f"{name}_p{rank}_ms"] = statistics.fmean(
                    percentile(process, rank / 100) for process in values
                )
        for share in _PERCENTILES:
            if all(len(log) * (100 - share) >= 100 for log in logs):
                metrics |= quantile_metrics(
                    f"latency_p{share:g}", share / 100, parts["latency"], percentile
                )
        joules = [load.joules for load in given if load.joules is not None]
        if len(joules) == len(given):
            metrics["energy_per_query_joules"] = sum(joules) / metrics["queries"]
        return metrics | self._own_metrics(measured, given, logs)

    def _own_metrics(
        self, measured: Measured, given: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        return {}

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        return load_artifacts(measured.answers)

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "queries_per_batch" not in metrics:
            return None
        words = f"{metrics['queries']:,.0f} queries, {rounded(metrics['queries_per_second'])}/s"
        asked = metrics.get("scheduled_queries_per_second")
        if asked:
            words += f" of {rounded(asked)}/s asked, {metrics['in_time_fraction']:.2%} in time"
        if "peak_queries_per_second" in metrics:
            low, high = (metrics.get(f"peak_queries_per_second_{end}") for end in ("low", "high"))
            if low and high:
                between = f", {rounded(low)} .. {rounded(high)}"
            else:
                between = ""
            if metrics["processes"] == 1:
                processes = "a single process"
            else:
                processes = f"{metrics['processes']:g} processes"
            words += f", the highest rate found ({processes}{between})"
        clauses = [
            words,
            f"{metrics['queries_per_batch']:.1f} a batch, waited {rounded(metrics['queue_mean_ms'], 3)} ms and were "
            f"served in {rounded(metrics['service_mean_ms'], 3)} ms in the mean",
        ]
        early = metrics.get("latency_early_stopping_ms")
        if early:
            clauses.insert(0, f"{rounded(early, 3)} ms a query, by LoadGen's early stopping")
        if "limit" not in tags:
            return ResultText("load", clauses)
        held = f"limit {tags['limit']}: {tags['limit_reason']}"
        invalid = tags.get("valid") == "false"
        if invalid:
            verdict = f"INVALID, {words}, limit {tags['limit']}"
        else:
            verdict = ""
        return ResultText(
            "load", [f"INVALID: {held}" if invalid else held, *clauses], verdict=verdict
        )

    def forecast_phases(self, points: Any, step: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """At least so many seconds, and so many queries; they come in place of single steps."""
        import numpy as np

        asked = (points.text("scenario") == self.name)[:, None]
        if not asked.any():
            return {}
        seconds, queries = (
            points.number(f"{self.name}.min_{what}")[:, None] for what in ("seconds", "queries")
        )
        if self.name == "server":
            each = 1 / points.number("server.rate")[:, None]
        else:
            each = step
        if self.name == "offline":
            seconds = seconds * OFFLINE_SLACK
            each = step / points.count("batch_size")[:, None]
        load = np.where(
            asked, np.fmax(seconds, queries * each), known.get("load", np.zeros(step.shape))
        )
        return {"load": load, "latency": np.where(asked, 0.0, known["latency"])}


@dataclass(frozen=True)
class SingleStream(Scenario):
    """A query of batch_size examples as soon as the one before it is answered."""

    name = "single_stream"
    group = "single_stream"
    order = 20

    percentile: float = option(90.0, _PERCENTILE, low=1.0, high=99.999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)

    def _own_metrics(
        self, measured: Measured, given: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        early = _early_stopping(self.percentile / 100, logs[0].parts()["latency"])
        return {} if early is None else {"latency_early_stopping_ms": early}


@dataclass(frozen=True)
class MultiStream(SingleStream):
    """The same of eight examples, for the 99th percentile."""

    name = "multi_stream"
    group = "multi_stream"
    order = 21

    percentile: float = option(99.0, _PERCENTILE, low=1.0, high=99.999)
    min_queries: int = option(662, _QUERIES, low=1, high=10_000_000)


@dataclass(frozen=True)
class Offline(Scenario):
    """All examples at once, served in batches of batch_size."""

    name = "offline"
    group = "offline"
    order = 22

    min_seconds: float = option(
        600.0, "as many examples as are to take so many seconds", low=0.0, high=86_400.0
    )
    min_queries: int = option(24_576, "and at least so many examples", low=1, high=10_000_000)

    def batches(self, largest: int) -> dict[int, int]:
        """All but the last are full, and that one is padded."""
        return {largest: largest}

    def ask(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        expected = int(OFFLINE_SLACK * self.min_seconds * service.capacity)
        return self._closed(
            service, until, meter, max(self.min_queries, expected), 0.0, service.batch
        )


@dataclass(frozen=True)
class Server(Scenario):
    """Queries of one example that come at random, whether or not the ones before them are answered."""

    name = "server"
    group = "server"
    order = 23

    rate: float | str = option(
        "peak",
        "queries a second, in the mean; peak: the highest rate that holds the limit",
        low=1e-3,
        high=1e6,
        choices=("peak",),
        shown=("peak", "a number"),
    )
    latency_ms: float = option(
        10.0, "the limit: no query is to take longer than so many ms", low=1e-3, high=3.6e6
    )
    percentile: float = option(
        99.0, "share of the queries, in percent, that are to hold the limit", low=1.0, high=99.999
    )
    confidence: float = option(0.99, "with which a run is to hold it", low=0.5, high=0.9999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)
    batch: int | None = option(
        None,
        "queries that are served at once, at most: batch_size, which says it",
        low=1,
        high=2**20,
    )
    delay_ms: float = option(
        0.0, "wait so long for more queries, once one has come, at most", low=0.0, high=3.6e6
    )
    precision: float = option(
        0.05,
        "rate=peak: how near, as a share, a rate that failed must be to the one that held",
        low=1e-3,
        high=1.0,
    )
    seed: int = option(LOADGEN_SEED, _SEED, low=0, high=2**32 - 1)

    def canonical(self, point: Point) -> Point:
        point = super().canonical(point)
        if not isinstance(self.rate, str) and self.min_queries / self.rate >= point.measure.timeout:
            reason = f"makes server.min_queries={self.min_queries} take {self.min_queries / self.rate:,.0f} s"
            remedy = f"ask for more, or raise measure.timeout={point.measure.timeout:g}"
            raise ConfigError("server.rate", self.rate, reason, remedy)
        batch = point.batch_size
        if self.batch not in (None, batch):
            remedy = f"leave it out, and set batch_size={self.batch}"
            raise ConfigError(
                "server.batch", self.batch, f"is what batch_size={batch} says", remedy
            )
        return replace(point, workload=replace(self, batch=batch))

    def batches(self, largest: int) -> dict[int, int]:
        """Powers of two up to the largest."""
        return {
            size: size
            for size in sorted({largest, *(2**power for power in range(largest.bit_length()))})
        }

    def ask(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        return ScheduledRuns(vars(self), service, until, meter).load()

    def for_process(self, replicate: int, process: int) -> Server:
        """With arrivals of its own: processes that served the same ones would agree in what is
        their luck.
        """
        return replace(self, seed=process_seed(self.seed, replicate, process))

    def name_parts(self, point: Point) -> list[str]:
        words = ["server", self.rate if isinstance(self.rate, str) else f"{self.rate:g}/s"]
        return [
            self.mode,
            " ".join(words + ([f"delay {self.delay_ms:g} ms"] if self.delay_ms else [])),
        ]

    def _own_metrics(
        self, measured: Measured, given: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        """What is known where queries come by a schedule; a search that did not end well found no
        peak.
        """
        in_time = [
            len(log) - self._late([entry])[-1] for entry, log in zip(given, logs, strict=True)
        ]
        late = [ns / 1e6 for log in logs for ns in log.late()]
        rates = [entry.rate for entry in given if entry.rate is not None]
        metrics = {
            "goodput_per_second": statistics.fmean(
                n / log.seconds() for n, log in zip(in_time, logs, strict=True)
            ),
            "in_time_fraction": sum(in_time) / sum(map(len, logs)),
            "generator_late_p99_ms": percentile(late, 0.99),
            "generator_late_max_ms": max(late),
        }
        if rates:
            metrics["scheduled_queries_per_second"] = statistics.fmean(rates)
        finished = all(answer.outcome == "ok" for answer in measured.answers) and len(rates) == len(
            given
        )
        if self.rate == "peak" and finished and self._held(given):
            metrics |= peak_metrics(rates, [entry.probes for entry in given])
        return metrics

    def tags(self, measured: Measured) -> dict[str, str]:
        """Whether the limit was held, and what says so: over all processes, in their order; valid:
        as MLPerf says it of a run, which is invalid unless its queries show that the limit is held.
        """
        given = [load for load in messages_of_kind(measured.answers, Load) if load.log()]
        if not given:
            return {}
        late = self._late(given)
        held = self._held(given)
        reason = f"{late[-1]:,} of {len(late):,} queries took longer than {self.latency_ms:g} ms"
        allowed = f"{100 - self.percentile:.3g}% may, confidence {100 * self.confidence:g}%"
        words = {True: "held", False: "missed", None: "not shown"}[held]
        return {
            "valid": str(held is True).lower(),
            "limit": words,
            "limit_reason": f"{reason}, {allowed}",
        }

    def _held(self, given: Sequence[Load]) -> bool | None:
        return verdict(self._late(given), self.percentile / 100, 1 - self.confidence)

    def _late(self, given: Sequence[Load]) -> list[int]:
        """How many queries were later than the limit, up to each."""
        limit = int(self.latency_ms * 1e6)
        return list(
            accumulate(latency > limit for entry in given for latency in entry.log().latencies())
        )

    def require_predictable(self) -> None:
        if self.rate == "peak":
            reason = "has no forecast: how many rates a search tries is not known before"
            remedy = "each takes measure.timeout at most; plan a server.rate=100 for a single one"
            raise ConfigError("server.rate", "peak", reason, remedy)


def peak_metrics(held: Sequence[float], probes: Sequence[Sequence[Probe]]) -> dict[str, float]:
    """The highest rate that held the limit in each process, its interval, and the lowest above it
    that did not. Each process' peak lies between what held and what surely failed: the interval
    begins where that of the one does and ends where that of the other does; of a single process
    they are the two rates themselves.
    """
    from paradnn.session.measured import mean_interval

    def above(*verdicts: bool | None) -> list[float]:
        """In each process the lowest rate above the one that held, of which this was said."""
        pairs = zip(probes, held, strict=True)
        rates = (
            [p.rate for p in each if p.held in verdicts and p.rate > low] for each, low in pairs
        )
        return [min(each, default=math.inf) for each in rates]

    failed = above(False, None)
    surely = above(False)
    ends = held[0], surely[0]
    if len(held) > 1:
        ends = (
            mean_interval(held)[0],
            mean_interval(surely)[1] if max(surely) < math.inf else math.inf,
        )
    metrics = {
        "peak_queries_per_second": statistics.geometric_mean(held),
        "peak_queries_per_second_low": ends[0],
        "peak_queries_per_second_high": ends[1],
        "failed_queries_per_second": statistics.geometric_mean(failed)
        if max(failed) < math.inf
        else math.inf,
    }
    return {name: value for name, value in metrics.items() if value < math.inf}


def check_seconds(group: str, seconds: float, point: Point) -> None:
    """ConfigError where a point may take no longer than it is to ask."""
    if seconds >= (most := point.measure.timeout):
        reason = f"is not less than measure.timeout={most:g}"
        remedy = "ask for less, or raise measure.timeout"
        raise ConfigError(f"{group}.min_seconds", seconds, reason, remedy)


def _early_stopping(share: float, latencies: Sequence[float]) -> float | None:
    """LoadGen's estimate of a percentile in streams: so high that it is no lower with 99%
    confidence; None: too few. It discards as many of the highest latencies as may be above the
    percentile for sure.
    """
    count = len(latencies)
    discarded = 0
    while required_in_time_queries(discarded + 1, share, _CONFIDENCE) + discarded + 1 <= count:
        discarded += 1
    return sorted(latencies)[count - discarded] if discarded else None


SINGLE_STREAM = SingleStream()
MULTI_STREAM = MultiStream()
OFFLINE = Offline()
SERVER = Server()
