"""Files that are there whole or not at all: a full disk or Ctrl-C leaves what was there before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from paradnn.errors import ConfigError

__all__ = ["whole_file"]


@contextlib.contextmanager
def whole_file(path: Path, key: str) -> Iterator[Path]:
    """Where to write what is to be the file at `path`, of the same ending; it takes its place once all is written.

    ConfigError, naming `key`, where it cannot be written. What is no regular file, such as /dev/stdout, is written at
    once.
    """
    target = path.resolve()
    beside = (target.is_file() or not target.exists()) and os.access(target.parent, os.W_OK)
    making = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}") if beside else target
    try:
        yield making
        if beside:
            making.replace(target)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ConfigError(key, str(path), f"cannot be written ({reason})", "give another") from error
    finally:
        if beside:
            making.unlink(missing_ok=True)
