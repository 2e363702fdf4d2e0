"""The command line: two sides, what both share, and options.

    python -m paradnn.compare [options] SIDE SIDE [--] [OVERRIDE ...]
    python -m paradnn.compare [options] COMMAND COMMAND
    python -m paradnn.compare [options] --commits REF REF -- COMMAND

The first two words are the sides, each one override or several in one quoted word; all that follows is common to
both, and may be axes of several values. A word that is no override is a function if it reads file.py:name, else a
command. Options begin with two dashes and stand anywhere before a second `--`.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from paradnn.cli.overrides import split_overrides
from paradnn.cli.parser import Parser
from paradnn.compare.verdict import FEWEST, Rule
from paradnn.config.point import SETTINGS_KEYS
from paradnn.core.errors import ConfigError, ParadnnError

_EXAMPLES = """\
examples:
  paradnn compare 'python old.py' 'python new.py'
  paradnn compare --commits main HEAD -- python benchmark.py
  paradnn compare --metric 'speed: ([0-9.]+)' --higher './server --old' './server --new'
  paradnn compare bench.py:old bench.py:new
  paradnn compare --null --minutes 1
  python -m paradnn.compare compile=graph compile=xla -- model=fc model.nodes=512 batch_size=256
  python -m paradnn.compare software=tensorflow-2.18 software=current model=fc
  python -m paradnn.compare framework=jax 'framework=tensorflow compile=xla' model=lstm batch_size=16,64

Every override of python -m paradnn.train, whose --help lists them; values with commas among those after the sides are
several points, each compared. Both sides are measured by turns, in a process of their own each time, until the 95%
interval of their ratio says enough. Exit code: 0 a verdict on every point, 1 a point without one (undecided, or a
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
    "sweep.minutes": "--minutes ends a comparison",
    "sweep.error": "--within ends a comparison",
    "hydra/sweeper": "a comparison has its own",
}


@dataclass(frozen=True)
class Side:
    """One side: its name, as it was typed, and its overrides."""

    label: str
    overrides: tuple[str, ...]


#: Unless --minutes says more or less; and rounds, of which commands may be short.
COMMAND_MINUTES, COMMAND_ROUNDS = 10.0, 640


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """A command line as it was given, with `rule`; of settings also `sides`, else None, and what is `common` to them.

    ParadnnError for a wrong one, SystemExit after `--help`.
    """
    given = parsed(_parser(), arguments)
    sides, given.sides = given.words[:2], None
    _check_counts(given)
    shares = _share(given, "within"), _share(given, "equivalence")
    if given.commits or (given.null and not sides) or (sides and not all(map(_is_setting, sides))):
        _read_commands(given)
        most = given.most if given.most != Rule.most else COMMAND_ROUNDS
        given.rule = Rule(*shares, given.rounds, max(most, given.rounds))
        given.minutes = COMMAND_MINUTES if given.minutes is None else given.minutes
        return given
    for flag in ("metric", "higher", "prepare", "setup", "timeout", "warmup", "exit_codes"):
        if getattr(given, flag) != _parser().get_default(flag):
            raise ConfigError(
                f"--{flag.replace('_', '-')}",
                getattr(given, flag),
                "is for commands",
                "compare two commands, or leave it out",
            )
    given.sides, given.common = _sides(given)
    given.rule = Rule(*shares, given.rounds, given.most)
    return given


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Options and words; with --commits or --base all after `--` is one command, and none of its words is an option."""
    words, after = list(arguments), []
    if "--" in words and any(re.match(r"--(commits|base)(=|$)", word) for word in words[: words.index("--")]):
        place = words.index("--")
        words, after = words[:place], words[place + 1 :]
    given = parser.parse_intermixed_args([word for word in words if word != "--"])
    given.words += [shlex.join(after)] if len(after) > 1 else after
    return given


def _is_setting(word: str) -> bool:
    """Whether a side is overrides: key=value, or several."""
    try:
        parts = shlex.split(word)
    except ValueError:
        parts = [word]
    return all(re.match(r"[+~]{0,2}[A-Za-z_][\w./@-]*=", part) or part.startswith("~") for part in parts)


def _read_commands(given: argparse.Namespace) -> None:
    """Two commands; or one, where commits or `--null` make two sides of it."""
    wanted = 0 if given.null and not given.words else 1 if given.commits or given.null else 2
    if given.commits and given.null:
        raise ConfigError("--null", "--commits", "compares one side with itself", "leave one of them out")
    if given.null and len(given.words) == 2 and given.words[0] == given.words[1]:
        given.words.pop()
    if len(given.words) != wanted:
        problem = f"{wanted} {'command is' if wanted == 1 else 'commands are'} needed, {len(given.words)} given"
        raise ConfigError("commands", " ".join(given.words), problem, "put each command in quotes")
    for word in given.words:
        if _is_setting(word) and word:
            raise ConfigError("sides", word, "one side is a setting, the other a command", "give two of a kind")
    if wanted == 2 and given.words[0] == given.words[1]:
        raise ConfigError("sides", given.words[0], "both are the same", "give two that differ, or add --null")
    check_commands(given)


def check_commands(given: argparse.Namespace) -> None:
    """ConfigError for numbers that cannot be."""
    _check_counts(given)
    if not 0 < given.timeout < math.inf:
        raise ConfigError("--timeout", given.timeout, "must be positive", "leave --timeout out")
    if given.warmup < 1:
        raise ConfigError("--warmup", given.warmup, "must be at least 1", "leave --warmup out")


def _sides(given: argparse.Namespace) -> tuple[tuple[Side, Side], tuple[str, ...]]:
    """Two configurations of this suite, and what is common to them."""
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
    return sides, tuple(common)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m paradnn.compare",
        usage="%(prog)s [options] SIDE SIDE [--] [OVERRIDE ...]",
        description="Which of two settings, software stacks, frameworks, commands or commits is faster here.",
        epilog=_EXAMPLES,
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
    add("--json", type=Path, metavar="FILE", help="write ratio, low, high, verdict, rounds, seconds to FILE")
    add_command_options(parser)
    add("--commits", nargs=2, metavar="REF", help="one command at two commits, each in a worktree of its own")
    return parser


def add_command_options(parser: argparse.ArgumentParser) -> None:
    """How commands are run and what of them is compared."""
    add = parser.add_argument_group("two commands, or two commits").add_argument
    text = "a number that the command prints, instead of its time: a regular expression with one group, or json:FIELD"
    add("--metric", metavar="REGEX", help=text)
    add("--higher", action="store_true", help="more of the metric is faster (default: less)")
    add("--prepare", metavar="COMMAND", help="run before each run, untimed")
    add("--setup", metavar="COMMAND", help="run once in each commit's worktree")
    text = "a run that takes longer has failed (default: %(default)s)"
    add("--timeout", type=float, default=600.0, metavar="S", help=text)
    add("--warmup", type=int, default=1, metavar="N", help="runs of each side that do not count (default: %(default)s)")
    add("--exit-codes", type=_codes, default=(0,), metavar="N,N", help="those that are no failure (default: 0)")


def _codes(text: str) -> tuple[int, ...]:
    """Exit codes; ConfigError for what is none."""
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        raise ConfigError("--exit-codes", text, "must be numbers", "write for example --exit-codes 0,1")
    return tuple(map(int, text.split(",")))


def _side(word: str) -> Side:
    """One side, whose overrides have one value each."""
    try:
        overrides = tuple(shlex.split(word))
    except ValueError as error:
        raise ConfigError("side", word, f"cannot be split ({error})", "close the quotation") from None
    if not overrides:
        raise ConfigError("side", word, "is empty", "name a setting, such as compile=xla")
    parser, keys = OverridesParser.create(), [_key(override) for override in overrides]
    for key, override in zip(keys, overrides, strict=True):
        value = override.partition("=")[2]
        if keys.count(key) > 1:
            raise ConfigError("side", word, f"sets {key} twice", "give it one value")
        _check_key(key, override)
        if key.split(".")[0] in (*SETTINGS_KEYS, "experiment"):
            raise ConfigError(key, value, "is no setting of a side", "write it after both sides")
        # Hydra itself will say what is wrong with an override that it cannot read.
        with contextlib.suppress(HydraException):
            if parser.parse_override(override).is_sweep_override():
                raise ConfigError(key, value, "a side is one setting", "write axes after both sides")
    return Side(word, overrides)


def _check_key(key: str, override: str) -> None:
    if key in _OWN:
        raise ConfigError(key, override.partition("=")[2], "is not yours to set here", _OWN[key])
    if "=" not in override and not override.startswith("~"):
        raise ConfigError("override", override, "is no override", "write key=value; a side of several needs quotes")


def _check_common(sides: tuple[Side, Side], common: Sequence[str]) -> None:
    of_sides = {_key(override) for side in sides for override in side.overrides}
    for override in common:
        key = _key(override)
        _check_key(key, override)
        if key in of_sides:
            value = override.partition("=")[2]
            raise ConfigError(key, value, "a side sets it too", "give it for the sides or for both, not twice")


def _check_counts(given: argparse.Namespace) -> None:
    if given.rounds < FEWEST:
        raise ConfigError("--rounds", given.rounds, f"must be at least {FEWEST}", "fewer carry no interval")
    if given.most < given.rounds:
        raise ConfigError("--most", given.most, f"is less than --rounds={given.rounds}", "raise it")
    if given.minutes is not None and not 0 < given.minutes < math.inf:
        raise ConfigError("--minutes", given.minutes, "must be positive", "write for example --minutes 5")


def _share(given: argparse.Namespace, name: str) -> float:
    """A share that was given, checked."""
    value: Any = getattr(given, name)
    if not 0.0001 <= value <= 1:
        raise ConfigError(f"--{name}", value, "must be a share from 0.0001 to 1", f"write for example --{name} 0.02")
    return float(value)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
