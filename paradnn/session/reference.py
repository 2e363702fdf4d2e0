"""The machine's own speed beside a point's blocks: the point without it (`paradnn.worker.series`). Times of
different devices are never compared: the kernel's best is that of the ceilings, which belong to one environment. A
point may slow the kernel itself, by heat, clocks or a memory that it fills. That is no excuse: what the kernel takes
beside the blocks and did not take before the model was there is the point's own, and is not taken off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from paradnn.core.messages import Timing
from paradnn.session.measured import interval_metrics, t_quantile
from paradnn.worker.series import KERNELS, block_interval, chosen_kernel, learn_slope, process_mean, slowness, step_logs

#: A slowdown by the point itself counts where it is so many of its standard errors, that is, wherever the kernel is not
#: clearly faster beside the point; its error is then in the interval. Planted sides that slow their own kernel by 2, 5
#: and 15% win wrongly in under 5% of comparisons (0.7: in 13, 3 and 1%).
_OWN = -0.25


def reference_metrics(timings: Sequence[Timing], peaks: Mapping[str, float], batch_size: int) -> dict[str, float]:
    """What is known of the machine's speed; nothing of points without references. `peaks` hold the kernels' best."""
    kernel = chosen_kernel(timings)
    if kernel is None:
        return {}
    slow = {name: slowness(timings, name) for name in KERNELS}
    metrics = {f"reference_{name}_ms": 1e3 * math.exp(process_mean(each)) for name, each in slow.items()}
    metrics |= {name: value for name, value in peaks.items() if name.startswith("best_reference_")}
    before = [
        statistics.fmean(math.log(entry.seconds[kernel]) for entry in timing.references if entry.blocks < 0)
        for timing in timings
    ]
    best = metrics.get(f"best_reference_{kernel}_ms")
    known = math.log(best / 1e3) if best else None
    return metrics | at_reference(step_logs(timings), slow[kernel], before, known, batch_size)


def at_reference(
    steps: np.ndarray, kernels: np.ndarray, before: Sequence[float], best: float | None, batch_size: int = 1
) -> dict[str, float]:
    """What log kernel times explain of log step times (blocks x processes, NaN where a process has fewer), as metrics.
    `before`: the kernel's log time before the model was there, in each process; `best`: for the ceilings. Without it
    nothing is said of the point at that speed."""
    slope, off, correlation, seen, error = learn_slope(steps, kernels)
    grown, count = np.nanmean(kernels, axis=0) - before, len(before)
    unsure = float(grown.std(ddof=1)) / math.sqrt(count) if count > 1 else abs(float(grown[0]))
    own = float(grown.mean()) if grown.mean() > (_OWN * unsure if count > 1 else 0.0) else 0.0
    found = {"reference_slope": slope, "reference_correlation": correlation, "reference_own": own}
    if math.isfinite(error):
        found |= {"reference_slope_seen": seen, "reference_slope_error": error}
    if best is None:
        return found
    level, adjusted = process_mean(kernels) - best, steps - slope * (kernels - best - own)
    value = float(np.nanmedian(adjusted, axis=0).mean())
    found |= {"reference_speed": math.exp(-level), "step_time_at_reference_ms": 1e3 * math.exp(value)}
    found["examples_per_second_at_reference"] = batch_size / math.exp(value)
    if (half := _half_width(adjusted, bool(slope))) is None:
        return found
    student = t_quantile(count - 1) if count > 1 else 1.0  # what neither the slope nor the point's own part is known by
    half = math.hypot(half, off * (level - own) if slope else 0.0, slope * student * unsure if own else 0.0)
    low, high = math.exp(value - half), math.exp(value + half)
    found |= interval_metrics("step_time_at_reference_ms", 1e3 * low, 1e3 * high)
    return found | interval_metrics("examples_per_second_at_reference", batch_size / high, batch_size / low)


def _half_width(adjusted: np.ndarray, explained: bool) -> float | None:
    """Half the 95% interval of the logarithm; where the slope was learnt from it too it is worth less."""
    count, used = adjusted.shape[1], 2 if explained else 1
    if count == 1:
        ends = block_interval(np.exp(adjusted[:, 0]).tolist())
        return math.log(ends[1] / ends[0]) / 2 if ends else None
    if count <= used:
        return None
    error = float(np.nanmedian(adjusted, axis=0).std(ddof=1)) / math.sqrt(count)
    return t_quantile(count - used) * error * math.sqrt((count - 1) / (count - used))
