"""The result of building a model: the Keras model, the arrays of its batches, and its loss.

Keras is imported only within functions, because drivers import this file, too.
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
    """Specification of one randomly drawn array of a batch.

    Floating-point values are drawn from the standard normal distribution, integers uniformly.

    Attributes:
        shape: Shape without the batch axis.
        dtype: `float32` or `int32`.
        high: Integers are drawn from [0, high); None for float32.
        zeros: Fraction of an int32 array's values that are 0; the remaining values are drawn from
            [1, high). If None, all values are drawn from [0, high).
    """

    shape: tuple[int, ...]
    dtype: str
    high: int | None = None
    zeros: float | None = None


@dataclass(frozen=True)
class FunctionModel:
    """A function that timed steps can call like a Keras model.

    It has the attributes and methods of a Keras model that a timed step uses. Calls avoid the
    overhead of Keras' layers.

    Attributes:
        compute: The function. Its positional arguments are the operands, such as the two factors of
            a matrix product.
        trainable_variables: Variables that the function reads and training changes.
        non_trainable_variables: Other variables, which the function may change.
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
        """Call the function with given values of its variables, as Keras' method of this name does.

        Args:
            weights: Values of the trainable variables.
            others: Values of the non-trainable variables.
            operands: Argument of the function, or a list of its arguments.
            training: Ignored; Keras models have this argument.

        Returns:
            The results, and the values of the non-trainable variables after the call.
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
    """Raise TypeError, as the default loss of models that cannot be trained.

    Args:
        targets: Ignored; a loss has this argument.
        outputs: Ignored; a loss has this argument.
    """
    raise TypeError("a workload without training has no loss")


@dataclass(frozen=True)
class BuiltModel:
    """A model, the arrays of its batches, and its loss.

    Attributes:
        model: The Keras model, or the function of a kernel.
        inputs: The arrays of the model's inputs.
        targets: The arrays with which the loss compares the outputs; empty if the model cannot be
            trained.
        loss: Function of targets and outputs that returns the mean loss over the examples, a
            float32 scalar.
        draw: Function of a random generator and the batch size that returns the operands of a
            kernel. It replaces `inputs`. None for other models.
        prepare: Function that converts the inputs on the device, once before the first step.
        carried: A list if each step passes variables, such as a cache, to the next step; otherwise
            None. On JAX, the list contains the values of the variables. Models with common
            variables share one list.
        batch_size: The only batch size that the model accepts; None: any.
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
    """Return the Keras input of an image model.

    Args:
        size: Height and width of the images, in pixels.

    Returns:
        An input of shape (batch, size, size, 3), which is float32 under every dtype policy.
    """
    import keras

    return keras.Input((size, size, 3), dtype="float32")


def final_logits(x: Any) -> Any:
    """Append a layer that casts logits to float32 under every Keras dtype policy.

    Args:
        x: The logits, a Keras tensor of any shape.

    Returns:
        The float32 logits, a Keras tensor of the same shape.
    """
    from keras import layers

    return layers.Activation("linear", dtype="float32")(x)


def classifier(inputs: Any, outputs: Any, classes: int) -> BuiltModel:
    """Make a `BuiltModel` that classifies examples.

    Args:
        inputs: Input of the Keras model.
        outputs: Logits, (batch, classes).
        classes: Number of classes.
    """
    import keras

    spec = ArraySpec(tuple(inputs.shape[1:]), "float32")
    target = ArraySpec((), "int32", classes)
    return BuiltModel(keras.Model(inputs, final_logits(outputs)), (spec,), (target,), cross_entropy)


def token_predictor(inputs: Any, outputs: Any, vocabulary: int) -> BuiltModel:
    """Make a `BuiltModel` that predicts the token after each input token.

    Args:
        inputs: Input of the Keras model, (batch, length) tokens.
        outputs: Logits, (batch, length, vocabulary).
        vocabulary: Number of distinct tokens.
    """
    import keras

    tokens = ArraySpec(tuple(inputs.shape[1:]), "int32", vocabulary)
    return BuiltModel(
        keras.Model(inputs, final_logits(outputs)), (tokens,), (tokens,), cross_entropy
    )


def cross_entropy(targets: Sequence[Any], logits: Any) -> Any:
    """Return the mean softmax cross entropy.

    Args:
        targets: One array of int32 classes (...).
        logits: float32 logits (..., classes).
    """
    from keras import losses, ops

    return ops.mean(losses.sparse_categorical_crossentropy(targets[0], logits, from_logits=True))


def squared_error(targets: Sequence[Any], outputs: Any) -> Any:
    """Return the mean squared error.

    Args:
        targets: One float32 array (batch,).
        outputs: float32 outputs (batch, 1).
    """
    from keras import ops

    return ops.mean(ops.square(outputs[:, 0] - targets[0]))
