"""python -m benchmarks.contention [--points 36] [--model fc] [--framework tensorflow]

How a point tells what disturbs it: points measured beside 0, 1 and 2 processes that spin, in random order. For each
number the verdicts, what was counted as foreign, and how much slower the point was. Beside 0 every verdict `contended`
is a false alarm, unless the machine was busy with something else: what the point saw is printed, so one can tell.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys

from benchmarks.common import save
from paradnn.config.identity import request_of
from paradnn.config.point import read_point
from paradnn.session.workers import Limits, WorkerKey, WorkerPool

MODELS = {
    "fc": ({"name": "fc", "nodes": 1024}, 256),
    "tiny": ({"name": "fc", "layers": 1, "nodes": 8, "input_size": 16, "output_size": 4}, 4),
    "lstm": ({"name": "lstm"}, 64),
}
MEASURE = {"min_seconds": 0.5, "min_blocks": 6, "max_seconds": 20.0, "block_seconds": 0.05, "warmup_seconds": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=36, help="beside each number of spinning processes")
    parser.add_argument("--spinning", default="0,1,2")
    parser.add_argument("--model", choices=MODELS, default="fc")
    parser.add_argument("--framework", default="tensorflow")
    given = parser.parse_args()
    model, batch = MODELS[given.model]
    config = {"model": model, "batch_size": batch, "framework": {"name": given.framework}, "measure": MEASURE}
    point = read_point(config)
    order = [int(count) for count in given.spinning.split(",")] * given.points
    random.Random(0).shuffle(order)
    rows = []
    with WorkerPool() as pool:
        for spinning in [0, *order]:
            spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(spinning)]
            result = pool.measure(WorkerKey.of(point), request_of(point), Limits(120, None), lambda _: None)
            for spinner in spinners:
                spinner.kill()
                spinner.wait()
            measured = result.answer.measurement
            seen, timing = measured.contention, measured.timing
            rows.append(
                {
                    "spinning": spinning,
                    "contended": seen.reason is not None,
                    "foreign": seen.foreign_cpu_fraction,
                    "own": seen.own_cpu_fraction,
                    "steal": seen.steal_fraction,
                    "switches": seen.involuntary_switches_per_second,
                    "step": statistics.median(timing.blocks) / timing.steps_per_block,
                    "blocks": len(timing.blocks),
                    "steady": timing.steady,
                }
            )
    rows = rows[1:]  # the worker's first
    save(f"contention_{given.model}_{given.framework}", rows)
    base = statistics.median(row["step"] for row in rows if not row["spinning"]) if 0 in order else float("nan")
    for spinning in sorted(set(order)):
        found = [row for row in rows if row["spinning"] == spinning]
        told = sum(row["contended"] for row in found)
        slower = statistics.median(row["step"] for row in found) / base
        print(f"{spinning} spinning: {told} of {len(found)} contended, step time {slower:.2f} of that beside none")
        for name in ("foreign", "steal", "own", "switches", "blocks"):
            values = sorted(row[name] for row in found)
            print(f"  {name:<9} {values[0]:.3f} .. median {statistics.median(values):.3f} .. {values[-1]:.3f}")


if __name__ == "__main__":
    main()
