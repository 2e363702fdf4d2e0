"""`python -m paradnn.compare SIDE SIDE`: which of two is faster on this machine. Wiring only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.compare.arguments import read_arguments
from paradnn.compare.verdict import Verdict
from paradnn.core.words import counted

if TYPE_CHECKING:
    from paradnn.config.point import Point, Settings
    from paradnn.config.tasks import SweepInfo

#: Composes and checks a multirun as a whole.
_SWEEPER = "hydra/sweeper=plan"


@dataclass(frozen=True)
class _Composed:
    """The points of one side."""

    points: Sequence[Point]
    settings: Settings
    info: SweepInfo


def _compose(arguments: Sequence[str]) -> tuple[int, _Composed | None]:
    """The points that overrides name, or None and the exit code; what is wrong with them was printed."""
    found: list[_Composed] = []

    def keep(config: DictConfig) -> int:
        from paradnn.config.point import read_settings
        from paradnn.config.space import plain
        from paradnn.config.tasks import read_plan

        settings = read_settings(plain(config))
        points, info = read_plan(settings)
        found.append(_Composed(points, settings, info))
        return 0

    sys.argv[1:] = ["-m", *arguments, _SWEEPER]
    code = run_command(keep)
    return code, found[0] if found and not code else None


def _compare(request: argparse.Namespace, first: _Composed, second: _Composed) -> int:
    """Measure, print and record; the exit code."""
    from paradnn.compare.comparison import Comparison, pairs_of
    from paradnn.compare.text import answer, describe, verdict_table, write_json
    from paradnn.session.session import follow_course

    pairs = pairs_of(first.points, second.points, request.null)
    labels = request.sides[0].label, request.sides[1].label
    info = replace(first.info, name=f"{labels[0]} or {labels[1]}, {counted(len(pairs), 'point')}")
    comparison = Comparison(info.sweep_id, pairs, labels, request.rule, request.minutes)
    # What the machine can do at most takes a minute to measure, and says nothing of a ratio.
    summary = follow_course(comparison, replace(first.settings, ceilings=False), info)
    if request.json and not summary.interrupted:  # before anything is printed: who reads that may be gone
        whole = comparison.overall()
        found = answer(whole.estimate, request.rule.margin, len(whole.rounds), summary.seconds, whole.problem)
        write_json(request.json, found | {"points": verdict_table(comparison)})
    describe(comparison)
    print(f"\n{summary.counts()} in {summary.seconds:.0f} s. Run {summary.parent} in {summary.where}")
    if summary.interrupted:
        print("interrupted; what was measured is recorded, the same command begins again", file=sys.stderr)
        return summary.exit_code
    verdicts = {result.verdict(request.rule.margin) for result in comparison.results}
    return int(bool(verdicts & {None, Verdict.NOT_SETTLED}))


def _compare_commands(given: argparse.Namespace) -> int:
    """Run two commands by turns and say which is faster; the exit code."""
    from paradnn.compare.commands import null_command
    from paradnn.compare.duet import take_turns
    from paradnn.compare.text import describe_turns, write_json

    texts = given.words or [null_command()]
    labels = given.words if len(texts) == 2 else given.commits or ("first", "second")
    turns, interrupted = take_turns(given, labels, texts if len(texts) == 2 else texts * 2, given.commits, given.rule)
    if given.json:
        write_json(given.json, turns.document(interrupted))
    describe_turns(turns, given.null)
    if interrupted:
        print("interrupted", file=sys.stderr)
        return 130
    return int(turns.document()["verdict"] == Verdict.NOT_SETTLED)


@program
def main() -> int:
    """Compare two sides: 0 a verdict on every point, 1 a point without one, 2 wrong input, 130 interrupted."""
    request = read_arguments(sys.argv[1:])
    if request.sides is None:
        return _compare_commands(request)
    sides = []
    for side in request.sides:
        code, composed = _compose([*side.overrides, *request.common])
        if composed is None:
            return code
        sides.append(composed)
    return _compare(request, *sides)


if __name__ == "__main__":
    sys.exit(main())
