"""Files with the weights of a finished training, for transfer learning.

`learn.save` writes such a file, and `learn.start` reads it.
"""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError
from paradnn.workloads.learn.checkpoint import partial_file


def require_writable(path: Path) -> None:
    """Check that `save_weights` can write to a path.

    This check precedes the training, so that a long training is not lost.

    Args:
        path: The file of weights. Its folder is created if necessary.

    Raises:
        UnavailableError: If the file could not be written.
    """
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
        path: The file. Its folder is created if necessary.
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
    reason = f"cannot be written ({error.strerror}); set learn.save to a writable folder"
    return UnavailableError(f"{path}: {reason}")


def start_from(
    path: Path, names: Sequence[str], values: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], int]:
    """Replace the initial values of variables by the values in a file of `save_weights`.

    A variable is set to the stored value of the same name if the shapes are equal. A model with a
    different number of classes can therefore use the weights of all layers except the last.

    Args:
        path: The file.
        names: The names of the model's variables.
        values: The initial values of these variables, in the same order. Further values, such as
            the state of the optimizer, are returned unchanged.

    Returns:
        The new values, and the number of variables that were replaced.

    Raises:
        UnavailableError: If the file cannot be read, or contains no matching variable.
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
            f"{path}: is not a file of weights ({error}); set learn.start to a file that "
            "learn.save wrote"
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
