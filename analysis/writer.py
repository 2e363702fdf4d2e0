"""Opening an experiment to write into: for imported measurements and for results that are put back."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.address import public, resolve, sqlite_path
from paradnn.errors import StoreError

__all__ = ["open_experiment", "writing"]

# A server that is gone is otherwise asked again for minutes; each run prints its address, each upload a bar.
_QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def open_experiment(uri: str | None, name: str) -> tuple[Any, str]:
    """An MlflowClient and the id of the experiment, both made where they are not there yet; StoreError otherwise.

    A SQLite store is made with its artifacts in the folder beside it, as the driver makes it, and with a write-ahead
    log, so that it can be read while it is written.
    """
    address = resolve(uri)
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    with writing(address):
        from mlflow import MlflowClient

        for logger in ("alembic", "mlflow", "mlflow.store.db.utils"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        path = sqlite_path(address)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            client = MlflowClient(address)
            experiment = client.get_experiment_by_name(name)
            if experiment is not None and experiment.lifecycle_stage != "active":
                raise StoreError(f"experiment={name}: was deleted in {public(address)}; restore it or name another")
            if experiment is not None:
                return client, experiment.experiment_id
            if path is not None:
                with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as database:
                    database.execute("PRAGMA journal_mode = WAL")
            location = (path.parent / "artifacts").as_uri() if path is not None else None
            return client, client.create_experiment(name, location)


@contextlib.contextmanager
def writing(uri: str) -> Iterator[None]:
    """What goes wrong inside becomes a StoreError of one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise StoreError(f"cannot write to {public(uri)}: {public(' '.join(str(error).split()))[:300]}") from error


@contextlib.contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    """Two processes that first open a database at once would both make its tables."""
    if path is None:
        yield
        return
    import fcntl

    with (path.parent / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
