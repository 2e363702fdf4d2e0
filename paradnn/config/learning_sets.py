"""Sets of labeled pictures: the inputs of task=learn and task=judge.

The driver writes a set to an .npz file, so that the interpreter under test needs only NumPy. The
file contains pictures (examples, pixels, pixels, channels) as `training` and `heldout`, and classes
(examples,) as `training_classes` and `heldout_classes`.
"""

from __future__ import annotations

import hashlib
import math
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
from paradnn.core.words import counted
from paradnn.families import FAMILIES

if TYPE_CHECKING:
    import numpy as np


#: Tag that identifies the examples that a run read from files.
DIGEST_TAG = "data_digest"


class SetSizes(NamedTuple):
    """Numbers of training examples, held-out examples and classes in a data set."""

    training: int
    heldout: int
    classes: int


class Pictures(Input, ABC):
    """Base class for data sets of labeled, square pictures."""

    @property
    @abstractmethod
    def pixels(self) -> int:
        """Height and width of a picture in pixels."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Number of channels of a picture."""

    @property
    @abstractmethod
    def sizes(self) -> SetSizes:
        """Numbers of training examples, held-out examples and classes."""

    @abstractmethod
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Return the arrays of the set by name.

        Pictures (examples, pixels, pixels, channels) are `training` and `heldout`. Classes
        (examples,) are `training_classes` and `heldout_classes`.

        Raises:
            DataError: If a file is missing or damaged.
        """

    def check(self, model: Any) -> None:
        """Check that a model can learn from this set.

        Args:
            model: The options of the model.

        Raises:
            ConfigError: If the model is not a classifier, has too few classes, or has inputs of
                another size.
        """
        if model.is_counted:
            # Only the worker knows the input of a model that a user supplies.
            return
        self._check_classes(model)
        input_kind = FAMILIES[model.name].data
        values = self.pixels**2 * self.channels
        if input_kind == "vectors" and model.input_size != values:
            reason = f"differs from the {values} values of each example of data={self.name}"
            remedy = f"set model.input_size={values}"
            raise ConfigError("model.input_size", model.input_size, reason, remedy)
        if input_kind == "images" and model.image_size % self.pixels:
            reason = (
                f"is not a multiple of {self.pixels}, the height and width of the pictures of "
                f"data={self.name}, which are repeated to fill the image"
            )
            remedy = f"choose a multiple of {self.pixels}"
            raise ConfigError("model.image_size", model.image_size, reason, remedy)

    def _check_classes(self, model: Any) -> None:
        """Check that a model is a classifier and has all classes of the set.

        Args:
            model: The options of the model.

        Raises:
            ConfigError: If it is not.
        """
        classes = self.sizes.classes
        outputs = getattr(model, "output_size", None)
        if outputs is None:
            reason = f"model={model.name} is not a classifier"
            raise ConfigError("data", self.name, reason, "choose another model")
        if outputs < max(2, classes):
            reason = f"is less than the {classes} classes of data={self.name}"
            remedy = f"set model.output_size={classes}"
            raise ConfigError("model.output_size", outputs, reason, remedy)


@dataclass(frozen=True)
class Digits(Pictures):
    """The handwritten digits of scikit-learn. Every fifth digit is held out."""

    pixels = 8
    channels = 1
    sizes = SetSizes(training=1438, heldout=359, classes=10)

    name: str = option("digits", "handwritten digits of scikit-learn", choices=("digits",))

    def arrays(self) -> Mapping[str, np.ndarray]:
        import numpy as np
        from sklearn.datasets import load_digits

        bunch: Any = load_digits()
        pictures = bunch.images[..., None].astype("float32")
        is_heldout = np.arange(len(bunch.target)) % 5 == 4
        return {
            "training": pictures[~is_heldout],
            "training_classes": bunch.target[~is_heldout],
            "heldout": pictures[is_heldout],
            "heldout_classes": bunch.target[is_heldout],
        }


class _Cifar(Pictures):
    """Base class for sets in the binary files of CIFAR.

    Each row of a file has the labels, followed by a picture channel by channel.

    Attributes:
        labels: Number of labels in a row; the last label is the class.
        files: Part, `training` or `heldout` -> names of its files.
        path: Folder of the files.
    """

    pixels = 32
    channels = 3
    labels: ClassVar[int]
    files: ClassVar[Mapping[str, Sequence[str]]]
    path: str | None

    def arrays(self) -> Mapping[str, np.ndarray]:
        import numpy as np

        arrays: dict[str, np.ndarray] = {}
        for part, names in self.files.items():
            rows = np.concatenate([self._rows(Path(self.path or "") / name) for name in names])
            pictures = rows[:, self.labels :].reshape(-1, self.channels, self.pixels, self.pixels)
            arrays[part] = pictures.transpose(0, 2, 3, 1)
            arrays[f"{part}_classes"] = rows[:, self.labels - 1]
        return arrays

    def _rows(self, path: Path) -> np.ndarray:
        import numpy as np

        row_bytes = self.labels + self.channels * self.pixels**2
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); set data.path to the folder of the "
                "files"
            ) from None
        if not len(content) or len(content) % row_bytes:
            raise DataError(f"{path}: is damaged, or not a binary file of CIFAR; download it again")
        return content.reshape(-1, row_bytes)


@dataclass(frozen=True)
class Cifar10(_Cifar):
    """CIFAR-10 in its usual binary files."""

    sizes = SetSizes(training=50_000, heldout=10_000, classes=10)
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
    """CIFAR-100 in its usual binary files, with the hundred fine classes."""

    sizes = SetSizes(training=50_000, heldout=10_000, classes=100)
    labels = 2
    files: ClassVar = {"training": ["train.bin"], "heldout": ["test.bin"]}

    name: str = option("cifar100", "CIFAR-100 from its binary files", choices=("cifar100",))
    path: str | None = option(None, "folder of train.bin and test.bin")


class _ReadFromFiles(Pictures):
    """Base class for sets whose sizes depend on the user's files."""

    @property
    def pixels(self) -> int:
        return int(self.arrays()["training"].shape[1])

    @property
    def channels(self) -> int:
        return int(self.arrays()["training"].shape[3])

    @property
    def sizes(self) -> SetSizes:
        arrays = self.arrays()
        classes = arrays["training_classes"]
        heldout_classes = arrays["heldout_classes"]
        return SetSizes(
            training=len(classes),
            heldout=len(heldout_classes),
            classes=int(max(classes.max(), heldout_classes.max())) + 1,
        )


@dataclass(frozen=True)
class NpzFile(_ReadFromFiles):
    """A set in a file of NumPy arrays, which are named as in Keras' mnist.npz."""

    name: str = option("npz", "arrays of an .npz file, such as Keras' mnist.npz", choices=("npz",))
    path: str | None = option(
        None,
        "file with x_train and x_test (examples, pixels, pixels[, channels]), y_train and y_test "
        "(examples,)",
    )

    def arrays(self) -> Mapping[str, np.ndarray]:
        return _npz_arrays(Path(self.path or ""))


@dataclass(frozen=True)
class Mnist(_ReadFromFiles):
    """MNIST, either in Keras' mnist.npz or in the four original files."""

    name: str = option(
        "mnist", "MNIST from Keras' mnist.npz or its original files", choices=("mnist",)
    )
    path: str | None = option(
        None, "Keras' mnist.npz, or the folder of the four files such as train-images-idx3-ubyte.gz"
    )

    def arrays(self) -> Mapping[str, np.ndarray]:
        path = Path(self.path or "")
        arrays = _idx_arrays(path) if path.is_dir() else _npz_arrays(path)
        if arrays["training"].shape != (60_000, 28, 28, 1):
            raise DataError(f"{self.path}: is not MNIST; use data=npz for other .npz files")
        return arrays


@dataclass(frozen=True)
class PictureFolder(_ReadFromFiles):
    """A folder with one sub-folder of pictures per class. Every fifth picture is held out."""

    name: str = option(
        "folder",
        "pictures in one sub-folder per class; every fifth picture is held out",
        choices=("folder",),
    )
    path: str | None = option(None, "folder with one sub-folder of pictures per class")
    size: int = option(32, "height and width of the resized pictures in pixels", low=4, high=1024)

    def arrays(self) -> Mapping[str, np.ndarray]:
        return _folder_arrays(Path(self.path or ""), self.size)


@cache
def _idx_arrays(folder: Path) -> Mapping[str, np.ndarray]:
    """Read a set from the four files in which MNIST is published.

    Args:
        folder: Folder of the files.

    Returns:
        The arrays of the set, as `Pictures.arrays` documents them.

    Raises:
        DataError: If a file is missing or damaged.
    """
    return {
        "training": _read_idx(folder, "train-images", dimensions=3)[..., None],
        "training_classes": _read_idx(folder, "train-labels", dimensions=1),
        "heldout": _read_idx(folder, "t10k-images", dimensions=3)[..., None],
        "heldout_classes": _read_idx(folder, "t10k-labels", dimensions=1),
    }


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Read an IDX file, compressed or not, as an array of unsigned bytes.

    An IDX file consists of two zero bytes, the type (8: unsigned byte), the number of dimensions,
    the size of each dimension as a big-endian 32-bit number, and the values
    (http://yann.lecun.com/exdb/mnist/).

    Args:
        folder: Folder of the file.
        name: Beginning of the file's name, such as "train-images".
        dimensions: Number of dimensions of the array.

    Raises:
        DataError: If the file is missing or damaged.
    """
    import gzip

    import numpy as np

    stem = f"{name}-idx{dimensions}-ubyte"
    file = next((path for path in (folder / stem, folder / f"{stem}.gz") if path.exists()), None)
    if file is None:
        raise DataError(f"{folder}: has no {stem} or {stem}.gz; put the four files of MNIST there")
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: cannot be read ({error}); download it again") from None
    sizes = [int.from_bytes(content[4 * axis :][:4], "big") for axis in range(1, dimensions + 1)]
    values = np.frombuffer(content, np.uint8)[4 * (1 + dimensions) :]
    if content[:4] != bytes([0, 0, 8, dimensions]) or math.prod(sizes) != len(values):
        raise DataError(f"{file}: is damaged, or not an IDX file of bytes; download it again")
    return values.reshape(sizes)


@cache
def _npz_arrays(path: Path) -> Mapping[str, np.ndarray]:
    """Read a set from an .npz file whose arrays are named as in Keras' mnist.npz.

    Returns:
        The arrays of the set, as `Pictures.arrays` documents them.

    Raises:
        DataError: If the file cannot be read, lacks an array, or has an array of a wrong shape.
    """
    import zipfile

    import numpy as np

    names = {
        "training": "x_train",
        "training_classes": "y_train",
        "heldout": "x_test",
        "heldout_classes": "y_test",
    }
    try:
        with np.load(path) as file:
            arrays = {part: file[name] for part, name in names.items()}
    except OSError as error:
        reason = error.strerror or "it is not an .npz file"
        raise DataError(f"{path}: cannot be read ({reason}); set data.path to the file") from None
    except KeyError as error:
        missing = str(error.args[0]).split()[0]
        raise DataError(f"{path}: has no array {missing}; add it to the file") from None
    except (ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: is not an .npz file ({error}); set data.path to an .npz file"
        ) from None
    for part in ("training", "heldout"):
        if arrays[part].ndim == 3:
            arrays[part] = arrays[part][..., None]
        _check_part(path, arrays, part, names)
    if arrays["training"].shape[1:] != arrays["heldout"].shape[1:]:
        shapes = " and ".join(str(arrays[part].shape[1:]) for part in ("training", "heldout"))
        raise DataError(
            f"{path}: x_train and x_test have pictures of different shapes, {shapes}; "
            "store pictures of equal shape"
        )
    return arrays


def _check_part(
    path: Path, arrays: dict[str, np.ndarray], part: str, names: Mapping[str, str]
) -> None:
    """Check that the training or held-out part of a set has square pictures with one class each.

    The function also replaces classes of shape (n, 1) in `arrays` by classes of shape (n,).

    Args:
        path: The file, for messages.
        arrays: Arrays of all parts, by name.
        part: `training` or `heldout`.
        names: Names of the arrays in the file, for messages.

    Raises:
        DataError: If the pictures are not square, or a picture lacks a class.
    """
    pictures = arrays[part]
    classes = arrays[f"{part}_classes"]
    if pictures.ndim != 4 or pictures.shape[1] != pictures.shape[2] or not len(pictures):
        shape = " x ".join(map(str, pictures.shape))
        raise DataError(
            f"{path}: the array {names[part]} of shape {shape} does not contain square pictures; "
            "store it with the shape examples x pixels x pixels x channels"
        )
    if classes.shape == (len(pictures), 1):  # as in Keras' CIFAR
        classes = arrays[f"{part}_classes"] = classes[:, 0]
    is_valid = classes.shape == (len(pictures),) and classes.dtype.kind in "iu"
    if not is_valid or classes.min() < 0:
        raise DataError(
            f"{path}: the array {names[f'{part}_classes']} does not contain exactly one class per "
            "picture; store one whole number of 0 or more per picture"
        )


@cache
def _folder_arrays(path: Path, size: int) -> Mapping[str, np.ndarray]:
    """Read a set from a folder with one sub-folder of pictures per class.

    Args:
        path: The folder.
        size: Height and width to which pictures are resized, in pixels.

    Returns:
        The arrays of the set, as `Pictures.arrays` documents them.

    Raises:
        DataError: If the folder cannot be read, a file is not a picture, a class has fewer than
            five pictures, or there are fewer than two classes.
    """
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    pictures: dict[str, list[np.ndarray]] = {"training": [], "heldout": []}
    classes: dict[str, list[int]] = {"training": [], "heldout": []}
    try:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); set data.path to a folder"
        ) from None
    for label, folder in enumerate(folders):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _PICTURE_FILES)
        if len(files) < _HELDOUT_INTERVAL:
            raise DataError(
                f"{folder}: has {counted(len(files), 'picture')}; add pictures until there are at "
                "least five, because every fifth picture is held out"
            )
        for index, file in enumerate(files):
            is_heldout = index % _HELDOUT_INTERVAL == _HELDOUT_INTERVAL - 1
            part = "heldout" if is_heldout else "training"
            try:
                with Image.open(file) as opened:
                    resized = opened.convert("RGB").resize((size, size))
            except (OSError, UnidentifiedImageError) as error:
                raise DataError(f"{file}: is not a picture ({error}); remove it") from None
            pictures[part].append(np.asarray(resized))
            classes[part].append(label)
    if len(folders) < 2:
        raise DataError(
            f"{path}: has {counted(len(folders), 'sub-folder')}; add one sub-folder per class, for "
            "at least two classes"
        )
    return {
        "training": np.stack(pictures["training"]),
        "training_classes": np.array(classes["training"]),
        "heldout": np.stack(pictures["heldout"]),
        "heldout_classes": np.array(classes["heldout"]),
    }


#: File extensions of pictures in a folder.
_PICTURE_FILES = (".jpg", ".jpeg", ".png")
#: One of this number of consecutive pictures of a class is held out: the last one.
_HELDOUT_INTERVAL = 5
#: The sets by their name in `data=NAME`.
SETS: dict[str, type[Pictures]] = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "mnist": Mnist,
    "npz": NpzFile,
    "folder": PictureFolder,
}
#: Function that returns the folder of set files, which is deleted when this process ends.
_folder = cache(Scratch)


@cache
def set_file(data: Pictures) -> Path:
    """Write a data set to an .npz file once per process, and return the path of the file.

    Args:
        data: The set.

    Raises:
        DataError: If the set cannot be read.
    """
    import numpy as np

    arrays: Any = data.arrays()
    path = _folder().path / f"{data.name}-{set_file.cache_info().misses}.npz"
    np.savez(path, **arrays)
    return path


@cache
def set_digest(data: Pictures) -> str:
    """Return a hash of 16 hexadecimal digits that identifies the examples of a data set.

    Args:
        data: The set.

    Raises:
        DataError: If the set cannot be read.
    """
    return hashlib.sha256(set_file(data).read_bytes()).hexdigest()[:16]
