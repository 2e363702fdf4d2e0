"""Training to a target with a model of plain NumPy: its sets, what is left of warming up, and the
file that it is kept in: whole or not there, and only as often as writing is cheap.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from paradnn.config.learning_sets import Cifar10, Cifar100, Digits, set_file
from paradnn.core.errors import DataError, UnavailableError
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.evaluation import Arrays, fit_examples, read_arrays, score
from paradnn.worker.measure import NotFinite
from paradnn.workloads.learn import Epoch
from paradnn.workloads.learn.checkpoint import Checkpoint
from paradnn.workloads.learn.training import Learner

FEATURES = 8
CLASSES = 4


class Softmax:
    """Softmax regression by gradient descent, as a step that learns."""

    def __init__(self, rate: float = 0.5) -> None:
        self.weights = np.zeros((FEATURES, CLASSES))
        self.rate = rate
        self.seen = []

    def feed(self, steps: int, take: Callable[[], tuple[Any, ...]]) -> float:
        for _ in range(steps):
            [inputs], [classes] = take()
            self.seen.append(inputs)
            scores = np.exp(inputs @ self.weights)
            shares = scores / scores.sum(axis=1, keepdims=True)
            loss = -np.log(shares[np.arange(len(classes)), classes]).mean()
            self.weights = self.weights - self.rate * inputs.T @ (
                shares - np.eye(CLASSES)[classes]
            ) / len(classes)
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
    usual = {
        "metric": "accuracy",
        "target": 0.8,
        "epochs": 40,
        "epochs_after": 0,
        "evaluate_inside": False,
    }
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
    logits = random.standard_normal((300, 7))
    classes = random.integers(0, 7, 300)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    known, losses = score(logits, classes)
    assert known.mean() == accuracy_score(classes, logits.argmax(axis=1))
    assert losses.mean() == pytest.approx(log_loss(classes, shares, labels=range(7)))
    five, _ = score(logits, classes, 5)
    assert five.mean() == top_k_accuracy_score(classes, logits, k=5, labels=range(7))


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
    fresh = Softmax()
    warmed = Softmax()
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


def test_every_digit_is_trained_with_or_held_out() -> None:
    arrays = Digits().arrays()
    bunch = load_digits()
    assert [len(arrays[name]) for name in ("training", "heldout")] == list(Digits.sizes[:2])
    assert np.array_equal(arrays["heldout"][:, :, :, 0], bunch.images[4::5])
    assert np.array_equal(arrays["heldout_classes"], bunch.target[4::5])
    assert arrays["training"].sum() + arrays["heldout"].sum() == bunch.images.sum()


def test_cifar_is_read_from_its_files(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    rows = colours.reshape(3, -1)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        np.column_stack([np.array([7, 8, 9], np.uint8), rows]).tofile(tmp_path / f"{name}.bin")
    ten = Cifar10(path=str(tmp_path)).arrays()
    assert (len(ten["training"]), ten["heldout_classes"].tolist()) == (15, [7, 8, 9])
    assert np.array_equal(ten["heldout"][2, 5, 6], colours[2, :, 5, 6])
    for name in ("train", "test"):
        np.column_stack([np.zeros(3, np.uint8), np.array([70, 80, 90], np.uint8), rows]).tofile(
            tmp_path / f"{name}.bin"
        )
    assert Cifar100(path=str(tmp_path)).arrays()["training_classes"].tolist() == [70, 80, 90]
    (tmp_path / "test.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"test\.bin: is damaged or no binary file of CIFAR"):
        Cifar100(path=str(tmp_path)).arrays()


def test_a_file_is_made_once_and_fits_the_model(tmp_path: Path) -> None:
    path = set_file(Digits())
    assert set_file(Digits()) == path
    arrays = read_arrays(str(path))
    flat = fit_examples(arrays, (64,))
    pictures = fit_examples(arrays, (16, 16, 3))
    assert flat["training"].mean() == pytest.approx(0, abs=1e-5)
    assert flat["training"].std() == pytest.approx(1, abs=1e-5)
    # Each pixel is repeated twice each way, in three equal colours.
    first = flat["training"][0].reshape(8, 8)
    assert np.allclose(pictures["training"][0, ::2, 1::2, 2], first)
    with pytest.raises(UnavailableError, match="the set to learn from cannot be read"):
        read_arrays(str(tmp_path / "gone.npz"))


VALUES = [np.arange(6, dtype="float32").reshape(2, 3), np.array(7, dtype="int64")]
EPOCH = Epoch(1, 22, 1001.0, 2.0, 0.5, 0.2, 0.3, 0.5, None)


def test_what_was_kept_comes_back_if_whole_and_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "training.npz"
    Checkpoint(str(path)).save(
        [EPOCH, replace(EPOCH, number=2, train_loss=float("nan"))], lambda: VALUES
    )
    kept = Checkpoint(str(path)).load(VALUES)
    assert kept
    assert [entry.number for entry in kept[0]] == [1, 2]
    assert np.isnan(kept[0][1].train_loss)
    assert all(np.array_equal(one, other) for one, other in zip(kept[1], VALUES, strict=True))
    assert [entry.name for entry in path.parent.iterdir()] == ["training.npz"]
    whole = path.read_bytes()
    for other in ([VALUES[0].T, VALUES[1]], [*VALUES, VALUES[0]]):
        assert Checkpoint(str(path)).load(other) is None
    flipped = bytearray(whole)
    flipped[whole.index(VALUES[0].tobytes()) + 5] ^= 1
    for damaged in (*(whole[:length] for length in range(0, len(whole), 37)), flipped):
        path.write_bytes(damaged)
        assert Checkpoint(str(path)).load(VALUES) is None
    assert "no checkpoint, or a damaged one" in capsys.readouterr().err
    assert Checkpoint(None).load(VALUES) is None


def test_writing_takes_a_fiftieth_of_the_time_at_most(tmp_path: Path) -> None:
    now = [0.0]
    checkpoint = Checkpoint(str(tmp_path / "training.npz"), clock=lambda: now[0])

    def written() -> bool:
        before = now[0]

        def slowly() -> list[np.ndarray]:
            now[0] += 1.0
            return VALUES

        checkpoint.save([EPOCH], slowly)
        return now[0] > before

    assert written(), "the first epoch is kept however long it took"
    found = []
    for _ in range(4):
        now[0] += 16.4  # an epoch
        found.append(written())
    assert found == [False, False, True, False]
    now[0] += 49.1
    assert written(), "an epoch of 49 writes is kept"


def test_a_disk_that_takes_nothing_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(str(tmp_path / "file" / "training.npz"))
    for _ in range(2):
        checkpoint.save([EPOCH], lambda: VALUES)
    assert capsys.readouterr().err.count("no more checkpoints") == 1
