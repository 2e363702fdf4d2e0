"""What a family hands to the measurement: a model, the shape of its batches, its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

__all__ = ["ArraySpec", "Workload", "cross_entropy"]


@dataclass(frozen=True)
class ArraySpec:
    """One array of a batch: `shape` without the batch axis; int32 values are uniform in [0, high), floats normal.

    zeros: the share of an int32 array's values that are 0; the others are then uniform in [1, high).
    """

    shape: tuple[int, ...]
    dtype: str
    high: int | None = None
    zeros: float | None = None


@dataclass(frozen=True)
class Workload:
    """A model with what it takes to train it. `loss(targets, outputs)` is a float32 scalar, a mean over examples."""

    model: keras.Model
    inputs: tuple[ArraySpec, ...]
    targets: tuple[ArraySpec, ...]
    loss: Callable[[Sequence[Any], Any], Any]


def cross_entropy(targets: Sequence[Any], logits: Any) -> Any:
    """Softmax cross entropy of float32 logits (..., classes) with int32 classes (...), averaged over all of them."""
    return ops.mean(keras.losses.sparse_categorical_crossentropy(targets[0], logits, from_logits=True))
