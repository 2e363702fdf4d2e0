"""ResNet-50, DenseNet-121 and MobileNet as Keras ships them, weight-free: nothing is downloaded.

`keras.applications` gives the networks in their papers' form: ResNet-50 with the stride on a block's first convolution
and a bias in every convolution (25,636,712 numbers, moving statistics included, where others have 25,557,032 without
bias and statistics; for the form with the stride on the 3x3 convolution see `paradnn.worker.models.cnn`), DenseNet-121
with growth 32 and half the features after a block, MobileNet with a dropout of 0.001. Batch normalisation and dropout
are part of a training step and are timed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers

from paradnn.worker.models.workload import ArraySpec, Workload, cross_entropy

__all__ = ["build_densenet121", "build_mobilenet", "build_resnet50", "classifier", "images"]


def build_resnet50(model: Mapping[str, Any]) -> Workload:
    """Inputs (batch, image_size, image_size, 3) float32, targets (batch,) classes; so are those of the others."""
    return _application(keras.applications.ResNet50, model)


def build_densenet121(model: Mapping[str, Any]) -> Workload:
    """Dense blocks of 6, 12, 24 and 16 layers."""
    return _application(keras.applications.DenseNet121, model)


def build_mobilenet(model: Mapping[str, Any]) -> Workload:
    """The first MobileNet, every layer `alpha` times as wide."""
    return _application(keras.applications.MobileNet, model, alpha=model["alpha"])


def _application(make: Callable[..., keras.Model], model: Mapping[str, Any], **options: Any) -> Workload:
    inputs = images(model)
    network = make(
        input_tensor=inputs, weights=None, classes=model["output_size"], classifier_activation=None, **options
    )
    return classifier(inputs, network.output, model["output_size"])


def images(model: Mapping[str, Any]) -> Any:
    """The input of a model of images: (batch, image_size, image_size, 3) in float32, whatever the policy."""
    return keras.Input((model["image_size"], model["image_size"], 3), dtype="float32")


def classifier(inputs: Any, outputs: Any, classes: int) -> Workload:
    """A model from images to the float32 logits (batch, classes) of one class each."""
    logits = layers.Activation("linear", dtype="float32")(outputs)
    return Workload(
        keras.Model(inputs, logits),
        inputs=(ArraySpec(tuple(inputs.shape[1:]), "float32"),),
        targets=(ArraySpec((), "int32", classes),),
        loss=cross_entropy,
    )
