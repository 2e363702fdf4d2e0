"""Conversion of a model in an ONNX file to a `BuiltModel`, for the engines that read ONNX.

Only workers import this module.

An input of the graph that has the name of an initializer is a weight: files of ONNX IR version 3
and below list every weight among the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paradnn.core.errors import UnavailableError, reraise_as_unavailable
from paradnn.families.built import ArraySpec, BuiltModel
from paradnn.families.parts.inputs import array_spec, common_batch, filled_shape


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX model with the attributes of a Keras model that a timed step needs.

    Attributes:
        model: The `onnx.ModelProto`.
        types: NumPy types of the model's inputs.
        trainable_variables: One object whose `shape` is (number of weights,).
        non_trainable_variables: One object whose `shape` is (number of moving statistics of batch
            normalization,).
    """

    model: Any
    types: tuple[Any, ...]
    trainable_variables: tuple[Any, ...]
    non_trainable_variables: tuple[Any, ...]


def onnx_workload(path: Path, input_shape: tuple[int, ...]) -> BuiltModel:
    """Load the model in an ONNX file as a `BuiltModel` for inference.

    Args:
        path: The file.
        input_shape: Shape of the only input, without the batch axis. It fills the sizes that the
            file leaves open; () for a file without open sizes.

    Raises:
        UnavailableError: If the package onnx is missing, the file is not an ONNX model, ParaDnn
            cannot draw random values for an input, or an output is not a numeric tensor. The
            message names the input or output.
    """
    with reraise_as_unavailable(
        "onnx is not installed", ImportError, remedy="; pip install 'paradnn[engines]'"
    ):
        import onnx
    # The exceptions of protobuf have no common base class.
    with reraise_as_unavailable(f"{path.name} cannot be read as an ONNX model", Exception):
        model = onnx.load(path)
    inputs = graph_inputs(model)
    if not inputs:
        raise UnavailableError(f"{path.name} is not an ONNX model with inputs: export it again")
    labels = [f"input {entry.name!r} of {path.name}" for entry in inputs]
    types = [_element_type(entry, label) for entry, label in zip(inputs, labels, strict=True)]
    sizes = [_sizes(entry, label) for entry, label in zip(inputs, labels, strict=True)]
    if len(inputs) == 1 and input_shape and sizes[0] is None:
        sizes = [[None, *input_shape]]
    _check_batch_axes(labels, sizes)
    specs = []
    first_axes = {}
    for label, dtype, axes in zip(labels, types, sizes, strict=True):
        if axes is None:
            raise UnavailableError(f"{label} has no shape: set model.input_shape, or fix the file")
        shape = filled_shape(axes, input_shape, label, is_only=len(inputs) == 1)
        specs.append(_drawn_array(shape, dtype, label))
        if isinstance(axes[0], int):
            first_axes[label] = axes[0]
    for entry in model.graph.output:
        _check_output(entry, f"output {entry.name!r} of {path.name}")
    trainable, fixed = parameter_counts(model)
    graph: Any = OnnxGraph(
        model=model,
        types=tuple(types),
        trainable_variables=(SimpleNamespace(shape=(trainable,)),),
        non_trainable_variables=(SimpleNamespace(shape=(fixed,)),),
    )
    return BuiltModel(graph, tuple(specs), batch_size=common_batch(first_axes))


def graph_inputs(model: Any) -> list[Any]:
    """Return the inputs of the graph that are not weights.

    Args:
        model: An `onnx.ModelProto`.

    Returns:
        The inputs, each an `onnx.ValueInfoProto`.
    """
    graph = model.graph
    weights = {entry.name for entry in graph.initializer}
    weights |= {entry.values.name for entry in graph.sparse_initializer}
    return [entry for entry in graph.input if entry.name not in weights]


def _element_type(entry: Any, label: str) -> Any:
    """Return the NumPy type of an input.

    Args:
        entry: The input, an `onnx.ValueInfoProto`.
        label: Name of the input in messages.

    Raises:
        UnavailableError: If the input is not a numeric tensor.
    """
    import onnx

    if entry.type.WhichOneof("value") != "tensor_type":
        raise UnavailableError(
            f"{label} is {_described_type(entry.type)}: export the model with tensors as inputs"
        )
    number = entry.type.tensor_type.elem_type
    if number == onnx.TensorProto.STRING:
        raise UnavailableError(
            f"{label} has the type string, but ParaDnn draws only real numbers and integers: export the model with numeric inputs"
        )
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(number)
    except KeyError:
        raise UnavailableError(
            f"{label} has the unknown element type {number}: export the model with another type"
        ) from None


def _described_type(kind: Any) -> str:
    """Describe the ONNX type of a value, such as "a sequence of maps".

    Args:
        kind: The type, an `onnx.TypeProto`.
    """
    name = kind.WhichOneof("value")
    if name == "sequence_type":
        element = _described_type(kind.sequence_type.elem_type)
        return f"a sequence of {element.removeprefix('a ').removeprefix('an ')}s"
    if name == "optional_type":
        return f"an optional {_described_type(kind.optional_type.elem_type).partition(' ')[2]}"
    names = {
        "map_type": "a map",
        "tensor_type": "a tensor",
        "sparse_tensor_type": "a sparse tensor",
    }
    return names.get(name, "a value without a type")


def _sizes(entry: Any, label: str) -> list[int | str | None] | None:
    """Return the sizes of the axes of an input.

    Args:
        entry: The input, an `onnx.ValueInfoProto`.

    Returns:
        For each axis: its size; its name if the file leaves the size open; or None for an open size
        without a name. None in place of the list if the file leaves the number of axes open.
    """
    tensor = entry.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    axes: list[int | str | None] = []
    for axis in tensor.shape.dim:
        if axis.HasField("dim_value") and axis.dim_value > 0:
            axes.append(axis.dim_value)
        else:
            axes.append(axis.dim_param or None)
    return axes


def _check_batch_axes(labels: Sequence[str], sizes: Sequence[Sequence[Any] | None]) -> None:
    """Check that the batch is the first axis of every input.

    If the size of an input's first axis is open and has a name, this name denotes the batch. An
    input with this name in a later axis, and not in the first axis, is rejected.

    Args:
        labels: Name of each input in messages.
        sizes: Sizes of the axes of each input, as `_sizes` returns them.

    Raises:
        UnavailableError: If an input is rejected.
    """
    known = [axes for axes in sizes if axes]
    batch_names = {axes[0] for axes in known if isinstance(axes[0], str)}
    for label, axes in zip(labels, sizes, strict=True):
        if axes and axes[0] not in batch_names:
            for number, axis in enumerate(axes[1:], start=1):
                if axis in batch_names:
                    raise UnavailableError(
                        f"{label} has the batch axis {axis!r} as axis {number}: "
                        "export the model with the batch as the first axis of every input"
                    )


def _drawn_array(shape: tuple[int, ...], dtype: Any, label: str) -> ArraySpec:
    # NumPy treats the small floating-point types of ml_dtypes as raw bytes.
    if "float" in dtype.name:
        return ArraySpec(shape, "float32")
    return array_spec(shape, dtype, 2, label)


def _check_output(entry: Any, label: str) -> None:
    """Check that an output is a numeric tensor, because ParaDnn compares outputs between engines.

    Args:
        entry: The output, an `onnx.ValueInfoProto`.
        label: Name of the output in messages.

    Raises:
        UnavailableError: If it is not a numeric tensor.
    """
    import onnx

    kind = entry.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnavailableError(
            f"{label} is {_described_type(entry.type)}, which cannot be checked: "
            "export the model with tensors as outputs (skl2onnx: zipmap=False)"
        )
    if entry.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        raise UnavailableError(
            f"{label} contains strings, which cannot be checked: "
            "export the model with numeric outputs"
        )


@dataclass(frozen=True)
class _Constant:
    """A tensor with a fixed value.

    Attributes:
        dtype: NumPy type of the elements.
        elements: Number of elements.
        rank: Number of axes.
    """

    dtype: Any
    elements: int
    rank: int


#: Operator -> positions of the inputs that are settings or scales, not weights.
_SETTING_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}
#: Operator -> positions of the inputs that are quantized weights or biases.
_QUANTIZED_WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "ConvInteger": (1,),
    "DequantizeLinear": (0,),
    "DynamicQuantizeLSTM": (1, 2),
    "DynamicQuantizeMatMul": (1,),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "QGemm": (3, 6),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
}
#: Operator -> positions of the inputs that are moving statistics, which are not trained.
_STATISTICS: Mapping[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}


def parameter_counts(model: Any) -> tuple[int, int]:
    """Count the elements of the weights of an ONNX model.

    Two kinds of constants are weights. The first are floating-point constants that have at least
    one axis and some use other than as settings or scales. The second are quantized weights.

    Constants are initializers and the outputs of `Constant` and `ConstantOfShape`, in the graph and
    in all bodies of branches, loops and functions. Linear models of ONNX-ML store their
    coefficients in attributes, which count, too.

    Args:
        model: An `onnx.ModelProto`.

    Returns:
        The number of elements of trainable weights, and of moving statistics of batch
        normalization.
    """
    trainable = 0
    fixed = 0
    for constants, nodes in _scopes(model):
        # Name of a constant -> (operator that reads it, position of the operator's input).
        uses: dict[str, list[tuple[str, int]]] = {}
        for node in nodes:
            for position, name in enumerate(node.input):
                uses.setdefault(name, []).append((node.op_type, position))
            if node.op_type in ("LinearClassifier", "LinearRegressor"):
                trainable += sum(
                    len(attribute.floats)
                    for attribute in node.attribute
                    if attribute.name in ("coefficients", "intercepts")
                )
        for name, constant in constants.items():
            constant_uses = uses.get(name, [])
            if _has_use_in(_STATISTICS, constant_uses):
                fixed += constant.elements
            elif _is_weight(constant, constant_uses):
                trainable += constant.elements
    return trainable, fixed


def _is_weight(constant: _Constant, uses: Sequence[tuple[str, int]]) -> bool:
    if not uses or not constant.rank:
        return False
    if "float" in constant.dtype.name:
        return not all(position in _SETTING_INPUTS.get(kind, ()) for kind, position in uses)
    return _has_use_in(_QUANTIZED_WEIGHTS, uses)


def _has_use_in(table: Mapping[str, tuple[int, ...]], uses: Sequence[tuple[str, int]]) -> bool:
    """Return whether a constant has a use that the table lists.

    Args:
        table: Operator -> positions of its inputs.
        uses: Uses of the constant, each (operator, position of the input).
    """
    return any(position in table.get(kind, ()) for kind, position in uses)


def _scopes(model: Any) -> Iterator[tuple[dict[str, _Constant], list[Any]]]:
    """Collect the constants of each graph and function of a model.

    Args:
        model: An `onnx.ModelProto`.

    Yields:
        For each graph and function: its constants by name, and the nodes that may use them.
    """
    graphs = [(model.graph, list(model.graph.node))]
    graphs += [(function, list(function.node)) for function in model.functions]
    while graphs:
        graph, nodes = graphs.pop()
        bodies = [
            body
            for node in nodes
            for attribute in node.attribute
            for body in (attribute.g, *attribute.graphs)
            if body.node
        ]
        graphs += [(body, list(body.node)) for body in bodies]
        # A body may use the constants of the graphs around it.
        inner = [node for body in bodies for node in _all_nodes(body)]
        yield _constants(graph, nodes), [*nodes, *inner]


def _all_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and of the bodies nested in it at any depth."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body)


def _constants(graph: Any, nodes: Sequence[Any]) -> dict[str, _Constant]:
    from onnx import TensorProto, numpy_helper

    constants: dict[str, _Constant] = {}
    # One-dimensional int64 constants, which may be the shape of a `ConstantOfShape`.
    shapes: dict[str, Any] = {}
    for tensor in getattr(graph, "initializer", ()):
        constants[tensor.name] = _constant(tensor)
        if len(tensor.dims) == 1 and tensor.data_type == TensorProto.INT64:
            shapes[tensor.name] = tensor
    for sparse in getattr(graph, "sparse_initializer", ()):
        constants[sparse.values.name] = _constant(sparse.values)
    for node in nodes:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant_of_node(attributes)
            if "value" in attributes and attributes["value"].t.data_type == TensorProto.INT64:
                shapes[node.output[0]] = attributes["value"].t
        elif node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            sizes = numpy_helper.to_array(shapes[node.input[0]]).reshape(-1)
            dtype = _constant(attributes["value"].t).dtype if "value" in attributes else _FLOAT32
            constants[node.output[0]] = _Constant(dtype, math.prod(map(int, sizes)), len(sizes))
    return constants


_FLOAT32 = SimpleNamespace(name="float32")


def _constant(tensor: Any) -> _Constant:
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return _Constant(dtype, math.prod(tensor.dims), len(tensor.dims))


def _constant_of_node(attributes: Mapping[str, Any]) -> _Constant:
    """Return the constant of a `Constant` node, whose value is in one of several attributes."""
    if "value" in attributes:
        return _constant(attributes["value"].t)
    if "sparse_value" in attributes:
        return _constant(attributes["sparse_value"].sparse_tensor.values)
    if "value_floats" in attributes:
        return _Constant(_FLOAT32, len(attributes["value_floats"].floats), 1)
    return _Constant(SimpleNamespace(name="other"), 0, 0)
