"""python -m benchmarks.repeatability [--quick]

Ten replicates of three points in one sweep, in random order: the spread between processes beside the 95% interval that
each process reports of itself.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.common import runs, save, train

GRIDS = (
    "sweep.grids=[{model: fc, model.nodes: 512, batch_size: 256},"
    "{model: residual, model.filters: 16, model.image_size: 64, batch_size: 16},"
    "{model: lstm, model.embedding_size: 200, batch_size: 64}]"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 replicates, shorter")
    quick = parser.parse_args().quick
    protocol = ["measure=quick"] if quick else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(["-m", GRIDS, f"replicate=range({3 if quick else 10})", *protocol], folder)
        points = runs(folder)
    rows = []
    for family in ("fc", "residual", "lstm"):
        own = [run for run in points if run["model.name"] == family and run["outcome"] == "ok"]
        rates = [float(run["examples_per_second"]) for run in own]
        halves = [(float(r["examples_per_second_high"]) - float(r["examples_per_second_low"])) / 2 for r in own]
        centre = statistics.median(rates)
        covered = sum(
            float(r["examples_per_second_low"]) <= centre <= float(r["examples_per_second_high"]) for r in own
        )
        rows.append(
            {
                "point": own[0]["mlflow.runName"].split(" #")[0],
                "replicates": len(own),
                "median": round(centre, 1),
                "between_cv": f"{statistics.stdev(rates) / statistics.fmean(rates):.1%}",
                "range": f"{min(rates) / centre - 1:+.1%} {max(rates) / centre - 1:+.1%}",
                "within_half_width": f"{statistics.median(halves) / centre:.1%}",
                "intervals_over_the_common_median": f"{covered}/{len(own)}",
                "steady": f"{sum(run['steady'] == 'true' for run in own)}/{len(own)}",
            }
        )
    for row in rows:
        print("; ".join(f"{key} {value}" for key, value in row.items()))
    save("repeatability", rows)


if __name__ == "__main__":
    main()
