"""Shell completion of `paradnn`: commands, groups, keys and their values, presets, metrics, options of the analysis.

    eval "$(paradnn completion bash)"      # in ~/.bashrc

The shell asks `paradnn completion LINE` with what stands before the cursor, and gets a proposal a line.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Iterable, Sequence

from paradnn.cli.checks import chosen_option, keys_of
from paradnn.cli.commands import COMMANDS
from paradnn.cli.help import known_keys
from paradnn.cli.program import program
from paradnn.config.groups import groups, options_of
from paradnn.config.outcome import OUTCOMES
from paradnn.config.point import Point, Settings
from paradnn.families import FAMILIES
from paradnn.listing.command import KINDS, entries
from paradnn.store.metrics import METRICS

__all__ = ["main", "proposals"]

_SCRIPT = r"""
_paradnn() {
  local line="${COMP_LINE:0:COMP_POINT}" word head
  word="${line##* }"
  head="${word%"${word##*[=:]}"}"  # readline replaces what stands after the last sign of COMP_WORDBREAKS alone
  local IFS=$'\n'
  COMPREPLY=($(paradnn completion "$line" 2>/dev/null))
  COMPREPLY=("${COMPREPLY[@]#"$head"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} != *= ]] && COMPREPLY=("${COMPREPLY[0]} ")
}
complete -o nospace -F _paradnn paradnn
"""
#: Commands that take keys and values.
_OVERRIDES = {"train", "plan", "ceilings", "compare"}
#: What the options of the analysis take, where their parser does not say it.
_VALUES = {
    "--metric": tuple(METRICS),
    "--family": tuple(FAMILIES),
    "--outcome": tuple(OUTCOMES),
    "--platform": ("cpu", "gpu", "tpu"),
    "--protocol": ("quick", "standard"),
}
_COLUMNS = {"--x", "--y", "--by", "--on", "--colour", "--against"}


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """`paradnn completion bash` prints the shell's part; with a line of input, what may follow."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["bash"]:
        print(_SCRIPT.strip())
        return 0
    if len(given) != 1 or given[0] in ("-h", "--help"):
        print('usage: eval "$(paradnn completion bash)" in ~/.bashrc')
        return 0 if given in ([], ["-h"], ["--help"]) else 2
    print("\n".join(proposals(given[0])))
    return 0


def proposals(line: str) -> list[str]:
    """The words that may stand at the end of a command line, where the last one has begun."""
    words = line.split(" ")
    *before, current = words
    before = [word for word in before if word][1:]  # without the program
    found: Iterable[str]
    if not before:
        found = COMMANDS
    elif before[0] in _OVERRIDES:
        found = _overrides(before[1:], current)
    elif before[0] == "list":
        found = [*KINDS, *groups()] if len(before) == 1 else [name.partition("=")[0] for name, _ in entries(before[1])]
    elif before[0] == "analysis":
        found = _analysis(before[1:], current)
    else:
        found = ()
    return sorted({word for word in found if word.startswith(current)})


def _overrides(before: Sequence[str], current: str) -> Iterable[str]:
    """Keys with their sign, or values of a key, of which several may be given."""
    key, equals, value = current.partition("=")
    if not equals:
        own = {f"{group}.{name}" for group in groups() for name in keys_of(group, chosen_option(group, before))}
        general = {name for name in known_keys() if name.partition(".")[0] not in ("model", "data")}
        hidden = ("sweep.plan", "sweep.grids")
        keys = (own | general | set(groups())).difference(hidden)
        holders = {name.rpartition(".")[0] for name in keys}.difference(groups())  # of keys, and no key themselves
        return ["-m", "--help", *(f"{name}=" for name in keys - holders)]
    head, comma, _ = value.rpartition(",")
    return [f"{key}={head}{comma}{choice}" for choice in _choices(key)]


def _choices(key: str) -> Sequence[str]:
    """What a key can be, as far as it is one of several words."""
    if options := options_of(key):
        return options
    for cls in (Point, Settings):
        kind: object = cls
        entry = None
        for part in key.split("."):
            fields = {each.name: each for each in dataclasses.fields(kind)} if isinstance(kind, type) else {}  # type: ignore[arg-type]
            entry = fields.get(part)
            kind = entry.default_factory if entry and dataclasses.is_dataclass(entry.default_factory) else None
        if entry is not None:
            truth = ("true", "false") if isinstance(entry.default, bool) else ()
            return (*truth, *entry.metadata.get("choices", ()))
    return ()


def _analysis(before: Sequence[str], current: str) -> Iterable[str]:
    """Commands of the analysis, their options, and what an option takes."""
    parser = importlib.import_module("analysis.cli").make_parser()
    [commands] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not before:
        return list(commands)
    command, flag = commands.get(before[0]), before[-1]
    if command is None:
        return ()
    options = {name: action for action in command._actions for name in action.option_strings}
    if flag in options and options[flag].nargs != 0:
        head, comma, _ = current.rpartition(",")
        values = options[flag].choices or _VALUES.get(flag) or (_columns() if flag in _COLUMNS else ())
        return [f"{head}{comma}{value}" for value in values]
    return list(options)


def _columns() -> list[str]:
    options = dict.fromkeys(family.options for family in FAMILIES.values())
    model = {entry.name for each in options for entry in dataclasses.fields(each)}
    further = ("batch_size", "precision", "compile", "mode", "devices", "device", "family", "protocol")
    return [*sorted(model - {"name"}), *further]


if __name__ == "__main__":
    sys.exit(main())
