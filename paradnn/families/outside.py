"""Models in files, `model=keras_file` and `model=onnx`, and architectures of other packages with random weights,
`model=timm` and `model=transformers`, which are PyTorch's. Nothing is downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paradnn.core.schema import option, read
from paradnn.core.workload import Unavailable
from paradnn.errors import ConfigError
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel
from paradnn.families.own import Given, content_of, unchanged

PointT = TypeVar("PointT")
_ONNX_ENGINES = ("onnxruntime", "openvino")


def _with_file(keys: Mapping[str, Any], key: str, remedy: str) -> dict[str, Any]:
    """The keys of a model with the whole path that `key` names, and the hash of that file; raises ConfigError."""
    given = str(keys.get(key, ""))
    path = Path(given).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"model.{key}", given, "there is no such file", remedy)
    return {**keys, key: str(path), "source": content_of(path)[1]}


def _first_line(error: Exception) -> str:
    """What a package says, as far as it fits a reason."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0][:200]


@dataclass(frozen=True)
class _File(Given):
    path: str = option("", "the model's file")
    source: str = option("", "hash of the file; found, not given")
    input_shape: tuple[int, ...] = option((), "of an example, as in [64]; []: as the file says", low=1)

    @property
    def called(self) -> str:
        return Path(self.path).name

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Model:
        """With the whole path and the hash of the file; raises ConfigError."""
        given = read(cls, keys, "model")
        remedy = f"give the path of the file: model={given.name} model.path=..."
        return read(cls, _with_file({**keys, "path": given.path}, "path", remedy), "model")


@dataclass(frozen=True)
class KerasFile(_File):
    """A Keras model in its file (`model.save("net.keras")`), loaded in Keras' safe mode: it runs no code of its own."""

    name: str = "keras_file"
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

        from paradnn.families.parts.given import as_workload

        path = unchanged(self.path, self.source)
        if path.suffix != ".keras":  # older Keras runs the code in its older formats whatever the mode
            raise Unavailable(f"{path.name} is no .keras file: save the model as one")
        try:
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        except (ValueError, TypeError, OSError, KeyError) as error:
            raise Unavailable(f"Keras cannot load {path.name} in safe mode: {_first_line(error)}") from error
        return as_workload(model, path.name, self.input_shape, self.output)


@dataclass(frozen=True)
class Onnx(_File):
    """A model in an ONNX file, for inference on the engines that read it: onnxruntime and openvino."""

    name: str = "onnx"

    def in_point(self, point: PointT) -> PointT:
        """Inference, on an engine that reads such files."""
        given: Any = point
        if (name := given.framework.name) not in _ONNX_ENGINES:
            remedy = f"set framework to {' or '.join(_ONNX_ENGINES)}"
            raise ConfigError("framework", name, "reads no ONNX files", remedy)
        if given.workload.mode != "inference":
            raise ConfigError("mode", given.workload.mode, "model=onnx trains nothing", "set mode=inference")
        return point

    def built(self) -> BuiltModel:
        """The graph with its weights, of whatever batch. Raises Unavailable."""
        from paradnn.families.parts.onnx_graph import onnx_workload

        return onnx_workload(unchanged(self.path, self.source), self.input_shape)


@dataclass(frozen=True)
class _Package(Given):
    input_shape: tuple[int, ...] = option((), "of an example; []: as the architecture says", low=1)

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Model:
        """With whatever further keys the package takes, which the worker sees."""
        if "pretrained" in keys:
            raise ConfigError("model.pretrained", keys["pretrained"], "weights are random", "leave it out")
        for key, value in keys.items():
            if key not in cls.__dataclass_fields__ and (hasattr(cls, key) or not isinstance(value, int | float | str)):
                raise ConfigError(f"model.{key}", value, "cannot be handed on", "give a number, a word, true or false")
        return read(cls.stored(keys), keys, "model")

    def in_point(self, point: PointT) -> PointT:
        """In PyTorch."""
        given: Any = point
        if (name := given.framework.name) != "torch":
            raise ConfigError("framework", name, f"model={self.name} is of framework=torch", "set framework=torch")
        return point

    def built(self) -> BuiltModel:
        """What the package makes, with random weights. Raises Unavailable."""
        from paradnn.families.parts.given import as_workload

        try:
            return as_workload(self.made(importlib.import_module(self.name)), f"{self.name}'s {self.called}")
        except (ImportError, AttributeError) as error:  # not there, or it does not fit the packages that are
            reason = f"the package {self.name} cannot be used here: {_first_line(error)}"
            raise Unavailable(f"{reason}; pip install {self.name}") from error

    def made(self, package: Any) -> Any:
        """The module and an example, by the imported package. Raises Unavailable."""
        raise NotImplementedError


@dataclass(frozen=True)
class Timm(_Package):
    """An architecture of the package timm by its name (`timm.list_models()`), with random weights."""

    name: str = "timm"
    architecture: str = option("resnet50", "its name in timm; further keys are those of timm.create_model")

    @property
    def called(self) -> str:
        return self.architecture

    def made(self, package: Any) -> Any:
        import numpy as np

        try:
            module = package.create_model(self.architecture, pretrained=False, **self.arguments())
        except (RuntimeError, TypeError, ValueError) as error:
            raise Unavailable(f"timm makes no {self.architecture}: {_first_line(error)}") from error
        shape = self.input_shape or module.default_cfg["input_size"]
        return module, np.zeros((1, *shape), "float32")


@dataclass(frozen=True)
class Transformers(_Package):
    """An architecture of the package transformers by its configuration, with random weights."""

    name: str = "transformers"
    config: str = option("bert", "a type of model, such as gpt2, or a config.json; further keys replace values of it")
    source: str = option("", "hash of such a file; found, not given")

    @property
    def called(self) -> str:
        path = Path(self.config)
        return f"{path.parent.name}/{path.name}" if path.suffix == ".json" else self.config

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Model:
        """With the whole path and the hash of a file."""
        if str(keys.get("config", "")).endswith(".json"):
            keys = _with_file(keys, "config", "give its path, or a type")
        return super().configured(keys)

    def made(self, package: Any) -> Any:
        """The module with its own head, and one example: tokens, or an image."""
        import numpy as np

        try:
            if self.source:
                config = package.AutoConfig.from_pretrained(self.config, local_files_only=True)
            else:
                config = package.AutoConfig.for_model(self.config)
        except (ValueError, OSError, KeyError) as error:
            raise Unavailable(f"transformers has no {self.config}: {_first_line(error)}") from error
        for key, value in self.arguments().items():
            if not hasattr(config, key):
                raise Unavailable(f"model.{key}={value}: no key of transformers' {type(config).__name__}")
            setattr(config, key, value)
        config.return_dict = True
        heads = ("MaskedLM", "CausalLM", "ImageClassification")
        autos = [getattr(package, f"AutoModelFor{head}") for head in heads]
        auto = next((one for one in autos if type(config) in one._model_mapping), package.AutoModel)
        module = auto.from_config(config)
        if pixels := getattr(config, "image_size", None):
            shape = self.input_shape or (getattr(config, "num_channels", 3), pixels, pixels)
            return module, np.zeros((1, *shape), "float32")
        example = np.zeros((1, *(self.input_shape or (128,))), "int32")
        example[..., 0] = config.vocab_size - 1  # what its tokens are below
        return module, example


FAMILY = (
    Family("keras_file", KerasFile, "any", place=41),
    Family("onnx", Onnx, "any", place=42, chosen={"step": {"mode": "inference"}}),
    Family("timm", Timm, "any", place=43, is_open=True),
    Family("transformers", Transformers, "any", place=44, is_open=True),
)
