"""Measure deep-learning models on this machine; every point becomes an MLflow run.

  python -m paradnn.train model=lstm batch_size=64 compile=xla     one point
  python -m paradnn.train -m model.nodes=32,64 batch_size=64,256   a sweep: every combination
  python -m paradnn.train -m experiment=quick model=fc             a preset, narrowed; add axes to widen it
  python -m paradnn.train -m experiment=paper_fc sweep.design=adaptive sweep.minutes=60
                                                                   the points that teach most, the others predicted
  python -m paradnn.train batch_size=largest model=gpt             the largest batch that fits (docs/how-to/adaptive.md)
  python -m paradnn.plan -m experiment=paper_fc                    how long it would take: measures nothing
  python -m paradnn.compare compile=graph compile=xla -- model=lstm
                                                                   which is faster, by turns (docs/how-to/compare.md)
  the same command on several hosts                                each takes points that no other has: docs/how-to/clusters.md

Values are swept as a,b,c or range(1,9) or choice(...); lists are written model.blocks=[3,4,6,3].
"""

# Wiring only: bad input ends in one line and exit code 2, and no framework is imported here.
from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from paradnn.cli.command import run_command
from paradnn.cli.program import program

if TYPE_CHECKING:
    from paradnn.config.point import Point
    from paradnn.config.settings import Settings
    from paradnn.config.tasks import SweepInfo
    from paradnn.session.design import Summary


def _measure(config: DictConfig) -> int:
    """Measure what the configuration describes; the exit code."""
    from paradnn.cli.console import say
    from paradnn.config.tasks import read_task
    from paradnn.session.progress import describe_point, describe_sweep
    from paradnn.session.session import measure_points

    settings, points, sweep = read_task(config, allows_search=True)
    if settings.elsewhere is not None:
        from paradnn.session.elsewhere import prepare

        return prepare(points, settings.elsewhere, say)
    if sweep:
        describe_sweep(summary := _measure_sweep(points, settings, sweep))
    else:
        summary = measure_points(points, settings, None)
        for row in summary.rows:
            say(describe_point(row, summary.where))
    if summary.problem:
        print(f"error: {summary.problem}", file=sys.stderr)
    if summary.interrupted:
        if settings.resume is not False:
            again = "the same command"
        else:
            again = "the same command without resume=false"
        print(f"interrupted; {again} measures what is missing", file=sys.stderr)
    return summary.exit_code


def _measure_sweep(points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure a sweep in this process: every point, or those that its design chooses."""
    from paradnn.session.session import follow_design, measure_points

    if sweep.is_search:
        from paradnn.designs.largest import LargestBatch

        return follow_design(LargestBatch(points, settings), settings, sweep)
    if settings.sweep.design == "grid":
        return measure_points(points, settings, sweep)
    from paradnn.designs.adaptive import AdaptiveSweep

    return follow_design(AdaptiveSweep(points, settings, sweep), settings, sweep)


@program
def main() -> int:
    """Measure one point or a sweep; the process' exit code."""
    return run_command(_measure, __doc__)


if __name__ == "__main__":
    sys.exit(main())
