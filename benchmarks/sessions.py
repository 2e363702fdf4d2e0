"""python -m benchmarks.sessions [--sessions 8] [--folder FOLDER] [OVERRIDE ...]

Where the seconds of one standard point go, and whether its interval holds for another time: the point is measured so
many times, each by a command of its own. Prints for each phase the median of its seconds, with what a command takes
beside them; each session's step time with its interval; and how many of the intervals hold the median of all.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import runs, save, train

POINT = ("model=fc", "model.layers=4", "model.nodes=1024", "batch_size=256", "ceilings=false")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where the measurements stay")
    parser.add_argument("overrides", nargs="*", help="of another point, such as measure.min_seconds=0.5")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        train(["--cfg", "job", *POINT], folder)  # what is read from the disk once
        rows = [session(folder, number, given.overrides) for number in range(given.sessions)]
    for name in rows[0]:
        if name.endswith("_seconds"):
            print(f"{name.removesuffix('_seconds'):>12} {statistics.median(row[name] for row in rows):6.2f} s")
    middle = statistics.median(row["step_ms"] for row in rows)
    for row in rows:
        low, high = row["low_ms"] / middle - 1, row["high_ms"] / middle - 1
        print(f"{row['step_ms']:.4g} ms, {low:+.1%} .. {high:+.1%} of the median, contended {row['contended']}")
    holds = sum(row["low_ms"] <= middle <= row["high_ms"] for row in rows)
    half = statistics.median((row["high_ms"] - row["low_ms"]) / 2 / row["step_ms"] for row in rows)
    print(f"{holds} of {len(rows)} intervals hold the median of all; half of one is {half:.1%} in the median")
    save("sessions", rows)


def session(folder: Path, number: int, overrides: list[str]) -> dict[str, float]:
    """One command: seconds of its phases, of all processes together, and the step time with its interval."""
    begin = time.perf_counter()
    train([*POINT, *overrides, f"replicate={number}"], folder)
    wall, run = time.perf_counter() - begin, runs(folder)[-1]
    phases = {key.removeprefix("phase_"): float(value) for key, value in run.items() if key.startswith("phase_")}
    ends = {name: float(run.get(f"step_time_{name}", "nan")) for name in ("low_ms", "high_ms")}
    beside = {"beside_seconds": wall - sum(phases.values()), "wall_seconds": wall}
    steps = {"step_ms": float(run["step_time_ms"]), **ends, "contended": float(run.get("contended") == "true")}
    return phases | beside | steps


if __name__ == "__main__":
    main()
