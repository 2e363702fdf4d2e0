"""Sets to learn from (`data=...` of `task=learn`): typed, what a model must be to learn from one,
and as files that a worker reads, made here since the interpreter under test has no more than NumPy.

Each is an .npz with `training`, `training_classes`, `heldout` and `heldout_classes`: pictures (n,
pixels, pixels, channels), and their classes (n,).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from paradnn.config.data import Input
from paradnn.core.errors import ConfigError, DataError
from paradnn.core.schema import option
from paradnn.core.scratch import Scratch
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    import numpy as np


class Counts(NamedTuple):
    """Examples to train with and to judge with, and the classes that they are in."""

    training: int
    heldout: int
    classes: int


class Pictures(Input, ABC):
    """A set to learn from (`task=learn`), held in memory: square pictures, `pixels` high and wide,
    in `channels`.
    """

    pixels: ClassVar[int]
    channels: ClassVar[int]
    known: ClassVar[Counts]

    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The set; DataError says which file is not as it should be."""

    def check(self, model: Any) -> None:
        """ConfigError where `model`, the options of a family, cannot learn from it."""
        if model.is_counted:  # its worker sees whether they suit each other
            return
        classes = self.known.classes
        given = getattr(model, "output_size", None)
        if given is None:
            raise ConfigError(
                "data",
                self.name,
                f"model={model.name} tells no classes apart",
                "choose another model",
            )
        if given < max(2, classes):
            reason = f"data={self.name} has {classes} classes"
            raise ConfigError(
                "model.output_size", given, reason, f"set model.output_size={classes}"
            )
        takes = FAMILIES[model.name].data
        values = self.pixels**2 * self.channels
        if takes == "vectors" and model.input_size != values:
            reason = f"an example of data={self.name} has {values} values"
            raise ConfigError(
                "model.input_size", model.input_size, reason, f"set model.input_size={values}"
            )
        if takes == "images" and model.image_size % self.pixels:
            reason = f"data={self.name} has {self.pixels} x {self.pixels} pixels, which are repeated to fill an image"
            raise ConfigError(
                "model.image_size", model.image_size, reason, f"choose a multiple of {self.pixels}"
            )


@dataclass(frozen=True)
class Digits(Pictures):
    """The digits that come with scikit-learn; every fifth is held out."""

    pixels = 8
    channels = 1
    known = Counts(1438, 359, 10)
    name: str = option("digits", "handwritten digits of scikit-learn", choices=("digits",))

    def arrays(self) -> Mapping[str, np.ndarray]:
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        pictures = bunch.images[..., None].astype("float32")
        classes = bunch.target
        found: dict[str, np.ndarray] = {}
        for part, held in (("training", False), ("heldout", True)):
            chosen = [place for place in range(len(classes)) if (place % 5 == 4) is held]
            found |= {part: pictures[chosen], f"{part}_classes": classes[chosen]}
        return found


class _Cifar(Pictures):
    """Binary files of rows: so many labels, of which the last is the fine one, then a picture,
    colour after colour.
    """

    pixels = 32
    channels = 3
    labels: ClassVar[int]
    files: ClassVar[Mapping[str, Sequence[str]]]
    path: str | None

    def arrays(self) -> Mapping[str, np.ndarray]:
        import numpy as np

        found: dict[str, np.ndarray] = {}
        for part, names in self.files.items():
            rows = np.concatenate([self._rows(Path(self.path or "") / name) for name in names])
            pictures = rows[:, self.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            found |= {part: pictures, f"{part}_classes": rows[:, self.labels - 1]}
        return found

    def _rows(self, path: Path) -> np.ndarray:
        import numpy as np

        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); data.path names the folder of it"
            ) from None
        if not len(content) or len(content) % (self.labels + 3072):
            raise DataError(f"{path}: is damaged, or no binary file of CIFAR; get it again")
        return content.reshape(-1, self.labels + 3072)


@dataclass(frozen=True)
class Cifar10(_Cifar):
    """CIFAR-10 in its usual binary files."""

    known = Counts(50_000, 10_000, 10)
    labels = 1
    files: ClassVar = {
        "training": [f"data_batch_{number}.bin" for number in range(1, 6)],
        "heldout": ["test_batch.bin"],
    }
    name: str = option("cifar10", "CIFAR-10 from its binary files", choices=("cifar10",))
    path: str | None = option(
        None, "folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin"
    )


@dataclass(frozen=True)
class Cifar100(_Cifar):
    """CIFAR-100 in its usual binary files, with its hundred fine classes."""

    known = Counts(50_000, 10_000, 100)
    labels = 2
    files: ClassVar = {"training": ["train.bin"], "heldout": ["test.bin"]}
    name: str = option("cifar100", "CIFAR-100 from its binary files", choices=("cifar100",))
    path: str | None = option(None, "folder of train.bin and test.bin")


#: By name: `task=learn` needs one, and no other task takes any.
SETS: dict[str, type[Pictures]] = {"digits": Digits, "cifar10": Cifar10, "cifar100": Cifar100}
#: Where this process keeps the files; it goes with the process.
_folder = cache(Scratch)


@cache
def set_file(data: Pictures) -> Path:
    """The file of a set; DataError where it cannot be read."""
    import numpy as np

    arrays: Any = data.arrays()
    path = _folder().path / f"{data.name}-{set_file.cache_info().misses}.npz"
    np.savez(path, **arrays)
    return path
