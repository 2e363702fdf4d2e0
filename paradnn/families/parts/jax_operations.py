"""JAX's operations, as the kernels ask for them (`paradnn.families.parts.operations`)."""
# ruff: noqa: D103

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from paradnn.families.parts.operations import Convolution

sigmoid, tanh, relu, sparse_matmul = jax.nn.sigmoid, jnp.tanh, jax.nn.relu, operator.matmul


def cast(values: Any, dtype: str) -> Any:
    return values.astype(dtype)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    return jax.lax.dot_general(a, b, (((0 if transpose_a else 1,), (1 if transpose_b else 0,)), ((), ())))


def images(values: Any, layout: str) -> Any:
    return values


filters = images


def convolution_forward(images: Any, filters: Any, convolution: Convolution) -> Any:
    padding = [(pad, pad) for pad in convolution.padding]
    numbers = (convolution.layout, "HWIO", convolution.layout)
    return jax.lax.conv_general_dilated(images, filters, convolution.stride, padding, dimension_numbers=numbers)


def convolution_backward_input(gradient: Any, filters: Any, convolution: Convolution) -> Any:
    images = jax.ShapeDtypeStruct(convolution.inputs, gradient.dtype)
    backward = jax.linear_transpose(lambda images: convolution_forward(images, filters, convolution), images)
    return backward(gradient)[0]


def convolution_backward_weights(images: Any, gradient: Any, convolution: Convolution) -> Any:
    filters = jax.ShapeDtypeStruct(convolution.filters, gradient.dtype)
    backward = jax.linear_transpose(lambda filters: convolution_forward(images, filters, convolution), filters)
    return backward(gradient)[0]


def where_positive(values: Any, given: Any) -> Any:
    return jnp.where(values > 0, given, 0)


def concatenate(tensors: Sequence[Any]) -> Any:
    return jnp.concatenate(tensors, -1)


def flat(values: Any) -> Any:
    return values.reshape(-1, values.shape[-1])


def scan(step: Any, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False) -> Any:
    return jax.lax.scan(step, state, sequences, reverse=reverse)


def sparse(counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
    rows = jnp.repeat(jnp.arange(shape[0], dtype=columns.dtype), counts, total_repeat_length=columns.size)
    return BCOO((values, jnp.stack([rows, columns], 1)), shape=shape, indices_sorted=True, unique_indices=True)
