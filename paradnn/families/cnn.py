"""Residual networks of two block types (paper, section 2.1; He et al. 2016).

Stem (7x7 convolution of stride 2, 3x3 max pooling of stride 2), four groups of blocks whose width doubles, global
average pooling, a dense classifier. The stride of a bottleneck block sits on its 3x3 convolution, and a projection
replaces the shortcut where the shape changes, as in the common ResNet-50 ("v1.5"): blocks 3,4,6,3 with 64 filters and
1000 classes have its 25,557,032 parameters.

Three groups are the form for small images (He et al. 2016, section 4.2): a 3x3 convolution as stem, no pooling, and
shortcuts without parameters, which take every second pixel and fill new channels with zeros. Blocks 9,9,9 with 16
filters are ResNet-56.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import BuiltModel, classifier, image_input
from paradnn.families.images import Images, residual_block
from paradnn.families.layers import Layer


@dataclass(frozen=True)
class Convolutional(Model):
    """A residual network: four groups of blocks (residual: of two convolutions, bottleneck: of three), whose filters
    double in each group. blocks is one number, or four, one for each group."""

    convolves: ClassVar[bool] = True

    name: str = "residual"
    blocks: tuple[int, ...] = option(
        (1, 1, 1, 1),
        "blocks in each of the four groups: one number, or four (paper: 1..8); three: the form for small images",
        low=1,
        high=1000,
        length=4,
        or_length=3,
    )
    filters: int = option(16, "filters of the first group; doubled in each that follows (paper: 16..64)", low=1)
    image_size: int = option(200, "height and width of the image (paper: 200..300)", low=8, high=100_000)
    output_size: int = option(500, "classes (paper: 500..1500)", low=2)

    @property
    def size(self) -> str:
        same = len(set(self.blocks)) == 1 and len(self.blocks) == 4
        count = str(self.blocks[0]) if same else "-".join(map(str, self.blocks))
        return f"{count}x{self.filters} {self.image_size}px"

    @property
    def is_small(self) -> bool:
        """Whether it has the form for small images."""
        return len(self.blocks) == 3

    def convolutions(self) -> Iterator[list[tuple[int, int, int]]]:
        """Filters, kernel and stride of each convolution of each block."""
        for group, count in enumerate(self.blocks):
            for index in range(count):
                width, stride = self.filters * 2**group, 2 if group > 0 and index == 0 else 1
                if self.name == "residual":
                    yield [(width, 3, stride), (width, 3, 1)]
                else:
                    yield [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]

    def layer_list(self) -> list[Layer]:
        network = Images(self.image_size)
        network.convolve(self.filters, *((3, 1) if self.is_small else (7, 2)), is_first=True)
        network.normalise()
        if not self.is_small:
            network.pool(3, 2)
        for convolutions in self.convolutions():
            residual_block(network, convolutions, projects=not self.is_small)
        return network.classified(self.output_size)

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes."""
        from keras import layers

        inputs = image_input(self.image_size)
        x = _convolve(inputs, self.filters, *((3, 1) if self.is_small else (7, 2)))
        if not self.is_small:
            x = layers.MaxPooling2D(3, 2, padding="same")(x)
        shortcut = _padded if self.is_small else _projected
        for convolutions in self.convolutions():
            y = x
            for index, convolution in enumerate(convolutions, start=1):
                y = _convolve(y, *convolution, relu=index < len(convolutions))
            stride = max(stride for _, _, stride in convolutions)
            x = layers.ReLU()(layers.Add()([y, shortcut(x, y.shape[-1], stride)]))
        x = layers.Dense(self.output_size)(layers.GlobalAveragePooling2D()(x))
        return classifier(inputs, x, self.output_size)


def _padded(x: Any, width: int, stride: int) -> Any:
    """The block's input: every second of its pixels where the block takes strides, zeros for channels that are new."""
    from keras import ops

    if stride > 1:
        x = x[:, ::stride, ::stride, :]
    return x if x.shape[-1] == width else ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])])


def _projected(x: Any, width: int, stride: int) -> Any:
    """The block's input, projected where the block changes its shape."""
    return x if x.shape[-1] == width and stride == 1 else _convolve(x, width, 1, stride, relu=False)


def _convolve(x: Any, width: int, kernel: int, stride: int, relu: bool = True) -> Any:
    """Convolution without bias, batch normalisation, and a rectifier unless the block adds first."""
    from keras import layers

    x = layers.Conv2D(width, kernel, stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
    return layers.ReLU()(x) if relu else x


_SWEPT, _SWEEP = ("filters", "blocks", "image_size"), "model.filters=16,32,64 batch_size=16,32,64"
FAMILY = tuple(
    Family(name, Convolutional, "images", _SWEPT, _SWEEP, place=place)
    for place, name in enumerate(("residual", "bottleneck"), start=1)
)
