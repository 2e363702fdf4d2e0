"""Inference engines: LiteRT, ONNX Runtime, OpenVINO.

TensorFlow builds the Keras model in float32 with a fixed batch size. The engine's converter turns
the model into an artifact: the file that the engine loads. The timed step is one call of the engine
on a batch that stays in memory.

`precision` applies to the artifact. int8_dynamic has 8-bit weights and quantizes activations at run
time. int8 has 8-bit weights and activations, calibrated on batches of the model's inputs. Every
conversion is checked: if the outputs differ from the outputs of Keras by more than the tolerance of
the precision, UnavailableError is raised.

An engine records the times of operations only if that is requested when it loads the artifact. The
profile therefore comes from a second session, which loads the artifact again.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError, reraise_as_unavailable
from paradnn.core.messages import Conversion
from paradnn.families.built import ArraySpec, BuiltModel, FunctionModel
from paradnn.families.parts.onnx_file import OnnxGraph
from paradnn.worker.frameworks import Batch, Framework, Step
from paradnn.worker.profile.categories import PRODUCTS, categorize
from paradnn.worker.profile.shapes import Cost, Shape, attention_flops, plain_cost, product_flops
from paradnn.worker.profile.trace import Trace

try:
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    from paradnn.worker.frameworks.tensorflow import TensorFlow
except ModuleNotFoundError:  # not needed where only converted artifacts are run
    TensorFlow = Framework  # type: ignore[assignment, misc]

#: Number of batches that calibrate `precision=int8`.
CALIBRATION_BATCHES = 8
#: Largest accepted difference between the outputs of an artifact and of Keras, as a share of the
#: largest output, by precision.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02, "int8": 0.25, "int8_dynamic": 0.25}


@dataclass(frozen=True)
class Session:
    """A converted model (artifact) that an inference engine has loaded, with its input arrays.

    Attributes:
        run: Function that runs one forward pass.
        outputs: Function that returns the output arrays of the last forward pass.
        compute_type: Element type in which the engine computes, as the engine reports it; empty if
            it reports none.
        trace: Function that returns the trace of all forward passes but the first. The trace has
            operations only if the artifact was loaded for a profile.
        copy: Function that copies the inputs into the engine. It does nothing if the engine reads
            them in place.
    """

    run: Callable[[], Any]
    outputs: Callable[[], Sequence[Any]]
    compute_type: str = ""
    trace: Callable[[], Trace] = lambda: Trace(0.0)
    copy: Callable[[], None] = lambda: None


class Source:
    """A Keras model to convert, as a TensorFlow function of fixed shapes, and its batch.

    Args:
        workload: The Keras model.
        batch: The input arrays on which the model is measured, with the batch axis.
        threads: Number of threads of the engine; None for all cores.

    Attributes:
        batch: Copies of the input arrays.
        threads: Number of threads of the engine; None for all cores.
        function: The forward pass as a `tf.function`.
        examples: Inputs for the calibration of int8 (examples, ...); None to use `batch`.

    Raises:
        UnavailableError: If the workload is a single operation or text generation, not a whole
            model.
    """

    #: The converted model if another machine converted it, else empty.
    artifact = b""
    #: Name of the program whose outputs an engine must reproduce, within the tolerance.
    reference = "Keras"

    def __init__(self, workload: BuiltModel, batch: Sequence[Any], threads: int | None) -> None:
        model = workload.model
        self.examples: Any = None
        if not hasattr(model, "layers"):
            raise UnavailableError(
                "an engine runs whole models, not single operations or text generation: "
                "set framework=tensorflow"
            )
        self.batch = [np.array(array, order="C") for array in batch]
        self.threads = threads
        specs = [
            tf.TensorSpec(array.shape, array.dtype, name=f"input_{number}")
            for number, array in enumerate(self.batch)
        ]

        def forward(*inputs: tf.Tensor) -> Any:
            argument = inputs[0] if len(inputs) == 1 else list(inputs)
            outputs = tf.nest.flatten(model(argument, training=False))
            # Converters drop an output that is also an input. An identity operation keeps it.
            return [
                tf.identity(output, name=f"output_{number}")
                for number, output in enumerate(outputs)
            ]

        self.function = tf.function(forward, input_signature=specs)

    def frozen(self, **settings: bool) -> Any:
        """Return the concrete function with its weights as constants.

        Args:
            **settings: Passed on to `convert_variables_to_constants_v2`.
        """
        return convert_variables_to_constants_v2(self.function.get_concrete_function(), **settings)

    def expected_outputs(self) -> list[np.ndarray[Any, Any]]:
        """Return the output arrays for the batch, computed by the program named in `reference`."""
        return [output.numpy() for output in self.function(*self.batch)]

    def calibration_batches(self) -> Iterator[list[np.ndarray[Any, Any]]]:
        """Yield the `CALIBRATION_BATCHES` batches on which an int8 model is calibrated.

        A batch is a list of input arrays. The batches take the `examples` in order, and start again
        at the first after the last. If `examples` is None, each batch has the arrays of `batch`,
        each permuted at random along its first axis.
        """
        size = len(self.batch[0])
        for number in range(CALIBRATION_BATCHES):
            if self.examples is None:
                yield [np.random.default_rng(number).permuted(array) for array in self.batch]
            else:
                indices = np.arange(number * size, (number + 1) * size) % len(self.examples)
                yield [self.examples[indices].astype(self.batch[0].dtype)]


class OnnxSource(Source):
    """A model from an ONNX file, and its batch. ONNX Runtime computes the expected outputs.

    The arguments are those of `Source`.
    """

    reference = "ONNX Runtime in float32"

    def __init__(self, workload: BuiltModel, batch: Sequence[Any], threads: int | None) -> None:
        graph: Any = workload.model
        self.batch = [
            np.array(array, kind, order="C") for array, kind in zip(batch, graph.types, strict=True)
        ]
        self.threads = threads
        self.graph = graph.model
        self.examples = None

    def frozen(self, **settings: bool) -> Any:
        raise UnavailableError(
            "this engine cannot read ONNX files: set framework=onnxruntime or openvino"
        )

    def expected_outputs(self) -> list[np.ndarray[Any, Any]]:
        with reraise_as_unavailable(
            "onnxruntime, which computes the expected outputs, is not installed",
            ImportError,
            remedy="; pip install 'paradnn[engines]'",
        ):
            import onnxruntime
        session = onnxruntime.InferenceSession(
            self.graph.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [entry.name for entry in session.get_inputs()]
        return [
            np.asarray(output)
            for output in session.run(None, dict(zip(names, self.batch, strict=True)))
        ]


class ConvertedArtifact(Source):
    """A model that another machine converted, with its batch and the outputs of Keras.

    Args:
        file: The file that `EngineStep.save` wrote.
        threads: Number of threads of the engine; None for all cores.
    """

    def __init__(self, file: Path, threads: int | None) -> None:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        self.artifact = arrays["artefact"].tobytes()
        self.parameters = arrays["parameters"]
        self.batch = [array for name, array in arrays.items() if name.startswith("input")]
        self.outputs = [array for name, array in arrays.items() if name.startswith("output")]
        self.threads = threads
        self.examples = None

    def expected_outputs(self) -> list[np.ndarray[Any, Any]]:
        return self.outputs


class Engine(TensorFlow):
    """Base class of the inference engines. A subclass converts and loads models.

    Attributes:
        title: The engine's name in messages.
        precisions: Precisions in addition to float32.
    """

    compile_modes: tuple[str, ...] = ("graph",)
    title: str
    precisions: tuple[str, ...] = ()
    _threads: int | None = None
    _step: EngineStep

    def open_device(self, platform: Mapping[str, Any]) -> None:
        if platform["name"] != "cpu":
            raise UnavailableError(
                f"framework={self.name} runs only on a CPU, not on platform={platform['name']}: "
                "set platform=cpu"
            )
        super().open_device(platform)
        self._threads = platform["threads"]

    def make_step(self, workload: BuiltModel, batch: Batch, point: Mapping[str, Any]) -> Step:
        if point["mode"] != "inference":
            raise UnavailableError(
                f"framework={self.name} runs only forward passes: "
                "set mode=inference, or framework=tensorflow to train"
            )
        if point["compile"] != "graph":
            raise UnavailableError(
                f"framework={self.name} has only one compile mode: set compile=graph"
            )
        precision = point["precision"]
        precisions = ("float32", *self.precisions)
        if precision not in precisions:
            raise UnavailableError(
                f"framework={self.name} has no precision={precision}: "
                f"set one of {', '.join(precisions)}"
            )
        source_class = OnnxSource if isinstance(workload.model, OnnxGraph) else Source
        source = source_class(workload, batch[0], self._threads)
        self._step = EngineStep(self, source, precision)
        if "keep" in point:
            self._step.run(1)
            self._step.save(Path(point["keep"]), workload)
        return self._step

    def converted_step(self, point: Mapping[str, Any]) -> tuple[BuiltModel, Step]:
        """Return a model that another machine converted, and its forward pass as a step.

        The returned model contains no values, only the sizes of its inputs and parameters.

        Args:
            point: The configuration to measure. `artefact` is the path of a file that
                `EngineStep.save` wrote. `precision` is the precision of the converted model.
        """
        source = ConvertedArtifact(Path(point["artefact"]), self._threads)
        self._step = EngineStep(self, source, point["precision"])
        trainable, fixed = ([np.broadcast_to(0.0, count)] for count in source.parameters)
        specs = tuple(ArraySpec(array.shape[1:], str(array.dtype)) for array in source.batch)
        return BuiltModel(FunctionModel(len, trainable, fixed), specs), self._step

    def convert(self, source: Source, precision: str) -> bytes:
        """Convert a model for the engine, and return the content of the file that the engine loads.

        Args:
            source: The model with its batch.
            precision: The precision of the converted model, such as "float32" or "int8".

        Raises:
            UnavailableError: If the engine cannot convert the model.
        """
        raise NotImplementedError

    def load(
        self, artifact: bytes, source: Source, precision: str, traces: Path | None = None
    ) -> Session:
        """Load a converted model into the engine.

        Args:
            artifact: The converted model, as `convert` returns it.
            source: The original model with its batch.
            precision: The precision of the converted model.
            traces: Folder into which the engine writes the times of operations for a profile; None
                to record no times.

        Raises:
            UnavailableError: If the engine cannot run the model, with the engine's message.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def as_unavailable(
        self, *errors: type[Exception], precision: str = "float32"
    ) -> Iterator[None]:
        """Reraise exceptions of the given types as UnavailableError, with a line of their message.

        Args:
            *errors: Types of exceptions by which the engine rejects a model.
            precision: The precision of the converted model. Unless it is float32, the message
                proposes float32.
        """
        try:
            yield
        except errors as error:
            reason = f"{self.title} cannot run this model: {_informative_line(error)}"
            raise UnavailableError(f"{reason}{_remedy(precision)}") from error

    @contextlib.contextmanager
    def trace(self, folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
        with self._step.profiled(folder):
            yield contextlib.nullcontext

    def read_trace(self, folder: Path) -> Trace:
        return self._step.profile.trace()


class EngineStep(Step):
    """A forward pass of a model in an inference engine.

    The first run converts and loads the model, just as a framework's first step compiles it.

    Args:
        engine: Converts and loads the model.
        source: The model with its batch.
        precision: The precision of the converted model.

    Attributes:
        profile: The loaded model that records the times of operations. `profiled` sets it.
    """

    profile: Session

    def __init__(self, engine: Engine, source: Source, precision: str) -> None:
        self._engine = engine
        self._source = source
        self._precision = precision
        self._session: Session | None = None
        self._artifact = b""
        self._conversion: Conversion | None = None

    def run(self, steps: int) -> float | None:
        session = self._session or self._open()
        for _ in range(steps):
            session.run()
        return None

    def _open(self) -> Session:
        start = time.perf_counter()
        self._artifact = self._source.artifact or self._engine.convert(
            self._source, self._precision
        )
        session = self._engine.load(self._artifact, self._source, self._precision)
        seconds = time.perf_counter() - start
        # Some models load, but fail when they run on these inputs. Engines then raise RuntimeError
        # or a subclass, or TypeError or ValueError if NumPy cannot hold a value.
        with self._engine.as_unavailable(
            RuntimeError, TypeError, ValueError, precision=self._precision
        ):
            session.run()
            outputs = session.outputs()
            expected = self._source.expected_outputs()
        error = largest_error(outputs, expected)
        tolerance = _TOLERANCE[self._precision]
        if not error <= tolerance:  # also true if the error is NaN
            raise UnavailableError(
                f"outputs of {self._engine.title} differ from those of {self._source.reference} "
                f"by {error:.2g} of the largest output; the tolerance is {tolerance:g}"
                f"{_remedy(self._precision)}"
            )
        self._conversion = Conversion(seconds, float(len(self._artifact)), error)
        self._session = session
        return session

    def save(self, file: Path, workload: BuiltModel) -> None:
        """Save the converted model, the batch and the outputs of Keras for another machine.

        `ConvertedArtifact` reads the file.

        Args:
            file: The NumPy archive (.npz) to write.
            workload: The original model, whose numbers of parameters are saved.
        """
        arrays: dict[str, Any] = {}
        for number, array in enumerate(self._source.batch):
            arrays[f"input_{number}"] = array
        for number, array in enumerate(self._source.expected_outputs()):
            arrays[f"output_{number}"] = array
        parameters = [
            sum(math.prod(variable.shape) for variable in variables)
            for variables in (
                workload.model.trainable_variables,
                workload.model.non_trainable_variables,
            )
        ]
        np.savez(
            file, artefact=np.frombuffer(self._artifact, np.uint8), parameters=parameters, **arrays
        )

    @contextlib.contextmanager
    def profiled(self, folder: Path) -> Iterator[None]:
        """Return a context in which the engine records the time of each operation of the step.

        Args:
            folder: Folder into which the engine writes its records.
        """
        plain = self._session
        self.profile = self._engine.load(self._artifact, self._source, self._precision, folder)
        self._session = self.profile
        try:
            yield
        finally:
            self._session = plain

    def calibrate(self, examples: Any) -> None:
        # The outputs for the timed batch are compared with the outputs of Keras. Values outside the
        # calibrated range would be clipped, so the batch consists of calibration examples.
        self._source.examples = examples
        [batch] = self._source.batch
        np.copyto(batch, examples[np.arange(len(batch)) % len(examples)])

    def outputs(self, inputs: Sequence[Any]) -> Any:
        for batch, array in zip(self._source.batch, inputs, strict=True):
            np.copyto(batch, array)
        assert self._session
        self._session.copy()
        self.run(1)
        return self._session.outputs()[-1]

    def compilations(self) -> int:
        return int(self._session is not None)

    def compile_note(self) -> str | None:
        if self._session and self._session.compute_type:
            return f"computes in {self._session.compute_type}"
        return None

    def conversion(self) -> Conversion | None:
        return self._conversion


def _informative_line(error: Exception) -> str:
    """Return the line of an exception's message that names an operation, or else its first line.

    The result has at most 200 characters. If the message is empty, it is the type of the exception.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # OpenVINO's messages begin with a location in its source.
    statements = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    statements = statements or lines
    for line in statements:
        if "error: " in line or "No conversion" in line:
            return line.rpartition("error: ")[2][:200]
    return statements[0][:200]


def _remedy(precision: str) -> str:
    """Return the end of a message that proposes float32; empty if `precision` is float32."""
    if precision == "float32":
        return ""
    return ": set precision=float32"


def largest_error(outputs: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference between outputs, as a fraction of the largest expected value.

    Empty arrays are ignored.

    Args:
        outputs: Output arrays of the converted model.
        expected: Output arrays of the original model.

    Returns:
        The relative difference. If all expected values are 0, the absolute difference. Infinity if
        shapes differ or an output is not finite.
    """
    if [np.shape(values) for values in outputs] != [np.shape(values) for values in expected]:
        return float("inf")
    pairs = [
        (np.asarray(values, "float64"), np.asarray(expected_values, "float64"))
        for values, expected_values in zip(outputs, expected, strict=True)
        if np.size(values)
    ]
    if not all(np.isfinite(values).all() for values, _ in pairs):
        return float("inf")
    largest = max((float(np.abs(reference).max()) for _, reference in pairs), default=0.0)
    error = max(
        (float(np.abs(values - reference).max()) for values, reference in pairs),
        default=0.0,
    )
    return error / largest if largest else error


def onnx_model(source: Source) -> Any:
    """Return a model in the ONNX format, as `onnx.ModelProto`.

    Args:
        source: The model. If it does not come from an ONNX file, tf2onnx converts it.

    Raises:
        UnavailableError: If tf2onnx is needed and is not installed.
    """
    if isinstance(source, OnnxSource):
        return source.graph
    with reraise_as_unavailable(
        "tf2onnx is not installed", ImportError, remedy="; pip install 'paradnn[engines]'"
    ):
        import tf2onnx
    from onnx import helper

    def replace_erfc(context: Any, node: Any, name: str, args: Any) -> None:
        """Replace Erfc(x), which ONNX lacks, by 1 - Erf(x).

        tf2onnx calls this function for every Erfc node, as one of its `custom_op_handlers`
        (https://github.com/onnx/tensorflow-onnx).

        Args:
            context: The graph of tf2onnx, which is changed.
            node: The Erfc node.
            name: The name of the node.
            args: Ignored.
        """
        dtype = context.get_dtype(node.output[0])
        shape = context.get_shape(node.output[0])
        outputs = list(node.output)
        [inner] = node.input
        context.remove_node(node.name)
        error = context.make_node("Erf", [inner], dtypes=[dtype], shapes=[shape])
        one = context.make_const(f"{name}_one", np.ones((), helper.tensor_dtype_to_np_dtype(dtype)))
        context.make_node(
            "Sub", [one.output[0], error.output[0]], outputs=outputs, dtypes=[dtype], shapes=[shape]
        )

    handlers: dict[str, Any] = {"Erfc": (replace_erfc, [])}
    # tf2onnx would turn the captured weights of a function into inputs, so they are frozen here.
    # It converts While operations, but not the primitives to which TensorFlow lowers them.
    frozen = source.frozen(lower_control_flow=False, aggressive_inlining=True)
    model, _ = tf2onnx.convert.from_graph_def(
        frozen.graph.as_graph_def(add_shapes=True),
        input_names=[tensor.name for tensor in frozen.inputs],
        output_names=[tensor.name for tensor in frozen.outputs],
        opset=18,
        custom_op_handlers=handlers,
    )
    return model


@dataclass(frozen=True)
class OperationDetails:
    """Properties of an operation that the model states and the engine's trace omits.

    Attributes:
        equation: The equation of an Einsum, such as "bij,jk->bik".
        weight: Dimensions of a convolution's weight; empty if unknown.
        channels: Output channels of a convolution. Set if the shape in the trace may be padded,
            else 0.
    """

    equation: str = ""
    weight: tuple[int, ...] = ()
    channels: int = 0


#: Number of gates of a recurrent cell, by ONNX operation.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def operation_cost(
    kind: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    details: OperationDetails | None = None,
) -> Cost:
    """Return the FLOPs and bytes of an operation of ONNX or OpenVINO.

    Engines that change the layout of a weight omit it from the inputs. The FLOPs of a matrix
    product follow from its input and output alone. The FLOPs of a convolution require the shape of
    its weight. They are unknown if neither the inputs nor `details` have this shape.

    Args:
        kind: The type of the operation, such as "MatMul".
        inputs: Shapes of the inputs in the engine's trace; empty if unknown.
        outputs: Shapes of the outputs in the trace; empty if unknown.
        details: Properties that the model states and the trace omits; None for no properties.
    """
    category = categorize("onnx", kind)
    details = details or OperationDetails()
    if details.equation:
        category = "matmul"
    if category not in PRODUCTS or not inputs or not outputs:
        return plain_cost(kind, category, inputs, outputs)
    flops = _product_flops(kind, category, inputs, outputs, details)
    return Cost(kind, category, flops, None, flops or 0.0, inputs[0].dtype)


def _product_flops(
    kind: str,
    category: str,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    details: OperationDetails,
) -> float | None:
    first = inputs[0].dimensions
    output = outputs[0].dimensions
    if details.equation:
        return einsum_flops(details.equation, [shape.dimensions for shape in inputs])
    if kind in _GATES:
        # ONNX: inputs are (steps, examples, width), outputs (..., directions, examples, units).
        directions, _, units = output[-3:]
        return product_flops((*first[:-1], directions * _GATES[kind] * units), first[-1] + units)
    if kind.startswith("RNN"):
        # OpenVINO: the last three inputs are the weights of the input, the weights of the state,
        # and the biases.
        return product_flops(first[:-1], sum(shape.elements for shape in inputs[-3:-1]))
    if kind == "Attention" and len(inputs) > 1 and len(inputs[1].dimensions) < 3:
        return _projected_attention_flops(inputs, output)
    if "Attention" in kind and len(inputs) > 1:
        return attention_flops(inputs[0], inputs[1].dimensions[-2])
    if "Gemm" in kind:
        # The left matrix may be transposed.
        return product_flops(output, inputs[0].elements // output[0])
    if category == "matmul":
        return product_flops(output, first[-1])
    return _convolution_flops(kind, inputs, output, details)


def _projected_attention_flops(inputs: Sequence[Shape], output: Sequence[int]) -> float | None:
    """Return the FLOPs of ONNX Runtime's own Attention, which also projects its input.

    The second input is the weight or the bias of the projection. Its last dimension is the total
    width of queries, keys and values. Returns None if the trace lists neither.

    Args:
        inputs: The input (examples, steps, width), then the weight or the bias.
        output: Dimensions of the output (examples, steps, value width).
    """
    packed = inputs[1]
    if packed.dtype != inputs[0].dtype or len(output) != 3:
        return None
    total_width = packed.dimensions[-1]
    value_width = output[-1]
    query_width = (total_width - value_width) // 2
    examples, steps, width = inputs[0].dimensions
    query = Shape(inputs[0].dtype, (examples, steps, query_width))
    projection = product_flops((examples, steps, total_width), width)
    return projection + attention_flops(query, steps, value_width=value_width)


def _convolution_flops(
    kind: str, inputs: Sequence[Shape], output: Sequence[int], details: OperationDetails
) -> float | None:
    """Return the FLOPs of a convolution; None if the shape of its weight is unknown.

    A weight has the dimensions (outputs, inputs / groups, *kernel). For a transposed convolution
    they are (inputs, outputs / groups, *kernel). OpenVINO puts a separate axis of groups first.
    Each element of the output requires (inputs / groups) x kernel size multiply-accumulates. For a
    transposed convolution, each element of the input requires (outputs / groups) x kernel size.

    Args:
        kind: The type of the operation, such as "Conv".
        inputs: Shapes of the inputs in the engine's trace, which may lack the weight.
        output: Dimensions of the output in the trace.
        details: Properties that the model states and the trace omits.
    """
    weight = details.weight
    if details.channels:
        output = (output[0], details.channels, *output[2:])
    else:
        for shape in inputs[1:]:
            if len(shape.dimensions) >= len(output):
                weight = shape.dimensions
                break
    if not weight:
        return None
    per_element = math.prod(weight[1 - len(output) :])
    is_transposed = any(word in kind for word in ("Transpose", "Deconvolution", "Backprop"))
    if is_transposed:
        return product_flops(inputs[0].dimensions, per_element)
    return product_flops(output, per_element)


def einsum_flops(equation: str, operands: Sequence[Sequence[int]]) -> float | None:
    """Return the FLOPs of the products in an Einsum.

    Args:
        equation: The equation, such as "bij,jk->bik".
        operands: Dimensions of each operand.

    Returns:
        For two operands that share a summed index, 2 times the product of the sizes of all indices.
        For one operand, or without a shared summed index, 0. For more operands, None, because the
        engine chooses the order of the products.
    """
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(operands) == 1:
        return 0.0
    if len(operands) != 2:
        return None
    if "->" not in equation:
        # Without an arrow, the result has the indices that occur once.
        letters = sorted(set(left) - {",", "."})
        result = "".join(letter for letter in letters if left.count(letter) == 1)
    indices = [_expanded(term, len(shape)) for term, shape in zip(terms, operands, strict=True)]
    sizes: dict[str, int] = {}
    for term, shape in zip(indices, operands, strict=True):
        for letter, size in zip(term, shape, strict=True):
            # A dimension that an ellipsis covers may be 1 in one operand and be broadcast.
            sizes[letter] = max(size, sizes.get(letter, 1))
    # Digits name the dimensions of an ellipsis, which are never summed.
    summed = {letter for letter in set(indices[0]) & set(indices[1]) if letter.isalpha()}
    summed -= set(result)
    if not summed:
        return 0.0
    return 2.0 * math.prod(sizes.values())


def _expanded(term: str, rank: int) -> str:
    """Return a term of an Einsum with its ellipsis replaced by one digit per covered dimension.

    The digit of the last covered dimension is 0, because broadcasting aligns the last dimensions.

    Args:
        term: Indices of one operand, such as "...ij".
        rank: Number of dimensions of the operand.
    """
    before, ellipsis, after = term.partition("...")
    if not ellipsis:
        return term
    covered = rank - len(before) - len(after)
    return before + "".join(map(str, reversed(range(covered)))) + after
