"""Compare `paradnn gate --count instructions` with timing tools on planted and equal code.

    python -m benchmarks.gate_peers --python PYTHON --minutes 60

PYTHON has NumPy, pytest and pytest-benchmark. A pair is a program at two commits: a pure-Python
function or a NumPy loop. At the head it repeats its work 1% more often, or differs only in
comments, names and unused code. Four tools judge the same pairs:

- `paradnn gate --count instructions --fail-on count --more 0.2%`;
- `paradnn gate --slower 2%` within 6 s, by wall time;
- hyperfine with its defaults; an alarm is a mean that is 2% longer at the head;
- pytest-benchmark with `--benchmark-compare-fail=mean:2%`.

Each judgement is a row of results/gate_peers.csv. A repeated command continues after the last row.
"""

import argparse
import csv
import json
import math
import os
import random
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import RESULTS
from paradnn.core.scratch import Scratch

EQUAL_PAIRS = 200
FIELDS = (
    "tool",
    "program",
    "truth",
    "pair",
    "alarm",
    "outcome",
    "increase",
    "low",
    "high",
    "seconds",
    "load",
)

_PYTHON_WORK = """
def work():
    total = 0
    for {variable} in range({repeats}):
        total += {variable} * {variable} % 7
    return total
"""
_NUMPY_WORK = """
import numpy

VALUES = numpy.linspace(0.0, 1.0, 2_000)

def work():
    result = VALUES
    for {variable} in range({repeats}):
        result = numpy.sqrt(result * 0.5 + VALUES)
    return float(result.sum())
"""
#: Text of the work, and how often its loop runs at the base.
PROGRAMS = {"python": (_PYTHON_WORK, 100_000), "numpy": (_NUMPY_WORK, 10_000)}
_NAMES = ("number", "index", "step", "position", "counter_of_the_loop")
_MAIN = "from work import work\n\nwork()\n"
_TEST = "from work import work\n\n\ndef test_work(benchmark):\n    benchmark(work)\n"


class Judgement(NamedTuple):
    """Verdict of a tool on a pair.

    Attributes:
        alarm: Whether the tool calls the head slower.
        outcome: Verdict of the tool in its own words, or its exit code.
        increase: Cost of the head relative to that of the base, minus one.
        low, high: Interval of the increase; NaN if the tool reports none.
    """

    alarm: bool
    outcome: str
    increase: float
    low: float = math.nan
    high: float = math.nan


class Pair(NamedTuple):
    """A program at two commits, in a repository and unpacked next to each other.

    Attributes:
        repository: The base is committed as `main`; the working tree holds the head.
        base, head: Folders with both states.
    """

    repository: Path
    base: Path
    head: Path


def write_program(folder: Path, program: str, *, repeats: int, edit: random.Random | None) -> None:
    """Write bench.py, work.py and a test for pytest-benchmark.

    Args:
        folder: Folder to create.
        program: Key of `PROGRAMS`.
        repeats: Number of iterations of the loop.
        edit: Source of random edits that do not change the work; None for no edits.
    """
    text, _ = PROGRAMS[program]
    variable = "number"
    added = ""
    if edit:
        variable = edit.choice(_NAMES)
        comment = " ".join(edit.choices(_NAMES, k=edit.randrange(1, 60)))
        added = f"# {comment}\n"
        if edit.random() < 0.5:
            added += f"\n\ndef unused_{edit.choice(_NAMES)}():\n    return {edit.randrange(1000)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    work = text.format(variable=variable, repeats=repeats)
    (folder / "work.py").write_text(work.lstrip("\n") + added)
    (folder / "bench.py").write_text(_MAIN)
    (folder / "test_work.py").write_text(_TEST)


def make_pair(folder: Path, program: str, truth: str, number: int) -> Pair:
    """Write both states of a program, and commit the base."""
    pair = Pair(folder / "repository", folder / "base", folder / "head")
    edit = random.Random(f"{program} {truth} {number}")
    _, repeats = PROGRAMS[program]
    repeats_at_head = repeats
    if truth == "slower by 1%":
        repeats_at_head = repeats * 101 // 100
    for place in (pair.base, pair.repository):
        write_program(place, program, repeats=repeats, edit=None)
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "Base"],
    ):
        subprocess.run(["git", *words], cwd=pair.repository, check=True, capture_output=True)
    state = edit.getstate()
    for place in (pair.head, pair.repository):
        edit.setstate(state)
        write_program(place, program, repeats=repeats_at_head, edit=edit)
    return pair


def count_gate(pair: Pair, python: str) -> Judgement:
    """Judge a pair by instructions."""
    words = ["--count", "instructions", "--fail-on", "count", "--more", "0.2%"]
    document = run_gate(pair, python, words)
    counts = document["counts"]["instructions"]
    interval = (math.nan, math.nan, math.nan)
    if not counts["problem"]:
        interval = (counts["increase"], counts["low"], counts["high"])
    return Judgement(document["gate"] == "regressed", document["gate"], *interval)


def time_gate(pair: Pair, python: str) -> Judgement:
    """Judge a pair by wall time."""
    document = run_gate(pair, python, ["--slower", "2%", "--minutes", "0.1"])
    interval = (math.nan, math.nan, math.nan)
    if document["ratio"] is not None:
        ends = (document["ratio"], document["high"], document["low"])
        interval = tuple(1 / end - 1 for end in ends)
    return Judgement(document["gate"] == "regressed", document["gate"], *interval)


def run_gate(pair: Pair, python: str, options: list[str]) -> dict:
    """Run `paradnn gate` in the repository of a pair and return its document."""
    result = pair.repository.parent / "gate.json"
    words = [sys.executable, "-m", "paradnn", "gate", "--base", "main", "--quiet"]
    words += ["--json", str(result), *options, "--", *start(pair, python), "bench.py"]
    done = subprocess.run(words, cwd=pair.repository, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        sys.exit(f"paradnn gate failed: {done.stderr}")
    return json.loads(result.read_text())


def start(pair: Pair, python: str) -> list[str]:
    """Return the interpreter's command; -S omits installed packages, which only NumPy needs."""
    needs_packages = "import numpy" in (pair.base / "work.py").read_text()
    return [python] if needs_packages else [python, "-S"]


def hyperfine(pair: Pair, python: str) -> Judgement:
    """Judge a pair by the means that hyperfine exports, which run one after the other."""
    result = pair.base.parent / "hyperfine.json"
    commands = [
        shlex.join([*start(pair, python), f"{place}/bench.py"]) for place in (pair.base, pair.head)
    ]
    words = ["hyperfine", "-N", "--style", "none", "--export-json", str(result), *commands]
    subprocess.run(words, capture_output=True, check=True)
    base, head = json.loads(result.read_text())["results"]
    increase = head["mean"] / base["mean"] - 1
    return Judgement(increase > 0.02, "no verdict", increase)


def pytest_benchmark(pair: Pair, python: str) -> Judgement:
    """Judge a pair by `--benchmark-compare-fail=mean:2%` against the saved base."""
    storage = f"--benchmark-storage=file://{pair.base.parent / 'storage'}"
    common = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", storage, "test_work.py"]
    result = pair.base.parent / "head.json"
    judge = ["--benchmark-compare=0001", "--benchmark-compare-fail=mean:2%"]
    judge.append(f"--benchmark-json={result}")
    saved = [*common, "--benchmark-save=base"]
    subprocess.run(saved, cwd=pair.base, capture_output=True, check=True)
    done = subprocess.run(
        [*common, *judge], cwd=pair.head, capture_output=True, text=True, check=False
    )
    has_regressed = "Performance has regressed" in done.stdout + done.stderr
    if done.returncode and not has_regressed:
        sys.exit(f"pytest-benchmark failed: {done.stdout}{done.stderr}")
    [base_file] = (pair.base.parent / "storage").rglob("*.json")
    means = [
        json.loads(path.read_text())["benchmarks"][0]["stats"]["mean"]
        for path in (base_file, result)
    ]
    return Judgement(has_regressed, f"exit code {done.returncode}", means[1] / means[0] - 1)


TOOLS: dict[str, Callable[[Pair, str], Judgement]] = {
    "gate, instructions": count_gate,
    "gate, time": time_gate,
    "hyperfine": hyperfine,
    "pytest-benchmark": pytest_benchmark,
}


def judgements() -> Iterator[tuple[str, str, str, int]]:
    """Yield tool, program, truth and number of every judgement.

    All kinds are mixed in similar proportions from the beginning, so a run may end early.
    """
    for number in range(EQUAL_PAIRS):
        program = "numpy" if number % 8 == 7 else "python"
        truths = ["equal", "slower by 1%"] if number % 4 == 3 else ["equal"]
        for truth in truths:
            yield "gate, instructions", program, truth, number
        # Timing tools take longer, and a smaller sample suffices to show how often they err.
        if number % 8 == 3 or number % 16 == 7:
            for truth in truths:
                for tool in list(TOOLS)[1:]:
                    yield tool, program, truth, number


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of earlier runs."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def summarize(rows: list[dict[str, str]]) -> None:
    """Print a line per tool, program and truth."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["tool"], row["truth"], row["program"]].append(row)
    print(f"{'tool':20} {'truth':13} {'program':8} pairs alarms  median s  median load")
    for (tool, truth, program), found in sorted(groups.items()):
        alarms = sum(row["alarm"] == "True" for row in found)
        seconds = sorted(float(row["seconds"]) for row in found)[len(found) // 2]
        load = sorted(float(row["load"]) for row in found)[len(found) // 2]
        print(
            f"{tool:20} {truth:13} {program:8} {len(found):5} {alarms:6} {seconds:9.1f} {load:12.1f}"
        )


def main() -> None:
    """Judge pairs until the time limit, and print how often each tool is right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of the programs")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "gate_peers.csv")
    given = parser.parse_args()
    # A second thread of OpenBLAS executes instructions while it waits for work.
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = read_rows(given.output)
    finished = {(row["tool"], row["program"], row["truth"], int(row["pair"])) for row in rows}
    end = time.monotonic() + 60 * given.minutes
    given.output.parent.mkdir(parents=True, exist_ok=True)
    with given.output.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS)
        if not rows:
            writer.writeheader()
        for tool, program, truth, number in judgements():
            if (tool, program, truth, number) in finished:
                continue
            if time.monotonic() > end:
                break
            with Scratch() as folder:
                pair = make_pair(folder, program, truth, number)
                begun = time.monotonic()
                judgement = TOOLS[tool](pair, given.python)
                seconds = time.monotonic() - begun
            row = {"tool": tool, "program": program, "truth": truth, "pair": number}
            row |= judgement._asdict()
            row |= {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1)}
            writer.writerow(row)
            file.flush()
    summarize(read_rows(given.output))


if __name__ == "__main__":
    main()
