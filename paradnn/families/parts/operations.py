"""What the kernels ask of a framework: each has a module `{name}_operations` with its own as `OPERATIONS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: (state, one of each sequence) -> (state, outputs), tuples of tensors.
Scanned = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[tuple[Any, ...], tuple[Any, ...]]]


@dataclass(frozen=True)
class Convolution:
    """Pairs are height, width; `inputs` is the shape of the images in `layout`, `filters` (height, width, in, out)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    layout: str
    inputs: tuple[int, ...]
    filters: tuple[int, ...]


class Operations:
    """One framework's; tensors are its own, and what they hold is on its device."""

    def cast(self, values: Any, dtype: str) -> Any:
        """`values` in `dtype`: float32, bfloat16 or float16."""

    def matmul(self, a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
        """The product of two matrices, each transposed where so said."""

    def images(self, values: Any, layout: str) -> Any:
        """Images of `layout` as this framework's convolution takes them, in the same order in memory."""
        return values

    def filters(self, values: Any, layout: str) -> Any:
        """Filters (height, width, in, out) as the convolution of images in `layout` takes them."""
        return values

    def convolution_forward(self, images: Any, filters: Any, convolution: Convolution) -> Any:
        """The output of a convolution."""

    def convolution_backward_input(self, gradient: Any, filters: Any, convolution: Convolution) -> Any:
        """The gradient of its images from that of its output."""

    def convolution_backward_weights(self, images: Any, gradient: Any, convolution: Convolution) -> Any:
        """The gradient of its filters from that of its output."""

    def sigmoid(self, values: Any) -> Any:
        """1 / (1 + exp(-values))."""

    def tanh(self, values: Any) -> Any:
        """The hyperbolic tangent."""

    def relu(self, values: Any) -> Any:
        """max(0, values)."""

    def where_positive(self, values: Any, given: Any) -> Any:
        """`given` where `values` is above 0, elsewhere 0."""

    def concatenate(self, tensors: Sequence[Any]) -> Any:
        """Tensors side by side along their last axis."""

    def flat(self, values: Any) -> Any:
        """(steps, batch, width) as (steps * batch, width)."""
        return values.reshape(-1, values.shape[-1])

    def scan(self, step: Scanned, state: tuple[Any, ...], sequences: tuple[Any, ...], reverse: bool = False) -> Any:
        """(last state, outputs of all steps) of `step` along the first axis of `sequences`; `reverse`: from its end.

        Outputs stand where the sequences' elements stood that they were made of.
        """

    def sparse(self, counts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
        """The framework's sparse matrix from its elements, row by row: how many each row has, their columns."""

    def sparse_matmul(self, sparse: Any, dense: Any) -> Any:
        """The product of a sparse and a dense matrix."""
        return sparse @ dense
