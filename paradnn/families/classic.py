"""The convolutional networks before residual ones: AlexNet, VGG-16 and GoogLeNet.

Each network is written once, as calls of the methods that `_Counted` and `_Drawn` have in common: the first notes what
its layers cost, the second makes them in Keras.

- `alexnet` (Krizhevsky et al. 2012) in Caffe's form: convolutions 2, 4 and 5 in two groups, response normalisation
  before the pooling, 227 pixels: 60,965,224 parameters. A group is a convolution of its own here, as on the two GPUs
  of the paper: not every engine knows grouped ones.
- `vgg16` (Simonyan and Zisserman 2014, configuration D): 138,357,544 parameters.
- `googlenet` (Szegedy et al. 2014, table 1), without the two auxiliary classifiers: 6,998,552 parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.layers import Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier, image_input
from paradnn.families.images import ImageNetwork

#: Filters of an inception module: 1x1; 3x3 and 5x5, each after a 1x1 that reduces the channels; 1x1 after a pooling.
#: None: a pooling that halves the image.
_INCEPTIONS: tuple[tuple[int, ...] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
_DEPTH, _ALPHA, _BETA = 5, 1e-4, 0.75  # of response normalisation, as in Caffe's AlexNet and GoogLeNet


class _Counted(ImageNetwork):
    """What the layers cost."""

    def convolution(self, filters: int, kernel: int, stride: int = 1, padding: str = "same", groups: int = 1) -> None:
        """A convolution with bias and rectifier."""
        channels = self.channels

        def group() -> None:
            self.channels = channels // groups
            self.convolve(filters // groups, kernel, stride, padding=padding, bias=True, is_first=not self.layers)

        self.beside(*[group] * groups)

    def largest(self, kernel: int, stride: int, padding: str = "same") -> None:
        """The largest of each window."""
        self.pool(kernel, stride, padding)

    def respond(self) -> None:
        """Local response normalisation over neighbouring channels (Krizhevsky et al. 2012, section 3.3)."""
        size = self.elements
        self.layers.append(Layer(f"response_{len(self.layers)}", read=size, written=size, kept=size))

    def beside(self, *ways: Callable[[], None]) -> None:
        """Several ways from the same input, whose outputs are joined along the channels."""
        shape, joined = self.shape, 0
        for way in ways:
            self.shape = shape
            way()
            joined += self.channels
        self.channels = joined

    def full(self, units: int, dropout: float) -> None:
        """All pixels into a dense layer with rectifier, and dropout behind it."""
        self.layers.append(dense(f"dense_{len(self.layers)}", self.elements, units))
        self.shape = (1, 1, units)

    def told(self, classes: int, dropout: float = 0.0) -> list[Layer]:
        """All layers, with the dense layer that tells classes apart."""
        return [*self.layers, dense("logits", self.channels, classes, is_last=True)]


class _Drawn:
    """The same layers in Keras; `x` is the last output."""

    def __init__(self, image_size: int) -> None:
        self.inputs = self.x = image_input(image_size)

    def convolution(self, filters: int, kernel: int, stride: int = 1, padding: str = "same", groups: int = 1) -> None:
        from keras import layers, ops

        parts = ops.split(self.x, groups, axis=-1) if groups > 1 else [self.x]
        settings = {"padding": padding, "activation": "relu", "kernel_initializer": "he_normal"}
        made = [layers.Conv2D(filters // groups, kernel, stride, **settings)(part) for part in parts]
        self.x = layers.Concatenate()(made) if groups > 1 else made[0]

    def largest(self, kernel: int, stride: int, padding: str = "same") -> None:
        from keras import layers

        self.x = layers.MaxPooling2D(kernel, stride, padding=padding)(self.x)

    def respond(self) -> None:
        from keras import ops

        reach, channels = _DEPTH // 2, self.x.shape[-1]
        squares = ops.pad(ops.square(self.x), [(0, 0)] * 3 + [(reach, reach)])
        window = sum(squares[..., first : first + channels] for first in range(_DEPTH))
        self.x = self.x / ops.power(1.0 + _ALPHA / _DEPTH * window, _BETA)

    def pool(self) -> None:
        """The mean of every channel."""
        from keras import layers

        self.x = layers.GlobalAveragePooling2D()(self.x)

    def beside(self, *ways: Callable[[], None]) -> None:
        from keras import layers

        before, made = self.x, []
        for way in ways:
            self.x = before
            way()
            made.append(self.x)
        self.x = layers.Concatenate()(made)

    def full(self, units: int, dropout: float) -> None:
        from keras import layers

        x = layers.Dense(units, activation="relu", kernel_initializer="he_normal")(layers.Flatten()(self.x))
        self.x = layers.Dropout(dropout)(x)

    def told(self, classes: int, dropout: float = 0.0) -> BuiltModel:
        from keras import layers

        x = layers.Dropout(dropout)(self.x) if dropout else self.x
        return classifier(self.inputs, layers.Dense(classes)(x), classes)


@dataclass(frozen=True)
class Classic(Model):
    """A published network over square images, with one dense layer or three behind its convolutions."""

    convolves: ClassVar[bool] = True
    shown: ClassVar[str] = "{image_size}px"

    name: str = "vgg16"
    image_size: int = option(224, "height and width of the image (papers: 224)", low=32, high=100_000)
    output_size: int = option(1000, "classes (papers: 1000)", low=2)

    def layer_list(self) -> list[Layer]:
        layers: list[Layer] = _NETWORKS[self.name](_Counted(self.image_size), self.output_size)
        return layers

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        built: BuiltModel = _NETWORKS[self.name](_Drawn(self.image_size), self.output_size)
        return built


@dataclass(frozen=True)
class AlexNet(Classic):
    """AlexNet, whose first convolution leaves 55 x 55 places of 227 x 227 pixels."""

    name: str = "alexnet"
    image_size: int = option(227, "height and width of the image (Caffe: 227)", low=67, high=100_000)


def _alexnet(network: Any, classes: int) -> Any:
    network.convolution(96, 11, 4, "valid")
    network.respond()
    network.largest(3, 2, "valid")
    network.convolution(256, 5, groups=2)
    network.respond()
    network.largest(3, 2, "valid")
    network.convolution(384, 3)
    network.convolution(384, 3, groups=2)
    network.convolution(256, 3, groups=2)
    network.largest(3, 2, "valid")
    network.full(4096, dropout=0.5)
    network.full(4096, dropout=0.5)
    return network.told(classes)


def _vgg16(network: Any, classes: int) -> Any:
    for convolutions, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            network.convolution(filters, 3)
        network.largest(2, 2, "valid")
    network.full(4096, dropout=0.5)
    network.full(4096, dropout=0.5)
    return network.told(classes)


def _googlenet(network: Any, classes: int) -> Any:
    def inception(ones: int, narrow: int, threes: int, thin: int, fives: int, pooled: int) -> None:
        network.beside(
            lambda: network.convolution(ones, 1),
            lambda: (network.convolution(narrow, 1), network.convolution(threes, 3)),
            lambda: (network.convolution(thin, 1), network.convolution(fives, 5)),
            lambda: (network.largest(3, 1), network.convolution(pooled, 1)),
        )

    network.convolution(64, 7, 2)
    network.largest(3, 2)
    network.respond()
    network.convolution(64, 1)
    network.convolution(192, 3)
    network.respond()
    network.largest(3, 2)
    for filters in _INCEPTIONS:
        if filters:
            inception(*filters)
        else:
            network.largest(3, 2)
    network.pool()
    return network.told(classes, dropout=0.4)


_NETWORKS: dict[str, Callable[[Any, int], Any]] = {"alexnet": _alexnet, "vgg16": _vgg16, "googlenet": _googlenet}
_SLOWLY = {"learning": {"learning_rate": 0.001}}  # without normalisation they diverge at the paper's rate of 0.1
FAMILY = tuple(
    Family(name, options, "images", is_real=True, place=place, words=words, chosen=_SLOWLY)
    for name, options, place, words in (
        ("alexnet", AlexNet, 22, "AlexNet (Krizhevsky et al. 2012) in Caffe's form: two groups, 227 pixels."),
        ("vgg16", Classic, 23, "VGG-16 (Simonyan and Zisserman 2014): 3x3 convolutions, three dense layers."),
        ("googlenet", Classic, 24, "GoogLeNet (Szegedy et al. 2014): inception modules; no auxiliary classifiers."),
    )
)
