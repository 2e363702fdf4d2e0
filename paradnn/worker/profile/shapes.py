"""FLOPs and bytes of one operation from its shapes: the only place where they are counted.

The rules are those of `paradnn.families` and of XLA's and TensorFlow's own cost analyses: a multiply-accumulate is two
FLOPs, an elementwise operation one for each element of its output, a reduction one for each element of its input;
padding counts as work, the holes of a dilated convolution do not. Bytes are every input read once and every output
written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Bytes of an element, by the name of its type in TensorFlow and in HLO.
BYTES = {
    name: size
    for size, names in (
        (1, "pred bool int8 uint8"),
        (2, "int16 uint16 bfloat16 float16"),
        (4, "int32 uint32 float32"),
        (8, "int64 uint64 float64 complex64"),
        (16, "complex128"),
    )
    for name in names.split()
}


@dataclass(frozen=True)
class Shape:
    """A tensor: the name of its element type and its dimensions."""

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """How many bytes it takes; a type that is not known (a handle, a token) takes none."""
        return self.elements * BYTES.get(self.dtype, 0)


@dataclass(frozen=True)
class Cost:
    """What one execution of an operation costs; None where the shapes do not say.

    `kind` is the operation's type by the framework's name, `category` by ours: matmul, convolution, elementwise,
    reduction, data movement, control, other. `product_flops` is the part of `flops` in matrix products and
    convolutions, `dtype` the type in which those multiply.
    """

    kind: str
    category: str
    flops: float | None = None
    bytes: float | None = None
    product_flops: float = 0.0
    dtype: str | None = None


def matmul_flops(output: Sequence[int], contracted: int) -> int:
    """2 x elements of the product x length of the contracted dimension; batched products included."""
    return 2 * math.prod(output) * contracted


def attention_flops(query: Shape, keys: int, *, backward: bool = False) -> int:
    """2 products of all queries with `keys` keys, 4 in the backward pass; `query` has every head's dimensions.

    What a fused kernel computes twice, and what it skips because of a causal mask, makes no difference.
    """
    return (4 if backward else 2) * 2 * query.elements * keys


def convolution_flops(output: Sequence[int], kernel: Sequence[int], channels: int) -> int:
    """2 x output elements x kernel positions x input channels of the kernel (those of one group)."""
    return 2 * math.prod(output) * math.prod(kernel) * channels


def reduce_flops(elements: int) -> int:
    """One operation for each element that is reduced."""
    return elements


def spatial_pairs(outputs: int, size: int, stride: int, padding: int, dilation: int, base_dilation: int) -> int:
    """Pairs of an output and a kernel position, along one dimension, whose input is not a hole between its elements.

    A strided convolution's input gradient is a convolution over an input spread out by `base_dilation`; the
    positions between are zeros that are not multiplied.
    """
    if base_dilation <= 1:
        return outputs * size
    return sum(
        (index * stride + position * dilation - padding) % base_dilation == 0
        for index in range(outputs)
        for position in range(size)
    )


def total_bytes(shapes: Iterable[Shape]) -> int:
    """The bytes of several tensors."""
    return sum(shape.bytes for shape in shapes)


def words(names: str) -> frozenset[str]:
    """The names of a text, which blanks separate."""
    return frozenset(names.split())
