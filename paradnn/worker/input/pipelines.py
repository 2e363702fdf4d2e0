"""The pipeline of pictures, in tf.data: read; decode with crop, resize with flip and normalisation;
batch. And the sets that are generated where the user names none.

Each picture has a number, its place in the order of reading; randomness is drawn from the seed and
that number, so that batches are the same however many threads make them.
"""

import fcntl
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paradnn.core.errors import UnavailableError

#: Of the channels of ImageNet's training pictures, in 0..255.
MEAN = (123.675, 116.28, 103.53)
STANDARD_DEVIATION = (58.395, 57.12, 57.375)
_SUFFIXES = (".jpg", ".jpeg", ".png")
_CENTRE = 0.875


def _image_files(data: Mapping[str, Any]) -> tuple[list[str], list[int] | None]:
    """Paths, and the label of each where they are pictures; None where they are TFRecord files.
    Raises UnavailableError.
    """
    if data["path"] is None:
        return [str(path) for path in generated_images(data)], None
    root = Path(data["path"])
    if not root.exists():
        raise UnavailableError(f"data.path={root}: there is no such file or folder here")
    if root.is_file():
        files = [root]
    else:
        files = sorted(path for path in root.rglob("*") if path.is_file())
    pictures = [path for path in files if path.suffix.lower() in _SUFFIXES]
    if pictures:
        inner = (path.parent in (root, root.parent) for path in pictures)
        heads = [
            "" if top else path.relative_to(root).parts[0]
            for path, top in zip(pictures, inner, strict=True)
        ]
        classes = {head: label for label, head in enumerate(sorted(set(heads)))}
        return [str(path) for path in pictures], [classes[head] for head in heads]
    records = [
        str(path)
        for path in files
        if not path.name.startswith(".") and path.suffix not in (".json", ".txt")
    ]
    if not records:
        raise UnavailableError(
            f"data.path={root}: there are neither pictures (jpg, jpeg, png) nor TFRecord files"
        )
    return records, None


class ImagePipeline:
    """Pictures of `shape` (height, width, 3) with labels modulo `classes` (None: as they are), in
    batches.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        shape: tuple[int, ...],
        classes: int | None,
        batch_size: int,
        seed: int,
    ) -> None:
        self._data = data
        self._shape = shape
        self._classes = classes
        self._batch_size = batch_size
        self._seed = seed
        self._files, self._labels = _image_files(data)
        self._kept: tf.data.Dataset | None = None
        if data["cache"] != "none":
            records = self._records(data["readers"])
            whole = data["cache"] == "decoded"
            self._kept = (records.map(self._whole, tf.data.AUTOTUNE) if whole else records).cache()

    def batches(self, threads: int) -> tf.data.Dataset:
        """(pictures (b, *shape) float32, labels (b,)); `threads` is the number of parallel calls,
        or AUTOTUNE.
        """
        data = self._data
        read = self._kept or self._records(data["readers"])
        if data["shuffle"] > 1:
            read = read.shuffle(data["shuffle"], self._seed)
        # One stage: of a picture that is decoded already, handing it to a second one was a sixth of
        # its time.
        return (
            read.repeat()
            .enumerate()
            .map(self._finished, threads)
            .batch(self._batch_size, drop_remainder=True)
        )

    def _records(self, readers: int) -> tf.data.Dataset:
        """(encoded picture, label) of every file once, or the serialised Examples in it; files in a
        random order.
        """
        parallel = readers if readers > 1 else None
        if self._labels is not None:
            named = tf.data.Dataset.from_tensor_slices(
                (self._files, tf.constant(self._labels, tf.int64))
            )
            mixed = named.shuffle(len(self._files), self._seed)
            return mixed.map(lambda name, label: (tf.io.read_file(name), label), parallel)
        names = tf.data.Dataset.from_tensor_slices(self._files).shuffle(
            len(self._files), self._seed
        )
        return names.interleave(
            tf.data.TFRecordDataset, cycle_length=readers, num_parallel_calls=parallel
        )

    def _parsed(self, record: tf.Tensor, *label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoded picture and its label, from a TFRecord's Example where it is one."""
        if label:
            return record, label[0]
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
        }
        example = tf.io.parse_single_example(record, features)
        return example["image/encoded"], example["image/class/label"]

    def _whole(self, *record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = self._parsed(*record)
        return _decode(encoded), label

    def _cropped(self, image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """A window of a picture that was decoded before."""
        return tf.slice(image, *self._window(tf.shape(image), number))

    def _decoded(self, encoded: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """A window of an encoded picture; of a JPEG no more than that is decoded."""

        def jpeg() -> tf.Tensor:
            begin, size = self._window(tf.io.extract_jpeg_shape(encoded), number)
            return tf.io.decode_and_crop_jpeg(
                encoded, tf.concat([begin[:2], size[:2]], 0), channels=3
            )

        return tf.cond(
            tf.io.is_jpeg(encoded), jpeg, lambda: self._cropped(_decode(encoded), number)
        )

    def _window(self, shape: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Begin and size, (y, x, channel) both: at random as for Inception (Szegedy et al., CVPR
        2015, section 6), or the centre.
        """
        if not self._data["augment"]:
            size = tf.cast(tf.cast(shape, tf.float32) * (_CENTRE, _CENTRE, 1.0), tf.int32)
            return (shape - size) // 2, size
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=tf.stack([self._seed, number]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return begin, size

    def _finished(self, number: tf.Tensor, element: Any) -> tuple[tf.Tensor, ...]:
        """The picture as the model takes it, and its label, of one that was read."""
        if self._data["cache"] == "decoded":
            image = self._cropped(element[0], number)
            label = element[1]
        else:
            encoded, label = self._parsed(*tf.nest.flatten(element))
            image = self._decoded(encoded, number)
        resized = tf.image.resize(image, self._shape[:2])
        if self._data["augment"]:
            # The draw of `tf.random.stateless_uniform`, of which that makes four operations.
            shape = tf.constant([], tf.int32)
            drawn = tf.raw_ops.StatelessRandomUniform(
                shape=shape, seed=tf.stack([self._seed, -1 - number])
            )
            resized = tf.cond(drawn < 0.5, lambda: tf.reverse(resized, [1]), lambda: resized)
        normal = (resized - tf.constant(MEAN)) / tf.constant(STANDARD_DEVIATION)
        bounded = label if self._classes is None else label % self._classes
        return tf.ensure_shape(normal, self._shape), tf.cast(bounded, tf.int32)


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


# Sets of pictures, generated once for each machine: noise whose amplitude falls with spatial
# frequency, as that of natural scenes does (Field, J. Opt. Soc. Am. A 4, 1987), with grain on top,
# so that JPEG's size and the time to decode it are those of photographs.

#: Part of every set's name: raise it when the content changes.
_VERSION = 2
#: Files of a set, so that several can be read at once.
_FILES = 8
#: Labels of generated pictures are below this.
CLASSES = 1000
_QUALITY = 90
#: Standard deviations of light, colour and grain (of 255), and how many fields of noise pictures
#: are mixed from.
_LIGHT = 52.0
_COLOUR = 10.0
_GRAIN = 3.0
_FIELDS = 8


def generated_images(options: Mapping[str, Any]) -> list[Path]:
    """TFRecord files with `examples` pictures of mean `width` x `height`; one process makes them,
    others wait.
    """
    parts = [options[key] for key in ("examples", "width", "height")]
    name = f"images-{'x'.join(map(str, parts))}-v{_VERSION}"
    given = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    sets = (given if given.is_absolute() else Path.home() / ".cache") / "paradnn" / "data"
    folder = sets / name
    making = sets / f"{name}.making"
    sets.mkdir(parents=True, exist_ok=True)
    with (sets / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            _write_images(making, *parts)
            making.rename(folder)
    return sorted(folder.iterdir())


def _noise(generator: np.random.Generator, size: int) -> np.ndarray:
    """Fields of `size` x `size`, of variance 1, whose amplitude falls as frequency does; periodic."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    spectrum = np.fft.rfft2(generator.standard_normal((_FIELDS, size, size))) / np.maximum(
        frequency, 1 / size
    )
    values = np.fft.irfft2(spectrum, s=(size, size))
    return np.asarray(values / values.std(axis=(1, 2), keepdims=True), np.float32)


def _picture(
    generator: np.random.Generator, fields: np.ndarray, width: int, height: int
) -> np.ndarray:
    """The next picture, uint8 (height, width, 3): fields shifted at random and mixed into light and
    colour.
    """
    size = fields.shape[1]
    rolled = (
        np.roll(fields[generator.integers(_FIELDS)], generator.integers(size, size=2), (0, 1))
        for _ in range(3)
    )
    light, red, blue = (field[:height, :width] for field in rolled)
    base = (
        120 + light * _LIGHT + generator.standard_normal((height, width), dtype=np.float32) * _GRAIN
    )
    mixed = np.stack(
        [base + red * _COLOUR, base - (red + blue) * _COLOUR / 2, base + blue * _COLOUR], axis=-1
    )
    return np.asarray(np.clip(mixed, 0, 255), np.uint8)


def _write_images(folder: Path, examples: int, width: int, height: int) -> None:
    """Sizes vary by a fifth, and a quarter of the pictures stands upright."""
    generator = np.random.default_rng(_VERSION)
    files = min(_FILES, examples)
    fields = _noise(generator, max(16, math.ceil(1.2 * max(width, height))))
    for number in range(files):
        with tf.io.TFRecordWriter(str(folder / f"train-{number:05d}-of-{files:05d}")) as writer:
            for _ in range(number, examples, files):
                scale = generator.uniform(0.8, 1.2)
                size = [max(16, round(width * scale)), max(16, round(height * scale))]
                across, down = size[::-1] if generator.random() < 0.25 else size
                picture = _picture(generator, fields, across, down)
                encoded = tf.io.encode_jpeg(picture, quality=_QUALITY).numpy()
                label = tf.train.Int64List(value=[int(generator.integers(CLASSES))])
                features = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[encoded])
                    ),
                    "image/class/label": tf.train.Feature(int64_list=label),
                }
                writer.write(
                    tf.train.Example(
                        features=tf.train.Features(feature=features)
                    ).SerializeToString()
                )
