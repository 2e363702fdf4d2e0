"""ONNX Runtime with its CPU execution provider. ONNX Runtime's own tools quantize models."""

from __future__ import annotations

import functools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime

from paradnn.core.errors import reraise_as_unavailable
from paradnn.families.parts.onnx_file import graph_inputs
from paradnn.worker.frameworks.engines import (
    Engine,
    OperationDetails,
    Session,
    Source,
    onnx_model,
    operation_cost,
)
from paradnn.worker.profile.shapes import Shape
from paradnn.worker.profile.trace import Event, Trace

#: NumPy's names of element types, by ONNX Runtime's names. All other names are the same.
_DTYPES = {"float": "float32", "double": "float64", "bool": "bool"}
#: Operations that ONNX Runtime merges into a preceding convolution.
_FUSED_WITH_CONVOLUTIONS = (
    "Add",
    "BatchNormalization",
    "Clip",
    "HardSigmoid",
    "LeakyRelu",
    "Mul",
    "Relu",
    "Sigmoid",
    "Tanh",
)


class OnnxRuntime(Engine):
    """Inference with ONNX Runtime."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    precisions = ("int8_dynamic", "int8")

    def convert(self, source: Source, precision: str) -> bytes:
        model = onnx_model(source)
        if precision == "float32":
            return bytes(model.SerializeToString())
        return quantize(model, source, precision)

    def load(
        self, artifact: bytes, source: Source, precision: str, traces: Path | None = None
    ) -> Session:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if source.threads:
            options.intra_op_num_threads = source.threads
        if traces:
            options.enable_profiling = True
            options.profile_file_prefix = str(traces / "onnxruntime")
        # ONNX Runtime's exceptions share no base class.
        with self.as_unavailable(Exception):
            session = onnxruntime.InferenceSession(
                artifact, options, providers=["CPUExecutionProvider"]
            )
        # Bind the arrays once, so that a step copies neither inputs nor outputs.
        bound = session.io_binding()
        for entry, array in zip(session.get_inputs(), source.batch, strict=True):
            bound.bind_cpu_input(entry.name, array)
        for entry in session.get_outputs():
            bound.bind_output(entry.name)
        run = functools.partial(session.run_with_iobinding, bound)
        return Session(
            run,
            bound.copy_outputs_to_cpu,
            trace=lambda: read_profile(Path(session.end_profiling()), artifact),
        )


def read_profile(file: Path, artifact: bytes = b"") -> Trace:
    """Read ONNX Runtime's trace, and return the operations of all runs except the first.

    Operations within a loop have separate events, in addition to the event of the loop.

    Args:
        file: ONNX Runtime's trace (JSON in Chrome's trace format, in microseconds).
        artifact: The ONNX model that ran, serialized. It states properties of operations that the
            trace omits.
    """
    events = json.loads(file.read_bytes())
    details = operation_details(artifact)
    runs = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"] == "model_run"
    ]
    origin = runs[0][1]
    trace = Trace((runs[-1][1] - origin) * 1e-6, file=file)
    for event in events:
        is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if not is_kernel or event["ts"] < origin:
            continue
        arguments = event["args"]
        kind = arguments["op_name"]
        inputs = _shapes(arguments["input_type_shape"])
        outputs = _shapes(arguments["output_type_shape"])
        name = f"{kind}({_listed(inputs)} -> {_listed(outputs)})"
        node = event["name"].removesuffix("_kernel_time")
        cost = operation_cost(kind, inputs, outputs, details.get(node))
        trace.stated_costs.setdefault((name, kind), cost)
        start = (event["ts"] - origin) * 1e-6
        end = start + event["dur"] * 1e-6
        trace.events.append(Event(str(event["tid"]), name, kind, start, end))
    return trace


def operation_details(artifact: bytes) -> dict[str, OperationDetails]:
    """Return properties of a model's operations that ONNX Runtime's traces omit.

    Args:
        artifact: The ONNX model, serialized.

    Returns:
        Einsum equations and weight shapes of convolutions, by the name of the operation in a trace.
        Empty if the package onnx is not installed, since a machine that only runs converted models
        does not need onnx.
    """
    try:
        import onnx
    except ImportError:
        return {}
    graph = onnx.load_from_string(artifact).graph
    shapes = {entry.name: tuple(entry.dims) for entry in graph.initializer}
    details = {}
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    for index, node in enumerate(nodes):
        # ONNX Runtime names an unnamed node by its type and its index among these nodes.
        name = node.name or f"{node.op_type}_{index}"
        if node.op_type == "Einsum":
            details[name] = OperationDetails(equation=node.attribute[0].s.decode())
        elif "Conv" in node.op_type and len(node.input) > 1:
            details[name] = OperationDetails(weight=shapes.get(node.input[1], ()))
    return details | _blocked_convolutions(nodes, shapes)


def _blocked_convolutions(
    nodes: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, OperationDetails]:
    """Return weight shapes of convolutions in ONNX Runtime's blocked layout, by name in a trace.

    The layout pads channels to a multiple of 8 or 16. In a trace, the name of such a convolution is
    the name of its output with the suffix "_nchwc". If following operations are fused with the
    convolution, the output is that of the last fused operation. The model does not show the
    fusions, so all possible names are returned. Names that two convolutions with different weights
    may have are excluded.

    Args:
        nodes: The nodes of the model's graph.
        shapes: The shape of each constant of the graph by name.
    """
    consumers: dict[str, list[Any]] = {}
    for node in nodes:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    details: dict[str, OperationDetails] = {}
    ambiguous: set[str] = set()
    for node in nodes:
        weight: tuple[int, ...] = ()
        if node.op_type == "Conv" and len(node.input) > 1:
            weight = shapes.get(node.input[1], ())
        while weight and len(node.output) == 1:
            name = f"{node.output[0]}_nchwc"
            if name in details and details[name].weight != weight:
                ambiguous.add(name)
            details[name] = OperationDetails(weight=weight, channels=weight[0])
            following = consumers.get(node.output[0], [])
            if len(following) != 1 or following[0].op_type not in _FUSED_WITH_CONVOLUTIONS:
                break
            node = following[0]
    return {name: detail for name, detail in details.items() if name not in ambiguous}


def _listed(shapes: Sequence[Shape]) -> str:
    """Return dimensions of several tensors as text, such as "8x256, 256x10"; a scalar is "1"."""
    return ", ".join("x".join(map(str, shape.dimensions)) or "1" for shape in shapes)


def _shapes(entries: Sequence[Mapping[str, Sequence[int]]]) -> list[Shape]:
    """Return the shapes for entries of a trace such as [{"float": [8, 256]}]."""
    return [
        Shape(_DTYPES.get(kind, kind), tuple(dimensions))
        for entry in entries
        for kind, dimensions in entry.items()
    ]


def quantize(model: Any, source: Source, precision: str) -> bytes:
    """Quantize an ONNX model with ONNX Runtime's tools.

    int8_dynamic has 8-bit weights. int8 also has 8-bit activations, in QDQ format.

    Args:
        model: The ONNX model in float32, as `onnx.ModelProto`.
        source: Supplies the input batches for the calibration of int8.
        precision: "int8_dynamic" or "int8".

    Returns:
        The quantized model, serialized.

    Raises:
        UnavailableError: If the tools cannot quantize the model.
    """
    # Import the tools here, because they need the package onnx.
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    # Suppress ONNX Runtime's advice to prepare the model, which is already prepared.
    logging.getLogger().setLevel(logging.ERROR)
    names = [entry.name for entry in graph_inputs(model)]
    batches = (dict(zip(names, arrays, strict=True)) for arrays in source.calibration_batches())
    with tempfile.TemporaryDirectory(prefix="onnx-") as folder:
        before = Path(folder) / "before.onnx"
        after = Path(folder) / "after.onnx"
        before.write_bytes(model.SerializeToString())
        with reraise_as_unavailable(
            "ONNX Runtime cannot quantize this model", Exception
        ):  # the exceptions of the tools share no base class
            if precision == "int8_dynamic":
                quantize_dynamic(before, after, weight_type=QuantType.QInt8)
            else:
                reader: Any = SimpleNamespace(get_next=lambda: next(batches, None))
                # Quantize activations symmetrically. With a zero point, OpenVINO computes wrong
                # results: the error is 1.7 instead of 0.013.
                quantize_static(
                    before,
                    after,
                    reader,
                    quant_format=QuantFormat.QDQ,
                    weight_type=QuantType.QInt8,
                    extra_options={"ActivationSymmetric": True},
                )
        return after.read_bytes()


FRAMEWORK = OnnxRuntime
