"""Compare equal things for real: how often does `paradnn compare`, or another tool, call them
different?

    python -m benchmarks.null_trials commands --trials 100 --seconds 4
    python -m benchmarks.null_trials functions --trials 20 --seconds 20 --pytest PYTHON
    python -m benchmarks.null_trials models --trials 3 --seconds 120

The first also runs hyperfine (-N), the second pytest-benchmark. The third measures three equal
pairs and three that differ by 3%. `--busy N` runs N neighbors that come and go. Each trial runs its
tools in random order. A tool without verdicts is judged by 2% and 5% of the ratio of its means, and
by 1.96 standard errors of it.
"""

import argparse
import json
import math
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import save
from paradnn.core.scratch import Scratch

COMMAND = shlex.join([sys.executable, "-S", "-c", "sum(range(2_000_000))"])
#: Source of two equal functions, and of the same functions as tests of pytest-benchmark.
FUNCTIONS = """
import numpy
A = numpy.ones((384, 384), "f")
def work():
    x = A
    for _ in range(8):
        x = numpy.tanh(x @ A)
def one(): work()
def two(): work()
def test_one(benchmark): benchmark(one)
def test_two(benchmark): benchmark(two)
"""
_NEIGHBOR = "import random, time\nwhile True:\n e = time.time() + random.uniform(1, 5)\n while time.time() < e: pass\n"
_NEIGHBOR += " time.sleep(random.uniform(1, 5))\n"
MODEL = [
    "model=fc",
    "model.layers=4",
    "batch_size=64",
    "measure=quick",
    "measure.profile=false",
    "tracking=offline",
]

#: Log ratio, its uncertainty (half an interval, or a standard error), and the tool's verdict.
Found = tuple[float, float, str | None]


def ours(first: str, second: str, seconds: float) -> Found:
    """Run `paradnn compare` for the given seconds."""
    with Scratch() as folder:
        models = first.startswith("model.nodes")
        more = [*MODEL, f"tracking.folder={folder}"] if models else []
        null = ["--null"] if first == second else []
        words = [
            "compare",
            "--quiet",
            *null,
            "--minutes",
            str(seconds / 60),
            "--json",
            str(folder / "a.json"),
        ]
        subprocess.run(
            [sys.executable, "-m", "paradnn", *words, first, second, *more],
            capture_output=True,
            check=False,
        )
        document = json.loads((folder / "a.json").read_text())
    if document["ratio"] is None:
        return math.nan, math.nan, document["problem"] or "too few rounds"
    return (
        math.log(document["ratio"]),
        math.log(document["high"] / document["low"]) / 2,
        document["verdict"],
    )


def hyperfine(seconds: float) -> Found:
    """Run hyperfine on two equal commands for the given seconds in total."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        how = ["hyperfine", "-N", "--warmup", "1", "--runs", str(max(3, round(seconds / 2 / 0.05)))]
        subprocess.run(
            [*how, "--export-json", file.name, COMMAND, COMMAND], capture_output=True, check=True
        )
        rows = json.loads(Path(file.name).read_text())["results"]
    means, errors = zip(
        *((row["mean"], row["stddev"] / len(row["times"]) ** 0.5) for row in rows), strict=True
    )
    return (
        math.log(means[1] / means[0]),
        math.hypot(*(e / m for e, m in zip(errors, means, strict=True))),
        None,
    )


def pytest_benchmark(python: str, file: Path) -> Found:
    """Run pytest-benchmark with its defaults on two equal functions."""
    out = file.with_name("b.json")
    words = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--benchmark-json={out}",
        str(file),
    ]
    subprocess.run(words, capture_output=True, check=True, cwd=file.parent)
    stats = [row["stats"] for row in json.loads(out.read_text())["benchmarks"]]
    errors = [row["stddev"] / row["mean"] / row["rounds"] ** 0.5 for row in stats]
    return math.log(stats[1]["mean"] / stats[0]["mean"]), math.hypot(*errors), None


def tell(name: str, found: list[Found]) -> dict[str, object]:
    """Return the line of a tool's trials."""
    known = [one for one in found if math.isfinite(one[0])]
    verdicts = dict(Counter(verdict for _, _, verdict in found if verdict))
    row: dict[str, object] = {
        "tool": name,
        "trials": len(found),
        "verdicts": str(verdicts or "none"),
    }
    row |= {
        f"off by {limit:.0%}": sum(abs(log) > limit for log, _, _ in known)
        for limit in (0.02, 0.05)
    }
    row["beyond 1.96 errors"] = sum(
        abs(log) > 1.96 * error for log, error, verdict in known if verdict is None
    )
    row["half or error, median"] = "-"
    if known:
        row["half or error, median"] = f"{statistics.median(half for _, half, _ in known):.4f}"
    row["ratios"] = " ".join(f"{math.exp(log):.3f}" for log, _, _ in known[:6])
    print("  ".join(f"{key}: {value}" for key, value in row.items()), flush=True)
    return row


def main() -> None:
    """Run the trials and print a line per tool."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("commands", "functions", "models"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one comparison")
    parser.add_argument("--busy", type=int, default=0, metavar="N")
    parser.add_argument(
        "--pytest", metavar="PYTHON", help="an interpreter with NumPy and pytest-benchmark"
    )
    given = parser.parse_args()
    with Scratch() as folder:
        file = folder / "functions.py"
        file.write_text(FUNCTIONS)
        seconds = given.seconds
        tools = dict[str, Callable[[], Found]]()
        if given.kind == "commands":
            tools = {
                "paradnn": lambda: ours(COMMAND, COMMAND, seconds),
                "hyperfine": lambda: hyperfine(seconds),
            }
        elif given.kind == "functions":
            tools = {"paradnn": lambda: ours(f"{file}:one", f"{file}:two", seconds)}
            if given.pytest:
                tools["pytest-benchmark"] = lambda: pytest_benchmark(given.pytest, file)
        else:
            for name, nodes in (("equal models", 512), ("a model of 3.2% more FLOPs", 524)):
                sides = f"model.nodes={nodes}", "model.nodes=512"
                tools[name] = partial(ours, *sides, seconds)
        others = [subprocess.Popen([sys.executable, "-c", _NEIGHBOR]) for _ in range(given.busy)]
        found: dict[str, list[Found]] = defaultdict(list)
        try:
            for _ in range(given.trials):
                for name in random.sample([*tools], len(tools)):
                    found[name].append(tools[name]())
        finally:
            for other in others:
                other.kill()
    save(
        f"null_{given.kind}_{given.busy}", [tell(name, results) for name, results in found.items()]
    )


if __name__ == "__main__":
    main()
