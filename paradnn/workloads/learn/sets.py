"""Sets to learn from (`data=...` of `task=learn`), typed, and what a model must be to learn from one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from paradnn.config.data import Input
from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import FAMILIES


class Counts(NamedTuple):
    """Examples to train with and to judge with, and the classes that they are in."""

    training: int
    heldout: int
    classes: int


def input_width(model: Any) -> int:
    """Numbers of an example; 0 where the model does not say."""
    return math.prod(model.input_shape) if model.is_counted else int(getattr(model, "input_size", 0))


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

    pixels: ClassVar[int]
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


#: By name: `task=learn` needs one, and no other task takes any.
SETS: dict[str, type[Arrays]] = {"digits": Digits, "generated": Generated, "cifar10": Cifar10, "cifar100": Cifar100}
