"""A model in an ONNX file as a workload for the engines that read it. Imported within workers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradnn.core.workload import Unavailable
from paradnn.families.built import ArraySpec, BuiltModel


@dataclass(frozen=True)
class OnnxGraph:
    """Where a model is expected: a graph, and its weights for their number. types: of its inputs, as NumPy calls them.

    fixed: the one batch that it has, None for any.
    """

    graph: Any
    types: tuple[Any, ...]
    fixed: int | None
    trainable_variables: tuple[Any, ...]
    non_trainable_variables: tuple[Any, ...] = ()


@dataclass(frozen=True)
class _Weight:
    shape: tuple[int, ...]


def onnx_workload(path: Path, shape: tuple[int, ...]) -> BuiltModel:
    """The graph with its inputs; `shape` stands for dimensions that a single input leaves open. Raises Unavailable."""
    try:
        import onnx
    except ImportError as error:
        raise Unavailable(f"onnx is not installed ({error}): pip install 'paradnn[engines]'") from None
    try:
        model = onnx.load(path)
    except Exception as error:  # of protobuf, which has no class in common for them
        raise Unavailable(f"{path.name} is no ONNX model: {str(error)[:200]}") from error
    known = {entry.name for entry in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in known]
    if not inputs:
        raise Unavailable(f"{path.name} is no ONNX model: it has no inputs")
    types = tuple(onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type) for entry in inputs)
    sizes = [[size.dim_value for size in entry.type.tensor_type.shape.dim] for entry in inputs]
    specs = []
    for each, kind in zip(sizes, types, strict=True):
        own = tuple(shape) if shape and len(inputs) == 1 else tuple(each[1:])
        if not each or not all(own):
            raise Unavailable(f"an input of {path.name} has the shape {each}: set model.input_shape, without the batch")
        specs.append(ArraySpec(own, "float32") if kind.kind == "f" else ArraySpec(own, "int32", 2))
    weights = tuple(_Weight(tuple(entry.dims)) for entry in model.graph.initializer if entry.data_type == 1)
    graph: Any = OnnxGraph(model, types, sizes[0][0] or None, weights)
    return BuiltModel(graph, tuple(specs), (), lambda *_: None)
