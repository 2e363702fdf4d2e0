"""Estimate the step time of a point at the machine's best speed, from reference kernels.

A point is one configuration to measure. A reference kernel is a short computation that runs between
the timed blocks of the point. Its time shows how fast the machine was. `paradnn.worker.series`
models the times of the kernels. A kernel's best time comes from an earlier measurement in the same
environment, so times of different devices are never compared.

A point itself may slow the kernel, through heat, clock rates or the memory that the point fills.
The kernel therefore also runs before the model is built. If it takes longer between the blocks, the
extra time is attributed to the point, and the step time is not corrected for it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paradnn.core.messages import Timing
from paradnn.core.metric import interval_metrics
from paradnn.session.measured import t_quantile
from paradnn.worker import series
from paradnn.worker.series import KERNELS, learn_slope, process_mean, slowness

#: A slowdown of the kernel by the point itself counts if it exceeds this number of its standard
#: errors. The number is negative, so the slowdown is ignored only if the kernel is clearly faster
#: next to the point. In simulated comparisons, a side that slowed its kernel by 2, 5 or 15% wrongly
#: won in under 5% of cases; with a threshold of 0.7, in 13, 3 and 1%.
_OWN_THRESHOLD = -0.25


def reference_metrics(
    timings: Sequence[Timing], peaks: Mapping[str, float], batch_size: int
) -> dict[str, float]:
    """Return metrics of the reference kernels, and of the step time at the machine's best speed.

    Reference kernels are short computations between the timed blocks of a point (configuration).
    Their times show how fast the machine was during the measurement.

    Args:
        timings: The timing of each process of the point.
        peaks: Metrics of the platform's peaks, including the best time of each kernel in ms
            (`best_reference_...`).
        batch_size: Examples per step.

    Returns:
        Metric name -> value; empty if no reference kernels were run.
    """
    kernel = series.chosen_kernel(timings)
    if kernel is None:
        return {}
    slow = {name: slowness(timings, name) for name in KERNELS}
    metrics = {
        f"reference_{name}_ms": 1e3 * math.exp(process_mean(logs)) for name, logs in slow.items()
    }
    metrics |= {name: value for name, value in peaks.items() if name.startswith("best_reference_")}
    logs_before = [
        statistics.fmean(
            math.log(entry.seconds[kernel]) for entry in timing.references if entry.blocks < 0
        )
        for timing in timings
    ]
    best_ms = metrics.get(f"best_reference_{kernel}_ms")
    best = math.log(best_ms / 1e3) if best_ms else None
    steps = series.step_logs(timings)
    return metrics | at_reference(steps, slow[kernel], logs_before, best, batch_size)


def at_reference(
    steps: np.ndarray,
    kernels: np.ndarray,
    before: Sequence[float],
    best: float | None,
    batch_size: int = 1,
) -> dict[str, float]:
    """Return metrics that relate step times to kernel times, and the step time at the best speed.

    The kernel is a short computation that runs between the timed blocks of steps. Its time shows
    how fast the machine was. One of the metrics is the slope: the change of the logarithm of
    the step time per change of the logarithm of the kernel time. The slope is used to adjust the
    measured step time to the best speed of the machine, at which the kernel reached its best time.

    Args:
        steps: (blocks, processes) logarithms of step times in seconds; NaN where a process has
            fewer blocks.
        kernels: (blocks, processes) logarithms of kernel times in seconds.
        before: (processes,) logarithms of the kernel's time in seconds before the model existed.
        best: Logarithm of the kernel's best known time in seconds. If it is None, the result has
            no metrics of the step at the best speed.
        batch_size: Examples per step.

    Returns:
        Metric name -> value.
    """
    slope = learn_slope(steps, kernels)
    own, own_error = _own_slowdown(np.nanmean(kernels, axis=0) - before)
    metrics = {
        "reference_slope": slope.shrunk,
        "reference_correlation": slope.correlation,
        "reference_own": own,
    }
    if math.isfinite(slope.error):
        metrics["reference_slope_seen"] = slope.seen
        metrics["reference_slope_error"] = slope.error
    if best is None:
        return metrics
    adjusted = _adjust(steps, kernels - best - own, slope, own_error)
    metrics["reference_slope"] = adjusted.slope
    metrics["reference_speed"] = math.exp(best - process_mean(kernels))
    metrics["step_time_at_reference_ms"] = 1e3 * math.exp(adjusted.log_time)
    metrics["examples_per_second_at_reference"] = batch_size / math.exp(adjusted.log_time)
    if adjusted.half_width is None:
        return metrics
    low = math.exp(adjusted.log_time - adjusted.half_width)
    high = math.exp(adjusted.log_time + adjusted.half_width)
    metrics |= interval_metrics("step_time_at_reference_ms", (1e3 * low, 1e3 * high))
    return metrics | interval_metrics(
        "examples_per_second_at_reference", (batch_size / high, batch_size / low)
    )


def _own_slowdown(growth: np.ndarray) -> tuple[float, float]:
    """Return by how much the point itself slows the reference kernel, and the uncertainty.

    The kernel is a short computation that shows how fast the machine is.

    Args:
        growth: (processes,) values of log(t1 / t0). The kernel took t1 between the timed blocks,
            and t0 before the model was built.

    Returns:
        The mean of `growth`, and the half-width of the 95% interval of the mean. For a single
        process, the half-width equals the mean. Both results are 0 if the mean is 0 or is not above
        a threshold. The threshold is 0 for a single process. For several processes, it is
        `_OWN_THRESHOLD` times the standard error of the mean.
    """
    count = len(growth)
    mean = float(growth.mean())
    if count > 1:
        error = float(growth.std(ddof=1)) / math.sqrt(count)
        threshold = _OWN_THRESHOLD * error
        half_width = t_quantile(count - 1) * error
    else:
        threshold = 0.0
        half_width = abs(float(growth[0]))
    if mean <= threshold or mean == 0.0:
        return 0.0, 0.0
    return mean, half_width


@dataclass(frozen=True)
class _Adjusted:
    """A step time that was adjusted to the reference speed: the kernel's best speed.

    Attributes:
        log_time: Logarithm of the adjusted time in seconds.
        half_width: Half-width of the 95% interval of `log_time`; None if there is no interval.
        slope: The slope that the adjustment used; 0 if the step time was not adjusted.
    """

    log_time: float
    half_width: float | None
    slope: float


def _adjust(
    steps: np.ndarray, excess: np.ndarray, slope: series.Slope, own_error: float
) -> _Adjusted:
    """Adjust step times to the reference speed, unless the adjustment would add uncertainty.

    The reference speed of a machine is that at which the reference kernel, a short computation,
    reaches its best time.

    The step time is not adjusted, and the slope is 0, if the expected loss of precision exceeds the
    expected gain. The loss is due to the uncertainty of the slope and to `own_error`. Choosing the
    narrower of the adjusted and the unadjusted interval would give intervals that contain the truth
    too rarely.

    Args:
        steps: (blocks, processes) logarithms of step times in seconds.
        excess: (blocks, processes) values of log(t / t0). t is the kernel time without the slowdown
            by the point itself, and t0 is the kernel time at the reference speed.
        slope: Slope of `steps` over `excess`.
        own_error: Half-width of the 95% interval of an offset that all values of `excess` share.
    """
    if steps.shape[1] == 1:
        adjusted, gain, loss = _adjust_one_process(steps, excess, slope, own_error)
    else:
        adjusted, gain, loss = _adjust_processes(steps, excess, slope, own_error)
    if loss > gain:
        return _adjust(steps, excess, slope._replace(shrunk=0.0), 0.0)
    return adjusted


def _slope_gap(slope: series.Slope) -> float:
    """Return how much shrinkage reduced the slope, at least 0; 0 if the shrunk slope is 0."""
    return max(0.0, slope.seen - slope.shrunk) if slope.shrunk else 0.0


def _adjust_one_process(
    steps: np.ndarray, excess: np.ndarray, slope: series.Slope, own_error: float
) -> tuple[_Adjusted, float, float]:
    """Adjust the step time of a point that was measured in one process.

    Args:
        steps: As in `_adjust`, of shape (blocks, 1).
        excess: As in `_adjust`, of shape (blocks, 1).
        slope: As in `_adjust`.
        own_error: As in `_adjust`.

    Returns:
        The adjusted step time, the expected gain of precision, and the expected loss of precision.
        Gain and loss are half-widths of the 95% interval of the logarithm of the step time.
    """
    values = np.exp(steps[:, 0] - slope.shrunk * excess[:, 0]).tolist()
    log_time = math.log(statistics.median(values))
    ends = series.block_interval(values)
    half_width = math.log(ends[1] / ends[0]) / 2 if ends else None
    if half_width is None or not slope.shrunk:
        return _Adjusted(log_time, half_width, slope.shrunk), 0.0, 0.0
    level = process_mean(excess)
    explained = min(0.99, slope.correlation**2)
    gain = half_width * math.sqrt(explained / (1 - explained))
    loss = math.hypot(2 * slope.error * level, _slope_gap(slope) * level, slope.shrunk * own_error)
    return _Adjusted(log_time, math.hypot(half_width, loss), slope.shrunk), gain, loss


def _adjust_processes(
    steps: np.ndarray, excess: np.ndarray, slope: series.Slope, own_error: float
) -> tuple[_Adjusted, float, float]:
    """Adjust the step time of a point that was measured in several processes.

    The arguments are those of `_adjust`. The interval is a jackknife interval (Miller, Biometrika
    61, 1974). It omits each process once and estimates the slope again, so the interval includes
    the uncertainty of the slope.

    Returns:
        The adjusted step time, and the expected gain and loss, as in `_adjust_one_process`.
    """
    count = steps.shape[1]
    student = t_quantile(count - 1)
    all_processes = np.arange(count)
    estimate = _estimate(steps, excess, all_processes, is_adjusted=bool(slope.shrunk))
    pseudo_values = [
        count * estimate
        - (count - 1)
        * _estimate(
            steps,
            excess,
            np.delete(all_processes, omitted),
            is_adjusted=bool(slope.shrunk),
        )
        for omitted in all_processes
    ]
    half_widths = student * np.std(pseudo_values, axis=0, ddof=1) / math.sqrt(count)
    half_width, slope_error = half_widths
    spread = np.nanmean(excess, axis=0).std(ddof=1) / math.sqrt(count)
    level = math.hypot(process_mean(excess), spread)
    bias = math.hypot(_slope_gap(slope) * level, slope.shrunk * own_error)
    gain = student * slope.shrunk * spread
    loss = math.hypot(slope_error * level, bias)
    adjusted = _Adjusted(float(estimate[0]), math.hypot(half_width, bias), slope.shrunk)
    return adjusted, gain, loss


def _estimate(
    steps: np.ndarray, excess: np.ndarray, processes: np.ndarray, *, is_adjusted: bool
) -> np.ndarray:
    """Return the adjusted log step time, averaged over the given processes, and its slope.

    The slope is the change of the log step time per change of the log kernel time.

    Args:
        steps: (blocks, processes) logarithms of step times in seconds.
        excess: (blocks, processes) logarithms of relative kernel times, as in `_adjust`.
        processes: Indices of the processes to use.
        is_adjusted: Whether to adjust the step time. If False, the slope is 0.

    Returns:
        The array [log step time, slope].
    """
    chosen_steps = steps[:, processes]
    chosen_excess = excess[:, processes]
    slope = learn_slope(chosen_steps, chosen_excess).shrunk if is_adjusted else 0.0
    medians = np.nanmedian(chosen_steps, axis=0)
    log_time = np.mean(medians - slope * np.nanmean(chosen_excess, axis=0))
    return np.array([log_time, slope])
