"""Convolutional networks that precede residual networks: AlexNet, VGG and GoogLeNet.

- `alexnet` (Krizhevsky et al. 2012) in Caffe's form: convolutions 2, 4 and 5 have two groups,
  response normalization comes before pooling, and images have 227 x 227 pixels. It has 60,965,224
  parameters. Each group is a separate convolution, as on the two GPUs of the paper, because not
  every engine supports grouped convolutions.
- `vgg16` and `vgg19` (Simonyan and Zisserman 2014, configurations D and E) have 138,357,544 and
  143,667,240 parameters.
- `googlenet` (Szegedy et al. 2014, table 1) without the two auxiliary classifiers has 6,998,552
  parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from paradnn.core.layers import Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family
from paradnn.families.images import Classifier, ImageNetwork


@dataclass(frozen=True)
class _Inception:
    """Filters of the convolutions of an inception module.

    Attributes:
        ones: Filters of the 1x1 convolution.
        reduce_threes: Filters of the 1x1 convolution before the 3x3 convolution.
        threes: Filters of the 3x3 convolution.
        reduce_fives: Filters of the 1x1 convolution before the 5x5 convolution.
        fives: Filters of the 5x5 convolution.
        after_pooling: Filters of the 1x1 convolution after the max pooling.
    """

    ones: int
    reduce_threes: int
    threes: int
    reduce_fives: int
    fives: int
    after_pooling: int


#: Groups of inception modules. Between two groups, pooling halves the height and width.
_INCEPTION_GROUPS = (
    (
        _Inception(64, 96, 128, 16, 32, 32),
        _Inception(128, 128, 192, 32, 96, 64),
    ),
    (
        _Inception(192, 96, 208, 16, 48, 64),
        _Inception(160, 112, 224, 24, 64, 64),
        _Inception(128, 128, 256, 24, 64, 64),
        _Inception(112, 144, 288, 32, 64, 64),
        _Inception(256, 160, 320, 32, 128, 128),
    ),
    (
        _Inception(256, 160, 320, 32, 128, 128),
        _Inception(384, 192, 384, 48, 128, 128),
    ),
)
# Local response normalization, as in Caffe's AlexNet and GoogLeNet.
_RESPONSE_DEPTH = 5
_RESPONSE_ALPHA = 1e-4
_RESPONSE_BETA = 0.75


class ClassicNetwork(ImageNetwork):
    """A network of convolutions with biases and rectifiers, without batch normalization."""

    def convolution(
        self, filters: int, kernel: int, stride: int = 1, padding: str = "same", groups: int = 1
    ) -> None:
        """Add a convolution with bias and rectifier.

        Args:
            filters: Total output channels of all groups.
            kernel: Height and width of the window.
            stride: Distance between windows, in pixels.
            padding: Rule for adding zeros, "same" or "valid"; see `conv_output_length`.
            groups: Number of groups. Each group reads an equal part of the input channels.
        """
        whole_input = self.x
        channels = self.channels
        is_first = not self.layers

        def add_group(number: int) -> None:
            self.channels = channels // groups
            if whole_input is not None and groups > 1:
                self.x = whole_input[..., number * self.channels : (number + 1) * self.channels]
            self.convolve(
                filters // groups,
                kernel,
                stride,
                padding=padding,
                bias=True,
                is_first=is_first,
                activation="relu",
                kernel_initializer="he_normal",
            )

        self.add_branches(*(partial(add_group, number) for number in range(groups)))

    def normalize_response(self) -> None:
        """Add local response normalization over 5 neighboring channels.

        The formula is in Krizhevsky et al. 2012, section 3.3; the constants are those of Caffe.
        """
        size = self.elements
        self.layers.append(
            Layer(f"response_{len(self.layers)}", read=size, written=size, kept=size)
        )
        if self.x is not None:
            from keras import ops

            margin = _RESPONSE_DEPTH // 2
            squares = ops.pad(ops.square(self.x), [(0, 0), (0, 0), (0, 0), (margin, margin)])
            window = sum(
                squares[..., first : first + self.channels] for first in range(_RESPONSE_DEPTH)
            )
            scale = 1.0 + _RESPONSE_ALPHA / _RESPONSE_DEPTH * window
            self.x = self.x / ops.power(scale, _RESPONSE_BETA)

    def add_dense(self) -> None:
        """Add a dense layer of 4096 units over the flattened input, a rectifier and dropout 0.5."""
        self.layers.append(dense(f"dense_{len(self.layers)}", self.elements, 4096))
        self.shape = (1, 1, 4096)
        self.add_layer("Flatten")
        self.add_layer("Dense", 4096, activation="relu", kernel_initializer="he_normal")
        self.add_layer("Dropout", 0.5)

    def add_logits(self, classes: int) -> None:
        """Add the dense layer that computes the logits.

        Args:
            classes: Number of logits.
        """
        self.layers.append(dense("logits", self.channels, classes, is_last=True))
        self.add_layer("Dense", classes)


@dataclass(frozen=True)
class ClassicClassifier(Classifier):
    """A published network over square images: convolutions, then one or three dense layers."""

    name: str = "vgg16"

    def network(self, builds: bool = False) -> ImageNetwork:
        network = ClassicNetwork(self.image_size, builds=builds)
        add_body = _BODIES[self.name]
        add_body(network)
        network.add_logits(self.output_size)
        return network


@dataclass(frozen=True)
class AlexNet(ClassicClassifier):
    """AlexNet. Its first convolution reduces 227 x 227 pixels to 55 x 55."""

    name: str = "alexnet"
    image_size: int = option(
        227, "height and width of the image (Caffe: 227)", low=67, high=100_000
    )


def _alexnet(network: ClassicNetwork) -> None:
    network.convolution(96, 11, 4, "valid")
    network.normalize_response()
    network.pool(3, 2, "valid")
    network.convolution(256, 5, groups=2)
    network.normalize_response()
    network.pool(3, 2, "valid")
    network.convolution(384, 3)
    network.convolution(384, 3, groups=2)
    network.convolution(256, 3, groups=2)
    network.pool(3, 2, "valid")
    network.add_dense()
    network.add_dense()


def _vgg(network: ClassicNetwork, convolutions: Sequence[int]) -> None:
    """Add groups of 3x3 convolutions and two dense layers.

    Args:
        network: The network to which the layers are added.
        convolutions: Number of convolutions in each group.
    """
    for count, filters in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            network.convolution(filters, 3)
        network.pool(2, 2, "valid")
    network.add_dense()
    network.add_dense()


def _googlenet(network: ClassicNetwork) -> None:
    network.convolution(64, 7, 2)
    network.pool(3, 2)
    network.normalize_response()
    network.convolution(64, 1)
    network.convolution(192, 3)
    network.normalize_response()
    network.pool(3, 2)
    for number, modules in enumerate(_INCEPTION_GROUPS):
        if number:
            network.pool(3, 2)
        for module in modules:
            _add_inception(network, module)
    network.pool()  # global average pooling
    network.add_layer("Dropout", 0.4)


def _add_inception(network: ClassicNetwork, module: _Inception) -> None:
    """Add the four branches of an inception module.

    Args:
        network: The network to which the layers are added.
        module: Number of filters of each convolution.
    """

    def threes() -> None:
        network.convolution(module.reduce_threes, 1)
        network.convolution(module.threes, 3)

    def fives() -> None:
        network.convolution(module.reduce_fives, 1)
        network.convolution(module.fives, 5)

    def pooled() -> None:
        network.pool(3, 1)
        network.convolution(module.after_pooling, 1)

    network.add_branches(partial(network.convolution, module.ones, 1), threes, fives, pooled)


#: Name of a model -> function that adds all layers before the logits.
_BODIES: dict[str, Callable[[ClassicNetwork], None]] = {
    "alexnet": _alexnet,
    "vgg16": partial(_vgg, convolutions=(2, 2, 3, 3, 3)),
    "vgg19": partial(_vgg, convolutions=(2, 2, 4, 4, 4)),
    "googlenet": _googlenet,
}
#: These networks have no batch normalization, so they diverge at the learning rate of the ParaDnn
#: paper, 0.1.
_SLOW_LEARNING = {"learning": {"learning_rate": 0.001}}
FAMILY = (
    Family(
        "alexnet",
        AlexNet,
        "images",
        is_real=True,
        order=22,
        summary="AlexNet (Krizhevsky et al. 2012) in Caffe's form: two groups, 227 pixels.",
        defaults=_SLOW_LEARNING,
    ),
    Family(
        "vgg16",
        ClassicClassifier,
        "images",
        is_real=True,
        order=23,
        summary="VGG-16 (Simonyan and Zisserman 2014): 3x3 convolutions, three dense layers.",
        defaults=_SLOW_LEARNING,
    ),
    Family(
        "vgg19",
        ClassicClassifier,
        "images",
        is_real=True,
        order=25,
        summary="VGG-19 (Simonyan and Zisserman 2014): VGG-16 with three more convolutions.",
        defaults=_SLOW_LEARNING,
    ),
    Family(
        "googlenet",
        ClassicClassifier,
        "images",
        is_real=True,
        order=24,
        summary="GoogLeNet (Szegedy et al. 2014): inception modules; no auxiliary classifiers.",
        defaults=_SLOW_LEARNING,
    ),
)
