"""A training loop as a careful TensorFlow user writes it by hand: imports nothing of ParaDnn.

    python benchmarks/plain_tensorflow.py fc-small

prints the median step time of the named model as JSON. Used by `benchmarks.fidelity` as the other side of the ratio.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

L = tf.keras.layers
ONE = 1.0


def fc(layers, nodes, inputs, outputs):
    first = x = tf.keras.Input((inputs,))
    for _ in range(layers):
        x = L.Dense(nodes, "relu")(x)
    return tf.keras.Model(first, L.Dense(outputs)(x)), (inputs,), (), outputs


def conv(x, width, kernel, stride):
    return L.BatchNormalization(momentum=0.9, epsilon=1e-5)(
        L.Conv2D(width, kernel, stride, padding="same", use_bias=False)(x)
    )


def resnet(bottleneck, filters, size, outputs):
    first = tf.keras.Input((size, size, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(L.ReLU()(conv(first, filters, 7, 2)))
    for group in range(4):
        width, stride = filters * 2**group, 1 if group == 0 else 2
        out = 4 * width if bottleneck else width
        if bottleneck:
            y = L.ReLU()(conv(x, width, 1, 1))
            y = conv(L.ReLU()(conv(y, width, 3, stride)), out, 1, 1)
        else:
            y = conv(L.ReLU()(conv(x, width, 3, stride)), width, 3, 1)
        short = x if x.shape[-1] == out and stride == 1 else conv(x, out, 1, stride)
        x = L.ReLU()(L.Add()([y, short]))
    x = L.Dense(outputs)(L.GlobalAveragePooling2D()(x))
    return tf.keras.Model(first, x), (size, size, 3), (), outputs


def recurrent(cell, width, length, vocabulary):
    first = tf.keras.Input((length,), dtype="int32")
    x = cell(width, return_sequences=True)(L.Embedding(vocabulary, width)(first))
    return tf.keras.Model(first, L.Dense(vocabulary)(x)), (length,), (length,), vocabulary


MODELS = {
    "fc-small": (lambda: fc(4, 256, 2000, 200), 64),
    "fc-large": (lambda: fc(4, 1024, 2000, 200), 512),
    "residual": (lambda: resnet(False, 16, 64, 500), 16),
    "bottleneck": (lambda: resnet(True, 16, 64, 500), 16),
    "rnn": (lambda: recurrent(L.SimpleRNN, 100, 10, 32), 64),
    "lstm": (lambda: recurrent(L.LSTM, 300, 10, 32), 64),
}


def main() -> None:
    make, batch = MODELS[sys.argv[1]]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0
    model, shape, target_shape, classes = make()
    random = np.random.default_rng(0)
    if model.inputs[0].dtype == "int32":
        x = tf.constant(random.integers(0, classes, (batch, *shape), dtype=np.int32))
    else:
        x = tf.constant(random.standard_normal((batch, *shape), dtype=np.float32))
    y = tf.constant(random.integers(0, classes, (batch, *target_shape), dtype=np.int32))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.RMSprop(0.1, rho=0.9, momentum=0.9, epsilon=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def block(steps):
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step(x, y)
        loss.numpy()
        return (time.perf_counter() - begin) / steps

    block(1)
    steps = max(1, round(0.1 / block(3)))
    end = time.perf_counter() + 2.0
    while time.perf_counter() < end:
        block(steps)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        times.append(block(steps))
    print(json.dumps({"step_seconds": statistics.median(times), "blocks": len(times)}))


if __name__ == "__main__":
    main()
