"""`python -m paradnn.compare`: which of two settings, software stacks, frameworks, commands or
commits is faster here.

  paradnn compare 'python old.py' 'python new.py'
  paradnn compare --commits main HEAD -- python benchmark.py
  paradnn compare --metric 'speed: ([0-9.]+)' --higher './server --old' './server --new'
  paradnn compare bench.py:old bench.py:new
  paradnn compare --null --minutes 1
  python -m paradnn.compare compile=graph compile=xla -- model=fc model.nodes=512 batch_size=256
  python -m paradnn.compare software=tensorflow-2.18 software=current model=fc
  python -m paradnn.compare framework=jax 'framework=tensorflow compile=xla' model=lstm batch_size=16,64

The first two words are the sides, each one override of python -m paradnn.train, whose --help lists
them, or several in one quoted word; all that follows is common to both, and may be axes of several
values, of which each point is compared. A word that is no override is a function if it reads
file.py:name, else a command. Both sides are measured by turns, in a process of their own each time,
until the 95% interval of their ratio says enough.

Exit code: 0 a verdict on every point, 1 a point without one (undecided, or a side that cannot be
measured), 2 wrong input, 130 interrupted.
"""

import argparse
import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from paradnn.cli.overrides import split_overrides
from paradnn.cli.parser import Parser, number, share
from paradnn.config.settings import SETTINGS_KEYS
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, FEWEST, Rule

#: What a comparison decides itself, with the reason.
_ROUNDS = ("replicate", "measure.processes", "resume", "retry", "hydra/sweeper")
_OWN = {
    **dict.fromkeys(_ROUNDS, "a round measures each side again, in a process of its own"),
    **dict.fromkeys(("sweep.sample", "sweep.design", "sweep.points"), "every point is compared"),
    **dict.fromkeys(("sweep.minutes", "sweep.error"), "--minutes and --within end a comparison"),
}
#: Of two commands, unless --minutes says more or less.
COMMAND_MINUTES = 10.0
#: Options of commands alone.
_OF_COMMANDS = ("metric", "higher", "prepare", "setup", "timeout", "warmup", "exit_codes")

#: The name of a side, as it was typed, and its overrides.
Side = tuple[str, list[str]]


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """A command line as it was given, with `rule`; of settings also `sides`, else None, and what is
    `common` to them.

    ParadnnError for a wrong one, SystemExit after `--help`.
    """
    given = parsed(make_parser(), arguments)
    words = given.words
    given.sides = None
    if (
        given.commits
        or (given.null and not words)
        or (words and not all(map(_is_setting, words[:2])))
    ):
        _check_commands(given)
        given.most = given.most or max(COMMAND_ROUNDS, given.rounds)
        given.minutes = given.minutes or COMMAND_MINUTES
    else:
        for name in _OF_COMMANDS:
            value = getattr(given, name)
            if value != make_parser().get_default(name):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(
                    flag, value, "is for commands", "compare two commands, or leave it out"
                )
        given.sides, given.common = _sides(given)
    given.rule = Rule(given.within, given.equivalence, given.rounds, given.most or Rule.most)
    if given.rule.most < given.rounds:
        raise ConfigError(
            "--most", given.rule.most, f"is less than --rounds={given.rounds}", "raise it"
        )
    return given


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Options and words; with --commits or --base all after `--` is one command, and none of its
    words is an option.
    """
    words = list(arguments)
    after = []
    if "--" in words and any(
        re.match(r"--(commits|base)(=|$)", word) for word in words[: words.index("--")]
    ):
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
    return all(
        re.match(r"[+~]{0,2}[A-Za-z_][\w./@-]*=", part) or part.startswith("~") for part in parts
    )


def _check_commands(given: argparse.Namespace) -> None:
    """Two commands; or one, where commits or `--null` make two sides of it."""
    words = given.words
    wanted = 0 if given.null and not given.words else 1 if given.commits or given.null else 2
    if given.commits and given.null:
        raise ConfigError(
            "--null", "--commits", "compares one side with itself", "leave one of them out"
        )
    same = len(words) == 2 and words[0] == words[1]
    if given.null and same:
        words.pop()
    if len(words) != wanted:
        problem = (
            f"{wanted} {'command is' if wanted == 1 else 'commands are'} needed, {len(words)} given"
        )
        raise ConfigError("commands", " ".join(words), problem, "put each command in quotes")
    for word in filter(None, words):
        if _is_setting(word):
            raise ConfigError(
                "sides", word, "one side is a setting, the other a command", "give two of a kind"
            )
    if same and wanted == 2:
        raise ConfigError(
            "sides", words[0], "both are the same", "give two that differ, or add --null"
        )


def _sides(given: argparse.Namespace) -> tuple[list[Side], list[str]]:
    """Two configurations of this suite, and what is common to them."""
    if len(given.words) < 2:
        raise ParadnnError(
            "two sides are needed, such as compile=graph compile=xla; python -m paradnn.compare --help shows how"
        )
    (first, second), common = given.words[:2], split_overrides(given.words[2:])
    one = _side(first)
    two = _side(second)
    for override in common:
        key = _key(override)
        if key in one | two:
            value = override.partition("=")[2]
            raise ConfigError(
                key, value, "a side sets it too", "give it for the sides or for both, not twice"
            )
    if given.null and one != two:
        raise ConfigError("--null", f"{first}, {second}", "the sides differ", "name one side twice")
    if one == two and not given.null:
        raise ConfigError(
            "sides", first, "both are the same", "give two that differ, or add --null"
        )
    if given.null:
        labels = (f"{first} (first)", f"{first} (second)")
    else:
        labels = (first, second)
    return [
        (label, [*side.values()]) for label, side in zip(labels, (one, two), strict=True)
    ], common


def _side(word: str) -> dict[str, str]:
    """The overrides of one side, which have one value each, by their keys."""
    try:
        overrides = shlex.split(word)
    except ValueError as error:
        raise ConfigError(
            "side", word, f"cannot be split ({error})", "close the quotation"
        ) from None
    if not overrides:
        raise ConfigError("side", word, "is empty", "name a setting, such as compile=xla")
    found: dict[str, str] = {}
    for override in overrides:
        key = _key(override)
        value = override.partition("=")[2]
        if key in found:
            raise ConfigError("side", word, f"sets {key} twice", "give it one value")
        if key.split(".")[0] in (*SETTINGS_KEYS, "experiment"):
            raise ConfigError(key, value, "is no setting of a side", "write it after both sides")
        # Hydra itself will say what is wrong with an override that it cannot read.
        with contextlib.suppress(HydraException, RecursionError):
            if OverridesParser.create().parse_override(override).is_sweep_override():
                raise ConfigError(
                    key, value, "a side is one setting", "write axes after both sides"
                )
        found[key] = override
    return found


def _key(override: str) -> str:
    """The key of an override, which a comparison leaves to its user; ConfigError for another."""
    word, equals, value = override.partition("=")
    key = word.lstrip("+~")
    if key in _OWN:
        raise ConfigError(key, value, "is not yours to set here", _OWN[key])
    if not equals and not override.startswith("~"):
        raise ConfigError(
            "override",
            override,
            "is no override",
            "write key=value; a side of several needs quotes",
        )
    return key


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser(
        "python -m paradnn.compare",
        __doc__,
        usage="%(prog)s [options] SIDE SIDE [--] [OVERRIDE ...]",
    )
    add = parser.add_argument
    text = "overrides of one side; several in quotes: 'framework=jax compile=xla'"
    add("words", nargs="*", metavar="SIDE", help=text)
    text = "stop once half the 95%% interval of the ratio is below this share, or a tenth of a large difference"
    text += " (default: %(default)s)"
    add("--within", type=share("--within"), default=Rule.within, metavar="SHARE", help=text)
    text = "differences below this share do not matter (default: %(default)s)"
    add(
        "--equivalence",
        type=share("--equivalence"),
        default=Rule.margin,
        metavar="SHARE",
        help=text,
    )
    text = "at least so many rounds (default: %(default)s)"
    add(
        "--rounds", type=number("--rounds", int, FEWEST), default=Rule.least, metavar="N", help=text
    )
    add(
        "--null",
        action="store_true",
        help="compare one side with itself: what difference does chance alone make?",
    )
    add_options(parser)
    add(
        "--commits",
        nargs=2,
        metavar="REF",
        help="one command at two commits, each in a worktree of its own",
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """When to stop, what is written and said; how commands are run and what of them is compared."""
    text = f"at most so many rounds (default: {Rule.most}, of commands {COMMAND_ROUNDS})"
    parser.add_argument("--most", type=number("--most", int, FEWEST), metavar="N", help=text)
    text = (
        f"begin no round that would end later than this (default of commands: {COMMAND_MINUTES:g})"
    )
    parser.add_argument("--minutes", type=number("--minutes"), metavar="M", help=text)
    for flag, what in (
        ("--json", "answer, numbers and every run"),
        ("--csv", "what each round measured"),
    ):
        parser.add_argument(flag, type=Path, metavar="FILE", help=f"write {what} to FILE")
    said = parser.add_mutually_exclusive_group()
    said.add_argument(
        "--quiet", dest="detail", action="store_const", const=0, default=1, help="the verdict alone"
    )
    said.add_argument(
        "--verbose", dest="detail", action="store_const", const=2, help="every round, too"
    )
    add = parser.add_argument_group("two commands, or two commits").add_argument
    text = "instead of the time a number that the command prints: a regular expression with one group, or json:FIELD"
    add(
        "--metric",
        metavar="REGEX",
        help=f"{text}; or cpu, the processor time, which neighbours disturb less",
    )
    add("--higher", action="store_true", help="more of the metric is faster (default: less)")
    add("--prepare", metavar="COMMAND", help="run before each run, untimed")
    add("--setup", metavar="COMMAND", help="run once in each commit's worktree")
    text = "a run that takes longer has failed (default: %(default)s)"
    add("--timeout", type=number("--timeout"), default=600.0, metavar="S", help=text)
    text = "runs of each side that do not count (default: %(default)s)"
    add("--warmup", type=number("--warmup", int, 1), default=1, metavar="N", help=text)
    add(
        "--exit-codes",
        type=_codes,
        default=(0,),
        metavar="N,N",
        help="those that are no failure (default: 0)",
    )


def _codes(text: str) -> tuple[int, ...]:
    """Exit codes; ConfigError for what is none."""
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        raise ConfigError(
            "--exit-codes", text, "must be numbers", "write for example --exit-codes 0,1"
        )
    return tuple(map(int, text.split(",")))
