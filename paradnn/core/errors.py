"""Every error a user can cause, in one tree.

A `ParadnnError` is something the user can fix: the command line prints its one-line message and
exits with `exit_code`, without a traceback. Any other exception that reaches the top is a fault of
this tool.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paradnn.core.words import without_logins

_LISTED = 6  # groups that a message names


class ParadnnError(Exception):
    """Something the user can mend; the message is one line."""

    exit_code = 2


class ConfigError(ParadnnError):
    """A configuration value is wrong: names the dotted key, the value and the remedy."""

    def __init__(self, key: str, value: object, problem: str, remedy: str) -> None:
        self.key = key
        self.value = value
        super().__init__(f"{key}={_short(value)}: {problem}; {remedy}")


class StoreError(ParadnnError):
    """The tracking store cannot be reached, read or written."""


class StoreAwayError(StoreError):
    """The tracking store does not answer; it may later."""


class StoreRefusalError(StoreError):
    """The tracking store does not accept the credentials, or not this user."""


class NoStoreError(StoreError):
    """There is no tracking store at the address: no file, or no tables of MLflow in the database."""


class WorkerError(ParadnnError):
    """The interpreter under test cannot be started or does not answer."""


class SchemaError(ParadnnError):
    """Stored runs that must not be read together: the message names the key and both values."""


class HeterogeneousError(SchemaError):
    """Runs of different environments, protocols or schemas, which were not asked to be pooled."""


class DataError(ParadnnError):
    """A file is damaged, incomplete or of another kind than expected."""


class NotEnoughData(ParadnnError):
    """There is nothing to find in so little data; the message says what is lacking. `lacking` says
    it for each group where there are groups; None where the message says it all.
    """

    def __init__(
        self, problem: str, lacking: Sequence[Any] | None = None, remedy: str = ""
    ) -> None:
        listed = [str(one) for one in lacking or ()]
        if len(listed) > _LISTED:
            more = f" and {len(listed) - _LISTED} more"
        else:
            more = ""
        if lacking is None:
            groups = ""
        else:
            groups = f": {'; '.join(listed[:_LISTED]) or 'there are no runs'}{more}"
        super().__init__(f"{problem}{groups}{f'; {remedy}' if remedy else ''}")
        self.problem = problem


class PointEnded(Exception):
    """Ends the measurement of a point with the given outcome; the message is a one-line reason."""

    outcome: str


class UnavailableError(PointEnded):
    """The device or the software that the point requires is not available."""

    outcome = "unavailable"


@contextmanager
def reraise_as_unavailable(what: str, *errors: type[Exception], remedy: str = "") -> Iterator[None]:
    """Context manager that turns exceptions of the given types into UnavailableError.

    The new message is `what`, the first line of the original message, and `remedy`.
    """
    try:
        yield
    except errors as error:
        text = str(error).strip() or type(error).__name__
        first_line = text.partition("\n")[0][:200]
        raise UnavailableError(f"{what}: {first_line}{remedy}") from error


def require_value(
    key: str, value: object, *, required: object, reason: str, remedy: str = ""
) -> None:
    """Raise ConfigError unless the value of `key` is the required one.

    Args:
        key: The dotted key.
        value: Its value in the point.
        required: The only value that is allowed.
        reason: Why no other value is allowed.
        remedy: What to do instead, by default to set the key to the required value.
    """
    if value != required:
        default_remedy = f"set {key}={str(required).lower()}"
        raise ConfigError(key, value, reason, remedy or default_remedy)


def _short(value: object, limit: int = 120) -> str:
    """The value as a user would type it, but for passwords, on one line and not too long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    text = without_logins(" ".join(text.split()) or repr(value))
    return text if len(text) <= limit else text[: limit - 3] + "..."
