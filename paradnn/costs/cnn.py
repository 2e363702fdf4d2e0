"""Layers of the residual and bottleneck families; see `paradnn.worker.models.cnn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paradnn.costs.fc import dense
from paradnn.costs.images import Images
from paradnn.costs.layers import Layer

__all__ = ["cnn_layers", "residual_block"]

_EXPANSION = {"residual": 1, "bottleneck": 4}


def cnn_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Stem, groups of blocks, classifier. SAME padding: a stride of 2 gives ceil(size / 2)."""
    network = Images(model["image_size"], model["image_size"])
    is_small = len(model["blocks"]) == 3
    network.convolve(model["filters"], *((3, 1) if is_small else (7, 2)), is_first=True)
    network.normalise()
    if not is_small:
        network.pool(3, 2)
    for group, count in enumerate(model["blocks"]):
        for index in range(count):
            width, stride = model["filters"] * 2**group, 2 if group > 0 and index == 0 else 1
            residual_block(network, _convolutions(model["name"], width, stride), projects=not is_small)
    network.average()
    return [*network.layers, dense("logits", network.channels, model["output_size"], is_last=True)]


def _convolutions(kind: str, width: int, stride: int) -> list[tuple[int, int, int]]:
    """Filters, kernel and stride of each convolution of a block."""
    if kind == "residual":
        return [(width, 3, stride), (width, 3, 1)]
    return [(width, 1, 1), (width, 3, stride), (width * _EXPANSION[kind], 1, 1)]


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
