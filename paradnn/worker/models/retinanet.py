"""RetinaNet (Lin et al. 2017, "Focal Loss for Dense Object Detection"): Keras' ResNet-50, a feature pyramid, two heads.

Levels P3 to P7 with 256 channels, P6 made from the backbone's last output, P7 from P6. Two heads of four 3x3
convolutions, shared by all levels, give for nine anchors a place the logits of each class and four numbers of a box.
The classes' last bias says at first that one anchor in a hundred is an object. The backbone's batch normalisation is
trained, since nothing is pretrained here.

A step's targets are what a matching of boxes with anchors makes, which input pipelines do: for each anchor a class and
the four numbers that its box should have, relative to the anchor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers, ops

from paradnn.worker.models.applications import images
from paradnn.worker.models.workload import ArraySpec, Workload

__all__ = ["ANCHORS", "build_retinanet", "detection_loss"]

#: Anchors of each place: three sizes in three shapes.
ANCHORS = 9
#: Share of anchors that no object belongs to: the paper's example of the imbalance is 1 : 1000.
_BACKGROUND = 0.999
_PRIOR, _ALPHA, _GAMMA = 0.01, 0.25, 2.0


def build_retinanet(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, image_size, image_size, 3) float32; targets classes (batch, anchors), boxes (batch, anchors, 4).

    A class of 0 is none, 1 and on an object's, -1 not to be counted. Outputs are logits (batch, anchors, classes) and
    boxes, in float32.

    Anchors go by level from P3, rows, columns, then the nine of a place.
    """
    classes = model["output_size"]
    inputs = images(model)
    backbone = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=inputs)
    names = ("conv3_block4_out", "conv4_block6_out", "conv5_block3_out")
    levels = _pyramid([backbone.get_layer(name).output for name in names])
    logits = _head(levels, classes, "classes", -math.log((1 - _PRIOR) / _PRIOR))
    boxes = _head(levels, 4, "boxes", 0.0)
    anchors = int(logits.shape[1])
    return Workload(
        keras.Model(inputs, [logits, boxes]),
        inputs=(ArraySpec(tuple(inputs.shape[1:]), "float32"),),
        targets=(ArraySpec((anchors,), "int32", classes + 1, zeros=_BACKGROUND), ArraySpec((anchors, 4), "float32")),
        loss=detection_loss,
    )


def _pyramid(features: Sequence[Any]) -> list[Any]:
    """P3 to P7 from C3 to C5: coarse levels are repeated twofold and added to the finer ones."""
    pyramid: list[Any] = []
    above = None
    for level, feature in zip((5, 4, 3), reversed(features), strict=True):
        merged = _convolve(256, 1, f"lateral_{level}")(feature)
        if above is not None:
            merged = layers.Add()([merged, _enlarged(above, merged)])
        pyramid.insert(0, _convolve(256, 3, f"pyramid_{level}")(merged))
        above = merged
    pyramid.append(_convolve(256, 3, "pyramid_6", strides=2)(features[-1]))
    pyramid.append(_convolve(256, 3, "pyramid_7", strides=2)(layers.ReLU()(pyramid[-1])))
    return pyramid


def _enlarged(coarse: Any, fine: Any) -> Any:
    """Every pixel twice in both directions, less a last row or column that the finer level has not."""
    x = layers.UpSampling2D(2)(coarse)
    over = [x.shape[axis] - fine.shape[axis] for axis in (1, 2)]
    return layers.Cropping2D(((0, over[0]), (0, over[1])))(x) if any(over) else x


def _head(levels: Sequence[Any], numbers: int, name: str, bias: float) -> Any:
    """(batch, anchors, numbers) in float32, of all levels one after the other."""
    normal = keras.initializers.RandomNormal(stddev=0.01)
    tower = [_convolve(256, 3, f"{name}_{index}", activation="relu", kernel_initializer=normal) for index in range(4)]
    start = keras.initializers.Constant(bias)
    tower.append(_convolve(ANCHORS * numbers, 3, name, kernel_initializer=normal, bias_initializer=start))
    flat = []
    for x in levels:
        for layer in tower:
            x = layer(x)
        flat.append(layers.Reshape((-1, numbers))(x))
    return layers.Activation("linear", dtype="float32", name=f"{name}_of_anchors")(layers.Concatenate(axis=1)(flat))


def _convolve(filters: int, kernel: int, name: str, **options: Any) -> Any:
    return layers.Conv2D(filters, kernel, padding="same", name=name, **options)


def detection_loss(targets: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Focal loss of the classes (alpha 0.25, gamma 2) and smooth L1 of the boxes, both over the number of positives.

    targets: classes (batch, anchors) and boxes (batch, anchors, 4); outputs: logits (batch, anchors, classes), boxes.
    An anchor of class 0 is background to every class, one of -1 counts for nothing; boxes count where an object is.
    """
    wanted, boxes = targets
    logits, located = outputs
    positive = ops.cast(ops.greater(wanted, 0), "float32")
    counted = ops.cast(ops.greater_equal(wanted, 0), "float32")
    numbers = ops.arange(1, logits.shape[-1] + 1, dtype="int32")
    truth = ops.cast(ops.equal(ops.expand_dims(wanted, -1), numbers), "float32")
    entropy = ops.softplus(logits) - truth * logits
    probability = ops.sigmoid(logits)
    wrong = truth * (1.0 - probability) + (1.0 - truth) * probability
    weight = truth * _ALPHA + (1.0 - truth) * (1.0 - _ALPHA)
    focal = ops.sum(weight * ops.power(wrong, _GAMMA) * entropy, axis=-1)
    distance = ops.abs(located - boxes)
    smooth = ops.where(distance < 1.0, 0.5 * distance * distance, distance - 0.5)
    total = ops.sum(focal * counted) + ops.sum(ops.sum(smooth, axis=-1) * positive)
    return total / ops.maximum(ops.sum(positive), 1.0)
