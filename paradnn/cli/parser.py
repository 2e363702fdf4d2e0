"""Options of a command: argparse, of which a wrong word is one line that says what may have been
meant.
"""

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean

_CHOICE = re.compile(r"(?:argument (\S+): )?invalid choice: (.*) \(choose from (.*)\)", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """`about`: the module's docstring, the first line of which describes the command and the others
    are its page.
    """

    def __init__(self, prog: str, about: str | None = "", **how: Any) -> None:
        first, _, page = (about or "").partition("\n")
        words = first.partition(": ")[2] or first
        shown = {"description": words[:1].upper() + words[1:], "epilog": page.strip("\n") or None}
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(
            **{"prog": prog, "formatter_class": layout, "allow_abbrev": False, **shown, **how}
        )

    def add_store(self, flag: str = "--store") -> None:
        """Which store, and which experiment in it."""
        text = "tracking URI; default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db"
        self.add_argument(flag, metavar="URI", help=text)
        self.add_argument(
            "--experiment",
            default=default_experiment(),
            help="MLflow experiment (default: %(default)s)",
        )

    def add_subparsers(self, **how: Any) -> Any:
        """Let each command reject its own unknown options: hints then name options it has."""
        return super().add_subparsers(**{"parser_class": CommandParser, **how})

    def error(self, message: str) -> NoReturn:
        """Raise ParadnnError in place of printing the usage."""
        found = _CHOICE.fullmatch(message)
        if found:
            value = found[2].strip("'\"")
            known = re.findall(r"'([^']*)'", found[3])
            hint = f"{did_you_mean(value, known)}choose one of {', '.join(known)}"
            raise ParadnnError(f"{found[1] or 'argument'}={value}: no such choice; {hint}")
        hint = ""
        found = _UNKNOWN.fullmatch(message)
        if found and found[1].startswith("--"):
            flags = [name for name in options(self) if name.startswith("--")]
            hint = did_you_mean(re.split("[ =]", found[1])[0], flags)
        raise ParadnnError(f"{message}; {hint}{self.prog} --help shows how")


class CommandParser(Parser):
    """The parser of one command among several."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; raise ParadnnError for one that this command does not have."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def number(flag: str, kind: type = float, least: int = 0) -> Callable[[str], Any]:
    """What reads a number above 0, or of at least `least`; ConfigError for another."""

    def read(text: str) -> Any:
        value = math.nan
        with contextlib.suppress(ValueError):
            value = kind(text)
        if not max(least, 1e-9) <= value < math.inf:
            wanted = f"at least {least}" if least else "positive"
            raise ConfigError(
                flag, text, f"must be {wanted}", f"write for example {flag} {max(least, 5)}"
            )
        return value

    return read


def share(flag: str) -> Callable[[str], float]:
    """What reads a share: 0.05, or 5%; ConfigError for another."""

    def read(text: str) -> float:
        value = math.nan
        with contextlib.suppress(ValueError):
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if not 0.0001 <= value <= 1:
            raise ConfigError(
                flag, text, "must be a share from 0.01% to 100%", f"write for example {flag} 2%"
            )
        return value

    return read


def sub_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's own commands, by their names."""
    found = [
        each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)
    ]
    return dict(found[0]) if found else {}


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What may be given with dashes, by each of its names."""
    return {name: action for action in parser._actions for name in action.option_strings}
