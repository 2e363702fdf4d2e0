"""python -m benchmarks.kernels [--frameworks tensorflow,jax,torch] [--sizes 1760x16x1760,...] [--starts 3]

`model=gemm` beside a loop over the framework's own product, which imports nothing of ours: programs `ours`, `plain` and
`copy`, as in `benchmarks.fidelity`, whose turns and intervals these are, and `numpy`, the product of NumPy's OpenBLAS.
Ratios are of throughputs. Every start has processes of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, ROOT, save
from benchmarks.fidelity import FRAMEWORKS, Cell, quiet, take_turns
from benchmarks.kernels_ours import point
from benchmarks.turns import Failed, Stage
from paradnn.session.workers import WorkerKey

#: DeepBench's, from a product that is mostly its call to one of 15 GFLOP.
SIZES = "64x1x1216,1760x16x1760,1760x128x1760,5124x700x2048"


def measure(framework: str, given: argparse.Namespace, order: random.Random) -> list[Cell]:
    """A cell for each size. Raises Failed."""
    mode = given.compile or ("eager" if framework == "torch" else "graph")
    plain = ["benchmarks.kernels_plain", framework, mode]
    bare = ["benchmarks.kernels_plain", "numpy", "eager"]
    commands = {"ours": ["benchmarks.kernels_ours", framework, mode], "plain": plain, "copy": plain, "numpy": bare}
    cells = {size: Cell(framework, size) for size in given.sizes.split(",")}
    environ = WorkerKey.of(point(framework, mode, "1x1x1")).environ()
    for _ in range(given.starts):
        with Stage(commands, environ, ROOT) as stage:
            opened = {size: stage.open(size) for size in cells}
            for programs in opened.values():
                for program in programs:
                    program.ready()
            with quiet(given.hold, given.settle):
                for size, programs in opened.items():
                    times = take_turns(programs, given.rounds, given.block, order, lambda: None)
                    cells[size].starts.append(times)
    return list(cells.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", default="tensorflow", help="separated by commas")
    parser.add_argument("--sizes", default=SIZES, help="M x N x K, separated by commas")
    parser.add_argument("--compile", help="graph, xla or eager; by default graph, and PyTorch's eager")
    parser.add_argument("--rounds", type=int, default=60, help="of each start")
    parser.add_argument("--block", type=float, default=0.1, help="seconds of a turn, at least one step")
    parser.add_argument("--starts", type=int, default=3, help="of all processes")
    parser.add_argument("--hold", type=Path, help="file that is there while blocks are timed, for others to wait for")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds to wait at most until nothing else runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    given = parser.parse_args()
    ratios = {"ours / plain": (["ours"], ["plain", "copy"]), "plain / copy": (["plain"], ["copy"])}
    ratios["ours / NumPy"] = (["ours"], ["numpy"])
    table, rows, console = Table("framework", "m x n x k", *ratios, box=None), [], Console()
    for framework in given.frameworks.split(","):
        if framework not in FRAMEWORKS:
            parser.error(f"--frameworks {framework}: choose among {', '.join(FRAMEWORKS)}")
        try:
            cells = measure(framework, given, random.Random(0))
        except Failed as error:
            console.print(f"{framework}: {error}", style="red", markup=False)
            continue
        for cell in cells:
            found = {name: cell.ratio(*sides) for name, sides in ratios.items()}
            table.add_row(cell.framework, cell.family, *map(str, found.values()))
            rows.append({"framework": cell.framework, "size": cell.family, **found})
    if not rows:
        return 1
    console.print(table)
    save("kernels", rows, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
