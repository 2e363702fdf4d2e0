"""Input pipelines on planted files: classes as colors, and damaged files."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paradnn.config.identity import point_request
from paradnn.config.reading import read_point
from paradnn.core.errors import UnavailableError
from paradnn.families import build
from paradnn.families.built import ArraySpec, BuiltModel
from paradnn.worker.frameworks.tensorflow import TensorFlow
from paradnn.worker.input import pipelines as generated
from paradnn.worker.input.feed import FedStep, Feed
from paradnn.worker.input.pipelines import MEAN, STANDARD_DEVIATION
from paradnn.worker.request import answer_request
from paradnn.worker.step import synthetic_batch

COLORS = ((230, 20, 20), (20, 230, 20), (20, 20, 230))
SIZE = 16


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep generated data sets in the folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def point(batch_size: int = 8, mode: str = "train", **data: Any) -> dict[str, Any]:
    """Return a request for a small model; `data` holds options of its images."""
    cnn = {
        "name": "residual",
        "blocks": [1, 1, 1],
        "filters": 4,
        "image_size": 32,
        "output_size": 5,
    }
    measure = {"min_seconds": 0.05, "min_blocks": 6, "block_seconds": 0.005, "warmup_seconds": 0.3}
    config = {"model": cnn, "mode": mode, "batch_size": batch_size, "seed": 3, "measure": measure}
    config["data"] = {"name": "images", "threads": 2, **data}
    config["optimizer"] = {"learning_rate": 0.001}
    return point_request(read_point(config))


def feed(request: dict[str, Any], *targets: ArraySpec) -> Feed:
    """Return the feed of a request, for a workload with inputs and targets but without a model."""
    inputs = (ArraySpec((SIZE, SIZE, 3), "float32"),)
    labels = (ArraySpec((), "int32", request["model"]["output_size"]),)
    return Feed(request, BuiltModel(None, inputs, targets or labels, lambda *_: None))  # type: ignore[arg-type]


def batches(source: Feed, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    fed_batches = [source.take() for _ in range(count)]
    return [(inputs[0].numpy(), targets[0].numpy()) for inputs, targets in fed_batches]


def encoded_picture(
    color: Sequence[int], height: int = 40, width: int = 60, is_png: bool = False
) -> bytes:
    pixels = np.broadcast_to(np.array(color, np.uint8), (height, width, 3))
    if is_png:
        return tf.io.encode_png(pixels).numpy()
    return tf.io.encode_jpeg(pixels, quality=95).numpy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write thirty pictures to three class folders, with one color and one PNG file per class."""
    root = tmp_path / "set"
    for label, color in enumerate(COLORS):
        class_folder = root / f"class-{label}"
        class_folder.mkdir(parents=True)
        (class_folder / "0.png").write_bytes(encoded_picture(color, is_png=True))
        for number in range(1, 10):
            (class_folder / f"{number}.JPG").write_bytes(encoded_picture(color))
    return root


def color_class(pictures: np.ndarray) -> np.ndarray:
    """Return the class of each normalized picture, which is its strongest color channel."""
    return (pictures.mean(axis=(1, 2)) * STANDARD_DEVIATION + MEAN).argmax(axis=1)


def records(path: Path, damaged: Sequence[int] = (), count: int = 30) -> Path:
    """Write two TFRecord files with `count` pictures, labeled by color.

    The pictures whose numbers are in `damaged` are truncated.
    """
    path.mkdir()
    for file in range(2):
        with tf.io.TFRecordWriter(str(path / f"train-{file}")) as writer:
            for number in range(file, count, 2):
                encoded = encoded_picture(COLORS[number % 3])
                if number in damaged:
                    encoded = encoded[: len(encoded) // 2]
                example = tf.train.Example()
                example.features.feature["image/encoded"].bytes_list.value.append(encoded)
                example.features.feature["image/class/label"].int64_list.value.append(number % 3)
                writer.write(example.SerializeToString())
    return path


def write_nothing(path: Path) -> None:
    """Leave the path absent."""


def write_empty_folder(path: Path) -> None:
    path.mkdir()


def write_text(path: Path) -> None:
    path.write_bytes(b"no record at all, but long enough for one")


def write_empty_file(path: Path) -> None:
    path.write_bytes(b"")


def write_garbage_picture(path: Path) -> None:
    path.mkdir()
    (path / "a.jpg").write_bytes(b"garbage")


def write_cut_record(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"x" * 40)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("cache", ["none", "encoded", "decoded"])
@pytest.mark.parametrize(
    ("kind", "augment"), [("folders", True), ("folders", False), ("records", True)]
)
def test_labels_match_the_pictures(
    folder: Path, tmp_path: Path, kind: str, cache: str, augment: bool
) -> None:
    """Read pictures from class folders, or from records such as ImageNet's."""
    path = folder if kind == "folders" else records(tmp_path / "records")
    source = feed(point(path=str(path), cache=cache, augment=augment))
    seen = set()
    for pictures, labels in batches(source, 12):
        assert pictures.shape == (8, SIZE, SIZE, 3)
        assert (pictures.dtype, labels.dtype) == (np.float32, np.int32)
        assert (color_class(pictures) == labels).all()
        seen |= set(labels)
    assert seen == {0, 1, 2}
    values = (pictures * STANDARD_DEVIATION + MEAN).round()
    assert values.min() >= -1
    assert values.max() <= 256


def test_batches_depend_on_the_seed_but_not_on_the_threads(folder: Path) -> None:
    request = point(path=str(folder))
    reference = batches(feed(request), 6)

    repeated = batches(feed(request), 6)
    single_thread = batches(feed(point(path=str(folder), threads=1)), 6)
    other_seed = batches(feed(request | {"seed": 4}), 6)

    for same in (repeated, single_thread):
        for (pictures, labels), (same_pictures, same_labels) in zip(reference, same, strict=True):
            np.testing.assert_array_equal(pictures, same_pictures)
            np.testing.assert_array_equal(labels, same_labels)
    differences = [
        (pictures != other).any()
        for (pictures, _), (other, _) in zip(reference, other_seed, strict=True)
    ]
    assert any(differences)


def unnormalized(pictures: np.ndarray) -> np.ndarray:
    """Return pictures with values in 0..255."""
    return pictures * STANDARD_DEVIATION + MEAN


def test_crops_are_random_windows_and_half_of_them_are_flipped(tmp_path: Path) -> None:
    """Crop a picture whose red rises to the right and green downwards.

    The colors of a crop show its position.
    """
    ramp = np.zeros((200, 300, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 300)[None, :]
    ramp[..., 1] = np.linspace(0, 255, 200)[:, None]
    path = tmp_path / "ramp.jpg"
    encoded = tf.io.encode_jpeg(ramp, quality=100, chroma_downsampling=False)
    path.write_bytes(encoded.numpy())

    fed_batches = batches(feed(point(path=str(path), batch_size=100)), 4)

    pictures = unnormalized(np.concatenate([images for images, _ in fed_batches]))
    red = pictures[..., 0]
    green = pictures[..., 1]
    across = red[:, :, -1].mean(axis=1) - red[:, :, 0].mean(axis=1)
    down = green[:, -1, :].mean(axis=1) - green[:, 0, :].mean(axis=1)
    # Of 400 draws, half are flipped, within 4 standard deviations.
    assert 0.4 < (across < 0).mean() < 0.6
    assert (down > 0).all()
    areas = np.abs(across) / 255 * down / 255 * (SIZE / (SIZE - 1)) ** 2
    assert 0.06 < areas.min() < 0.2
    assert 0.7 < areas.max() < 1.1
    assert len(np.unique(areas.round(3))) > 100


def test_without_augmentation_the_crop_is_the_center(tmp_path: Path) -> None:
    ramp = np.zeros((200, 300, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 300)[None, :]
    path = tmp_path / "ramp.jpg"
    encoded = tf.io.encode_jpeg(ramp, quality=100, chroma_downsampling=False)
    path.write_bytes(encoded.numpy())

    [(pictures, _)] = batches(feed(point(path=str(path), batch_size=100, augment=False)), 1)

    values = unnormalized(pictures)
    assert np.ptp(values, axis=0).max() < 1e-3
    first_column = 255 * (1 - 0.875) / 2 + 255 * 0.875 / SIZE / 2
    assert values[0, :, 0, 0].mean() == pytest.approx(first_column, abs=4)


def test_targets_other_than_labels_are_synthetic_and_constant(folder: Path) -> None:
    source = feed(
        point(path=str(folder)), ArraySpec((7, 4), "float32"), ArraySpec((7,), "int32", 5)
    )

    first = [target.numpy() for target in source.take()[1]]
    second = [target.numpy() for target in source.take()[1]]

    assert [target.shape for target in first] == [(8, 7, 4), (8, 7)]
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        pytest.param(write_nothing, "this machine has no such file or folder", id="absent"),
        pytest.param(write_empty_folder, "contains neither images", id="empty-folder"),
        pytest.param(write_text, "is damaged, or has an unsupported format", id="text"),
        pytest.param(
            write_empty_file, "too few readable images for one batch of 8", id="empty-file"
        ),
        pytest.param(write_cut_record, "is damaged, or has an unsupported format", id="cut-record"),
        pytest.param(
            write_garbage_picture, "is damaged, or has an unsupported format", id="garbage-picture"
        ),
    ],
)
def test_unusable_input_is_unavailable(
    tmp_path: Path, write: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "set"
    write(path)

    with pytest.raises(UnavailableError, match=reason):
        feed(point(path=str(path)))


def test_generated_pictures_are_made_once(cache: Path) -> None:
    options = {"examples": 12, "width": 500, "height": 375}
    files = generated.generated_images(options)
    assert all(file.is_relative_to(cache / "paradnn" / "data") for file in files)
    times = [file.stat().st_mtime_ns for file in files]
    assert generated.generated_images(options) == files
    assert [file.stat().st_mtime_ns for file in files] == times
    pixels = 0
    encoded_bytes = 0
    for entry in tf.data.TFRecordDataset([str(file) for file in files]):
        parsed = tf.train.Example.FromString(entry.numpy()).features.feature
        encoded = parsed["image/encoded"].bytes_list.value[0]
        shape = tf.io.decode_jpeg(encoded).shape
        pixels += shape[0] * shape[1]
        encoded_bytes += len(encoded)
        assert 0 <= parsed["image/class/label"].int64_list.value[0] < generated.CLASSES
    # ImageNet has 110 kB at 500 x 375 pixels, which is 0.59 bytes per pixel.
    assert 0.5 < encoded_bytes / pixels < 0.7
    assert pixels / 12 == pytest.approx(500 * 375, rel=0.25)
    assert not list((cache / "paradnn" / "data").glob("*making*"))


@pytest.fixture(scope="module")
def planted() -> tuple[Any, dict[str, Any], BuiltModel]:
    request = point(examples=16, width=32, height=32)
    workload = build(request["model"])
    framework = TensorFlow()
    framework.open_device(request["platform"])
    step = framework.make_step(workload, synthetic_batch(workload, 8, 0), request)
    return step, request, workload


@pytest.mark.parametrize("batch_seconds", [0.0, 0.5])
def test_the_recorded_wait_equals_the_planted_delay(
    planted: Any, batch_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate batches of `batch_seconds` and steps of two seconds.

    The fed step must not compile again.
    """
    step, request, workload = planted
    compiled = step.function
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    def timed_step(*arguments: Any) -> Any:
        advance(2.0)
        return compiled(*arguments)

    fed = FedStep(step, Feed(request, workload, delay=lambda: advance(batch_seconds)))
    step.run(1)
    monkeypatch.setattr(step, "function", timed_step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    now = 0.0
    fed.run(3)
    assert fed.waits[-1] == 3 * batch_seconds
    assert now == 3 * (batch_seconds + 2.0)
    assert compiled.experimental_get_tracing_count() == 1


def test_a_process_waits_while_another_process_generates_the_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()
    written_folders = []

    def write(folder: Path, *_: int) -> None:
        begun.set()
        time.sleep(0.2)
        written_folders.append(folder)
        (folder / "file").write_text("content")

    monkeypatch.setattr(generated, "_write_images", write)
    options = {"examples": 1, "width": 16, "height": 16}
    # Each thread opens the lock file itself, as a process does.
    with ThreadPoolExecutor() as pool:
        first = pool.submit(generated.generated_images, options)
        assert begun.wait(60)
        second = pool.submit(generated.generated_images, options)
    assert first.result() == second.result()
    assert second.result()[0].read_text() == "content"
    assert len(written_folders) == 1


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_a_damaged_picture_ends_the_point_with_one_line(tmp_path: Path, cache: str) -> None:
    path = records(tmp_path / "set", damaged=(21,))
    result = answer_request(point(path=str(path), cache=cache), TensorFlow(), lambda *_: None)
    assert result.outcome == "unavailable"
    reason = result.reason.removeprefix(
        f"data.path={path}: is damaged, or has an unsupported format: "
    )
    assert re.fullmatch("[a-zA-Z0-9:,. ]*Invalid JPEG data[a-zA-Z0-9:,. ]*", reason)
