"""Residual networks of two block types (paper, section 2.1; He et al. 2016).

Stem (7x7 convolution of stride 2, 3x3 max pooling of stride 2), four groups of blocks whose width doubles, global
average pooling, a dense classifier. The stride of a bottleneck block sits on its 3x3 convolution, and a projection
replaces the shortcut where the shape changes, as in the common ResNet-50 ("v1.5"): blocks 3,4,6,3 with 64 filters and
1000 classes have its 25,557,032 parameters.

Three groups are the form for small images (He et al. 2016, section 4.2): a 3x3 convolution as stem, no pooling, and
shortcuts without parameters, which take every second pixel and fill new channels with zeros. Blocks 9,9,9 with 16
filters are ResNet-56.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers, ops

from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["EXPANSION", "build_cnn"]

#: How much wider a block's output is than its inner convolutions.
EXPANSION = {"residual": 1, "bottleneck": 4}

#: From a block's input, the width of its output and its stride.
Shortcut = Callable[[Any, int, int], Any]


def build_cnn(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes; `blocks`: four numbers, or three."""
    block = _residual_block if model["name"] == "residual" else _bottleneck_block
    is_small = len(model["blocks"]) == 3
    shortcut = _padded if is_small else _projected
    shape = (model["image_size"], model["image_size"], 3)
    inputs = keras.Input(shape, dtype="float32")
    if is_small:
        x = _convolve(inputs, model["filters"], 3, 1)
    else:
        x = layers.MaxPooling2D(3, 2, padding="same")(_convolve(inputs, model["filters"], 7, 2))
    for group, count in enumerate(model["blocks"]):
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            x = block(x, model["filters"] * 2**group, stride, shortcut)
    x = layers.Dense(model["output_size"])(layers.GlobalAveragePooling2D()(x))
    logits = layers.Activation("linear", dtype="float32")(x)
    return Workload(
        keras.Model(inputs, logits),
        inputs=(ArraySpec(shape, "float32"),),
        targets=(ArraySpec((), "int32", model["output_size"]),),
        loss=cross_entropy,
    )


def _residual_block(x: Any, width: int, stride: int, shortcut: Shortcut) -> Any:
    y = _convolve(x, width, 3, stride)
    y = _convolve(y, width, 3, 1, relu=False)
    return layers.ReLU()(layers.Add()([y, shortcut(x, width, stride)]))


def _bottleneck_block(x: Any, width: int, stride: int, shortcut: Shortcut) -> Any:
    y = _convolve(x, width, 1, 1)
    y = _convolve(y, width, 3, stride)
    y = _convolve(y, EXPANSION["bottleneck"] * width, 1, 1, relu=False)
    return layers.ReLU()(layers.Add()([y, shortcut(x, EXPANSION["bottleneck"] * width, stride)]))


def _padded(x: Any, width: int, stride: int) -> Any:
    """The block's input: every second of its pixels where the block takes strides, zeros for channels that are new."""
    if stride > 1:
        x = x[:, ::stride, ::stride, :]
    return x if x.shape[-1] == width else ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])])


def _projected(x: Any, width: int, stride: int) -> Any:
    """The block's input, projected where the block changes its shape."""
    return x if x.shape[-1] == width and stride == 1 else _convolve(x, width, 1, stride, relu=False)


def _convolve(x: Any, width: int, kernel: int, stride: int, relu: bool = True) -> Any:
    """Convolution without bias, batch normalisation, and a rectifier unless the block adds first."""
    x = layers.Conv2D(width, kernel, stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
    return layers.ReLU()(x) if relu else x
