"""Files: names that stay inside their folder, files that are there whole or not at all, and what a
run's files hold. A tracking server takes each file in a request of its own. So what programs read
goes there as one file, `files.json`, which maps names to contents; what a person opens (pictures,
tables, a worker's last words) keeps a file of its own.
"""

import base64
import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from paradnn.core.errors import ConfigError, DataError

PACKED = "files.json"  # name of the file that holds others
_LISTS = ("stack.txt",)  # text that programs read as well
_LONGEST_NAME = 240  # bytes of a part of a name; most file systems take 255
_SHOWN = 80


def inside(folder: Path, name: str) -> Path:
    """The path of `name`, parts joined by /, below `folder`. DataError where it would be outside:
    absolute, with `..`, empty parts or a NUL, or through a link.
    """
    path = folder
    parts = name.split("/")
    unfit = any(part in ("", ".", "..") or not part.isprintable() or "\\" in part for part in parts)
    if unfit or any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in parts):
        raise DataError(
            f"{name[:_SHOWN]!r} is no name of a file inside {folder}; do not trust where it came from"
        )
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise DataError(f"{name[:_SHOWN]!r} is a link inside {folder}, which is not followed")
    return path


def file_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file or folder, None if it does not exist.

    A process that has a deleted file open can still write it. Only the identity of what is at the
    path now shows that others no longer see what is written.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_inside(folder: Path, name: str) -> bool:
    """Whether `name` is of a file below `folder`, as `inside` has it."""
    with contextlib.suppress(DataError):
        return bool(inside(folder, name))
    return False


def read_json(text: str | bytes) -> Any:
    """The value in a JSON text of others; ValueError for whatever is none, however deep or long its
    numbers are.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextlib.contextmanager
def new_file(folder: Path, begin: str = "", end: str = ".tmp") -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in `folder`, with a name of its own that no link can take; it is removed unless it
    was renamed.
    """
    path = folder / f".{begin[:100]}{secrets.token_hex(8)}{end}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield path, file
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(path: Path, key: str) -> Iterator[Path]:
    """Where to write what is to be the file at `path`; it takes its place once all is written, but
    for what is no regular file, such as /dev/stdout. ConfigError, naming `key`, where it cannot be
    written.
    """
    try:
        try:
            target = path.resolve()
        except (RuntimeError, ValueError) as error:  # a circle of links; a NUL
            raise OSError(str(error)) from None
        if not ((target.is_file() or not target.exists()) and os.access(target.parent, os.W_OK)):
            yield target
            return
        with new_file(target.parent, f"{target.stem}.", target.suffix) as (making, _):
            yield making
            making.replace(target)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ConfigError(
            key, str(path), f"cannot be written ({reason})", "give another"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write --json whole or not at all; ConfigError where it cannot be written."""
    with whole_file(path, "--json") as making:
        making.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def append_line(path: Path, key: str, content: Any) -> None:
    """Add a JSON value as a line to a file, whole or not at all, also beside others who do;
    ConfigError, naming `key`, where it cannot be written.
    """
    try:
        with path.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            line = json.dumps(content, allow_nan=False).encode() + b"\n"
            if file.write(line) != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ConfigError(
            key, str(path), f"cannot be written ({error.strerror})", "give another"
        ) from error


def file_content(content: Any) -> bytes:
    """The bytes of a file whose content is text, a JSON-able value, or {"base64": ...}."""
    if _is_binary(content):
        return base64.b64decode(content["base64"], validate=True)
    return (content if isinstance(content, str) else json.dumps(content, indent=1)).encode()


def pack(files: Mapping[str, Any]) -> dict[str, Any]:
    """The same files, those in one that no person opens; where that is a single one, it stays as it
    is.
    """
    inner = {}
    for name, content in files.items():
        table = isinstance(content, Mapping) and {"columns", "data"} <= set(content)
        if name in _LISTS or (name.endswith(".json") and not table and not _is_binary(content)):
            inner[name] = content
    packed = {name: content for name, content in files.items() if name not in inner} | {
        PACKED: inner
    }
    return packed if len(inner) > 1 else dict(files)


def unpack(content: bytes) -> dict[str, bytes]:
    """The files in a file that `pack` made, with the bytes that each would have had by itself."""
    try:
        return {name: file_content(inner) for name, inner in read_json(content).items()}
    except (ValueError, AttributeError, TypeError):
        raise DataError(f"{PACKED} is damaged") from None


def _is_binary(content: Any) -> bool:
    return isinstance(content, Mapping) and set(content) == {"base64"}
