"""The weights of a finished training, from which another training starts (transfer learning)."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError
from paradnn.workloads.learn.checkpoint import partial_file


def require_writable(path: Path) -> None:
    """Raise UnavailableError if `save_weights` cannot write to a path; call it before training."""
    partial = partial_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def save_weights(path: Path, names: Sequence[str], values: Sequence[np.ndarray]) -> None:
    """Write the variables of a model to an .npz file, completely or not at all.

    Args:
        path: The file; its folder is created.
        names: The names of the model's variables.
        values: The values of these variables, in the same order. Further values, such as the state
            of the optimizer, are not written.

    Raises:
        UnavailableError: If the file cannot be written.
    """
    arrays: Any = dict(zip(names, values, strict=False))
    partial = partial_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UnavailableError:
    reason = f"cannot be written ({error.strerror}); set learn.save to another folder"
    return UnavailableError(f"{path}: {reason}")


def start_from(
    path: Path, names: Sequence[str], values: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], int]:
    """Replace the initial values of variables by the values in a file of `save_weights`.

    A variable takes the stored value of the same name if the shapes are equal. So a model with
    another number of classes takes all layers except the last.

    Args:
        path: The file.
        names: The names of the model's variables.
        values: The initial values of these variables, in the same order. Further values, such as
            the state of the optimizer, are returned unchanged.

    Returns:
        The new values, and the number of variables that were replaced.

    Raises:
        UnavailableError: If the file cannot be read, or has no variable of the model.
    """
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            stored = {name: file[name] for name in file.files}
    except OSError as error:
        raise UnavailableError(
            f"{path}: cannot be read ({error.strerror}); set learn.start to a file that learn.save "
            "wrote"
        ) from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnavailableError(
            f"{path}: is no file of weights ({error}); set learn.start to a file that learn.save "
            "wrote"
        ) from None
    replaced = list(values)
    count = 0
    for index, name in enumerate(names):
        value = stored.get(name)
        if value is not None and value.shape == values[index].shape:
            replaced[index] = value.astype(values[index].dtype)
            count += 1
    if count == 0:
        raise UnavailableError(
            f"{path}: no variable matches this model by name and shape; set learn.start to the "
            "weights of a similar model"
        )
    return replaced, count
