"""OpenVINO on a CPU: the model as ONNX by tf2onnx, compiled by OpenVINO.

Left alone it computes in bfloat16 on processors that have it, whatever the model says: the precision is set, and what
it says of itself is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino

from paradnn.core.workload import Unavailable
from paradnn.worker.frameworks.engines import Engine, Session, Source, onnx_model

_HINTS = {"float32": "f32", "int8": "f32", "bfloat16": "bf16", "float16": "f16"}


class OpenVino(Engine):
    """See `paradnn.worker.frameworks.Framework`; int8 is the artefact that ONNX Runtime's tools calibrate."""

    name, title = "openvino", "OpenVINO"
    precisions = ("bfloat16", "float16", "int8")

    def convert(self, source: Source, precision: str) -> Session:
        model = onnx_model(source)
        content = model.SerializeToString()
        if precision == "int8":
            try:
                from paradnn.worker.frameworks.onnxruntime import quantised
            except ImportError as error:
                raise Unavailable(f"precision=int8 is calibrated by ONNX Runtime's tools: {error}") from None
            content = quantised(model, source, precision)
        try:
            return _loaded(content, source, _HINTS[precision])
        except RuntimeError as error:
            raise self.refused(error, -1) from error


def _loaded(content: bytes, source: Source, hint: str) -> Session:
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    if source.threads:
        settings["INFERENCE_NUM_THREADS"] = source.threads
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(content), "CPU", settings)
    request = compiled.create_infer_request()
    for place, array in enumerate(source.batch):
        # Shared, so that no step copies it.
        request.set_input_tensor(place, openvino.Tensor(np.ascontiguousarray(array), shared_memory=True))

    def outputs() -> Sequence[Any]:
        return [request.get_output_tensor(place).data.copy() for place in range(len(compiled.outputs))]

    computes = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return Session(len(content), request.infer, outputs, computes)


FRAMEWORK = OpenVino
