"""Reading of stores: strategies, types, errors, concurrent writers, tables, and passwords."""

import base64
import sqlite3
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from analysis.store.load import load, load_table, load_tables
from paradnn.core.errors import SchemaError, StoreError
from paradnn.store import columns, sql
from tests.analysis.conftest import copy_of

#: Section, in stores of this version, of each metric of the planted runs.
SECTIONED = {
    "parameters": "work",
    "step_time_cv": "step",
    "op_share.MatMul": "operations",
}


def test_metrics_without_a_section_give_the_same_frame(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote every metric without a section.

    One store may contain both forms. Here, models with 3,000 parameters keep the earlier form.
    """
    expected = load(store)
    uri = copy_of(store, tmp_path)
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection, connection:
        for name, section in SECTIONED.items():
            for table in ("metrics", "latest_metrics"):
                changed = connection.execute(
                    f"UPDATE {table} SET key = ? WHERE key = ? AND value <> 3000",
                    (f"{section}/{name}", name),
                ).rowcount
                assert changed > 0
    names = ["step_time_cv", "examples_per_second"]
    monkeypatch.setattr(columns, "MAX_PART_ROWS", 50)
    for max_lookup, min_scan in ((500, 500), (0, 500), (0, 0)):
        monkeypatch.setattr(sql, "_MAX_LOOKUP_RUNS", max_lookup)
        monkeypatch.setattr(sql, "_MIN_SCAN_RUNS", min_scan)
        for reader in ("sql", "api"):
            frame = load(uri, reader=reader)
            pd.testing.assert_frame_equal(frame, expected, check_exact=True)
            part = load(uri, reader=reader, columns=names)
            pd.testing.assert_frame_equal(part[names], expected[names], check_exact=True)


# A count of None is not asserted.
@pytest.mark.parametrize(
    ("query", "count"),
    [
        pytest.param({}, 34, id="all"),
        pytest.param({"family": "lstm"}, 4, id="family"),
        pytest.param({"family": ["fc", "lstm"], "platform": ["gpu", "tpu"]}, 4, id="two families"),
        pytest.param({"outcome": "oom_device"}, 5, id="outcome"),
        pytest.param(
            {"since": "2025-10-09T08:55", "until": "2025-10-09T09:10+00:00"}, None, id="start times"
        ),
        pytest.param({"tags": {"sweep_id": "s1", "replicate": ["0", "1"]}}, 25, id="tags"),
        pytest.param({"tags": {"reason": 'it\'s "full", 100%'}}, 5, id="quotes in a tag"),
        pytest.param({"unfinished": True}, 35, id="unfinished"),
        pytest.param({"unfinished": True, "outcome": "ok"}, None, id="unfinished with an outcome"),
        pytest.param({"kind": None, "unfinished": True}, 36, id="all kinds"),
        pytest.param({"kind": None}, 34, id="finished runs of all kinds"),
        pytest.param({"kind": "sweep", "unfinished": True}, 1, id="sweeps"),
        pytest.param(
            {"columns": ["batch_size", "examples_per_second", "replicate"]}, None, id="columns"
        ),
        pytest.param({"experiments": ["other", "paradnn"]}, 35, id="experiments"),
        pytest.param({"family": "gru"}, 0, id="no matching run"),
    ],
)
def test_all_readers_give_the_same_frame(
    store: str, query: dict[str, object], count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All read strategies return the same frame.

    A few runs are looked up by id, more are read in this process, and many are read in parts by
    other processes.
    """
    api = load(store, reader="api", **query)
    monkeypatch.setattr(columns, "MAX_PART_ROWS", 50)
    for max_lookup, min_scan in ((500, 500), (0, 500), (0, 0)):
        monkeypatch.setattr(sql, "_MAX_LOOKUP_RUNS", max_lookup)
        monkeypatch.setattr(sql, "_MIN_SCAN_RUNS", min_scan)
        tables = load(store, reader="sql", **query)
        pd.testing.assert_frame_equal(tables, api, check_exact=True)
        assert count in (None, len(tables))


def test_since_is_inclusive_and_until_exclusive(store: str) -> None:
    # Runs start one minute apart from 08:53:20. The first one is the parent run of the sweep.
    frame = load(store, since="2025-10-09T08:55:20", until=pd.Timestamp("2025-10-09T08:58:20"))
    assert list(frame["run_name"]) == ["run 3", "run 4", "run 5"]


@pytest.fixture(scope="module")
def frame(store: str) -> pd.DataFrame:
    return load(store)


def test_a_run_has_its_recorded_values(store: str, frame: pd.DataFrame) -> None:
    row = frame[(frame["model.layers"] == 3) & (frame["batch_size"] == 32)].iloc[0]

    assert row["examples_per_second"] == 10.0 * 32 / 3
    assert row["family"] == "fc"
    assert row["status"] == "FINISHED"
    assert row["start_time"].tz is not None
    assert (row["end_time"] - row["start_time"]).total_seconds() == 5
    assert row["parent_run_id"] == load(store, kind="sweep", unfinished=True)["run_id"].item()


def test_every_value_has_its_type(frame: pd.DataFrame) -> None:
    kinds = {
        "replicate": "Int64",
        "optimizer.epsilon": "float64",
        "steady": "boolean",
        "schema_version": "str",
    }

    assert {name: str(frame[name].dtype) for name in kinds} == kinds
    assert frame["platform.threads"].isna().all(), 'the text "null" must become a missing value'


def test_tags_of_mlflow_are_not_columns(frame: pd.DataFrame) -> None:
    assert not [name for name in frame if name.startswith("mlflow.")]


def test_metrics_that_are_not_finite_are_read(store: str) -> None:
    non_finite = (
        load(store, family="lstm")
        .iloc[0][["examples_per_second", "step_time_cv", "final_loss"]]
        .astype(float)
    )

    np.testing.assert_array_equal(non_finite, [np.nan, np.inf, -np.inf])


def test_a_missing_store_or_experiment_raises_a_one_line_error(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'none.db'}")
    for reader in ("auto", "api"):
        with pytest.raises(
            StoreError,
            match=r"^no tracking store at sqlite:///.*none\.db: measure first .*--store$",
        ):
            load(reader=reader)

    assert not list(tmp_path.iterdir()), "reading must not create a store"
    with pytest.raises(
        StoreError, match="=nope: no such experiment in the store; it has Default, other, paradnn"
    ):
        load(store, experiments="nope")
    with pytest.raises(
        StoreError, match="reader=sql: http://nowhere:1 has no tables to read; use reader=api"
    ):
        load("http://nowhere:1", reader="sql")


def test_a_database_of_another_program_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    connection.close()

    with pytest.raises(StoreError, match="has no MLflow tables"):
        load(f"sqlite:///{path}")


def test_a_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    path.write_text("not a database at all, but long enough to be looked at as if it were one" * 20)

    with pytest.raises(StoreError, match=r"cannot read sqlite:///.*file is not a database"):
        load(f"sqlite:///{path}")


def test_the_error_of_a_missing_driver_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(
        StoreError,
        match=r"cannot open a postgresql.* store: .*psycopg2.*; install the database driver",
    ) as caught:
        load("postgresql+psycopg2://me:secret@localhost/x")
    assert "secret" not in str(caught.value)


def test_tables_with_unexpected_columns_are_read_through_the_api(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(store)
    monkeypatch.setitem(sql.TABLES, "params", ("run_uuid", "key", "value", "color"))

    with pytest.warns(
        UserWarning, match=r"through MLflow's search, which is slow: its tables lack params\.color"
    ):
        frame = load(store)
    pd.testing.assert_frame_equal(frame, expected)


def test_runs_of_another_schema_version_are_rejected(store: str, tmp_path: Path) -> None:
    uri = copy_of(store, tmp_path)
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "UPDATE tags SET value = '2' WHERE key = 'schema_version' AND rowid = "
            "(SELECT max(rowid) FROM tags WHERE key = 'schema_version' AND run_uuid IN "
            "(SELECT run_uuid FROM params WHERE value = 'lstm'))"
        )
        connection.execute("UPDATE latest_metrics SET value = x'ff'")  # corrupt the value
    connection.close()

    with pytest.raises(
        SchemaError, match=r"schema_version=2 in run \w+, but this analysis reads schema_version=1"
    ):
        load(uri)
    assert load(uri, family="fc").reindex(columns=["examples_per_second"]).isna().sum().item() == 30


@pytest.fixture
def large(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URI of a copy of the store that is read like one with many runs.

    Separate processes read it through small pipes, so they soon wait for this process.
    """
    for name, value in {
        "sql._MAX_LOOKUP_RUNS": 0,
        "sql._MIN_SCAN_RUNS": 0,
        "sql._PIPE_BYTES": 4096,
        "columns.MAX_PART_ROWS": 20,
    }.items():
        monkeypatch.setattr(f"paradnn.store.{name}", value)
    return copy_of(store, tmp_path)


def test_a_run_written_during_a_read_is_absent_and_does_not_wait(
    large: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is written entirely while others are read is absent from the result."""
    original = columns.of_batch
    remaining_tables = iter(("params", "latest_metrics", "tags"))

    def write(table: str) -> None:
        with (
            closing(sqlite3.connect(large.removeprefix("sqlite:///"), timeout=20)) as connection,
            connection,
        ):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            other_columns = ", ".join(name for name in names if name != "run_uuid")
            latest_run = "SELECT max(run_uuid) FROM tags WHERE key = 'outcome'"
            row = f"SELECT 'new', {other_columns} FROM {table} WHERE run_uuid = ({latest_run})"
            connection.execute(f"INSERT INTO {table} (run_uuid, {other_columns}) {row}")

    def write_and_convert(batch: pa.RecordBatch) -> columns.Part:
        for table in remaining_tables:
            write(table)
        return original(batch)

    write("runs")
    monkeypatch.setattr(columns, "of_batch", write_and_convert)

    pd.testing.assert_frame_equal(load(large), load(store))
    assert not list(remaining_tables)


def test_the_failure_of_a_reader_process_raises_a_one_line_error(
    large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with closing(sqlite3.connect(large.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute(
            "UPDATE params SET value = CAST(x'ff41' AS TEXT) WHERE key = 'batch_size'"
        )
    kill = "import os; os.kill(os.getpid(), 9)"
    for program, message in (
        ("", "can't decode byte 0xff .*"),
        ("1 / 0", "division by zero"),
        (kill, "the store was killed"),
    ):
        (tmp_path / ("pyarrow.py" if program else "nothing.py")).write_text(program)
        with pytest.raises(StoreError, match=rf"^cannot read sqlite:///.*{message}$"):
            load(large)


def test_runs_with_invalid_times_are_read(store: str, tmp_path: Path) -> None:
    """SQLite accepts any value in a numeric column."""
    uri = copy_of(store, tmp_path)
    for value in ("soon", 1e400, 2**62, -1, b"x"):
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as connection:
            connection.execute("UPDATE runs SET start_time = ?, end_time = ?", (value, value))
            connection.commit()
        frame = load(uri)
        assert len(frame) == len(load(store))
        assert not (frame["start_time"].dt.year > 1970).any()


def test_readers_ignore_an_unfinished_transaction(store: str, tmp_path: Path) -> None:
    """During a write transaction of another connection, readers see the previous state."""
    uri = copy_of(store, tmp_path)
    connection = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM latest_metrics")
    frame = load(uri)
    connection.execute("ROLLBACK")
    connection.close()

    pd.testing.assert_frame_equal(frame, load(store))


@pytest.fixture(scope="module")
def runs_with_tables(store: str) -> pd.DataFrame:
    return load(store, family="fc", outcome="ok")


def test_tables_of_many_runs_are_read(store: str, runs_with_tables: pd.DataFrame) -> None:
    tables = load_tables(runs_with_tables, "operation_types.json", store)

    assert list(tables) == ["run_id", "type", "share"]
    assert len(tables) == 2 * 5, "five runs have a table of two rows"


def test_the_table_of_one_run_is_read(store: str, runs_with_tables: pd.DataFrame) -> None:
    first = load_tables(runs_with_tables, "operation_types.json", store)["run_id"].iloc[0]

    pd.testing.assert_frame_equal(
        load_table(first, "operation_types.json", store),
        pd.DataFrame({"type": ["MatMul", "Add"], "share": [0.75, 0.25]}),
    )


def test_the_store_knows_the_addresses_of_tables(
    store: str, runs_with_tables: pd.DataFrame
) -> None:
    tables = load_tables(runs_with_tables, "operation_types.json", store)

    without_addresses = runs_with_tables.assign(artifact_uri=None)
    tables_of_store = load_tables(without_addresses, "operation_types.json", store)

    pd.testing.assert_frame_equal(tables_of_store, tables)


def test_runs_without_a_table_have_no_rows(store: str, runs_with_tables: pd.DataFrame) -> None:
    assert load_tables(runs_with_tables, "nothing.json", store).empty


def test_a_run_without_the_requested_table_is_rejected(
    store: str, runs_with_tables: pd.DataFrame
) -> None:
    first = runs_with_tables["run_id"].iloc[0]

    with pytest.raises(StoreError, match=r"has no table nothing\.json: measure it again"):
        load_table(first, "nothing.json", store)


class _RefusingServer(BaseHTTPRequestHandler):
    """A tracking server that answers 404 and records the credentials of each request."""

    credentials: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.credentials.append(self.headers["Authorization"])
        self.send_error(404)


def test_files_are_requested_with_the_password_of_their_store() -> None:
    """The frame names stores without their passwords, because it may be printed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _RefusingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        frame = pd.DataFrame(
            {"run_id": ["r1"], "artifact_uri": [None], "store": [f"http://***@{address}"]}
        )
        stores = [f"http://me:secret@{address}", "http://you:other@127.0.0.1:1"]
        assert load_tables(frame, "operations.json", stores).empty
        server.shutdown()
    assert set(_RefusingServer.credentials) == {"Basic " + base64.b64encode(b"me:secret").decode()}
