"""Fixtures of all tests: commands as a user runs them, and a separate store per test."""

import fcntl
import gc
import importlib
import io
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import threadpoolctl
import yaml

from paradnn.session import session
from paradnn.session.workers import WorkerPool
from paradnn.store.mlflow_store import MlflowStore
from tests.processes import PATIENCE, children_of

ROOT = Path(__file__).resolve().parent.parent

_SUITE = os.getpid()
#: Options of the shortest possible protocol.
SHORT = ["measure.min_seconds=0.02", "measure.min_blocks=6", "measure.block_seconds=0.002"]
SHORT += ["measure.warmup_seconds=0.05", "measure.processes=1", "ceilings=false"]
#: Options of the smallest model with this protocol.
TINY = [
    "model.layers=1",
    "model.nodes=8",
    "model.input_size=16",
    "model.output_size=4",
    "batch_size=4",
    *SHORT,
]


def _refuse_to_fork(event: str, arguments: object) -> None:
    """Raise if a test forks the process that runs the tests.

    A fork lacks this process's threads, but inherits the locks that they hold. It may therefore
    wait forever.
    """
    if event in ("os.fork", "os.forkpty") and os.getpid() == _SUITE:
        raise RuntimeError(
            "a test must not fork the process that runs the tests; use run_in_new_interpreter() of "
            "tests/processes.py"
        )


#: Durations of the slowest test files in seconds.
LONGEST: dict[str, int] = yaml.safe_load(Path(__file__).with_name("longest.yaml").read_text())
#: Fixtures that measure with a framework.
MEASURED = {"swept"}


def pytest_sessionstart() -> None:
    """Prepare the test process for running next to a second one.

    Matrix products use one thread each, since more threads would spin for the same cores.
    """
    sys.addaudithook(_refuse_to_fork)
    import scipy.linalg  # noqa: F401  loads a separate BLAS

    threadpoolctl.threadpool_limits(1, "blas")
    # The temporary files of a test process must not include those of other processes.
    if "PYTEST_XDIST_WORKER" in os.environ:
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="paradnn-tests-")
        # Runs after the clean-up of multiprocessing in that folder, which has priority -100.
        Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)


def pytest_collection_finish() -> None:
    """Exclude the objects that exist now from garbage collection.

    Keras runs the collector after each model, and imported modules would slow it down.
    """
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    if MEASURED & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.framework)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests in the order in which `make test` gives files to its processes."""
    seconds = {str(ROOT / "tests" / f"{name}.py"): value for name, value in LONGEST.items()}
    items.sort(key=lambda item: -seconds.get(str(item.path), 0))


def depth(few: int, many: int) -> pytest.MarkDecorator:
    """Parametrize `draws`, the number of repetitions: `few` in `make test`, `many` when long."""
    return pytest.mark.parametrize("draws", [few, pytest.param(many, marks=pytest.mark.long)])


@dataclass(frozen=True)
class Store:
    """SQLite tracking store that tests read with plain SQL, without code of the package."""

    folder: Path

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def query(self, sql: str, *values: object) -> list[tuple]:
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=60)) as database:
            return database.execute(sql, values).fetchall()

    def change(self, sql: str) -> None:
        """Run an SQL statement that changes tables, without MLflow."""
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=60)) as database, database:
            database.execute(sql)

    def runs(self, kind: str = "point") -> list[dict[str, str]]:
        """Return id, status and tags of every undeleted run of a kind, ordered by start time."""
        runs: dict[str, dict[str, str]] = {}
        rows = self.query(
            "SELECT r.run_uuid, r.status, t.key, t.value FROM runs r JOIN tags t USING (run_uuid) "
            "WHERE r.lifecycle_stage = 'active' ORDER BY r.start_time, r.rowid"
        )
        for run_id, status, key, value in rows:
            runs.setdefault(run_id, {"run_id": run_id, "status": status})[key] = value
        return [run for run in runs.values() if run.get("kind") == kind]

    def values(self, table: str, run_id: str) -> dict[str, object]:
        """Return the values of a run by name; the names of metrics lack their sections.

        Args:
            table: "params" or "latest_metrics".
            run_id: Id of the run.
        """
        rows = self.query(f"SELECT key, value FROM {table} WHERE run_uuid = ?", run_id)
        if table != "latest_metrics":
            return dict(rows)
        return {re.sub(r"^[a-z]+/", "", key): value for key, value in rows}

    def files(self, run_id: str) -> Path:
        """Return the folder of a run's artifacts."""
        [(uri,)] = self.query("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
        return Path(uri.removeprefix("file://"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated database without runs.

    The migration takes seconds, so the first test process runs it for all processes.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "empty"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "mlflow.db").exists():
            new_database = folder / "making.db"
            code = (
                "from mlflow import MlflowClient; "
                f"MlflowClient('sqlite:///{new_database}').search_experiments()"
            )
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            new_database.rename(folder / "mlflow.db")
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path: Path, empty_database: Path) -> Store:
    """Return an empty store."""
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(empty_database.read_bytes())
    return Store(folder)


def environment(store: Store | None = None, **further: str) -> dict[str, str]:
    """Return the environment variables of a command, without those of the developer's own store.

    Args:
        store: Store of the command.
        further: Variables to add or override.
    """
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "HYDRA_"))
    }
    # Drawing the page of a sweep takes seconds, so only tests of the page enable it.
    fixed = {"PARADNN_PAGE": "false"}
    if store:
        fixed["MLFLOW_TRACKING_URI"] = store.uri
    return environ | fixed | further


def process(
    arguments: Sequence[str], store: Store | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m ARGUMENTS` in the checkout as a separate process."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment(store, **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def succeeded(
    arguments: Sequence[str], store: Store | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Return the result of `run`; fail the test if the command fails."""
    completed = run(arguments, store, **variables)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


def run(
    arguments: Sequence[str], store: Store | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, with workers that later commands reuse.

    No framework is imported twice. Unlike `process`, this does not start an interpreter. In both
    cases, the output is not a terminal.
    """
    name, *rest = arguments
    module = importlib.import_module(name)
    out = io.StringIO()
    errors = io.StringIO()
    kept = _kept_workers()
    with (
        mock.patch.dict(os.environ, environment(store, **variables), clear=True),
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [name, *rest])
        patch.setattr(sys, "orig_argv", [sys.executable, "-m", name, *rest])
        patch.setattr(session, "WorkerPool", lambda: kept)
        try:
            code = module.main()
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(
        list(arguments), code or 0, out.getvalue(), errors.getvalue()
    )


@contextmanager
def ctrl_c_after_records(count: int) -> Iterator[None]:
    """Send SIGINT to this process once the store has recorded `count` points."""
    record = MlflowStore.record
    recorded = []

    def record_and_interrupt(*arguments: Any) -> str:
        recorded.append(record(*arguments))
        if len(recorded) == count:
            signal.raise_signal(signal.SIGINT)
        return recorded[-1]

    # Background processes of a shell ignore SIGINT, and this process may be one of them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with mock.patch.object(MlflowStore, "record", record_and_interrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


class _KeptPool(WorkerPool):
    """Worker pool that outlives its session."""

    def __exit__(self, *_: object) -> None:
        pass


_pools: dict[frozenset[tuple[str, str]], WorkerPool] = {}


#: Prefixes of environment variables that workers do not read: those of pytest, of the tracking
#: store, and of installers.
_NOT_READ = ("PYTEST_", "MLFLOW_", "PIP_", "UV_", "PATH", "XDG_CACHE_HOME")


def _kept_workers() -> WorkerPool:
    """Return the pool of workers that started in the current environment.

    A test that changes the environment gets separate workers.
    """
    environ = frozenset(entry for entry in os.environ.items() if not entry[0].startswith(_NOT_READ))
    if environ not in _pools:
        _pools[environ] = _KeptPool()
    return _pools[environ]


@pytest.fixture(scope="session", autouse=True)
def _close_pools() -> Iterator[None]:
    yield
    for pool in _pools.values():
        pool.close()


@pytest.fixture(scope="session")
def pool() -> WorkerPool:
    """Return a pool of real workers that tests share.

    Workers fork a process per point. The test process itself must not fork, since it runs threads.
    """
    return _kept_workers()


def processes_of_points() -> dict[int, int]:
    """Return living processes that the workers of this test or their children have forked.

    Maps the id of each process to the id of its parent.
    """
    import psutil

    parent_by_process = {}
    for pid in children_of(os.getpid()):
        with suppress(psutil.Error):
            child = psutil.Process(pid)
            parent = child.parent()
            if parent is None or child.status() == psutil.STATUS_ZOMBIE:
                continue
            commands = [" ".join(process.cmdline()) for process in (child, parent)]
            if all("paradnn.worker" in command for command in commands):
                parent_by_process[pid] = parent.pid
    return parent_by_process
