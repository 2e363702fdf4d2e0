"""Layers of the real models of images; see `paradnn.worker.models.applications`, `.squeezenet` and `.retinanet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paradnn.costs.cnn import residual_block
from paradnn.costs.fc import dense
from paradnn.costs.images import Images
from paradnn.costs.layers import Convolve, Layer

__all__ = [
    "densenet121_layers",
    "detector_layers",
    "mobilenet_layers",
    "resnet50_layers",
    "retinanet_layers",
    "squeezenet_layers",
]

#: Anchors of a place, numbers of a box, channels of the pyramid and the heads (Lin et al. 2017).
_ANCHORS, _BOX, _PYRAMID = 9, 4, 256


def resnet50_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Keras' ResNet-50."""
    network = Images(model["image_size"], model["image_size"])
    _resnet50(network)
    network.average()
    return [*network.layers, dense("logits", network.channels, model["output_size"], is_last=True)]


def _resnet50(network: Images) -> list[tuple[int, int, int]]:
    """Stem and four groups of blocks; returns the shape of each group's output.

    As first published the stride sits on a block's first convolution; Keras' convolutions have a bias besides.
    """
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


def densenet121_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Keras' DenseNet-121: each layer normalises all features before it and adds 32; halved between four blocks."""
    network = Images(model["image_size"], model["image_size"])
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
    network.average()
    return [*network.layers, dense("logits", network.channels, model["output_size"], is_last=True)]


def mobilenet_layers(model: Mapping[str, Any]) -> list[Layer]:
    """Keras' MobileNet: a convolution, thirteen pairs of a depthwise and a pointwise one, all normalised."""
    alpha = model["alpha"]
    network = Images(model["image_size"], model["image_size"])
    network.convolve(int(32 * alpha), 3, 2, is_first=True)
    network.normalise()
    previous = 64
    for filters in (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024):
        shrinks = filters != previous
        network.convolve(None, 3, 2 if shrinks else 1, padding="end" if shrinks else "same")
        network.normalise()
        network.convolve(int(filters * alpha), 1)
        network.normalise()
        previous = filters
    network.average()
    return [*network.layers, dense("logits", network.channels, model["output_size"], is_last=True)]


def squeezenet_layers(model: Mapping[str, Any]) -> list[Layer]:
    """SqueezeNet 1.0: eight fire modules of a squeezing 1x1 and expanding 1x1 and 3x3 convolutions, all with bias."""
    network = Images(model["image_size"], model["image_size"])
    network.convolve(96, 7, 2, padding="valid", bias=True, is_first=True)
    network.pool(3, 2, "whole")
    for index, squeezed in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        network.convolve(squeezed, 1, bias=True)
        shape = network.shape
        network.convolve(4 * squeezed, 1, bias=True)
        network.shape = shape
        network.convolve(4 * squeezed, 3, bias=True)
        network.channels = 8 * squeezed
        if index in (2, 6):
            network.pool(3, 2, "whole")
    network.convolve(model["output_size"], 1, bias=True, is_kept=False)
    network.average(is_last=True)
    return network.layers


def retinanet_layers(model: Mapping[str, Any]) -> list[Layer]:
    """RetinaNet over square images."""
    return detector_layers(model["image_size"], model["image_size"], model["output_size"])


def detector_layers(height: int, width: int, classes: int) -> list[Layer]:
    """RetinaNet on a ResNet-50: backbone, pyramid P3 to P7, heads of classes and boxes.

    Upward, the coarser level's pixels are repeated and added to the finer's 1x1 convolution, which is one layer with
    that addition. A head's convolution over all levels is one use of its weights, as a recurrent cell's over time is.
    """
    network = Images(height, width)
    _, *features = _resnet50(network)
    places, coarser = [], 0
    for shape in reversed(features):
        network.shape = shape
        network.convolve(_PYRAMID, 1, bias=True, added=coarser)
        coarser = network.elements
        network.convolve(_PYRAMID, 3, bias=True)
        places.append(network.shape[0] * network.shape[1])
    network.shape = features[-1]
    for _ in range(2):
        network.convolve(_PYRAMID, 3, 2, bias=True)
        places.append(network.shape[0] * network.shape[1])
    everywhere = sum(places)
    towers = [_shared("tower", everywhere, _PYRAMID)] * 4
    return [
        *network.layers,
        *towers,
        _shared("classes", everywhere, _ANCHORS * classes, targets=_ANCHORS * everywhere),
        *towers,
        _shared("boxes", everywhere, _ANCHORS * _BOX, targets=_ANCHORS * _BOX * everywhere),
    ]


def _shared(name: str, places: int, filters: int, *, targets: int = 0) -> Layer:
    """A head's 3x3 convolution over the places of all levels, as if they stood in one column; the last one's outputs
    are compared with `targets`."""
    weights = 9 * _PYRAMID * filters
    return Layer(
        name,
        macs=weights * places,
        parameters=weights + filters,
        weights=weights,
        read=places * _PYRAMID,
        written=places * filters,
        kept=places * filters,
        is_last=targets > 0,
        targets=targets,
        products=(Convolve(_PYRAMID, places, 1, filters, 3, 1, 1),),
    )
