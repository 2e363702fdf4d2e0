"""Inference under load: the scenarios of MLPerf Inference (`scenario=NAME`).

Definitions and defaults come from mlperf.conf and test_settings.h of LoadGen 6.0.
docs/how-to/serving.md explains the use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules, require_time
from paradnn.core.errors import ConfigError, require_value
from paradnn.core.messages import Answer, messages_of_kind
from paradnn.core.metric import MetricSnapshot
from paradnn.core.results import ResultDescription, ResultText
from paradnn.core.schema import option
from paradnn.core.words import rounded
from paradnn.core.workload import Workload
from paradnn.families import Model
from paradnn.forecast.workload import PhaseForecast
from paradnn.session.run_records import RunRecords
from paradnn.worker.arrivals import LOADGEN_SEED, process_seed
from paradnn.worker.chance import required_in_time_queries
from paradnn.worker.peak_search import percentile, verdict
from paradnn.worker.workload import WorkerSide
from paradnn.workloads.serve.load import (
    OFFLINE_SLACK,
    ScheduledRuns,
    Service,
    measure_served,
    serve_closed,
)
from paradnn.workloads.serve.metrics import METRICS
from paradnn.workloads.serve.queries import Load, QueryLog, load_artifacts

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.session.overview.drawing import BarChart, Chart
    from paradnn.worker.energy import EnergyMeter
    from paradnn.worker.point import PointRun

_PERCENTILE = "latency percentile that the scenario reports"
_SECONDS = "minimum duration, in seconds"
_QUERIES = "minimum number of queries"
_SEED = (
    "seed of the arrival times in the first process (default: LoadGen's seed); other processes use "
    "seeds derived from it"
)
_PERCENTILES = (50, 90, 95, 99, 99.9)
#: Confidence of LoadGen's early stopping in single_stream and multi_stream.
_STREAM_CONFIDENCE = 0.99


class Scenario(Workload, PointRules, WorkerSide, RunRecords, ResultDescription, PhaseForecast):
    """Base class of the scenarios: single_stream, multi_stream, offline and server."""

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
    #: Only scenario=server schedules a rate.
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
            reason = f"model={model.name} is a single operation, which cannot serve queries"
            raise ConfigError("scenario", self.name, reason, "omit it, or choose another model")

    def canonical(self, point: Point) -> Point:
        scenario = f"scenario={self.name}"
        require_value("devices", point.devices, required=1, reason=f"{scenario} is for one device")
        require_value(
            "data",
            point.data.name,
            required="synthetic",
            reason=f"in {scenario}, the input of the queries is already on the device",
        )
        require_time(self.name, self.min_seconds, point)
        return point

    def measure(self, run: PointRun) -> None:
        measure_served(run, self)

    def batches(self, largest: int) -> dict[int, int]:
        """Return the batch sizes to compile: the number of examples by the number of queries.

        By default, as in the stream scenarios, one query is a whole batch.

        Args:
            largest: Number of examples in the largest batch, which is batch_size.
        """
        return {1: largest}

    def run_load(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        """Issue the queries of the scenario, and return the measured load.

        By default, as in the stream scenarios, each query is issued when the previous one ends.

        Args:
            service: The model that serves the queries.
            until: Time of `time.monotonic_ns()` after which no query is started.
            meter: Measures the energy during the load.

        Raises:
            NotServed: If the load was not served completely.
        """
        return self._closed_load(
            service, until, meter, queries=self.min_queries, seconds=self.min_seconds, batch=0
        )

    def _closed_load(
        self,
        service: Service,
        until: int,
        meter: EnergyMeter,
        *,
        queries: int,
        seconds: float,
        batch: int,
    ) -> Load:
        meter.start()
        served = serve_closed(
            service.run,
            time.monotonic_ns,
            queries=queries,
            seconds=seconds,
            batch=batch,
            until=until,
        )
        served = served.with_result(f"scenario={self.name}", meter.joules())
        return service.load(None, served, [])

    def name_parts(self, point: Point) -> list[str]:
        return [self.mode, self.name]

    def are_steps_valid(self, outcome: str, last_answer: Answer | None) -> bool:
        """Return whether the timed steps are valid.

        The steps are timed before the load begins. They are valid even if the load was too high, or
        was cut short by the time limit.

        Args:
            outcome: Outcome of the measurement, such as "ok" or "timeout".
            last_answer: Answer of the process that ran last; None if no process answered.
        """
        if outcome in ("ok", "overload"):
            return True
        was_under_load = last_answer is not None and isinstance(last_answer.work, Load)
        return outcome == "timeout" and was_under_load

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        loads = _served_loads(measured)
        if not loads or "step_time_ms" not in known:
            return {}
        logs = [load.log() for load in loads]
        batch_fractions = [1 / count for log in logs for count in log.together]
        metrics = {
            "queries": float(sum(map(len, logs))),
            "queries_per_second": statistics.fmean(len(log) / log.seconds() for log in logs),
            "queries_per_batch": 1 / statistics.fmean(batch_fractions),
            "single_query_ms": 1e3 * statistics.median(load.single_seconds for load in loads),
            **_latency_metrics(logs),
        }
        seconds = sum(log.seconds() for log in logs)
        metrics |= _energy_metrics(loads, seconds, metrics["queries"], measured.idle_watts)
        return metrics | self._scenario_metrics(measured, loads, logs)

    def _scenario_metrics(
        self, measured: Measured, loads: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        """Return the metrics that only this scenario has; by default none.

        Args:
            measured: Results of all processes of one measured configuration.
            loads: The load of each process that served at least one query.
            logs: The served queries of each load.
        """
        return {}

    def series(self, measured: Measured) -> list[MetricSnapshot]:
        """Return the query latencies of the first process over time.

        Args:
            measured: Results of all processes of one measured configuration.
        """
        from paradnn.session.run_series import latency_series

        loads = _served_loads(measured)
        if not loads:
            return []
        log = loads[0].log()
        requests = list(zip(log.scheduled, log.latencies(), strict=True))
        return latency_series(requests, measured.start_time)

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        from paradnn.session.overview import distribution_chart

        loads = _served_loads(measured)
        if not loads:
            return []
        processes = [[latency / 1e6 for latency in load.log().latencies()] for load in loads]
        limit = getattr(self, "latency_ms", None)
        return [distribution_chart("Latency of a query", processes, limit)]

    def artifacts(self, measured: Measured, title: str) -> dict[str, Any]:
        return load_artifacts(measured.answers)

    def describe(self, metrics: Mapping[str, float], tags: Mapping[str, str]) -> ResultText | None:
        if "queries_per_batch" not in metrics:
            return None
        throughput = _throughput_clause(metrics)
        queue = rounded(metrics["queue_mean_ms"], 3)
        service = rounded(metrics["service_mean_ms"], 3)
        clauses = [
            throughput,
            f"{metrics['queries_per_batch']:.1f} per batch; on average a query waited {queue} ms "
            f"and was served in {service} ms",
        ]
        early_stopping = metrics.get("latency_early_stopping_ms")
        if early_stopping:
            latency = rounded(early_stopping, 3)
            clauses.insert(0, f"{latency} ms per query, by LoadGen's early stopping")
        if "limit" not in tags:
            return ResultText("load", clauses)
        limit = f"limit {tags['limit']}: {tags['limit_reason']}"
        verdict_text = ""
        if tags.get("valid") == "false":
            limit = f"INVALID: {limit}"
            verdict_text = f"INVALID, {throughput}, limit {tags['limit']}"
        return ResultText("load", [limit, *clauses], verdict=verdict_text)

    def forecast_phases(self, points: Any, step: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Predict the duration of the phase `load` of planned points (configurations).

        A load lasts until both its minimum duration and its minimum number of queries are reached.
        It replaces the phase `latency`.

        Args:
            points: The planned points, of all kinds of work.
            step: Seconds of a step, with one row per point.
            known: Seconds predicted so far by phase name, as arrays with one row per point.

        Returns:
            Seconds of the phases `load` and `latency`; empty if no point has this scenario. Other
            points keep their seconds in `known`, or 0.
        """
        import numpy as np

        is_own = (points.text("scenario") == self.name)[:, None]
        if not is_own.any():
            return {}
        seconds = points.number(f"{self.name}.min_seconds")[:, None]
        queries = points.number(f"{self.name}.min_queries")[:, None]
        query_seconds = step
        if self.name == "server":
            query_seconds = 1 / points.number("server.rate")[:, None]
        elif self.name == "offline":
            seconds = seconds * OFFLINE_SLACK
            query_seconds = step / points.count("batch_size")[:, None]
        other_loads = known.get("load", np.zeros(step.shape))
        load = np.where(is_own, np.fmax(seconds, queries * query_seconds), other_loads)
        return {"load": load, "latency": np.where(is_own, 0.0, known["latency"])}


@dataclass(frozen=True)
class SingleStream(Scenario):
    """Issue each query when the previous one has been answered; a query has batch_size examples."""

    name = "single_stream"
    group = "single_stream"
    order = 20

    percentile: float = option(90.0, _PERCENTILE, low=1.0, high=99.999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)

    def _scenario_metrics(
        self, measured: Measured, loads: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        estimate = _early_stopping(self.percentile / 100, logs[0].parts()["latency"])
        return {} if estimate is None else {"latency_early_stopping_ms": estimate}


@dataclass(frozen=True)
class MultiStream(SingleStream):
    """Issue queries like single_stream, but report the 99th percentile (LoadGen: 8 examples each).

    The number of examples in a query is batch_size.
    """

    name = "multi_stream"
    group = "multi_stream"
    order = 21

    percentile: float = option(99.0, _PERCENTILE, low=1.0, high=99.999)
    min_queries: int = option(662, _QUERIES, low=1, high=10_000_000)


@dataclass(frozen=True)
class Offline(Scenario):
    """Issue all examples at once; the model serves them in batches of batch_size."""

    name = "offline"
    group = "offline"
    order = 22

    min_seconds: float = option(
        600.0,
        "duration for which enough examples are issued at the measured step time, in seconds",
        low=0.0,
        high=86_400.0,
    )
    min_queries: int = option(24_576, "minimum number of examples", low=1, high=10_000_000)

    def batches(self, largest: int) -> dict[int, int]:
        """Return the only batch size to compile; the last batch of the load is padded to this size.

        Args:
            largest: Number of examples in a batch.

        Returns:
            The number of examples of a batch by its number of queries.
        """
        return {largest: largest}

    def run_load(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        expected = int(OFFLINE_SLACK * self.min_seconds * service.capacity)
        return self._closed_load(
            service,
            until,
            meter,
            queries=max(self.min_queries, expected),
            seconds=0.0,
            batch=service.batch,
        )


@dataclass(frozen=True)
class Server(Scenario):
    """Issue queries of one example at random times, without waiting for earlier answers."""

    name = "server"
    group = "server"
    order = 23

    rate: float | str = option(
        "peak",
        "mean queries per second; peak: search for the highest rate that meets the limit",
        low=1e-3,
        high=1e6,
        choices=("peak",),
        shown=("peak", "a number"),
    )
    latency_ms: float = option(10.0, "latency limit of a query, in ms", low=1e-3, high=3.6e6)
    percentile: float = option(
        99.0, "percentage of queries that must meet the limit", low=1.0, high=99.999
    )
    confidence: float = option(0.99, "confidence that the limit is met", low=0.5, high=0.9999)
    min_seconds: float = option(600.0, _SECONDS, low=0.0, high=86_400.0)
    min_queries: int = option(100, _QUERIES, low=1, high=10_000_000)
    batch: int | None = option(
        None, "maximum queries served at once; null or batch_size", low=1, high=2**20
    )
    delay_ms: float = option(
        0.0,
        "maximum time that a query waits for others to fill a batch, in ms",
        low=0.0,
        high=3.6e6,
    )
    precision: float = option(
        0.05,
        "server.rate=peak: stop when the lowest failed rate exceeds the highest passed rate by at "
        "most this fraction",
        low=1e-3,
        high=1.0,
    )
    seed: int = option(LOADGEN_SEED, _SEED, low=0, high=2**32 - 1)

    def canonical(self, point: Point) -> Point:
        point = super().canonical(point)
        timeout = point.measure.timeout
        if not isinstance(self.rate, str) and self.min_queries / self.rate >= timeout:
            seconds = self.min_queries / self.rate
            reason = (
                f"makes server.min_queries={self.min_queries} take {seconds:,.0f} s, longer than "
                f"measure.timeout={timeout:g}"
            )
            remedy = "raise the rate or measure.timeout, or lower server.min_queries"
            raise ConfigError("server.rate", self.rate, reason, remedy)
        batch = point.batch_size
        if self.batch not in (None, batch):
            reason = f"differs from batch_size={batch}, which sets the largest batch"
            remedy = f"omit it, and set batch_size={self.batch}"
            raise ConfigError("server.batch", self.batch, reason, remedy)
        return replace(point, workload=replace(self, batch=batch))

    def batches(self, largest: int) -> dict[int, int]:
        """Return the batch sizes to compile: the largest, and all smaller powers of two.

        Args:
            largest: Number of examples in the largest batch.

        Returns:
            The number of examples of each batch by its number of queries. Both are equal, because
            a query is one example.
        """
        powers = {2**power for power in range(largest.bit_length())}
        return {size: size for size in sorted({largest, *powers})}

    def run_load(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        return ScheduledRuns(vars(self), service, until, meter).load()

    def for_process(self, replicate: int, process: int) -> Server:
        """Return the scenario with a separate seed for each process.

        With equal arrival times, the results of all processes would have the same bias.

        Args:
            replicate: Number of the repetition of the measurement, from 0.
            process: Number of the process in the repetition, from 0.
        """
        return replace(self, seed=process_seed(self.seed, replicate, process))

    def name_parts(self, point: Point) -> list[str]:
        rate = self.rate if isinstance(self.rate, str) else f"{self.rate:g}/s"
        name = f"server {rate}"
        if self.delay_ms:
            name += f" delay {self.delay_ms:g} ms"
        return [self.mode, name]

    def _scenario_metrics(
        self, measured: Measured, loads: Sequence[Load], logs: Sequence[QueryLog]
    ) -> dict[str, float]:
        """Return the metrics that only scheduled queries have, such as goodput and lateness.

        With server.rate=peak, they include the peak rate only if all processes ended with outcome
        ok and their queries together show that the limit is met.

        Args:
            measured: Results of all processes of one measured configuration.
            loads: The load of each process that served at least one query.
            logs: The served queries of each load.
        """
        from paradnn.session.peak_metrics import peak_metrics

        in_time = [
            len(log) - self._cumulative_late([load])[-1]
            for load, log in zip(loads, logs, strict=True)
        ]
        goodputs = [count / log.seconds() for count, log in zip(in_time, logs, strict=True)]
        delays = [delay / 1e6 for log in logs for delay in log.delays()]
        rates = [load.rate for load in loads if load.rate is not None]
        metrics = {
            "goodput_per_second": statistics.fmean(goodputs),
            "in_time_fraction": sum(in_time) / sum(map(len, logs)),
            "generator_late_p99_ms": percentile(delays, 0.99),
            "generator_late_max_ms": max(delays),
        }
        if rates:
            metrics["scheduled_queries_per_second"] = statistics.fmean(rates)
        are_all_ok = all(answer.outcome == "ok" for answer in measured.answers)
        has_all_rates = len(rates) == len(loads)
        if self.rate == "peak" and are_all_ok and has_all_rates and self._verdict(loads):
            metrics |= peak_metrics(rates, [load.probes for load in loads])
        return metrics

    def tags(self, measured: Measured) -> dict[str, str]:
        """Return the tags `valid`, `limit` and `limit_reason`, over the queries of all processes.

        `limit` is "held" if the limit is met, "missed" if it is not, and "not shown" if there are
        too few queries to decide. As in MLPerf, `valid` is "true" only if the limit is met.

        Args:
            measured: Results of all processes of one measured configuration.
        """
        loads = _served_loads(measured)
        if not loads:
            return {}
        late = self._cumulative_late(loads)
        is_met = self._verdict(loads)
        reason = f"{late[-1]:,} of {len(late):,} queries took longer than {self.latency_ms:g} ms"
        allowed = (
            f"allowed: {100 - self.percentile:.3g}% with {100 * self.confidence:g}% confidence"
        )
        limits = {True: "held", False: "missed", None: "not shown"}
        return {
            "valid": str(is_met is True).lower(),
            "limit": limits[is_met],
            "limit_reason": f"{reason}, {allowed}",
        }

    def _verdict(self, loads: Sequence[Load]) -> bool | None:
        """Decide whether the queries meet the latency limit.

        Args:
            loads: The load of each process. Their queries form one sample.

        Returns:
            Whether the limit is met; None if there are too few queries to decide.
        """
        return verdict(self._cumulative_late(loads), self.percentile / 100, 1 - self.confidence)

    def _cumulative_late(self, loads: Sequence[Load]) -> list[int]:
        """Return, for each query, the number of late queries up to and including it.

        Args:
            loads: The load of each process. The count continues from one load to the next.
        """
        limit = int(self.latency_ms * 1e6)
        latencies = (latency for load in loads for latency in load.log().latencies())
        return list(accumulate(latency > limit for latency in latencies))

    def require_predictable(self) -> None:
        if self.rate == "peak":
            reason = (
                "cannot be planned, because the number of rates that the search tries is unknown"
            )
            remedy = (
                "plan a fixed rate, such as server.rate=100 "
                "(a search takes at most measure.timeout per point)"
            )
            raise ConfigError("server.rate", "peak", reason, remedy)


def _served_loads(measured: Measured) -> list[Load]:
    return [load for load in messages_of_kind(measured.answers, Load) if load.log()]


def _latency_metrics(logs: Sequence[QueryLog]) -> dict[str, float]:
    """Return means and percentiles of latency, queue time and service time, in ms.

    The result contains a latency percentile only if each process has enough queries to expect at
    least one latency above it.

    Args:
        logs: The served queries of each process.
    """
    from paradnn.session.measured import quantile_metrics

    parts = [log.parts() for log in logs]
    latencies = [part["latency"] for part in parts]
    metrics: dict[str, float] = {"latency_max_ms": max(map(max, latencies))}
    for name in parts[0]:
        processes = [part[name] for part in parts]
        metrics[f"{name}_mean_ms"] = statistics.fmean(
            value for process in processes for value in process
        )
        if name == "latency":
            continue
        for rank in (50, 99):
            ranked = [percentile(process, rank / 100) for process in processes]
            metrics[f"{name}_p{rank}_ms"] = statistics.fmean(ranked)
    for percent in _PERCENTILES:
        # At least one query beyond the percentile is expected in each process.
        if all(len(log) * (100 - percent) >= 100 for log in logs):
            metrics |= quantile_metrics(
                f"latency_p{percent:g}", percent / 100, latencies, percentile
            )
    return metrics


def _energy_metrics(
    loads: Sequence[Load], seconds: float, queries: float, idle_watts: float | None
) -> dict[str, float]:
    """Return the energy per query in J; empty unless all processes measured their energy.

    Args:
        loads: The load of each process.
        seconds: Sum of the durations of all loads.
        queries: Number of queries of all loads.
        idle_watts: Power in W while a process with the framework loaded is idle; None if unknown.
    """
    counted_joules = [load.joules for load in loads if load.joules is not None]
    joules = sum(counted_joules)
    # A sum of 0 means that the counter does not advance.
    if len(counted_joules) < len(loads) or joules == 0:
        return {}
    metrics = {"energy_per_query_joules": joules / queries}
    if idle_watts is not None and joules > idle_watts * seconds:
        metrics["energy_per_query_above_idle_joules"] = (joules - idle_watts * seconds) / queries
    return metrics


def _throughput_clause(metrics: Mapping[str, float]) -> str:
    clause = f"{metrics['queries']:,.0f} queries, {rounded(metrics['queries_per_second'])}/s"
    scheduled = metrics.get("scheduled_queries_per_second")
    if scheduled:
        in_time = metrics["in_time_fraction"]
        clause += f" of {rounded(scheduled)}/s scheduled, {in_time:.2%} in time"
    if "peak_queries_per_second" in metrics:
        processes = f"{metrics['processes']:g} processes"
        if metrics["processes"] == 1:
            processes = "a single process"
        low = metrics.get("peak_queries_per_second_low")
        high = metrics.get("peak_queries_per_second_high")
        interval = f", {rounded(low)} .. {rounded(high)}" if low and high else ""
        clause += f", the highest rate found ({processes}{interval})"
    return clause


def _early_stopping(share: float, latencies: Sequence[float]) -> float | None:
    """Return LoadGen's upper bound of a latency percentile, which the stream scenarios report.

    With 99% confidence, the percentile is at most this value. Let d be the largest number of late
    queries with which LoadGen's early stopping accepts a run of this length. The bound is the d-th
    highest latency.

    Args:
        share: The percentile as a fraction (0..1).
        latencies: The latencies of all queries, in any unit.

    Returns:
        The bound in the unit of `latencies`; None if there are too few queries.
    """
    count = len(latencies)
    discarded = 0
    while True:
        late = discarded + 1
        if required_in_time_queries(late, share, _STREAM_CONFIDENCE) + late > count:
            break
        discarded = late
    return sorted(latencies)[count - discarded] if discarded else None


SINGLE_STREAM = SingleStream()
MULTI_STREAM = MultiStream()
OFFLINE = Offline()
SERVER = Server()
