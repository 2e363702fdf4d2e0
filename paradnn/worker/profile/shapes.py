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
_BYTES = dict.fromkeys(("pred", "bool", "int8", "uint8"), 1)
_BYTES |= dict.fromkeys(("int16", "uint16", "bfloat16", "float16"), 2) | dict.fromkeys(
    ("int32", "uint32", "float32"), 4
)
_BYTES |= dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8) | {"complex128": 16}


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
        return self.elements * _BYTES.get(self.dtype, 0)


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


def plain_cost(kind: str, category: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape]) -> Cost:
    """The cost of what multiplies no matrices; an input that is None, and no output, are not known."""
    if category == "control":
        return Cost(kind, category, 0.0, 0.0)
    if category == "data movement":  # a gather or a slice reads what it writes, not all of its input
        return Cost(kind, category, 0.0, 2.0 * total_bytes(outputs) if outputs else None)
    known = [shape for shape in inputs if shape is not None]
    worked = [max(shape.elements for shape in known)] if category == "reduction" and known else []
    worked = worked if category == "reduction" else [shape.elements for shape in outputs]
    complete = len(known) == len(inputs) and outputs
    moved = float(total_bytes(known) + total_bytes(outputs)) if complete else None
    return Cost(kind, category, float(sum(worked)) if worked else None, moved)


def sum_products(costs: Iterable[Cost]) -> dict[str, float]:
    """FLOPs of all products by the type that they multiply."""
    total: dict[str, float] = {}
    for cost in costs:
        if cost.product_flops:
            total[cost.dtype or "unknown"] = total.get(cost.dtype or "unknown", 0.0) + cost.product_flops
    return total


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
