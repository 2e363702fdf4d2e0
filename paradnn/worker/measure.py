"""How a step is timed: calibrated blocks, warm-up until windows agree, blocks until enough, a verdict on those.

A block is a number of steps between two synchronisations, long enough that neither the clock nor the host's dispatch
is what is measured. Where the measured blocks are not steady, they become warm-up and twice as many are measured, twice
at most; where something disturbed them, as many are measured again, once, and the less disturbed count. Between blocks
reference kernels may run, a step behind each untimed. Nothing here knows a framework: `run(steps)` runs that many
steps, waits for the device and returns the last loss. Every block is kept; summaries are the driver's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paradnn.worker.errors import Ended
from paradnn.worker.messages import Contention, References, Timing, Trial
from paradnn.worker.meters import ContentionWatch, EnergyMeter
from paradnn.worker.series import FEWEST, block_interval, find_change

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Step

#: Blocks in each of the two windows whose agreement ends the warm-up.
WINDOW = 4
#: Quartiles of the two windows may differ by so much of the median.
TOLERANCE = 0.05
#: Their median absolute deviations may differ by so much of the median.
SPREAD_TOLERANCE = 0.10
#: How often blocks that are not steady are measured again, and how often those that something disturbed.
REPEATS, DISTURBED_REPEATS = 2, 1
#: The interval of fewer blocks decides nothing (`measure.relative_interval`): where neighbours resemble each other it
#: is too narrow, and a stop finds the moments at which it is (`python -m benchmarks.steadiness --stop 0.02`).
FEWEST_TO_STOP = 40
#: A block counts no more steps than this, however short a step is.
MAX_STEPS = 1_000_000
#: Reference kernels take this share of the time where none is given.
REFERENCE_SHARE = 0.2

#: Seconds of a call of each reference kernel, which it runs.
Reference = Callable[[], Mapping[str, float]]
#: Runs so many steps, waits for the device, and returns the last loss.
Run = Callable[[int], "float | None"]


class NotFinite(Ended):
    """The loss is NaN or infinite: the steps that are timed train nothing."""

    outcome = "nan"


@dataclass(frozen=True)
class Protocol:
    """The numbers of the protocol: seconds, counts of blocks, and a share of the median or None."""

    min_seconds: float
    min_blocks: int
    max_seconds: float
    block_seconds: float
    warmup_seconds: float
    relative_interval: float | None = None
    reference: bool | float = False

    @property
    def reference_share(self) -> float:
        """The share of the time between blocks, at most, in which reference kernels run."""
        return REFERENCE_SHARE if self.reference is True else float(self.reference)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Protocol:
        """The protocol in the request's `measure` group."""
        return cls(**{name: settings[name] for name in cls.__dataclass_fields__ if name in settings})


class Watch:
    """Watches the attempts at the measured blocks, each from its first block to its last, for what others take."""

    def __init__(self) -> None:
        self._watch = ContentionWatch()
        self._seen: list[Contention | None] = []
        self._kept = -1

    def start(self) -> None:
        """An attempt begins."""
        self._watch.start()

    def stop(self) -> float:
        """It has ended: what others took of it, 0 where nothing disturbed it."""
        seen = self._watch.stop()
        self._seen.append(seen)
        return seen.taken if seen and seen.reason else 0.0

    def keep(self, attempt: int) -> None:
        """What counts is the attempt with this number, from 0; else the last."""
        self._kept = attempt

    @property
    def contention(self) -> Contention | None:
        """What disturbed the blocks that count; None where the system does not tell."""
        return self._seen[self._kept]


class BlocksWatch(Watch):
    """Energy and compilations, too, of the attempt that counts."""

    def __init__(self, meter: EnergyMeter, step: Step) -> None:
        super().__init__()
        self._meter, self._step, self._compiled = meter, step, 0
        self._spent: list[tuple[float | None, int]] = []

    def start(self) -> None:
        self._compiled = self._step.compilations()
        self._meter.start()
        super().start()

    def stop(self) -> float:
        taken = super().stop()
        self._spent.append((self._meter.joules(), self._step.compilations() - self._compiled))
        return taken

    @property
    def energy(self) -> tuple[float | None, str]:
        """Joules, None where they are not known, and where they come from."""
        return self._spent[self._kept][0], self._meter.source

    def judged(self, timing: Timing) -> Timing:
        """`timing`, not steady where something was compiled meanwhile."""
        if not (compiled := self._spent[self._kept][1]):
            return timing
        reason = f"the measured steps compiled {compiled} program(s); {timing.steady_reason}"
        return replace(timing, steady=False, steady_reason=reason)


@dataclass(frozen=True)
class _Attempt:
    """Blocks that were measured, the verdict on them, what others took of them, and the references between them."""

    blocks: list[float]
    steady: bool
    reason: str
    taken: float
    references: list[References]
    beside: float


def measure_steps(
    run: Run,
    protocol: Protocol,
    phase: Callable[[str], AbstractContextManager[None]],
    clock: Callable[[], float] = time.perf_counter,
    watch: Watch | None = None,
    reference: Reference | None = None,
) -> Timing:
    """Calibrate, warm up and measure, each attempt under `watch`; `reference` runs between blocks. Raises NotFinite."""
    timed = _Timed(run, clock)
    with phase("warmup"):
        begin = clock()
        steps, calibration = _calibrate(timed, protocol.block_seconds)
        warmup = [calibration[-1].seconds]
        while clock() - begin < protocol.warmup_seconds and not _has_settled(warmup):
            warmup.append(timed(steps))
    with phase("measure"):
        beside = _Beside(reference, timed, protocol.reference_share, clock)
        attempts = _attempts(lambda: timed(steps), warmup, protocol, clock, watch, beside)
    # Of those that were disturbed the least; one that was not is the last.
    kept = min(reversed(range(len(attempts))), key=lambda number: attempts[number].taken)
    if watch:
        watch.keep(kept)
    counted = attempts[kept]
    warmup += [block for attempt in attempts[:kept] for block in attempt.blocks]
    discarded = [block for attempt in attempts[kept + 1 :] for block in attempt.blocks]
    repeated = sum(sum(attempt.blocks) for attempt in attempts if attempt is not counted)
    return Timing(
        steps,
        calibration,
        warmup,
        counted.blocks,
        counted.steady,
        counted.reason,
        timed.loss,
        discarded,
        repeated,
        counted.references,
        counted.beside,
    )


def _attempts(
    block: Callable[[], float],
    warmup: Sequence[float],
    protocol: Protocol,
    clock: Callable[[], float],
    watch: Watch | None,
    beside: _Beside,
) -> list[_Attempt]:
    """Measure until the blocks are steady and nothing disturbed them, or there is no further attempt to be had."""
    attempts: list[_Attempt] = []
    begin, scale = clock(), 1
    while True:
        if watch:
            watch.start()
        start = clock()
        beside.start()
        blocks = _blocks(block, protocol, scale, begin, clock, beside)
        taken = watch.stop() if watch else 0.0
        beside.stop(len(blocks))
        # What was disturbed would make what follows look like a jump.
        known = [] if attempts and attempts[-1].taken else [*warmup, *(b for entry in attempts for b in entry.blocks)]
        steady, reason = _verdict(known, blocks)
        attempts.append(_Attempt(blocks, steady, reason, taken, beside.taken, beside.seconds))
        growth = 1 if taken else 2
        disturbed = sum(attempt.taken > 0 for attempt in attempts)
        if (disturbed > DISTURBED_REPEATS) if taken else (steady or scale == 2**REPEATS):
            return attempts
        now = clock()
        enough = len(warmup) + sum(len(entry.blocks) for entry in attempts) >= FEWEST
        if not enough or now - begin + growth * (now - start) > protocol.max_seconds:
            return attempts
        scale *= growth


def _blocks(
    block: Callable[[], float],
    protocol: Protocol,
    scale: int,
    begin: float,
    clock: Callable[[], float],
    beside: _Beside,
) -> list[float]:
    """One measurement, `scale` times as long as the least; none goes on for longer than allowed since `begin`."""
    blocks: list[float] = []
    start = clock()
    looked = 0
    while True:
        beside.before_block(len(blocks), start)
        blocks.append(block())
        now = clock()
        if now - begin >= protocol.max_seconds:
            return blocks
        if now - start - beside.seconds < scale * protocol.min_seconds or len(blocks) < scale * protocol.min_blocks:
            continue
        if protocol.relative_interval is None:
            return blocks
        # Looking takes longer the more blocks there are: every twentieth of them is often enough.
        if len(blocks) >= max(FEWEST_TO_STOP, 1.05 * looked):
            looked = len(blocks)
            if _half_width(blocks) <= protocol.relative_interval:
                return blocks


def _half_width(blocks: Sequence[float]) -> float:
    """Half the 95% interval of the median, as a share of it; infinite where there is none."""
    interval = block_interval(blocks)
    return (interval[1] - interval[0]) / 2 / statistics.median(blocks) if interval else math.inf


def _verdict(warmup: Sequence[float], blocks: Sequence[float]) -> tuple[bool, str]:
    """Whether the measured blocks, and the two windows before them, are steady; and what says so.

    The windows before make it a longer series: in ten blocks alone a drift does not show.
    """
    series = [*warmup[-2 * WINDOW :], *blocks]
    if len(series) < FEWEST:
        return False, f"too few blocks to tell: {len(series)} of {FEWEST}"
    change = find_change(series)
    return not change.matters, f"{'' if change.matters else 'no change that matters: '}{change}"


def _has_settled(warmup: Sequence[float]) -> bool:
    """Whether the warm-up is over: its last windows agree, or three of them show no change, only noise."""
    if is_steady(warmup)[0]:
        return True
    latest = warmup[-3 * WINDOW :]
    return len(latest) == 3 * WINDOW and not find_change(latest).matters


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
        steps = min(MAX_STEPS, max(steps + 1, min(wanted, 10 * steps)))


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


class _Beside:
    """The reference kernels between the blocks of an attempt: before the first, behind the last, and between them as
    often as their share of the time allows. The step behind each is untimed, since its caches are not the model's."""

    def __init__(self, reference: Reference | None, timed: _Timed, share: float, clock: Callable[[], float]) -> None:
        self._reference, self._timed, self._share, self._clock = reference, timed, share, clock
        self.start()

    def start(self) -> None:
        """An attempt begins."""
        self.taken: list[References] = []
        self.seconds = 0.0

    def before_block(self, blocks: int, start: float) -> None:
        """`blocks` have ended since `start`; the next follows."""
        if self._reference is None:
            return
        once = self.seconds / len(self.taken) if self.taken else 0.0
        if self.seconds + once <= self._share * (self._clock() - start + once):
            begin = self._clock()
            self.stop(blocks)
            self._timed(1)
            self.seconds += self._clock() - begin

    def stop(self, blocks: int) -> None:
        """Run the kernels once, with none of it counted as time between blocks."""
        if self._reference is not None:
            self.taken.append(References(blocks, dict(self._reference())))
