"""The operations of kernels in TensorFlow; `paradnn.families.parts` documents them."""
# ruff: noqa: D103

from typing import Any

import tensorflow as tf

from paradnn.families.kernels import Conv2d

cast = tf.cast
matmul = tf.matmul
sigmoid = tf.sigmoid
tanh = tf.tanh
relu = tf.nn.relu
sparse_matmul = tf.sparse.sparse_dense_matmul
sign = tf.sign
reshape = tf.reshape
concatenate = tf.concat


def images(values: Any, layout: str) -> Any:
    return values


filters = images


def convolution_forward(images: Any, filters: Any, kernel: Conv2d) -> Any:
    return tf.raw_ops.Conv2D(input=images, filter=filters, **_convolution_options(kernel))


def convolution_backward_input(gradient: Any, filters: Any, kernel: Conv2d) -> Any:
    sizes = list(kernel.images(gradient.shape[0]))
    options = _convolution_options(kernel)
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=sizes, filter=filters, out_backprop=gradient, **options
    )


def convolution_backward_weights(images: Any, gradient: Any, kernel: Conv2d) -> Any:
    sizes = list(kernel.filter_shape)
    options = _convolution_options(kernel)
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=sizes, out_backprop=gradient, **options
    )


def _convolution_options(kernel: Conv2d) -> dict[str, Any]:
    paddings = [(0, 0), *((pad, pad) for pad in kernel.padding), (0, 0)]
    strides = [1, *kernel.stride, 1]
    order = (0, 1, 2, 3) if kernel.layout == "NHWC" else (0, 3, 1, 2)
    options = {"strides": [strides[axis] for axis in order], "data_format": kernel.layout}
    if not any(kernel.padding):
        return {**options, "padding": "VALID"}
    return {
        **options,
        "padding": "EXPLICIT",
        "explicit_paddings": [zeros for axis in order for zeros in paddings[axis]],
    }


def scan(
    step: Any, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False
) -> Any:
    length = sequences[0].shape[0]
    # Trace one step for the types and shapes of its outputs.
    first_elements = tuple(sequence[0] for sequence in sequences)
    traced = tf.function(step).get_concrete_function(state, first_elements)
    arrays = tuple(
        tf.TensorArray(spec.dtype, length, element_shape=spec.shape)
        for spec in traced.structured_outputs[1]
    )
    first_index = length - 1 if reverse else 0

    def body(index: Any, state: Any, arrays: Any) -> Any:
        state, outputs = step(state, tuple(sequence[index] for sequence in sequences))
        arrays = tuple(
            array.write(index, output) for array, output in zip(arrays, outputs, strict=True)
        )
        return index - 1 if reverse else index + 1, state, arrays

    _, state, arrays = tf.while_loop(
        lambda index, *_: index >= 0 if reverse else index < length,
        body,
        (tf.constant(first_index), state, arrays),
        maximum_iterations=length,
    )
    return state, tuple(array.stack() for array in arrays)


def sparse(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    rows = tf.repeat(tf.range(shape[0], dtype=tf.int64), counts)
    return tf.SparseTensor(tf.stack([rows, tf.cast(columns, tf.int64)], 1), values, shape)


def csr(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    # The public raw operations lose the shape, which a graph needs. This object is not a tensor, so
    # it is passed to the step unchanged, and the graph captures the tensor in it.
    from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops

    return sparse_csr_matrix_ops.CSRSparseMatrix(sparse(counts, columns, values, shape))


def csr_matmul(csr: Any, dense: Any) -> Any:
    from tensorflow.python.ops.linalg.sparse import sparse_csr_matrix_ops

    return sparse_csr_matrix_ops.matmul(csr, dense)
