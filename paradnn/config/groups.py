"""The options of each configuration group, such as `model` and `measure`.

Options are defined by files in conf/, by model families, and by kinds of work, such as a training
step (`paradnn.core.workload`). A family needs no file: `model=NAME` sets the defaults of its
options, and its `Family.defaults` replace those of other groups. A kind of work needs no file
either: `task=NAME` or `scenario=NAME` sets the defaults of its options, and `measure=quick` adds
its quick defaults. If a file has the same name, the file has precedence.
"""

import dataclasses
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from paradnn.config.paths import CONFIG
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES, Family

#: Group -> prefix of its keys, if the prefix is not the name of the group.
_PACKAGES = {
    "learning": "optimizer",
    "step": "_global_",
    "task": "_global_",
    "scenario": "_global_",
    "brief": "_global_",
}


@dataclasses.dataclass(frozen=True)
class _Option:
    """An option of a configuration group, which a family or kind of work defines without a file.

    Attributes:
        group: Name of the group, such as "model".
        name: Name of the option, as in `group=name`.
        content: The keys that the option sets, with their values; mappings may be nested.
    """

    group: str
    name: str
    content: Mapping[str, Any]


def group_names() -> list[str]:
    """Return the names of all configuration groups."""
    folders = {folder.name for folder in CONFIG.iterdir() if folder.is_dir()} - {"hydra"}
    return sorted(folders | {option.group for option in _options_without_files()})


def option_names(group: str) -> list[str]:
    """Return the names of the options of a configuration group, such as those of `model`.

    Args:
        group: Name of the group. If it is unknown, the result is empty.
    """
    # Other characters could form a path to files outside the folder.
    if not re.fullmatch(r"[\w/-]{1,100}", group):
        return []
    files = {path.stem for path in (CONFIG / group).glob("*.yaml")}
    others = {option.name for option in _options_without_files() if option.group == group}
    return sorted(files | others)


@cache
def option_content(group: str, name: str) -> Mapping[str, Any]:
    """Return the keys that an option of a configuration group sets, with their values.

    Args:
        group: Name of the group, such as "model".
        name: Name of the option, as in `model=NAME`.

    Returns:
        Key -> value; empty for an unknown option.
    """
    text = _file_text(group, name)
    if text:
        import yaml

        content = yaml.safe_load(text)
        return content if isinstance(content, dict) else {}
    for option in _options_without_files():
        if (option.group, option.name) == (group, name):
            return option.content
    return {}


def describe_option(group: str, name: str) -> str:
    """Return the description of an option of a configuration group as one line.

    The description is the comment in the option's file, without lines that contain commands. For an
    option without a file, it is the description of the family or kind of work that defines it.

    Args:
        group: Name of the group, such as "model".
        name: Name of the option, as in `model=NAME`.
    """
    text = _file_text(group, name)
    if text:
        comments = [
            line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")
        ]
        return " ".join(line for line in comments if not line.startswith(("@", "python -m")))
    if group in ("task", "scenario"):
        docstring = type(WORKLOADS[name]).__doc__ or ""
        return docstring.strip().partition("\n")[0]
    if group == "model":
        return FAMILIES[name].description
    return f"Selected together with {name.replace('_', ' and ')}."


def takes_further_keys(model: Any) -> bool:
    """Return whether a model accepts keys other than the options of its family.

    Args:
        model: The group `model` of a configuration, a mapping with the key `name`.
    """
    name = model.get("name") if isinstance(model, Mapping) else None
    return isinstance(name, str) and name in FAMILIES and FAMILIES[name].is_open


def register_options() -> None:
    """Register the options of families and kinds of work with Hydra."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from paradnn.config.hydra_releases import REPLACE

    for option in _options_without_files():
        if _file_text(option.group, option.name):
            continue
        node: Any = dict(option.content)
        if option.group == "model" and FAMILIES[option.name].is_open:
            # Let Hydra accept any further key. Reading the point checks the keys.
            node = OmegaConf.create(node, flags={"struct": False})
        ConfigStore.instance().store(
            name=option.name,
            node=node,
            group=option.group,
            package=_PACKAGES.get(option.group),
            **REPLACE,
        )


def _options_without_files() -> list[_Option]:
    """Return the options that families and kinds of work define."""
    options = []
    for family in FAMILIES.values():
        options.append(_Option("model", family.name, _family_defaults(family)))
        for group, content in family.defaults.items():
            options.append(_Option(group, family.name, content))
    for work in WORKLOADS.values():
        if work.key not in ("task", "scenario"):
            continue
        stored_keys = work.stored_keys()
        content = {key: stored_keys[key] for key in (work.key, work.group) if key in stored_keys}
        options.append(_Option(work.key, work.name, content))
        if work.quick_defaults:
            quick_content = {work.group: work.quick_defaults}
            options.append(_Option("brief", f"quick_{work.name}", quick_content))
    return options


def _file_text(group: str, name: str) -> str:
    """Return the text of the file that defines an option; empty if there is no such file."""
    path = CONFIG / group / f"{name}.yaml"
    if re.fullmatch(r"[\w.-]+", name) and path.is_file():
        return path.read_text(encoding="utf-8")
    return ""


def _family_defaults(family: Family) -> dict[str, Any]:
    """Return the default options of a model family, in the form of a configuration file.

    A tuple of equal numbers becomes a single number.
    """
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(family.options):
        value = field.default
        if isinstance(value, tuple):
            value = value[0] if len(set(value)) == 1 else list(value)
        defaults[field.name] = value
    defaults["name"] = family.name
    return defaults
