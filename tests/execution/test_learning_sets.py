"""Sets to learn from: files written here in their formats and read back, and a best accuracy that sampling confirms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from paradnn.errors import DataError
from paradnn.worker.errors import Unavailable
from paradnn.workloads.learn.files import SetFiles, best_accuracy, generate, read_set
from paradnn.workloads.learn.sets import Cifar10, Cifar100, Digits, Generated
from paradnn.workloads.learn.training import fitted_examples, read_arrays


def test_every_digit_is_trained_with_or_held_out() -> None:
    arrays, bunch = read_set(Digits()), load_digits()
    assert [len(arrays[name]) for name in ("training", "heldout")] == list(Digits.known[:2])
    assert np.array_equal(arrays["heldout"][:, :, :, 0], bunch.images[4::5])
    assert np.array_equal(arrays["heldout_classes"], bunch.target[4::5])
    assert arrays["training"].sum() + arrays["heldout"].sum() == bunch.images.sum()


@pytest.mark.parametrize(("distance", "classes"), [(0.0, 4), (1.5, 2), (3.0, 10)])
def test_the_best_accuracy_is_what_sampling_finds(distance: float, classes: int) -> None:
    drawn = np.random.default_rng(1).standard_normal((400_000, classes))
    drawn[:, 0] += distance
    assert best_accuracy(distance, classes) == pytest.approx((drawn.argmax(axis=1) == 0).mean(), abs=0.003)


def test_the_rule_that_knows_the_centres_has_the_accuracy_asked_for() -> None:
    arrays = generate(Generated(training=50_000, heldout=50_000, classes=5, best=0.9), width=12)
    centres = np.array([arrays["training"][arrays["training_classes"] == c].mean(axis=0) for c in range(5)])
    distances = ((arrays["heldout"][:, None] - centres) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == arrays["heldout_classes"]).mean() == pytest.approx(0.9, abs=0.006)


def test_cifar_is_read_from_its_files(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    rows = colours.reshape(3, -1)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        np.column_stack([np.array([7, 8, 9], np.uint8), rows]).tofile(tmp_path / f"{name}.bin")
    ten = read_set(Cifar10(path=str(tmp_path)))
    assert (len(ten["training"]), ten["heldout_classes"].tolist()) == (15, [7, 8, 9])
    assert np.array_equal(ten["heldout"][2, 5, 6], colours[2, :, 5, 6])
    for name in ("train", "test"):
        np.column_stack([np.zeros(3, np.uint8), np.array([70, 80, 90], np.uint8), rows]).tofile(
            tmp_path / f"{name}.bin"
        )
    assert read_set(Cifar100(path=str(tmp_path)))["training_classes"].tolist() == [70, 80, 90]
    (tmp_path / "test.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"test\.bin: is damaged, or no binary file of CIFAR"):
        read_set(Cifar100(path=str(tmp_path)))


def test_a_file_is_made_once_and_fits_the_model(tmp_path: Path) -> None:
    files = SetFiles()
    path = files.path(Digits(), 64)
    assert files.path(Digits(), 0) == path
    arrays = read_arrays(str(path))
    flat, pictures = fitted_examples(arrays, (64,)), fitted_examples(arrays, (16, 16, 3))
    assert flat.training.inputs.mean() == pytest.approx(0, abs=1e-5)
    assert flat.training.inputs.std() == pytest.approx(1, abs=1e-5)
    # Each pixel is repeated twice each way, in three equal colours.
    first = flat.training.inputs[0].reshape(8, 8)
    assert np.allclose(pictures.training.inputs[0, ::2, 1::2, 2], first)
    files.close()
    assert not path.exists()
    with pytest.raises(Unavailable, match="the set to learn from cannot be read"):
        read_arrays(str(path))
