"""Readers for load tests of servers: AIPerf, GuideLLM, vllm bench and MLPerf's LoadGen.

Units, kinds of metric, repetitions and failures are read as each harness's documentation and source
define them.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.audit.series import (
    Direction,
    Note,
    Reading,
    Series,
    child,
    children,
    finite_number,
    from_summary,
    from_values,
    text_conditions,
)
from analysis.format import format_number
from paradnn.core.words import counted

_MAX_LISTED_ERRORS = 3
#: Largest ratio between a rate that GuideLLM reports and the total divided by the duration. The two
#: differ somewhat, because requests at both ends of a load are weighted differently.
_MAX_RATE_RATIO = 2

_AIPERF_RATES = (
    "request_throughput",
    "goodput",
    "output_token_throughput",
    "output_token_throughput_per_user",
    "output_token_throughput_per_request",
    "e2e_output_token_throughput",
    "prefill_throughput",
    "prefill_throughput_per_user",
    "total_token_throughput",
)
_AIPERF_LATENCIES = (
    "request_latency",
    "time_to_first_token",
    "time_to_first_output_token",
    "time_to_second_token",
    "inter_token_latency",
    "inter_chunk_latency",
)


def read_aiperf(document: Any) -> Reading:
    """Read AIPerf's files: profile_export_aiperf.json, aggregates over runs, and single requests.

    Every metric states its unit. A metric of single requests has a distribution; a total has only
    `avg`. GenAI-Perf's profile_export_genai_perf.json has the same layout.

    Args:
        document: The parsed file. The lines of profile_export.jsonl, one per request, are under the
            key `requests`.
    """
    yield from _aiperf_requests(children(document, "requests"))
    yield from _aiperf_settings(child(document, "input_config"))
    runs = child(document, "metadata")
    if "num_profile_runs" in runs:
        yield from _aiperf_aggregate(document, runs)
        return
    if "per_combination_metrics" in child(document):
        yield from _aiperf_sweep(document, runs)
        return
    metrics = child(document, "records") or child(document)
    requests = finite_number(child(metrics, "request_count").get("avg"))
    for name, better in _aiperf_directions().items():
        metric = child(metrics, name)
        summary = dict(metric)
        if "std" in metric and math.isfinite(requests):
            # Files before schema 1.0 do not count the observations of a metric.
            summary.setdefault("count", requests)
        yield from_summary(
            name,
            str(metric.get("unit", "")),
            summary,
            better=better,
            observation=_aiperf_observation(name),
        )
    yield from _aiperf_notes(document, metrics, requests)


def _aiperf_directions() -> dict[str, Direction]:
    directions: dict[str, Direction] = dict.fromkeys(_AIPERF_RATES, "higher")
    return directions | dict.fromkeys(_AIPERF_LATENCIES, "lower")


def _aiperf_settings(config: Mapping[str, Any]) -> Reading:
    """Read the load (concurrency, request rate) and the names of the models.

    Args:
        config: The object `input_config` of the file. Later versions write the load as a phase, and
            the models as a list of items.
    """
    load = child(config, "loadgen")
    for phase in children(config, "phases"):
        if phase.get("exclude_from_results") is not True:
            load = phase
    names = child(config, "endpoint").get("model_names")
    if not isinstance(names, list):
        names = [item.get("name") for item in children(config.get("models"), "items")]
    yield from text_conditions(
        {
            "model": ", ".join(map(str, names)),
            "concurrency": load.get("concurrency"),
            "request rate": load.get("request_rate", load.get("rate")),
        }
    )


def _aiperf_requests(requests: Sequence[Mapping[str, Any]]) -> Reading:
    """Read profile_export.jsonl, which contains the metrics of each request.

    Args:
        requests: The lines of the file. Those of the warm-up are ignored.
    """
    requests = [
        request
        for request in requests
        if child(request, "metadata").get("benchmark_phase") != "warmup"
    ]
    for name, better in _aiperf_directions().items():
        metrics = [child(request, "metrics", name) for request in requests]
        units = {str(metric["unit"]) for metric in metrics if "unit" in metric}
        if len(units) == 1:
            values = [metric.get("value") for metric in metrics]
            yield from_values(name, units.pop(), values, better=better, observation="request")
    errors = [child(request, "error") for request in requests if child(request, "error")]
    reasons = dict.fromkeys(str(error.get("message") or error.get("type")) for error in errors)
    yield from _failed_requests(len(errors), reasons=list(reasons)[:_MAX_LISTED_ERRORS])


def _aiperf_observation(name: str) -> str:
    """Return the noun for one observation of a metric: "chunk" or "request"."""
    return "chunk" if name == "inter_chunk_latency" else "request"


def _aiperf_sweep(document: Any, settings: Mapping[str, Any]) -> Reading:
    """Read profile_export_aiperf_sweep.json: means over the trials of each combination of a sweep.

    The standard deviation is over trials, and is missing for a single trial.

    Args:
        document: The parsed file.
        settings: The object `metadata` of the file.
    """
    for combination in children(document, "per_combination_metrics"):
        parameters = child(combination, "parameters")
        label = ", ".join(f"{key}={value}" for key, value in parameters.items())
        for name, better in _aiperf_directions().items():
            metric = child(combination, "metrics", name)
            summary = {
                "mean": metric.get("mean"),
                "std": metric.get("std"),
                "count": settings.get("num_trials_per_value"),
            }
            yield from_summary(
                f"{name} ({label})", str(metric.get("unit", "")), summary, better=better
            )
    yield from _failed_runs(document)


def _failed_runs(runs: Mapping[str, Any]) -> Reading:
    total = finite_number(runs.get("num_profile_runs"))
    failed = total - finite_number(runs.get("num_successful_runs"))
    if failed > 0:
        yield Note(f"{failed:.0f} of {counted(round(total), 'run')} failed")


def _aiperf_aggregate(document: Any, runs: Mapping[str, Any]) -> Reading:
    """Read profile_export_aiperf_aggregate.json: means over the runs of one invocation.

    Args:
        document: The parsed file.
        runs: The object `metadata` of the file, with the number of runs.
    """
    for name, better in _aiperf_directions().items():
        metric = child(document, "metrics", name)
        summary = {**metric, "count": runs.get("num_successful_runs")}
        yield from_summary(name, str(metric.get("unit", "")), summary, better=better)
    yield from _failed_runs(runs)


def _aiperf_notes(document: Any, metrics: Mapping[str, Any], requests: float) -> Reading:
    if child(document).get("was_cancelled") is True:
        yield Note("the run was canceled before its end")
    elif child(document).get("is_complete") is False:
        yield Note("the run is incomplete")

    errors = children(document, "error_summary")
    counts = [finite_number(error.get("count")) for error in errors]
    failed = sum(count for count in counts if count > 0)
    reported = finite_number(child(metrics, "error_request_count").get("avg"))
    if reported > failed:
        failed = reported
    messages = [_aiperf_error(error) for error in errors[:_MAX_LISTED_ERRORS]]
    yield from _failed_requests(failed, reasons=[message for message in messages if message])

    mismatched = finite_number(child(metrics, "osl_mismatch_count").get("avg"))
    if mismatched > 0:
        if not math.isfinite(requests):
            requests = finite_number(child(metrics, "request_latency").get("count"))
        total = ""
        if math.isfinite(requests):
            total = f" of {requests:.0f}"
        yield Note(
            f"{mismatched:.0f}{total} requests returned a different number of tokens than "
            "requested, so latencies and token rates are for different work than requested"
        )


def _aiperf_error(error: Mapping[str, Any]) -> str:
    details = child(error, "error_details")
    return str(details.get("message") or details.get("type") or "")


def read_guidellm(document: Any) -> Reading:
    """Read a GuideLLM report: one set of metrics per load, such as a request rate.

    Metrics ending in `_ms` are in milliseconds, `request_latency` is in seconds. Only successful
    requests count. The rate of a load is the mean of its distribution over time.

    Args:
        document: The parsed report.
    """
    entries = children(document, "benchmarks")
    if entries:
        yield from _guidellm_settings(document, entries[0])
    for position, entry in enumerate(entries, 1):
        load = _guidellm_load(entry, position)
        for name, statuses in child(entry, "metrics").items():
            full_name = f"{name} ({load})"
            if name.endswith("_per_second"):
                yield _guidellm_rate(full_name, name, entry, child(statuses, "successful"))
            elif name.endswith("_ms"):
                summary = _guidellm_latency(entry, statuses)
                yield from_summary(full_name, "ms", summary, observation="request")
            elif name == "request_latency":
                summary = _guidellm_latency(entry, statuses)
                yield from_summary(full_name, "s", summary, observation="request")
        totals = (
            child(entry, "metrics", "request_totals")
            or child(entry, "scheduler_metrics", "requests_made")
            or child(entry, "run_stats", "requests_made")
        )
        yield from _failed_requests(totals.get("errored"), prefix=f"{load}: ")
        incomplete = finite_number(totals.get("incomplete"))
        if incomplete > 0:
            yield Note(
                f"{load}: {counted(round(incomplete), 'request')} cut off at the end of the load, "
                "excluded from the numbers"
            )


def _guidellm_latency(entry: Mapping[str, Any], statuses: Any) -> dict[str, Any]:
    """Return the statistics of a latency over the successful requests.

    GuideLLM weights the mean latency per token of each request by its tokens, so it counts tokens.
    Here, one request is one observation.

    Args:
        entry: The results of a load, such as a request rate.
        statuses: Statistics of the latency by status of the requests, such as `successful`.
    """
    summary = dict(child(statuses, "successful"))
    percentiles = child(summary, "percentiles")
    if "median" not in summary and "p50" in percentiles:
        summary["p50"] = percentiles["p50"]
    requests = finite_number(child(entry, "metrics", "request_totals").get("successful"))
    if finite_number(summary.get("count")) > requests > 0:
        summary["count"] = requests
    return summary


def _guidellm_rate(
    full_name: str, name: str, entry: Mapping[str, Any], summary: Mapping[str, Any]
) -> Series | Note | None:
    """Return the mean of a rate over time.

    The count in the summary is the number of intervals between events, not of repetitions, so it is
    ignored.

    Args:
        full_name: Name of the rate, with the name of the load.
        name: Name of the rate, such as "requests_per_second".
        entry: The results of the load, such as a request rate.
        summary: Statistics of the rate over the successful requests.

    Returns:
        The rate as a series. If the totals of the load contradict it, a note; None without a rate.
    """
    mean = finite_number(summary.get("mean", summary.get("median")))
    total, noun = _guidellm_total(name, entry)
    times = child(entry, "scheduler_metrics")
    start = finite_number(times.get("measure_start_time"))
    seconds = finite_number(times.get("measure_end_time")) - start
    if mean > 0 and total > 0 and seconds > 0:
        expected = total / seconds
        if max(mean / expected, expected / mean) > _MAX_RATE_RATIO:
            rates = [format_number(rate, "1/s", digits=3) for rate in (mean, expected)]
            return Note(
                f"{full_name}: {rates[0]} is excluded, because {total:,.0f} {noun} in "
                f"{format_number(seconds, 's', digits=3)} are {rates[1]}"
            )
    return from_summary(full_name, "1/s", {"mean": mean}, better="higher")


def _guidellm_total(name: str, entry: Mapping[str, Any]) -> tuple[float, str]:
    """Return the number of requests or tokens behind a rate, and a noun for them.

    Args:
        name: Name of the rate, such as "requests_per_second".
        entry: The results of a load, such as a request rate. Only its successful requests count.

    Returns:
        The number, NaN if unknown; and the noun, such as "output tokens".
    """
    metrics = child(entry, "metrics")
    if name == "requests_per_second":
        return finite_number(child(metrics, "request_totals").get("successful")), "requests"
    kind = name.partition("_")[0]
    counts = child(metrics, f"{kind}_token_count", "successful")
    return finite_number(counts.get("total_sum")), f"{kind} tokens"


def _guidellm_settings(document: Any, entry: Mapping[str, Any]) -> Reading:
    """Read the name of the model and the data of the requests.

    Their keys differ between versions 0.2, 0.5 and 0.7.

    Args:
        document: The parsed report.
        entry: The results of the first load, such as a request rate.
    """
    data = child(document, "args").get("data") or child(entry, "request_loader").get("data")
    sources = children(child(document, "config", "spec"), "data")
    if sources:
        # A source lists all its options; options that are not set are null or empty.
        data = [{key: value for key, value in source.items() if value} for source in sources]
    if data and not isinstance(data, str):
        data = json.dumps(data)
    model = child(entry, "config", "backend").get("model")
    yield from text_conditions(
        {"model": model or child(entry, "worker").get("backend_model"), "data": data}
    )


def _guidellm_load(entry: Mapping[str, Any], position: int) -> str:
    """Name a load by its strategy and rate, so that only equal loads of two files are compared.

    Args:
        entry: The results of the load, such as a request rate.
        position: Number of the load in the report, which is its name if the strategy is unknown.
    """
    strategy = (
        child(entry, "config", "strategy")
        or child(entry, "args", "strategy")
        or child(entry, "scheduler", "strategy")
    )
    kind = strategy.get("kind") or strategy.get("type_")
    if not kind:
        return f"load {position}"
    rate = finite_number(strategy.get("rate"))
    streams = finite_number(strategy.get("streams", strategy.get("max_concurrency")))
    if rate > 0:
        return f"{kind}, {rate:.4g} requests/s"
    if streams > 0:
        return f"{kind}, {counted(round(streams), 'stream')}"
    return str(kind)


#: Time to first token, time per output token, inter-token latency, and end-to-end latency in the
#: spellings of vLLM and SGLang.
_VLLM_LATENCIES = ("ttft", "tpot", "itl", "e2el", "e2e_latency")
_VLLM_RATES = (
    "request_throughput",
    "request_goodput",
    "input_throughput",
    "output_throughput",
    "total_throughput",
    "total_token_throughput",
    "requests_per_second",
    "tokens_per_second",
)


def read_vllm_bench(document: Any) -> Reading:
    """Read results of `vllm bench serve`, `throughput` or `latency`, and of SGLang's bench_serving.

    `serve` writes milliseconds, `latency` writes seconds.

    Args:
        document: The parsed result file.
    """
    fields = child(document)
    yield from text_conditions(
        {
            "model": fields.get("model_id", child(fields, "server_info").get("model_path")),
            "request rate": fields.get("request_rate"),
            "maximum concurrency": fields.get(
                "max_concurrency", fields.get("multi_turn_concurrency")
            ),
            "number of prompts": fields.get("num_prompts"),
            "input tokens": fields.get("total_input_tokens"),
            "output length": fields.get("random_output_len"),
        }
    )
    for name in _VLLM_RATES:
        # Some versions of vLLM write "request_goodput:" with a colon.
        rate = fields.get(name, fields.get(f"{name}:"))
        yield from_summary(name, "1/s", {"mean": rate}, better="higher")
    completed = fields.get("completed")
    for name in _VLLM_LATENCIES:
        summary: dict[str, Any] = {"count": completed}
        for statistic in ("median", "mean", "std"):
            summary[statistic] = fields.get(f"{statistic}_{name}_ms")
        yield from_summary(f"{name}_ms", "ms", summary, observation="request")
    if "avg_latency" in fields:
        yield from_values("latency", "s", fields.get("latencies")) or from_summary(
            "latency", "s", {"avg": fields.get("avg_latency")}
        )

    failed = finite_number(fields.get("failed"))
    if math.isnan(failed) and "request_throughput" in fields:
        # Older versions count only completed requests.
        failed = finite_number(fields.get("num_prompts")) - finite_number(completed)
    yield from _failed_requests(failed)


_LOADGEN_SECTION = re.compile(r"^=+\n(.+)\n=+$", re.MULTILINE)
_LOADGEN_FIELD = re.compile(
    r"^[ \t]*([^:\n=]{1,60}?)[ \t]*:[ \t]*(\S.{0,60}?)[ \t]*$", re.MULTILINE
)
_LOADGEN_ESTIMATE = re.compile(r"Early stopping [\d.]+th percentile estimate", re.IGNORECASE)
_LOADGEN_ERRORS = re.compile(r"^(\d+) errors? encountered", re.MULTILINE | re.IGNORECASE)


def read_loadgen(document: Any) -> Reading:
    """Read mlperf_log_summary.txt of MLPerf's LoadGen.

    Measurements are in the sections "MLPerf Results Summary" and "Additional Stats". The section
    "Test Parameters Used" contains settings and limits, not measurements.

    Args:
        document: A mapping whose key `text` holds the content of the file.
    """
    sections = _loadgen_sections(str(child(document).get("text", "")))
    if "MLPerf Results Summary" not in sections:
        return
    summary = dict(_LOADGEN_FIELD.findall(sections["MLPerf Results Summary"]))
    parameters_text = sections.get("Test Parameters Used", "")
    parameters = dict(_LOADGEN_FIELD.findall(parameters_text))
    yield from text_conditions(
        {
            "system under test": summary.get("SUT name"),
            "scenario": summary.get("Scenario"),
            "mode": summary.get("Mode"),
            "target_qps": parameters.get("target_qps"),
        }
    )
    additional = dict(_LOADGEN_FIELD.findall(sections.get("Additional Stats", "")))
    for name, text in {**summary, **additional}.items():
        yield from _loadgen_measurement(name.strip("* "), text)

    if summary.get("Result is", "VALID") != "VALID":
        unmet = [name for name, text in summary.items() if text.upper() == "NO"]
        reasons = ""
        if unmet:
            reasons = f" (not met: {', '.join(unmet)})"
        yield Note(f"LoadGen's own rules call the result {summary['Result is']}{reasons}")
    if summary.get("Mode", "PerformanceOnly") == "AccuracyOnly":
        yield Note("the run checked accuracy, so its times are not a performance result")
    errors = _LOADGEN_ERRORS.search(parameters_text)
    if errors:
        yield Note(f"LoadGen reports {counted(int(errors[1]), 'error')}")


def _loadgen_measurement(name: str, text: str) -> Reading:
    try:
        value = float(text)
    except ValueError:
        return
    if name.endswith("(ns)") or _LOADGEN_ESTIMATE.fullmatch(name):
        yield from_summary(name.removesuffix("(ns)").strip(), "ns", {"mean": value})
    elif name.startswith("Scheduled "):
        # The load that LoadGen offers follows from its settings and seed, not from the system.
        yield from_summary(f"{name} (offered load)", "1/s", {"mean": value}, better="unknown")
    elif "per second" in name or name.startswith(("QPS ", "TPS ")):
        yield from_summary(name, "1/s", {"mean": value}, better="higher")


def _loadgen_sections(text: str) -> dict[str, str]:
    """Return the sections of a summary: title -> text.

    A title is between two lines of equals signs.

    Args:
        text: Content of mlperf_log_summary.txt.
    """
    text = text.replace("\r\n", "\n")
    parts = _LOADGEN_SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _failed_requests(count: Any, *, prefix: str = "", reasons: list[str] | None = None) -> Reading:
    failed = finite_number(count)
    if failed > 0:
        because = ""
        if reasons:
            because = f": {'; '.join(reasons)}"
        yield Note(f"{prefix}{counted(round(failed), 'request')} failed{because}")
