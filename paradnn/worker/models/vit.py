"""A Vision Transformer (Dosovitskiy et al. 2021).

A convolution makes one token of every patch; a learned class token comes first, learned positions are added; pre-norm
blocks of attention and a feed-forward layer of four times the width (GELU); a last normalisation; a dense layer reads
the class token. Without dropout. 12 layers of 768 with 12 heads and patches of 16 on 224 pixels are ViT-B/16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.attention import ClassToken, Positions, attend, feed_forward, final_logits
from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["build_vit"]


def build_vit(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
    width, patch, size = model["width"], model["patch"], model["image_size"]
    inputs = keras.Input((size, size, 3), dtype="float32")
    x = layers.Conv2D(width, patch, patch)(inputs)
    x = layers.Reshape(((size // patch) ** 2, width))(x)
    x = Positions(learned=True)(ClassToken()(x))
    for _ in range(model["layers"]):
        x = x + attend(_normalise(x), model["heads"])
        x = x + feed_forward(_normalise(x), 4 * width, "gelu")
    x = _normalise(x)[:, 0]
    logits = final_logits(layers.Dense(model["output_size"])(x))
    return Workload(
        keras.Model(inputs, logits),
        inputs=(ArraySpec((size, size, 3), "float32"),),
        targets=(ArraySpec((), "int32", model["output_size"]),),
        loss=cross_entropy,
    )


def _normalise(x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-6)(x)
