"""What the protocol makes of a step time, by arithmetic: how long calibration, warm-up, measurement and the rest take.

The rules are those of `paradnn.worker.measure`, `paradnn.worker.point` and `paradnn.worker.profile.run`, for steps that
all last the same. How many blocks it takes until a real machine is steady is no arithmetic: it is given.
Every function takes arrays that broadcast against each other, and returns seconds or counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paradnn.forecast.regression import Array
from paradnn.worker.measure import MAX_STEPS, WINDOW

__all__ = [
    "FIRST_VERDICT",
    "Blocks",
    "MeasureColumns",
    "calibrate",
    "extra_blocks",
    "latency_seconds",
    "measure_seconds",
    "profile_seconds",
    "warmup_seconds",
]

#: Blocks before the first verdict on steadiness.
FIRST_VERDICT = 2 * WINDOW
#: `paradnn.worker.point`: synchronised steps of the latency quantiles.
_LATENCY_STEPS, _LATENCY_SECONDS = 200, 10.0
#: `paradnn.worker.profile.run`: the profiled stretch.
_PROFILE_SECONDS, _FEWEST, _MOST, _LONG_STEP, _SLOWDOWN = 0.25, 3, 60, 5.0, 2.0


@dataclass(frozen=True)
class MeasureColumns:
    """The `measure` settings of some points, (points, 1) each: seconds, or counts of blocks."""

    min_seconds: Array
    min_blocks: Array
    max_seconds: Array
    block_seconds: Array
    warmup_seconds: Array
    timeout: Array

    @classmethod
    def of(cls, column: Callable[[str], Array]) -> MeasureColumns:
        """Those that `column` gives by name, (points,) each."""
        return cls(**{name: column(name).reshape(-1, 1) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Blocks:
    """What calibration finds: steps of a block and its seconds, the number of trials and their seconds."""

    steps: Array
    seconds: Array
    trials: Array
    spent: Array


def calibrate(step: Array, settings: MeasureColumns) -> Blocks:
    """The block of a step that lasts `step` seconds."""
    flat, shortest = (entry.ravel() for entry in np.broadcast_arrays(step, settings.block_seconds))
    steps, trials, spent = np.ones(flat.shape), np.zeros(flat.shape), np.zeros(flat.shape)
    confirmed = np.zeros(flat.shape, dtype=bool)
    left = np.arange(flat.size)
    while left.size:
        count, block = steps[left], shortest[left]
        last = count * flat[left]
        trials[left] += 1
        spent[left] += last
        long_enough = (last >= block) | (count >= MAX_STEPS)
        finished = long_enough & confirmed[left]
        confirmed[left] = long_enough
        # Sized from the trial with a tenth in reserve, but at most tenfold.
        wanted = np.ceil(1.1 * block * count / np.maximum(last, 1e-9))
        more = np.minimum(MAX_STEPS, np.maximum(count + 1, np.minimum(wanted, 10 * count)))
        steps[left] = np.where(long_enough, count, more)
        left = left[~finished]
    shape = np.broadcast_shapes(step.shape, settings.block_seconds.shape)
    return Blocks(*(entry.reshape(shape) for entry in (steps, steps * flat, trials, spent)))


def warmup_seconds(blocks: Blocks, settings: MeasureColumns, extra: Array) -> Array:
    """Seconds of calibration and warm-up where the verdict comes `extra` blocks after the first it can.

    The cap is looked at before every block, so the last one may end after it.
    """
    allowed = np.maximum(0.0, np.ceil((settings.warmup_seconds - blocks.spent) / blocks.seconds))
    return np.asarray(blocks.spent + np.minimum(FIRST_VERDICT - 1 + extra, allowed) * blocks.seconds)


def extra_blocks(warmup_blocks: Array, blocks: Blocks) -> Array:
    """From the recorded number of blocks before the measured ones, how many came after the first possible verdict.

    Blocks that were not steady and were measured again are among them.
    """
    return np.maximum(0.0, warmup_blocks + 1 - blocks.trials - FIRST_VERDICT)


def measure_seconds(blocks: Blocks, settings: MeasureColumns) -> Array:
    """Seconds of the measured blocks, steady at once and without `measure.relative_interval`: else it takes longer."""
    enough = np.maximum(np.ceil(settings.min_seconds / blocks.seconds), settings.min_blocks)
    longest = np.ceil(settings.max_seconds / blocks.seconds)
    return np.asarray(np.maximum(1.0, np.minimum(enough, longest)) * blocks.seconds)


def latency_seconds(step: Array) -> Array:
    """Seconds of the single synchronised steps of inference."""
    return np.asarray(np.minimum(_LATENCY_STEPS, np.ceil(_LATENCY_SECONDS / step)) * step)


def profile_seconds(step: Array, seconds_left: Array) -> Array:
    """Seconds of the steps under the profiler at full speed; 0 where the time that is left lets it be skipped.

    Starting the profiler and reading its trace come on top.
    """
    fewest = np.where(step < _LONG_STEP, _FEWEST, 1)
    steps = np.minimum(_MOST, np.maximum(fewest, np.ceil(_PROFILE_SECONDS / step)))
    # Before the stretch comes one step that pays for the profiler's start.
    skipped = _SLOWDOWN * (steps + 1) * step > seconds_left
    return np.asarray(np.where(skipped, 0.0, (steps + 1) * step))
