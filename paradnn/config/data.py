"""The inputs of a step, `data=synthetic` and `data=images`, with their options."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from paradnn.core.schema import option

_THREADS = "pictures made at once, and threads in all; null: every core, calls tuned by tf.data"
_READERS = "files read at once"
_PREFETCH = "batches made ahead of the step"


@dataclass(frozen=True)
class Input:
    """Where the batches of a point come from; its options have a field `name`.

    is_made: whether it is made where no path is given.
    """

    name: str
    is_made: ClassVar[bool] = False


@dataclass(frozen=True)
class Synthetic(Input):
    """One random batch, on the device before timing starts."""

    name: str = option("synthetic", "one random batch, on the device", choices=("synthetic",))


@dataclass(frozen=True)
class ImageFiles(Input):
    """Pictures read, decoded, cropped, flipped, resized, normalised and batched while the step
    runs.
    """

    is_made: ClassVar[bool] = True

    name: str = option("images", "pictures through tf.data", choices=("images",))
    path: str | None = option(
        None,
        "TFRecords as of ImageNet, or a folder of jpg, jpeg, png, a sub-folder a class; null: a generated set",
    )
    threads: int | None = option(None, _THREADS, low=1, high=4096)
    readers: int = option(4, _READERS, low=1, high=4096)
    shuffle: int = option(
        1024, "pictures among which the next is drawn; 1: the order of the files", low=1
    )
    prefetch: int = option(2, _PREFETCH, low=0, high=4096)
    cache: str = option(
        "none",
        "what is kept in memory after it was read: none, encoded (files' bytes) or decoded (whole pictures)",
        choices=("none", "encoded", "decoded"),
    )
    augment: bool = option(
        True, "crop and flip at random, as in training; false: the central 87.5%"
    )
    examples: int = option(256, "pictures of the generated set", low=1, high=10_000_000)
    width: int = option(500, "their mean width (ImageNet: about 500)", low=16, high=20_000)
    height: int = option(375, "their mean height (ImageNet: about 375)", low=16, high=20_000)


def with_absolute_path(data: Input) -> Input:
    """Return `data` with an absolute path, because workers run in another working directory."""
    path = getattr(data, "path", None)
    if path is None:
        return data
    absolute: Any = {"path": str(Path(path).expanduser().absolute())}
    return replace(data, **absolute)
