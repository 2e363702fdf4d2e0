"""Render the page from templates, which escape every text: no text of a store becomes markup.

Figures are images within the page. An SVG can then run and fetch nothing, and its ids cannot clash
with those of another.
"""

import base64
import hashlib
import io
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

_TEMPLATES = Path(__file__).with_name("templates")
#: Most characters of one text in the page, and of a name or another text of a run.
_MAX_TEXT_LENGTH = 4000
_MAX_NAME_LENGTH = 200
#: Characters of a long name that remain before its digest.
_SHORTENED_LENGTH = 60
_MAX_SLUG_LENGTH = 40
#: Marks above which a figure is a PNG image.
_MAX_VECTOR_MARKS = 20_000
#: Control characters, half surrogates, and characters that change the direction of the text around
#: them.
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
#: Metadata that would differ between equal figures.
_NO_SVG_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DOTS_PER_INCH_OF_CSS = 96


def render(template: str, **values: Any) -> str:
    """Fill a template of the folder.

    The page allows only its own script to run, by its hash, and nothing to be fetched.
    """
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'; form-action 'none'; base-uri 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(policy=Markup(policy), style=Markup(style), script=Markup(script), **values)
    )


def to_plain_text(value: Any) -> Any:
    """Return the text that a template writes for a value.

    Our own markup stays as it is. Any other value becomes text without characters that disturb a
    page.
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
    """The frame with names and texts that fit into a page and its figures.

    A text that is too long, or that holds invisible characters, is shortened and gets a digest, so
    that different texts stay different.
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


def slug(text: str) -> str:
    """A text as part of an id: lower-case letters, digits and dashes.

    A digest follows if the text has other characters, so that different texts stay different.
    """
    ascii_text = unicodedata.normalize("NFKD", text).lower()
    kept = re.sub("[^a-z0-9]+", "-", ascii_text)[:_MAX_SLUG_LENGTH].strip("-")
    if kept == text:
        return kept
    return f"{kept}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=to_plain_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embed(figure: Figure, alternative: str) -> Markup:
    """A figure as an `img` element with a text alternative.

    The image is an SVG, or a PNG if the figure has many marks, which are larger as vectors. Equal
    figures give equal texts.
    """
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "paradnn", "svg.fonttype": "path"}):
        if _count_marks(figure) > _MAX_VECTOR_MARKS:
            kind = "png"
            figure.savefig(
                buffer, format="png", bbox_inches="tight", dpi=150, metadata={"Software": None}
            )
        else:
            kind = "svg+xml"
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=_NO_SVG_METADATA)
    width = round(_DOTS_PER_INCH_OF_CSS * figure.get_figwidth())
    data = base64.b64encode(buffer.getvalue()).decode()
    text = escape(" ".join(to_plain_text(alternative).split()))
    return Markup(
        f'<img alt="{text}" style="max-width:{width}px" src="data:image/{kind};base64,{data}">'
    )


def _count_marks(figure: Figure) -> int:
    count = 0
    for axes in figure.axes:
        count += sum(len(np.asarray(marks.get_offsets())) for marks in axes.collections)
        count += sum(np.size(line.get_xdata()) for line in axes.lines)
    return count
