"""python -m benchmarks.plan [--store DB] [--points N]

Plan against reality. A sweep of 60 points of six families is planned twice, from a store that knows little of it and
from an empty one, and then measured: expected and actual time of the command, and how many points are within their
intervals. The store is a copy of the given one, or one that `experiment=quick` is measured into first.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, runs, save, train

GRIDS = (
    "sweep.grids=["
    "{model: fc, model.layers: '1,2,4,8', model.nodes: '32,128,512,1024', batch_size: '64,256,1024'},"
    "{model: 'residual,bottleneck', model.filters: '8,16,32', model.image_size: '32,64', batch_size: '8,16,32'},"
    "{model: 'rnn,lstm,gru', model.embedding_size: '50,100,200,400', model.sequence_length: '10,30',"
    " batch_size: '16,64,128'}]"
)
COMMON = ["-m", GRIDS, "measure=quick", "measure.profile=false", "ceilings=false"]


def plan(arguments: list[str], folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The plan's line on one host, and its rows."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_"))}
    environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    out = folder / "points.csv"
    command = [sys.executable, "-m", "paradnn.plan", *arguments, f"plan.out={out}"]
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environ, text=True, capture_output=True, check=True)
    print(f"  planned in {time.perf_counter() - begin:.1f} s")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("On one host")]
    with out.open(newline="") as handle:
        return line.removeprefix("On one host: "), list(csv.DictReader(handle))


def against_reality(store: Path | None, points: int) -> None:
    """Plan, measure, compare."""
    arguments = [*COMMON, f"sweep.sample={points}"]
    with tempfile.TemporaryDirectory() as name:
        known, empty = Path(name) / "known", Path(name) / "empty"
        known.mkdir()
        empty.mkdir()
        if store:
            shutil.copy(store, known / "mlflow.db")
        else:
            train(["-m", "experiment=quick"], known)
        before = len(runs(known))
        print(f"store with {before} points:")
        expected, rows = plan(arguments, known)
        print("empty store:")
        alone, rows_alone = plan(arguments, empty)
        begin = time.perf_counter()
        train(arguments, known)
        wall = time.perf_counter() - begin
        measured = {str(run["mlflow.runName"]): run for run in runs(known)[before:]}
        print(f"{len(measured)} points, expected {expected}, from the cost model alone {alone}, actual {wall:.0f} s")
        for title, planned in (("with the store", rows), ("from the cost model alone", rows_alone)):
            compare(title, planned, measured)


def compare(title: str, rows: list[dict[str, str]], measured: dict[str, dict[str, str | float]]) -> None:
    """How far each point's phases and step are from what was expected; what lies between points is in no phase."""
    ratios, inside, steps, steps_inside, table = [], [], [], [], []
    for row in rows:
        run = measured.get(row["name"])
        if run is None or run["outcome"] != "ok":
            continue
        phases = [float(value) for key, value in run.items() if key.startswith("phase_")]
        spent = sum(phases) - max(0.0, float(run["phase_start_seconds"]) - 0.5)  # without the import
        step = float(run["step_time_ms"])
        ratios.append(spent / float(row["expected_seconds"]))
        inside.append(float(row["low_seconds"]) <= spent <= float(row["high_seconds"]))
        steps.append(step / float(row["expected_step_ms"]))
        steps_inside.append(float(row["low_step_ms"]) <= step <= float(row["high_step_ms"]))
        table.append(
            {key: row[key] for key in ("name", "expected_seconds", "low_seconds", "high_seconds")}
            | {"seconds": spent, "expected_step_ms": row["expected_step_ms"], "step_ms": step}
        )
    print(
        f"  {title}: point {ratios_of(ratios)}, {np.mean(inside):.0%} within; step {ratios_of(steps)}, "
        f"{np.mean(steps_inside):.0%} within"
    )
    save(f"plan {title}".replace(" ", "_"), table)


def ratios_of(ratios: list[float]) -> str:
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    return f"actual/expected {middle:.2f} ({low:.2f} .. {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a database to copy; default: experiment=quick is measured")
    parser.add_argument("--points", type=int, default=60)
    arguments = parser.parse_args()
    against_reality(arguments.store, arguments.points)


if __name__ == "__main__":
    main()
