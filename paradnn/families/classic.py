"""The convolutional networks before residual ones: AlexNet, VGG-16 and GoogLeNet.

- `alexnet` (Krizhevsky et al. 2012) in Caffe's form: convolutions 2, 4 and 5 in two groups, response normalisation
  before the pooling, 227 pixels: 60,965,224 parameters. A group is a convolution of its own here, as on the two GPUs
  of the paper: not every engine knows grouped ones.
- `vgg16` (Simonyan and Zisserman 2014, configuration D): 138,357,544 parameters.
- `googlenet` (Szegedy et al. 2014, table 1), without the two auxiliary classifiers: 6,998,552 parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paradnn.core.layers import Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family
from paradnn.families.built import BuiltModel
from paradnn.families.images import Classifier, ImageModel, ImageNetwork

#: Filters of an inception module: 1x1; 3x3 and 5x5, each after a 1x1 that reduces the channels; 1x1
#: after a pooling. None: a pooling that halves the image.
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
# of response normalisation, as in Caffe's AlexNet and GoogLeNet
_DEPTH = 5
_ALPHA = 1e-4
_BETA = 0.75


class ClassicNetwork(ImageNetwork):
    """With biases and rectifiers in place of batch normalisation, and dense layers over all pixels."""

    def convolution(
        self, filters: int, kernel: int, stride: int = 1, padding: str = "same", groups: int = 1
    ) -> None:
        """A convolution, each of its groups over its part of the channels."""
        whole = self.x
        channels = self.channels
        first = not self.layers

        def group(number: int) -> None:
            self.channels = channels // groups
            if whole is not None and groups > 1:
                self.x = whole[..., number * self.channels : (number + 1) * self.channels]
            convolve = partial(self.convolve, activation="relu", kernel_initializer="he_normal")
            convolve(filters // groups, kernel, stride, padding=padding, bias=True, is_first=first)

        self.beside(*(partial(group, number) for number in range(groups)))

    def respond(self) -> None:
        """Local response normalisation over neighbouring channels (Krizhevsky et al. 2012, section
        3.3).
        """
        size = self.elements
        self.layers.append(
            Layer(f"response_{len(self.layers)}", read=size, written=size, kept=size)
        )
        if self.x is not None:
            from keras import ops

            squares = ops.pad(ops.square(self.x), [(0, 0)] * 3 + [(_DEPTH // 2, _DEPTH // 2)])
            window = sum(squares[..., first : first + self.channels] for first in range(_DEPTH))
            self.x = self.x / ops.power(1.0 + _ALPHA / _DEPTH * window, _BETA)

    def beside(self, *ways: Callable[[], None]) -> None:
        """Several ways from the same input, whose outputs are joined along the channels."""
        shape = self.shape
        x = self.x
        made = []
        joined = 0
        for way in ways:
            self.shape = shape
            self.x = x
            way()
            made.append(self.x)
            joined += self.channels
        self.channels = joined
        if x is not None and len(ways) > 1:
            from keras import layers

            self.x = layers.Concatenate()(made)

    def full(self) -> None:
        """All pixels into 4096 units with rectifier, and dropout of one half behind them."""
        self.layers.append(dense(f"dense_{len(self.layers)}", self.elements, 4096))
        self.shape = (1, 1, 4096)
        self.then("Flatten")
        self.then("Dense", 4096, activation="relu", kernel_initializer="he_normal")
        self.then("Dropout", 0.5)

    def logits(self, classes: int) -> None:
        """The dense layer that tells classes apart."""
        self.layers.append(dense("logits", self.channels, classes, is_last=True))
        self.then("Dense", classes)


@dataclass(frozen=True)
class Classic(Classifier):
    """A published network over square images, with one dense layer or three behind its
    convolutions.
    """

    name: str = "vgg16"

    def network(self, builds: bool = False) -> ImageNetwork:
        network = ClassicNetwork(self.image_size, builds=builds)
        {"alexnet": _alexnet, "vgg16": _vgg16, "googlenet": _googlenet}[self.name](network)
        network.logits(self.output_size)
        return network

    def build(self) -> BuiltModel:
        return ImageModel.build(self)


@dataclass(frozen=True)
class AlexNet(Classic):
    """AlexNet, whose first convolution leaves 55 x 55 places of 227 x 227 pixels."""

    name: str = "alexnet"
    image_size: int = option(
        227, "height and width of the image (Caffe: 227)", low=67, high=100_000
    )


def _alexnet(network: ClassicNetwork) -> None:
    network.convolution(96, 11, 4, "valid")
    network.respond()
    network.pool(3, 2, "valid")
    network.convolution(256, 5, groups=2)
    network.respond()
    network.pool(3, 2, "valid")
    network.convolution(384, 3)
    network.convolution(384, 3, groups=2)
    network.convolution(256, 3, groups=2)
    network.pool(3, 2, "valid")
    network.full()
    network.full()


def _vgg16(network: ClassicNetwork) -> None:
    for convolutions, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            network.convolution(filters, 3)
        network.pool(2, 2, "valid")
    network.full()
    network.full()


def _googlenet(network: ClassicNetwork) -> None:
    def reduced(narrow: int, filters: int, kernel: int) -> None:
        network.convolution(narrow, 1)
        network.convolution(filters, kernel)

    def pooled(filters: int) -> None:
        network.pool(3, 1)
        network.convolution(filters, 1)

    network.convolution(64, 7, 2)
    network.pool(3, 2)
    network.respond()
    network.convolution(64, 1)
    network.convolution(192, 3)
    network.respond()
    network.pool(3, 2)
    for module in _INCEPTIONS:
        if module is None:
            network.pool(3, 2)
            continue
        ones, narrow, threes, thin, fives, last = module
        network.beside(
            partial(network.convolution, ones, 1),
            partial(reduced, narrow, threes, 3),
            partial(reduced, thin, fives, 5),
            partial(pooled, last),
        )
    network.pool()
    network.then("Dropout", 0.4)


_SLOWLY = {
    "learning": {"learning_rate": 0.001}
}  # without normalisation they diverge at the paper's rate of 0.1
FAMILY = tuple(
    Family(name, options, "images", is_real=True, order=order, summary=words, defaults=_SLOWLY)
    for name, options, order, words in (
        (
            "alexnet",
            AlexNet,
            22,
            "AlexNet (Krizhevsky et al. 2012) in Caffe's form: two groups, 227 pixels.",
        ),
        (
            "vgg16",
            Classic,
            23,
            "VGG-16 (Simonyan and Zisserman 2014): 3x3 convolutions, three dense layers.",
        ),
        (
            "googlenet",
            Classic,
            24,
            "GoogLeNet (Szegedy et al. 2014): inception modules; no auxiliary classifiers.",
        ),
    )
)
