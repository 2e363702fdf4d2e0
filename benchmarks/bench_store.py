"""Compare time and memory of reading a tracking store through SQL tables and MLflow's search API.

    python -m benchmarks.bench_store --runs 100000 --api-runs 5000

Creates a SQLite store that MLflow initializes, fills it by bulk insertion with runs of 30 params,
40 metrics and 15 tags, and loads it with both readers in separate processes. Prints seconds
(imports included), peak resident memory and frame shapes, and whether both readers gave the same
frame if both read all runs. The search API takes milliseconds per run, so it reads a smaller
store unless `--api-runs` says otherwise.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from benchmarks.common import ROOT, Planted, fill
from paradnn.store.metrics import METRICS

N_PARAMS = 30
N_METRICS = 40
N_TAGS = 15

CHILD = """
import hashlib, json, resource, sys, time, warnings
start = time.perf_counter()
import pandas as pd
from analysis.store.load import load
uri, reader = sys.argv[1:3]
frame = load(uri, reader=reader)
seconds = time.perf_counter() - start
digest = hashlib.sha256()
for name in frame:
    digest.update(name.encode() + str(frame[name].dtype).encode())
    digest.update(pd.util.hash_pandas_object(frame[name], index=False).to_numpy().tobytes())
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
rows, columns = frame.shape
print(json.dumps({"seconds": seconds, "peak_mb": peak_mb, "rows": rows, "columns": columns,
                  "digest": digest.hexdigest()[:16]}))
"""


def main() -> None:
    """Create the stores, read them, and print one line per reader."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=100_000, help="runs that the SQL reader loads (default 100000)"
    )
    parser.add_argument(
        "--api-runs", type=int, default=5_000, help="runs that both readers load (default 5000)"
    )
    parser.add_argument(
        "--dir", type=Path, help="keep the stores in this folder and use them again"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        both = make_store(folder, args.api_runs)
        pair = [measure(both, reader) for reader in ("sql", "api")]
        same = "NO"
        if pair[0]["digest"] == pair[1]["digest"]:
            same = "yes"
        print("same frame from both readers:", same)
        if args.runs != args.api_runs:
            measure(make_store(folder, args.runs), "sql")


def measure(uri: str, reader: str) -> dict[str, Any]:
    """Load the store in a fresh process; return seconds, peak memory, and the frame's shape and
    digest.
    """
    done = subprocess.run(
        [sys.executable, "-c", CHILD, uri, reader], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    result: dict[str, Any] = json.loads(done.stdout)
    rate = 1000 * result["seconds"] / result["rows"]
    shape = f"{result['rows']:>7,} runs x {result['columns']} columns"
    took = f"{result['seconds']:7.2f} s"
    print(
        f"{reader}: {shape} in {took} ({rate:.3f} ms a run), peak {result['peak_mb']:,.0f} MB",
        flush=True,
    )
    return result


def make_store(folder: Path, runs: int) -> str:
    """Return the URI of a SQLite store in `folder` with the given number of runs; create it if
    missing.
    """
    path = folder / f"store-{runs}.db"
    uri = f"sqlite:///{path.resolve()}"
    if path.exists():
        return uri
    start = time.perf_counter()
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    MlflowClient(f"sqlite:///{unfinished.resolve()}").search_experiments()
    draw = random.Random(0)
    fill(unfinished, (point(draw, number) for number in range(runs)))
    unfinished.rename(path)
    print(
        f"made {path.name}: {path.stat().st_size / 1e6:,.0f} MB in "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )
    return uri


def point(draw: random.Random, number: int) -> Planted:
    """Return one run of a fully connected model with the target numbers of params, metrics and
    tags.
    """
    sizes = {"model.layers": 2 ** draw.randint(2, 7), "model.nodes": 2 ** draw.randint(5, 13)}
    sizes |= {
        "model.input_size": 2000,
        "model.output_size": 200,
        "batch_size": 2 ** draw.randint(6, 14),
    }
    params = {
        "model.name": "fc",
        **sizes,
        "precision": draw.choice(["float32", "bfloat16"]),
        "platform.name": "cpu",
    }
    params |= {
        "compile": "graph",
        "mode": "train",
        "seed": 0,
        "replicate": number % 3,
        "optimizer.learning_rate": 0.1,
    }
    params |= {f"measure.setting_{index}": index / 2 for index in range(N_PARAMS - len(params))}
    tags = {
        "kind": "point",
        "schema_version": "1",
        "outcome": "ok",
        "steady": "true",
        "source": "measured",
    }
    tags |= {
        "point_id": f"{draw.getrandbits(64):016x}",
        "environment_id": "0123456789abcdef",
        "host": "bench",
    }
    tags |= {
        "protocol_id": "fedcba9876543210",
        "sweep_id": f"sweep-{number // 5_000}",
        "device": "bench, 2 cores",
    }
    tags |= {"replicate": params["replicate"], "git_commit": "0" * 40, "version.python": "3.11.2"}
    tags |= {"mlflow.runName": f"fc-{number}"}
    metrics = {name: draw.lognormvariate(0, 3) for name in list(METRICS)[:N_METRICS]}
    assert (len(params), len(metrics), len(tags)) == (N_PARAMS, N_METRICS, N_TAGS)
    return Planted(
        uuid.UUID(int=draw.getrandbits(128)).hex,
        1_700_000_000_000 + 5_000 * number,
        params,
        tags,
        metrics,
    )


if __name__ == "__main__":
    main()
