"""OpenVINO on a CPU, from an ONNX model.

By default, OpenVINO computes in bfloat16 on processors that support it, even if the model has a
different element type. The precision is therefore set explicitly, and the element type that
OpenVINO reports is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from paradnn.core.errors import reraise_as_unavailable
from paradnn.worker.frameworks.engines import Engine, Session, Source, onnx_model, operation_cost
from paradnn.worker.profile.shapes import Cost, Shape
from paradnn.worker.profile.trace import Event, Trace

#: Prefixes of NumPy's type names, by the prefixes of OpenVINO's type names.
_TYPE_PREFIXES = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "boolean": "bool"}
#: OpenVINO's type for each `precision`. The quantized operations of int8 are part of the model.
_HINTS = {"float32": "f32", "int8": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVino(Engine):
    """Inference with OpenVINO. ONNX Runtime's tools calibrate int8 models."""

    name = "openvino"
    title = "OpenVINO"
    precisions = ("bfloat16", "float16", "int8")

    def convert(self, source: Source, precision: str) -> bytes:
        model = onnx_model(source)
        if precision != "int8":
            return bytes(model.SerializeToString())
        with reraise_as_unavailable(
            "precision=int8 needs ONNX Runtime's tools for the calibration",
            ImportError,
            remedy="; pip install 'paradnn[engines]'",
        ):
            from paradnn.worker.frameworks.onnxruntime import quantize
        return quantize(model, source, precision)

    def load(
        self, artifact: bytes, source: Source, precision: str, traces: Path | None = None
    ) -> Session:
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY",
        }
        if source.threads:
            settings["INFERENCE_NUM_THREADS"] = source.threads
        if traces:
            settings["PERF_COUNT"] = True
        core = openvino.Core()
        with self.as_unavailable(RuntimeError, precision=precision):
            model = core.read_model(artifact)
            compiled = core.compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        for index, array in enumerate(source.batch):
            # Share the memory, so that no step copies the input.
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

        def outputs() -> Sequence[Any]:
            return [
                request.get_output_tensor(index).data.copy()
                for index in range(len(compiled.outputs))
            ]

        compute_type = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if not traces:
            return Session(request.infer, outputs, compute_type)
        profiled = _ProfiledRequest(request, operation_costs(model, compiled.get_runtime_model()))
        return Session(profiled.run, outputs, compute_type, profiled.trace)


class _ProfiledRequest:
    """An inference request with OpenVINO's performance counters.

    For each operation, OpenVINO reports the mean time over all runs of a model, in whole
    microseconds. The times of the first run, which also prepares the model, are subtracted.
    OpenVINO does not report when an operation begins. In the trace, the operations of a step follow
    each other without gaps, because OpenVINO runs them sequentially.

    Args:
        request: An `openvino.InferRequest` of a model that was compiled with PERF_COUNT.
        costs: The cost of each operation by its name.
    """

    def __init__(self, request: Any, costs: Mapping[str, Cost]) -> None:
        self._request = request
        self._costs = costs
        self._run_count = 0
        self._seconds = 0.0
        self._first: dict[str, float] = {}

    def run(self) -> None:
        begin = time.perf_counter()
        self._request.infer()
        self._run_count += 1
        if self._run_count > 1:
            self._seconds += time.perf_counter() - begin
        else:
            self._first = {
                entry.node_name: entry.real_time.total_seconds() for entry in self._executed()
            }

    def _executed(self) -> list[Any]:
        return [entry for entry in self._request.profiling_info if entry.status.name == "EXECUTED"]

    def trace(self) -> Trace:
        steps = self._run_count - 1
        trace = Trace(self._seconds)
        times: list[tuple[str, str, float]] = []
        for entry in self._executed():
            name = f"{entry.node_name} ({entry.exec_type})"
            cost = self._costs.get(entry.node_name) or operation_cost(entry.node_type, [], [])
            trace.stated_costs[name, cost.kind] = cost
            total_seconds = self._run_count * entry.real_time.total_seconds()
            later_seconds = max(0.0, total_seconds - self._first.get(entry.node_name, 0.0))
            times.append((name, cost.kind, later_seconds / steps))
        step = trace.seconds / steps
        # Because the times are rounded, their sum may exceed the step time.
        scale = min(1.0, step / max(1e-9, sum(seconds for *_, seconds in times)))
        for number in range(steps):
            start = number * step
            for name, kind, seconds in times:
                trace.events.append(Event("stream", name, kind, start, start + scale * seconds))
                start += scale * seconds
        return trace


def operation_costs(model: Any, compiled: Any) -> dict[str, Cost]:
    """Return FLOPs and bytes of each operation of a compiled model by the operation's name.

    For a fused operation, the FLOPs of matrix products and convolutions are the sum over the
    operations that it fuses.

    Args:
        model: The `openvino.Model` before compilation.
        compiled: The compiled model as an `openvino.Model` (`get_runtime_model()`).
    """
    original = {
        operation.get_friendly_name(): _cost(operation, operation.get_type_name())
        for operation in model.get_ordered_ops()
    }
    costs = {}
    for operation in compiled.get_ordered_ops():
        information = operation.get_rt_info()
        kind = str(information["layerType"].value)
        cost = _cost(operation, kind)
        names = str(information["originalLayersNames"].value).split(",")
        parts = [original[name] for name in names if name in original]
        products = [part for part in parts if part.product_flops]
        if products and not cost.product_flops:
            flops = sum(part.product_flops for part in products)
            cost = Cost(
                kind,
                products[0].category,
                flops=flops,
                bytes=None,
                product_flops=flops,
                dtype=products[0].dtype,
            )
        costs[operation.get_friendly_name()] = cost
    return costs


def _cost(operation: Any, kind: str) -> Cost:
    ports = [*operation.inputs(), *operation.outputs()]
    if any(port.get_partial_shape().is_dynamic for port in ports):
        return operation_cost(kind, [], [])
    inputs = [_shape(port) for port in operation.inputs()]
    outputs = [_shape(port) for port in operation.outputs()]
    return operation_cost(kind, inputs, outputs)


def _shape(port: Any) -> Shape:
    return Shape(_type_name(port), tuple(port.get_shape()))


def _type_name(port: Any) -> str:
    """Return NumPy's name of the element type of an input or output, such as float32 for f32."""
    name: str = port.get_element_type().get_type_name()
    prefix = name.rstrip("0123456789")
    return f"{_TYPE_PREFIXES.get(prefix, prefix)}{name.removeprefix(prefix)}"


FRAMEWORK = OpenVino
