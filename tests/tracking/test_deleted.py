"""Stores that are deleted while a sweep runs: results are kept, and the exit code is 1."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paradnn.store.journal import Journal
from paradnn.store.mlflow_store import MlflowStore
from tests.conftest import TINY, Store, process, run, succeeded

AXES = ["-m", *TINY, "batch_size=2,3,4,5"]


def delete_after_two_results(
    monkeypatch: pytest.MonkeyPatch, kind: type[Journal | MlflowStore], delete: Callable[[], None]
) -> None:
    """Delete the store once the driver has recorded two results in it."""
    record = kind.record
    count = 0

    def record_and_delete(self, *arguments: object) -> str:
        nonlocal count
        run_id = record(self, *arguments)
        count += 1
        if count == 2:
            delete()
        return run_id

    monkeypatch.setattr(kind, "record", record_and_delete)


def delete_file(store: Store) -> None:
    (store.folder / "mlflow.db").unlink()


def delete_folder(store: Store) -> None:
    shutil.rmtree(store.folder)


def replace_file(store: Store) -> None:
    other = store.folder / "other.db"
    shutil.copyfile(store.folder / "mlflow.db", other)
    other.replace(store.folder / "mlflow.db")


@pytest.mark.framework
@pytest.mark.parametrize("delete", [delete_file, delete_folder, replace_file])
def test_a_deleted_database_is_restored_and_later_results_are_files(
    delete: Callable[[Store], None],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = tmp_path / "files"
    with monkeypatch.context() as patch:
        delete_after_two_results(patch, MlflowStore, lambda: delete(store))
        completed = run(["paradnn.train", *AXES, f"tracking.folder={files}"], store)

    assert completed.returncode == 1
    assert "was deleted or replaced while it was in use" in completed.stderr
    assert "4 ok" in completed.stdout
    assert len(list(files.glob("point-*.json"))) == 2

    # The remedy in the messages restores everything.
    copy_message = re.search(r"Its runs were copied to (\S+): move", completed.stderr)
    assert copy_message
    store.folder.mkdir(exist_ok=True)
    shutil.move(copy_message[1], store.folder / "mlflow.db")
    for end in ("-wal", "-shm"):
        (store.folder / f"mlflow.db{end}").unlink(missing_ok=True)
    # Use a separate process, since MLflow keeps connections to the deleted file in this one.
    assert process(["paradnn.sync", str(files)], store).returncode == 0
    assert [point["outcome"] for point in store.runs()] == ["ok"] * 4
    assert [sweep["status"] for sweep in store.runs("sweep")] == ["FINISHED"]
    assert "4 skipped" in process(["paradnn.train", *AXES], store).stdout


@pytest.mark.framework
def test_a_deleted_folder_of_results_is_reported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    offline = ["tracking=offline", f"tracking.folder={files}"]
    with monkeypatch.context() as patch:
        delete_after_two_results(patch, Journal, lambda: shutil.rmtree(files))
        completed = run(["paradnn.train", *AXES, *offline], store)

    assert completed.returncode == 1
    assert f"error: 2 results of this session disappeared from {files}" in completed.stderr
    assert len(list(files.glob("point-*.json"))) == 2
    assert "2 skipped" in succeeded(["paradnn.train", *AXES, *offline], store).stdout


@pytest.mark.framework
def test_the_result_of_a_single_point_is_kept_if_the_store_is_deleted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = MlflowStore.begin

    def begin_and_delete(self, *arguments: object) -> object:
        claim = begin(self, *arguments)
        delete_file(store)
        return claim

    monkeypatch.setattr(MlflowStore, "begin", begin_and_delete)
    completed = run(["paradnn.train", *TINY, f"tracking.folder={tmp_path / 'files'}"], store)

    assert completed.returncode == 1
    assert len(list((tmp_path / "files").glob("point-*.json"))) == 1
