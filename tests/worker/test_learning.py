"""What is timed is training: families and real models learn a small real task through the worker's own step, attention
models hold what they learned on examples that they have not seen. Images are the handwritten digits that scikit-learn
ships, tokens the letters of a book."""

import itertools
import math
from collections.abc import Iterator, Sequence
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
from tests.worker.families import MODELS

Batch = tuple[list[Any], list[Any]]

#: Lewis Carroll, Alice's Adventures in Wonderland (1865), how the first chapter begins.
TEXT = """
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice
she had peeped into the book her sister was reading, but it had no pictures or conversations in it, and what is the use
of a book, thought Alice, without pictures or conversations? So she was considering in her own mind (as well as she
could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be
worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say
to itself, Oh dear! Oh dear! I shall be late! (when she thought it over afterwards, it occurred to her that she ought to
have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually took a watch out of
its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed across her mind
that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out of it, and burning with
curiosity, she ran across the field after it, and fortunately was just in time to see it pop down a large rabbit-hole
under the hedge. In another moment down went Alice after it, never once considering how in the world she was to get out
again. The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that
Alice had not a moment to think about stopping herself before she found herself falling down a very deep well.
"""
LETTERS = sorted(set(TEXT.lower()))
CODES = np.array([LETTERS.index(letter) for letter in TEXT.lower()], dtype="int32")


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
    """Passages, and for each letter the one that follows."""
    generator = np.random.default_rng(0)
    while True:
        starts = generator.integers(0, len(CODES) - length - 1, batch)
        passages = CODES[starts[:, None] + np.arange(length + 1)]
        yield [passages[:, :-1]], [passages[:, 1:]]


def cnn(name: str) -> dict[str, Any]:
    return {"name": name, "blocks": [1, 1, 1, 1], "filters": 8, "image_size": 32, "output_size": 10}


def rnn(name: str) -> dict[str, Any]:
    return {"name": name, "layers": 1, "embedding_size": 48, "sequence_length": 20, "vocab_size": len(LETTERS)}


def real(name: str, size: int = 32, **keys: Any) -> dict[str, Any]:
    return {"name": name, "image_size": size, "output_size": 10, **keys}


MOMENTUM = {"name": "momentum", "learning_rate": 0.05, "momentum": 0.9}
ADAM = {"name": "adam", "learning_rate": 0.003, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}


@dataclass(frozen=True)
class Task:
    """Steps of a model, each on another batch."""

    model: dict[str, Any]
    steps: int
    optimizer: dict[str, Any]


TASKS = [
    Task({"name": "fc", "layers": 2, "nodes": 64, "input_size": 64, "output_size": 10}, 40, MOMENTUM),
    Task(cnn("residual"), 30, MOMENTUM),
    Task(rnn("lstm"), 60, {**MOMENTUM, "learning_rate": 2.0}),
]
#: Of Keras' own networks the one that is built fastest.
REAL = pytest.param(Task(real("mobilenet", alpha=0.5), 30, MOMENTUM), id="mobilenet", marks=pytest.mark.long)


def batches(model: dict[str, Any], count: int) -> Iterator[Batch]:
    if "vocab_size" in model:
        return letters(model["sequence_length"], count)
    return digits(model.get("image_size"), count)


def train(task: Task) -> tuple[BuiltModel, list[float], Batch]:
    """The trained model, its losses, and a batch that it has not seen."""
    keras.utils.set_random_seed(1)
    workload, source = build(task.model), batches(task.model, 32)
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": task.optimizer}
    step = TensorFlow().make_step(workload, next(source), point)
    losses = [step.run(1)]
    for arrays in itertools.islice(source, task.steps - 1):
        losses.append(float(step.function(*(tf.constant(array) for group in arrays for array in group))))
    return workload, losses, next(source)


def falls(losses: list[float]) -> bool:
    """The last five are a fifth below the first three, and below the first one, which nothing was trained for."""
    end = np.mean(losses[-5:])
    return bool(end < 0.8 * np.mean(losses[:3]) and end < 0.8 * losses[0])


@pytest.mark.usefixtures("as_written")
@pytest.mark.parametrize("task", [*(pytest.param(task, id=task.model["name"]) for task in TASKS), REAL])
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


def windows(codes: np.ndarray, length: int, step: int) -> np.ndarray:
    return np.stack([codes[start : start + length] for start in range(0, len(codes) - length + 1, step)])


def fit(workload: BuiltModel, inputs: Sequence[Any], targets: Sequence[Any], steps: int) -> tuple[float, float]:
    """The loss of the first step and of the last."""
    keras.utils.set_random_seed(1)
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": ADAM}
    step = TensorFlow().make_step(workload, (inputs, targets), point)
    first, last = step.run(1), step.run(steps)
    return first, last


def test_a_language_model_learns_which_letter_comes_next() -> None:
    """Better than the letters' frequencies tell, on the part of the text that it has not read."""
    length, split = 16, 1350
    model = {"name": "gpt", "layers": 1, "width": 32, "heads": 2, "sequence_length": length, "vocab_size": len(LETTERS)}
    workload = build(model)
    seen, unseen = windows(CODES[:split], length + 1, 5), windows(CODES[split:], length + 1, length)
    first, last = fit(workload, [seen[:, :-1]], [seen[:, 1:]], 60)
    assert first == pytest.approx(math.log(len(LETTERS)), rel=0.1)
    assert last < 0.7 * first
    frequencies = np.bincount(CODES) / len(CODES)
    entropy = -(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum()
    loss = float(workload.loss([unseen[:, 1:]], workload.model(unseen[:, :-1])))
    assert loss < 0.9 * entropy


def test_a_translation_model_learns_a_cipher() -> None:
    """Each letter stands for another one: found by attending to the source, in words that it has not read."""
    length, split = 10, 1350
    workload = build(MODELS["transformer"] | {"sequence_length": length, "vocab_size": len(LETTERS) + 1})
    cipher = np.random.default_rng(5).permutation(len(LETTERS)).astype("int32")
    begin = len(LETTERS)

    def pairs(codes: np.ndarray, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        source = windows(codes, length, step)
        target = cipher[source]
        shifted = np.concatenate([np.full((len(source), 1), begin, "int32"), target[:, :-1]], axis=1)
        return [source, shifted], [target]

    inputs, targets = pairs(CODES[:split], 5)
    first, last = fit(workload, inputs, targets, 160)
    assert last < 0.5 * first
    inputs, targets = pairs(CODES[split:], length)
    found = workload.model(inputs).numpy().argmax(-1)
    assert (found == targets[0]).mean() > 0.8


@pytest.mark.long
def test_a_vision_transformer_learns_to_read_digits() -> None:
    """scikit-learn's digits, 8 x 8 pixels, in patches of 2."""
    digits = load_digits()
    images = np.repeat((digits.images[..., None] / 8 - 1).astype("float32"), 3, axis=-1)
    labels = digits.target.astype("int32")
    model = {"name": "vit", "layers": 1, "width": 32, "heads": 4, "patch": 2, "image_size": 8, "output_size": 10}
    workload = build(model)
    first, last = fit(workload, [images[:600]], [labels[:600]], 80)
    assert last < 0.3 * first
    found = workload.model(images[1200:]).numpy().argmax(-1)
    assert (found == labels[1200:]).mean() > 0.6
