"""Models in files: Keras' own (`model=keras_file`), and ONNX on the engines that read it (`model=onnx`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from paradnn.core.schema import option, read
from paradnn.errors import ConfigError
from paradnn.families import Family
from paradnn.families.built import BuiltModel
from paradnn.families.own import Given, content_of

PointT = TypeVar("PointT")
_ONNX_ENGINES = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class _File(Given):
    path: str = option("", "the model's file")
    source: str = option("", "hash of the file; found, not given")
    input_shape: tuple[int, ...] = option((), "of an example, as in [64]; []: as the file says", low=1)

    @property
    def called(self) -> str:
        """The file's name."""
        return Path(self.path).name

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Given:
        """With the whole path and the hash of the file; raises ConfigError."""
        found = read(cls, keys, "model")
        path = Path(found.path).expanduser().absolute()
        if not found.path or not path.is_file():
            remedy = f"give the path of the file: model={found.name} model.path=..."
            raise ConfigError("model.path", found.path, "there is no such file", remedy)
        return replace(found, path=str(path), source=content_of(path)[1])

    def unchanged(self) -> Path:
        """The file; Unavailable where it is no longer what it was."""
        from paradnn.core.workload import Unavailable

        path = Path(self.path)
        if not path.is_file() or content_of(path)[1] != self.source:
            raise Unavailable(f"{path} was changed meanwhile: start the command again")
        return path


@dataclass(frozen=True)
class KerasFile(_File):
    """A Keras model in its file (`model.save("net.keras")`), loaded in Keras' safe mode: it runs no code of its own."""

    name: str = option("keras_file", "the family", choices=("keras_file",))
    output: str = option(
        "auto", "what training compares outputs with, as of model=own", choices=("auto", "classes", "numbers")
    )

    def in_point(self, point: PointT) -> PointT:
        """Its types are in the file, but for an engine, which converts it."""
        given: Any = point
        if given.precision != "float32" and given.framework.name in ("tensorflow", "jax", "torch"):
            reason = "the types of model=keras_file are those of its file"
            raise ConfigError("precision", given.precision, reason, "leave it out, or choose an engine")
        return point

    def built(self) -> BuiltModel:
        """The model, loaded. Raises Unavailable."""
        import keras

        from paradnn.core.workload import Unavailable
        from paradnn.families.parts.given import as_workload

        path = self.unchanged()
        try:
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        except (ValueError, TypeError, OSError, KeyError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise Unavailable(f"Keras cannot load {path.name} in safe mode: {lines[0][:200]}") from error
        return as_workload(model, path.name, self.input_shape, self.output)


@dataclass(frozen=True)
class Onnx(_File):
    """A model in an ONNX file, for inference on the engines that read it: onnxruntime and openvino."""

    name: str = option("onnx", "the family", choices=("onnx",))

    def in_point(self, point: PointT) -> PointT:
        """Inference, on an engine that reads such files."""
        given: Any = point
        if given.framework.name not in _ONNX_ENGINES:
            reason = "reads no ONNX files"
            raise ConfigError(
                "framework", given.framework.name, reason, f"set framework to {' or '.join(_ONNX_ENGINES)}"
            )
        if given.workload.mode != "inference":
            raise ConfigError("mode", given.workload.mode, "model=onnx trains nothing", "set mode=inference")
        return point

    def built(self) -> BuiltModel:
        """The graph with its weights, of whatever batch. Raises Unavailable."""
        from paradnn.families.parts.onnx_graph import onnx_workload

        return onnx_workload(self.unchanged(), self.input_shape)


FAMILY = (
    Family("keras_file", KerasFile, "any", place=41),
    Family("onnx", Onnx, "any", place=42, chosen={"step": {"mode": "inference"}}),
)
