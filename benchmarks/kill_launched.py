"""Kill drivers, their jobs and the launching process of a launched sweep at random moments.

    python -m benchmarks.kill_launched [--launcher joblib] [--drivers 4] [--points 60] [--kills 100]

A sweep of tiny points is launched, and a random process is killed (SIGKILL) again and again: a
driver, the launcher's process that started it, or the launching process. The command is repeated
whenever the launching process has ended, until every point is measured. Then every point must be
measured once, and no run may be left RUNNING.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from benchmarks.common import ROOT, environment, train
from benchmarks.kill import TINY, doubled_or_running, finished

TARGETS = ("driver", "job", "launching")


def start(folder: Path, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start the launching process."""
    command = [
        sys.executable, "-m", "paradnn.train", "-m", f"model.nodes=range(8,{8 + given.points})",
        *TINY, "measure.processes=2", f"tracking.folder={folder}",
        f"hydra/launcher={given.launcher}", f"sweep.drivers={given.drivers}",
        f"hydra.sweep.dir={folder}/jobs",
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment(folder), **quiet)


def drivers_of(launching: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the drivers below a launching process."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(launching.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                if "paradnn.train" in words and child.pid != launching.pid:
                    found.append(child)
    return found


def kill_one(launching: subprocess.Popen[bytes]) -> str:
    """Kill a random process; return its role, empty if no process was found."""
    target = random.choice(TARGETS)
    drivers = drivers_of(launching)
    if target == "launching":
        launching.kill()
        launching.wait()
        return target
    if not drivers:
        return ""
    driver = random.choice(drivers)
    with contextlib.suppress(psutil.Error):
        process = driver if target == "driver" else driver.parent()
        if process is not None and process.pid != launching.pid:
            process.kill()
            return target
    return ""


def main() -> None:
    """Kill until the sweep is measured and the number of kills is reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launcher", default="joblib")
    parser.add_argument("--drivers", type=int, default=4)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="between two kills, at most")
    given = parser.parse_args()
    killed: Counter[str] = Counter()
    launches = 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(["model.nodes=4", "measure.processes=1", *TINY], folder)
        before = len(finished(folder))
        launching = start(folder, given)
        while killed.total() < given.kills:
            time.sleep(random.uniform(0.0, given.seconds))
            if launching.poll() is not None:
                if len(finished(folder)) - before >= given.points:
                    break
                launching = start(folder, given)
                launches += 1
                continue
            target = kill_one(launching)
            if target:
                killed[target] += 1
            print(f"{len(finished(folder)) - before} points, {dict(killed)}", flush=True)
        code = launching.wait()
        while code != 0 and launches < given.kills + 10:  # what the last kill left
            launching = start(folder, given)
            launches += 1
            code = launching.wait()
        problems = doubled_or_running(folder)
        measured = len(finished(folder)) - before
        if measured != given.points:
            problems.append(f"{measured} points measured, not {given.points}")
    print(f"{measured} points, {launches} launches, {killed.total()} kills {dict(killed)}: "
          f"{len(problems)} problems {problems}")  # fmt: skip


if __name__ == "__main__":
    main()
