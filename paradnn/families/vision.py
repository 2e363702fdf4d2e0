"""Real models of images that tell classes apart: what the paper sets beside its space in Figure 1 (section 2.2).

ResNet-50, DenseNet-121 and MobileNet are as Keras ships them, weight-free: nothing is downloaded. `keras.applications`
gives the networks in their papers' form: ResNet-50 with the stride on a block's first convolution and a bias in every
convolution (for the form with the stride on the 3x3 convolution see `paradnn.families.cnn`), DenseNet-121 with growth
32 and half the features after a block, MobileNet with a dropout of 0.001.

SqueezeNet 1.0 (Iandola et al. 2016) has no normalisation, and a dropout of one half near the end. It is as published,
with a 7x7 convolution without padding and poolings that round up, but for the rectifier on the last convolution, whose
mean is the logits: it dies within a few steps, and then nothing is trained. Kernels begin as He et al. (2015) have it,
the last one small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier, image_input
from paradnn.families.images import Images, residual_block
from paradnn.families.layers import Layer

_SQUEEZED = (16, 16, 32, 32, 48, 48, 64, 64)
_SEPARABLE = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


@dataclass(frozen=True)
class Classifier(Model):
    """A published network over square images; what the papers fix, such as depth and width, is fixed here."""

    convolves: ClassVar[bool] = True
    shown: ClassVar[str] = "{image_size}px"

    name: str = "resnet50"
    image_size: int = option(224, "height and width of the image (papers: 224)", low=32, high=100_000)
    output_size: int = option(1000, "classes (papers: 1000)", low=2)

    def layer_list(self) -> list[Layer]:
        network = Images(self.image_size)
        if self.name == "squeezenet":
            return _squeezenet(network, self.output_size)
        (resnet50 if self.name == "resnet50" else _densenet121)(network)
        return network.classified(self.output_size)

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        if self.name == "squeezenet":
            return _build_squeezenet(self)
        return _application({"resnet50": "ResNet50", "densenet121": "DenseNet121"}[self.name], self)


@dataclass(frozen=True)
class MobileNet(Model):
    """Depthwise separable convolutions, every layer `alpha` times as wide as published (Howard et al. 2017)."""

    convolves: ClassVar[bool] = True
    is_depthwise: ClassVar[bool] = True
    shown: ClassVar[str] = "{alpha:g}x {image_size}px"

    name: str = "mobilenet"
    alpha: float = option(1.0, "width multiplier (paper: 0.25, 0.5, 0.75, 1)", low=0.1, high=100)
    image_size: int = option(224, "height and width of the image (paper: 128..224)", low=32, high=100_000)
    output_size: int = option(1000, "classes (paper: 1000)", low=2)

    def layer_list(self) -> list[Layer]:
        network = Images(self.image_size)
        network.convolve(int(32 * self.alpha), 3, 2, is_first=True)
        network.normalise()
        previous = 64
        for filters in _SEPARABLE:
            shrinks = filters != previous
            network.convolve(None, 3, 2 if shrinks else 1, padding="end" if shrinks else "same")
            network.normalise()
            network.convolve(int(filters * self.alpha), 1)
            network.normalise()
            previous = filters
        return network.classified(self.output_size)

    def build(self) -> BuiltModel:
        """Inputs and targets as of `Classifier`."""
        return _application("MobileNet", self, alpha=self.alpha)


def resnet50(network: Images) -> list[tuple[int, int, int]]:
    """Stem and four groups of blocks; returns the shape of each group's output."""
    network.convolve(64, 7, 2, bias=True, is_first=True)
    network.normalise()
    network.pool(3, 2)
    outputs = []
    for group, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            width, stride = 64 * 2**group, 2 if group > 0 and index == 0 else 1
            residual_block(network, [(width, 1, stride), (width, 3, 1), (4 * width, 1, 1)], bias=True)
        outputs.append(network.shape)
    return outputs


def _densenet121(network: Images) -> None:
    """Each layer normalises all features before it and adds 32; halved between four blocks."""
    network.convolve(64, 7, 2, is_first=True)
    network.normalise()
    network.pool(3, 2)
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            network.convolve(network.channels // 2, 1, is_kept=False)
            network.pool(2, 2, "valid")
        for _ in range(count):
            features = network.channels
            network.normalise()
            network.convolve(128, 1)
            network.normalise()
            network.convolve(32, 3)
            network.channels = features + 32
        network.normalise()


def _squeezenet(network: Images, classes: int) -> list[Layer]:
    """Eight fire modules of a squeezing 1x1 and expanding 1x1 and 3x3 convolutions, all with bias."""
    network.convolve(96, 7, 2, padding="valid", bias=True, is_first=True)
    network.pool(3, 2, "whole")
    for index, squeezed in enumerate(_SQUEEZED):
        network.convolve(squeezed, 1, bias=True)
        shape = network.shape
        network.convolve(4 * squeezed, 1, bias=True)
        network.shape = shape
        network.convolve(4 * squeezed, 3, bias=True)
        network.channels = 8 * squeezed
        if index in (2, 6):
            network.pool(3, 2, "whole")
    network.convolve(classes, 1, bias=True, is_kept=False)
    network.average(is_last=True)
    return network.layers


def _application(name: str, model: Classifier | MobileNet, **options: Any) -> BuiltModel:
    """A network of `keras.applications`."""
    from keras import applications

    inputs = image_input(model.image_size)
    options |= {"weights": None, "classes": model.output_size, "classifier_activation": None}
    network = getattr(applications, name)(input_tensor=inputs, **options)
    return classifier(inputs, network.output, model.output_size)


def _build_squeezenet(model: Classifier) -> BuiltModel:
    from keras import initializers, layers

    def convolve(x: Any, filters: int, kernel: int, **options: Any) -> Any:
        settings = {"padding": "same", "activation": "relu", "kernel_initializer": "he_normal", **options}
        return layers.Conv2D(filters, kernel, **settings)(x)

    def pool(x: Any) -> Any:
        """3x3, of stride 2; where its last window is not full, zeros fill it, below any rectifier's output."""
        short = [(0, -(size - 3) % 2) for size in x.shape[1:3]]
        return layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(tuple(short))(x) if any(map(any, short)) else x)

    inputs = image_input(model.image_size)
    x = pool(convolve(inputs, 96, 7, strides=2, padding="valid"))
    for index, squeezed in enumerate(_SQUEEZED):
        x = convolve(x, squeezed, 1)
        x = layers.Concatenate()([convolve(x, 4 * squeezed, 1), convolve(x, 4 * squeezed, 3)])
        if index in (2, 6):
            x = pool(x)
    last = initializers.RandomNormal(stddev=0.01)
    x = convolve(layers.Dropout(0.5)(x), model.output_size, 1, activation=None, kernel_initializer=last)
    return classifier(inputs, layers.GlobalAveragePooling2D()(x), model.output_size)


_SLOWLY = {"learning": {"learning_rate": 0.001}}  # it diverges at the paper's rate of 0.1
FAMILY = tuple(
    Family(name, options, "images", is_real=True, place=place, words=words, chosen=chosen)
    for place, (name, options, words, chosen) in enumerate(
        (
            ("resnet50", Classifier, "ResNet-50 of keras.applications (He et al. 2016); v1.5: model=bottleneck.", {}),
            ("densenet121", Classifier, "DenseNet-121 of keras.applications (Huang et al. 2017).", {}),
            ("mobilenet", MobileNet, "MobileNet of keras.applications (Howard et al. 2017); alpha widens it.", {}),
            ("squeezenet", Classifier, "SqueezeNet 1.0 (Iandola et al. 2016): fire modules.", _SLOWLY),
        ),
        start=8,
    )
)
