"""What a tracking store raises, put in one line and sorted: it is away, it refuses, or something else is wrong.

Away (no connection, a time-out, a server's 5xx) is worth waiting for, and what was measured meanwhile can be brought in
afterwards; the others are not. MLflow wraps one cause in several exceptions, some of which repeat the address with the
password in it: the innermost cause speaks, with addresses cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from paradnn.errors import ParadnnError, StoreAwayError, StoreError, StoreRefusalError
from paradnn.store import address as store

__all__ = ["is_listening", "one_line_of", "translated"]

F = TypeVar("F", bound=Callable[..., Any])

_CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def translated(method: F) -> F:
    """A method of an object with `where`: whatever MLflow, its database or the network raise becomes a StoreError."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if isinstance(error, ParadnnError) or not _is_of_store(error):
                raise
            raise _translation(self.where, error) from error

    return call  # type: ignore[return-value]


def is_listening(uri: str) -> bool:
    """Whether something answers at a server's address, asked once and briefly; always true of a database."""
    if not uri.startswith("http"):
        return True
    import requests

    try:
        return bool(requests.get(f"{uri.rstrip('/')}/health", timeout=3).status_code < 500)
    except requests.exceptions.SSLError:
        return True  # somebody is there; MLflow knows which certificates hold
    except requests.exceptions.RequestException:
        return False


def one_line_of(error: BaseException) -> str:
    """The innermost cause on one line, without addresses that may hold secrets."""
    *_, cause = _causes(error)
    return store.without_secrets(" ".join(str(cause).split()))[:300] or type(cause).__name__


def _is_of_store(error: Exception) -> bool:
    """Imports MLflow, which takes seconds, where something is wrong only: most commands read a database directly."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, (MlflowException, RequestException, SQLAlchemyError, OSError))


def _translation(where: str, error: BaseException) -> StoreError:
    status = _status(error)
    if status == 401:
        return StoreRefusalError(f"{where}: not logged in, or a wrong user or password (HTTP 401); {_CREDENTIALS}")
    if status == 403:
        text = one_line_of(error)
        remedy = "start the server with --allowed-hosts" if "Invalid Host" in text else f"{_CREDENTIALS} of one who may"
        return StoreRefusalError(f"{where}: the server forbids it (HTTP 403: {text}); {remedy}")
    kind = StoreAwayError if _is_away(error, status) else StoreError
    return kind(f"{where}: {one_line_of(error)}")


def _is_away(error: BaseException, status: int | None) -> bool:
    from requests import exceptions as http
    from sqlalchemy.exc import InterfaceError, OperationalError

    if status is not None:
        return status in (408, 429) or status >= 500
    away = (http.ConnectionError, http.Timeout, http.RetryError, http.ChunkedEncodingError, InterfaceError)
    return any(isinstance(cause, (*away, OperationalError)) for cause in _causes(error))


def _status(error: BaseException) -> int | None:
    """The HTTP status that a server answered with; None where there was no answer."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import HTTPError

    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, HTTPError) and cause.response is not None:
            return int(cause.response.status_code)
    # MLflow raises its own for an answer that is no success; with a cause behind it, there was no answer.
    if isinstance(error, MlflowException) and len(causes) == 1:
        return int(error.get_http_status_code())
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
