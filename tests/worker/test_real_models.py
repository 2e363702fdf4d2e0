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


AVERAGE_POOLING = (layers.AveragePooling2D, layers.GlobalAveragePooling2D)
CONVOLUTIONS = (layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv2D)
PRODUCTS = (*CONVOLUTIONS, layers.Dense, layers.MaxPooling2D, *AVERAGE_POOLING)
#: Layers whose outputs are their inputs, or a part or a repetition of the inputs.
VIEWS = (layers.ZeroPadding2D, layers.Concatenate, layers.Dropout, layers.Reshape, layers.Flatten)
VIEWS += (layers.UpSampling2D, layers.Cropping2D)


class Graph:
    """Graph of the layer calls on which a model's outputs depend.

    Attributes:
        calls: Layer, inputs and output of each call, by the id of the output.
        readers: Layers that read a tensor, by the id of the tensor.
    """

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

    def rectifier_sources(self, tensor: Any) -> list[Any]:
        """Return the stored tensors that a rectifier reads for `tensor`.

        Normalization and addition happen during that read, and channels of zeros are never stored.
        """
        operation, inputs, _ = self.calls[id(tensor)]
        if self.is_stored_sum(tensor):
            return [tensor]
        if isinstance(operation, (layers.BatchNormalization, layers.Add, Pad, *VIEWS)):
            return [source for each in inputs for source in self.rectifier_sources(each)]
        return [tensor]

    def is_stored_sum(self, tensor: Any) -> bool:
        """Return whether the sum of a normalized tensor and a shortcut is stored.

        It is stored if any layer other than a rectifier reads it.
        """
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


def count_elements(tensors: list[Any]) -> int:
    return sum(math.prod(tensor.shape[1:]) for tensor in tensors)


@pytest.mark.parametrize("name", IMAGES)
def test_parameters_and_activations_equal_those_of_keras_layers(
    workloads: dict[str, BuiltModel], name: str
) -> None:
    """Compare analytic costs with the reads, writes and kept tensors of the model's graph."""
    built = workloads[name].model
    costs = make_model(IMAGES[name]).costs(**STEP)
    assert costs.parameters == sum(math.prod(v.shape) for v in built.trainable_variables)
    assert costs.parameters + costs.non_trainable_parameters == built.count_params()
    graph = Graph(built)
    read = 0
    written = 0
    kept = 0
    for operation, inputs, output in graph.calls.values():
        if isinstance(operation, PRODUCTS):
            read += count_elements(graph.sources(inputs[0]))
            written += count_elements([output])
            # The gradient of average pooling needs no input, so the input is not kept.
            is_averaged = all(
                isinstance(each, AVERAGE_POOLING) for each in graph.readers.get(id(output), [None])
            )
            kept += 0 if is_averaged else count_elements([output])
            if isinstance(operation, layers.SeparableConv2D):
                # The depthwise convolution writes a tensor that the pointwise one reads.
                intermediate = math.prod(output.shape[1:3]) * inputs[0].shape[-1]
                read += intermediate
                written += intermediate
                kept += intermediate
        elif rectifies(operation) and not isinstance(graph.calls[id(inputs[0])][0], PRODUCTS):
            read += count_elements(graph.rectifier_sources(inputs[0]))
            written += count_elements([output])
        elif graph.is_stored_sum(output):
            read += sum(count_elements(graph.rectifier_sources(each)) for each in inputs)
            written += count_elements([output])
        elif isinstance(operation, TrueDivide):  # a response normalization
            read += count_elements(graph.sources(inputs[0]))
            written += count_elements([output])
            kept += count_elements([output])
        elif isinstance(operation, layers.Add) and not any(
            map(rectifies, graph.readers[id(output)])
        ):
            # The sum is computed where the first branch is written, and reads the second branch.
            read += count_elements(graph.sources(inputs[1]))
    inference = make_model(IMAGES[name]).costs(**{**STEP, "mode": "inference"})
    assert inference.bytes_per_step == 4 * (built.count_params() + 2 * (read + written))
    batch = count_elements(built.inputs) + sum(
        math.prod(spec.shape) for spec in workloads[name].targets
    )
    assert costs.memory_lower_bound_bytes == 4 * (built.count_params() + 2 * (batch + kept))


@pytest.mark.parametrize("name", IMAGES)
def test_flops_equal_those_of_tensorflows_counter(
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


LOW_PRECISIONS = {"densenet121": "bfloat16", "mobilenet": "float16", "retinanet": "float16"}


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("name", "precision"), LOW_PRECISIONS.items())
def test_low_precision_has_a_finite_loss_and_float32_outputs(name: str, precision: str) -> None:
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


def test_the_detection_loss_agrees_with_its_papers() -> None:
    """Compare with equation 5 of the focal loss and equation 3 of Fast R-CNN's smooth L1.

    The reference loops over the anchors.
    """
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 3, (2, 5, 3)).astype("float32")
    boxes = generator.normal(0, 2, (2, 5, 4)).astype("float32")
    predicted = generator.normal(0, 2, (2, 5, 4)).astype("float32")
    classes = np.array([[0, 1, -1, 3, 0], [2, 0, 0, -1, 0]], "int32")
    total = 0.0
    for place in np.ndindex(2, 5):
        if classes[place] < 0:
            continue
        for index in range(3):
            probability = 1 / (1 + math.exp(-logits[place][index]))
            is_target = classes[place] == index + 1
            if is_target:
                p = probability
                alpha = 0.25
            else:
                p = 1 - probability
                alpha = 0.75
            total += -alpha * (1 - p) ** 2 * math.log(p)
        if classes[place] > 0:
            distances = np.abs(predicted[place] - boxes[place])
            total += sum(0.5 * d * d if d < 1 else d - 0.5 for d in distances)
    loss = detection_loss(
        [tf.constant(classes), tf.constant(boxes)], [tf.constant(logits), tf.constant(predicted)]
    )
    assert float(loss) == pytest.approx(total / 3, rel=1e-5)
    without_objects = detection_loss(
        [tf.zeros([2, 5], "int32"), boxes], [tf.constant(logits), tf.constant(predicted)]
    )
    assert math.isfinite(float(without_objects))
