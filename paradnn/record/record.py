"""From a worker's answer to what is stored: params, metrics, tags and artifacts of one run.

Pure functions: nothing here reads a clock, a device or a store. Every summary is derived from raw values that are
stored beside it, and every result is checked against itself; a violated check is a fault of this tool and says so.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paradnn.config import identity
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.costs import Costs
from paradnn.hardware.environment import Environment
from paradnn.record.breakdown_figure import point_figure
from paradnn.record.input_pipeline import balance_metrics
from paradnn.record.profile_summary import TABLES, precision_tags, profile_artifacts, profile_metrics, profile_tags
from paradnn.record.self_checks import contradictions
from paradnn.record.statistics import quantile, summarise
from paradnn.store.address import without_secrets
from paradnn.store.metrics import PHASES, metric
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer, InputMeasurement, Measurement, Profile, Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Record",
    "compiling_metrics",
    "file_content",
    "image",
    "make_record",
    "point_tags",
    "run_name",
    "version_tags",
]


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
    result: PointResult,
    *,
    tags: Mapping[str, str],
    peaks: Mapping[str, float],
    load: float | None,
    start_time: int,
    end_time: int,
) -> Record:
    """The record of one point.

    `tags` are those its run was begun with, `peaks` what the devices can do at most
    (`paradnn.session.hardware_peaks.device_peaks`), `load` is the host's load average at its start, times are Unix
    milliseconds.
    """
    metrics = {"batch_size_per_device": point.batch_size / point.devices}
    metrics |= _costs(costs) | _phases(result.phases) | _memory(result) | _given("load_average", load)
    tags = {**tags, "outcome": result.outcome}
    answer = result.answer
    if result.outcome == "ok" and answer and answer.measurement:
        metrics |= _measured(point, costs, answer, answer.measurement, peaks)
        problems = contradictions(point, costs, metrics, answer, answer.measurement)
        # What ceilings say of emulation, in numbers, is in the tags that the run was begun with.
        tags = _measured_tags(point, answer, answer.measurement) | tags
        tags["checks"] = "passed" if not problems else "failed: " + "; ".join(problems)
    if result.reason:
        tags["reason"] = without_secrets(result.reason)
    for name in metrics:
        metric(name)  # a metric without a unit is a fault of this tool
    return Record(
        name=run_name(point),
        outcome=result.outcome,
        reason=result.reason,
        metrics=metrics,
        tags=tags,
        params=identity.texts(identity.request_of(point)),
        artifacts=_artifacts(point, environment, result, metrics),
        start_time=start_time,
        end_time=end_time,
        description=_description(point, environment, result, metrics),
    )


def _measured(
    point: Point, costs: Costs, answer: Answer, measurement: Measurement, peaks: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of what the worker measured."""
    metrics = _speed(point, costs, measurement.timing) | _latency(answer.latencies or ())
    metrics |= compiling_metrics(measurement, answer.input)
    if measurement.product_types:
        metrics["precision_share"] = measurement.product_types.get(point.precision, 0.0)
    metrics |= _energy(measurement) | _utilisation(metrics["flops_per_second"], costs, peaks)
    if answer.input:
        metrics |= balance_metrics(answer.input, measurement.timing.blocks, point.batch_size, point.platform.name)
    if isinstance(answer.profile, Profile):
        # Of devices in several processes the profile sees those of the first.
        seen = answer.profile.devices / point.devices
        metrics |= profile_metrics(answer.profile, costs.flops_per_step * seen, point.precision)
    return metrics


def _measured_tags(point: Point, answer: Answer, measurement: Measurement) -> dict[str, str]:
    timing = measurement.timing
    tags = {"steady": str(timing.steady).lower(), "steady_reason": timing.steady_reason}
    tags["energy_source"] = measurement.energy_source
    if measurement.compilation.note:
        tags["compile_note"] = measurement.compilation.note
    # A profile knows how often a loop ran.
    seen = answer.profile.product_types if isinstance(answer.profile, Profile) else {}
    tags |= precision_tags(seen or measurement.product_types, point.precision, measurement.native_products)
    if answer.profile:
        tags |= profile_tags(answer.profile)
    if isinstance(answer.profile, Profile):
        # What `mlflow.log_table` notes, so that the UI and `mlflow.load_table` find the tables.
        tags["mlflow.loggedArtifacts"] = json.dumps([{"path": f"{name}.json", "type": "table"} for name in TABLES])
    return tags


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


def _memory(result: PointResult) -> dict[str, float]:
    """Peaks: the child's own, taken before the profiler; of a child that did not live to report it, what was seen."""
    own = result.answer.peak_memory_bytes if result.answer else None
    peak = own if result.outcome == "ok" and own else max(own or 0, result.peak_memory_bytes or 0) or None
    metrics = _given("peak_memory_bytes", peak)
    if result.answer is None:
        return metrics
    metrics |= _given("step_memory_bytes", result.answer.step_memory_bytes)
    return metrics | _given("peak_device_memory_bytes", result.answer.peak_device_memory_bytes)


def _speed(point: Point, costs: Costs, timing: Timing) -> dict[str, float]:
    """Step times from block times, and what follows from them."""
    steps = timing.steps_per_block
    times = summarise([seconds / steps for seconds in timing.blocks])
    metrics: dict[str, float] = {
        "step_time_ms": times.median * 1e3,
        "step_time_min_ms": times.minimum * 1e3,
        "step_time_max_ms": times.maximum * 1e3,
        "examples_per_second": point.batch_size / times.median,
        "flops_per_second": costs.flops_per_step / times.median,
        "blocks": len(timing.blocks),
        "steps_per_block": steps,
        "warmup_blocks": len(timing.calibration) - 1 + len(timing.warmup),
    }
    if times.low is not None and times.high is not None:
        metrics |= {
            "step_time_low_ms": times.low * 1e3,
            "step_time_high_ms": times.high * 1e3,
            "examples_per_second_low": point.batch_size / times.high,
            "examples_per_second_high": point.batch_size / times.low,
        }
    return metrics | _given("step_time_cv", times.cv) | _given("final_loss", timing.final_loss)


def compiling_metrics(measurement: Measurement, fed: InputMeasurement | None) -> dict[str, float]:
    """What compiling took: all steps up to the last that compiled, less as many ordinary ones; at least the first.

    They run on a batch that stays, so an ordinary step is one that does not wait for input.
    """
    compilation, timing = measurement.compilation, measurement.timing
    blocks = [seconds / timing.steps_per_block for seconds in timing.blocks]
    ordinary = summarise(fed.free_step_seconds if fed else blocks).median
    steps = max((index for index, count in enumerate(compilation.programs, 1) if count), default=1)
    return {
        "compile_seconds": max(0.0, sum(compilation.seconds[:steps]) - steps * ordinary),
        "compile_steps": float(steps),
        "compilations": float(sum(compilation.programs)),
    }


def _latency(times: Sequence[float]) -> dict[str, float]:
    """Quantiles of single synchronised steps; p99 only of a hundred or more."""
    shares = [share for share in (50, 90, 99) if len(times) >= (100 if share == 99 else 10)]
    metrics = {f"latency_p{share}_ms": quantile(times, share / 100) * 1e3 for share in shares}
    return metrics | ({"latency_steps": float(len(times))} if times else {})


def _energy(measurement: Measurement) -> dict[str, float]:
    timing, joules = measurement.timing, measurement.energy_joules
    return _given("energy_per_step_joules", joules and joules / (len(timing.blocks) * timing.steps_per_block))


def _utilisation(rate: float, costs: Costs, peaks: Mapping[str, float]) -> dict[str, float]:
    """The peaks, and the share of each that was reached; the attainable roof is Williams et al.'s (CACM 2009)."""
    shares = dict(peaks)
    peak, bandwidth = peaks.get("peak_flops_per_second"), peaks.get("peak_bytes_per_second")
    if peak:
        shares["flops_utilization"] = rate / peak
    if peak and bandwidth:
        shares["roofline_fraction"] = rate / min(peak, costs.flops_per_step / costs.bytes_per_step * bandwidth)
    if "spec_flops_per_second" in peaks:
        shares["flops_utilization_spec"] = rate / peaks["spec_flops_per_second"]
    return shares


def _artifacts(
    point: Point, environment: Environment, result: PointResult, metrics: Mapping[str, float]
) -> dict[str, Any]:
    artifacts: dict[str, Any] = {"environment.json": environment.as_dict(), "config.json": identity.request_of(point)}
    if environment.packages:
        artifacts["stack.txt"] = "".join(f"{package}\n" for package in environment.packages)
    if result.stderr:
        artifacts["stderr.txt"] = without_secrets(result.stderr)
    answer = result.answer
    if answer and (measurement := answer.measurement):
        losses = plain({"first_loss": measurement.first_loss, "final_loss": measurement.timing.final_loss})
        compiling = {"compilation": plain(measurement.compilation)}
        artifacts["blocks.json"] = plain(measurement.timing) | compiling | losses | {"unit": "s"}
    if answer and answer.input:
        artifacts["input.json"] = plain(answer.input) | {"unit": "s"}
    if answer and isinstance(profile := answer.profile, Profile):
        artifacts["breakdown.png"] = image(point_figure(run_name(point), profile, metrics, point.precision))
        artifacts |= profile_artifacts(profile)
    return artifacts


def _description(point: Point, environment: Environment, result: PointResult, metrics: Mapping[str, float]) -> str:
    """What a person reading the run in the UI sees first (Markdown)."""
    mode = "training step" if point.mode == "train" else "forward pass"
    what = (
        f"One {mode} of **{run_name(point)}** ({metrics['parameters']:,.0f} parameters) on {environment.device}, "
        f"{point.framework.name} {environment.software.get(point.framework.name, '')}, compile={point.compile}."
    )
    measurement = result.answer.measurement if result.answer else None
    if result.outcome != "ok" or measurement is None:
        return f"{what}\n\nOutcome **{result.outcome}**: {result.reason}"
    interval = ""
    if "examples_per_second_low" in metrics:
        interval = (
            f" (95% interval {metrics['examples_per_second_low']:,.1f} to {metrics['examples_per_second_high']:,.1f})"
        )
    used = f", {metrics['flops_utilization']:.0%} of the measured peak" if "flops_utilization" in metrics else ""
    waits = f", {metrics['infeed_fraction']:.0%} of it waiting for input" if "infeed_gain" in metrics else ""
    steady = "steady" if measurement.timing.steady else f"not steady: {measurement.timing.steady_reason}"
    return (
        f"{what}\n\n**{metrics['examples_per_second']:,.1f} examples/s**{interval}, "
        f"{metrics['step_time_ms']:.3f} ms a step{waits}, {metrics['flops_per_second'] / 1e9:,.2f} GFLOP/s{used}; "
        f"median of {metrics['blocks']:.0f} blocks of {metrics['steps_per_block']:.0f} steps, {steady}."
    )


def _given(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
