"""Sets to learn from: files written here in their formats and read back, and a best accuracy that sampling confirms."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from paradnn.errors import DataError
from paradnn.worker.errors import Unavailable
from paradnn.workloads.learn.files import SetFiles, best_accuracy, generate, read_set
from paradnn.workloads.learn.sets import Cifar10, Cifar100, Digits, Folder, Generated, Mnist, Topics
from paradnn.workloads.learn.training import read_examples, training_count


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


def _idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.tobytes()) if path.suffix == ".gz" else head + values.tobytes())


def test_mnist_is_read_from_its_files(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (7, 28, 28), np.uint8)
    for name, suffix in (("train", ""), ("t10k", ".gz")):
        _idx(tmp_path / f"{name}-images-idx3-ubyte{suffix}", pictures)
        _idx(tmp_path / f"{name}-labels-idx1-ubyte{suffix}", np.arange(7, dtype=np.uint8))
    arrays = read_set(Mnist(path=str(tmp_path)))
    assert np.array_equal(arrays["training"][..., 0], pictures)
    assert np.array_equal(arrays["heldout"][..., 0], pictures)
    assert arrays["heldout_classes"].tolist() == list(range(7))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"no picture")
    with pytest.raises(DataError, match="train-images-idx3-ubyte: is damaged, or no file of MNIST"):
        read_set(Mnist(path=str(tmp_path)))
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte and no train-images-idx3-ubyte\.gz"):
        read_set(Mnist(path=str(tmp_path)))


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
    flat, pictures = read_examples(str(path), (64,)), read_examples(str(path), (16, 16, 3))
    assert flat.training.inputs.mean() == pytest.approx(0, abs=1e-5)
    assert flat.training.inputs.std() == pytest.approx(1, abs=1e-5)
    # Each pixel is repeated twice each way, in three equal colours.
    first = flat.training.inputs[0].reshape(8, 8)
    assert np.allclose(pictures.training.inputs[0, ::2, 1::2, 2], first)
    files.close()
    assert not path.exists()
    with pytest.raises(Unavailable, match="the set to learn from cannot be read"):
        read_examples(str(path), (64,))


def test_pictures_are_read_from_their_folders(tmp_path: Path) -> None:
    colours = {"blue": (0, 0, 255), "red": (255, 0, 0)}
    for name, colour in colours.items():
        (tmp_path / name).mkdir()
        for number in range(5):
            # The middle square is of the colour; what is cut off is white.
            wide = Image.new("RGB", (60, 20), "white")
            wide.paste(colour, (20, 0, 40, 20))
            wide.save(tmp_path / name / f"{number}.{'png' if number % 2 else 'jpg'}", quality=95)
    arrays = read_set(Folder(path=str(tmp_path), pixels=4))
    assert arrays["training"].shape == (8, 4, 4, 3)
    assert arrays["training_classes"].tolist() == [0] * 4 + [1] * 4
    assert arrays["heldout_classes"].tolist() == [0, 1]
    middle = arrays["training"][:, 1:3, 1:3].astype(int).mean(axis=(1, 2))
    wanted = [colours["blue"]] * 4 + [colours["red"]] * 4
    assert np.abs(middle - wanted).max() < 30
    Image.new("L", (9, 9), 200).save(tmp_path / "red" / "1.png")
    assert (read_set(Folder(path=str(tmp_path), pixels=4))["training"][5] == 200).all(), "grey is three equal colours"
    (tmp_path / "red" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"red/1\.png: cannot be decoded .*; remove it, or get it again"):
        read_set(Folder(path=str(tmp_path), pixels=4))


def test_of_a_text_every_token_has_the_one_that_follows(tmp_path: Path) -> None:
    files = SetFiles()
    held = read_examples(str(files.path(Topics(), 50)), (50,))
    for part, count in ((held.training, 360_000), (held.heldout, 40_000)):
        assert part.inputs.shape == part.classes.shape == ((count - 1) // 50, 50)
        assert part.inputs.dtype == part.classes.dtype == np.int32
        whole = part.inputs.ravel()
        assert np.array_equal(part.classes.ravel()[:-1], whole[1:])
        assert whole.max() < Topics.vocabulary
    words = bytes(held.training.inputs.astype("uint8").ravel()).decode()
    assert "assert_stmt ::=" in words.replace('"', "")
    assert training_count(str(files.path(Topics(), 50))) == len(held.training)
    assert files.path(Topics(), 50) != files.path(Topics(), 20)
    files.close()
