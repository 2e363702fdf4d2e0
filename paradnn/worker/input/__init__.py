"""Input from files: pipelines of tf.data, what a step waits for them, and what they cost the host.

`generated` makes and checks the sets that are used where the user names none; `images` and `text` build the pipelines,
stage by stage; `feed` hands batches to the step and counts; `balance` measures. TensorFlow is imported by `open_feed`
alone: a point with synthetic data, and every other framework, needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from paradnn.worker.frameworks import Framework, Step, Unavailable

if TYPE_CHECKING:
    from paradnn.worker.frameworks import FedStep
    from paradnn.worker.input.balance import Fed
    from paradnn.worker.models import Workload

__all__ = ["open_feed"]


def open_feed(point: Mapping[str, Any], workload: Workload, framework: Framework, step: Step) -> Fed | None:
    """`step` behind the pipeline that `point` asks for, buffers full; None for synthetic data. Raises Unavailable."""
    data = point["data"]
    if data["name"] == "synthetic":
        return None
    if framework.name != "tensorflow":
        raise Unavailable(
            f"data={data['name']} is read by TensorFlow's tf.data, which is not loaded beside {framework.name}: "
            "use framework=tensorflow, or data=synthetic"
        )
    from paradnn.worker.input.balance import Fed
    from paradnn.worker.input.feed import Feed

    # Of the frameworks TensorFlow's steps are those that can be fed.
    return Fed(cast("FedStep", step), Feed(point, workload))
