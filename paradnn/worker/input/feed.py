"""The pipeline of a point as the step sees it: a batch for each step, what the step waited for it, what was damaged.

The pipeline works in threads of its own, `data.threads` of them and no more, while the step runs; its buffers are full
when a Feed was made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from paradnn.families.workload import Workload
from paradnn.worker.data import synthetic_batch
from paradnn.worker.frameworks import FeedableStep, Unavailable
from paradnn.worker.input import images, text

__all__ = ["Feed", "cores", "with_threads"]

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

    def __init__(self, point: Mapping[str, Any], workload: Workload, slow: Callable[[], None] = lambda: None) -> None:
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


def _pipeline(point: Mapping[str, Any], workload: Workload) -> tuple[Any, Callable[..., tuple[Any, Any]]]:
    """The pipeline, and what makes inputs and targets of its batches.

    Targets that the pipeline has no labels for (boxes on anchors) are synthetic and stay where they are.
    """
    data, seed, batch_size = point["data"], point["seed"], point["batch_size"]
    inputs, targets = workload.inputs, workload.targets
    if data["name"] == "images":
        labelled = len(targets) == 1 and targets[0].dtype == "int32" and targets[0].shape == ()
        classes = targets[0].high if labelled else None
        fixed = [] if labelled else [tf.constant(array) for array in synthetic_batch(workload, batch_size, seed)[1]]
        pipeline = images.ImagePipeline(data, inputs[0].shape, classes, batch_size, seed)
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

    return text.TextPipeline(data, sum(lengths), vocabulary, batch_size, seed), arrange


def _resident() -> int | None:
    """Resident bytes of this process, where the system reports it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
