"""Compare planned and actual durations of a sweep.

    python -m benchmarks.plan [--store DB] [--points N]

A sweep of 60 points of six families is planned from a store that has few of them and from an
empty one, and then measured: expected and actual time of the command, and how many points lie
inside their intervals. The store is a copy of the given one, or the result of `experiment=quick`.
"""

import argparse
import csv
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import paradnn, runs, save, train
from paradnn.core.scratch import Scratch

GRIDS = (
    "sweep.grids=["
    "{model: fc, model.layers: '1,2,4,8', model.nodes: '32,128,512,1024',"
    " batch_size: '64,256,1024'},"
    "{model: 'residual,bottleneck', model.filters: '8,16,32', model.image_size: '32,64',"
    " batch_size: '8,16,32'},"
    "{model: 'rnn,lstm,gru', model.embedding_size: '50,100,200,400',"
    " model.sequence_length: '10,30', batch_size: '16,64,128'}]"
)
#: Numeric columns of a plan.
PLANNED = [
    f"{end}_{unit}" for unit in ("seconds", "step_ms") for end in ("expected", "low", "high")
]
COMMON = ["-m", GRIDS, "measure=quick", "measure.profile=false", "ceilings=false"]


def plan(arguments: list[str], folder: Path) -> tuple[str, list[dict[str, str]]]:
    """Return the plan's line for one host, and its rows."""
    out = folder / "points.csv"
    begin = time.perf_counter()
    said = paradnn("plan", [*arguments, f"plan.out={out}"], folder)
    print(f"  planned in {time.perf_counter() - begin:.1f} s")
    [line] = [line for line in said.splitlines() if line.startswith("On one host")]
    with out.open(newline="") as handle:
        return line.removeprefix("On one host: "), list(csv.DictReader(handle))


def against_reality(store: Path | None, points: int) -> None:
    """Plan, measure and compare."""
    arguments = [*COMMON, f"sweep.sample={points}"]
    with Scratch() as known, Scratch() as empty:
        if store:
            shutil.copy(store, known / "mlflow.db")
        else:
            train(["-m", "experiment=quick"], known)
        before = len(runs(known))
        print(f"store with {before} points, then an empty one:")
        (expected, rows), (alone, rows_alone) = (
            plan(arguments, folder) for folder in (known, empty)
        )
        begin = time.perf_counter()
        train(arguments, known)
        wall = time.perf_counter() - begin
        measured = {str(run["mlflow.runName"]): run for run in runs(known)[before:]}
        print(
            f"{len(measured)} points, expected {expected}, from the cost model alone {alone}, "
            f"actual {wall:.0f} s"
        )
        compare("with the store", rows, measured)
        compare("from the cost model alone", rows_alone, measured)


def compare(
    title: str, rows: list[dict[str, str]], measured: dict[str, dict[str, str | float]]
) -> None:
    """Print the errors of each point's phases and steps; time between points is in no phase."""
    table = pd.DataFrame(
        [row for row in rows if measured.get(row["name"], {}).get("outcome") == "ok"]
    )
    table[PLANNED] = table[PLANNED].astype(float)
    found = [measured[name] for name in table["name"]]
    phases = [
        sum(float(value) for key, value in run.items() if key.startswith("phase_")) for run in found
    ]
    imported = [max(0.0, float(run["phase_start_seconds"]) - 0.5) for run in found]
    table["seconds"], table["step_ms"] = (
        np.subtract(phases, imported),
        [float(run["step_time_ms"]) for run in found],
    )
    said = []
    for what, unit in (("point", "seconds"), ("step", "step_ms")):
        low, middle, high = (table[unit] / table[f"expected_{unit}"]).quantile([0.1, 0.5, 0.9])
        inside = table[unit].between(table[f"low_{unit}"], table[f"high_{unit}"]).mean()
        said.append(
            f"{what} actual/expected {middle:.2f} ({low:.2f} .. {high:.2f}), {inside:.0%} within"
        )
    print(f"  {title}: {'; '.join(said)}")
    save(
        f"plan {title}".replace(" ", "_"),
        table[["name", *PLANNED, "seconds", "step_ms"]].to_dict("records"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", type=Path, help="a database to copy; default: experiment=quick is measured"
    )
    parser.add_argument("--points", type=int, default=60)
    arguments = parser.parse_args()
    against_reality(arguments.store, arguments.points)


if __name__ == "__main__":
    main()
