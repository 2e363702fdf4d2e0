"""`paradnn list KIND [WORD]`: list models, presets, metrics or keys that contain a word.

KIND may also be any group of the configuration, such as measure or software.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from paradnn.cli.help import documented_keys
from paradnn.cli.program import program
from paradnn.config.groups import describe_option, group_names, option_content, option_names
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean
from paradnn.store.metrics import METRICS

#: Kind -> the configuration group whose options it lists; empty if it lists no group.
KINDS = {"models": "model", "presets": "experiment", "metrics": "", "keys": ""}
#: Width of the column of names, in characters.
_NAME_WIDTH = 34
#: In a terminal with fewer columns than this, descriptions are printed below the names.
_MIN_WIDTH = 80
#: Indentation of descriptions below names.
_NARROW_INDENT = 4
#: Lines are wrapped to this width, even in a wider terminal.
_MAX_WIDTH = 160
_DIRECTIONS = {"higher": ", higher is better", "lower": ", lower is better", None: ""}
_USAGE = """\
usage: paradnn list KIND [WORD]

  paradnn list models              models with their keys
  paradnn list presets             presets of sweeps, for experiment=...
  paradnn list metrics memory      metrics with "memory" in their name, unit or meaning
  paradnn list keys threads        keys of the command line
  paradnn list software            options of any group: """


def entries(kind: str) -> list[tuple[str, str]]:
    """Return the name and the description of each model, preset, metric or key.

    Args:
        kind: What to list: `models`, `presets`, `metrics`, `keys` or the name of a configuration
            group.

    Raises:
        ConfigError: If the kind is unknown.
    """
    if kind == "metrics":
        return [
            (name, f"{metric.description} [{metric.unit}{_DIRECTIONS[metric.better]}]")
            for name, metric in METRICS.items()
        ]
    if kind == "keys":
        return list(_keys())
    group = KINDS.get(kind, kind)
    if group == "hydra" or not option_names(group):
        known = [*KINDS, *group_names()]
        hint = did_you_mean(kind, known)
        raise ConfigError("list", kind, "no such kind", f"{hint}choose one of {', '.join(known)}")
    return [(option, _description(group, option)) for option in option_names(group)]


def _keys() -> Iterator[tuple[str, str]]:
    """Yield the keys of the command line with their descriptions.

    A key of several models occurs once for each model.
    """
    for heading, keys in documented_keys().items():
        choice = heading.removeprefix("Keys of ")
        suffix = f" ({choice})" if "=" in choice else ""
        for name, description in keys:
            yield name, f"{description}{suffix}"


def _description(group: str, option: str) -> str:
    """Return the description of an option of a group; for a model, with its keys and defaults."""
    description = describe_option(group, option)
    if group != "model":
        return description
    content = option_content(group, option)
    keys = [f"model.{key}={value}" for key, value in content.items() if key != "name"]
    return f"{description} {', '.join(keys)}"


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the models, presets, metrics or keys that contain a word, and return the exit code.

    Args:
        arguments: What to list, and optionally the word; None for the arguments of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(f"{_USAGE}{', '.join(group_names())}")
        return 0
    if len(words) > 2:
        raise ConfigError(
            "list", " ".join(words), "too many words", "write a kind and one quoted word"
        )
    kind = words[0]
    wanted = words[1] if len(words) > 1 else ""
    known = entries(kind)
    found = [entry for entry in known if wanted.lower() in " ".join(entry).lower()]
    if not found:
        raise ParadnnError(
            f"no {kind} with {wanted!r}; {_hint(wanted, known)}paradnn list {kind} shows all"
        )
    for name, description in found:
        print(_line(name, description))
    return 0


def _hint(wanted: str, known: Sequence[tuple[str, str]]) -> str:
    """Return a hint such as `did you mean fc? `; empty if no name is similar to a word.

    The word is compared with names and with the last parts of dotted names.

    Args:
        wanted: The word that the user searched.
        known: Name and description of each entry.
    """
    candidates = []
    for name, _ in known:
        key = name.partition("=")[0]
        candidates += [key, key.rpartition(".")[2]]
    return did_you_mean(wanted, candidates)


def _line(name: str, description: str) -> str:
    """Return a name with its description next to it, or below it if the terminal is too narrow.

    The description also begins on a new line if the name is too long.
    """
    width = min(shutil.get_terminal_size((120, 24)).columns, _MAX_WIDTH)
    indent = _NAME_WIDTH if width >= _MIN_WIDTH else _NARROW_INDENT
    separator = f"\n{' ' * indent}"
    if len(name) < indent:
        head = f"{name:<{indent}}"
    else:
        head = f"{name}{separator}"
    lines = textwrap.wrap(
        description,
        width=max(width - indent - 1, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return head + separator.join(lines or [""])


if __name__ == "__main__":
    sys.exit(main())
