"""Temporary folders, and the removal of folders that killed processes left behind.

A process locks its folders as long as it is alive. A process id would not identify the owner,
because several containers, each with separate process ids, may share one /tmp.
"""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from paradnn.core import locks

_PREFIX = "paradnn-scratch-"


class Scratch:
    """A temporary folder that other processes do not remove while this process is alive.

    As a context manager, it yields the path and removes the folder at the end.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        while True:  # repeat if another driver removes the folder before it is locked
            self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
            self.path = Path(self._folder.name)
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = os.open(self.path, os.O_RDONLY)
                locks.lock(self._descriptor)
                if self.path.exists():
                    return
                os.close(self._descriptor)
            self._folder.cleanup()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder and its contents."""
        with contextlib.suppress(OSError):  # such as an unmounted disk; a later process removes it
            self._folder.cleanup()
        os.close(self._descriptor)


def remove_leftovers() -> None:
    """Remove the temporary folders of drivers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # OSError: the folder was removed in the meantime, or belongs to another user.
        with contextlib.suppress(OSError):
            # O_DIRECTORY rejects a pipe of this name, which would block.
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                if locks.try_lock(descriptor):  # otherwise its driver is alive
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
