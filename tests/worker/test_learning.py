"""What is timed is training: families and real models learn a small real task through the worker's own step.

Images are the handwritten digits that scikit-learn ships, for the detector with one digit somewhere on a larger
canvas; tokens are the letters of a poem.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from paradnn.families import build
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks.tensorflow import TensorFlow

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


def anchors(size: int) -> np.ndarray:
    """(anchors, 4): centre, height and width of the nine at each place of P3 to P7, as RetinaNet's paper has them."""
    found = []
    for level in range(3, 8):
        stride = 2**level
        for row, column in np.ndindex(-(-size // stride), -(-size // stride)):
            for scale, ratio in itertools.product((1, 2 ** (1 / 3), 2 ** (2 / 3)), (0.5, 1, 2)):
                side, stretch = 4 * stride * scale, math.sqrt(ratio)
                found.append(((row + 0.5) * stride, (column + 0.5) * stride, side * stretch, side / stretch))
    return np.array(found)


def overlap(boxes: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (centre, height, width) with one."""
    low = np.maximum(boxes[:, :2] - boxes[:, 2:] / 2, box[:2] - box[2:] / 2)
    high = np.minimum(boxes[:, :2] + boxes[:, 2:] / 2, box[:2] + box[2:] / 2)
    common = np.prod(np.clip(high - low, 0, None), axis=1)
    return common / (np.prod(boxes[:, 2:], axis=1) + np.prod(box[2:]) - common)


def scenes(size: int, batch: int) -> Iterator[Batch]:
    """A digit of half the canvas somewhere on it, matched with anchors by the rule of RetinaNet's paper.

    Anchors that overlap by half, and the one that overlaps most, are the digit's; those below 0.4 are background.
    """
    known, side = anchors(size), size // 2
    generator = np.random.default_rng(0)
    for (images,), (numbers,) in digits(side, batch):
        canvas = np.full((batch, size, size, 3), -1.0, "float32")
        classes = np.zeros((batch, len(known)), "int32")
        boxes = np.zeros((batch, len(known), 4), "float32")
        for index, corner in enumerate(generator.integers(0, size - side + 1, (batch, 2))):
            row, column = corner
            canvas[index, row : row + side, column : column + side] = images[index]
            box = np.array([*(corner + side / 2), side, side])
            shared = overlap(known, box)
            classes[index][shared >= 0.4] = -1
            classes[index][(shared >= 0.5) | (shared == shared.max())] = numbers[index] + 1
            boxes[index, :, :2] = (box[:2] - known[:, :2]) / known[:, 2:]
            boxes[index, :, 2:] = np.log(box[2:] / known[:, 2:])
        yield [canvas], [classes, boxes]


def cnn(name: str) -> dict[str, Any]:
    return {"name": name, "blocks": [1, 1, 1, 1], "filters": 8, "image_size": 32, "output_size": 10}


def rnn(name: str) -> dict[str, Any]:
    return {"name": name, "layers": 1, "embedding_size": 48, "sequence_length": 20, "vocab_size": 32}


def real(name: str, size: int = 32, **keys: Any) -> dict[str, Any]:
    return {"name": name, "image_size": size, "output_size": 10, **keys}


MOMENTUM = {"name": "momentum", "learning_rate": 0.05, "momentum": 0.9}
ADAM = {"name": "adam", "learning_rate": 0.001, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}


@dataclass(frozen=True)
class Task:
    """Steps of a model, each on another batch of `examples`; or on so many `distinct` ones in turn."""

    model: dict[str, Any]
    steps: int
    optimizer: dict[str, Any]
    examples: int = 32
    distinct: int | None = None


#: Of Keras' own networks the one that is built fastest; that of ResNet-50 learns within RetinaNet.
TASKS = [
    Task({"name": "fc", "layers": 2, "nodes": 64, "input_size": 64, "output_size": 10}, 40, MOMENTUM),
    Task(cnn("residual"), 30, MOMENTUM),
    Task(rnn("lstm"), 60, {**MOMENTUM, "learning_rate": 2.0}),
    Task(real("mobilenet", alpha=0.5), 30, MOMENTUM),
    Task(real("retinanet"), 10, {**ADAM, "learning_rate": 0.0001}, 4, distinct=1),
]


def batches(model: dict[str, Any], count: int) -> Iterator[Batch]:
    if "vocab_size" in model:
        return letters(model["sequence_length"], count)
    if model["name"] == "retinanet":
        return scenes(model["image_size"], count)
    return digits(model.get("image_size"), count)


def train(task: Task) -> tuple[BuiltModel, list[float], Batch]:
    """The trained model, its losses, and a batch that it has not seen."""
    keras.utils.set_random_seed(1)
    workload, source = build(task.model), batches(task.model, task.examples)
    first = next(source)
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": task.optimizer}
    step = TensorFlow().make_step(workload, first, point)
    losses = [step.run(1)]
    # What is repeated begins with the batch that the step was made with.
    further = source if task.distinct is None else itertools.islice(source, task.distinct - 1)
    order = further if task.distinct is None else itertools.islice(itertools.cycle([first, *further]), 1, None)
    for arrays in itertools.islice(order, task.steps - 1):
        losses.append(float(step.function(*(tf.constant(array) for group in arrays for array in group))))
    return workload, losses, next(source)


def falls(losses: list[float]) -> bool:
    """The last five are a fifth below the first three, and below the first one, which nothing was trained for."""
    end = np.mean(losses[-5:])
    return bool(end < 0.8 * np.mean(losses[:3]) and end < 0.8 * losses[0])


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("task", TASKS, ids=[task.model["name"] for task in TASKS])
def test_it_learns(task: Task) -> None:
    workload, losses, (inputs, targets) = train(task)
    assert falls(losses), losses
    name = task.model["name"]
    if name in ("fc", "residual"):  # guessing gets a tenth right
        found = np.argmax(workload.model(inputs[0], training=name == "residual"), axis=-1)
        assert np.mean(found == targets[0]) > 0.4
    if "vocab_size" in task.model:  # better than guessing by how frequent letters are
        shares = np.bincount(targets[0].ravel()) / targets[0].size
        assert np.mean(losses[-5:]) < -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    keras.backend.clear_session()


def test_without_a_learning_rate_no_loss_falls() -> None:
    """What the test above asks for is not met by the order of batches."""
    task = next(task for task in TASKS if task.model["name"] == "fc")
    _, losses, _ = train(replace(task, steps=12, optimizer={**task.optimizer, "learning_rate": 0.0}))
    assert not falls(losses), losses
    keras.backend.clear_session()
