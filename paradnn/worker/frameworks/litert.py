"""LiteRT (TensorFlow Lite): its interpreter runs a FlatBuffer of built-in operations.

Models are converted without TensorFlow's own operations (Flex), which need TensorFlow at run time.
For a model that needs these operations, UnavailableError is raised.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from ai_edge_litert.interpreter import Interpreter

from paradnn.core.errors import UnavailableError
from paradnn.worker.frameworks.engines import Engine, Session, Source


class LiteRT(Engine):
    """Inference with LiteRT, formerly TensorFlow Lite."""

    name = "litert"
    title = "LiteRT"
    precisions = ("float16", "int8_dynamic", "int8")

    def convert(self, source: Source, precision: str) -> bytes:
        import tensorflow as tf

        # Suppress the converter's advice. If it crashes, the last line of output is the reason.
        logging.getLogger("absl").setLevel(logging.ERROR)
        function = source.frozen()
        has_loop = any(entry.type == "Enter" for entry in function.graph.get_operations())
        if precision == "int8" and has_loop:
            raise UnavailableError(
                "LiteRT's converter crashes when it calibrates a model with a loop: "
                "set precision=int8_dynamic"
            )
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if precision == "int8":
            converter.representative_dataset = source.calibration_batches
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
                tf.lite.OpsSet.TFLITE_BUILTINS,
            ]
        # The converter's exceptions share no base class.
        with self.as_unavailable(Exception), warnings.catch_warnings():
            # The converter warns that inputs and outputs stay float32, as intended.
            warnings.simplefilter("ignore")
            return bytes(converter.convert())

    def load(
        self, artifact: bytes, source: Source, precision: str, traces: Path | None = None
    ) -> Session:
        if traces:
            raise UnavailableError(
                "LiteRT's interpreter for Python has no profiler: set measure.profile=false"
            )
        threads = source.threads or len(os.sched_getaffinity(0))
        with self.as_unavailable(RuntimeError, ValueError):
            interpreter = Interpreter(model_content=artifact, num_threads=threads)
            interpreter.allocate_tensors()
        # Sort the inputs by name, because the converter changes their order.
        inputs = sorted(interpreter.get_input_details(), key=lambda details: details["name"])

        def copy() -> None:
            for details, array in zip(inputs, source.batch, strict=True):
                interpreter.set_tensor(details["index"], array)

        copy()
        output_indices = [details["index"] for details in interpreter.get_output_details()]

        def outputs() -> list[Any]:
            return [interpreter.get_tensor(index) for index in output_indices]

        return Session(interpreter.invoke, outputs, copy=copy)


FRAMEWORK = LiteRT
