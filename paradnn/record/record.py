"""From a worker's answer to what is stored: params, metrics, tags and artifacts of one run.

Pure functions: nothing here reads a clock, a device or a store. Every summary is derived from raw values that are
stored beside it, and every result is checked against itself; a violated check is a fault of this tool and says so.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paradnn.config import identity
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.config.scenario import Server
from paradnn.core.words import counted
from paradnn.costs import Costs
from paradnn.platform.environment import Environment
from paradnn.record.breakdown_figure import point_figure
from paradnn.record.communication import communication_words
from paradnn.record.generation import generation_artifacts, generation_metrics, generation_tags, generation_words
from paradnn.record.headline import throughput
from paradnn.record.learning import Moment, curve, learning_metrics, learning_tags, learning_words
from paradnn.record.load import load_artifacts, load_metrics, load_tags, load_words, loads
from paradnn.record.load_figure import load_figure
from paradnn.record.measured import (
    cost_metrics,
    given,
    measured_metrics,
    measurements,
    memory_metrics,
    phase_metrics,
    summarised,
)
from paradnn.record.profile_summary import TABLES, precision_tags, profile_artifacts, profile_tags
from paradnn.record.self_checks import contradictions
from paradnn.store.address import without_secrets
from paradnn.store.metrics import metric
from paradnn.store.prices import costs as priced_costs
from paradnn.store.schema import SCHEMA_VERSION
from paradnn.worker.channel import plain
from paradnn.worker.messages import Answer, Compilation, Contention, Profile, Timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Record", "image", "make_record", "point_tags", "run_name", "version_tags"]

#: How a phase beside the measured blocks is called where it was disturbed.
_DISTURBED = {
    "prefill": "while prompts were read: ",
    "load": "under load: ",
    "latency": "while single steps were timed: ",
}


@dataclass(frozen=True)
class Record:
    """Everything one run holds; times are in ms.

    `artifacts` maps a file name to text, to a JSON-able value, or to {"base64": ...}: see `paradnn.store.files`.
    `history` are metrics that have a value for each epoch.
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
    history: Sequence[Moment] = ()


def run_name(point: Point) -> str:
    """A name a person recognises in a list: family, size, batch, and what is not the default."""
    words = [point.model.name, point.model.size, f"b{point.batch_size}", point.precision, point.platform.name]
    words += [word for word, usual in ((point.compile, "graph"), (point.mode, "train")) if word != usual]
    if point.generate:
        words.append(f"{point.generate.prompt}+{point.generate.tokens}")
    if point.load:
        words.append(point.scenario + (f" {_policy(point.load)}" if isinstance(point.load, Server) else ""))
    if point.data.name != "synthetic":
        words.append(point.data.name)
    if point.learn:
        words.append(f"to {point.learn.target:g}")
        words += [point.optimizer.name, f"lr {point.optimizer.learning_rate:g}"]
        words += [f"seed {point.seed}"] if point.seed else []
    if point.devices > 1:
        words.append(f"x{point.devices}" + (" grpc" if point.transport == "grpc" else ""))
    if point.hosts > 1:
        words.append(f"{point.hosts} hosts")
    if point.platform.cores is not None:
        words.append(f"cores {point.platform.cores}")
    if point.framework.name != "tensorflow":
        words.append(point.framework.name)
    if point.software.name != "current":
        words.append(point.software.name)
    if point.replicate:
        words.append(f"#{point.replicate}")
    return " ".join(words)


def _policy(load: Server) -> str:
    words = [load.rate if isinstance(load.rate, str) else f"{load.rate:g}/s"]
    words += [f"delay {load.delay_ms:g} ms"] if load.delay_ms else []
    return " ".join(words + ([f"x{load.instances}"] if load.instances > 1 else []))


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


def make_record(
    point: Point,
    environment: Environment,
    costs: Costs,
    results: Sequence[PointResult],
    *,
    tags: Mapping[str, str],
    peaks: Mapping[str, float],
    load: float | None,
    start_time: int,
    end_time: int,
) -> Record:
    """The record of one point, from how each of its processes ended: one or more, of which the last may have failed.

    `tags` are those its run was begun with, `peaks` what the devices can do at most (`paradnn.session.hardware_peaks`),
    `load` is the host's load average at its start, times are Unix milliseconds.
    """
    metrics = {"batch_size_per_device": point.batch_size / point.devices}
    metrics |= cost_metrics(costs) | phase_metrics(results) | memory_metrics(results) | given("load_average", load)
    outcome, reason = _ending(results)
    answers = [result.answer for result in results if result.answer]
    metrics |= learning_metrics(point, answers)
    tags = {**tags, "outcome": outcome, **learning_tags(answers)}
    history = [moment for answer in answers if point.learn for moment in curve(point.learn, answer.epochs or ())]
    if _has_steps(outcome, results):
        metrics |= measured_metrics(point, costs, answers, peaks) | load_metrics(point, answers)
        metrics |= generation_metrics(point, costs, answers, metrics)
        problems = [problem for answer in answers for problem in contradictions(point, costs, metrics, answer)]
        # What ceilings say of emulation, in numbers, is in the tags that the run was begun with.
        tags = _measured_tags(point, answers) | tags
        tags["checks"] = "passed" if not problems else "failed: " + "; ".join(dict.fromkeys(problems))
    if price := point.platform.price_per_hour:
        metrics |= priced_costs(price, outcome == "ok", {**_last(history), **metrics}.get)
    if reason:
        tags["reason"] = without_secrets(reason)
    for name in {name for each in (metrics, *(moment.metrics for moment in history)) for name in each}:
        metric(name)  # a metric without a unit is a fault of this tool
    return Record(
        name=run_name(point),
        outcome=outcome,
        reason=reason,
        metrics=metrics,
        tags=tags,
        params=identity.texts(identity.request_of(point)),
        artifacts=_artifacts(point, environment, results, metrics),
        start_time=start_time,
        end_time=end_time,
        description=_description(point, environment, outcome, reason, metrics, tags),
        history=history,
    )


def _has_steps(outcome: str, results: Sequence[PointResult]) -> bool:
    """Whether the steps were measured: a load that is too much for them, or cut short, costs none of them."""
    last = results[-1].answer
    return outcome in ("ok", "overload") or bool(outcome == "timeout" and last and last.load)


def _last(history: Sequence[Moment]) -> Mapping[str, float]:
    """The metrics of the last epoch."""
    return history[-1].metrics if history else {}


def _ending(results: Sequence[PointResult]) -> tuple[str, str | None]:
    """Outcome and reason of a point: `ok` where all of its processes are."""
    for number, result in enumerate(results, 1):
        if result.outcome != "ok":
            where = f"process {number}: " if number > 1 else ""
            return result.outcome, f"{where}{result.reason}"
    return "ok", results[-1].reason


def _measured_tags(point: Point, answers: Sequence[Answer]) -> dict[str, str]:
    measured, answer = measurements(answers), answers[0]
    tags = _steady_tags([measurement.timing for measurement in measured])
    if reason := summarised(point, [measurement.timing for measurement in measured]).reason:
        tags["interval_reason"] = f"no 95% interval: {reason}"
    tags["energy_source"] = measured[0].energy_source
    tags |= _contended_tags(answers)
    if notes := _compile_notes([measurement.compilation for measurement in measured]):
        tags["compile_note"] = "; ".join(notes)
    # A profile knows how often a loop ran.
    seen = answer.profile.product_types if isinstance(answer.profile, Profile) else {}
    tags |= precision_tags(seen or measured[0].product_types, point.precision, measured[0].native_products)
    tags |= load_tags(point, answers) | generation_tags(answers)
    if answer.profile:
        tags |= profile_tags(answer.profile)
    if isinstance(answer.profile, Profile):
        # What `mlflow.log_table` notes, so that the UI and `mlflow.load_table` find the tables.
        tags["mlflow.loggedArtifacts"] = json.dumps([{"path": f"{name}.json", "type": "table"} for name in TABLES])
    return tags


def _steady_tags(timings: Sequence[Timing]) -> dict[str, str]:
    """Whether each process was steady, and what says so: of several, of those that were not."""
    if len(timings) == 1:
        return {"steady": str(timings[0].steady).lower(), "steady_reason": timings[0].steady_reason}
    unsteady = [f"process {n}: {timing.steady_reason}" for n, timing in enumerate(timings, 1) if not timing.steady]
    return {
        "steady": str(not unsteady).lower(),
        "steady_reason": "; ".join(unsteady) or f"no change that matters in {len(timings)} processes",
    }


def _contended_tags(answers: Sequence[Answer]) -> dict[str, str]:
    """Whether other work took cores from any process, and what says so; empty where the system does not tell."""
    watched = [entry for answer in answers for entry in _watched(answer)]
    reasons = [f"{when}{seen.reason}" for when, seen in watched if seen.reason]
    tags = {"contended": str(bool(reasons)).lower()} if watched else {}
    return tags | ({"contended_reason": "; ".join(dict.fromkeys(reasons))} if reasons else {})


def _compile_notes(each: Sequence[Compilation]) -> list[str]:
    """What the first process says of its compilation, and what disturbed that of any."""
    notes = [each[0].note] if each[0].note else []
    reasons = [f"meanwhile {seen.reason}" for entry in each if (seen := entry.contention) and seen.reason]
    return notes + reasons[:1]


def _watched(answer: Answer) -> Iterator[tuple[str, Contention]]:
    """What disturbed each phase that was watched, and in words which one if it is not that of the blocks."""
    if answer.measurement and answer.measurement.contention:
        yield "", answer.measurement.contention
    for phase, seen in answer.contention.items():
        yield _DISTURBED[phase], seen


def _artifacts(
    point: Point, environment: Environment, results: Sequence[PointResult], metrics: Mapping[str, float]
) -> dict[str, Any]:
    artifacts: dict[str, Any] = {"environment.json": environment.as_dict(), "config.json": identity.request_of(point)}
    if environment.packages:
        artifacts["stack.txt"] = "".join(f"{package}\n" for package in environment.packages)
    if stderr := results[-1].stderr:
        artifacts["stderr.txt"] = without_secrets(stderr)
    if processes := [_process(result) for result in results if result.answer and result.answer.measurement]:
        artifacts["blocks.json"] = {"unit": "s", "processes": processes}
    answers = [result.answer for result in results if result.answer]
    artifacts |= load_artifacts(answers) | generation_artifacts(answers)
    if loads(answers):
        artifacts["latency.png"] = image(load_figure(run_name(point), point.load, answers))
    answer = results[0].answer
    if answer and answer.epochs:
        artifacts["epochs.json"] = {"unit": "s", "epochs": plain(answer.epochs)}
    if answer and answer.input:
        artifacts["input.json"] = plain(answer.input) | {"unit": "s"}
    if answer and isinstance(profile := answer.profile, Profile):
        artifacts["breakdown.png"] = image(point_figure(run_name(point), profile, metrics, point.precision))
        artifacts |= profile_artifacts(profile)
    return artifacts


def _process(result: PointResult) -> dict[str, Any]:
    """The raw times of one process, and when it began."""
    assert result.answer
    measurement = result.answer.measurement
    assert measurement
    begun = {"begun": result.begun, "first_loss": plain(measurement.first_loss)}
    return {**begun, **plain(measurement.timing), "compilation": plain(measurement.compilation)}


def _description(
    point: Point,
    environment: Environment,
    outcome: str,
    reason: str | None,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
) -> str:
    """What a person reading the run in the UI sees first (Markdown)."""
    mode = {"train": "training step", "inference": "forward pass"}.get(point.mode, "token of each example")
    what = (
        f"One {mode} of **{run_name(point)}** ({metrics['parameters']:,.0f} parameters) on {environment.device}, "
        f"{point.framework.name} {environment.software.get(point.framework.name, '')}, compile={point.compile}."
    )
    learnt = f"\n\nLearning: {words}." if (words := learning_words(metrics)) else ""
    if outcome != "ok":
        return f"{what}{learnt}\n\nOutcome **{outcome}**: {reason}"
    count = metrics["processes"]
    processes = "single process" if count == 1 else f"{count:.0f} processes"
    rate = throughput(metrics)
    interval = f" (95% CI, {processes}: {rate.ends[0]:,.1f} to {rate.ends[1]:,.1f})" if rate and rate.ends else ""
    used = f", {metrics['flops_utilization']:.0%} of the measured peak" if "flops_utilization" in metrics else ""
    waits = f", {metrics['infeed_fraction']:.0%} of it waiting for input" if "infeed_gain" in metrics else ""
    steady = "steady" if tags["steady"] == "true" else f"not steady: {tags['steady_reason']}"
    load = f"\n\nLoad: {words}." if (words := load_words(metrics, tags)) else ""
    load += f"\n\nGeneration: {words}." if (words := generation_words(metrics)) else ""
    if told := communication_words(metrics):
        return f"Messages of **{run_name(point)}** on {environment.device}.\n\n**{told[0]}**, {told[1]}; {steady}."
    return (
        f"{what}\n\n**{rate}**{interval}, "
        f"{metrics['step_time_ms']:.3f} ms a step{waits}, {metrics['flops_per_second'] / 1e9:,.2f} GFLOP/s{used}; "
        f"{counted(round(metrics['blocks']), 'block')} of {counted(round(metrics['steps_per_block']), 'step')}, "
        f"{steady}.{load}{learnt}"
    )
