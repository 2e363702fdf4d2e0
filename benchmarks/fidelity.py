"""python -m benchmarks.fidelity [--rounds 5] [--framework jax] [--points resnet50]

Throughput as ParaDnn reports it over that of a hand-written loop in the framework's own API (`plain_tensorflow.py`,
`plain_jax.py`, `plain_torch.py`, which import nothing of ours), for two points of each kind of family or, if asked, of
ResNet-50; each side in a fresh process, alternating, the order drawn anew in every round. The machine's drift between
rounds cancels in the ratio of a round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, runs, save, train

POINTS = {
    "fc-small": "model=fc model.layers=4 model.nodes=256 batch_size=64",
    "fc-large": "model=fc model.layers=4 model.nodes=1024 batch_size=512",
    "residual": "model=residual model.filters=16 model.image_size=64 batch_size=16",
    "bottleneck": "model=bottleneck model.filters=16 model.image_size=64 batch_size=16",
    "rnn": "model=rnn model.embedding_size=100 batch_size=64",
    "lstm": "model=lstm model.embedding_size=300 batch_size=64",
}
REAL = {"resnet50": "model=resnet50 batch_size=4"}


def ours(framework: str, name: str, folder: Path, seconds: float) -> float:
    axes = [f"framework={framework}", f"measure.min_seconds={seconds}", "resume=false", "ceilings=false"]
    train([*(POINTS | REAL)[name].split(), *axes], folder)
    return float(runs(folder)[-1]["step_time_ms"]) / 1e3


def plain(framework: str, name: str, seconds: float) -> float:
    command = [sys.executable, f"benchmarks/plain_{framework}.py", name, str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["step_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--framework", choices=("tensorflow", "jax", "torch"), default="tensorflow")
    parser.add_argument("--points", nargs="+", choices=POINTS | REAL, default=list(POINTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of measurement on each side")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in given.points}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            for name in random.sample(given.points, len(given.points)):
                times = {}
                for side in random.sample(["ours", "plain"], 2):
                    times[side] = (
                        ours(given.framework, name, Path(folder), given.seconds)
                        if side == "ours"
                        else plain(given.framework, name, given.seconds)
                    )
                ratios[name].append(times["plain"] / times["ours"])
                print(f"round {number + 1} {name}: {ratios[name][-1]:.3f}", flush=True)
    rows = [
        {
            "point": name,
            "median_ratio": round(statistics.median(values), 4),
            "lowest": round(min(values), 4),
            "highest": round(max(values), 4),
            "rounds": len(values),
        }
        for name, values in ratios.items()
    ]
    for row in rows:
        print(row)
    every = [ratio for values in ratios.values() for ratio in values]
    print(f"median ratio over all: {statistics.median(every):.4f}")
    save("fidelity" if given.framework == "tensorflow" else f"fidelity_{given.framework}", rows)


if __name__ == "__main__":
    main()
