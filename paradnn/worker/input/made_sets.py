"""Sets of files that are made once for each machine.

They lie in `$XDG_CACHE_HOME/paradnn/data` (by default in ~/.cache), a folder for each set of options. A set is written
beside its place under a lock and renamed when it is complete; before use its files are compared with a manifest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["data_folder", "ready"]

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
