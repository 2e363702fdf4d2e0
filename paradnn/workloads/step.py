"""A timed step: one training step or one forward pass on a batch (docs/explanation/method.md).

This module also declares and computes the metrics that all kinds of work share.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from paradnn.config.rules import PointRules
from paradnn.core.errors import ConfigError, UnavailableError
from paradnn.core.messages import (
    Answer,
    InputMeasurement,
    Measurement,
    Profile,
    WorkloadMessage,
)
from paradnn.core.metric import Metric, MetricSnapshot, in_section, interval_metrics, known_values
from paradnn.core.results import ResultDescription
from paradnn.core.workload import Workload
from paradnn.session.run_records import RunRecords, has_valid_steps
from paradnn.worker.workload import WorkerSide

if TYPE_CHECKING:
    from paradnn.config.outcome import PointResult
    from paradnn.config.point import Point
    from paradnn.session.measured import Measured
    from paradnn.session.overview.drawing import BarChart, Chart
    from paradnn.worker.point import PointRun

#: A hook that measures something in addition to the step. It receives the built model and its step,
#: compiles any further programs, and returns a function that measures them. After the step was
#: timed, that function is called with one argument: a function that runs a given number of steps.
AfterCompiling = Callable[[Any, Any], Callable[[Any], None]]

#: Metrics that every point has, whatever its outcome, and metrics of timed steps.
METRICS = (
    Metric(
        "examples_per_second", "1/s", "higher", "batch_size / median step time", has_interval=True
    ),
    Metric(
        "step_time_ms",
        "ms",
        "lower",
        "median over a process's blocks, geometric mean over processes",
        has_interval=True,
    ),
    Metric("flops_per_second", "FLOP/s", "higher", "flops_per_step / median step time"),
    Metric(
        "latency_p50_ms",
        "ms",
        "lower",
        "median latency of a synchronized step, or of a query (inference)",
        has_interval=True,
    ),
    Metric(
        "latency_p99_ms",
        "ms",
        "lower",
        "99th percentile of the latency of a synchronized step, or of a query",
        has_interval=True,
    ),
    Metric(
        "flops_utilization",
        "1",
        "higher",
        "flops_per_second / measured matmul peak in the point's precision",
    ),
    Metric(
        "peak_memory_bytes",
        "B",
        "lower",
        "peak memory of the point's processes (docs/reference/metrics.md)",
    ),
    *in_section(
        "blocks",
        Metric(
            "block_step_time_ms",
            "ms",
            "lower",
            "mean step time of each block, a series; blocks with negative numbers are the warm-up",
        ),
        Metric(
            "window_latency_p50_ms",
            "ms",
            "lower",
            "median latency per time window, a series over the time in ms",
        ),
        Metric(
            "window_latency_max_ms",
            "ms",
            "lower",
            "longest latency per time window, a series over the time in ms",
        ),
    ),
    *in_section(
        "step",
        Metric(
            "step_time_error",
            "1",
            "lower",
            "standard error of log step_time_ms, corrected for autocorrelation",
        ),
        Metric("step_time_min_ms", "ms", "lower", "mean step time of the fastest block"),
        Metric("step_time_max_ms", "ms", "lower", "mean step time of the slowest block"),
        Metric(
            "step_time_cv",
            "1",
            "lower",
            "standard deviation / mean of the step times within a process",
        ),
        Metric(
            "process_cv",
            "1",
            "lower",
            "standard deviation of the logarithms of the processes' median step times",
        ),
        Metric(
            "between_process_cv",
            "1",
            "lower",
            "part of process_cv that the spread within processes does not explain",
        ),
        Metric("processes", "1", None, "processes in which the point was measured"),
        Metric("blocks", "1", None, "blocks measured, in all processes"),
        Metric("steps_per_block", "1", None, "steps between two synchronizations"),
        Metric(
            "warmup_blocks", "1", None, "blocks run before the measured ones, calibration included"
        ),
        Metric(
            "repeated_seconds",
            "s",
            "lower",
            "time of blocks that were discarded and measured again",
        ),
        Metric("final_loss", "1", None, "loss after the last measured block (training only)"),
    ),
    *in_section(
        "machine",
        # These metrics correct a point to the machine's speed while its ceilings (peak rates) were
        # measured (measure.reference, `paradnn.session.reference`).
        Metric(
            "examples_per_second_at_reference",
            "1/s",
            "higher",
            "examples_per_second at the speed that the machine had when its ceilings were measured",
            has_interval=True,
        ),
        Metric(
            "step_time_at_reference_ms",
            "ms",
            "lower",
            "step_time_ms at the speed that the machine had when its ceilings were measured",
            has_interval=True,
        ),
        Metric(
            "reference_speed",
            "1",
            "higher",
            "speed of the reference kernel between the blocks / its speed when the ceilings were "
            "measured",
        ),
        Metric(
            "reference_own",
            "1",
            None,
            "slowdown of the reference kernel that the point itself causes",
        ),
        Metric(
            "reference_slope",
            "1",
            None,
            "change of log step time per change of log kernel time, after shrinkage; 0: no effect",
        ),
        Metric(
            "reference_slope_seen",
            "1",
            None,
            "reference_slope before shrinkage, corrected for the kernel's own noise",
        ),
        Metric("reference_slope_error", "1", None, "standard error of reference_slope_seen"),
        Metric(
            "reference_correlation",
            "1",
            None,
            "correlation of log step time and log kernel time over the blocks",
        ),
        *(
            Metric(
                f"{best}reference_{kernel}_ms",
                "ms",
                "lower",
                f"time of one call of the {kernel} reference kernel {when}",
            )
            for kernel in ("arithmetic", "memory", "dispatch")
            for best, when in (
                ("", "between the blocks"),
                ("best_", "when the ceilings were measured"),
            )
        ),
        Metric(
            "load_average", "1", None, "the host's one-minute load average when the point started"
        ),
        Metric(
            "foreign_cpu_fraction",
            "1",
            "lower",
            "share of the cores' time that other processes used during the blocks",
        ),
        Metric(
            "own_cpu_fraction",
            "1",
            None,
            "share of the cores' time that the point itself used during the blocks",
        ),
        Metric(
            "steal_fraction",
            "1",
            "lower",
            "share of the cores' time that the hypervisor took during the blocks",
        ),
        Metric(
            "throttled_fraction",
            "1",
            "lower",
            "share of the blocks' time in which a CPU quota stopped the point",
        ),
        Metric(
            "involuntary_switches_per_second",
            "1/s",
            "lower",
            "preemptions of the point's threads per second during the blocks",
        ),
        Metric(
            "processor_time_ms", "ms", "lower", "processor time of the point per step, all cores"
        ),
    ),
    *in_section(
        "latency",
        Metric(
            "latency_p90_ms",
            "ms",
            "lower",
            "90th percentile of the latency of a synchronized step, or of a query",
            has_interval=True,
        ),
        Metric("latency_steps", "1", None, "synchronized steps behind the latency quantiles"),
    ),
    *in_section(
        "work",
        Metric("parameters", "1", None, "trainable parameters"),
        Metric(
            "batch_size_per_device",
            "1",
            None,
            "examples of a step on each device: batch_size / (hosts x devices), or batch_size if "
            "the devices share the weights",
        ),
        Metric(
            "parameters_per_device",
            "1",
            "lower",
            "trainable parameters on the device that holds the most (parallel=model)",
        ),
        Metric("flops_per_step", "FLOP", None, "analytic matmul and convolution work of one step"),
        Metric("bytes_per_step", "B", None, "analytic compulsory memory traffic of one step"),
    ),
    *in_section(
        "roofline",
        Metric(
            "roofline_fraction",
            "1",
            "higher",
            "flops_per_second / min(peak, intensity x bandwidth)",
        ),
        Metric("arithmetic_intensity", "FLOP/B", None, "flops_per_step / bytes_per_step"),
        Metric(
            "flops_utilization_spec", "1", "higher", "flops_per_second / the specification's peak"
        ),
        Metric(
            "peak_flops_per_second",
            "FLOP/s",
            None,
            "measured matmul peak used for flops_utilization",
        ),
        Metric(
            "peak_bytes_per_second",
            "B/s",
            None,
            "measured memory bandwidth used for the roofline",
            has_interval=True,
        ),
        Metric(
            "spec_flops_per_second",
            "FLOP/s",
            None,
            "the specification's peak in the point's precision",
        ),
        Metric("spec_bytes_per_second", "B/s", None, "the specification's memory bandwidth"),
    ),
    *in_section(
        "operations",
        Metric(
            "precision_share",
            "1",
            None,
            "share of the program's matmul and convolution FLOPs in the requested type",
        ),
        Metric("profile_steps", "1", None, "steps under the profiler"),
        Metric("profile_step_time_ms", "ms", None, "step time under the profiler"),
        Metric("profile_slowdown", "1", None, "step time under the profiler / measured step time"),
        Metric(
            "profile_flops_ratio",
            "1",
            None,
            "matmul and convolution FLOPs of the profile / flops_per_step",
        ),
        Metric(
            "profile_precision_share",
            "1",
            None,
            "share of the profile's FLOPs whose operands have the requested type",
        ),
        Metric(
            "profile_unexplained_share",
            "1",
            "lower",
            "share of the profiled step's time in which no known operation ran",
        ),
        Metric(
            "op_share.<type>", "1", None, "share of the profiled step's time in one operation type"
        ),
        Metric(
            "category_share.<category>",
            "1",
            None,
            "share of the profiled step's time in one category of operations",
        ),
    ),
    *in_section(
        "memory",
        Metric("memory_limit_bytes", "B", None, "memory limit of a point that ran out of memory"),
        Metric(
            "memory_lower_bound_bytes", "B", None, "analytic lower bound of memory for one step"
        ),
        Metric(
            "step_memory_bytes",
            "B",
            "lower",
            "peak growth of anonymous memory during the steps, after compilation",
        ),
        Metric(
            "peak_device_memory_bytes",
            "B",
            "lower",
            "peak device memory, as the framework reports it",
        ),
    ),
    *in_section(
        "messages",
        Metric(
            "gradient_bytes", "B", None, "size of the gradients that a step sums over the processes"
        ),
        Metric(
            "alone_step_time_ms",
            "ms",
            "lower",
            "step time of the slowest process on its share of the batch, without gradient exchange",
        ),
        Metric(
            "fastest_alone_step_time_ms",
            "ms",
            "lower",
            "step time of the fastest process on its share of the batch, without gradient exchange",
        ),
        Metric(
            "communication_ms",
            "ms",
            "lower",
            "step_time_ms - alone_step_time_ms: gradient exchange that does not overlap computation",
        ),
        Metric("communication_share", "1", "lower", "communication_ms / step_time_ms"),
    ),
    *in_section(
        "energy",
        Metric("energy_per_step_joules", "J", "lower", "energy of the package or board per step"),
        Metric("energy_per_example_joules", "J", "lower", "energy_per_step_joules / batch_size"),
        Metric(
            "energy_per_example_above_idle_joules",
            "J",
            "lower",
            "energy_per_example_joules - power_idle_watts x step time / batch_size",
        ),
        Metric("power_watts", "W", None, "mean power of the package or board during the blocks"),
        Metric(
            "power_idle_watts",
            "W",
            "lower",
            "power while a process with the framework loaded is idle, measured with the ceilings",
            has_interval=True,
        ),
    ),
    *in_section(
        "compile",
        Metric(
            "compile_seconds",
            "s",
            "lower",
            "time of the first compile_steps steps - time of the same number of ordinary steps",
        ),
        Metric(
            "compile_steps",
            "1",
            "lower",
            "steps up to and including the last one that compiled something; at least 1",
        ),
        Metric(
            "compilations",
            "1",
            "lower",
            "programs (PyTorch: frames) that the first compile_steps steps compiled",
        ),
        Metric(
            "conversion_seconds",
            "s",
            "lower",
            "time to create and load an engine's artifact; part of compile_seconds",
        ),
        Metric("artefact_bytes", "B", "lower", "size of the artifact that an engine loads"),
        Metric(
            "conversion_error",
            "1",
            "lower",
            "largest difference between the engine's and the model's outputs / the largest output",
        ),
    ),
    *in_section(
        "input",
        Metric("infeed_fraction", "1", "lower", "share of the step spent waiting for input"),
        Metric(
            "infeed_gain",
            "1",
            "lower",
            "step time with the input pipeline / step time without it - 1",
            has_interval=True,
        ),
        Metric(
            "input_free_examples_per_second",
            "1/s",
            "higher",
            "rate of steps on a batch that stays on the device, with the pipeline idle",
            has_interval=True,
        ),
        Metric(
            "input_examples_per_second",
            "1/s",
            "higher",
            "rate of the pipeline alone, while no steps run",
            has_interval=True,
        ),
        Metric(
            "input_cpu_ms_per_example",
            "ms",
            "lower",
            "processor time of the pipeline alone per example",
            has_interval=True,
        ),
        Metric("input_threads", "1", None, "threads of the pipeline's pool"),
    ),
)


@dataclass(frozen=True)
class ProcessTimes(WorkloadMessage):
    """The number of processes that share each step, and their step times without communication.

    Attributes:
        count: Number of processes.
        alone: Seconds per step of each process on its share of the batch, without gradient
            exchange. The first entry is the measuring process. Empty if unknown.
    """

    wire_name: ClassVar[str] = "process_times"

    count: int
    alone: list[float]


@dataclass(frozen=True)
class DividedWeights(WorkloadMessage):
    """The largest share of the weights on one device, if devices divide the weights.

    Attributes:
        parameters_per_device: Trainable parameters on the device that holds the most.
    """

    wire_name: ClassVar[str] = "divided_weights"

    parameters_per_device: int


@dataclass(frozen=True)
class SingleStep(Workload, PointRules, WorkerSide, RunRecords, ResultDescription):
    """Time steps in blocks; for inference, also measure the latency of single forward passes."""

    name = "step"
    key = "mode"
    order = 0
    declared_metrics = METRICS
    rates: ClassVar[Mapping[str, str]] = {"examples_per_second": "examples/s"}
    can_take_turns: ClassVar[bool] = True
    can_start_cold: ClassVar[bool] = True
    hosts_may_be_processes: ClassVar[bool] = True
    message_types: ClassVar[tuple[type[WorkloadMessage], ...]] = (ProcessTimes, DividedWeights)

    mode: str = "train"

    @property
    def unit(self) -> str:
        return "training step" if self.mode == "train" else "forward pass"

    @property
    def selector_values(self) -> tuple[str, ...]:
        return ("train", "inference")

    def configured(self, config: Mapping[str, Any]) -> SingleStep:
        return SingleStep(config.get("mode", self.mode))

    def distributable_processes(self, point: Point) -> tuple[str, int]:
        if self.mode != "train":
            reason = "needs training, in which hosts exchange gradients"
            raise ConfigError("hosts", point.hosts, reason, "set mode=train or hosts=1")
        return "devices", point.device_count

    def open_devices(self, run: PointRun) -> None:
        if not self._has_processes(run):
            run.open_devices()

    def _has_processes(self, run: PointRun) -> bool:
        """Return whether several processes share each step.

        If they do, `measure` opens their devices.

        Args:
            run: Context of the measurement in the worker.
        """
        from paradnn.worker.data_parallel import process_count

        return self.mode == "train" and process_count(run.request, run.framework) > 1

    def remote_process_server(self) -> Callable[..., None]:
        from paradnn.worker.data_parallel import serve_elsewhere

        return serve_elsewhere

    def measure(self, run: PointRun) -> None:
        if self._has_processes(run):
            from paradnn.worker.data_parallel import DataParallelGroup

            with DataParallelGroup(run):
                measure_step(run)
        elif self.mode == "train":
            measure_step(run)
        else:
            measure_step(run, lambda workload, step: run.note_latencies)

    def metrics(self, measured: Measured, known: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of every measurement, and those of timed steps if the steps are valid.

        Args:
            measured: Results of all processes of one measured configuration.
            known: Ignored.
        """
        metrics = point_metrics(measured)
        if has_valid_steps(measured):
            metrics |= step_metrics(measured)
        return metrics

    def series(self, measured: Measured) -> list[MetricSnapshot]:
        from paradnn.session.run_series import block_series

        if has_valid_steps(measured):
            return block_series(measured)
        return []

    def charts(self, measured: Measured, metrics: Mapping[str, float]) -> list[Chart | BarChart]:
        from paradnn.session.overview import distribution_chart

        processes = [answer.latencies for answer in measured.answers if answer.latencies]
        if not processes or not has_valid_steps(measured):
            return []
        milliseconds = [[1e3 * seconds for seconds in process] for process in processes]
        return [distribution_chart("Latency of a single step", milliseconds)]


def measure_step(
    run: PointRun,
    after_compiling: AfterCompiling | None = None,
    prepare: Callable[[Any, Any], None] | None = None,
) -> None:
    """Build a model, then compile, warm up and measure one of its steps.

    Args:
        run: Context of the measurement in the worker; it collects the results.
        after_compiling: Called with the model and its step, to compile further programs. Returns a
            function that measures them. That function is called after the step was timed, with one
            argument: a function that runs a given number of steps. None to measure only the step.
        prepare: Called with the model and its step before compilation; None for no preparation.

    Raises:
        UnavailableError: If the framework cannot read the input.
    """
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import prepare_step, product_flops

    phases = run.phases
    with phases("build"):
        workload, step = prepare_step(run.request, run.framework)
        if run.others:
            step = run.others.common_step(step)
            run.note(work=ProcessTimes(run.others.count, []))
        elif step.parameters_per_device is not None:
            run.note(work=DividedWeights(step.parameters_per_device))
        if prepare:
            prepare(workload, step)
    fed = _fed_step(run, workload, step)
    with phases("compile"):
        compilation, first_loss = compile_steps(step)
        products = product_flops(step)
        measure_more = after_compiling(workload, step) if after_compiling else None
    run.begin_steps()
    run_steps = fed.run if fed else step.block_run
    timed = run.time(run_steps, step)
    run.note_measured(timed, workload, compilation, products, first_loss)
    if measure_more:
        measure_more(run_steps)
    if fed:
        with phases("balance"):
            run.note(input=fed.measure(timed.timing))
    run.note_memory_and_profile(step)
    if run.others:
        with phases("communication", replace(run.answered, outcome="ok")):
            alone = run.others.time_alone()
        run.note(work=ProcessTimes(run.others.count, list(alone)))


def _fed_step(run: PointRun, workload: Any, step: Any) -> Any:
    """Return a step that reads its batches from the input pipeline, if there is one.

    Args:
        run: Context of the measurement in the worker.
        workload: The `BuiltModel`.
        step: The step that reads a synthetic batch.

    Returns:
        A `FedStep`. None if the timed step reads a synthetic batch: the input is synthetic, or its
        examples are only used for an evaluation.

    Raises:
        UnavailableError: If the framework cannot read the input.
    """
    point = run.request
    source = point["data"]["name"] if "data" in point else "synthetic"
    if source == "synthetic" or "learning_set" in point:
        return None
    with run.phases("input"):
        framework = run.framework.name
        if framework != "tensorflow":
            raise UnavailableError(
                f"data={source} needs TensorFlow's tf.data, which cannot be loaded together with "
                f"{framework}: use framework=tensorflow, or data=synthetic"
            )
        from paradnn.worker.input.feed import FedStep, Feed

        return FedStep(step, Feed(point, workload))


def point_metrics(measured: Measured) -> dict[str, float]:
    """Return the metrics of every measurement: analytic costs, phase times and memory.

    Phase times are sums over the processes, in seconds. Memory is the maximum over the processes,
    in bytes. Each process reports its peak before the profiler runs. If a process ended without a
    report, the peak that the driver observed is used.

    Args:
        measured: Results of all processes of one measured configuration.
    """
    from paradnn.store.metrics import PHASES

    point = measured.point
    costs = measured.costs
    metrics: dict[str, float] = {
        "batch_size_per_device": point.batch_size / point.replicas,
        "parameters": costs.parameters,
        "memory_lower_bound_bytes": costs.memory_lower_bound_bytes,
    }
    if costs.flops_per_step:
        metrics["flops_per_step"] = costs.flops_per_step
        metrics["bytes_per_step"] = costs.bytes_per_step
        metrics["arithmetic_intensity"] = costs.flops_per_step / costs.bytes_per_step
    for name in PHASES:
        seconds = [result.phases[name] for result in measured.results if name in result.phases]
        if seconds:
            metrics[f"phase_{name}_seconds"] = sum(seconds)
    for result in measured.results:
        for name, value in known_values(_memory(result)).items():
            metrics[name] = max(value, metrics.get(name, value))
    outcome, _ = measured.ending()
    if outcome.startswith("oom") and measured.memory_limit is not None:
        metrics["memory_limit_bytes"] = measured.memory_limit
    return metrics | known_values({"load_average": measured.load})


def _memory(result: PointResult) -> dict[str, float | None]:
    """Return the peak memory of a process.

    Args:
        result: Result of the process.

    Returns:
        Bytes by the name of a metric; None if unknown.
    """
    names = ("peak_memory_bytes", "step_memory_bytes", "peak_device_memory_bytes")
    peaks = {name: getattr(result.answer, name, None) for name in names}
    if result.outcome != "ok" or not peaks["peak_memory_bytes"]:
        largest = max(peaks["peak_memory_bytes"] or 0, result.peak_memory_bytes or 0)
        peaks["peak_memory_bytes"] = largest or None
    return peaks


def step_metrics(measured: Measured) -> dict[str, float]:
    """Return the metrics of the timed steps.

    Metrics of the input and of the profile come from the first process, which alone measures them.

    Args:
        measured: Results of all processes of one measured configuration.
    """
    from paradnn.session.reference import reference_metrics

    point = measured.point
    costs = measured.costs
    timed = measured.timed
    first = measured.answers[0]
    metrics = _speed_metrics(measured)
    metrics |= _latency_metrics(measured)
    metrics |= _compile_metrics(measured)
    if timed[0].product_types:
        metrics["precision_share"] = timed[0].product_types.get(point.precision, 0.0)
    metrics |= _contention_metrics(timed)
    metrics |= process_metrics(measured.answers)
    if isinstance(first.work, DividedWeights):
        metrics["parameters_per_device"] = float(first.work.parameters_per_device)
    metrics |= _energy_metrics(timed, point.batch_size, idle_watts=measured.idle_watts)
    if costs.flops_per_step:
        metrics |= _roofline_metrics(measured, metrics["flops_per_second"])
    if first.input:
        blocks = timed[0].timing.blocks
        metrics |= balance_metrics(first.input, blocks, point.batch_size, point.platform.name)
    if isinstance(first.profile, Profile):
        # The profile covers one process, which does an equal share of the step's FLOPs.
        count = first.work.count if isinstance(first.work, ProcessTimes) else 1
        metrics |= profile_metrics(first.profile, costs.flops_per_step / count, point.precision)
    timings = [entry.timing for entry in timed]
    return metrics | reference_metrics(timings, measured.peaks, point.batch_size)


def _speed_metrics(measured: Measured) -> dict[str, float]:
    """Return step times and their spread, the rates computed from them, and counts of blocks.

    Args:
        measured: Results of all processes of one measured configuration.
    """
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


#: Percentile of the latency -> minimum number of single steps per process to report it.
_MIN_LATENCIES = {50: 10, 90: 10, 99: 100}


def _latency_metrics(measured: Measured) -> dict[str, float]:
    """Return the latency percentiles of single steps in ms; empty if none were measured.

    Args:
        measured: Results of all processes of one measured configuration.
    """
    from paradnn.session.measured import quantile, quantile_metrics

    processes = [answer.latencies for answer in measured.answers if answer.latencies]
    if not processes:
        return {}
    metrics = {"latency_steps": float(sum(map(len, processes)))}
    for percent, minimum in _MIN_LATENCIES.items():
        if min(map(len, processes)) >= minimum:
            name = f"latency_p{percent}"
            metrics |= quantile_metrics(name, percent / 100, processes, quantile, 1e3)
    return metrics


def _compile_metrics(measured: Measured) -> dict[str, float]:
    """Return the metrics of compilation (`compiling_metrics`), as medians over the processes.

    Args:
        measured: Results of all processes of one measured configuration.
    """
    processes = [
        compiling_metrics(answer.measurement, answer.input)
        for answer in measured.answers
        if answer.measurement
    ]
    return {
        name: statistics.median(process[name] for process in processes) for name in processes[0]
    }


def compiling_metrics(measurement: Measurement, fed: InputMeasurement | None) -> dict[str, float]:
    """Return the metrics of compilation: its time, and the numbers of steps and programs.

    `compile_steps` counts the first steps up to the last one that compiled something.
    `compile_seconds` is their time minus the time of the same number of ordinary steps. The first
    steps do not wait for input, so the ordinary steps are those without an input pipeline.

    Args:
        measurement: The timed steps of a process.
        fed: The measurement of the process's input pipeline; None for synthetic input.
    """
    compilation = measurement.compilation
    ordinary = statistics.median(fed.free_step_seconds if fed else measurement.timing.step_times)
    steps = max((index for index, count in enumerate(compilation.programs, 1) if count), default=1)
    metrics = {
        "compile_seconds": max(0.0, sum(compilation.seconds[:steps]) - steps * ordinary),
        "compile_steps": float(steps),
        "compilations": float(sum(compilation.programs)),
    }
    if compilation.conversion:
        metrics |= vars(compilation.conversion)
    return metrics


#: Bytes of one parameter's gradient. Gradients are float32 whatever the precision of the point.
_GRADIENT_BYTES = 4


def process_metrics(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the metrics of the gradient exchange between the processes that share each step.

    Values are medians over the answers.

    Args:
        answers: Answers of the measuring process, one per repetition of the measurement. An answer
            contains all results of one repetition.

    Returns:
        The metrics; empty if a single process runs the steps.
    """
    shares = []
    slowest = []
    fastest = []
    exchange = []
    parameters = 0
    for answer in answers:
        if not isinstance(answer.work, ProcessTimes) or not answer.work.alone:
            continue
        assert answer.measurement
        parameters = answer.measurement.parameters
        step = statistics.median(answer.measurement.timing.step_times)
        slowest.append(max(answer.work.alone))
        fastest.append(min(answer.work.alone))
        exchange.append(max(0.0, step - slowest[-1]))
        shares.append(exchange[-1] / step)
    if not shares:
        return {}
    return {
        "gradient_bytes": float(_GRADIENT_BYTES * parameters),
        "alone_step_time_ms": 1e3 * statistics.median(slowest),
        "fastest_alone_step_time_ms": 1e3 * statistics.median(fastest),
        "communication_ms": 1e3 * statistics.median(exchange),
        "communication_share": statistics.median(shares),
    }


def _energy_metrics(
    timed: Sequence[Measurement], batch_size: int, *, idle_watts: float | None
) -> dict[str, float]:
    """Return the power in W, and the energy per step and per example in J.

    Args:
        timed: The measurement of each process.
        batch_size: Examples per step.
        idle_watts: Power in W while a process with the framework loaded is idle; None if unknown.

    Returns:
        The metrics; empty unless all processes measured their energy.
    """
    joules = [entry.energy_joules for entry in timed if entry.energy_joules is not None]
    if len(joules) != len(timed):
        return {}
    steps = sum(len(entry.timing.blocks) * entry.timing.steps_per_block for entry in timed)
    step_joules = sum(joules) / steps
    step_seconds = sum(sum(entry.timing.blocks) for entry in timed) / steps
    metrics = {
        "energy_per_step_joules": step_joules,
        "energy_per_example_joules": step_joules / batch_size,
        "power_watts": step_joules / step_seconds,
    }
    if idle_watts is None:
        return metrics
    metrics["power_idle_watts"] = idle_watts
    above_idle = step_joules - idle_watts * step_seconds
    if above_idle > 0:
        metrics["energy_per_example_above_idle_joules"] = above_idle / batch_size
    return metrics


def _roofline_metrics(measured: Measured, rate: float) -> dict[str, float]:
    """Return the machine's peak rates, and the achieved rate as a fraction of them.

    One fraction refers to the roofline, which limits the rate to min(peak, intensity x bandwidth)
    (Williams et al., CACM 2009).

    Args:
        measured: Results of all processes of one measured configuration.
        rate: FLOP/s that the timed steps achieved.
    """
    costs = measured.costs
    peaks = measured.peaks
    peak = peaks.get("peak_flops_per_second")
    bandwidth = peaks.get("peak_bytes_per_second")
    attainable = None
    if peak and bandwidth:
        attainable = min(peak, costs.flops_per_step / costs.bytes_per_step * bandwidth)
    limits = {
        "flops_utilization": peak,
        "roofline_fraction": attainable,
        "flops_utilization_spec": peaks.get("spec_flops_per_second"),
    }
    fractions = {name: rate / limit for name, limit in limits.items() if limit}
    return {**peaks, **fractions}


def _contention_metrics(timed: Sequence[Measurement]) -> dict[str, float]:
    """Return the metrics of contention for processor cores, and the processor time per step.

    Args:
        timed: The measurement of each process. Contention metrics are means over the processes.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    processor_ms = []
    for entry in timed:
        contention = entry.contention
        if not contention:
            continue
        for name, value in known_values(vars(contention)).items():
            if name not in ("cores", "reason", "stops"):
                values[name].append(value)
        if contention.own_cpu_fraction is not None:
            own_cores = contention.own_cpu_fraction * contention.cores
            processor_ms.append(own_cores * statistics.fmean(entry.timing.step_times) * 1e3)
    metrics = {name: statistics.fmean(entries) for name, entries in values.items()}
    if processor_ms and min(processor_ms) > 0:
        metrics["processor_time_ms"] = statistics.geometric_mean(processor_ms)
    return metrics


#: Number of operation types, longest time first, that have a separate `op_share` metric.
_MAX_TYPES = 10
#: Characters that MLflow allows in metric names in addition to letters and digits.
_NAME_CHARS = "_-. /:"


def profile_metrics(profile: Profile, flops_per_step: float, precision: str) -> dict[str, float]:
    """Return the metrics of a profile: shares of operations, and the profiler's slowdown.

    Args:
        profile: Time of a step by operation.
        flops_per_step: Analytic FLOPs that the profiled process does per step; 0 if unknown.
        precision: The requested precision, such as "bfloat16".
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
    # The last row is the time in which no operation ran.
    for position, row in enumerate(profile.operation_types.rows()[:-1]):
        shares[f"category_share.{row['category']}"] += row["share"]
        if position < _MAX_TYPES:
            shares[f"op_share.{_as_metric_name(row['type'])}"] = row["share"]
    return metrics | shares


def _as_metric_name(operation_type: str) -> str:
    return "".join(
        letter if letter.isalnum() or letter in _NAME_CHARS else "_" for letter in operation_type
    )


def balance_metrics(
    measured: InputMeasurement, blocks: Sequence[float], batch_size: int, platform: str
) -> dict[str, float]:
    """Return the metrics that compare the input pipeline with the step.

    See the ParaDnn paper, section 4.4, and docs/how-to/input.md.

    On a CPU, `infeed_fraction` is the time that steps waited for input divided by the time of the
    blocks. On other devices the host runs ahead of the device, so its waiting time is not
    meaningful. There, the fraction is computed from `infeed_gain` g as 1 - 1 / (1 + g), at least 0.

    Args:
        measured: Waiting times, and times of the step alone and of the pipeline alone.
        blocks: Seconds of each timed block.
        batch_size: Examples per step.
        platform: Kind of device, such as "cpu".
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
