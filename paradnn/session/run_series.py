"""Metrics of a run with one value per block or time window, for the charts of MLflow.

A block is a number of steps that are timed together. The charts show whether the run was steady.
Analyses read the raw values from the run's files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paradnn.core.messages import Timing
from paradnn.core.metric import MetricSnapshot
from paradnn.store.metrics import PHASES

if TYPE_CHECKING:
    from paradnn.session.measured import Measured

#: Maximum number of values of a series; a store needs about 300 bytes per value.
MAX_VALUES = 200
#: Number of windows of equal duration in which latencies are summarized.
_WINDOWS = 50
_PHASES_BEFORE_BLOCKS = PHASES[: PHASES.index("warmup")]


def warmup_step_times(timing: Timing) -> list[float]:
    """Return the step times of calibration and warm-up in seconds, in order.

    Calibration chooses the number of steps per block. Its last trial is the first block of the
    warm-up.

    Args:
        timing: Timing of one process.
    """
    trials = [trial.seconds / trial.steps for trial in timing.calibration[:-1]]
    return trials + [seconds / timing.steps_per_block for seconds in timing.warmup]


def block_series(measured: Measured) -> list[MetricSnapshot]:
    """Return the step time in ms of every block of a run, one process after the other.

    The step number of a value is the number of its block. The warm-up of the first process has
    negative numbers. If there are more than `MAX_VALUES` blocks, each value is the mean over
    successive blocks. Its step number is then that of the first of these blocks.

    Args:
        measured: The measured point with the results of its processes.
    """
    parts: list[tuple[int, float, list[float]]] = []  # first step, Unix seconds, step times
    blocks = 0
    for result in measured.results:
        if result.answer is None or result.answer.measurement is None:
            continue
        timing = result.answer.measurement.timing
        begin = result.begun + sum(
            seconds for name, seconds in result.phases.items() if name in _PHASES_BEFORE_BLOCKS
        )
        warmup = warmup_step_times(timing)
        if not parts and warmup:
            parts.append((-len(warmup), begin, warmup))
        parts.append((blocks, begin + sum(timing.warmup), timing.step_times))
        blocks += len(timing.blocks)
    count = sum(len(values) for _, _, values in parts)
    # Each part may end with a smaller group, hence `len(parts)` fewer full groups.
    size = math.ceil(count / max(1, MAX_VALUES - len(parts)))
    series = []
    for step, begin, values in parts:
        for position in range(0, len(values), size):
            group = values[position : position + size]
            metrics = {"block_step_time_ms": 1e3 * statistics.fmean(group)}
            series.append(MetricSnapshot(step + position, round(1e3 * begin), metrics))
    return series


def latency_series(requests: Sequence[tuple[int, int]], start_time: int) -> list[MetricSnapshot]:
    """Return median and maximum latency in ms over time, in 50 windows of equal duration.

    The step number of a value is the start of its window, in milliseconds after the first request
    was due.

    Args:
        requests: Pairs of the time at which a request was due and its latency, in ns; at least one.
        start_time: Start of the run in Unix milliseconds.
    """
    first = min(due for due, _ in requests)
    last = max(due for due, _ in requests)
    width = max(1, math.ceil((last - first + 1) / _WINDOWS))
    windows: dict[int, list[float]] = {}
    for due, latency in requests:
        windows.setdefault((due - first) // width, []).append(latency / 1e6)
    series = []
    for number, latencies in sorted(windows.items()):
        milliseconds = round(number * width / 1e6)
        metrics = {
            "window_latency_p50_ms": statistics.median(latencies),
            "window_latency_max_ms": max(latencies),
        }
        series.append(MetricSnapshot(milliseconds, start_time + milliseconds, metrics))
    return series
