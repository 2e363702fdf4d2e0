"""A model that a function of one's own returns (`model=own`), whose parameters are keys of it: docs/own-models.md.

The driver reads the function's signature from its source and never imports it; the worker calls it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

from paradnn.core.schema import option, read
from paradnn.errors import ConfigError
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel

_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
_WRITE = "annotate it as int, float, str, bool, Literal['a', 'b'], tuple[int, ...], or one of these | None"
#: What a parameter has for default that has none, or one that is no constant.
_REQUIRED, _OTHER = object(), object()


@dataclass(frozen=True)
class Given(Model):
    """What all models have in common that come from outside: their costs are counted where they are built."""

    is_counted: ClassVar[bool] = True

    input_shape: tuple[int, ...] = ()

    @property
    def called(self) -> str:
        """The model in a word."""
        raise NotImplementedError

    @property
    def size(self) -> str:
        shape = ["x".join(map(str, self.input_shape))] if self.input_shape else []
        return " ".join([self.called, *shape, *(f"{key}={value}" for key, value in self.arguments().items())])

    def arguments(self) -> dict[str, Any]:
        """The keys that are not the family's own; None stands for a default."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if "further" in entry.metadata}

    @classmethod
    def stored(cls, keys: Mapping[str, Any]) -> type[Model]:
        """With whatever further keys a request holds."""
        further = tuple(
            (key, bool | int | float | str | None, None, ()) for key in keys if key not in cls.__dataclass_fields__
        )
        return cast(type[Model], _extended(cast(Any, cls), further))


@cache
def _extended(cls: Any, keys: tuple[tuple[str, Any, Any, tuple[str, ...]], ...]) -> Any:
    """A family with further keys, each a name, a type, a default and what it may be; the same class for the same."""
    entries = [
        (name, kind, option(default, "of the model", further=True, **({"choices": choices} if choices else {})))
        for name, kind, default, choices in keys
    ]
    return make_dataclass(cls.__name__, entries, bases=(cls,), frozen=True) if keys else cls


@dataclass(frozen=True)
class Own(Given):
    """A Keras model, a PyTorch module or a JAX function that a function of your own returns, with its parameters."""

    name: str = "own"
    build: str = option(  # type: ignore[assignment]
        "", "the function: my_models.py:make_net, or package.module:make_net; its parameters are keys beside these"
    )
    source: str = option("", "hash of the function's file; found, not given")
    input_shape: tuple[int, ...] = option((), "of an example, as in [64]; []: as the model, or an example, says", low=1)
    output: str = option(
        "auto",
        "what training compares outputs with: classes, numbers, or auto: whichever their shape suggests",
        choices=("auto", "classes", "numbers"),
    )

    @property
    def called(self) -> str:
        return self.build.rpartition(":")[2]

    @classmethod
    def configured(cls, keys: Mapping[str, Any]) -> Model:
        """With the parameters of the function as keys, read from its source; raises ConfigError."""
        known = {key: value for key, value in keys.items() if key in cls.__dataclass_fields__}
        path, function = _located(read(cls, known, "model").build)
        content, digest = content_of(path)
        parameters = _parameters(content, function, str(known.get("build")))
        further = {key: value for key, value in keys.items() if key not in known}
        given = {key: value for key, value in further.items() if key not in parameters or value is not None}
        for key, (_, default, _) in parameters.items():
            if default is _REQUIRED and key not in given:
                reason = f"{function} has no default for it"
                raise ConfigError(f"model.{key}", "null", reason, f"give it: model.{key}=...")
        entries = (
            (key, str if choices else kind, None if default in (_REQUIRED, _OTHER) else default, choices)
            for key, (kind, default, choices) in parameters.items()
        )
        located = {"build": f"{path}:{function}", "source": digest}
        return cast(Model, read(_extended(cast(Any, cls), tuple(entries)), {**known, **located, **given}, "model"))

    def built(self) -> BuiltModel:
        """What the function returns, called with its parameters. Raises Unavailable."""
        from paradnn.families.parts.given import as_workload

        place, _, function = self.build.rpartition(":")
        path = unchanged(place, self.source)
        given = {key: value for key, value in self.arguments().items() if value is not None}
        return as_workload(
            getattr(_imported(path), function)(**given), f"{path.name}:{function}", self.input_shape, self.output
        )


def _located(build: str) -> tuple[Path, str]:
    """The file and the name of the function that `file.py:function` or `package.module:function` is."""
    place, _, function = build.rpartition(":")
    if not place or not function.isidentifier():
        remedy = "write model.build=my_models.py:make_net, or package.module:make_net"
        raise ConfigError("model.build", build, "names no function", remedy)
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        if path.is_file():
            return path, function
        raise ConfigError("model.build", build, f"there is no file {path}", "give the path of the function's file")
    inner = Path(*place.split("."))
    for folder in sys.path:
        for found in (Path(folder, inner, "__init__.py"), Path(folder, f"{inner}.py")):
            if found.is_file():
                return found.absolute(), function
    raise ConfigError("model.build", build, f"there is no module {place}", "install it, or give a file")


def content_of(path: Path) -> tuple[bytes, str]:
    """What a file holds, and the hash of that: the points of a sweep read it once."""
    return _content(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _content(path: Path, _: int) -> tuple[bytes, str]:
    content = path.read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


def unchanged(name: str, source: str) -> Path:
    """A model's file; Unavailable where it is no longer what it was when its hash was `source`."""
    from paradnn.core.workload import Unavailable

    path = Path(name)
    if not path.is_file() or content_of(path)[1] != source:
        raise Unavailable(f"{path} was changed meanwhile: start the command again")
    return path


@cache
def _parameters(content: bytes, function: str, build: str) -> dict[str, tuple[Any, Any, tuple[str, ...]]]:
    """The parameters of a function, or of a class: type, default, and what it may be where that is a Literal."""
    try:
        body = ast.parse(content).body
    except (SyntaxError, ValueError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise ConfigError("model.build", build, where, "mend the file") from None
    known = {entry.name: entry for entry in body if isinstance(entry, (ast.FunctionDef, ast.ClassDef))}
    if function not in known:
        names = ", ".join(known) or "none"
        raise ConfigError("model.build", build, f"there is no function {function}", f"functions there: {names}")
    found = known[function]
    if isinstance(found, ast.ClassDef):
        inits = [entry for entry in found.body if isinstance(entry, ast.FunctionDef) and entry.name == "__init__"]
        if not inits:
            return {}
        found = inits[0]
    every = [*found.args.posonlyargs, *found.args.args]
    defaults: list[ast.expr | None] = [None] * (len(every) - len(found.args.defaults)) + [*found.args.defaults]
    pairs = list(zip(every, defaults, strict=True))[found.name == "__init__" :]
    pairs += list(zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True))
    return {entry.arg: _parameter(entry, default, function) for entry, default in pairs}


def _parameter(entry: ast.arg, default: ast.expr | None, function: str) -> tuple[Any, Any, tuple[str, ...]]:
    key = f"model.{entry.arg}"
    if hasattr(Own, entry.arg):
        raise ConfigError(key, "", f"is a word of the suite, and a parameter of {function}", "call it something else")
    value: Any = _REQUIRED
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except ValueError:
            value = _OTHER
    annotation = entry.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if annotation is None:
        if type(value) not in _TYPES.values():
            raise ConfigError(key, ast.unparse(entry), f"a parameter of {function}, has no type", _WRITE)
        return type(value), value, ()
    kind, choices = _type(annotation)
    if kind is None:
        raise ConfigError(key, ast.unparse(annotation), f"is no type that a key of {function} can have", _WRITE)
    return kind, tuple(value) if isinstance(value, list) else value, choices


def _type(annotation: ast.expr) -> tuple[Any, tuple[str, ...]]:
    """The type that an annotation stands for, None for one that no key can have, and what a Literal allows."""
    inner: ast.expr | None = None
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [annotation.left, annotation.right]
        kinds = [side for side in sides if not (isinstance(side, ast.Constant) and side.value is None)]
        inner = kinds[0] if len(kinds) == 1 else ast.Constant(None)
    name = ast.unparse(annotation.value).rpartition(".")[2] if isinstance(annotation, ast.Subscript) else ""
    if isinstance(annotation, ast.Subscript) and name == "Optional":
        inner = annotation.slice
    if inner is not None:
        kind, choices = _type(inner)
        return (kind | None if kind else None), choices
    if isinstance(annotation, ast.Subscript) and name == "Literal":
        values = ast.literal_eval(annotation.slice)
        values = values if isinstance(values, tuple) else (values,)
        return (str, values) if all(isinstance(value, str) for value in values) else (None, ())
    if isinstance(annotation, ast.Subscript):
        numbers = (name, ast.unparse(annotation.slice).strip("()")) in (("tuple", "int, ..."), ("list", "int"))
        return (tuple[int, ...] if numbers else None), ()
    return _TYPES.get(ast.unparse(annotation)), ()


def _imported(path: Path) -> ModuleType:
    """The module of a file, as part of the packages in which it lies; what lies beside it can be imported too."""
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    sys.path.append(str(folder))
    if len(names) > 1:
        return importlib.import_module(".".join(names[:-1] if path.stem == "__init__" else names))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


FAMILY = Family("own", Own, "any", place=40, is_open=True)
