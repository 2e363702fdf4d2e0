"""Architectures of other packages, with random weights: timm (`model=timm`) and transformers (`model=transformers`).

Nothing is downloaded. Both are PyTorch's: framework=torch.
"""

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
from paradnn.families.own import Given, content_of

PointT = TypeVar("PointT")
_SHAPE = "of an example; []: as the architecture says"


def first_line(error: Exception) -> str:
    """What a package says, as far as it fits a reason."""
    return str(error).partition("\n")[0][:200]


@dataclass(frozen=True)
class _Package(Given):
    input_shape: tuple[int, ...] = option((), _SHAPE, low=1)

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
        if given.framework.name != "torch":
            reason = f"model={self.name} is of framework=torch"
            raise ConfigError("framework", given.framework.name, reason, "set framework=torch")
        return point

    def built(self) -> BuiltModel:
        """What the package makes, with random weights. Raises Unavailable."""
        from paradnn.families.parts.given import as_workload

        try:
            return as_workload(self.made(importlib.import_module(self.name)), f"{self.name}'s {self.called}")
        except (ImportError, AttributeError) as error:  # not there, or it does not fit the packages that are
            reason = f"the package {self.name} cannot be used here: {first_line(error)}"
            raise Unavailable(f"{reason}; pip install {self.name}") from error

    def made(self, package: Any) -> Any:
        """The module and an example, by the imported package. Raises Unavailable."""
        raise NotImplementedError


@dataclass(frozen=True)
class Timm(_Package):
    """An architecture of the package timm by its name (`timm.list_models()`), with random weights."""

    name: str = option("timm", "the family", choices=("timm",))
    architecture: str = option("resnet50", "its name in timm; further keys are those of timm.create_model")

    @property
    def called(self) -> str:
        """The architecture."""
        return self.architecture

    def made(self, package: Any) -> Any:
        """The module, and one image as its configuration says."""
        import numpy as np

        try:
            module = package.create_model(self.architecture, pretrained=False, **self.arguments())
        except (RuntimeError, TypeError, ValueError) as error:
            raise Unavailable(f"timm makes no {self.architecture}: {first_line(error)}") from error
        shape = self.input_shape or module.default_cfg["input_size"]
        return module, np.zeros((1, *shape), "float32")


@dataclass(frozen=True)
class Transformers(_Package):
    """An architecture of the package transformers by its configuration, with random weights."""

    name: str = option("transformers", "the family", choices=("transformers",))
    config: str = option("bert", "a type of model, such as gpt2, or a config.json; further keys replace values of it")
    source: str = option("", "hash of such a file; found, not given")

    @property
    def called(self) -> str:
        """The type of model, or the file with its folder."""
        path = Path(self.config)
        return f"{path.parent.name}/{path.name}" if path.suffix == ".json" else self.config

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Model:
        """With the whole path and the hash of a file."""
        if str(keys.get("config", "")).endswith(".json"):
            path = Path(str(keys["config"])).expanduser().absolute()
            if not path.is_file():
                raise ConfigError("model.config", keys["config"], "there is no such file", "give its path, or a type")
            keys = {**keys, "config": str(path), "source": content_of(path)[1]}
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
            raise Unavailable(f"transformers has no {self.config}: {first_line(error)}") from error
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
    Family("timm", Timm, "any", place=43, is_open=True),
    Family("transformers", Transformers, "any", place=44, is_open=True),
)
