"""FLOPs and bytes of an operation, calculated from the shapes of its inputs and outputs.

All frameworks' profiles share these rules, which follow the cost analyses of XLA and TensorFlow:

- A multiply-accumulate counts as 2 FLOPs.
- An elementwise operation counts as 1 FLOP per element of its output.
- A reduction counts as 1 FLOP per element of its input.
- Multiplications with padding count. Multiplications with the zeros that dilation of the input
  inserts do not count.
- Bytes: every input is read once, every output is written once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: The number of bits per element in the name of an element type, such as bfloat16.
_BITS = re.compile(r"(?:float|int|complex)(\d+)")


@dataclass(frozen=True)
class Shape:
    """Element type and dimensions of a tensor.

    Attributes:
        dtype: Name of the element type, such as "float32".
        dimensions: Length of each axis; empty for a scalar.
    """

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """Size in bytes; 0 for an unknown type, such as a handle or a token."""
        numbered = _BITS.search(self.dtype)
        if numbered:
            bits = int(numbered[1])
        elif self.dtype in ("pred", "bool"):
            bits = 8
        else:
            bits = 0
        return self.elements * bits // 8


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one execution of an operation.

    Attributes:
        kind: The framework's name for the type of operation.
        category: The category of the operation, such as "matmul" (see `categorize`).
        flops: All FLOPs; None if the shapes do not determine them.
        bytes: Bytes read and written; None if the shapes do not determine them.
        product_flops: The part of `flops` in matrix products and convolutions.
        dtype: Element type of the operands of the products; None if unknown.
        operands: Number of elements of each operand, then of the result. Empty unless the operation
            is a single product.
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
    """Return FLOPs and bytes of an operation other than a matrix product or a convolution.

    Args:
        kind: The framework's name for the type of operation.
        category: The category of the operation, such as "reduction" (see `categorize`).
        inputs: The shapes of the inputs; None for an unknown shape.
        outputs: The shapes of the outputs; empty if they are unknown.
    """
    if category == "control":
        return Cost(kind, category, flops=0.0, bytes=0.0)
    if category == "data movement":
        # A gather or a slice reads as much as it writes, not all of its input.
        moved = 2.0 * total_bytes(outputs) if outputs else None
        return Cost(kind, category, flops=0.0, bytes=moved)
    known = [shape for shape in inputs if shape is not None]
    moved = None
    if outputs and len(known) == len(inputs):
        moved = float(total_bytes([*known, *outputs]))
    flops = None
    if category == "reduction":
        if known:
            flops = float(max(shape.elements for shape in known))
    elif outputs:
        flops = float(sum(shape.elements for shape in outputs))
    return Cost(kind, category, flops=flops, bytes=moved)


def sum_products(costs: Iterable[Cost]) -> dict[str, float]:
    """Return the FLOPs of all matrix products and convolutions, by the type of their operands.

    Args:
        costs: Costs of operations of any kind.

    Returns:
        The FLOPs by the name of the element type. The name is "unknown" for products without a
        type.
    """
    totals: dict[str, float] = {}
    for cost in costs:
        if cost.product_flops:
            dtype = cost.dtype or "unknown"
            totals[dtype] = totals.get(dtype, 0.0) + cost.product_flops
    return totals


def shares(flops: Mapping[str, float]) -> dict[str, float]:
    """Return each value as a fraction of the sum of all values; empty if the sum is 0."""
    total = sum(flops.values())
    if not total:
        return {}
    return {name: value / total for name, value in flops.items()}


def product_flops(output: Sequence[int], *summed: int) -> float:
    """Return the FLOPs of a matrix product or a convolution.

    The result is 2 x elements of the output x terms of the sum in each element.

    Args:
        output: Dimensions of the output.
        summed: Sizes of the dimensions over which each output element sums: the contracted
            dimension of matrices, or the kernel's sizes and the input channels per group of a
            convolution.
    """
    return 2.0 * math.prod(output) * math.prod(summed)


def attention_flops(
    query: Shape, keys: int, *, value_width: int | None = None, backward: bool = False
) -> float:
    """Return the FLOPs of the two matrix products of an attention operation, for all heads.

    The forward pass multiplies queries by keys, and attention weights by values. The backward pass
    has two products for each of these. Scores that a fused kernel recomputes count once. Scores
    that a causal mask hides are included.

    Args:
        query: Shape of the queries of the batch and of all heads. Its last dimension is the width
            of a head.
        keys: Number of keys that each query attends to.
        value_width: Width of a head's values; None if it equals the width of the queries.
        backward: Whether to count the backward pass instead of the forward pass.
    """
    width = query.dimensions[-1]
    queries = query.elements // max(width, 1)
    if value_width is None:
        value_width = width
    forward = 2.0 * queries * keys * (width + value_width)
    return 2 * forward if backward else forward


def spatial_pairs(
    outputs: int, size: int, stride: int, padding: int, dilation: int, base_dilation: int
) -> int:
    """Return the number of multiplications along one spatial dimension of a convolution.

    Each pair of an output position and a kernel position is one multiplication with an input value
    or with padding. Base dilation inserts zeros between the input values. Pairs that multiply such
    a zero do not count. XLA computes the input gradient of a strided convolution as a convolution
    with base dilation.

    Args:
        outputs: Length of the output.
        size: Length of the kernel.
        stride: Distance between the inputs of neighboring outputs.
        padding: Number of padding positions before the first input.
        dilation: Distance between the inputs of neighboring kernel positions.
        base_dilation: Distance between neighboring values of the input.
    """
    if base_dilation <= 1:
        return outputs * size
    positions = (
        index * stride + tap * dilation - padding for index in range(outputs) for tap in range(size)
    )
    return sum(position % base_dilation == 0 for position in positions)


def total_bytes(shapes: Iterable[Shape]) -> int:
    """Return the size of several tensors, in bytes."""
    return sum(shape.bytes for shape in shapes)
