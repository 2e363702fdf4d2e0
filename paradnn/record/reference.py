"""The machine's own speed beside a point's blocks: how much of their scatter it explains, and the point without it.

The time of a fixed kernel is a control variate (Lavenberg and Welch, Management Science 27, 1981): log step time less
slope times the log of how slow the kernel was then. The slope is learnt from the point's own blocks, all processes
together, and shrunk towards zero by what it is not known by; where they do not move together it is zero, and the point
stands as it was measured. Times of different devices are never compared: the kernel's best is that of the ceilings,
which belong to one environment.

A point may slow the kernel itself, by heat, clocks or a memory that it fills. That is no excuse: what the kernel takes
beside the blocks and did not take before the model was there is the point's own, and is not taken off.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paradnn.record.measured import interval_metrics, step_times, t_quantile
from paradnn.worker.messages import Timing
from paradnn.worker.series import FEWEST, block_interval

KERNELS = ("arithmetic", "memory", "dispatch")
#: The slope is shrunk as if its standard error were so many times as large.
_CAUTION = 2.0
#: A slowdown by the point itself counts where it is so many of its standard errors; its error is then in the interval.
_OWN = 0.7

Vectors = Sequence[np.ndarray]


@dataclass(frozen=True)
class Explained:
    """What a kernel explains of the log step times of some processes.

    `value` and `low`, `high` are seconds of a step at the best speed (None: no interval), `level` the log of how slow
    the kernel was beside the blocks, `own` the part of it that is the point's.
    """

    slope: float
    correlation: float
    level: float
    own: float
    value: float
    low: float | None
    high: float | None


def reference_metrics(timings: Sequence[Timing], peaks: Mapping[str, float], batch_size: int) -> dict[str, float]:
    """What is known of the machine's speed; nothing of points without references. `peaks` hold the kernels' best."""
    kernel = chosen_kernel(timings)
    if kernel is None:
        return {}
    metrics = {f"reference_{name}_ms": 1e3 * math.exp(_mean(_slowness(timings, name))) for name in KERNELS}
    metrics |= {name: value for name, value in peaks.items() if name.startswith("best_reference_")}
    best = metrics.get(f"best_reference_{kernel}_ms")
    before = [
        statistics.fmean(math.log(entry.seconds[kernel]) for entry in timing.references if entry.blocks < 0)
        for timing in timings
    ]
    known = math.log((best or metrics[f"reference_{kernel}_ms"]) / 1e3)
    found = at_reference(_step_logs(timings), _slowness(timings, kernel), before, known)
    metrics |= {"reference_slope": found.slope, "reference_correlation": found.correlation, "reference_own": found.own}
    if best is None:
        return metrics
    speeds = {
        "step_time_at_reference_ms": found.value * 1e3,
        "examples_per_second_at_reference": batch_size / found.value,
    }
    metrics |= {"reference_speed": math.exp(-found.level), **speeds}
    if found.low is not None and found.high is not None:
        metrics |= interval_metrics("step_time_at_reference_ms", 1e3 * found.low, 1e3 * found.high)
        metrics |= interval_metrics("examples_per_second_at_reference", batch_size / found.high, batch_size / found.low)
    return metrics


def chosen_kernel(timings: Sequence[Timing]) -> str | None:
    """The kernel whose times move most with the step's, of all blocks; None where there are too few references."""
    if not all(sum(entry.blocks >= 0 for entry in timing.references) > 1 for timing in timings):
        return None
    steps = _step_logs(timings)
    return max(KERNELS, key=lambda name: _slope(steps, _slowness(timings, name))[2])


def at_reference(steps: Vectors, kernels: Vectors, before: Sequence[float], best: float) -> Explained:
    """What log kernel times explain of log step times, block by block in each process.

    `before`: the kernel's log time before the model was there, in each process; `best`: for the ceilings.
    """
    slope, off, correlation = _slope(steps, kernels)
    count = len(steps)
    grown = [float(x.mean()) - x0 for x, x0 in zip(kernels, before, strict=True)]
    unsure = statistics.stdev(grown) / math.sqrt(count) if count > 1 else abs(grown[0])
    mean_grown = statistics.fmean(grown)
    own = mean_grown if mean_grown > (_OWN * unsure if count > 1 else 0.0) else 0.0
    level = _mean(kernels) - best
    adjusted = [y - slope * (x - best - own) for y, x in zip(steps, kernels, strict=True)]
    value = statistics.fmean(float(np.median(each)) for each in adjusted)
    half = _half_width(adjusted, bool(slope))
    if half is None:
        return Explained(slope, correlation, level, own, math.exp(value), None, None)
    # What neither the slope nor the point's own part is known by.
    student = t_quantile(count - 1) if count > 1 else 1.0
    half = math.hypot(half, off * (level - own) if slope else 0.0, slope * student * unsure if own else 0.0)
    ends = math.exp(value - half), math.exp(value + half)
    return Explained(slope, correlation, level, own, math.exp(value), *ends)


def _half_width(adjusted: Vectors, explained: bool) -> float | None:
    """Half the 95% interval of the logarithm: of blocks, or Student's of processes; one that the slope was learnt from
    is worth less (Lavenberg and Welch)."""
    count, used = len(adjusted), 2 if explained else 1
    if count == 1:
        ends = block_interval([math.exp(value) for value in adjusted[0]])
        return math.log(ends[1] / ends[0]) / 2 if ends else None
    if count <= used:
        return None
    medians = [float(np.median(each)) for each in adjusted]
    wider = math.sqrt((count - 1) / (count - used))
    return t_quantile(count - used) * statistics.stdev(medians) / math.sqrt(count) * wider


def _slope(steps: Vectors, kernels: Vectors) -> tuple[float, float, float]:
    """Slope of log step times on log kernel times, shrunk and from 0 to 1; how far it may be off; their correlation.

    Its standard error allows for neighbours that resemble each other: (1 + r s) / (1 - r s) times the variance, with
    the lag-one correlations r and s of the kernel's times and of what it does not explain (Bartlett 1935). The noise of
    the kernel's own times makes the slope too small: by how much says the one between a block and the kernel two blocks
    off, in which that noise is not.
    """
    y, x = (_centred(each) for each in (steps, kernels))
    power, both, whole = (sum(float(a @ b) for a, b in zip(*pair, strict=True)) for pair in ((x, x), (x, y), (y, y)))
    count = sum(map(len, y))
    if count < FEWEST or power <= 0 or whole <= 0:
        return 0.0, 0.0, 0.0
    slope = both / power
    rest = [b - slope * a for a, b in zip(x, y, strict=True)]
    resemble = min(0.95, max(0.0, _lag_one(x) * _lag_one(rest)))
    variance = sum(float(e @ e) for e in rest) / (count - 2) / power * (1 + resemble) / (1 - resemble)
    kept = max(0.0, 1 - _CAUTION**2 * variance / slope**2) if slope > 0 else 0.0
    shrunk, shared = min(1.0, slope * kept), _apart(x, x, 2)
    without_noise = min(1.2, _apart(x, y, 2) / shared) if shared > 0 else slope
    off = _CAUTION * math.sqrt(variance) + max(0.0, without_noise - shrunk)
    return shrunk, off, both / math.sqrt(power * whole)


def _centred(each: Vectors) -> Vectors:
    mean = float(np.concatenate(each).mean())
    return [values - mean for values in each]


def _apart(each: Vectors, others: Vectors, lag: int) -> float:
    """The mean product of values so many blocks apart."""
    products = [each[i][lag:] * others[i][:-lag] + each[i][:-lag] * others[i][lag:] for i in range(len(each))]
    return float(np.concatenate(products).mean()) / 2 if any(map(len, products)) else 0.0


def _lag_one(each: Vectors) -> float:
    return _apart(each, each, 1) / power if (power := float(np.square(np.concatenate(each)).mean())) else 0.0


def _mean(each: Vectors) -> float:
    """The mean over processes of their means."""
    return statistics.fmean(float(values.mean()) for values in each)


def _step_logs(timings: Sequence[Timing]) -> Vectors:
    return [np.log(step_times(timing)) for timing in timings]


def _slowness(timings: Sequence[Timing], kernel: str) -> Vectors:
    """Log seconds of a call of the kernel at the middle of each block, on the line between those around it."""
    found = []
    for timing in timings:
        taken = [entry for entry in timing.references if entry.blocks >= 0]
        times = [math.log(entry.seconds[kernel]) for entry in taken]
        found.append(np.interp(np.arange(len(timing.blocks)) + 0.5, [entry.blocks for entry in taken], times))
    return found
