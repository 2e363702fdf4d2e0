"""Reading a plain mapping into a frozen dataclass, with one clear line for the first thing that is
wrong.

`option` declares a field with its help text and bounds; `read` applies them. Supported are int,
float, bool, str, unions, a tuple of int (one number stands for all of them where `length` says how
many) or str, groups of str (one may stand alone), a mapping of strings and nested dataclasses.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from paradnn.core.errors import ConfigError
from paradnn.core.words import did_you_mean

T = TypeVar("T")
#: What was read before: the points of a sweep differ in few of their groups.
_known: dict[Any, Any] = {}
_MOST_KNOWN = 2**16
_LARGEST = sys.float_info.max
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for end, base in (("b", 1000), ("ib", 1024))
}


def option(default: Any = dataclasses.MISSING, text: str = "", **bounds: Any) -> Any:
    """A dataclass field with help `text` and bounds; without `default` it must be given. Bounds:
    low and high, above and below (which exclude what they name), choices, length, or_length,
    prefixes, pattern and longest.
    """
    metadata = {"help": text, **bounds}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(
    cls: type[T], data: Mapping[str, Any], prefix: str, given: Mapping[str, Any] | None = None
) -> T:
    """An instance of the dataclass `cls` from `data`, whose keys stand below the dotted `prefix`.
    `given` holds fields that are read already. Raises ConfigError naming key, value and remedy.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(prefix, data, "expects a group of keys", f"see {prefix}=... in --help")
    if given:
        return cls(**given, **_values(cls, data, prefix))
    key = (cls, prefix, repr(data))
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = cls(**_values(cls, data, prefix))
    found: T = _known[key]
    return found


def _values(cls: type[T], data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The fields in `data`, each read."""
    # type: ignore[arg-type]
    fields = _fields(cls)
    values = {}
    for key, value in data.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if key not in fields:
            where = f"keys of {prefix}" if prefix else "keys"
            remedy = f"{did_you_mean(str(key), fields)}{where}: {', '.join(fields)}"
            raise ConfigError(dotted, value, "no such key", remedy)
        kind, bounds = fields[key]
        is_group = dataclasses.is_dataclass(kind)
        values[key] = read(kind, value, dotted) if is_group else _value(value, kind, bounds, dotted)
    return values


@cache
def _fields(cls: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Type and bounds of each field."""
    kinds = get_type_hints(cls)
    return {entry.name: (kinds[entry.name], entry.metadata) for entry in dataclasses.fields(cls)}


def memory_bytes(value: str | int, key: str) -> int | None:
    """Bytes of a memory size such as 8GiB, 500MB or 1000000; None for "auto"; ConfigError
    otherwise.
    """
    if isinstance(value, str) and value.strip().lower() == "auto":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(
            key,
            value,
            "is not a memory size",
            "give bytes, a number with KiB, MiB, GiB or GB, or auto",
        )
    size = float(match[1]) * _UNITS[match[2]]
    if not 1 <= size < 2**63:
        problem = "must be positive" if size < 1 else "is too large"
        raise ConfigError(key, value, problem, "give a memory size such as 8GiB")
    return int(size)


def _value(value: Any, kind: Any, bounds: Mapping[str, Any], key: str) -> Any:
    """`value` as `kind` within `bounds`."""
    if kind is int:
        return _integer(value, bounds, key)
    if kind is float:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not -_LARGEST <= value <= _LARGEST
        ):
            raise ConfigError(key, value, "expects a finite number", f"write for example {key}=0.5")
        return as_bounded(float(value), bounds, key)
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(
                key, value, "expects true or false", f"write {key}=true or {key}=false"
            )
        return value
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kinds = [entry for entry in get_args(kind) if entry is not NoneType]
        given = tuple(value) if isinstance(value, list) else value
        fits = (entry for entry in kinds if isinstance(given, get_origin(entry) or entry))
        # 200 is a rate as well; of what fits none, words say what could be chosen.
        kind = next(fits, str if str in kinds and not isinstance(given, (int, float)) else kinds[0])
        if bool in kinds and "choices" in bounds:
            bounds = {**bounds, "shown": ("true", "false", *bounds["choices"])}
        return _value(value, kind, bounds, key)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        values = value if isinstance(value, (list, tuple)) else (value,)
        if inner is str:
            return tuple(as_text(entry, bounds, key) for entry in values)
        if inner is int:
            return _integers(value, bounds, key)
        if get_origin(inner) is tuple:
            return _groups(value, key)
        if values is not value or not all(isinstance(entry, Mapping) for entry in values):
            raise ConfigError(
                key, value, "expects a list of mappings", "see conf/experiment/quick.yaml"
            )
        return tuple(values)
    if get_origin(kind) is None:
        return as_text(value, bounds, key)
    return _strings(value, bounds, key)


def _integer(value: Any, bounds: Mapping[str, Any], key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(key, value, "expects a whole number", f"write for example {key}=64")
    return int(as_bounded(value, bounds, key))


def as_bounded(value: Any, bounds: Mapping[str, Any], key: str) -> Any:
    """A number within its bounds; ConfigError, naming `key`, otherwise."""
    excluded = [f"{name} {bounds[name]:g}" for name in ("above", "below") if name in bounds]
    if not bounds.get("above", -math.inf) < value < bounds.get("below", math.inf) and excluded:
        raise ConfigError(key, value, f"must be {' and '.join(excluded)}", "choose another value")
    low = bounds.get("low")
    high = bounds.get("high")
    if low is not None and value < low:
        raise ConfigError(key, value, f"must be at least {low}", "choose a larger value")
    if high is not None and value > high:
        raise ConfigError(key, value, f"must be at most {high}", "choose a smaller value")
    # A number beyond 2**63 fits no framework's shape and no store's column.
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ConfigError(key, value, "is too large", "choose a smaller value")
    return value


def _integers(value: Any, bounds: Mapping[str, Any], key: str) -> tuple[int, ...]:
    length = bounds.get("length")
    other = bounds.get("or_length")
    several = isinstance(value, (list, tuple))
    if not several and length is None:
        raise ConfigError(
            key, value, "expects a list of whole numbers", f"write for example {key}=[8,8]"
        )
    if not several:
        return (_integer(value, bounds, key),) * int(length or 0)
    if length is not None and len(value) not in (length, other):
        wanted = f"expects one number{f', {other}' if other else ''} or {length}"
        example = ",".join(map(str, (3, 4, 6, 3)[:length]))
        raise ConfigError(key, list(value), wanted, f"write for example {key}=[{example}]")
    return tuple(_integer(entry, bounds, key) for entry in value)


def _groups(value: Any, key: str) -> tuple[tuple[str, ...], ...]:
    """Lists of words: [a,b] is one, [[a,b],[c,d]] are two."""
    given: list[Any] = list(value) if isinstance(value, (list, tuple)) else [None]
    groups: list[Any] = (
        [given] if given and all(isinstance(entry, str) for entry in given) else given
    )
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise ConfigError(
            key,
            value,
            "expects a list of keys, or several",
            f"write for example {key}=[[a,b],[c,d]]",
        )
    return tuple(tuple(as_text(entry, {}, key) for entry in group) for group in groups)


def _strings(value: Any, bounds: Mapping[str, Any], key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        remedy = f"write for example '+{key}.TF_ENABLE_ONEDNN_OPTS=0'"
        raise ConfigError(key, value, "expects names with values", remedy)
    prefixes = tuple(bounds.get("prefixes", ()))
    for name in value:
        if not str(name).startswith(prefixes):
            remedy = f"allowed are names that begin with {', '.join(prefixes)}"
            raise ConfigError(
                f"{key}.{name}", value[name], "is not a variable of a framework", remedy
            )
    return {str(name): str(entry) for name, entry in value.items()}


def as_text(value: Any, bounds: Mapping[str, Any], key: str) -> str:
    """A line of text, one of the choices where there are any; ConfigError, naming `key`, otherwise."""
    choices = bounds.get("choices")
    if choices is not None and value not in choices:
        shown = bounds.get("shown", choices)
        remedy = f"{did_you_mean(str(value), shown)}choose one of {', '.join(shown)}"
        raise ConfigError(key, value, "no such choice", remedy)
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or len(value) > bounds.get("longest", 4000)
    ):
        raise ConfigError(key, value, "expects a line of text", f"quote it: {key}='...'")
    expression, remedy = bounds.get("pattern", (None, ""))
    if expression and not re.fullmatch(expression, value):
        raise ConfigError(key, value, "is not understood", remedy)
    return value
