"""The text of `--help`, made from the configuration's own dataclasses and files, so that it cannot
lie.
"""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from paradnn.config import point as config
from paradnn.config.groups import group_names, option_names
from paradnn.config.rules import input_types
from paradnn.config.settings import Settings
from paradnn.core.tables import rows
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES

#: What each group of conf/ decides.
_GROUPS = {row["group"]: row["decides"] for row in rows(__file__, "groups.csv")}


def help_text(page: str | None = None) -> str:
    """Every group with its options, every key with its default and its meaning; first what a
    command is.
    """
    parts = [f"{(page or '').strip()}\n", "Groups (key=option)", *_groups()]
    for heading, keys in documented_keys().items():
        parts += ["", heading, *(line for key, text in keys for line in _entry(key, text))]
    # Hydra substitutes $NAME in the text.
    return "\n".join(parts).replace("$", "$$") + "\n"


def documented_keys() -> dict[str, list[tuple[str, str]]]:
    """Heading -> keys with their defaults, as in batch_size=256, and what they mean."""
    found = {
        name: [entry for cls, prefix in held for entry in _keys(cls, prefix)]
        for name, held in _holders().items()
    }
    return {heading: keys for heading, keys in found.items() if keys}


def known_keys() -> list[str]:
    """Every dotted key that the command line takes, of all families."""
    holders = [holder for held in _holders().values() for holder in held]
    return sorted(
        {key for cls, prefix in holders for key, _ in _fields(cls, prefix)} - {"workload"}
    )


def _holders() -> dict[str, list[tuple[type, str]]]:
    """Heading -> the dataclasses whose fields are keys, and what stands before these."""
    found: dict[str, list[tuple[type, str]]] = {
        "Keys": [(config.Point, ""), (config.selector_keys(), "")]
    }
    for options in dict.fromkeys(family.options for family in FAMILIES.values()):
        names = ", ".join(name for name, family in FAMILIES.items() if family.options is options)
        found[f"Keys of model={names}"] = [(options, "model.")]
    found |= {f"Keys of data={name}": [(data, "data.")] for name, data in input_types().items()}
    for work in WORKLOADS.values():
        if work.group:
            found[f"Keys of {work.key}={work.name}"] = [(type(work), f"{work.group}.")]
    return found | {"Keys of a sweep and of the tracking store": [(Settings, "")]}


def _fields(cls: type, prefix: str) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Fields of a dataclass, and below those that are groups of keys those of the groups, by their
    dotted keys.
    """
    for entry in dataclasses.fields(cls):
        yield f"{prefix}{entry.name}", entry
        kind = entry.default_factory
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _fields(kind, f"{prefix}{entry.name}.")


def _groups() -> Iterator[str]:
    for group in group_names():
        yield from _entry(
            group, f"{' | '.join(option_names(group))}: {_GROUPS.get(group, 'chosen with a model')}"
        )


def _keys(cls: type, prefix: str) -> Iterator[tuple[str, str]]:
    for key, entry in _fields(cls, prefix):
        if "help" not in entry.metadata or entry.name in ("name", "plan", "grids"):
            continue
        if entry.default is not dataclasses.MISSING:
            default = entry.default
        else:
            default = {}
        if isinstance(default, tuple):
            if len(set(default)) == 1:
                default = default[0]
            else:
                default = f"[{','.join(map(str, default))}]"
        if default is None:
            shown = "null"
        elif isinstance(default, bool):
            shown = str(default).lower()
        else:
            shown = default
        text = entry.metadata["help"]
        choices = entry.metadata.get("choices")
        if choices:
            also = ("true", "false") if isinstance(default, bool) else ()
            text = f"{' | '.join((*also, *choices))}: {text}"
        yield f"{key}={shown}", text


def _entry(left: str, right: str) -> Iterator[str]:
    lines = textwrap.wrap(right, 78) or [""]
    head = f"  {left:<34}"
    yield f"{head} {lines[0]}" if len(head) <= 36 else f"{head}\n{' ' * 37}{lines[0]}"
    for line in lines[1:]:
        yield " " * 37 + line
