"""A scenario's queries as metrics, tags and artifacts of a run: docs/serving.md says what each means."""

from __future__ import annotations

import base64
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from paradnn.config.point import Point
from paradnn.config.scenario import Server, SingleStream
from paradnn.record.statistics import mean_interval, quantile_metrics
from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer
from paradnn.worker.serving.chance import fewest_to_pass
from paradnn.worker.serving.limit import verdict
from paradnn.worker.serving.load import percentile
from paradnn.worker.serving.messages import Load
from paradnn.worker.serving.queries import COLUMNS, QueryLog

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram

__all__ = ["PERCENTILES", "histogram", "load_artifacts", "load_metrics", "load_tags", "load_words", "loads", "parts"]

PERCENTILES = (50, 90, 95, 99, 99.9)
#: LoadGen's, of its early stopping in streams.
_CONFIDENCE = 0.99
#: The histogram counts microseconds, up to an hour, to three digits.
_MOST, _DIGITS = 3_600_000_000, 3


def loads(answers: Sequence[Answer]) -> list[Load]:
    """What the scenario gave in each process that has served."""
    return [answer.load for answer in answers if answer.load and answer.load.log()]


def parts(log: QueryLog) -> dict[str, list[float]]:
    """Milliseconds of every query: its latency, and what of that was waiting in the queue and being served."""
    rows = list(zip(log.scheduled, log.started, log.ended, strict=True))
    return {
        "latency": [(ended - due) / 1e6 for due, _, ended in rows],
        "queue": [(started - due) / 1e6 for due, started, _ in rows],
        "service": [(ended - started) / 1e6 for _, started, ended in rows],
    }


def load_metrics(point: Point, answers: Sequence[Answer]) -> dict[str, float]:
    """Metrics of what a scenario gave; nothing where there was none."""
    given = loads(answers)
    if not given:
        return {}
    logs = [load.log() for load in given]
    each = [parts(log) for log in logs]
    served = [len(log) / log.seconds() for log in logs]
    metrics = {
        "queries": float(sum(map(len, logs))),
        "queries_per_second": statistics.fmean(served),
        "queries_per_batch": 1 / statistics.fmean(1 / count for log in logs for count in log.together),
        "single_query_ms": 1e3 * statistics.median(load.single_seconds for load in given),
        "latency_max_ms": max(max(process["latency"]) for process in each),
    }
    for name in ("latency", "queue", "service"):
        metrics[f"{name}_mean_ms"] = statistics.fmean(value for process in each for value in process[name])
    for share in PERCENTILES:
        if all(len(log) * (100 - share) >= 100 for log in logs):
            each_latency = [process["latency"] for process in each]
            metrics |= quantile_metrics(f"latency_p{share:g}", share / 100, each_latency, percentile)
    for name in ("queue", "service"):
        for share in (50, 99):
            values = [percentile(process[name], share / 100) for process in each]
            metrics[f"{name}_p{share}_ms"] = statistics.fmean(values)
    joules = [load.joules for load in given if load.joules is not None]
    if len(joules) == len(given):
        metrics["energy_per_query_joules"] = sum(joules) / metrics["queries"]
    if isinstance(point.load, Server):
        return metrics | _schedule_metrics(point.load, given, logs, all(answer.outcome == "ok" for answer in answers))
    if isinstance(point.load, SingleStream):
        early = _early_stopping(point.load.percentile / 100, each[0]["latency"])
        metrics |= {} if early is None else {"latency_early_stopping_ms": early}
    return metrics


def _schedule_metrics(
    load: Server, given: Sequence[Load], logs: Sequence[QueryLog], finished: bool
) -> dict[str, float]:
    """What is known where queries come by a schedule; a search that has not `finished` found no peak."""
    in_time = [len(log) - _late(load, [entry])[-1] for entry, log in zip(given, logs, strict=True)]
    late = [(issued - due) / 1e6 for log in logs for due, issued in zip(log.scheduled, log.issued, strict=True)]
    rates = [entry.rate for entry in given if entry.rate is not None]
    metrics = {
        "goodput_per_second": statistics.fmean(n / log.seconds() for n, log in zip(in_time, logs, strict=True)),
        "in_time_fraction": sum(in_time) / sum(map(len, logs)),
        "generator_late_p99_ms": percentile(late, 0.99),
        "generator_late_max_ms": max(late),
    }
    if rates:
        metrics["scheduled_queries_per_second"] = statistics.fmean(rates)
    held = verdict(_late(load, given), load.percentile / 100, 1 - load.confidence)
    if load.rate == "peak" and held and finished and len(rates) == len(given):
        metrics["peak_queries_per_second"] = statistics.geometric_mean(rates)
        failed = [
            min((probe.rate for probe in entry.probes if not probe.held and probe.rate > rate), default=None)
            for entry, rate in zip(given, rates, strict=True)
        ]
        if len(known := [rate for rate in failed if rate]) == len(rates):
            metrics["failed_queries_per_second"] = statistics.geometric_mean(known)
        missed = [
            min((probe.rate for probe in entry.probes if probe.held is False and probe.rate > rate), default=math.inf)
            for entry, rate in zip(given, rates, strict=True)
        ]
        metrics |= _peak_ends(rates, missed)
    return metrics


def _peak_ends(held: Sequence[float], failed: Sequence[float]) -> dict[str, float]:
    """The interval of the highest rate: of one process what held and what surely failed, of several by their spread.

    Each process' peak lies between the two, so that the interval begins where that of what held does, and ends where
    that of what surely failed does; where nothing did it has no end. What was not shown to hold is no end.
    """
    if len(held) > 1:
        low = mean_interval(held)[0]
        high = mean_interval(failed)[1] if max(failed) < math.inf else math.inf
    else:
        low, high = held[0], failed[0]
    ends = {"peak_queries_per_second_low": low, "peak_queries_per_second_high": high}
    return {name: end for name, end in ends.items() if end < math.inf}


def _early_stopping(share: float, latencies: Sequence[float]) -> float | None:
    """LoadGen's estimate of a percentile in streams: so high that it is no lower with 99% confidence; None: too few.

    It discards as many of the highest latencies as may be above the percentile for sure.
    """
    count, discarded = len(latencies), 0
    while fewest_to_pass(discarded + 1, share, _CONFIDENCE) + discarded + 1 <= count:
        discarded += 1
    return sorted(latencies)[count - discarded] if discarded else None


def load_tags(point: Point, answers: Sequence[Answer]) -> dict[str, str]:
    """Whether the limit of a server was held, and what says so: over all processes, in their order."""
    given, load = loads(answers), point.load
    if not given or not isinstance(load, Server):
        return {}
    late = _late(load, given)
    held = verdict(late, load.percentile / 100, 1 - load.confidence)
    reason = f"{late[-1]:,} of {len(late):,} queries took longer than {load.latency_ms:g} ms"
    allowed = f"{100 - load.percentile:.3g}% may, confidence {100 * load.confidence:g}%"
    words = {True: "held", False: "missed", None: "not shown"}[held]
    return {"limit": words, "limit_reason": f"{reason}, {allowed}"}


def _late(load: Server, given: Sequence[Load]) -> list[int]:
    """How many queries were later than the limit, up to each."""
    limit = int(load.latency_ms * 1e6)
    return list(accumulate(latency > limit for entry in given for latency in entry.log().latencies()))


def load_words(metrics: Mapping[str, float], tags: Mapping[str, str]) -> str:
    """The load in a line, without the quantiles; empty where there was none."""
    if "queries" not in metrics:
        return ""
    asked = metrics.get("scheduled_queries_per_second")
    words = f"{metrics['queries']:,.0f} queries, {metrics['queries_per_second']:,.1f}/s"
    words += f" of {asked:,.1f}/s asked, {metrics['in_time_fraction']:.2%} in time" if asked else ""
    if "peak_queries_per_second" in metrics:
        low, high = (metrics.get(f"peak_queries_per_second_{end}") for end in ("low", "high"))
        between = f", {low:,.1f} .. {high:,.1f}" if low and high else ""
        processes = "a single process" if metrics["processes"] == 1 else f"{metrics['processes']:g} processes"
        words += f", the highest rate found ({processes}{between})"
    words += (
        f"; {metrics['queries_per_batch']:.1f} a batch, waited {metrics['queue_mean_ms']:.3g} ms and were served in "
        f"{metrics['service_mean_ms']:.3g} ms in the mean"
    )
    return words + (f"; limit {tags['limit']}: {tags['limit_reason']}" if "limit" in tags else "")


def load_artifacts(answers: Sequence[Answer]) -> dict[str, Any]:
    """All queries as a table, the histogram of their latency with its encoded form, the probes."""
    given = loads(answers)
    artifacts: dict[str, Any] = {}
    probes = [plain(probe) for answer in answers if answer.load for probe in answer.load.probes]
    if probes:
        artifacts["probes.json"] = {"unit": "s", "probes": probes}
    if given:
        logs = [load.log() for load in given]
        artifacts["queries.parquet"] = _table(logs)
        text, counts = io.BytesIO(), histogram(logs)
        counts.output_percentile_distribution(text, 1000)
        artifacts["latency.hgrm"], artifacts["latency.hdr"] = text.getvalue().decode(), counts.encode().decode()
    return artifacts


def _table(logs: Sequence[QueryLog]) -> dict[str, str]:
    """A row for each query: the process, and its times in ns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    process = [number for number, log in enumerate(logs, 1) for _ in range(len(log))]
    columns = [pa.array([value for log in logs for value in getattr(log, name)]) for name in COLUMNS]
    target = io.BytesIO()
    pq.write_table(pa.table([pa.array(process), *columns], names=["process", *COLUMNS]), target, compression="zstd")
    return {"base64": base64.b64encode(target.getvalue()).decode()}


def histogram(logs: Sequence[QueryLog]) -> HdrHistogram:
    """The latencies of all queries, in microseconds."""
    from hdrh.histogram import HdrHistogram

    counts = HdrHistogram(1, _MOST, _DIGITS)
    for log in logs:
        for latency in log.latencies():
            counts.record_value(min(latency // 1000, _MOST))
    return counts
