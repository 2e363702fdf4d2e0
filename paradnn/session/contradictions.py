"""Checks that a result does not contradict itself.

A contradiction is a fault of this tool, and the run records it.
"""

import math
import statistics
from collections.abc import Mapping

from paradnn.config.point import Point
from paradnn.core.layers import Costs
from paradnn.core.messages import Answer
from paradnn.core.versions import FRAMEWORKS
from paradnn.platform.environment import separate_hosts
from paradnn.session.run_records import RunRecords

#: How far matmul and convolution FLOPs of a profile may be from the analytic count: a compiler
#: pads, and drops or adds the products at the ends of a recurrence (docs/reference/metrics.md).
FLOPS_MARGIN = 0.1
#: How far the median of a process' single steps may be from its step time: by a factor, and by the
#: seconds that waiting for the device takes, on a CPU and elsewhere, where blocks hide the
#: dispatch.
LATENCY_FACTOR = 2.0
CPU_WAIT = 0.5e-3
DEVICE_WAIT = 5e-3
#: Bytes that a small step may find in heap that was free before, so that its process does not grow.
FREE_HEAP = 4 * 2**20


def find_contradictions(
    point: Point, costs: Costs, metrics: Mapping[str, float], answer: Answer
) -> list[str]:
    """Return the contradictions in one process of a measured point, one line each."""
    measurement = answer.measurement
    if measurement is None:
        return ["the outcome is ok, but nothing was measured"]
    problems = [*point.workload.role(RunRecords).find_contradictions(costs, answer)]
    if measurement.parameters != costs.parameters:
        problems.append(
            f"the model has {measurement.parameters} parameters, "
            f"the analytic count is {costs.parameters}"
        )
    waited = metrics.get("infeed_fraction", 0.0)
    if not 0 <= waited <= 1:
        problems.append(f"the step waited for {waited:.3f} of its time")
    watched = (measurement.contention, answer.contention.get("latency"))
    if answer.latencies and not answer.input and not any(seen and seen.reason for seen in watched):
        # Single steps do the work of those in the blocks, unless input or others come between.
        step = statistics.median(measurement.timing.step_times)
        median = statistics.median(answer.latencies)
        wait = CPU_WAIT if point.platform.name == "cpu" else DEVICE_WAIT
        if not step / LATENCY_FACTOR <= median <= LATENCY_FACTOR * step + wait:
            single = f"the median of single steps is {median * 1e3:.4g} ms"
            problems.append(f"{single}, a step of the blocks takes {step * 1e3:.4g} ms")
    # How much of the analytic FLOPs a sound profile shows. No bound below where XLA may leave
    # products out: a weight's gradient of one example, padding of an image smaller than its kernel
    # (the last group of convolutional networks has a pixel for each 32 of the image, under kernels
    # of 3). None above for depthwise gradients, which its CPU compiler computes for all pairs of
    # channels, nor for FLOPs counted in the program, where a loop counts once.
    by_xla = point.compile == "xla" or (point.framework.name == "jax" and point.compile != "eager")
    small = point.model.convolves and getattr(point.model, "image_size", 0) <= 64
    # An engine computes whole registers of channels, and hides the operations within a loop.
    unbounded = point.model.is_counted or FRAMEWORKS[point.framework.name].is_engine
    missing = point.model.is_sparse or not point.workload.role(RunRecords).is_profile_complete
    missing = missing or unbounded or (by_xla and (small or point.batch_size == 1))
    dense = (
        by_xla
        and point.platform.name == "cpu"
        and point.workload.mode == "train"
        and point.model.is_depthwise
    )
    least = 0.0 if missing else 1 - FLOPS_MARGIN
    most = math.inf if dense or unbounded else 1 + FLOPS_MARGIN
    if not least <= (ratio := metrics.get("profile_flops_ratio", 1.0)) <= most:
        problems.append(f"the profile's FLOPs are {ratio:.3f} times the analytic ones")
    peak = metrics.get("step_memory_bytes", math.inf)
    whole = point.platform.name == "cpu" and not point.precision.startswith(
        "int8"
    )  # whose artifacts are smaller
    bound = costs.memory_lower_bound_bytes // separate_hosts(point)
    if whole and peak + FREE_HEAP < bound:
        problems.append(f"the step took {peak:.0f} bytes, less than the lower bound {bound}")
    return problems
