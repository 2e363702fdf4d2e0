"""`paradnn list KIND [WORD]`: what there is of models, presets, metrics and keys, with WORD in it.

KIND is also any group of the configuration, such as measure or software.
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence

from paradnn.cli.help import documented_keys
from paradnn.cli.program import program
from paradnn.config.groups import describe_option, group_names, option_content, option_names
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean
from paradnn.store.metrics import METRICS

#: What can be listed -> the group of the configuration that holds it, if any does.
KINDS = {"models": "model", "presets": "experiment", "metrics": "", "keys": ""}
_BESIDE = 34
_NARROW = 80
_ARROWS = {"higher": ", higher is better", "lower": ", lower is better", None: ""}
_USAGE = """\
usage: paradnn list KIND [WORD]

  paradnn list models              every model with its keys
  paradnn list presets             sweeps in files, for experiment=...
  paradnn list metrics memory      metrics with "memory" in their name, unit or meaning
  paradnn list keys threads        keys of the command line
  paradnn list software            the options of any group: """


def entries(kind: str) -> list[tuple[str, str]]:
    """(name, what it is) of everything of a kind; ConfigError for no kind."""
    if kind == "metrics":
        return [
            (name, f"{each.description} [{each.unit}{_ARROWS[each.better]}]")
            for name, each in METRICS.items()
        ]
    if kind == "keys":
        return [pair for pairs in documented_keys().values() for pair in pairs]
    group = KINDS.get(kind, kind)
    if group == "hydra" or not option_names(group):
        known = [*KINDS, *group_names()]
        raise ConfigError(
            "list",
            kind,
            "no such kind",
            f"{did_you_mean(kind, known)}choose one of {', '.join(known)}",
        )
    found = {option: describe_option(group, option) for option in option_names(group)}
    for option in found if group == "model" else ():
        content = option_content(group, option).items()
        found[option] += " " + ", ".join(
            f"model.{key}={value}" for key, value in content if key != "name"
        )
    return list(found.items())


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is asked for; 0, or 2 for a kind or a word that there is not."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(f"{_USAGE}{', '.join(group_names())}")
        return 0
    if len(given) > 2:
        raise ConfigError(
            "list",
            " ".join(given),
            "are too many words",
            "write a kind, then one word that is quoted",
        )
    kind = given[0]
    word = given[1] if len(given) > 1 else ""
    every = entries(kind)
    found = [pair for pair in every if word.lower() in " ".join(pair).lower()]
    if not found:
        keys = [name.partition("=")[0] for name, _ in every]
        hint = did_you_mean(word, [part for key in keys for part in (key, key.rpartition(".")[2])])
        raise ParadnnError(f"no {kind} with {word!r}; {hint}paradnn list {kind} shows all")
    for name, text in found:
        print(_line(name, text))
    return 0


def _line(name: str, text: str) -> str:
    """The name, and the words beside it, or below it in a narrow terminal."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 160)
    indent = _BESIDE if width >= _NARROW else 4
    if len(name) < indent:
        head = f"{name:<{indent}}"
    else:
        head = f"{name}\n{' ' * indent}"
    words = textwrap.wrap(
        text, max(width - indent - 1, 20), break_long_words=False, break_on_hyphens=False
    )
    return head + f"\n{' ' * indent}".join(words or [""])


if __name__ == "__main__":
    sys.exit(main())
