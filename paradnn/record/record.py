"""From a worker's answer to what is stored: params, metrics, tags and artifacts of one run.

Pure functions: nothing here reads a clock, a device or a store. Every summary is derived from raw values that are
stored beside it, and every result is checked against itself; a violated check is a fault of this tool and says so.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paradnn.config import identity
from paradnn.config.point import Point
from paradnn.costs import Costs
from paradnn.execution.worker_process import Answer
from paradnn.hardware.environment import Environment
from paradnn.record.breakdown_figure import point_figure
from paradnn.record.input_pipeline import balance_checks, balance_metrics
from paradnn.record.profile_summary import TABLES, profile_artifacts, profile_metrics, profile_tags
from paradnn.record.statistics import quantile, summarise
from paradnn.store.address import without_secrets
from paradnn.store.metrics import PHASES, metric
from paradnn.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Record", "file_content", "image", "make_record", "point_tags", "run_name", "version_tags"]

#: How far matmul and convolution FLOPs of a profile may be from the analytic count: a compiler pads, and drops or adds
#: the products at the ends of a recurrence (docs/metrics.md).
FLOPS_MARGIN = 0.1
#: Where so much of the step has no known operation, FLOPs that are missing contradict nothing.
UNSEEN_SHARE = 0.5


@dataclass(frozen=True)
class Record:
    """Everything one run holds; times are in ms.

    `artifacts` maps a file name to text, to a JSON-able value, or to {"base64": ...}: see `file_content`.
    """

    name: str
    outcome: str
    reason: str | None
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifacts: Mapping[str, Any]
    start_time: int
    end_time: int
    description: str = ""


def run_name(point: Point) -> str:
    """A name a person recognises in a list: family, size, batch, and what is not the default."""
    words = [point.model.name, point.model.size, f"b{point.batch_size}", point.precision, point.platform.name]
    words += [word for word, usual in ((point.compile, "graph"), (point.mode, "train")) if word != usual]
    if point.data.name != "synthetic":
        words.append(point.data.name)
    if point.devices > 1:
        words.append(f"x{point.devices}" + (" grpc" if point.transport == "grpc" else ""))
    if point.framework.name != "tensorflow":
        words.append(point.framework.name)
    if point.software.name != "current":
        words.append(point.software.name)
    if point.replicate:
        words.append(f"#{point.replicate}")
    return " ".join(words)


def point_tags(point: Point, environment: Environment) -> dict[str, str]:
    """Tags that identify a run, known before it is measured."""
    tags = {
        "kind": "point",
        "schema_version": SCHEMA_VERSION,
        "source": "measured",
        "point_id": identity.point_id(point),
        "protocol_id": identity.protocol_id(point.measure),
        "limits_id": identity.limits_id(point.measure),
        "environment_id": environment.environment_id,
        "replicate": str(point.replicate),
        "device": environment.device,
        "host": str(environment.host["host"]),
        "git_commit": str(environment.host["git_commit"]),
    }
    return tags | version_tags(environment)


def version_tags(environment: Environment) -> dict[str, str]:
    """The versions of the software under test."""
    return {f"version.{name}": version for name, version in environment.software.items()}


def image(figure: Figure) -> dict[str, str]:
    """A figure as the content of a PNG artifact."""
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=110)
    return {"base64": base64.b64encode(target.getvalue()).decode()}


def file_content(content: Any) -> bytes:
    """An artifact's content as the bytes of its file."""
    if isinstance(content, Mapping) and set(content) == {"base64"}:
        return base64.b64decode(content["base64"])
    return (content if isinstance(content, str) else json.dumps(content, indent=1)).encode()


def make_record(
    point: Point,
    environment: Environment,
    costs: Costs,
    answer: Answer,
    *,
    tags: Mapping[str, str],
    limits: Mapping[str, float],
    load: float | None,
    start_time: int,
    end_time: int,
) -> Record:
    """The record of one answered point.

    `tags` are those its run was begun with, `limits` what the platform can do at most
    (`paradnn.session.hardware_peaks.limits_of`), `load` is the host's load average at its start, times are Unix
    milliseconds.
    """
    result = answer.result
    metrics = {"batch_size_per_device": point.batch_size / point.devices}
    metrics |= _costs(costs) | _phases(answer.phases) | _memory(answer) | _given("load_average", load)
    tags = {**tags, "outcome": answer.outcome}
    if answer.outcome == "ok":
        metrics |= _speed(point, costs, result) | {"compile_seconds": answer.phases["compile"]}
        metrics |= _latency(result) | _energy(metrics, result) | _utilisation(metrics, limits)
        metrics |= balance_metrics(result, point.batch_size, point.platform.name)
        tags |= {"steady": str(result["steady"]).lower(), "steady_reason": result["steady_reason"]}
        tags["energy_source"] = result["energy_source"]
        tags |= {"compile_note": note} if (note := result.get("compile_note")) else {}
        if profile := result.get("profile"):
            # Of devices in several processes the profile sees those of the first.
            seen = profile.get("devices", point.devices) / point.devices
            metrics |= profile_metrics(profile, costs.flops_per_step * seen, point.precision)
            tags |= profile_tags(profile, point.precision)
            if "operations" in profile:
                # What `mlflow.log_table` notes, so that the UI and `mlflow.load_table` find the tables.
                tables = [{"path": f"{name}.json", "type": "table"} for name in TABLES]
                tags["mlflow.loggedArtifacts"] = json.dumps(tables)
        problems = _checks(point, costs, metrics, result)
        tags["checks"] = "passed" if not problems else "failed: " + "; ".join(problems)
    if answer.reason:
        tags["reason"] = without_secrets(answer.reason)
    for name in metrics:
        metric(name)  # a metric without a unit is a fault of this tool
    return Record(
        name=run_name(point),
        outcome=answer.outcome,
        reason=answer.reason,
        metrics=metrics,
        tags=tags,
        params=identity.texts(identity.request_of(point)),
        artifacts=_artifacts(point, environment, answer, metrics),
        start_time=start_time,
        end_time=end_time,
        description=_description(point, environment, answer, metrics),
    )


def _costs(costs: Costs) -> dict[str, float]:
    return {
        "parameters": costs.parameters,
        "flops_per_step": costs.flops_per_step,
        "bytes_per_step": costs.bytes_per_step,
        "arithmetic_intensity": costs.flops_per_step / costs.bytes_per_step,
        "memory_lower_bound_bytes": costs.memory_lower_bound_bytes,
    }


def _phases(phases: Mapping[str, float]) -> dict[str, float]:
    return {f"phase_{name}_seconds": phases[name] for name in PHASES if name in phases}


def _memory(answer: Answer) -> dict[str, float]:
    """Peaks: the child's own, taken before the profiler; of a child that did not live to tell, what was seen."""
    own, seen = answer.result.get("peak_memory_bytes"), answer.peak_memory_bytes
    peak = own if answer.outcome == "ok" and own else max(own or 0, seen or 0) or None
    found = _given("peak_memory_bytes", peak)
    baseline = answer.result.get("baseline_memory_bytes")
    if peak and baseline:
        found["step_memory_bytes"] = peak - baseline
    return found | _given("peak_device_memory_bytes", answer.result.get("peak_device_memory_bytes"))


def _speed(point: Point, costs: Costs, result: Mapping[str, Any]) -> dict[str, float]:
    """Step times from block times, and what follows from them."""
    steps = result["steps_per_block"]
    times = summarise([seconds / steps for seconds in result["blocks"]])
    found: dict[str, float] = {
        "step_time_ms": times.median * 1e3,
        "step_time_min_ms": times.minimum * 1e3,
        "step_time_max_ms": times.maximum * 1e3,
        "examples_per_second": point.batch_size / times.median,
        "flops_per_second": costs.flops_per_step / times.median,
        "blocks": len(result["blocks"]),
        "steps_per_block": steps,
        "warmup_blocks": len(result["calibration"]) - 1 + len(result["warmup"]),
    }
    if times.low is not None and times.high is not None:
        found |= {
            "step_time_low_ms": times.low * 1e3,
            "step_time_high_ms": times.high * 1e3,
            "examples_per_second_low": point.batch_size / times.high,
            "examples_per_second_high": point.batch_size / times.low,
        }
    return found | _given("step_time_cv", times.cv) | _given("final_loss", result.get("final_loss"))


def _latency(result: Mapping[str, Any]) -> dict[str, float]:
    """Quantiles of single synchronised steps; p99 only of a hundred or more."""
    times = result.get("latencies", ())
    shares = [share for share in (50, 90, 99) if len(times) >= (100 if share == 99 else 10)]
    found = {f"latency_p{share}_ms": quantile(times, share / 100) * 1e3 for share in shares}
    return found | ({"latency_steps": float(len(times))} if times else {})


def _energy(metrics: Mapping[str, float], result: Mapping[str, Any]) -> dict[str, float]:
    if result["energy_joules"] is None:
        return {}
    return {"energy_per_step_joules": result["energy_joules"] / (metrics["blocks"] * metrics["steps_per_block"])}


def _utilisation(metrics: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, float]:
    """The limits, and the share of each that was reached; the attainable roof is Williams et al.'s (CACM 2009)."""
    found, rate = dict(limits), metrics["flops_per_second"]
    peak, bandwidth = limits.get("peak_flops_per_second"), limits.get("peak_bytes_per_second")
    if peak:
        found["flops_utilization"] = rate / peak
    if peak and bandwidth:
        found["roofline_fraction"] = rate / min(peak, metrics["arithmetic_intensity"] * bandwidth)
    if "spec_flops_per_second" in limits:
        found["flops_utilization_spec"] = rate / limits["spec_flops_per_second"]
    return found


def _checks(point: Point, costs: Costs, metrics: Mapping[str, float], result: Mapping[str, Any]) -> list[str]:
    """What this tool says of itself must agree; each entry is a contradiction."""
    problems = []
    if result["parameters"] != costs.parameters:
        problems.append(f"the model has {result['parameters']} parameters, the analytic count is {costs.parameters}")
    rate = point.batch_size / (metrics["step_time_ms"] / 1e3)
    if not math.isclose(rate, metrics["examples_per_second"], rel_tol=1e-9):
        problems.append("examples_per_second is not batch_size / step time")
    problems += balance_checks(metrics, result)
    shares = sum(value for key, value in metrics.items() if key.startswith("category_share."))
    if shares and not math.isclose(shares + metrics["profile_unexplained_share"], 1.0, abs_tol=1e-3):
        problems.append(f"the shares of the profile sum to {shares + metrics['profile_unexplained_share']:.4f}")
    ratio = metrics.get("profile_flops_ratio")
    if ratio is not None:
        least, most = _sound_ratios(point, metrics)
        if not least <= ratio <= most:
            problems.append(f"the profile's FLOPs are {ratio:.3f} times the analytic ones")
    peak = metrics.get("step_memory_bytes")
    if point.platform.name == "cpu" and peak is not None and peak < costs.memory_lower_bound_bytes:
        problems.append(f"the step took {peak:.0f} bytes, less than the lower bound {costs.memory_lower_bound_bytes}")
    return problems


def _sound_ratios(point: Point, metrics: Mapping[str, float]) -> tuple[float, float]:
    """How much of the analytic FLOPs a sound profile shows at least and at most.

    No bound below where products may be missing: TensorFlow does not trace a kernel that it has learnt to be cheap
    (some thousand cycles), its work is in the unexplained share; XLA multiplies elementwise what is a product over
    nothing, a weight's gradient of one example, and multiplies no padding where an image is smaller than its kernel.
    None above for depthwise convolutions' gradients, which XLA's CPU compiler computes for all pairs of channels.
    """
    by_xla = point.compile == "xla" or (point.framework.name == "jax" and point.compile != "eager")
    # The last group of convolutional networks has a pixel for each 32 of the image, under kernels of 3.
    small = point.model.name != "vit" and 0 < getattr(point.model, "image_size", 0) <= 64
    missing = metrics["profile_unexplained_share"] > UNSEEN_SHARE or (by_xla and (small or point.batch_size == 1))
    dense = by_xla and point.platform.name == "cpu" and point.mode == "train" and point.model.name == "mobilenet"
    return 0.0 if missing else 1 - FLOPS_MARGIN, math.inf if dense else 1 + FLOPS_MARGIN


def _artifacts(point: Point, environment: Environment, answer: Answer, metrics: Mapping[str, float]) -> dict[str, Any]:
    raw = ("steps_per_block", "calibration", "warmup", "blocks", "steady", "steady_reason", "first_loss", "final_loss")
    found: dict[str, Any] = {"environment.json": environment.as_dict(), "config.json": identity.request_of(point)}
    if environment.packages:
        found["stack.txt"] = "".join(f"{package}\n" for package in environment.packages)
    if "blocks" in answer.result:
        found["blocks.json"] = {key: answer.result[key] for key in raw if key in answer.result} | {"unit": "s"}
    if "input" in answer.result:
        found["input.json"] = answer.result["input"] | {"unit": "s"}
    if answer.stderr:
        found["stderr.txt"] = without_secrets(answer.stderr)
    profile = answer.result.get("profile", {})
    if "operations" in profile:
        types, operations = profile["operation_types"], profile["operations"]
        found["breakdown.png"] = image(point_figure(run_name(point), types, operations, metrics, point.precision))
    return found | profile_artifacts(profile)


def _description(point: Point, environment: Environment, answer: Answer, metrics: Mapping[str, float]) -> str:
    """What a person reading the run in the UI sees first (Markdown)."""
    mode = "training step" if point.mode == "train" else "forward pass"
    what = (
        f"One {mode} of **{run_name(point)}** ({metrics['parameters']:,.0f} parameters) on {environment.device}, "
        f"{point.framework.name} {environment.software.get(point.framework.name, '')}, compile={point.compile}."
    )
    if answer.outcome != "ok":
        return f"{what}\n\nOutcome **{answer.outcome}**: {answer.reason}"
    interval = ""
    if "examples_per_second_low" in metrics:
        interval = (
            f" (95% interval {metrics['examples_per_second_low']:,.1f} to {metrics['examples_per_second_high']:,.1f})"
        )
    used = f", {metrics['flops_utilization']:.0%} of the measured peak" if "flops_utilization" in metrics else ""
    waits = f", {metrics['infeed_fraction']:.0%} of it waiting for input" if "infeed_gain" in metrics else ""
    steady = "steady" if answer.result["steady"] else f"NOT steady: {answer.result['steady_reason']}"
    return (
        f"{what}\n\n**{metrics['examples_per_second']:,.1f} examples/s**{interval}, "
        f"{metrics['step_time_ms']:.3f} ms a step{waits}, {metrics['flops_per_second'] / 1e9:,.2f} GFLOP/s{used}; "
        f"median of {metrics['blocks']:.0f} blocks of {metrics['steps_per_block']:.0f} steps, {steady}."
    )


def _given(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
