"""The machine's own speed beside a point's blocks: the point without it (`paradnn.worker.series`).
Times of different devices are never compared: the kernel's best is that of the ceilings, which
belong to one environment. A point may slow the kernel itself, by heat, clocks or a memory that it
fills. That is no excuse: what the kernel takes beside the blocks and did not take before the model
was there is the point's own, and is not taken off.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from paradnn.core.messages import Timing
from paradnn.core.metric import interval_metrics
from paradnn.session.measured import t_quantile
from paradnn.worker import series
from paradnn.worker.series import KERNELS, learn_slope, process_mean, slowness

#: A slowdown by the point itself counts where it is so many of its standard errors, that is,
#: wherever the kernel is not clearly faster beside the point; its error is then in the interval.
#: Planted sides that slow their own kernel by 2, 5 and 15% win wrongly in under 5% of comparisons
#: (0.7: in 13, 3 and 1%).
_OWN = -0.25


def reference_metrics(
    timings: Sequence[Timing], peaks: Mapping[str, float], batch_size: int
) -> dict[str, float]:
    """What is known of the machine's speed; nothing of points without references. `peaks` hold the
    kernels' best.
    """
    kernel = series.chosen_kernel(timings)
    if kernel is None:
        return {}
    slow = {name: slowness(timings, name) for name in KERNELS}
    metrics = {
        f"reference_{name}_ms": 1e3 * math.exp(process_mean(each)) for name, each in slow.items()
    }
    metrics |= {name: value for name, value in peaks.items() if name.startswith("best_reference_")}
    before = [
        statistics.fmean(
            math.log(entry.seconds[kernel]) for entry in timing.references if entry.blocks < 0
        )
        for timing in timings
    ]
    best = metrics.get(f"best_reference_{kernel}_ms")
    known = math.log(best / 1e3) if best else None
    return metrics | at_reference(
        series.step_logs(timings), slow[kernel], before, known, batch_size
    )


def at_reference(
    steps: np.ndarray,
    kernels: np.ndarray,
    before: Sequence[float],
    best: float | None,
    batch_size: int = 1,
) -> dict[str, float]:
    """What log kernel times explain of log step times (blocks x processes, NaN where a process has
    fewer), as metrics. `before`: the kernel's log time before the model was there, in each process;
    `best`: for the ceilings. Without it nothing is said of the point at that speed.
    """
    learnt = learn_slope(steps, kernels)
    grown = np.nanmean(kernels, axis=0) - before
    count = len(before)
    if count > 1:
        unsure = float(grown.std(ddof=1)) / math.sqrt(count)
    else:
        unsure = abs(float(grown[0]))
    if grown.mean() > (_OWN * unsure if count > 1 else 0.0):
        own = float(grown.mean())
    else:
        own = 0.0
    found = {
        "reference_slope": learnt.shrunk,
        "reference_correlation": learnt.correlation,
        "reference_own": own,
    }
    if math.isfinite(learnt.error):
        found |= {"reference_slope_seen": learnt.seen, "reference_slope_error": learnt.error}
    if best is None:
        return found
    if own:
        doubt = (t_quantile(count - 1) if count > 1 else 1.0) * unsure
    else:
        doubt = 0.0
    value, half, slope = _brought(steps, kernels - best - own, learnt, doubt)
    found |= {"reference_slope": slope, "reference_speed": math.exp(best - process_mean(kernels))}
    found["step_time_at_reference_ms"] = 1e3 * math.exp(value)
    found["examples_per_second_at_reference"] = batch_size / math.exp(value)
    if half is None:
        return found
    low = math.exp(value - half)
    high = math.exp(value + half)
    found |= interval_metrics("step_time_at_reference_ms", (1e3 * low, 1e3 * high))
    return found | interval_metrics(
        "examples_per_second_at_reference", (batch_size / high, batch_size / low)
    )


def _brought(
    steps: np.ndarray, away: np.ndarray, learnt: series.Slope, doubt: float
) -> tuple[float, float | None, float]:
    """The log step time at the reference speed, half its 95% interval (None where there is none),
    and the slope: 0, and the step as it was measured, where what the slope is not known by is
    expected to add more than it takes off. `away`: log kernel times over the one at the reference
    speed, blocks x processes as the steps; `doubt`: by how much all of them may be off.

    Of several processes the interval is the jackknife's (Miller, Biometrika 61, 1974), the slope
    learnt again without each: it holds what few processes know the slope by. What is expected
    follows from the slope and the kernel, not from which of two intervals is narrower: those hold
    the truth too seldom.
    """
    slope = learnt.shrunk
    count = steps.shape[1]
    level = process_mean(away)
    gap = max(0.0, learnt.seen - slope) if slope else 0.0
    if count == 1:
        values = np.exp(steps[:, 0] - slope * away[:, 0]).tolist()
        value = math.log(statistics.median(values))
        ends = series.block_interval(values)
        if not ends or not slope:
            return value, math.log(ends[1] / ends[0]) / 2 if ends else None, slope
        half = math.log(ends[1] / ends[0]) / 2
        explained = min(0.99, learnt.correlation**2)
        gained = half * math.sqrt(explained / (1 - explained))
        lost = unknown = math.hypot(2 * learnt.error * level, gap * level, slope * doubt)
    else:

        def estimate(kept: np.ndarray) -> np.ndarray:
            """Value and slope of these processes."""
            if slope:
                own = learn_slope(steps[:, kept], away[:, kept]).shrunk
            else:
                own = 0.0
            return np.array(
                [np.mean(np.nanmedian(steps[:, kept], 0) - own * np.nanmean(away[:, kept], 0)), own]
            )

        every = np.arange(count)
        student = t_quantile(count - 1)
        value, _ = whole = estimate(every)
        pseudo = [
            count * whole - (count - 1) * estimate(np.delete(every, number)) for number in every
        ]
        half, unsure = student * np.std(pseudo, axis=0, ddof=1) / math.sqrt(count)
        spread = np.nanmean(away, axis=0).std(ddof=1) / math.sqrt(count)
        reach = math.hypot(level, spread)
        gained = student * slope * spread
        unknown = math.hypot(gap * reach, slope * doubt)
        lost = math.hypot(unsure * reach, unknown)
    if lost > gained:
        return _brought(steps, away, learnt._replace(shrunk=0.0), 0.0)
    return float(value), math.hypot(half, unknown), slope
