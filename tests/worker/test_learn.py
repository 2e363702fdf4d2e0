"""Training to a target with a plain NumPy model: data sets, epochs, weights and checkpoints."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from paradnn.config.learning_sets import (
    Cifar10,
    Cifar100,
    Digits,
    Mnist,
    NpzFile,
    PictureFolder,
    set_digest,
    set_file,
)
from paradnn.core.errors import DataError, UnavailableError
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.evaluation import Arrays, fit_examples, read_arrays, score
from paradnn.worker.measure import NotFinite
from paradnn.workloads.learn import Epoch
from paradnn.workloads.learn.checkpoint import Checkpoint
from paradnn.workloads.learn.training import Learner
from paradnn.workloads.learn.weights import require_writable, save_weights, start_from

FEATURES = 8
CLASSES = 4


class SoftmaxRegression:
    """Training step of softmax regression by gradient descent at learning rate `rate`."""

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
        assert len(inputs[0]) == 64, "the last batch must be padded to the shape of the others"
        return inputs[0] @ self.weights


def examples(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    centers = 1.2 * random.standard_normal((CLASSES, FEATURES))

    arrays = {}
    for part, count in (("training", 500), ("heldout", 64)):
        classes = random.integers(0, CLASSES, count).astype("int32")
        drawn = (centers[classes] + random.standard_normal((count, FEATURES))).astype("float32")
        arrays |= {part: drawn, f"{part}_classes": classes}
    return arrays


def make_learner(step: Any, **settings: Any) -> Learner:
    defaults = {
        "metric": "accuracy",
        "target": 0.8,
        "epochs": 40,
        "epochs_after": 0,
        "evaluate_inside": False,
    }
    point = {"batch_size": 32, "seed": 3, "learn": {**defaults, **settings}}
    inputs = np.random.default_rng(9).standard_normal((32, FEATURES)).astype("float32")
    synthetic = ([inputs], [np.zeros(32, "int32")])
    return Learner(step, examples(), point, synthetic)


def train(learner: Learner) -> list[Epoch]:
    """Train to the target and return the reported epochs."""
    epochs: list[Epoch] = []
    learner.learn(EnergyMeter("none"), epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(1, len(epochs) + 1))
    return epochs


def test_scores_equal_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    logits = random.standard_normal((300, 7))
    classes = random.integers(0, 7, 300)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    is_right, losses = score(logits, classes)
    is_among_five, _ = score(logits, classes, likeliest=5)

    assert is_right.mean() == accuracy_score(classes, logits.argmax(axis=1))
    assert losses.mean() == pytest.approx(log_loss(classes, probabilities, labels=range(7)))
    top_five = top_k_accuracy_score(classes, logits, k=5, labels=range(7))
    assert is_among_five.mean() == top_five


def test_each_epoch_uses_every_example_once_in_a_new_order() -> None:
    step = SoftmaxRegression()

    train(make_learner(step, target=0.5, epochs_after=1))

    all_rows = {row.tobytes() for row in examples()["training"]}
    first = np.concatenate(step.seen[:15])
    second = np.concatenate(step.seen[15:30])
    for epoch in (first, second):
        rows = [row.tobytes() for row in epoch]
        assert len(rows) == len(set(rows)) == 480
        assert set(rows) <= all_rows
    assert not np.array_equal(first, second)


def test_compiling_does_not_change_the_training() -> None:
    fresh = SoftmaxRegression()
    warmed = SoftmaxRegression()
    warmed_learner = make_learner(warmed)
    warmed_learner.run(5)
    assert warmed.weights.any()

    warmed_learner.restart()
    assert not warmed.weights.any()
    warmed_epochs = train(warmed_learner)
    fresh_epochs = train(make_learner(fresh))

    accuracies = [epoch.accuracy for epoch in fresh_epochs]
    assert [epoch.accuracy for epoch in warmed_epochs] == accuracies
    assert np.array_equal(fresh.weights, warmed.weights)


def test_a_non_finite_loss_ends_the_training_after_reporting_its_epoch() -> None:
    epochs: list[Epoch] = []

    with np.errstate(all="ignore"), pytest.raises(NotFinite, match="at the end of epoch 1"):
        make_learner(SoftmaxRegression(rate=1e6)).learn(EnergyMeter("none"), epochs.append)

    assert len(epochs) == 1


def test_every_fifth_digit_is_held_out() -> None:
    arrays = Digits().arrays()
    bunch = load_digits()
    assert [len(arrays[name]) for name in ("training", "heldout")] == list(Digits.sizes[:2])
    assert np.array_equal(arrays["heldout"][:, :, :, 0], bunch.images[4::5])
    assert np.array_equal(arrays["heldout_classes"], bunch.target[4::5])
    assert arrays["training"].sum() + arrays["heldout"].sum() == bunch.images.sum()


def test_cifar_is_read_from_its_files(tmp_path: Path) -> None:
    colors = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    rows = colors.reshape(3, -1)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        np.column_stack([np.array([7, 8, 9], np.uint8), rows]).tofile(tmp_path / f"{name}.bin")
    cifar10 = Cifar10(path=str(tmp_path)).arrays()
    assert len(cifar10["training"]) == 15
    assert cifar10["heldout_classes"].tolist() == [7, 8, 9]
    assert np.array_equal(cifar10["heldout"][2, 5, 6], colors[2, :, 5, 6])
    for name in ("train", "test"):
        np.column_stack([np.zeros(3, np.uint8), np.array([70, 80, 90], np.uint8), rows]).tofile(
            tmp_path / f"{name}.bin"
        )
    assert Cifar100(path=str(tmp_path)).arrays()["training_classes"].tolist() == [70, 80, 90]
    (tmp_path / "test.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"test\.bin: is damaged, or not a binary file of CIFAR"):
        Cifar100(path=str(tmp_path)).arrays()


def idx(values: np.ndarray) -> bytes:
    """Return the bytes of an array in IDX, the file format of MNIST."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def mnist_folder(folder: Path, pictures: np.ndarray) -> Path:
    """Write MNIST's four files, two of them compressed; all pictures belong to class 3."""
    heldout = pictures[:10]
    files = {
        "train-images-idx3-ubyte.gz": gzip.compress(idx(pictures), compresslevel=1),
        "train-labels-idx1-ubyte": idx(np.full(len(pictures), 3, "uint8")),
        "t10k-images-idx3-ubyte": idx(heldout),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(idx(np.full(len(heldout), 3, "uint8"))),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_mnist_is_read_from_its_own_files(tmp_path: Path) -> None:
    pictures = np.zeros((60_000, 28, 28), "uint8")
    pictures[5, 2, 7] = 200
    data = Mnist(path=str(mnist_folder(tmp_path, pictures)))

    arrays = data.arrays()

    assert data.sizes == (60_000, 10, 4)
    assert np.argwhere(arrays["training"]).tolist() == [[5, 2, 7, 0]]
    assert np.argwhere(arrays["heldout"]).tolist() == [[5, 2, 7, 0]]
    assert set(arrays["heldout_classes"]) == {3}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        pytest.param("t10k-images-idx3-ubyte", None, "has no t10k-images-idx3-ubyte", id="missing"),
        pytest.param("t10k-images-idx3-ubyte", b"no idx", "is damaged, or not an IDX", id="other"),
        pytest.param("train-labels-idx1-ubyte", idx(np.zeros(9))[:-1], "is damaged", id="cut"),
        pytest.param("train-images-idx3-ubyte.gz", b"x", "cannot be read", id="no-gzip"),
    ],
)
def test_a_folder_without_mnists_files_is_rejected(
    name: str, content: bytes | None, reason: str, tmp_path: Path
) -> None:
    folder = mnist_folder(tmp_path, np.zeros((20, 28, 28), "uint8"))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)

    with pytest.raises(DataError, match=reason):
        Mnist(path=str(folder)).arrays()


def test_a_model_with_a_different_head_starts_from_saved_weights(tmp_path: Path) -> None:
    path = tmp_path / "new" / "weights.npz"
    body = np.arange(6.0)
    head = np.ones((6, 2))
    steps = np.array(9)
    save_weights(path, ["body", "head"], [body, head, steps])
    fresh = [np.zeros((6, 3), "float32"), np.zeros(6, "float32"), np.array(0)]

    values, count = start_from(path, ["head", "body"], fresh)

    assert count == 1
    assert [value.tolist() for value in values] == [fresh[0].tolist(), body.tolist(), 0]
    assert values[1].dtype == np.float32
    assert [entry.name for entry in path.parent.iterdir()] == ["weights.npz"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, r"cannot be read \(No such file or directory\)", id="missing"),
        pytest.param(b"no zip", "is not a file of weights", id="no-zip"),
        pytest.param(b"", "is not a file of weights", id="empty"),
    ],
)
def test_a_file_without_weights_is_rejected(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights.npz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UnavailableError, match=rf"weights\.npz: {reason}.*learn\.start"):
        start_from(path, ["kernel"], [np.zeros(2)])


def test_an_unwritable_folder_is_rejected_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UnavailableError, match=r"cannot be written .*set learn\.save"):
        require_writable(tmp_path / "file" / "weights.npz")


def test_weights_of_a_different_model_are_rejected(tmp_path: Path) -> None:
    save_weights(tmp_path / "weights.npz", ["kernel"], [np.zeros((4, 4))])

    with pytest.raises(UnavailableError, match="no variable matches this model by name and shape"):
        start_from(tmp_path / "weights.npz", ["kernel", "bias"], [np.zeros(4), np.zeros((4, 4))])


def test_a_data_set_is_written_once() -> None:
    path = set_file(Digits())

    assert set_file(Digits()) == path


def test_examples_are_fitted_to_the_model() -> None:
    arrays = read_arrays(str(set_file(Digits())))

    flat = fit_examples(arrays, (64,))
    pictures = fit_examples(arrays, (16, 16, 3))

    assert flat["training"].mean() == pytest.approx(0, abs=1e-5)
    assert flat["training"].std() == pytest.approx(1, abs=1e-5)
    # Each pixel is repeated twice in both directions, in three equal channels.
    first = flat["training"][0].reshape(8, 8)
    assert np.allclose(pictures["training"][0, ::2, 1::2, 2], first)


def test_a_missing_data_set_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"the data set .* cannot be read"):
        read_arrays(str(tmp_path / "gone.npz"))


VALUES = [np.arange(6, dtype="float32").reshape(2, 3), np.array(7, dtype="int64")]
EPOCH = Epoch(1, 22, 1001.0, 2.0, 0.5, 0.2, 0.3, 0.5, None)


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "training.npz"
    second = replace(EPOCH, number=2, train_loss=float("nan"))

    Checkpoint(str(path)).save([EPOCH, second], lambda: VALUES)
    loaded = Checkpoint(str(path)).load(VALUES)

    assert loaded
    epochs, values = loaded
    assert [epoch.number for epoch in epochs] == [1, 2]
    assert np.isnan(epochs[1].train_loss)
    for value, expected in zip(values, VALUES, strict=True):
        assert np.array_equal(value, expected)
    assert [entry.name for entry in path.parent.iterdir()] == ["training.npz"]


def test_a_checkpoint_of_different_variables_or_without_a_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "training.npz"
    Checkpoint(str(path)).save([EPOCH], lambda: VALUES)

    assert Checkpoint(str(path)).load([VALUES[0].T, VALUES[1]]) is None
    assert Checkpoint(str(path)).load([*VALUES, VALUES[0]]) is None
    assert Checkpoint(None).load(VALUES) is None


def test_a_damaged_checkpoint_is_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "training.npz"
    Checkpoint(str(path)).save([EPOCH], lambda: VALUES)
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(VALUES[0].tobytes()) + 5] ^= 1
    cut = [content[:length] for length in range(0, len(content), 37)]

    for damaged in (*cut, flipped):
        path.write_bytes(damaged)
        assert Checkpoint(str(path)).load(VALUES) is None

    assert "not a checkpoint, or damaged" in capsys.readouterr().err


def test_checkpoints_take_at_most_a_fiftieth_of_the_time(tmp_path: Path) -> None:
    now = 0.0
    writes = 0

    def values() -> list[np.ndarray]:
        """Return the values to write, and simulate that writing takes a second."""
        nonlocal now, writes
        now += 1.0
        writes += 1
        return VALUES

    checkpoint = Checkpoint(str(tmp_path / "training.npz"), clock=lambda: now)

    def is_written_after(epoch_seconds: float) -> bool:
        nonlocal now
        now += epoch_seconds
        before = writes
        checkpoint.save([EPOCH], values)
        return writes > before

    assert is_written_after(0.0), "the first epoch is always written"
    short_epochs = [is_written_after(16.4) for _ in range(4)]
    assert short_epochs == [False, False, True, False]
    assert is_written_after(49.1), "an epoch as long as 49 writes is written"


def test_a_failed_write_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(str(tmp_path / "file" / "training.npz"))

    for _ in range(2):
        checkpoint.save([EPOCH], lambda: VALUES)

    assert capsys.readouterr().err.count("continues without checkpoints") == 1


def write_npz(path: Path, **changes: Any) -> Path:
    """Write a set of 12 x 12 pictures, 20 for training and 5 held out.

    `changes` replaces arrays by name; None omits an array.
    """
    random = np.random.default_rng(0)
    arrays = {
        "x_train": random.integers(0, 256, (20, 12, 12), dtype="uint8"),
        "y_train": np.arange(20) % 3,
        "x_test": random.integers(0, 256, (5, 12, 12), dtype="uint8"),
        "y_test": np.arange(5) % 4,
    }
    arrays |= changes
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def test_an_npz_file_uses_the_array_names_of_keras_mnist(tmp_path: Path) -> None:
    data = NpzFile(path=str(write_npz(tmp_path / "own.npz")))

    arrays = data.arrays()

    assert data.sizes == (20, 5, 4)
    assert (data.pixels, data.channels) == (12, 1)
    with np.load(tmp_path / "own.npz") as file:
        assert np.array_equal(arrays["heldout"][..., 0], file["x_test"])
        assert np.array_equal(arrays["training_classes"], file["y_train"])


def test_the_digest_of_a_set_depends_only_on_its_examples(tmp_path: Path) -> None:
    same = [NpzFile(path=str(write_npz(tmp_path / name))) for name in ("a.npz", "b.npz")]
    other = NpzFile(path=str(write_npz(tmp_path / "c.npz", y_train=np.arange(20) % 2)))

    digests = [set_digest(data) for data in (*same, other)]

    assert digests[0] == digests[1]
    assert digests[1] != digests[2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"y_test": None}, "has no array y_test", id="missing array"),
        pytest.param(
            {"x_train": np.zeros((20, 12, 9))}, "x_train of shape 20 x 12 x 9", id="no square"
        ),
        pytest.param(
            {"y_train": np.zeros(19, int)},
            "y_train does not contain exactly one class",
            id="too few classes",
        ),
        pytest.param(
            {"y_train": np.zeros(20)}, "y_train does not contain exactly one class", id="fractions"
        ),
        pytest.param({"x_test": np.zeros((5, 8, 8))}, "of different shapes", id="another size"),
    ],
)
def test_an_npz_file_without_a_valid_set_is_rejected(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = write_npz(tmp_path / "own.npz", **changes)
    with pytest.raises(DataError, match=reason):
        NpzFile(path=str(path)).arrays()


def test_files_that_are_not_npz_or_not_mnist_are_rejected(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    with pytest.raises(DataError, match=r"text\.npz: is not an \.npz file"):
        NpzFile(path=str(text)).arrays()
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        NpzFile(path=str(tmp_path / "none.npz")).arrays()
    with pytest.raises(DataError, match="is not MNIST; use data=npz"):
        Mnist(path=str(write_npz(tmp_path / "own.npz"))).arrays()


def picture_folder(path: Path) -> Path:
    """Write 10 dark pictures of one class and 5 bright ones of another."""
    for name, count, shade in (("dark", 10, 40), ("light", 5, 200)):
        (path / name).mkdir(parents=True)
        for number in range(count):
            color = (shade + number, shade, shade)
            Image.new("RGB", (20, 30), color).save(path / name / f"{number}.png")
    return path


def test_every_sub_folder_is_a_class(tmp_path: Path) -> None:
    data = PictureFolder(path=str(picture_folder(tmp_path)), size=8)

    arrays = data.arrays()

    assert data.sizes == (12, 3, 2)
    assert (data.pixels, data.channels) == (8, 3)
    assert arrays["training_classes"].tolist() == [0] * 8 + [1] * 4
    # Every fifth picture is held out: 4 and 9 of the dark ones, and 4 of the bright ones.
    assert arrays["heldout"][:, 0, 0].tolist() == [[44, 40, 40], [49, 40, 40], [204, 200, 200]]


def test_folders_without_a_valid_set_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        PictureFolder(path=str(tmp_path / "none")).arrays()
    picture_folder(tmp_path / "set")
    (tmp_path / "set" / "light" / "4.png").write_text("no picture")
    with pytest.raises(DataError, match=r"4\.png: is not a picture"):
        PictureFolder(path=str(tmp_path / "set")).arrays()
    (tmp_path / "set" / "light" / "4.png").unlink()
    with pytest.raises(DataError, match=r"light: has 4 pictures"):
        PictureFolder(path=str(tmp_path / "set"), size=16).arrays()
