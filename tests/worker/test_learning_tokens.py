"""What is timed is training: each attention model learns a small real task, through the worker's own step, and holds
what it learned on examples that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from paradnn.families import build
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks.tensorflow import TensorFlow

ADAM = {"name": "adam", "learning_rate": 0.003, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}

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


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    yield
    keras.backend.clear_session(free_memory=False)  # the collector comes by itself


def windows(codes: np.ndarray, length: int, step: int) -> np.ndarray:
    return np.stack([codes[start : start + length] for start in range(0, len(codes) - length + 1, step)])


def train(workload: BuiltModel, inputs: Sequence[Any], targets: Sequence[Any], steps: int) -> tuple[float, float]:
    """The loss of the first step and of the last."""
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": ADAM}
    step = TensorFlow().make_step(workload, (inputs, targets), point)
    first, last = step.run(1), step.run(steps)
    assert first is not None
    assert last is not None
    return first, last


def test_a_language_model_learns_which_letter_comes_next() -> None:
    """Better than the letters' frequencies tell, on the part of the text that it has not read."""
    length, split = 16, 1350
    model = {"name": "gpt", "layers": 1, "width": 32, "heads": 2, "sequence_length": length, "vocab_size": len(LETTERS)}
    workload = build(model)
    seen, unseen = windows(CODES[:split], length + 1, 5), windows(CODES[split:], length + 1, length)
    first, last = train(workload, [seen[:, :-1]], [seen[:, 1:]], 60)
    assert first == pytest.approx(math.log(len(LETTERS)), rel=0.1)
    assert last < 0.7 * first
    frequencies = np.bincount(CODES) / len(CODES)
    entropy = -(frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum()
    loss = float(workload.loss([unseen[:, 1:]], workload.model(unseen[:, :-1])))
    assert loss < 0.9 * entropy


def test_a_translation_model_learns_a_cipher() -> None:
    """Each letter stands for another one: found by attending to the source, in words that it has not read."""
    length, split = 10, 1350
    model = {
        "name": "transformer",
        "layers": 1,
        "width": 32,
        "heads": 2,
        "feed_forward": 64,
        "sequence_length": length,
        "vocab_size": len(LETTERS) + 1,
        "dropout": 0.0,
        "label_smoothing": 0.1,
    }
    workload = build(model)
    cipher = np.random.default_rng(5).permutation(len(LETTERS)).astype("int32")
    begin = len(LETTERS)

    def pairs(codes: np.ndarray, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        source = windows(codes, length, step)
        target = cipher[source]
        shifted = np.concatenate([np.full((len(source), 1), begin, "int32"), target[:, :-1]], axis=1)
        return [source, shifted], [target]

    inputs, targets = pairs(CODES[:split], 5)
    first, last = train(workload, inputs, targets, 160)
    assert last < 0.5 * first
    inputs, targets = pairs(CODES[split:], length)
    found = workload.model(inputs).numpy().argmax(-1)
    assert (found == targets[0]).mean() > 0.8


def test_a_vision_transformer_learns_to_read_digits() -> None:
    """scikit-learn's digits, 8 x 8 pixels, in patches of 2."""
    digits = load_digits()
    images = np.repeat((digits.images[..., None] / 8 - 1).astype("float32"), 3, axis=-1)
    labels = digits.target.astype("int32")
    model = {"name": "vit", "layers": 1, "width": 32, "heads": 4, "patch": 2, "image_size": 8, "output_size": 10}
    workload = build(model)
    first, last = train(workload, [images[:600]], [labels[:600]], 80)
    assert last < 0.3 * first
    found = workload.model(images[1200:]).numpy().argmax(-1)
    assert (found == labels[1200:]).mean() > 0.6
