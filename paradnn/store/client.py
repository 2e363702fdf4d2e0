"""MLflow's own client, set up the same way everywhere: quiet, and done with a server that is gone
within seconds; what a store raises, in one line and sorted: it is away, it refuses, or something
else is wrong. Away (no connection, a time-out, a server's 5xx) is worth waiting for. The innermost
cause speaks, with addresses cut: MLflow's own words may repeat one with its password.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paradnn.core.errors import StoreAwayError, StoreError, StoreRefusalError
from paradnn.core.words import without_secrets
from paradnn.store.address import StoreAddress, settle

if TYPE_CHECKING:
    from mlflow import MlflowClient


T = TypeVar("T")

#: What SQLite and systems say of a disk that takes no more.
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded", "File too large")
_CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
#: By default a request to a server that is gone is repeated for minutes, each upload shows a bar,
#: and a thread sends what was called to MLflow's makers while others are measured.
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

    # After the import, which sets its own levels: that tables are made is no news to a user, and
    # what fails is raised, so a traceback of it besides is none either.
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(address.uri)


def open_experiment(
    address: StoreAddress, name: str, about: Mapping[str, str] | None = None
) -> tuple[MlflowClient, str]:
    """A client, and the id of the experiment to write into; database and experiment are made where
    they are not there. A SQLite store gets a write-ahead log, so that it can be read while it is
    written, and has its artifacts in the folder beside it. `about`: tags of an experiment that is
    made. StoreError for one deleted or served.
    """
    from mlflow.exceptions import MlflowException

    with contextlib.ExitStack() as stack:
        if (
            address.folder is not None
        ):  # two processes that first open a SQLite database would both make its tables
            fcntl.flock(stack.enter_context((address.folder / ".lock").open("w")), fcntl.LOCK_EX)
        settle(address)
        _make_tables(address)
        client = client_of(address)
        experiment = client.get_experiment_by_name(name)
        if (
            experiment is None and address.database is not None
        ):  # readers and writers at once, where the disk can
            with (
                contextlib.suppress(sqlite3.Error),
                contextlib.closing(sqlite3.connect(address.database)) as tables,
            ):
                tables.execute("PRAGMA journal_mode=WAL")
        if experiment is None:
            try:
                return client, str(
                    client.create_experiment(name, address.artifact_location, dict(about or {}))
                )
            except MlflowException:  # another process made it in the same moment
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
    require_usable(address, name, experiment.lifecycle_stage, experiment.artifact_location)
    return client, str(experiment.experiment_id)


def _make_tables(address: StoreAddress) -> None:
    """Make a SQLite store that is not there yet, whole or not at all: beside its place first, since
    it takes seconds. MLflow's steps cannot be taken back, and it refuses a database in which one of
    them was interrupted.
    """
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


def require_usable(address: StoreAddress, name: str, stage: str, location: str) -> None:
    """Raises StoreError for an experiment that was deleted, or whose files a server keeps."""
    if stage != "active":
        raise StoreError(
            f"{address.public}: experiment {name} was deleted there; restore it or name another"
        )
    if address.is_sql and location.startswith("mlflow-artifacts:"):
        raise StoreError(f"{address.public}: a server keeps the files of {name}; record through it")


@contextlib.contextmanager
def store_errors(where: str) -> Iterator[None]:
    """What MLflow, its database or the network raise inside becomes a StoreError whose message
    begins with `where`.
    """
    try:
        yield
    except Exception as error:
        # A library that was never imported has raised nothing, and importing MLflow takes seconds.
        libraries = (
            *_loaded("mlflow.exceptions", "MlflowException"),
            *_loaded("requests.exceptions", "RequestException"),
            *_loaded("sqlalchemy.exc", "SQLAlchemyError"),
        )
        if isinstance(error, (OSError, UnicodeDecodeError, sqlite3.Error, *libraries)):
            raise _store_error(where, error) from error
        raise


def wraps_errors(kind: type[T]) -> type[T]:
    """A class with `where`, all of its public methods inside `store_errors`."""

    def inside(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with store_errors(self.where):
                return method(self, *args, **kwargs)

        return call

    for name, method in list(vars(kind).items()):
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, inside(method))
    return kind


def is_listening(uri: str) -> bool:
    """Whether something answers at a server's address, asked once and briefly; always true of a
    database.
    """
    if not uri.startswith("http"):
        return True
    import requests

    try:
        return bool(requests.get(f"{uri.rstrip('/')}/health", timeout=3).status_code < 500)
    except requests.exceptions.SSLError:
        return True  # a server is there; MLflow knows which certificates hold
    except requests.exceptions.RequestException:
        return False


def one_line_of(error: BaseException) -> str:
    """The innermost cause on one line, without addresses that may hold secrets."""
    *_, cause = _causes(error)
    return without_secrets(" ".join(str(cause).split()))[:300] or type(cause).__name__


def _store_error(where: str, error: BaseException) -> StoreError:
    causes = list(_causes(error))
    status = _status(error, causes)
    text = one_line_of(error)
    if status == 401:
        return StoreRefusalError(
            f"{where}: not logged in, or a wrong user or password (HTTP 401); {_CREDENTIALS}"
        )
    if status == 403:
        if "Invalid Host" in text:
            remedy = "start the server with --allowed-hosts"
        else:
            remedy = f"{_CREDENTIALS} of one who may"
        return StoreRefusalError(f"{where}: the server forbids it (HTTP 403: {text}); {remedy}")
    if any(words in text for words in _FULL):  # waiting makes no room
        return StoreError(f"{where}: {text}; free some space")
    http = _loaded(
        "requests.exceptions", "ConnectionError", "Timeout", "RetryError", "ChunkedEncodingError"
    )
    away = (
        *http,
        *_loaded("sqlalchemy.exc", "InterfaceError", "OperationalError"),
        sqlite3.OperationalError,
    )
    if status is None:
        is_away = any(isinstance(cause, away) for cause in causes)
    else:
        is_away = status in (408, 429) or status >= 500
    return (StoreAwayError if is_away else StoreError)(f"{where}: {text}")


def _status(error: BaseException, causes: Sequence[BaseException]) -> int | None:
    """The HTTP status that a server answered with; None where there was no answer."""
    for cause in causes:
        response = getattr(cause, "response", None)
        if isinstance(cause, _loaded("requests.exceptions", "HTTPError")) and response is not None:
            return int(response.status_code)
    # MLflow raises its own for an answer that is no success; with a cause behind it, there was no
    # answer.
    if isinstance(error, _loaded("mlflow.exceptions", "MlflowException")) and len(causes) == 1:
        return int(error.get_http_status_code())  # type: ignore[attr-defined]
    return None


def _loaded(module: str, *names: str) -> tuple[type[BaseException], ...]:
    if module in sys.modules:
        return tuple(getattr(sys.modules[module], name) for name in names)
    return ()


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
