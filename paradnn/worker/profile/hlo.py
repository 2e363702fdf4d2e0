"""What the instructions of a compiled program cost, from its HLO.

A fusion costs what the instructions within it compute; what it moves are its own inputs and outputs, since what lies
between stays in registers. A slice out of a larger buffer, and an update of a slice within one, move the slice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from paradnn.worker.profile.shapes import (
    Cost,
    Shape,
    attention_flops,
    convolution_flops,
    matmul_flops,
    reduce_flops,
    spatial_pairs,
    total_bytes,
    words,
)

#: HLO's numbers of element types.
_NUMBERED = "pred int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_DTYPES = dict(enumerate(_NUMBERED.split(), 1)) | {15: "complex64", 16: "bfloat16", 18: "complex128"}

_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
_CONTAINERS = {"while", "call", "conditional"}
_MOVEMENT = words(
    "copy transpose reshape broadcast concatenate slice dynamic-slice dynamic-update-slice gather scatter pad reverse "
    "iota convert bitcast-convert copy-start copy-done"
)
_COLLECTIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective")


class HloCosts:
    """Costs of the instructions of some modules, by the names of instruction and module."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._computations = {(id(m), c.id): c for m in modules for c in m.computations}
        self._home: dict[tuple[str, str], tuple[Any, Any, dict[int, Any]]] = {}
        for module in modules:
            for computation in module.computations:
                by_id = {instruction.id: instruction for instruction in computation.instructions}
                for instruction in computation.instructions:
                    self._home[module.name, instruction.name] = (module, instruction, by_id)

    def cost(self, name: str, module_name: str) -> Cost:
        """The cost of one execution of an instruction; of unknown kind where no module has it."""
        if (module_name, name) not in self._home:
            return Cost("unknown", "other")
        module, instruction, by_id = self._home[module_name, name]
        opcode = instruction.opcode
        if opcode in _CONTAINERS:
            return Cost(opcode, "control", 0.0, 0.0)
        flops, products, dtype = self._flops(module, instruction, by_id)
        kind, category = self._kind(module, instruction)
        return Cost(kind, category, flops, self._bytes(module, instruction, by_id), products, dtype)

    def product_flops(self) -> dict[str, float]:
        """FLOPs of all products of the programs by the type that they multiply; the body of a loop counts once."""
        total: defaultdict[str, float] = defaultdict(float)
        for module, instruction, by_id in self._home.values():
            if instruction.opcode == "fusion":
                continue  # what is in it is counted there
            _, flops, dtype = self._flops(module, instruction, by_id)
            total[dtype or "unknown"] += flops
        return {dtype: flops for dtype, flops in total.items() if flops}

    def _inner(self, module: Any, instruction: Any) -> list[Any]:
        """The instructions of what a fusion computes."""
        return [
            entry
            for called in instruction.called_computation_ids
            for entry in self._computations[id(module), called].instructions
        ]

    def _kind(self, module: Any, instruction: Any) -> tuple[str, str]:
        opcode = instruction.opcode
        if opcode != "fusion":
            if opcode == "custom-call":
                return f"custom-call {instruction.custom_call_target}", _category(_custom(instruction) or opcode)
            return opcode, _category(opcode)
        opcodes = [entry.opcode for entry in self._inner(module, instruction)]
        for wanted in ("convolution", "dot", "reduce-window", "reduce", "scatter", "gather"):
            if wanted in opcodes:
                return f"fusion with {wanted}", _category(wanted)
        working = [opcode for opcode in opcodes if opcode not in _FREE]
        moving = all(opcode in _MOVEMENT for opcode in working)
        return ("fusion moving data", "data movement") if moving else ("fusion elementwise", "elementwise")

    def _flops(self, module: Any, instruction: Any, by_id: dict[int, Any]) -> tuple[float | None, float, str | None]:
        """FLOPs, those in products, and the type the products multiply."""
        opcode = instruction.opcode
        output = _shapes(instruction.shape)
        operands = [shape for key in instruction.operand_ids for shape in _shapes(by_id[key].shape)]
        if opcode == "fusion":
            return self._fusion(module, instruction)
        if opcode == "dot" or _custom(instruction) == "dot":
            flops = _dot(instruction, operands, output)
            return flops, flops or 0.0, operands[0].dtype if operands else None
        if opcode == "convolution" or _custom(instruction) == "convolution":
            flops = _convolution(instruction, operands, output) if instruction.window.dimensions else None
            return flops, flops or 0.0, operands[0].dtype
        if _custom(instruction) == "attention":  # cuDNN's, of query and key (batch, tokens, heads, width of a head)
            query, key, *_ = operands
            backward = "Backward" in instruction.custom_call_target
            flops = float(attention_flops(query, key.dimensions[1], backward=backward))
            return flops, flops, query.dtype
        if opcode in ("reduce", "reduce-window", "select-and-scatter"):
            window = math.prod(dimension.size for dimension in instruction.window.dimensions)
            elements = operands[0].elements if opcode == "reduce" else output[0].elements * window
            return float(reduce_flops(elements)), 0.0, None
        if opcode in _FREE or opcode in _MOVEMENT:
            return 0.0, 0.0, None
        if opcode == "custom-call":
            return None, 0.0, None
        return float(sum(shape.elements for shape in output)), 0.0, None

    def _fusion(self, module: Any, instruction: Any) -> tuple[float | None, float, str | None]:
        total, products, dtype = 0.0, 0.0, None
        for called in instruction.called_computation_ids:
            computation = self._computations[id(module), called]
            by_id = {entry.id: entry for entry in computation.instructions}
            for entry in computation.instructions:
                flops, product, kind = self._flops(module, entry, by_id)
                total, products, dtype = total + (flops or 0.0), products + product, dtype or kind
        return total, products, dtype

    def _bytes(self, module: Any, instruction: Any, by_id: dict[int, Any]) -> float:
        opcode = instruction.opcode
        output = total_bytes(_shapes(instruction.shape))
        operands = [total_bytes(_shapes(by_id[key].shape)) for key in instruction.operand_ids]
        if opcode in _FREE:
            return 0.0
        if opcode in ("dynamic-slice", "slice", "gather"):
            return 2.0 * output
        if opcode == "dynamic-update-slice":
            return 2.0 * operands[1]
        if opcode == "fusion" and instruction.called_computation_ids:
            computation = self._computations[id(module), instruction.called_computation_ids[0]]
            return _fusion_bytes(computation, operands, output)
        return float(output + sum(operands))


def _fusion_bytes(computation: Any, operands: Sequence[int], output: int) -> float:
    """What a fusion reads and writes: of a sliced parameter the slices, of an updated one the updates."""
    by_id = {entry.id: entry for entry in computation.instructions}
    users: dict[int, list[Any]] = {}
    for entry in computation.instructions:
        for key in entry.operand_ids:
            users.setdefault(key, []).append(entry)
    moved = 0.0
    for entry in computation.instructions:
        if entry.opcode != "parameter":
            continue
        whole = float(operands[entry.parameter_number])
        moved += min(whole, _read_of(entry, users, by_id, whole))
    updates = [entry for entry in computation.instructions if entry.opcode == "dynamic-update-slice"]
    root = by_id[computation.root_id]
    while root.opcode == "bitcast":
        root = by_id[root.operand_ids[0]]
    if root.opcode == "dynamic-update-slice":
        return moved + total_bytes(_shapes(by_id[root.operand_ids[1]].shape))
    if root.opcode == "tuple" and updates:
        written = {key: total_bytes(_shapes(by_id[key].shape)) for key in root.operand_ids}
        written |= {e.id: total_bytes(_shapes(by_id[e.operand_ids[1]].shape)) for e in updates if e.id in written}
        return moved + sum(written.values())
    return moved + output


def _read_of(entry: Any, users: dict[int, list[Any]], by_id: dict[int, Any], whole: float) -> float:
    """Bytes that are read of a value: those of its slices, nothing where it is only updated in place."""
    total = 0.0
    for user in users.get(entry.id, []):
        if user.opcode == "bitcast":
            total += _read_of(user, users, by_id, whole)
        elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operand_ids[0] == entry.id:
            total += total_bytes(_shapes(user.shape))
        elif user.opcode == "dynamic-update-slice" and user.operand_ids[0] == entry.id:
            continue
        else:
            return whole
    return total


def _dot(instruction: Any, operands: Sequence[Shape], output: Sequence[Shape]) -> float | None:
    if not operands or not output:
        return None
    contracting = instruction.dot_dimension_numbers.lhs_contracting_dimensions
    left = operands[0].dimensions
    # A library's product contracts the last dimension of its left side.
    library = instruction.opcode != "dot" and not contracting
    contracted = left[-1] if library else math.prod(left[index] for index in contracting)
    return matmul_flops(output[0].dimensions, contracted)


def _convolution(instruction: Any, operands: Sequence[Shape], output: Sequence[Shape]) -> float:
    numbers = instruction.convolution_dimension_numbers
    dimensions = output[0].dimensions
    spatial = list(numbers.output_spatial_dimensions)
    outer = [size for index, size in enumerate(dimensions) if index not in spatial]
    pairs = [
        spatial_pairs(dimensions[index], w.size, w.stride, w.padding_low, w.window_dilation, w.base_dilation)
        for index, w in zip(spatial, instruction.window.dimensions, strict=True)
    ]
    # Groups of features are in the filter's shape already, groups of the batch in the output's.
    channels = operands[1].dimensions[numbers.kernel_input_feature_dimension]
    return convolution_flops(outer, pairs, int(channels))


def _custom(instruction: Any) -> str | None:
    """What a library call computes, by its name."""
    target = instruction.custom_call_target.lower()
    if "conv" in target:
        return "convolution"
    if "fmha" in target:
        return "attention"
    return "dot" if any(word in target for word in ("matmul", "gemm", "dot")) else None


def _category(opcode: str) -> str:
    if opcode in ("dot", "attention"):
        return "matmul"
    if opcode == "convolution":
        return "convolution"
    if opcode.startswith(_COLLECTIVE):
        return "communication"
    if opcode in ("reduce", "reduce-window", "select-and-scatter", "sort"):
        return "reduction"
    if opcode in _CONTAINERS or opcode in _FREE:
        return "control"
    if opcode in _MOVEMENT:
        return "data movement"
    return "other" if opcode == "custom-call" else "elementwise"


def _shapes(shape: Any) -> list[Shape]:
    """The tensors of a shape, which may be a tuple of them."""
    if shape.tuple_shapes:
        return [entry for part in shape.tuple_shapes for entry in _shapes(part)]
    return [Shape(_DTYPES.get(shape.element_type, "unknown"), tuple(shape.dimensions))]
