"""What is timed is training: families and real models learn a small real task through the worker's own step.

Images are the handwritten digits that scikit-learn ships, tokens the letters of a poem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.models import Workload, build

Batch = tuple[list[Any], list[Any]]

#: William Blake, The Tyger (1794).
POEM = """Tyger Tyger, burning bright, In the forests of the night; What immortal hand or eye, Could frame thy fearful
symmetry? In what distant deeps or skies, Burnt the fire of thine eyes? On what wings dare he aspire? What the hand,
dare seize the fire? And what shoulder, and what art, Could twist the sinews of thy heart? And when thy heart began to
beat, What dread hand, and what dread feet?"""


def digits(size: int | None, batch: int) -> Iterator[Batch]:
    """Digits as rows of 64 numbers, or as coloured images of `size`; and which they are."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pixels = (found.images[order] / 8 - 1).astype("float32")
    if size is None:
        shown = pixels.reshape(-1, 64)
    else:
        nearest = np.arange(size) * 8 // size
        shown = np.repeat(pixels[:, nearest][:, :, nearest, None], 3, axis=-1)
    for start in range(0, len(shown) - batch, batch):
        yield [shown[start : start + batch]], [found.target[order][start : start + batch].astype("int32")]


def letters(length: int, batch: int) -> Iterator[Batch]:
    """Passages, and for each letter the one that follows: a letter's number is below 32."""
    kept = [letter for letter in POEM.lower().replace("\n", " ") if letter.isalpha() or letter == " "]
    tokens = np.array([ord(letter) - 96 if letter.isalpha() else 0 for letter in kept], "int32")
    generator = np.random.default_rng(0)
    while True:
        starts = generator.integers(0, len(tokens) - length - 1, batch)
        passages = tokens[starts[:, None] + np.arange(length + 1)]
        yield [passages[:, :-1]], [passages[:, 1:]]


def cnn(name: str) -> dict[str, Any]:
    return {"name": name, "blocks": [1, 1, 1, 1], "filters": 8, "image_size": 32, "output_size": 10}


def rnn(name: str) -> dict[str, Any]:
    return {"name": name, "layers": 1, "embedding_size": 48, "sequence_length": 20, "vocab_size": 32}


def real(name: str, size: int = 32, **keys: Any) -> dict[str, Any]:
    return {"name": name, "image_size": size, "output_size": 10, **keys}


MOMENTUM = {"name": "momentum", "learning_rate": 0.05, "momentum": 0.9}


@dataclass(frozen=True)
class Task:
    """Steps of a model, each on another batch of `examples`."""

    model: dict[str, Any]
    steps: int
    optimizer: dict[str, Any]
    examples: int = 32


TASKS = [
    Task({"name": "fc", "layers": 2, "nodes": 64, "input_size": 64, "output_size": 10}, 40, MOMENTUM),
    Task(cnn("residual"), 30, MOMENTUM),
    Task(cnn("bottleneck"), 30, MOMENTUM),
    Task(rnn("rnn"), 60, {**MOMENTUM, "learning_rate": 0.5}),
    Task(rnn("lstm"), 60, {**MOMENTUM, "learning_rate": 2.0}),
    Task(rnn("gru"), 60, {**MOMENTUM, "learning_rate": 1.0}),
    Task(real("mobilenet", alpha=0.5), 30, MOMENTUM),
    Task(real("densenet121"), 15, {**MOMENTUM, "learning_rate": 0.01}, 16),
]


def batches(model: dict[str, Any], count: int) -> Iterator[Batch]:
    if "vocab_size" in model:
        return letters(model["sequence_length"], count)
    return digits(model.get("image_size"), count)


def train(task: Task) -> tuple[Workload, list[float], Batch]:
    """The trained model, its losses, and a batch that it has not seen."""
    keras.utils.set_random_seed(1)
    workload, source = build(task.model), batches(task.model, task.examples)
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": task.optimizer}
    step = TensorFlow().make_step(workload, next(source), point)
    losses = [step.run(1)]
    for _ in range(task.steps - 1):
        inputs, targets = ([tf.constant(array) for array in arrays] for arrays in next(source))
        losses.append(float(step.function(inputs, targets)))
    return workload, losses, next(source)


@pytest.mark.parametrize("task", TASKS, ids=[task.model["name"] for task in TASKS])
def test_it_learns(task: Task) -> None:
    workload, losses, (inputs, targets) = train(task)
    begin, end = np.mean(losses[:3]), np.mean(losses[-5:])
    assert end < 0.8 * begin, losses
    name = task.model["name"]
    if name in ("fc", "residual"):  # guessing gets a tenth right
        found = np.argmax(workload.model(inputs[0], training=name == "residual"), axis=-1)
        assert np.mean(found == targets[0]) > 0.4
    if "vocab_size" in task.model:  # better than guessing by how frequent letters are
        shares = np.bincount(targets[0].ravel()) / targets[0].size
        assert end < -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    keras.backend.clear_session()
