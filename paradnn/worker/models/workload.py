"""What a family hands to the measurement: a model, the shape of its batches, its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

__all__ = ["ArraySpec", "Kernel", "Workload", "cross_entropy", "squared_error"]


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
class Kernel:
    """A function of its operands where a model is expected: what steps ask of a Keras model, without its dispatch."""

    compute: Callable[..., Any]
    trainable_variables: tuple[Any, ...] = ()
    non_trainable_variables: tuple[Any, ...] = ()
    variables: tuple[Any, ...] = ()

    def __call__(self, operands: Sequence[Any], training: bool = False) -> Any:
        """The results, tensors of the framework."""
        return self.compute(*operands)

    def stateless_call(self, weights: Any, others: Any, operands: Sequence[Any], training: bool = False) -> Any:
        """The results, and the variables as they were: there are none."""
        return self.compute(*operands), others


@dataclass(frozen=True)
class Workload:
    """A model with what it takes to train it. `loss(targets, outputs)` is a float32 scalar, a mean over examples.

    A kernel's operands are not examples: `draw(generator, batch_size)` gives its inputs in place of `inputs`, and
    `prepare` makes operands of them, once, when they are on the device.

    `carried` is a list where a step hands variables on to the next one, as a cache: the same one for workloads that
    share them. JAX keeps the values of the variables in it, which there is no other place for.
    """

    model: keras.Model | Kernel
    inputs: tuple[ArraySpec, ...]
    targets: tuple[ArraySpec, ...]
    loss: Callable[[Sequence[Any], Any], Any]
    draw: Callable[[np.random.Generator, int], list[np.ndarray]] | None = None
    prepare: Callable[[list[Any]], list[Any]] = list
    carried: list[Any] | None = None


def cross_entropy(targets: Sequence[Any], logits: Any) -> Any:
    """Softmax cross entropy of float32 logits (..., classes) with int32 classes (...), averaged over all of them."""
    return ops.mean(keras.losses.sparse_categorical_crossentropy(targets[0], logits, from_logits=True))


def squared_error(targets: Sequence[Any], outputs: Any) -> Any:
    """Mean squared difference of float32 outputs (batch, 1) from float32 targets (batch,)."""
    return ops.mean(ops.square(outputs[:, 0] - targets[0]))
