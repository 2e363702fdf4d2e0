"""The pipeline of pictures, stage by stage: read, decode with crop, resize with flip and normalisation, batch.

Every stage is a dataset that ends there, so that a stage can be timed as what it adds to the one before. Each picture
has a number, its place in the order of reading; randomness is drawn from the seed and that number, so that batches are
the same however many threads make them, and numbers that are missing at the end are pictures that could not be decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from paradnn.worker.frameworks import Unavailable
from paradnn.worker.input.generated import generated_images

__all__ = ["MEAN", "STAGES", "STANDARD_DEVIATION", "ImagePipeline", "image_files"]

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
