"""What the groups of the configuration hold, such as `model` and `measure`: files of conf/,
families, kinds of work.

A family needs no file: `model=NAME` has the defaults of its options, and with it come the options
of other groups that it chooses (`Family.chosen`). Nor does a kind of work: `task=NAME` or
`scenario=NAME` has the defaults of its options, and with `measure=quick` comes what makes it short.
A file of the same name takes precedence.
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from paradnn.config.paths import CONFIG
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES, Family

#: Where the keys of a group stand, where that is not below its name.
_PACKAGES = {
    "learning": "optimizer",
    **dict.fromkeys(("step", "task", "scenario", "brief"), "_global_"),
}


def groups() -> list[str]:
    """The groups of the configuration: model, measure and so on."""
    folders = {
        folder.name for folder in CONFIG.iterdir() if folder.is_dir() and folder.name != "hydra"
    }
    return sorted(folders | {group for group, *_ in _brought()})


def options_of(group: str) -> list[str]:
    """The options of a group of the configuration, such as `model`; none where it is no group."""
    if not re.fullmatch(r"[\w/-]{1,100}", group):  # none that leads out of the folder
        return []
    files = {path.stem for path in (CONFIG / group).glob("*.yaml")}
    return sorted(files | {name for own, name, _ in _brought() if own == group})


@cache
def content_of(group: str, option: str) -> Mapping[str, Any]:
    """The keys that an option of a group has, with their values; empty for what is no option."""
    text = _text(group, option)
    if text:
        import yaml

        content = yaml.safe_load(text)
        return content if isinstance(content, dict) else {}
    return next((content for *key, content in _brought() if key == [group, option]), {})


def words_of(group: str, option: str) -> str:
    """What an option is: the words at the head of its file that are no command, or those of the
    family.
    """
    text = _text(group, option)
    if text:
        comments = [
            line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")
        ]
        return " ".join(line for line in comments if not line.startswith(("@", "python -m")))
    if group in ("task", "scenario"):
        return (type(WORKLOADS[option]).__doc__ or "").strip().partition("\n")[0]
    if group == "model":
        return FAMILIES[option].described
    return f"Chosen with {option.replace('_', ' and ')}."


def _brought() -> list[tuple[str, str, Mapping[str, Any]]]:
    """Group, option and content of what families and kinds of work bring."""
    found: list[tuple[str, str, Mapping[str, Any]]] = [
        (group, family.name, content)
        for family in FAMILIES.values()
        for group, content in {"model": _defaults(family), **family.chosen}.items()
    ]
    for work in WORKLOADS.values():
        if work.key in ("task", "scenario"):
            keys = {
                key: value
                for key, value in work.stored_keys().items()
                if key in (work.key, work.group)
            }
            found.append((work.key, work.name, keys))
            found += (
                [("brief", f"quick_{work.name}", {work.group: work.quick_defaults})]
                if work.quick_defaults
                else []
            )
    return found


def is_open(model: Any) -> bool:
    """Whether the keys of a model may be others than its family's own."""
    name = model.get("name") if isinstance(model, Mapping) else None
    return isinstance(name, str) and name in FAMILIES and FAMILIES[name].is_open


def store_options() -> None:
    """Let Hydra find what families and kinds of work bring."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    for group, name, content in _brought():
        if not _text(group, name):
            package = _PACKAGES.get(group)
            node: Any = dict(content)
            if (
                group == "model" and FAMILIES[name].is_open
            ):  # its further keys are checked as the point is read
                node = OmegaConf.create(node, flags={"struct": False})
            ConfigStore.instance().store(name=name, node=node, group=group, package=package)


def _text(group: str, option: str) -> str:
    path = CONFIG / group / f"{option}.yaml"
    if re.fullmatch(r"[\w.-]+", option) and path.is_file():
        return path.read_text(encoding="utf-8")
    return ""


def _defaults(family: Family) -> dict[str, Any]:
    """The options of a family as a file would hold them; one number stands for several that are the
    same.
    """
    values = {entry.name: entry.default for entry in dataclasses.fields(family.options)} | {
        "name": family.name
    }
    for key, value in values.items():
        if isinstance(value, tuple):
            values[key] = value[0] if len(set(value)) == 1 else list(value)
    return values
