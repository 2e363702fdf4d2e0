"""Complete words of `paradnn` in the shell: commands, groups, keys, values, presets and options.

A shell calls `paradnn completion LINE` with the line up to the cursor, and reads one proposal per
line.

shtab is no alternative, because it completes only the options of argparse parsers. The keys of
`train` and their values come from Hydra's groups, and depend on options that earlier words choose.
"""

import argparse
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

#: Shells for which there is a script cli/completion.SHELL. The script adds a space to a completed
#: word, unless the word ends in `=`.
_SHELLS = ("bash", "zsh", "fish")
#: Commands that take overrides only.
_TAKE_OVERRIDES = {"train", "plan", "ceilings"}
#: Commands that take overrides and options.
_TAKE_BOTH = {"ask", "best", "compare"}
#: Keys that only this program sets.
_INTERNAL_KEYS = {"sweep.plan", "sweep.grids"}
#: Options whose values the parser does not list -> their values.
_OPTION_VALUES: dict[str, Iterable[str]] = {"--metric": METRICS, "--family": FAMILIES}
_USAGE = """\
usage: paradnn completion SHELL

    eval "$(paradnn completion bash)"           # in ~/.bashrc
    eval "$(paradnn completion zsh)"            # in ~/.zshrc, after compinit
    paradnn completion fish | source            # in ~/.config/fish/config.fish"""


@program
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the completion script of a shell, or the proposals for a command line.

    Args:
        arguments: The name of a shell, or one word with the command line up to the cursor. None for
            the arguments of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in ([], ["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if len(words) > 1:
        raise ConfigError(
            "completion", " ".join(words), "too many words", f"name one of {', '.join(_SHELLS)}"
        )
    [word] = words
    if word in _SHELLS:
        script = PACKAGE / "cli" / f"completion.{word}"
        print(script.read_text(encoding="utf-8"), end="")
        return 0
    if " " not in word:
        raise ConfigError(
            "completion", word, "no such shell", f"choose one of {', '.join(_SHELLS)}"
        )
    print("\n".join(proposals(word)))
    return 0


def proposals(line: str) -> list[str]:
    """Return the words that may complete the last word of a command line.

    Args:
        line: The command line up to the cursor. It ends with a space if the last word is empty.
    """
    *words, current = line.split(" ")
    before = [word for word in words if word][1:]  # without the program
    return sorted({word for word in _candidates(before, current) if word.startswith(current)})


def _candidates(before: Sequence[str], current: str) -> Iterable[str]:
    """Return all words that may follow the complete words of a command line.

    Args:
        before: The complete words of the line, without the program.
        current: The incomplete last word; empty after a space.
    """
    if not before:
        return COMMANDS
    command = before[0]
    if command in _TAKE_OVERRIDES:
        return _overrides(before[1:], current)
    if command in _TAKE_BOTH:
        is_option = current.startswith("-") or (not current and before[-1].startswith("-"))
        if not is_option and not _is_option_with_value(command, before[-1]):
            return _overrides(before[1:], current)
    if command == "list":
        if len(before) == 1:
            return [*KINDS, *group_names()]
        return [name.partition("=")[0] for name, _ in entries(before[1])]
    if command == "completion":
        return _SHELLS
    if command in COMMANDS:
        return _options(before, current)
    return ()


def _overrides(before: Sequence[str], current: str) -> Iterable[str]:
    """Return the words that may complete the last word of a command line of overrides.

    They are all keys, each followed by `=`. If the last word is `KEY=...`, they are the values of
    that key. A list of values is completed at its last value.

    Args:
        before: The complete words of the line, without program and command.
        current: The incomplete last word; empty after a space.
    """
    key, equals, value = current.partition("=")
    if equals:
        listed, comma, _ = value.rpartition(",")
        return [f"{key}={listed}{comma}{choice}" for choice in _values(key)]
    keys = {
        f"{group}.{name}"
        for group in group_names()
        for name in keys_of(group, chosen_option(group, before))
    }
    keys |= {name for name in known_keys() if name.partition(".")[0] not in ("model", "data")}
    keys |= set(group_names())
    keys -= _INTERNAL_KEYS
    # Parents of dotted keys, such as framework.env, have no value unless they are groups.
    parents = {name.rpartition(".")[0] for name in keys}.difference(group_names())
    return ["-m", "--help", *(f"{name}=" for name in keys - parents)]


def _values(key: str) -> Sequence[str]:
    """Return the valid values of a key; empty if the key has no fixed set of values."""
    names = option_names(key)
    if names:
        return names
    for documented in documented_keys().values():
        for entry, text in documented:
            if entry.startswith(f"{key}="):
                return _documented_values(entry, text)
    return ()


def _documented_values(entry: str, text: str) -> Sequence[str]:
    """Return the values in a line of help such as `key=a`, `a | b | c: meaning of the key`."""
    words, colon, _ = text.partition(": ")
    if colon and " | " in words:
        return words.split(" | ")
    if entry.endswith(("=true", "=false")):
        return ("true", "false")
    return ()


def _is_option_with_value(command: str, word: str) -> bool:
    """Return whether a word is an option of a command whose value is the next word."""
    known = options(_parser_of(command))
    return word in known and known[word].nargs != 0


def _parser_of(command: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = importlib.import_module(
        COMMANDS[command].module
    ).make_parser()
    return parser


def _options(before: Sequence[str], current: str) -> Iterable[str]:
    """Return the words that may complete the last word of a command line with options.

    Args:
        before: The complete words of the line, from the command on.
        current: The incomplete last word; empty after a space.

    Returns:
        The values of the option if the last word of `before` is an option with a value. Otherwise
        the sub-commands if one must follow, or the options of the command or sub-command. Empty if
        the sub-command is unknown. The words need not begin with `current`.
    """
    command, *words = before
    parser = _parser_of(command)
    commands = sub_commands(parser)
    if commands:
        if not words:
            return list(commands)
        if words[0] not in commands:
            return ()
        parser = commands[words[0]]
    known = options(parser)
    flag = before[-1]
    if flag not in known or known[flag].nargs == 0:
        return list(known)
    listed, comma, _ = current.rpartition(",")
    values: Iterable[Any] = known[flag].choices or _OPTION_VALUES.get(flag, ())
    return [f"{listed}{comma}{value}" for value in values]


if __name__ == "__main__":
    sys.exit(main())
