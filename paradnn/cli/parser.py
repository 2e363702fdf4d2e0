"""argparse parsers whose errors are one line and name similar options."""

import argparse
import contextlib
import math
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from paradnn.config.paths import default_experiment
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.core.words import did_you_mean

_INVALID_CHOICE = re.compile(
    r"(?:argument (\S+): )?invalid choice: (.*) \(choose from (.*)\)", re.DOTALL
)
_INVALID_NUMBER = re.compile(r"argument (\S+): invalid (int|float) value: '(.*)'", re.DOTALL)
_NO_VALUE = re.compile(r"argument (\S+): expected (?:one|at least one) argument")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
_MIN_SHARE = 0.0001


class Parser(argparse.ArgumentParser):
    """Parser of a command line that raises ParadnnError instead of exiting.

    Args:
        prog: The command, as a user types it.
        about: Docstring of the command's module. The description is the part of its first line
            after a colon, or the whole line if it has no colon. The other lines are printed after
            the options.
        **settings: Further arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, about: str | None = "", **settings: Any) -> None:
        first, _, page = (about or "").partition("\n")
        description = first.partition(": ")[2] or first
        defaults: dict[str, Any] = {
            "prog": prog,
            "formatter_class": argparse.RawDescriptionHelpFormatter,
            "allow_abbrev": False,
            "description": description[:1].upper() + description[1:],
            "epilog": page.strip("\n") or None,
        }
        super().__init__(**(defaults | settings))

    def add_store(self, flag: str = "--store") -> None:
        """Add options for the address of the tracking store and for the MLflow experiment.

        Args:
            flag: Name of the option for the address. The other option is --experiment.
        """
        self.add_argument(
            flag,
            metavar="URI",
            help="tracking URI (default: MLFLOW_TRACKING_URI, else sqlite:///mlruns/mlflow.db)",
        )
        self.add_argument(
            "--experiment",
            default=default_experiment(),
            help="MLflow experiment (default: %(default)s)",
        )

    def add_subparsers(self, **settings: Any) -> Any:
        """Add sub-commands, which reject unknown options and suggest similar ones."""
        return super().add_subparsers(**{"parser_class": CommandParser, **settings})

    def error(self, message: str) -> NoReturn:
        """Raise ParadnnError instead of printing the usage and exiting."""
        invalid = _INVALID_CHOICE.fullmatch(message)
        if invalid:
            value = invalid[2].strip("'\"")
            known = re.findall(r"'([^']*)'", invalid[3])
            hint = did_you_mean(value, known)
            raise ParadnnError(
                f"{invalid[1] or 'argument'}={value}: no such choice; "
                f"{hint}choose one of {', '.join(known)}"
            )
        invalid = _INVALID_NUMBER.fullmatch(message)
        if invalid:
            expected = "a whole number" if invalid[2] == "int" else "a number"
            raise ParadnnError(
                f"{invalid[1]}={invalid[3]}: expects {expected}; for example, write {invalid[1]} 5"
            )
        missing = _NO_VALUE.fullmatch(message)
        if missing:
            message = f"{missing[1].partition('/')[0]}: needs a value"
        hint = ""
        unrecognized = _UNRECOGNIZED.fullmatch(message)
        if unrecognized and unrecognized[1].startswith("--"):
            flags = [name for name in options(self) if name.startswith("--")]
            hint = did_you_mean(re.split("[ =]", unrecognized[1])[0], flags)
        raise ParadnnError(f"{message}; {hint}{self.prog} --help shows how")


class CommandParser(Parser):
    """The parser of a sub-command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments of the sub-command.

        Raises:
            ParadnnError: If an argument is unknown.
        """
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def number(flag: str, kind: type = float, least: int = 0) -> Callable[[str], Any]:
    """Return a function that parses the value of a numeric command-line option.

    The function raises ConfigError if the text is not a number, or the number is infinite, below
    `least` or not positive.

    Args:
        flag: Name of the option, such as "--timeout", for error messages.
        kind: The type of the number, `int` or `float`.
        least: The smallest valid number; 0 means that any positive number is valid.
    """

    def read(text: str) -> Any:
        value = math.nan
        with contextlib.suppress(ValueError):
            value = kind(text)
        if not max(least, 1e-9) <= value < math.inf:
            valid = f"at least {least}" if least else "positive"
            raise ConfigError(
                flag, text, f"must be {valid}", f"for example, write {flag} {max(least, 5)}"
            )
        return value

    return read


def share(flag: str) -> Callable[[str], float]:
    """Return a function that parses the value of a command-line option for a share of a whole.

    The function accepts a fraction or a percentage, such as 0.05 or 5%. It raises ConfigError for a
    value outside 0.01% to 100%.

    Args:
        flag: Name of the option, such as "--within", for error messages.
    """

    def read(text: str) -> float:
        value = math.nan
        with contextlib.suppress(ValueError):
            if text.endswith("%"):
                value = float(text.removesuffix("%")) / 100
            else:
                value = float(text)
        if not _MIN_SHARE <= value <= 1:
            raise ConfigError(
                flag, text, "must be a share from 0.01% to 100%", f"for example, write {flag} 2%"
            )
        return value

    return read


def split_quoted(key: str, text: str) -> list[str]:
    """Split a text into words as a shell does.

    Args:
        key: Name of the text in error messages, such as "side".
        text: The text.

    Raises:
        ConfigError: If a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            key, text, f"cannot be split into words ({error})", "close the quotation mark"
        ) from None


def sub_commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the sub-commands of a parser, as name -> parser; empty if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser, as name -> action; an option may have several names."""
    return {name: action for action in parser._actions for name in action.option_strings}
