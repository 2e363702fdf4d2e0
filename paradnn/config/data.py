"""The keys of every input, typed: `INPUTS` names what `data=...` can be, and what a model must be to take it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paradnn.config.sets import SETS, Arrays, Set
from paradnn.core.schema import option
from paradnn.errors import ConfigError
from paradnn.families import FAMILIES

__all__ = ["INPUTS", "Data", "Images", "Synthetic", "Text", "check_input", "with_whole_path"]

_THREADS = "parallel calls of a stage, and threads that they have in all; null: every core, calls tuned by tf.data"
_READERS = "files read at once"
_PREFETCH = "batches made ahead of the step"


@dataclass(frozen=True)
class Synthetic:
    """One random batch, on the device before timing starts."""

    name: str = option("synthetic", "one random batch, on the device", choices=("synthetic",))


@dataclass(frozen=True)
class Images:
    """Pictures read, decoded, cropped, flipped, resized, normalised and batched while the step runs."""

    name: str = option("images", "pictures through tf.data", choices=("images",))
    path: str | None = option(
        None, "TFRecords as of ImageNet, or a folder of jpg, jpeg, png, a sub-folder a class; null: a generated set"
    )
    threads: int | None = option(None, _THREADS, low=1, high=4096)
    readers: int = option(4, _READERS, low=1, high=4096)
    shuffle: int = option(1024, "undecoded pictures among which the next is drawn; 1: the order of the files", low=1)
    prefetch: int = option(2, _PREFETCH, low=0, high=4096)
    cache: str = option(
        "none",
        "what is kept in memory after it was read: none, encoded (files' bytes) or decoded (whole pictures)",
        choices=("none", "encoded", "decoded"),
    )
    augment: bool = option(True, "crop and flip at random, as in training; false: the central 87.5%")
    max_damaged: int = option(100, "pictures that cannot be decoded and are skipped; one more ends the point", low=0)
    examples: int = option(256, "pictures of the generated set", low=1, high=10_000_000)
    width: int = option(500, "their mean width (ImageNet: about 500)", low=16, high=20_000)
    height: int = option(375, "their mean height (ImageNet: about 375)", low=16, high=20_000)


@dataclass(frozen=True)
class Text:
    """Text read, tokenised, cut into windows and batched while the step runs."""

    name: str = option("text", "token sequences through tf.data", choices=("text",))
    path: str | None = option(None, "a UTF-8 file, or a folder of them; null: a generated text of Zipf's law")
    tokens: str = option(
        "words", "words: hashed into the vocabulary; bytes: their values modulo it", choices=("words", "bytes")
    )
    threads: int | None = option(None, _THREADS, low=1, high=4096)
    readers: int = option(4, _READERS, low=1, high=4096)
    shuffle: int = option(1024, "sequences among which the next is drawn; 1: the order of the text", low=1)
    prefetch: int = option(2, _PREFETCH, low=0, high=4096)
    cache: str = option("none", "what is kept in memory after it was read: none, or text", choices=("none", "text"))
    megabytes: int = option(8, "size of the generated text", low=1, high=100_000)


Data = Synthetic | Images | Text | Set
INPUTS: dict[str, type[Data]] = {"synthetic": Synthetic, "images": Images, "text": Text, **SETS}


def with_whole_path(data: Data) -> Data:
    """`data` with the path that it has wherever it is read: workers have a working directory of their own."""
    if (path := getattr(data, "path", None)) is None:
        return data
    whole: Any = {"path": str(Path(path).expanduser().absolute())}
    return replace(data, **whole)


def check_input(data: Data, model: Any, devices: int) -> None:
    """ConfigError where `model`, the options of a family, or several devices cannot take `data`."""
    if isinstance(data, Synthetic | Arrays):  # what a model must be to learn from a set: `config.learn.check_learn`
        return
    needed = "images" if isinstance(data, Images) else "tokens"
    if FAMILIES[model.name].data != needed:
        raise ConfigError(
            "data", data.name, f"model={model.name} takes no {needed}", "choose another model, or data=synthetic"
        )
    if devices > 1:
        raise ConfigError(
            "data", data.name, f"is for one device, and this point has {devices}", "use devices=1 or data=synthetic"
        )
