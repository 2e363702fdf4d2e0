"""Sets to learn from: files written here in their formats and read back."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from paradnn.core.errors import DataError
from paradnn.core.workload import Unavailable
from paradnn.workloads.learn.sets import Cifar10, Cifar100, Digits, set_file
from paradnn.workloads.learn.training import fitted_examples, read_arrays


def test_every_digit_is_trained_with_or_held_out() -> None:
    arrays, bunch = Digits().arrays(), load_digits()
    assert [len(arrays[name]) for name in ("training", "heldout")] == list(Digits.known[:2])
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
    with pytest.raises(DataError, match=r"test\.bin: is damaged, or no binary file of CIFAR"):
        Cifar100(path=str(tmp_path)).arrays()


def test_a_file_is_made_once_and_fits_the_model(tmp_path: Path) -> None:
    path = set_file(Digits())
    assert set_file(Digits()) == path
    arrays = read_arrays(str(path))
    flat, pictures = fitted_examples(arrays, (64,)), fitted_examples(arrays, (16, 16, 3))
    assert flat["training"].mean() == pytest.approx(0, abs=1e-5)
    assert flat["training"].std() == pytest.approx(1, abs=1e-5)
    # Each pixel is repeated twice each way, in three equal colours.
    first = flat["training"][0].reshape(8, 8)
    assert np.allclose(pictures["training"][0, ::2, 1::2, 2], first)
    with pytest.raises(Unavailable, match="the set to learn from cannot be read"):
        read_arrays(str(tmp_path / "gone.npz"))
