"""The paper's three update rules, and Adam, as Keras optimizers, with loss scaling where the precision needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

__all__ = ["make_optimizer"]


def make_optimizer(settings: Mapping[str, Any], precision: str) -> keras.optimizers.Optimizer:
    """The optimizer of `settings`; float16 is wrapped in dynamic loss scaling, since its gradients underflow."""
    name, rate = settings["name"], settings["learning_rate"]
    if name == "rmsprop":
        optimizer = keras.optimizers.RMSprop(
            rate, rho=settings["decay"], momentum=settings["momentum"], epsilon=settings["epsilon"]
        )
    elif name == "adam":
        optimizer = keras.optimizers.Adam(
            rate, beta_1=settings["momentum"], beta_2=settings["decay"], epsilon=settings["epsilon"]
        )
    else:
        optimizer = keras.optimizers.SGD(rate, momentum=settings["momentum"] if name == "momentum" else 0.0)
    if precision == "float16":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer
