"""The files of a run: their content as bytes, and several of them in one where each would cost a request.

A tracking server takes each file in a request of its own. So what programs read goes there as one file, `files.json`,
which maps names to contents; what a person opens (pictures, tables, a worker's last words) keeps a file of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["PACKED", "file_content", "pack", "unpack"]

#: Name of the file that holds others.
PACKED = "files.json"
#: Text that programs read as well.
_LISTS = ("stack.txt",)


def file_content(content: Any) -> bytes:
    """The bytes of a file whose content is text, a JSON-able value, or {"base64": ...}."""
    if _is_binary(content):
        return base64.b64decode(content["base64"])
    return (content if isinstance(content, str) else json.dumps(content, indent=1)).encode()


def pack(files: Mapping[str, Any]) -> dict[str, Any]:
    """The same files, those in one that no person opens; where that is a single one, it stays as it is."""
    inner = {name: content for name, content in files.items() if _is_for_programs(name, content)}
    if len(inner) < 2:
        return dict(files)
    return {name: content for name, content in files.items() if name not in inner} | {PACKED: inner}


def unpack(content: bytes) -> dict[str, bytes]:
    """The files in a file that `pack` made, with the bytes that each would have had by itself."""
    return {name: file_content(inner) for name, inner in json.loads(content).items()}


def _is_for_programs(name: str, content: Any) -> bool:
    table = isinstance(content, Mapping) and {"columns", "data"} <= set(content)
    return name in _LISTS or (name.endswith(".json") and not table and not _is_binary(content))


def _is_binary(content: Any) -> bool:
    return isinstance(content, Mapping) and set(content) == {"base64"}
