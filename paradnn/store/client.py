"""MLflow's client with common settings, and conversion of its errors to one-line StoreErrors.

The client suppresses MLflow's log messages and gives up on an unreachable server within seconds.
Errors become StoreAwayError (unreachable), StoreRefusalError (access denied) or StoreError (any
other). A retry makes sense only for StoreAwayError: no connection, a time-out, or the HTTP status
408, 429 or 5xx.

A message gives the innermost cause. Credentials in addresses are masked, because MLflow may repeat
an address with its password.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paradnn.core import locks
from paradnn.core.errors import StoreAwayError, StoreError, StoreRefusalError
from paradnn.core.words import without_secrets
from paradnn.store.address import StoreAddress, relocate_artifacts

if TYPE_CHECKING:
    from mlflow import MlflowClient


T = TypeVar("T")

#: Messages of SQLite and of operating systems for a full disk.
_DISK_FULL_TEXTS = (
    "disk is full",
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
)
_CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
#: Environment variables of MLflow. By default it retries requests to an unreachable server for
#: minutes and shows a progress bar per upload. A telemetry thread also reports calls to MLflow's
#: authors, even during measurements.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def client_of(address: StoreAddress) -> MlflowClient:
    """Return an MLflow client of a store. The first call takes seconds to import MLflow."""
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    # MLflow prints the address of each run, including its password.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    from mlflow import MlflowClient

    # Set log levels after the import, because it sets its own. Messages about new tables do not
    # help users, and failures raise, so a logged traceback would be redundant.
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(address.uri)


def open_experiment(
    address: StoreAddress, name: str, about: Mapping[str, str] | None = None
) -> tuple[MlflowClient, str]:
    """Open an experiment for writing, and create the database and the experiment if absent.

    Creating an experiment in a SQLite store also enables the write-ahead log, so that readers do
    not block writers. Its artifacts are stored in a folder next to the database.

    Args:
        address: Address of the store.
        name: Name of the experiment.
        about: Tags that a new experiment gets; None means no tags.

    Returns:
        A pair: a client of the store, and the id of the experiment.

    Raises:
        StoreError: If the experiment was deleted, or if a server stores its artifacts.
    """
    from mlflow.exceptions import MlflowException

    with contextlib.ExitStack() as stack:
        # Without a lock, two processes could create the tables of a new SQLite database at once.
        if address.folder is not None:
            locks.lock(stack.enter_context((address.folder / ".lock").open("w")))
        relocate_artifacts(address)
        _make_tables(address)
        client = client_of(address)
        experiment = client.get_experiment_by_name(name)
        # A write-ahead log allows concurrent readers and writers, if the file system supports it.
        if experiment is None and address.database is not None:
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
            except MlflowException:  # another process may just have created it
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
    require_usable(address, name, experiment.lifecycle_stage, experiment.artifact_location)
    return client, str(experiment.experiment_id)


def _make_tables(address: StoreAddress) -> None:
    """Create an absent SQLite store atomically.

    Creating the tables takes seconds, so they are built in a folder next to the final path.
    MLflow rejects a database in which the creation was interrupted, and cannot repair it.
    """
    database = address.database
    if database is None or (database.is_file() and database.stat().st_size):
        return
    folder = database.with_name(f".{database.name}.making")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir()
    try:
        temporary = folder / database.name
        temporary_address = StoreAddress(f"sqlite:///{temporary}", temporary)
        client_of(temporary_address).search_experiments(max_results=1)
        temporary.replace(database)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def require_usable(address: StoreAddress, name: str, stage: str, location: str) -> None:
    """Check that an experiment can be written.

    Args:
        address: Address of the store.
        name: Name of the experiment.
        stage: MLflow's lifecycle stage of the experiment: "active" or "deleted".
        location: Address of the experiment's artifacts.

    Raises:
        StoreError: If the experiment was deleted, or if a server stores its artifacts.
    """
    if stage != "active":
        raise StoreError(
            f"{address.public}: experiment {name} was deleted from this store; "
            "restore it, or give a different experiment"
        )
    if address.is_sql and location.startswith("mlflow-artifacts:"):
        raise StoreError(
            f"{address.public}: a server stores the artifacts of experiment {name}; "
            "give the address of that server"
        )


@contextlib.contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Convert errors of MLflow, its database or the network into StoreError.

    Args:
        where: Location of the store as text, with which the messages begin.

    Raises:
        StoreAwayError: If the store is unreachable, so that a retry may succeed.
        StoreRefusalError: If the store denies access.
        StoreError: If the store fails for another reason.
    """
    try:
        yield
    except Exception as error:
        # Do not import the libraries here, which takes seconds: only imported ones can have raised.
        libraries = (
            *_loaded("mlflow.exceptions", "MlflowException"),
            *_loaded("requests.exceptions", "RequestException"),
            *_loaded("sqlalchemy.exc", "SQLAlchemyError"),
        )
        if isinstance(error, (OSError, UnicodeDecodeError, sqlite3.Error, *libraries)):
            raise _store_error(where, error) from error
        raise


def wraps_errors(kind: type[T]) -> type[T]:
    """Decorate a class so that each of its public methods runs inside `store_errors`.

    Args:
        kind: The class. Its attribute `where` must give the location of the store, as text.
    """

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
    """Return whether a server answers a single request within three seconds.

    Always True for a database.

    Args:
        uri: Tracking URI of the store.
    """
    if not uri.startswith("http"):
        return True
    import requests

    try:
        return bool(requests.get(f"{uri.rstrip('/')}/health", timeout=3).status_code < 500)
    except requests.exceptions.SSLError:
        return True  # a server answers; MLflow has its own certificate settings
    except requests.exceptions.RequestException:
        return False


def one_line_of(error: BaseException) -> str:
    """Return the message of an error's innermost cause in one line of at most 300 characters.

    Credentials in addresses are masked.
    """
    *_, cause = _causes(error)
    return without_secrets(" ".join(str(cause).split()))[:300] or type(cause).__name__


def _store_error(where: str, error: BaseException) -> StoreError:
    causes = list(_causes(error))
    status = _status(error, causes)
    text = one_line_of(error)
    if status == 401:
        return StoreRefusalError(
            f"{where}: the login is missing or wrong (HTTP 401); {_CREDENTIALS}"
        )
    if status == 403:
        if "Invalid Host" in text:
            remedy = "start the server with --allowed-hosts"
        else:
            remedy = f"{_CREDENTIALS} of a user with access"
        return StoreRefusalError(f"{where}: the server denies access (HTTP 403: {text}); {remedy}")
    if any(words in text for words in _DISK_FULL_TEXTS):  # waiting frees no space
        return StoreError(f"{where}: {text}; free some space")
    http_errors = _loaded(
        "requests.exceptions", "ConnectionError", "Timeout", "RetryError", "ChunkedEncodingError"
    )
    away_errors = (
        *http_errors,
        *_loaded("sqlalchemy.exc", "InterfaceError", "OperationalError"),
        sqlite3.OperationalError,
    )
    if status is None:
        is_away = any(isinstance(cause, away_errors) for cause in causes)
    else:
        is_away = status in (408, 429) or status >= 500
    if is_away:
        return StoreAwayError(f"{where}: {text}")
    return StoreError(f"{where}: {text}")


def _status(error: BaseException, causes: Sequence[BaseException]) -> int | None:
    """Return the HTTP status of the server's answer that caused an error; None without an answer.

    Args:
        error: The error.
        causes: The error and its chain of causes, as from `_causes`.
    """
    for cause in causes:
        response = getattr(cause, "response", None)
        if isinstance(cause, _loaded("requests.exceptions", "HTTPError")) and response is not None:
            return int(response.status_code)
    # MLflow raises MlflowException for an unsuccessful answer. If the exception has a cause, the
    # server did not answer.
    if isinstance(error, _loaded("mlflow.exceptions", "MlflowException")) and len(causes) == 1:
        return int(error.get_http_status_code())  # type: ignore[attr-defined]
    return None


def _loaded(module: str, *names: str) -> tuple[type[BaseException], ...]:
    """Return exception classes of a module; empty if the module has not been imported."""
    if module in sys.modules:
        return tuple(getattr(sys.modules[module], name) for name in names)
    return ()


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, the innermost last."""
    current: BaseException | None = error
    while current is not None:
        yield current
        cause = current.__cause__
        if cause is None and not current.__suppress_context__:
            cause = current.__context__
        current = cause
