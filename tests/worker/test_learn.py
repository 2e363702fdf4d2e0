"""Training to a target with a model of plain NumPy: what counts, when it ends, and what is left of warming up."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from paradnn.worker.measure import NotFinite
from paradnn.worker.meters import EnergyMeter
from paradnn.workloads.learn import Epoch
from paradnn.workloads.learn.training import Arrays, Learner, judge

FEATURES, CLASSES = 8, 4


class Softmax:
    """Softmax regression by gradient descent, as a step that learns."""

    def __init__(self, rate: float = 0.5) -> None:
        self.weights, self.rate, self.seen = np.zeros((FEATURES, CLASSES)), rate, []

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float:
        for _ in range(steps):
            [inputs], [classes] = take()
            self.seen.append(inputs)
            scores = np.exp(inputs @ self.weights)
            shares = scores / scores.sum(axis=1, keepdims=True)
            loss = -np.log(shares[np.arange(len(classes)), classes]).mean()
            self.weights = self.weights - self.rate * inputs.T @ (shares - np.eye(CLASSES)[classes]) / len(classes)
        return float(loss)

    def values(self) -> list[Any]:
        return [self.weights.copy()]

    def assign(self, values: Sequence[Any]) -> None:
        [self.weights] = values

    def outputs(self, inputs: Sequence[Any]) -> Any:
        assert len(inputs[0]) == 64, "whatever is left over, no shape but one is compiled"
        return inputs[0] @ self.weights


def examples(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    centres = 1.2 * random.standard_normal((CLASSES, FEATURES))

    found = {}
    for part, count in (("training", 500), ("heldout", 64)):
        classes = random.integers(0, CLASSES, count).astype("int32")
        drawn = (centres[classes] + random.standard_normal((count, FEATURES))).astype("float32")
        found |= {part: drawn, f"{part}_classes": classes}
    return found


def learner(step: Any, **settings: Any) -> Learner:
    usual = {"metric": "accuracy", "target": 0.8, "epochs": 40, "epochs_after": 0, "evaluate_inside": False}
    point = {"batch_size": 32, "seed": 3, "learn": {**usual, **settings}}
    drawn = np.random.default_rng(9).standard_normal((32, FEATURES)).astype("float32")
    return Learner(step, examples(), point, ([drawn], [np.zeros(32, "int32")]))


def learnt(step: Any, **settings: Any) -> list[Epoch]:
    told: list[Epoch] = []
    learner(step, **settings).learn(EnergyMeter("none"), told.append)
    assert [epoch.number for epoch in told] == list(range(1, len(told) + 1))
    return told


def test_the_judge_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    logits, classes = random.standard_normal((300, 7)), random.integers(0, 7, 300)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    known, losses = judge(logits, classes)
    assert known.mean() == accuracy_score(classes, logits.argmax(axis=1))
    assert losses.mean() == pytest.approx(log_loss(classes, shares, labels=range(7)))
    five, _ = judge(logits, classes, 5)
    assert five.mean() == top_k_accuracy_score(classes, logits, k=5, labels=range(7))


def test_it_ends_with_the_first_epoch_at_the_target_and_counts_its_steps() -> None:
    epochs = learnt(Softmax())
    assert all(epoch.accuracy < 0.8 for epoch in epochs[:-1])
    assert epochs[-1].accuracy >= 0.8
    assert {epoch.steps for epoch in epochs} == {500 // 32}
    assert [epoch.number for epoch in epochs] == list(range(1, len(epochs) + 1))
    assert len(learnt(Softmax(), epochs_after=4)) == len(epochs) + 4


def test_an_epoch_takes_every_example_once_in_another_order_each_time() -> None:
    step = Softmax()
    learnt(step, target=0.5, epochs_after=1)
    whole = {row.tobytes() for row in examples()["training"]}
    epochs = [np.concatenate(step.seen[start : start + 15]) for start in (0, 15)]
    for epoch in epochs:
        rows = [row.tobytes() for row in epoch]
        assert len(rows) == len(set(rows)) == 480
        assert set(rows) <= whole
    assert not np.array_equal(*epochs)


def test_what_it_saw_before_the_clock_leaves_nothing_behind() -> None:
    fresh, warmed = Softmax(), Softmax()
    first = learner(warmed)
    first.run(5)
    assert warmed.weights.any()
    first.restart()
    assert not warmed.weights.any()
    told: list[Epoch] = []
    first.learn(EnergyMeter("none"), told.append)
    assert [e.accuracy for e in told] == [e.accuracy for e in learnt(fresh)]
    assert np.array_equal(fresh.weights, warmed.weights)


def test_a_loss_that_is_not_finite_ends_it_with_its_curve() -> None:
    told: list[Epoch] = []
    with np.errstate(all="ignore"), pytest.raises(NotFinite, match="at the end of epoch 1"):
        learner(Softmax(rate=1e6)).learn(EnergyMeter("none"), told.append)
    assert len(told) == 1
