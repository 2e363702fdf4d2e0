"""MLflow's own client, set up the same way everywhere: quiet, and done with a server that is gone within seconds."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paradnn.errors import NoStoreError, StoreError
from paradnn.store.address import StoreAddress, settle

if TYPE_CHECKING:
    from mlflow import MlflowClient


#: Any number, as long as it is the same for every driver.
_LOCK_KEY = 7_275_672
#: By default a request to a server that is gone is repeated for minutes, each upload shows a bar, and a thread sends
#: what was called to MLflow's makers while others are measured.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def client_of(address: StoreAddress) -> MlflowClient:
    """A client of the store; importing MLflow takes seconds, the first time."""
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    # MLflow prints each run's address, the password in it included.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    # After the import, which sets its own levels: that tables are made is no news to a user, and what fails is raised,
    # so a traceback of it besides is none either.
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(address.uri)


def find_experiment(address: StoreAddress, name: str) -> str | None:
    """Id of an experiment that a database holds, read in milliseconds; None where MLflow must be asked or make it.
    StoreError for one that was deleted, or whose files a server keeps."""
    if not address.is_sql:
        return None
    settle(address)
    from paradnn.store.sql import SqlReader

    row = None
    with contextlib.suppress(NoStoreError):
        tables = SqlReader(address)
        row = None if tables.unexpected else tables.experiment(name)
    if row is not None:
        _require_usable(address, name, *row[1:])
    return row and row[0]


def open_experiment(
    address: StoreAddress, name: str, about: Mapping[str, str] | None = None
) -> tuple[MlflowClient, str]:
    """A client, and the id of the experiment to write into; database and experiment are made where they are not there.

    A SQLite store gets a write-ahead log, so that it can be read while it is written, and has its artifacts in the
    folder beside it. `about` are the tags of an experiment that is made. StoreError for one that was deleted, or whose
    files a server keeps."""
    with _locked(address):
        settle(address)
        _make_tables(address)
        client = client_of(address)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            if address.database is not None:  # readers and several writers at once, where the disk can
                with (
                    contextlib.suppress(sqlite3.Error),
                    contextlib.closing(sqlite3.connect(address.database)) as tables,
                ):
                    tables.execute("PRAGMA journal_mode=WAL")
            return client, _make_experiment(client, address, name, about or {})
    _require_usable(address, name, experiment.lifecycle_stage, experiment.artifact_location)
    return client, str(experiment.experiment_id)


def _make_tables(address: StoreAddress) -> None:
    """Make a SQLite store that is not there yet, whole or not at all: beside its place first, since it takes seconds.
    MLflow's steps cannot be taken back, and it refuses a database in which one of them was interrupted."""
    database = address.database
    if database is None or (database.is_file() and database.stat().st_size):
        return
    making = database.with_name(f".{database.name}.making")
    try:
        _remove(making)
        client_of(StoreAddress(f"sqlite:///{making}", making)).search_experiments(max_results=1)
        making.replace(database)
    finally:
        _remove(making)


def _remove(database: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _require_usable(address: StoreAddress, name: str, stage: str, location: str) -> None:
    if stage != "active":
        raise StoreError(f"{address.public}: experiment {name} was deleted there; restore it or name another")
    if address.is_sql and location.startswith("mlflow-artifacts:"):
        raise StoreError(f"{address.public}: a server keeps the files of {name}; record through it")


def _make_experiment(client: MlflowClient, address: StoreAddress, name: str, about: Mapping[str, str]) -> str:
    """Make the experiment, or take it from another process that made it in the same moment."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(name, address.artifact_location, dict(about)))
    except MlflowException:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


@contextlib.contextmanager
def _locked(address: StoreAddress) -> Iterator[None]:
    """Hold the store's lock: two processes that first open a database at once would both make its tables."""
    if address.folder is not None:
        with (address.folder / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
    elif address.scheme == "postgresql":
        import sqlalchemy as sa

        from paradnn.store.sql import engine_of

        with engine_of(address).connect() as connection:  # the lock ends with the connection
            connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
            yield
    else:  # other databases, and servers, see to themselves
        yield
