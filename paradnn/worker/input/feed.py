"""Feed batches of an input pipeline to a step, and measure how long the step waits for them.

The pipeline runs in `data.threads` separate threads while the step runs. A new `Feed` waits until
the buffers of the pipeline are full.
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

#: The buffers of a pipeline are full once this process uses less than this fraction of a core for
#: this number of seconds.
_IDLE_FRACTION = 0.2
_IDLE_SECONDS = 0.03
#: Maximum time to wait for full buffers.
_FILL_SECONDS = 5.0
#: Parts of tf.data's error messages that describe TensorFlow's graph, not the input.
_GRAPH_PLACES = re.compile(
    r"\{\{.*?\}\} |Error in user-defined function .*? iterator: \S+ |\s+\[.*", re.DOTALL
)


def _with_threads(dataset: tf.data.Dataset, threads: int, *, is_tuned: bool) -> tf.data.Dataset:
    """Return `dataset` with a private pool of threads, which preserve the order of elements.

    Args:
        dataset: The dataset that the threads prepare.
        threads: Number of threads.
        is_tuned: Whether tf.data may tune the parallelism.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = is_tuned
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Feed:
    """Input pipeline that supplies the batches for the steps of a model.

    Args:
        point: The configuration to measure, as nested mappings of plain values. `data` contains the
            settings of the pipeline.
        workload: The model that the steps run.
        delay: Function that is called for each batch. Its duration counts as waiting. Tests insert
            a known delay.

    Attributes:
        batch_size: Number of examples per batch.
        threads: Number of threads of the pipeline.
        pipeline: The pipeline of images.
        waited: Total seconds that `take` waited since the caller last set this attribute to 0.

    Raises:
        UnavailableError: If the input is damaged or does not fill one batch.
    """

    def __init__(
        self,
        point: Mapping[str, Any],
        workload: BuiltModel,
        delay: Callable[[], None] = lambda: None,
    ) -> None:
        data = point["data"]
        self._is_training = point["mode"] == "train"
        self._delay = delay
        if data["path"] is None:
            self._source = f"data={data['name']}"
        else:
            self._source = f"data.path={data['path']}"
        self.batch_size = point["batch_size"]
        self.waited = 0.0
        self.threads = data["threads"] or _available_cores()
        seed = point["seed"]
        # The pipeline provides labels only. For other targets, such as boxes on anchors, one
        # synthetic batch of targets is used in every step.
        target_types = [(spec.dtype, spec.shape) for spec in workload.targets]
        is_labeled = target_types == [("int32", ())]
        fixed_targets = []
        classes = None
        if is_labeled:
            classes = workload.targets[0].high
        else:
            fixed_targets = synthetic_batch(workload, self.batch_size, seed)[1]
        self._targets = [tf.constant(array) for array in fixed_targets]
        self.pipeline = ImagePipeline(
            data,
            shape=workload.inputs[0].shape,
            classes=classes,
            batch_size=self.batch_size,
            seed=seed,
        )
        self._dataset = self._prefetched(data, point["platform"]["name"])
        self._iterator = iter(self._dataset)
        self.take()
        self.wait_until_full()

    def _prefetched(self, data: Mapping[str, Any], platform: str) -> tf.data.Dataset:
        """Return the batches of the pipeline, prefetched on the host and on an accelerator.

        Args:
            data: The settings of the pipeline; `prefetch` is the number of batches to prefetch.
            platform: The kind of device: "cpu" or "gpu".
        """
        prefetch = data["prefetch"]
        batches = self.pipeline.batches(data["threads"] or tf.data.AUTOTUNE)
        if prefetch:
            batches = batches.prefetch(prefetch)
        dataset = _with_threads(batches, self.threads, is_tuned=data["threads"] is None)
        buffers = 1
        if platform != "cpu":
            buffers = 2
            dataset = dataset.apply(tf.data.experimental.prefetch_to_device("GPU:0", prefetch))
        # Largest number of batches that the pipeline has finished before they are taken.
        self._buffered = prefetch * buffers + 2
        return dataset

    def take(self) -> tuple[Any, ...]:
        """Wait for the next batch, and return it: (inputs, targets), or (inputs,) in inference.

        At the end of the input, another pass over the input begins.

        Raises:
            UnavailableError: If the input is damaged or does not fill one batch.
        """
        start = time.perf_counter()
        try:
            batch = next(self._iterator, None)
            if batch is None:
                # Begin another pass over the input.
                self._iterator = iter(self._dataset)
                batch = next(self._iterator)
        except StopIteration:
            raise UnavailableError(
                f"{self._source}: has too few readable images for one batch of "
                f"{self.batch_size}; lower batch_size"
            ) from None
        except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
            reason = _GRAPH_PLACES.sub("", error.message)[:200]
            raise UnavailableError(
                f"{self._source}: is damaged, or has an unsupported format: {reason}"
            ) from None
        self._delay()
        self.waited += time.perf_counter() - start
        images, labels = batch
        if self._is_training:
            return ([images], self._targets or [labels])
        return ([images],)

    def wait_until_full(self) -> None:
        """Wait until the buffers of the pipeline are full, and the pipeline is idle."""
        end = time.perf_counter() + _FILL_SECONDS
        while time.perf_counter() < end:
            before = time.process_time()
            time.sleep(_IDLE_SECONDS)
            if time.process_time() - before < _IDLE_FRACTION * _IDLE_SECONDS:
                return

    def drain(self, batches: int = 0) -> None:
        """Take batches without using them.

        Args:
            batches: Number of batches; 0 to empty the buffers, so that the next steps must wait for
                their batches.
        """
        for _ in range(batches or self._buffered):
            self.take()


# In the timed blocks, every step takes a batch from the pipeline. Two measurements follow:
# - Rounds. In the first segment of a round, steps run on a batch that stays on the device, while
#   the pipeline is idle. In the second segment, steps run on fed batches. Because the segments
#   follow each other directly, the ratio of their times is free of drift.
# - Alone. The pipeline runs without the step, to measure its rate and its processor time.

#: Number of rounds. A 95% interval of a median needs at least six.
_ROUNDS = 6
#: Duration of a segment.
_SEGMENT_SECONDS = 0.15
#: No further round starts after this time.
_ROUNDS_SECONDS = 30.0
#: Number of parts of the measurement of the pipeline alone.
_ALONE_PARTS = 6
#: Minimum and maximum duration of all these parts together.
_ALONE_MIN_SECONDS = 1.0
_ALONE_MAX_SECONDS = 15.0
#: If steps wait for more than this fraction of their time, they outrun the pipeline: its buffers
#: are empty in the long run.
_WAITING_FRACTION = 0.01


class FedStep:
    """A step that takes each batch from an input pipeline.

    Attributes:
        step: The step, whose own batch stays on the device.
        source: The input pipeline.
        waits: For each call of `run`, the total seconds that it waited for batches.
    """

    def __init__(self, step: Step, feed: Feed) -> None:
        self.step = step
        self.source = feed
        self.waits: list[float] = []

    def run(self, steps: int) -> float | None:
        """Run steps, each on a new batch, and return the last loss; None in inference.

        Args:
            steps: The number of steps.

        Raises:
            UnavailableError: If the input is damaged.
        """
        self.source.waited = 0.0
        loss = self.step.feed(steps, self.source.take)
        self.waits.append(self.source.waited)
        return loss

    def measure(self, timing: Timing) -> InputMeasurement:
        """Measure the cost of the input pipeline, after this step was timed.

        Args:
            timing: The timed blocks of this step.

        Returns:
            The seconds that each timed block waited for batches, step times with and without the
            pipeline, and times of the pipeline without steps.
        """
        first_block = len(timing.calibration) + len(timing.warmup) - 1
        waits = self.waits[first_block : first_block + len(timing.blocks)]
        is_waiting = sum(waits) > _WAITING_FRACTION * sum(timing.blocks)
        self.step.run(1)
        free_steps = _segment_steps(_step_seconds(self.step.run, 1))
        fed_steps = _segment_steps(statistics.median(timing.blocks) / timing.steps_per_block)
        free: list[float] = []
        fed: list[float] = []
        begun = time.perf_counter()
        while len(fed) < _ROUNDS:
            if fed and time.perf_counter() - begun >= _ROUNDS_SECONDS:
                break
            self.source.wait_until_full()
            free.append(_step_seconds(self.step.run, free_steps))
            if is_waiting:
                self.source.drain()
            fed.append(_step_seconds(self.run, fed_steps))
        alone = _measure_pipeline(self.source)
        return InputMeasurement(waits, free, fed, alone, self.source.threads)


def _segment_steps(step_seconds: float) -> int:
    """Return the number of steps that take about `_SEGMENT_SECONDS`, at least 1."""
    return max(1, math.ceil(_SEGMENT_SECONDS / max(step_seconds, 1e-6)))


def _step_seconds(run: Callable[[int], float | None], steps: int) -> float:
    """Run steps, and return the mean seconds of a step."""
    start = time.perf_counter()
    run(steps)
    return (time.perf_counter() - start) / steps


def _measure_pipeline(feed: Feed) -> list[PipelinePart]:
    """Measure the pipeline several times while no steps run, and return the measurements."""
    feed.drain()

    def drain_one(_: int) -> None:
        feed.drain(1)

    batch_seconds = max(_step_seconds(drain_one, 1), 1e-6)
    batches = max(1, math.ceil(_ALONE_MIN_SECONDS / _ALONE_PARTS / batch_seconds))
    parts: list[PipelinePart] = []
    begin = time.perf_counter()
    while len(parts) < _ALONE_PARTS:
        if parts and time.perf_counter() - begin >= _ALONE_MAX_SECONDS:
            break
        start = time.perf_counter()
        cpu_start = time.process_time()
        feed.drain(batches)
        seconds = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu_start
        parts.append(PipelinePart(batches * feed.batch_size, seconds, cpu_seconds))
    return parts
