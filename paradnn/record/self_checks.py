"""Every result is checked against itself; a contradiction is a fault of this tool, and the run says so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from paradnn.config.point import Point
from paradnn.families.layers import Costs
from paradnn.record.input_pipeline import balance_checks
from paradnn.worker.messages import Answer

__all__ = ["contradictions"]

#: How far matmul and convolution FLOPs of a profile may be from the analytic count: a compiler pads, and drops or adds
#: the products at the ends of a recurrence (docs/metrics.md).
FLOPS_MARGIN = 0.1
#: How far the median of a process' single steps may be from its step time: by a factor, and by the seconds that waiting
#: for the device takes, on a CPU and elsewhere, where blocks hide the dispatch.
LATENCY_FACTOR, CPU_WAIT, DEVICE_WAIT = 2.0, 0.5e-3, 5e-3
#: Bytes that a small step may find in heap that was free before, so that its process does not grow.
FREE_HEAP = 4 * 2**20


def contradictions(point: Point, costs: Costs, metrics: Mapping[str, float], answer: Answer) -> list[str]:
    """What contradicts itself in one process of a measured point, a line each; nothing where all agrees."""
    measurement = answer.measurement
    if measurement is None:
        return ["the outcome is ok, but nothing was measured"]
    problems = []
    built = measurement.parameters
    if built != costs.parameters:
        problems.append(f"the model has {built} parameters, the analytic count is {costs.parameters}")
    rate = point.batch_size / (metrics["step_time_ms"] / 1e3)
    if not math.isclose(rate, metrics["examples_per_second"], rel_tol=1e-9):
        problems.append("examples_per_second is not batch_size / step time")
    problems += point.workload.contradictions(costs, answer)
    problems += balance_checks(metrics, answer.input, measurement.timing.blocks) if answer.input else []
    problems += _latency_checks(point, answer)
    shares = sum(value for key, value in metrics.items() if key.startswith("category_share."))
    if shares and not math.isclose(shares + metrics["profile_unexplained_share"], 1.0, abs_tol=1e-3):
        problems.append(f"the shares of the profile sum to {shares + metrics['profile_unexplained_share']:.4f}")
    ratio = metrics.get("profile_flops_ratio")
    if ratio is not None:
        least, most = _sound_ratios(point)
        if not least <= ratio <= most:
            problems.append(f"the profile's FLOPs are {ratio:.3f} times the analytic ones")
    peak = metrics.get("step_memory_bytes")
    if point.platform.name == "cpu" and peak is not None and peak + FREE_HEAP < costs.memory_lower_bound_bytes:
        problems.append(f"the step took {peak:.0f} bytes, less than the lower bound {costs.memory_lower_bound_bytes}")
    return problems


def _latency_checks(point: Point, answer: Answer) -> list[str]:
    """Single steps do the work of those in the blocks, unless input, cold caches or others come between."""
    if not answer.latencies or not answer.measurement or answer.input or point.measure.cold_caches:
        return []
    if any(seen and seen.reason for seen in (answer.measurement.contention, answer.contention.get("latency"))):
        return []
    timing = answer.measurement.timing
    step, median = statistics.median(timing.blocks) / timing.steps_per_block, statistics.median(answer.latencies)
    wait = CPU_WAIT if point.platform.name == "cpu" else DEVICE_WAIT
    if step / LATENCY_FACTOR <= median <= LATENCY_FACTOR * step + wait:
        return []
    return [f"the median of single steps is {median * 1e3:.4g} ms, a step of the blocks takes {step * 1e3:.4g} ms"]


def _sound_ratios(point: Point) -> tuple[float, float]:
    """How much of the analytic FLOPs a sound profile shows at least and at most.

    No bound below where products may be missing: XLA multiplies elementwise what is a product over nothing, a weight's
    gradient of one example, and multiplies no padding where an image is smaller than its kernel.
    None above for depthwise convolutions' gradients, which XLA's CPU compiler computes for all pairs of channels.
    """
    by_xla = point.compile == "xla" or (point.framework.name == "jax" and point.compile != "eager")
    # The last group of convolutional networks has a pixel for each 32 of the image, under kernels of 3. What XLA leaves
    # out of a convolution's gradient is a larger share without other layers.
    small = point.model.convolves and getattr(point.model, "image_size", 0) <= 64
    missing = point.model.is_sparse or not point.workload.profiled_whole
    missing = missing or (by_xla and (small or point.batch_size == 1))
    dense = by_xla and point.platform.name == "cpu" and point.workload.mode == "train" and point.model.is_depthwise
    if point.model.is_counted:  # in the program, where a loop counts once
        return 0.0, math.inf
    return 0.0 if missing else 1 - FLOPS_MARGIN, math.inf if dense else 1 + FLOPS_MARGIN
