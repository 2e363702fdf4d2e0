"""RetinaNet (Lin et al. 2017, "Focal Loss for Dense Object Detection"): Keras' ResNet-50, a feature
pyramid, two heads.

Levels P3 to P7 with 256 channels, P6 made from the backbone's last output, P7 from P6. Two heads of
four 3x3 convolutions, shared by all levels, give for nine anchors a place the logits of each class
and four numbers of a box. A step's targets are what a matching of boxes with anchors makes, which
input pipelines do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from paradnn.core.layers import Layer
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import ArraySpec, BuiltModel, image_input
from paradnn.families.images import ImageNetwork, resnet50

#: Anchors of each place: three sizes in three shapes. Numbers of a box, channels of the pyramid and
#: the heads.
ANCHORS = 9
_BOX = 4
_PYRAMID = 256
#: Share of anchors that no object belongs to: the paper's example of the imbalance is 1 : 1000.
_BACKGROUND = 0.999
_PRIOR = 0.01
_ALPHA = 0.25
_GAMMA = 2.0


@dataclass(frozen=True)
class RetinaNet(Model):
    """A detector: ResNet-50, a feature pyramid P3 to P7, two heads over nine anchors a place (Lin
    et al. 2017).
    """

    convolves: ClassVar[bool] = True
    size_template: ClassVar[str] = "{image_size}px"

    name: str = "retinanet"
    image_size: int = option(
        320, "height and width of the image (paper: 400..800)", low=32, high=100_000
    )
    output_size: int = option(80, "classes of objects (COCO: 80)", low=1)

    def layer_list(self) -> list[Layer]:
        return detector_layers(self.image_size, self.image_size, self.output_size)

    def build(self) -> BuiltModel:
        """Inputs (batch, image_size, image_size, 3); targets and outputs as of `detection_loss`, in
        float32. Anchors go by level from P3, rows, columns, then the nine of a place.
        """
        import keras

        inputs = image_input(self.image_size)
        backbone = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=inputs)
        names = ("conv3_block4_out", "conv4_block6_out", "conv5_block3_out")
        levels = _pyramid([backbone.get_layer(name).output for name in names])
        logits = _head(levels, self.output_size, "classes", -math.log((1 - _PRIOR) / _PRIOR))
        boxes = _head(levels, _BOX, "boxes", 0.0)
        anchors = int(logits.shape[1])
        wanted = ArraySpec((anchors,), "int32", self.output_size + 1, zeros=_BACKGROUND)
        return BuiltModel(
            keras.Model(inputs, [logits, boxes]),
            inputs=(ArraySpec(tuple(inputs.shape[1:]), "float32"),),
            targets=(wanted, ArraySpec((anchors, _BOX), "float32")),
            loss=detection_loss,
        )


def detector_layers(height: int, width: int, classes: int) -> list[Layer]:
    """RetinaNet on a ResNet-50: backbone, pyramid P3 to P7, heads of classes and boxes. A level's
    1x1 convolution takes in the addition of the coarser one; a head's convolution over all levels
    is one use of its weights.
    """
    network = ImageNetwork(height, width)
    _, *features = resnet50(network)
    places = 0
    coarser = 0
    for shape in reversed(features):
        network.shape = shape
        network.convolve(_PYRAMID, 1, bias=True, added=coarser)
        coarser = network.elements
        network.convolve(_PYRAMID, 3, bias=True)
        places += network.height * network.width
    network.shape = features[-1]
    for _ in range(2):
        network.convolve(_PYRAMID, 3, 2, bias=True)
        places += network.height * network.width

    def shared(name: str, filters: int, targets: int = 0) -> Layer:
        """A head's 3x3 convolution over the places of all levels, as if they stood in one column;
        the last one's outputs are compared with so many `targets` a place.
        """
        head = ImageNetwork(places, 1, _PYRAMID)
        head.convolve(filters, 3, bias=True)
        return replace(head.layers[0], name=name, is_last=targets > 0, targets=targets * places)

    towers = [shared("tower", _PYRAMID)] * 4
    of_classes = shared("classes", ANCHORS * classes, ANCHORS)
    of_boxes = shared("boxes", *(ANCHORS * _BOX,) * 2)
    return [*network.layers, *towers, of_classes, *towers, of_boxes]


def _pyramid(features: Sequence[Any]) -> list[Any]:
    """P3 to P7 from C3 to C5: coarse levels are repeated twofold, less a last row or column that
    the finer level has not, and added to the finer ones.
    """
    from keras import layers

    pyramid: list[Any] = []
    merged = None
    for level, feature in zip((5, 4, 3), reversed(features), strict=True):
        above = merged
        merged = _convolve(1, f"lateral_{level}")(feature)
        if above is not None:
            coarse = layers.UpSampling2D(2)(above)
            over = tuple((0, coarse.shape[axis] - merged.shape[axis]) for axis in (1, 2))
            merged = layers.Add()(
                [merged, layers.Cropping2D(over)(coarse) if any(map(any, over)) else coarse]
            )
        pyramid.insert(0, _convolve(3, f"pyramid_{level}")(merged))
    pyramid.append(_convolve(3, "pyramid_6", strides=2)(features[-1]))
    return [*pyramid, _convolve(3, "pyramid_7", strides=2)(layers.ReLU()(pyramid[-1]))]


def _head(levels: Sequence[Any], numbers: int, name: str, bias: float) -> Any:
    """(batch, anchors, numbers) in float32, of all levels one after the other."""
    import keras
    from keras import layers

    normal = keras.initializers.RandomNormal(stddev=0.01)
    start = keras.initializers.Constant(bias)
    tower = [
        _convolve(3, f"{name}_{index}", activation="relu", kernel_initializer=normal)
        for index in range(4)
    ]
    tower.append(
        _convolve(3, name, ANCHORS * numbers, kernel_initializer=normal, bias_initializer=start)
    )
    flat = []
    for x in levels:
        for layer in tower:
            x = layer(x)
        flat.append(layers.Reshape((-1, numbers))(x))
    return layers.Activation("linear", dtype="float32", name=f"{name}_of_anchors")(
        layers.Concatenate(axis=1)(flat)
    )


def _convolve(kernel: int, name: str, filters: int = _PYRAMID, **options: Any) -> Any:
    from keras import layers

    return layers.Conv2D(filters, kernel, padding="same", name=name, **options)


def detection_loss(targets: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Focal loss of the classes (alpha 0.25, gamma 2) and smooth L1 of the boxes, both over the
    number of positives. targets: classes (batch, anchors), 0: background, -1: counts for nothing,
    and boxes (batch, anchors, 4); outputs: logits (batch, anchors, classes), boxes.
    """
    from keras import ops

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


FAMILY = Family(
    "retinanet",
    RetinaNet,
    "images",
    is_real=True,
    order=12,
    # Pyramid and heads have no normalisation: they diverge at ParaDnn's rate of 0.1 (RetinaNet's
    # paper: 0.01).
    defaults={"learning": {"learning_rate": 0.001}},
)
