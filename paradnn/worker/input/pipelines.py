"""The pipeline of pictures, stage by stage: read, decode with crop, resize with flip and normalisation, batch.

Every stage is a dataset that ends there, so that a stage can be timed as what it adds to the one before. Each picture
has a number, its place in the order of reading; randomness is drawn from the seed and that number, so that batches are
the same however many threads make them, and numbers that are missing at the end are pictures that could not be decoded.
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

from paradnn.worker.frameworks import Unavailable

STAGES = ("read", "decode", "resize", "batch")
#: Of the channels of ImageNet's training pictures, in 0..255.
MEAN = (123.675, 116.28, 103.53)
STANDARD_DEVIATION = (58.395, 57.12, 57.375)
#: An iterator ends after so many pictures and is made again: where none can be decoded, it does end.
EPOCH = 65_536
_SUFFIXES = (".jpg", ".jpeg", ".png")
#: Sets up to this size are read once before use, so that a record file that is damaged is reported.
_READ_ALL = 2**30
_CENTRE = 0.875


def image_files(data: Mapping[str, Any]) -> tuple[list[str], list[int] | None]:
    """Paths, and the label of each where they are pictures; None where they are TFRecord files. Raises Unavailable."""
    if data["path"] is None:
        return [str(path) for path in generated_images(data)], None
    root = Path(data["path"])
    if not root.exists():
        raise Unavailable(f"data.path={root}: there is no such file or folder here")
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    pictures = [path for path in files if path.suffix.lower() in _SUFFIXES]
    if pictures:
        heads = (
            [path.relative_to(root).parts[0] if path.parent != root else "" for path in pictures]
            if root.is_dir()
            else [""]
        )
        classes = {head: label for label, head in enumerate(sorted(set(heads)))}
        return [str(path) for path in pictures], [classes[head] for head in heads]
    records = [str(path) for path in files if not path.name.startswith(".") and path.suffix not in (".json", ".txt")]
    if not records:
        raise Unavailable(f"data.path={root}: there are neither pictures (jpg, jpeg, png) nor TFRecord files")
    _check_records(records)
    return records, None


class ImagePipeline:
    """Pictures of `shape` (height, width, 3) with labels modulo `classes` (None: as they are), in batches.

    `damaged` counts the pictures that could not be kept in memory (`data.cache=decoded`). Raises Unavailable.
    """

    def __init__(
        self, data: Mapping[str, Any], shape: tuple[int, ...], classes: int | None, batch_size: int, seed: int
    ) -> None:
        self._data, self._shape, self._classes = data, shape, classes
        self._batch_size, self._seed = batch_size, seed
        self._files, self._labels = image_files(data)
        self.damaged = 0
        self._kept: tf.data.Dataset | None = None
        if data["cache"] == "decoded":
            source = self._records(data["readers"])
            whole = source.map(self._whole, tf.data.AUTOTUNE).ignore_errors()
            self._kept = whole.cache()
            self.damaged = _count(source) - _count(self._kept)
        elif data["cache"] == "encoded":
            self._kept = self._records(data["readers"]).cache()

    def examples_of(self, stage: str) -> float:
        """Examples in an element of a stage that is not a batch."""
        return 1.0

    def stages(self, threads: int | None, batch_size: int | None = None) -> dict[str, tf.data.Dataset]:
        """Stage -> the pipeline up to it; the last gives (numbers (b,), pictures (b, *shape) float32, labels (b,)).

        `threads` is the number of parallel calls, or AUTOTUNE; None: all in the caller's thread.
        Batches have another size where one is given.
        """
        data = self._data
        records = self._kept
        if records is None and self._labels is not None:
            read = _endless(self._named(), data["shuffle"], self._seed).map(
                lambda number, element: (number, _read_file(*element)), threads and data["readers"]
            )
        else:
            records = records or self._records(data["readers"] if threads else 1)
            read = _endless(records, data["shuffle"], self._seed)
        decoded = read.map(self._cropped if data["cache"] == "decoded" else self._decoded, threads)
        if data["cache"] != "decoded":
            decoded = decoded.ignore_errors()
        resized = decoded.map(self._finished, threads)
        batched = resized.batch(batch_size or self._batch_size, drop_remainder=True)
        return dict(zip(STAGES, (read, decoded, resized, batched), strict=True))

    def _named(self) -> tf.data.Dataset:
        labels = tf.constant(self._labels, tf.int64)
        return tf.data.Dataset.from_tensor_slices((self._files, labels)).shuffle(len(self._files), self._seed)

    def _records(self, readers: int) -> tf.data.Dataset:
        """(encoded picture or serialised Example, label) of every file once; files in a random order."""
        if self._labels is not None:
            return self._named().map(_read_file, readers)
        names = tf.data.Dataset.from_tensor_slices(self._files).shuffle(len(self._files), self._seed)
        parallel = readers if readers > 1 else None
        records = names.interleave(tf.data.TFRecordDataset, cycle_length=readers, num_parallel_calls=parallel)
        return records.map(lambda record: (record, tf.constant(0, tf.int64)))

    def _parsed(self, record: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoded picture and its label, from a TFRecord's Example where it is one."""
        if self._labels is not None:
            return record, label
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
        }
        example = tf.io.parse_single_example(record, features)
        return example["image/encoded"], example["image/class/label"]

    def _whole(self, record: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = self._parsed(record, label)
        return _decode(encoded), label

    def _cropped(self, number: tf.Tensor, element: Any) -> tuple[tf.Tensor, ...]:
        """A window of a picture that was decoded before."""
        image, label = element
        return number, _cut(image, self._window(tf.shape(image), number)), label

    def _decoded(self, number: tf.Tensor, element: Any) -> tuple[tf.Tensor, ...]:
        """A window of an encoded picture; of a JPEG no more than that is decoded."""
        encoded, label = self._parsed(*element)

        def jpeg() -> tf.Tensor:
            window = self._window(tf.io.extract_jpeg_shape(encoded), number)
            return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

        def other() -> tf.Tensor:
            image = _decode(encoded)
            return _cut(image, self._window(tf.shape(image), number))

        return number, tf.cond(tf.io.is_jpeg(encoded), jpeg, other), label

    def _window(self, shape: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """(y, x, height, width): at random as for Inception (Szegedy et al., CVPR 2015, section 6), or the centre."""
        if not self._data["augment"]:
            size = tf.cast(tf.cast(shape[:2], tf.float32) * _CENTRE, tf.int32)
            return tf.concat([(shape[:2] - size) // 2, size], 0)
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=tf.stack([self._seed, number]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], 0)

    def _finished(self, number: tf.Tensor, image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, ...]:
        resized = tf.image.resize(image, self._shape[:2])
        if self._data["augment"]:
            resized = tf.image.stateless_random_flip_left_right(resized, tf.stack([self._seed, -1 - number]))
        normal = (resized - tf.constant(MEAN)) / tf.constant(STANDARD_DEVIATION)
        bounded = label if self._classes is None else label % self._classes
        return number, tf.ensure_shape(normal, self._shape), tf.cast(bounded, tf.int32)


def _check_records(files: list[str]) -> None:
    """Unavailable for a file that is no TFRecord file or is damaged; of large sets only beginnings are read."""
    whole = sum(Path(file).stat().st_size for file in files) <= _READ_ALL
    for file in files:
        records = tf.data.TFRecordDataset(file)
        try:
            count = int((records if whole else records.take(1)).reduce(0, lambda total, _: total + 1))
        except tf.errors.DataLossError as error:
            raise Unavailable(f"data.path: {file} is damaged, or no TFRecord file: {error.message}") from None
        if not count:
            raise Unavailable(f"data.path: {file} holds no records")


def _endless(dataset: tf.data.Dataset, shuffle: int, seed: int) -> tf.data.Dataset:
    """(number, element), in a new order for each pass."""
    mixed = dataset.shuffle(shuffle, seed) if shuffle > 1 else dataset
    return mixed.repeat().take(EPOCH).enumerate()


def _count(dataset: tf.data.Dataset) -> int:
    return int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))


def _read_file(name: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.io.read_file(name), label


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def _cut(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    top, left, height, width = tf.unstack(window)
    return image[top : top + height, left : left + width]


# The pipeline of token sequences, stage by stage: read, tokenise, cut into windows, batch.
#
# Lines are read from several files at once and put together in chunks; a chunk's words become numbers by a hash (or its
# bytes their values), and the numbers windows of one token more than a sequence: inputs are all but the last, targets
# all but the first. What is left of a chunk behind its last window is dropped.

TEXT_STAGES = ("read", "tokenise", "window", "batch")
#: Lines of a chunk at least; as many as a window has tokens where that is more, so that a chunk has a window.
_LINES = 256
#: An iterator ends after so many chunks and is made again: where there is no text in them, it does end.
_EPOCH = 65_536


def text_files(data: Mapping[str, Any]) -> list[str]:
    """The files to read; Unavailable where there are none."""
    if data["path"] is None:
        return [str(path) for path in generated_text(data)]
    root = Path(data["path"])
    if not root.exists():
        raise Unavailable(f"data.path={root}: there is no such file or folder here")
    paths = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    files = [str(path) for path in paths if not path.name.startswith(".") and path.stat().st_size]
    if not files:
        raise Unavailable(f"data.path={root}: there is no text in it")
    return files


class TextPipeline:
    """Windows of `length` + 1 tokens below `vocabulary`, in batches."""

    damaged = 0

    def __init__(self, data: Mapping[str, Any], length: int, vocabulary: int, batch_size: int, seed: int) -> None:
        self._data, self._length, self._vocabulary = data, length, vocabulary
        self._batch_size, self._seed = batch_size, seed
        self._files = text_files(data)
        self._kept = self._lines(data["readers"]).cache() if data["cache"] == "text" else None

    def examples_of(self, stage: str) -> float:
        """Examples in an element of a stage: a chunk has as many as it has windows, in the mean of the first."""
        if stage in ("window", "batch"):
            return 1.0
        counts = [int(tf.size(chunk)) // (self._length + 1) for chunk in self.stages(None)["tokenise"].take(8)]
        return max(1.0, sum(counts) / max(1, len(counts)))

    def stages(self, threads: int | None, batch_size: int | None = None) -> dict[str, tf.data.Dataset]:
        """Stage -> the pipeline up to it; the last gives (numbers (b,), windows (b, length + 1) int32).

        `threads` is the number of parallel calls, or AUTOTUNE; None: all in the caller's thread.
        Batches have another size where one is given.
        """
        lines = self._kept or self._lines(self._data["readers"] if threads else 1)
        chunks = lines.repeat().batch(max(_LINES, 2 * self._length + 2), drop_remainder=True).take(_EPOCH)
        tokens = chunks.map(self._tokens, threads)
        windows = tokens.map(self._windows, threads).unbatch()
        if self._data["shuffle"] > 1:
            windows = windows.shuffle(self._data["shuffle"], self._seed)
        batched = windows.enumerate().batch(batch_size or self._batch_size, drop_remainder=True)
        return dict(zip(TEXT_STAGES, (chunks, tokens, windows, batched), strict=True))

    def _lines(self, readers: int) -> tf.data.Dataset:
        names = tf.data.Dataset.from_tensor_slices(self._files).shuffle(len(self._files), self._seed)
        parallel = readers if readers > 1 else None
        return names.interleave(tf.data.TextLineDataset, cycle_length=readers, num_parallel_calls=parallel)

    def _tokens(self, lines: tf.Tensor) -> tf.Tensor:
        """The chunk's tokens, int32."""
        if self._data["tokens"] == "bytes":
            values = tf.io.decode_raw(tf.strings.reduce_join(lines, separator="\n"), tf.uint8)
            return tf.cast(values, tf.int32) % self._vocabulary
        words = tf.strings.split(lines).flat_values
        return tf.cast(tf.strings.to_hash_bucket_fast(words, self._vocabulary), tf.int32)

    def _windows(self, tokens: tf.Tensor) -> tf.Tensor:
        size = self._length + 1
        whole = tf.size(tokens) // size * size
        return tf.reshape(tokens[:whole], [-1, size])


# Sets of pictures and text, generated once for each machine: realistic in size, in content random.
#
# A picture is noise whose amplitude falls with spatial frequency, as that of natural scenes does (Field, J. Opt. Soc.
# Am. A 4, 1987), with grain on top, so that JPEG's size and the time to decode it are those of photographs: ImageNet's
# training pictures have about 110 kB at 500 x 375. Words of the text are drawn by Zipf's law.

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
