"""The benchmark's models in plain Keras, their batches and initial weights; imports nothing of
ParaDnn.

Shared by `plain_tensorflow.py`, `plain_jax.py` and `plain_torch.py`, which set KERAS_BACKEND
before they import this.
"""

import argparse

import keras
import numpy as np

from benchmarks.turns import take_part

L = keras.layers

RATE = 0.1
DECAY = 0.9
MOMENTUM = 0.9
EPSILON = 1.0


def fc(layers, nodes, inputs, outputs):
    first = x = keras.Input((inputs,))
    for _ in range(layers):
        x = L.Dense(nodes, "relu")(x)
    return keras.Model(first, L.Dense(outputs)(x)), (inputs,), (), outputs


def conv(x, width, kernel, stride):
    return L.BatchNormalization(momentum=0.9, epsilon=1e-5)(
        L.Conv2D(width, kernel, stride, padding="same", use_bias=False)(x)
    )


def resnet(bottleneck, filters, size, outputs):
    first = keras.Input((size, size, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(L.ReLU()(conv(first, filters, 7, 2)))
    for group in range(4):
        width = filters * 2**group
        stride = 1 if group == 0 else 2
        out = 4 * width if bottleneck else width
        if bottleneck:
            y = L.ReLU()(conv(x, width, 1, 1))
            y = conv(L.ReLU()(conv(y, width, 3, stride)), out, 1, 1)
        else:
            y = conv(L.ReLU()(conv(x, width, 3, stride)), width, 3, 1)
        if x.shape[-1] == out and stride == 1:
            short = x
        else:
            short = conv(x, out, 1, stride)
        x = L.ReLU()(L.Add()([short, y]))
    x = L.Dense(outputs)(L.GlobalAveragePooling2D()(x))
    return keras.Model(first, x), (size, size, 3), (), outputs


def recurrent(cell, width, length, vocabulary):
    first = keras.Input((length,), dtype="int32")
    x = cell(width, return_sequences=True)(L.Embedding(vocabulary, width)(first))
    return keras.Model(first, L.Dense(vocabulary)(x)), (length,), (length,), vocabulary


def resnet50(size, outputs):
    model = keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=outputs, classifier_activation=None
    )
    return model, (size, size, 3), (), outputs


MODELS = {
    "fc": (lambda: fc(4, 512, 2000, 200), 128),
    "residual": (lambda: resnet(False, 16, 64, 500), 16),
    "bottleneck": (lambda: resnet(True, 16, 64, 500), 16),
    "rnn": (lambda: recurrent(L.SimpleRNN, 100, 10, 32), 64),
    "lstm": (lambda: recurrent(L.LSTM, 200, 10, 32), 64),
    "gru": (lambda: recurrent(L.GRU, 200, 10, 32), 64),
    "resnet50": (lambda: resnet50(224, 1000), 4),
}


def prepare(name):
    """Return a model with `first_weights`, inputs and targets (NumPy)."""
    make, batch = MODELS[name]
    model, shape, target_shape, classes = make()
    model.set_weights(first_weights(model))
    random = np.random.default_rng(0)
    tokens = model.inputs[0].dtype == "int32"
    size = (batch, *shape)
    if tokens:
        x = random.integers(0, classes, size, np.int32)
    else:
        x = random.standard_normal(size, np.float32)
    return model, x, random.integers(0, classes, (batch, *target_shape), dtype=np.int32)


def first_weights(model):
    """Return matrices of normal numbers over the root of their inputs, for every framework; keep
    vectors.
    """
    random = np.random.default_rng(1)
    weights = []
    for value in model.get_weights():
        if value.ndim > 1:
            inputs = np.prod(value.shape[:-1])
            value = (random.standard_normal(value.shape) / np.sqrt(inputs)).astype("float32")
        weights.append(value)
    return weights


def shapes(model):
    return tuple(tuple(variable.shape) for variable in model.trainable_variables)


def keras_parts(model):
    """Return Keras' loss and optimizer."""
    optimizer = keras.optimizers.RMSprop(RATE, rho=DECAY, momentum=MOMENTUM, epsilon=EPSILON)
    optimizer.build(model.trainable_variables)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer


def enter(make):
    """Take part in `benchmarks.fidelity`: `make(name, keras)` returns a step, by hand or with
    Keras.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--keras", action="store_true")
    given, _ = parser.parse_known_args()
    take_part(lambda name: make(name, given.keras), parser)
