"""Command `python -m paradnn.compare SIDE SIDE`: find the faster of two sides on this machine."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.compare.arguments import make_parser as make_parser
from paradnn.compare.arguments import protocol_of, read_arguments
from paradnn.core.words import counted
from paradnn.statistics.verdict import Verdict

if TYPE_CHECKING:
    from paradnn.compare.result import PairedResult
    from paradnn.config.point import Point
    from paradnn.config.settings import Settings
    from paradnn.config.tasks import SweepInfo

    ComposedSide = tuple[Settings, Sequence[Point], SweepInfo | None]


@program
def main() -> int:
    """Compare the two settings, commands, commits or functions that the command line names.

    Returns:
        The exit code: 0 if every compared configuration has a verdict, 1 if one is undecided, 2 for
        wrong input, 130 after an interruption.
    """
    options = read_arguments(sys.argv[1:])
    if options.sides is None:
        return _compare_commands(options)
    sides: list[ComposedSide] = []

    def keep(config: DictConfig) -> int:
        from paradnn.config.tasks import read_task

        sides.append(read_task(config))
        return 0

    for _, overrides in options.sides:
        # Hydra composes and checks each side in the same way as a multirun.
        sys.argv[1:] = ["-m", *overrides, *options.common, "hydra/sweeper=plan"]
        code = run_command(keep)
        if code:
            return code
    if len(sides) < 2:
        return 0  # with --cfg, Hydra only prints the configuration
    return _compare_settings(options, *sides)


def _compare_settings(
    options: argparse.Namespace, first: ComposedSide, second: ComposedSide
) -> int:
    """Measure, record and report a comparison of two settings of this suite.

    Args:
        options: The options of the command line.
        first: The composed settings of the first side, its points (one per combination of
            hyperparameter values), and its sweep.
        second: The same for the second side. Only its points are used.

    Returns:
        The exit code of `main`.
    """
    from paradnn.compare.comparison import Comparison, pairs_of
    from paradnn.compare.report import closing_lines
    from paradnn.session.session import follow_design

    settings, points, info = first
    assert info is not None, "a multirun has a sweep"
    pairs = pairs_of(points, second[1], null=options.null)
    labels = (options.sides[0][0], options.sides[1][0])
    info = replace(info, name=f"{labels[0]} or {labels[1]}, {counted(len(pairs), 'point')}")
    comparison = Comparison(info.sweep_id, pairs, labels, options.rule, options.minutes)
    # The measurement of peak performance takes a minute, and a ratio does not need it.
    settings = replace(settings, ceilings=False)
    with contextlib.ExitStack() as stack:
        if not options.detail:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        summary = follow_design(comparison, settings, info)
    overall = comparison.overall()
    overall.seconds = summary.seconds
    document = overall.answer() | {
        "interrupted": summary.interrupted,
        "points": comparison.verdict_table(),
    }
    closing = [
        *closing_lines(overall, is_null=options.null),
        f"{summary.counts()}. Run {summary.parent} in {summary.where}",
    ]
    return _report(options, comparison.results, comparison.sentences(), closing, document)


def _compare_commands(options: argparse.Namespace) -> int:
    """Compare two commands, commits or functions, and return the exit code of `main`."""
    from paradnn.compare.commands import NULL_COMMAND
    from paradnn.compare.functions import comparison_of
    from paradnn.compare.processes import Command
    from paradnn.compare.report import closing_lines
    from paradnn.platform.commits import checkouts

    protocol = protocol_of(options)
    with contextlib.ExitStack() as stack:
        if options.commits:
            trees = stack.enter_context(checkouts(tuple(options.commits), options.setup))
            sides = [Command(checkout.label, options.words[0], checkout) for checkout in trees]
        elif options.null:
            command = options.words[0] if options.words else NULL_COMMAND
            sides = [Command("first", command), Command("second", command)]
        else:
            sides = [Command(command, command) for command in options.words]
        comparison = comparison_of(sides, options.rule, protocol)
        interrupted = comparison.follow(shows_progress=bool(options.detail))
    closing = [*comparison.notes(), *closing_lines(comparison, is_null=options.null)]
    document = comparison.document(interrupted=interrupted)
    return _report(options, [comparison], [str(comparison)], closing, document)


def _report(
    options: argparse.Namespace,
    results: Sequence[PairedResult],
    sentences: Sequence[str],
    closing: Sequence[str],
    document: dict[str, Any],
) -> int:
    """Write the requested files, print the result, and return the exit code of `main`.

    Files are written first, because printing to a pipe fails if its reader has exited.

    Args:
        options: The options of the command line.
        results: The result of each compared configuration.
        sentences: The verdicts as sentences, printed above the tables.
        closing: Lines to print below the tables.
        document: Content of the file of --json. `interrupted` says whether the user interrupted.
    """
    from paradnn.compare.report import print_results, write_files

    write_files(options, document, results)
    print_results(results, sentences, closing, options.detail)
    if document["interrupted"]:
        if options.sides:
            text = (
                "interrupted; completed rounds are recorded, but the same command would start over"
            )
        else:
            text = "interrupted"
        print(text, file=sys.stderr)
        return 130
    return int(any(result.verdict is Verdict.UNDECIDED for result in results))


if __name__ == "__main__":
    sys.exit(main())
