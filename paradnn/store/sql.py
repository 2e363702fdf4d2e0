"""Read runs directly from the tables of an MLflow SQL store.

This is about fifty times faster than MLflow's search (`benchmarks/bench_store.py`). The tables are
internal to MLflow and may change, so `SqlReader.unexpected` checks that they have the columns that
this module reads.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from paradnn.core.errors import NoStoreError, StoreError
from paradnn.core.metric import bare_name, stored_names
from paradnn.store.address import StoreAddress, migration_remedy
from paradnn.store.client import one_line_of, require_usable, store_errors
from paradnn.store.runs import DRIVER_LEASE, OUTCOME_TAGS, Query, Row, Run, Values, number

if TYPE_CHECKING:
    from paradnn.store.columns import Part, Records

#: Table -> the columns that are read.
TABLES = {
    "experiments": ("experiment_id", "name", "lifecycle_stage", "artifact_location"),
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
#: Kind of values -> its table, in the order of reading: tags come first (see `SqlReader.read`).
_KINDS: dict[Values, sa.TableClause] = {"tags": _TAGS, "params": _PARAMS, "metrics": _METRICS}
# SQLite orders numbers before texts, and texts before blobs. `value < ''` selects numbers, and
# `value < x''` selects numbers and texts. SQLite converts numbers in a text column to texts.
_ABOVE_NUMBERS: sa.ColumnElement[Any] = sa.literal_column("''")
_ABOVE_TEXTS: sa.ColumnElement[Any] = sa.literal_column("x''")
_POINT_TAGS = {"kind": ("point",)}  # the tag filter of most analyses
_ROWS_PER_FETCH = 20_000
_LOCK_TIMEOUT = 60  # seconds to wait for a writer of a SQLite database
_PIPE_BYTES = 1 << 20  # bytes that a scanning process may write ahead of this process
_MIN_SCAN_RUNS = 5_000  # number of runs above which separate processes read a SQLite file
_MAX_SCAN_PROCESSES = 4
_MAX_LOOKUP_RUNS = 500  # up to this number, runs are looked up by id
_MIN_SCAN_SHARE = 0.25  # at this share of all runs, reading whole tables is faster than a lookup


def engine_of(address: StoreAddress, *, pooled: bool = False) -> sa.Engine:
    """Return a SQLAlchemy engine that reads a SQL store and never writes it.

    SQLite is opened with writing disabled by a pragma. The option mode=ro could not recover the
    journal of a killed writer.

    Args:
        address: Address of the store.
        pooled: Whether to keep connections open; otherwise each connection is closed after use.

    Raises:
        NoStoreError: If the file of a SQLite store does not exist.
        StoreError: If the address is invalid or its database driver is not installed. The message
            contains no password.
    """
    options: dict[str, Any] = {}
    if not pooled:
        options["poolclass"] = sa.pool.NullPool
    try:
        url = sa.make_url(address.uri)
        is_sqlite = url.get_backend_name() == "sqlite"
        if is_sqlite:
            # A writer locks a SQLite database briefly: wait for it instead of failing.
            options["connect_args"] = {"timeout": _LOCK_TIMEOUT}
            if not (url.database or "").startswith("file:"):
                url = _sqlite_file_url(url, address)
        engine = sa.create_engine(url, **options)
    except SQLAlchemyError as error:
        raise StoreError(
            f"cannot read the tracking store's address: {one_line_of(error)}"
        ) from error
    except ImportError as error:
        command = ""
        if address.scheme == "postgresql":
            command = " with pip install 'paradnn[postgres]'"
        raise StoreError(
            f"cannot open a {address.scheme} store: {error}; install the database driver{command}"
        ) from error
    if is_sqlite:
        sa.event.listen(
            engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON")
        )
    return engine


def _sqlite_file_url(url: sa.URL, address: StoreAddress) -> sa.URL:
    """Return a URL that makes SQLite open the file of a store, but not create it."""
    if not (url.database and Path(url.database).is_file()):
        remedy = migration_remedy(address) or (
            "measure first with python -m paradnn.train, import with python -m analysis "
            "import-archive, or name another store with --store"
        )
        raise NoStoreError(f"no tracking store at {address.public}: {remedy}")
    path = Path(url.database).absolute()
    options = {"mode": "rw", "uri": "true"}
    # A database in write-ahead mode needs additional files next to it. If the folder is read-only
    # and has no such files, open the database as immutable, which does not need them.
    has_log = any(Path(f"{path}{ending}").is_file() for ending in ("-wal", "-journal"))
    if not has_log and not os.access(path.parent, os.W_OK):
        options["immutable"] = "1"
    return url.set(database=f"file:{quote(str(path))}", query={**url.query, **options})


class SqlReader:
    """Reads runs from the tables of an MLflow database (`paradnn.store.reader.Reader`).

    Args:
        address: Address of the database.
        pooled: Whether to keep connections open, for many small reads.
    """

    def __init__(self, address: StoreAddress, *, pooled: bool = False) -> None:
        self._address = address
        self._engine = engine_of(address, pooled=pooled)

    @cached_property
    def unexpected(self) -> str:
        """Message about required columns that the database lacks; empty if it has all.

        Such a database is of another MLflow version, and cannot be read directly.

        Raises:
            NoStoreError: If the database has no table of TABLES.
        """
        if not self._columns:
            raise NoStoreError(
                f"{self._address.public} has no MLflow tables; give the database of a tracking "
                "store"
            )
        wanted = [f"{table}.{column}" for table, columns in TABLES.items() for column in columns]
        missing = [column for column in wanted if column not in self._columns]
        if missing:
            return f"its tables lack {', '.join(missing)}"
        return ""

    def experiments(self) -> list[str]:
        """Return the names of the store's experiments that are not deleted."""
        return sorted(row.name for row in self._experiments() if row.lifecycle_stage == "active")

    def experiment(self, name: str) -> str | None:
        """Return the id of a writable experiment.

        Args:
            name: Name of the experiment.

        Returns:
            The id; None if the experiment is absent, or if the tables lack columns of TABLES.

        Raises:
            StoreError: If the experiment was deleted, or if a server stores its artifacts.
        """
        if self.unexpected:
            return None
        for row in self._experiments():
            if row.name == name:
                location = row.artifact_location or ""
                require_usable(self._address, name, row.lifecycle_stage, location)
                return str(row.experiment_id)
        return None

    def _experiments(self) -> Sequence[sa.Row[Any]]:
        with self._read_errors(), self._engine.connect() as connection:
            return connection.execute(sa.select(_EXPERIMENTS).where(*self._workspace())).all()

    def copy_to(self, path: Path) -> None:
        """Copy a SQLite store into a new file.

        A pooled reader can even copy a deleted database, because its connection is still open.

        Args:
            path: The new file.

        Raises:
            StoreError: If the store cannot be read, or the copy cannot be written.
        """
        with (
            self._read_errors(),
            self._engine.connect() as connection,
            closing(sqlite3.connect(path)) as copy,
        ):
            driver: Any = connection.connection.driver_connection
            driver.backup(copy)

    def read(self, query: Query) -> list[Row]:
        """Return the runs that satisfy a query, with the params, tags and metrics it requests.

        A writer stores the outcome tag of a run last, and this method reads tags first. If it reads
        the outcome, it therefore reads all values of the run, even if another process writes to the
        store at the same time. No lock is needed.
        """
        with self._read_errors(), self._engine.connect() as connection:
            runs, lookup = self._matching_runs(connection, query)
            rows = {run.run_id: Row(run, {}, {}, {}) for run in runs}
            for kind, statement in self._statements(query, runs, lookup):
                for run_id, key, value in _rows(connection, statement):
                    if run_id not in rows:
                        continue
                    if kind == "metrics":
                        rows[run_id].metrics[bare_name(key)] = number(value)
                    else:
                        getattr(rows[run_id], kind)[key] = value
            return list(rows.values())

    def columns(self, query: Query) -> Records:
        """Return the runs that satisfy a query as columns; faster than `read` for many runs.

        Most stored runs are finished points. A query for finished points therefore reads the tags
        of all runs and selects runs in memory. SQLite would take eight times as long for the
        selection.
        """
        from paradnn.store.columns import Records, in_parts  # slow imports

        required_tags = {*query.tags, *OUTCOME_TAGS}
        read_tags = {*query.columns.get("tags", required_tags)}
        selects_by_tags = (
            query.newest is None
            and not query.params
            and query.tags.items() <= _POINT_TAGS.items()
            and required_tags <= read_tags
        )
        with self._read_errors(), self._engine.connect() as connection:
            if selects_by_tags:
                all_runs = replace(query, tags={}, unfinished=True)
                runs, lookup = self._matching_runs(connection, all_runs)
                selects_by_tags = lookup is None
            if not selects_by_tags:
                runs, lookup = self._matching_runs(connection, query)
            records = Records(runs)
            statements = [*self._statements(query, runs, lookup)]
            scans_tables = (
                lookup is None
                and len(runs) > _MIN_SCAN_RUNS
                and connection.dialect.name == "sqlite"
            )
            with ExitStack() as scan:
                scanned_parts = None
                if scans_tables:
                    scanned_parts = scan.enter_context(self._scanned(connection, statements))
                for kind, statement in statements:
                    if scanned_parts:
                        parts = scanned_parts()
                    else:
                        parts = in_parts(kind, _rows(connection, statement))
                    records.add(kind, parts)
                    if selects_by_tags and kind == "tags":
                        records = records.matching(query)
            return records

    def _statements(
        self, query: Query, runs: Sequence[Run], lookup: Any
    ) -> Iterator[tuple[Values, sa.Select[Any]]]:
        """Yield each requested kind of values with an SQL statement that selects them.

        A statement gives rows of (run id, key, value), limited to the requested keys and runs.

        Args:
            query: The query.
            runs: The runs that satisfy the query.
            lookup: Ids of these runs or a subquery for them; None reads the rows of all runs.
        """
        if not runs:
            return
        for kind, table in _KINDS.items():
            key = table.c.key
            value = table.c.value
            conditions: list[sa.ColumnElement[bool]] = []
            if self._engine.dialect.name != "sqlite":
                conditions.append(value.is_not(None))
            # A damaged SQLite file may hold values of any type.
            elif kind == "metrics":
                conditions += [key < _ABOVE_TEXTS, value < _ABOVE_NUMBERS]
            else:
                conditions += [key < _ABOVE_TEXTS, value < _ABOVE_TEXTS]
            if kind == "metrics":
                conditions.append(table.c.is_nan.is_not(sa.true()))
            if kind in query.columns:
                wanted = query.columns[kind]
                names = stored_names(wanted) if kind == "metrics" else sorted(wanted)
                conditions.append(key.in_(names))
            elif kind == "tags":
                conditions.append(
                    sa.or_(
                        key.not_like("mlflow.%"),
                        key == "mlflow.parentRunId",
                        key.like(f"{DRIVER_LEASE}%"),
                    )
                )
            if lookup is not None:
                conditions.append(table.c.run_uuid.in_(lookup))
            if query.columns.get(kind, True):
                yield kind, sa.select(table.c.run_uuid, key, value).where(*conditions)

    @contextmanager
    def _scanned(
        self, connection: sa.Connection, statements: Iterable[tuple[Values, sa.Select[Any]]]
    ) -> Iterator[Callable[[], Iterator[Part]]]:
        """Start processes that read whole tables of a SQLite file in parallel.

        The rowid ranges of all tables are determined before the first is read, in the order of
        `_KINDS`. Runs are therefore complete, as in `read`.

        Args:
            connection: Connection to the file.
            statements: Kinds of values, and statements that select them.

        Yields:
            A function to call once per statement, in their order. Each call returns an iterator
            over the rows of the next statement, in parts.
        """
        import pyarrow as pa

        from paradnn.store.columns import MAX_PART_ROWS, of_batch

        tables = [self._scanned_table(connection, *each) for each in statements]
        url = self._engine.url
        options = {key: value for key, value in url.query.items() if key != "uri"}
        uri = f"{url.database}?{urlencode(options)}"
        count = min(os.cpu_count() or 1, _MAX_SCAN_PROCESSES)
        with ExitStack() as opened:
            children = []
            errors = opened.enter_context(tempfile.TemporaryFile())
            for number in range(count):
                command = [sys.executable, "-P", str(Path(__file__).with_name("scan.py"))]
                command.append(json.dumps((uri, MAX_PART_ROWS, number, count, tables)))
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    pipesize=_PIPE_BYTES,
                )
                children.append(opened.enter_context(child))
                opened.callback(child.kill)

            def parts() -> Iterator[Part]:
                streams = [pa.ipc.open_stream(child.stdout) for child in children]
                for batches in zip_longest(*streams):
                    yield from map(of_batch, filter(None, batches))

            try:
                yield parts
                failed = any(child.wait() for child in children)
            except pa.ArrowInvalid:  # a process ended early
                failed = True
            if failed:
                errors.seek(0)
                last_line = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise sqlite3.DatabaseError(
                    last_line or "a process that read the store was killed"
                ) from None

    def _scanned_table(
        self, connection: sa.Connection, kind: Values, statement: sa.Select[Any]
    ) -> tuple[str, int, int, bool]:
        """Return the description of a table that `scan.py` expects.

        Args:
            connection: Connection to the SQLite file.
            kind: Kind of values in the table.
            statement: Statement that selects the values.

        Returns:
            The statement as text, the first and the last rowid, and whether the values are numbers.
        """
        table = _KINDS[kind].name
        compiled = statement.compile(self._engine, compile_kwargs={"literal_binds": True})
        # Without NOT INDEXED, SQLite might read the rows in the order of an index, key by key.
        text = str(compiled).replace(f"FROM {table}", f"FROM {table} NOT INDEXED", 1)
        # One query for both ends would make SQLite scan every row.
        first = connection.execute(sa.text(f"SELECT min(rowid) FROM {table}")).scalar()
        last = connection.execute(sa.text(f"SELECT max(rowid) FROM {table}")).scalar()
        return text, first or 0, last or 0, kind == "metrics"

    def _matching_runs(self, connection: sa.Connection, query: Query) -> tuple[list[Run], Any]:
        """Return the runs of a query, and how to select their params, tags and metrics.

        Returns:
            A pair (runs, operand). The operand is that of `run_uuid IN ...` for the tables of
            values: a list of ids for few runs, a subquery, or None to read all rows.
        """
        selection = self._selection(query)
        if query.newest is None:
            limited = selection
        else:
            limited = selection.order_by(_RUNS.c.start_time.desc()).limit(query.newest)
        runs = [Run(*row) for row in _rows(connection, limited)]
        if len(runs) <= _MAX_LOOKUP_RUNS:
            return runs, [run.run_id for run in runs]
        if query.newest is not None:  # the subquery may skip runs that started before these
            earliest = min(run.start_ms or 0 for run in runs)
            selection = self._selection(replace(query, since_ms=earliest))
        total = connection.execute(sa.select(sa.func.count()).select_from(_RUNS)).scalar_one()
        if len(runs) >= _MIN_SCAN_SHARE * total:
            return runs, None
        return runs, selection.with_only_columns(_RUNS.c.run_uuid)

    @cached_property
    def _columns(self) -> set[str]:
        """Columns that the database has, as table.column, limited to the tables in TABLES."""
        with self._read_errors():
            inspected = sa.inspect(self._engine).get_multi_columns(filter_names=list(TABLES))
        return {
            f"{table}.{entry['name']}"
            for (_, table), entries in inspected.items()
            for entry in entries
        }

    def _workspace(self) -> list[sa.ColumnElement[bool]]:
        """Return the SQL condition that selects the active workspace; empty without workspaces.

        MLflow 3.10 and later divide a store into workspaces. MLflow's search returns only runs of
        the active workspace.
        """
        if "experiments.workspace" not in self._columns:
            return []
        workspace = os.environ.get("MLFLOW_WORKSPACE", "").strip() or "default"
        return [sa.column("workspace") == workspace]

    def _selection(self, query: Query) -> sa.Select[Any]:
        """Return the SQL statement that selects the fields of `Run` of a query's runs."""
        runs = _RUNS.c
        experiments = _EXPERIMENTS.c
        # SQLite allows values of any type in a numeric column.
        times = (sa.cast(time, sa.BigInteger) for time in (runs.start_time, runs.end_time))
        columns = (
            runs.run_uuid,
            runs.name,
            experiments.name,
            runs.status,
            *times,
            runs.artifact_uri,
        )
        conditions = [
            runs.lifecycle_stage == "active",
            experiments.name.in_(query.experiments),
            *self._workspace(),
        ]
        for table, filters in ((_PARAMS, query.params), (_TAGS, query.tags)):
            conditions += [
                _has_key(table, [key], table.c.value.in_(allowed))
                for key, allowed in filters.items()
            ]
        if query.needs_outcome:
            conditions.append(_has_key(_TAGS, OUTCOME_TAGS))
        bounds = (
            (runs.run_uuid.__eq__, query.run_id),
            (runs.status.__eq__, query.status),
            (runs.start_time.__ge__, query.since_ms),
            (runs.start_time.__lt__, query.until_ms),
        )
        conditions += [compare(value) for compare, value in bounds if value is not None]
        joined = sa.select(*columns).join_from(
            _RUNS, _EXPERIMENTS, runs.experiment_id == experiments.experiment_id
        )
        return joined.where(*conditions)

    def _read_errors(self) -> AbstractContextManager[None]:
        """Return a context in which errors of the database become StoreError."""
        return store_errors(f"cannot read {self._address.public}")


def _has_key(
    table: sa.TableClause, keys: Collection[str], *conditions: sa.ColumnElement[bool]
) -> sa.ColumnElement[bool]:
    """Return an SQL condition that is true for runs with a matching row in a table.

    A row matches if it has one of the keys and fulfills all further conditions.

    Args:
        table: Table of params or tags.
        keys: Allowed keys of the row.
        conditions: Further conditions on the row, such as on its value.
    """
    matches = sa.select(table.c.run_uuid).where(table.c.key.in_(keys), *conditions)
    return _RUNS.c.run_uuid.in_(matches)


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> Iterator[Any]:
    """Execute an SQL statement, and iterate over the rows of its result.

    For SQLite, the driver executes the statement without SQLAlchemy, which halves the time.
    """
    if connection.dialect.name != "sqlite":
        return iter(connection.execution_options(yield_per=_ROWS_PER_FETCH).execute(statement))
    compiled = statement.compile(
        dialect=connection.dialect, compile_kwargs={"render_postcompile": True}
    )
    values = tuple(compiled.params[name] for name in compiled.positiontup or ())
    return iter(connection.connection.driver_connection.execute(str(compiled), values))  # type: ignore[union-attr]
