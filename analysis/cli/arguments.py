"""From fields to argparse and back: the only place that knows how options become arguments."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from analysis.options import Argument, Arguments, arguments

__all__ = ["add_arguments", "read_arguments"]

T = TypeVar("T", bound=Arguments)


def add_arguments(parser: argparse.ArgumentParser, *classes: type[Arguments]) -> None:
    """An argument for each field of the classes, under the heading that the field names."""
    groups: dict[str, Any] = {"": parser}
    for argument in (argument for cls in classes for argument in arguments(cls)):
        title = argument.how.get("group", "")
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        names, settings = _settings(argument)
        groups[title].add_argument(*names, **settings)


def read_arguments(cls: type[T], given: argparse.Namespace) -> T:
    """The options that a parsed command line gives; what it leaves out keeps its default."""
    values = {entry.name: getattr(given, entry.name, None) for entry in dataclasses.fields(cls)}
    named = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return cls(**{name: value for name, value in named.items() if value is not None})


def _settings(argument: Argument) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What `add_argument` is given."""
    how = argument.how
    # None stands for what was not given; the default itself is the dataclass's.
    settings: dict[str, Any] = {"help": how["help"], "default": None}
    if argument.kind is bool:
        return (argument.flag,), settings | {"dest": argument.name, "action": "store_true"}
    if argument.choices:
        settings["choices"] = argument.choices
    settings["metavar"] = how.get("metavar")
    if argument.pairs:
        settings["type"] = _pair(how["metavar"])
    elif argument.several == "commas":
        settings["type"] = _parts
    elif argument.kind is not str:
        settings["type"] = argument.kind
    settings |= {"repeat": {"action": "append"}, "words": {"nargs": "+"}}.get(argument.several, {})
    if how.get("positional"):
        return (argument.name,), {key: value for key, value in settings.items() if key != "default"}
    required = argument.default is dataclasses.MISSING
    return (argument.flag,), settings | {"dest": argument.name, "required": required}


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing; write one value or several with commas between them")
    return parts


def _pair(shape: str) -> Callable[[str], tuple[str, str]]:
    def pair(text: str) -> tuple[str, str]:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise argparse.ArgumentTypeError(f"{text!r} is not {shape}")
        return key, value

    return pair
