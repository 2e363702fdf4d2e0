"""Which pictures of a folder are trained with and which are held out, by their names alone."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from paradnn.errors import ConfigError

__all__ = ["PictureFiles", "list_pictures"]

_SUFFIXES = (".jpg", ".jpeg", ".png")


class PictureFiles(NamedTuple):
    """The files of both parts, each with the place of its class among the names in `classes`."""

    training: tuple[tuple[Path, int], ...]
    heldout: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]


@functools.lru_cache(maxsize=16)
def list_pictures(path: str, heldout: float) -> PictureFiles:
    """Classes are sub-folders, in the order of their names: of train/ and val/, or of `path` itself.

    Then the share `heldout` of each class is held out, spread evenly over the files as they are named: of 0.2 every
    fifth. Raises ConfigError where there are no folders, no pictures, or none in one of the parts.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError("data.path", path, "is no folder", "name the folder whose sub-folders are the classes")
    parts = [root / name for name in ("train", "val") if (root / name).is_dir()]
    if len(parts) == 1:
        missing = "val" if parts[0].name == "train" else "train"
        raise ConfigError("data.path", path, f"has {parts[0].name}/ and no {missing}/", "add it, or name the other")
    whole = [_classes_in(part) for part in parts or [root]]
    classes = tuple(whole[0])
    if len(classes) < 2:
        reason = f"{parts[0] if parts else root} has pictures (jpg, jpeg, png) in {len(classes)} sub-folders"
        raise ConfigError("data.path", path, reason, "name a folder with a sub-folder of pictures for each class")
    if unknown := [name for name in whole[-1] if name not in classes]:
        raise ConfigError(
            "data.path", path, f"val/{unknown[0]} is no class of train/", "give both the same sub-folders"
        )
    labelled = [[(file, classes.index(name)) for name, files in each.items() for file in files] for each in whole]
    if not parts:
        chosen = [is_held for files in whole[0].values() for is_held in _spread(len(files), heldout)]
        held = [entry for entry, is_held in zip(labelled[0], chosen, strict=True) if is_held]
        labelled = [[entry for entry, is_held in zip(labelled[0], chosen, strict=True) if not is_held], held]
    if not all(labelled):
        empty = "held out" if labelled[0] else "left to train with"
        raise ConfigError(
            "data.heldout", heldout, f"no picture of {path} is {empty}", "choose another share, or add val/"
        )
    return PictureFiles(tuple(labelled[0]), tuple(labelled[1]), classes)


def _classes_in(folder: Path) -> dict[str, list[Path]]:
    """The pictures in each sub-folder, or below it; those without any are left out."""
    found = {}
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        files = sorted(file for file in entry.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        if files:
            found[entry.name] = files
    return found


def _spread(count: int, share: float) -> list[bool]:
    """Which of `count` are of a share of them, evenly spread."""
    return [int((place + 1) * share + 1e-9) > int(place * share + 1e-9) for place in range(count)]
