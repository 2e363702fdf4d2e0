"""Texts from a store, made safe for a page: bounded in length, without invisible characters."""

import hashlib
import re
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

#: Largest numbers of characters: of a text on the page, and of a column name or a value of a run.
_MAX_TEXT_LENGTH = 4000
_MAX_NAME_LENGTH = 200
#: Characters of a long name that remain before its digest.
_SHORTENED_LENGTH = 60
#: Control characters, unpaired surrogates, and characters that change the direction of the text
#: around them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_INVISIBLE_OR_BREAK = re.compile(f"{_INVISIBLE.pattern}|[\t\n\r]")
#: More than three combining characters on top of each other.
_STACKED_ACCENTS = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]{3})[\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]+"
)
#: Columns that the page does not show.
_ADDRESS_COLUMNS = ("artifact_uri", "store")


def to_plain_text(value: Any) -> Any:
    """Return a value as text that a template can write into a page.

    `Markup`, which is part of the page itself, is returned unchanged. Any other value becomes text
    without invisible characters, shortened to `_MAX_TEXT_LENGTH`.
    """
    if isinstance(value, Markup):
        return value
    text = _without_invisible(str(value))
    if len(text) <= _MAX_TEXT_LENGTH:
        return text
    return f"{text[:_MAX_TEXT_LENGTH]} ... ({len(text):,} characters)"


def _without_invisible(text: str) -> str:
    visible = _INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return _STACKED_ACCENTS.sub(r"\1", visible)


def legible(frame: pd.DataFrame) -> pd.DataFrame:
    """Shorten column names and values of a frame so that they fit into a page and its figures.

    A text that is too long, or that contains invisible characters, is shortened and gets a digest.
    Different texts thus stay different. Columns of addresses, which the page does not show, are
    left unchanged.

    Args:
        frame: One row per run.
    """
    changed: dict[str, pd.Series] = {}
    for name in frame.columns:
        column = frame[name]
        is_text = pd.api.types.is_string_dtype(column) or column.dtype == object
        if not is_text or name in _ADDRESS_COLUMNS:
            continue
        distinct = np.asarray(column.dropna().unique(), "object")
        texts = [text for text in distinct if isinstance(text, str)]
        # One search for all texts: a store may have a million of them.
        is_long = max(map(len, texts), default=0) > _MAX_NAME_LENGTH
        if is_long or _INVISIBLE_OR_BREAK.search("".join(texts)):
            shortened = {text: _shorten(text) for text in texts if not _is_legible(text)}
            changed[name] = column.replace(shortened)
    if changed:
        frame = frame.assign(**changed)
    names = {str(name): _shorten(str(name)) for name in frame.columns if not _is_legible(str(name))}
    if names:
        return frame.rename(columns=names)
    return frame


def _is_legible(text: str) -> bool:
    return len(text) <= _MAX_NAME_LENGTH and not _INVISIBLE_OR_BREAK.search(text)


def _shorten(text: str) -> str:
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    visible = " ".join(_without_invisible(text[:_MAX_NAME_LENGTH]).split())
    return f"{visible[:_SHORTENED_LENGTH]}... ({len(text):,} characters, {digest})"
