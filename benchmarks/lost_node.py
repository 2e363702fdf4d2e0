"""A sweep over two nodes of a cluster, one of which is lost in the middle: `benchmarks.kill --launcher`."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.clusters import cluster
from benchmarks.common import ROOT, runs, train

__all__ = ["doubled_or_running", "finished", "lose_a_node"]

#: Tasks of the sweep: of 200 points 25 each.
_TASKS = 8


def finished(folder: Path) -> set[str]:
    """Ids of the runs that have an outcome."""
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        return {row[0] for row in database.execute("SELECT run_uuid FROM tags WHERE key = 'outcome'")}


def doubled_or_running(folder: Path) -> list[str]:
    """Points with several outcomes, and runs that have not ended."""
    counts = Counter(run["point_id"] for run in runs(folder) if run.get("outcome"))
    problems = [f"{point} measured {count} times" for point, count in counts.items() if count > 1]
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        [running] = database.execute(
            "SELECT count(*) FROM runs WHERE status = 'RUNNING' AND lifecycle_stage = 'active'"
        ).fetchone()
    return [*problems, *([f"{running} runs left RUNNING"] if running else [])]


def lose_a_node(launcher: str, points: int, tiny: Sequence[str]) -> int:
    """Sweep so many points with the overrides `tiny`; the exit code says whether all have one outcome."""
    with tempfile.TemporaryDirectory() as name, cluster(launcher, Path(name)) as made:
        folder = Path(name)
        train(["model.nodes=4", "measure.processes=1", *tiny], folder)  # the database is made once
        first = finished(folder)
        begin = time.monotonic()
        with (folder / "sweep.log").open("wb") as log:
            over = [*made.arguments, *tiny, "measure.processes=1", f"model.nodes=range(8,{8 + points})"]
            sweep = subprocess.Popen(
                [sys.executable, "-m", "paradnn.train", "-m", *over, f"sweep.chunk={-(-points // _TASKS)}"],
                cwd=ROOT,
                env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", **made.environ},
                stdout=log,
                stderr=log,
            )
        # In the middle of a task on each node, which measure about as fast.
        goal = points // 2 + points // _TASKS // 2
        while len(before := finished(folder) - first) < goal and sweep.poll() is None:
            time.sleep(0.2)
        made.lose_node()
        lost_after = time.monotonic() - begin
        print(f"{launcher}: a node is lost after {len(before)} of {points} points, {lost_after:.0f} s", flush=True)
        code = sweep.wait()
        seconds = time.monotonic() - begin
        now = finished(folder) - first
        problems = [f"run {run_id} lost" for run_id in before - now] + doubled_or_running(folder)
        if code or len(now) != points:
            problems += [f"exit code {code}, {len(now)} outcomes:", *(folder / "sweep.log").read_text().splitlines()]
        _tell(launcher, folder, before, now, seconds)
    print(f"{launcher}: {len(problems)} problems", *problems, sep="\n  ")
    return 1 if problems else 0


def _tell(launcher: str, folder: Path, before: set[str], now: set[str], seconds: float) -> None:
    """What became of the points, and of the node's task."""
    rows = runs(folder)
    ended = [run for run in rows if run["run_id"] in now]
    outcomes = Counter(str(run["outcome"]) for run in ended)
    nodes = Counter(str(run["node"]) for run in ended if run["run_id"] in before)
    places = defaultdict(set)
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        tasks = dict(database.execute("SELECT run_uuid, value FROM tags WHERE key = 'task'"))
    for run in ended:
        places[tasks[run["run_id"]]].add(run["node"])
    moved = sum(len(found) > 1 for found in places.values())
    told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    shares = " and ".join(map(str, nodes.values()))
    print(
        f"{launcher}: {len(ended)} outcomes of {len({run['point_id'] for run in ended})} points ({told}) in "
        f"{seconds:.0f} s; before the loss {shares} on the nodes; {moved} of {len(places)} tasks began on one and "
        "ended on the other"
    )
