"""Runs in a store: points that a driver or the analysis finds, claims, and invalid contents.

Any earlier version may have written the store.
"""

import gc
import json
import math
import re
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from analysis.store.frame import is_ok
from analysis.store.load import load
from paradnn.config.identity import Identity
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point
from paradnn.config.settings import Tracking
from paradnn.core.errors import StoreError
from paradnn.core.messages import Answer, ArrayRate, PeakRates, ProductRate
from paradnn.core.words import without_secrets
from paradnn.families.fc import FullyConnected
from paradnn.forecast.history import open_history
from paradnn.platform.environment import Environment, describe_environment
from paradnn.session import hardware_peaks as peaks
from paradnn.session.record import run_tags
from paradnn.session.workers import WorkerPool
from paradnn.store import mlflow_store, sql
from paradnn.store.address import address_of
from paradnn.store.claims import Entry, RunIndex
from paradnn.store.client import store_errors
from paradnn.store.journal import Journal, read_record
from paradnn.store.leases import Owner, owner_tag
from paradnn.store.mlflow_store import MlflowStore
from paradnn.store.reader import open_reader
from paradnn.store.runs import EXPIRES, OWNER, Claim, Record, SweepRun
from paradnn.worker.peak_rates import ARRAY_BYTES
from tests.cluster.recorder import ENVIRONMENT, claimed, record_of, tags_of
from tests.conftest import Store
from tests.processes import started, wait_for

# Some queries of MLflow cause this warning with SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload``")

VALID_OWNER = json.loads(owner_tag())
POINT = Point(FullyConnected())
RATES = PeakRates(
    [ProductRate("float32", 8, "graph", 1e12, 1e12, 1e12, 5)],
    [ArrayRate(ARRAY_BYTES, 1e11, 1e11, 1e11, 5)],
)


@pytest.fixture(scope="module")
def here() -> Environment:
    return describe_environment("cpu", {"tensorflow": "2"})


def record_ceilings(tracker: MlflowStore | Journal, environment: Environment) -> str:
    """Claim and record planted ceilings without measuring them; return the id of their run."""
    identity = peaks.ceilings_identity(POINT, environment)
    result = Answer("ok", None, {}, peak_rates=RATES)
    claim = tracker.begin(
        identity, "ceilings", run_tags("ceilings", identity, environment), lambda known: False
    )
    assert isinstance(claim, Claim)
    ended = PointResult("ok", None, result)
    return tracker.record(
        claim,
        peaks.make_ceilings_record(claim, "ceilings", POINT, environment, ended, [RATES]),
        dict,
    )


def test_recorded_ceilings_are_not_points(store: Store, here: Environment) -> None:
    record_ceilings(MlflowStore(Tracking(uri=store.uri)), here)

    assert store.query("SELECT run_uuid FROM tags WHERE key = 'outcome'") == [], (
        "only points have the tag `outcome`"
    )
    assert store.query("SELECT status FROM runs") == [("FINISHED",)]
    assert load(store.uri).empty


@pytest.mark.parametrize(
    "tag",
    [
        pytest.param("ceilings_outcome", id="tag of ceilings"),
        pytest.param("outcome", id="tag of a point, from earlier versions"),
    ],
)
def test_recorded_ceilings_are_found(store: Store, here: Environment, tag: str) -> None:
    tracker = MlflowStore(Tracking(uri=store.uri))
    run_id = record_ceilings(tracker, here)
    store.change(f"UPDATE tags SET key = '{tag}' WHERE key = 'ceilings_outcome'")

    with WorkerPool() as pool:
        ceilings = peaks.CeilingsKeeper(pool, tracker, pytest.fail).of(POINT, here)

    assert ceilings == peaks.Ceilings(run_id, {"float32": 1e12}, 1e11)
    everything = load(store.uri, kind=None)
    assert list(everything["run_id"]) == [run_id]
    assert not is_ok(everything).any()


def test_ceilings_in_a_file_are_uploaded_once(
    store: Store, here: Environment, tmp_path: Path
) -> None:
    path = tmp_path / f"{record_ceilings(Journal(tmp_path), here)}.json"
    tracker = MlflowStore(Tracking(uri=store.uri))
    assert [tracker.upload(read_record(path)).state for _ in range(2)] == ["logged", "known"]
    assert [run["ceilings_outcome"] for run in store.runs("ceilings")] == ["ok"]
    assert store.query("SELECT run_uuid FROM tags WHERE key = 'outcome'") == []
    repeated = tmp_path / f"{record_ceilings(Journal(tmp_path / 'other'), here)}.json"
    assert tracker.upload(read_record(tmp_path / "other" / repeated.name)).state == "withheld"


def record_point(store: Store, number: int = 1, **metrics: float) -> tuple[MlflowStore, str]:
    """Record a point; return the tracker and the id of the run."""
    tracker = MlflowStore(Tracking(uri=store.uri))
    identity = Identity(str(number), ENVIRONMENT, 0)
    claim = tracker.begin(
        identity, "point", {**tags_of(identity), "device": "d"}, lambda tags: True
    )
    assert isinstance(claim, Claim)
    record = record_of(claim)
    tags = {**record.tags, "device": "d", "source": "measured"}
    values = {"step_time_ms": 1.0, **metrics}
    complete = replace(
        record, tags=tags, metrics=record.metrics | values, end_time=int(time.time() * 1000)
    )
    return tracker, tracker.record(claim, complete, dict)


def test_abandoning_a_recorded_point_does_not_change_it(store: Store) -> None:
    """Emulate Ctrl-C between the recording of a point and the following work."""
    tracker, run_id = record_point(store)
    identity = Identity("1", ENVIRONMENT, 0)
    tracker.abandon(Claim(run_id, identity, 0), "interrupted before its end")
    (entry,) = store.runs()
    assert entry["status"] == "FINISHED"
    assert "reason" not in entry


def test_sql_and_api_read_the_same_values(store: Store) -> None:
    """Plant NaN, which is omitted, and infinity, which is kept."""
    _, run_id = record_point(store, load_average=math.nan, flops_per_step=math.inf)
    for reader_kind in ("sql", "api"):
        history = open_history(Tracking(uri=store.uri), reader_kind)  # type: ignore[arg-type]
        [row] = history.past({"d"}, 10)
        assert (row.run_id, row.params) == (run_id, {"model.nodes": "1"})
        assert row.metrics == {"step_time_ms": 1.0, "flops_per_step": math.inf}
        assert "load_average" not in history.metrics(run_id)
        reader = open_reader(address_of(store.uri), reader_kind)  # type: ignore[arg-type]
        index = RunIndex(reader, "paradnn")
        [entry] = index.of_point(Identity("1", ENVIRONMENT, 0))
        assert (entry.run_id, entry.outcome, entry.status) == (run_id, "ok", "FINISHED")
        assert set(entry.tags) == {
            *tags_of(entry.identity),
            "outcome",
            "device",
            OWNER,
            EXPIRES,
        } - {"schema_version"}
        assert index.running() == []


@pytest.mark.parametrize(
    ("own", "known", "is_redundant"),
    [
        pytest.param({"outcome": "ok"}, {}, False, id="being measured"),
        pytest.param({"outcome": "ok"}, {"outcome": "crash"}, False, id="first crashed"),
        pytest.param(
            {"outcome": "ok"},
            {"outcome": "ok", "extras": "profile"},
            True,
            id="known has a profile",
        ),
        pytest.param(
            {"outcome": "ok", "extras": "profile"},
            {"outcome": "ok"},
            False,
            id="known lacks the profile",
        ),
        pytest.param(
            {"outcome": "timeout", "limits_id": "a"},
            {"outcome": "timeout", "limits_id": "a"},
            True,
            id="same limits",
        ),
        pytest.param(
            {"outcome": "timeout", "limits_id": "a"},
            {"outcome": "timeout", "limits_id": "b"},
            False,
            id="other limits",
        ),
    ],
)
def test_a_run_is_redundant_if_a_known_run_covers_it(
    own: dict[str, str], known: dict[str, str], is_redundant: bool
) -> None:
    record = Record("", "ok", None, {}, {}, own, {}, 0, 0)

    assert record.is_redundant_with(known) is is_redundant


@pytest.mark.parametrize(
    ("code", "text", "kind", "remedy"),
    [
        pytest.param(
            "UNAUTHENTICATED",
            "who",
            "StoreRefusalError",
            "the login is missing or wrong",
            id="not logged in",
        ),
        pytest.param(
            "PERMISSION_DENIED",
            "Invalid Host header",
            "StoreRefusalError",
            "start the server with --allowed-hosts",
            id="host header",
        ),
        pytest.param(
            "PERMISSION_DENIED",
            "no",
            "StoreRefusalError",
            "MLFLOW_TRACKING_USERNAME",
            id="permission",
        ),
        pytest.param(
            "REQUEST_LIMIT_EXCEEDED", "slowly", "StoreAwayError", "slowly", id="rate limit"
        ),
        pytest.param("INVALID_PARAMETER_VALUE", "odd", "StoreError", "odd", id="invalid value"),
        pytest.param(None, "database is locked", "StoreAwayError", "locked", id="locked"),
        pytest.param(
            None, "database or disk is full", "StoreError", "free some space", id="disk full"
        ),
    ],
)
def test_errors_of_a_store_name_the_remedy(
    code: str | None, text: str, kind: str, remedy: str
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    with pytest.raises(StoreError, match=remedy) as raised, store_errors("here"):
        raise (
            MlflowException(text, ErrorCode.Value(code)) if code else sqlite3.OperationalError(text)
        )
    assert type(raised.value).__name__ == kind
    assert str(raised.value).startswith("here: ")


def test_a_reader_cannot_write_to_the_store(store: Store) -> None:
    engine = sql.engine_of(address_of(store.uri))
    with (
        engine.connect() as connection,
        pytest.raises(sql.SQLAlchemyError, match="readonly database"),
    ):
        connection.exec_driver_sql("DELETE FROM experiments")


def test_loading_a_frame_closes_every_connection(store: Store) -> None:
    record_point(store)
    opened: list[object] = []
    closed: list[object] = []
    listeners = [
        ("connect", lambda connection, _: opened.append(connection)),
        ("close", lambda connection, _: closed.append(connection)),
    ]
    for event, listener in listeners:
        sa.event.listen(sa.Pool, event, listener)
    try:
        load(store.uri)
    finally:
        for event, listener in listeners:
            sa.event.remove(sa.Pool, event, listener)

    assert opened
    assert closed == opened


def test_a_read_only_store_can_be_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prevent the creation of the file that SQLite needs next to a write-ahead log.

    A symbolic link to itself occupies the name of this file.
    """
    _, run_id = record_point(store)
    store.query("VACUUM INTO ?", str(tmp_path / "mlflow.db"))
    copy = Store(tmp_path)
    copy.query("PRAGMA journal_mode = WAL")
    (tmp_path / "mlflow.db-shm").symlink_to("mlflow.db-shm")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert list(load(copy.uri)["run_id"]) == [run_id]
    assert [row.run_id for row in open_history(Tracking(uri=copy.uri)).past({"d"}, 10)] == [run_id]


def test_a_store_whose_writer_was_killed_can_be_read(store: Store, tmp_path: Path) -> None:
    """Let the reader roll back the journal, which a read-only connection could not do."""
    _, run_id = record_point(store)
    code = (
        "import os, sqlite3, sys\ndatabase = sqlite3.connect(sys.argv[1])\ndatabase.execute('PRAGMA cache_size = 1')\n"
        "database.execute('DELETE FROM tags')\ndatabase.execute('DELETE FROM latest_metrics')\nos._exit(9)"
    )
    copy = tmp_path / "copy.db"  # the copy has no write-ahead log
    store.query("VACUUM INTO ?", str(copy))
    subprocess.run([sys.executable, "-c", code, str(copy)], check=False)
    assert (tmp_path / "copy.db-journal").exists()
    assert list(load(f"sqlite:///{copy}")["run_id"]) == [run_id]


@pytest.mark.parametrize("tag", [OWNER, "owner"], ids=["now", "of an earlier version"])
def test_a_zombie_driver_is_gone(tag: str) -> None:
    """Keep a process as a zombie: its id is in use until its parent waits for it.

    The first process of a container may never wait for its children.
    """
    with started([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = json.loads(owner_tag()) | {
            "pid": process.pid,
            "started": psutil.Process(process.pid).create_time(),
        }
        entry = Entry("a", "RUNNING", {tag: json.dumps(owner)})
        assert not entry.is_abandoned()
        process.kill()
        assert wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert entry.is_abandoned()


# In the boot ids, {here} is the namespace of this process.
@pytest.mark.parametrize(
    ("changes", "seconds", "is_gone"),
    [
        pytest.param({}, -1, False, id="alive after the claim's end"),
        pytest.param({"started": 0.0}, 60, True, id="process id reused"),
        pytest.param({"boot": "before/{here}"}, 60, True, id="host restarted"),
        pytest.param({"boot": "before/other"}, 60, False, id="container on this host"),
        pytest.param({"boot": "before/other"}, -1, True, id="container, claim over"),
        pytest.param({"host": "another", "boot": "its/{here}"}, 60, False, id="another host"),
        pytest.param(
            {"host": "another", "boot": "its/{here}"}, -1, True, id="another host, claim over"
        ),
    ],
)
def test_an_owner_is_gone_if_its_process_or_its_claim_ended(
    changes: dict[str, Any], seconds: float, is_gone: bool
) -> None:
    here = str(VALID_OWNER["boot"]).partition("/")[2]
    fields = {
        key: value.format(here=here) if isinstance(value, str) else value
        for key, value in changes.items()
    }

    assert Owner(**(VALID_OWNER | fields)).is_gone(time.time() + seconds) is is_gone


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("x" * 5000, id="long text"),
        pytest.param(f"sqlite:////tmp/{'x' * 300}.db", id="long file name"),
        pytest.param("~nobody-of-that-name/x.db", id="unknown user"),
        pytest.param("http://[", id="invalid host"),
        pytest.param("postgresql://h:p/d", id="invalid port"),
    ],
)
def test_an_invalid_address_is_reported_in_one_line(uri: str) -> None:
    with pytest.raises(StoreError) as raised:
        address_of(uri)
    assert re.fullmatch(r".{1,200} cannot be a tracking store: .{1,200}", str(raised.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("postgresql://me:a/b c@host/db", "postgresql://***@host/db", id="PostgreSQL"),
        pytest.param("http://u:p@ss@h:80/x?token=1", "http://***@h:80/x?***", id="HTTP with query"),
        pytest.param(
            "of postgresql://u:p w@h1/db and mysql://a:b/c@h2/x",
            "of postgresql://***@h1/db and mysql://***@h2/x",
            id="two addresses in a text",
        ),
        pytest.param("https://TOKEN@h/a", "https://***@h/a", id="token"),
        pytest.param(
            "pkg @ git+https://github.com/a/b@v1.2",
            "pkg @ git+https://github.com/a/b@v1.2",
            id="pip requirement",
        ),
        pytest.param("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db", id="SQLite"),
        pytest.param("http://h:5000 works", "http://h:5000 works", id="port"),
    ],
)
def test_passwords_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


LONG = "[" * 100_000
OWNERS = ["garbage{", "{}", "[]", "null", "7", '"x"', LONG, '{"host": 1}', "\x00", "9" * 5000]
OWNERS += [
    json.dumps(VALID_OWNER | change)
    for change in ({"pid": "1"}, {"pid": 10**30}, {"pid": -1}, {"started": "NaN"})
]
OWNERS += [
    json.dumps(VALID_OWNER | change)
    for change in ({"boot": 7}, {"host": []}, {"pid": None}, {"more": 1})
]
BAD_TAGS = [{OWNER: text} for text in OWNERS]
BAD_TAGS += [{OWNER: owner_tag(), EXPIRES: text} for text in ("nan", "soon", "inf")]
BAD_TAGS += [{"replicate": text} for text in ("x", "", "-1", "1e3", "\u0663", "9" * 5000)]


def test_a_run_with_invalid_tags_is_reported_and_skipped(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker, run_id = record_point(store)
    [[experiment]] = store.query("SELECT experiment_id FROM runs")
    with sqlite3.connect(store.folder / "mlflow.db") as database:
        for number, tags in enumerate(BAD_TAGS):
            for status in ("RUNNING", "FINISHED"):
                database.execute(
                    "INSERT INTO runs (run_uuid, name, status, start_time, lifecycle_stage, experiment_id) "
                    "VALUES (?, 'bad', ?, 1, 'active', ?)",
                    (f"{status}{number}", status, experiment),
                )
                valid_tags = {
                    **tags_of(Identity("1", ENVIRONMENT, 0)),
                    "outcome": "ok",
                    "kind": "point",
                    "sweep_id": "s",
                }
                rows = [
                    (key, value, f"{status}{number}") for key, value in (valid_tags | tags).items()
                ]
                database.executemany(
                    "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", rows
                )
    database.close()
    tracker.close_abandoned()
    [[found]] = tracker.finished([ENVIRONMENT]).values()
    assert found.run_id == run_id
    repeated = tracker.begin(
        Identity("1", ENVIRONMENT, 0),
        "p",
        tags_of(Identity("1", ENVIRONMENT, 0)),
        lambda _: True,
    )
    assert repeated == found
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 * len(BAD_TAGS)
    assert set(lines) >= {"run RUNNING0 is skipped: its tags are invalid"}
    [[left]] = store.query(
        "SELECT count(*) FROM runs WHERE run_uuid LIKE 'RUNNING%' AND status = 'RUNNING'"
    )
    assert left == len(BAD_TAGS)


def test_runs_end_with_a_clock_before_1970(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: -86400.0)
    tracker = MlflowStore(Tracking(uri=store.uri))
    tracker.open_sweep("s", "", {"sweep_id": "s"})
    claim = claimed(tracker, 1)

    tracker.record(claim, record_of(claim), dict)
    tracker.close_sweep(SweepRun("FINISHED", "", {"points": 1.0}))

    assert [status for (status,) in store.query("SELECT status FROM runs")] == ["FINISHED"] * 2


def test_measured_values_have_seven_digits_and_counts_all_digits(store: Store) -> None:
    tracker = MlflowStore(Tracking(uri=store.uri))
    values = {
        "examples_per_second": 95235.81553959007,
        "parameters": 123456789012.0,
        "final_loss": math.nan,
    }
    claim = claimed(tracker, 1)

    tracker.record(claim, replace(record_of(claim), metrics=values), dict)

    recorded = store.values("latest_metrics", claim.run_id)
    assert (recorded["examples_per_second"], recorded["parameters"]) == (95235.82, 123456789012.0)


def test_garbage_collection_excludes_objects_older_than_the_first_claim(store: Store) -> None:
    """A full collection of the many objects of MLflow's modules takes as long as five records."""
    # Another test may have claimed a point before.
    mlflow_store._exclude_modules_from_collection.cache_clear()
    existing: list[object] = []
    tracker = MlflowStore(Tracking(uri=store.uri))

    claimed(tracker, 1)

    assert not any(each is existing for each in gc.get_objects())


def test_mlflow_lists_headline_metrics_first_in_order_of_declaration(
    store: Store,
) -> None:
    from mlflow import MlflowClient

    tracker = MlflowStore(Tracking(uri=store.uri))
    claim = claimed(tracker, 1)
    names = ["phase_start_seconds", "op_share.MatMul", "peak_memory_bytes", "step_time_low_ms"]
    names += ["processes", "examples_per_second", "step_time_ms"]

    tracker.record(claim, replace(record_of(claim), metrics=dict.fromkeys(names, 1.0)), dict)

    assert list(MlflowClient(store.uri).get_run(claim.run_id).data.metrics) == [
        "examples_per_second",
        "step_time_ms",
        "step_time_low_ms",
        "peak_memory_bytes",
        "step/processes",
        "operations/op_share.MatMul",
        "phase/phase_start_seconds",
    ]
