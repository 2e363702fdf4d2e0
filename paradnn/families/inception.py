"""Inception-v3 and Xception of `keras.applications`, with random weights.

- `inception_v3` (Szegedy et al. 2016) has convolutions of 1x7, 7x1, 1x3 and 3x1 pixels in parallel
  branches, normalizations without scales, and 23,817,352 trained parameters.
- `xception` (Chollet 2017) has residual blocks of depthwise separable convolutions, and 22,855,952
  trained parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from paradnn.core.layers import Layer
from paradnn.core.schema import option
from paradnn.families import Family
from paradnn.families.built import BuiltModel
from paradnn.families.images import ImageModel, ImageNetwork, keras_application

#: A convolution: output channels, height of the window, width of the window.
_Convolution = tuple[int, int, int]


@dataclass(frozen=True)
class InceptionV3(ImageModel):
    """Inception-v3 (Szegedy et al. 2016)."""

    size_template: ClassVar[str] = "{image_size}px"

    name: str = "inception_v3"
    image_size: int = option(
        299, "height and width of the image (paper: 299)", low=75, high=100_000
    )
    output_size: int = option(1000, "classes (paper: 1000)", low=2)

    def network(self, builds: bool = False) -> ImageNetwork:
        network = InceptionNetwork(self.image_size)
        network.add_stem()
        for pooled in (32, 64, 64):
            network.add_module(
                [(64, 1, 1)],
                [(48, 1, 1), (64, 5, 5)],
                [(64, 1, 1), (96, 3, 3), (96, 3, 3)],
                pooled=pooled,
            )
        network.add_reduction([(384, 3, 3)], [(64, 1, 1), (96, 3, 3), (96, 3, 3)])
        for width in (128, 160, 160, 192):
            row = (width, 1, 7)
            column = (width, 7, 1)
            network.add_module(
                [(192, 1, 1)],
                [(width, 1, 1), row, (192, 7, 1)],
                [(width, 1, 1), column, row, column, (192, 1, 7)],
                pooled=192,
            )
        network.add_reduction(
            [(192, 1, 1), (320, 3, 3)],
            [(192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3)],
        )
        for _ in range(2):
            network.add_widest_module()
        network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        return keras_application("InceptionV3", self)


class InceptionNetwork(ImageNetwork):
    """Analytic costs of a network of normalized convolutions in branches."""

    def add_convolutions(
        self, *convolutions: _Convolution, last_stride: int = 1, last_padding: str = "same"
    ) -> None:
        """Add a sequence of convolutions, each with normalization and rectifier.

        Args:
            convolutions: Output channels, window height and window width of each convolution.
            last_stride: Stride of the last convolution; earlier convolutions have stride 1.
            last_padding: Padding of the last convolution, as in `conv_output_length`; earlier
                convolutions have the padding "same".
        """
        for index, (filters, rows, columns) in enumerate(convolutions):
            is_last = index == len(convolutions) - 1
            self.convolve(
                filters,
                (rows, columns),
                last_stride if is_last else 1,
                padding=last_padding if is_last else "same",
                is_first=not self.layers,
            )
            self.normalize(scales=False)

    def add_stem(self) -> None:
        """Add the convolutions and poolings before the first inception module."""
        add = partial(self.add_convolutions, last_padding="valid")
        add((32, 3, 3), last_stride=2)
        add((32, 3, 3))
        self.add_convolutions((64, 3, 3))
        self.pool(3, 2, "valid")
        add((80, 1, 1))
        add((192, 3, 3))
        self.pool(3, 2, "valid")

    def add_module(self, *branches: list[_Convolution], pooled: int) -> None:
        """Add an inception module that preserves height and width.

        Args:
            branches: The convolutions of each branch.
            pooled: Filters of the 1x1 convolution in a further branch, after average pooling.
        """
        functions = [partial(self.add_convolutions, *branch) for branch in branches]
        self.add_branches(*functions, partial(self.add_pooled, pooled))

    def add_pooled(self, filters: int) -> None:
        """Add average pooling of 3x3 pixels and a 1x1 convolution.

        Args:
            filters: Output channels of the convolution.
        """
        self.pool(3)
        self.add_convolutions((filters, 1, 1))

    def add_reduction(self, *branches: list[_Convolution]) -> None:
        """Add an inception module that halves height and width.

        Args:
            branches: The convolutions of each branch; the last convolution of a branch has stride
                2. A further branch pools the input.
        """
        functions: list[Callable[[], None]] = [
            partial(self.add_convolutions, *branch, last_stride=2, last_padding="valid")
            for branch in branches
        ]
        self.add_branches(*functions, partial(self.pool, 3, 2, "valid"))

    def add_widest_module(self) -> None:
        """Add an inception module in which two branches end with parallel 1x3 and 3x1 convolutions.

        Each of these convolutions has 384 filters.
        """

        def add_parallel(*convolutions: _Convolution) -> None:
            self.add_convolutions(*convolutions)
            self.add_branches(
                partial(self.add_convolutions, (384, 1, 3)),
                partial(self.add_convolutions, (384, 3, 1)),
            )

        self.add_branches(
            partial(self.add_convolutions, (320, 1, 1)),
            partial(add_parallel, (384, 1, 1)),
            partial(add_parallel, (448, 1, 1), (384, 3, 3)),
            partial(self.add_pooled, 192),
        )


@dataclass(frozen=True)
class Xception(ImageModel):
    """Xception (Chollet 2017)."""

    is_depthwise: ClassVar[bool] = True
    size_template: ClassVar[str] = "{image_size}px"

    name: str = "xception"
    image_size: int = option(
        299, "height and width of the image (paper: 299)", low=71, high=100_000
    )
    output_size: int = option(1000, "classes (paper: 1000)", low=2)

    def network(self, builds: bool = False) -> ImageNetwork:
        network = XceptionNetwork(self.image_size)
        network.convolve(32, 3, 2, padding="valid", is_first=True)
        network.normalize()
        network.convolve(64, 3, padding="valid")
        network.normalize()
        network.add_halving_block(128, 128)
        network.rectify()
        network.add_halving_block(256, 256)
        network.rectify()
        network.add_halving_block(728, 728)
        for _ in range(8):
            network.rectify()
            network.add_separable(728, 728, 728)
            network.normalize(network.elements)
        network.rectify()
        network.add_halving_block(728, 1024)
        network.add_separable(1536, 2048)
        network.normalize()
        network.classify(self.output_size)
        return network

    def build(self) -> BuiltModel:
        return keras_application("Xception", self)


class XceptionNetwork(ImageNetwork):
    """Analytic costs of a network of depthwise separable convolutions."""

    def rectify(self) -> None:
        """Add a rectifier (ReLU) as a separate layer; the shortcut reads its stored input."""
        size = self.elements
        self.layers.append(Layer(f"rectifier_{len(self.layers)}", read=size, written=size))

    def add_separable(self, *filters: int) -> None:
        """Add depthwise separable 3x3 convolutions, with normalization and rectifier between them.

        Args:
            filters: Output channels of each convolution.
        """
        for index, outputs in enumerate(filters):
            if index:
                self.normalize()
            self.convolve(None, 3)
            self.convolve(outputs, 1)

    def add_halving_block(self, *filters: int) -> None:
        """Add a residual block that halves height and width.

        The block has separable convolutions, max pooling, and a projection of its input. The cost
        of the pooling includes the normalization before it. The sum of the pooled output and the
        projection is stored.

        Args:
            filters: Output channels of each separable convolution.
        """
        shape = self.shape
        self.add_separable(*filters)
        self.pool(3, 2)
        self.shape = shape
        self.convolve(filters[-1], 1, 2)
        self.normalize(self.elements, normalizations=2)


FAMILY = (
    Family(
        "inception_v3",
        InceptionV3,
        "images",
        is_real=True,
        order=27,
        summary="Inception-v3 of keras.applications (Szegedy et al. 2016).",
    ),
    Family(
        "xception",
        Xception,
        "images",
        is_real=True,
        order=28,
        summary="Xception of keras.applications (Chollet 2017): depthwise separable convolutions.",
    ),
)
