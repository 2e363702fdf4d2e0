"""The columns that are kept beside a large store: the same frames, faster, and never those of another state of it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from analysis.store.load import load
from paradnn.errors import StoreError
from paradnn.store import cache, columns, sql
from paradnn.store.columns import Records
from paradnn.store.records import Query
from tests.analysis.test_store import QUERIES
from tests.conftest import ROOT
from tests.processes import PATIENCE, started

#: What makes a small store, written just now, a large one that has settled.
LARGE = ((cache, "_WORTH", 1), (cache, "_SETTLED", 0), (sql, "_MANY", 0), (columns, "_ROWIDS", 7))


@pytest.fixture
def large(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own for each test."""
    for module, name, value in LARGE:
        monkeypatch.setattr(module, name, value)
    return Path(shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "mlflow.db"))


def kept(database: Path) -> Path:
    return database.with_name("mlflow.db.arrow")


def check(database: Path, **query: Any) -> None:
    """The frame is that of MLflow's own search."""
    frame, expected = load(str(database), **query), load(str(database), reader="api", **query)
    pd.testing.assert_frame_equal(frame, expected, check_exact=True)


def change(database: Path, *statements: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def forbidden(*_: object) -> None:
    raise AssertionError("the store was read")


def test_columns_give_what_the_store_gives(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for query in QUERIES.values():
        check(large, **query)
    monkeypatch.setattr(sql.SqlReader, "columns", forbidden)
    for query in QUERIES.values():
        check(large, **query)
    monkeypatch.undo()
    check(large, tags={"mlflow.runName": "run 3"})


RUN = "(SELECT run_uuid FROM params WHERE value = 'lstm' LIMIT 1)"
RUN_FIELDS = (
    "name, source_type, source_name, entry_point_name, user_id, status, start_time + 1, end_time, source_version,"
    " lifecycle_stage, artifact_uri, experiment_id, deleted_time"
)
CHANGES = {
    "a new run": [
        f"INSERT INTO runs SELECT 'new', {RUN_FIELDS} FROM runs WHERE run_uuid = {RUN}",
        f"INSERT INTO tags (key, value, run_uuid) SELECT key, value, 'new' FROM tags WHERE run_uuid = {RUN}",
    ],
    "a tag": [f"UPDATE tags SET value = 'else' WHERE key = 'host' AND run_uuid = {RUN}"],
    "a metric": [f"UPDATE latest_metrics SET value = 7, is_nan = 0 WHERE run_uuid = {RUN}"],
    "a name": [f"UPDATE runs SET name = 'other' WHERE run_uuid = {RUN}"],
    "a deleted run": [f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = {RUN}"],
    "a restored run": ["UPDATE runs SET lifecycle_stage = 'active'"],
    "a run that is gone": [f"DELETE FROM runs WHERE run_uuid = {RUN}"],
    "a new experiment": ["UPDATE experiments SET name = 'third' WHERE name = 'other'"],
}


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("statements", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(large: Path, statements: list[str], journal: str) -> None:
    change(large, f"PRAGMA journal_mode = {journal}")
    before = load(str(large), unfinished=True, kind=None)
    assert kept(large).is_file()
    change(large, *statements)
    for _ in range(2):
        check(large, unfinished=True, kind=None)
    same = load(str(large), unfinished=True, kind=None).equals(before)
    assert same == (statements == CHANGES["a new experiment"])
    experiments = ["third"] if statements == CHANGES["a new experiment"] else ["other"]
    assert len(load(str(large), experiments=experiments)) == 1
    with pytest.raises(StoreError, match=r"experiment=nope: no such experiment"):
        load(str(large), experiments="nope")


def test_a_writer_that_has_not_committed_and_one_that_has(large: Path) -> None:
    """Its journal is written at once, the database itself much later."""
    writer = sqlite3.connect(large, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE tags SET value = 'else' WHERE key = 'host'")
    assert set(load(str(large))["host"]) == {"n1"}
    assert kept(large).is_file()
    writer.execute("COMMIT")
    assert set(load(str(large))["host"]) == {"else"}
    writer.execute("UPDATE tags SET value = 'third' WHERE key = 'host'")
    assert set(load(str(large))["host"]) == {"third"}
    writer.close()
    assert set(load(str(large))["host"]) == {"third"}


def test_what_is_written_while_it_is_read_is_not_missed(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = sql.SqlReader.columns

    def slowly(reader: sql.SqlReader, query: Query) -> Records:
        records = read(reader, query)
        change(large, "UPDATE tags SET value = 'else' WHERE key = 'host'")
        return records

    monkeypatch.setattr(sql.SqlReader, "columns", slowly)
    load(str(large))
    assert not kept(large).exists()
    monkeypatch.setattr(sql.SqlReader, "columns", read)
    assert set(load(str(large))["host"]) == {"else"}


def test_a_store_written_just_now_and_a_small_one_are_not_kept(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written twice within a tick of its clock may show the same time twice."""
    monkeypatch.setattr(cache, "_SETTLED", 10**12)
    check(large)
    monkeypatch.setattr(cache, "_SETTLED", 0)
    monkeypatch.setattr(cache, "_WORTH", 1000)
    check(large)
    assert [path.name for path in large.parent.iterdir()] == ["mlflow.db"]


def test_another_place_is_another_store(large: Path, tmp_path: Path) -> None:
    load(str(large))
    copied = tmp_path / "copied"
    copied.mkdir()
    for path in (large, kept(large)):
        shutil.copy2(path, copied)
    change(copied / "mlflow.db", "UPDATE tags SET value = 'else' WHERE key = 'host'")
    check(copied / "mlflow.db")
    check(large)


def without(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"ARROW1" + bytes(1000))


def flipped(path: Path) -> None:
    """One bit in the middle: of a number, or of a text."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_another_layout(path: Path) -> None:
    """Whole, with a right checksum."""
    table = pa.ipc.open_file(path.read_bytes()[:-4]).read_all()
    about = {b"paradnn": table.schema.metadata[b"paradnn"].replace(b'"state": "[2,', b'"state": "[0,')}
    assert about != table.schema.metadata
    wrong = table.replace_schema_metadata(about).rename_columns([f"old {name}" for name in table.column_names])
    with pa.ipc.new_file(str(path), wrong.schema) as writer:
        writer.write_table(wrong)
    path.write_bytes((content := path.read_bytes()) + zlib.crc32(content).to_bytes(4, "big"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [without, truncated, garbage, flipped, of_another_layout, a_folder])
def test_a_file_that_cannot_be_used_is_made_again(large: Path, spoil: Callable[[Path], None]) -> None:
    load(str(large))
    spoil(kept(large))
    check(large)
    check(large)
    left = {path.name for path in large.parent.iterdir()} - {"mlflow.db-shm", "mlflow.db-wal"}
    assert left == {"mlflow.db", "mlflow.db.arrow"}, "no half of a file is left"
    assert kept(large).is_file() == (spoil is not a_folder)


def test_who_may_not_read_the_store_may_not_read_its_columns(large: Path) -> None:
    large.chmod(0o640)
    load(str(large))
    assert kept(large).stat().st_mode & 0o777 == 0o640


def test_two_processes_at_once(large: Path) -> None:
    settings = [f"{module.__name__.rpartition('.')[2]}.{name} = {value}" for module, name, value in LARGE]
    code = "\n".join(
        [
            "import sys",
            "from analysis.store.load import load",
            "from paradnn.store import cache, columns, sql",
            *settings,
            "for _ in range(20): print(len(load(sys.argv[1])))",
        ]
    )
    command = [sys.executable, "-c", code, str(large)]
    reading = partial(started, command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with reading() as first, reading() as second:
        for number in range(10):
            change(large, f"UPDATE tags SET value = 'n{number}' WHERE key = 'host'")
        assert [each.communicate(timeout=PATIENCE)[0].split() for each in (first, second)] == [["34"] * 20] * 2
    check(large)


def test_texts_of_any_kind_come_through(large: Path) -> None:
    """Texts are read joined by a sign: one that holds it, empty ones, missing ones, and quotes."""
    texts = ["", "\x1f", "a\x1fb", "'\"", "null", "é\n", "\x1f\x1f"]
    holders = load(str(large), family="fc")["run_id"][: len(texts)]
    with sqlite3.connect(large) as connection:
        rows = [("odd", text, holder) for text, holder in zip(texts, holders, strict=True)]
        connection.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", rows)
    connection.close()
    for _ in range(2):
        frame = load(str(large)).set_index("run_id")["odd"]
        assert list(frame[list(holders)]) == texts
        assert frame.notna().sum() == len(texts)
    check(large)
