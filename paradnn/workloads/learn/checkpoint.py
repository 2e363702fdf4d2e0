"""Checkpoints, from which an interrupted training resumes.

A checkpoint is an .npz file. It contains the values of the variables, in the order of
`Step.values`, and the epochs so far as JSON. It is written completely or not at all.
"""

import contextlib
import json
import math
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paradnn.core.channel import MessageError, plain, read_message
from paradnn.workloads.learn.messages import Epoch

#: Maximum fraction of the time that may be spent on writing checkpoints. After each write, no
#: checkpoint is written for 49 times the duration of that write.
_WRITE_FRACTION = 0.02
#: Errors from reading a damaged checkpoint.
_READ_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    MessageError,
)


class Checkpoint:
    """The checkpoint file of one training.

    Args:
        path: The file; None to write no checkpoints.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, path: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._last_write_ended = -math.inf
        self._last_write_seconds = 0.0

    def load(self, initial: Sequence[np.ndarray]) -> tuple[list[Epoch], list[np.ndarray]] | None:
        """Load the checkpoint of an interrupted training.

        Args:
            initial: The initial values of the variables. The checkpoint must contain values of the
                same shapes and types.

        Returns:
            The epochs of the training so far, and the values of the variables after the last of
            them. None if no checkpoint exists, if it is damaged, or if its variables do not match.
        """
        if self._path is None or not self._path.is_file():
            return None
        try:
            epochs, values = _read(self._path)
        except _READ_ERRORS as error:
            problem = f"not a checkpoint, or damaged ({error}); training starts from the beginning"
            print(f"{self._path}: {problem}", file=sys.stderr)
            return None
        stored = [(value.shape, value.dtype) for value in values]
        expected = [(value.shape, value.dtype) for value in initial]
        if stored != expected or not epochs:
            return None
        return epochs, values

    def save(self, epochs: Sequence[Epoch], values: Callable[[], Sequence[np.ndarray]]) -> None:
        """Write a checkpoint, unless the previous write was too recent (see `_WRITE_FRACTION`).

        After a failed write, for example on a full disk, no further checkpoint is written.

        Args:
            epochs: The epochs so far.
            values: Function that returns the values of the variables.
        """
        begin = self._clock()
        min_pause = self._last_write_seconds * (1 - _WRITE_FRACTION) / _WRITE_FRACTION
        if self._path is None or begin - self._last_write_ended < min_pause:
            return
        try:
            _write(self._path, epochs, values())
        except OSError as error:
            print(
                f"{self._path}: cannot be written ({error.strerror}); the training continues "
                "without checkpoints",
                file=sys.stderr,
            )
            with contextlib.suppress(OSError):
                partial_file(self._path).unlink()
            self._path = None
        self._last_write_ended = self._clock()
        self._last_write_seconds = self._last_write_ended - begin


def _read(path: Path) -> tuple[list[Epoch], list[np.ndarray]]:
    # Open the file here: NumPy would leave it open if it cannot read it.
    with path.open("rb") as opened, np.load(opened) as file:
        values = [file[name] for name in file.files if name != "epochs"]
        content = json.loads(file["epochs"].tobytes())
    epochs = [
        read_message(Epoch, entry, f"epochs[{position}]") for position, entry in enumerate(content)
    ]
    return epochs, values


def _write(path: Path, epochs: Sequence[Epoch], values: Sequence[np.ndarray]) -> None:
    """Write a checkpoint completely or not at all, even if the machine crashes.

    Args:
        path: The file.
        epochs: The epochs so far.
        values: Values of the variables after the last epoch.
    """
    arrays: Any = {f"value_{position}": value for position, value in enumerate(values)}
    text = json.dumps(plain(list(epochs))).encode()
    partial = partial_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        np.savez(file, epochs=np.frombuffer(text, np.uint8), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def partial_file(path: Path) -> Path:
    """Return the path of the temporary file that replaces a file once it is complete.

    A process that is killed while it writes leaves the temporary file behind.

    Args:
        path: The file to be replaced.
    """
    return path.with_suffix(".part")
