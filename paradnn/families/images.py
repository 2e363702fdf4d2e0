"""Networks over images.

`residual` and `bottleneck` (paper, section 2.1; He et al. 2016): the stride of a bottleneck block
sits on its 3x3 convolution, and a projection replaces the shortcut where the shape changes, as in
the common ResNet-50 ("v1.5"): blocks 3,4,6,3 with 64 filters and 1000 classes have its 25,557,032
parameters. Three groups are the form for small images (section 4.2): a 3x3 convolution as stem, no
pooling, and shortcuts without parameters. Blocks 9,9,9 with 16 filters are ResNet-56.

ResNet-50 (stride on a block's first convolution, biases), DenseNet-121 and MobileNet are those of
`keras.applications`, without weights. SqueezeNet 1.0 (Iandola et al. 2016) is as published, but for
the rectifier on the last convolution, whose mean is the logits: it dies within a few steps, and
then nothing is trained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from paradnn.core.layers import Convolve, Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier, image_input

#: Settings of batch normalisation where a published network does not fix them.
_NORMAL = {"momentum": 0.9, "epsilon": 1e-5}
_SQUEEZED = (16, 16, 32, 32, 48, 48, 64, 64)
_SEPARABLE = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


def conv_output_length(size: int, kernel: int, stride: int, padding: str) -> int:
    """How many places a window of `kernel` has along `size`; `padding` is same (as many zeros as
    give ceil(size / stride)), valid (none), end (one zero at the end, as in Keras' MobileNet) or
    whole (zeros until the last window is full: Caffe).
    """
    if padding == "same":
        return -(-size // stride)
    return (size + {"valid": 0, "end": 1, "whole": stride - 1}[padding] - kernel) // stride + 1


class ImageNetwork:
    """A network over images, written once: its layers so far with what they cost, the shape of the
    last output, and with `builds` the Keras model of square images beside them, of which `x` is the
    last output. Padding, concatenation, dropout and repetition of pixels move nothing of their own:
    the layer beside can do it on the way.
    """

    def __init__(
        self, height: int, width: int | None = None, channels: int = 3, builds: bool = False
    ) -> None:
        self.height = height
        self.width = width or height
        self.channels = channels
        self.layers: list[Layer] = []
        self.inputs = self.x = image_input(height) if builds else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the last output: height, width, channels."""
        return self.height, self.width, self.channels

    @shape.setter
    def shape(self, shape: tuple[int, int, int]) -> None:
        self.height, self.width, self.channels = shape

    @property
    def elements(self) -> int:
        """Of the last output, per example."""
        return self.height * self.width * self.channels

    def then(self, layer: str, *arguments: Any, beside: Any = None, **options: Any) -> None:
        """Put a layer of Keras behind the last output, and behind another one `beside` it, where
        the model is built.
        """
        if self.x is not None:
            from keras import layers

            made = getattr(layers, layer)(*arguments, **options)
            self.x = made(self.x if beside is None else [beside, self.x])

    def convolve(
        self,
        filters: int | None,
        kernel: int,
        stride: int = 1,
        *,
        padding: str = "same",
        bias: bool = False,
        added: int = 0,
        is_kept: bool = True,
        is_first: bool = False,
        **options: Any,
    ) -> None:
        """Convolution, with its bias and rectifier where it has them; `filters` None: one for each
        channel (depthwise); `added`: elements that are added to the output; `is_kept` is false
        before what needs the output not again, such as an average; `options` are those of Keras'
        layer.
        """
        read, (high, wide, channels) = self.elements + added, self.shape
        height, width = (conv_output_length(size, kernel, stride, padding) for size in (high, wide))
        outputs = channels if filters is None else filters
        # As many zeros on both sides: with a stride the framework's own may be shifted by one, of
        # the same output.
        sides = (kernel - 1) // 2 if padding == "same" else 0
        product = Convolve(
            channels, high, wide, outputs, (kernel,) * 2, (stride,) * 2, (sides,) * 2
        )
        weights = kernel * kernel * (1 if filters is None else channels) * outputs
        self.shape = (height, width, outputs)
        self.layers.append(
            Layer(
                f"convolution_{len(self.layers)}",
                macs=weights * height * width,
                input_macs=0 if is_first else None,
                parameters=weights + (outputs if bias else 0),
                weights=0 if is_first else weights,
                read=read,
                written=self.elements,
                kept=self.elements if is_kept else 0,
                is_first=is_first,
                products=() if filters is None else (product,),
            )
        )
        self.then("Conv2D", outputs, kernel, stride, padding=padding, use_bias=bias, **options)

    def normalize(self, shortcut: int = 0, normalisations: int = 1, beside: Any = None) -> None:
        """Batch normalisation with its rectifier; at a block's end also of a projection, and the
        addition of `shortcut` elements (`beside`). Its output is not kept: a compiler may compute
        it again from its inputs.
        """
        parameters = normalisations * 2 * self.channels
        self.layers.append(
            Layer(
                f"normalisation_{len(self.layers)}",
                parameters=parameters,
                fixed_parameters=parameters,
                weights=parameters // 2,  # scales; the offsets are added
                read=self.elements + shortcut,
                written=self.elements,
            )
        )
        self.then("BatchNormalization", **_NORMAL)
        if shortcut:
            self.then("Add", beside=beside)
        self.then("ReLU")

    def pool(
        self, kernel: int = 0, stride: int = 1, padding: str = "same", is_last: bool = False
    ) -> None:
        """The largest or the mean of every window; without a kernel the mean of every channel."""
        name = f"pool_{len(self.layers)}"
        read = self.elements
        sizes = (self.height, self.width)
        self.height, self.width = (
            conv_output_length(size, kernel, stride, padding) if kernel else 1 for size in sizes
        )
        made = self.elements
        self.layers.append(
            Layer(name, read=read, written=made, kept=made, is_last=is_last, targets=int(is_last))
        )
        if not kernel:
            self.then("GlobalAveragePooling2D")
            return
        # Where the last window is not full, zeros fill it, below any rectifier's output.
        short = tuple((0, -(size - kernel) % stride) for size in sizes)
        if padding == "whole" and any(map(any, short)):
            self.then("ZeroPadding2D", short)
        self.then("MaxPooling2D", kernel, stride, padding="same" if padding == "same" else "valid")

    def stem(
        self, filters: int, kernel: int, stride: int, *, bias: bool = False, pools: bool = True
    ) -> None:
        """The first convolution, normalised, and a pooling that halves its output."""
        self.convolve(filters, kernel, stride, bias=bias, is_first=True)
        self.normalize()
        if pools:
            self.pool(3, 2)

    def classify(self, classes: int) -> None:
        """The mean of every channel, and a dense layer that tells classes apart from it."""
        self.pool()
        self.layers.append(dense("logits", self.channels, classes, is_last=True))
        self.then("Dense", classes)


def residual_block(
    network: ImageNetwork,
    convolutions: Sequence[tuple[int, int, int]],
    *,
    bias: bool = False,
    projects: bool = True,
) -> None:
    """Convolutions (filters, kernel, stride), each normalised, and a projection where the shape
    changes; without one (`projects`) the block's input is added at the places of its output, zeros
    for channels that are new.
    """
    x = network.x
    shape = network.shape
    output = convolutions[-1][0]
    stride = max(stride for _, _, stride in convolutions)
    projected = projects and (network.channels != output or stride != 1)
    for index, (filters, kernel, step) in enumerate(convolutions):
        if index:
            network.normalize()
        network.convolve(filters, kernel, step, bias=bias)
    if projected:
        added = network.elements
    else:
        added = network.elements * shape[2] // network.channels
    if projected:
        network.shape, network.x, last = shape, x, network.x
        network.convolve(output, 1, stride, bias=bias)
        network.then("BatchNormalization", **_NORMAL)
        x = network.x
        network.x = last
    elif x is not None and not projects:
        from keras import ops

        x = x[:, ::stride, ::stride, :]
        if shape[2] == output:
            x = x
        else:
            x = ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, output - shape[2])])
    network.normalize(added, 2 if projected else 1, x)


def widths(blocks: Sequence[int], filters: int) -> Iterator[tuple[int, int]]:
    """Of each block of groups of so many: filters, doubled in each group, and stride."""
    for group, count in enumerate(blocks):
        for index in range(count):
            yield filters * 2**group, 2 if group > 0 and index == 0 else 1


class ImageModel(Model):
    """What tells the classes of square images apart, from the one description of its layers."""

    convolves: ClassVar[bool] = True
    output_size: int

    def network(self, builds: bool = False) -> ImageNetwork:
        """The network with all its layers; in Keras too where it `builds`."""
        raise NotImplementedError

    def layer_list(self) -> list[Layer]:
        return self.network().layers

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        network = self.network(builds=True)
        return classifier(network.inputs, network.x, self.output_size)


@dataclass(frozen=True)
class Convolutional(ImageModel):
    """A residual network: four groups of blocks (residual: of two convolutions, bottleneck: of
    three), whose filters double in each group. blocks is one number, or four, one for each group.
    """

    name: str = "residual"
    blocks: tuple[int, ...] = option(
        (1, 1, 1, 1),
        "blocks in each of the four groups: one number, or four (paper: 1..8); three: the form for small images",
        low=1,
        high=1000,
        length=4,
        or_length=3,
    )
    filters: int = option(
        16, "filters of the first group; doubled in each that follows (paper: 16..64)", low=1
    )
    image_size: int = option(
        200, "height and width of the image (paper: 200..300)", low=8, high=100_000
    )
    output_size: int = option(500, "classes (paper: 500..1500)", low=2)

    @property
    def size(self) -> str:
        same = len(set(self.blocks)) == 1 and len(self.blocks) == 4
        if same:
            count = str(self.blocks[0])
        else:
            count = "-".join(map(str, self.blocks))
        return f"{count}x{self.filters} {self.image_size}px"

    @property
    def is_small(self) -> bool:
        """Whether it has the form for small images."""
        return len(self.blocks) == 3

    @property
    def stem(self) -> tuple[int, int, int]:
        """Filters, kernel and stride of the first convolution."""
        return (self.filters, 3, 1) if self.is_small else (self.filters, 7, 2)

    def convolutions(self) -> Iterator[list[tuple[int, int, int]]]:
        """Filters, kernel and stride of each convolution of each block."""
        for width, stride in widths(self.blocks, self.filters):
            if self.name == "residual":
                yield [(width, 3, stride), (width, 3, 1)]
            else:
                yield [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]

    def network(self, builds: bool = False) -> ImageNetwork:
        network = ImageNetwork(self.image_size, builds=builds)
        network.stem(*self.stem, pools=not self.is_small)
        for convolutions in self.convolutions():
            residual_block(network, convolutions, projects=not self.is_small)
        network.classify(self.output_size)
        return network


@dataclass(frozen=True)
class Classifier(ImageModel):
    """A published network over square images; what the papers fix, such as depth and width, is
    fixed here.
    """

    size_template: ClassVar[str] = "{image_size}px"

    name: str = "resnet50"
    image_size: int = option(
        224, "height and width of the image (papers: 224)", low=32, high=100_000
    )
    output_size: int = option(1000, "classes (papers: 1000)", low=2)

    def network(self, builds: bool = False) -> ImageNetwork:
        network = ImageNetwork(self.image_size, builds=builds)
        if self.name == "squeezenet":
            _squeezenet(network, self.output_size)
        else:
            (resnet50 if self.name == "resnet50" else _densenet121)(network)
            network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        applications = {"resnet50": "ResNet50", "densenet121": "DenseNet121"}
        if self.name in applications:
            return _application(applications[self.name], self)
        return super().build()


@dataclass(frozen=True)
class MobileNet(ImageModel):
    """Depthwise separable convolutions, every layer `alpha` times as wide as published (Howard et
    al. 2017).
    """

    is_depthwise: ClassVar[bool] = True
    size_template: ClassVar[str] = "{alpha:g}x {image_size}px"

    name: str = "mobilenet"
    alpha: float = option(1.0, "width multiplier (paper: 0.25, 0.5, 0.75, 1)", low=0.1, high=100)
    image_size: int = option(
        224, "height and width of the image (paper: 128..224)", low=32, high=100_000
    )
    output_size: int = option(1000, "classes (paper: 1000)", low=2)

    def network(self, builds: bool = False) -> ImageNetwork:
        network = ImageNetwork(self.image_size)
        previous = 64
        network.stem(int(32 * self.alpha), 3, 2, pools=False)
        for filters in _SEPARABLE:
            shrinks = filters != previous
            network.convolve(None, 3, 2 if shrinks else 1, padding="end" if shrinks else "same")
            network.normalize()
            network.convolve(int(filters * self.alpha), 1)
            network.normalize()
            previous = filters
        network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        return _application("MobileNet", self, alpha=self.alpha)


def resnet50(network: ImageNetwork) -> list[tuple[int, int, int]]:
    """Stem and four groups of blocks; returns the shape of each group's output."""
    network.stem(64, 7, 2, bias=True)
    outputs = []
    for width, stride in widths((3, 4, 6, 3), 64):
        outputs += [network.shape] if stride == 2 else []
        residual_block(network, [(width, 1, stride), (width, 3, 1), (4 * width, 1, 1)], bias=True)
    return [*outputs, network.shape]


def _densenet121(network: ImageNetwork) -> None:
    """Each layer normalises all features before it and adds 32; halved between four blocks."""
    network.stem(64, 7, 2)
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            network.convolve(network.channels // 2, 1, is_kept=False)
            network.pool(2, 2, "valid")
        for _ in range(count):
            features = network.channels
            network.normalize()
            network.convolve(128, 1)
            network.normalize()
            network.convolve(32, 3)
            network.channels = features + 32
        network.normalize()


def _squeezenet(network: ImageNetwork, classes: int) -> None:
    """Eight fire modules of a squeezing 1x1 and expanding 1x1 and 3x3 convolutions, all with bias."""
    convolve = partial(
        network.convolve, bias=True, activation="relu", kernel_initializer="he_normal"
    )
    convolve(96, 7, 2, padding="valid", is_first=True)
    network.pool(3, 2, "whole")
    for index, squeezed in enumerate(_SQUEEZED):
        convolve(squeezed, 1)
        shape = network.shape
        x = network.x
        convolve(4 * squeezed, 1)
        network.shape, network.x, narrow = shape, x, network.x
        convolve(4 * squeezed, 3)
        network.then("Concatenate", beside=narrow)
        network.channels = 8 * squeezed
        if index in (2, 6):
            network.pool(3, 2, "whole")
    network.then("Dropout", 0.5)
    normal = {"class_name": "RandomNormal", "config": {"stddev": 0.01}}
    network.convolve(classes, 1, bias=True, is_kept=False, kernel_initializer=normal)
    network.pool(is_last=True)


def _application(name: str, model: Classifier | MobileNet, **options: Any) -> BuiltModel:
    """A network of `keras.applications`."""
    from keras import applications

    inputs = image_input(model.image_size)
    options |= {"weights": None, "classes": model.output_size, "classifier_activation": None}
    network = getattr(applications, name)(input_tensor=inputs, **options)
    return classifier(inputs, network.output, model.output_size)


_SWEPT = ("filters", "blocks", "image_size")
_SWEEP = "model.filters=16,32,64 batch_size=16,32,64"
_RESNET = "ResNet-50 of keras.applications (He et al. 2016); v1.5: model=bottleneck."
_SLOWLY = {"learning": {"learning_rate": 0.001}}  # it diverges at the paper's rate of 0.1
FAMILY = (
    Family("residual", Convolutional, "images", _SWEPT, _SWEEP, order=1),
    Family("bottleneck", Convolutional, "images", _SWEPT, _SWEEP, order=2),
    *(
        Family(name, options, "images", is_real=True, order=order, summary=words, defaults=chosen)
        for name, options, order, words, chosen in (
            ("resnet50", Classifier, 8, _RESNET, {}),
            (
                "densenet121",
                Classifier,
                9,
                "DenseNet-121 of keras.applications (Huang et al. 2017).",
                {},
            ),
            (
                "mobilenet",
                MobileNet,
                10,
                "MobileNet of keras.applications (Howard et al. 2017); alpha widens it.",
                {},
            ),
            (
                "squeezenet",
                Classifier,
                11,
                "SqueezeNet 1.0 (Iandola et al. 2016): fire modules.",
                _SLOWLY,
            ),
        )
    ),
)
