"""Compare measured ceilings with independent programs that run alternately.

    python -m benchmarks.ceilings [--rounds 5]

References are a C program for memory bandwidth (bandwidth.c, OpenMP) and OpenBLAS through NumPy
for float32 products. Ratios are ceiling / independent.
"""

import argparse
import sqlite3
import statistics
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from benchmarks.common import paradnn, save
from paradnn.core.scratch import Scratch

ARRAY_BYTES = 2**28
PRODUCTS = """
import statistics, time
import numpy as np
best = 0.0
for size in (256, 512, 1024, 2048):
    random = np.random.default_rng(0)
    left, right = random.standard_normal((2, size, size), dtype=np.float32)
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
    subprocess.run(
        ["cc", "-O3", "-march=native", "-fopenmp", str(source), "-o", str(program)], check=True
    )
    return program


def measure_ceilings(folder: Path) -> dict[str, float]:
    """Measure the ceilings in a fresh process with a separate store."""
    paradnn("ceilings", [], folder)
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return dict(
            connection.execute("SELECT key, value FROM latest_metrics WHERE key LIKE 'peak_%'")
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows: list[dict[str, float]] = []
    with Scratch() as folder:
        program = compile_c(folder)
        for _ in range(given.rounds):
            with Scratch() as own:
                suite = measure_ceilings(own)
            printed = subprocess.check_output(
                [program, str(ARRAY_BYTES)], text=True, stderr=subprocess.DEVNULL
            )
            independent = {line.split()[0]: float(line.split()[1]) for line in printed.splitlines()}
            blas = float(subprocess.check_output([sys.executable, "-c", PRODUCTS], text=True))
            flops = suite["peak_flops_per_second.float32"]
            moved = suite["peak_bytes_per_second"]
            ratios = {
                "flops_ratio": flops / blas,
                "bandwidth_ratio": moved / independent["add_in_place"],
            }
            rows.append(
                {"peak_flops_per_second": flops, "openblas": blas, "peak_bytes_per_second": moved}
            )
            rows[-1] |= independent | ratios | {"triad_ratio": moved / independent["triad"]}
            print({key: f"{value:.3g}" for key, value in rows[-1].items()}, flush=True)
    save("ceilings", rows)
    for key in ("flops_ratio", "bandwidth_ratio", "triad_ratio"):
        values = [row[key] for row in rows]
        print(
            f"{key}: median {statistics.median(values):.3f}, range {min(values):.3f} .. "
            f"{max(values):.3f}"
        )


if __name__ == "__main__":
    main()
