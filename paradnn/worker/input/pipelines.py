"""Pipelines of images in tf.data: read, decode, crop, resize, flip, normalize and batch.

This module also generates a set of images if the user provides none.

Each image has a number: its position in the order of reading. Random decisions depend on the seed
and this number, so batches do not depend on the number of threads.
"""

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from paradnn.core import locks
from paradnn.core.errors import UnavailableError

#: Mean and standard deviation of the channels of ImageNet's training images, in 0..255.
MEAN = (123.675, 116.28, 103.53)
STANDARD_DEVIATION = (58.395, 57.12, 57.375)
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
_OTHER_SUFFIXES = (".json", ".txt")
#: Height and width of a central crop, as a fraction of the image's height and width.
_CENTER_FRACTION = 0.875


def _image_files(data: Mapping[str, Any]) -> tuple[list[str], list[int] | None]:
    """Return the input files, and the label of each file.

    Files are images or TFRecord files. The label of an image is the index of its class folder,
    the folder directly below the root, in alphabetical order. The labels are None for TFRecord
    files, which contain the labels of their images.

    Args:
        data: The `data` settings of a configuration. `path` is a file or a folder; if it is None,
            the images are generated.

    Raises:
        UnavailableError: If the path does not exist, or has neither images nor TFRecord files.
    """
    if data["path"] is None:
        return [str(path) for path in generated_images(data)], None
    root = Path(data["path"])
    if not root.exists():
        raise UnavailableError(
            f"data.path={root}: this machine has no such file or folder; copy the data to this path"
        )
    if root.is_file():
        files = [root]
    else:
        files = sorted(path for path in root.rglob("*") if path.is_file())
    images = [path for path in files if path.suffix.lower() in _IMAGE_SUFFIXES]
    if images:
        folders = [_class_folder(path, root) for path in images]
        labels = {folder: label for label, folder in enumerate(sorted(set(folders)))}
        return [str(path) for path in images], [labels[folder] for folder in folders]
    records = [
        str(path)
        for path in files
        if not path.name.startswith(".") and path.suffix not in _OTHER_SUFFIXES
    ]
    if not records:
        raise UnavailableError(
            f"data.path={root}: contains neither images (jpg, jpeg, png) nor TFRecord files; give the path of such files"
        )
    return records, None


def _class_folder(path: Path, root: Path) -> str:
    """Return the folder directly below `root` that contains an image; "" if it is in `root`."""
    if path.parent in (root, root.parent):
        return ""
    return path.relative_to(root).parts[0]


class ImagePipeline:
    """Pipeline that reads, augments, normalizes and batches labeled images.

    Args:
        data: The `data` settings of a configuration, such as `path`, `cache`, `shuffle` and
            `augment`.
        shape: Shape of an image after resizing: (height, width, 3).
        classes: Labels are reduced modulo this number; None to keep them unchanged.
        batch_size: Images per batch.
        seed: Seed of all random decisions.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
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
        self._cached: tf.data.Dataset | None = None
        if data["cache"] != "none":
            records = self._records(data["readers"])
            if data["cache"] == "decoded":
                records = records.map(self._decoded_whole, tf.data.AUTOTUNE)
            self._cached = records.cache()

    def batches(self, threads: int) -> tf.data.Dataset:
        """Return a dataset of images (batch, *shape) as float32, with labels (batch,) as int32.

        Args:
            threads: Number of images that are processed in parallel, or `tf.data.AUTOTUNE`.
        """
        data = self._data
        records = self._cached or self._records(data["readers"])
        if data["shuffle"] > 1:
            records = records.shuffle(data["shuffle"], self._seed)
        # A single `map` does all the work. A second `map` took an additional sixth of the time of
        # a decoded image.
        numbered = records.repeat().enumerate()
        return numbered.map(self._finished, threads).batch(self._batch_size, drop_remainder=True)

    def _records(self, readers: int) -> tf.data.Dataset:
        """Return a dataset of one pass over all records, with the files in a random order.

        A record of an image file is (encoded image, label). A record of a TFRecord file is a
        serialized Example.

        Args:
            readers: Number of files that are read in parallel.
        """
        parallel = readers if readers > 1 else None
        if self._labels is not None:
            labels = tf.constant(self._labels, tf.int64)
            named = tf.data.Dataset.from_tensor_slices((self._files, labels))
            shuffled = named.shuffle(len(self._files), self._seed)
            return shuffled.map(lambda name, label: (tf.io.read_file(name), label), parallel)
        names = tf.data.Dataset.from_tensor_slices(self._files)
        return names.shuffle(len(self._files), self._seed).interleave(
            tf.data.TFRecordDataset, cycle_length=readers, num_parallel_calls=parallel
        )

    def _parsed(self, record: tf.Tensor, *label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the encoded image and the label of a record.

        Args:
            record: The encoded image, or a serialized Example of a TFRecord file.
            *label: The label of an encoded image; absent for an Example, which contains its label.
        """
        if label:
            return record, label[0]
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64, -1),
        }
        example = tf.io.parse_single_example(record, features)
        return example["image/encoded"], example["image/class/label"]

    def _decoded_whole(self, *record: Any) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = self._parsed(*record)
        return _decode(encoded), label

    def _cropped(self, image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Return the window to which a decoded image is cropped.

        Args:
            image: Image (height, width, 3).
            number: Position of the image in the order of reading, the seed of random crops.
        """
        begin, size = self._window(tf.shape(image), number)
        return tf.slice(image, begin, size)

    def _decoded_window(self, encoded: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Decode an image and crop it to its window. For a JPEG, only the window is decoded.

        Args:
            encoded: Content of an image file.
            number: Position of the image in the order of reading, the seed of random crops.
        """

        def jpeg() -> tf.Tensor:
            begin, size = self._window(tf.io.extract_jpeg_shape(encoded), number)
            window = tf.concat([begin[:2], size[:2]], 0)
            return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)

        def other() -> tf.Tensor:
            return self._cropped(_decode(encoded), number)

        return tf.cond(tf.io.is_jpeg(encoded), jpeg, other)

    def _window(self, shape: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return start and size of the window to crop from an image, both as (y, x, channel).

        Without augmentation, the window is the center of the image. With augmentation, it is random
        as in Inception's training (Szegedy et al., CVPR 2015, section 6).

        Args:
            shape: Height, width and channels of the image.
            number: Position of the image in the order of reading, the seed of random windows.
        """
        if not self._data["augment"]:
            fractions = (_CENTER_FRACTION, _CENTER_FRACTION, 1.0)
            size = tf.cast(tf.cast(shape, tf.float32) * fractions, tf.int32)
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

    def _finished(self, number: tf.Tensor, record: Any) -> tuple[tf.Tensor, ...]:
        """Return a cropped, resized and normalized image, and its label.

        Args:
            number: Position of the image in the order of reading.
            record: An element of the dataset that `_records` returns, or (decoded image, label) if
                decoded images are cached.
        """
        if self._data["cache"] == "decoded":
            image = self._cropped(record[0], number)
            label = record[1]
        else:
            encoded, label = self._parsed(*tf.nest.flatten(record))
            image = self._decoded_window(encoded, number)
        resized = tf.image.resize(image, self._shape[:2])
        if self._data["augment"]:
            resized = self._flipped_at_random(resized, number)
        normalized = (resized - tf.constant(MEAN)) / tf.constant(STANDARD_DEVIATION)
        if self._classes is not None:
            label = label % self._classes
        return tf.ensure_shape(normalized, self._shape), tf.cast(label, tf.int32)

    def _flipped_at_random(self, image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Return an image, mirrored horizontally with probability 1/2.

        Args:
            image: Image (height, width, 3).
            number: Position of the image in the order of reading, the seed of the decision.
        """
        # This draws the same number as `tf.random.stateless_uniform`, which needs four operations.
        drawn = tf.raw_ops.StatelessRandomUniform(
            shape=tf.constant([], tf.int32), seed=tf.stack([self._seed, -1 - number])
        )
        return tf.cond(drawn < 0.5, lambda: tf.reverse(image, [1]), lambda: image)


def _decode(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


# Sets of images, generated once per machine. The images are noise whose amplitude falls with
# the spatial frequency, as in natural scenes (Field, J. Opt. Soc. Am. A 4, 1987), plus white noise
# (grain). Size and decoding time of the JPEG files therefore resemble those of photographs.

#: Part of the name of every set. Increase it when the content changes.
_VERSION = 2
#: Number of files of a set. Several files can be read in parallel.
_FILES = 8
#: Labels of generated images are below this number.
CLASSES = 1000
_JPEG_QUALITY = 90
#: Standard deviations of light, color and grain, for channels from 0 to 255.
_LIGHT = 52.0
_COLOR = 10.0
_GRAIN = 3.0
#: Mean light.
_GRAY = 120
#: Number of noise fields from which the images are mixed.
_FIELDS = 8
#: Range of image sizes relative to the mean size.
_SCALES = (0.8, 1.2)
#: Smallest side of an image in pixels.
_MIN_SIDE = 16
#: Fraction of images in portrait format.
_PORTRAIT_FRACTION = 0.25


def generated_images(options: Mapping[str, Any]) -> list[Path]:
    """Return TFRecord files of generated images; generate the images if the files do not exist.

    One process generates the set; other processes wait for it.

    Args:
        options: `examples` is the number of images; `width` and `height` are their mean size in
            pixels.
    """
    examples = options["examples"]
    width = options["width"]
    height = options["height"]
    name = f"images-{examples}x{width}x{height}-v{_VERSION}"
    sets = _cache_folder() / "paradnn" / "data"
    folder = sets / name
    partial = sets / f"{name}.making"
    sets.mkdir(parents=True, exist_ok=True)
    with (sets / f".{name}.lock").open("w") as lock:
        locks.lock(lock)
        if not folder.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _write_images(partial, examples, width, height)
            partial.rename(folder)
    return sorted(folder.iterdir())


def _cache_folder() -> Path:
    """Return the user's cache folder: XDG_CACHE_HOME if it is an absolute path, else ~/.cache."""
    configured = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return configured if configured.is_absolute() else Path.home() / ".cache"


def _noise(generator: np.random.Generator, size: int) -> np.ndarray:
    """Return fields of periodic noise whose amplitudes are proportional to 1 / frequency.

    Args:
        generator: Source of random numbers.
        size: Width and height of a field in pixels.

    Returns:
        An array (fields, size, size) of `_FIELDS` fields, each with variance 1.
    """
    vertical = np.fft.fftfreq(size)[:, None]
    horizontal = np.fft.rfftfreq(size)[None, :]
    frequency = np.maximum(np.hypot(vertical, horizontal), 1 / size)
    white = generator.standard_normal((_FIELDS, size, size))
    values = np.fft.irfft2(np.fft.rfft2(white) / frequency, s=(size, size))
    return np.asarray(values / values.std(axis=(1, 2), keepdims=True), np.float32)


def _image(
    generator: np.random.Generator, fields: np.ndarray, width: int, height: int
) -> np.ndarray:
    """Return a random image (height, width, 3) as uint8.

    Light, red and blue are fields of noise, each with a random shift.

    Args:
        generator: Source of random numbers.
        fields: Fields of noise (fields, size, size), as `_noise` returns them.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
    """

    def shifted_field() -> np.ndarray:
        field = fields[generator.integers(_FIELDS)]
        shift = generator.integers(fields.shape[1], size=2)
        shifted: np.ndarray = np.roll(field, shift, axis=(0, 1))
        return shifted[:height, :width]

    light = shifted_field()
    red = shifted_field()
    blue = shifted_field()
    grain = generator.standard_normal((height, width), dtype=np.float32)
    base = _GRAY + light * _LIGHT + grain * _GRAIN
    channels = [base + red * _COLOR, base - (red + blue) * _COLOR / 2, base + blue * _COLOR]
    return np.asarray(np.clip(np.stack(channels, axis=-1), 0, 255), np.uint8)


def _write_images(folder: Path, examples: int, width: int, height: int) -> None:
    """Write a set of images to a folder.

    Sizes vary by up to a fifth around `width` x `height`. A quarter of the images are in portrait
    format.

    Args:
        folder: The folder, which must exist.
        examples: Number of images.
        width: Mean width of an image in pixels, in landscape format.
        height: Mean height of an image in pixels, in landscape format.
    """
    generator = np.random.default_rng(_VERSION)
    files = min(_FILES, examples)
    largest = math.ceil(_SCALES[1] * max(width, height))
    fields = _noise(generator, max(_MIN_SIDE, largest))
    for number in range(files):
        with tf.io.TFRecordWriter(str(folder / f"train-{number:05d}-of-{files:05d}")) as writer:
            for _ in range(number, examples, files):
                scale = generator.uniform(*_SCALES)
                image_width = max(_MIN_SIDE, round(width * scale))
                image_height = max(_MIN_SIDE, round(height * scale))
                if generator.random() < _PORTRAIT_FRACTION:
                    image_width, image_height = image_height, image_width
                image = _image(generator, fields, image_width, image_height)
                label = int(generator.integers(CLASSES))
                writer.write(_example(image, label).SerializeToString())


def _example(image: np.ndarray, label: int) -> Any:
    """Return an image and its label in the format of ImageNet's TFRecord files."""
    encoded = tf.io.encode_jpeg(image, quality=_JPEG_QUALITY).numpy()
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))
