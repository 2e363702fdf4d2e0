"""Fully connected: input -> [Dense(nodes, relu)] x layers -> Dense(output) (paper, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy, squared_error

__all__ = ["build_fc"]


def build_fc(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, input_size) float32, targets (batch,) classes, or float32 where there is one output."""
    inputs = keras.Input((model["input_size"],), dtype="float32")
    x = inputs
    nodes = model["nodes"]
    for width in [nodes] * model["layers"] if isinstance(nodes, int) else nodes:
        x = layers.Dense(width, activation="relu")(x)
    x = layers.Dense(model["output_size"])(x)
    logits = layers.Activation("linear", dtype="float32")(x)
    return Workload(
        keras.Model(inputs, logits),
        inputs=(ArraySpec((model["input_size"],), "float32"),),
        targets=(
            ArraySpec((), "int32", model["output_size"]) if model["output_size"] > 1 else ArraySpec((), "float32"),
        ),
        loss=cross_entropy if model["output_size"] > 1 else squared_error,
    )
