"""Requests that a run sends to a tracking server, and the data that it stores there.

A proxy counts the requests to a real server. The data is read from the server's database.
"""

import json
import os
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

import analysis
from analysis.cli import main
from analysis.store.load import read_environment
from paradnn.config.identity import Identity
from paradnn.config.settings import Tracking
from paradnn.core.metric import MetricSnapshot
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.runs import Claim, Claimed, Finished, Record
from tests.cluster.postgres import server
from tests.cluster.recorder import ENVIRONMENT, record_of, tags_of
from tests.conftest import Store
from tests.tracking.counting import Counted, counting


@dataclass(frozen=True)
class Remote(Store):
    """SQLite store behind a server."""

    counted: Counted

    def driver(self, experiment: str, name: str | None = None) -> MlflowStore:
        """Return the tracker of a driver that has read the store.

        A driver with a name is a different process from this one.
        """
        opened = MlflowStore(Tracking(uri=self.counted.uri, experiment=experiment))
        if name:  # the parent process lives as long as the tests
            other = psutil.Process(os.getppid())
            opened._owner = json.dumps(
                {**json.loads(opened._owner), "pid": other.pid, "started": other.create_time()}
            )
        opened.finished([ENVIRONMENT])
        self.counted.asked.clear()
        return opened

    def file(self, run_id: str, name: str) -> bytes:
        [[place]] = self.query("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
        path = place.removeprefix("mlflow-artifacts:/")
        address = f"{self.counted.uri}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return bytes(answer.read())

    def new_requests(self) -> list[str]:
        """Return the requests since the previous call."""
        found = [each for each in self.counted.asked if each != "get"]
        self.counted.asked.clear()
        return found


def begin(tracker: MlflowStore, number: int) -> Claimed:
    """Claim a point for which any stored outcome is accepted."""
    identity = Identity(str(number), ENVIRONMENT, 0)
    return tracker.begin(identity, f"point {number}", tags_of(identity), lambda tags: True)


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("server")
    with server(f"sqlite:///{folder / 'mlflow.db'}", folder) as one, counting(one.port) as counted:
        yield Remote(folder, counted)


FILES = {
    "environment.json": {"host": {"host": "node7"}, "cores": 2},
    "config.json": {"batch_size": 4},
    "stack.txt": "keras 3\nmlflow 3\n",
    "blocks.json": {"unit": "s", "processes": [[0.1, 1e-17, 0.30000000000000004]]},
}
ONE_RUN = ["create", "search", "files.json", "log-batch", "update"]


def record_run(tracker: MlflowStore, number: int, **changes: object) -> str:
    """Claim a point and record its run with `FILES`; return the run's id."""
    claim = begin(tracker, number)
    assert isinstance(claim, Claim)
    record: Record = replace(record_of(claim), **{"artifacts": FILES, **changes})  # type: ignore[arg-type]
    return tracker.record(claim, record, lambda: {"phase_record_seconds": 0.5})


def test_a_run_is_five_requests_and_leaves_every_file_and_value(remote: Remote) -> None:
    tracker = remote.driver("alone")
    for number in range(3):
        run_id = record_run(tracker, number)
    assert remote.new_requests() == 3 * ONE_RUN
    assert json.loads(remote.file(run_id, "files.json")) == FILES
    [[status]] = remote.query("SELECT status FROM runs WHERE run_uuid = ?", run_id)
    assert status == "FINISHED"
    metrics = dict(remote.query("SELECT key, value FROM metrics WHERE run_uuid = ?", run_id))
    assert metrics == {f"metric_{index}": 2.0 for index in range(40)} | {
        "phase/phase_record_seconds": 0.5
    }


def test_pictures_tables_and_standard_error_stay_separate_files(remote: Remote) -> None:
    table = {"columns": ["type"], "data": [["MatMul"]]}
    opened = {"picture.png": {"base64": "aGk="}, "operations.json": table, "stderr.txt": "the end"}
    run_id = record_run(remote.driver("pictures"), 1, artifacts={**FILES, **opened})
    assert remote.file(run_id, "picture.png") == b"hi"
    assert json.loads(remote.file(run_id, "operations.json")) == table
    assert remote.file(run_id, "stderr.txt") == b"the end"
    assert set(json.loads(remote.file(run_id, "files.json"))) == set(FILES)


def test_a_driver_that_met_another_one_looks_before_it_creates_a_run(remote: Remote) -> None:
    first = remote.driver("shared")
    second = remote.driver("shared", "another")
    known = [record_run(first, number) for number in range(3)]
    remote.new_requests()
    answers = [begin(second, number) for number in range(3)]
    assert [answer.run_id for answer in answers if isinstance(answer, Finished)] == known
    assert remote.new_requests() == ["create", "search", "delete", "search", "search"]
    active_runs = remote.query(
        "SELECT count(*) FROM runs JOIN experiments e USING (experiment_id) "
        "WHERE e.name = 'shared' AND runs.lifecycle_stage = 'active'"
    )
    assert active_runs == [(3,)]


def test_epochs_are_written_with_the_outcome_unless_they_are_too_many(remote: Remote) -> None:
    tracker = remote.driver("learning")

    def epochs(count: int) -> list[MetricSnapshot]:
        return [MetricSnapshot(step, 1000 + step, {"loss": float(step)}) for step in range(count)]

    record_run(tracker, 1, history=epochs(100))
    assert remote.new_requests() == ONE_RUN
    run_id = record_run(tracker, 2, history=epochs(1500))
    assert remote.new_requests() == [*ONE_RUN[:3], "log-batch", *ONE_RUN[3:]]
    found = remote.query(
        "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = 'loss' ORDER BY step", run_id
    )
    assert found == [(step, float(step)) for step in range(1500)]


def test_packed_files_are_read_one_by_one(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record_run(remote.driver("paradnn"), 1)
    frame = analysis.load(remote.counted.uri)
    [row] = frame.to_dict("records")
    assert read_environment(row, remote.counted.uri) == FILES["environment.json"]
    target = tmp_path / "results.zip"
    assert main(["export", str(target), "--store", remote.counted.uri]) == 0
    with zipfile.ZipFile(target) as bundle:
        names = {name.rpartition("/")[2] for name in bundle.namelist() if run_id in name}
        assert names == set(FILES)
        assert bundle.read(f"artifacts/{run_id}/stack.txt").decode() == FILES["stack.txt"]
