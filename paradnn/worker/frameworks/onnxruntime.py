"""ONNX Runtime on its CPU provider: the model as ONNX by tf2onnx, quantised by ONNX Runtime's own tools."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from paradnn.core.workload import Unavailable
from paradnn.worker.frameworks.engines import Engine, Session, Source, onnx_model


class OnnxRuntime(Engine):
    """See `paradnn.worker.frameworks.Framework`."""

    name, title = "onnxruntime", "ONNX Runtime"
    precisions = ("int8_dynamic", "int8")

    def convert(self, source: Source, precision: str) -> Session:
        model = onnx_model(source)
        content = model.SerializeToString() if precision == "float32" else quantised(model, source, precision)
        try:
            return _loaded(content, source)
        except Exception as error:  # its exceptions share no class of their own
            raise self.refused(error) from error


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    """What it is calibrated on, batch by batch, by the names of the inputs."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        self._left = (dict(zip(names, arrays, strict=True)) for arrays in source.calibration())

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def quantised(model: Any, source: Source, precision: str) -> bytes:
    """The ONNX model with weights in 8 bits, and for int8 activations as well (its QDQ form)."""
    logging.getLogger().setLevel(logging.ERROR)  # it advises to prepare what is prepared
    names = [entry.name for entry in model.graph.input]
    with tempfile.TemporaryDirectory(prefix="onnx-") as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        before.write_bytes(model.SerializeToString())
        try:
            if precision == "int8_dynamic":
                quantize_dynamic(before, after, weight_type=QuantType.QInt8)
            else:
                # OpenVINO computes nonsense from activations with a zero point of their own (errors of 1.7 for 0.013).
                quantize_static(
                    before,
                    after,
                    _Batches(source, names),
                    quant_format=QuantFormat.QDQ,
                    weight_type=QuantType.QInt8,
                    extra_options={"ActivationSymmetric": True},
                )
        except Exception as error:  # whatever its tools meet in a model that they do not know
            raise Unavailable(f"ONNX Runtime cannot quantise this model: {str(error)[:200]}") from error
        return after.read_bytes()


def _loaded(content: bytes, source: Source) -> Session:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if source.threads:
        options.intra_op_num_threads = source.threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # Bound once: neither inputs nor outputs are copied in a step.
    bound = session.io_binding()
    for entry, array in zip(session.get_inputs(), source.batch, strict=True):
        bound.bind_cpu_input(entry.name, np.ascontiguousarray(array))
    for entry in session.get_outputs():
        bound.bind_output(entry.name)
    return Session(len(content), functools.partial(session.run_with_iobinding, bound), bound.copy_outputs_to_cpu)


FRAMEWORK = OnnxRuntime
