"""Safe file names, atomic writes, and the packing of artifacts.

A tracking server receives each file in a separate request. Files that programs read are
therefore packed into one file, `files.json`, which maps names to contents. Files that a person
opens, such as pictures, tables and a worker's last output, stay separate.
"""

import base64
import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from paradnn.core import locks
from paradnn.core.errors import ConfigError, DataError

PACKED = "files.json"  # name of the file that contains packed files
_PACKED_TEXTS = ("stack.txt",)  # text files that programs read, and that are therefore packed
_MAX_PART_BYTES = 240  # limit of one part of a name; most file systems allow 255
_MAX_SHOWN_CHARS = 80  # limit of a name in a message


def inside(folder: Path, name: str) -> Path:
    """Return the path of an untrusted file name below a folder.

    Args:
        folder: The folder that must contain the file.
        name: Relative name; parts are separated by "/".

    Raises:
        DataError: If the path could leave the folder, because it is absolute or a part is empty,
            ".", ".." or a symbolic link. Also if a part is too long, is unprintable or contains a
            backslash.
    """
    path = folder
    parts = name.split("/")
    shown = repr(name[:_MAX_SHOWN_CHARS])
    is_invalid = any(
        part in ("", ".", "..") or not part.isprintable() or "\\" in part for part in parts
    )
    if is_invalid or any(len(part.encode(errors="replace")) > _MAX_PART_BYTES for part in parts):
        raise DataError(
            f"{shown} is not a file name inside {folder}; do not trust the source of this name"
        )
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise DataError(
                f"{shown} is a symbolic link in {folder}; replace it with a regular file"
            )
    return path


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file or folder; None if it does not exist.

    A process can still write to a deleted file that it has open. Other processes see those writes
    only if the path still has the same identity.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_inside(folder: Path, name: str) -> bool:
    """Return whether an untrusted name is a valid name of a file below a folder.

    Args:
        folder: The folder.
        name: Relative name; parts are separated by "/". The rules are those of `inside`.
    """
    with contextlib.suppress(DataError):
        return bool(inside(folder, name))
    return False


def read_json(text: str | bytes) -> Any:
    """Parse untrusted JSON.

    Raises:
        ValueError: If the text is not valid JSON, is nested too deeply, or has numbers with too
            many digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextlib.contextmanager
def new_file(folder: Path, begin: str = "", end: str = ".tmp") -> Iterator[tuple[Path, BinaryIO]]:
    """Create a file with a random name in `folder`; remove it on exit unless it was renamed.

    The file is created exclusively, so an existing link is never followed.

    Args:
        folder: An existing folder.
        begin: Beginning of the name, after a dot; cut after 100 characters.
        end: End of the name.

    Yields:
        The path, and the file opened for binary writing.
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
    """Write a file atomically: yield a temporary file that replaces it on a regular exit.

    If the target is not a regular file, such as /dev/stdout, or its folder is not writable, the
    target itself is yielded and written directly.

    Args:
        path: The file to write.
        key: Name of the command-line option that gave the path, for the error message.

    Yields:
        The path to which the caller writes.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        try:
            target = path.resolve()
        except (RuntimeError, ValueError) as error:  # a cycle of links, or a NUL
            raise OSError(str(error)) from None
        if not ((target.is_file() or not target.exists()) and os.access(target.parent, os.W_OK)):
            yield target
            return
        with new_file(target.parent, f"{target.stem}.", target.suffix) as (temporary, _):
            yield temporary
            temporary.replace(target)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ConfigError(
            key, str(path), f"cannot be written ({reason})", "give a writable path"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write the file of the `--json` option atomically.

    Args:
        path: The file.
        content: A value that JSON can express.

    Raises:
        ConfigError: If the file cannot be written.
    """
    with whole_file(path, "--json") as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def append_line(path: Path, key: str, content: Any) -> None:
    """Append a JSON value as one line, atomically even with concurrent writers.

    Args:
        path: The file, which is created if it is absent.
        key: Name of the command-line option that gave the path, for the error message.
        content: A value that JSON can express.

    Raises:
        ConfigError: If the file cannot be written.
    """
    try:
        with path.open("ab", buffering=0) as file:
            locks.lock(file)
            end = file.seek(0, os.SEEK_END)
            line = json.dumps(content, allow_nan=False).encode() + b"\n"
            if file.write(line) != len(line):
                file.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ConfigError(
            key, str(path), f"cannot be written ({error.strerror})", "give a writable path"
        ) from error


def file_content(content: Any) -> bytes:
    """Return the content of an artifact as the bytes of its file.

    Args:
        content: Text, a value that JSON can express, or {"base64": ...} for a binary file.
    """
    if _is_binary(content):
        return base64.b64decode(content["base64"], validate=True)
    if isinstance(content, str):
        return content.encode()
    return json.dumps(content, indent=1).encode()


def pack(files: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the artifacts that only programs read into one file, `files.json`.

    Tables, binary files and other texts stay separate. If only one file could be packed, it stays
    separate too.

    Args:
        files: File name -> content, as in `file_content`.

    Returns:
        The files to store, in the same form.
    """
    packed = {}
    for name, content in files.items():
        is_table = isinstance(content, Mapping) and {"columns", "data"} <= set(content)
        is_plain_json = name.endswith(".json") and not is_table and not _is_binary(content)
        if name in _PACKED_TEXTS or is_plain_json:
            packed[name] = content
    if len(packed) < 2:
        return dict(files)
    separate = {name: content for name, content in files.items() if name not in packed}
    return separate | {PACKED: packed}


def unpack(content: bytes) -> dict[str, bytes]:
    """Return the files that `pack` combined.

    Args:
        content: Content of `files.json`.

    Returns:
        File name -> the bytes that a separate file would have had.

    Raises:
        DataError: If the content is damaged.
    """
    try:
        return {name: file_content(inner) for name, inner in read_json(content).items()}
    except (ValueError, AttributeError, TypeError):
        raise DataError(f"{PACKED} is damaged") from None


def _is_binary(content: Any) -> bool:
    return isinstance(content, Mapping) and set(content) == {"base64"}
