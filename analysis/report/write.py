"""Putting the page on disk: checked before the work, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from paradnn.errors import ConfigError

__all__ = ["check_target", "write_page"]


def check_target(path: str) -> Path:
    """The file to write, if that can be; else ConfigError, before minutes are spent on it."""
    target = Path(path).expanduser()
    problem = ""
    if not path.strip():
        problem = "names no file"
    elif target.is_dir():
        problem = "is a folder"
    elif not target.parent.is_dir():
        problem = f"there is no folder {target.parent}"
    elif not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        problem = "may not be written"
    elif target.suffix.lower() not in (".html", ".htm"):
        problem = "is no HTML file by its name"
    if problem:
        raise ConfigError("--out", path, problem, "name a file such as report.html in a folder that exists")
    return target.absolute()


def write_page(page: str, target: Path) -> None:
    """Write a page so that a reader finds the old one or the new one, never half of it."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(page)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(target)  # a full disk tells no name
        raise
