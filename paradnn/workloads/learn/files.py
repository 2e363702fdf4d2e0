"""Sets to learn from, as files that a worker reads: made or read here, since the interpreter under test has no more
than NumPy.

Each is an .npz with `training`, `training_classes`, `heldout` and `heldout_classes`: examples (n, features), or
pictures (n, pixels, pixels, channels), and their classes (n,).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from paradnn.config.data import Input
from paradnn.core.scratch import Scratch
from paradnn.core.workload import Companion
from paradnn.errors import DataError
from paradnn.workloads.learn.sets import Cifar10, Cifar100, Digits, Generated, input_width

if TYPE_CHECKING:
    from paradnn.config.point import Point

Arrays = Mapping[str, np.ndarray]

#: Where a normal variable is integrated over, and in how many parts.
_REACH, _PARTS = 8.0, 800
_CIFAR10 = {"training": [f"data_batch_{number}.bin" for number in range(1, 6)], "heldout": ["test_batch.bin"]}
_CIFAR100 = {"training": ["train.bin"], "heldout": ["test.bin"]}


class SetFiles(Companion):
    """The files of one session, each made when first a point asks for it."""

    def __init__(self) -> None:
        self._folder: Scratch | None = None
        self._files: dict[tuple[Input, int], Path] = {}

    def request(self, point: Point) -> dict[str, Any]:
        """The file of the point's set; DataError where the set cannot be read."""
        return {"learning_set": str(self.path(point.data, input_width(point.model)))}

    def path(self, data: Input, width: int) -> Path:
        """The file of a set, a generated one with `width` features; DataError where it cannot be read."""
        key = (data, width if isinstance(data, Generated) else 0)
        if key not in self._files:
            arrays: dict[str, Any] = dict(read_set(data, width))
            self._folder = self._folder or Scratch()
            self._files[key] = self._folder.path / f"set-{len(self._files)}.npz"
            np.savez(self._files[key], **arrays)
        return self._files[key]

    def close(self) -> None:
        """Remove the files."""
        if self._folder:
            self._folder.remove()
        self._folder, self._files = None, {}


def read_set(data: Input, width: int = 0) -> Arrays:
    """The arrays of a set; DataError says which file is not as it should be."""
    if isinstance(data, Digits):
        return _digits()
    if isinstance(data, Generated):
        return generate(data, width)
    assert isinstance(data, Cifar10 | Cifar100)
    folder = Path(data.path or "")
    files, labels = (_CIFAR10, 1) if isinstance(data, Cifar10) else (_CIFAR100, 2)
    arrays: dict[str, np.ndarray] = {}
    for part, names in files.items():
        rows = np.concatenate([_cifar(folder / name, labels) for name in names])
        # The last label is the fine one; a picture is stored colour after colour.
        arrays[f"{part}_classes"] = rows[:, labels - 1]
        arrays[part] = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return arrays


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    pictures, classes = bunch.images[..., None].astype("float32"), bunch.target
    heldout = np.arange(len(classes)) % 5 == 4
    return {
        "training": pictures[~heldout],
        "training_classes": classes[~heldout],
        "heldout": pictures[heldout],
        "heldout_classes": classes[heldout],
    }


def best_accuracy(distance: float, classes: int) -> float:
    """The best accuracy among classes whose centres are `distance` along axes of their own, with unit normal noise.

    The rule that takes the axis along which an example lies farthest is Bayes' rule here. It is right where the right
    axis' noise z beats that of all others: the integral of pdf(z) cdf(z + distance)^(classes - 1) over z.
    """
    normal = NormalDist()
    points = np.linspace(-_REACH, _REACH, _PARTS + 1)
    below = np.array([normal.cdf(point + distance) for point in points])
    density = np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi)
    return float(np.trapezoid(density * below ** (classes - 1), points))


def generate(data: Generated, width: int) -> Arrays:
    """The generated set with so many features, the same at every call."""
    low, high = 0.0, 2 * _REACH
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if best_accuracy(middle, data.classes) < data.best else (low, middle)
    generator = np.random.default_rng(0)
    axes, _ = np.linalg.qr(generator.standard_normal((width, data.classes)))
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("training", data.training), ("heldout", data.heldout)):
        classes = generator.integers(0, data.classes, count)
        noise = generator.standard_normal((count, width))
        arrays[part] = (high * axes.T[classes] + noise).astype("float32")
        arrays[f"{part}_classes"] = classes
    return arrays


def _cifar(path: Path, labels: int) -> np.ndarray:
    """The rows of a binary file of CIFAR: so many labels, then 3,072 values."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); data.path names the folder of it") from None
    if not len(content) or len(content) % (labels + 3072):
        raise DataError(f"{path}: is damaged, or no binary file of CIFAR; get it again")
    return content.reshape(-1, labels + 3072)
