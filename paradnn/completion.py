"""Shell completion of `paradnn`: commands, groups, keys and their values, presets, metrics, options
of the analysis.

    eval "$(paradnn completion bash)"           # in ~/.bashrc
    eval "$(paradnn completion zsh)"            # in ~/.zshrc, after compinit
    paradnn completion fish | source            # in ~/.config/fish/config.fish

The shell asks `paradnn completion LINE` with what stands before the cursor, and gets a proposal a
line.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from paradnn.cli.commands import COMMANDS
from paradnn.cli.help import documented_keys, known_keys
from paradnn.cli.overrides import chosen_option, keys_of
from paradnn.cli.parser import options, sub_commands
from paradnn.cli.program import program
from paradnn.config.groups import group_names, option_names
from paradnn.config.paths import PACKAGE
from paradnn.core.errors import ConfigError
from paradnn.families import FAMILIES
from paradnn.listing import KINDS, entries
from paradnn.store.metrics import METRICS

#: What each shell is given: files `completion.SHELL`. A word that ends in = goes on, any other is
#: followed by a blank.
_SHELLS = ("bash", "zsh", "fish")
#: Commands that take keys and values.
_OVERRIDES = {"train", "plan", "ceilings"}
_BOTH = {"ask", "compare"}  # of options as well


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """`paradnn completion bash` prints the shell's part; with a line of input, what may follow."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 1 and given[0] in _SHELLS:
        print((PACKAGE / "cli" / f"completion.{given[0]}").read_text(encoding="utf-8"), end="")
        return 0
    if given in ([], ["-h"], ["--help"]):
        print(f"usage: paradnn completion SHELL{(__doc__ or '').partition('.')[2].rstrip()}")
        return 0
    if len(given) > 1:
        raise ConfigError(
            "completion", " ".join(given), "are too many words", f"name one of {', '.join(_SHELLS)}"
        )
    if " " not in given[0]:
        raise ConfigError(
            "completion", given[0], "no such shell", f"choose one of {', '.join(_SHELLS)}"
        )
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
    elif before[0] in _OVERRIDES or (
        before[0] in _BOTH and not (current + before[-1]).startswith("-")
    ):
        found = _overrides(before[1:], current)
    elif before[0] == "list":
        if len(before) == 1:
            found = [*KINDS, *group_names()]
        else:
            found = [name.partition("=")[0] for name, _ in entries(before[1])]
    elif before[0] == "completion":
        found = _SHELLS
    elif before[0] in COMMANDS:
        found = _parsed(before, current)
    else:
        found = ()
    return sorted({word for word in found if word.startswith(current)})


def _overrides(before: Sequence[str], current: str) -> Iterable[str]:
    """Keys with their sign, or values of a key, of which several may be given."""
    key, equals, value = current.partition("=")
    if not equals:
        own = {
            f"{group}.{name}"
            for group in group_names()
            for name in keys_of(group, chosen_option(group, before))
        }
        general = {name for name in known_keys() if name.partition(".")[0] not in ("model", "data")}
        hidden = ("sweep.plan", "sweep.grids")
        keys = (own | general | set(group_names())).difference(hidden)
        holders = {name.rpartition(".")[0] for name in keys}.difference(
            group_names()
        )  # of keys, and no key themselves
        return ["-m", "--help", *(f"{name}=" for name in keys - holders)]
    head, comma, _ = value.rpartition(",")
    return [f"{key}={head}{comma}{choice}" for choice in _choices(key)]


def _choices(key: str) -> Sequence[str]:
    """What a key can be, as far as it is one of several words."""
    options = option_names(key)
    if options:
        return options
    found = (
        pair
        for pairs in documented_keys().values()
        for pair in pairs
        if pair[0].startswith(f"{key}=")
    )
    name, text = next(found, ("", ""))
    words, colon, _ = text.partition(": ")
    if colon and " | " in words:
        return words.split(" | ")
    return ("true", "false") if name.endswith(("=true", "=false")) else ()


def _parsed(before: Sequence[str], current: str) -> Iterable[str]:
    """A command's own commands, its options, and what an option takes."""
    name, *words = before
    parser = importlib.import_module(COMMANDS[name][0]).make_parser()
    commands = sub_commands(parser)
    if commands:
        if not words:
            return list(commands)
        if words[0] not in commands:
            return ()
        parser = commands[words[0]]
    known = options(parser)
    flag = before[-1]
    if flag in known and known[flag].nargs != 0:
        head, comma, _ = current.rpartition(",")
        told: dict[str, Iterable[Any]] = {"--metric": METRICS, "--family": FAMILIES}
        values: Iterable[Any] = known[flag].choices or told.get(flag, ())
        return [f"{head}{comma}{value}" for value in values]
    return list(known)


if __name__ == "__main__":
    sys.exit(main())
