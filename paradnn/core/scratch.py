"""Temporary folders, and the removal of those whose process was killed.

A process holds a lock on its folders as long as it is alive. Process numbers would not do: drivers
in containers may share one /tmp, and each sees only its own numbers.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "paradnn-scratch-"


class Scratch:
    """A temporary folder that no other driver removes as a leftover before `remove` or the exit of
    this process.
    """

    def __init__(self) -> None:
        while True:  # another driver may remove it in the moment before it is held
            self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
            self.path = Path(self._folder.name)
            with contextlib.suppress(FileNotFoundError):
                self._held = os.open(self.path, os.O_RDONLY)
                fcntl.flock(self._held, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._held)
            self._folder.cleanup()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        with contextlib.suppress(OSError):  # a disk that is gone; the next process removes it
            self._folder.cleanup()
        os.close(self._held)


def remove_leftovers() -> None:
    """Remove the folders of drivers that were killed, and so could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            descriptor = os.open(
                folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY
            )  # a pipe would wait
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            except BlockingIOError:  # its driver is alive
                pass
            finally:
                os.close(descriptor)
