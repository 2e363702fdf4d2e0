"""A training kept in a file after its epochs, so that one that is cut short loses at most an epoch.

The file is an .npz: the variables in the order of `LearningStep.values`, and the epochs so far as JSON. It is written
beside its place and renamed, so that it is whole or not there. Whose it is, and when it goes, is the driver's matter.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paradnn.worker.channel import MessageError, plain, read_message
from paradnn.worker.learning.messages import Epoch

__all__ = ["Checkpoint", "Kept", "unfinished"]

#: The share of the time that may go into writing: of an epoch that is shorter than nine writes, the next is waited for.
_SHARE = 0.1
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, MessageError)


class Kept(NamedTuple):
    """The epochs that a training had, and its variables after the last of them."""

    epochs: list[Epoch]
    values: list[np.ndarray]


class Checkpoint:
    """The file at `path`; None: nothing is kept."""

    def __init__(self, path: str | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._ended = -np.inf  # when the latest write did
        self._took = 0.0

    def load(self, like: Sequence[np.ndarray]) -> Kept | None:
        """What an earlier process kept of a training whose variables are `like`; None where nothing can be used."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            # Opened here: of a file that is none NumPy leaves it open.
            with self._path.open("rb") as opened, np.load(opened) as file:
                values = [file[name] for name in file.files if name != "epochs"]
                content = json.loads(file["epochs"].tobytes())
            epochs = [read_message(Epoch, entry, f"epochs[{place}]") for place, entry in enumerate(content)]
        except _DAMAGED as error:
            print(
                f"{self._path}: no checkpoint, or a damaged one ({error}); starting from the beginning", file=sys.stderr
            )
            return None
        fits = [(value.shape, value.dtype) for value in values] == [(value.shape, value.dtype) for value in like]
        return Kept(epochs, values) if fits and epochs else None

    def save(self, epochs: Sequence[Epoch], values: Callable[[], Sequence[np.ndarray]]) -> None:
        """Keep the training as it is now, unless the latest write is too near; a disk that is full keeps nothing."""
        begin = self._clock()
        if self._path is None or begin - self._ended < self._took * (1 - _SHARE) / _SHARE:
            return
        arrays = {f"value_{place}": value for place, value in enumerate(values())}
        text = json.dumps(plain(list(epochs))).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write(self._path, {**arrays, "epochs": np.frombuffer(text, np.uint8)})
        except OSError as error:
            print(f"{self._path}: cannot be written ({error.strerror}); no more checkpoints", file=sys.stderr)
            self._path = None
        self._ended = self._clock()
        self._took = self._ended - begin


def unfinished(path: Path) -> Path:
    """Where a checkpoint is written before it has its name: what is left of it where the writer was killed."""
    return path.with_suffix(".part")


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """One file whole or not at all, even where the machine goes down."""
    made = unfinished(path)
    try:
        with made.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except OSError:
        made.unlink(missing_ok=True)
        raise
