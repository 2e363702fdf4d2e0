"""Artifacts of copied and moved stores, and interrupted creation of a store."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.store.load import load, load_table, load_tables
from paradnn.config.settings import Tracking
from paradnn.store.address import address_of
from paradnn.store.client import open_experiment
from paradnn.store.mlflow_store import MlflowStore
from tests.cluster.recorder import claimed, record_of
from tests.conftest import ROOT, Store

# Some queries of MLflow cause this warning with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload``")

TABLE = {"columns": ["type", "share"], "data": [["MatMul", 1.0]]}


def record(uri: str, number: int) -> str:
    """Record a run of a point with an artifact, and return its id."""
    tracker = MlflowStore(Tracking(uri=uri))
    claim = claimed(tracker, number)
    recorded = record_of(claim)
    recorded.artifacts["operation_types.json"] = TABLE
    return tracker.record(claim, recorded, dict)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.json"))}


def test_a_copied_store_reads_and_writes_its_own_artifacts(store: Store, tmp_path: Path) -> None:
    run_id = record(store.uri, 1)
    copy = Store(tmp_path / "a copy of 100%" / "mlruns")
    shutil.copytree(store.folder, copy.folder)
    files = snapshot(store.folder)
    tables = store.query("SELECT run_uuid, artifact_uri FROM runs")
    new_run_id = record(copy.uri, 2)
    assert snapshot(store.folder) == files
    assert store.query("SELECT run_uuid, artifact_uri FROM runs") == tables
    uris = dict(copy.query("SELECT run_uuid, artifact_uri FROM runs"))
    assert uris == {
        each: (copy.folder / "artifacts" / each / "artifacts").as_uri()
        for each in (run_id, new_run_id)
    }
    assert all(
        (copy.folder / "artifacts" / each / "artifacts" / "blocks.json").is_file() for each in uris
    )
    shutil.rmtree(store.folder)
    before = copy.query("SELECT run_uuid, artifact_uri FROM runs")
    assert (
        load_tables(load(copy.uri), "operation_types.json", copy.uri)["type"].tolist()
        == ["MatMul"] * 2
    )
    assert load_table(run_id, "operation_types.json", copy.uri)["type"].tolist() == ["MatMul"]
    assert copy.query("SELECT run_uuid, artifact_uri FROM runs") == before, (
        "reading must not change the store"
    )


def test_a_database_copied_without_artifacts_can_read_the_old_ones(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record(store.uri, 1)
    database_only = Store(tmp_path / "alone")
    database_only.folder.mkdir()
    store.query("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(store.folder / "mlflow.db", database_only.folder)
    new_run_id = record(database_only.uri, 2)
    uris = dict(database_only.query("SELECT run_uuid, artifact_uri FROM runs"))
    assert uris[run_id].startswith(store.folder.as_uri())
    assert uris[new_run_id].startswith(database_only.folder.as_uri())
    monkeypatch.setenv("PARADNN_ARTIFACTS", str(store.folder))
    assert load_table(run_id, "operation_types.json", database_only.uri)["type"].tolist() == [
        "MatMul"
    ]


def test_a_custom_artifact_location_is_kept(store: Store, tmp_path: Path) -> None:
    record(store.uri, 1)
    custom = tmp_path / "disk" / "artifacts"
    custom.mkdir(parents=True)
    store.change(f"UPDATE experiments SET artifact_location = '{custom.as_uri()}'")
    new_run_id = record(store.uri, 2)
    assert (custom / new_run_id).is_dir()


def test_a_symbolic_link_to_a_store_is_the_same_store(store: Store, tmp_path: Path) -> None:
    record(store.uri, 1)
    link = tmp_path / "link"
    link.symlink_to(store.folder)
    before = store.query("SELECT artifact_location FROM experiments")
    record(f"sqlite:///{link / 'mlflow.db'}", 2)
    assert store.query("SELECT artifact_location FROM experiments") == before


def test_the_default_store_of_an_mlflow_project_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without an address, `mlflow run .` exports that of mlflow.db in the project's folder."""
    monkeypatch.setattr("paradnn.store.address.HOME", tmp_path)
    default = f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}"
    custom = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", custom)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    assert address_of().uri == custom, "typed by the user"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")
    assert address_of().uri == default
    assert address_of(custom).uri == custom
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert address_of().uri == f"sqlite:///{tmp_path / 'other.db'}"


def test_the_location_of_unavailable_artifacts_is_kept(store: Store) -> None:
    run_id = record(store.uri, 1)
    unavailable_location = "file:///disk-that-is-away/artifacts"
    store.change(f"UPDATE experiments SET artifact_location = '{unavailable_location}'")
    store.change(f"UPDATE runs SET artifact_uri = '{unavailable_location}/{run_id}/artifacts'")
    shutil.rmtree(store.folder / "artifacts")
    frame = load(store.uri)
    assert frame["artifact_uri"].tolist() == [f"{unavailable_location}/{run_id}/artifacts"]


def test_a_kill_during_the_creation_of_tables_leaves_no_partial_database(tmp_path: Path) -> None:
    """Kill a process while MLflow creates its tables, which takes seconds.

    MLflow would reject a partially created database.
    """
    address = address_of(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    (tmp_path / "new").mkdir()
    code = f"""
import os, signal
import sqlalchemy as sa
from paradnn.store.client import open_experiment
from paradnn.store.address import address_of
@sa.event.listens_for(sa.engine.Engine, "after_cursor_execute")
def after(connection, cursor, statement, *_):
    if "CREATE TABLE _alembic_tmp_" in statement:
        os.kill(os.getpid(), signal.SIGKILL)
open_experiment(address_of({address.uri!r}), "paradnn")
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert completed.returncode != 0
    assert not (tmp_path / "new" / "mlflow.db").exists(), completed.stderr
    assert open_experiment(address, "paradnn")[1]
    assert sorted(path.name for path in (tmp_path / "new").iterdir() if "making" in path.name) == []
