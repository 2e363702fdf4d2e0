"""Messages as JSON lines: written whole, and checked against their dataclasses when they are read.

Both sides of the pipe use this module. It needs nothing but the standard library.
"""

import contextlib
import functools
import json
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from paradnn.core.messages import EVENTS, PROTOCOL_VERSION, Event, WorkloadMessage
from paradnn.core.workload import message_type

Message = TypeVar("Message")

_NAMES = {kind: name for name, kind in EVENTS.items()}
_NOT_FINITE = {repr(value): value for value in (float("nan"), float("inf"), float("-inf"))}
_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
}
#: How much of a value a fault shows.
_LONGEST = 80


class MessageError(ValueError):
    """A message that is not what the protocol says; the text names the field and its value."""


class BrokenLine(MessageError):
    """A line that is no JSON: a child may have been killed while it wrote it."""


class EventWriter:
    """Writes events to a file descriptor, a line each, whole or not at all as far as the pipe
    allows.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: Event) -> None:
        """Send one event on a line of its own, whatever a killed child left behind."""
        data = memoryview(b"\n" + encode({"event": _NAMES[type(event)], **plain(event)}))
        while data:
            data = data[os.write(self._descriptor, data) :]


def encode(message: Any) -> bytes:
    """A message as a line, its end included."""
    return json.dumps(plain(message)).encode() + b"\n"


def plain(value: Any) -> Any:
    """A message as JSON-able values; NaN and infinities become strings, since JSON has none."""
    if is_dataclass(value):
        return (
            {"of": value.wire_name} if isinstance(value, WorkloadMessage) else {}
        ) | plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a message as JSON-able values."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def read_event(line: bytes) -> Event:
    """The event in a line; raises BrokenLine or MessageError."""
    content = read_json(line)
    if isinstance(content, dict):
        name = content.pop("event", None)
    else:
        name = None
    if not isinstance(name, str) or name not in EVENTS:
        raise _fault("event", name, f"one of {', '.join(EVENTS)}")
    return read_message(EVENTS[name], content, name)


def read_json(line: bytes) -> Any:
    """The value in a line; raises BrokenLine."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BrokenLine(f"{_short(line.decode(errors='replace'))} is no JSON") from error


def read_message(kind: type[Message], content: Any, path: str) -> Message:
    """`content` as a dataclass `kind` with all its fields; `path` is what it is called in a
    MessageError.
    """
    return typing.cast("Message", _read(kind, content, path))


def _read(kind: Any, value: Any, path: str) -> Any:
    """`value` as a `kind`: a dataclass, a scalar, a list, a mapping by text, or a union of them."""
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, WorkloadMessage) and isinstance(value, dict):
        value = dict(value)
        name = value.pop("of", None)
        kind = message_type(name) if kind is WorkloadMessage else kind
        if kind is None:
            raise _fault(f"{path}.of", name, "what a kind of work sends")
    if isinstance(kind, types.UnionType):
        return _read_union(kind, value, path)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (list, Sequence) and isinstance(value, list):
        return [_read(arguments[0], entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _read(arguments[1], entry, f"{path}.{key}") for key, entry in value.items()}
    if is_dataclass(kind) and isinstance(value, dict):
        return _read_fields(kind, value, path)
    if kind is float:
        return _read_number(value, path)
    if kind in (str, int, bool) and type(value) is kind:
        return value
    raise _fault(path, value, _WORDS.get(origin or kind, "an object"))


def _read_number(value: Any, path: str) -> float:
    """A number that is finite, unless it is a loss, or a metric that was stored, which may be
    anything.
    """
    number = _NOT_FINITE.get(value) if isinstance(value, str) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if number is None:
        raise _fault(path, value, _WORDS[float])
    if not math.isfinite(number) and not path.endswith("loss") and ".metrics." not in path:
        raise _fault(path, value, "finite")
    return number


def _read_union(kind: Any, value: Any, path: str) -> Any:
    """The member that `value` is: None, else the dataclass that has its fields, else the only other
    one.
    """
    members = [member for member in typing.get_args(kind) if member is not types.NoneType]
    if value is None and len(members) < len(typing.get_args(kind)):
        return None
    keys = set(value) if isinstance(value, dict) else set()
    return _read(
        next((member for member in members if set(_types(member)) == keys), members[0]), value, path
    )


def _read_fields(kind: Any, value: dict[str, Any], path: str) -> Any:
    wanted = _types(kind)
    if (
        "protocol" in wanted and value.get("protocol") != PROTOCOL_VERSION
    ):  # before fields that a version may not have
        raise MessageError(
            f"{path}.protocol={_short(value.get('protocol'))}: this side speaks {PROTOCOL_VERSION}"
        )
    for name in (*wanted, *value):
        if name not in value:
            raise MessageError(f"{path}.{name} is missing")
        if name not in wanted:
            raise MessageError(f"{path}.{name}={_short(value[name])} is not known")
    content = {name: _read(entry, value[name], f"{path}.{name}") for name, entry in wanted.items()}
    try:
        return kind(**content)
    except ValueError as error:
        raise MessageError(f"{path}: {error}") from error


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types; of anything else none."""
    hints = typing.get_type_hints(kind) if is_dataclass(kind) else {}
    if hints:
        return {field.name: hints[field.name] for field in fields(kind)}
    return {}


def _fault(path: str, value: Any, wanted: str) -> MessageError:
    return MessageError(f"{path}={_short(value)} is not {wanted}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
