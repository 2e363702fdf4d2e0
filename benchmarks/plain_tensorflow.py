"""A training loop as a careful TensorFlow user writes it by hand: imports nothing of ParaDnn.

    python benchmarks/plain_tensorflow.py fc-small

prints the median step time of the named model as JSON. Used by `benchmarks.fidelity` as the other side of the ratio.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from plain_models import measure, optimizer, prepare


def main() -> None:
    model, *arrays = prepare()
    x, y = (tf.constant(array) for array in arrays)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    update = optimizer()
    update.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        update.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def run(steps):
        for _ in range(steps):
            loss = step(x, y)
        loss.numpy()

    measure(run)


if __name__ == "__main__":
    main()
