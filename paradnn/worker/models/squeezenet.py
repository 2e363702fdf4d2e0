"""SqueezeNet 1.0 (Iandola et al. 2016): 1,248,424 parameters, no normalisation, a dropout of one half near the end.

As published, with a 7x7 convolution without padding and poolings that round up, but for the rectifier on the last
convolution, whose mean is the logits: it dies within a few steps, and then nothing is trained. Kernels begin as He et
al. (2015) have it, the last one small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.applications import classifier, images
from paradnn.worker.models.workload import Workload

__all__ = ["build_squeezenet"]


def build_squeezenet(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
    inputs = images(model)
    x = _pool(_convolve(inputs, 96, 7, strides=2, padding="valid"))
    for index, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        x = _fire(x, squeezed)
        if index in (2, 6):
            x = _pool(x)
    x = layers.Dropout(0.5)(x)
    last = keras.initializers.RandomNormal(stddev=0.01)
    x = _convolve(x, model["output_size"], 1, activation=None, kernel_initializer=last)
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), model["output_size"])


def _fire(x: Any, squeezed: int) -> Any:
    """Squeeze to `squeezed` channels, expand to four times as many in each of two branches, side by side."""
    x = _convolve(x, squeezed, 1)
    return layers.Concatenate()([_convolve(x, 4 * squeezed, 1), _convolve(x, 4 * squeezed, 3)])


def _pool(x: Any) -> Any:
    """3x3 max pooling of stride 2; where its last window is not full, zeros fill it, below any rectifier's output."""
    short = [-(size - 3) % 2 for size in x.shape[1:3]]
    if any(short):
        x = layers.ZeroPadding2D(((0, short[0]), (0, short[1])))(x)
    return layers.MaxPooling2D(3, 2)(x)


def _convolve(x: Any, filters: int, kernel: int, **options: Any) -> Any:
    settings = {"padding": "same", "activation": "relu", "kernel_initializer": "he_normal", **options}
    return layers.Conv2D(filters, kernel, **settings)(x)
