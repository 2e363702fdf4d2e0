"""python -m benchmarks.launchers [--points 50] [--chunks 50 10 1] [--launchers local slurm ray processes]

What a launcher costs for each point: a sweep of small FC models, measured as briefly as can be, through each launcher
and at each size of its tasks; where tasks are small, of five of them. Slurm and Ray run on this machine, as in
tests/cluster; every launcher runs one task at a time here, so that nothing but the launcher differs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from benchmarks.clusters import LAUNCHERS, Cluster, cluster
from benchmarks.common import ROOT, runs, save, train

TINY = [
    *("model.layers=1", "model.input_size=16", "model.output_size=4", "batch_size=4", "measure.min_seconds=0.02"),
    "measure.processes=1",
    *("measure.min_blocks=6", "measure.block_seconds=0.002", "measure.warmup_seconds=0.1"),
    "ceilings=false",
]
WORK = ("build", "compile", "warmup", "measure")
#: Those that run on this host alone, one task after the other.
ALONE = {"local": [], "processes": ["hydra/launcher=processes", "hydra.launcher.n_jobs=1"]}


def sweep(arguments: list[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Seconds of wall time that the command took."""
    given = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_"))}
    given |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", **environ}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "paradnn.train", "-m", *arguments],
        cwd=ROOT,
        env=given,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"paradnn.train {' '.join(arguments)}: {done.stderr}")
    return time.perf_counter() - begin


def one(launcher: str, chunk: int | None, points: int, folder: Path, given: Cluster) -> dict[str, object]:
    """One sweep through one launcher."""
    points = min(points, 5 * chunk) if chunk else points
    place = folder / f"{launcher}-{chunk}"
    place.mkdir()
    train(["model.nodes=4", *TINY], place)  # the database is made once
    arguments = [*given.arguments, f"model.nodes=range(8,{8 + points})", *TINY]
    wall = sweep(arguments + ([f"sweep.chunk={chunk}"] if chunk else []), place, given.environ)
    measured = runs(place)[1:]
    assert len(measured) == points
    work = sum(float(run[f"phase_{name}_seconds"]) for run in measured for name in WORK)
    first = {run.get("task"): run for run in reversed(measured)}  # a task's waits stand on each of its runs
    waits = [float(run["queue_seconds"]) for run in first.values() if "queue_seconds" in run]
    starts = [float(run["task_start_seconds"]) for run in first.values() if "task_start_seconds" in run]
    row: dict[str, object] = {
        "launcher": launcher,
        "chunk": chunk or points,
        "tasks": len(first),
        "wall_seconds": round(wall, 1),
        "overhead_a_point_seconds": round((wall - work) / points, 3),
        "queue_median_seconds": round(statistics.median(waits), 2) if waits else "",
        "task_start_median_seconds": round(statistics.median(starts), 2) if starts else "",
    }
    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--chunks", type=int, nargs="+", default=[50, 10, 1])
    parser.add_argument("--launchers", nargs="+", default=[*ALONE, *LAUNCHERS], choices=[*ALONE, *LAUNCHERS])
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for launcher in given.launchers:
            alone = nullcontext(Cluster(ALONE[launcher])) if launcher in ALONE else None
            with alone or cluster(launcher, folder, nodes=1) as made:
                for chunk in [None] if launcher == "local" else given.chunks:
                    rows.append(one(launcher, chunk, given.points, folder, made))
    save("launchers", rows)


if __name__ == "__main__":
    main()
