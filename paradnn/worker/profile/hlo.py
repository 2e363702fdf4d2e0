"""FLOPs and bytes of the instructions of a program that XLA compiled, from its HLO.

The FLOPs of a fusion are the sum over its instructions. Its bytes are those of its inputs and
outputs, since intermediate values stay in registers. The bytes of a fusion that reads or updates
slices of a larger buffer are unknown.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.worker.profile.categories import PRODUCTS, categorize
from paradnn.worker.profile.shapes import (
    Cost,
    Shape,
    attention_flops,
    plain_cost,
    product_flops,
    spatial_pairs,
    total_bytes,
)

#: Element types by their numbers in HLO.
_DTYPES = {
    1: "pred",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    15: "complex64",
    16: "bfloat16",
    18: "complex128",
}

_SLICES = {"slice", "dynamic-slice", "gather", "dynamic-update-slice"}
#: Pairs of a part of a library call's target, and the operation that the call computes. The first
#: match decides.
_LIBRARY_CALLS = (
    ("conv", "convolution"),
    ("fmha", "attention"),
    ("matmul", "dot"),
    ("gemm", "dot"),
    ("dot", "dot"),
)
#: Operations after which a fusion is named: the first of these that the fusion contains. The most
#: expensive operations come first.
_FUSION_KINDS = ("convolution", "dot", "reduce-window", "reduce", "scatter", "gather")


class HloCosts:
    """FLOPs and bytes of the instructions of programs that XLA compiled.

    Args:
        modules: The programs, as protocol buffers of the type HloModuleProto with unique names.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        #: The instructions of each computation by their ids. Keys: (module name, computation id).
        self._computations = {
            (module.name, computation.id): {entry.id: entry for entry in computation.instructions}
            for module in modules
            for computation in module.computations
        }
        #: Each instruction, and all instructions of its computation by id. Keys: (module name,
        #: instruction name).
        self._instructions = {
            (module, entry.name): (entry, entries)
            for (module, _), entries in self._computations.items()
            for entry in entries.values()
        }

    def cost(self, name: str, module: str) -> Cost:
        """Return FLOPs and bytes of one execution of an instruction.

        Args:
            name: The name of the instruction, such as "fusion.3".
            module: The name of the program (HLO module) that contains it.

        Returns:
            The cost; its kind is "unknown" if the modules do not contain the instruction.
        """
        entry = self._instructions.get((module, name))
        if entry is None:
            return Cost("unknown", "other")
        instruction, by_id = entry
        return self._cost(module, instruction, by_id)

    def products(self) -> list[Cost]:
        """Return FLOPs and sizes of each matrix product and convolution of the programs.

        The body of a loop counts once.
        """
        # Skip fusions: the instructions within them are listed under their own computations.
        costs = [
            _instruction_cost(instruction, by_id)
            for instruction, by_id in self._instructions.values()
            if instruction.opcode != "fusion"
        ]
        return [cost for cost in costs if cost.product_flops]

    def _cost(self, module: str, instruction: Any, by_id: Mapping[int, Any]) -> Cost:
        if instruction.opcode != "fusion":
            return _instruction_cost(instruction, by_id)
        parts = []
        for number in instruction.called_computation_ids:
            computation = self._computations[module, number]
            parts += [self._cost(module, entry, computation) for entry in computation.values()]
        return _fusion_cost(parts, _operands(instruction, by_id) + _shapes(instruction.shape))


def _fusion_cost(parts: Sequence[Cost], shapes: Sequence[Shape]) -> Cost:
    """Return FLOPs and bytes of a fusion: several instructions that XLA compiles to one kernel.

    Args:
        parts: The costs of the instructions.
        shapes: The shapes of all inputs and outputs of the fusion.
    """
    kinds = {cost.kind for cost in parts}
    flops = sum(cost.flops or 0.0 for cost in parts)
    moved = None if _SLICES & kinds else float(total_bytes(shapes))
    for kind in _FUSION_KINDS:
        if kind in kinds:
            return Cost(
                f"fusion with {kind}",
                categorize("hlo", kind),
                flops=flops,
                bytes=moved,
                product_flops=sum(cost.product_flops for cost in parts),
                dtype=next((cost.dtype for cost in parts if cost.dtype), None),
            )
    if all(cost.category in ("data movement", "control") for cost in parts):
        return Cost("fusion moving data", "data movement", flops=flops, bytes=moved)
    return Cost("fusion elementwise", "elementwise", flops=flops, bytes=moved)


def _instruction_cost(instruction: Any, by_id: Mapping[int, Any]) -> Cost:
    """Return FLOPs and bytes of an instruction other than a fusion.

    Args:
        instruction: The instruction, as a protocol buffer of the type HloInstructionProto.
        by_id: All instructions of the same computation by their ids.
    """
    opcode = instruction.opcode
    target = instruction.custom_call_target
    inputs = _operands(instruction, by_id)
    outputs = _shapes(instruction.shape)
    called = (kind for part, kind in _LIBRARY_CALLS if part in target.lower())
    operation = next(called, opcode)
    kind = f"{opcode} {target}".strip()
    category = categorize("hlo", operation)
    moved = float(total_bytes(inputs + outputs))
    if category in PRODUCTS:
        flops = _product_flops(operation, instruction, inputs, outputs)
        return Cost(
            kind,
            category,
            flops=flops,
            bytes=moved,
            product_flops=flops or 0.0,
            dtype=inputs[0].dtype if inputs else None,
            operands=tuple(shape.elements for shape in (*inputs[:2], *outputs[:1])),
        )
    if category == "other":
        return Cost(kind, category, bytes=moved)
    if opcode == "dynamic-update-slice":
        # XLA updates in place: only the slice is read and written.
        return Cost(kind, category, flops=0.0, bytes=2.0 * inputs[1].bytes)
    if opcode in ("reduce-window", "select-and-scatter"):
        window = math.prod(dimension.size for dimension in instruction.window.dimensions)
        return Cost(kind, category, flops=float(outputs[0].elements * window), bytes=moved)
    return plain_cost(kind, category, inputs, outputs)


def _product_flops(
    operation: str, instruction: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float | None:
    """Return the FLOPs of a matrix product or convolution; None if shapes do not determine them.

    Args:
        operation: "dot", "convolution" or "attention".
        instruction: The instruction, as a protocol buffer of the type HloInstructionProto.
        inputs: Shapes of the operands.
        outputs: Shapes of the results.
    """
    if not inputs or not outputs:
        return None
    if operation == "attention":
        # The operands of cuDNN's attention are (batch, tokens, heads, width of a head).
        return attention_flops(
            inputs[0],
            inputs[1].dimensions[1],
            value_width=inputs[2].dimensions[-1] if len(inputs) > 2 else None,
            backward="Backward" in instruction.custom_call_target,
        )
    if operation == "convolution":
        if not instruction.window.dimensions:
            return None
        return _convolution_flops(instruction, inputs, outputs)
    contracting = instruction.dot_dimension_numbers.lhs_contracting_dimensions
    if instruction.opcode == "dot" or contracting:
        contracted = math.prod(inputs[0].dimensions[axis] for axis in contracting)
    elif len(inputs) > 1:
        contracted = _library_contraction(inputs[0], inputs[1], outputs[0])
    else:
        return None
    return product_flops(outputs[0].dimensions, contracted)


def _library_contraction(left: Shape, right: Shape, output: Shape) -> int:
    """Return the contracted size k of a library's matrix product, computed from element counts.

    The instruction does not state which dimensions the library contracts, and either operand may be
    transposed. Let b be the number of matrices on the right. The left operand has b m k elements,
    the right b k n, the output b m n. Then left x right / output = b k^2. With b = 1, one matrix on
    the right multiplies all rows of the left.

    Args:
        left: Shape of the left operand.
        right: Shape of the right operand.
        output: Shape of the product.
    """
    if not output.elements:
        return 0
    matrices = math.prod(right.dimensions[:-2])
    squared = left.elements * right.elements / (output.elements * matrices)
    return round(math.sqrt(squared))


def _convolution_flops(
    instruction: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float:
    numbers = instruction.convolution_dimension_numbers
    dimensions = outputs[0].dimensions
    spatial = list(numbers.output_spatial_dimensions)
    outer = [size for axis, size in enumerate(dimensions) if axis not in spatial]
    pairs = [
        spatial_pairs(
            outputs=dimensions[axis],
            size=window.size,
            stride=window.stride,
            padding=window.padding_low,
            dilation=window.window_dilation,
            base_dilation=window.base_dilation,
        )
        for axis, window in zip(spatial, instruction.window.dimensions, strict=True)
    ]
    # Groups need no special case: the filter has the input channels of one feature group, and the
    # output has the sizes that remain after batch groups.
    channels = inputs[1].dimensions[numbers.kernel_input_feature_dimension]
    return product_flops(outer, *pairs, int(channels))


def _operands(instruction: Any, by_id: Mapping[int, Any]) -> list[Shape]:
    return [shape for number in instruction.operand_ids for shape in _shapes(by_id[number].shape)]


def _shapes(shape: Any) -> list[Shape]:
    """Return the shapes of all tensors in `shape`, a ShapeProto that may be a tuple of shapes."""
    if shape.tuple_shapes:
        return [entry for part in shape.tuple_shapes for entry in _shapes(part)]
    return [Shape(_DTYPES.get(shape.element_type, "unknown"), tuple(shape.dimensions))]
