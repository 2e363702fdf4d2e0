"""The text of `--help`, generated from the dataclasses and files of the configuration."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from paradnn.config import point as config
from paradnn.config.groups import group_names, option_names
from paradnn.config.rules import input_types
from paradnn.config.settings import Settings
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES

#: Group of conf/ -> its meaning.
_GROUPS = {
    "brief": "durations of a scenario under measure=quick; follows from both",
    "data": "the source of the batches",
    "experiment": "presets: the axes of a whole sweep; needs -m",
    "fit": "input size and number of classes of a data set; follows from data and model",
    "framework": "the framework below Keras, or an inference engine",
    "learning": "default learning rate of some models; follows from the model",
    "measure": "protocol of a point: durations, processes and limits",
    "model": "the model family, or a published model",
    "optimizer": "the update rule and its constants",
    "platform": "the kind of device",
    "price": "price per hour of devices (docs/how-to/cost.md)",
    "scenario": "how inference is requested: step after step, or as MLPerf Inference defines it",
    "software": "the interpreter under test: this one, or a stack that is installed on first use",
    "step": "defaults that depend on the model; follow from it",
    "task": "measured work: a step, training to an accuracy, or the accuracy of a trained model",
    "tracking": "the store that receives the runs",
}
#: Keys that only this program sets.
_INTERNAL_KEYS = ("name", "plan", "grids")
#: Widths of an entry's name and of its text, in characters.
_NAME_WIDTH = 34
_TEXT_WIDTH = 78
_INDENT = " " * (_NAME_WIDTH + 3)


def help_text(page: str | None = None) -> str:
    """Return the text of --help, for a command that accepts configuration keys.

    It lists every configuration group with its options, and every key with default and meaning.

    Args:
        page: A description of the command, which precedes the list; None for no description.
    """
    lines = [f"{(page or '').strip()}\n", "Groups (key=option)", *_group_lines()]
    for heading, keys in documented_keys().items():
        lines += ["", heading]
        for key, text in keys:
            lines += _entry_lines(key, text)
    # Hydra substitutes $NAME in the text.
    return "\n".join(lines).replace("$", "$$") + "\n"


def documented_keys() -> dict[str, list[tuple[str, str]]]:
    """Return all documented keys of the configuration, by the heading of their section in --help.

    Returns:
        Heading -> entries. An entry is a pair of the key with its default, such as
        `batch_size=256`, and its meaning.
    """
    sections = {
        heading: [entry for options, prefix in classes for entry in _key_entries(options, prefix)]
        for heading, classes in _option_classes().items()
    }
    return {heading: keys for heading, keys in sections.items() if keys}


def known_keys() -> list[str]:
    """Return every key of the configuration, such as `model.nodes`, for all model families."""
    keys = {
        key
        for classes in _option_classes().values()
        for options, prefix in classes
        for key, _ in _fields(options, prefix)
    }
    return sorted(keys - {"workload"})


def _option_classes() -> dict[str, list[tuple[type, str]]]:
    """Return the dataclasses whose fields are keys, by the heading of their section in --help.

    Returns:
        Heading -> pairs of a dataclass, and the prefix of its keys, such as "model.".
    """
    sections: dict[str, list[tuple[type, str]]] = {
        "Keys": [(config.Point, ""), (config.selector_keys(), "")]
    }
    for options in dict.fromkeys(family.options for family in FAMILIES.values()):
        names = ", ".join(name for name, family in FAMILIES.items() if family.options is options)
        sections[f"Keys of model={names}"] = [(options, "model.")]
    for name, data in input_types().items():
        sections[f"Keys of data={name}"] = [(data, "data.")]
    for work in WORKLOADS.values():
        if work.group:
            sections[f"Keys of {work.key}={work.name}"] = [(type(work), f"{work.group}.")]
    sections["Keys of a sweep and of the tracking store"] = [(Settings, "")]
    return sections


def _fields(options: type, prefix: str) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield the dotted key and the field of every field of a dataclass and of nested dataclasses.

    Args:
        options: The dataclass.
        prefix: Prefix of its keys, such as "model."; empty for keys at the top level.
    """
    for field in dataclasses.fields(options):
        yield f"{prefix}{field.name}", field
        factory = field.default_factory
        if isinstance(factory, type) and dataclasses.is_dataclass(factory):
            yield from _fields(factory, f"{prefix}{field.name}.")


def _group_lines() -> Iterator[str]:
    for group in group_names():
        options = " | ".join(option_names(group))
        meaning = _GROUPS.get(group, "follows from the model")
        yield from _entry_lines(group, f"{options}: {meaning}")


def _key_entries(options: type, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the key with its default, and the meaning, of every documented field."""
    for key, field in _fields(options, prefix):
        if "help" not in field.metadata or field.name in _INTERNAL_KEYS:
            continue
        default = {} if field.default is dataclasses.MISSING else field.default
        text = field.metadata["help"]
        choices = field.metadata.get("choices")
        if choices:
            if isinstance(default, bool):
                choices = ("true", "false", *choices)
            text = f"{' | '.join(choices)}: {text}"
        yield f"{key}={_format_default(default)}", text


def _format_default(default: Any) -> str:
    """Return a default value as a user types it; a tuple of equal values becomes one value."""
    if isinstance(default, tuple):
        if len(set(default)) != 1:
            return f"[{','.join(map(str, default))}]"
        default = default[0]
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


def _entry_lines(name: str, text: str) -> Iterator[str]:
    """Yield the lines of an entry: its name, and its text to the right of the name.

    The text begins on the next line if the name is too long.
    """
    lines = textwrap.wrap(text, _TEXT_WIDTH) or [""]
    if len(name) <= _NAME_WIDTH:
        yield f"  {name:<{_NAME_WIDTH}} {lines[0]}"
    else:
        yield f"  {name}\n{_INDENT}{lines[0]}"
    for line in lines[1:]:
        yield f"{_INDENT}{line}"
