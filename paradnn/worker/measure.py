"""Time a step: calibration, warm-up, measured blocks, and whether the blocks are steady.

A block is a number of steps between two synchronizations of host and device. It is long enough that
neither the clock nor the host's dispatch dominates its time. An attempt is one series of measured
blocks.

- If the blocks of an attempt are not steady, they become warm-up, and the next attempt measures
  twice the number of blocks. This happens at most twice.
- If something disturbed an attempt, it is repeated once with the same number of blocks, and the
  less disturbed attempt counts.

Every block is recorded; the driver computes the summaries.
"""

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

from paradnn.core.errors import PointEnded
from paradnn.core.messages import Compilation, Contention, References, Timing, Trial
from paradnn.core.words import counted
from paradnn.worker.contention import ContentionMonitor, TurnsMonitor
from paradnn.worker.energy import STOPPED_COUNTER, EnergyMeter
from paradnn.worker.frameworks import Step
from paradnn.worker.series import MIN_VALUES, adjusted_times, block_interval, find_change
from paradnn.worker.turns import TurnConnection

#: Number of blocks in a window. The warm-up ends once its last two or three windows show no change.
WINDOW = 4
#: Largest number of repetitions because the blocks of an attempt were not steady.
REPEATS = 2
#: Largest number of repetitions because something disturbed an attempt.
DISTURBED_REPEATS = 1
#: `measure.relative_interval` stops no measurement before this number of blocks. If neighboring
#: blocks are correlated, the interval of fewer blocks is sometimes too narrow. A stopping rule
#: would stop at just such an interval (`python -m benchmarks.steadiness --stop 0.02`).
MIN_BLOCKS_TO_STOP = 40
#: The interval is checked again once the number of blocks has grown by this factor. Checks take
#: longer as blocks accumulate, so their number must grow slower than the number of blocks.
_CHECK_GROWTH = 1.05
#: A block has at most this many steps, however short a step is.
MAX_STEPS = 1_000_000
#: The calibration aims at this multiple of `block_seconds`.
_CALIBRATION_MARGIN = 1.1
#: From one trial of the calibration to the next, the number of steps grows at most by this factor.
_MAX_CALIBRATION_GROWTH = 10
#: When two points take turns, the caches contain the other point's data at the start of a block.
#: Blocks with more steps than this number therefore begin with an untimed step.
_LEAD_THRESHOLD = 3
#: Share of the measuring time that measure.reference=true allots to the reference kernels.
REFERENCE_SHARE = 0.2
#: After reference kernels, steps run untimed for this many seconds, because caches, sleeping
#: threads and clocks do not recover at once.
SETTLE_SECONDS = 0.01
#: `compile_steps` ends after this many steps, even if each of them compiles again.
MAX_COMPILE_STEPS = 8
#: Number of synchronized steps for the latency quantiles. p99 needs at least a hundred.
LATENCY_STEPS = 200
#: Limit of the total time of these steps, in seconds.
LATENCY_SECONDS = 10.0

#: Runs every reference kernel, and returns the seconds per call by kernel name.
Reference = Callable[[], Mapping[str, float]]
#: Runs a number of steps, waits for the device, and returns the last loss; None in inference.
Run = Callable[[int], "float | None"]
#: Fills the caches with other data (`paradnn.worker.cold_cache`).
FillCaches = Callable[[], None]


class SynchronizedRun(ABC):
    """Runs timed blocks of steps in which several processes take part.

    `begin` and `end` are not timed, so that the messages by which ParaDnn coordinates the processes
    are not part of a block.
    """

    @abstractmethod
    def begin(self, steps: int) -> None:
        """Wait until all processes are ready for a block of `steps` steps."""

    @abstractmethod
    def run(self, steps: int) -> None:
        """Run the steps of the block, and wait for the device of this process."""

    @abstractmethod
    def end(self) -> float | None:
        """Wait for the other processes, and return the mean loss; None if there is no loss."""


class NotFinite(PointEnded):
    """The loss is NaN or infinite, so the timed steps do not train the model."""

    outcome = "nan"


@dataclass(frozen=True)
class Protocol:
    """Settings for how a step is timed; see `paradnn.config.point.Measure`.

    A block is a number of steps between two synchronizations. An attempt is one series of measured
    blocks, which may be repeated.

    Attributes:
        min_seconds: Shortest duration of the first attempt.
        min_blocks: Fewest blocks of the first attempt.
        max_seconds: Longest duration of all attempts together, in seconds.
        block_seconds: Shortest duration of a block.
        warmup_seconds: Longest duration of the warm-up.
        relative_interval: Stop once half the width of the median's 95% confidence interval is at
            most this share of the median. None to stop after `min_seconds` and `min_blocks`.
        reference: Share of the measuring time for reference kernels, which track the speed of the
            machine, from 0 to 1. True for `REFERENCE_SHARE`, False for no reference kernels.
        cache: "cold" if other data fills the caches before each step, else "warm".
    """

    min_seconds: float
    min_blocks: int
    max_seconds: float
    block_seconds: float
    warmup_seconds: float
    relative_interval: float | None = None
    reference: bool | float = False
    cache: str = "warm"

    @property
    def reference_share(self) -> float:
        """The largest share of the measuring time for reference kernels, from 0 to 1."""
        if self.reference is True:
            return REFERENCE_SHARE
        return float(self.reference)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the protocol with the given settings.

        Args:
            settings: The `measure` settings of a configuration. Settings that are not attributes of
                the protocol are ignored.
        """
        fields = {name: settings[name] for name in cls.__dataclass_fields__ if name in settings}
        return cls(**fields)


@dataclass(frozen=True)
class _ObservedAttempt:
    """Observations during one series of measured blocks.

    Attributes:
        contention: Processor time that was taken from the process; None if unknown.
        joules: Energy in joules; None if unknown.
        programs: Number of programs that the step compiled.
    """

    contention: Contention | None
    joules: float | None
    programs: int


class AttemptRecorder:
    """Records contention, energy and compilations during each attempt to time a step.

    An attempt is one series of timed blocks of steps. Contention is processor time that is taken
    from the process.

    Args:
        meter: Measures the energy; None if the energy is unavailable.
        compilations: Function that returns how many programs the step has compiled so far.

    Attributes:
        reported: Index of the attempt whose values the properties return; -1 for the last.
    """

    def __init__(
        self, meter: EnergyMeter | None = None, compilations: Callable[[], int] = lambda: 0
    ) -> None:
        self._monitor = ContentionMonitor()
        self._meter = meter or EnergyMeter("unavailable")
        self._compilations = compilations
        self._compiled_before = 0
        self._attempts: list[_ObservedAttempt] = []
        self.reported = -1

    def start(self) -> None:
        """Begin to record an attempt."""
        self._compiled_before = self._compilations()
        self._meter.start()
        self._monitor.start()

    def stop(self) -> float:
        """End the attempt, and return the share of the cores' time that was taken from the process.

        The share is `Contention.taken` if it is large enough to count as a disturbance, else 0.
        """
        contention = self._monitor.stop()
        programs = self._compilations() - self._compiled_before
        self._attempts.append(_ObservedAttempt(contention, self._meter.joules(), programs))
        if contention and contention.reason:
            return contention.taken
        return 0.0

    @property
    def contention(self) -> Contention | None:
        """Contention during the reported attempt; None if the system does not provide it."""
        return self._attempts[self.reported].contention

    @property
    def energy(self) -> tuple[float | None, str]:
        """Energy of the reported attempt in joules, and the name of the energy counter.

        If the energy is unavailable, the first value is None, and the second is the reason.
        """
        joules = self._attempts[self.reported].joules
        if joules == 0:
            return None, STOPPED_COUNTER
        return joules, self._meter.source

    def checked(self, timing: Timing) -> Timing:
        """Return a timing, marked as not steady if its steps compiled programs or were stopped.

        Args:
            timing: The timing of the reported attempt.

        Returns:
            The timing. If the steps compiled programs, or SIGSTOP stopped them, `steady` is False
            and the reason is added.
        """
        attempt = self._attempts[self.reported]
        if attempt.programs:
            problem = f"compiled {counted(attempt.programs, 'program')}"
        elif attempt.contention and attempt.contention.stops:
            problem = "were stopped (SIGSTOP)"
        else:
            return timing
        reason = f"the measured steps {problem}; {timing.steady_reason}"
        return replace(timing, steady=False, steady_reason=reason)


def measure_steps(  # noqa: PLR0913 - each parameter is one instrument of the measurement
    run: Run | SynchronizedRun,
    protocol: Protocol,
    phase: Callable[[str], AbstractContextManager[None]],
    clock: Callable[[], float] = time.perf_counter,
    *,
    recorder: AttemptRecorder | None = None,
    reference: Reference | None = None,
    turn: TurnConnection | None = None,
    turns_monitor: TurnsMonitor | None = None,
    fill_caches: FillCaches | None = None,
) -> Timing:
    """Measure step times: calibrate the block length, warm up, and time blocks of steps.

    A block is a number of steps between two synchronizations. An attempt is one series of measured
    blocks. It is repeated if it is not steady, or if other processes disturbed it.

    Args:
        run: Runs a given number of steps, and waits for the device. A SynchronizedRun if several
            processes share the steps.
        protocol: Durations and numbers of blocks.
        phase: Called with the name of a phase, "warmup" or "measure". Returns a context manager
            that is entered for the duration of the phase.
        clock: Function that returns the time in seconds.
        recorder: Records contention, energy and compilations of each attempt; None to record
            nothing.
        reference: Function that runs the reference kernels, which track the machine's speed. It is
            called between blocks. None to run no reference kernels.
        turn: Makes this process take turns with a second measured process, with one block per turn.
            None to measure without interruption.
        turns_monitor: Measures contention during the turns of this process; None to measure none.
        fill_caches: Called before each step, and not timed. None if caches stay warm.

    Returns:
        The timing of the least disturbed attempt.

    Raises:
        NotFinite: If the loss is NaN or infinite.
    """
    timer = _BlockTimer(run, protocol, clock, recorder, reference, fill_caches)
    with phase("warmup"):
        begin = clock()
        calibration = timer.calibrate()
        warmup = [calibration[-1].seconds]
        while clock() - begin < protocol.warmup_seconds and not _has_settled(warmup):
            timer.run_reference_if_due(len(warmup), begin)
            warmup.append(timer.time_block())
    with phase("measure"):
        if turn:
            attempts = [(0.0, timer.measure_in_turns(warmup, turn, turns_monitor))]
        else:
            attempts = timer.measure_attempts(warmup)
    # Keep the least disturbed attempt; of equally disturbed attempts, the last.
    kept = min(reversed(range(len(attempts))), key=lambda index: attempts[index][0])
    if recorder and not turn:
        recorder.reported = kept
    blocks = [timing.blocks for _, timing in attempts]
    earlier_blocks = [*chain(*blocks[:kept])]
    later_blocks = [*chain(*blocks[kept + 1 :])]
    return replace(
        attempts[kept][1],
        calibration=calibration,
        warmup=[*warmup, *earlier_blocks],
        final_loss=timer.loss,
        discarded=later_blocks,
        repeated=sum([*earlier_blocks, *later_blocks]),
    )


class _BlockTimer:
    """Times blocks of steps. The arguments are those of `measure_steps`.

    Attributes:
        steps: Steps per block; 1 before the calibration.
        loss: The loss of the last step; None in inference.
    """

    def __init__(
        self,
        run: Run | SynchronizedRun,
        protocol: Protocol,
        clock: Callable[[], float],
        recorder: AttemptRecorder | None,
        reference: Reference | None,
        fill_caches: FillCaches | None = None,
    ) -> None:
        self._run = run
        self._protocol = protocol
        self._clock = clock
        self._recorder = recorder
        self._reference = reference
        self._fill_caches = fill_caches
        self.steps = 1
        self.loss: float | None = None
        #: Runs of the reference kernels since the warm-up began.
        self._references: list[References] = []
        #: Seconds of each run of the reference kernels in the current attempt, including the
        #: untimed steps after it.
        self._reference_seconds: list[float] = []
        #: Number of blocks before the current attempt.
        self._first_block = 0

    def time_block(self, steps: int | None = None) -> float:
        """Run a block, and return its duration in seconds.

        Args:
            steps: Number of steps; None for the calibrated number.

        Raises:
            NotFinite: If the loss is NaN or infinite.
        """
        steps = steps or self.steps
        run = self._run
        if isinstance(run, SynchronizedRun):
            run.begin(steps)
            start = self._clock()
            run.run(steps)
            seconds = self._clock() - start
            self.loss = run.end()
        elif self._fill_caches:
            seconds = self._time_cold_steps(run, steps, self._fill_caches)
        else:
            start = self._clock()
            self.loss = run(steps)
            seconds = self._clock() - start
        if self.loss is not None and not math.isfinite(self.loss):
            raise NotFinite(f"the loss is {self.loss} after a block of {counted(steps, 'step')}")
        return seconds

    def _time_cold_steps(self, run: Run, steps: int, fill_caches: FillCaches) -> float:
        """Return the total seconds of the steps, excluding the time to fill the caches."""
        seconds = 0.0
        for _ in range(steps):
            fill_caches()
            start = self._clock()
            self.loss = run(1)
            seconds += self._clock() - start
        return seconds

    def calibrate(self) -> list[Trial]:
        """Set `steps` so that a block lasts at least `block_seconds`, and return all trials.

        A trial is a block that is timed to find the number of steps. The first steps are slower
        than the rest. Therefore, two consecutive trials must last at least `block_seconds` or have
        `MAX_STEPS` steps. With cold caches, the time to fill them counts toward `block_seconds`.
        Otherwise blocks of short steps would take far too long.
        """
        goal = self._protocol.block_seconds
        confirmations = 0
        trials: list[Trial] = []
        while confirmations < 2:
            start = self._clock()
            step_seconds = self.time_block()
            trials.append(Trial(self.steps, step_seconds))
            seconds = self._clock() - start if self._fill_caches else step_seconds
            if seconds >= goal or self.steps >= MAX_STEPS:
                confirmations += 1
                continue
            confirmations = 0
            estimate = math.ceil(_CALIBRATION_MARGIN * goal * self.steps / max(seconds, 1e-9))
            self.steps = min(estimate, _MAX_CALIBRATION_GROWTH * self.steps, MAX_STEPS)
        return trials

    def measure_attempts(self, warmup: Sequence[float]) -> list[tuple[float, Timing]]:
        """Measure until the blocks are steady and undisturbed, or no further attempt is allowed.

        An attempt is one series of measured blocks.

        Args:
            warmup: Seconds of the blocks of the warm-up.

        Returns:
            For each attempt, `Contention.taken` (0 if undisturbed), and the timing.
        """
        attempts: list[tuple[float, Timing]] = []
        begin = self._clock()
        scale = 1
        known_blocks = [*warmup]
        while True:
            start = self._clock()
            was_disturbed = bool(attempts) and attempts[-1][0] > 0
            # Disturbed blocks before this attempt would look like a jump at its beginning.
            before = [] if was_disturbed else known_blocks
            taken, timing = self._attempt(scale, begin, before, len(known_blocks))
            attempts.append((taken, timing))
            known_blocks = [*known_blocks, *timing.blocks]
            if self._is_last(attempts, scale):
                return attempts
            growth = 1 if taken else 2
            now = self._clock()
            expected_end = now - begin + growth * (now - start)
            if len(known_blocks) < MIN_VALUES or expected_end > self._protocol.max_seconds:
                return attempts
            scale *= growth

    def _attempt(
        self, scale: int, begin: float, before: Sequence[float], first_block: int
    ) -> tuple[float, Timing]:
        """Make one attempt, and return `Contention.taken` (0 if undisturbed) and the timing.

        Args:
            scale: Factor by which `min_blocks` and `min_seconds` are multiplied.
            begin: Time at which the first attempt began, in seconds of the clock.
            before: Seconds of each earlier block. They help to decide whether the blocks are
                steady.
            first_block: Number of blocks before this attempt.
        """
        if self._recorder:
            self._recorder.start()
        self._first_block = first_block
        self._reference_seconds = []
        blocks = self._measure_blocks(scale, begin)
        taken = self._recorder.stop() if self._recorder else 0.0
        self._run_reference(len(blocks))
        return taken, self._judge(before, blocks)

    @staticmethod
    def _is_last(attempts: Sequence[tuple[float, Timing]], scale: int) -> bool:
        """Return whether no further attempt follows the latest attempt.

        This is the case if the latest attempt needs no repetition, or if it must not be repeated.

        Args:
            attempts: For each attempt, `Contention.taken` (0 if undisturbed), and the timing.
            scale: Factor by which the latest attempt multiplied `min_blocks` and `min_seconds`.
        """
        taken, timing = attempts[-1]
        if taken:
            disturbed = sum(share > 0 for share, _ in attempts)
            return disturbed > DISTURBED_REPEATS
        return timing.steady or scale == 2**REPEATS

    def measure_in_turns(
        self, warmup: Sequence[float], turn: TurnConnection, monitor: TurnsMonitor | None
    ) -> Timing:
        """Time one block in each turn of this process, and return the timing of all blocks.

        Args:
            warmup: Seconds of the blocks of the warm-up.
            turn: Waits for the turns of this process, and ends them.
            monitor: Measures contention during the turns; None to measure none.
        """
        monitor = monitor or TurnsMonitor()
        blocks: list[float] = []
        turn.end()
        while turn.wait():
            monitor.start()
            if self.steps > _LEAD_THRESHOLD:
                self.time_block(1)
            blocks.append(self.time_block())
            monitor.stop()
            turn.end(blocks[-1] / self.steps)
        return self._judge(warmup, blocks)

    def _measure_blocks(self, scale: int, begin: float) -> list[float]:
        """Time the blocks of one attempt, and return the seconds of each block.

        Args:
            scale: Factor by which `min_blocks` and `min_seconds` are multiplied.
            begin: Time at which the first attempt began, in seconds of the clock. The attempt ends
                with the first block that ends `max_seconds` or more after this time.
        """
        protocol = self._protocol
        blocks: list[float] = []
        start = self._clock()
        next_check = float(MIN_BLOCKS_TO_STOP)
        while True:
            self.run_reference_if_due(len(blocks), start)
            blocks.append(self.time_block())
            now = self._clock()
            if now - begin >= protocol.max_seconds:
                return blocks
            spent = now - start - sum(self._reference_seconds)
            if spent < scale * protocol.min_seconds or len(blocks) < scale * protocol.min_blocks:
                continue
            if protocol.relative_interval is None:
                return blocks
            if len(blocks) >= next_check:
                if self._is_narrow(blocks, protocol.relative_interval):
                    return blocks
                next_check = max(MIN_BLOCKS_TO_STOP, _CHECK_GROWTH * len(blocks))

    def _is_narrow(self, blocks: list[float], goal: float) -> bool:
        """Return whether the 95% confidence interval of the median is narrow enough to stop.

        Args:
            blocks: Seconds of each block so far.
            goal: Largest accepted half width of the interval, as a fraction of the median.
        """
        [times] = adjusted_times([self._timing([], blocks)])
        interval = block_interval(times)
        if interval is None:
            return False
        low, high = interval
        return (high - low) / 2 / statistics.median(times) <= goal

    def _judge(self, before: Sequence[float], blocks: list[float]) -> Timing:
        """Decide whether the blocks of an attempt are steady, and return its timing.

        The decision also uses the last 2 x `WINDOW` blocks `before` the attempt, because ten blocks
        alone do not show a drift. If reference kernels ran, the times are adjusted first.
        Otherwise a change of the machine's speed could be mistaken for a change of the step time.

        Args:
            before: Seconds of each earlier block.
            blocks: Seconds of each block of the attempt.
        """
        [series] = adjusted_times([self._timing(before[-2 * WINDOW :], blocks)])
        if len(series) < MIN_VALUES:
            steady = False
            reason = (
                f"too few blocks for a verdict (measured {len(series)}, needed {MIN_VALUES}); "
                "raise measure.min_blocks or measure.max_seconds"
            )
        else:
            change = find_change(series)
            steady = not change.matters
            reason = f"no change that matters: {change}" if steady else str(change)
        return replace(
            self._timing([], blocks),
            steady=steady,
            steady_reason=reason,
            reference_seconds=sum(self._reference_seconds),
        )

    def _timing(self, before: Sequence[float], blocks: list[float]) -> Timing:
        """Return a timing of the blocks `before` the attempt, followed by its own `blocks`.

        It contains the runs of the reference kernels since the first of these blocks. `steady` is
        not set yet.

        Args:
            before: Seconds of each earlier block to include.
            blocks: Seconds of each block of the attempt.
        """
        offset = len(before) - self._first_block
        references = [replace(each, blocks=each.blocks + offset) for each in self._references]
        return Timing(
            steps_per_block=self.steps,
            calibration=[],
            warmup=[],
            blocks=[*before, *blocks],
            steady=False,
            steady_reason="",
            final_loss=None,
            references=[each for each in references if each.blocks >= 0],
        )

    def run_reference_if_due(self, blocks: int, start: float) -> None:
        """Run the reference kernels and then untimed steps, unless they exceed their time share.

        Args:
            blocks: Number of blocks of this attempt so far.
            start: Time at which the attempt began, in seconds of the clock.
        """
        if self._reference is None:
            return
        spent = sum(self._reference_seconds)
        mean = spent / len(self._reference_seconds) if self._reference_seconds else 0.0
        begin = self._clock()
        if spent + mean <= self._protocol.reference_share * (begin - start + mean):
            self._run_reference(blocks)
            settling_blocks = SETTLE_SECONDS / self._protocol.block_seconds
            self.time_block(math.ceil(self.steps * settling_blocks))
            self._reference_seconds.append(self._clock() - begin)

    def _run_reference(self, blocks: int) -> None:
        if self._reference is not None:
            references = References(self._first_block + blocks, dict(self._reference()))
            self._references.append(references)


def _has_settled(warmup: Sequence[float]) -> bool:
    """Return whether the block times show that the warm-up can end.

    This is the case if there are at least two windows of `WINDOW` blocks, and the last three
    windows show no change that matters.

    Args:
        warmup: Seconds of each block of the warm-up so far.
    """
    return len(warmup) >= 2 * WINDOW and not find_change(warmup[-3 * WINDOW :]).matters


def compile_steps(
    step: Step, clock: Callable[[], float] = time.perf_counter
) -> tuple[Compilation, float | None]:
    """Run a step until it compiles nothing, at most `MAX_COMPILE_STEPS` times.

    Steps after the first may compile too. PyTorch compiles again if a value that it treated as a
    constant changes. JAX compiles again if the state that a step returns is placed differently from
    the state that it received.

    Args:
        step: The step, which has not run yet.
        clock: Function that returns the time in seconds.

    Returns:
        The seconds and the number of compiled programs of each step, and the loss of the first
        step. The loss is None in inference.
    """
    seconds: list[float] = []
    programs: list[int] = []
    losses: list[float | None] = []
    monitor = ContentionMonitor()
    monitor.start()
    while len(programs) < MAX_COMPILE_STEPS and (not programs or programs[-1]):
        compiled_before = step.compilations()
        start = clock()
        losses.append(step.run(1))
        seconds.append(clock() - start)
        programs.append(step.compilations() - compiled_before)
    notes = [step.compile_note()]
    if programs[-1]:
        notes.append(f"step {len(programs)} still compiled {counted(programs[-1], 'program')}")
    compilation = Compilation(
        seconds=seconds,
        programs=programs,
        note="; ".join(note for note in notes if note) or None,
        contention=monitor.stop(),
        conversion=step.conversion(),
    )
    return compilation, losses[0]


def single_latencies(
    run: Run,
    max_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    monitor: ContentionMonitor | None = None,
    fill_caches: FillCaches | None = None,
) -> tuple[list[float], Contention | None]:
    """Time steps one by one, and wait for the device after each.

    If other processes disturb the steps, all are timed a second time. The result is the less
    disturbed of the two series.

    Args:
        run: Runs a given number of steps, and waits for the device.
        max_seconds: Longest duration of a series in seconds. It is also limited to
            `LATENCY_SECONDS`.
        clock: Function that returns the time in seconds.
        monitor: Measures the contention; None for a new monitor.
        fill_caches: Called before each step, and not timed; None if caches stay warm.

    Returns:
        The seconds of at most `LATENCY_STEPS` steps, and the contention (processor time that was
        taken from the process) while they ran; None if it is unknown.
    """
    monitor = monitor or ContentionMonitor()
    limit = min(LATENCY_SECONDS, max_seconds)
    tries: list[tuple[list[float], Contention | None]] = []
    for _ in range(2):
        monitor.start()
        latencies = _time_single_steps(run, limit, clock, fill_caches)
        contention = monitor.stop()
        if not contention or not contention.reason:
            return latencies, contention
        tries.append((latencies, contention))
    return min(reversed(tries), key=lambda each: each[1].taken if each[1] else 0.0)


def _time_single_steps(
    run: Run, limit: float, clock: Callable[[], float], fill_caches: FillCaches | None
) -> list[float]:
    latencies: list[float] = []
    begin = clock()
    now = begin
    while len(latencies) < LATENCY_STEPS and now - begin < limit:
        if fill_caches:
            fill_caches()
            now = clock()
        run(1)
        end = clock()
        latencies.append(end - now)
        now = end
    return latencies
