"""Exceptions of ParaDnn.

A `ParadnnError` reports a problem that the user can fix. The command line prints its one-line
message and exits with `exit_code`, without a traceback. A `PointEnded` ends the measurement of a
point with an outcome. Any other exception that reaches the top level is a bug.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paradnn.core.words import without_logins

#: Largest number of problems that a message lists.
_MAX_LISTED_PROBLEMS = 6
#: Largest number of groups that a message names for each problem.
_MAX_NAMED_GROUPS = 3


class ParadnnError(Exception):
    """A problem that the user can fix.

    If a command raises this exception, the program prints its message, which is one line. The
    program then exits with the exception's `exit_code`.
    """

    exit_code = 2


class ConfigError(ParadnnError):
    """A configuration value is invalid.

    The message is `KEY=VALUE: PROBLEM; REMEDY`.

    Args:
        key: The dotted key, such as "model.nodes".
        value: The invalid value.
        problem: What is wrong with the value.
        remedy: What the user should do instead.
    """

    def __init__(self, key: str, value: object, problem: str, remedy: str) -> None:
        self.key = key
        self.value = value
        super().__init__(f"{key}={_short(value)}: {problem}; {remedy}")


class StoreError(ParadnnError):
    """The tracking store cannot be reached, read or written."""


class StoreAwayError(StoreError):
    """The tracking store does not answer, but may answer later."""


class StoreDeletedError(StoreError):
    """The database or folder of results was deleted or replaced while it was in use."""


class ClaimLostError(StoreError):
    """Another driver has taken over the configuration (point) that this process was measuring."""


class StoreRefusalError(StoreError):
    """The tracking store rejects the credentials or the user."""


class NoStoreError(StoreError):
    """The address has no tracking store: no file exists, or the database has no MLflow tables."""


class WorkerError(ParadnnError):
    """The interpreter under test does not start or does not reply."""


class SchemaError(ParadnnError):
    """Stored runs cannot be analyzed together; the message names the key and both values."""


class HeterogeneousError(SchemaError):
    """Runs differ in environment, timing protocol or schema, and pooling was not requested."""


class DataError(ParadnnError):
    """A file is damaged, incomplete or not of the expected kind."""


class InsufficientData(ParadnnError):
    """The data are insufficient for an analysis.

    An analysis of several groups of runs creates one error per group that it must omit. If it must
    omit all groups, it raises one error with all of these errors as `groups`.

    Args:
        problem: What is missing.
        group: Name of the group of runs that lacks data, such as a family on a device; None if the
            error does not refer to a single group.
        groups: The errors of all groups, if all groups must be omitted; None otherwise.
        remedy: What the user should do; empty if nothing is known to help.

    Attributes:
        problem: What is missing, without group names and remedy.
        group: Name of the group, or None.
    """

    def __init__(
        self,
        problem: str,
        *,
        group: str | None = None,
        groups: Sequence["InsufficientData"] | None = None,
        remedy: str = "",
    ) -> None:
        message = problem
        if group is not None:
            message = f"{group}: {message}"
        if groups is not None:
            message += f": {_list_groups(groups)}"
        if remedy:
            message += f"; {remedy}"
        super().__init__(message)
        self.problem = problem
        self.group = group


class PointEnded(Exception):
    """Ends the measurement of a configuration; the message is a one-line reason.

    Attributes:
        outcome: How the measurement ended, one of `paradnn.config.outcome.OUTCOMES`.
    """

    outcome: str


class UnavailableError(PointEnded):
    """The device or the software that a measurement requires is not available."""

    outcome = "unavailable"


@contextmanager
def reraise_as_unavailable(what: str, *errors: type[Exception], remedy: str = "") -> Iterator[None]:
    """Raise exceptions of the given types inside the context as UnavailableError.

    A PointEnded is raised unchanged, because it already has an outcome.

    Args:
        what: Beginning of the message. The first line of the original message follows.
        *errors: The types of exceptions.
        remedy: End of the message, which begins with a separator, such as "; ".
    """
    try:
        yield
    except PointEnded:
        raise
    except errors as error:
        text = str(error).strip() or type(error).__name__
        first_line = text.partition("\n")[0][:200]
        raise UnavailableError(f"{what}: {first_line}{remedy}") from error


def require_value(
    key: str, value: object, *, required: object, reason: str, remedy: str = ""
) -> None:
    """Check that a key has the only value that another setting allows.

    Args:
        key: The dotted key, such as "hosts".
        value: The value of the key.
        required: The only valid value.
        reason: Why no other value is valid.
        remedy: What to do instead. By default the message proposes the required value.

    Raises:
        ConfigError: If the value differs from the required one.
    """
    if value != required:
        default_remedy = f"set {key}={str(required).lower()}"
        raise ConfigError(key, value, reason, remedy or default_remedy)


def _list_groups(groups: Sequence[InsufficientData]) -> str:
    """Return the problems of all groups of runs as text, each with the names of its groups.

    The text lists the first `_MAX_LISTED_PROBLEMS` problems, and the first `_MAX_NAMED_GROUPS`
    names of each. It states how many more there are.

    Args:
        groups: One error per group of runs that an analysis must omit.
    """
    if not groups:
        return "there are no runs"
    by_problem: dict[str, list[InsufficientData]] = {}
    for group in groups:
        by_problem.setdefault(group.problem, []).append(group)
    parts = []
    for problem, lacking in list(by_problem.items())[:_MAX_LISTED_PROBLEMS]:
        if len(lacking) == 1 or lacking[0].group is None:
            parts.append(str(lacking[0]))
            continue
        names = ", ".join(str(group.group) for group in lacking[:_MAX_NAMED_GROUPS])
        if len(lacking) > _MAX_NAMED_GROUPS:
            names += f" and {len(lacking) - _MAX_NAMED_GROUPS} more"
        parts.append(f"{problem} ({names})")
    text = "; ".join(parts)
    if len(by_problem) > _MAX_LISTED_PROBLEMS:
        text += f" and {len(by_problem) - _MAX_LISTED_PROBLEMS} more"
    return text


def _short(value: object, limit: int = 120) -> str:
    """Return a value as a user would type it: on one line, truncated, and with passwords masked.

    Args:
        value: The value.
        limit: Maximum number of characters.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    text = without_logins(" ".join(text.split()) or repr(value))
    return text if len(text) <= limit else text[: limit - 3] + "..."
