"""The timed step really trains: models learn a small task through the worker's own step.

They must generalize to unseen examples. tests/session/test_learning.py covers the fully connected
model.
"""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from paradnn.families import build
from paradnn.families.built import BuiltModel
from paradnn.worker.frameworks.tensorflow import TensorFlow
from tests.conftest import ROOT
from tests.worker.families import MODELS

#: English in lower case: the beginning of the license's first section.
TEXT = " ".join((ROOT / "LICENSE").read_text().lower().split())[300:2000]
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(letter) for letter in TEXT], dtype="int32")
#: Codes from this index on are not used for training.
SPLIT = 1400

pytestmark = pytest.mark.usefixtures("without_graph_optimization", "clean")


def windows(codes: np.ndarray, length: int, step: int) -> np.ndarray:
    return np.stack(
        [codes[start : start + length] for start in range(0, len(codes) - length + 1, step)]
    )


def fit(
    workload: BuiltModel, inputs: list[Any], targets: list[Any], steps: int, rate: float = 0.003
) -> list[float]:
    """Train on all examples in every step; return the losses of the first and the last step."""
    keras.utils.set_random_seed(1)
    adam = {"name": "adam", "learning_rate": rate, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}
    point = {"mode": "train", "compile": "graph", "precision": "float32", "optimizer": adam}
    step: Any = TensorFlow().make_step(workload, (inputs, targets), point)
    # Host batches must be passed as tensors, since TensorFlow takes longer to accept arrays.
    compiled = step.function
    are_tensors = set()

    def checked_function(*batch: Any) -> Any:
        are_tensors.update(map(tf.is_tensor, batch))
        return compiled(*batch)

    step.function = checked_function
    losses = [step.feed(count, lambda: (inputs, targets)) for count in (1, steps)]
    assert are_tensors == {True}
    return losses


@pytest.mark.parametrize(("name", "steps", "rate"), [("gpt", 60, 0.003), ("lstm", 60, 0.02)])
def test_a_language_model_learns_to_predict_the_next_letter(
    name: str, steps: int, rate: float
) -> None:
    """Reach a lower loss on unseen text than the entropy of the letter frequencies."""
    length = 16
    sizes = {"layers": 1, "sequence_length": length, "vocab_size": len(LETTERS)}
    workload = build(MODELS[name] | sizes)
    seen = windows(CODES[:SPLIT], length + 1, 5)
    unseen = windows(CODES[SPLIT:], length + 1, length)
    first, last = fit(workload, [seen[:, :-1]], [seen[:, 1:]], steps, rate)
    assert first == pytest.approx(math.log(len(LETTERS)), rel=0.1)
    assert last < 0.75 * first
    frequencies = np.bincount(CODES) / len(CODES)
    loss = float(workload.loss([unseen[:, 1:]], workload.model(unseen[:, :-1])))
    assert loss < -0.9 * (frequencies[frequencies > 0] * np.log(frequencies[frequencies > 0])).sum()


def test_a_translation_model_learns_a_cipher() -> None:
    """Learn a substitution cipher by attending to the source, and apply it to unseen words."""
    length = 10
    workload = build(
        MODELS["transformer"] | {"sequence_length": length, "vocab_size": len(LETTERS) + 1}
    )
    cipher = np.random.default_rng(5).permutation(len(LETTERS)).astype("int32")
    begin = len(LETTERS)

    def pairs(codes: np.ndarray, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        source = windows(codes, length, step)
        target = cipher[source]
        shifted = np.concatenate(
            [np.full((len(source), 1), begin, "int32"), target[:, :-1]], axis=1
        )
        return [source, shifted], [target]

    first, last = fit(workload, *pairs(CODES[:SPLIT], 5), 160)
    assert last < 0.5 * first
    inputs, targets = pairs(CODES[SPLIT:], length)
    assert (workload.model(inputs).numpy().argmax(-1) == targets[0]).mean() > 0.8


def test_a_convolutional_model_learns_to_read_digits() -> None:
    """Use scikit-learn's digits of 8 x 8 pixels, enlarged four times; guessing is 10% right."""
    digits = load_digits()
    images = np.repeat(
        (digits.images / 8 - 1).astype("float32").repeat(4, 1).repeat(4, 2)[..., None], 3, axis=-1
    )
    model = MODELS["residual"] | {"image_size": 32}
    workload = build(model)
    first, last = fit(workload, [images[:256]], [digits.target[:256].astype("int32")], 25, 0.01)
    assert last < 0.5 * first
    predicted = workload.model(images[256:512], training=True).numpy().argmax(-1)
    assert (predicted == digits.target[256:512]).mean() > 0.5
