"""Read plain mappings into frozen dataclasses, and report the first invalid value.

`option` declares a field with its help text and bounds. `read` converts and checks the values.
Supported types:

- int, float, bool, str, and unions of these;
- a tuple of int (with the bound `length`, a single number means a tuple of equal numbers), or
  of str;
- a tuple of tuples of str (the outer list may be omitted around a single inner list);
- a tuple of mappings, a mapping of strings, and nested dataclasses.
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
#: Cache of instances. The points of a sweep share most groups of keys, so most instances are equal.
_instances: dict[Any, Any] = {}
_MAX_CACHED = 2**16
#: Limit of the absolute value of integers. Larger integers fit neither the shapes of frameworks nor
#: the columns of stores.
_INTEGER_LIMIT = 2**63
#: Bytes of the units of memory sizes.
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def option(default: Any = dataclasses.MISSING, text: str = "", **bounds: Any) -> Any:
    """Return a dataclass field with help text and bounds.

    Args:
        default: The default value; if it is omitted, the field is required.
        text: The help text.
        **bounds: Conditions that a value must satisfy:
            - `low`, `high`: inclusive bounds of a number;
            - `above`, `below`: exclusive bounds of a number;
            - `choices`: the valid values;
            - `shown`: the values that help and errors list, by default `choices`;
            - `length`, `or_length`: the valid numbers of elements of a tuple;
            - `prefixes`: valid prefixes of the names in a mapping;
            - `longest`: the maximum number of characters of a text;
            - `pattern`: a regular expression that a text must match, and the remedy of the error if
              it does not match.
    """
    metadata = {"help": text, **bounds}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(
    cls: type[T], data: Mapping[str, Any], prefix: str, given: Mapping[str, Any] | None = None
) -> T:
    """Convert plain values to an instance of a dataclass, and check them.

    Args:
        cls: The dataclass.
        data: Values of the fields by name.
        prefix: Prefix of the field names in dotted keys, for messages, such as "model"; may be
            empty.
        given: Values of further fields by name, which are not checked; None for no further fields.

    Raises:
        ConfigError: If a key is unknown or a value is invalid.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(prefix, data, "expects a group of keys", f"see {prefix}=... in --help")
    if given:
        return cls(**given, **_read_fields(cls, data, prefix))
    key = (cls, prefix, repr(data))
    if key not in _instances:
        if len(_instances) >= _MAX_CACHED:
            _instances.clear()
        _instances[key] = cls(**_read_fields(cls, data, prefix))
    instance: T = _instances[key]
    return instance


def memory_bytes(value: str | int, key: str) -> int | None:
    """Convert a memory size such as 8GiB, 500MB or 1000000 to bytes.

    Args:
        value: The size, or "auto".
        key: The dotted key, for the message.

    Returns:
        The size in bytes; None for "auto".

    Raises:
        ConfigError: If the value is not a memory size.
    """
    text = str(value).strip().lower()
    if text == "auto":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if not match or match[2] not in _UNITS:
        remedy = "give bytes, a number with KiB, MiB, GiB or GB, or auto"
        raise ConfigError(key, value, "is not a memory size", remedy)
    size = float(match[1]) * _UNITS[match[2]]
    if size < 1:
        raise ConfigError(key, value, "must be positive", "give a memory size such as 8GiB")
    if size >= _INTEGER_LIMIT:
        raise ConfigError(key, value, "is too large", "give a memory size such as 8GiB")
    return int(size)


def as_bounded(value: Any, bounds: Mapping[str, Any], key: str) -> Any:
    """Check that a number is within its bounds, and return it unchanged.

    Args:
        value: The number.
        bounds: The bounds of the field: `low` and `high` are inclusive, `above` and `below` are
            exclusive. A missing bound does not limit the number.
        key: The dotted key, for the message.

    Raises:
        ConfigError: If the number is out of bounds.
    """
    above = bounds.get("above", -math.inf)
    below = bounds.get("below", math.inf)
    if not above < value < below:
        limits = [f"{name} {bounds[name]:g}" for name in ("above", "below") if name in bounds]
        if limits:
            reason = f"must be {' and '.join(limits)}"
            raise ConfigError(key, value, reason, "choose a value in this range")
    low = bounds.get("low")
    high = bounds.get("high")
    if low is not None and value < low:
        raise ConfigError(key, value, f"must be at least {low}", "choose a larger value")
    if high is not None and value > high:
        raise ConfigError(key, value, f"must be at most {high}", "choose a smaller value")
    if isinstance(value, int) and abs(value) >= _INTEGER_LIMIT:
        raise ConfigError(key, value, "is too large", "choose a smaller value")
    return value


def as_text(value: Any, bounds: Mapping[str, Any], key: str) -> str:
    """Check that a value is one line of text that satisfies its bounds, and return it unchanged.

    Args:
        value: The value.
        bounds: The bounds of the field: `choices`, `shown`, `longest` and `pattern`.
        key: The dotted key, for the message.

    Raises:
        ConfigError: If the value is not such a text.
    """
    choices = bounds.get("choices")
    if choices is not None and value not in choices:
        shown = bounds.get("shown", choices)
        remedy = f"{did_you_mean(str(value), shown)}choose one of {', '.join(shown)}"
        raise ConfigError(key, value, "no such choice", remedy)
    is_line = isinstance(value, str) and value.isprintable()
    if not is_line or len(value) > bounds.get("longest", 4000):
        raise ConfigError(key, value, "expects a line of text", f"quote it: {key}='...'")
    pattern, remedy = bounds.get("pattern", ("", ""))
    if pattern and not re.fullmatch(pattern, value):
        raise ConfigError(key, value, "is not understood", remedy)
    return str(value)


def _read_fields(cls: Any, data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Convert and check values for the fields of a dataclass.

    Args:
        cls: The dataclass.
        data: Name of the field -> plain value.
        prefix: Prefix of the field names in dotted keys, for messages; may be empty.

    Returns:
        Name of the field -> converted value.

    Raises:
        ConfigError: If a name is unknown or a value is invalid.
    """
    fields = _fields(cls)
    values = {}
    for name, value in data.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if name not in fields:
            where = f"keys of {prefix}" if prefix else "keys"
            remedy = f"{did_you_mean(str(name), fields)}{where}: {', '.join(fields)}"
            raise ConfigError(key, value, "no such key", remedy)
        kind, bounds = fields[name]
        if dataclasses.is_dataclass(kind):
            group: type[Any] = kind  # type: ignore[assignment]
            values[name] = read(group, value, key)
        else:
            values[name] = _read_value(value, kind, bounds, key)
    return values


@cache
def _fields(cls: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return name -> (type, bounds) for the fields of a dataclass."""
    kinds = get_type_hints(cls)
    return {field.name: (kinds[field.name], field.metadata) for field in dataclasses.fields(cls)}


def _read_value(value: Any, kind: Any, bounds: Mapping[str, Any], key: str) -> Any:
    """Convert a value to a type, and check it against its bounds.

    Args:
        value: The plain value.
        kind: The type of the field.
        bounds: The bounds of the field, as `option` documents them.
        key: The dotted key, for the message.

    Raises:
        ConfigError: If the value is invalid.
    """
    origin = get_origin(kind)
    if kind is int:
        return _read_integer(value, bounds, key)
    if kind is float:
        return _read_float(value, bounds, key)
    if kind is bool:
        return _read_boolean(value, key)
    if origin in (Union, UnionType):
        return _read_union(value, get_args(kind), bounds, key)
    if origin is tuple:
        return _read_tuple(value, get_args(kind)[0], bounds, key)
    if origin is None:
        return as_text(value, bounds, key)
    return _read_strings(value, bounds, key)


def _read_integer(value: Any, bounds: Mapping[str, Any], key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(key, value, "expects a whole number", f"for example, write {key}=64")
    return int(as_bounded(value, bounds, key))


def _read_float(value: Any, bounds: Mapping[str, Any], key: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:
        raise ConfigError(key, value, "expects a finite number", f"for example, write {key}=0.5")
    return float(as_bounded(float(value), bounds, key))


def _read_boolean(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        remedy = f"write {key}=true or {key}=false"
        raise ConfigError(key, value, "expects true or false", remedy)
    return value


def _read_union(value: Any, members: tuple[Any, ...], bounds: Mapping[str, Any], key: str) -> Any:
    if value is None and NoneType in members:
        return None
    kinds = [kind for kind in members if kind is not NoneType]
    if bool in kinds and "choices" in bounds:
        bounds = {**bounds, "shown": ("true", "false", *bounds["choices"])}
    return _read_value(value, _best_member(value, kinds), bounds, key)


def _best_member(value: Any, kinds: list[Any]) -> Any:
    """Choose the member of a union to which a value is converted.

    If the conversion fails, the error message is also that of this member.

    Args:
        value: The plain value.
        kinds: The members, without None.
    """
    comparable = tuple(value) if isinstance(value, list) else value
    for kind in kinds:
        if isinstance(comparable, get_origin(kind) or kind):
            return kind
    # A whole number may be read as a float. Other values are read as text, whose error lists the
    # choices.
    if str in kinds and not isinstance(value, (int, float)):
        return str
    return kinds[0]


def _read_tuple(value: Any, inner: Any, bounds: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    is_list = isinstance(value, (list, tuple))
    if inner is str:
        entries = value if is_list else (value,)
        return tuple(as_text(entry, bounds, key) for entry in entries)
    if inner is int:
        return _read_integers(value, bounds, key)
    if get_origin(inner) is tuple:
        return _read_groups(value, key)
    if not is_list or not all(isinstance(entry, Mapping) for entry in value):
        remedy = "see conf/experiment/quick.yaml"
        raise ConfigError(key, value, "expects a list of mappings", remedy)
    return tuple(value)


def _read_integers(value: Any, bounds: Mapping[str, Any], key: str) -> tuple[int, ...]:
    length = bounds.get("length")
    other_length = bounds.get("or_length")
    if not isinstance(value, (list, tuple)):
        if length is None:
            remedy = f"for example, write {key}=[8,8]"
            raise ConfigError(key, value, "expects a list of whole numbers", remedy)
        return tuple([_read_integer(value, bounds, key)] * length)
    if length is not None and len(value) not in (length, other_length):
        alternative = f", {other_length}" if other_length else ""
        example = ",".join(str(number) for number in (3, 4, 6, 3)[:length])
        reason = f"expects 1{alternative} or {length} numbers"
        raise ConfigError(key, list(value), reason, f"for example, write {key}=[{example}]")
    return tuple(_read_integer(entry, bounds, key) for entry in value)


def _read_groups(value: Any, key: str) -> tuple[tuple[str, ...], ...]:
    """Convert a value to groups of words.

    Args:
        value: A list such as [a,b], which is one group, or a list of lists such as [[a,b],[c,d]].
        key: The dotted key, for the message.

    Raises:
        ConfigError: If the value has another form.
    """
    groups: list[Any] = list(value) if isinstance(value, (list, tuple)) else [None]
    if groups and all(isinstance(entry, str) for entry in groups):
        groups = [groups]
    if not all(isinstance(group, (list, tuple)) for group in groups):
        remedy = f"for example, write {key}=[[a,b],[c,d]]"
        raise ConfigError(key, value, "expects a list of keys, or a list of such lists", remedy)
    return tuple(tuple(as_text(entry, {}, key) for entry in group) for group in groups)


def _read_strings(value: Any, bounds: Mapping[str, Any], key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        remedy = f"for example, write '+{key}.TF_ENABLE_ONEDNN_OPTS=0'"
        raise ConfigError(key, value, "expects names with values", remedy)
    prefixes = tuple(bounds.get("prefixes", ()))
    for name, entry in value.items():
        if not str(name).startswith(prefixes):
            remedy = f"use a name that begins with one of {', '.join(prefixes)}"
            raise ConfigError(
                f"{key}.{name}", entry, "is not an environment variable of a framework", remedy
            )
    return {str(name): str(entry) for name, entry in value.items()}
