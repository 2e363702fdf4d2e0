"""What a tracking store raises, put in one line and sorted: it is away, it refuses, or something else is wrong.

Away (no connection, a time-out, a server's 5xx) is worth waiting for. The innermost cause speaks, with addresses cut:
MLflow's own words may repeat one with its password."""

from __future__ import annotations

import functools
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from paradnn.errors import StoreAwayError, StoreError, StoreRefusalError
from paradnn.store.address import without_secrets

T = TypeVar("T")

#: What SQLite and systems say of a disk that takes no more.
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded", "File too large")
_CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """What MLflow, its database or the network raise inside becomes a StoreError whose message begins with `where`."""
    try:
        yield
    except Exception as error:
        # A library that was never imported has raised nothing, and importing MLflow takes seconds.
        libraries = (
            *_loaded("mlflow.exceptions", "MlflowException"),
            *_loaded("requests.exceptions", "RequestException"),
            *_loaded("sqlalchemy.exc", "SQLAlchemyError"),
        )
        if isinstance(error, (OSError, sqlite3.Error, *libraries)):
            raise _store_error(where, error) from error
        raise


def raises_store_errors(kind: type[T]) -> type[T]:
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
    """Whether something answers at a server's address, asked once and briefly; always true of a database."""
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
    status, text = _status(error, causes), one_line_of(error)
    if status == 401:
        return StoreRefusalError(f"{where}: not logged in, or a wrong user or password (HTTP 401); {_CREDENTIALS}")
    if status == 403:
        remedy = "start the server with --allowed-hosts" if "Invalid Host" in text else f"{_CREDENTIALS} of one who may"
        return StoreRefusalError(f"{where}: the server forbids it (HTTP 403: {text}); {remedy}")
    if any(words in text for words in _FULL):  # waiting makes no room
        return StoreError(f"{where}: {text}; free some space")
    http = _loaded("requests.exceptions", "ConnectionError", "Timeout", "RetryError", "ChunkedEncodingError")
    away = (*http, *_loaded("sqlalchemy.exc", "InterfaceError", "OperationalError"), sqlite3.OperationalError)
    is_away = (
        any(isinstance(cause, away) for cause in causes) if status is None else status in (408, 429) or status >= 500
    )
    return (StoreAwayError if is_away else StoreError)(f"{where}: {text}")


def _status(error: BaseException, causes: Sequence[BaseException]) -> int | None:
    """The HTTP status that a server answered with; None where there was no answer."""
    for cause in causes:
        response = getattr(cause, "response", None)
        if isinstance(cause, _loaded("requests.exceptions", "HTTPError")) and response is not None:
            return int(response.status_code)
    # MLflow raises its own for an answer that is no success; with a cause behind it, there was no answer.
    if isinstance(error, _loaded("mlflow.exceptions", "MlflowException")) and len(causes) == 1:
        return int(error.get_http_status_code())  # type: ignore[attr-defined]
    return None


def _loaded(module: str, *names: str) -> tuple[type[BaseException], ...]:
    return tuple(getattr(sys.modules[module], name) for name in names) if module in sys.modules else ()


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
