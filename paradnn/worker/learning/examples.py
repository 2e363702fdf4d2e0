"""A set to learn from as the model takes it: read from the file that the driver made, fitted to the model's input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paradnn.worker.errors import Unavailable

__all__ = ["Examples", "Part", "read_examples", "training_count"]

Batch = tuple[list[np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class Part:
    """Inputs (examples, *shape) float32 and their classes (examples,) int32; of a text tokens and the ones that follow,
    both (examples, tokens) int32."""

    inputs: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.classes)

    def take(self, indices: np.ndarray) -> Batch:
        """Inputs and targets of one step."""
        return [self.inputs[indices]], [self.classes[indices]]


@dataclass(frozen=True)
class Examples:
    """What is trained with and what is judged with."""

    training: Part
    heldout: Part

    def epoch(self, batch_size: int, generator: np.random.Generator) -> Iterator[Batch]:
        """Whole batches of all training examples in a new order; what is left over waits for another epoch."""
        order = generator.permutation(len(self.training))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield self.training.take(order[start : start + batch_size])


def read_examples(path: str, shape: tuple[int, ...]) -> Examples:
    """The set in the file `path` for a model whose input has `shape` without the batch axis.

    Values are standardised by the training part: one mean and one standard deviation for each channel of pictures, for
    all values otherwise. Tokens are numbers of words: they stay as they are. Raises Unavailable where the file cannot
    be read.
    """
    arrays = _read(path, "training", "training_classes", "heldout", "heldout_classes")
    if arrays["training_classes"].ndim > 1:
        whole = {name: values.astype("int32") for name, values in arrays.items()}
        return Examples(*(Part(whole[name], whole[f"{name}_classes"]) for name in ("training", "heldout")))
    training, heldout = arrays["training"].astype("float32"), arrays["heldout"].astype("float32")
    axes = tuple(range(training.ndim - 1)) if training.ndim == 4 else None
    mean, scale = training.mean(axes), training.std(axes) + 1e-12
    parts = []
    for values, classes in ((training, arrays["training_classes"]), (heldout, arrays["heldout_classes"])):
        parts.append(Part(_fitted((values - mean) / scale, shape), classes.astype("int32")))
    return Examples(*parts)


def training_count(path: str) -> int:
    """How many examples the set in the file `path` has to train with; Unavailable where it cannot be read."""
    return len(_read(path, "training_classes")["training_classes"])


def _read(path: str, *names: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as file:
            return {name: file[name] for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"the set to learn from cannot be read: {error}") from error


def _fitted(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Examples in the model's `shape`: flat, or pictures (n, pixels, pixels, channels) with pixels repeated."""
    if len(shape) == 1:
        return np.ascontiguousarray(values.reshape(len(values), -1))
    times = shape[0] // values.shape[1]
    larger = values.repeat(times, axis=1).repeat(times, axis=2)
    return np.ascontiguousarray(np.broadcast_to(larger, (len(values), *shape)))
