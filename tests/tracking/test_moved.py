"""Creation of a store, complete or not at all, and artifacts of copied or moved stores."""

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

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload``"
)  # a query of MLflow with SQLAlchemy 2.1

TABLE = {"columns": ["type", "share"], "data": [["MatMul", 1.0]]}


def record(uri: str, number: int) -> str:
    """Record a run of a point with an artifact, and return its id."""
    tracker = MlflowStore(Tracking(uri=uri))
    claim = claimed(tracker, number)
    made = record_of(claim)
    made.artifacts["operation_types.json"] = TABLE
    return tracker.record(claim, made, dict)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.json"))}


def test_a_copy_reads_and_writes_its_own_artifacts(store: Store, tmp_path: Path) -> None:
    run_id = record(store.uri, 1)
    copy = Store(tmp_path / "a copy of 100%" / "mlruns")
    shutil.copytree(store.folder, copy.folder)
    files = snapshot(store.folder)
    tables = store.query("SELECT run_uuid, artifact_uri FROM runs")
    new = record(copy.uri, 2)
    assert snapshot(store.folder) == files
    assert store.query("SELECT run_uuid, artifact_uri FROM runs") == tables
    uris = dict(copy.query("SELECT run_uuid, artifact_uri FROM runs"))
    assert uris == {
        each: (copy.folder / "artifacts" / each / "artifacts").as_uri() for each in (run_id, new)
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
        "reading changes nothing"
    )


def test_a_database_copied_alone_finds_artifacts_at_the_old_place(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = record(store.uri, 1)
    alone = Store(tmp_path / "alone")
    alone.folder.mkdir()
    store.query("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(store.folder / "mlflow.db", alone.folder)
    new = record(alone.uri, 2)
    uris = dict(alone.query("SELECT run_uuid, artifact_uri FROM runs"))
    assert uris[run_id].startswith(store.folder.as_uri())
    assert uris[new].startswith(alone.folder.as_uri())
    monkeypatch.setenv("PARADNN_ARTIFACTS", str(store.folder))
    assert load_table(run_id, "operation_types.json", alone.uri)["type"].tolist() == ["MatMul"]


def test_artifacts_in_a_place_of_ones_own_stay_there(store: Store, tmp_path: Path) -> None:
    record(store.uri, 1)
    chosen = tmp_path / "disk" / "artifacts"
    chosen.mkdir(parents=True)
    store.change(f"UPDATE experiments SET artifact_location = '{chosen.as_uri()}'")
    new = record(store.uri, 2)
    assert (chosen / new).is_dir()


def test_two_ways_to_one_store_are_one(store: Store, tmp_path: Path) -> None:
    record(store.uri, 1)
    link = tmp_path / "link"
    link.symlink_to(store.folder)
    before = store.query("SELECT artifact_location FROM experiments")
    record(f"sqlite:///{link / 'mlflow.db'}", 2)
    assert store.query("SELECT artifact_location FROM experiments") == before


def test_mlflows_own_default_of_a_project_is_no_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`mlflow run .` without an address exports mlflow.db in the folder of the project."""
    monkeypatch.setattr("paradnn.store.address.HOME", tmp_path)
    usual = f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}"
    chosen = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", chosen)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    assert address_of().uri == chosen, "typed by the user"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "0")
    assert address_of().uri == usual
    assert address_of(chosen).uri == chosen
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert address_of().uri == f"sqlite:///{tmp_path / 'other.db'}"


def test_artifacts_on_a_disk_that_is_away_are_not_given_up(store: Store) -> None:
    run_id = record(store.uri, 1)
    away = "file:///disk-that-is-away/artifacts"
    store.change(f"UPDATE experiments SET artifact_location = '{away}'")
    store.change(f"UPDATE runs SET artifact_uri = '{away}/{run_id}/artifacts'")
    shutil.rmtree(store.folder / "artifacts")
    frame = load(store.uri)
    assert frame["artifact_uri"].tolist() == [f"{away}/{run_id}/artifacts"]


def test_a_kill_during_the_creation_of_tables_leaves_no_partial_database(tmp_path: Path) -> None:
    """MLflow takes seconds to create its tables, and rejects a half-created database later."""
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
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert not (tmp_path / "new" / "mlflow.db").exists(), done.stderr
    assert open_experiment(address, "paradnn")[1]
    assert sorted(path.name for path in (tmp_path / "new").iterdir() if "making" in path.name) == []
