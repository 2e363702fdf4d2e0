"""Kill drivers of a sweep at random moments, and check that no result is lost.

    python -m benchmarks.kill [--sweeps 50] [--adaptive] [--drivers 3] [--kills 10]
        [--targets child ...]

A sweep of 30 tiny points is killed (SIGKILL) and started again until it ends. Then every point must
be measured once. No finished run may be lost, no run may be left RUNNING, and no process or
temporary file may remain.

With --adaptive each sweep chooses 30 of 120 points. With --drivers several drivers share it, and
one of them is killed each time, --kills times per sweep (0: never). --targets are drawn at
random: the driver, the driver in its first two seconds (start), its process group, its worker,
the measuring child, or a tool that describes the machine. Points that crash because of a kill are
measured again.
"""

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
from contextlib import closing
from pathlib import Path

import psutil

from benchmarks.common import ROOT, artifact, environment, runs, train

TINY = [
    "model.layers=1",
    "model.input_size=16",
    "model.output_size=4",
    "batch_size=4",
    "measure.min_seconds=0.02",
    "measure.min_blocks=6",
    "measure.block_seconds=0.002",
    "measure.warmup_seconds=0.1",
    "ceilings=false",
]

POINTS = 30
TARGETS = ("driver", "start", "group", "worker", "child", "tool")
#: Targets whose death the driver survives; the point that was being measured then crashes.
OUTLIVED = ("worker", "child", "tool")
#: Kills in a row. A killed child is replaced at once, and a kill at the start waits for nothing.
ROW = {"start": 4, "tool": 4, "child": 6}
KILLED: Counter[str] = Counter()
Driver = subprocess.Popen[bytes]


def finished(folder: Path) -> set[str]:
    """Return the ids of runs with a final outcome; a crash caused by a kill is repeated."""
    query = "SELECT run_uuid FROM tags WHERE key = 'outcome' AND value != 'crash'"
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        return {row[0] for row in database.execute(query)}


def doubled_or_running(folder: Path) -> list[str]:
    """Return points measured several times, and runs that have not ended."""
    counts = Counter(
        run["point_id"] for run in runs(folder) if run.get("outcome", "crash") != "crash"
    )
    problems = [f"{point} measured {count} times" for point, count in counts.items() if count > 1]
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        [running] = database.execute(
            "SELECT count(*) FROM runs WHERE status = 'RUNNING' AND lifecycle_stage = 'active'"
        ).fetchone()
    if running:
        problems.append(f"{running} runs left RUNNING")
    return problems


def kept(folder: Path) -> set[float]:
    """Return the begin of each process whose result is saved but whose point is incomplete."""
    found = set()
    for path in folder.glob("partial-*.json"):
        with contextlib.suppress(FileNotFoundError):
            found |= {
                result["begun"]
                for result in json.loads(json.loads(path.read_text())["body"])["results"]
            }
    return found


def recorded(folder: Path) -> set[float]:
    """Return the begin of each process in the recorded runs."""
    files = (artifact(folder, run, "blocks.json") for run in runs(folder) if run.get("outcome"))
    texts = (path.read_text() for path in files if path.exists())
    return {process["begun"] for text in texts for process in json.loads(text)["processes"]}


def left_over(folder: Path) -> list[str]:
    """Return temporary files and processes after all drivers have ended."""
    temporary = str(folder / "temporary")
    started = {
        each.pid: (each.info["environ"] or {}).get("TMPDIR")
        for each in psutil.process_iter(["environ"])
    }
    alive = [f"process {pid} left" for pid, folder in started.items() if folder == temporary]
    return [f"{name} left" for name in os.listdir(temporary)] + alive


def start(folder: Path, first: int, given: argparse.Namespace) -> Driver:
    """Start a driver of the sweep; `narrowest` sets the nodes of its smallest point."""
    environ = environment(folder) | {"TMPDIR": str(folder / "temporary")}
    command = [
        sys.executable,
        "-m",
        "paradnn.train",
        "-m",
        f"model.nodes=range({first},{first + POINTS})",
        *TINY,
    ]
    command += [f"measure.processes={given.processes}", f"tracking.folder={folder}", "resume=retry"]
    if given.adaptive:
        command += [
            "sweep.design=adaptive",
            f"sweep.points={POINTS}",
            "batch_size=4,8",
            "model.output_size=2,4",
        ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(command, cwd=ROOT, env=environ, **quiet)


def kill(driver: Driver, target: str) -> list[str]:
    """Kill a driver or, if one appears soon, a process that it started; return survivors."""
    until = time.monotonic() + (2.0 if target == "tool" else 30.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(driver.pid)
        while target in OUTLIVED and time.monotonic() < until and driver.poll() is None:
            for child in process.children(recursive=True):
                with contextlib.suppress(
                    psutil.NoSuchProcess
                ):  # a worker is a process whose parent is not a worker
                    is_worker = [
                        "paradnn.worker" in each.cmdline()
                        for each in (child, child.parent() or process)
                    ]
                    if (
                        is_worker
                        == {"worker": [True, False], "child": [True, True], "tool": [False, False]}[
                            target
                        ]
                    ):
                        child.kill()
                        KILLED[target] += 1
                        return []
            time.sleep(0.001)
        if driver.poll() is not None:
            return []
        started = process.children(recursive=True)
        if target == "group":
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        if target in OUTLIVED:
            target = "driver"
        KILLED[target] += 1
        _, alive = psutil.wait_procs(started, timeout=5.0)
        return [
            f"process {each.pid} lives on: {each.cmdline()}" for each in alive if each.is_running()
        ]
    return []


def ended(driver: Driver) -> list[str]:
    """Return the failure that an ended driver reports, if any."""
    said = driver.communicate()[1].decode()[-300:]
    code = driver.returncode
    if code in (0, -signal.SIGKILL):
        return []
    return [f"exit code {code}: {said}"]


def one_sweep(folder: Path, first: int, given: argparse.Namespace) -> list[str]:
    """Kill and restart drivers until the sweep is complete; return the problems."""
    before = KILLED.total()
    problems = []
    seen = set()
    waiting = set()
    drivers = [start(folder, first, given) for _ in range(given.drivers)]
    while KILLED.total() - before < given.kills:
        time.sleep(random.uniform(0.0, given.seconds))
        running = [place for place, driver in enumerate(drivers) if driver.poll() is None]
        if not running:
            break
        place = random.choice(running)
        target = random.choice(given.targets)
        for _ in range(ROW.get(target, 1)):
            if target in ("start", "tool"):  # restarts
                problems += kill(drivers[place], "driver") + ended(drivers[place])
                drivers[place] = start(folder, first, given)
            time.sleep(
                {"start": random.uniform(0.0, 2.0), "child": random.uniform(0.0, 1.0)}.get(
                    target, 0.0
                )
            )
            problems += [f"{target}: {found}" for found in kill(drivers[place], target)]
        now = finished(folder)
        problems += [f"run {run_id} lost" for run_id in seen - now]
        seen = now
        waiting = waiting | kept(folder)
        if drivers[place].poll() is not None:
            problems += ended(drivers[place])
            drivers[place] = start(folder, first, given)
    problems += [problem for driver in drivers for problem in ended(driver)]
    problems += ended(start(folder, first, given))  # the last crash
    return problems + [
        f"the process that began at {begun} lost" for begun in waiting - recorded(folder)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--processes", type=int, default=3, help="in which each point is measured")
    parser.add_argument(
        "--adaptive", action="store_true", help="of 120 points each sweep chooses 30"
    )
    parser.add_argument("--drivers", type=int, default=1, help="that measure each sweep at once")
    parser.add_argument(
        "--kills", type=int, default=10, help="of each sweep, unless it ends before"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="between two kills, at most")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=["driver"])
    given = parser.parse_args()
    sweeps = 0
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "temporary").mkdir()
        train(["model.nodes=4", "measure.processes=1", *TINY], folder)
        while sweeps < given.sweeps:
            before = len(finished(folder))
            place = 100 + 30 * sweeps
            found = one_sweep(folder, place, given) + doubled_or_running(folder) + left_over(folder)
            measured = len(finished(folder)) - before
            if measured != POINTS:
                found.append(f"{measured} points measured, not {POINTS}")
            sweeps = sweeps + 1
            problems = problems + found
            print(
                f"sweep {sweeps}: {measured} points, {KILLED}, {len(problems)} problems so far",
                flush=True,
            )
            print(*(f"  {problem}\n" for problem in found), sep="", end="", flush=True)
    print(
        f"{sweeps} sweeps of {POINTS} points, {KILLED.total()} kills ({KILLED}): {len(problems)} "
        "problems"
    )


if __name__ == "__main__":
    main()
