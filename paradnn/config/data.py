"""Options of the inputs of a step, `data=synthetic` and `data=images`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from paradnn.core.schema import option


@dataclass(frozen=True)
class Input:
    """Source of the batches that a measurement reads; a subclass adds options.

    Attributes:
        name: The name of the input, as in `data=NAME`.
        is_made: Whether ParaDnn generates the input if `path` is None.
    """

    name: str
    is_made: ClassVar[bool] = False


@dataclass(frozen=True)
class Synthetic(Input):
    """One random batch, which every step reuses and which is on the device before timing starts."""

    name: str = option("synthetic", "one random batch, on the device", choices=("synthetic",))


@dataclass(frozen=True)
class ImageFiles(Input):
    """Images that are read, decoded, cropped, flipped, resized and normalized during the step."""

    is_made: ClassVar[bool] = True

    name: str = option("images", "images through tf.data", choices=("images",))
    path: str | None = option(
        None,
        "TFRecords like those of ImageNet, or a folder with one sub-folder of jpg, jpeg or png "
        "files per class; null: a generated set",
    )
    threads: int | None = option(
        None,
        "images processed in parallel, and threads in total; null: all cores, tuned by tf.data",
        low=1,
        high=4096,
    )
    readers: int = option(4, "files read in parallel", low=1, high=4096)
    shuffle: int = option(
        1024, "size of the shuffle buffer in images; 1: the order of the files", low=1
    )
    prefetch: int = option(2, "batches prepared ahead of the step", low=0, high=4096)
    cache: str = option(
        "none",
        "data that stay in memory after the first read: none, encoded (bytes of the files) or "
        "decoded (whole images)",
        choices=("none", "encoded", "decoded"),
    )
    augment: bool = option(
        True, "crop and flip at random, as in training; false: the central 87.5%"
    )
    examples: int = option(256, "images of the generated set", low=1, high=10_000_000)
    width: int = option(
        500, "mean width of generated images (ImageNet: about 500)", low=16, high=20_000
    )
    height: int = option(
        375, "mean height of generated images (ImageNet: about 375)", low=16, high=20_000
    )


def with_absolute_path(data: Input) -> Input:
    """Return `data` with an absolute path; it is unchanged if it has no path.

    Workers run in a different working directory, so a relative path would differ there.

    Args:
        data: Options of the input of a step.
    """
    path = getattr(data, "path", None)
    if path is None:
        return data
    absolute: Any = {"path": str(Path(path).expanduser().absolute())}
    return replace(data, **absolute)
