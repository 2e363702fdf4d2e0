"""The command line: two sides, what both share, and options.

    python -m paradnn.compare [options] SIDE SIDE [--] [OVERRIDE ...]

The first two words are the sides, each one override or several in one quoted word; all that follows is common to
both, and may be axes of several values. Options begin with two dashes and stand anywhere.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from paradnn.cli.overrides import split_overrides
from paradnn.compare.verdict import FEWEST, Rule
from paradnn.config.point import SETTINGS_KEYS
from paradnn.errors import ConfigError, ParadnnError

__all__ = ["Request", "Side", "read_arguments"]

_EXAMPLES = """\
examples:
  python -m paradnn.compare compile=graph compile=xla -- model=fc model.nodes=512 batch_size=256
  python -m paradnn.compare software=tensorflow-2.18 software=current model=fc
  python -m paradnn.compare framework=jax 'framework=tensorflow compile=xla' model=lstm batch_size=16,64

Every override of python -m paradnn.train, whose --help lists them; values with commas among those after the sides are
several points, each compared. Both sides are measured by turns, in a process of their own each time, until the 95%
interval of their ratio says enough. Exit code: 0 a verdict on every point, 1 a point without one (not settled, or a
side that cannot be measured), 2 wrong input, 130 interrupted.
"""
#: What a comparison decides itself, with the reason.
_OWN = {
    "replicate": "the rounds are the replicates",
    "measure.processes": "every round is a process",
    "resume": "a comparison always measures again",
    "retry": "a comparison always measures again",
    "sweep.sample": "every point is compared",
    "sweep.design": "every point is compared",
    "sweep.points": "every point is compared",
    "sweep.settled": "every point is compared",
    "sweep.minutes": "--minutes ends a comparison",
    "sweep.error": "--within ends a comparison",
    "sweep.chunk": "a comparison is measured in one process",
    "hydra/launcher": "both sides are measured on this host",
    "hydra/sweeper": "a comparison has its own",
}


@dataclass(frozen=True)
class Side:
    """One side: its name, as it was typed, and its overrides."""

    label: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """What is asked. `minutes` caps the time; `null`: the sides are the same, to see what is called a difference."""

    sides: tuple[Side, Side]
    common: tuple[str, ...]
    rule: Rule
    minutes: float | None = None
    null: bool = False


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ParadnnError(f"{message}; {self.prog} --help shows how")


def read_arguments(arguments: Sequence[str]) -> Request:
    """The request in a command line; raises ParadnnError for a wrong one, SystemExit after `--help`."""
    given = _parser().parse_intermixed_args([word for word in arguments if word != "--"])
    if len(given.words) < 2:
        raise ParadnnError(
            "two sides are needed, such as compile=graph compile=xla; python -m paradnn.compare --help shows how"
        )
    first, second, *common = given.words
    sides = _side(first), _side(second)
    common = split_overrides(common)
    _check_common(sides, common)
    equal = sorted(sides[0].overrides) == sorted(sides[1].overrides)
    if given.null and not equal:
        raise ConfigError("--null", f"{first}, {second}", "the sides differ", "name one side twice")
    if equal and not given.null:
        raise ConfigError("sides", first, "both are the same", "give two that differ, or add --null")
    if equal:
        sides = Side(f"{first} (first)", sides[0].overrides), Side(f"{first} (second)", sides[1].overrides)
    rule = Rule(_share(given, "within"), _share(given, "equivalence"), given.rounds, given.most)
    _check_counts(given)
    return Request(sides, tuple(common), rule, given.minutes, given.null)


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m paradnn.compare",
        usage="%(prog)s [options] SIDE SIDE [--] [OVERRIDE ...]",
        description="Which of two settings, software stacks or frameworks is faster on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    usual = Rule()
    add = parser.add_argument
    add(
        "words", nargs="*", metavar="SIDE", help="overrides of one side; several in quotes: 'framework=jax compile=xla'"
    )
    text = "stop once half the 95%% interval of the ratio is below this share, or a tenth of a large difference"
    add("--within", type=float, default=usual.within, metavar="SHARE", help=f"{text} (default: %(default)s)")
    text = "differences below this share do not matter"
    add("--equivalence", type=float, default=usual.margin, metavar="SHARE", help=f"{text} (default: %(default)s)")
    add("--rounds", type=int, default=usual.least, metavar="N", help="at least so many rounds (default: %(default)s)")
    add("--most", type=int, default=usual.most, metavar="N", help="at most so many rounds (default: %(default)s)")
    add("--minutes", type=float, metavar="M", help="begin no round that would end later than this")
    add("--null", action="store_true", help="compare one side with itself: what difference does chance alone make?")
    return parser


def _side(word: str) -> Side:
    """One side, whose overrides have one value each."""
    try:
        overrides = tuple(shlex.split(word))
    except ValueError as error:
        raise ConfigError("side", word, f"cannot be split ({error})", "close the quotation") from None
    if not overrides:
        raise ConfigError("side", word, "is empty", "name a setting, such as compile=xla")
    parser = OverridesParser.create()
    keys = [_key(override) for override in overrides]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError("side", word, f"sets {key} twice", "give it one value")
    for override in overrides:
        key = _key(override)
        if "=" not in override:
            raise ConfigError("side", override, "is no override", "write key=value, such as compile=xla")
        if key in _OWN:
            raise ConfigError(key, override.partition("=")[2], "is not yours to set here", _OWN[key])
        if key.split(".")[0] in (*SETTINGS_KEYS, "experiment"):
            raise ConfigError(key, override.partition("=")[2], "is no setting of a side", "write it after both sides")
        try:
            swept = parser.parse_override(override).is_sweep_override()
        except HydraException:
            continue  # Hydra itself will say what is wrong with it
        if swept:
            raise ConfigError(key, override.partition("=")[2], "a side is one setting", "write axes after both sides")
    return Side(word, overrides)


def _check_common(sides: tuple[Side, Side], common: Sequence[str]) -> None:
    of_sides = {_key(override) for side in sides for override in side.overrides}
    for override in common:
        key, value = _key(override), override.partition("=")[2]
        if key in _OWN:
            raise ConfigError(key, value, "is not yours to set here", _OWN[key])
        if key in of_sides:
            raise ConfigError(key, value, "a side sets it too", "give it for the sides or for both, not twice")
        if "=" not in override and not override.startswith("~"):
            raise ConfigError("override", override, "is no override", "write key=value; a side of several needs quotes")


def _check_counts(given: argparse.Namespace) -> None:
    if given.rounds < FEWEST:
        raise ConfigError("--rounds", given.rounds, f"must be at least {FEWEST}", "fewer carry no interval")
    if given.most < given.rounds:
        raise ConfigError("--most", given.most, f"is less than --rounds={given.rounds}", "raise it")
    if given.minutes is not None and not 0 < given.minutes < math.inf:
        raise ConfigError("--minutes", given.minutes, "must be positive", "write for example --minutes 5")


def _share(given: argparse.Namespace, name: str) -> float:
    value: Any = getattr(given, name)
    if not 0.0001 <= value <= 1:
        raise ConfigError(f"--{name}", value, "must be a share from 0.0001 to 1", f"write for example --{name} 0.02")
    return float(value)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
