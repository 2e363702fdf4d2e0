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
    network.convolve(model["filters"], 7, 2, first=True)
    network.pool()
    for group, count in enumerate(model["blocks"]):
        for index in range(count):
            network.block(model["name"], model["filters"] * 2**group, 2 if group > 0 and index == 0 else 1)
    return [*network.layers, dense("logits", network.channels, model["output_size"], saved=0)]


class _Network:
    """The layers so far, and the size and channels of the last output."""

    def __init__(self, size: int, channels: int) -> None:
        self.size = size
        self.channels = channels
        self.layers = [Layer("input", written=size * size * channels, is_input=True)]

    def convolve(self, width: int, kernel: int, stride: int, *, first: bool = False) -> None:
        """Convolution without bias and batch normalisation, whose output is as large again."""
        size = -(-self.size // stride)
        outputs = size * size * width
        macs = kernel * kernel * self.channels * outputs
        name = f"convolution_{len(self.layers)}"
        self.layers.append(
            Layer(
                name,
                macs=macs,
                input_macs=0 if first else None,
                parameters=kernel * kernel * self.channels * width,
                read=self.size * self.size * self.channels,
                written=outputs,
                saved=outputs,  # batch normalisation needs its input again
            )
        )
        # The rectified output is saved too, unless a compiler computes it again from the convolution's: not counted.
        self.layers.append(
            Layer(f"{name}_norm", parameters=2 * width, fixed_parameters=2 * width, read=outputs, written=outputs)
        )
        self.size, self.channels = size, width

    def pool(self) -> None:
        """3x3 max pooling of stride 2."""
        size = -(-self.size // 2)
        read, written = self.size**2 * self.channels, size**2 * self.channels
        self.layers.append(Layer("pool", read=read, written=written, saved=written))
        self.size = size

    def block(self, kind: str, width: int, stride: int) -> None:
        """A residual or bottleneck block with its projection where the shape changes."""
        size, channels = self.size, self.channels
        output = width * _EXPANSION[kind]
        if channels != output or stride != 1:
            self.convolve(output, 1, stride)
            self.size, self.channels = size, channels
        if kind == "residual":
            self.convolve(width, 3, stride)
            self.convolve(width, 3, 1)
        else:
            self.convolve(width, 1, 1)
            self.convolve(width, 3, stride)
            self.convolve(output, 1, 1)
