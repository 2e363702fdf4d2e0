"""Models from outside (docs/how-to/own-models.md): that a function of one's own returns (`model=own`),
whose parameters are keys of it; in files (`model=keras_file`, `model=onnx`, `model=exported`);
architectures of other packages with random weights, which are PyTorch's (`model=timm`,
`model=transformers`). Nothing is downloaded, and nothing is unpickled.

The driver reads a function's signature from its source and never imports it; the worker calls it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

from paradnn.core.errors import ConfigError, UnavailableError, require_value, reraise_as_unavailable
from paradnn.core.schema import option, read
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel

_NUMBERS = tuple[int, ...]
_TYPES = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "tuple[int, ...]": _NUMBERS,
    "list[int]": _NUMBERS,
}
_WRITE = "annotate it as int, float, str, bool, Literal['a', 'b'], tuple[int, ...], or one of these | None"
#: What a parameter has for default that has none, or one that is no constant.
_REQUIRED = object()
_OTHER = object()
_SHAPES = ("auto", "classes", "numbers")


@dataclass(frozen=True)
class ExternalModel(Model):
    """What all models have in common that come from outside: their costs are counted where they are
    built.
    """

    is_counted: ClassVar[bool] = True

    input_shape: tuple[int, ...] = ()

    @property
    def short_name(self) -> str:
        """The model in a word."""
        return self.size_template.format_map(vars(self))

    @property
    def size(self) -> str:
        if self.input_shape:
            shape = ["x".join(map(str, self.input_shape))]
        else:
            shape = []
        return " ".join(
            [
                self.short_name,
                *shape,
                *(f"{key}={value}" for key, value in self.arguments().items()),
            ]
        )

    def arguments(self) -> dict[str, Any]:
        """The keys that are not the family's own; None stands for a default."""
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if "further" in entry.metadata
        }

    @classmethod
    def stored_options(cls, keys: Mapping[str, Any]) -> type[Model]:
        """With whatever further keys a request holds."""
        kind: Any = bool | int | float | str | None
        further = tuple(
            (key, kind, None, ()) for key in keys if key not in cls.__dataclass_fields__
        )
        return cast(type[Model], _extended(cast(Any, cls), further))


@cache
def _extended(cls: Any, keys: tuple[tuple[str, Any, Any, tuple[str, ...]], ...]) -> Any:
    """A family with further keys, each a name, a type, a default and what it may be; the same class
    for the same.
    """
    entries = [
        (
            name,
            kind,
            option(
                default, "of the model", further=True, **({"choices": choices} if choices else {})
            ),
        )
        for name, kind, default, choices in keys
    ]
    if keys:
        return make_dataclass(cls.__name__, entries, bases=(cls,), frozen=True)
    return cls


@dataclass(frozen=True)
class UserModel(ExternalModel):
    """A Keras model, a PyTorch module or a JAX function that a function of your own returns, with
    its parameters.
    """

    name: str = "own"
    build: str = option(  # type: ignore[assignment]
        "",
        "the function: my_models.py:make_net, or package.module:make_net; its parameters are keys beside these",
    )
    source: str = option("", "hash of the function's file; found, not given")
    input_shape: tuple[int, ...] = option(
        (), "of an example, as in [64]; []: as the model, or an example, says", low=1
    )
    output: str = option(
        "auto",
        "what training compares outputs with: classes, numbers, or auto: whichever their shape suggests",
        choices=_SHAPES,
    )

    @property
    def short_name(self) -> str:
        return self.build.rpartition(":")[2]

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        """With the parameters of the function as keys, read from its source; raises ConfigError."""
        known = {key: value for key, value in keys.items() if key in cls.__dataclass_fields__}
        path, function = _located(read(cls, known, "model").build)
        content, digest = content_of(path)
        parameters = _parameters(content, function, str(known.get("build")))
        entries = []
        given = {
            key: value
            for key, value in keys.items()
            if key not in known and (key not in parameters or value is not None)
        }
        for key, (kind, default, choices) in parameters.items():
            if default is _REQUIRED and key not in given:
                reason = f"{function} has no default for it"
                raise ConfigError(f"model.{key}", "null", reason, f"give it: model.{key}=...")
            default = None if default in (_REQUIRED, _OTHER) else default
            entries.append((key, str if choices else kind, default, choices))
        located = {"build": f"{path}:{function}", "source": digest}
        return cast(
            Model,
            read(_extended(cast(Any, cls), tuple(entries)), {**known, **located, **given}, "model"),
        )

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.user_model import user_workload

        place, _, function = self.build.rpartition(":")
        path = unchanged(place, self.source)
        given = {key: value for key, value in self.arguments().items() if value is not None}
        made = getattr(_imported(path), function)(**given)
        return user_workload(made, f"{path.name}:{function}", self.input_shape, self.output)


def _located(build: str) -> tuple[Path, str]:
    """The file and the name of the function that `file.py:function` or `package.module:function`
    is.
    """
    place, _, function = build.rpartition(":")
    if not place or not function.isidentifier():
        remedy = "write model.build=my_models.py:make_net, or package.module:make_net"
        raise ConfigError("model.build", build, "names no function", remedy)
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        if path.is_file():
            return path, function
        raise ConfigError(
            "model.build", build, f"there is no file {path}", "give the path of the function's file"
        )
    inner = Path(*place.split("."))
    for folder in sys.path:
        for found in (Path(folder, inner, "__init__.py"), Path(folder, f"{inner}.py")):
            if found.is_file():
                return found.absolute(), function
    raise ConfigError(
        "model.build", build, f"there is no module {place}", "install it, or give a file"
    )


def content_of(path: Path) -> tuple[bytes, str]:
    """What a file holds, and the hash of that: the points of a sweep read it once."""
    return _content(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _content(path: Path, _: int) -> tuple[bytes, str]:
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def unchanged(name: str, source: str) -> Path:
    """A model's file; UnavailableError where it is no longer what it was when its hash was `source`."""
    path = Path(name)
    if not path.is_file() or content_of(path)[1] != source:
        raise UnavailableError(f"{path} was changed meanwhile: start the command again")
    return path


@cache
def _parameters(
    content: bytes, function: str, build: str
) -> dict[str, tuple[Any, Any, tuple[str, ...]]]:
    """The parameters of a function, or of a class: type, default, and what it may be where that is
    a Literal.
    """
    try:
        body = ast.parse(content).body
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError):
            where = f"line {error.lineno}: {error.msg}"
        else:
            where = str(error)
        raise ConfigError("model.build", build, where, "mend the file") from None
    known = {
        entry.name: entry for entry in body if isinstance(entry, (ast.FunctionDef, ast.ClassDef))
    }
    if function not in known:
        names = ", ".join(known) or "none"
        raise ConfigError(
            "model.build", build, f"there is no function {function}", f"functions there: {names}"
        )
    found: Any = known[function]
    if isinstance(found, ast.ClassDef):
        found = next(
            (entry for entry in found.body if getattr(entry, "name", "") == "__init__"), None
        )
        if found is None:
            return {}
    given: ast.arguments = found.args
    every = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(every) - len(given.defaults)) + [*given.defaults, *given.kw_defaults]
    pairs = list(zip([*every, *given.kwonlyargs], defaults, strict=True))[
        found.name == "__init__" :
    ]
    return {entry.arg: _parameter(entry, default, function) for entry, default in pairs}


def _parameter(
    entry: ast.arg, default: ast.expr | None, function: str
) -> tuple[Any, Any, tuple[str, ...]]:
    key = f"model.{entry.arg}"
    if hasattr(UserModel, entry.arg):
        raise ConfigError(
            key,
            "",
            f"is a word of the suite, and a parameter of {function}",
            "call it something else",
        )
    value: Any = _REQUIRED
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = _OTHER
    if entry.annotation is None:
        if type(value) not in _TYPES.values():
            raise ConfigError(
                key, ast.unparse(entry), f"a parameter of {function}, has no type", _WRITE
            )
        return type(value), value, ()
    text = ast.unparse(entry.annotation)
    kind, choices = _type(text.strip("'\""))
    if kind is None:
        raise ConfigError(key, text, f"is no type that a key of {function} can have", _WRITE)
    return kind, tuple(value) if isinstance(value, list) else value, choices


def _type(text: str) -> tuple[Any, tuple[str, ...]]:
    """The type that an annotation stands for, None for one that no key can have, and what a Literal
    allows.
    """
    text = re.sub(r"\w+\.(?=Literal|Optional)", "", text)
    optional = re.fullmatch(r"Optional\[(.*)\]|(.*) \| None|None \| (.*)", text)
    if optional:
        kind, choices = _type(next(filter(None, optional.groups())))
        return (kind | None if kind else None), choices
    if re.fullmatch(r"""Literal\[(('[^']*'|"[^"]*")[, ]*)+\]""", text):
        return str, tuple(ast.literal_eval(f"[{text[8:-1]}]"))
    return _TYPES.get(text), ()


def _imported(path: Path) -> ModuleType:
    """The module of a file, as part of the packages in which it lies; what lies beside it can be
    imported too.
    """
    names = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names = [folder.name, *names]
        folder = folder.parent
    sys.path.append(str(folder))
    if len(names) > 1:
        return importlib.import_module(".".join(names[:-1] if path.stem == "__init__" else names))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _with_file(keys: Mapping[str, Any], key: str, remedy: str) -> dict[str, Any]:
    """The keys of a model with the whole path that `key` names, and the hash of that file; raises
    ConfigError.
    """
    given = str(keys.get(key, ""))
    path = Path(given).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"model.{key}", given, "there is no such file", remedy)
    return {**keys, key: str(path), "source": content_of(path)[1]}


@dataclass(frozen=True)
class _File(ExternalModel):
    path: str = option("", "the model's file")
    source: str = option("", "hash of the file; found, not given")
    input_shape: tuple[int, ...] = option(
        (), "of an example, as in [64]; []: as the file says", low=1
    )

    @property
    def short_name(self) -> str:
        return Path(self.path).name

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        given = read(cls, keys, "model")
        remedy = f"give the path of the file: model={given.name} model.path=..."
        return read(cls, _with_file({**keys, "path": given.path}, "path", remedy), "model")


@dataclass(frozen=True)
class KerasFile(_File):
    """A Keras model in its file (`model.save("net.keras")`), loaded in Keras' safe mode: it runs no
    code of its own.
    """

    name: str = "keras_file"
    output: str = option(
        "auto", "what training compares outputs with, as of model=own", choices=_SHAPES
    )

    def canonical_point(self, point: Any) -> Any:
        """Its types are in the file, but for an engine, which converts it."""
        if point.framework.name in ("tensorflow", "jax", "torch"):
            reason = "the types of model=keras_file are those of its file"
            require_value(
                "precision",
                point.precision,
                required="float32",
                reason=reason,
                remedy="leave it out, or choose an engine",
            )
        return point

    def built_model(self) -> BuiltModel:
        import keras

        from paradnn.families.parts.user_model import user_workload

        path = unchanged(self.path, self.source)
        if (
            path.suffix != ".keras"
        ):  # older Keras runs the code in its older formats whatever the mode
            raise UnavailableError(f"{path.name} is no .keras file: save the model as one")
        with reraise_as_unavailable(
            f"Keras cannot load {path.name} in safe mode", ValueError, TypeError, OSError, KeyError
        ):
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        return user_workload(model, path.name, self.input_shape, self.output)


@dataclass(frozen=True)
class Onnx(_File):
    """A model in an ONNX file, for inference on the engines that read it: onnxruntime and openvino."""

    name: str = "onnx"

    def canonical_point(self, point: Any) -> Any:
        name = point.framework.name
        if name not in ("onnxruntime", "openvino"):
            remedy = "set framework to onnxruntime or openvino"
            raise ConfigError("framework", name, "reads no ONNX files", remedy)
        require_value(
            "mode", point.workload.mode, required="inference", reason="model=onnx trains nothing"
        )
        return point

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.onnx_file import onnx_workload

        return onnx_workload(unchanged(self.path, self.source), self.input_shape)


@dataclass(frozen=True)
class Exported(_File):
    """A PyTorch program in its file (`torch.export.save`), for inference: tensors are read, nothing
    is unpickled.
    """

    name: str = "exported"

    def canonical_point(self, point: Any) -> Any:
        require_value(
            "framework",
            point.framework.name,
            required="torch",
            reason="model=exported is of framework=torch",
        )
        require_value(
            "mode",
            point.workload.mode,
            required="inference",
            reason="model=exported trains nothing",
        )
        require_value(
            "precision",
            point.precision,
            required="float32",
            reason="the types of model=exported are those of its file",
        )
        return point

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.exported_program import exported_workload

        return exported_workload(unchanged(self.path, self.source), self.input_shape)


@dataclass(frozen=True)
class _Package(ExternalModel):
    input_shape: tuple[int, ...] = option((), "of an example; []: as the architecture says", low=1)

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        """With whatever further keys the package takes, which the worker sees."""
        if "pretrained" in keys:
            raise ConfigError(
                "model.pretrained", keys["pretrained"], "weights are random", "leave it out"
            )
        for key, value in keys.items():
            if key not in cls.__dataclass_fields__ and (
                hasattr(cls, key) or not isinstance(value, int | float | str)
            ):
                raise ConfigError(
                    f"model.{key}",
                    value,
                    "cannot be handed on",
                    "give a number, a word, true or false",
                )
        return read(cls.stored_options(keys), keys, "model")

    def canonical_point(self, point: Any) -> Any:
        require_value(
            "framework",
            point.framework.name,
            required="torch",
            reason=f"model={self.name} is of framework=torch",
        )
        return point

    def built_model(self) -> BuiltModel:
        reason = f"the package {self.name} cannot be used here"
        remedy = "; pip install 'paradnn[architectures]'"
        # RuntimeError: where a package that it imports does not fit another, as torchvision
        # PyTorch.
        with reraise_as_unavailable(
            reason, ImportError, AttributeError, RuntimeError, remedy=remedy
        ):
            made = self.made(importlib.import_module(self.name))
        from paradnn.families.parts.user_model import user_workload

        return user_workload(made, f"{self.name}'s {self.called}")

    def made(self, package: Any) -> Any:
        """The module and an example, by the imported package. Raises UnavailableError."""
        raise NotImplementedError


@dataclass(frozen=True)
class Timm(_Package):
    """An architecture of the package timm by its name (`timm.list_models()`), with random weights."""

    size_template: ClassVar[str] = "{architecture}"

    name: str = "timm"
    architecture: str = option(
        "resnet50", "its name in timm; further keys are those of timm.create_model"
    )

    def made(self, package: Any) -> Any:
        import numpy as np

        with reraise_as_unavailable(
            f"timm makes no {self.architecture}", RuntimeError, TypeError, ValueError
        ):
            module = package.create_model(self.architecture, pretrained=False, **self.arguments())
        return module, np.zeros(
            (1, *(self.input_shape or module.default_cfg["input_size"])), "float32"
        )


@dataclass(frozen=True)
class Transformers(_Package):
    """An architecture of the package transformers by its configuration, with random weights."""

    name: str = "transformers"
    config: str = option(
        "bert", "a type of model, such as gpt2, or a config.json; further keys replace values of it"
    )
    source: str = option("", "hash of such a file; found, not given")

    @property
    def short_name(self) -> str:
        path = Path(self.config)
        if path.suffix == ".json":
            return f"{path.parent.name}/{path.name}"
        return self.config

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        if str(keys.get("config", "")).endswith(".json"):
            keys = _with_file(keys, "config", "give its path, or a type")
        return super().from_config(keys)

    def made(self, package: Any) -> Any:
        """The module with its own head, and one example: tokens, or an image."""
        import numpy as np

        with reraise_as_unavailable(
            f"transformers makes no {self.config}", ValueError, TypeError, OSError, KeyError
        ):
            if self.source:
                held = json.loads(unchanged(self.config, self.source).read_bytes())
            else:
                held = {}
            held = {"model_type": self.config, **held}
            known = package.AutoConfig.for_model(**held)
            for key, value in self.arguments().items():
                if not hasattr(known, key):
                    raise UnavailableError(
                        f"model.{key}={value}: no key of transformers' {type(known).__name__}"
                    )
            # Made anew, since one key may follow from another, as the size of a head from the
            # model's width.
            config = package.AutoConfig.for_model(
                **{**held, **self.arguments(), "return_dict": True}
            )
        autos = [
            getattr(package, f"AutoModelFor{head}")
            for head in ("MaskedLM", "CausalLM", "ImageClassification")
        ]
        auto = next((one for one in autos if type(config) in one._model_mapping), package.AutoModel)
        module = auto.from_config(config).float()  # whatever type its weights were published in
        pixels = getattr(config, "image_size", None)
        if pixels:
            shape = self.input_shape or (getattr(config, "num_channels", 3), pixels, pixels)
            return module, np.zeros((1, *shape), "float32")
        example = np.zeros((1, *(self.input_shape or (128,))), "int32")
        example[..., 0] = config.vocab_size - 1  # what its tokens are below
        return module, example


FAMILY = (
    Family("own", UserModel, "any", order=40, is_open=True),
    Family("keras_file", KerasFile, "any", order=41),
    Family("onnx", Onnx, "any", order=42, defaults={"step": {"mode": "inference"}}),
    Family("timm", Timm, "any", order=43, is_open=True),
    Family("transformers", Transformers, "any", order=44, is_open=True),
    Family("exported", Exported, "any", order=45, defaults={"step": {"mode": "inference"}}),
)
