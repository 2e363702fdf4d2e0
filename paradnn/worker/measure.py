"""How a step is timed: calibrated blocks, warm-up to a verdict, then blocks until enough.

A block is a number of steps between two synchronisations, long enough that neither the clock nor the host's dispatch
is what is measured. Nothing here knows a framework: `run(steps)` runs that many steps, waits for the device and
returns the last loss. Every block is kept; summaries are the driver's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from paradnn.worker.messages import Timing, Trial

__all__ = ["NotFinite", "Protocol", "is_steady", "measure_steps"]

#: Blocks in each of the two windows whose agreement ends the warm-up.
WINDOW = 4
#: Quartiles of the two windows may differ by so much of the median.
TOLERANCE = 0.05
#: Their median absolute deviations may differ by so much of the median.
SPREAD_TOLERANCE = 0.10
#: A block counts no more steps than this, however short a step is.
MAX_STEPS = 1_000_000

Run = Callable[[int], "float | None"]


class NotFinite(Exception):
    """The loss is NaN or infinite: the steps that are timed train nothing."""


@dataclass(frozen=True)
class Protocol:
    """The numbers of the protocol; seconds, or counts of blocks."""

    min_seconds: float
    min_blocks: int
    max_seconds: float
    block_seconds: float
    warmup_seconds: float

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Protocol:
        """The protocol in the request's `measure` group."""
        return cls(**{name: settings[name] for name in cls.__dataclass_fields__})


def measure_steps(
    run: Run,
    protocol: Protocol,
    phase: Callable[[str], AbstractContextManager[None]],
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], None] | None = None,
) -> Timing:
    """Calibrate, warm up and measure; `before` is called just before the first measured block. Raises NotFinite."""
    timed = _Timed(run, clock)
    with phase("warmup"):
        begin = clock()
        steps, calibration = _calibrate(timed, protocol.block_seconds)
        warmup = [calibration[-1].seconds]
        verdict, reason = False, ""
        while not verdict:
            if clock() - begin >= protocol.warmup_seconds:
                break
            warmup.append(timed(steps))
            verdict, reason = is_steady(warmup)
    with phase("measure"):
        blocks: list[float] = []
        if before:
            before()
        begin = clock()
        while not _enough(clock() - begin, len(blocks), protocol):
            blocks.append(timed(steps))
    agreement = "two successive windows agree" if verdict else f"warm-up cap reached: {reason or 'too few blocks'}"
    return Timing(steps, calibration, warmup, blocks, verdict, agreement, timed.loss)


def is_steady(blocks: Sequence[float], window: int = WINDOW) -> tuple[bool, str]:
    """Whether the last two windows of block times agree, and if not, in what.

    The criteria are those of pyperf's warm-up calibration (Stinner, pyperf `_worker.py`): the first value of the
    earlier window is no upper outlier of the rest (Tukey's fence), the quartiles agree within 5%, and the median
    absolute deviations within 10%, both taken here as shares of the median.
    """
    if len(blocks) < 2 * window:
        return False, f"{len(blocks)} of {2 * window} blocks"
    earlier, later = blocks[-2 * window : -window], blocks[-window:]
    low, _, high = statistics.quantiles(earlier[1:], n=4, method="inclusive")
    scale = statistics.median(later)
    if earlier[0] > high + 1.5 * (high - low) and earlier[0] > scale * (1 + TOLERANCE):
        return False, "the first block of the window is an outlier"
    pairs = zip(
        statistics.quantiles(earlier, n=4, method="inclusive"),
        statistics.quantiles(later, n=4, method="inclusive"),
        strict=True,
    )
    worst = max(abs(before - after) for before, after in pairs) / scale
    if worst > TOLERANCE:
        return False, f"quartiles of successive windows differ by {worst:.0%}"
    spread = abs(_deviation(earlier) - _deviation(later)) / scale
    if spread > SPREAD_TOLERANCE:
        return False, f"spreads of successive windows differ by {spread:.0%} of the median"
    return True, ""


def _calibrate(timed: _Timed, block_seconds: float) -> tuple[int, list[Trial]]:
    """Steps of a block that lasts at least `block_seconds`, twice in a row: the first steps are slow and mislead."""
    steps, confirmed = 1, False
    trials: list[Trial] = []
    while True:
        seconds = timed(steps)
        trials.append(Trial(steps, seconds))
        if seconds >= block_seconds or steps >= MAX_STEPS:
            if confirmed:
                return steps, trials
            confirmed = True
            continue
        confirmed = False
        # Sized from the trial with a tenth in reserve, but at most tenfold.
        wanted = math.ceil(1.1 * block_seconds * steps / max(seconds, 1e-9))
        steps = min(MAX_STEPS, max(2 * steps, min(wanted, 10 * steps)))


def _enough(elapsed: float, blocks: int, protocol: Protocol) -> bool:
    if blocks == 0:
        return False
    return elapsed >= protocol.max_seconds or (elapsed >= protocol.min_seconds and blocks >= protocol.min_blocks)


def _deviation(values: Sequence[float]) -> float:
    centre = statistics.median(values)
    return statistics.median(abs(value - centre) for value in values)


class _Timed:
    """Runs a block and times it; keeps the last loss, and refuses one that is not finite."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self.loss: float | None = None

    def __call__(self, steps: int) -> float:
        start = self._clock()
        self.loss = self._run(steps)
        seconds = self._clock() - start
        if self.loss is not None and not math.isfinite(self.loss):
            raise NotFinite(f"the loss is {self.loss} after a block of {steps} step(s)")
        return seconds
