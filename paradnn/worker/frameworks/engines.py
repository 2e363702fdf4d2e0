"""Engines that serve models: LiteRT, ONNX Runtime, OpenVINO. A Keras model is built by TensorFlow and converted.

What is measured is the engine's own call on a batch that stays where it is. The model is built in float32 with a fixed
batch size, and `precision` is the artefact's: int8_dynamic has weights in 8 bits and activations quantised as they
come, int8 both, calibrated on batches of the point's own inputs. No export is trusted: an artefact that says something
else than Keras by more than its precision explains is no measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from paradnn.core.workload import Unavailable
from paradnn.families.built import BuiltModel
from paradnn.families.parts.given import OnnxGraph
from paradnn.worker.frameworks import Batch, Step
from paradnn.worker.frameworks.tensorflow import TensorFlow

#: Batches that `precision=int8` is calibrated on.
CALIBRATION = 8
#: How far an artefact's outputs may be from Keras', as a share of the largest: beyond it they are another model's.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02, "int8": 0.5, "int8_dynamic": 0.5}


@dataclass(frozen=True)
class Session:
    """A converted model, loaded, with its inputs in place: its bytes, one step, its outputs, and the type in
    which it computes by its own word."""

    size: int
    run: Callable[[], Any]
    outputs: Callable[[], Sequence[Any]]
    computes: str = ""


class Source:
    """A Keras model as a TensorFlow function of fixed shapes, and the batch it is measured on."""

    def __init__(self, workload: BuiltModel, batch: Sequence[Any], threads: int | None) -> None:
        model = workload.model
        if not hasattr(model, "layers"):
            raise Unavailable("an engine runs models, not single operations or generations: use framework=tensorflow")
        self.batch = [np.asarray(array) for array in batch]
        self.threads = threads
        specs = [tf.TensorSpec(array.shape, array.dtype, name=f"input_{n}") for n, array in enumerate(self.batch)]

        def forward(*inputs: tf.Tensor) -> Any:
            outputs = tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else list(inputs), training=False))
            # What hands an input through unchanged converts to no operation.
            return [tf.identity(output, name=f"output_{n}") for n, output in enumerate(outputs)]

        self.function, self.signature = tf.function(forward, input_signature=specs), specs

    def frozen(self) -> Any:
        """The concrete function with its weights as constants."""
        return convert_variables_to_constants_v2(self.function.get_concrete_function())

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """What Keras says of the batch."""
        return [output.numpy() for output in self.function(*self.batch)]

    def calibration(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Batches to calibrate on: the point's own examples, shifted against each other."""
        for shift in range(CALIBRATION):
            yield [np.roll(array, shift, axis=0) for array in self.batch]


class OnnxSource(Source):
    """A model that comes as ONNX, and the batch it is measured on; ONNX Runtime says what is expected of it."""

    def __init__(self, workload: BuiltModel, batch: Sequence[Any], threads: int | None) -> None:
        given: Any = workload.model
        if given.fixed not in (None, len(batch[0])):
            raise Unavailable(f"the model has a batch of {given.fixed} alone: set batch_size={given.fixed}")
        self.batch = [np.asarray(array, kind) for array, kind in zip(batch, given.types, strict=True)]
        self.threads, self.graph = threads, given.graph

    def frozen(self) -> Any:
        raise Unavailable("this engine reads no ONNX file: set framework=onnxruntime or openvino")

    def expected(self) -> list[np.ndarray[Any, Any]]:
        try:
            import onnxruntime
        except ImportError as error:
            raise Unavailable(f"onnxruntime, which checks the outputs, is not installed: {error}") from None
        session = onnxruntime.InferenceSession(self.graph.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return [np.asarray(found) for found in session.run(None, dict(zip(names, self.batch, strict=True)))]


class Engine(TensorFlow):
    """See `paradnn.worker.frameworks.Framework`; a subclass names itself and converts."""

    compile_modes: tuple[str, ...] = ("graph",)
    #: What it calls itself, and the precisions that it has, beside float32.
    title: str
    precisions: tuple[str, ...] = ()
    _threads: int | None = None

    def open_device(self, platform: Mapping[str, Any]) -> None:
        if platform["name"] != "cpu":
            raise Unavailable(f"framework={self.name} is measured on a cpu, not on a {platform['name']}")
        super().open_device(platform)
        self._threads = platform["threads"]

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        if point["mode"] != "inference":
            raise Unavailable(f"framework={self.name} runs models and trains none: set mode=inference")
        if point["compile"] != "graph":
            raise Unavailable(f"framework={self.name} has one way to compile: set compile=graph")
        precision = point["precision"]
        if precision not in ("float32", *self.precisions):
            raise Unavailable(f"framework={self.name} has no precision={precision}; it has {self.precisions}")
        source = (OnnxSource if isinstance(workload.model, OnnxGraph) else Source)(workload, batch[0], self._threads)
        return EngineStep(lambda: self.convert(source, precision), source, precision)

    def convert(self, source: Source, precision: str) -> Session:
        """The artefact in the engine, whose words are said where it cannot. Raises Unavailable."""
        raise NotImplementedError

    def refused(self, error: BaseException, line: int = 0) -> Unavailable:
        """That the engine cannot do it, with one line of what it says."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return Unavailable(f"{self.title} cannot run this model: {lines[line][:200]}")

    def trace(self, folder: Any) -> Any:
        raise Unavailable(f"framework={self.name} has no profile here: measure with measure.profile=false")


class EngineStep(Step):
    """See `paradnn.worker.frameworks.Step`: converted and loaded when it first runs, as others compile then."""

    def __init__(self, convert: Callable[[], Session], source: Source, precision: str) -> None:
        self._convert, self._source, self._precision = convert, source, precision
        self._session: Session | None = None
        self.conversion_seconds = 0.0
        self.error = float("nan")

    def run(self, steps: int) -> float | None:
        run = (self._session or self._open()).run
        for _ in range(steps):
            run()
        return None

    def _open(self) -> Session:
        begun = time.perf_counter()
        session = self._convert()
        self.conversion_seconds = time.perf_counter() - begun
        session.run()
        self.error = largest_error(session.outputs(), self._source.expected())
        if not self.error <= _TOLERANCE[self._precision]:
            raise ValueError(f"the converted model's outputs differ from Keras' by {self.error:.2g} of the largest")
        self._session = session
        return session

    def compilations(self) -> int:
        return int(self._session is not None)

    def compile_note(self) -> str | None:
        if self._session is None:
            return None
        computes = f", computes in {self._session.computes}" if self._session.computes else ""
        return (
            f"converted in {self.conversion_seconds:.2f} s to {self._session.size:,} bytes{computes}; "
            f"outputs differ from Keras' by {self.error:.2g} of the largest"
        )


def largest_error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference between outputs, as a share of the largest expected one; infinite where shapes differ."""
    if [np.shape(one) for one in found] != [np.shape(one) for one in expected]:
        return float("inf")
    pairs = list(zip(found, expected, strict=True))
    if not all(np.isfinite(one).all() for one, _ in pairs):
        return float("inf")
    largest = max(float(np.abs(one).max()) for one in expected)
    error = max(float(np.abs(np.asarray(one, "float64") - two).max()) for one, two in pairs)
    return error / largest if largest else error


def onnx_model(source: Source) -> Any:
    """The model as ONNX, by tf2onnx where it does not come as such."""
    if isinstance(source, OnnxSource):
        return source.graph
    try:
        import tf2onnx
    except ImportError as error:
        raise Unavailable(f"tf2onnx is not installed ({error}): pip install 'paradnn[engines]'") from None
    from onnx import helper

    def complement(context: Any, node: Any, name: str, args: Any) -> None:
        """Erfc(x), which ONNX lacks, as 1 - Erf(x)."""
        dtype, shape = context.get_dtype(node.output[0]), context.get_shape(node.output[0])
        outputs, [inner] = list(node.output), list(node.input)
        context.remove_node(node.name)
        error = context.make_node("Erf", [inner], dtypes=[dtype], shapes=[shape])
        one = context.make_const(f"{name}_one", np.ones((), helper.tensor_dtype_to_np_dtype(dtype)))
        context.make_node("Sub", [one.output[0], error.output[0]], outputs=outputs, dtypes=[dtype], shapes=[shape])

    handlers: dict[str, Any] = {"Erfc": (complement, [])}
    model, _ = tf2onnx.convert.from_function(
        source.function, input_signature=source.signature, opset=18, custom_op_handlers=handlers
    )
    return model
