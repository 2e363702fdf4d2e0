"""The paper's three update rules, and Adam, as Keras optimizers, with loss scaling where the
precision needs it, and schedules of the learning rate.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops


class RateSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A learning rate over the steps of a training: it rises to `rate` in `rise` steps, the first
    of which counts, and falls to 0 until `steps` along a line or half a cosine (`shape` linear or
    cosine; Loshchilov and Hutter 2017, without restarts), or stays (constant).
    """

    def __init__(self, rate: float, shape: str, rise: int, steps: int) -> None:
        super().__init__()
        self.rate = rate
        self.shape = shape
        self.rise = rise
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        share = ops.clip((step - self.rise) / max(1, self.steps - self.rise), 0.0, 1.0)
        fallen = {"linear": 1.0 - share, "cosine": 0.5 * (1.0 + ops.cos(math.pi * share))}.get(
            self.shape, 1.0
        )
        return self.rate * ops.minimum((step + 1.0) / max(1, self.rise), fallen)

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate, "shape": self.shape, "rise": self.rise, "steps": self.steps}


def make_optimizer(point: Mapping[str, Any], variables: Any) -> keras.optimizers.Optimizer:
    """The optimizer of a point for these weights; of float16, whose gradients underflow, in dynamic
    loss scaling. A `schedule` in its settings are the keywords of `RateSchedule`.
    """
    settings = point["optimizer"]
    name = settings["name"]
    rate = settings["learning_rate"]
    schedule = settings.get("schedule", {})
    if schedule and (schedule["shape"] != "constant" or schedule["rise"]):
        rate = RateSchedule(rate, **schedule)
    if name == "rmsprop":
        optimizer = keras.optimizers.RMSprop(
            rate, rho=settings["decay"], momentum=settings["momentum"], epsilon=settings["epsilon"]
        )
    elif name == "adam":
        optimizer = keras.optimizers.Adam(
            rate, beta_1=settings["momentum"], beta_2=settings["decay"], epsilon=settings["epsilon"]
        )
    else:
        optimizer = keras.optimizers.SGD(
            rate, momentum=settings["momentum"] if name == "momentum" else 0.0
        )
    if point["precision"] == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer
