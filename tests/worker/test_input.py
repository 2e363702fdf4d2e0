"""Pipelines against what is planted in their files: classes as colours, damage."""

import re
import threading
import time
from collections.abc import Sequence
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

COLOURS = ((230, 20, 20), (20, 230, 20), (20, 20, 230))
SIZE = 16


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Generated sets go where the test ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def point(batch_size: int = 8, mode: str = "train", **data: Any) -> dict[str, Any]:
    """A request for a small model fed by `data`."""
    cnn = {
        "name": "residual",
        "blocks": [1, 1, 1],
        "filters": 4,
        "image_size": 32,
        "output_size": 5,
    }
    measure = {"min_seconds": 0.05, "min_blocks": 6, "block_seconds": 0.005, "warmup_seconds": 0.3}
    config = {"model": cnn, "mode": mode, "batch_size": batch_size, "seed": 3, "measure": measure}
    fed = {"data": {"name": "images", "threads": 2, **data}, "optimizer": {"learning_rate": 0.001}}
    return point_request(read_point(config | fed))


def feed(request: dict[str, Any], *targets: ArraySpec) -> Feed:
    """The feed of a request, for a workload of its shapes without its model."""
    inputs = (ArraySpec((SIZE, SIZE, 3), "float32"),)
    labels = (ArraySpec((), "int32", request["model"]["output_size"]),)
    return Feed(request, BuiltModel(None, inputs, targets or labels, lambda *_: None))  # type: ignore[arg-type]


def batches(source: Feed, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    taken = [source.take() for _ in range(count)]
    return [(inputs[0].numpy(), targets[0].numpy()) for inputs, targets in taken]


def jpeg(colour: Sequence[int], height: int = 40, width: int = 60, kind: str = "jpeg") -> bytes:
    pixels = np.broadcast_to(np.array(colour, np.uint8), (height, width, 3))
    return (
        tf.io.encode_png(pixels) if kind == "png" else tf.io.encode_jpeg(pixels, quality=95)
    ).numpy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty pictures of three classes, a colour each, in sub-folders; some are PNG."""
    for label, colour in enumerate(COLOURS):
        for number in range(10):
            kind = "png" if number == 0 else "jpeg"
            path = (
                tmp_path
                / "set"
                / f"class-{label}"
                / f"{number}.{'png' if kind == 'png' else 'JPG'}"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(colour, kind=kind))
    return tmp_path / "set"


def colour_class(pictures: np.ndarray) -> np.ndarray:
    """The class that a picture's own colour stands for."""
    return (pictures.mean(axis=(1, 2)) * STANDARD_DEVIATION + MEAN).argmax(axis=1)


def records(path: Path, damaged: Sequence[int] = (), count: int = 30) -> Path:
    """Two files of pictures, label = class of the colour; those numbered in `damaged` are cut off."""
    path.mkdir()
    for file in range(2):
        with tf.io.TFRecordWriter(str(path / f"train-{file}")) as writer:
            for number in range(file, count, 2):
                encoded = jpeg(COLOURS[number % 3])
                example = tf.train.Example()
                held = encoded[: len(encoded) // 2] if number in damaged else encoded
                example.features.feature["image/encoded"].bytes_list.value.append(held)
                example.features.feature["image/class/label"].int64_list.value.append(number % 3)
                writer.write(example.SerializeToString())
    return path


def cut_off(path: Path) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"x" * 40)
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("cache", ["none", "encoded", "decoded"])
@pytest.mark.parametrize(
    ("kind", "augment"), [("folders", True), ("folders", False), ("records", True)]
)
def test_labels_are_those_of_the_set(
    folder: Path, tmp_path: Path, kind: str, cache: str, augment: bool
) -> None:
    """Pictures in sub-folders, and records as of ImageNet."""
    path = folder if kind == "folders" else records(tmp_path / "records")
    source = feed(point(path=str(path), cache=cache, augment=augment))
    seen = set()
    for pictures, labels in batches(source, 12):
        assert pictures.shape == (8, SIZE, SIZE, 3)
        assert (pictures.dtype, labels.dtype) == (np.float32, np.int32)
        assert (colour_class(pictures) == labels).all()
        seen |= set(labels)
    assert seen == {0, 1, 2}
    values = (pictures * STANDARD_DEVIATION + MEAN).round()
    assert values.min() >= -1
    assert values.max() <= 256


def test_the_seed_decides_and_threads_do_not(folder: Path) -> None:
    request = point(path=str(folder))
    one, two = (batches(feed(request), 6) for _ in range(2))
    request["data"]["threads"] = 1
    three = batches(feed(request), 6)
    other = batches(feed(request | {"seed": 4}), 6)
    for first, second, third in zip(one, two, three, strict=True):
        for array in (0, 1):
            np.testing.assert_array_equal(first[array], second[array])
            np.testing.assert_array_equal(first[array], third[array])
    assert any((first[0] != fourth[0]).any() for first, fourth in zip(one, other, strict=True))


def test_crops_are_windows_and_half_are_flipped(tmp_path: Path) -> None:
    """A picture whose red rises to the right and whose green rises downwards shows where its window
    was.
    """
    ramp = np.zeros((200, 300, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 300)[None, :]
    ramp[..., 1] = np.linspace(0, 255, 200)[:, None]
    (tmp_path / "ramp.jpg").write_bytes(
        tf.io.encode_jpeg(ramp, quality=100, chroma_downsampling=False).numpy()
    )
    request = point(path=str(tmp_path / "ramp.jpg"), batch_size=100)
    pictures = (
        np.concatenate([images for images, _ in batches(feed(request), 4)]) * STANDARD_DEVIATION
        + MEAN
    )
    across = pictures[:, :, -1, 0].mean(axis=1) - pictures[:, :, 0, 0].mean(axis=1)
    down = pictures[:, -1, :, 1].mean(axis=1) - pictures[:, 0, :, 1].mean(axis=1)
    assert 0.4 < (across < 0).mean() < 0.6  # 400 draws: 0.5 +- 4 standard deviations
    assert (down > 0).all()
    shares = np.abs(across) / 255 * down / 255 * (SIZE / (SIZE - 1)) ** 2
    assert 0.06 < shares.min() < 0.2
    assert 0.7 < shares.max() < 1.1
    assert len(np.unique(shares.round(3))) > 100
    centre = (
        batches(feed(request | {"data": request["data"] | {"augment": False}}), 1)[0][0]
        * STANDARD_DEVIATION
        + MEAN
    )
    assert np.ptp(centre, axis=0).max() < 1e-3
    assert centre[0, :, 0, 0].mean() == pytest.approx(
        255 * (1 - 0.875) / 2 + 255 * 0.875 / SIZE / 2, abs=4
    )


def test_targets_that_are_no_labels_are_synthetic_and_stay(folder: Path) -> None:
    source = feed(
        point(path=str(folder)), ArraySpec((7, 4), "float32"), ArraySpec((7,), "int32", 5)
    )
    first, second = ([target.numpy() for target in source.take()[1]] for _ in range(2))
    assert [target.shape for target in first] == [(8, 7, 4), (8, 7)]
    assert all((one == other).all() for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (lambda path: None, "there is no such file or folder here"),
        (lambda path: path.mkdir(), "there are neither pictures"),
        (
            lambda path: path.write_bytes(b"no record at all, but long enough for one"),
            "damaged, or of another format",
        ),
        (lambda path: path.write_bytes(b""), "too few readable pictures for one batch of 8"),
        (cut_off, "damaged, or of another format"),
        (
            lambda path: (path.mkdir(), (path / "a.jpg").write_bytes(b"garbage")),
            "damaged, or of another format",
        ),
    ],
)
def test_what_is_no_input_is_said(tmp_path: Path, plant: Any, reason: str) -> None:
    path = tmp_path / "set"
    plant(path)
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
    size = 0
    for entry in tf.data.TFRecordDataset([str(file) for file in files]):
        parsed = tf.train.Example.FromString(entry.numpy()).features.feature
        encoded = parsed["image/encoded"].bytes_list.value[0]
        shape = tf.io.decode_jpeg(encoded).shape
        pixels = pixels + shape[0] * shape[1]
        size = size + len(encoded)
        assert 0 <= parsed["image/class/label"].int64_list.value[0] < generated.CLASSES
    assert 0.5 < size / pixels < 0.7  # ImageNet: 110 kB at 500 x 375 are 0.59 bytes a pixel
    assert pixels / 12 == pytest.approx(500 * 375, rel=0.25)
    assert [
        path.name for path in (cache / "paradnn" / "data").iterdir() if "making" in path.name
    ] == []


@pytest.fixture(scope="module")
def planted() -> tuple[Any, dict[str, Any], BuiltModel]:
    request = point(examples=16, width=32, height=32)
    workload = build(request["model"])
    framework = TensorFlow()
    framework.open_device(request["platform"])
    return (
        framework.make_step(workload, synthetic_batch(workload, 8, 0), request),
        request,
        workload,
    )


@pytest.mark.parametrize("slow", [0.0, 0.5])
def test_waiting_is_the_planted_delay_alone(
    planted: Any, slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock on which a batch takes `slow` seconds and a step two; the fed step compiles
    nothing again.
    """
    step, request, workload = planted
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    fed = FedStep(step, Feed(request, workload, delay=lambda: passes(slow)))
    compiled = step.function
    step.run(1)
    monkeypatch.setattr(step, "function", lambda *arguments: (passes(2.0), compiled(*arguments))[1])
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    now = 0.0
    fed.run(3)
    assert fed.waits[-1] == 3 * slow
    assert now == 3 * (slow + 2.0)
    assert compiled.experimental_get_tracing_count() == 1


def test_who_asks_while_a_set_is_made_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    makers = []

    def write(folder: Path, *_: int) -> None:
        begun.set()
        time.sleep(0.2)
        makers.append(folder)
        (folder / "file").write_text("content")

    monkeypatch.setattr(generated, "_write_images", write)
    raced = {"examples": 1, "width": 16, "height": 16}
    with ThreadPoolExecutor() as pool:  # each opens the lock for itself, as processes do
        first = pool.submit(generated.generated_images, raced)
        assert begun.wait(60)
        second = pool.submit(generated.generated_images, raced)
    assert first.result() == second.result()
    assert second.result()[0].read_text() == "content"
    assert len(makers) == 1


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_damage_ends_the_point_in_one_line(tmp_path: Path, cache: str) -> None:
    path = records(tmp_path / "set", damaged=(21,))
    result = answer_request(point(path=str(path), cache=cache), TensorFlow(), lambda *_: None)
    assert result.outcome == "unavailable"
    reason = result.reason.removeprefix(f"data.path={path}: damaged, or of another format: ")
    assert re.fullmatch("[a-zA-Z0-9:,. ]*Invalid JPEG data[a-zA-Z0-9:,. ]*", reason)
