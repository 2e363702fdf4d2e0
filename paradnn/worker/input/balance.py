"""Host against device: what a step waits for its input, what it would gain without, what the input costs the host.

Three measurements beside the protocol's own blocks, in which every step had a batch from the pipeline:

- rounds: the step on a batch that stays, with the pipeline at rest, and fed again, alternating, so that their ratio is
  one of neighbours in time;
- alone: the pipeline without the step, its rate and the processor time that it takes;
- stages: the pipeline cut off behind each stage, in one thread: what a stage adds is its time on one core.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from paradnn.worker.frameworks import FeedableStep
from paradnn.worker.input.feed import Feed, with_threads
from paradnn.worker.messages import InputMeasurement, PipelinePart, Timing

__all__ = ["FedStep", "measure_balance"]

#: Pairs of segments, at least so long each; six pairs are what a 95% interval of a median takes.
_ROUNDS, _SEGMENT = 6, 0.15
#: No further round is begun after so many seconds.
_ROUNDS_SECONDS = 30.0
#: The pipeline alone: so many parts, all of them so long at least, and no longer.
_PARTS, _ALONE, _ALONE_MOST = 6, 1.0, 15.0
#: Each stage is timed so often, so long each time.
_TURNS, _TURN = 3, 0.1
#: Batches of the stages are no larger than this.
_BATCH = 32
#: The iterator is asked for so many elements at once, so that asking is no part of what is timed.
_STRIDE = 16


class FedStep:
    """A step with a batch from `feed` for each; `waits` are the seconds that it waited in each run."""

    def __init__(self, step: FeedableStep, feed: Feed) -> None:
        self.step, self.source = step, feed
        self.waits: list[float] = []
        self._run = feed.runs(step)

    def run(self, steps: int) -> float | None:
        """As `Step.run`. Raises Unavailable where too much of the input is damaged."""
        self.source.waited = 0.0
        loss = self._run(steps)
        self.waits.append(self.source.waited)
        return loss

    def measure(self, timing: Timing) -> InputMeasurement:
        """What the input of the blocks in `timing` cost."""
        begin = len(timing.calibration) + len(timing.warmup) - 1
        return measure_balance(self.step, self.source, timing, self.waits[begin:][: len(timing.blocks)])


def measure_balance(step: FeedableStep, feed: Feed, timing: Timing, waits: list[float]) -> InputMeasurement:
    """What input costs a step, after the fed blocks in `timing`, in each of which it waited `waits` seconds."""
    step_seconds, waiting = statistics.median(timing.blocks) / timing.steps_per_block, sum(waits) / sum(timing.blocks)
    fed = feed.runs(step)
    step.run(1)
    free_seconds = _timed(step.run, 1)
    free_steps, fed_steps = _steps(free_seconds), _steps(step_seconds)
    pairs: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(pairs) < _ROUNDS and (not pairs or time.perf_counter() - begin < _ROUNDS_SECONDS):
        feed.settle()
        free = _timed(step.run, free_steps)
        # A step that hardly waits finds the buffers full in the long run too.
        if waiting > 0.01:
            feed.drain()
        pairs.append((free, _timed(fed, fed_steps)))
    alone = _alone(feed)
    feed.settle()
    stages = _stages(feed)
    read, damaged = feed.counts()
    return InputMeasurement(
        waits=waits,
        free_step_seconds=[free for free, _ in pairs],
        fed_step_seconds=[seconds for _, seconds in pairs],
        alone=alone,
        stages=stages,
        threads=feed.threads,
        read=read,
        damaged=damaged,
        memory_bytes=feed.memory_bytes,
    )


def _steps(seconds: float) -> int:
    return max(1, math.ceil(_SEGMENT / max(seconds, 1e-6)))


def _timed(run: Callable[[int], float | None], steps: int) -> float:
    """Seconds of a step."""
    start = time.perf_counter()
    run(steps)
    return (time.perf_counter() - start) / steps


def _alone(feed: Feed) -> list[PipelinePart]:
    """Parts of the pipeline's work without the step; none is begun after `_ALONE_MOST`."""
    feed.drain()
    start = time.perf_counter()
    feed.take()
    batches = max(1, math.ceil(_ALONE / _PARTS / max(time.perf_counter() - start, 1e-6)))
    parts: list[PipelinePart] = []
    begin = time.perf_counter()
    while len(parts) < _PARTS and (not parts or time.perf_counter() - begin < _ALONE_MOST):
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(batches):
            feed.take()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        parts.append(PipelinePart(batches * feed.batch_size, seconds, cpu_seconds))
    return parts


def _stages(feed: Feed) -> dict[str, float]:
    """Seconds that each stage adds to an example, on one core: medians over turns; never less than nothing."""
    size = min(_BATCH, feed.batch_size)
    stages = feed.pipeline.stages(None, size)
    takers = {name: _taker(name, dataset, feed.pipeline.examples_of(name), size) for name, dataset in stages.items()}
    times: dict[str, list[float]] = {name: [] for name in takers}
    for _ in range(_TURNS):
        for name, (take, examples) in takers.items():
            times[name].append(_rate(take, examples))
    until = [statistics.median(values) for values in times.values()]
    return dict(zip(takers, _added(until), strict=True))


def _taker(name: str, dataset: Any, chunk: float, batch_size: int) -> tuple[Callable[[], Any], float]:
    """What takes the next of a stage, and how many examples that is; `chunk` are those of one of its elements."""
    if name != "batch":
        dataset = dataset.window(_STRIDE, drop_remainder=True)
    iterator = iter(with_threads(dataset, 1))
    next(iterator)
    return (lambda: next(iterator)), batch_size if name == "batch" else _STRIDE * chunk


def _rate(take: Callable[[], Any], examples: float) -> float:
    start, taken = time.perf_counter(), 0
    while (now := time.perf_counter()) - start < _TURN or not taken:
        take()
        taken += 1
    return (now - start) / (taken * examples)


def _added(until: Sequence[float]) -> list[float]:
    """What each of growing totals adds to the one before; a total below it is the clock's noise."""
    return [max(0.0, now - before) for before, now in zip([0.0, *until], until, strict=False)]
