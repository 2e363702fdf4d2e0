"""Models that users supply (docs/how-to/own-models.md).

With `model=own`, a function of the user returns the model, and the parameters of the function are
further `model` keys. `model=keras_file`, `model=onnx` and `model=exported` read the model from a
file. `model=timm` and `model=transformers` are architectures of other packages with random weights,
for PyTorch. ParaDnn downloads and unpickles nothing.

The driver reads the signature of a user's function from its source, without importing the file. The
worker imports the file and calls the function.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
import shlex
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast

from paradnn.core.errors import ConfigError, UnavailableError, require_value, reraise_as_unavailable
from paradnn.core.schema import option, read
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel

_INTEGERS = tuple[int, ...]
#: Annotation of a parameter of a user's function -> its type.
_TYPES = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "tuple[int, ...]": _INTEGERS,
    "list[int]": _INTEGERS,
}
_ANNOTATION_REMEDY = (
    "annotate it as int, float, str, bool, Literal['a', 'b'], tuple[int, ...], "
    "or one of these | None"
)
#: Markers in place of a default: the parameter is required, or its default is not a constant
#: (computed).
_REQUIRED = object()
_COMPUTED = object()
#: Values of `model.output`, the kind of targets with which training compares outputs.
_OUTPUTS = ("auto", "classes", "numbers")


@dataclass(frozen=True)
class ExternalModel(Model):
    """A model from outside ParaDnn. The worker builds it and then counts its costs."""

    is_counted: ClassVar[bool] = True

    input_shape: tuple[int, ...] = ()

    @property
    def short_name(self) -> str:
        """Short name of the model, such as the name of its file."""
        return self.size_template.format_map(vars(self))

    @property
    def size(self) -> str:
        words = [self.short_name]
        if self.input_shape:
            words.append("x".join(map(str, self.input_shape)))
        words += [f"{key}={value}" for key, value in self.arguments().items()]
        return " ".join(words)

    def arguments(self) -> dict[str, Any]:
        """Return the keys and values that are passed to the user's function or to the package.

        If a value is None, the function or package uses its default.
        """
        return {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if "further" in entry.metadata
        }

    @classmethod
    def stored_options(cls, keys: Mapping[str, Any]) -> type[Model]:
        """Return this class, extended by an option for each key of a stored run that it lacks.

        Args:
            keys: The run's `model` keys, without the prefix, and their values.
        """
        value_type: Any = bool | int | float | str | None
        further = {
            key: _Parameter(value_type, default=None)
            for key in keys
            if key not in cls.__dataclass_fields__
        }
        return cast(type[Model], _extended(cast(Any, cls), tuple(further.items())))


class _Parameter(NamedTuple):
    """A key that is passed to the user's function or to a package.

    Attributes:
        type: Type of the value.
        default: Default value; `_REQUIRED` if there is no default; `_COMPUTED` if the default is
            not a literal, so that only the worker can evaluate it.
        choices: The allowed values; empty if any value of the type is allowed.
    """

    type: Any
    default: Any
    choices: tuple[str, ...] = ()


@cache
def _extended(cls: Any, parameters: tuple[tuple[str, _Parameter], ...]) -> Any:
    """Return the options class `cls`, extended by an option for each parameter.

    Equal arguments return the same class.

    Args:
        cls: Dataclass of options.
        parameters: Name and definition of each parameter.
    """
    if not parameters:
        return cls
    entries = []
    for name, parameter in parameters:
        settings: dict[str, Any] = {"further": True}
        if parameter.choices:
            settings["choices"] = parameter.choices
        entries.append(
            (name, parameter.type, option(parameter.default, "of the model", **settings))
        )
    return make_dataclass(cls.__name__, entries, bases=(cls,), frozen=True)


@dataclass(frozen=True)
class UserModel(ExternalModel):
    """A Keras model, PyTorch module or JAX function that the user's function returns."""

    name: str = "own"
    build: str = option(  # type: ignore[assignment]
        "",
        "the function that returns the model, written as my_models.py:make_net or "
        "package.module:make_net; its parameters are further keys",
    )
    source: str = option("", "hash of the function's file; set automatically")
    input_shape: tuple[int, ...] = option(
        (),
        "shape of an input without the batch, such as [64]; []: shape that the model declares, or "
        "that of its example",
        low=1,
    )
    output: str = option(
        "auto",
        "targets in training: classes, numbers, or auto (classes if the last axis of the output is "
        "longer than 1)",
        choices=_OUTPUTS,
    )

    @property
    def short_name(self) -> str:
        return self.build.rpartition(":")[2]

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        """Create the model from its keys, which include the parameters of the function.

        Args:
            keys: Key -> value, without the prefix `model.`.

        Raises:
            ConfigError: If the function is not found, one of its parameters cannot be a key, a key
                is unknown, or a value is missing or invalid.
        """
        own_keys = {key: value for key, value in keys.items() if key in cls.__dataclass_fields__}
        path, function = _find_function(read(cls, own_keys, "model").build)
        content, digest = content_of(path)
        parameters = _parameters(content, function, str(own_keys.get("build")))
        # If a key is null, the parameter has its default.
        arguments = {
            key: value
            for key, value in keys.items()
            if key not in own_keys and (key not in parameters or value is not None)
        }
        options = []
        for key, parameter in parameters.items():
            if parameter.default is _REQUIRED and key not in arguments:
                raise ConfigError(
                    f"model.{key}",
                    "null",
                    f"{function} has no default for this parameter",
                    f"set model.{key}=VALUE",
                )
            options.append((key, _as_option(parameter)))
        options_class = _extended(cast(Any, cls), tuple(options))
        location = {"build": f"{path}:{function}", "source": digest}
        return cast(Model, read(options_class, {**own_keys, **location, **arguments}, "model"))

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.user_model import user_workload

        file, _, function = self.build.rpartition(":")
        path = unchanged(file, self.source)
        arguments = {key: value for key, value in self.arguments().items() if value is not None}
        returned = getattr(_import_file(path), function)(**arguments)
        return user_workload(returned, f"{path.name}:{function}", self.input_shape, self.output)


def _as_option(parameter: _Parameter) -> _Parameter:
    """Return the definition of the `model` key for a parameter of the user's function.

    The default becomes None if it is missing or computed. A parameter with choices is a string.
    """
    if parameter.default in (_REQUIRED, _COMPUTED):
        parameter = parameter._replace(default=None)
    if parameter.choices:
        parameter = parameter._replace(type=str)
    return parameter


def _find_function(build: str) -> tuple[Path, str]:
    """Return the file that `model.build` names, and the name of the function in it.

    Args:
        build: `file.py:function` or `package.module:function`.

    Raises:
        ConfigError: If the value has a different form, or the file or module does not exist.
    """
    location, _, function = build.rpartition(":")
    if not location or not function.isidentifier():
        remedy = "write model.build=my_models.py:make_net, or package.module:make_net"
        raise ConfigError("model.build", build, "does not name a function", remedy)
    if location.endswith(".py"):
        path = Path(location).expanduser().absolute()
        if path.is_file():
            return path, function
        raise ConfigError(
            "model.build", build, f"there is no file {path}", "give the path of the function's file"
        )
    module = Path(*location.split("."))
    for folder in sys.path:
        for candidate in (Path(folder, module, "__init__.py"), Path(folder, f"{module}.py")):
            if candidate.is_file():
                return candidate.absolute(), function
    raise ConfigError(
        "model.build", build, f"there is no module {location}", "install it, or give a file"
    )


def content_of(path: Path) -> tuple[bytes, str]:
    """Read a file, and cache the result until the file is modified.

    The configurations (points) of a sweep share the file.

    Args:
        path: The file.

    Returns:
        The content, and the first 16 hexadecimal digits of its SHA-256 hash.
    """
    return _content(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _content(path: Path, _modified_ns: int) -> tuple[bytes, str]:
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def unchanged(name: str, source: str) -> Path:
    """Return the path of a model's file, after checking that the file has not changed.

    Args:
        name: The path as text.
        source: First 16 hexadecimal digits of the SHA-256 hash of the original file. The driver,
            the process that plans the measurements, computed it.

    Raises:
        UnavailableError: If the file has changed or is missing.
    """
    path = Path(name)
    if not path.is_file() or content_of(path)[1] != source:
        raise UnavailableError(
            f"{path} was changed or removed after this command began: start the command again"
        )
    return path


@cache
def _parameters(content: bytes, function: str, build: str) -> dict[str, _Parameter]:
    """Return the parameters of a function, or of the `__init__` of a class, by their names.

    Args:
        content: Source of the file.
        function: Name of the function or class.
        build: `model.build` as the user wrote it, for messages.

    Raises:
        ConfigError: If the file has a syntax error or lacks the function, or if a parameter cannot
            be a key.
    """
    try:
        body = ast.parse(content).body
    except SyntaxError as error:
        reason = f"line {error.lineno}: {error.msg}"
        raise ConfigError("model.build", build, reason, "fix the file") from None
    except ValueError as error:  # such as null bytes
        raise ConfigError("model.build", build, str(error), "fix the file") from None
    definitions = {
        entry.name: entry for entry in body if isinstance(entry, (ast.FunctionDef, ast.ClassDef))
    }
    if function not in definitions:
        names = ", ".join(definitions) or "none"
        raise ConfigError(
            "model.build",
            build,
            f"the file has no function {function}",
            f"choose one of its functions: {names}",
        )
    definition: Any = definitions[function]
    if isinstance(definition, ast.ClassDef):
        methods = [
            entry
            for entry in definition.body
            if isinstance(entry, ast.FunctionDef) and entry.name == "__init__"
        ]
        if not methods:
            return {}
        return _signature(methods[0], function, skips_self=True)
    return _signature(definition, function, skips_self=False)


def _signature(
    definition: ast.FunctionDef, function: str, *, skips_self: bool
) -> dict[str, _Parameter]:
    arguments = definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    pairs = list(zip(positional, [*missing, *arguments.defaults], strict=True))
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    if skips_self:
        pairs = pairs[1:]
    return {entry.arg: _parameter(entry, default, function) for entry, default in pairs}


def _parameter(entry: ast.arg, default: ast.expr | None, function: str) -> _Parameter:
    key = f"model.{entry.arg}"
    if hasattr(UserModel, entry.arg):
        raise ConfigError(
            key,
            ast.unparse(entry),
            f"is a parameter of {function} whose name ParaDnn reserves",
            "rename the parameter",
        )
    value: Any = _REQUIRED
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = _COMPUTED
    if entry.annotation is None:
        if type(value) not in _TYPES.values():
            reason = f"is a parameter of {function} without a type"
            raise ConfigError(key, ast.unparse(entry), reason, _ANNOTATION_REMEDY)
        return _Parameter(type(value), value)
    text = ast.unparse(entry.annotation)
    value_type, choices = _annotated_type(text.strip("'\""))
    if value_type is None:
        reason = f"is not a type that a key of {function} can have"
        raise ConfigError(key, text, reason, _ANNOTATION_REMEDY)
    if isinstance(value, list):
        value = tuple(value)
    return _Parameter(value_type, value, choices)


def _annotated_type(text: str) -> tuple[Any, tuple[str, ...]]:
    """Interpret the annotation of a function's parameter.

    Args:
        text: Source of the annotation, such as "int | None".

    Returns:
        The type of the key, or None if no key can have the annotated type; and the values that a
        Literal allows, which are empty without a Literal.
    """
    text = re.sub(r"\w+\.(?=Literal|Optional)", "", text)
    optional = re.fullmatch(r"Optional\[(.*)\]|(.*) \| None|None \| (.*)", text)
    if optional:
        inner = next(filter(None, optional.groups()))
        value_type, choices = _annotated_type(inner)
        if value_type is None:
            return None, ()
        return value_type | None, choices
    if re.fullmatch(r"""Literal\[(('[^']*'|"[^"]*")[, ]*)+\]""", text):
        literals = text.removeprefix("Literal[").removesuffix("]")
        return str, tuple(ast.literal_eval(f"[{literals}]"))
    return _TYPES.get(text), ()


def _import_file(path: Path) -> ModuleType:
    """Import a Python file as a module, and return the module.

    If the folder of the file is a package, the file is imported as a module of this package.

    The folder of the file, or the folder that contains its outermost package, is appended to
    `sys.path`. The file can therefore import other modules in this folder.
    """
    names = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names = [folder.name, *names]
        folder = folder.parent
    sys.path.append(str(folder))
    if len(names) > 1:
        if path.stem == "__init__":
            names = names[:-1]
        return importlib.import_module(".".join(names))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def _with_file(keys: Mapping[str, Any], key: str, remedy: str) -> dict[str, Any]:
    """Return the keys with the absolute path of the model's file, and with its hash as `source`.

    Args:
        keys: Key of the model -> value, without the prefix `model.`.
        key: The key whose value is the path.
        remedy: Remedy in the error message if the file does not exist.

    Raises:
        ConfigError: If the file does not exist, or is a pointer of Git LFS.
    """
    value = str(keys.get(key, ""))
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"model.{key}", value, "there is no such file", remedy)
    if content_of(path)[0].startswith(_LFS_POINTER):
        folder = shlex.quote(str(path.parent))
        problem = "is a pointer of Git LFS, not the file itself"
        raise ConfigError(f"model.{key}", value, problem, f"run git -C {folder} lfs pull")
    return {**keys, key: str(path), "source": content_of(path)[1]}


@dataclass(frozen=True)
class _File(ExternalModel):
    """Base class for models in a file."""

    path: str = option("", "path of the model's file")
    source: str = option("", "hash of the file; set automatically")
    input_shape: tuple[int, ...] = option(
        (), "shape of the input without the batch, such as [64]; []: shape in the file", low=1
    )

    @property
    def short_name(self) -> str:
        return Path(self.path).name

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        model = read(cls, keys, "model")
        remedy = f"give the path of the file: model={model.name} model.path=..."
        return read(cls, _with_file({**keys, "path": model.path}, "path", remedy), "model")


@dataclass(frozen=True)
class KerasFile(_File):
    """A Keras model in a file that `model.save("net.keras")` wrote, loaded in Keras' safe mode:
    code in the file does not run.
    """

    name: str = "keras_file"
    output: str = option("auto", "targets in training, as for model=own", choices=_OUTPUTS)

    def canonical_point(self, point: Any) -> Any:
        """Return `point` unchanged, after checking its precision.

        A framework computes in the types that the file declares. An inference engine, such as
        OpenVINO, converts them.

        Args:
            point: A `Point`, one configuration to measure, whose model is this one.

        Raises:
            ConfigError: If a framework runs the model, and precision is not the default, float32.
        """
        if point.framework.name in ("tensorflow", "jax", "torch"):
            require_value(
                "precision",
                point.precision,
                required="float32",
                reason="model=keras_file computes in the types of its file",
                remedy="omit it, or choose an engine",
            )
        return point

    def built_model(self) -> BuiltModel:
        import keras

        from paradnn.families.parts.user_model import user_workload

        path = unchanged(self.path, self.source)
        # Even in safe mode, older versions of Keras run code in files of older formats.
        if path.suffix != ".keras":
            raise UnavailableError(
                f"{path.name} is not a .keras file: save the model as a .keras file"
            )
        if not zipfile.is_zipfile(path):
            raise UnavailableError(
                f"{path.name} is not a zip archive, as .keras files are: save the model again"
            )
        try:
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        except Exception as error:  # for a damaged file, Keras can raise any exception
            raise UnavailableError(_keras_problem(path.name, str(error))) from error
        return user_workload(model, path.name, self.input_shape, self.output)


def _keras_problem(name: str, text: str) -> str:
    """Return the reason why Keras cannot load a file, as a message.

    Args:
        name: Name of the file.
        text: Message of the exception, which ends with the original cause.
    """
    first_line = text.rpartition("Exception encountered: ")[2].strip().partition("\n")[0]
    cause = first_line.partition(". ")[0][:200]
    problem = f"Keras cannot load {name} in safe mode: {cause}"
    if "Could not locate class" in text or "Could not locate function" in text:
        problem += "; build it in your own function: model=own model.build=FILE.py:FUNCTION"
    return problem


@dataclass(frozen=True)
class Onnx(_File):
    """A model in an ONNX file, for inference with framework=onnxruntime or openvino."""

    name: str = "onnx"

    def canonical_point(self, point: Any) -> Any:
        name = point.framework.name
        if name not in ("onnxruntime", "openvino"):
            remedy = "set framework to onnxruntime or openvino"
            raise ConfigError("framework", name, "cannot read ONNX files", remedy)
        require_value(
            "mode", point.workload.mode, required="inference", reason="model=onnx cannot be trained"
        )
        return point

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.onnx_file import onnx_workload

        return onnx_workload(unchanged(self.path, self.source), self.input_shape)


@dataclass(frozen=True)
class Exported(_File):
    """A PyTorch program in a file that `torch.export.save` wrote, for inference; nothing is
    unpickled.
    """

    name: str = "exported"

    def canonical_point(self, point: Any) -> Any:
        require_value(
            "framework",
            point.framework.name,
            required="torch",
            reason="model=exported requires framework=torch",
        )
        require_value(
            "mode",
            point.workload.mode,
            required="inference",
            reason="model=exported cannot be trained",
        )
        require_value(
            "precision",
            point.precision,
            required="float32",
            reason="model=exported computes in the types of its file",
        )
        return point

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.exported_program import exported_workload

        return exported_workload(unchanged(self.path, self.source), self.input_shape)


@dataclass(frozen=True)
class _Package(ExternalModel):
    """Base class for architectures of another package, which run in PyTorch."""

    input_shape: tuple[int, ...] = option(
        (), "shape of an input without the batch; []: default of the architecture", low=1
    )

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        """Create the model from its keys.

        Any key that is not an option of the model is an argument of the package.

        Args:
            keys: Key -> value, without the prefix `model.`.

        Raises:
            ConfigError: If a value is invalid, cannot be passed to the package, or requests
                pretrained weights.
        """
        if "pretrained" in keys:
            raise ConfigError(
                "model.pretrained",
                keys["pretrained"],
                "is not supported, because ParaDnn draws random weights",
                "omit it",
            )
        for key, value in keys.items():
            if key in cls.__dataclass_fields__:
                continue
            if hasattr(cls, key) or not isinstance(value, int | float | str):
                raise ConfigError(
                    f"model.{key}",
                    value,
                    "cannot be passed to the package",
                    "give a number, a string, true or false",
                )
        return read(cls.stored_options(keys), keys, "model")

    def canonical_point(self, point: Any) -> Any:
        require_value(
            "framework",
            point.framework.name,
            required="torch",
            reason=f"model={self.name} requires framework=torch",
        )
        return point

    def built_model(self) -> BuiltModel:
        from paradnn.families.parts.user_model import user_workload

        # RuntimeError: two dependencies may be incompatible, such as torchvision and PyTorch.
        with reraise_as_unavailable(
            f"the package {self.name} cannot be used here",
            ImportError,
            AttributeError,
            RuntimeError,
            remedy="; pip install 'paradnn[architectures]'",
        ):
            module_and_example = self.instantiate(importlib.import_module(self.name))
        return user_workload(module_and_example, f"{self.name}'s {self.short_name}")

    def instantiate(self, package: Any) -> tuple[Any, Any]:
        """Make the PyTorch module, and an example of its input.

        Args:
            package: The imported package.

        Returns:
            The module, and an array: a batch of one example.

        Raises:
            UnavailableError: If the package does not know the architecture, or rejects a key.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Timm(_Package):
    """An architecture of timm, with random weights. `timm.list_models()` lists the names."""

    size_template: ClassVar[str] = "{architecture}"

    name: str = "timm"
    architecture: str = option(
        "resnet50", "name of the architecture; further keys are passed to timm.create_model"
    )

    def instantiate(self, package: Any) -> tuple[Any, Any]:
        import numpy as np

        with reraise_as_unavailable(
            f"timm has no {self.architecture}", RuntimeError, TypeError, ValueError
        ):
            module = package.create_model(self.architecture, pretrained=False, **self.arguments())
        shape = self.input_shape or module.default_cfg["input_size"]
        return module, np.zeros((1, *shape), "float32")


@dataclass(frozen=True)
class Transformers(_Package):
    """An architecture of the package transformers, given by its configuration, with random
    weights.
    """

    name: str = "transformers"
    config: str = option(
        "bert",
        "a model type, such as gpt2, or a config.json; further keys override its values",
    )
    source: str = option("", "hash of the config.json; set automatically")

    @property
    def short_name(self) -> str:
        path = Path(self.config)
        if path.suffix == ".json":
            return f"{path.parent.name}/{path.name}"
        return self.config

    @classmethod
    def from_config(cls, keys: Mapping[str, Any]) -> Model:
        if str(keys.get("config", "")).endswith(".json"):
            keys = _with_file(keys, "config", "give the path of a config.json, or a model type")
        return super().from_config(keys)

    def instantiate(self, package: Any) -> tuple[Any, Any]:
        """Make the PyTorch module with a head, and an example of its input: tokens or an image.

        The head is the first that the architecture supports of masked language modeling, causal
        language modeling and image classification. Without support for any of them, the
        module has no head.

        Args:
            package: The imported package transformers.
        """
        import numpy as np

        config = self._package_config(package)
        heads = ("MaskedLM", "CausalLM", "ImageClassification")
        head_classes = [getattr(package, f"AutoModelFor{head}") for head in heads]
        fitting = [cls for cls in head_classes if type(config) in cls._model_mapping]
        auto_class = fitting[0] if fitting else package.AutoModel
        # The configuration may name the 16-bit type of published weights. Random weights are
        # float32.
        module = auto_class.from_config(config).float()
        pixels = getattr(config, "image_size", None)
        if pixels:
            channels = getattr(config, "num_channels", 3)
            shape = self.input_shape or (channels, pixels, pixels)
            return module, np.zeros((1, *shape), "float32")
        example = np.zeros((1, *(self.input_shape or (128,))), "int32")
        # Batches are drawn from the range of the example, so it contains the largest token.
        example[..., 0] = config.vocab_size - 1
        return module, example

    def _package_config(self, package: Any) -> Any:
        """Make the package's configuration object, with the model's further keys applied.

        Args:
            package: The imported package transformers.

        Raises:
            UnavailableError: If the package has no such configuration, or the configuration has no
                such key.
        """
        with reraise_as_unavailable(
            f"transformers has no {self.config}", ValueError, TypeError, OSError, KeyError
        ):
            values: dict[str, Any] = {"model_type": self.config}
            if self.source:
                values |= json.loads(unchanged(self.config, self.source).read_bytes())
            defaults = package.AutoConfig.for_model(**values)
            for key, value in self.arguments().items():
                if not hasattr(defaults, key):
                    raise UnavailableError(
                        f"model.{key}={value}: transformers' {type(defaults).__name__} has no such "
                        "key; omit it"
                    )
            # Make a second object, because a default may depend on another key: for example, the
            # width of a head on the width of the model.
            values |= {**self.arguments(), "return_dict": True}
            return package.AutoConfig.for_model(**values)


_PROGRAM = "model=exported model.path={path} framework=torch"

FAMILY = (
    Family(
        "own",
        UserModel,
        "any",
        order=40,
        is_open=True,
        files={".py": "model=own model.build={path}:FUNCTION"},
    ),
    Family(
        "keras_file",
        KerasFile,
        "any",
        order=41,
        files=dict.fromkeys((".keras", ".h5"), "model=keras_file model.path={path}"),
    ),
    Family(
        "onnx",
        Onnx,
        "any",
        order=42,
        defaults={"step": {"mode": "inference"}},
        files={".onnx": "model=onnx model.path={path} framework=onnxruntime"},
    ),
    Family("timm", Timm, "any", order=43, is_open=True),
    Family(
        "transformers",
        Transformers,
        "any",
        order=44,
        is_open=True,
        files={".json": "model=transformers model.config={path} framework=torch"},
    ),
    Family(
        "exported",
        Exported,
        "any",
        order=45,
        defaults={"step": {"mode": "inference"}},
        files=dict.fromkeys((".pt2", ".pt", ".pth"), _PROGRAM),
    ),
)
