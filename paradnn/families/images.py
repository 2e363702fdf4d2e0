"""A network over images as a list of layers: shapes are followed, every layer is costed where it stands."""

from __future__ import annotations

from collections.abc import Sequence

from paradnn.families.layers import Convolve, Layer, dense


def reach(size: int, kernel: int, stride: int, padding: str) -> int:
    """How many places a window of `kernel` has along `size`.

    `padding` is same (as many zeros as give ceil(size / stride)), valid (none), end (one zero at the end, as in Keras'
    MobileNet) or whole (zeros at the end until the last window is full, as Caffe's pooling rounds up).
    """
    if padding == "same":
        return -(-size // stride)
    if padding == "whole":
        return -(-(size - kernel) // stride) + 1
    return (size + (padding == "end") - kernel) // stride + 1


class Images:
    """The layers so far, and the shape of the last output: height, width, channels.

    Padding, concatenation, dropout and repetition of pixels move nothing of their own: the layer that makes or
    reads a tensor can do it on the way.
    """

    def __init__(self, height: int, width: int | None = None, channels: int = 3) -> None:
        self.height, self.width, self.channels = height, width or height, channels
        self.layers: list[Layer] = []

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
    ) -> None:
        """Convolution, with its bias and rectifier where it has them; `filters` None: one for each channel (depthwise).

        `added`: elements that are added to the output. Normalisation, a rectifier and the next convolution need the
        output again, so it is kept; `is_kept` is false before what needs it not, such as an average.
        """
        read, (high, wide, channels) = self.elements + added, self.shape
        height, width = (reach(size, kernel, stride, padding) for size in (high, wide))
        outputs = channels if filters is None else filters
        # As many zeros on both sides: with a stride the framework's own may be shifted by one, of the same output.
        sides = (kernel - 1) // 2 if padding == "same" else 0
        product = Convolve(channels, high, wide, outputs, (kernel,) * 2, (stride,) * 2, (sides,) * 2)
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

    def normalise(self, shortcut: int = 0, normalisations: int = 1) -> None:
        """Batch normalisation with its rectifier; at a block's end also of a projection, and the addition.

        shortcut: elements that are added. Its output is not kept: a compiler may compute it again from its inputs.
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

    def pool(self, kernel: int, stride: int, padding: str = "same") -> None:
        """The largest or the mean of every window."""
        height, width = (reach(size, kernel, stride, padding) for size in (self.height, self.width))
        self._pooled(height, width)

    def average(self, *, is_last: bool = False) -> None:
        """The mean of every channel."""
        self._pooled(1, 1, is_last)

    def _pooled(self, height: int, width: int, is_last: bool = False) -> None:
        name, read = f"pool_{len(self.layers)}", self.elements
        self.height, self.width = height, width
        made = self.elements
        self.layers.append(Layer(name, read=read, written=made, kept=made, is_last=is_last, targets=int(is_last)))

    def classified(self, classes: int) -> list[Layer]:
        """All layers, with the mean of every channel and a dense layer that tells classes apart from it."""
        self.average()
        return [*self.layers, dense("logits", self.channels, classes, is_last=True)]


def residual_block(
    network: Images, convolutions: Sequence[tuple[int, int, int]], *, bias: bool = False, projects: bool = True
) -> None:
    """Convolutions (filters, kernel, stride), each normalised, and a projection where the shape changes.

    Without one (`projects`) as many elements are added as the block's input has at the places of its output.
    """
    shape, output = network.shape, convolutions[-1][0]
    stride = max(stride for _, _, stride in convolutions)
    projected = projects and (network.channels != output or stride != 1)
    if projected:
        network.convolve(output, 1, stride, bias=bias)
        network.shape = shape
    for index, (filters, kernel, step) in enumerate(convolutions):
        if index:
            network.normalise()
        network.convolve(filters, kernel, step, bias=bias)
    added = network.elements if projected else network.elements * shape[2] // network.channels
    network.normalise(shortcut=added, normalisations=2 if projected else 1)
