"""Measure deep-learning models on this machine; every point becomes an MLflow run.

One point:
  python -m paradnn.train model=lstm batch_size=64 compile=xla
A sweep over every combination:
  python -m paradnn.train -m model.nodes=32,64 batch_size=64,256
A preset, narrowed to one family; further axes widen it:
  python -m paradnn.train -m experiment=quick model=fc
The most informative points of a preset; the others are predicted:
  python -m paradnn.train -m experiment=paper_fc sweep.design=adaptive sweep.minutes=60
The largest batch that fits (docs/how-to/adaptive.md):
  python -m paradnn.train batch_size=largest model=gpt

The same sweep on a cluster (docs/how-to/clusters.md):
  python -m paradnn.train -m experiment=paper_fc hydra/launcher=submitit_slurm sweep.drivers=8

python -m paradnn.plan -m experiment=paper_fc forecasts how long a sweep takes. python -m
paradnn.compare measures which of two settings is faster (docs/how-to/compare.md).

To sweep a key, write its values as a,b,c, range(1,9) or choice(...). A list as a single value is
written in brackets: model.blocks=[3,4,6,3].
"""

# Keep imports inside the functions that need them, so that help and input errors are fast.
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
    """Measure the point or sweep that a composed configuration specifies.

    Returns:
        The exit code.
    """
    from paradnn.cli.console import say
    from paradnn.config.tasks import read_task
    from paradnn.session.launch import launch_sweep
    from paradnn.session.progress import describe_point, describe_sweep
    from paradnn.session.session import measure_points

    settings, points, sweep = read_task(config, allows_search=True)
    if settings.elsewhere is not None:
        from paradnn.session.elsewhere import prepare

        return prepare(points, settings.elsewhere, say)
    if sweep and sweep.launch is not None:
        summary = launch_sweep(points, settings, sweep)
        describe_sweep(summary)
    elif sweep:
        summary = _measure_sweep(points, settings, sweep)
        describe_sweep(summary)
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
        print(f"interrupted; {again} measures the missing points", file=sys.stderr)
    return summary.exit_code


def _measure_sweep(points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure every point of a sweep, or the points that its design chooses."""
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
    """Measure one point or a sweep and return the exit code."""
    return run_command(_measure, __doc__)


if __name__ == "__main__":
    sys.exit(main())
