"""Keras optimizers (SGD, momentum, RMSProp and Adam) and learning-rate schedules."""

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops


class RateSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning rate as a function of the step.

    The rate rises linearly to `rate` during warm-up. Then it stays constant or falls to 0
    (Loshchilov and Hutter 2017, without restarts).

    Args:
        rate: The highest learning rate.
        shape: The shape after warm-up: "constant", "linear", or "cosine" for half a cosine.
        rise: Number of warm-up steps. The rate of the first step is already above 0.
        steps: Number of the step at which the rate reaches 0, unless it stays constant.
    """

    def __init__(self, rate: float, shape: str, rise: int, steps: int) -> None:
        super().__init__()
        self.rate = rate
        self.shape = shape
        self.rise = rise
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        progress = ops.clip((step - self.rise) / max(1, self.steps - self.rise), 0.0, 1.0)
        decay: Any = 1.0
        if self.shape == "linear":
            decay = 1.0 - progress
        elif self.shape == "cosine":
            decay = 0.5 * (1.0 + ops.cos(math.pi * progress))
        warmup = (step + 1.0) / max(1, self.rise)
        return self.rate * ops.minimum(warmup, decay)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"rate": self.rate, "shape": self.shape, "rise": self.rise, "steps": self.steps}


def make_optimizer(point: Mapping[str, Any], variables: Any) -> keras.optimizers.Optimizer:
    """Return the optimizer of a configuration, with its state built for the given weights.

    With float16, the optimizer scales the loss dynamically, because gradients would underflow.

    Args:
        point: The configuration to measure, with the keys `optimizer` and `precision`. The optional
            `schedule` in `optimizer` contains the keyword arguments of `RateSchedule` other than
            `rate`.
        variables: The weights to train, as Keras variables.
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
        momentum = settings["momentum"] if name == "momentum" else 0.0
        optimizer = keras.optimizers.SGD(rate, momentum=momentum)
    if point["precision"] == "float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer
