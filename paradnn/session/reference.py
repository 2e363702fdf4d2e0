"""The machine's own speed beside a point's blocks: how much of their scatter it explains, and the point without it. The
time of a fixed kernel is a control variate (Lavenberg and Welch, Management Science 27, 1981): log step time less slope
times the log of how slow the kernel was then. The slope is learnt from the point's own blocks, all processes together,
and shrunk towards zero by what it is not known by; where they do not move together it is zero, and the point stands as
it was measured. Times of different devices are never compared: the kernel's best is that of the ceilings, which belong
to one environment. A point may slow the kernel itself, by heat, clocks or a memory that it fills. That is no excuse:
what the kernel takes beside the blocks and did not take before the model was there is the point's own, and is not taken
off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from paradnn.core.messages import Timing
from paradnn.session.measured import interval_metrics, step_times, t_quantile
from paradnn.worker.series import FEWEST, block_interval

KERNELS = ("arithmetic", "memory", "dispatch")
_CAUTION = 2.0  # the slope is shrunk as if its standard error were so many times as large
#: A slowdown by the point itself counts where it is so many of its standard errors, that is, wherever the kernel is not
#: clearly faster beside the point; its error is then in the interval. Planted sides that slow their own kernel by 2, 5
#: and 15% win wrongly in under 5% of comparisons (0.7: in 13, 3 and 1%).
_OWN = -0.25


def reference_metrics(timings: Sequence[Timing], peaks: Mapping[str, float], batch_size: int) -> dict[str, float]:
    """What is known of the machine's speed; nothing of points without references. `peaks` hold the kernels' best."""
    kernel = chosen_kernel(timings)
    if kernel is None:
        return {}
    slow = {name: _slowness(timings, name) for name in KERNELS}
    metrics = {f"reference_{name}_ms": 1e3 * math.exp(_mean(each)) for name, each in slow.items()}
    metrics |= {name: value for name, value in peaks.items() if name.startswith("best_reference_")}
    before = [
        statistics.fmean(math.log(entry.seconds[kernel]) for entry in timing.references if entry.blocks < 0)
        for timing in timings
    ]
    best = metrics.get(f"best_reference_{kernel}_ms")
    known = math.log(best / 1e3) if best else None
    return metrics | at_reference(_step_logs(timings), slow[kernel], before, known, batch_size)


def adjusted_times(timings: Sequence[Timing]) -> list[list[float]]:
    """Seconds of a step in each block of each process, at the mean speed of the machine over all of them; as they were
    measured where no reference moves with them."""
    kernel = chosen_kernel(timings)
    if kernel is None:
        return [step_times(timing) for timing in timings]
    steps, kernels = _step_logs(timings), _slowness(timings, kernel)
    times = np.exp(steps - _slope(steps, kernels)[0] * (kernels - _mean(kernels)))
    return [process[np.isfinite(process)].tolist() for process in times.T]


def chosen_kernel(timings: Sequence[Timing]) -> str | None:
    """The kernel whose times move most with the step's, of all blocks; None where there are too few references."""
    if not timings or not all(sum(entry.blocks >= 0 for entry in timing.references) > 1 for timing in timings):
        return None
    steps = _step_logs(timings)
    return max(KERNELS, key=lambda name: _slope(steps, _slowness(timings, name))[2])


def at_reference(
    steps: np.ndarray, kernels: np.ndarray, before: Sequence[float], best: float | None, batch_size: int = 1
) -> dict[str, float]:
    """What log kernel times explain of log step times (blocks x processes, NaN where a process has fewer), as metrics.
    `before`: the kernel's log time before the model was there, in each process; `best`: for the ceilings. Without it
    nothing is said of the point at that speed."""
    slope, off, correlation, seen, error = _slope(steps, kernels)
    grown, count = np.nanmean(kernels, axis=0) - before, len(before)
    unsure = float(grown.std(ddof=1)) / math.sqrt(count) if count > 1 else abs(float(grown[0]))
    own = float(grown.mean()) if grown.mean() > (_OWN * unsure if count > 1 else 0.0) else 0.0
    found = {"reference_slope": slope, "reference_correlation": correlation, "reference_own": own}
    if math.isfinite(error):
        found |= {"reference_slope_seen": seen, "reference_slope_error": error}
    if best is None:
        return found
    level, adjusted = _mean(kernels) - best, steps - slope * (kernels - best - own)
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


class Slope(NamedTuple):
    """What is made of a slope: shrunk, how far that may be off, the correlation; and as it was seen, freed of the
    kernel's own noise, with its standard error, which is NaN where nothing was seen."""

    shrunk: float
    off: float
    correlation: float
    seen: float
    error: float


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


def _slope(steps: np.ndarray, kernels: np.ndarray) -> Slope:
    """Slope of log step times on log kernel times, shrunk and from 0 to 1.
    Its variance is (1 + r s) / (1 - r s) times as large where neighbours resemble each other (Bartlett 1935). The noise
    of the kernel's own times makes it too small: by how much says the one between a block and the kernel two blocks
    off."""
    y, x = steps - np.nanmean(steps), kernels - np.nanmean(kernels)
    power, both, whole = _apart(x, x), _apart(x, y), _apart(y, y)
    count = int(np.isfinite(y).sum())
    if count < FEWEST or power <= 0 or whole <= 0:
        return Slope(0.0, 0.0, 0.0, 0.0, math.nan)
    slope = both / power
    rest = y - slope * x
    unexplained = _apart(rest, rest)
    resemble = _apart(x, x, 1) * _apart(rest, rest, 1) / (power * unexplained) if unexplained else 0.0
    resemble = min(0.95, max(0.0, resemble))
    variance = unexplained / (count - 2) / power * (1 + resemble) / (1 - resemble)
    kept = max(0.0, 1 - _CAUTION**2 * variance / slope**2) if slope > 0 else 0.0
    shrunk, shared = min(1.0, slope * kept), _apart(x, x, 2)
    without_noise = min(1.2, _apart(x, y, 2) / shared) if shared > 0 else slope
    off = _CAUTION * math.sqrt(variance) + max(0.0, without_noise - shrunk)
    return Slope(shrunk, off, both / math.sqrt(power * whole), without_noise, math.sqrt(variance))


def _apart(one: np.ndarray, other: np.ndarray, lag: int = 0) -> float:
    """The mean product of values so many blocks apart."""
    end = max(0, len(one) - lag)
    products = one[lag:] * other[:end] + one[:end] * other[lag:]
    seen = products[np.isfinite(products)]
    return float(seen.mean()) / 2 if seen.size else 0.0


def _mean(each: np.ndarray) -> float:
    """The mean over processes of their means."""
    return float(np.nanmean(each, axis=0).mean())


def _columns(each: Iterable[Iterable[float]]) -> np.ndarray:
    return np.array(list(zip_longest(*each, fillvalue=math.nan)))


def _step_logs(timings: Sequence[Timing]) -> np.ndarray:
    return _columns(np.log(step_times(timing)) for timing in timings)


def _slowness(timings: Sequence[Timing], kernel: str) -> np.ndarray:
    """Log seconds of a call of the kernel at the middle of each block, on the line between those around it."""
    found = []
    for timing in timings:
        taken = [entry for entry in timing.references if entry.blocks >= 0]
        times = [math.log(entry.seconds[kernel]) for entry in taken]
        found.append(np.interp(np.arange(len(timing.blocks)) + 0.5, [entry.blocks for entry in taken], times))
    return _columns(found)
