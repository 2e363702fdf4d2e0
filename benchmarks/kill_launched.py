"""Kill drivers, jobs, nodes and the launching process of launched sweeps at random moments.

    python -m benchmarks.kill_launched [--launcher joblib] [--drivers 4] [--points 40] [--kills 25]

Points sleep instead of computing (`benchmarks.simulated`); everything else is real. Sweeps are
launched, and random victims get SIGKILL: a driver, the launcher's process that started it, the
launching process, or, with Slurm and Ray, a node with all its processes. A killed node starts
again. Both nodes are on this host, each with a separate process namespace, so drivers see a lost
node as a lost host. The command is repeated whenever the launching process has ended, until every
point is measured. Then every point must be measured once, and no run may be RUNNING. At each kill
`paradnn.watch` must show the number of points that plain SQL counts.

Appends one row per kill to benchmarks/results/kill_launched.csv: the victim, the points that it
was measuring, and the longest time until one of these was measured again.
"""

import argparse
import contextlib
import csv
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.common import RESULTS, ROOT, environment, train
from benchmarks.kill import TINY, doubled_or_running, finished
from benchmarks.simulated import interpreter
from paradnn.store.address import address_of
from paradnn.store.reader import open_reader
from paradnn.store.runs import Query
from paradnn.watch import progress_of
from tests.cluster.ray_cluster import RAY, end_node, ray_head, start_ray_node
from tests.cluster.slurm import SEPARATE, slurm

#: Relative frequencies of the victims.
_VICTIMS = {"driver": 3, "job": 3, "node": 3, "launching": 1}
#: Share of kills that are skipped while no point is claimed, since starts take longer than points.
_WORKING_SHARE = 0.8
#: Seconds after which a sweep counts as hanging.
_SWEEP_SECONDS = 1800.0
#: Seconds after which all drivers must have ended once every point is measured.
_SILENT_SECONDS = 200.0
_QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}


class Cluster:
    """Nodes of a scheduler. This base class has no nodes, for launchers on this host."""

    overrides: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.environ: dict[str, str] = {}

    def kill_node(self) -> bool:
        """Kill a random node, and start it again; return False without nodes."""
        return False


class SlurmCluster(Cluster):
    """Slurm with two nodes, which are lost one at a time."""

    overrides = ("hydra.launcher.timeout_min=60",)

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._slurm = stack.enter_context(slurm(has_separate_nodes=True))
        self.environ = self._slurm.environ

    def kill_node(self) -> bool:
        name = random.choice(("n1", "n2"))
        self._slurm.kill_node(name)
        self._slurm.start_node(name)
        return True


class RayCluster(Cluster):
    """Ray with a head, which is never lost, and another node."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.environ = dict(RAY)
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._address, _ = stack.enter_context(ray_head(self._folder, "--num-cpus=2"))
        self._nodes = 0
        self._start()
        stack.callback(lambda: end_node(self._node))
        self.overrides = (f"+hydra.launcher.ray.init.address={self._address}",)

    def _start(self) -> None:
        self._nodes += 1
        log = self._folder / f"node-{self._nodes}.log"
        self._node = start_ray_node(self._address, log, "--num-cpus=2", before=SEPARATE)

    def kill_node(self) -> bool:
        end_node(self._node)
        self._start()
        return True


@dataclass
class Kill:
    """One kill.

    Attributes:
        victim: Kind of the killed process.
        unix_ms: Time of the kill in Unix milliseconds.
        drivers: Sweep and number of each driver that ended because of the kill.
    """

    victim: str
    unix_ms: float
    drivers: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Trial:
    """Sweeps on one store, with their launches and kills."""

    folder: Path
    cluster: Cluster
    given: argparse.Namespace
    python: Path
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    launches: int = 0

    def launch(self, first: int) -> subprocess.Popen[bytes]:
        """Start a launching process."""
        self.launches += 1
        last = first + self.given.points
        command = [
            sys.executable, "-m", "paradnn.train", "-m", f"model.nodes=range({first},{last})",
            *TINY, f"measure.min_seconds={self.given.sleep}", "measure.processes=2",
            self._software, f"tracking.folder={self.folder}/files",
            f"hydra/launcher={self.given.launcher}", f"sweep.drivers={self.given.drivers}",
            f"hydra.sweep.dir={self.folder}/jobs", *self.cluster.overrides,
        ]  # fmt: skip
        # Pages of sweeps take seconds to draw.
        variables = environment(self.folder) | {"PARADNN_PAGE": "false"} | self.cluster.environ
        return subprocess.Popen(command, cwd=ROOT, env=variables, **_QUIET)

    def train_one(self) -> None:
        """Measure a point that belongs to no sweep, or find it measured."""
        train(["model.nodes=4", "measure.processes=1", *TINY, self._software], self.folder)

    @property
    def _software(self) -> str:
        return f"software.python={self.python}"

    def drivers(self) -> dict[int, psutil.Process]:
        """Return the drivers on all nodes that record into this store, by process id."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_ours = f"tracking.folder={self.folder}/files" in words
                if is_ours and "PARADNN_START" in process.environ():
                    found[process.pid] = process
        return found

    def has_claims(self) -> bool:
        """Return whether a run without an outcome is RUNNING."""
        query = """
            SELECT count(*) FROM runs r
            JOIN tags k ON k.run_uuid = r.run_uuid AND k.key = 'kind' AND k.value = 'point'
            WHERE r.status = 'RUNNING' AND r.lifecycle_stage = 'active' AND NOT EXISTS
                (SELECT 1 FROM tags o WHERE o.run_uuid = r.run_uuid AND o.key = 'outcome')"""
        [[count]] = self._rows(query)
        return count > 0

    def _rows(self, query: str, *values: object) -> list[tuple]:
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=60)) as database:
            return database.execute(query, values).fetchall()

    def kill_one(self, launching: subprocess.Popen[bytes]) -> None:
        """Kill a random victim, if it exists, and note the drivers that end with it."""
        [victim] = random.choices(list(_VICTIMS), list(_VICTIMS.values()))
        before = self.drivers()
        keys = {}
        for pid, process in before.items():
            with contextlib.suppress(psutil.Error, KeyError):
                variables = process.environ()
                keys[pid] = (variables["PARADNN_SWEEP"], variables["PARADNN_DRIVER"])
        now = time.time() * 1000
        if victim == "launching":
            launching.kill()
            launching.wait()
        elif victim == "node":
            if not self.cluster.kill_node():
                return
        elif not before:
            return
        else:
            process = random.choice(list(before.values()))
            try:
                if victim == "job":
                    process = process.parent() or process
                if process.pid == launching.pid:
                    return
                process.kill()
            except psutil.Error:
                return
        kill = Kill(victim, now)
        self.kills.append(kill)
        time.sleep(0.5)
        alive = self.drivers()
        kill.drivers = [key for pid, key in keys.items() if pid not in alive]

    def check_watch(self) -> None:
        """Note a problem if `watch` and plain SQL count different numbers of points of a sweep."""
        count = """
            SELECT count(*) FROM tags s JOIN tags k USING (run_uuid) JOIN tags o USING (run_uuid)
            WHERE s.key = 'sweep_id' AND s.value = ? AND k.key = 'kind' AND k.value = 'point'
                AND o.key = 'outcome'"""
        reader = open_reader(address_of(environment(self.folder)["MLFLOW_TRACKING_URI"]))
        sweeps = reader.read(Query(("paradnn",), tags={"kind": ("sweep",)}, unfinished=True))
        for sweep in sweeps:
            sweep_id = sweep.tags["sweep_id"]
            [[low]] = self._rows(count, sweep_id)
            shown = progress_of(reader, "paradnn", sweep)
            [[high]] = self._rows(count, sweep_id)
            if not low <= len(shown.done) <= high:
                self.problems.append(f"watch shows {len(shown.done)} points, not {low} to {high}")
            if shown.planned is not None and shown.planned < len(shown.done):
                self.problems.append(f"watch: {len(shown.done)} of {shown.planned} points")

    def sweep(self, first: int) -> None:
        """Measure one sweep while processes are killed."""
        before = len(finished(self.folder))
        launching = self.launch(first)
        deadline = time.time() + _SWEEP_SECONDS
        while time.time() < deadline:
            time.sleep(random.uniform(0.0, self.given.seconds))
            is_complete = len(finished(self.folder)) - before >= self.given.points
            if launching.poll() is not None:
                if is_complete:
                    break
                launching = self.launch(first)
            elif not is_complete and len(self.kills) < self.given.kills:
                if not self.has_claims() and random.random() < _WORKING_SHARE:
                    continue
                self.check_watch()
                self.kill_one(launching)
                killed = Counter(kill.victim for kill in self.kills)
                done = len(finished(self.folder)) - before
                print(f"{done} points, {dict(killed)}", flush=True)
        if launching.poll() is None:
            self.problems.append(f"the sweep from {first} on does not end")
            launching.kill()
        deadline = time.time() + _SILENT_SECONDS
        while self.drivers() and time.time() < deadline:  # Slurm's survive the launching process
            time.sleep(1.0)
        self.problems += [f"driver {pid} is left" for pid in self.drivers()]
        self.train_one()  # closes what dead drivers left
        self.check_watch()
        self.problems += doubled_or_running(self.folder)
        measured = len(finished(self.folder)) - before
        if measured != self.given.points:
            self.problems.append(f"{measured} points measured, not {self.given.points}")

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield one row per kill."""
        runs = self._rows("""
            SELECT r.start_time, p.value, s.value, d.value, reason.value FROM runs r
            JOIN tags p ON p.run_uuid = r.run_uuid AND p.key = 'point_id'
            JOIN tags s ON s.run_uuid = r.run_uuid AND s.key = 'sweep_id'
            JOIN tags d ON d.run_uuid = r.run_uuid AND d.key = 'driver'
            LEFT JOIN tags reason ON reason.run_uuid = r.run_uuid AND reason.key = 'reason'
            WHERE r.lifecycle_stage = 'active'""")
        waits: dict[int, list[float]] = {number: [] for number in range(len(self.kills))}
        for start, point, sweep, driver, reason in runs:
            if reason != "its driver was killed":
                continue
            # The first kill of the driver after the begin of its run.
            number = next(
                number
                for number, kill in enumerate(self.kills)
                if (sweep, driver) in kill.drivers and kill.unix_ms > start
            )
            killed = self.kills[number].unix_ms
            later = [again for again, other, *_ in runs if other == point and again > killed]
            if later:
                waits[number].append((min(later) - killed) / 1e3)
            else:
                self.problems.append(f"point {point} was never measured again")
        for number, kill in enumerate(self.kills):
            yield {
                "launcher": self.given.launcher,
                "victim": kill.victim,
                "drivers": len(kill.drivers),
                "lost_points": len(waits[number]),
                "seconds_until_all_run_again": max(waits[number], default=""),
            }


@contextmanager
def cluster_of(launcher: str) -> Iterator[Cluster]:
    """Start the nodes that a launcher needs."""
    with contextlib.ExitStack() as stack:
        if launcher == "submitit_slurm":
            yield SlurmCluster(stack)
        elif launcher == "ray":
            yield RayCluster(stack)
        else:
            yield Cluster()


def main() -> None:
    """Kill in one sweep after the other until the number of kills is reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launcher", default="joblib")
    parser.add_argument("--drivers", type=int, default=4)
    parser.add_argument("--points", type=int, default=40, help="of a sweep")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=20.0, help="between two kills, at most")
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds of a process of a point")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster_of(given.launcher) as cluster:
        folder = Path(name)
        trial = Trial(folder, cluster, given, interpreter(folder))
        trial.train_one()
        sweeps = 0
        while len(trial.kills) < given.kills:
            trial.sweep(first=100 + given.points * sweeps)
            sweeps += 1
        rows = list(trial.rows())
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "kill_launched.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
    killed = Counter(kill.victim for kill in trial.kills)
    print(f"{given.launcher}: {sweeps} sweeps of {given.points} points, {trial.launches} launches, "
          f"{len(rows)} kills {dict(killed)}: {len(trial.problems)} problems {trial.problems}")  # fmt: skip
    if trial.problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
