"""Report whether the interval of a run covers a later measurement.

    python -m benchmarks.repeatability [--starts 3] [--pause 60] [--replicates 10] [--processes 5]
        [--folder FOLDER]

The driver starts several times, with minutes of pause between starts. In every start it measures
six points of six families `replicates` times, each time in `processes` processes. From the raw
blocks the program computes how often the interval of the first 1, 2, 3, ... processes covers the
median of all, and how wide it is. With --folder measurements are kept, and a second call continues
with them.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import artifact, runs, save, train
from paradnn.session.measured import summarize

CNN = "model.filters: 16, model.image_size: 64, batch_size: 16"
RNN = "model.embedding_size: 200, batch_size: 64"
GRIDS = (
    f"sweep.grids=[{{model: fc, model.nodes: 512, batch_size: 256}}, "
    f"{{model: 'residual,bottleneck', {CNN}}},"
    f"{{model: 'rnn,lstm,gru', {RNN}}}]"
)

#: Start time of each process of a run, and the step times in seconds of its blocks.
Measured = list[tuple[float, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=3, help="starts of the driver")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first of them, to go on with a folder"
    )
    parser.add_argument("--pause", type=float, default=60.0, help="minutes between two starts")
    parser.add_argument(
        "--replicates", type=int, default=10, help="times that each start measures each point"
    )
    parser.add_argument("--processes", type=int, default=5, help="processes of each time")
    parser.add_argument("--folder", type=Path, help="where the measurements stay")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(exist_ok=True)
        for start in range(given.first, given.first + given.starts):
            if start > given.first:
                time.sleep(60 * given.pause)
            count = given.replicates
            replicates = f"replicate=range({start * count},{(start + 1) * count})"
            train(["-m", GRIDS, replicates, f"measure.processes={given.processes}"], folder)
        points = [run for run in runs(folder) if run.get("outcome") == "ok"]
        measured = {str(run["run_id"]): _processes(folder, run) for run in points}
    rows = _rows(points, measured)
    for row in rows:
        print("; ".join(f"{key} {value}" for key, value in row.items()))
    save("repeatability", rows)


def _processes(folder: Path, run: Mapping[str, Any]) -> Measured:
    content = json.loads(artifact(folder, run, "blocks.json").read_text())
    return [
        (entry["begun"], [seconds / entry["steps_per_block"] for seconds in entry["blocks"]])
        for entry in content["processes"]
    ]


def _rows(
    points: Sequence[Mapping[str, Any]], measured: Mapping[str, Measured]
) -> list[dict[str, Any]]:
    """Return a row per family and number of processes, and for all families together."""
    families: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in points:
        families[str(run["model.name"])].append(run)
    rows = []
    total = defaultdict(list)
    for family, own in families.items():
        everything = [measured[run["run_id"]] for run in own]
        center = statistics.median(
            statistics.median(steps) for entry in everything for _, steps in entry
        )
        for count in range(1, max(map(len, everything)) + 1):
            found = [
                summarize([steps for _, steps in entry[:count]])
                for entry in everything
                if len(entry) >= count
            ]
            known = [entry for entry in found if entry.low is not None and entry.high is not None]
            covered = [entry.low <= center <= entry.high for entry in known]
            widths = [(entry.high - entry.low) / 2 / center for entry in known]
            seconds = statistics.median(_seconds(run, count) for run in own)
            total[count] += zip(covered, widths, strict=True)
            between = [entry.between_cv for entry in found if entry.between_cv is not None]
            row = {
                "point": family,
                "processes": count,
                "times": len(known),
                "covers": f"{sum(covered)}/{len(known)}",
            }
            row |= {"half_width": f"{statistics.median(widths):.1%}", "seconds": f"{seconds:.1f}"}
            row["within_cv"] = f"{statistics.median(entry.cv or 0 for entry in found):.1%}"
            row["between_cv"] = ""
            if between:
                row["between_cv"] = f"{statistics.fmean(b**2 for b in between) ** 0.5:.1%}"
            rows.append(row)
    for count, entries in total.items():
        covered = [c for c, _ in entries]
        widths = [w for _, w in entries]
        share = f"{sum(covered)}/{len(covered)} = {sum(covered) / len(covered):.1%}"
        half = f"{statistics.median(widths):.1%}"
        rows.append({"point": "all", "processes": count, "covers": share, "half_width": half})
    return rows


def _seconds(run: Mapping[str, Any], count: int) -> float:
    """Return the seconds of the run's first processes, recording included."""
    names = ("schedule", "start", "build", "compile", "warmup", "measure")
    once = float(run.get("phase_record_seconds", 0.0))
    return once + count * sum(float(run[f"phase_{name}_seconds"]) for name in names) / float(
        run["processes"]
    )


if __name__ == "__main__":
    main()
