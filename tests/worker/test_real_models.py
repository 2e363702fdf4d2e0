"""Image models and their costs, compared with Keras' graph, TensorFlow's counter and real steps."""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.ops.numpy import Pad, TrueDivide

from paradnn.families import build, make_model
from paradnn.families.built import BuiltModel
from paradnn.families.retinanet import detection_loss
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.step import POLICIES, synthetic_batch
from tests.worker.counter import counted_flops, product_flops
from tests.worker.families import IMAGES, RMSPROP

STEP = {"batch_size": 2, "precision": "float32", "mode": "train", "optimizer": "sgd"}


@pytest.fixture(scope="module")
def workloads() -> Iterator[dict[str, BuiltModel]]:
    yield {name: build(model) for name, model in IMAGES.items()}
    keras.backend.clear_session()


MEANS = (layers.AveragePooling2D, layers.GlobalAveragePooling2D)
CONVOLUTIONS = (layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv2D)
PRODUCTS = (*CONVOLUTIONS, layers.Dense, layers.MaxPooling2D, *MEANS)
#: Layers whose outputs are their inputs, or a part or repetition of these.
VIEWS = (layers.ZeroPadding2D, layers.Concatenate, layers.Dropout, layers.Reshape, layers.Flatten)
VIEWS += (layers.UpSampling2D, layers.Cropping2D)


class Graph:
    """Graph of the layer calls that lead to a model's outputs, with each call's inputs and output."""

    def __init__(self, model: keras.Model) -> None:
        self.calls: dict[int, tuple[Any, list[Any], Any]] = {}
        stack = list(model.outputs)
        while stack:
            tensor = stack.pop()
            operation, index, _ = tensor._keras_history
            if id(tensor) in self.calls or isinstance(operation, layers.InputLayer):
                continue
            inputs = list(operation._inbound_nodes[index].input_tensors)
            self.calls[id(tensor)] = (operation, inputs, tensor)
            stack += inputs
        self.readers: dict[int, list[Any]] = {}
        for operation, inputs, _ in self.calls.values():
            for tensor in inputs:
                self.readers.setdefault(id(tensor), []).append(operation)

    def sources(self, tensor: Any) -> list[Any]:
        """Return the stored tensors that a product reads for `tensor`."""
        operation, inputs, _ = self.calls.get(id(tensor), (None, [], None))
        fused = rectifies(operation) and isinstance(self.calls[id(inputs[0])][0], PRODUCTS)
        if isinstance(operation, VIEWS) or fused:
            return [source for each in inputs for source in self.sources(each)]
        return [tensor]

    def makers(self, tensor: Any) -> list[Any]:
        """Return the stored tensors that a rectifier reads.

        Normalization and addition happen during that read, and channels of zeros are never stored.
        """
        operation, inputs, _ = self.calls[id(tensor)]
        if self.is_stored_sum(tensor):
            return [tensor]
        if isinstance(operation, (layers.BatchNormalization, layers.Add, Pad, *VIEWS)):
            return [maker for each in inputs for maker in self.makers(each)]
        return [tensor]

    def is_stored_sum(self, tensor: Any) -> bool:
        """Return whether a normalized tensor and a shortcut are added, and not only rectified."""
        operation, inputs, _ = self.calls[id(tensor)]
        if not isinstance(operation, layers.Add):
            return False
        is_normalized = any(
            isinstance(self.calls[id(each)][0], layers.BatchNormalization) for each in inputs
        )
        return is_normalized and not all(map(rectifies, self.readers[id(tensor)]))


def rectifies(operation: Any) -> bool:
    if isinstance(operation, layers.Activation):
        return operation.activation is keras.activations.relu
    return isinstance(operation, layers.ReLU)


def elements(tensors: list[Any]) -> int:
    return sum(math.prod(tensor.shape[1:]) for tensor in tensors)


@pytest.mark.parametrize("name", IMAGES)
def test_parameters_and_activations_are_those_of_keras_layers(
    workloads: dict[str, BuiltModel], name: str
) -> None:
    """Compare a forward pass's reads, writes and kept tensors with the built model's graph."""
    built = workloads[name].model
    costs = make_model(IMAGES[name]).costs(**STEP)
    assert costs.parameters == sum(math.prod(v.shape) for v in built.trainable_variables)
    assert costs.parameters + costs.non_trainable_parameters == built.count_params()
    graph = Graph(built)
    read = written = kept = 0
    for operation, inputs, output in graph.calls.values():
        if isinstance(operation, PRODUCTS):
            read += elements(graph.sources(inputs[0]))
            written += elements([output])
            # The gradient of a mean needs no input.
            averaged = all(
                isinstance(each, MEANS) for each in graph.readers.get(id(output), [None])
            )
            kept += 0 if averaged else elements([output])
            if isinstance(operation, layers.SeparableConv2D):
                # The depthwise convolution writes a tensor that the pointwise one reads.
                between = math.prod(output.shape[1:3]) * inputs[0].shape[-1]
                read += between
                written += between
                kept += between
        elif rectifies(operation) and not isinstance(graph.calls[id(inputs[0])][0], PRODUCTS):
            read += elements(graph.makers(inputs[0]))
            written += elements([output])
        elif graph.is_stored_sum(output):
            read += sum(elements(graph.makers(each)) for each in inputs)
            written += elements([output])
        elif isinstance(operation, TrueDivide):  # a response normalization
            read += elements(graph.sources(inputs[0]))
            written += elements([output])
            kept += elements([output])
        elif isinstance(operation, layers.Add) and not any(
            map(rectifies, graph.readers[id(output)])
        ):
            read += elements(graph.sources(inputs[1]))  # where the other branch is computed
    inference = make_model(IMAGES[name]).costs(**{**STEP, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (built.count_params() + 2 * (read + written))
    batch = elements(built.inputs) + sum(math.prod(spec.shape) for spec in workloads[name].targets)
    assert costs.memory_lower_bound_bytes == 4 * (built.count_params() + 2 * (batch + kept))


@pytest.mark.parametrize("name", IMAGES)
def test_flops_are_those_of_tensorflows_counter(
    workloads: dict[str, BuiltModel], name: str
) -> None:
    """Compare the forward pass, and the whole step unless its gradients take too long to trace."""
    workload = workloads[name]
    costs = make_model(IMAGES[name]).costs(**STEP)
    inputs, targets = (
        tuple(map(tf.constant, arrays)) for arrays in synthetic_batch(workload, 2, 0)
    )

    def forward():
        return workload.loss(targets, workload.model(inputs[0], training=True))

    def backward():
        with tf.GradientTape() as tape:
            loss = forward()
        return tape.gradient(loss, workload.model.trainable_variables)

    if name in ("resnet50", "resnet152", "densenet121", "resnet56", "inception_v3", "xception"):
        body = forward
    else:
        body = backward
    graph = tf.function(body).get_concrete_function().graph
    assert counted_flops(graph, forward=True) == costs.forward_flops
    assert product_flops(graph) == (costs.backward_flops if body is backward else 0)


LOW = {"densenet121": "bfloat16", "mobilenet": "float16", "retinanet": "float16"}


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("name", "precision"), LOW.items())
def test_low_precision_is_finite_and_ends_in_float32(name: str, precision: str) -> None:
    keras.config.set_dtype_policy(POLICIES[precision])
    keras.utils.set_random_seed(0)
    workload = build(IMAGES[name])
    inputs, targets = synthetic_batch(workload, 2, 0)
    assert math.isfinite(float(workload.loss(targets, workload.model(inputs[0], training=True))))
    assert {tensor.dtype for tensor in workload.model.outputs} == {"float32"}
    kernels = [
        layer for layer in workload.model.layers if isinstance(layer, (layers.Dense, layers.Conv2D))
    ]
    assert {layer.compute_dtype for layer in kernels} == {precision}
    if name == "mobilenet":  # the first step of the others is slow
        settings = {
            "mode": "train",
            "compile": "eager",
            "precision": precision,
            "optimizer": RMSPROP,
        }
        step = TensorFlow().make_step(workload, (inputs, targets), settings)
        assert all(math.isfinite(step.run(1)) for _ in range(3))


def test_the_detection_loss_is_the_papers() -> None:
    """Compare with equation 5 of the focal loss and equation 3 of Fast R-CNN's smooth L1.

    The reference loops over the anchors.
    """
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (2, 5, 3)).astype("float32")
    boxes, found = (generator.normal(0, 2, (2, 5, 4)).astype("float32") for _ in range(2))
    wanted = np.array([[0, 1, -1, 3, 0], [2, 0, 0, -1, 0]], "int32")
    total = 0.0
    for place in np.ndindex(2, 5):
        if wanted[place] < 0:
            continue
        for index in range(3):
            share = 1 / (1 + math.exp(-logits[place][index]))
            is_it = wanted[place] == index + 1
            p, alpha = (share, 0.25) if is_it else (1 - share, 0.75)
            total += -alpha * (1 - p) ** 2 * math.log(p)
        if wanted[place] > 0:
            apart = np.abs(found[place] - boxes[place])
            total += sum(0.5 * d * d if d < 1 else d - 0.5 for d in apart)
    loss = detection_loss(
        [tf.constant(wanted), tf.constant(boxes)], [tf.constant(logits), tf.constant(found)]
    )
    assert float(loss) == pytest.approx(total / 3, rel=1e-5)
    nothing = detection_loss(
        [tf.zeros([2, 5], "int32"), boxes], [tf.constant(logits), tf.constant(found)]
    )
    assert math.isfinite(float(nothing))
