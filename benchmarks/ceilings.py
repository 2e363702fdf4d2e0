"""python -m benchmarks.ceilings [--rounds 5]

The measured ceilings against programs that share nothing with them, by turns in one run: a C program for memory
bandwidth (bandwidth.c, OpenMP) and OpenBLAS through NumPy for float32 products. Ratios are ceiling / independent.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.common import ROOT, save

ARRAY_BYTES = 2**28
PRODUCTS = """
import statistics, time
import numpy as np
best = 0.0
for size in (256, 512, 1024, 2048):
    left, right = (np.random.default_rng(0).standard_normal((size, size), dtype=np.float32) for _ in range(2))
    times = []
    begin = time.perf_counter()
    while len(times) < 8 or time.perf_counter() - begin < 0.4:
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    best = max(best, 2 * size**3 / statistics.median(times))
print(best)
"""


def compile_c(folder: Path) -> Path:
    program = folder / "bandwidth"
    source = Path(__file__).with_name("bandwidth.c")
    subprocess.run(["cc", "-O3", "-march=native", "-fopenmp", str(source), "-o", str(program)], check=True)
    return program


def measure_ceilings(folder: Path, number: int) -> dict[str, float]:
    """A fresh process, recording into a store of its own."""
    database = folder / f"round{number}.db"
    environ = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{database}"}
    subprocess.run([sys.executable, "-m", "paradnn.ceilings"], cwd=ROOT, env=environ, check=True, capture_output=True)
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT key, value FROM latest_metrics WHERE key LIKE 'peak_%'"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compile_c(folder)
        for number in range(given.rounds):
            suite = measure_ceilings(folder, number)
            printed = subprocess.check_output([program, str(ARRAY_BYTES)], text=True, stderr=subprocess.DEVNULL)
            independent = {line.split()[0]: float(line.split()[1]) for line in printed.splitlines()}
            blas = float(
                subprocess.run([sys.executable, "-c", PRODUCTS], check=True, capture_output=True, text=True).stdout
            )
            flops, moved = suite["peak_flops_per_second.float32"], suite["peak_bytes_per_second"]
            rows.append(
                {
                    "peak_flops_per_second": flops,
                    "openblas": blas,
                    "flops_ratio": flops / blas,
                    "peak_bytes_per_second": moved,
                    **independent,
                    "bandwidth_ratio": moved / independent["add_in_place"],
                    "triad_ratio": moved / independent["triad"],
                }
            )
            print({key: f"{value:.3g}" for key, value in rows[-1].items()}, flush=True)
    save("ceilings", rows)
    for key in ("flops_ratio", "bandwidth_ratio", "triad_ratio"):
        values = [row[key] for row in rows]
        print(f"{key}: median {statistics.median(values):.3f}, range {min(values):.3f} .. {max(values):.3f}")


if __name__ == "__main__":
    main()
