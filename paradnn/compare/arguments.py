"""`python -m paradnn.compare`: find which of two settings, software stacks, frameworks, commands,
functions or commits is faster on this machine.

  paradnn compare 'python old.py' 'python new.py'
  paradnn compare --commits main HEAD -- python benchmark.py
  paradnn compare --metric 'speed: ([0-9.]+)' './server --old' './server --new'
  paradnn compare bench.py:old bench.py:new
  paradnn compare --null --minutes 1
  python -m paradnn.compare compile=graph compile=xla -- model=fc model.nodes=512 batch_size=256
  python -m paradnn.compare software=tensorflow-2.18 software=current model=fc
  python -m paradnn.compare framework=jax 'framework=tensorflow compile=xla' model=lstm batch_size=16,64

The first two words are the sides. A side is one override of python -m paradnn.train (its --help
lists them), or several overrides in one quoted word. All further words are overrides of both sides.
They may be axes with several values; every point of the axes is compared. A side that is not an
override is a function if it has the form file.py:name, else a command.

Measurements of both sides alternate, each in a fresh process, until the 95% interval of the ratio
is narrow enough (--within).

Exit code: 0 every point has a verdict; 1 a point has no verdict (undecided, or a side cannot be
measured); 2 wrong input; 130 interrupted.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from paradnn.cli.overrides import is_axis, split_overrides
from paradnn.cli.parser import Parser, number, share, split_quoted
from paradnn.compare.metric import OutputMetric, is_higher_faster
from paradnn.compare.processes import CommandProtocol
from paradnn.config.settings import SETTINGS_KEYS
from paradnn.core.errors import ConfigError, ParadnnError
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, MIN_ROUNDS, Rule

#: Keys that a user cannot set in a comparison -> the remedy in the error message.
_RESERVED_KEYS = {
    **dict.fromkeys(
        ("replicate", "measure.processes", "resume", "retry", "hydra/sweeper"),
        "omit it, because each round measures both sides again, in fresh processes",
    ),
    **dict.fromkeys(
        ("sweep.sample", "sweep.design", "sweep.points"), "omit it, because every point is compared"
    ),
    **dict.fromkeys(("sweep.minutes", "sweep.error"), "use --minutes or --within instead"),
}
#: Default of --minutes for comparisons of commands.
COMMAND_MINUTES = 10.0
#: Options that apply only to commands, not to settings of this suite.
_COMMAND_OPTIONS = ("metric", "higher", "prepare", "setup", "timeout", "warmup", "exit_codes")
_SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")
_REMEDY_SAME_SIDES = "give two different sides, or add --null"

#: A side of a comparison of settings: its name, as the user typed it, and its overrides.
Side = tuple[str, list[str]]


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line of `paradnn compare`.

    Args:
        arguments: The words of the command line, without the name of the program.

    Returns:
        The options, with the stopping rule as `rule`. For a comparison of settings, `sides` has two
        pairs of a name and its overrides, and `common` has the overrides that apply to both. For a
        comparison of commands, `sides` is None.

    Raises:
        ParadnnError: If the command line is invalid.
        SystemExit: After --help.
    """
    options = parse(make_parser(), arguments)
    options.sides = None
    if _compares_commands(options):
        _check_commands(options)
        options.most = options.most or max(COMMAND_ROUNDS, options.rounds)
        options.minutes = options.minutes or COMMAND_MINUTES
    else:
        _reject_command_options(options)
        options.sides, options.common = _sides(options)
    most = options.most or Rule.most
    if most < options.rounds:
        raise ConfigError(
            "--most",
            most,
            f"is less than --rounds={options.rounds}",
            "raise --most, or lower --rounds",
        )
    options.rule = Rule(options.within, options.equivalence, options.rounds, most)
    return options


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse options and words, without checking their combination.

    With --commits, --base or --null, everything after `--` is one command, whose words are not
    options of this program. With --null, two settings may follow `--` instead.

    Args:
        parser: A parser of `paradnn compare` or `paradnn gate`.
        arguments: The words of the command line, without the name of the program.

    Returns:
        The options. `words` is a list of the words that are not options: commands, settings and
        overrides. A command after `--` is joined into one word.

    Raises:
        SystemExit: After --help.
    """
    before = list(arguments)
    after: list[str] = []
    if "--" in before:
        index = before.index("--")
        if _takes_one_command(before[:index], before[index + 1 :]):
            after = before[index + 1 :]
            before = before[:index]
    options = parser.parse_intermixed_args([word for word in before if word != "--"])
    if len(after) > 1:
        options.words.append(shlex.join(after))
    else:
        options.words += after
    return options


def _takes_one_command(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether the words after `--` form one command.

    Args:
        before: The words before `--`.
        after: The words after `--`.
    """
    if any(re.match(r"--(commits|base)(=|$)", word) for word in before):
        return True
    if "--null" not in before or not after:
        return False
    has_settings = any(_is_setting(word) for word in before if not word.startswith("-"))
    return not has_settings and not all(_is_setting(word) for word in after[:2])


def _compares_commands(options: argparse.Namespace) -> bool:
    words = options.words
    if options.commits or (options.null and not words):
        return True
    return bool(words) and not all(_is_setting(word) for word in words[:2])


def _is_setting(word: str) -> bool:
    """Return whether a word is a setting: key=value, or several overrides in one quoted word."""
    try:
        parts = shlex.split(word)
    except ValueError:
        parts = [word]
    return all(_SETTING.match(part) or part.startswith("~") for part in parts)


def _reject_command_options(options: argparse.Namespace) -> None:
    parser = make_parser()
    for name in _COMMAND_OPTIONS:
        value = getattr(options, name)
        if value == parser.get_default(name):
            continue
        if name == "higher":
            flag = "--higher" if value else "--lower"
            value = True
        else:
            flag = f"--{name.replace('_', '-')}"
        raise ConfigError(
            flag, value, "applies only to commands", "compare two commands, or omit it"
        )


def _check_commands(options: argparse.Namespace) -> None:
    """Raise ConfigError unless there are two commands, or one for --commits or --null.

    --null without a command is also valid.
    """
    words = options.words
    if options.commits and options.null:
        raise ConfigError(
            "options",
            "--commits --null",
            "--commits compares two commits, but --null compares one command with itself",
            "omit one of them",
        )
    if options.null and not words:
        needed = 0
    elif options.commits or options.null:
        needed = 1
    else:
        needed = 2
    are_same = len(words) == 2 and words[0] == words[1]
    if options.null and are_same:
        words.pop()
    if len(words) != needed:
        if needed == 1:
            problem = f"1 command is needed, {len(words)} given"
        else:
            problem = f"{needed} commands are needed, {len(words)} given"
        raise ConfigError("commands", " ".join(words), problem, "put each command in quotes")
    for word in words:
        if word and _is_setting(word):
            raise ConfigError(
                "sides",
                word,
                "one side is a setting, the other a command",
                "give two settings, or two commands",
            )
    if are_same and needed == 2:
        raise ConfigError("sides", words[0], "both sides are equal", _REMEDY_SAME_SIDES)


def _sides(options: argparse.Namespace) -> tuple[list[Side], list[str]]:
    """Return the two sides of a comparison of settings, and the overrides that both share.

    Raises:
        ParadnnError: If there are fewer than two sides, or if the sides or overrides are invalid.
    """
    if len(options.words) < 2:
        raise ParadnnError(
            f"a comparison needs two settings, not {len(options.words)}; for example, write "
            "compile=graph compile=xla (see python -m paradnn.compare --help)"
        )
    first, second = options.words[:2]
    common = split_overrides(options.words[2:])
    first_overrides = _side(first)
    second_overrides = _side(second)
    for override in common:
        key = _key(override)
        if key in first_overrides | second_overrides:
            raise ConfigError(
                key,
                override.partition("=")[2],
                "is already set by one of the two sides",
                "set it either within each side, or once after both sides",
            )
    if options.null and first_overrides != second_overrides:
        raise ConfigError(
            "--null",
            f"{first}, {second}",
            "compares a setting with itself, but these two settings differ",
            "give the same setting twice, or omit --null",
        )
    if first_overrides == second_overrides and not options.null:
        raise ConfigError("sides", first, "both sides are equal", _REMEDY_SAME_SIDES)
    if options.null:
        first = f"{first} (first)"
        second = f"{second} (second)"
    sides = [(first, [*first_overrides.values()]), (second, [*second_overrides.values()])]
    return sides, common


def _side(word: str) -> dict[str, str]:
    """Return the overrides of one side, by key.

    Args:
        word: The overrides, such as "framework=jax compile=xla".

    Raises:
        ConfigError: If the word has no override, sets a key twice, gives a key several values, or
            sets a key that must be equal on both sides.
    """
    overrides = split_quoted("side", word)
    if not overrides:
        raise ConfigError("side", word, "is empty", "name a setting, such as compile=xla")
    found: dict[str, str] = {}
    for override in overrides:
        key = _key(override)
        value = override.partition("=")[2]
        if key in found:
            raise ConfigError("side", word, f"sets {key} twice", "give it one value")
        if key.split(".")[0] in (*SETTINGS_KEYS, "experiment"):
            problem = "cannot differ between the two sides"
            raise ConfigError(key, value, problem, "write it once, after both sides")
        if is_axis(override):
            raise ConfigError(
                key,
                value,
                "has several values, but each side needs exactly one",
                "write keys with several values after both sides",
            )
        found[key] = override
    return found


def _key(override: str) -> str:
    """Return the key of an override such as `model.nodes=512` or `~key`.

    Raises:
        ConfigError: If the text is not an override, or the comparison itself sets the key.
    """
    word, equals, value = override.partition("=")
    key = word.lstrip("+~")
    if key in _RESERVED_KEYS:
        raise ConfigError(key, value, "cannot be set in a comparison", _RESERVED_KEYS[key])
    if not equals and not override.startswith("~"):
        raise ConfigError(
            "override",
            override,
            "is not an override",
            "write key=value, and put quotes around a side with several overrides",
        )
    return key


def protocol_of(options: argparse.Namespace, *, base_first: bool = False) -> CommandProtocol:
    """Return the metric, timeout, warm-up and so on that the options set for two commands.

    Args:
        options: Parsed options of `paradnn compare` or `paradnn gate`.
        base_first: Whether the second of the two commands runs first in the warm-up. A gate, whose
            second command runs at the base commit, sets this.

    Raises:
        ConfigError: If the metric is invalid, or its name does not show whether a larger number is
            faster.
    """
    return CommandProtocol(
        minutes=options.minutes,
        metric=_metric_of(options),
        warmup=options.warmup,
        prepare=options.prepare,
        timeout=options.timeout,
        exit_codes=options.exit_codes,
        base_first=base_first,
    )


def _metric_of(options: argparse.Namespace) -> OutputMetric:
    """Return the metric by which two commands are compared.

    Without --higher or --lower, the name of the metric determines whether a larger number is
    faster.

    Raises:
        ConfigError: If the metric is invalid, or its name does not determine the direction.
    """
    metric = OutputMetric(options.metric, bool(options.higher))
    if options.higher is not None or not metric.is_printed:
        return metric
    inferred = is_higher_faster(options.metric)
    if inferred is None:
        raise ConfigError(
            "--metric",
            options.metric,
            "its name does not show whether a larger number is faster",
            "add --higher or --lower",
        )
    if inferred:
        print(
            f"--metric {options.metric}: its name suggests that a larger number is faster; "
            "add --lower if a smaller number is faster",
            file=sys.stderr,
        )
    return OutputMetric(options.metric, inferred)


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn compare`."""
    parser = Parser(
        "python -m paradnn.compare",
        __doc__,
        usage="%(prog)s [options] SIDE SIDE [--] [OVERRIDE ...]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SIDE",
        help="overrides of one side, in quotes if several ('framework=jax compile=xla'); "
        "a command; or a function",
    )
    parser.add_argument(
        "--within",
        type=share("--within"),
        default=Rule.within,
        metavar="SHARE",
        help="stop once the half width of the 95%% interval of the ratio is at most this share, or "
        "at most a tenth of the difference (default: %(default)s)",
    )
    parser.add_argument(
        "--equivalence",
        type=share("--equivalence"),
        default=Rule.margin,
        metavar="SHARE",
        help="differences below this share do not matter (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=number("--rounds", int, MIN_ROUNDS),
        default=Rule.least,
        metavar="N",
        help="run at least N rounds (default: %(default)s)",
    )
    parser.add_argument(
        "--null",
        action="store_true",
        help="compare one side with itself, to see how large a difference arises by chance",
    )
    add_options(parser)
    parser.add_argument(
        "--commits",
        nargs=2,
        metavar="REF",
        help="run one command at two commits, each in a separate worktree",
    )
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `paradnn compare` and `paradnn gate` share."""
    parser.add_argument(
        "--most",
        type=number("--most", int, MIN_ROUNDS),
        metavar="N",
        help=f"run at most N rounds (default: {Rule.most}, for commands {COMMAND_ROUNDS})",
    )
    parser.add_argument(
        "--minutes",
        type=number("--minutes"),
        metavar="M",
        help="time limit: start no round that would end later than M minutes from now "
        f"(default: no limit, for commands {COMMAND_MINUTES:g})",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result and every run to FILE, as JSON"
    )
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write the measurements of each round to FILE, as CSV",
    )
    verbosity = parser.add_mutually_exclusive_group()
    verbosity.add_argument(
        "--quiet",
        dest="detail",
        action="store_const",
        const=0,
        default=1,
        help="print only the verdict",
    )
    verbosity.add_argument(
        "--verbose", dest="detail", action="store_const", const=2, help="print every round as well"
    )
    _add_command_options(parser)


def _add_command_options(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_argument_group("commands and commits")
    commands.add_argument(
        "--metric",
        metavar="REGEX",
        help="compared quantity: a number that the command prints, as a regular expression with "
        "one group or as json:FIELD; or cpu, the processor time, which other processes disturb "
        "less (default: wall time)",
    )
    direction = commands.add_mutually_exclusive_group()
    direction.add_argument(
        "--higher",
        action="store_const",
        const=True,
        help="larger values of --metric are faster (default: inferred from its name)",
    )
    direction.add_argument(
        "--lower",
        dest="higher",
        action="store_const",
        const=False,
        help="smaller values of --metric are faster",
    )
    commands.add_argument(
        "--prepare", metavar="COMMAND", help="run COMMAND, untimed, before each timed run"
    )
    commands.add_argument(
        "--setup", metavar="COMMAND", help="run COMMAND once in the folder of each commit"
    )
    commands.add_argument(
        "--timeout",
        type=number("--timeout"),
        default=600.0,
        metavar="S",
        help="a run that takes more than S seconds fails (default: %(default)s)",
    )
    commands.add_argument(
        "--warmup",
        type=number("--warmup", int, 1),
        default=1,
        metavar="N",
        help="run each side N times before the measured rounds (default: %(default)s)",
    )
    commands.add_argument(
        "--exit-codes",
        type=_exit_codes,
        default=(0,),
        metavar="N,N",
        help="exit codes that count as success (default: 0)",
    )


def _exit_codes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", text):
        raise ConfigError(
            "--exit-codes",
            text,
            "is not a list of numbers of up to three digits",
            "for example, write --exit-codes 0,1",
        )
    return tuple(int(code) for code in text.split(","))
