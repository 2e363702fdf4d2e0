"""Input from files: `pipelines` of tf.data and the sets that are made where the user names none; `feed` hands their
batches to the step and measures what it waits for them, and what they cost the host. A point with synthetic data, and
every other framework, needs no TensorFlow for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paradnn.core.workload import Unavailable
from paradnn.worker.frameworks import Framework, Step

if TYPE_CHECKING:
    from paradnn.families.built import BuiltModel
    from paradnn.worker.input.feed import FedStep


def reads_files(point: Mapping[str, Any]) -> bool:
    """Whether the batches of `point` come from files; a request without data has a synthetic one, and a set to learn
    from or to judge by is no input of the step that is timed."""
    return "data" in point and point["data"]["name"] != "synthetic" and "learning_set" not in point


def open_feed(point: Mapping[str, Any], workload: BuiltModel, framework: Framework, step: Step) -> FedStep | None:
    """`step` behind the pipeline that `point` asks for, buffers full; None for synthetic data. Raises Unavailable."""
    if not reads_files(point):
        return None
    if framework.name != "tensorflow":
        reads = f"data={point['data']['name']} is read by TensorFlow's tf.data, which is not loaded beside"
        raise Unavailable(f"{reads} {framework.name}: use framework=tensorflow, or data=synthetic")
    from paradnn.worker.input.feed import FedStep, Feed

    return FedStep(step, Feed(point, workload))
