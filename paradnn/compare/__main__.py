"""`python -m paradnn.compare SIDE SIDE`: which of two is faster on this machine. Wiring only."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.compare.arguments import make_parser as make_parser
from paradnn.compare.arguments import read_arguments
from paradnn.core.words import counted
from paradnn.statistics.paired_rounds import SpeedVerdict

if TYPE_CHECKING:
    from paradnn.compare.text import Paired
    from paradnn.config.point import Point
    from paradnn.config.settings import Settings
    from paradnn.config.tasks import SweepInfo

    Composed = tuple[Settings, Sequence[Point], SweepInfo | None]
    ResultText = tuple[Sequence[str], Sequence[str]]  # sentences, and those below the table


@program
def main() -> int:
    """Compare two sides: 0 a verdict on every point, 1 a point without one, 2 wrong input, 130
    interrupted.
    """
    given = read_arguments(sys.argv[1:])
    if given.sides is None:
        return _compare_commands(given)
    sides: list[Composed] = []

    def keep(config: DictConfig) -> int:
        from paradnn.config.tasks import read_task

        sides.append(read_task(config))
        return 0

    for side in given.sides:
        # Composed and checked as a whole, as a multirun is.
        sys.argv[1:] = ["-m", *side[1], *given.common, "hydra/sweeper=plan"]
        code = run_command(keep)
        if code:
            return code
    return _compare(given, *sides) if len(sides) == 2 else 0  # else its configuration was shown


def _compare(given: argparse.Namespace, first: Composed, second: Composed) -> int:
    """Measure points of two configurations, record and tell; the exit code."""
    from paradnn.compare.comparison import Comparison, pairs_of
    from paradnn.compare.text import seen
    from paradnn.session.session import follow_design

    settings, points, info = first
    assert info  # of a multirun
    pairs = pairs_of(points, second[1], given.null)
    labels = given.sides[0][0], given.sides[1][0]
    info = replace(info, name=f"{labels[0]} or {labels[1]}, {counted(len(pairs), 'point')}")
    comparison = Comparison(info.sweep_id, pairs, labels, given.rule, given.minutes)
    with redirect_stderr(io.StringIO()) if not given.detail else nullcontext():
        # What the machine can do at most takes a minute to measure, and says nothing of a ratio.
        summary = follow_design(comparison, replace(settings, ceilings=False), info)
    whole = comparison.overall()
    interrupted = summary.interrupted
    whole.seconds = summary.seconds
    document = whole.answer() | {"interrupted": interrupted, "points": comparison.verdict_table()}
    closing = [
        *seen(whole, given.null),
        f"{summary.counts()}. Run {summary.parent} in {summary.where}",
    ]
    return _tell(given, comparison.results, (comparison.sentences(), closing), document)


def _compare_commands(given: argparse.Namespace) -> int:
    """Run two commands or functions by turns and say which is faster; the exit code."""
    from paradnn.compare.commands import NULL_COMMAND
    from paradnn.compare.duet import take_turns
    from paradnn.compare.text import seen

    texts = given.words or [NULL_COMMAND]
    if len(texts) == 2:
        labels = given.words
    else:
        labels = given.commits or ("first", "second")
    turns, interrupted = take_turns(
        given, labels, texts if len(texts) == 2 else texts * 2, given.commits, given.rule
    )
    closing = [*turns.said_of_failures(), *seen(turns, given.null)]
    return _tell(given, [turns], ([str(turns)], closing), turns.document(interrupted))


def _tell(
    given: argparse.Namespace,
    results: Sequence[Paired],
    words: ResultText,
    document: dict[str, Any],
) -> int:
    """Write the files that were asked for, then print: who reads that may be gone; the exit code."""
    from paradnn.compare.text import describe, write_files

    write_files(given, document, results)
    describe(results, *words, given.detail)
    if document["interrupted"]:
        if given.sides:
            kept = "; what was measured is recorded, the same command begins again"
        else:
            kept = ""
        print(f"interrupted{kept}", file=sys.stderr)
        return 130
    return int(any(result.verdict is SpeedVerdict.NOT_SETTLED for result in results))


if __name__ == "__main__":
    sys.exit(main())
