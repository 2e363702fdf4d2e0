"""A step: training a batch, or a forward pass of one, again and again (docs/explanation/method.md); and the
metrics that every kind of work has in common with it, each declared here, where it is computed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.core.errors import UnavailableError
from paradnn.core.messages import InputMeasurement, Measurement, Profile
from paradnn.core.metric import Metric, interval_metrics, known_values
from paradnn.core.results import ResultDescription
from paradnn.core.workload import Workload
from paradnn.session.run_records import RunRecords, has_valid_steps
from paradnn.worker.workload import WorkerSide

if TYPE_CHECKING:
    from paradnn.session.measured import Measured
    from paradnn.worker.point import PointRun

#: Given the built model and its step, compiles what is needed; what is done with a step's run once
#: that was timed.
Beside = Callable[[Any, Any], Callable[[Any], None]]

#: What a run of any kind may hold: of the point, however it ended, and of its timed steps.
METRICS = (
    # speed
    Metric(
        "examples_per_second", "1/s", "higher", "batch_size / median step time", has_interval=True
    ),
    Metric(
        "step_time_ms",
        "ms",
        "lower",
        "median over a process' blocks, geometric mean over processes",
        has_interval=True,
    ),
    Metric(
        "step_time_error", "1", "lower", "standard error of its logarithm, correlation allowed for"
    ),
    Metric("step_time_min_ms", "ms", "lower", "fastest block"),
    Metric("step_time_max_ms", "ms", "lower", "slowest block"),
    Metric(
        "step_time_cv", "1", "lower", "standard deviation / mean of the step times within a process"
    ),
    Metric("process_cv", "1", "lower", "standard deviation of the processes' medians (logarithms)"),
    Metric(
        "between_process_cv", "1", "lower", "what of process_cv the spread within does not explain"
    ),
    Metric("flops_per_second", "FLOP/s", "higher", "flops_per_step / median step time"),
    Metric("processes", "1", None, "short processes in which the point was measured"),
    Metric("blocks", "1", None, "blocks measured, in all processes"),
    Metric("steps_per_block", "1", None, "steps between two synchronisations"),
    Metric("warmup_blocks", "1", None, "blocks run before the measured ones, calibration included"),
    Metric(
        "repeated_seconds", "s", "lower", "blocks that do not count, as they were measured again"
    ),
    Metric("final_loss", "1", None, "loss after the last measured block (training only)"),
    # at the speed of the machine for its ceilings (measure.reference, `paradnn.session.reference`)
    Metric(
        "examples_per_second_at_reference",
        "1/s",
        "higher",
        "at the machine's speed for its ceilings",
        has_interval=True,
    ),
    Metric(
        "step_time_at_reference_ms", "ms", "lower", "step_time_ms at that speed", has_interval=True
    ),
    Metric(
        "reference_speed",
        "1",
        "higher",
        "speed of reference_kernel beside the blocks / for the ceilings",
    ),
    Metric(
        "reference_own",
        "1",
        None,
        "slowdown of the kernel by the point itself: beside its blocks / before",
    ),
    Metric(
        "reference_slope",
        "1",
        None,
        "change of log step time with the kernel's, shrunk; 0: none is seen",
    ),
    Metric(
        "reference_slope_seen",
        "1",
        None,
        "the same before it is shrunk, freed of the kernel's own noise",
    ),
    Metric("reference_slope_error", "1", None, "standard error of reference_slope_seen"),
    Metric(
        "reference_correlation", "1", None, "of log step time and the kernel's, over the blocks"
    ),
    *(
        Metric(
            f"{best}reference_{kernel}_ms", "ms", "lower", f"a call of the {kernel} kernel {when}"
        )
        for kernel in ("arithmetic", "memory", "dispatch")
        for best, when in (("", "beside the blocks"), ("best_", "for the ceilings"))
    ),
    # single steps
    Metric(
        "latency_p50_ms",
        "ms",
        "lower",
        "median of a synchronised step, or of a query (inference)",
        has_interval=True,
    ),
    Metric("latency_p90_ms", "ms", "lower", "90th percentile of the same", has_interval=True),
    Metric("latency_p99_ms", "ms", "lower", "99th percentile of the same", has_interval=True),
    Metric("latency_steps", "1", None, "synchronised steps behind the latency quantiles"),
    # work and limits
    Metric("parameters", "1", None, "trainable parameters"),
    Metric(
        "batch_size_per_device",
        "1",
        None,
        "examples of a step on each device: batch_size / devices",
    ),
    Metric("flops_per_step", "FLOP", None, "analytic matmul and convolution work of one step"),
    Metric("bytes_per_step", "B", None, "analytic compulsory memory traffic of one step"),
    Metric("arithmetic_intensity", "FLOP/B", None, "flops_per_step / bytes_per_step"),
    Metric(
        "flops_utilization",
        "1",
        "higher",
        "flops_per_second / measured matmul peak of this precision",
    ),
    Metric("flops_utilization_spec", "1", "higher", "flops_per_second / the specification's peak"),
    Metric(
        "roofline_fraction", "1", "higher", "flops_per_second / min(peak, intensity x bandwidth)"
    ),
    Metric(
        "peak_flops_per_second", "FLOP/s", None, "measured matmul peak used for flops_utilization"
    ),
    Metric(
        "peak_bytes_per_second",
        "B/s",
        None,
        "measured memory bandwidth used for the roofline",
        has_interval=True,
    ),
    Metric("spec_flops_per_second", "FLOP/s", None, "the specification's peak in this precision"),
    Metric("spec_bytes_per_second", "B/s", None, "the specification's memory bandwidth"),
    Metric(
        "precision_share", "1", None, "share of the program's product FLOPs in the type asked for"
    ),
    # memory and energy
    Metric("memory_lower_bound_bytes", "B", None, "analytic lower bound of memory for one step"),
    Metric(
        "peak_memory_bytes",
        "B",
        "lower",
        "peak of the point's processes (docs/reference/metrics.md)",
    ),
    Metric(
        "step_memory_bytes",
        "B",
        "lower",
        "peak growth of anonymous memory in the steps after compiling",
    ),
    Metric(
        "peak_device_memory_bytes", "B", "lower", "peak device memory, as the framework reports it"
    ),
    Metric("energy_per_step_joules", "J", "lower", "energy of the package or board for one step"),
    Metric("energy_per_example_joules", "J", "lower", "energy_per_step_joules / batch_size"),
    # compiling
    Metric(
        "compile_seconds", "s", "lower", "steps up to the last that compiled, less ordinary ones"
    ),
    Metric(
        "compile_steps", "1", "lower", "steps up to the last that compiled something, at least one"
    ),
    Metric("compilations", "1", "lower", "programs (PyTorch: frames) compiled by those steps"),
    Metric(
        "conversion_seconds",
        "s",
        "lower",
        "until an engine's artefact was made and loaded, in compile_seconds",
    ),
    Metric("artefact_bytes", "B", "lower", "size of the artefact that an engine loads"),
    Metric(
        "conversion_error",
        "1",
        "lower",
        "largest difference of its outputs from the model's / the largest",
    ),
    # what took the point's cores
    Metric("load_average", "1", None, "the host's one-minute load average when the point started"),
    Metric("foreign_cpu_fraction", "1", "lower", "cores' time that others took during the blocks"),
    Metric(
        "own_cpu_fraction", "1", None, "cores' time that the point itself took during the blocks"
    ),
    Metric(
        "steal_fraction", "1", "lower", "cores' time that the hypervisor took during the blocks"
    ),
    Metric(
        "throttled_fraction", "1", "lower", "time in which a CPU quota stopped the measured blocks"
    ),
    Metric(
        "involuntary_switches_per_second",
        "1/s",
        "lower",
        "times a thread of the point lost its core",
    ),
    Metric("processor_time_ms", "ms", "lower", "cores' time that the point itself took for a step"),
    # input
    Metric("infeed_fraction", "1", "lower", "share of the step spent waiting for input"),
    Metric(
        "infeed_gain",
        "1",
        "lower",
        "fed step time / step time with input free of charge, less 1",
        has_interval=True,
    ),
    Metric(
        "input_free_examples_per_second",
        "1/s",
        "higher",
        "the step on a batch that stays, pipeline idle",
        has_interval=True,
    ),
    Metric(
        "input_examples_per_second",
        "1/s",
        "higher",
        "the pipeline alone, without the step",
        has_interval=True,
    ),
    Metric(
        "input_cpu_ms_per_example",
        "ms",
        "lower",
        "processor time of the pipeline alone for an example",
        has_interval=True,
    ),
    Metric("input_threads", "1", None, "threads of the pipeline's pool"),
    # profile
    Metric("profile_steps", "1", None, "steps under the profiler"),
    Metric("profile_step_time_ms", "ms", None, "step time under the profiler"),
    Metric("profile_slowdown", "1", None, "step time under the profiler / measured step time"),
    Metric(
        "profile_flops_ratio",
        "1",
        None,
        "matmul and convolution FLOPs of the table / flops_per_step",
    ),
    Metric(
        "profile_precision_share",
        "1",
        None,
        "share of those FLOPs in operands of the type asked for",
    ),
    Metric(
        "profile_unexplained_share",
        "1",
        "lower",
        "share of the step in which no known operation ran",
    ),
    Metric("op_share.<type>", "1", None, "share of the profiled step in one operation type"),
    Metric("category_share.<category>", "1", None, "share of the step in one category"),
)


@dataclass(frozen=True)
class SingleStep(Workload, WorkerSide, RunRecords, ResultDescription):
    """Steps in blocks; of a forward pass also the latency of single ones."""

    name = "step"
    key = "mode"
    order = 0
    declared_metrics = METRICS
    rates: ClassVar[Mapping[str, str]] = {"examples_per_second": "examples/s"}
    can_take_turns: ClassVar[bool] = True

    mode: str = "train"

    @property
    def unit(self) -> str:
        return "training step" if self.mode == "train" else "forward pass"

    @property
    def selector_values(self) -> tuple[str, ...]:
        return ("train", "inference")

    def configured(self, config: Mapping[str, Any]) -> SingleStep:
        return SingleStep(config.get("mode", self.mode))

    def measure(self, run: PointRun) -> None:
        measure_step(run, None if self.mode == "train" else lambda _, __: run.note_latencies)

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Those of every point, however it ended, and of its timed steps where these count."""
        metrics = point_metrics(measured)
        if has_valid_steps(measured):
            metrics |= step_metrics(measured)
        return metrics


def measure_step(
    run: PointRun,
    beside: Beside | None,
    ready: Callable[[Any, Any], None] = lambda workload, step: None,
) -> None:
    """Build, make `ready` (model and step), compile, warm up and measure a step of the point's
    model, then what is measured `beside`.
    """
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import prepare_step, product_flops

    point = run.request
    phases = run.phases
    with phases("build"):
        workload, step = prepare_step(point, run.framework)
        ready(workload, step)
    fed = None
    source = point["data"]["name"] if "data" in point else "synthetic"
    if (
        source != "synthetic" and "learning_set" not in point
    ):  # a set to judge by is no input of the timed step
        with phases("input"):
            if run.framework.name != "tensorflow":
                reads = f"data={source} is read by TensorFlow's tf.data, which is not loaded beside {run.framework.name}"
                raise UnavailableError(f"{reads}: use framework=tensorflow, or data=synthetic")
            from paradnn.worker.input.feed import FedStep, Feed

            fed = FedStep(step, Feed(point, workload))
    with phases("compile"):
        compilation, first_loss = compile_steps(step)
        products = product_flops(step)
        then = beside(workload, step) if beside else None
    run.memory.compiled()
    timed = run.time(fed.run if fed else step.run, step)
    run.note_measured(timed, workload, compilation, products, first_loss)
    if then:
        then(fed.run if fed else step.run)
    if fed:
        with phases("balance"):
            run.note(input=fed.measure(timed[0]))
    run.look_closer(step)


def point_metrics(measured: Measured) -> dict[str, float]:
    """Those of every point, however it ended: analytic counts, phases of all processes, and the
    most memory that any took: the child's own peak, before the profiler, or what was seen of one
    that did not live to report it.
    """
    from paradnn.store.metrics import PHASES

    point = measured.point
    costs = measured.costs
    results = measured.results
    metrics: dict[str, float] = {"batch_size_per_device": point.batch_size / point.devices}
    metrics |= {name: getattr(costs, name) for name in ("parameters", "memory_lower_bound_bytes")}
    if costs.flops_per_step:
        metrics |= {"flops_per_step": costs.flops_per_step, "bytes_per_step": costs.bytes_per_step}
        metrics["arithmetic_intensity"] = costs.flops_per_step / costs.bytes_per_step
    for name in PHASES:
        seconds = [result.phases[name] for result in results if name in result.phases]
        if seconds:
            metrics[f"phase_{name}_seconds"] = sum(seconds)
    for result in results:
        names = ("peak_memory_bytes", "step_memory_bytes", "peak_device_memory_bytes")
        found = {name: getattr(result.answer, name, None) for name in names}
        if result.outcome != "ok" or not found[names[0]]:
            found[names[0]] = max(found[names[0]] or 0, result.peak_memory_bytes or 0) or None
        metrics |= {
            name: max(value, metrics.get(name, value))
            for name, value in known_values(found).items()
        }
    return metrics | known_values({"load_average": measured.load})


def step_metrics(measured: Measured) -> dict[str, float]:
    """Metrics of the timed steps; input and profile are those of the first process."""
    from paradnn.session.measured import quantile, quantile_metrics
    from paradnn.session.reference import reference_metrics

    point = measured.point
    costs = measured.costs
    answers = measured.answers
    peaks = measured.peaks
    timed = measured.timed
    first = answers[0]
    metrics = _speed(measured)
    # p99 only of a hundred or more single steps in each process.
    each = [answer.latencies for answer in answers if answer.latencies]
    for share in (50, 90, 99) if each else ():
        if min(map(len, each)) >= (100 if share == 99 else 10):
            metrics |= quantile_metrics(f"latency_p{share}", share / 100, each, quantile, 1e3)
    metrics |= known_values({"latency_steps": float(sum(map(len, each))) or None})
    compiling = [
        compiling_metrics(entry.measurement, entry.input) for entry in answers if entry.measurement
    ]
    metrics |= {name: statistics.median(each[name] for each in compiling) for name in compiling[0]}
    if timed[0].product_types:
        metrics["precision_share"] = timed[0].product_types.get(point.precision, 0.0)
    metrics |= _contention(timed)
    joules = [entry.energy_joules for entry in timed if entry.energy_joules is not None]
    if len(joules) == len(timed):
        step = sum(joules) / sum(
            len(entry.timing.blocks) * entry.timing.steps_per_block for entry in timed
        )
        metrics |= {
            "energy_per_step_joules": step,
            "energy_per_example_joules": step / point.batch_size,
        }
    if costs.flops_per_step:  # the attainable roof is Williams et al.'s (CACM 2009)
        rate = metrics["flops_per_second"]
        peak = peaks.get("peak_flops_per_second")
        bandwidth = peaks.get("peak_bytes_per_second")
        roof = (
            peak
            and bandwidth
            and min(peak, costs.flops_per_step / costs.bytes_per_step * bandwidth)
        )
        roofs = {"flops_utilization": peak, "roofline_fraction": roof}
        roofs["flops_utilization_spec"] = peaks.get("spec_flops_per_second")
        metrics |= {**peaks} | {name: rate / most for name, most in roofs.items() if most}
    if first.input:
        metrics |= balance_metrics(
            first.input, timed[0].timing.blocks, point.batch_size, point.platform.name
        )
    if isinstance(first.profile, Profile):
        metrics |= profile_metrics(first.profile, costs.flops_per_step, point.precision)
    return metrics | reference_metrics([entry.timing for entry in timed], peaks, point.batch_size)


def _speed(measured: Measured) -> dict[str, float]:
    """Step times from block times, and what follows from them."""
    times = measured.step
    batch = measured.point.batch_size
    timings = [entry.timing for entry in measured.timed]
    step_interval = None
    rate_interval = None
    if times.low is not None and times.high is not None:
        step_interval = (1e3 * times.low, 1e3 * times.high)
        rate_interval = (batch / times.high, batch / times.low)
    metrics = {
        **interval_metrics("step_time_ms", step_interval),
        **interval_metrics("examples_per_second", rate_interval),
        "step_time_ms": times.value * 1e3,
        "step_time_min_ms": times.minimum * 1e3,
        "step_time_max_ms": times.maximum * 1e3,
        "step_time_cv": times.cv,
        "step_time_error": times.error,
        "process_cv": times.process_cv,
        "between_process_cv": times.between_cv,
        "examples_per_second": batch / times.value,
        "flops_per_second": measured.costs.flops_per_step / times.value or None,
        "processes": len(timings),
        "blocks": sum(len(timing.blocks) for timing in timings),
        "steps_per_block": statistics.median_high(timing.steps_per_block for timing in timings),
        "warmup_blocks": sum(
            len(timing.calibration) - 1 + len(timing.warmup) for timing in timings
        ),
        "repeated_seconds": sum(timing.repeated for timing in timings),
        "final_loss": timings[0].final_loss,
    }
    return known_values(metrics)


def compiling_metrics(measurement: Measurement, fed: InputMeasurement | None) -> dict[str, float]:
    """What the steps up to the last that compiled took beyond ordinary ones, which do not wait for
    input.
    """
    compilation = measurement.compilation
    ordinary = statistics.median(fed.free_step_seconds if fed else measurement.timing.step_times)
    steps = max((index for index, count in enumerate(compilation.programs, 1) if count), default=1)
    return {
        "compile_seconds": max(0.0, sum(compilation.seconds[:steps]) - steps * ordinary),
        "compile_steps": float(steps),
        "compilations": float(sum(compilation.programs)),
        **(vars(compilation.conversion) if compilation.conversion else {}),
    }


def _contention(timed: Sequence[Measurement]) -> dict[str, float]:
    """Means over processes, under the fields' own names; and the processor time that the point took
    for a step.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    own = []
    for entry, seen in ((entry, entry.contention) for entry in timed if entry.contention):
        shares = {
            name: value
            for name, value in vars(seen).items()
            if name not in ("cores", "reason", "stops")
        }
        for name, value in known_values(shares).items():
            found[name].append(value)
        if seen.own_cpu_fraction is not None:
            own.append(
                seen.own_cpu_fraction * seen.cores * statistics.fmean(entry.timing.step_times) * 1e3
            )
    metrics = {name: statistics.fmean(values) for name, values in found.items()}
    return metrics | (
        {"processor_time_ms": statistics.geometric_mean(own)} if own and min(own) > 0 else {}
    )


_LEADING = 10  # how many types of operations have a metric of their own


def profile_metrics(profile: Profile, flops_per_step: float, precision: str) -> dict[str, float]:
    """Shares of the leading types and all categories; the profile's FLOPs against the analytic
    ones, where known.
    """
    metrics = {
        "profile_steps": float(profile.steps),
        "profile_step_time_ms": profile.step_seconds * 1e3,
        "profile_slowdown": profile.slowdown,
        "profile_unexplained_share": profile.unexplained_share,
    }
    if profile.product_flops and flops_per_step:
        metrics["profile_flops_ratio"] = profile.product_flops / flops_per_step
        metrics["profile_precision_share"] = profile.product_types.get(precision, 0.0)
    shares: defaultdict[str, float] = defaultdict(float)
    for place, row in enumerate(profile.operation_types.rows()[:-1]):
        shares[f"category_share.{row['category']}"] += row["share"]
        if place < _LEADING:  # of MLflow's names of metrics
            kind = "".join(
                letter if letter.isalnum() or letter in "_-. /:" else "_" for letter in row["type"]
            )
            shares[f"op_share.{kind}"] = row["share"]
    return metrics | shares


def balance_metrics(
    measured: InputMeasurement, blocks: Sequence[float], batch_size: int, platform: str
) -> dict[str, float]:
    """Metrics of real input, given the blocks' seconds (the paper, section 4.4; docs/how-to/input.md). A
    host runs ahead of any device but a CPU: there the share is what the fed step takes longer than
    the one whose batch stays.
    """
    from paradnn.worker.series import median_interval

    free = measured.free_step_seconds
    fed = measured.fed_step_seconds
    alone = measured.alone
    estimates = {
        "input_cpu_ms_per_example": [1e3 * part.cpu_seconds / part.examples for part in alone],
        "infeed_gain": [slow / fast - 1 for slow, fast in zip(fed, free, strict=True)],
        "input_free_examples_per_second": [batch_size / seconds for seconds in free],
        "input_examples_per_second": [part.examples / part.seconds for part in alone],
    }
    metrics = {
        "infeed_fraction": sum(measured.waits) / sum(blocks),
        "input_threads": float(measured.threads),
    }
    for name, values in estimates.items():
        metrics[name] = statistics.median(values)
        metrics |= interval_metrics(name, median_interval(values))
    if platform != "cpu":
        metrics["infeed_fraction"] = max(0.0, 1 - 1 / (1 + metrics["infeed_gain"]))
    return metrics


STEP = SingleStep()
