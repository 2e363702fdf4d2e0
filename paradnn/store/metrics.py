"""The registry of metrics: what every recorded number means. A kind of work declares its own where they are computed
(`paradnn.core.workload`); the others stand here, and no other is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paradnn.core.metric import Metric, interval_names, with_ends
from paradnn.core.workload import WORKLOADS

_COMMON = (
    *("schedule", "start", "build", "input", "compile", "warmup", "measure", "latency", "balance", "profile", "record"),
)


def _phases() -> tuple[str, ...]:
    """The common phases, with those of each kind of work behind the one that they follow."""
    found = list(_COMMON)
    for work in reversed(list(WORKLOADS.values())):
        for name, before in work.phases.items():
            if name not in found:
                found.insert(found.index(before) + 1 if before in found else len(found), name)
    return tuple(found)


#: What the stack does for one point, in order; each has a metric `phase_<name>_seconds`.
PHASES = _phases()


#: What no kind of work declares.
_ALL = (
    # Speed
    *with_ends("examples_per_second", "1/s", "higher", "speed", "batch_size / median step time"),
    *with_ends("step_time_ms", "ms", "lower", "speed", "median over a process' blocks, geometric mean over processes"),
    Metric("step_time_error", "1", "lower", "speed", "standard error of its logarithm, correlation allowed for"),
    Metric("step_time_min_ms", "ms", "lower", "speed", "fastest block"),
    Metric("step_time_max_ms", "ms", "lower", "speed", "slowest block"),
    Metric("step_time_cv", "1", "lower", "speed", "standard deviation / mean of the step times within a process"),
    Metric("process_cv", "1", "lower", "speed", "standard deviation of the processes' medians (logarithms)"),
    Metric("between_process_cv", "1", "lower", "speed", "what of process_cv the spread within does not explain"),
    *with_ends(
        "examples_per_second_at_reference",
        "1/s",
        "higher",
        "speed",
        "examples_per_second at the speed that the machine had for its ceilings (measure.reference)",
    ),
    *with_ends("step_time_at_reference_ms", "ms", "lower", "speed", "step_time_ms at that speed"),
    Metric("reference_speed", "1", "higher", "speed", "speed of reference_kernel beside the blocks / for the ceilings"),
    Metric(
        "reference_own", "1", None, "speed", "slowdown of the kernel by the point itself: beside its blocks / before"
    ),
    Metric("reference_slope", "1", None, "speed", "change of log step time with the kernel's, shrunk; 0: none is seen"),
    Metric("reference_correlation", "1", None, "speed", "of log step time and the kernel's, over the blocks"),
    *(
        Metric(f"{best}reference_{kernel}_ms", "ms", "lower", "speed", f"a call of the {kernel} kernel {where}")
        for kernel in ("arithmetic", "memory", "dispatch")
        for best, where in (("", "beside the blocks"), ("best_", "for the ceilings"))
    ),
    Metric("latency_p50_ms", "ms", "lower", "speed", "median of a synchronised step, or of a query (inference)"),
    Metric("latency_p90_ms", "ms", "lower", "speed", "90th percentile of the same"),
    Metric("latency_p99_ms", "ms", "lower", "speed", "99th percentile of the same"),
    *(end for share in (50, 90, 99) for end in with_ends(f"latency_p{share}_ms", "ms", "lower", "load", "")[1:]),
    # Work
    Metric("parameters", "1", None, "work", "trainable parameters"),
    Metric("flops_per_step", "FLOP", None, "work", "analytic matmul and convolution work of one step"),
    Metric("batch_size_per_device", "1", None, "work", "examples of a step on each device: batch_size / devices"),
    Metric("flops_per_second", "FLOP/s", "higher", "work", "flops_per_step / median step time"),
    Metric("bytes_per_step", "B", None, "work", "analytic compulsory memory traffic of one step"),
    Metric("arithmetic_intensity", "FLOP/B", None, "work", "flops_per_step / bytes_per_step"),
    # What it costs (docs/cost.md), in the currency of the prices, which are those of an hour
    Metric("cost_per_million_examples", "currency", "lower", "cost", "price / 3600 * 1e6 / examples_per_second"),
    Metric("cost_per_million_queries", "currency", "lower", "cost", "of queries: at the peak, or as scheduled"),
    Metric("cost_per_million_tokens", "currency", "lower", "cost", "the same of tokens_per_second"),
    Metric("cost_to_target", "currency", "lower", "cost", "price of an hour / 3600 * seconds_to_target"),
    Metric("cost_of_learning", "currency", "lower", "cost", "the same of learning_seconds, to the end of the training"),
    Metric("energy_per_example_joules", "J", "lower", "cost", "energy_per_step_joules / batch_size"),
    # Against the platform's limits
    Metric("flops_utilization", "1", "higher", "limits", "flops_per_second / measured matmul peak of this precision"),
    Metric("flops_utilization_spec", "1", "higher", "limits", "flops_per_second / the specification's peak"),
    Metric("peak_flops_per_second", "FLOP/s", None, "limits", "measured matmul peak used for flops_utilization"),
    *with_ends("peak_bytes_per_second", "B/s", None, "limits", "measured memory bandwidth used for the roofline"),
    Metric("spec_flops_per_second", "FLOP/s", None, "limits", "the specification's peak in this precision"),
    Metric("spec_bytes_per_second", "B/s", None, "limits", "the specification's memory bandwidth"),
    Metric("roofline_fraction", "1", "higher", "limits", "flops_per_second / min(peak, intensity x bandwidth)"),
    Metric("infeed_fraction", "1", "lower", "limits", "share of the step spent waiting for input"),
    # Real input (docs/input.md)
    *with_ends("infeed_gain", "1", "lower", "input", "fed step time / step time with input free of charge, less 1"),
    *with_ends(
        "input_free_examples_per_second", "1/s", "higher", "input", "the step on a batch that stays, pipeline idle"
    ),
    *with_ends("input_examples_per_second", "1/s", "higher", "input", "the pipeline alone, without the step"),
    *with_ends(
        "input_cpu_ms_per_example", "ms", "lower", "input", "processor time of the pipeline alone for an example"
    ),
    Metric("input_threads", "1", None, "input", "threads of the pipeline's pool"),
    # Two sides (docs/compare.md)
    *with_ends("speed_ratio", "1", None, "comparison", "examples/s of the first side / the second's, mean over rounds"),
    Metric("comparison_rounds", "1", None, "comparison", "rounds in which both sides were measured"),
    # An adaptive sweep (docs/adaptive.md), on its parent run
    Metric("design_candidates", "1", None, "design", "points that the sweep might have measured"),
    Metric("design_measured", "1", None, "design", "points measured, or tried, by all drivers and sessions"),
    Metric("design_expected_error", "1", "lower", "design", "median relative error expected of the others' step times"),
    # Memory and energy
    Metric("peak_memory_bytes", "B", "lower", "memory", "peak of the point's processes (docs/metrics.md)"),
    Metric("step_memory_bytes", "B", "lower", "memory", "peak growth of anonymous memory in the steps after compiling"),
    Metric("peak_device_memory_bytes", "B", "lower", "memory", "peak device memory, as the framework reports it"),
    Metric("memory_lower_bound_bytes", "B", None, "memory", "analytic lower bound of memory for one step"),
    Metric("energy_per_step_joules", "J", "lower", "memory", "energy of the package or board for one step"),
    # Measurement
    Metric("compile_seconds", "s", "lower", "protocol", "steps up to the last that compiled, less ordinary ones"),
    Metric("precision_share", "1", None, "protocol", "share of the program's product FLOPs in the type asked for"),
    Metric("compile_steps", "1", "lower", "protocol", "steps up to the last that compiled something, at least one"),
    Metric("compilations", "1", "lower", "protocol", "programs (PyTorch: frames) compiled by those steps"),
    Metric("processes", "1", None, "protocol", "short processes in which the point was measured"),
    Metric("blocks", "1", None, "protocol", "blocks measured, in all processes"),
    Metric("steps_per_block", "1", None, "protocol", "steps between two synchronisations"),
    Metric("warmup_blocks", "1", None, "protocol", "blocks run before the measured ones, calibration included"),
    Metric("repeated_seconds", "s", "lower", "protocol", "blocks that do not count, as they were measured again"),
    Metric("processor_time_ms", "ms", "lower", "protocol", "cores' time that the point itself took for a step"),
    Metric("final_loss", "1", None, "protocol", "loss after the last measured block (training only)"),
    Metric("load_average", "1", None, "protocol", "the host's one-minute load average when the point started"),
    Metric("foreign_cpu_fraction", "1", "lower", "protocol", "cores' time that others took during the blocks"),
    Metric("own_cpu_fraction", "1", None, "protocol", "cores' time that the point itself took during the blocks"),
    Metric("steal_fraction", "1", "lower", "protocol", "cores' time that the hypervisor took during the blocks"),
    Metric("throttled_fraction", "1", "lower", "protocol", "time in which a CPU quota stopped the measured blocks"),
    Metric("involuntary_switches_per_second", "1/s", "lower", "protocol", "times a thread of the point lost its core"),
    Metric("overhead_seconds", "s", "lower", "protocol", "schedule + start + record: what the stack itself cost"),
    Metric("queue_seconds", "s", "lower", "launch", "wait of the point's task: submission until its process began"),
    Metric("task_start_seconds", "s", "lower", "launch", "the task's process began until its first point could"),
    Metric("session_seconds", "s", None, "launch", "the session's first point could begin until this one was recorded"),
    Metric("latency_steps", "1", None, "protocol", "synchronised steps behind the latency quantiles"),
    Metric("profile_steps", "1", None, "profile", "steps under the profiler"),
    Metric("profile_step_time_ms", "ms", None, "profile", "step time under the profiler"),
    Metric("profile_slowdown", "1", None, "profile", "step time under the profiler / measured step time"),
    Metric("profile_flops_ratio", "1", None, "profile", "matmul and convolution FLOPs of the table / flops_per_step"),
    Metric("profile_precision_share", "1", None, "profile", "share of those FLOPs in operands of the type asked for"),
    Metric("profile_unexplained_share", "1", "lower", "profile", "share of the step in which no known operation ran"),
    # The published measurements alone (docs/published-data.md)
    Metric("published_flops_per_second", "FLOP/s", "higher", "published", "as printed; TPU v2: one core of eight"),
    Metric("published_intensity", "FLOP/B", None, "published", "as printed: FLOPs / bytes of parameters, no traffic"),
    Metric("trace_flops_utilization", "1", "higher", "published", "FLOP rate in the best trace / specified peak"),
    Metric("trace_captures", "1", None, "published", "how often the profiler captured the traced run"),
    Metric("trace_flops_utilization_median", "1", "higher", "published", "the same, median over the run's captures"),
    Metric("trace_flops_utilization_lowest", "1", "higher", "published", "the same, lowest of the run's captures"),
    Metric("trace_bandwidth_utilization", "1", "higher", "published", "traffic rate in a trace / specified peak"),
    Metric("trace_arithmetic_intensity", "FLOP/B", None, "published", "FLOPs / bytes moved, both counted by a trace"),
    Metric("trace_bytes", "B", None, "published", "memory traffic in the whole of a profiler trace"),
    *(Metric(f"phase_{name}_seconds", "s", "lower", "phases", f"wall time of the phase '{name}'") for name in PHASES),
)

METRICS: dict[str, Metric] = {
    entry.name: entry for entries in (_ALL, *(work.declares for work in WORKLOADS.values())) for entry in entries
}

#: Metrics whose names end in what they are of, such as `op_share.MatMul`.
FAMILIES: dict[str, Metric] = {
    entry.name.partition(".")[0] + ".": entry
    for entry in (
        Metric("input_stage_ms.<stage>", "ms", "lower", "input", "of a stage, for an example on one core"),
        Metric("op_share.<type>", "1", None, "profile", "share of the profiled step in one operation type"),
        Metric("category_share.<category>", "1", None, "profile", "share of the step in one category"),
        Metric("peak_flops_per_second.<precision>", "FLOP/s", None, "limits", "fastest product of a ceilings run"),
        Metric("peak_flops_per_second_low.<precision>", "FLOP/s", None, "limits", "lower end of its 95% interval"),
        Metric("peak_flops_per_second_high.<precision>", "FLOP/s", None, "limits", "upper end of its 95% interval"),
        Metric("peak_bytes_per_second.<array>", "B/s", None, "limits", "measured bandwidth over arrays of one size"),
    )
}


def metric(name: str) -> Metric:
    """The registry's entry for `name`; raises KeyError for a name that is not registered."""
    if name in METRICS:
        return METRICS[name]
    for prefix, entry in FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return entry
    raise KeyError(f"metric {name!r} is not declared; do so where it is computed, with its unit and formula")


def metric_names(kind: str) -> list[str]:
    """The registered names of one kind, in the registry's order."""
    return [entry.name for entry in METRICS.values() if entry.kind == kind]


_HOUR, _MILLION = 3600.0, 1e6


@dataclass(frozen=True)
class Cost:
    """A metric in the currency of the prices. It follows from the first of the metrics `of` that is known. rate: those
    are so many a second, and the cost is that of a million; else they are seconds. `low` and `high` are the metrics
    that bound it, the dearer one last. `learning`: also of a training that did not reach its target."""

    name: str
    of: tuple[str, ...]
    rate: bool
    low: str = ""
    high: str = ""
    learning: bool = False

    def value(self, price: Any, amount: Any) -> Any:
        """At `price` an hour: of numbers, or of columns of them."""
        return price / _HOUR * (_MILLION / amount if self.rate else amount)


def _rate(name: str, *of: str) -> Cost:
    low, high = interval_names(of[0])
    return Cost(name, of, rate=True, low=high, high=low)


COST_TO_TARGET = Cost("cost_to_target", ("seconds_to_target",), rate=False, learning=True)
COSTS = (
    _rate("cost_per_million_examples", "examples_per_second"),
    # The rate of a schedule is what is asked of the server and what it serves, as long as the run is ok.
    _rate("cost_per_million_queries", "peak_queries_per_second", "scheduled_queries_per_second", "queries_per_second"),
    _rate("cost_per_million_tokens", "tokens_per_second"),
    COST_TO_TARGET,
    Cost("cost_of_learning", ("learning_seconds",), rate=False, learning=True),
)


def costs(price: float, ok: bool, known: Callable[[str], float | None]) -> dict[str, float]:
    """The costs of one run at `price` an hour, of the metrics that `known` gives; of a run that is not `ok` those of
    its learning alone."""
    found = {}
    for cost in COSTS:
        amount = next((value for name in cost.of if (value := known(name))), None)
        if amount and (ok or cost.learning):
            found[cost.name] = cost.value(price, amount)
    return found
