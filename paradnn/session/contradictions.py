"""Checks that a result does not contradict itself.

A contradiction is a fault of this tool, and the run records it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from paradnn.config.point import Point
from paradnn.core.layers import Costs
from paradnn.core.messages import Answer, Measurement
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
    wait_share = metrics.get("infeed_fraction", 0.0)
    if not 0 <= wait_share <= 1:
        problems.append(f"the step waited for {wait_share:.3f} of its time")
    latencies = _comparable_latencies(measurement, answer)
    if latencies:
        step = statistics.median(measurement.timing.step_times)
        single_step = statistics.median(latencies)
        device_wait = CPU_WAIT if point.platform.name == "cpu" else DEVICE_WAIT
        if not step / LATENCY_FACTOR <= single_step <= LATENCY_FACTOR * step + device_wait:
            problems.append(
                f"the median of single steps is {single_step * 1e3:.4g} ms, "
                f"a step of the blocks takes {step * 1e3:.4g} ms"
            )
    flops_ratio = metrics.get("profile_flops_ratio", 1.0)
    low, high = _flops_ratio_range(point)
    if not low <= flops_ratio <= high:
        problems.append(f"the profile's FLOPs are {flops_ratio:.3f} times the analytic ones")
    # Artifacts in 8 bits are smaller than the bound.
    is_bounded = point.platform.name == "cpu" and not point.precision.startswith("int8")
    peak = metrics.get("step_memory_bytes", math.inf)
    bound = costs.memory_lower_bound_bytes // separate_hosts(point)
    if is_bounded and peak + FREE_HEAP < bound:
        problems.append(f"the step took {peak:.0f} bytes, less than the lower bound {bound}")
    return problems


def _comparable_latencies(measurement: Measurement, answer: Answer) -> Sequence[float]:
    """Return the times of single steps if these should equal the steps of the blocks; else nothing.

    An input pipeline adds to a single step, and so does contention in either phase.
    """
    if answer.input:
        return ()
    contentions = (measurement.contention, answer.contention.get("latency"))
    if any(contention and contention.reason for contention in contentions):
        return ()
    return answer.latencies or ()


def _flops_ratio_range(point: Point) -> tuple[float, float]:
    """Return the range of profiled over analytic FLOPs in which a profile is sound."""
    family = point.model
    is_xla = point.compile == "xla" or (point.framework.name == "jax" and point.compile != "eager")
    # A program is counted with each loop once. An engine computes whole registers of channels, and
    # hides the operations within a loop.
    is_unbounded = family.is_counted or FRAMEWORKS[point.framework.name].is_engine
    # XLA may leave products out: the gradient of a weight for one example, and the padding of an
    # image smaller than its kernel. The last group of convolutional networks has a pixel for each
    # 32 of the image, under kernels of 3.
    is_small_image = family.convolves and getattr(family, "image_size", 0) <= 64
    may_be_lower = (
        is_unbounded
        or family.is_sparse
        or not point.workload.role(RunRecords).is_profile_complete
        or (is_xla and (is_small_image or point.batch_size == 1))
    )
    # XLA's CPU compiler computes depthwise gradients for all pairs of channels.
    may_be_higher = is_unbounded or (
        is_xla
        and point.platform.name == "cpu"
        and point.workload.mode == "train"
        and family.is_depthwise
    )
    low = 0.0 if may_be_lower else 1 - FLOPS_MARGIN
    high = math.inf if may_be_higher else 1 + FLOPS_MARGIN
    return low, high
