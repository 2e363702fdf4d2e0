"""python -m benchmarks.infeed [--folder FOLDER] [--real]

The paper's Figure 5 on this machine: CNNs fed with JPEG pictures, by one thread of the pipeline and by two. For each:
the share of the step spent waiting, what free input brings, and the gain of the second thread as it is predicted beside
the gain that is seen. Given the same folder again it measures what is missing. `--real`: the real CNNs, small batches.

The prediction takes nothing but the run with one thread. Of C cores, a step that has them all to itself does F examples
a second, so an example costs it C / F of a core's seconds; the pipeline's cost P is measured. Together they can do no
more than C / (C / F + P), and a pipeline of t threads no more than t / P: the smaller is the rate that is predicted.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import runs, save, train

PROTOCOL = ["measure.min_seconds=1", "measure.min_blocks=8", "measure.warmup_seconds=3"]
PROTOCOL += ["measure.processes=1", "sweep.order=given"]
INPUT = ["data=images", "data.threads=1,2"]
MODELS = {
    False: ["model=residual,bottleneck", "model.filters=4,16,32", "model.image_size=32,64,128", "batch_size=32"],
    True: ["model=squeezenet,mobilenet,resnet50,densenet121", "model.image_size=128", "batch_size=8"],
}
#: What names a point, without the number of threads.
NAMES = ("model.name", "model.blocks", "model.filters", "model.image_size", "batch_size")

Run = Mapping[str, str | float]


def predicted(run: Run, threads: int, cores: int) -> float:
    """Examples a second with so many threads, from one run's own measurements."""
    cost = float(run["input_cpu_ms_per_example"]) / 1e3
    return min(cores / (cores / float(run["input_free_examples_per_second"]) + cost), threads / cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where runs are kept (default: nowhere)")
    parser.add_argument("--real", action="store_true", help="the real CNNs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        train(["-m", *MODELS[arguments.real], *INPUT, *PROTOCOL], folder)
        report([run for run in runs(folder) if run.get("outcome") == "ok" and "infeed_gain" in run])


def report(measured: list[Run]) -> None:
    """The table on standard output and in benchmarks/results/infeed.csv."""
    pairs: dict[str, dict[int, Run]] = {}
    for run in measured:
        key = " ".join(str(run[name]) for name in NAMES if name in run)
        pairs.setdefault(key, {})[int(float(run["input_threads"]))] = run
    rows = [_row(key, pair) for key, pair in pairs.items() if {1, 2} <= set(pair)]
    print("point: waits with 1, 2 threads; free input brings (1, 2); the second thread brings: predicted, seen")
    for row in rows:
        print(
            f"{row['point']}: {row['wait_1']:.0%}, {row['wait_2']:.0%}; {row['gain_1']:+.0%} "
            f"({row['gain_1_low']:+.0%} .. {row['gain_1_high']:+.0%}), {row['gain_2']:+.0%}; "
            f"{row['predicted']:+.0%}, {row['seen']:+.0%}"
        )
    if rows:
        errors = [abs(row["seen"] - row["predicted"]) for row in rows]
        middle, most = f"{statistics.median(errors):.1%} in the median", f"{max(errors):.1%} at most"
        print(f"{len(rows)} points; prediction off by {middle}, {most}")
        save("infeed", rows)


def _row(key: str, pair: Mapping[int, Run]) -> dict[str, Any]:
    one, cores = pair[1], len(os.sched_getaffinity(0))
    first, second = (float(pair[threads]["examples_per_second"]) for threads in (1, 2))
    return {
        "point": key,
        **{f"wait_{threads}": run["infeed_fraction"] for threads, run in pair.items()},
        **{f"gain_{threads}": run["infeed_gain"] for threads, run in pair.items()},
        **{f"gain_1_{end}": one.get(f"infeed_gain_{end}", float("nan")) for end in ("low", "high")},
        "cpu_ms": one["input_cpu_ms_per_example"],
        "predicted": predicted(one, 2, cores) / predicted(one, 1, cores) - 1,
        "seen": second / first - 1,
    }


if __name__ == "__main__":
    main()
