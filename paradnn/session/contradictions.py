"""Checks that the values of one measurement do not contradict each other.

A contradiction is a bug in ParaDnn. The tag `checks` of the run reports it.
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

#: Tolerated relative difference between the matmul and convolution FLOPs of a profile and the
#: analytic count. A compiler pads operands, and drops or adds products at the ends of a recurrence
#: (docs/reference/metrics.md).
FLOPS_MARGIN = 0.1
#: Tolerated ratio between the median of a process's single steps and its step time in blocks.
LATENCY_FACTOR = 2.0
#: Additional seconds that a single step may take to wait for the device. Steps of a block need not
#: wait.
CPU_WAIT = 0.5e-3
DEVICE_WAIT = 5e-3
#: Bytes of free heap that a small step may reuse, so that the memory of its process does not grow.
FREE_HEAP = 4 * 2**20


def find_contradictions(
    point: Point, costs: Costs, metrics: Mapping[str, float], answer: Answer
) -> list[str]:
    """Return contradictions between the values that one process of a point measured.

    Args:
        point: The measured configuration.
        costs: Analytic or counted FLOPs, bytes and parameters of a step.
        metrics: Metrics of the point's run.
        answer: Message of the process with its outcome and all of its measurements.

    Returns:
        One line of text per contradiction.
    """
    measurement = answer.measurement
    if measurement is None:
        return ["the outcome is ok, but nothing was measured"]
    problems = [*point.workload.role(RunRecords).find_contradictions(costs, answer)]
    if measurement.parameters != costs.parameters:
        problems.append(
            f"the model has {measurement.parameters} parameters, "
            f"but the analytic count is {costs.parameters}"
        )
    wait_share = metrics.get("infeed_fraction", 0.0)
    if not 0 <= wait_share <= 1:
        problems.append(f"infeed_fraction is {wait_share:.3f}, outside 0..1")
    latencies = _comparable_latencies(measurement, answer)
    if latencies:
        step = statistics.median(measurement.timing.step_times)
        single_step = statistics.median(latencies)
        device_wait = CPU_WAIT if point.platform.name == "cpu" else DEVICE_WAIT
        if not step / LATENCY_FACTOR <= single_step <= LATENCY_FACTOR * step + device_wait:
            problems.append(
                f"the median of single steps is {single_step * 1e3:.4g} ms, "
                f"but a step of the blocks takes {step * 1e3:.4g} ms"
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
    """Return the times of single steps in seconds, to compare with step times from blocks.

    A block is a number of steps that are timed together. Empty if an input pipeline or contention
    makes single steps slower, so that they are not comparable.
    """
    if answer.input:
        return ()
    contentions = (measurement.contention, answer.contention.get("latency"))
    if any(contention and contention.reason for contention in contentions):
        return ()
    return answer.latencies or ()


def _flops_ratio_range(point: Point) -> tuple[float, float]:
    """Return the valid range of the ratio of profiled to analytic FLOPs."""
    family = point.model
    is_xla = point.compile == "xla" or (point.framework.name == "jax" and point.compile != "eager")
    # Counted costs contain the body of each loop once. An engine pads channels to whole registers,
    # and its profile lacks the operations within loops.
    is_unbounded = family.is_counted or FRAMEWORKS[point.framework.name].is_engine
    # XLA may omit products: those of a weight gradient for a single example, and those of the
    # padding if an image is hardly larger than the kernel. Convolutional networks end with 3 x 3
    # kernels on an image that is downsampled by 32, such as 64 x 64 to 2 x 2 pixels.
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
