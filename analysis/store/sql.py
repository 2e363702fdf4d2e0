"""Runs straight from the tables of an MLflow SQL store.

MLflow's search assembles Python objects run by run, some milliseconds each. Here one query selects the runs and three
stream their tags, params and latest metrics, which is some hundred times faster; `benchmarks/bench_store.py` has the
figures. The tables are MLflow's internal business, so `unexpected` says beforehand whether they look as known.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from analysis.store.frame import Records, Run
from analysis.store.query import Query
from paradnn.errors import StoreError
from paradnn.store.address import without_secrets

__all__ = ["SCHEMES", "engine_of", "known_experiments", "read", "unexpected"]

#: URI schemes of the stores that have tables.
SCHEMES = ("sqlite", "postgresql", "postgres", "mysql", "mssql")

#: The columns that are read.
TABLES = {
    "experiments": ("experiment_id", "name", "lifecycle_stage"),
    "runs": (
        "run_uuid",
        "name",
        "experiment_id",
        "status",
        "start_time",
        "end_time",
        "artifact_uri",
        "lifecycle_stage",
    ),
    "params": ("run_uuid", "key", "value"),
    "tags": ("run_uuid", "key", "value"),
    "latest_metrics": ("run_uuid", "key", "value", "is_nan"),
}

_EXPERIMENTS, _RUNS, _PARAMS, _TAGS, _METRICS = (
    sa.table(name, *(sa.column(column) for column in columns)) for name, columns in TABLES.items()
)
_CHUNK = 20_000  # rows fetched at once
_SCAN_SHARE = 0.25  # above this share of all runs, reading whole tables beats looking runs up


def engine_of(uri: str) -> sa.Engine:
    """An engine for reading a store; StoreError when its file or its driver is missing. Passwords are not printed."""
    try:
        url = sa.make_url(uri)
        if url.drivername == "postgres":
            url = url.set(drivername="postgresql")
        if url.get_backend_name() == "sqlite" and not (url.database and Path(url.database).is_file()):
            raise StoreError(
                f"no tracking store at {without_secrets(uri)}: measure first with "
                "python -m paradnn.train, import with python -m analysis import-archive, or name another "
                "with --store"
            )
        return sa.create_engine(url, poolclass=sa.pool.NullPool)
    except (SQLAlchemyError, NoSuchModuleError) as error:
        raise StoreError(f"cannot read the tracking store's address: {_line(error)}") from error
    except ImportError as error:
        raise StoreError(f"cannot open a {uri.partition(':')[0]} store: {error}; install that driver") from error


def unexpected(engine: sa.Engine) -> str | None:
    """What the tables lack of TABLES, in one line; None when they are as known. StoreError without any MLflow table."""
    try:
        inspector = sa.inspect(engine)
        present = set(inspector.get_table_names())
        if not present.intersection(TABLES):
            raise StoreError(f"{_shown(engine)} holds no MLflow tables: is it a tracking store?")
        missing = []
        for table, columns in TABLES.items():
            found = {entry["name"] for entry in inspector.get_columns(table)} if table in present else set()
            missing += [f"{table}.{column}" for column in columns if column not in found]
    except SQLAlchemyError as error:
        raise StoreError(f"cannot read {_shown(engine)}: {_line(error)}") from error
    return f"its tables lack {', '.join(missing)}" if missing else None


def known_experiments(engine: sa.Engine) -> list[str]:
    """The names of the store's experiments that are not deleted."""
    chosen = sa.select(_EXPERIMENTS.c.name).where(_EXPERIMENTS.c.lifecycle_stage == "active", *_workspace(engine))
    with engine.connect() as connection:
        return sorted(connection.execute(chosen).scalars())


def read(engine: sa.Engine, query: Query) -> Records:
    """The runs of a query. Tags are read before the rest.

    A run's outcome is written last: a run that has one when the tags are read has all its values when they are, so
    a store that is being written gives whole runs without a lock.
    """
    chosen = _selection(query, _workspace(engine))
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only = ON")
            rows = _rows(connection, chosen)
            records = Records(Run(*row) for row in rows)
            total = connection.execute(sa.select(sa.func.count()).select_from(_RUNS)).scalar_one()
            wanted = chosen if len(records.runs) < _SCAN_SHARE * total else None
            records.add_text(_rows(connection, _long(_TAGS, query, wanted)), records.tags)
            records.add_text(_rows(connection, _long(_PARAMS, query, wanted)), records.params)
            records.add_metrics(_rows(connection, _long(_METRICS, query, wanted)))
    except SQLAlchemyError as error:
        raise StoreError(f"cannot read {_shown(engine)}: {_line(error)}") from error
    return records


def _selection(query: Query, workspace: list[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """The runs of a query, in the order of `frame.Run`."""
    runs = _RUNS.c
    chosen = (
        sa.select(
            runs.run_uuid,
            runs.name,
            _EXPERIMENTS.c.name,
            runs.status,
            runs.start_time,
            runs.end_time,
            runs.artifact_uri,
        )
        .join_from(_RUNS, _EXPERIMENTS, runs.experiment_id == _EXPERIMENTS.c.experiment_id)
        .where(runs.lifecycle_stage == "active", _EXPERIMENTS.c.name.in_(query.experiments), *workspace)
    )
    for table, filters in ((_PARAMS, query.params), (_TAGS, query.tags)):
        for key, allowed in filters.items():
            chosen = chosen.where(_having(table, key, table.c.value.in_(allowed)))
    if not query.unfinished and "outcome" not in query.tags:
        chosen = chosen.where(_having(_TAGS, "outcome"))
    if query.since_ms is not None:
        chosen = chosen.where(runs.start_time >= query.since_ms)
    if query.until_ms is not None:
        chosen = chosen.where(runs.start_time < query.until_ms)
    return chosen


def _having(table: sa.TableClause, key: str, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return _RUNS.c.run_uuid.in_(sa.select(table.c.run_uuid).where(table.c.key == key, *conditions))


def _long(table: sa.TableClause, query: Query, chosen: sa.Select[Any] | None) -> sa.Select[Any]:
    """A long table's rows (run, key, value[, is_nan]), all of them or those of the chosen runs."""
    statement = sa.select(*(table.c[name] for name in TABLES[table.name]))
    if query.columns is not None:
        statement = statement.where(table.c.key.in_(sorted(query.columns)))
    elif table is _TAGS:
        statement = statement.where(sa.or_(table.c.key.not_like("mlflow.%"), table.c.key == "mlflow.parentRunId"))
    if chosen is not None:
        statement = statement.where(table.c.run_uuid.in_(chosen.with_only_columns(_RUNS.c.run_uuid)))
    return statement


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> Iterator[Any]:
    """A statement's rows, streamed. From SQLite they come as the driver's plain tuples, which halves the time."""
    if connection.dialect.name == "sqlite":
        return chain.from_iterable(_chunks(connection, statement))
    return iter(connection.execution_options(yield_per=_CHUNK).execute(statement))


def _chunks(connection: sa.Connection, statement: sa.Select[Any]) -> Iterator[Sequence[Any]]:
    compiled = statement.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True})
    cursor = connection.connection.cursor()
    try:
        cursor.execute(str(compiled), tuple(compiled.params[name] for name in compiled.positiontup or ()))
        while rows := cursor.fetchmany(_CHUNK):
            yield rows
    except sqlite3.Error as error:
        raise StoreError(f"cannot read {_shown(connection.engine)}: {_line(error)}") from error
    finally:
        cursor.close()


def _workspace(engine: sa.Engine) -> list[sa.ColumnElement[bool]]:
    """Stores of MLflow 3.10 and later divide experiments into workspaces; the search API sees the active one alone."""
    columns = {entry["name"] for entry in sa.inspect(engine).get_columns("experiments")}
    if "workspace" not in columns:
        return []
    return [sa.column("workspace") == (os.environ.get("MLFLOW_WORKSPACE", "").strip() or "default")]


def _shown(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def _line(error: Exception) -> str:
    """The driver's own complaint, on one line."""
    origin = getattr(error, "orig", None) or error
    return " ".join(str(origin).split()) or type(error).__name__
