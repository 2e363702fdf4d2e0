"""FLOPs and bytes of one operation from its shapes: the only place where they are counted.

As in XLA's and TensorFlow's own cost analyses a multiply-accumulate is two FLOPs, an elementwise
operation one for each element of its output, a reduction one for each element of its input; padding
counts as work, the holes of a dilated convolution do not. Bytes are every input read once and every
output written once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: How many bits an element has, by the name of its type in TensorFlow, PyTorch and HLO.
_BITS = re.compile(r"(?:float|int|complex)(\d+)")


@dataclass(frozen=True)
class Shape:
    """A tensor: the name of its element type and its dimensions."""

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """How many bytes it takes; a type that is not known (a handle, a token) takes none."""
        numbered = _BITS.search(self.dtype)
        if numbered:
            bits = int(numbered[1])
        else:
            bits = 8 * (self.dtype in ("pred", "bool"))
        return self.elements * bits // 8


@dataclass(frozen=True)
class Cost:
    """What one execution of an operation costs; None where the shapes do not say. `kind` is its
    type by the framework's name, `category` by ours (`categorise`); `product_flops` is the part of
    `flops` in matrix products and convolutions, `dtype` the type in which those multiply;
    `operands` the elements of a single product's, with its result's.
    """

    kind: str
    category: str
    flops: float | None = None
    bytes: float | None = None
    product_flops: float = 0.0
    dtype: str | None = None
    operands: tuple[int, ...] = ()


def plain_cost(
    kind: str, category: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape]
) -> Cost:
    """The cost of what multiplies no matrices; an input that is None, and no output, are not known."""
    if category == "control":
        return Cost(kind, category, 0.0, 0.0)
    if (
        category == "data movement"
    ):  # a gather or a slice reads what it writes, not all of its input
        return Cost(kind, category, 0.0, 2.0 * total_bytes(outputs) if outputs else None)
    known = [shape for shape in inputs if shape is not None]
    if outputs and len(known) == len(inputs):
        moved = float(total_bytes([*known, *outputs]))
    else:
        moved = None
    if category == "reduction":
        worked = [max(shape.elements for shape in known)] if known else []
    else:
        worked = [shape.elements for shape in outputs]
    return Cost(kind, category, float(sum(worked)) if worked else None, moved)


def sum_products(costs: Iterable[Cost]) -> dict[str, float]:
    """FLOPs of all products by the type that they multiply."""
    total: dict[str, float] = {}
    for cost in costs:
        if cost.product_flops:
            total[cost.dtype or "unknown"] = (
                total.get(cost.dtype or "unknown", 0.0) + cost.product_flops
            )
    return total


def shares(flops: Mapping[str, float]) -> dict[str, float]:
    """Each value as a share of all."""
    total = sum(flops.values())
    if total:
        return {name: value / total for name, value in flops.items()}
    return {}


def product_flops(output: Sequence[int], *summed: int) -> float:
    """2 x elements of the output x what each is a sum over: the contracted dimension of matrices,
    the positions of a convolution's kernel and the input channels of one of its groups.
    """
    return 2.0 * math.prod(output) * math.prod(summed)


def attention_flops(query: Shape, keys: int, *, backward: bool = False) -> float:
    """2 products of all queries with `keys` keys, 4 in the backward pass, whatever a fused kernel
    computes twice or a causal mask leaves out; `query` has every head's dimensions.
    """
    return (4.0 if backward else 2.0) * 2 * query.elements * keys


def spatial_pairs(
    outputs: int, size: int, stride: int, padding: int, dilation: int, base_dilation: int
) -> int:
    """Pairs of an output and a kernel position, along one dimension, whose input is not a hole
    between its elements: a strided convolution's input gradient is a convolution over an input
    spread out by `base_dilation`.
    """
    if base_dilation <= 1:
        return outputs * size
    inputs = (
        index * stride + tap * dilation - padding for index in range(outputs) for tap in range(size)
    )
    return sum(place % base_dilation == 0 for place in inputs)


def total_bytes(shapes: Iterable[Shape]) -> int:
    """The bytes of several tensors."""
    return sum(shape.bytes for shape in shapes)
