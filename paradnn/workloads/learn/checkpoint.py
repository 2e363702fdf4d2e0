"""Checkpoints of a training.

A checkpoint is an .npz file with the variables in the order of `Step.values` and the epochs so far
as JSON. It is written completely or not at all.
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

#: Fraction of the time that may be spent on writing. If an epoch is shorter than 49 writes, the
#: next epochs are not written.
_WRITE_FRACTION = 0.02
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, MessageError)


class Checkpoint:
    """The checkpoint in one file.

    Args:
        path: The file; None keeps no checkpoint.
        clock: Returns the time in seconds.
    """

    def __init__(self, path: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._last_write_ended = -math.inf
        self._last_write_seconds = 0.0

    def load(self, like: Sequence[np.ndarray]) -> tuple[list[Epoch], list[np.ndarray]] | None:
        """Return the epochs of an earlier process, and the variables after them.

        Args:
            like: Variables of the shapes and types that the checkpoint must have.

        Returns:
            None if no checkpoint exists, it is damaged, or it is of other variables.
        """
        if self._path is None or not self._path.is_file():
            return None
        try:
            epochs, values = _read(self._path)
        except _DAMAGED as error:
            problem = f"no checkpoint, or a damaged one ({error}); starting from the beginning"
            print(f"{self._path}: {problem}", file=sys.stderr)
            return None
        stored = [(value.shape, value.dtype) for value in values]
        expected = [(value.shape, value.dtype) for value in like]
        if stored != expected or not epochs:
            return None
        return epochs, values

    def save(self, epochs: Sequence[Epoch], values: Callable[[], Sequence[np.ndarray]]) -> None:
        """Write a checkpoint, unless the last write was too recent.

        After a failed write, as on a full disk, nothing is written any more.

        Args:
            epochs: The epochs so far.
            values: Returns the variables.
        """
        begin = self._clock()
        min_pause = self._last_write_seconds * (1 - _WRITE_FRACTION) / _WRITE_FRACTION
        if self._path is None or begin - self._last_write_ended < min_pause:
            return
        try:
            _write(self._path, epochs, values())
        except OSError as error:
            print(
                f"{self._path}: cannot be written ({error.strerror}); no more checkpoints",
                file=sys.stderr,
            )
            with contextlib.suppress(OSError):
                partial_file(self._path).unlink()
            self._path = None
        self._last_write_ended = self._clock()
        self._last_write_seconds = self._last_write_ended - begin


def _read(path: Path) -> tuple[list[Epoch], list[np.ndarray]]:
    # NumPy leaves a file open that it cannot read, so it is opened here.
    with path.open("rb") as opened, np.load(opened) as file:
        values = [file[name] for name in file.files if name != "epochs"]
        content = json.loads(file["epochs"].tobytes())
    epochs = [
        read_message(Epoch, entry, f"epochs[{position}]") for position, entry in enumerate(content)
    ]
    return epochs, values


def _write(path: Path, epochs: Sequence[Epoch], values: Sequence[np.ndarray]) -> None:
    """Write a file completely or not at all, even if the machine goes down."""
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
    """Return the file into which a checkpoint is written; a killed writer leaves it behind."""
    return path.with_suffix(".part")
