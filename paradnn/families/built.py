"""What a family hands to the measurement: a model, the shape of its batches, its loss.

Keras is imported where something is built or computed, since drivers read this file too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras
    import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """One array of a batch: `shape` without the batch axis; int32 values are uniform in [0, high),
    floats normal. zeros: the share of an int32 array's values that are 0; the others are then
    uniform in [1, high).
    """

    shape: tuple[int, ...]
    dtype: str
    high: int | None = None
    zeros: float | None = None


@dataclass(frozen=True)
class FunctionModel:
    """A function of its operands where a model is expected: what steps ask of a Keras model,
    without its dispatch; it may change `non_trainable_variables`.
    """

    compute: Callable[..., Any]
    trainable_variables: Sequence[keras.Variable] = ()
    non_trainable_variables: Sequence[keras.Variable] = ()

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self.trainable_variables, *self.non_trainable_variables]

    def __call__(self, operands: Any, training: bool = False) -> Any:
        if isinstance(operands, list | tuple):
            return self.compute(*operands)
        return self.compute(operands)

    def stateless_call(
        self, weights: Any, others: Any, operands: Any, training: bool = False
    ) -> Any:
        """The results for variables of these values, and the non-trainable ones' values then."""
        if not self.variables:
            return self(operands), others
        import keras

        given = zip(self.variables, [*weights, *others], strict=True)
        with keras.StatelessScope(state_mapping=list(given)) as scope:
            results = self(operands)
        return results, [
            scope.get_current_value(variable) for variable in self.non_trainable_variables
        ]


def no_loss(targets: Sequence[Any], outputs: Any) -> Any:
    """Of what trains nothing."""
    raise TypeError("what trains nothing has no loss")


@dataclass(frozen=True)
class BuiltModel:
    """A model with what it takes to train it. `loss(targets, outputs)` is a float32 scalar, a mean
    over examples.

    Of a kernel `draw(generator, batch_size)` gives the inputs in place of `inputs`, and `prepare`
    makes operands of them, once, when they are on the device. `carried` is a list where a step
    hands variables on to the next one, as a cache: the same one for workloads that share them, in
    which JAX keeps the variables' values.

    `batch_size` is the only one that the model takes, None for any. `no_loss_reason` says why a
    model without targets cannot be trained.
    """

    model: keras.Model | FunctionModel
    inputs: tuple[ArraySpec, ...]
    targets: tuple[ArraySpec, ...] = ()
    loss: Callable[[Sequence[Any], Any], Any] = no_loss
    draw: Callable[[np.random.Generator, int], list[np.ndarray]] | None = None
    prepare: Callable[[list[Any]], list[Any]] = list
    carried: list[Any] | None = None
    batch_size: int | None = None
    no_loss_reason: str = "it has several outputs"


def image_input(size: int) -> Any:
    """The input of a model of images: (batch, size, size, 3) in float32, whatever the policy."""
    import keras

    return keras.Input((size, size, 3), dtype="float32")


def final_logits(x: Any) -> Any:
    """Logits in float32, whatever the policy."""
    from keras import layers

    return layers.Activation("linear", dtype="float32")(x)


def classifier(inputs: Any, outputs: Any, classes: int) -> BuiltModel:
    """A model whose outputs (batch, classes) are the logits of one class of each example."""
    import keras

    spec = ArraySpec(tuple(inputs.shape[1:]), "float32")
    target = ArraySpec((), "int32", classes)
    return BuiltModel(keras.Model(inputs, final_logits(outputs)), (spec,), (target,), cross_entropy)


def token_predictor(inputs: Any, outputs: Any, vocabulary: int) -> BuiltModel:
    """A model whose outputs (batch, length, vocabulary) are the logits of the token that follows
    each of its inputs.
    """
    import keras

    tokens = ArraySpec(tuple(inputs.shape[1:]), "int32", vocabulary)
    return BuiltModel(
        keras.Model(inputs, final_logits(outputs)), (tokens,), (tokens,), cross_entropy
    )


def cross_entropy(targets: Sequence[Any], logits: Any) -> Any:
    """Softmax cross entropy of float32 logits (..., classes) with int32 classes (...), averaged
    over all of them.
    """
    from keras import losses, ops

    return ops.mean(losses.sparse_categorical_crossentropy(targets[0], logits, from_logits=True))


def squared_error(targets: Sequence[Any], outputs: Any) -> Any:
    """Mean squared difference of float32 outputs (batch, 1) from float32 targets (batch,)."""
    from keras import ops

    return ops.mean(ops.square(outputs[:, 0] - targets[0]))
