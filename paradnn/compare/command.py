"""`python -m paradnn.compare SIDE SIDE`: which of two is faster on this machine. Wiring only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program
from paradnn.compare.arguments import Commands, Request, read_arguments
from paradnn.core.words import counted

if TYPE_CHECKING:
    from paradnn.config.point import Point, Settings
    from paradnn.sweep.tasks import SweepInfo

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
        from paradnn.sweep.space import plain
        from paradnn.sweep.tasks import read_plan

        settings = read_settings(plain(config))
        points, info = read_plan(settings)
        found.append(_Composed(points, settings, info))
        return 0

    sys.argv[1:] = ["-m", *arguments, _SWEEPER]
    code = run_command(keep)
    return code, found[0] if found and not code else None


def _compare(request: Request, first: _Composed, second: _Composed) -> int:
    """Measure, print and record; the exit code."""
    from paradnn.compare.comparison import pairs_of
    from paradnn.compare.screen import verdict_word, write_json
    from paradnn.compare.text import RecordedComparison, describe, ends_of, verdict_table
    from paradnn.compare.verdict import Verdict
    from paradnn.session.session import follow_course

    pairs = pairs_of(first.points, second.points, request.null)
    labels = request.sides[0].label, request.sides[1].label
    title = f"{labels[0]} or {labels[1]}, {counted(len(pairs), 'point')}"
    info = replace(first.info, name=title)
    comparison = RecordedComparison(info.sweep_id, pairs, labels, request.rule, request.minutes)
    summary = follow_course(comparison, first.settings, info)
    describe(comparison)
    print(f"\n{summary.counts()} in {summary.seconds:.0f} s. Run {summary.parent} in {summary.where}")
    if summary.interrupted:
        print("interrupted; what was measured is recorded, the same command begins again", file=sys.stderr)
        return summary.exit_code
    results = comparison.results()
    if request.json:
        whole = comparison.overall() or results[0]
        found = whole.estimate
        content = {
            **ends_of(found),
            "verdict": "undecided" if whole.problem else verdict_word(found, request.rule.margin),
            "rounds": len(whole.rounds),
            "seconds": summary.seconds,
        }
        write_json(request.json, {**content, "problem": whole.problem, "points": verdict_table(comparison)})
    verdicts = {result.verdict(request.rule.margin) for result in results}
    return int(bool(verdicts & {None, Verdict.NOT_SETTLED}))


def _compare_commands(request: Commands) -> int:
    """Run two commands by turns and say which is faster; the exit code."""
    from contextlib import ExitStack

    from paradnn.compare.commands import Command, Progress, Turns, checkouts, follow, null_command
    from paradnn.compare.duet import Duet, is_function
    from paradnn.compare.screen import describe_commands, document, write_json
    from paradnn.compare.verdict import Verdict

    texts = [*(request.words or [null_command()])]
    texts = texts if len(texts) == 2 else texts * 2
    labels = request.words if len(request.words) == 2 else request.commits or ("first", "second")
    with ExitStack() as opened:
        places: list[tuple[Path | None, dict[str, str]]] = [(None, {}), (None, {})]
        if request.commits:
            places = opened.enter_context(checkouts(request.commits, request.setup, request.environments))
        first, second = (
            Command(label, text, folder, variables, request.prepare)
            for label, text, (folder, variables) in zip(labels, texts, places, strict=True)
        )
        kind = Duet if all(map(is_function, texts)) else Turns
        turns = kind((first, second), request.rule, minutes=request.minutes, **request.how)
        interrupted = follow(turns, Progress(request.minutes))
    describe_commands(turns, request.null)
    if request.json:
        write_json(request.json, document(turns, request.null, interrupted))
    if interrupted:
        print("interrupted", file=sys.stderr)
        return 130
    found = turns.estimate
    settled = found is not None and not turns.problem and found.verdict(request.rule.margin) is not Verdict.NOT_SETTLED
    return int(not settled)


@program
def main() -> int:
    """Compare two sides: 0 a verdict on every point, 1 a point without one, 2 wrong input, 130 interrupted."""
    request = read_arguments(sys.argv[1:])
    if isinstance(request, Commands):
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
