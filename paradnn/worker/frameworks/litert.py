"""LiteRT (TensorFlow Lite): the model as a flat buffer of built-in operations, run by its
interpreter.

Operations that only TensorFlow has (Flex) are refused when a model is converted, since they would
not run elsewhere.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

from ai_edge_litert.interpreter import Interpreter

from paradnn.core.errors import UnavailableError
from paradnn.worker.frameworks.engines import Engine, Session, Source


class LiteRT(Engine):
    """See `paradnn.worker.frameworks.Framework`."""

    name = "litert"
    title = "LiteRT"
    precisions = ("float16", "int8_dynamic", "int8")

    def convert(self, source: Source, precision: str) -> bytes:
        import tensorflow as tf

        logging.getLogger("absl").setLevel(
            logging.ERROR
        )  # it advises; what it says last would be a crash's reason
        function = source.frozen()
        if precision == "int8" and any(
            each.type == "Enter" for each in function.graph.get_operations()
        ):
            raise UnavailableError(
                "LiteRT's converter does not survive the calibration of a loop: use int8_dynamic"
            )
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if precision == "int8":
            converter.representative_dataset = source.calibration
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
                tf.lite.OpsSet.TFLITE_BUILTINS,
            ]
        with (
            self.refusing(Exception),
            warnings.catch_warnings(),
        ):  # its exceptions share no class of their own
            warnings.simplefilter("ignore")  # that inputs and outputs stay float32, as they are to
            return bytes(converter.convert())

    def load(
        self, artefact: bytes, source: Source, precision: str, traces: Path | None = None
    ) -> Session:
        if traces:
            raise UnavailableError(
                "LiteRT's interpreter for Python takes no profiler: measure with measure.profile=false"
            )
        threads = source.threads or len(os.sched_getaffinity(0))
        with self.refusing(RuntimeError, ValueError):
            interpreter = Interpreter(model_content=artefact, num_threads=threads)
            interpreter.allocate_tensors()
        # By name: the order is the converter's own.
        places = sorted(interpreter.get_input_details(), key=lambda place: place["name"])

        def copy() -> None:
            for place, array in zip(places, source.batch, strict=True):
                interpreter.set_tensor(place["index"], array)

        copy()
        results = [place["index"] for place in interpreter.get_output_details()]
        return Session(
            interpreter.invoke,
            lambda: [interpreter.get_tensor(place) for place in results],
            copy=copy,
        )


FRAMEWORK = LiteRT
