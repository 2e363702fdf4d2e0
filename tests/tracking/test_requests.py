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
from tests.tracking.counting import RequestLog, counting


@dataclass(frozen=True)
class Remote(Store):
    """SQLite store behind a tracking server and a proxy that logs requests."""

    log: RequestLog

    def driver(self, experiment: str, name: str | None = None) -> MlflowStore:
        """Return the tracker of a driver that has read the store.

        If a name is given, the tracker appears to belong to a different process.
        """
        tracker = MlflowStore(Tracking(uri=self.log.uri, experiment=experiment))
        if name:
            # The parent process lives as long as the tests.
            parent = psutil.Process(os.getppid())
            tracker._owner = json.dumps(
                {**json.loads(tracker._owner), "pid": parent.pid, "started": parent.create_time()}
            )
        tracker.finished([ENVIRONMENT])
        self.log.requests.clear()
        return tracker

    def file(self, run_id: str, name: str) -> bytes:
        """Return the content of an artifact as the server sends it."""
        [[uri]] = self.query("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run_id)
        path = uri.removeprefix("mlflow-artifacts:/")
        address = f"{self.log.uri}/api/2.0/mlflow-artifacts/artifacts/{path}/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return bytes(answer.read())

    def new_requests(self) -> list[str]:
        """Return the requests since the previous call, without those that read an experiment."""
        requests = [request for request in self.log.requests if request != "get"]
        self.log.requests.clear()
        return requests


def begin(tracker: MlflowStore, number: int) -> Claimed:
    """Claim a point, or find its outcome; any stored outcome is accepted."""
    identity = Identity(str(number), ENVIRONMENT, 0)
    return tracker.begin(identity, f"point {number}", tags_of(identity), lambda tags: True)


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("server")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    with server(uri, folder) as tracking_server, counting(tracking_server.port) as log:
        yield Remote(folder, log)


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


def test_a_run_needs_five_requests_and_stores_every_file_and_value(remote: Remote) -> None:
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


def test_pictures_tables_and_standard_error_are_separate_files(remote: Remote) -> None:
    table = {"columns": ["type"], "data": [["MatMul"]]}
    separate_files = {
        "picture.png": {"base64": "aGk="},
        "operations.json": table,
        "stderr.txt": "the end",
    }
    run_id = record_run(remote.driver("pictures"), 1, artifacts={**FILES, **separate_files})
    assert remote.file(run_id, "picture.png") == b"hi"
    assert json.loads(remote.file(run_id, "operations.json")) == table
    assert remote.file(run_id, "stderr.txt") == b"the end"
    assert set(json.loads(remote.file(run_id, "files.json"))) == set(FILES)


def test_a_driver_that_found_another_driver_searches_before_it_creates_a_run(
    remote: Remote,
) -> None:
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


def test_only_too_many_epochs_need_a_further_request(remote: Remote) -> None:
    tracker = remote.driver("learning")

    def epochs(count: int) -> list[MetricSnapshot]:
        return [MetricSnapshot(step, 1000 + step, {"loss": float(step)}) for step in range(count)]

    record_run(tracker, 1, history=epochs(100))
    assert remote.new_requests() == ONE_RUN
    run_id = record_run(tracker, 2, history=epochs(1500))
    assert remote.new_requests() == [*ONE_RUN[:3], "log-batch", *ONE_RUN[3:]]
    rows = remote.query(
        "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = 'loss' ORDER BY step", run_id
    )
    assert rows == [(step, float(step)) for step in range(1500)]


def test_packed_files_are_read_separately(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record_run(remote.driver("paradnn"), 1)
    frame = analysis.load(remote.log.uri)
    [row] = frame.to_dict("records")
    assert read_environment(row, remote.log.uri) == FILES["environment.json"]
    target = tmp_path / "results.zip"
    assert main(["export", str(target), "--store", remote.log.uri]) == 0
    with zipfile.ZipFile(target) as bundle:
        names = {name.rpartition("/")[2] for name in bundle.namelist() if run_id in name}
        assert names == set(FILES)
        assert bundle.read(f"artifacts/{run_id}/stack.txt").decode() == FILES["stack.txt"]
