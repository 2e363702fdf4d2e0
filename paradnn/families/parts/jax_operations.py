"""The operations of kernels in JAX; `paradnn.families.parts` documents them."""
# ruff: noqa: D103

import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO, BCSR

from paradnn.families.kernels import Conv2d

sigmoid = jax.nn.sigmoid
tanh = jnp.tanh
relu = jax.nn.relu
sparse_matmul = operator.matmul
csr_matmul = operator.matmul
sign = jnp.sign
reshape = jnp.reshape
concatenate = jnp.concatenate


def cast(values: Any, dtype: str) -> Any:
    return values.astype(dtype)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return jax.lax.dot_general(
        a, b, (((0 if transpose_a else 1,), (1 if transpose_b else 0,)), ((), ()))
    )


def images(values: Any, layout: str) -> Any:
    return values


filters = images


def convolution_forward(images: Any, filters: Any, kernel: Conv2d) -> Any:
    padding = [(pad, pad) for pad in kernel.padding]
    numbers = (kernel.layout, "HWIO", kernel.layout)
    return jax.lax.conv_general_dilated(
        images, filters, kernel.stride, padding, dimension_numbers=numbers
    )


def convolution_backward_input(gradient: Any, filters: Any, kernel: Conv2d) -> Any:
    images = jax.ShapeDtypeStruct(kernel.images(gradient.shape[0]), gradient.dtype)
    backward = jax.linear_transpose(
        lambda images: convolution_forward(images, filters, kernel), images
    )
    return backward(gradient)[0]


def convolution_backward_weights(images: Any, gradient: Any, kernel: Conv2d) -> Any:
    filters = jax.ShapeDtypeStruct(kernel.filter_shape, gradient.dtype)
    backward = jax.linear_transpose(
        lambda filters: convolution_forward(images, filters, kernel), filters
    )
    return backward(gradient)[0]


def scan(
    step: Any, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False
) -> Any:
    return jax.lax.scan(step, state, sequences, reverse=reverse)


def sparse(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    rows = jnp.repeat(
        jnp.arange(shape[0], dtype=columns.dtype), counts, total_repeat_length=columns.size
    )
    return BCOO(
        (values, jnp.stack([rows, columns], 1)),
        shape=shape,
        indices_sorted=True,
        unique_indices=True,
    )


def csr(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    row_starts = jnp.concatenate([jnp.zeros(1, columns.dtype), jnp.cumsum(counts)])
    return BCSR(
        (values, columns, row_starts), shape=shape, indices_sorted=True, unique_indices=True
    )
