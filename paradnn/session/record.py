"""Conversion of workers' answers to the params, metrics, tags and artifacts of one run.

A run is the MLflow run of one point, which is one configuration to measure. These are pure
functions: they read no clock, device or store. A run holds each summary next to the raw values from
which it was computed. Every result is checked for contradictions. A failed check is a bug in
ParaDnn, and a tag of the run reports it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paradnn.cli.console import si
from paradnn.config import identity
from paradnn.config.point import Point
from paradnn.config.price import Prices
from paradnn.core.channel import plain
from paradnn.core.messages import Answer, Contention, NoProfile, Profile
from paradnn.core.metric import MetricSnapshot, interval_names
from paradnn.core.results import ResultDescription
from paradnn.core.words import counted, rounded, without_secrets
from paradnn.core.workload import WORKLOADS, default_workload
from paradnn.platform.environment import Environment, separate_hosts
from paradnn.platform.load import slow_tags
from paradnn.session.contradictions import find_contradictions
from paradnn.session.measured import Measured
from paradnn.session.overview import overview_files
from paradnn.session.run_records import RunRecords, has_valid_steps
from paradnn.store.metrics import costs as priced_costs
from paradnn.store.metrics import metric
from paradnn.store.runs import SCHEMA_VERSION, Record
from paradnn.worker.series import chosen_kernel

#: Tables of a profile, stored as files of the run; `mlflow.load_table` reads them.
_TABLES = ("operations", "operation_types")
#: Prefixes of contention reasons for phases that any kind of work may have.
_CONTENTION_PREFIXES = {"latency": "while single steps were timed: "}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
#: Ratio of the step time under the profiler to the measured step time, above which the run gets a
#: note.
_MAX_SLOWDOWN = 1.1
_DESCRIBED_OPERATIONS = 3
#: Relative half-width above which an interval is uninformative.
_WIDEST_INTERVAL = 10.0


def run_name(point: Point) -> str:
    """Return the name of a point's run.

    It consists of family, size, batch size, precision, platform, and options that differ from their
    defaults.

    Args:
        point: The configuration that the run measures.
    """
    words = [
        point.model.name,
        point.model.size,
        f"b{point.batch_size}",
        point.precision,
        point.platform.name,
    ]
    words += [
        word
        for word in (point.compile, point.framework.compile)
        if word not in ("graph", "default")
    ]
    words += point.workload.role(RunRecords).name_parts(point)
    default_optimizer = type(point.optimizer)().name
    more = {
        point.optimizer.name: point.optimizer.name not in (default_optimizer, *words),
        f"x{point.devices}": point.devices > 1,
        f"{point.parallel} parallel": point.parallel != "data",
        f"{point.hosts} hosts": point.hosts > 1,
        f"threads={point.platform.threads}": point.platform.threads is not None,
        f"cores {point.platform.cores}": point.platform.cores is not None,
        "cold": point.measure.cache == "cold",
        point.framework.name: point.framework.name != "tensorflow",
        point.software.name: point.software.name != "current",
        f"#{point.replicate}": point.replicate,
    }
    return " ".join([*words, *(word for word, is_shown in more.items() if is_shown)])


def run_tags(kind: str, measured: identity.Identity, environment: Environment) -> dict[str, str]:
    """Return the tags that identify a run of any kind and the versions of its software.

    All of these tags are known before the measurement.

    Args:
        kind: Kind of the run: "point", or "ceilings" for a measurement of peak rates.
        measured: Hashes of the configuration and its environment, and number of the repetition.
        environment: Hardware and software versions of the measurement.
    """
    tags = {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "source": "measured",
        "point_id": measured.point_id,
    }
    tags |= {"environment_id": measured.environment_id, "replicate": str(measured.replicate)}
    tags |= {"device": environment.device, "host": str(environment.host["host"])}
    return tags | {f"version.{name}": version for name, version in environment.software.items()}


def point_tags(point: Point, environment: Environment) -> dict[str, str]:
    """Return the tags that identify a point's run.

    They name the point, its environment, its timing protocol and its limits. All of them are known
    before the measurement.

    Args:
        point: The configuration to measure.
        environment: Hardware and software versions under which it is measured.
    """
    measured = identity.Identity(
        identity.point_id(point), environment.environment_id, point.replicate
    )
    return run_tags("point", measured, environment) | {
        "protocol_id": identity.protocol_id(point.measure),
        "limits_id": identity.limits_id(point.measure),
        "git_commit": str(environment.host["git_commit"]),
    }


def priced(point: Point, prices: Prices, environment: Environment) -> tuple[Point, dict[str, str]]:
    """Set the hourly price of a point (configuration to measure), if a price is known.

    The price covers all devices of the point. The cores of a CPU are priced as part of their host.

    Args:
        point: The point. A price in its platform takes precedence over `prices`.
        prices: Prices of devices and hosts.
        environment: Environment of the point, which names the device and the host.

    Returns:
        A pair (point, tags). The returned point has `platform.price_per_hour` if a price is known.
        The tags state the currency and, if the price comes from `prices`, its source. Without a
        price, the tags are empty.
    """
    price = point.platform.price_per_hour
    tags = {"price_currency": prices.currency or ""}
    if price is None:
        is_cpu = point.platform.name == "cpu"
        chips = separate_hosts(point) if is_cpu else point.device_count
        price = prices.hourly_price(environment.device, str(environment.host["host"]), chips)
        tags["price_source"] = prices.origin
    if price is None:
        return point, {}
    known = replace(point, platform=replace(point.platform, price_per_hour=price))
    return known, {name: text for name, text in tags.items() if text}


def make_record(measured: Measured) -> Record:
    """Return the record of a measured point, which the store keeps as an MLflow run.

    Args:
        measured: The point, its environment, and the results of its processes.

    Raises:
        ArithmeticError: If a metric cannot be computed from the measured values.
        ValueError: If a metric cannot be computed from the measured values.
    """
    point = measured.point
    work = measured.point.workload
    records = work.role(RunRecords)
    results = measured.results
    outcome, reason = measured.ending()
    tags = {**measured.tags, "outcome": outcome}
    epochs = [snapshot for result in results for snapshot in records.metric_history(result.news)]
    series: list[MetricSnapshot] = []
    metrics: dict[str, float] = {}
    for kind in {each.name: each for each in (default_workload(), work)}.values():
        metrics |= kind.role(RunRecords).metrics(measured, metrics)
        series += kind.role(RunRecords).series(measured)
    tags |= records.tags(measured)
    if has_valid_steps(measured):
        tags = _step_tags(measured, metrics, tags)
    price = point.platform.price_per_hour
    if price:
        last_metrics = epochs[-1].metrics if epochs else {}
        known = {**last_metrics, **metrics}
        metrics |= priced_costs(price, known.get, ok=outcome == "ok")
    if reason:
        tags["reason"] = without_secrets(reason)
    history = [*series, *epochs]
    names = set(metrics).union(*(snapshot.metrics for snapshot in history))
    for name in names:
        metric(name)  # a metric without a unit is a bug in ParaDnn
    record = Record(
        name=run_name(point),
        outcome=outcome,
        reason=reason,
        params=identity.as_params(identity.point_request(point)),
        metrics=metrics,
        tags=tags,
        artifacts=_artifacts(measured),
        start_time=measured.start_time,
        end_time=measured.end_time,
        history=history,
    )
    record = replace(record, description=_description(measured, record))
    return _with_overview(measured, record)


def _step_tags(
    measured: Measured, metrics: Mapping[str, float], begun_tags: Mapping[str, str]
) -> dict[str, str]:
    """Return the tags of a point whose timed steps are valid.

    The tag `checks` says whether the measured values contradict each other.

    Args:
        measured: The point and the results of its processes.
        metrics: Metrics of the point's run.
        begun_tags: Tags with which the run began. They override measured tags of the same name.
    """
    tags = {**_measured_tags(measured), **begun_tags}
    speed = metrics.get("reference_speed")
    if speed:
        # A slowdown of the kernel by the model itself does not mean that the machine was slow.
        machine_speed = speed * math.exp(metrics["reference_own"])
        tags |= slow_tags({tags["reference_kernel"]: machine_speed}, tags)
    problems = [
        problem
        for answer in measured.answers
        for problem in find_contradictions(measured.point, measured.costs, metrics, answer)
    ]
    tags["checks"] = "passed"
    if problems:
        tags["checks"] = f"failed: {'; '.join(dict.fromkeys(problems))}"
    return tags


def _with_overview(measured: Measured, record: Record) -> Record:
    """Return the record with the overview pictures of its run.

    If drawing fails, the record gets a tag `overview` with the error instead.
    """
    try:
        pictures = overview_files(measured, record)
    except Exception as error:
        note = f"not drawn: {type(error).__name__} {error}"
        return replace(record, tags={**record.tags, "overview": note[:200]})
    return replace(record, artifacts={**record.artifacts, **pictures})


def _measured_tags(measured: Measured) -> dict[str, str]:
    precision = measured.point.precision
    timed = measured.timed
    profile = measured.answers[0].profile
    timings = [one.timing for one in timed]
    compiled = [one.compilation for one in timed]

    unsteady = [
        f"process {n}: {timing.steady_reason}"
        for n, timing in enumerate(timings, 1)
        if not timing.steady
    ]
    steady = "; ".join(unsteady) or f"no change that matters in {len(timings)} processes"
    compile_contention = [
        f"at the same time {entry.contention.reason}"
        for entry in compiled
        if entry.contention and entry.contention.reason
    ]
    # Prefer the operand types of the profile, because it counts the iterations of loops.
    if isinstance(profile, Profile):
        profiled = profile.product_types
    else:
        profiled = {}
    tables = [{"path": f"{name}.json", "type": "table"} for name in _TABLES]
    interval_reason = measured.step.reason
    tags = {
        "steady": str(not unsteady).lower(),
        "steady_reason": steady if len(timings) > 1 else timings[0].steady_reason,
        "interval_reason": interval_reason and f"no 95% interval: {interval_reason}",
        "reference_kernel": chosen_kernel(timings),
        "energy_source": timed[0].energy_source,
        "compile_note": (
            "; ".join([*filter(None, [compiled[0].note]), *compile_contention[:1]]) or None
        ),
        # In the format of `mlflow.log_table`, so that the UI and `mlflow.load_table` find the
        # tables.
        "mlflow.loggedArtifacts": json.dumps(tables) if isinstance(profile, Profile) else None,
        **_contended_tags(measured.answers),
        **precision_tags(profiled or timed[0].product_types, precision),
        **(profile_tags(profile) if profile else {}),
    }
    return {name: text for name, text in tags.items() if text is not None}


def precision_tags(types: Mapping[str, float], precision: str) -> dict[str, str]:
    """Return tags about the operand types of matrix products.

    Args:
        types: Operand type -> share of the products' FLOPs, in 0..1; empty if unknown.
        precision: Precision that was requested, such as "bfloat16".

    Returns:
        `matmul_types`, and `precision_note` if over 1% of the FLOPs have operands of another
        type. Empty if the types are unknown.
    """
    if not types:
        return {}
    tags = {"matmul_types": ", ".join(f"{name} {part:.1%}" for name, part in types.items())}
    share = types.get(precision, 0.0)
    if share < 0.99:
        tags["precision_note"] = (
            f"{1 - share:.0%} of the products have operands of a type other than {precision}"
        )
    return tags


def profile_tags(profile: Profile | NoProfile) -> dict[str, str]:
    """Return tags about the profile of a run and its caveats, such as a slowdown by the profiler.

    The tag `extras` lists which of the requests `profile` and `keep_trace` the run already answers.
    The point is not measured again for these. If the profile failed, the tag lists both. It also
    contains `limited` if a higher time or memory limit may yield a profile.

    Args:
        profile: The profile, or the reason why the run has no profile.
    """
    if isinstance(profile, NoProfile):
        extras = f"profile keep_trace{' limited' if profile.limited else ''}"
        return {"profile": f"unavailable: {profile.unavailable}", "extras": extras}
    notes = []
    if profile.slowdown > _MAX_SLOWDOWN:
        notes.append(
            "the shares refer to a step that took "
            f"{profile.slowdown:.2f} times as long under the profiler"
        )
    if profile.command_buffers:
        buffers = counted(profile.command_buffers, "command buffer")
        notes.append(
            f"the profile lacks the operations in {buffers} of the GPU: "
            "'+framework.env.XLA_FLAGS=\"--xla_gpu_enable_command_buffer=\"' shows them, "
            "but changes the speed"
        )
    tags = {"profile": "ok", "extras": "profile keep_trace" if profile.trace else "profile"}
    return tags | ({"profile_note": "; ".join(notes)} if notes else {})


def _contended_tags(answers: Sequence[Answer]) -> dict[str, str]:
    """Return tags about other programs that took cores during any phase of any process.

    Empty if the system does not report contention.

    Args:
        answers: Answer of each process of the point.
    """
    prefixes = {
        **_CONTENTION_PREFIXES,
        **{
            phase: prefix
            for work in WORKLOADS.values()
            for phase, prefix in work.role(ResultDescription).contention_prefixes.items()
        },
    }
    contentions: list[tuple[str, Contention]] = []
    for answer in answers:
        if answer.measurement and answer.measurement.contention:
            contentions.append(("", answer.measurement.contention))
        contentions += [
            (prefixes.get(phase, f"in phase {phase}: "), seen)
            for phase, seen in answer.contention.items()
        ]
    reasons = [f"{when}{seen.reason}" for when, seen in contentions if seen.reason]
    tags = {"contended": str(bool(reasons)).lower()} if contentions else {}
    # Of reasons that differ only in their numbers, keep the one with the largest numbers.
    worst: dict[str, str] = {}
    for reason in reasons:
        wording = _NUMBER.sub("", reason)
        worst[wording] = max(
            worst.get(wording, reason),
            reason,
            key=lambda each: [*map(float, _NUMBER.findall(each))],
        )
    return tags | ({"contended_reason": "; ".join(worst.values())} if reasons else {})


def _artifacts(measured: Measured) -> dict[str, Any]:
    point = measured.point
    environment = measured.environment
    results = measured.results
    artifacts: dict[str, Any] = {
        "environment.json": environment.as_dict(),
        "config.json": identity.point_request(point),
    }
    if environment.packages:
        artifacts["stack.txt"] = "".join(f"{package}\n" for package in environment.packages)
    stderr = results[-1].stderr
    if stderr:
        artifacts["stderr.txt"] = without_secrets(stderr)
    processes = []
    for result in results:
        if result.answer and (seen := result.answer.measurement):
            own = {
                "begun": result.begun,
                "first_loss": plain(seen.first_loss),
                "compilation": plain(seen.compilation),
            }
            processes.append(own | plain(seen.timing))
    if processes:
        artifacts["blocks.json"] = {"unit": "s", "processes": processes}
    artifacts |= point.workload.role(RunRecords).artifacts(measured, run_name(point))
    answer = results[0].answer
    if answer and answer.input:
        artifacts["input.json"] = plain(answer.input) | {"unit": "s"}
    if answer and isinstance(profile := answer.profile, Profile):
        # TensorBoard looks for the trace under this path.
        artifacts |= {f"{name}.json": plain(getattr(profile, name)) for name in _TABLES}
        artifacts |= {
            f"trace/{path}": {"base64": content} for path, content in profile.trace.items()
        }
    return artifacts


def _description(measured: Measured, record: Record) -> str:
    """Return the description of a run in Markdown, which the UI shows first.

    It states the point, its result, the step time with its interval, whether the steps were steady,
    and whether other work disturbed them. Roofline, operations and energy follow if they are known.
    """
    point = measured.point
    environment = measured.environment
    metrics = record.metrics
    tags = record.tags
    version = environment.software.get(point.framework.name, "")
    paragraphs = [
        f"One {point.workload.unit} of **{record.name}** ({metrics['parameters']:,.0f} parameters)"
        f" on {environment.device}, {point.framework.name} {version}, compile={point.compile}."
    ]
    result = point.workload.role(ResultDescription).describe(metrics, tags)
    if result:
        paragraphs.append(f"{result.heading.capitalize()}: {'; '.join(result.clauses)}.")
    if record.outcome != "ok":
        paragraphs.append(f"Outcome **{record.outcome}**: {record.reason}")
        return "\n\n".join(paragraphs)
    has_rate = not (result and result.replaces_steps)
    if "steady" in tags:  # work without timed steps has no such tag
        paragraphs.append(_describe_steps(metrics, tags, has_rate=has_rate))
    if tags.get("contended") == "true":
        paragraphs.append(f"**Contended**: {tags['contended_reason']}.")
    if "steady" in tags:
        paragraphs += filter(None, [_describe_roofline(metrics), _describe_operations(metrics)])
        if "energy_per_example_joules" in metrics:
            paragraphs.append(f"Energy: {energy_text(metrics)}.")
    return "\n\n".join(paragraphs)


def _describe_roofline(metrics: Mapping[str, float]) -> str:
    """Return which share of the roofline a step reaches, and which peak limits it, as text.

    Empty if the peaks are unknown.
    """
    if "roofline_fraction" not in metrics:
        return ""
    rate = si(metrics["flops_per_second"])
    intensity = metrics["arithmetic_intensity"]
    ridge = metrics["peak_flops_per_second"] / metrics["peak_bytes_per_second"]
    if intensity < ridge:
        limit = f"memory bandwidth ({si(metrics['peak_bytes_per_second'])}B/s)"
    else:
        limit = f"peak arithmetic ({si(metrics['peak_flops_per_second'])}FLOP/s)"
    return (
        f"Roofline: **{metrics['roofline_fraction']:.0%}** of the limit set by {limit}. The step "
        f"reaches {rate}FLOP/s at {intensity:.3g} FLOP/byte; the ridge is at {ridge:.3g} FLOP/byte."
    )


def _describe_operations(metrics: Mapping[str, float]) -> str:
    """Return the operations that take most of a profiled step as text; empty without a profile."""
    prefix = "op_share."
    shares = {key.removeprefix(prefix): metrics[key] for key in metrics if key.startswith(prefix)}
    if not shares:
        return ""
    top = sorted(shares.items(), key=lambda entry: -entry[1])[:_DESCRIBED_OPERATIONS]
    clauses = [f"{name} {share:.0%}" for name, share in top]
    idle = metrics.get("profile_unexplained_share")
    if idle is not None:
        clauses.append(f"no operation {idle:.0%}")
    return f"Time goes to {', '.join(clauses)}."


def energy_text(metrics: Mapping[str, float]) -> str:
    """Return the energy per example, the part of it above idle power, and the power as text.

    Args:
        metrics: Metrics of a run, including `energy_per_example_joules`. Power and energy above
            idle may be missing.
    """
    example = metrics["energy_per_example_joules"]
    text = f"{si(example)}J an example"
    watts = metrics.get("power_watts")
    if watts is None:  # recorded by an earlier version
        return text
    above_idle = metrics.get("energy_per_example_above_idle_joules")
    if above_idle is None:
        return f"{text} at {si(watts)}W; idle power unknown"
    idle = si(metrics["power_idle_watts"])
    return f"{text} at {si(watts)}W, including {si(above_idle)}J above the idle power of {idle}W"


def _describe_steps(
    metrics: Mapping[str, float], tags: Mapping[str, str], *, has_rate: bool
) -> str:
    """Return the step rate with its 95% interval, the step time, and the steadiness as text.

    Args:
        metrics: Metrics of a run.
        tags: Tags of the run, including `steady`.
        has_rate: Whether to include the step rate and the step time.
    """
    clauses = []
    rate = headline(metrics, steps=True) if has_rate else None
    if rate:
        interval = tags.get("interval_reason") or rate.describe_interval()
        clauses.append(f"**{rate}** ({interval})")
        clauses.append(f"{metrics['step_time_ms']:.3f} ms a step")
    if tags["steady"] == "true":
        clauses.append("steady")
    else:
        clauses.append(f"not steady: {tags['steady_reason']}")
    return f"{', '.join(clauses)}."


@dataclass(frozen=True)
class Headline:
    """The main number of a run, for display in one line.

    Attributes:
        value: The number.
        unit: Its unit, such as "examples/s".
        ends: Lower and upper end of its 95% interval; None if it has no interval.
    """

    value: float
    unit: str
    ends: tuple[float, float] | None

    def relative(self) -> str:
        """Return the half-width of the interval relative to the value, as text such as "2.1%".

        Ratios of ten or more are shown as ">1000%", and a missing interval as "-".
        """
        if not self.ends:
            return "-"
        share = (self.ends[1] - self.ends[0]) / 2 / self.value
        return f"{share:.1%}" if share < _WIDEST_INTERVAL else f">{_WIDEST_INTERVAL:.0%}"

    def describe_interval(self) -> str:
        """Return the interval's ends as text, such as "95% interval 1,198 to 1,270"."""
        if not self.ends:
            return "no 95% interval"
        low, high = self.ends
        return f"95% interval {rounded(low)} to {rounded(high)}"

    def number(self) -> str:
        """Return the value without its unit, such as "1,235"."""
        return rounded(self.value)

    def __str__(self) -> str:
        return f"{self.number()} {self.unit}"


def headline(metrics: Mapping[str, float], *, steps: bool = False) -> Headline | None:
    """Return the main number of a run, such as its throughput.

    Args:
        metrics: Metrics of the run.
        steps: Whether to consider only the rate of the timed steps, in tokens or examples per
            second.

    Returns:
        The first metric that a kind of work declares as its headline, otherwise the rate of the
        steps. None if the run has neither.
    """
    # Kinds of work with the highest order come first: a point under load also has timed steps.
    works = sorted(
        WORKLOADS.values(),
        key=lambda work: -work.order,
    )
    for units in [
        *(work.role(ResultDescription).headlines for work in works if not steps),
        *(work.role(ResultDescription).rates for work in works),
    ]:
        for name in filter(metrics.__contains__, units):
            low, high = (metrics.get(end) for end in interval_names(name))
            return Headline(
                metrics[name], units[name], None if low is None or high is None else (low, high)
            )
    return None
