"""Sets of pictures and text, generated once for each machine: realistic in size, in content random.

A picture is noise whose amplitude falls with spatial frequency, as that of natural scenes does (Field, J. Opt. Soc.
Am. A 4, 1987), with grain on top, so that JPEG's size and the time to decode it are those of photographs: ImageNet's
training pictures have about 110 kB at 500 x 375. Words of the text are drawn by Zipf's law.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["CLASSES", "Pictures", "data_folder", "generated_images", "generated_text", "ready"]

#: Part of every set's name: raise it when the content changes.
_VERSION = 1
#: Files of a set, so that several can be read at once.
_FILES = 8
#: Labels of generated pictures are below this.
CLASSES = 1000
_QUALITY = 90
#: Amplitude falls as frequency to this power; standard deviations of light, colour and grain (of 255).
_SLOPE, _LIGHT, _COLOUR, _GRAIN = 1.0, 52.0, 14.0, 3.0
#: Fields of noise that pictures are mixed from.
_FIELDS = 8
_WORDS = 30_000
_LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", dtype=np.uint8)


def generated_images(options: Mapping[str, Any]) -> list[Path]:
    """TFRecord files with `examples` pictures of mean `width` x `height`; made now where they are not there."""
    parts = [options[key] for key in ("examples", "width", "height")]
    return ready(f"images-{'x'.join(map(str, parts))}-v{_VERSION}", lambda folder: _write_images(folder, *parts))


def generated_text(options: Mapping[str, Any]) -> list[Path]:
    """UTF-8 files of `megabytes` in all; made now where they are not there."""
    size = options["megabytes"]
    return ready(f"text-{size}-v{_VERSION}", lambda folder: _write_text(folder, size * 10**6))


class Pictures:
    """Random pictures: fields of noise of `size` x `size`, shifted at random and mixed into light and colour."""

    def __init__(self, generator: np.random.Generator, size: int) -> None:
        self._generator = generator
        down, across = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :]
        frequency = np.maximum(np.hypot(down, across), 1 / size)
        self._light = [self._field(frequency**_SLOPE) for _ in range(_FIELDS)]
        self._colour = [self._field(frequency ** (_SLOPE + 0.5)) for _ in range(_FIELDS)]

    def draw(self, width: int, height: int) -> np.ndarray:
        """The next picture, uint8 (height, width, 3)."""
        light, red, blue = (self._window(fields, width, height) for fields in (self._light, self._colour, self._colour))
        grain = self._generator.standard_normal((height, width), dtype=np.float32) * _GRAIN
        base = 120 + light * _LIGHT + grain
        mixed = np.stack([base + red * _COLOUR, base - (red + blue) * _COLOUR / 2, base + blue * _COLOUR], axis=-1)
        picture: np.ndarray = np.clip(mixed, 0, 255).astype(np.uint8)
        return picture

    def _field(self, divisor: np.ndarray) -> np.ndarray:
        """Noise with mean 0 and variance 1 whose spectrum is divided so; it goes on beyond its edges."""
        size = len(divisor)
        values = np.fft.irfft2(np.fft.rfft2(self._generator.standard_normal((size, size))) / divisor, s=(size, size))
        scaled: np.ndarray = ((values - values.mean()) / values.std()).astype(np.float32)
        return scaled

    def _window(self, fields: list[np.ndarray], width: int, height: int) -> np.ndarray:
        field = fields[self._generator.integers(len(fields))]
        top, left = self._generator.integers(len(field), size=2)
        rows, columns = (
            np.arange(start, start + count) % len(field) for start, count in ((top, height), (left, width))
        )
        picture: np.ndarray = field[np.ix_(rows, columns)]
        return picture


def _write_images(folder: Path, examples: int, width: int, height: int) -> None:
    """Sizes vary by a fifth, and a quarter of the pictures stands upright."""
    generator = np.random.default_rng(_VERSION)
    files, pictures = min(_FILES, examples), Pictures(generator, max(16, math.ceil(1.2 * max(width, height))))
    for number in range(files):
        name = folder / f"train-{number:05d}-of-{files:05d}"
        with tf.io.TFRecordWriter(str(name)) as writer:
            for _ in range(number, examples, files):
                scale = generator.uniform(0.8, 1.2)
                size = [max(16, round(width * scale)), max(16, round(height * scale))]
                across, down = size[::-1] if generator.random() < 0.25 else size
                encoded = tf.io.encode_jpeg(pictures.draw(across, down), quality=_QUALITY).numpy()
                features = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[int(generator.integers(CLASSES))])
                    ),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _write_text(folder: Path, size: int) -> None:
    """Lines of twenty words; the k-th commonest of the words has a share of about 1 / k."""
    generator = np.random.default_rng(_VERSION)
    distinct: dict[bytes, None] = {}
    while len(distinct) < _WORDS:
        letters = np.minimum(generator.geometric(0.12, generator.integers(2, 11)) - 1, len(_LETTERS) - 1)
        distinct[_LETTERS[letters].tobytes()] = None
    words = list(distinct)
    shares = 1 / np.arange(1, _WORDS + 1)
    for number in range(_FILES):
        written = 0
        with (folder / f"part-{number}.txt").open("wb") as file:
            while written < size // _FILES:
                drawn = generator.choice(_WORDS, size=(500, 20), p=shares / shares.sum())
                lines = b"".join(b" ".join(words[index] for index in line) + b"\n" for line in drawn)
                written += file.write(lines)


_MANIFEST = "manifest.json"
_MAKING = ".making-"
#: So much of each file is compared with the manifest.
_CHECKED = 2**20


def data_folder() -> Path:
    """The folder of all generated sets."""
    given = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return (given if given.is_absolute() else Path.home() / ".cache") / "paradnn" / "data"


def ready(name: str, write: Callable[[Path], None]) -> list[Path]:
    """The files of a set, as they were written; `write` makes them in a folder, now where they are not there."""
    folder = data_folder() / name
    with _locked(folder.name):
        if (files := _checked(folder)) is None:
            for leftover in [folder, *data_folder().glob(f"{folder.name}{_MAKING}*")]:
                shutil.rmtree(leftover, ignore_errors=True)
            making = data_folder() / f"{folder.name}{_MAKING}{os.getpid()}"
            making.mkdir(parents=True)
            try:
                write(making)
                manifest = {path.name: _signature(path) for path in sorted(making.iterdir())}
                (making / _MANIFEST).write_text(json.dumps(manifest, indent=1))
                making.rename(folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)
            files = sorted(folder / name for name in manifest)
        return files


@contextlib.contextmanager
def _locked(key: str) -> Iterator[None]:
    """One process makes or checks a set, the others wait."""
    folder = data_folder() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _checked(folder: Path) -> list[Path] | None:
    """The files of a set that is as its manifest says; None otherwise."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        if all(_signature(folder / name) == signature for name, signature in manifest.items()):
            return sorted(folder / name for name in manifest)
    except (OSError, ValueError):
        pass
    return None


def _signature(path: Path) -> list[Any]:
    """Size, and a digest of the beginning."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.sha256(file.read(_CHECKED)).hexdigest()]
