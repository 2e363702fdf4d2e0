"""Opening an experiment to write into: for imported measurements and for results that are put back."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from paradnn.errors import StoreError
from paradnn.store.address import address_of, locked, use_write_ahead_log, without_secrets

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
    address = address_of(uri)
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    with writing(address.uri):
        from mlflow import MlflowClient

        for logger in ("alembic", "mlflow", "mlflow.store.db.utils"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        if address.folder is not None:
            address.folder.mkdir(parents=True, exist_ok=True)
        with locked(address):
            client = MlflowClient(address.uri)
            experiment = client.get_experiment_by_name(name)
            if experiment is not None and experiment.lifecycle_stage != "active":
                raise StoreError(f"experiment={name}: was deleted in {address.public}; restore it or name another")
            if experiment is not None:
                return client, experiment.experiment_id
            use_write_ahead_log(address)
            return client, client.create_experiment(name, address.artifact_location)


@contextlib.contextmanager
def writing(uri: str) -> Iterator[None]:
    """What goes wrong inside becomes a StoreError of one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        problem = without_secrets(" ".join(str(error).split()))[:300]
        raise StoreError(f"cannot write to {without_secrets(uri)}: {problem}") from error
