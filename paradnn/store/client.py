"""MLflow's own client, set up the same way everywhere: quiet, and done with a server that is gone within seconds."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paradnn.errors import NoStoreError, StoreError
from paradnn.store.address import StoreAddress, settle

if TYPE_CHECKING:
    from mlflow import MlflowClient


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

    with contextlib.suppress(NoStoreError):
        tables = SqlReader(address)
        if not tables.unexpected and (row := tables.experiment(name)):
            _require_usable(address, name, *row[1:])
            return row[0]
    return None


def open_experiment(
    address: StoreAddress, name: str, about: Mapping[str, str] | None = None
) -> tuple[MlflowClient, str]:
    """A client, and the id of the experiment to write into; database and experiment are made where they are not there.

    A SQLite store gets a write-ahead log, so that it can be read while it is written, and has its artifacts in the
    folder beside it. `about` are the tags of an experiment that is made. StoreError for one that was deleted, or whose
    files a server keeps."""
    from mlflow.exceptions import MlflowException

    with contextlib.ExitStack() as stack:
        if address.folder is not None:  # two processes that first open a SQLite database would both make its tables
            fcntl.flock(stack.enter_context((address.folder / ".lock").open("w")), fcntl.LOCK_EX)
        settle(address)
        _make_tables(address)
        client = client_of(address)
        experiment = client.get_experiment_by_name(name)
        if experiment is None and address.database is not None:  # readers and writers at once, where the disk can
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address.database)) as tables:
                tables.execute("PRAGMA journal_mode=WAL")
        if experiment is None:
            try:
                return client, str(client.create_experiment(name, address.artifact_location, dict(about or {})))
            except MlflowException:  # another process made it in the same moment
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
    _require_usable(address, name, experiment.lifecycle_stage, experiment.artifact_location)
    return client, str(experiment.experiment_id)


def _make_tables(address: StoreAddress) -> None:
    """Make a SQLite store that is not there yet, whole or not at all: beside its place first, since it takes seconds.
    MLflow's steps cannot be taken back, and it refuses a database in which one of them was interrupted."""
    database = address.database
    if database is None or (database.is_file() and database.stat().st_size):
        return
    folder = database.with_name(f".{database.name}.making")
    shutil.rmtree(folder, ignore_errors=True)  # of who was killed
    folder.mkdir()
    try:
        making = folder / database.name
        client_of(StoreAddress(f"sqlite:///{making}", making)).search_experiments(max_results=1)
        making.replace(database)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_usable(address: StoreAddress, name: str, stage: str, location: str) -> None:
    if stage != "active":
        raise StoreError(f"{address.public}: experiment {name} was deleted there; restore it or name another")
    if address.is_sql and location.startswith("mlflow-artifacts:"):
        raise StoreError(f"{address.public}: a server keeps the files of {name}; record through it")
