"""Convolutional networks over square images.

`residual` and `bottleneck` follow the ParaDnn paper, section 2.1, and He et al. (2016). They have a
stem (7x7 convolution of stride 2, 3x3 max pooling of stride 2), four groups of blocks whose filters
double from group to group, global average pooling, and a dense classifier. As in the common
ResNet-50 ("v1.5"), the 3x3 convolution of a bottleneck block has the stride, and a projection
replaces the shortcut where the shape changes. With blocks 3,4,6,3, 64 filters and 1000 classes,
`bottleneck` is this ResNet-50, with 25,557,032 parameters.

Three groups of blocks select the form for small images (He et al., section 4.2). Its stem is a 3x3
convolution without pooling. Shortcuts have no parameters: between two groups, they keep every
second pixel and fill new channels with zeros. With blocks 9,9,9 and 16 filters, `residual` is
ResNet-56.

ResNet-50, ResNet-152, DenseNet-121 and MobileNet are the networks of `keras.applications` with
random weights. In these ResNets, the first convolution of a block has the stride, and convolutions
have biases. SqueezeNet 1.0 (Iandola et al. 2016) is as published, with one exception: the last
convolution, whose spatial means are the logits, has no rectifier. With a rectifier, its outputs
become zero within a few steps, and training stops.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from paradnn.core.layers import Convolve, Layer, dense
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier, image_input

#: Settings of batch normalization in networks whose publication does not state them.
_BATCH_NORMALIZATION = {"momentum": 0.9, "epsilon": 1e-5}
#: Filters of the squeezing convolution of SqueezeNet's fire modules.
_SQUEEZE_FILTERS = (16, 16, 32, 32, 48, 48, 64, 64)
#: Number of blocks in each group of the ResNets of `keras.applications`.
_RESNET_BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}
#: Network -> function of `keras.applications` that builds it.
_APPLICATIONS = {
    "resnet50": "ResNet50",
    "resnet152": "ResNet152",
    "densenet121": "DenseNet121",
}
#: Filters of MobileNet's depthwise separable convolutions.
_SEPARABLE_FILTERS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


def conv_output_length(size: int, kernel: int, stride: int, padding: str) -> int:
    """Return the output length of a convolution or pooling along one axis.

    Args:
        size: Length of the input, in pixels.
        kernel: Length of the window.
        stride: Distance between windows.
        padding: Rule for adding zeros. "same": the output has ceil(size / stride) pixels. "valid":
            no zeros. "end": one zero at the end, as in Keras' MobileNet. "whole": zeros at the end
            fill the last window, as in Caffe.
    """
    if padding == "same":
        return math.ceil(size / stride)
    zeros = {"valid": 0, "end": 1, "whole": stride - 1}[padding]
    return (size + zeros - kernel) // stride + 1


class ImageNetwork:
    """Builds a network over images and its analytic costs from one description.

    Padding, concatenation, dropout and the repetition of pixels add no memory traffic. The layer
    that writes or reads the tensor can perform them in the same pass.

    Args:
        height: Height of the input.
        width: Width of the input; by default `height`.
        channels: Channels of the input.
        builds: Whether to build the Keras model, too, whose images are square: `height` x `height`.

    Attributes:
        layers: The layers added so far, with their costs.
        height: Height of the last output.
        width: Width of the last output.
        channels: Channels of the last output.
        inputs: Input of the Keras model; None if only costs are computed.
        x: Last output of the Keras model; None if only costs are computed.
    """

    def __init__(
        self, height: int, width: int | None = None, channels: int = 3, builds: bool = False
    ) -> None:
        self.height = height
        self.width = width or height
        self.channels = channels
        self.layers: list[Layer] = []
        self.inputs = image_input(height) if builds else None
        self.x = self.inputs

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the last output."""
        return self.height, self.width, self.channels

    @shape.setter
    def shape(self, shape: tuple[int, int, int]) -> None:
        self.height, self.width, self.channels = shape

    @property
    def elements(self) -> int:
        """Number of elements of the last output, per example."""
        return self.height * self.width * self.channels

    def add_layer(self, layer: str, *arguments: Any, merged: Any = None, **options: Any) -> None:
        """Apply a layer of `keras.layers` to the last output; do nothing without a Keras model.

        Args:
            layer: Name of the class.
            arguments: Positional arguments of the class.
            merged: An earlier output, which the layer merges with the last output; None: the layer
                has one input.
            options: Keyword arguments of the class.
        """
        if self.x is None:
            return
        from keras import layers

        instance = getattr(layers, layer)(*arguments, **options)
        if merged is None:
            self.x = instance(self.x)
        else:
            self.x = instance([merged, self.x])

    def convolve(
        self,
        filters: int | None,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        padding: str = "same",
        bias: bool = False,
        added: int = 0,
        is_kept: bool = True,
        is_first: bool = False,
        **options: Any,
    ) -> None:
        """Add a convolution, including its bias and activation function, if any.

        Args:
            filters: Output channels. None for a depthwise convolution, with one filter per input
                channel. Depthwise convolutions require `builds` to be false.
            kernel: Height and width of the window as two numbers, or one number for a square.
            stride: Distance between windows, in pixels.
            padding: Rule for adding zeros, such as "same"; see `conv_output_length`.
            bias: Whether the convolution has a bias.
            added: Elements per example of a tensor that is added to the input.
            is_kept: Whether the backward pass needs the output. It does not if, for example, the
                next layer is an average.
            is_first: Whether the convolution reads the batch, whose gradient is not needed.
            options: Further keyword arguments of Keras' layer, such as `activation`.
        """
        read = self.elements + added
        input_height, input_width, channels = self.shape
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        height = conv_output_length(input_height, rows, stride, padding)
        width = conv_output_length(input_width, columns, stride, padding)
        is_depthwise = filters is None
        outputs = channels if filters is None else filters
        # Costs assume the same number of zeros on both sides. If the stride exceeds 1, a framework
        # may add one zero more on one side; the output size stays the same.
        zeros = (0, 0)
        if padding == "same":
            zeros = ((rows - 1) // 2, (columns - 1) // 2)
        product = Convolve(
            channels=channels,
            height=input_height,
            width=input_width,
            filters=outputs,
            kernel=(rows, columns),
            stride=(stride, stride),
            padding=zeros,
        )
        weights = rows * columns * outputs
        if not is_depthwise:
            weights *= channels
        self.shape = (height, width, outputs)
        self.layers.append(
            Layer(
                f"convolution_{len(self.layers)}",
                macs=weights * height * width,
                input_macs=0 if is_first else None,
                parameters=weights + outputs if bias else weights,
                weights=0 if is_first else weights,
                read=read,
                written=self.elements,
                kept=self.elements if is_kept else 0,
                is_first=is_first,
                products=() if is_depthwise else (product,),
            )
        )
        self.add_layer("Conv2D", outputs, kernel, stride, padding=padding, use_bias=bias, **options)

    def normalize(
        self,
        shortcut: int = 0,
        normalizations: int = 1,
        merged: Any = None,
        *,
        scales: bool = True,
    ) -> None:
        """Add batch normalization, an optional shortcut, and a rectifier.

        The costs assume that the output does not remain in memory until the backward pass, because
        a compiler may recompute it.

        Args:
            shortcut: Elements per example of the shortcut, which is added before the rectifier; 0
                if there is no shortcut.
            normalizations: Number of normalizations: 1, or 2 if the projection of the shortcut is
                normalized, too.
            merged: Output of the shortcut in the Keras model; None if there is no shortcut or no
                Keras model.
            scales: Whether each channel has a trained scale in addition to the offset.
        """
        channels = normalizations * self.channels
        trained_scales = channels if scales else 0
        self.layers.append(
            Layer(
                f"normalisation_{len(self.layers)}",
                parameters=channels + trained_scales,
                fixed_parameters=2 * channels,
                # The gradient of the input does not depend on the offsets.
                weights=trained_scales,
                read=self.elements + shortcut,
                written=self.elements,
            )
        )
        self.add_layer("BatchNormalization", **_BATCH_NORMALIZATION)
        if shortcut:
            self.add_layer("Add", merged=merged)
        self.add_layer("ReLU")

    def pool(
        self, kernel: int = 0, stride: int = 1, padding: str = "same", is_last: bool = False
    ) -> None:
        """Add max pooling, or global average pooling.

        Args:
            kernel: Height and width of the window of max pooling; 0 for global average pooling.
            stride: Distance between windows; ignored for global average pooling.
            padding: Rule for adding zeros, such as "same"; see `conv_output_length`. Ignored for
                global average pooling.
            is_last: Whether the output is the logits.
        """
        name = f"pool_{len(self.layers)}"
        read = self.elements
        sizes = (self.height, self.width)
        if kernel:
            self.height, self.width = (
                conv_output_length(size, kernel, stride, padding) for size in sizes
            )
        else:
            self.height = 1
            self.width = 1
        self.layers.append(
            Layer(
                name,
                read=read,
                written=self.elements,
                kept=self.elements,
                is_last=is_last,
                targets=1 if is_last else 0,
            )
        )
        if not kernel:
            self.add_layer("GlobalAveragePooling2D")
            return
        # Fill the last window with zeros. They do not change the maximum, because the outputs of a
        # rectifier are not negative.
        missing = [-(size - kernel) % stride for size in sizes]
        if padding == "whole" and any(missing):
            self.add_layer("ZeroPadding2D", tuple((0, zeros) for zeros in missing))
        keras_padding = "same" if padding == "same" else "valid"
        self.add_layer("MaxPooling2D", kernel, stride, padding=keras_padding)

    def add_branches(self, *branches: Callable[[], None]) -> None:
        """Add branches that read the same input, and concatenate their channels.

        Args:
            branches: For each branch, a function that adds its layers.
        """
        shape = self.shape
        x = self.x
        outputs = []
        channels = 0
        for add_branch in branches:
            self.shape = shape
            self.x = x
            add_branch()
            outputs.append(self.x)
            channels += self.channels
        self.channels = channels
        if x is not None and len(branches) > 1:
            from keras import layers

            self.x = layers.Concatenate()(outputs)

    def stem(
        self, filters: int, kernel: int, stride: int, *, bias: bool = False, pools: bool = True
    ) -> None:
        """Add the first convolution, its normalization and rectifier, and max pooling.

        Args:
            filters: Output channels.
            kernel: Height and width of the window.
            stride: Distance between windows, in pixels.
            bias: Whether the convolution has a bias.
            pools: Whether to add the pooling, which halves height and width.
        """
        self.convolve(filters, kernel, stride, bias=bias, is_first=True)
        self.normalize()
        if pools:
            self.pool(3, 2)

    def classify(self, classes: int) -> None:
        """Add global average pooling and the dense layer that computes the logits.

        Args:
            classes: Number of logits.
        """
        self.pool()
        self.layers.append(dense("logits", self.channels, classes, is_last=True))
        self.add_layer("Dense", classes)


def residual_block(
    network: ImageNetwork,
    convolutions: Sequence[tuple[int, int, int]],
    *,
    bias: bool = False,
    projects: bool = True,
) -> None:
    """Add a residual block.

    Args:
        network: The network that the block extends.
        convolutions: Filters, kernel and stride of each convolution. A normalization follows each
            convolution.
        bias: Whether the convolutions have biases.
        projects: Whether a projection (1x1 convolution) replaces the shortcut where the shape
            changes. If false, the shortcut keeps every `stride`-th pixel of the block's input, and
            new channels are zeros.
    """
    x = network.x
    shape = network.shape
    output = convolutions[-1][0]
    stride = max(stride for _, _, stride in convolutions)
    is_projected = projects and (network.channels != output or stride != 1)
    for index, (filters, kernel, own_stride) in enumerate(convolutions):
        if index:
            network.normalize()
        network.convolve(filters, kernel, own_stride, bias=bias)
    if is_projected:
        added = network.elements
        last = network.x
        network.shape = shape
        network.x = x
        network.convolve(output, 1, stride, bias=bias)
        network.add_layer("BatchNormalization", **_BATCH_NORMALIZATION)
        x = network.x
        network.x = last
        network.normalize(added, normalizations=2, merged=x)
        return
    added = network.elements * shape[2] // network.channels
    if x is not None and not projects:
        from keras import ops

        x = x[:, ::stride, ::stride, :]
        if shape[2] != output:
            x = ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, output - shape[2])])
    network.normalize(added, merged=x)


def block_widths(blocks: Sequence[int], filters: int) -> Iterator[tuple[int, int]]:
    """Yield the number of filters and the stride of each block.

    Args:
        blocks: Number of blocks in each group.
        filters: Filters of the first group. From group to group, the filters double and the height
            and width of the image halve.
    """
    for group, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if group > 0 and index == 0 else 1
            yield filters * 2**group, stride


class ImageModel(Model):
    """Base class for classifiers of square images.

    `network` describes the layers once; costs and the Keras model are derived from it.
    """

    convolves: ClassVar[bool] = True
    output_size: int

    def network(self, builds: bool = False) -> ImageNetwork:
        """Return the network with all layers and their costs.

        Args:
            builds: Whether to build the Keras model, too.
        """
        raise NotImplementedError

    def layer_list(self) -> list[Layer]:
        return self.network().layers

    def build(self) -> BuiltModel:
        """Build the model in Keras.

        Inputs are (batch, image_size, image_size, 3) float32, targets are (batch,) int32 classes.
        """
        network = self.network(builds=True)
        return classifier(network.inputs, network.x, self.output_size)


@dataclass(frozen=True)
class Convolutional(ImageModel):
    """A residual network with four groups of blocks; filters double from group to group. A block
    has two convolutions (residual) or three (bottleneck). model.blocks is one number, or a list
    with one number per group.
    """

    name: str = "residual"
    blocks: tuple[int, ...] = option(
        (1, 1, 1, 1),
        "blocks in each of the four groups: one number, or four (paper: 1..8); "
        "three numbers select the form for small images",
        low=1,
        high=1000,
        length=4,
        or_length=3,
    )
    filters: int = option(
        16, "filters of the first group; they double from group to group (paper: 16..64)", low=1
    )
    image_size: int = option(
        200, "height and width of the image (paper: 200..300)", low=8, high=100_000
    )
    output_size: int = option(500, "classes (paper: 500..1500)", low=2)

    @property
    def size(self) -> str:
        if len(self.blocks) == 4 and len(set(self.blocks)) == 1:
            count = str(self.blocks[0])
        else:
            count = "-".join(map(str, self.blocks))
        return f"{count}x{self.filters} {self.image_size}px"

    @property
    def is_small(self) -> bool:
        """Whether the network has the form for small images."""
        return len(self.blocks) == 3

    @property
    def stem(self) -> tuple[int, int, int]:
        """Number of filters, kernel and stride (both in pixels) of the first convolution."""
        if self.is_small:
            return self.filters, 3, 1
        return self.filters, 7, 2

    def convolutions(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yield, for each block, the filters, kernel and stride of each convolution."""
        for width, stride in block_widths(self.blocks, self.filters):
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
    """A published network over square images, with the depth and width of its paper."""

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
            if self.name in _RESNET_BLOCKS:
                resnet(network, _RESNET_BLOCKS[self.name])
            else:
                _densenet121(network)
            network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        if self.name in _APPLICATIONS:
            return keras_application(_APPLICATIONS[self.name], self)
        return super().build()


@dataclass(frozen=True)
class MobileNet(ImageModel):
    """MobileNet (Howard et al. 2017): depthwise separable convolutions; alpha scales the width."""

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
        for filters in _SEPARABLE_FILTERS:
            if filters != previous:
                network.convolve(None, 3, 2, padding="end")
            else:
                network.convolve(None, 3)
            network.normalize()
            network.convolve(int(filters * self.alpha), 1)
            network.normalize()
            previous = filters
        network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        return keras_application("MobileNet", self, alpha=self.alpha)


def resnet(
    network: ImageNetwork, blocks: Sequence[int] = _RESNET_BLOCKS["resnet50"]
) -> list[tuple[int, int, int]]:
    """Add the stem and the groups of blocks of a ResNet of `keras.applications`.

    Args:
        network: The network to which the layers are added.
        blocks: Number of blocks in each group; by default those of ResNet-50.

    Returns:
        The output shape (height, width, channels) of each group.
    """
    network.stem(64, 7, 2, bias=True)
    outputs = []
    for width, stride in block_widths(blocks, 64):
        if stride == 2:
            # A new group begins.
            outputs.append(network.shape)
        residual_block(network, [(width, 1, stride), (width, 3, 1), (4 * width, 1, 1)], bias=True)
    return [*outputs, network.shape]


def _densenet121(network: ImageNetwork) -> None:
    """Add the stem and the four dense blocks of DenseNet-121 to a network.

    Each layer of a block reads the features (channels) of all earlier layers and adds 32 features.
    Between two blocks, the number of features, the height and the width are halved.
    """
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
    """Add all layers of SqueezeNet to a network.

    Each of the eight fire modules has a squeezing 1x1 convolution. Two parallel expanding
    convolutions, 1x1 and 3x3, read its output.

    Args:
        network: The network, without layers.
        classes: Number of logits.
    """
    convolve = partial(
        network.convolve, bias=True, activation="relu", kernel_initializer="he_normal"
    )
    convolve(96, 7, 2, padding="valid", is_first=True)
    network.pool(3, 2, "whole")
    for index, squeezed in enumerate(_SQUEEZE_FILTERS):
        convolve(squeezed, 1)
        shape = network.shape
        x = network.x
        convolve(4 * squeezed, 1)
        expanded_1x1 = network.x
        network.shape = shape
        network.x = x
        convolve(4 * squeezed, 3)
        network.add_layer("Concatenate", merged=expanded_1x1)
        network.channels = 8 * squeezed
        if index in (2, 6):
            # The paper pools after its modules fire4 and fire8. Its numbering begins with fire2.
            network.pool(3, 2, "whole")
    network.add_layer("Dropout", 0.5)
    normal = {"class_name": "RandomNormal", "config": {"stddev": 0.01}}
    network.convolve(classes, 1, bias=True, is_kept=False, kernel_initializer=normal)
    network.pool(is_last=True)


def keras_application(name: str, model: Any, **options: Any) -> BuiltModel:
    """Build a network of `keras.applications` with random weights, and logits as outputs.

    Args:
        name: Name of the function in `keras.applications`.
        model: An image model with options `image_size` and `output_size`.
        options: Further keyword arguments of the function.
    """
    from keras import applications

    inputs = image_input(model.image_size)
    options |= {"weights": None, "classes": model.output_size, "classifier_activation": None}
    network = getattr(applications, name)(input_tensor=inputs, **options)
    return classifier(inputs, network.output, model.output_size)


_SWEPT = ("filters", "blocks", "image_size")
_SWEEP = "model.filters=16,32,64 batch_size=16,32,64"
#: SqueezeNet diverges at the learning rate of the ParaDnn paper, 0.1.
_SLOW_LEARNING = {"learning": {"learning_rate": 0.001}}
FAMILY = (
    Family("residual", Convolutional, "images", _SWEPT, _SWEEP, order=1),
    Family("bottleneck", Convolutional, "images", _SWEPT, _SWEEP, order=2),
    Family(
        "resnet50",
        Classifier,
        "images",
        is_real=True,
        order=8,
        summary="ResNet-50 of keras.applications (He et al. 2016); v1.5: model=bottleneck.",
    ),
    Family(
        "resnet152",
        Classifier,
        "images",
        is_real=True,
        order=26,
        summary="ResNet-152 of keras.applications (He et al. 2016).",
    ),
    Family(
        "densenet121",
        Classifier,
        "images",
        is_real=True,
        order=9,
        summary="DenseNet-121 of keras.applications (Huang et al. 2017).",
    ),
    Family(
        "mobilenet",
        MobileNet,
        "images",
        is_real=True,
        order=10,
        summary="MobileNet of keras.applications (Howard et al. 2017); alpha scales the width.",
    ),
    Family(
        "squeezenet",
        Classifier,
        "images",
        is_real=True,
        order=11,
        summary="SqueezeNet 1.0 (Iandola et al. 2016): fire modules.",
        defaults=_SLOW_LEARNING,
    ),
)
