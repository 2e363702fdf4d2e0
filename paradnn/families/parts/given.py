"""Models from outside as workloads: Keras models, PyTorch modules and exported programs, JAX
functions, ONNX files. For workers alone.
"""

import io
import json
import re
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
from keras import ops

from paradnn.core.errors import UnavailableError, reraise_as_unavailable
from paradnn.families.built import ArraySpec, BuiltModel, cross_entropy

#: What of an exported program's archive is read: its graph, and tensors as plain bytes.
_PLAIN = re.compile(
    r"[^/]+/(models/[^/]+\.json|data/(weights|constants)/([^/]+_config\.json|(weight|tensor)_\d+)|archive_\w+|byteorder"
    r"|\.data/\w+)"
)
_RETURNS = "return a Keras model, a torch.nn.Module, or a JAX function with its parameters"


def as_workload(
    made: Any, name: str, shape: Sequence[int] = (), output: str = "auto"
) -> BuiltModel:
    """What a function made as a workload: a model, or it with an example of its input, a batch of
    at least one. A JAX function f(parameters, inputs) stands before its parameters. `shape` is that
    of an input without the batch; `output` says what the outputs are compared with. Raises
    Unavailable where it is none, or its shapes are not known.
    """
    parts = list(made) if isinstance(made, tuple) else [made]

    def require(wanted: str, what: str) -> None:
        backend = keras.backend.backend()
        if backend != wanted:
            raise UnavailableError(
                f"{name} returns {what}, which runs in framework={wanted}, not in {backend}"
            )

    if isinstance(parts[0], keras.Model):
        model = parts[0]
        rest = parts[1:]
    elif "torch" in sys.modules and isinstance(parts[0], sys.modules["torch"].nn.Module):
        require("torch", "a torch.nn.Module")
        model = _torch_model(parts[0])
        rest = parts[1:]
    elif callable(parts[0]) and len(parts) > 1:
        require("jax", "a JAX function")
        function = parts[0]
        layer = keras.layers.JaxLayer(
            lambda params, inputs: function(params, inputs), params=parts[1], dtype="float32"
        )
        model = keras.Sequential([layer])
        rest = parts[2:]
    else:
        found = "nothing" if made is None else type(parts[0]).__name__
        raise UnavailableError(f"{name} returns {found}: {_RETURNS}")
    inputs = _inputs(model, rest[0] if rest else None, shape, name)
    zeros = [ops.zeros((1, *spec.shape), dtype=spec.dtype) for spec in inputs]
    outputs = keras.tree.flatten(model(zeros[0] if len(zeros) == 1 else zeros, training=False))
    if len(outputs) != 1:
        return BuiltModel(model, inputs)
    spec = tuple(int(size) for size in outputs[0].shape[1:])
    classes = output == "classes" or (output == "auto" and len(spec) > 0 and spec[-1] > 1)
    if classes:
        target = ArraySpec(spec[:-1], "int32", spec[-1])
    else:
        target = ArraySpec(spec, "float32")

    def loss(targets: Sequence[Any], outputs: Any) -> Any:
        found = ops.cast(
            keras.tree.flatten(outputs)[0], "float32"
        )  # it ends in whatever type it has
        if classes:
            return cross_entropy(targets, found)
        return ops.mean(ops.square(found - targets[0]))

    return BuiltModel(model, inputs, (target,), loss)


def _torch_model(module: Any) -> keras.Model:
    """The module as a Keras model, in the types of PyTorch's own automatic mixed precision."""
    import torch

    types = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}
    mixed = types.get(keras.config.dtype_policy().name)

    class Wrapped(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(dtype="float32")
            self.wrapped = keras.layers.TorchModuleWrapper(module, dtype="float32")

        def call(self, inputs: Any, training: bool = False) -> Any:
            given = inputs if isinstance(inputs, list) else [inputs]
            with torch.autocast(given[0].device.type, mixed, enabled=mixed is not None):
                found = self.wrapped(*given, training=training)
            for name in ("logits", "last_hidden_state"):  # of the package transformers
                found = getattr(found, name, found)
            return found

    model = Wrapped()
    model.built = model.wrapped.built = True
    return model


def _inputs(
    model: keras.Model, example: Any, shape: Sequence[int], name: str
) -> tuple[ArraySpec, ...]:
    """What a batch holds: by the shape that is asked for, an example, or the model's own inputs."""
    if example is not None:
        arrays = [
            np.asarray(array)
            for array in (example if isinstance(example, list | tuple) else [example])
        ]
        if not all(array.ndim for array in arrays):
            raise UnavailableError(
                f"{name} returns a number for an example: return a batch of inputs, of one at least"
            )
        return tuple(
            _spec(array.shape[1:], array.dtype, int(array.max(initial=1)) + 1) for array in arrays
        )
    own = getattr(model, "inputs", None) or []
    if shape and len(own) <= 1:
        return (_spec(tuple(shape), own[0].dtype if own else "float32", _words(model)),)
    if not own or any(size is None for each in own for size in each.shape[1:]):
        if not own:
            reason = "is not known"
        else:
            reason = f"is open: {[tuple(each.shape[1:]) for each in own]}"
        raise UnavailableError(
            f"the input shape of {name} {reason}; set model.input_shape, or return an example too"
        )
    return tuple(_spec(tuple(each.shape[1:]), each.dtype, _words(model)) for each in own)


def _spec(shape: tuple[int, ...], dtype: Any, high: int) -> ArraySpec:
    if str(dtype) != "bfloat16":
        floating = np.dtype(str(dtype)).kind not in "iub"
    else:
        floating = True
    if floating:
        return ArraySpec(tuple(shape), "float32")
    return ArraySpec(tuple(shape), "int32", high)


def _words(model: keras.Model) -> int:
    """The least vocabulary of the model's embeddings: what its whole numbers are below."""
    if hasattr(model, "_flatten_layers"):
        layers = model._flatten_layers()
    else:
        layers = ()
    return min(
        (layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding)),
        default=2,
    )


@dataclass(frozen=True)
class OnnxGraph:
    """Where a model is expected: a graph, and its weights for their number. types: of its inputs,
    as NumPy calls them. fixed: the one batch that it has, None for any.
    """

    graph: Any
    types: tuple[Any, ...]
    fixed: int | None
    trainable_variables: tuple[Any, ...]
    non_trainable_variables: tuple[Any, ...] = ()


def onnx_workload(path: Path, shape: tuple[int, ...]) -> BuiltModel:
    """The graph with its inputs; `shape` stands for dimensions that a single input leaves open.
    Raises UnavailableError.
    """
    with reraise_as_unavailable(
        "onnx is not installed", ImportError, remedy="; pip install 'paradnn[engines]'"
    ):
        import onnx
    with reraise_as_unavailable(
        f"{path.name} is no ONNX model", Exception
    ):  # of protobuf, which has no class in common for them
        model = onnx.load(path)
    known = {entry.name for entry in model.graph.initializer}
    inputs = [entry for entry in model.graph.input if entry.name not in known]
    if not inputs:
        raise UnavailableError(f"{path.name} is no ONNX model: it has no inputs")
    types = tuple(
        onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type) for entry in inputs
    )
    sizes = [[size.dim_value for size in entry.type.tensor_type.shape.dim] for entry in inputs]
    specs = []
    for each, kind in zip(sizes, types, strict=True):
        own = tuple(shape) if shape and len(inputs) == 1 else tuple(each[1:])
        if not each or not all(own):
            raise UnavailableError(
                f"an input of {path.name} has the shape {each}: set model.input_shape, without the batch"
            )
        specs.append(ArraySpec(own, "float32") if kind.kind == "f" else ArraySpec(own, "int32", 2))
    weights = tuple(
        SimpleNamespace(shape=entry.dims)
        for entry in model.graph.initializer
        if entry.data_type == 1
    )
    graph: Any = OnnxGraph(model, types, sizes[0][0] or None, weights)
    return BuiltModel(graph, tuple(specs))


def exported_workload(path: Path, shape: tuple[int, ...]) -> BuiltModel:
    """A program of `torch.export.save`, for inference; `shape` stands for dimensions that its only
    input leaves open. Raises UnavailableError for a file that is none, pickled tensors, and a batch that
    it was not exported for.
    """
    import torch

    reason = f"{path.name} is no program that this PyTorch loads ({torch.__version__})"
    with reraise_as_unavailable(
        reason, zipfile.BadZipFile, RuntimeError, ValueError, KeyError, OSError
    ):
        program = torch.export.load(_plain_archive(path))
    wanted = set(program.graph_signature.user_inputs)
    tensors = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in wanted
    ]
    sizes = [
        [size if isinstance(size, int) else None for size in tensor.shape] for tensor in tensors
    ]
    specs = []
    for each, tensor in zip(sizes, tensors, strict=True):
        own = tuple(shape) if shape and len(sizes) == 1 else tuple(each[1:])
        if not each or None in own:
            raise UnavailableError(
                f"an input of {path.name} has the shape {each}: set model.input_shape, without the batch"
            )
        specs.append(
            _spec(tuple(size or 0 for size in own), str(tensor.dtype).removeprefix("torch."), 2)
        )
    module: Any = program.module()
    module.train = lambda mode=True: (
        module
    )  # it was exported in one of both ways, and knows no other

    def fits(arrays: list[Any]) -> list[Any]:
        for array, (batch, *_) in zip(arrays, sizes, strict=True):
            if batch not in (None, array.shape[0]):
                raise UnavailableError(
                    f"{path.name} was exported for a batch of {batch}: set batch_size={batch}"
                )
        return arrays

    return BuiltModel(_torch_model(module), tuple(specs), prepare=fits)


def _plain_archive(path: Path) -> io.BytesIO:
    """A copy of the archive with nothing in it that PyTorch would unpickle: what is checked here is
    what is loaded. Raises UnavailableError where weights or constants are pickled.
    """
    copy = io.BytesIO()
    samples = []
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as plain:
        for name in dict.fromkeys(archive.namelist()):
            if name.endswith("_config.json") and any(
                entry.get("use_pickle")
                for entry in json.loads(archive.read(name)).get("config", {}).values()
            ):
                raise UnavailableError(
                    f"{path.name} holds pickled tensors ({name}): export it with plain ones"
                )
            if _PLAIN.fullmatch(name):
                plain.writestr(name, archive.read(name))
                samples += [name] if "/models/" in name else []
        for name in samples:  # example inputs, which are pickled: none
            plain.writestr(
                re.sub(r"/models/([^/]+)\.json", r"/data/sample_inputs/\1.pt", name), b""
            )
    copy.seek(0)
    return copy
