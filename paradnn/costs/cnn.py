"""Layers of the residual and bottleneck families; see `paradnn.worker.models.cnn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.fc import dense
from paradnn.costs.layers import Layer

__all__ = ["cnn_layers"]

_EXPANSION = {"residual": 1, "bottleneck": 4}


def cnn_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Stem, four groups of blocks, classifier. SAME padding: a stride of 2 gives ceil(size / 2)."""
    network = _Network(model["image_size"], 3)
    network.convolve(model["filters"], 7, 2, is_first=True)
    network.normalise()
    network.pool("pool", -(-network.size // 2))
    for group, count in enumerate(model["blocks"]):
        for index in range(count):
            network.block(model["name"], model["filters"] * 2**group, 2 if group > 0 and index == 0 else 1)
    network.pool("average", 1)
    return [*network.layers, dense("logits", network.channels, model["output_size"], is_last=True)]


class _Network:
    """The layers so far, and the size and channels of the last output."""

    def __init__(self, size: int, channels: int) -> None:
        self.size = size
        self.channels = channels
        self.layers: list[Layer] = []

    @property
    def elements(self) -> int:
        """Of the last output, per example."""
        return self.size * self.size * self.channels

    def convolve(self, width: int, kernel: int, stride: int, *, is_first: bool = False) -> None:
        """Convolution without bias. Batch normalisation needs its output again, so it is kept."""
        read, weights = self.elements, kernel * kernel * self.channels * width
        self.size, self.channels = -(-self.size // stride), width
        self.layers.append(
            Layer(
                f"convolution_{len(self.layers)}",
                macs=weights * self.size * self.size,
                input_macs=0 if is_first else None,
                parameters=weights,
                weights=0 if is_first else weights,
                read=read,
                written=self.elements,
                kept=self.elements,
                is_first=is_first,
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

    def pool(self, name: str, size: int) -> None:
        """3x3 max pooling of stride 2 or global average pooling, to `size`."""
        read, self.size = self.elements, size
        self.layers.append(Layer(name, read=read, written=self.elements, kept=self.elements))

    def block(self, kind: str, width: int, stride: int) -> None:
        """A residual or bottleneck block with its projection where the shape changes."""
        size, channels = self.size, self.channels
        output = width * _EXPANSION[kind]
        projected = channels != output or stride != 1
        if projected:
            self.convolve(output, 1, stride)
            self.size, self.channels = size, channels
        if kind == "residual":
            convolutions = [(width, 3, stride), (width, 3, 1)]
        else:
            convolutions = [(width, 1, 1), (width, 3, stride), (output, 1, 1)]
        for index, convolution in enumerate(convolutions):
            if index:
                self.normalise()
            self.convolve(*convolution)
        self.normalise(shortcut=self.elements, normalisations=2 if projected else 1)
