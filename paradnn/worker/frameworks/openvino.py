"""OpenVINO on a CPU: the model as ONNX by tf2onnx, compiled by OpenVINO.

Left alone it computes in bfloat16 on processors that have it, whatever the model says: the
precision is set, and what it says of itself is recorded.
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

_LETTERS = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "boolean": "bool"}
_HINTS = {"float32": "f32", "int8": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVino(Engine):
    """See `paradnn.worker.frameworks.Framework`; int8 is the artefact that ONNX Runtime's tools
    calibrate.
    """

    name = "openvino"
    title = "OpenVINO"
    precisions = ("bfloat16", "float16", "int8")

    def convert(self, source: Source, precision: str) -> bytes:
        model = onnx_model(source)
        if precision != "int8":
            return bytes(model.SerializeToString())
        with reraise_as_unavailable(
            "precision=int8 is calibrated by ONNX Runtime's tools", ImportError
        ):
            from paradnn.worker.frameworks.onnxruntime import quantised
        return quantised(model, source, precision)

    def load(
        self, artefact: bytes, source: Source, precision: str, traces: Path | None = None
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
        with self.refusing(RuntimeError, precision=precision):
            model = core.read_model(artefact)
            compiled = core.compile_model(model, "CPU", settings)
        request = compiled.create_infer_request()
        for place, array in enumerate(source.batch):
            # Shared, so that no step copies it.
            request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))

        def outputs() -> Sequence[Any]:
            return [
                request.get_output_tensor(place).data.copy()
                for place in range(len(compiled.outputs))
            ]

        computes = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if not traces:
            return Session(request.infer, outputs, computes)
        counted = _Counted(request, operation_costs(model, compiled.get_runtime_model()))
        return Session(counted.run, outputs, computes, counted.trace)


class _Counted:
    """Steps, and the performance counters behind them. Of each operation OpenVINO tells the mean
    over all of a model's runs, in whole microseconds: what the first run took is taken off, which
    also prepares. When an operation began is not told: they are laid end to end within a step, as
    its single stream runs them.
    """

    def __init__(self, request: Any, costs: Mapping[str, Cost]) -> None:
        self._request = request
        self._costs = costs
        self._runs = 0
        self._seconds = 0.0
        self._first: dict[str, float] = {}

    def run(self) -> None:
        begin = time.perf_counter()
        self._request.infer()
        self._runs += 1
        if self._runs > 1:
            self._seconds += time.perf_counter() - begin
        else:
            self._first = {
                entry.node_name: entry.real_time.total_seconds() for entry in self._executed()
            }

    def _executed(self) -> list[Any]:
        return [entry for entry in self._request.profiling_info if entry.status.name == "EXECUTED"]

    def trace(self) -> Trace:
        steps = self._runs - 1
        trace = Trace(self._seconds)
        took = []
        for entry in self._executed():
            name = f"{entry.node_name} ({entry.exec_type})"
            cost = self._costs.get(entry.node_name) or operation_cost(entry.node_type, [], [])
            trace.stated[name, cost.kind] = cost
            all_runs = self._runs * entry.real_time.total_seconds()
            took.append(
                (
                    name,
                    cost.kind,
                    max(0.0, all_runs - self._first.get(entry.node_name, 0.0)) / steps,
                )
            )
        step = trace.seconds / steps
        scale = min(
            1.0, step / max(1e-9, sum(seconds for *_, seconds in took))
        )  # rounded, they may exceed the step
        for number in range(steps):
            start = number * step
            for name, kind, seconds in took:
                trace.events.append(Event("stream", name, kind, start, start + scale * seconds))
                start += scale * seconds
        return trace


def operation_costs(model: Any, compiled: Any) -> dict[str, Cost]:
    """The cost of each operation of the `compiled` model (`get_runtime_model()`) by its name. What
    was made of several has the products of those in the `model` that was read.
    """
    original = {
        each.get_friendly_name(): _cost(each, each.get_type_name())
        for each in model.get_ordered_ops()
    }
    costs = {}
    for each in compiled.get_ordered_ops():
        told = each.get_rt_info()
        kind = str(told["layerType"].value)
        cost = _cost(each, kind)
        parts = [
            original[name]
            for name in str(told["originalLayersNames"].value).split(",")
            if name in original
        ]
        products = [part for part in parts if part.product_flops]
        if products and not cost.product_flops:
            flops = sum(part.product_flops for part in products)
            cost = Cost(kind, products[0].category, flops, None, flops, products[0].dtype)
        costs[each.get_friendly_name()] = cost
    return costs


def _cost(each: Any, kind: str) -> Cost:
    if any(port.get_partial_shape().is_dynamic for port in (*each.inputs(), *each.outputs())):
        return operation_cost(kind, [], [])
    sides = (
        [Shape(_type(port), tuple(port.get_shape())) for port in ports]
        for ports in (each.inputs(), each.outputs())
    )
    return operation_cost(kind, *sides)


def _type(port: Any) -> str:
    """Its type by NumPy's name: float32 for f32."""
    name: str = port.get_element_type().get_type_name()
    letters = name.rstrip("0123456789")
    return f"{_LETTERS.get(letters, letters)}{name.removeprefix(letters)}"


FRAMEWORK = OpenVino
