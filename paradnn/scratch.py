"""Folders that workers run in: held by their driver while it lives, removed by a later one when it was killed.

A process number alone does not tell: a driver in a container, or in a Slurm job with processes of its own, has a
number that means nothing to others which share its temporary folder. A lock on a file means the same to all of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import psutil

__all__ = ["WorkerFolder", "remove_leftovers"]

#: How the folders of workers begin; the driver's process number follows.
_PREFIX = "paradnn-worker-"
_LOCK = "held"


class WorkerFolder:
    """A fresh temporary folder at `path`, locked by this process until `remove` or the process' end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")
        self.path = Path(self._folder.name)
        # Not inherited: a worker that outlives its driver does not hold the folder.
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: the process number alone must tell
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove it with all that is in it; a second time does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            self._folder.cleanup()


def remove_leftovers() -> None:
    """Remove the folders of drivers that were killed, and so could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)) and not _held(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _held(folder: Path) -> bool:
    """Whether a process has the lock; also where that cannot be told, as of somebody else's folder."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
