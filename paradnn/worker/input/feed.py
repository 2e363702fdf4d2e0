"""The pipeline of a point as the step sees it: a batch for each step, what the step waited for it, what was damaged.

The pipeline works in threads of its own, `data.threads` of them and no more, while the step runs; its buffers are full
when a Feed was made.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks import FeedableStep, Unavailable
from paradnn.worker.input.pipelines import ImagePipeline, TextPipeline
from paradnn.worker.messages import InputMeasurement, PipelinePart, Timing
from paradnn.worker.step import synthetic_batch

#: A pipeline whose process used less than this share of a core for this long has full buffers.
_IDLE_SHARE, _IDLE_SECONDS = 0.2, 0.03
_SETTLE_SECONDS = 5.0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_threads(dataset: tf.data.Dataset, threads: int, tuned: bool = False) -> tf.data.Dataset:
    """`dataset` in its own order whatever its threads do, with a pool of so many of its own."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = tuned
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


class Feed:
    """Batches for the step of `point`; raises Unavailable where there are none.

    `waited` is the seconds that `take` waited since it was last set to 0. `slow` is called for each batch within that
    time: tests put a known delay there.
    """

    def __init__(self, point: Mapping[str, Any], workload: BuiltModel, slow: Callable[[], None] = lambda: None) -> None:
        data = point["data"]
        self._training, self._data, self._slow = point["mode"] == "train", data, slow
        self.batch_size, self.prefetch = point["batch_size"], data["prefetch"]
        self.threads = data["threads"] or cores()
        before = _resident()
        self.pipeline, self._arrange = _pipeline(point, workload)
        self._kind = point["platform"]["name"]
        batches = self.pipeline.stages(data["threads"] or tf.data.AUTOTUNE)["batch"]
        self._dataset = with_threads(
            batches.prefetch(self.prefetch) if self.prefetch else batches, self.threads, tuned=data["threads"] is None
        )
        if self._kind != "cpu":
            ahead = tf.data.experimental.prefetch_to_device("GPU:0" if self._kind == "gpu" else "TPU:0", self.prefetch)
            self._dataset = self._dataset.apply(ahead)
        self.waited = 0.0
        self._read_before, self._taken, self._taken_here = 0, 0, 0
        self._numbers: Any = None
        self._iterator = iter(self._dataset)
        self.take()
        self.check()
        self.settle()
        self.memory_bytes = None if before is None else max(0, (_resident() or 0) - before)

    def take(self) -> tuple[Any, ...]:
        """The arguments of the next step."""
        start = time.perf_counter()
        try:
            batch = next(self._iterator)
        except StopIteration:
            batch = self._next_pass()
        self._slow()
        self.waited += time.perf_counter() - start
        self._taken += self.batch_size
        self._taken_here += self.batch_size
        self._numbers = batch[0]
        inputs, targets = self._arrange(*batch[1:])
        return (inputs, targets) if self._training else (inputs,)

    def runs(self, step: FeedableStep) -> Callable[[int], float | None]:
        """`step.run`, with a batch from here for each step."""

        def run(steps: int) -> float | None:
            loss = step.feed(steps, self.take)
            self.check()
            return loss

        return run

    def counts(self) -> tuple[int, int]:
        """Examples read so far, and those of them that were damaged and skipped."""
        last = 0 if self._numbers is None else int(self._numbers[-1]) + 1
        read = self._read_before + last
        return read + self.pipeline.damaged, read - self._taken + self.pipeline.damaged

    def check(self) -> None:
        """Unavailable where more was damaged than `data.max_damaged`."""
        read, damaged = self.counts()
        limit = self._data.get("max_damaged")
        if limit is not None and damaged > limit:
            raise Unavailable(
                f"{self._where}: {damaged} damaged pictures among {read} read, more than data.max_damaged={limit}"
            )

    def settle(self) -> None:
        """Wait until the pipeline's buffers are full and it works no more."""
        end = time.perf_counter() + _SETTLE_SECONDS
        while time.perf_counter() < end:
            before = time.process_time()
            time.sleep(_IDLE_SECONDS)
            if time.process_time() - before < _IDLE_SHARE * _IDLE_SECONDS:
                return

    def drain(self) -> None:
        """Take what was made ahead, so that what comes next is made while it is waited for."""
        for _ in range(self.prefetch * (1 if self._kind == "cpu" else 2) + 2):
            self.take()

    @property
    def _where(self) -> str:
        path = self._data["path"]
        return f"data={self._data['name']}" if path is None else f"data.path={path}"

    def _next_pass(self) -> Any:
        """The first batch of another pass; an iterator that gave nothing never will."""
        if not self._taken_here:
            raise Unavailable(
                f"{self._where}: not one batch of {self.batch_size} could be made of it (nothing there can be read)"
            )
        self._read_before, _ = self.counts()
        self._read_before -= self.pipeline.damaged
        self._taken_here, self._numbers = 0, None
        self._iterator = iter(self._dataset)
        try:
            return next(self._iterator)
        except StopIteration:
            return self._next_pass()


def _pipeline(point: Mapping[str, Any], workload: BuiltModel) -> tuple[Any, Callable[..., tuple[Any, Any]]]:
    """The pipeline, and what makes inputs and targets of its batches.

    Targets that the pipeline has no labels for (boxes on anchors) are synthetic and stay where they are.
    """
    data, seed, batch_size = point["data"], point["seed"], point["batch_size"]
    inputs, targets = workload.inputs, workload.targets
    if data["name"] == "images":
        labelled = len(targets) == 1 and targets[0].dtype == "int32" and targets[0].shape == ()
        classes = targets[0].high if labelled else None
        fixed = [] if labelled else [tf.constant(array) for array in synthetic_batch(workload, batch_size, seed)[1]]
        pipeline = ImagePipeline(data, inputs[0].shape, classes, batch_size, seed)
        return pipeline, lambda pictures, labels: ([pictures], [labels] if labelled else fixed)
    lengths = [spec.shape[0] for spec in inputs]
    vocabulary = min(spec.high or 2**31 - 1 for spec in inputs)
    same = [spec.shape for spec in targets] == [(lengths[-1],)]
    fixed = [] if same else [tf.constant(array) for array in synthetic_batch(workload, batch_size, seed)[1]]

    def arrange(windows: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        # Several inputs, a sentence and its translation, are successive parts of the text.
        parts, start = [], 0
        for length in lengths:
            parts.append(windows[:, start : start + length])
            start += length
        return parts, [windows[:, start - lengths[-1] + 1 : start + 1]] if same else fixed

    return TextPipeline(data, sum(lengths), vocabulary, batch_size, seed), arrange


def _resident() -> int | None:
    """Resident bytes of this process, where the system reports it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


# Host against device: what a step waits for its input, what it would gain without, what the input costs the host.
#
# Three measurements beside the protocol's own blocks, in which every step had a batch from the pipeline:
# - rounds: the step on a batch that stays, with the pipeline at rest, and fed again by turns: a ratio of neighbours;
# - alone: the pipeline without the step, its rate and the processor time that it takes;
# - stages: the pipeline cut off behind each stage, in one thread: what a stage adds is its time on one core.

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
