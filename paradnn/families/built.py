"""The parts of a family that a measurement needs: a model, the arrays of its batches, its loss.

Keras is imported only within functions, since drivers import this file too.
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
    """One array of a batch.

    Floating-point values are drawn from the standard normal distribution, integers uniformly.

    Attributes:
        shape: Shape without the batch axis.
        dtype: `float32` or `int32`.
        high: Integers are in [0, high).
        zeros: Share of an int32 array's values that are 0. The others are in [1, high).
    """

    shape: tuple[int, ...]
    dtype: str
    high: int | None = None
    zeros: float | None = None


@dataclass(frozen=True)
class FunctionModel:
    """A function with the interface that steps need of a Keras model, without Keras' dispatch.

    The function may change `non_trainable_variables`.
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
        """Call the function with these values of its variables.

        Returns:
            The results, and the values of the non-trainable variables afterwards.
        """
        if not self.variables:
            return self(operands), others
        import keras

        values = zip(self.variables, [*weights, *others], strict=True)
        with keras.StatelessScope(state_mapping=list(values)) as scope:
            results = self(operands)
        new_values = [
            scope.get_current_value(variable) for variable in self.non_trainable_variables
        ]
        return results, new_values


def no_loss(targets: Sequence[Any], outputs: Any) -> Any:
    """The loss of a workload that trains nothing. Raises TypeError."""
    raise TypeError("a workload without training has no loss")


@dataclass(frozen=True)
class BuiltModel:
    """A model and what a step needs with it.

    Attributes:
        model: The Keras model, or the function of a kernel.
        inputs: Arrays of the model's inputs.
        targets: Arrays that the loss compares the outputs with.
        loss: Function of targets and outputs. Returns the mean over examples, a float32 scalar.
        draw: Function of a random generator and the batch size. Returns the operands of a kernel,
            in place of `inputs`.
        prepare: Converts inputs once they are on the device, before the first step.
        carried: A list if each step hands variables, such as a cache, to the next one. Workloads
            that share variables share the list, in which JAX keeps their values.
        batch_size: The only batch size that the model takes; None: any.
        no_loss_reason: Why a model without targets cannot be trained.
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
    """The input of an image model, (batch, size, size, 3) float32 under every policy."""
    import keras

    return keras.Input((size, size, 3), dtype="float32")


def final_logits(x: Any) -> Any:
    """Cast logits to float32 under every policy."""
    from keras import layers

    return layers.Activation("linear", dtype="float32")(x)


def classifier(inputs: Any, outputs: Any, classes: int) -> BuiltModel:
    """A classifier of whole examples. Outputs are logits (batch, classes)."""
    import keras

    spec = ArraySpec(tuple(inputs.shape[1:]), "float32")
    target = ArraySpec((), "int32", classes)
    return BuiltModel(keras.Model(inputs, final_logits(outputs)), (spec,), (target,), cross_entropy)


def token_predictor(inputs: Any, outputs: Any, vocabulary: int) -> BuiltModel:
    """A model that predicts the token after each input token.

    Outputs are logits (batch, length, vocabulary).
    """
    import keras

    tokens = ArraySpec(tuple(inputs.shape[1:]), "int32", vocabulary)
    return BuiltModel(
        keras.Model(inputs, final_logits(outputs)), (tokens,), (tokens,), cross_entropy
    )


def cross_entropy(targets: Sequence[Any], logits: Any) -> Any:
    """Mean softmax cross entropy of float32 logits (..., classes) and int32 classes (...)."""
    from keras import losses, ops

    return ops.mean(losses.sparse_categorical_crossentropy(targets[0], logits, from_logits=True))


def squared_error(targets: Sequence[Any], outputs: Any) -> Any:
    """Mean squared error of float32 outputs (batch, 1) and float32 targets (batch,)."""
    from keras import ops

    return ops.mean(ops.square(outputs[:, 0] - targets[0]))
