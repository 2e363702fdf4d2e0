"""The keys of every input, typed: `inputs` names what `data=...` can be, and what a model must be
to take it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from paradnn.core.errors import ConfigError
from paradnn.core.schema import option
from paradnn.core.workload import WORKLOADS, Workload
from paradnn.families import FAMILIES

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


@cache
def inputs() -> Mapping[str, type[Input]]:
    """What `data=...` can be, by name: that of a step, and of each kind of work."""
    own = {name: kind for work in WORKLOADS.values() for name, kind in work.inputs.items()}
    return {"synthetic": Synthetic, "images": ImageFiles, **own}


def with_whole_path(data: Input) -> Input:
    """`data` with the path that it has wherever it is read: workers have a working directory of
    their own.
    """
    path = getattr(data, "path", None)
    if path is None:
        return data
    whole: Any = {"path": str(Path(path).expanduser().absolute())}
    return replace(data, **whole)


def check_input(data: Input, workload: Workload, model: Any, devices: int) -> None:
    """ConfigError where `model` (a family's options), several devices or this kind of work cannot
    take `data`.
    """
    if not isinstance(data, ImageFiles):
        for other in WORKLOADS.values():
            if data.name in other.inputs and data.name not in workload.inputs:
                remedy = f"add {other.key}={other.name}, or use data=synthetic"
                raise ConfigError("data", data.name, f"is a set to {other.name} from", remedy)
        return
    if FAMILIES[model.name].data not in ("images", "any"):
        raise ConfigError(
            "data",
            data.name,
            f"model={model.name} takes no images",
            "choose another model, or data=synthetic",
        )
    if devices > 1:
        raise ConfigError(
            "data",
            data.name,
            f"is for one device, and this point has {devices}",
            "use devices=1 or data=synthetic",
        )
