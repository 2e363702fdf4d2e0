"""Costs of the real models of images against what their papers and the projects that maintain them publish."""

from typing import Any

import pytest

from paradnn.families import model_of
from paradnn.families.retinanet import detector_layers

STEP = {"batch_size": 1, "precision": "float32", "mode": "train", "optimizer": "sgd"}
#: Biases of ResNet-50's convolutions, which Keras has and others have not: as many as normalised channels.
CHANNELS = 26_560


def model(name: str, image_size: int = 224, **keys: Any) -> dict:
    return {"name": name, "image_size": image_size, "output_size": 1000, **keys}


#: Exact counts of trainable parameters: torchvision's pages of resnet50, densenet121 and squeezenet1_0 (the last one's
#: total is in table 1 of its paper too); Keras' summary of MobileNet without its moving statistics.
PARAMETERS = [
    (model("bottleneck", blocks=[3, 4, 6, 3], filters=64), 25_557_032),
    (model("residual", blocks=[2, 2, 2, 2], filters=64), 11_689_512),
    # 0.85M in He et al. 2016, Table 6: 55 convolutions, their normalisations, and 64 x 10 + 10 of the classifier.
    (model("residual", 32, blocks=[9, 9, 9], filters=16) | {"output_size": 10}, 853_018),
    (model("resnet50"), 25_557_032 + CHANNELS),
    (model("densenet121"), 7_978_856),
    (model("mobilenet", alpha=1.0), 4_231_976),
    (model("squeezenet"), 1_248_424),
    # Caffe's bvlc_alexnet; torchvision's page of vgg16; Inception v1 without its auxiliary classifiers.
    (model("alexnet", 227), 60_965_224),
    (model("vgg16"), 138_357_544),
    (model("googlenet"), 6_998_552),
]


@pytest.mark.parametrize(("asked", "published"), PARAMETERS, ids=lambda value: str(value))
def test_parameters_are_the_published_ones(asked: dict, published: int) -> None:
    assert model_of(asked).costs(**STEP).parameters == published


def test_the_detectors_parameters_are_detectron2s() -> None:
    """Its test of the analysis expects 37,915,572 without the scales and offsets of frozen normalisation."""
    asked = {"name": "retinanet", "image_size": 320, "output_size": 80}
    assert model_of(asked).costs(**STEP).parameters - CHANNELS - 2 * CHANNELS == 37_915_572


#: Multiply-accumulates of a forward pass, as printed: He et al. 2016, table 1 (stride on the first convolution, as in
#: Keras); torchvision's pages of densenet121 and squeezenet1_0; Howard et al. 2017, table 8: 569 M of a full MobileNet,
#: 149 M at half the width (table 6), 418 M at 192 px (table 7); Lu et al., "Modeling the Resource Requirements of
#: Convolutional Neural Networks on Mobile Devices", 2017: 666 + 59 M and 15,360 + 124 M of convolutions and dense
#: layers. Szegedy et al. 2014, table 1, its rows of multiply-adds added up: 1.5 to 1.6 G.
WORK = [
    (model("resnet50"), 3.8e9, 0.02),
    (model("densenet121"), 2.83e9, 0.005),
    (model("squeezenet"), 0.82e9, 0.005),
    (model("mobilenet", alpha=1.0), 569e6, 0.001),
    (model("mobilenet", alpha=0.5), 149e6, 0.005),
    (model("mobilenet", 192, alpha=1.0), 418e6, 0.001),
    (model("alexnet", 227), 725e6, 0.001),
    (model("vgg16"), 15_484e6, 0.001),
    (model("googlenet"), 1.55e9, 0.04),
]


@pytest.mark.parametrize(("asked", "published", "rounding"), WORK, ids=lambda value: str(value))
def test_forward_work_is_the_published(asked: dict, published: float, rounding: float) -> None:
    assert model_of(asked).costs(**STEP).forward_flops / 2 == pytest.approx(published, rel=rounding)


def test_the_detectors_work_is_detectron2s() -> None:
    """Its test of the analysis expects 146 (cut to whole) for all convolutions at 800 x 800."""
    assert int(sum(layer.macs for layer in detector_layers(800, 800, 80)) / 1e9) == 146
