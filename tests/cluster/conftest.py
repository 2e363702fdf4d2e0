"""Clusters on this machine, for `make test-cluster`: real schedulers on loopback, in folders of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cluster.ray_cluster import RayCluster
from tests.cluster.slurm import Slurm
from tests.conftest import ROOT, TINY, Store, environment

#: Enough points of a second or so each that something can happen to a task in their middle.
POINTS = [
    *[entry for entry in TINY if not entry.startswith(("model.nodes", "measure.min_seconds"))],
    "measure.min_seconds=0.5",
    "measure.memory_limit=4GiB",
]


#: Seconds for a test, and for a sweep in it, of which none should end by them.
LIMIT, SWEEP_LIMIT = 1500, 600.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Schedulers, servers and drivers start with each test: on a busy machine that is many minutes."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes under Slurm."""
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes under Ray."""
    cluster = RayCluster()
    yield cluster
    cluster.stop()


class Sweep:
    """A sweep that runs beside the test."""

    def __init__(self, store: Store, arguments: Sequence[str], environ: dict[str, str], points: Sequence[str]) -> None:
        self._store = store
        self._log = store.folder / f"sweep-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paradnn.train", "-m", *arguments, *points],
                cwd=ROOT,
                env={**environment(store), **environ},
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    def wait(self, timeout: float = SWEEP_LIMIT) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"the sweep does not end:\n{self.said}") from None

    def until(self, ready: Callable[[], bool], what: str, timeout: float = SWEEP_LIMIT) -> None:
        """Wait for something while the sweep runs."""
        deadline = time.monotonic() + timeout
        while not ready():
            assert self._process.poll() is None, f"the sweep ended before {what}:\n{self.said}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.said}"
            time.sleep(0.2)

    def measured(self, **tags: str) -> list[dict[str, str]]:
        """Points with an outcome that bear these tags."""
        return [run for run in self._store.runs() if "outcome" in run and tags.items() <= run.items()]

    def measuring(self, **tags: str) -> list[dict[str, str]]:
        """Points that are being measured, without those whose outcome is written but not their end."""
        return [
            run
            for run in self._store.runs()
            if run["status"] == "RUNNING" and "outcome" not in run and tags.items() <= run.items()
        ]

    def end(self) -> None:
        """Kill it, should it still run."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def sweep(store: Store) -> Iterator[Callable[..., Sweep]]:
    """Starts a sweep of points that last about a second; none outlives the test."""
    started = []

    def start(*arguments: str, environ: dict[str, str] | None = None, points: Sequence[str] = POINTS) -> Sweep:
        if "hydra/launcher=slurm" in arguments:
            arguments = (f"hydra.launcher.submitit_folder={store.folder}/jobs/%j", *arguments)
        started.append(Sweep(store, arguments, environ or {}, points))
        return started[-1]

    yield start
    for one in started:
        one.end()


def settled(store: Store, count: int) -> None:
    """Every point has one outcome, none two, and nothing is left RUNNING."""
    outcomes = Counter(run["point_id"] for run in store.runs() if "outcome" in run)
    assert len(outcomes) == count
    assert set(outcomes.values()) == {1}
    assert {run["outcome"] for run in store.runs() if "outcome" in run} == {"ok"}
    assert store.query("SELECT count(*) FROM runs WHERE status = 'RUNNING' AND lifecycle_stage = 'active'") == [(0,)]
    parents = {run["run_id"] for run in store.runs("sweep")}
    assert {run["mlflow.parentRunId"] for run in store.runs()} <= parents
