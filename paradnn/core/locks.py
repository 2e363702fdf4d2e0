"""Locks on files and folders.

A lock belongs to an open file. The system releases the lock when the file is closed, which includes
the case that the process is killed.
"""

from typing import IO

from paradnn.core.errors import ParadnnError

try:
    import fcntl
except ModuleNotFoundError:  # Windows, where results are analyzed but nothing is measured
    fcntl = None  # type: ignore[assignment]


def lock(file: int | IO[str] | IO[bytes]) -> None:
    """Wait for an exclusive lock on an open file or folder.

    Args:
        file: The file, or its descriptor.

    Raises:
        ParadnnError: If the system has no file locks.
    """
    _require_locks()
    fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: int | IO[str] | IO[bytes], *, is_shared: bool = False) -> bool:
    """Try to lock an open file or folder without waiting, and return whether this succeeded.

    Args:
        file: The file, or its descriptor. An existing lock of this open file is replaced.
        is_shared: Whether the lock is shared, so that other processes can have shared locks too.

    Raises:
        ParadnnError: If the system has no file locks.
    """
    _require_locks()
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int | IO[str] | IO[bytes]) -> None:
    """Release the lock of an open file or folder.

    Args:
        file: The file, or its descriptor.

    Raises:
        ParadnnError: If the system has no file locks.
    """
    _require_locks()
    fcntl.flock(file, fcntl.LOCK_UN)


def _require_locks() -> None:
    if fcntl is None:
        raise ParadnnError(
            "this system has no file locks: measure on Linux or macOS, and analyze the results here"
        )
