"""Messages as JSON lines: encoding, and validation against their dataclasses.

Driver and worker both use this module. It needs only the standard library.
"""

import base64
import contextlib
import functools
import json
import math
import os
import types
import typing
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from paradnn.core.messages import EVENTS, PROTOCOL_VERSION, Event, WorkloadMessage
from paradnn.core.workload import message_type

Message = TypeVar("Message")

_EVENT_NAMES = {kind: name for name, kind in EVENTS.items()}
_NOT_FINITE = {repr(value): value for value in (float("nan"), float("inf"), float("-inf"))}
#: Names of types in error messages.
_TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
}
#: Maximum number of characters of a value in an error message.
_MAX_SHOWN_CHARS = 80


class MessageError(ValueError):
    """A message violates the protocol. The text names the field and, if it has one, its value."""


class BrokenLine(MessageError):
    """A line is not JSON, for example because a child was killed while it wrote the line."""


class EventWriter:
    """Writes events (messages from worker to driver) to a file descriptor, one per line."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: Event) -> None:
        """Write one event as a line of JSON.

        A line break precedes it, to end an incomplete line that a killed child may have written.

        Args:
            event: The event, a message from worker to driver.
        """
        message = {"event": _EVENT_NAMES[type(event)], **plain(event)}
        data = memoryview(b"\n" + encode(message))
        while data:
            written = os.write(self._descriptor, data)
            data = data[written:]


def encode(message: Any) -> bytes:
    """Return a message as a line of JSON in UTF-8, including the line break.

    Args:
        message: Dataclass instance, mapping, list or scalar, as for `plain`.
    """
    return json.dumps(plain(message)).encode() + b"\n"


def plain(value: Any) -> Any:
    """Convert a message to values that JSON can represent.

    NaN and infinities, which JSON lacks, become strings. A `WorkloadMessage` becomes a mapping of
    its fields, with its `wire_name` under the additional key `of`.

    Args:
        value: Dataclass instance, mapping, list, tuple or scalar. Elements are converted, too.
    """
    if isinstance(value, WorkloadMessage):
        return {"of": value.wire_name, **plain_fields(value)}
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def plain_fields(value: Any) -> dict[str, Any]:
    """Convert the fields of a dataclass to values that JSON can represent.

    Args:
        value: Instance of the dataclass.

    Returns:
        Name of the field -> value, converted by `plain`.
    """
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def read_event(line: bytes) -> Event:
    """Decode and check an event, a message from worker to driver.

    Args:
        line: The line of JSON.

    Raises:
        BrokenLine: If the line is not JSON.
        MessageError: If the line is not an event.
    """
    content = read_json(line)
    name = content.pop("event", None) if isinstance(content, dict) else None
    if not isinstance(name, str) or name not in EVENTS:
        raise _type_error("event", name, f"one of {', '.join(EVENTS)}")
    return read_message(EVENTS[name], content, name)


def read_json(line: bytes) -> Any:
    """Decode a line of JSON.

    Raises:
        BrokenLine: If the line is not JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        text = _short(line.decode(errors="replace"))
        raise BrokenLine(f"{text} is not JSON") from error


def read_message(kind: type[Message], content: Any, path: str) -> Message:
    """Convert JSON values to an instance of a dataclass, and check them.

    Args:
        kind: The dataclass.
        content: Mapping with a value for each field of the dataclass.
        path: Name of the message in error messages.

    Raises:
        MessageError: If a field is missing, unknown, or of the wrong type.
    """
    return typing.cast("Message", _read(kind, content, path))


def _read(kind: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to an instance of a type, and check it.

    Args:
        kind: A dataclass, a scalar type, a list, a mapping, or a union of these.
        value: The JSON value.
        path: The dotted path of the value, for errors.

    Raises:
        MessageError: If the value is not an instance of the type.
    """
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, WorkloadMessage) and isinstance(value, dict):
        return _read_workload_message(kind, value, path)
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
    raise _type_error(path, value, _TYPE_NAMES.get(origin or kind, "an object"))


def _read_workload_message(kind: Any, value: dict[str, Any], path: str) -> Any:
    """Convert JSON values to a message that only one kind of work sends, and check them.

    A kind of work is, for example, a training step or serving.

    Args:
        kind: The class of the message. For WorkloadMessage, the name under the key `of` selects the
            class.
        value: Mapping with a value for each field, and the key `of`.
        path: The dotted path of the message, for errors.
    """
    content = dict(value)
    name = content.pop("of", None)
    if kind is WorkloadMessage:
        kind = message_type(name)
    if kind is None:
        raise _type_error(f"{path}.of", name, "the name of a known message type")
    return _read_fields(kind, content, path)


def _read_number(value: Any, path: str) -> float:
    """Convert a JSON value to a float.

    Only losses and stored metrics may be infinite or NaN.

    Args:
        value: The JSON value: a number, or the name of a value that is not finite.
        path: The dotted path of the value, for errors.

    Raises:
        MessageError: If the value is not a number, or must be finite and is not.
    """
    number = _NOT_FINITE.get(value) if isinstance(value, str) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if number is None:
        raise _type_error(path, value, _TYPE_NAMES[float])
    if not math.isfinite(number) and not path.endswith("loss") and ".metrics." not in path:
        raise _type_error(path, value, "finite")
    return number


def _read_union(kind: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to an instance of one member of a union, and check it.

    null becomes None. Otherwise, the member is the dataclass with the same fields as the value, or
    else the first member of the union except None.

    Args:
        kind: The union.
        value: The JSON value.
        path: The dotted path of the value, for errors.
    """
    members = [member for member in typing.get_args(kind) if member is not types.NoneType]
    if value is None and len(members) < len(typing.get_args(kind)):
        return None
    keys = set(value) if isinstance(value, dict) else set()
    for member in members:
        if _field_types(member).keys() == keys:
            return _read(member, value, path)
    return _read(members[0], value, path)


def _read_fields(kind: Any, value: dict[str, Any], path: str) -> Any:
    expected = _field_types(kind)
    # The version is checked first, because other versions may have different fields.
    if "protocol" in expected and value.get("protocol") != PROTOCOL_VERSION:
        found = _short(value.get("protocol"))
        raise MessageError(
            f"{path}.protocol={found}: this process uses protocol version {PROTOCOL_VERSION}; install the same version of ParaDnn on both sides"
        )
    for name in (*expected, *value):
        if name not in value:
            raise MessageError(f"{path}.{name} is missing")
        if name not in expected:
            raise MessageError(f"{path}.{name}={_short(value[name])} is an unknown field")
    content = {
        name: _read(field_type, value[name], f"{path}.{name}")
        for name, field_type in expected.items()
    }
    try:
        return kind(**content)
    except ValueError as error:
        raise MessageError(f"{path}: {error}") from error


@functools.cache
def _field_types(kind: Any) -> dict[str, Any]:
    """Return name -> type for the fields of a dataclass; empty for any other type."""
    if not is_dataclass(kind):
        return {}
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _type_error(path: str, value: Any, expected: str) -> MessageError:
    return MessageError(f"{path}={_short(value)} is not {expected}")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]} ..."


def pack_bytes(content: bytes) -> str:
    """Compress bytes, and encode them as text (base64) that a message can contain."""
    return base64.b64encode(zlib.compress(content, 1)).decode()


def unpack_bytes(text: str) -> bytes:
    """Return the bytes that `pack_bytes` encoded as text.

    Raises:
        ValueError: If the text is not a result of `pack_bytes`.
    """
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"packed bytes cannot be read: {error}") from error
