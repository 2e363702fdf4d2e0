"""RetinaNet (Lin et al. 2017, "Focal Loss for Dense Object Detection").

The backbone is Keras' ResNet-50. The feature pyramid has levels P3 to P7 of 256 channels: P6 is
computed from the backbone's last output, and P7 from P6. There are nine anchors per position. For
each anchor, one head predicts the logits of the classes, and another head predicts four coordinates
of a box. All levels share the weights of the heads. A head has four 3x3 convolutions and an output
convolution. The targets of a step are anchors that are already matched with boxes, because matching
belongs to the input pipeline.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from paradnn.core.layers import Layer
from paradnn.core.schema import option
from paradnn.families import Family, Model
from paradnn.families.built import ArraySpec, BuiltModel, image_input
from paradnn.families.images import ImageNetwork, resnet

#: Anchors per position: three sizes in three shapes.
ANCHORS = 9
#: Number of coordinates of a box.
_BOX_NUMBERS = 4
#: Channels of the pyramid and of the heads.
_CHANNELS = 256
#: Fraction of anchors without an object. The paper's example is a ratio of 1 : 1000 between anchors
#: with and without an object.
_BACKGROUND = 0.999
#: Initial probability of an object, which sets the bias of the class head.
_PRIOR = 0.01
#: Parameters of the focal loss: weight of anchors with an object, and exponent.
_ALPHA = 0.25
_GAMMA = 2.0


@dataclass(frozen=True)
class RetinaNet(Model):
    """A detector: ResNet-50, a feature pyramid P3 to P7, and two heads over nine anchors per
    position (Lin et al. 2017).
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
        """Build the model in Keras.

        Inputs are (batch, image_size, image_size, 3) float32. `detection_loss` documents targets
        and outputs. Anchors are ordered by level from P3 to P7, then by row, by column, and by
        number at the position.
        """
        import keras

        inputs = image_input(self.image_size)
        backbone = keras.applications.ResNet50(include_top=False, weights=None, input_tensor=inputs)
        names = ("conv3_block4_out", "conv4_block6_out", "conv5_block3_out")
        levels = _pyramid([backbone.get_layer(name).output for name in names])
        logits = _head(levels, self.output_size, "classes", -math.log((1 - _PRIOR) / _PRIOR))
        boxes = _head(levels, _BOX_NUMBERS, "boxes", 0.0)
        anchors = int(logits.shape[1])
        classes = ArraySpec((anchors,), "int32", self.output_size + 1, zeros=_BACKGROUND)
        return BuiltModel(
            keras.Model(inputs, [logits, boxes]),
            inputs=(ArraySpec(tuple(inputs.shape[1:]), "float32"),),
            targets=(classes, ArraySpec((anchors, _BOX_NUMBERS), "float32")),
            loss=detection_loss,
        )


def detector_layers(height: int, width: int, classes: int) -> list[Layer]:
    """Return the layers of the backbone, the pyramid P3 to P7, and the heads of classes and boxes.

    The costs of a level's 1x1 convolution include the addition of the coarser level. A convolution
    of a head reads its weights once for all levels.

    Args:
        height: Height of the image, in pixels.
        width: Width of the image, in pixels.
        classes: Number of classes.
    """
    network = ImageNetwork(height, width)
    _, *features = resnet(network)
    positions = 0
    coarser_elements = 0
    for shape in reversed(features):
        network.shape = shape
        network.convolve(_CHANNELS, 1, bias=True, added=coarser_elements)
        coarser_elements = network.elements
        network.convolve(_CHANNELS, 3, bias=True)
        positions += network.height * network.width
    network.shape = features[-1]
    for _ in range(2):
        network.convolve(_CHANNELS, 3, 2, bias=True)
        positions += network.height * network.width

    def shared(name: str, filters: int, targets: int = 0) -> Layer:
        """Return a 3x3 convolution of a head, which runs on all levels of the pyramid.

        The positions of all levels form one column, because the levels share the weights.

        Args:
            name: Name of the layer.
            filters: Output channels.
            targets: For an output convolution, number of targets per position; otherwise 0.
        """
        head = ImageNetwork(positions, 1, _CHANNELS)
        head.convolve(filters, 3, bias=True)
        return replace(head.layers[0], name=name, is_last=targets > 0, targets=targets * positions)

    towers = [shared("tower", _CHANNELS)] * 4
    class_logits = shared("classes", ANCHORS * classes, targets=ANCHORS)
    boxes = shared("boxes", ANCHORS * _BOX_NUMBERS, targets=ANCHORS * _BOX_NUMBERS)
    return [*network.layers, *towers, class_logits, *towers, boxes]


def _pyramid(features: Sequence[Any]) -> list[Any]:
    """Build the levels P3 to P7 of the feature pyramid.

    A coarser level is upsampled by 2 and added to the next finer level. If the upsampled level has
    one row or column more than the finer level, its last row or column is cropped.

    Args:
        features: Outputs C3 to C5 of the backbone, at strides of 8, 16 and 32 pixels.
    """
    from keras import layers

    pyramid: list[Any] = []
    merged = None
    for level, feature in zip((5, 4, 3), reversed(features), strict=True):
        coarser = merged
        merged = _convolve(1, f"lateral_{level}")(feature)
        if coarser is not None:
            upsampled = layers.UpSampling2D(2)(coarser)
            excess = [upsampled.shape[axis] - merged.shape[axis] for axis in (1, 2)]
            if any(excess):
                upsampled = layers.Cropping2D(tuple((0, size) for size in excess))(upsampled)
            merged = layers.Add()([merged, upsampled])
        pyramid.insert(0, _convolve(3, f"pyramid_{level}")(merged))
    pyramid.append(_convolve(3, "pyramid_6", strides=2)(features[-1]))
    return [*pyramid, _convolve(3, "pyramid_7", strides=2)(layers.ReLU()(pyramid[-1]))]


def _head(levels: Sequence[Any], numbers: int, name: str, bias: float) -> Any:
    """Build a head and apply it to all levels, which share its weights.

    Args:
        levels: The levels P3 to P7 of the pyramid.
        numbers: Number of outputs per anchor.
        name: Name of the head.
        bias: Initial bias of the output convolution.

    Returns:
        The outputs (batch, anchors, numbers) in float32, in the order of the levels.
    """
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


def _convolve(kernel: int, name: str, filters: int = _CHANNELS, **options: Any) -> Any:
    from keras import layers

    return layers.Conv2D(filters, kernel, padding="same", name=name, **options)


def detection_loss(targets: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return the focal loss of the classes plus the smooth L1 loss of the boxes.

    The sum of the two losses is divided by the number of anchors with an object, or by 1 if no
    anchor has an object. The focal loss has alpha 0.25 and gamma 2.

    Args:
        targets: Classes (batch, anchors) int32 from 1, with 0 for background and -1 for ignored
            anchors; boxes (batch, anchors, 4) float32.
        outputs: Logits (batch, anchors, classes), and predicted boxes (batch, anchors, 4).
    """
    from keras import ops

    classes, boxes = targets
    logits, predicted_boxes = outputs
    is_positive = ops.cast(ops.greater(classes, 0), "float32")
    is_counted = ops.cast(ops.greater_equal(classes, 0), "float32")
    class_numbers = ops.arange(1, logits.shape[-1] + 1, dtype="int32")
    truth = ops.cast(ops.equal(ops.expand_dims(classes, -1), class_numbers), "float32")
    entropy = ops.softplus(logits) - truth * logits
    probability = ops.sigmoid(logits)
    error = truth * (1.0 - probability) + (1.0 - truth) * probability
    weight = truth * _ALPHA + (1.0 - truth) * (1.0 - _ALPHA)
    focal = ops.sum(weight * ops.power(error, _GAMMA) * entropy, axis=-1)
    distance = ops.abs(predicted_boxes - boxes)
    smooth = ops.where(distance < 1.0, 0.5 * distance * distance, distance - 0.5)
    total = ops.sum(focal * is_counted) + ops.sum(ops.sum(smooth, axis=-1) * is_positive)
    return total / ops.maximum(ops.sum(is_positive), 1.0)


FAMILY = Family(
    "retinanet",
    RetinaNet,
    "images",
    is_real=True,
    order=12,
    # Pyramid and heads have no normalization, so they diverge at the learning rate of the ParaDnn
    # paper, 0.1. The RetinaNet paper uses 0.01.
    defaults={"learning": {"learning_rate": 0.001}},
)
