"""The keys of every input, typed: `INPUTS` names what `data=...` can be, and what a model must be to take it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from paradnn.config.families import FAMILIES
from paradnn.config.fields import option
from paradnn.errors import ConfigError

__all__ = [
    "INPUTS",
    "SETS",
    "Arrays",
    "Cifar10",
    "Cifar100",
    "Data",
    "Digits",
    "Generated",
    "Images",
    "Mnist",
    "Synthetic",
    "Text",
    "check_input",
    "with_whole_path",
]

_THREADS = "parallel calls of a stage, and threads that they have in all; null: every core, calls tuned by tf.data"
_READERS = "files read at once"
_PREFETCH = "batches made ahead of the step"


@dataclass(frozen=True)
class Synthetic:
    """One random batch, on the device before timing starts."""

    name: str = option("synthetic", "one random batch, on the device", choices=("synthetic",))


@dataclass(frozen=True)
class Images:
    """Pictures read, decoded, cropped, flipped, resized, normalised and batched while the step runs."""

    name: str = option("images", "pictures through tf.data", choices=("images",))
    path: str | None = option(
        None, "TFRecords as of ImageNet, or a folder of jpg, jpeg, png, a sub-folder a class; null: a generated set"
    )
    threads: int | None = option(None, _THREADS, low=1, high=4096)
    readers: int = option(4, _READERS, low=1, high=4096)
    shuffle: int = option(1024, "undecoded pictures among which the next is drawn; 1: the order of the files", low=1)
    prefetch: int = option(2, _PREFETCH, low=0, high=4096)
    cache: str = option(
        "none",
        "what is kept in memory after it was read: none, encoded (files' bytes) or decoded (whole pictures)",
        choices=("none", "encoded", "decoded"),
    )
    augment: bool = option(True, "crop and flip at random, as in training; false: the central 87.5%")
    max_damaged: int = option(100, "pictures that cannot be decoded and are skipped; one more ends the point", low=0)
    examples: int = option(256, "pictures of the generated set", low=1, high=10_000_000)
    width: int = option(500, "their mean width (ImageNet: about 500)", low=16, high=20_000)
    height: int = option(375, "their mean height (ImageNet: about 375)", low=16, high=20_000)


@dataclass(frozen=True)
class Text:
    """Text read, tokenised, cut into windows and batched while the step runs."""

    name: str = option("text", "token sequences through tf.data", choices=("text",))
    path: str | None = option(None, "a UTF-8 file, or a folder of them; null: a generated text of Zipf's law")
    tokens: str = option(
        "words", "words: hashed into the vocabulary; bytes: their values modulo it", choices=("words", "bytes")
    )
    threads: int | None = option(None, _THREADS, low=1, high=4096)
    readers: int = option(4, _READERS, low=1, high=4096)
    shuffle: int = option(1024, "sequences among which the next is drawn; 1: the order of the text", low=1)
    prefetch: int = option(2, _PREFETCH, low=0, high=4096)
    cache: str = option("none", "what is kept in memory after it was read: none, or text", choices=("none", "text"))
    megabytes: int = option(8, "size of the generated text", low=1, high=100_000)


class Counts(NamedTuple):
    """Examples to train with and to judge with, and the classes that they are in."""

    training: int
    heldout: int
    classes: int


class Arrays(ABC):
    """A set to learn from (`task=learn`), which is held in memory."""

    name: str

    @abstractmethod
    def counts(self) -> Counts:
        """How many examples there are."""

    def check(self, model: Any) -> None:
        """ConfigError where `model`, the options of a family, cannot take these examples."""
        classes, given = self.counts().classes, getattr(model, "output_size", None)
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

    def counts(self) -> Counts:
        """As the keys say."""
        return Counts(self.training, self.heldout, self.classes)

    def check(self, model: Any) -> None:
        """As `Arrays.check`; each class takes a direction of its own."""
        super().check(model)
        if FAMILIES[model.name].data != "vectors":
            raise ConfigError("data", self.name, f"model={model.name} takes no vectors", "choose model=fc")
        if model.input_size < self.classes:
            reason = f"is less than data.classes={self.classes}"
            raise ConfigError("model.input_size", model.input_size, reason, "choose a larger one")
        if not 1 / self.classes < self.best < 1:
            reason = f"is not between the chance of a guess, {1 / self.classes:g}, and 1"
            raise ConfigError("data.best", self.best, reason, "choose another one")


class Pictures(Arrays):
    """A set of square pictures, `pixels` high and wide, in so many `channels`."""

    pixels: ClassVar[int]
    channels: ClassVar[int]
    known: ClassVar[Counts]

    def counts(self) -> Counts:
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


Data = Synthetic | Images | Text | Digits | Generated | Mnist | Cifar10 | Cifar100
#: Sets to learn from: `task=learn` needs one, and no other task takes any.
SETS: dict[str, type[Data]] = {"digits": Digits, "generated": Generated}
SETS |= {"mnist": Mnist, "cifar10": Cifar10, "cifar100": Cifar100}
INPUTS: dict[str, type[Data]] = {"synthetic": Synthetic, "images": Images, "text": Text, **SETS}


def with_whole_path(data: Data) -> Data:
    """`data` with the path that it has wherever it is read: workers have a working directory of their own."""
    if (path := getattr(data, "path", None)) is None:
        return data
    whole: Any = {"path": str(Path(path).expanduser().absolute())}
    return replace(data, **whole)


def check_input(data: Data, model: Any, devices: int) -> None:
    """ConfigError where `model`, the options of a family, or several devices cannot take `data`."""
    if isinstance(data, Synthetic | Arrays):  # what a model must be to learn from a set: `config.learn.check_learn`
        return
    needed = "images" if isinstance(data, Images) else "tokens"
    if FAMILIES[model.name].data != needed:
        raise ConfigError(
            "data", data.name, f"model={model.name} takes no {needed}", "choose another model, or data=synthetic"
        )
    if devices > 1:
        raise ConfigError(
            "data", data.name, f"is for one device, and this point has {devices}", "use devices=1 or data=synthetic"
        )
