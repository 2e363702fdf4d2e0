"""`paradnn gate --base REF --slower 5% -- COMMAND`: is this checkout slower than a commit? For
continuous integration.

Both are run by turns on the same machine, so what the machine does to one it does to the other. The
gate fails only where the interval of the slowdown lies beyond the threshold as a whole; where it
lies below it passes, and where the time ends before either is sure it is undecided. A slowdown of
just the threshold fails in half of `--false-alarms` at most, an equal commit far more seldom.

Exit code: 0 passes, 1 regressed, 2 wrong use, 3 undecided, 130 interrupted.
"""

import argparse
import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from paradnn.cli.parser import Parser, share
from paradnn.cli.program import program
from paradnn.compare.arguments import COMMAND_MINUTES, add_options, parsed
from paradnn.compare.commands import Turns
from paradnn.compare.duet import take_turns
from paradnn.compare.text import describe, seen, write_files
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import WORKING_TREE, commit_of
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule, SpeedEstimate
from paradnn.store.files import append_line, whole_file


class Gate(Enum):
    """What a gate says; the value is its exit code."""

    PASSED = 0
    REGRESSED = 1
    UNDECIDED = 3


@dataclass(frozen=True)
class Limit(Rule):
    """A slowdown by more than `slower` (0.05: a time 1.05 times as long) of the head is a
    regression.
    """

    slower: float = 0.05

    def judge(self, found: SpeedEstimate | None) -> Gate:
        """What an estimate of the head's speed over the base's says."""
        if found is None or found.low <= 1 / (1 + self.slower) <= found.high:
            return Gate.UNDECIDED
        if found.high < 1 / (1 + self.slower):
            return Gate.REGRESSED
        return Gate.PASSED

    def is_enough(self, found: SpeedEstimate) -> bool:
        """Whether a look may end it: it is sure."""
        return self.judge(found) is not Gate.UNDECIDED


@program
def main() -> int:
    """Compare, print and write; the exit code."""
    given = parsed(make_parser(), sys.argv[1:])
    if len(given.words) != 1:
        problem = "one command is needed after --"
        raise ConfigError(
            "command", " ".join(given.words), problem, "write paradnn gate --base main -- COMMAND"
        )
    commits = (given.head, given.base)
    rule = Limit(most=given.most, misses=given.false_alarms, slower=given.slower)
    labels = tuple("the working tree" if name == WORKING_TREE else name for name in commits)
    turns, interrupted = take_turns(given, labels, given.words * 2, commits, rule)
    outcome = rule.judge(turns.estimate)
    if turns.problem:
        # A head that fails where the base runs is broken, not slow; a base that fails says nothing.
        outcome = Gate.REGRESSED if turns.failed == 0 else Gate.UNDECIDED
    words = _sentence(outcome, turns, f"{100 * rule.slower:.3g}%")
    about = {"gate": outcome.name.lower(), "slower": rule.slower, "base": given.base}
    _write(given, words, outcome, turns.document(interrupted) | about, turns)
    describe([turns], [words], [str(turns), *turns.said_of_failures(), *seen(turns)], given.detail)
    return 130 if interrupted else outcome.value


def _sentence(outcome: Gate, turns: Turns, limit: str) -> str:
    """The outcome with what it rests on."""
    basis = turns.problem or "too few rounds for an interval"
    found = turns.estimate
    if found and not turns.problem:
        ends = " to ".join(
            f"{100 * math.expm1(-math.log(end)):+.2g}%" for end in (found.high, found.low)
        )
        basis = f"{turns.labels[0]} takes {ends} of {turns.labels[1]}'s time more, {found.rounds} rounds"
    if outcome is Gate.PASSED:
        return f"passed: not slower by {limit} or more ({basis})"
    if outcome is Gate.UNDECIDED and turns.problem:
        return f"undecided: {basis}"
    if outcome is Gate.UNDECIDED:
        return f"undecided: whether it is slower by {limit} takes more time or a quieter machine ({basis})"
    if turns.problem:
        return f"FAILED: {basis}"
    return f"REGRESSED: slower by more than {limit} ({basis})"


def _write(
    given: argparse.Namespace, words: str, outcome: Gate, content: Mapping[str, Any], turns: Turns
) -> None:
    """The files that were asked for."""
    write_files(given, content, [turns])
    if given.history:
        names = ("gate", "base", "metric", "ratio", "low", "high", "rounds", "problem")
        about = {name: content[name] for name in names}
        place = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.node(),
        }
        command = {"commit": commit_of(given.head), "command": given.words[0]}
        append_line(given.history, "--history", command | place | about)
    if given.junit:
        what = {Gate.REGRESSED: "failure", Gate.UNDECIDED: "skipped"}.get(outcome)
        counts = {"failures": str(int(what == "failure")), "skipped": str(int(what == "skipped"))}
        suite = ElementTree.Element("testsuite", {"name": "paradnn gate", "tests": "1", **counts})
        suite.set("time", f"{content['seconds']:.3f}")
        case = ElementTree.SubElement(
            suite, "testcase", name=given.words[0], classname=f"against {given.base}"
        )
        if what:
            ElementTree.SubElement(case, what, message=words)
        with whole_file(given.junit, "--junit") as making:
            making.write_text(ElementTree.tostring(suite, encoding="unicode") + "\n")
    if given.markdown:
        rows = [
            f"| {side['label']} | {len(side['values'])} | {side['failed_visits']} |"
            for side in content["sides"]
        ]
        body = ["| side | runs | failed visits |", "| --- | --- | --- |", *rows]
        with whole_file(given.markdown, "--markdown") as making:
            making.write_text(
                "\n".join(
                    [f"### Performance against {given.base}", "", f"**{words}**", "", *body, ""]
                )
            )


def make_parser() -> Parser:
    """What the command takes."""
    parser = Parser(
        prog="python -m paradnn.compare.gate",
        usage="paradnn gate [options] --base REF -- COMMAND",
        description=__doc__,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="COMMAND", help="what is timed, in each commit's folder")
    add("--base", required=True, metavar="REF", help="the commit to compare with, such as main")
    add(
        "--head",
        default=WORKING_TREE,
        metavar="REF",
        help="a commit in place of the files as they lie here",
    )
    text = "the slowdown that is a regression (default: 5%%)"
    add("--slower", type=share("--slower"), default="5%", metavar="SHARE", help=text)
    text = "how often at most a slowdown of just that size is called one, or none (default: 5%%)"
    add("--false-alarms", type=share("--false-alarms"), default="5%", metavar="SHARE", help=text)
    add_options(parser)
    parser.set_defaults(minutes=COMMAND_MINUTES, most=COMMAND_ROUNDS)
    text = "append commit, date, ratio, interval, metric and machine to FILE as a line, for python -m analysis changes"
    add("--history", type=Path, metavar="FILE", help=text)
    for flag, what in (("--junit", "a test report"), ("--markdown", "a comment")):
        add(flag, type=Path, metavar="FILE", help=f"write {what} to FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
