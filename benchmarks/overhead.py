"""Measure the overhead per point in a sweep of 50 small fully connected models.

    python -m benchmarks.overhead [--quick]

Measured in two independent ways: from the recorded phases (schedule + start + record), and from
the command's wall clock minus build, compile, warm-up and measurement. For comparison, the same
points as one fresh process each.
"""

import argparse
import statistics
import time

from benchmarks.common import runs, save, train
from paradnn.core.scratch import Scratch

PROTOCOL = ["measure.min_seconds=0.2", "measure.min_blocks=6", "measure.block_seconds=0.02"]
PROTOCOL += ["measure.warmup_seconds=1", "measure.processes=1"]
WORK = ("build", "compile", "warmup", "measure")


def work(run: dict) -> float:
    """Return the seconds that a point spends on work: build, compile, warm-up and measurement."""
    return sum(float(run[f"phase_{name}_seconds"]) for name in WORK)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="6 points and 1 fresh process")
    quick = parser.parse_args().quick
    if quick:
        nodes = "8,16,24"
        batches = "4,8"
        fresh_processes = 1
    else:
        nodes = "8,16,24,32,40,48,56,64,72,80"
        batches = "4,8,16,32,64"
        fresh_processes = 8
    with Scratch() as folder:
        train([*PROTOCOL, "model.nodes=4", "batch_size=2"], folder)  # the database is made once
        begin = time.perf_counter()
        train(["-m", f"model.nodes={nodes}", f"batch_size={batches}", *PROTOCOL], folder)
        wall = time.perf_counter() - begin
        points = runs(folder)[1:]
        overhead = [float(run["overhead_seconds"]) for run in points]
        rest = wall - sum(map(work, points))
        print(
            f"one sweep of {len(points)} points: {wall:.1f} s, including "
            f"{sum(map(work, points)):.1f} s of work"
        )
        low, middle, high = statistics.quantiles(overhead, n=4)
        print(
            f"  recorded overhead per point: median {middle:.3f} s, quartiles {low:.3f} .. "
            f"{high:.3f} s, ",
            end="",
        )
        print(f"first point {overhead[0]:.1f} s")
        print(
            "  wall clock minus work, start-up of driver and framework included: "
            f"{rest / len(points):.3f} s per point"
        )
        for phase in ("schedule", "start", "record"):
            median = statistics.median(float(run[f"phase_{phase}_seconds"]) for run in points)
            print(f"    {phase}: median {median:.3f} s")
        columns = ("mlflow.runName", "overhead_seconds")
        save(
            "overhead",
            [{key: run[key] for key in columns} | {"work_seconds": work(run)} for run in points],
        )
        fresh = []
        step = max(1, len(points) // fresh_processes)
        for run in points[::step][:fresh_processes]:
            begin = time.perf_counter()
            sizes = [f"{key}={run[key]}" for key in ("model.nodes", "batch_size")]
            train([*sizes, "resume=false", *PROTOCOL], folder)
            fresh.append(time.perf_counter() - begin - work(runs(folder)[-1]))
        print(
            f"one fresh process each, {len(fresh)} of them: median {statistics.median(fresh):.1f} "
            "s in addition to the work"
        )


if __name__ == "__main__":
    main()
