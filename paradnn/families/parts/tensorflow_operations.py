"""TensorFlow's operations, as the kernels ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paradnn.families.parts.operations import Convolution, Operations, Scanned


class TensorFlowOperations(Operations):
    """See `Operations`."""

    def cast(self, values: Any, dtype: str) -> Any:
        return tf.cast(values, dtype)

    def matmul(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        return tf.matmul(a, b, transpose_a, transpose_b)

    def convolution_forward(self, images: Any, filters: Any, convolution: Convolution) -> Any:
        return tf.raw_ops.Conv2D(input=images, filter=filters, **_options(convolution))

    def convolution_backward_input(self, gradient: Any, filters: Any, convolution: Convolution) -> Any:
        options = _options(convolution)
        sizes = list(convolution.inputs)
        return tf.raw_ops.Conv2DBackpropInput(input_sizes=sizes, filter=filters, out_backprop=gradient, **options)

    def convolution_backward_weights(self, images: Any, gradient: Any, convolution: Convolution) -> Any:
        options = _options(convolution)
        sizes = list(convolution.filters)
        return tf.raw_ops.Conv2DBackpropFilter(input=images, filter_sizes=sizes, out_backprop=gradient, **options)

    def where_positive(self, values: Any, given: Any) -> Any:
        return tf.where(values > 0, given, tf.zeros_like(given))

    def concatenate(self, tensors: Sequence[Any]) -> Any:
        return tf.concat(tensors, -1)

    def flat(self, values: Any) -> Any:
        return tf.reshape(values, [-1, values.shape[-1]])

    def scan(self, step: Scanned, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False) -> Any:
        length = sequences[0].shape[0]
        # What a step gives is only known once there is one.
        specimen = (
            tf.function(step).get_concrete_function(state, tuple(each[0] for each in sequences)).structured_outputs[1]
        )
        arrays = tuple(tf.TensorArray(spec.dtype, length, element_shape=spec.shape) for spec in specimen)

        def body(index: Any, state: Any, arrays: Any) -> Any:
            state, outputs = step(state, tuple(each[index] for each in sequences))
            arrays = tuple(array.write(index, output) for array, output in zip(arrays, outputs, strict=True))
            return index - 1 if reverse else index + 1, state, arrays

        first = tf.constant(length - 1 if reverse else 0)
        _, state, arrays = tf.while_loop(
            lambda index, *_: index >= 0 if reverse else index < length,
            body,
            (first, state, arrays),
            maximum_iterations=length,
        )
        return state, tuple(array.stack() for array in arrays)

    def sparse(self, counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
        rows = tf.repeat(tf.range(shape[0], dtype=tf.int64), counts)
        return tf.SparseTensor(tf.stack([rows, tf.cast(columns, tf.int64)], 1), values, shape)

    def sparse_matmul(self, sparse: Any, dense: Any) -> Any:
        return tf.sparse.sparse_dense_matmul(sparse, dense)

    def sigmoid(self, values: Any) -> Any:
        return tf.sigmoid(values)

    def tanh(self, values: Any) -> Any:
        return tf.tanh(values)

    def relu(self, values: Any) -> Any:
        return tf.nn.relu(values)


def _options(convolution: Convolution) -> dict[str, Any]:
    """Strides and paddings as TensorFlow writes them, of all four axes."""
    around = [(0, 0), *((pad, pad) for pad in convolution.padding)]
    steps = [1, *convolution.stride]
    order = (0, 1, 2, 3) if convolution.layout == "NHWC" else (0, 3, 1, 2)
    steps, around = [*steps, 1], [*around, (0, 0)]
    options = {"strides": [steps[axis] for axis in order], "data_format": convolution.layout}
    if not any(convolution.padding):
        return {**options, "padding": "VALID"}
    return {**options, "padding": "EXPLICIT", "explicit_paddings": [side for axis in order for side in around[axis]]}


OPERATIONS = TensorFlowOperations()
