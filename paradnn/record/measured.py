"""Metrics of a point from what its workers answered: speed, latency, memory, energy, shares of what is possible."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.families.layers import Costs
from paradnn.platform.environment import Environment
from paradnn.record.input_pipeline import balance_metrics
from paradnn.record.profile_summary import profile_metrics
from paradnn.record.statistics import Summarised, quantile, quantile_metrics, summarise
from paradnn.store.metrics import PHASES
from paradnn.worker.messages import Answer, Contention, InputMeasurement, Measurement, Profile, Timing

__all__ = [
    "Measured",
    "compiling_metrics",
    "cost_metrics",
    "counted_costs",
    "given",
    "measured_metrics",
    "measurements",
    "memory_metrics",
    "phase_metrics",
    "step_times",
    "summarised",
]


@dataclass(frozen=True)
class Measured:
    """A point as it was measured, from which its record follows.

    `results`: how each of its processes ended, one or more, of which the last may have failed. `tags` are those its
    run was begun with, `peaks` what the devices can do at most (`paradnn.session.hardware_peaks`), `load` is the host's
    load average at its start, times are Unix milliseconds.
    """

    point: Point
    environment: Environment
    costs: Costs
    results: Sequence[PointResult]
    tags: Mapping[str, str]
    peaks: Mapping[str, float]
    load: float | None
    start_time: int
    end_time: int

    @property
    def answers(self) -> list[Answer]:
        """What the processes answered that lived to do so."""
        return [result.answer for result in self.results if result.answer]

    def ending(self) -> tuple[str, str | None]:
        """Outcome and reason: `ok` where all processes are."""
        for number, result in enumerate(self.results, 1):
            if result.outcome != "ok":
                where = f"process {number}: " if number > 1 else ""
                return result.outcome, f"{where}{result.reason}"
        return "ok", self.results[-1].reason


def counted_costs(results: Sequence[PointResult]) -> Costs | None:
    """The costs that the first process counted; None where arithmetic gives them."""
    return next((found.counted for answer in results if answer.answer and (found := answer.answer.measurement)), None)


def step_times(timing: Timing) -> list[float]:
    """Seconds of a step in each measured block."""
    return [seconds / timing.steps_per_block for seconds in timing.blocks]


def measured_metrics(measured_point: Measured) -> dict[str, float]:
    """Metrics of the timed steps; input and profile are those of the first process."""
    point, costs, answers = measured_point.point, measured_point.costs, measured_point.answers
    measured, first = measurements(answers), answers[0]
    metrics = _speed(point, costs, [measurement.timing for measurement in measured])
    metrics |= _latency([answer.latencies for answer in answers if answer.latencies])
    metrics |= _compiling(answers)
    if measured[0].product_types:
        metrics["precision_share"] = measured[0].product_types.get(point.precision, 0.0)
    metrics |= _contention([entry.contention for entry in measured if entry.contention]) | _processor_time(measured)
    metrics |= _energy(point, measured)
    if costs.flops_per_step:
        metrics |= _utilisation(metrics["flops_per_second"], costs, measured_point.peaks)
    if first.input:
        metrics |= balance_metrics(first.input, measured[0].timing.blocks, point.batch_size, point.platform.name)
    if isinstance(first.profile, Profile):
        # Of devices in several processes the profile sees those of the first.
        seen = first.profile.devices / point.devices
        metrics |= profile_metrics(first.profile, costs.flops_per_step * seen, point.precision)
    return metrics


def measurements(answers: Sequence[Answer]) -> list[Measurement]:
    """What the timed steps of each process gave."""
    return [answer.measurement for answer in answers if answer.measurement]


def cost_metrics(costs: Costs) -> dict[str, float]:
    """The analytic counts; what computes nothing is left out of all that compares FLOPs."""
    counts: dict[str, float] = {
        "parameters": costs.parameters,
        "memory_lower_bound_bytes": costs.memory_lower_bound_bytes,
    }
    if not costs.flops_per_step:
        return counts
    return counts | {
        "flops_per_step": costs.flops_per_step,
        "bytes_per_step": costs.bytes_per_step,
        "arithmetic_intensity": costs.flops_per_step / costs.bytes_per_step,
    }


def phase_metrics(results: Sequence[PointResult]) -> dict[str, float]:
    """What each phase took in all processes together."""
    known = {name: [result.phases[name] for result in results if name in result.phases] for name in PHASES}
    return {f"phase_{name}_seconds": sum(seconds) for name, seconds in known.items() if seconds}


def memory_metrics(results: Sequence[PointResult]) -> dict[str, float]:
    """The most that any process took."""
    each = [_process_memory(result) for result in results]
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: max(metrics[name] for metrics in each if name in metrics) for name in names}


def _process_memory(result: PointResult) -> dict[str, float]:
    """Peaks: the child's own, taken before the profiler; of a child that did not live to report it, what was seen."""
    own = result.answer.peak_memory_bytes if result.answer else None
    peak = own if result.outcome == "ok" and own else max(own or 0, result.peak_memory_bytes or 0) or None
    metrics = given("peak_memory_bytes", peak)
    if result.answer is None:
        return metrics
    metrics |= given("step_memory_bytes", result.answer.step_memory_bytes)
    return metrics | given("peak_device_memory_bytes", result.answer.peak_device_memory_bytes)


def summarised(point: Point, timings: Sequence[Timing]) -> Summarised:
    """The step times of a point's processes."""
    looked = point.measure.relative_interval is not None and point.measure.processes > 1
    return summarise([step_times(timing) for timing in timings], looked)


def _speed(point: Point, costs: Costs, timings: Sequence[Timing]) -> dict[str, float]:
    """Step times from block times, and what follows from them."""
    times = summarised(point, timings)
    metrics: dict[str, float] = {
        "step_time_ms": times.value * 1e3,
        "step_time_min_ms": times.minimum * 1e3,
        "step_time_max_ms": times.maximum * 1e3,
        "examples_per_second": point.batch_size / times.value,
        **given("flops_per_second", costs.flops_per_step / times.value or None),
        "processes": len(timings),
        "blocks": sum(len(timing.blocks) for timing in timings),
        "steps_per_block": statistics.median_high(timing.steps_per_block for timing in timings),
        "warmup_blocks": sum(len(timing.calibration) - 1 + len(timing.warmup) for timing in timings),
        "repeated_seconds": sum(timing.repeated for timing in timings),
    }
    if times.low is not None and times.high is not None:
        metrics |= {
            "step_time_low_ms": times.low * 1e3,
            "step_time_high_ms": times.high * 1e3,
            "examples_per_second_low": point.batch_size / times.high,
            "examples_per_second_high": point.batch_size / times.low,
        }
    metrics |= given("step_time_cv", times.cv) | given("final_loss", timings[0].final_loss)
    metrics |= given("step_time_error", times.error)
    return metrics | given("process_cv", times.process_cv) | given("between_process_cv", times.between_cv)


def _latency(each: Sequence[Sequence[float]]) -> dict[str, float]:
    """Quantiles of single synchronised steps with their intervals; p99 only of a hundred or more in each process."""
    metrics: dict[str, float] = {}
    for share in (50, 90, 99):
        if each and min(map(len, each)) >= (100 if share == 99 else 10):
            metrics |= quantile_metrics(f"latency_p{share}", share / 100, each, quantile, 1e3)
    return metrics | ({"latency_steps": float(sum(map(len, each)))} if each else {})


def _compiling(answers: Sequence[Answer]) -> dict[str, float]:
    """What compiling took: the median process'."""
    each = [compiling_metrics(entry.measurement, entry.input) for entry in answers if entry.measurement]
    return {name: statistics.median(metrics[name] for metrics in each) for name in each[0]}


def compiling_metrics(measurement: Measurement, fed: InputMeasurement | None) -> dict[str, float]:
    """What compiling took: all steps up to the last that compiled, less as many ordinary ones; at least the first.

    They run on a batch that stays, so an ordinary step is one that does not wait for input.
    """
    compilation = measurement.compilation
    ordinary = statistics.median(fed.free_step_seconds if fed else step_times(measurement.timing))
    steps = max((index for index, count in enumerate(compilation.programs, 1) if count), default=1)
    return {
        "compile_seconds": max(0.0, sum(compilation.seconds[:steps]) - steps * ordinary),
        "compile_steps": float(steps),
        "compilations": float(sum(compilation.programs)),
    }


def _contention(each: Sequence[Contention]) -> dict[str, float]:
    """The mean over processes of what is known, under the fields' own names."""
    names = [field.name for field in fields(Contention) if field.name not in ("cores", "reason", "stops")]
    known = {name: [value for entry in each if (value := getattr(entry, name)) is not None] for name in names}
    return {name: statistics.fmean(values) for name, values in known.items() if values}


def _processor_time(measured: Sequence[Measurement]) -> dict[str, float]:
    """What the point's own processes took of the cores for a step: beside the step time it shows who only waited."""
    each = [
        seen.own_cpu_fraction * seen.cores * statistics.fmean(step_times(entry.timing)) * 1e3
        for entry in measured
        if (seen := entry.contention) and seen.own_cpu_fraction is not None
    ]
    return {"processor_time_ms": statistics.geometric_mean(each)} if each and min(each) > 0 else {}


def _energy(point: Point, measured: Sequence[Measurement]) -> dict[str, float]:
    joules = [entry.energy_joules for entry in measured if entry.energy_joules is not None]
    if len(joules) < len(measured):
        return {}
    timings = [entry.timing for entry in measured]
    step = sum(joules) / sum(len(timing.blocks) * timing.steps_per_block for timing in timings)
    return {"energy_per_step_joules": step, "energy_per_example_joules": step / point.batch_size}


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


def given(name: str, value: float | None) -> dict[str, float]:
    """One metric, where its value is known."""
    return {} if value is None else {name: value}
