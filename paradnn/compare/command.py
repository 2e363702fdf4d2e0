"""`python -m paradnn.compare SIDE SIDE -- OVERRIDES`: which of two is faster on this machine. Wiring only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.compare.arguments import Request, read_arguments
from paradnn.core.words import counted
from paradnn.errors import ParadnnError

if TYPE_CHECKING:
    from paradnn.config.point import Point, Settings
    from paradnn.sweep.tasks import SweepInfo

__all__ = ["main"]

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
    from paradnn.compare.conclusion import RecordedComparison
    from paradnn.compare.text import describe
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
    verdicts = {result.verdict(request.rule.margin) for result in comparison.results()}
    return int(bool(verdicts & {None, Verdict.NOT_SETTLED}))


def main() -> int:
    """Compare two sides: 0 a verdict on every point, 1 a point without one, 2 wrong input, 130 interrupted."""
    try:
        request = read_arguments(sys.argv[1:])
        sides = []
        for side in request.sides:
            code, composed = _compose([*side.overrides, *request.common])
            if composed is None:
                return code
            sides.append(composed)
        return _compare(request, *sides)
    except ParadnnError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
