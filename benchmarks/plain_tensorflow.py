"""A training loop as a careful TensorFlow user writes it; imports nothing of ParaDnn.

Loss and update are written by hand, or with `--keras` are Keras'. Runs in turn in
`benchmarks.fidelity`.
"""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

from benchmarks.plain_models import (
    DECAY,
    EPSILON,
    MOMENTUM,
    RATE,
    enter,
    keras_parts,
    prepare,
    shapes,
)
from benchmarks.turns import Step


def by_hand(model):
    weights = [variable.value for variable in model.trainable_variables]
    squares, momenta = ([tf.Variable(tf.zeros_like(w)) for w in weights] for _ in range(2))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for w, g, s, m in zip(weights, tape.gradient(loss, weights), squares, momenta, strict=True):
            g = tf.convert_to_tensor(g)  # an embedding's comes in slices
            s.assign(DECAY * s + (1 - DECAY) * tf.square(g))
            m.assign(MOMENTUM * m + RATE * g / tf.sqrt(s + EPSILON))
            w.assign_sub(m)
        return loss

    return step


def with_keras(model):
    loss_of, optimizer = keras_parts(model)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def make(name, keras):
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    model, *arrays = prepare(name)
    x, y = (tf.identity(tf.constant(array)) for array in arrays)
    step = with_keras(model) if keras else by_hand(model)

    def run(steps):
        for _ in range(steps):
            loss = step(x, y)
        return float(loss.numpy())

    return Step(run, shapes(model))


if __name__ == "__main__":
    enter(make)
