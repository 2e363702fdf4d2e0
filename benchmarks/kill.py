"""python -m benchmarks.kill [--sweeps 50] [--minutes 30] [--adaptive] [--drivers 3] [--kills 10]

A sweep of 30 tiny points whose driver is killed (SIGKILL) at a random moment, and started again, until it ends by
itself; then the next sweep. After each: every point measured once, no finished run lost, none left RUNNING, no process
left over.

With --adaptive each sweep chooses 30 of 120 points. With --drivers several drivers measure it at once, and one of them
is killed each time. With --kills that happens so often each sweep (0: never), each time 1 to 3 points later.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psutil

from benchmarks.common import ROOT, artifact, runs, train

TINY = [
    *("model.layers=1", "model.input_size=16", "model.output_size=4", "batch_size=4", "measure.min_seconds=0.02"),
    *("measure.min_blocks=6", "measure.block_seconds=0.002", "measure.warmup_seconds=0.1"),
    "ceilings=false",
]

POINTS = 30
Driver = subprocess.Popen[bytes]


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


def kept(folder: Path) -> set[float]:
    """When each process began of which a result waits for its point's record."""
    found = set()
    for path in folder.glob("partial-*.json"):
        with contextlib.suppress(FileNotFoundError):
            found |= {result["begun"] for result in json.loads(json.loads(path.read_text())["body"])["results"]}
    return found


def recorded(folder: Path) -> set[float]:
    """When each process began that a run holds."""
    files = (artifact(folder, run, "blocks.json") for run in runs(folder) if run.get("outcome") == "ok")
    return {process["begun"] for path in files for process in json.loads(path.read_text())["processes"]}


def start(folder: Path, first: int, given: argparse.Namespace) -> Driver:
    """A driver of the sweep whose narrowest point has so many nodes."""
    environ = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    command = [sys.executable, "-m", "paradnn.train", "-m", f"model.nodes=range({first},{first + 30})", *TINY]
    command += [f"measure.processes={given.processes}", f"tracking.folder={folder}"]
    if given.adaptive:
        command += ["sweep.design=adaptive", f"sweep.points={POINTS}", "batch_size=4,8", "model.output_size=2,4"]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def moment(drivers: Sequence[Driver], folder: Path, seconds: float, points: int) -> list[int]:
    """Wait for so many further points, or where that is 0 so many seconds; the drivers that still run then."""
    goal, until = len(finished(folder)) + points, time.monotonic() + seconds
    while running := [place for place, driver in enumerate(drivers) if driver.poll() is None]:
        if (len(finished(folder)) >= goal) if points else (time.monotonic() > until):
            time.sleep(random.uniform(0.0, 0.5) if points else 0.0)
            break
        time.sleep(0.05)
    return running


def kill(driver: Driver) -> list[str]:
    """Kill a driver; what of it lives on."""
    started = [child.pid for child in psutil.Process(driver.pid).children(recursive=True)]
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(3.0)
    return [f"process {pid} lives on" for pid in started if psutil.pid_exists(pid)]


def one_sweep(folder: Path, first: int, start_seconds: float, given: argparse.Namespace) -> tuple[int, list[str]]:
    """Kill and start again until done; how often it was killed, and what went wrong."""
    kills, problems, seen, waiting = 0, [], set(), set()
    reach = 2.0 * start_seconds
    drivers = [start(folder, first, given) for _ in range(given.drivers)]
    while given.kills is None or kills < given.kills:
        points = 0 if given.kills is None else random.randint(1, 3)
        running = moment(drivers, folder, random.uniform(1.0, reach), points)
        if not running:
            break
        place = random.choice(running)
        problems += kill(drivers[place])
        kills += 1
        now = finished(folder)
        problems += [f"run {run_id} lost" for run_id in seen - now]
        # A neighbour may slow the start so much that none would ever get to its first point.
        idle = now == seen and kept(folder) <= waiting
        reach = 1.5 * reach if idle else max(0.8 * reach, 2.0 * start_seconds)
        seen, waiting = now, waiting | kept(folder)
        drivers[place] = start(folder, first, given)
    for driver in drivers:
        errors = driver.communicate()[1]
        if driver.returncode:
            problems.append(f"exit code {driver.returncode}: {errors.decode()[-300:]}")
    lost = waiting - recorded(folder)
    return kills, [*problems, *(f"the process that began at {begun} lost" for begun in lost)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--processes", type=int, default=3, help="in which each point is measured")
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no new sweep after so long")
    parser.add_argument("--adaptive", action="store_true", help="of 120 points each sweep chooses 30")
    parser.add_argument("--drivers", type=int, default=1, help="that measure each sweep at once")
    parser.add_argument(
        "--kills", type=int, help="of each sweep, 1 to 3 points after another; else any number, at any moment"
    )
    given = parser.parse_args()
    begin, kills, sweeps, problems = time.monotonic(), 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(["model.nodes=4", "measure.processes=1", *TINY], folder)
        start_seconds = time.monotonic() - begin
        while sweeps < given.sweeps and time.monotonic() - begin < 60 * given.minutes:
            before, place = len(finished(folder)), 100 + 30 * sweeps
            killed, found = one_sweep(folder, place, start_seconds, given)
            kills, sweeps, problems = kills + killed, sweeps + 1, problems + found
            problems += doubled_or_running(folder)
            if (measured := len(finished(folder)) - before) != POINTS:
                problems.append(f"{measured} points measured, not {POINTS}")
            print(
                f"sweep {sweeps}: {measured} points, killed {killed} times, {len(problems)} problems so far",
                *found,
                sep="\n  ",
                flush=True,
            )
    print(f"{sweeps} sweeps of {POINTS} points, {kills} kills: {len(problems)} problems")
    for problem in problems:
        print(f"  {problem}")


if __name__ == "__main__":
    main()
