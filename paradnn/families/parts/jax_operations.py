"""JAX's operations, as the kernels ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO

from paradnn.families.parts.operations import Convolution, Operations, Scanned


class JaxOperations(Operations):
    """See `Operations`."""

    def cast(self, values: Any, dtype: str) -> Any:
        return values.astype(dtype)

    def matmul(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        return jax.lax.dot_general(a, b, (((0 if transpose_a else 1,), (1 if transpose_b else 0,)), ((), ())))

    def convolution_forward(self, images: Any, filters: Any, convolution: Convolution) -> Any:
        padding = [(pad, pad) for pad in convolution.padding]
        numbers = (convolution.layout, "HWIO", convolution.layout)
        return jax.lax.conv_general_dilated(images, filters, convolution.stride, padding, dimension_numbers=numbers)

    def convolution_backward_input(self, gradient: Any, filters: Any, convolution: Convolution) -> Any:
        images = jax.ShapeDtypeStruct(convolution.inputs, gradient.dtype)
        backward = jax.linear_transpose(lambda images: self.convolution_forward(images, filters, convolution), images)
        return backward(gradient)[0]

    def convolution_backward_weights(self, images: Any, gradient: Any, convolution: Convolution) -> Any:
        filters = jax.ShapeDtypeStruct(convolution.filters, gradient.dtype)
        backward = jax.linear_transpose(lambda filters: self.convolution_forward(images, filters, convolution), filters)
        return backward(gradient)[0]

    def where_positive(self, values: Any, given: Any) -> Any:
        return jnp.where(values > 0, given, 0)

    def concatenate(self, tensors: Sequence[Any]) -> Any:
        return jnp.concatenate(tensors, -1)

    def scan(self, step: Scanned, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False) -> Any:
        return jax.lax.scan(step, state, sequences, reverse=reverse)

    def sparse(self, counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
        rows = jnp.repeat(jnp.arange(shape[0], dtype=columns.dtype), counts, total_repeat_length=columns.size)
        indices = jnp.stack([rows, columns], 1)
        return BCOO((values, indices), shape=shape, indices_sorted=True, unique_indices=True)

    def sigmoid(self, values: Any) -> Any:
        return jax.nn.sigmoid(values)

    def tanh(self, values: Any) -> Any:
        return jnp.tanh(values)

    def relu(self, values: Any) -> Any:
        return jax.nn.relu(values)


OPERATIONS = JaxOperations()
