"""The accuracy of a model on held-out examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paradnn.core.errors import UnavailableError

#: A data set as arrays by name (`_NAMES`): examples and their classes, for training and held out.
Arrays = Mapping[str, np.ndarray]
_NAMES = ("training", "training_classes", "heldout", "heldout_classes")


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Read a classification data set from a NumPy archive (.npz).

    Args:
        path: Path of the archive.

    Returns:
        The arrays `training`, `training_classes`, `heldout` and `heldout_classes`.

    Raises:
        UnavailableError: If the file cannot be read or lacks one of these arrays.
    """
    try:
        with np.load(path) as file:
            return {name: file[name] for name in _NAMES}
    except (OSError, ValueError, KeyError) as error:
        raise UnavailableError(f"the data set {path} cannot be read: {error}") from error


def fit_examples(arrays: Arrays, shape: tuple[int, ...]) -> Arrays:
    """Return a data set in the input format of a model.

    If the model's inputs are vectors, images are flattened. If its inputs are images, each pixel is
    repeated to fill the input. Values are standardized with the mean and standard deviation of the
    training examples; for images, separately per channel.

    Args:
        arrays: The data set, as `read_arrays` returns it. Images have the shape (examples, pixels,
            pixels, channels).
        shape: The shape of the model's input without the batch axis.

    Returns:
        Arrays with the same names. Inputs are float32 (examples, *shape), classes int32
        (examples,).

    Raises:
        ValueError: If the pixels cannot be repeated to fill the input.
    """
    training = arrays["training"].astype("float32")
    axes = tuple(range(training.ndim - 1)) if training.ndim == 4 else None
    mean = training.mean(axes)
    scale = training.std(axes) + 1e-12
    fitted = {
        name: arrays[name].astype("int32") for name in ("training_classes", "heldout_classes")
    }
    for name in ("training", "heldout"):
        values = (arrays[name].astype("float32") - mean) / scale
        if len(shape) == 1:
            values = values.reshape(len(values), -1)
        else:
            times = shape[0] // values.shape[1]
            repeated = values.repeat(times, axis=1).repeat(times, axis=2)
            values = np.broadcast_to(repeated, (len(values), *shape))
        fitted[name] = np.ascontiguousarray(values)
    return fitted


def evaluate(
    outputs: Callable[[Sequence[Any]], Any],
    examples: Arrays,
    batch_size: int,
    likeliest: int = 1,
) -> tuple[float, float]:
    """Return the accuracy, from 0 to 1, and the mean cross entropy over the held-out examples.

    Args:
        outputs: The forward pass: returns logits (batch, classes) for a list of input arrays.
        examples: The data set, as `fit_examples` returns it.
        batch_size: Examples per forward pass.
        likeliest: k of the top-k accuracy. An example counts as right if its class is among the k
            classes with the highest logits.
    """
    heldout = examples["heldout"]
    classes = examples["heldout_classes"]
    is_right = []
    losses = []
    for start in range(0, len(heldout), batch_size):
        # Fill the last batch with other examples, so that all batches have the same shape.
        indices = np.arange(start, start + batch_size) % len(heldout)
        logits = np.asarray(outputs([heldout[indices]]))[: len(heldout) - start]
        batch_right, batch_losses = score(logits, classes[start : start + batch_size], likeliest)
        is_right.append(batch_right)
        losses.append(batch_losses)
    return float(np.concatenate(is_right).mean()), float(np.concatenate(losses).mean())


def score(
    logits: np.ndarray, classes: np.ndarray, likeliest: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each example whether it is classified correctly, and its cross entropy.

    A class with the same logit as the right class counts as likelier. Otherwise a model that
    returns equal logits for all classes would be right every time.

    Args:
        logits: Logits (examples, classes).
        classes: The right classes (examples,).
        likeliest: k of the top-k accuracy. An example counts as right if its class is among the k
            classes with the highest logits.

    Returns:
        Two arrays (examples,): whether each example is right, as bool, and its cross entropy in
        nats, as float64.
    """
    logits = logits.astype("float64")
    right = logits[np.arange(len(classes)), classes]
    with np.errstate(invalid="ignore"):
        rank = (logits >= right[:, None]).sum(axis=1)
        largest = logits.max(axis=1)
        shifted = logits - largest[:, None]
        losses = np.log(np.exp(shifted).sum(axis=1)) - (right - largest)
    return (rank <= likeliest) & np.isfinite(right), losses
