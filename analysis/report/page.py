"""The page: templates filled with what was found, which escape every word, so that no word of a
store is markup.

Figures are images within the page: what an SVG holds runs and fetches nothing there, and no id of
it meets another's.
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

_FOLDER = Path(__file__).with_name("templates")
_LONGEST = 4000  # characters of one text in the page
#: Control characters, half surrogates, and what changes the direction of the text around it.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_UNFIT = re.compile(f"{_UNSEEN.pattern}|[\t\n\r]")
_ADDRESSES = ("artifact_uri", "store")  # columns that are no words of the page
_NAME = 200  # characters of a name or another text of a run
_STACKED = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]{3})[\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]+"
)
_HEAVY = 20_000  # marks above which a figure goes in as PNG
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}


def render(template: str, **values: Any) -> str:
    """A template of the folder, filled. Only the page's own script may run, by its hash, and
    nothing is fetched.
    """
    style, script = (
        (_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "script.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "form-action 'none'; base-uri 'none'"
    )
    own = {"policy": Markup(policy), "style": Markup(style), "script": Markup(script)}
    return _environment().get_template(template).render(**own, **values)


def plain(value: Any) -> Any:
    """What a template writes: markup of our own as it is, any other value as text without what
    disturbs a page.
    """
    if isinstance(value, Markup):
        return value
    text = _seen(str(value))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} ... ({len(text):,} characters)"


def _seen(text: str) -> str:
    return _STACKED.sub(r"\1", _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))


def legible(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with names and texts that a page and its figures can hold: what is too long, or
    holds what cannot be seen, is shortened and has a digest instead, so that two of them stay two.
    """
    changed: dict[str, pd.Series] = {}
    for name in frame.columns:
        if name in _ADDRESSES or not (
            pd.api.types.is_string_dtype(frame[name]) or frame[name].dtype == object
        ):
            continue
        texts = [
            text
            for text in np.asarray(frame[name].dropna().unique(), "object")
            if isinstance(text, str)
        ]
        if max(map(len, texts), default=0) > _NAME or _UNFIT.search("".join(texts)):
            changed[name] = frame[name].replace(
                {text: _short(text) for text in texts if _short(text) != text}
            )
    result = frame.assign(**changed) if changed else frame
    names = {str(name): _short(str(name)) for name in result.columns}
    if any(old != new for old, new in names.items()):
        return result.rename(columns=names)
    return result


def _short(text: str) -> str:
    if len(text) <= _NAME and not _UNFIT.search(text):
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    return f"{' '.join(_seen(text[:_NAME]).split())[:60]}... ({len(text):,} characters, {digest})"


def slug(words: str) -> str:
    """Words as a part of an id: small letters, digits and dashes; a digest beside, where that loses
    any.
    """
    kept = re.sub("[^a-z0-9]+", "-", unicodedata.normalize("NFKD", words).lower())[:40].strip("-")
    if kept == words:
        return kept
    return f"{kept}-{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:8]}"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embed(figure: Figure, alternative: str) -> Markup:
    """A figure as an `img` with its alternative: SVG, or PNG of many marks, which are no longer
    smaller as vectors. The same figure gives the same text.
    """
    marks = sum(
        len(np.asarray(each.get_offsets())) for axes in figure.axes for each in axes.collections
    )
    count = marks + sum(np.size(line.get_xdata()) for axes in figure.axes for line in axes.lines)
    kind = "svg+xml" if count <= _HEAVY else "png"
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "paradnn", "svg.fonttype": "path"}):
        if kind == "png":
            figure.savefig(
                buffer, format="png", bbox_inches="tight", dpi=150, metadata={"Software": None}
            )
        else:
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=_NO_DATES)
    width = round(96 * figure.get_figwidth())
    data = base64.b64encode(buffer.getvalue()).decode()
    words = escape(" ".join(plain(alternative).split()))
    return Markup(
        f'<img alt="{words}" style="max-width:{width}px" src="data:image/{kind};base64,{data}">'
    )
