"""Sets to learn from (`data=...` of `task=learn`), typed, and what a model must be to learn from one."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from paradnn.config.data import Input
from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import FAMILIES

_SUFFIXES = (".jpg", ".jpeg", ".png")


class Counts(NamedTuple):
    """Examples to train with and to judge with, and the classes that they are in."""

    training: int
    heldout: int
    classes: int


def input_width(model: Any) -> int:
    """Numbers, or tokens, of an example; 0 where the model does not say."""
    if model.is_counted:
        return math.prod(model.input_shape)
    return int(getattr(model, "input_size", 0) or getattr(model, "sequence_length", 0))


class Arrays(Input, ABC):
    """A set to learn from (`task=learn`), which is held in memory."""

    @abstractmethod
    def counts(self, model: Any) -> Counts:
        """How many examples there are for `model`, the options of a family."""

    def check(self, model: Any) -> None:
        """ConfigError where `model`, the options of a family, cannot take these examples."""
        if model.is_counted:  # its worker sees whether they suit each other
            return
        classes, given = self.counts(model).classes, getattr(model, "output_size", None)
        if given is None:
            raise ConfigError("data", self.name, f"model={model.name} tells no classes apart", "choose another model")
        if given < max(2, classes):
            reason = f"data={self.name} has {classes} classes"
            raise ConfigError("model.output_size", given, reason, f"set model.output_size={classes}")


@dataclass(frozen=True)
class Generated(Arrays):
    """Classes around points that are equally far from each other, with normal noise: `best` is Bayes' accuracy."""

    name: str = option("generated", "drawn examples whose best accuracy is known", choices=("generated",))
    training: int = option(8000, "examples to train with", low=1, high=10_000_000)
    heldout: int = option(2000, "examples to judge with", low=1, high=10_000_000)
    classes: int = option(10, "classes, equally likely", low=2, high=10_000)
    best: float = option(0.98, "the best accuracy that any rule can have on all that could be drawn", low=0.0, high=1.0)

    def counts(self, model: Any) -> Counts:
        """As the keys say."""
        return Counts(self.training, self.heldout, self.classes)

    def check(self, model: Any) -> None:
        """As `Arrays.check`; each class takes a direction of its own."""
        super().check(model)
        if model.is_counted and not model.input_shape:
            raise ConfigError("model.input_shape", "[]", f"data={self.name} is made for it", "set it, as in [64]")
        if FAMILIES[model.name].data not in ("vectors", "any"):
            raise ConfigError("data", self.name, f"model={model.name} takes no vectors", "choose model=fc")
        if (width := input_width(model)) < self.classes:
            key = "model.input_shape" if model.is_counted else "model.input_size"
            raise ConfigError(key, width, f"is less than data.classes={self.classes}", "choose a larger one")
        if not 1 / self.classes < self.best < 1:
            reason = f"is not between the chance of a guess, {1 / self.classes:g}, and 1"
            raise ConfigError("data.best", self.best, reason, "choose another one")


class Pictures(Arrays):
    """A set of square pictures, `pixels` high and wide, in so many `channels`."""

    pixels: int
    channels: ClassVar[int]
    known: ClassVar[Counts]

    def counts(self, model: Any) -> Counts:
        """As everybody knows."""
        return self.known

    def check(self, model: Any) -> None:
        """As `Arrays.check`; a model of images takes each pixel repeated."""
        super().check(model)
        takes, values = FAMILIES[model.name].data, self.pixels**2 * self.channels
        if takes == "vectors" and model.input_size != values:
            reason = f"an example of data={self.name} has {values} values"
            raise ConfigError("model.input_size", model.input_size, reason, f"set model.input_size={values}")
        if takes == "images" and model.image_size % self.pixels:
            reason = f"data={self.name} has {self.pixels} x {self.pixels} pixels, which are repeated to fill an image"
            raise ConfigError("model.image_size", model.image_size, reason, f"choose a multiple of {self.pixels}")


@dataclass(frozen=True)
class Digits(Pictures):
    """The digits that come with scikit-learn; every fifth is held out."""

    pixels, channels, known = 8, 1, Counts(1438, 359, 10)
    name: str = option("digits", "handwritten digits of scikit-learn", choices=("digits",))


@dataclass(frozen=True)
class Mnist(Pictures):
    """MNIST in its usual files."""

    pixels, channels, known = 28, 1, Counts(60_000, 10_000, 10)
    name: str = option("mnist", "MNIST from its files", choices=("mnist",))
    path: str | None = option(None, "folder of train-images-idx3-ubyte and the three others, each perhaps as .gz")


@dataclass(frozen=True)
class Cifar10(Pictures):
    """CIFAR-10 in its usual binary files."""

    pixels, channels, known = 32, 3, Counts(50_000, 10_000, 10)
    name: str = option("cifar10", "CIFAR-10 from its binary files", choices=("cifar10",))
    path: str | None = option(None, "folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin")


@dataclass(frozen=True)
class Cifar100(Pictures):
    """CIFAR-100 in its usual binary files, with its hundred fine classes."""

    pixels, channels, known = 32, 3, Counts(50_000, 10_000, 100)
    name: str = option("cifar100", "CIFAR-100 from its binary files", choices=("cifar100",))
    path: str | None = option(None, "folder of train.bin and test.bin")


@dataclass(frozen=True)
class Folder(Pictures):
    """Pictures of the user's own, a folder for each class."""

    channels = 3
    name: str = option("folder", "pictures in a folder for each class", choices=("folder",))
    path: str | None = option(
        None, "folder with a sub-folder of jpg, jpeg or png for each class, or with train/ and val/ that have them"
    )
    pixels: int = option(32, "height and width to which the middle of a picture is scaled", low=1, high=4096)
    heldout: float = option(0.2, "share of each class that is held out where there is no val/", low=0.0, high=1.0)

    def counts(self, model: Any) -> Counts:
        """As many as there are files; ConfigError where they are none."""
        files = list_pictures(self.path or "", self.heldout)
        return Counts(len(files.training), len(files.heldout), len(files.classes))


@dataclass(frozen=True)
class Topics(Arrays):
    """The text of Python's help topics, a byte a token: a model of language learns which byte comes next."""

    #: Bytes of it that are trained with, and that are held out; tokens are below `vocabulary`.
    training, heldout, vocabulary = 360_000, 40_000, 128
    name: str = option("topics", "the text of Python's help topics, for models of language", choices=("topics",))

    def counts(self, model: Any) -> Counts:
        """As many as there are windows of the model's sequence_length, each with the byte after it."""
        length = model.sequence_length
        return Counts((self.training - 1) // length, (self.heldout - 1) // length, self.vocabulary)

    def check(self, model: Any) -> None:
        """A model must say of each token which one comes next."""
        if not model.predicts_tokens:
            reason = f"model={model.name} says of no token which one comes next"
            raise ConfigError("data", self.name, reason, "choose model=gpt, lstm, gru or rnn")
        if model.vocab_size < self.vocabulary:
            reason = f"data={self.name} has {self.vocabulary} different bytes"
            raise ConfigError("model.vocab_size", model.vocab_size, reason, f"set model.vocab_size={self.vocabulary}")
        if model.sequence_length >= self.heldout:
            reason = f"data={self.name} has {self.heldout:,} bytes that are held out"
            raise ConfigError("model.sequence_length", model.sequence_length, reason, "choose a shorter one")


#: By name: `task=learn` needs one, and no other task takes any.
SETS: dict[str, type[Arrays]] = {"digits": Digits, "generated": Generated, "mnist": Mnist}
SETS |= {"cifar10": Cifar10, "cifar100": Cifar100, "folder": Folder, "topics": Topics}


class PictureFiles(NamedTuple):
    """The files of both parts, each with the place of its class among the names in `classes`."""

    training: tuple[tuple[Path, int], ...]
    heldout: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]


@functools.lru_cache(maxsize=16)
def list_pictures(path: str, heldout: float) -> PictureFiles:
    """Classes are sub-folders, in the order of their names: of train/ and val/, or of `path` itself.

    Then the share `heldout` of each class is held out, spread evenly over the files as they are named: of 0.2 every
    fifth. Raises ConfigError where there are no folders, no pictures, or none in one of the parts.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError("data.path", path, "is no folder", "name the folder whose sub-folders are the classes")
    parts = [root / name for name in ("train", "val") if (root / name).is_dir()]
    if len(parts) == 1:
        missing = "val" if parts[0].name == "train" else "train"
        raise ConfigError("data.path", path, f"has {parts[0].name}/ and no {missing}/", "add it, or name the other")
    whole = [_classes_in(part) for part in parts or [root]]
    classes = tuple(whole[0])
    if len(classes) < 2:
        reason = f"{parts[0] if parts else root} has pictures (jpg, jpeg, png) in {len(classes)} sub-folders"
        raise ConfigError("data.path", path, reason, "name a folder with a sub-folder of pictures for each class")
    if unknown := [name for name in whole[-1] if name not in classes]:
        raise ConfigError(
            "data.path", path, f"val/{unknown[0]} is no class of train/", "give both the same sub-folders"
        )
    labelled = [[(file, classes.index(name)) for name, files in each.items() for file in files] for each in whole]
    if not parts:
        chosen = [is_held for files in whole[0].values() for is_held in _spread(len(files), heldout)]
        held = [entry for entry, is_held in zip(labelled[0], chosen, strict=True) if is_held]
        labelled = [[entry for entry, is_held in zip(labelled[0], chosen, strict=True) if not is_held], held]
    if not all(labelled):
        empty = "held out" if labelled[0] else "left to train with"
        raise ConfigError(
            "data.heldout", heldout, f"no picture of {path} is {empty}", "choose another share, or add val/"
        )
    return PictureFiles(tuple(labelled[0]), tuple(labelled[1]), classes)


def _classes_in(folder: Path) -> dict[str, list[Path]]:
    """The pictures in each sub-folder, or below it; those without any are left out."""
    found = {}
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        files = sorted(file for file in entry.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if files:
            found[entry.name] = files
    return found


def _spread(count: int, share: float) -> list[bool]:
    """Which of `count` are of a share of them, evenly spread."""
    return [int((place + 1) * share + 1e-9) > int(place * share + 1e-9) for place in range(count)]
