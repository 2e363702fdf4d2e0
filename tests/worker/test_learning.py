"""What is timed is training: models learn a small real task through the worker's own step and hold what they learned on
examples that they have not seen. (The fully connected one: tests/session/test_learning.py.)"""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from paradnn.families import build
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks.tensorflow import TensorFlow
from tests.worker.families import MODELS

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
#: Codes from here on are not trained with.
SPLIT = 1350

pytestmark = pytest.mark.usefixtures("as_written")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    keras.backend.clear_session()


def windows(codes: np.ndarray, length: int, step: int) -> np.ndarray:
    return np.stack([codes[start : start + length] for start in range(0, len(codes) - length + 1, step)])


def fit(workload: BuiltModel, inputs: list[Any], targets: list[Any], steps: int, rate: float = 0.003) -> list[float]:
    """The losses of the first step and the last, of all examples each."""
    keras.utils.set_random_seed(1)
    rule = {"name": "adam", "learning_rate": rate, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": rule}
    step = TensorFlow().make_step(workload, (inputs, targets), point)
    return [float(step.run(1)), float(step.run(steps))]


@pytest.mark.parametrize(("name", "steps", "rate"), [("gpt", 60, 0.003), ("lstm", 60, 0.02)])
def test_a_language_model_learns_which_letter_comes_next(name: str, steps: int, rate: float) -> None:
    """Better than the letters' frequencies tell, on the part of the text that it has not read."""
    length = 16
    sizes = {"layers": 1, "sequence_length": length, "vocab_size": len(LETTERS)}
    workload = build(MODELS[name] | sizes)
    seen, unseen = windows(CODES[:SPLIT], length + 1, 5), windows(CODES[SPLIT:], length + 1, length)
    first, last = fit(workload, [seen[:, :-1]], [seen[:, 1:]], steps, rate)
    assert first == pytest.approx(math.log(len(LETTERS)), rel=0.1)
    assert last < 0.75 * first
    shares = np.bincount(CODES) / len(CODES)
    loss = float(workload.loss([unseen[:, 1:]], workload.model(unseen[:, :-1])))
    assert loss < -0.9 * (shares[shares > 0] * np.log(shares[shares > 0])).sum()


def test_a_translation_model_learns_a_cipher() -> None:
    """Each letter stands for another one: found by attending to the source, in words that it has not read."""
    length = 10
    workload = build(MODELS["transformer"] | {"sequence_length": length, "vocab_size": len(LETTERS) + 1})
    cipher = np.random.default_rng(5).permutation(len(LETTERS)).astype("int32")
    begin = len(LETTERS)

    def pairs(codes: np.ndarray, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        source = windows(codes, length, step)
        target = cipher[source]
        shifted = np.concatenate([np.full((len(source), 1), begin, "int32"), target[:, :-1]], axis=1)
        return [source, shifted], [target]

    first, last = fit(workload, *pairs(CODES[:SPLIT], 5), 160)
    assert last < 0.5 * first
    inputs, targets = pairs(CODES[SPLIT:], length)
    assert (workload.model(inputs).numpy().argmax(-1) == targets[0]).mean() > 0.8


def test_a_convolutional_model_learns_to_read_digits() -> None:
    """scikit-learn's, 8 x 8 pixels, drawn four times as large; guessing gets a tenth right."""
    found = load_digits()
    images = np.repeat((found.images / 8 - 1).astype("float32").repeat(4, 1).repeat(4, 2)[..., None], 3, axis=-1)
    model = MODELS["residual"] | {"image_size": 32}
    workload = build(model)
    first, last = fit(workload, [images[:256]], [found.target[:256].astype("int32")], 25, 0.01)
    assert last < 0.5 * first
    said = workload.model(images[256:512], training=True).numpy().argmax(-1)
    assert (said == found.target[256:512]).mean() > 0.5
