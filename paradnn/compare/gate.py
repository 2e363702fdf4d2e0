"""`paradnn gate --base REF --slower 5% -- COMMAND`: is this checkout slower than a commit? For
continuous integration.

Runs of both sides alternate on one machine, so a disturbance of the machine affects both. The gate
fails if the whole 95% interval of the slowdown is above the threshold (--slower). It passes if the
whole interval is below the threshold. It is undecided if the time limit is reached before either is
the case. If the true slowdown equals the threshold, the gate fails with a probability of at most
half of --false-alarms. If both commits are equally fast, it fails far less often.

Each side must run the code of its commit. If a side loads files of the other side, or an installed
copy of the project, the gate stops with exit code 2.

--count also counts quantities that other processes do not disturb: instructions, simulated cache
misses, or heap use. Instructions show whether the code does more work; the time shows whether users
notice. --fail-on selects the criterion: time, counts, or either.

Exit code: 0 passed; 1 regressed; 2 wrong use, or the base fails; 3 undecided; 130 interrupted.
"""

import argparse
import math
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from paradnn.cli.parser import Parser, share
from paradnn.cli.program import program
from paradnn.compare.arguments import COMMAND_MINUTES, add_options, parse, protocol_of
from paradnn.compare.commands import CommandComparison
from paradnn.compare.counters import QUANTITIES, Counter
from paradnn.compare.counts import CountComparison, CountReport, count_sides
from paradnn.compare.functions import comparison_of, is_function
from paradnn.compare.processes import Command
from paradnn.compare.report import (
    closing_lines,
    print_results,
    side_cells,
    side_headings,
    summary_table,
    write_files,
)
from paradnn.compare.result import format_interval
from paradnn.core.errors import ConfigError
from paradnn.platform.commits import WORKING_TREE, checkouts, commit_of
from paradnn.statistics.paired_rounds import COMMAND_ROUNDS, Rule, SpeedEstimate
from paradnn.store.files import append_line, whole_file

#: Characters that are invalid in XML 1.0.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HISTORY_KEYS = ("gate", "base", "metric", "ratio", "low", "high", "rounds", "problem")


class Gate(Enum):
    """Outcome of `paradnn gate`, which checks for regressions; the value is the exit code."""

    PASSED = 0
    REGRESSED = 1
    UNDECIDED = 3


@dataclass(frozen=True)
class Limit(Rule):
    """Rule that stops measuring once it is certain whether a commit is slower by a threshold.

    The head is the commit to check. The base is the commit to compare it with.

    Attributes:
        slower: Smallest slowdown that counts as a regression (0.05: the head takes 1.05 times as
            long as the base).
    """

    slower: float = 0.05

    def judge(self, found: SpeedEstimate | None) -> Gate:
        """Return whether an estimated ratio of speeds passes, fails, or leaves the gate undecided.

        Args:
            found: Estimated ratio of the head's speed to the base's speed, with its interval; None
                if there are too few rounds, which leaves the gate undecided.
        """
        threshold = 1 / (1 + self.slower)
        if found is None or found.low <= threshold <= found.high:
            return Gate.UNDECIDED
        if found.high < threshold:
            return Gate.REGRESSED
        return Gate.PASSED

    def is_enough(self, found: SpeedEstimate) -> bool:
        """Return whether the comparison can end, because the outcome is certain.

        Args:
            found: Estimated ratio of the head's speed to the base's speed, with its interval.
        """
        return self.judge(found) is not Gate.UNDECIDED


class FailOn(StrEnum):
    """Criterion by which `paradnn gate` finds a regression: time, counts, or either."""

    TIME = "time"
    COUNT = "count"
    EITHER = "either"


@dataclass(frozen=True)
class _Verdict:
    """The outcome of a gate, and a sentence that explains it."""

    outcome: Gate
    sentence: str


@program
def main() -> int:
    """Compare two commits, write the requested files, and print the result.

    Returns:
        The exit code: 0 if the gate passed, 1 for a regression, 2 for wrong use or a failing base,
        3 if undecided, 130 after an interruption.
    """
    options = parse(make_parser(), sys.argv[1:])
    if len(options.words) != 1:
        raise ConfigError(
            "command",
            " ".join(options.words),
            f"one command is needed after --, not {len(options.words)}",
            "write paradnn gate --base main -- COMMAND",
        )
    _check_count_options(options)
    rule = Limit(most=options.most, misses=options.false_alarms, slower=options.slower)
    protocol = protocol_of(options, base_first=True)
    references = (options.base if options.null else options.head, options.base)
    counts = CountReport()
    with checkouts(references, options.setup) as sides:
        commands = [Command(checkout.label, options.words[0], checkout) for checkout in sides]
        comparison = comparison_of(commands, rule, protocol)
        interrupted = comparison.follow(
            shows_progress=bool(options.detail),
            skips_same_code=not options.null,
            is_timed=options.fail_on != FailOn.COUNT,
        )
        has_nothing_to_count = comparison.runs_same_code and not options.null
        if options.count and not (interrupted or comparison.problem or has_nothing_to_count):
            try:
                counts = count_sides(commands, options.count, protocol, options.flame_graph)
            except KeyboardInterrupt:  # the measured times are reported nevertheless
                interrupted = True
    verdict = _overall_verdict(options, comparison, rule, counts)
    document = comparison.document(interrupted=interrupted) | {
        "gate": verdict.outcome.name.lower(),
        "slower": rule.slower,
        "base": options.base,
        "counts": counts.document(),
    }
    closing = [*counts.sentences(comparison.estimate), *comparison.notes()]
    if options.fail_on != FailOn.COUNT:
        closing += closing_lines(comparison)
    _write_files(options, verdict, document, comparison, closing)
    print_results([comparison], [verdict.sentence], closing, options.detail)
    return 130 if interrupted else verdict.outcome.value


def _check_count_options(options: argparse.Namespace) -> None:
    """Check the options for counting, before measurements that may take minutes.

    Raises:
        ConfigError: If a quantity cannot be counted on this machine, or if an option needs --count.
    """
    if options.count and is_function(options.words[0]):
        raise ConfigError(
            "--count", ",".join(options.count), "applies to commands, not to functions", "omit it"
        )
    for name in options.count:
        if name not in QUANTITIES:
            raise ConfigError(
                "--count", name, "is an unknown quantity", f"choose from {', '.join(QUANTITIES)}"
            )
        Counter(name)
    if options.fail_on != FailOn.TIME and not options.count:
        raise ConfigError("--fail-on", options.fail_on, "needs --count", "add --count instructions")
    if options.flame_graph and "instructions" not in options.count:
        raise ConfigError(
            "--flame-graph",
            str(options.flame_graph),
            "shows instructions, which are not counted",
            "add --count instructions",
        )


def _overall_verdict(
    options: argparse.Namespace, comparison: CommandComparison, rule: Limit, counts: CountReport
) -> _Verdict:
    """Return the worst verdict among the criteria of --fail-on.

    From best to worst: passed, undecided, regressed.

    Args:
        options: The options of the command line.
        comparison: The measured times of head and base.
        rule: Judges the times.
        counts: The counts of head and base; empty without --count.
    """
    explains_missing_counts = comparison.problem or comparison.runs_same_code
    if options.fail_on == FailOn.COUNT and not counts.comparisons and not explains_missing_counts:
        return _Verdict(Gate.UNDECIDED, "undecided: interrupted before both sides were counted")
    verdicts = []
    if options.fail_on != FailOn.COUNT or comparison.problem or not counts.comparisons:
        verdicts.append(_judge(comparison, rule))
    if options.fail_on != FailOn.TIME:
        verdicts += [_judge_count(each, options.more) for each in counts.comparisons]
    severity = (Gate.PASSED, Gate.UNDECIDED, Gate.REGRESSED)
    return max(verdicts, key=lambda verdict: severity.index(verdict.outcome))


def _judge_count(count: CountComparison, allowed_increase: float) -> _Verdict:
    """Return the verdict on the counts of one quantity.

    The verdict is "regressed" if the whole 95% interval of the increase is above the allowed
    increase, and "passed" if the whole interval is below.

    Args:
        count: Counts of head and base.
        allowed_increase: Smallest relative increase that counts as a regression (0.01: 1%).
    """
    limit = f"{100 * allowed_increase:.3g}%"
    if count.problem:
        # A head that fails although the base runs is broken. If the base fails, nothing is known.
        if count.failed_side == 0:
            return _Verdict(Gate.REGRESSED, f"FAILED: {count.problem}")
        return _Verdict(Gate.UNDECIDED, f"undecided: {count.problem}")
    increase = count.increase
    if increase.low > allowed_increase:
        return _Verdict(
            Gate.REGRESSED, f"REGRESSED: more than {limit} more {count.quantity} ({count.basis()})"
        )
    if increase.high < allowed_increase:
        return _Verdict(
            Gate.PASSED, f"passed: less than {limit} more {count.quantity} ({count.basis()})"
        )
    return _Verdict(
        Gate.UNDECIDED,
        f"undecided: the counts scatter too much to decide whether {count.labels[0]} needs {limit} "
        f"more {count.quantity} ({count.basis()}); if idle threads are the cause, put "
        "env OMP_NUM_THREADS=1 before the command",
    )


def _judge(comparison: CommandComparison, rule: Limit) -> _Verdict:
    """Return the verdict on the measured times of head and base."""
    limit = f"{100 * rule.slower:.3g}%"
    if comparison.problem:
        # A head that fails although the base runs is broken. If the base fails, nothing is known.
        if comparison.failed_side == 0:
            return _Verdict(Gate.REGRESSED, f"FAILED: {comparison.problem}")
        return _Verdict(Gate.UNDECIDED, f"undecided: {comparison.problem}")
    found = comparison.estimate
    if found is None and comparison.runs_same_code:
        return _Verdict(
            Gate.PASSED, "passed: both sides ran the same code, so there is nothing to measure"
        )
    outcome = rule.judge(found)
    if found is None:
        basis = "too few rounds for an interval"
    else:
        basis = (
            f"{comparison.labels[0]} takes {_slowdowns(found)} more time than "
            f"{comparison.labels[1]}, {found.rounds} rounds"
        )
    if outcome is Gate.PASSED:
        return _Verdict(outcome, f"passed: not slower by {limit} or more ({basis})")
    if outcome is Gate.REGRESSED:
        return _Verdict(outcome, f"REGRESSED: slower by more than {limit} ({basis})")
    return _Verdict(
        outcome,
        f"undecided: more time (--minutes) or a quieter machine is needed to decide whether "
        f"{comparison.labels[0]} is slower by {limit} ({basis})",
    )


def _slowdowns(found: SpeedEstimate) -> str:
    """Return the 95% interval of the head's additional time as text, such as `+2.1% to +3.4%`.

    Args:
        found: Estimated ratio of the head's speed to the base's speed.
    """
    return " to ".join(
        f"{100 * math.expm1(-math.log(speed)):+.2g}%" for speed in (found.high, found.low)
    )


def _write_files(
    options: argparse.Namespace,
    verdict: _Verdict,
    document: Mapping[str, Any],
    comparison: CommandComparison,
    closing: Sequence[str],
) -> None:
    """Write the files of --json, --csv, --history, --junit and --markdown, if requested.

    Args:
        options: The options of the command line, which name the files.
        verdict: The verdict of the gate.
        document: Content of the JSON file.
        comparison: The measured times of head and base.
        closing: Further sentences for the reports.
    """
    write_files(options, document, [comparison])
    if options.history:
        line = {
            "commit": commit_of(options.head),
            "command": options.words[0],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.node(),
        }
        line |= {name: document[name] for name in _HISTORY_KEYS}
        append_line(options.history, "--history", line)
    if options.junit:
        report = _junit(options, verdict, comparison, closing)
        with whole_file(options.junit, "--junit") as path:
            path.write_text(report + "\n", encoding="utf-8")
    if options.markdown:
        comment = _markdown(options.base, verdict, comparison, closing)
        with whole_file(options.markdown, "--markdown") as path:
            path.write_text(comment + "\n", encoding="utf-8")


def _junit(
    options: argparse.Namespace,
    verdict: _Verdict,
    comparison: CommandComparison,
    closing: Sequence[str],
) -> str:
    """Return the XML of a JUnit report with one test case.

    The test case is failed if the gate found a regression, and skipped if the gate is undecided.

    Args:
        options: The options of the command line.
        verdict: The verdict of the gate.
        comparison: The measured times of head and base.
        closing: Further sentences for the output of the test case.
    """
    element = {Gate.REGRESSED: "failure", Gate.UNDECIDED: "skipped"}.get(verdict.outcome)
    suite = ElementTree.Element(
        "testsuite",
        name="paradnn gate",
        tests="1",
        failures=str(int(element == "failure")),
        errors="0",
        skipped=str(int(element == "skipped")),
        time=f"{comparison.seconds:.3f}",
    )
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=_xml_text(options.words[0]),
        classname=_xml_text(f"against {options.base}"),
        time=f"{comparison.seconds:.3f}",
    )
    if element:
        ElementTree.SubElement(case, element, message=_xml_text(verdict.sentence))
    output = ElementTree.SubElement(case, "system-out")
    headings, rows = summary_table([comparison])
    table = [", ".join(filter(None, row)) for row in (headings, *rows)]
    output.text = _xml_text("\n".join([verdict.sentence, *table, *closing]))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _xml_text(text: str) -> str:
    """Return a text with escape sequences for characters that are invalid in XML, such as \\x1b."""
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _markdown(
    base: str, verdict: _Verdict, comparison: CommandComparison, closing: Sequence[str]
) -> str:
    """Return a comment in Markdown about the result of the gate, for a pull request.

    It contains the verdict, the ratio of speeds, and a table of the times of head and base.

    Args:
        base: The base commit, as the user named it.
        verdict: The verdict of the gate.
        comparison: The measured times of head and base.
        closing: Further sentences, which become a list at the end.
    """
    headings = [*side_headings(comparison.unit), "failed visits"]
    rows = [[*side_cells(comparison, side), str(len(comparison.failures(side)))] for side in (0, 1)]
    lines = [
        f"### Performance against {_markdown_text(base)}",
        "",
        f"**{_markdown_text(verdict.sentence)}**",
        "",
    ]
    found = comparison.estimate
    if found:
        first, second = (_markdown_text(label) for label in comparison.labels)
        lines += [
            f"Speed of {first} over {second}: {found.ratio:.4g} "
            f"(95% interval {format_interval(found)}, {found.rounds} rounds)",
            "",
        ]
    if comparison.problem or any(comparison.visits):
        lines += [_markdown_row(headings), f"|{' --- |' * len(headings)}"]
        lines += [*map(_markdown_row, rows), ""]
    lines += [f"- {_markdown_text(line)}" for line in closing]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_markdown_text(cell) for cell in cells)} |"


def _markdown_text(text: str) -> str:
    """Return a text on one line, with characters escaped that Markdown would interpret."""
    line = " ".join(_xml_text(text).split())
    return re.sub(r"([\\`*_{}\[\]<>|~#])", r"\\\1", line)


def make_parser() -> Parser:
    """Return the parser of the command line of `paradnn gate`."""
    parser = Parser(
        prog="python -m paradnn.compare.gate",
        usage="paradnn gate [options] --base REF -- COMMAND",
        description=__doc__,
    )
    parser.add_argument(
        "words", nargs="*", metavar="COMMAND", help="the command, run in the folder of each commit"
    )
    parser.add_argument(
        "--base", required=True, metavar="REF", help="compare with this commit, such as main"
    )
    parser.add_argument(
        "--head",
        default=WORKING_TREE,
        metavar="REF",
        help="measure this commit instead of the working tree",
    )
    parser.add_argument(
        "--slower",
        type=share("--slower"),
        default="5%",
        metavar="SHARE",
        help="smallest slowdown that counts as a regression (default: 5%%)",
    )
    parser.add_argument(
        "--false-alarms",
        type=share("--false-alarms"),
        default="5%",
        metavar="SHARE",
        help="maximum probability that the gate decides (fails or passes) if the true slowdown "
        "equals --slower (default: 5%%)",
    )
    parser.add_argument(
        "--count",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="WHAT,WHAT",
        help="also count instructions, cache-misses (simulated) or memory (heap) of both sides, "
        "with perf or valgrind",
    )
    parser.add_argument(
        "--fail-on",
        type=FailOn,
        choices=list(FailOn),
        default=FailOn.TIME,
        metavar="WHAT",
        help="criterion of the gate: time, count (times are not measured), or either (default: "
        "time)",
    )
    parser.add_argument(
        "--more",
        type=share("--more"),
        default="1%",
        metavar="SHARE",
        help="smallest increase of a count that counts as a regression (default: 1%%)",
    )
    parser.add_argument(
        "--flame-graph",
        type=Path,
        metavar="FILE",
        help="write an SVG that shows which functions execute more instructions (needs valgrind)",
    )
    parser.add_argument(
        "--null",
        action="store_true",
        help="compare the base with itself, to check that equal code passes the gate",
    )
    add_options(parser)
    parser.set_defaults(minutes=COMMAND_MINUTES, most=COMMAND_ROUNDS)
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="append one line of JSON with commit, date, ratio, interval, metric and machine to "
        "FILE, for python -m analysis changes",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit report to FILE")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write a comment in Markdown to FILE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
