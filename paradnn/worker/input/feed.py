"""The pipeline of a point as the step sees it: a batch for each step, and what the step waited for
it.

The pipeline works in threads of its own, `data.threads` of them and no more, while the step runs;
its buffers are full when a Feed was made.
"""

import math
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from paradnn.core.errors import UnavailableError
from paradnn.core.messages import InputMeasurement, PipelinePart, Timing
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks import Step
from paradnn.worker.input.pipelines import ImagePipeline
from paradnn.worker.step import synthetic_batch

#: A pipeline whose process used less than this share of a core for this long has full buffers.
_IDLE_SHARE = 0.2
_IDLE_SECONDS = 0.03
_SETTLE_SECONDS = 5.0
#: What a message of tf.data says of its graph, around what was wrong.
_PLACES = re.compile(
    r"\{\{.*?\}\} |Error in user-defined function .*? iterator: \S+ |\s+\[.*", re.DOTALL
)


def _with_threads(dataset: tf.data.Dataset, threads: int, tuned: bool) -> tf.data.Dataset:
    """`dataset` in its own order whatever its threads do, with a pool of so many of its own."""
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = tuned
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


class Feed:
    """Batches for the step of `point`; raises Unavailable where there are none. `waited`: seconds
    that `take` waited since it was last set to 0. `slow` is called for each batch within that time:
    tests put a known delay there.
    """

    def __init__(
        self,
        point: Mapping[str, Any],
        workload: BuiltModel,
        slow: Callable[[], None] = lambda: None,
    ) -> None:
        data = point["data"]
        kind = point["platform"]["name"]
        self._training = point["mode"] == "train"
        self._slow = slow
        if data["path"] is None:
            self._where = f"data={data['name']}"
        else:
            self._where = f"data.path={data['path']}"
        self.batch_size = point["batch_size"]
        self.waited = 0.0
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        self.threads = data["threads"] or cores
        seed = point["seed"]
        size = point["batch_size"]
        # Where a target is no label (boxes on anchors) all are synthetic, and stay.
        labelled = [(spec.dtype, spec.shape) for spec in workload.targets] == [("int32", ())]
        fixed = [] if labelled else synthetic_batch(workload, size, seed)[1]
        self._targets = [tf.constant(array) for array in fixed]
        classes = workload.targets[0].high if labelled else None
        self.pipeline = ImagePipeline(data, workload.inputs[0].shape, classes, size, seed)
        batches = self.pipeline.batches(data["threads"] or tf.data.AUTOTUNE)
        ahead = data["prefetch"]
        batches = batches.prefetch(ahead) if ahead else batches
        self._dataset = _with_threads(batches, self.threads, tuned=data["threads"] is None)
        if kind != "cpu":
            onto = tf.data.experimental.prefetch_to_device("GPU:0", ahead)
            self._dataset = self._dataset.apply(onto)
        self._ahead = ahead * (1 if kind == "cpu" else 2) + 2
        self._iterator = iter(self._dataset)
        self.take()
        self.settle()

    def take(self) -> tuple[Any, ...]:
        """The arguments of the next step; UnavailableError where something in the input cannot be read."""
        start = time.perf_counter()
        try:
            batch = next(self._iterator, None)
            if batch is None:  # another pass
                self._iterator = iter(self._dataset)
                batch = next(self._iterator)
        except StopIteration:
            reason = f"not one batch of {self.batch_size} could be made of it (nothing there can be read)"
            raise UnavailableError(f"{self._where}: {reason}") from None
        except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
            reason = _PLACES.sub("", error.message)[:200]
            raise UnavailableError(
                f"{self._where}: damaged, or of another format: {reason}"
            ) from None
        self._slow()
        self.waited += time.perf_counter() - start
        pictures, labels = batch
        if self._training:
            return ([pictures], self._targets or [labels])
        return ([pictures],)

    def settle(self) -> None:
        """Wait until the pipeline's buffers are full and it works no more."""
        end = time.perf_counter() + _SETTLE_SECONDS
        while time.perf_counter() < end:
            before = time.process_time()
            time.sleep(_IDLE_SECONDS)
            if time.process_time() - before < _IDLE_SHARE * _IDLE_SECONDS:
                return

    def drain(self, batches: int = 0) -> None:
        """Take so many; else what was made ahead, so that what comes next is made while it is
        waited for.
        """
        for _ in range(batches or self._ahead):
            self.take()


# Two measurements beside the protocol's own blocks, in which every step had a batch from the pipeline:
# - rounds: the step on a batch that stays, with the pipeline at rest, and fed again by turns: a ratio of neighbours;
# - alone: the pipeline without the step, its rate and the processor time that it takes.

#: Pairs of segments, at least so long each; six pairs are what a 95% interval of a median takes.
_ROUNDS = 6
_SEGMENT = 0.15
#: No further round is begun after so many seconds.
_ROUNDS_SECONDS = 30.0
#: The pipeline alone: so many parts, all of them so long at least, and no longer.
_PARTS = 6
_ALONE = 1.0
_ALONE_MOST = 15.0


class FedStep:
    """A step with a batch from `feed` for each; `waits` are the seconds that it waited in each run."""

    def __init__(self, step: Step, feed: Feed) -> None:
        self.step = step
        self.source = feed
        self.waits: list[float] = []

    def run(self, steps: int) -> float | None:
        """As `Step.run`. Raises UnavailableError where the input is damaged."""
        self.source.waited = 0.0
        loss = self.step.feed(steps, self.source.take)
        self.waits.append(self.source.waited)
        return loss

    def measure(self, timing: Timing) -> InputMeasurement:
        """What the input of the blocks in `timing` cost."""
        begin = len(timing.calibration) + len(timing.warmup) - 1
        waits = self.waits[begin:][: len(timing.blocks)]
        step = self.step
        feed = self.source
        step.run(1)
        free_steps = _steps(_timed(step.run, 1))
        fed_steps = _steps(statistics.median(timing.blocks) / timing.steps_per_block)
        free = list[float]()
        fed = list[float]()
        begun = time.perf_counter()
        while len(fed) < _ROUNDS and (not fed or time.perf_counter() - begun < _ROUNDS_SECONDS):
            feed.settle()
            free.append(_timed(step.run, free_steps))
            # A step that hardly waits finds the buffers full in the long run too.
            if sum(waits) > 0.01 * sum(timing.blocks):
                feed.drain()
            fed.append(_timed(self.run, fed_steps))
        return InputMeasurement(waits, free, fed, _alone(feed), feed.threads)


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
    batches = max(1, math.ceil(_ALONE / _PARTS / max(_timed(feed.drain, 1), 1e-6)))
    parts: list[PipelinePart] = []
    begin = time.perf_counter()
    while len(parts) < _PARTS and (not parts or time.perf_counter() - begin < _ALONE_MOST):
        start = time.perf_counter()
        cpu = time.process_time()
        feed.drain(batches)
        seconds = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu
        parts.append(PipelinePart(batches * feed.batch_size, seconds, cpu_seconds))
    return parts
