"""How a step is timed: calibrated blocks, warm-up until windows agree, blocks until enough, a
verdict on those.

A block is a number of steps between two synchronisations, long enough that neither the clock nor
the host's dispatch is what is measured. Where the measured blocks are not steady, they become
warm-up and twice as many are measured, twice at most; where something disturbed them, as many are
measured again, once, and the less disturbed count. Every block is kept; summaries are the driver's.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

from paradnn.core.errors import PointEnded
from paradnn.core.messages import Compilation, Contention, References, Timing, Trial
from paradnn.worker.frameworks import Step
from paradnn.worker.meters import ContentionMonitor, EnergyMeter, TurnsMonitor
from paradnn.worker.series import FEWEST, adjusted_times, block_interval, find_change
from paradnn.worker.turns import Turn

#: Blocks of a window: the last two or three of the warm-up end it once they show no change.
WINDOW = 4
#: How often blocks that are not steady are measured again, and how often those that something
#: disturbed.
REPEATS = 2
DISTURBED_REPEATS = 1
#: The interval of fewer blocks decides nothing (`measure.relative_interval`): where neighbours
#: resemble each other it is too narrow, and a stop finds the moments at which it is (`python -m
#: benchmarks.steadiness --stop 0.02`).
FEWEST_TO_STOP = 40
#: A block counts no more steps than this, however short a step is.
MAX_STEPS = 1_000_000
#: In turns, blocks of more steps than this begin with one that is not timed: the caches hold the
#: other point's data.
_LEAD = 3
#: Reference kernels take this share of the time where none is given.
REFERENCE_SHARE = 0.2
#: Behind them steps go untimed for so many seconds: caches, sleeping threads and clocks are not the
#: model's at once.
SETTLE_SECONDS = 0.01

#: Seconds of a call of each reference kernel, which it runs.
Reference = Callable[[], Mapping[str, float]]
#: Runs so many steps, waits for the device, and returns the last loss.
Run = Callable[[int], "float | None"]


class NotFinite(PointEnded):
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
        if self.reference is True:
            return REFERENCE_SHARE
        return float(self.reference)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The protocol in the request's `measure` group."""
        return cls(
            **{name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        )


class AttemptRecorder:
    """Watches the attempts at the measured blocks, each from its first block to its last: what
    others take, and of a model's step the energy and the programs compiled meanwhile. `kept`: the
    number of the attempt that counts.
    """

    def __init__(
        self, meter: EnergyMeter | None = None, compilations: Callable[[], int] = lambda: 0
    ) -> None:
        self._watch = ContentionMonitor()
        self._meter = meter or EnergyMeter("unavailable")
        self._compilations = compilations
        self._compiled = 0
        self._seen: list[tuple[Contention | None, float | None, int]] = []
        self.kept = -1

    def start(self) -> None:
        self._compiled = self._compilations()
        self._meter.start()
        self._watch.start()

    def stop(self) -> float:
        """It has ended: what others took of it, 0 where nothing disturbed it."""
        seen = self._watch.stop()
        self._seen.append((seen, self._meter.joules(), self._compilations() - self._compiled))
        return seen.taken if seen and seen.reason else 0.0

    @property
    def contention(self) -> Contention | None:
        """What disturbed the blocks that count; None where the system does not tell."""
        return self._seen[self.kept][0]

    @property
    def energy(self) -> tuple[float | None, str]:
        """Joules, None where they are not known, and where they come from."""
        return self._seen[self.kept][1], self._meter.source

    def judged(self, timing: Timing) -> Timing:
        """`timing`, not steady where something was compiled meanwhile, or the process was stopped."""
        seen, _, compiled = self._seen[self.kept]
        if compiled:
            what = f"compiled {compiled} program(s)"
        else:
            what = "were stopped (SIGSTOP)"
        unsteady = replace(
            timing, steady=False, steady_reason=f"the measured steps {what}; {timing.steady_reason}"
        )
        return unsteady if compiled or (seen and seen.stops) else timing


def measure_steps(
    run: Run,
    protocol: Protocol,
    phase: Callable[[str], AbstractContextManager[None]],
    clock: Callable[[], float] = time.perf_counter,
    watch: AttemptRecorder | None = None,
    reference: Reference | None = None,
    turn: Turn | None = None,
    turns_monitor: TurnsMonitor | None = None,
) -> Timing:
    """Calibrate, warm up and measure, each attempt under `watch`; `reference` runs between blocks.
    Raises NotFinite. With `turn` another point has the machine between the blocks, of which there
    are as many as turns; `turns_monitor` watches this point's turns.
    """
    measuring = _Measuring(run, protocol, clock, watch, reference)
    with phase("warmup"):
        begin = clock()
        calibration = measuring.calibrate()
        warmup = [calibration[-1].seconds]
        while clock() - begin < protocol.warmup_seconds and not _has_settled(warmup):
            measuring.refer_in_turn(len(warmup), begin)
            warmup.append(measuring.block())
    with phase("measure"):
        if turn:
            attempts = [(0.0, measuring.in_turn(warmup, turn, turns_monitor or TurnsMonitor()))]
        else:
            attempts = measuring.attempts(warmup)
    # Of those that were disturbed the least; one that was not is the last.
    kept = min(reversed(range(len(attempts))), key=lambda number: attempts[number][0])
    if watch and not turn:
        watch.kept = kept
    blocks = [timing.blocks for _, timing in attempts]
    return replace(
        attempts[kept][1],
        calibration=calibration,
        warmup=[*warmup, *chain(*blocks[:kept])],
        final_loss=measuring.loss,
        discarded=[*chain(*blocks[kept + 1 :])],
        repeated=sum(chain(*blocks[:kept], *blocks[kept + 1 :])),
    )


class _Measuring:
    """Blocks of `steps` steps, once those are calibrated; `loss` is the last one, and none that is
    not finite.
    """

    def __init__(
        self,
        run: Run,
        protocol: Protocol,
        clock: Callable[[], float],
        watch: AttemptRecorder | None,
        reference: Reference | None,
    ) -> None:
        self._run = run
        self._protocol = protocol
        self._clock = clock
        self._watch = watch
        self._reference = reference
        self.steps = 1
        self.loss: float | None = None
        # References since the warm-up began; the seconds that each of this attempt took, and its
        # first block's number.
        self._references: list[References] = []
        self._beside: list[float] = []
        self._first = 0

    def block(self, steps: int | None = None) -> float:
        """Seconds of a block, of so many steps where they are given."""
        steps = steps or self.steps
        start = self._clock()
        self.loss = self._run(steps)
        seconds = self._clock() - start
        if self.loss is not None and not math.isfinite(self.loss):
            raise NotFinite(f"the loss is {self.loss} after a block of {steps} step(s)")
        return seconds

    def calibrate(self) -> list[Trial]:
        """Steps of a block that lasts at least `block_seconds`, twice in a row: the first are slow
        and mislead.
        """
        wanted = self._protocol.block_seconds
        confirmed = 0
        trials: list[Trial] = []
        while True:
            seconds = self.block()
            trials.append(Trial(self.steps, seconds))
            if seconds >= wanted or self.steps >= MAX_STEPS:
                confirmed += 1
                if confirmed == 2:
                    return trials
                continue
            confirmed = 0
            # Sized from the trial with a tenth in reserve, but at most tenfold.
            sized = math.ceil(1.1 * wanted * self.steps / max(seconds, 1e-9))
            self.steps = min(MAX_STEPS, max(self.steps + 1, min(sized, 10 * self.steps)))

    def attempts(self, warmup: Sequence[float]) -> list[tuple[float, Timing]]:
        """Measure until the blocks are steady and nothing disturbed them, or no further attempt is
        to be had; what others took of each attempt, and its blocks.
        """
        attempts: list[tuple[float, Timing]] = []
        begin = self._clock()
        scale = 1
        known = [*warmup]
        while True:
            if self._watch:
                self._watch.start()
            start = self._clock()
            self._first = len(known)
            self._beside = []
            blocks = self._blocks(scale, begin)
            taken = self._watch.stop() if self._watch else 0.0
            self._refer(len(blocks))
            # What was disturbed would make what follows look like a jump.
            attempts.append(
                (taken, self._timing([] if attempts and attempts[-1][0] else known, blocks))
            )
            known += blocks
            growth = 1 if taken else 2
            disturbed = sum(taken > 0 for taken, _ in attempts)
            if (
                (disturbed > DISTURBED_REPEATS)
                if taken
                else (attempts[-1][1].steady or scale == 2**REPEATS)
            ):
                return attempts
            now = self._clock()
            if (
                len(known) < FEWEST
                or now - begin + growth * (now - start) > self._protocol.max_seconds
            ):
                return attempts
            scale *= growth

    def in_turn(self, warmup: Sequence[float], turn: Turn, monitor: TurnsMonitor) -> Timing:
        """A block each time that it is this point's turn, which `monitor` watches."""
        blocks: list[float] = []
        turn.end()
        while turn.wait():
            monitor.start()
            if self.steps > _LEAD:
                self.block(1)
            blocks.append(self.block())
            monitor.stop()
            turn.end(blocks[-1] / self.steps)
        return self._timing(warmup, blocks)

    def _blocks(self, scale: int, begin: float) -> list[float]:
        """One measurement, `scale` times as long as the least; none goes on for longer than allowed
        since `begin`.
        """
        protocol = self._protocol
        blocks: list[float] = []
        start = self._clock()
        looked = 0
        while True:
            self.refer_in_turn(len(blocks), start)
            blocks.append(self.block())
            now = self._clock()
            if now - begin >= protocol.max_seconds:
                return blocks
            spent = now - start - sum(self._beside)
            if spent < scale * protocol.min_seconds or len(blocks) < scale * protocol.min_blocks:
                continue
            if protocol.relative_interval is None:
                return blocks
            # Looking takes longer the more blocks there are: every twentieth of them is often
            # enough.
            if len(blocks) >= max(FEWEST_TO_STOP, 1.05 * looked):
                [times] = adjusted_times([self._timed([], blocks)])
                looked = len(blocks)
                ends = block_interval(times)
                if (
                    ends
                    and (ends[1] - ends[0]) / 2 / statistics.median(times)
                    <= protocol.relative_interval
                ):
                    return blocks

    def _timing(self, before: Sequence[float], blocks: list[float]) -> Timing:
        """What an attempt gave, with the verdict on its blocks and the two windows before them: in
        ten blocks alone a drift does not show. Where references tell, a change of the machine's
        speed is none of the model's.
        """
        [series] = adjusted_times([self._timed(before[-2 * WINDOW :], blocks)])
        steady = False
        reason = f"too few blocks to tell: {len(series)} of {FEWEST}"
        if len(series) >= FEWEST:
            change = find_change(series)
            steady = not change.matters
            reason = f"{'' if change.matters else 'no change that matters: '}{change}"
        return replace(
            self._timed([], blocks), steady=steady, steady_reason=reason, beside=sum(self._beside)
        )

    def _timed(self, before: Sequence[float], blocks: list[float]) -> Timing:
        """Blocks of this attempt with those `before` them, and the references beside them."""
        seen = [
            replace(each, blocks=each.blocks - self._first + len(before))
            for each in self._references
        ]
        series = [*before, *blocks]
        seen = [each for each in seen if each.blocks >= 0]
        return Timing(self.steps, [], [], series, False, "", None, references=seen)

    def refer_in_turn(self, blocks: int, start: float) -> None:
        """Run the reference kernels before a block as often as their share of the time since
        `start` allows, and behind them steps that are not timed.
        """
        if self._reference is None:
            return
        beside = sum(self._beside)
        once = beside / len(self._beside) if self._beside else 0.0
        begin = self._clock()
        if beside + once <= self._protocol.reference_share * (begin - start + once):
            self._refer(blocks)
            self.block(math.ceil(self.steps * SETTLE_SECONDS / self._protocol.block_seconds))
            self._beside.append(self._clock() - begin)

    def _refer(self, blocks: int) -> None:
        if self._reference is not None:
            self._references.append(References(self._first + blocks, dict(self._reference())))


def _has_settled(warmup: Sequence[float]) -> bool:
    """Whether the warm-up is over: its last three windows, or two where there are no more, show no
    change.
    """
    return len(warmup) >= 2 * WINDOW and not find_change(warmup[-3 * WINDOW :]).matters


# Steps that are timed one by one, before the blocks (the phase `compile`) and after them
# (`latency`). The first step does not say it all: PyTorch compiles again where a value it took for
# constant has changed, JAX where the state that comes out of a step is placed otherwise than the
# one that went in.

#: A step that compiles again every time ends the phase all the same.
MOST_STEPS = 8


def compile_steps(
    step: Step, clock: Callable[[], float] = time.perf_counter
) -> tuple[Compilation, float | None]:
    """Run `step` until it compiles nothing, or for the eighth time; what that took, and the very
    first loss.
    """
    seconds: list[float] = []
    programs: list[int] = []
    losses: list[float | None] = []
    watch = ContentionMonitor()
    watch.start()
    while len(programs) < MOST_STEPS and (not programs or programs[-1]):
        before = step.compilations()
        start = clock()
        losses.append(step.run(1))
        seconds.append(clock() - start)
        programs.append(step.compilations() - before)
    notes = [note] if (note := step.compile_note()) else []
    if programs[-1]:
        notes.append(f"step {len(programs)} still compiled {programs[-1]} program(s)")
    return Compilation(
        seconds, programs, "; ".join(notes) or None, watch.stop(), step.conversion()
    ), losses[0]


#: Synchronised steps for the latency quantiles: at least so many (p99 needs a hundred), at most so
#: long.
_LATENCY_STEPS = 200
_LATENCY_SECONDS = 10.0


def single_latencies(
    run: Callable[[int], float | None],
    longest: float,
    clock: Callable[[], float] = time.perf_counter,
    watch: ContentionMonitor | None = None,
) -> tuple[list[float], Contention | None]:
    """Seconds of single synchronised steps, for no longer than `longest` seconds, the cap of the
    measurement; and what disturbed them. Where something did they are timed once more, and those
    that were disturbed less count.
    """
    watch = watch or ContentionMonitor()
    longest = min(_LATENCY_SECONDS, longest)
    tries: list[tuple[list[float], Contention | None]] = []
    for _ in range(2):
        seconds: list[float] = []
        watch.start()
        begin = now = clock()
        while len(seconds) < _LATENCY_STEPS and now - begin < longest:
            run(1)
            end = clock()
            seconds.append(end - now)
            now = end
        seen = watch.stop()
        if not seen or not seen.reason:
            return seconds, seen
        tries.append((seconds, seen))
    return min(reversed(tries), key=lambda each: each[1].taken if each[1] else 0.0)
