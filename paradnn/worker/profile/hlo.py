"""What the instructions of a compiled program cost, from its HLO.

A fusion costs what the instructions within it compute; what it moves are its own inputs and
outputs, since what lies between stays in registers. Of a fusion that reads or updates slices of a
larger buffer nobody knows what it moves.
"""

import math
from collections.abc import Sequence
from typing import Any

from paradnn.worker.profile.categories import PRODUCTS, categorise
from paradnn.worker.profile.shapes import (
    Cost,
    Shape,
    attention_flops,
    plain_cost,
    product_flops,
    spatial_pairs,
    total_bytes,
)

#: HLO's numbers of element types.
_NUMBERED = "pred int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_DTYPES = dict(enumerate(_NUMBERED.split(), 1)) | {
    15: "complex64",
    16: "bfloat16",
    18: "complex128",
}

_SLICES = {"slice", "dynamic-slice", "gather", "dynamic-update-slice"}


class HloCosts:
    """Costs of the instructions of some modules, by the names of instruction and module."""

    def __init__(self, modules: Sequence[Any]) -> None:
        # The instructions of each computation by their numbers.
        self._computations = {
            (module.name, computation.id): {entry.id: entry for entry in computation.instructions}
            for module in modules
            for computation in module.computations
        }
        self._home = {
            (module, entry.name): (entry, entries)
            for (module, _), entries in self._computations.items()
            for entry in entries.values()
        }

    def cost(self, name: str, module: str) -> Cost:
        """The cost of one execution of an instruction; of unknown kind where no module has it."""
        if (module, name) in self._home:
            return self._cost(module, *self._home[module, name])
        return Cost("unknown", "other")

    def products(self) -> list[Cost]:
        """Costs of all products of the programs; the body of a loop counts once."""
        # What is in a fusion is counted there.
        plain = (_cost(*each) for each in self._home.values() if each[0].opcode != "fusion")
        return [cost for cost in plain if cost.product_flops]

    def _cost(self, module: str, instruction: Any, by_id: dict[int, Any]) -> Cost:
        if instruction.opcode != "fusion":
            return _cost(instruction, by_id)
        called = [
            self._computations[module, number] for number in instruction.called_computation_ids
        ]
        inner = [
            self._cost(module, entry, entries) for entries in called for entry in entries.values()
        ]
        kinds = [cost.kind for cost in inner]
        dtype = next((cost.dtype for cost in inner if cost.dtype), None)
        flops = sum(cost.flops or 0.0 for cost in inner)
        products = sum(cost.product_flops for cost in inner)
        shapes = _operands(instruction, by_id) + _shapes(instruction.shape)
        moved = None if _SLICES & set(kinds) else float(total_bytes(shapes))
        for wanted in ("convolution", "dot", "reduce-window", "reduce", "scatter", "gather"):
            if wanted in kinds:
                return Cost(
                    f"fusion with {wanted}",
                    categorise("hlo", wanted),
                    flops,
                    moved,
                    products,
                    dtype,
                )
        if all(cost.category in ("data movement", "control") for cost in inner):
            return Cost("fusion moving data", "data movement", flops, moved)
        return Cost("fusion elementwise", "elementwise", flops, moved)


def _cost(instruction: Any, by_id: dict[int, Any]) -> Cost:
    """The cost of an instruction that is no fusion."""
    opcode = instruction.opcode
    target = instruction.custom_call_target
    inputs = _operands(instruction, by_id)
    outputs = _shapes(instruction.shape)
    names = {
        "conv": "convolution",
        "fmha": "attention",
        "matmul": "dot",
        "gemm": "dot",
        "dot": "dot",
    }
    library = next(
        (kind for word, kind in names.items() if word in target.lower()), None
    )  # what its call computes
    kind = f"{opcode} {target}".strip()
    category = categorise("hlo", library or opcode)
    moved = float(total_bytes(inputs + outputs))
    if category in PRODUCTS:
        flops = _products(library or opcode, instruction, inputs, outputs)
        operands = tuple(shape.elements for shape in (*inputs[:2], *outputs[:1]))
        return Cost(
            kind,
            category,
            flops,
            moved,
            flops or 0.0,
            inputs[0].dtype if inputs else None,
            operands,
        )
    if category == "other":
        return Cost(kind, category, None, moved)
    if opcode == "dynamic-update-slice":  # in place
        return Cost(kind, category, 0.0, 2.0 * inputs[1].bytes)
    if opcode in ("reduce-window", "select-and-scatter"):
        window = math.prod(dimension.size for dimension in instruction.window.dimensions)
        return Cost(kind, category, float(outputs[0].elements * window), moved)
    return plain_cost(kind, category, inputs, outputs)


def _products(
    kind: str, instruction: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> float | None:
    if not inputs or not outputs:
        return None
    if kind == "attention":  # cuDNN's, of query and key (batch, tokens, heads, width of a head)
        backward = "Backward" in instruction.custom_call_target
        return attention_flops(inputs[0], inputs[1].dimensions[1], backward=backward)
    if kind == "convolution":
        if instruction.window.dimensions:
            return _convolution(instruction, inputs, outputs)
        return None
    contracting = instruction.dot_dimension_numbers.lhs_contracting_dimensions
    left = inputs[0].dimensions
    # A library's product contracts the last dimension of its left side.
    library = instruction.opcode != "dot" and not contracting
    if library:
        contracted = left[-1]
    else:
        contracted = math.prod(left[index] for index in contracting)
    return product_flops(outputs[0].dimensions, contracted)


def _convolution(instruction: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    numbers = instruction.convolution_dimension_numbers
    dimensions = outputs[0].dimensions
    spatial = list(numbers.output_spatial_dimensions)
    outer = [size for index, size in enumerate(dimensions) if index not in spatial]
    pairs = [
        spatial_pairs(
            dimensions[index], w.size, w.stride, w.padding_low, w.window_dilation, w.base_dilation
        )
        for index, w in zip(spatial, instruction.window.dimensions, strict=True)
    ]
    # Groups of features are in the filter's shape already, groups of the batch in the output's.
    channels = inputs[1].dimensions[numbers.kernel_input_feature_dimension]
    return product_flops(outer, *pairs, int(channels))


def _operands(instruction: Any, by_id: dict[int, Any]) -> list[Shape]:
    return [shape for key in instruction.operand_ids for shape in _shapes(by_id[key].shape)]


def _shapes(shape: Any) -> list[Shape]:
    """The tensors of a shape, which may be a tuple of them."""
    if shape.tuple_shapes:
        return [entry for part in shape.tuple_shapes for entry in _shapes(part)]
    return [Shape(_DTYPES.get(shape.element_type, "unknown"), tuple(shape.dimensions))]
