"""The page: templates filled with what was found, which escape every word, so that no word of a store is markup.

Figures are SVG whose ids are the same every time and clash with no other figure's; PNG when heavy. Greys become CSS
variables, so that a figure follows the page into the dark: what is black on white there is light on dark here. Colours
that carry data stay, but for those too dark to be seen on a dark ground.
"""

from __future__ import annotations

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
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

_FOLDER = Path(__file__).with_name("templates")
_LONGEST = 4000  # characters of one text in the page
#: Control characters, half surrogates, and what changes the direction of the text around it.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_UNFIT = re.compile(f"{_UNSEEN.pattern}|[\t\n\r]")
_ADDRESSES = ("artifact_uri", "store")  # columns that are no words of the page
_NAME = 200  # characters of a name or another text of a run
_STACKED = re.compile("([\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]{3})[\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]+")

#: Bytes of SVG above which a figure goes in as PNG: tens of thousands of marks are no longer smaller as vectors.
_HEAVY = 1_500_000
_MARK = 60  # no mark takes fewer bytes as SVG
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DPI = 150
_SCRAPS = re.compile(r"^.*?(?=<svg\b)|<!--.*?-->\s*|\s*<metadata>.*?</metadata>", re.DOTALL)
_ROOT = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')
#: The greys that figures are drawn in; a colour map has others.
_GREYS = ["00", "26", "33", "44", "55", "66", "77", "80", "88", "99", "a8", "b0", "bb", "cc", "dd", "f4", "ff"]
_GREY = re.compile(rf"(?<=: )#({'|'.join(_GREYS)})\1\1(?=[;\"])")
#: Colours of figures that change in the dark, and the variables of the page's style that hold them.
_TINTS = {"#882255": "wine", "#0072b2": "blue", "#dbe7d3": "asked"}
_FIXED = {"#000000": "#000001", "#ffffff": "#fffffe"}


def render(template: str, **values: Any) -> str:
    """A template of the folder, filled. Only the page's own script may run, by its hash, and nothing is fetched."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "form-action 'none'; base-uri 'none'"
    )
    own = {"policy": Markup(policy), "style": Markup(style), "script": Markup(script)}
    return _environment().get_template(template).render(**own, **values)


def plain(value: Any) -> Any:
    """What a template writes: markup of our own as it is, any other value as text without what disturbs a page."""
    if isinstance(value, Markup):
        return value
    text = _seen(str(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text):,} characters)"


def _seen(text: str) -> str:
    return _STACKED.sub(r"\1", _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text))


def legible(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with names and texts that a page and its figures can hold: what is too long, or holds what cannot be
    seen, is shortened and has a digest instead, so that two of them stay two."""
    changed: dict[str, pd.Series] = {}
    for name in frame.columns:
        if name in _ADDRESSES or not (pd.api.types.is_string_dtype(frame[name]) or frame[name].dtype == object):
            continue
        texts = [text for text in frame[name].dropna().unique() if isinstance(text, str)]
        if max(map(len, texts), default=0) > _NAME or _UNFIT.search("".join(texts)):
            changed[name] = frame[name].replace({text: _short(text) for text in texts if _short(text) != text})
    result = frame.assign(**changed) if changed else frame
    names = {str(name): _short(str(name)) for name in result.columns}
    return result.rename(columns=names) if any(old != new for old, new in names.items()) else result


def _short(text: str) -> str:
    if len(text) <= _NAME and not _UNFIT.search(text):
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    return f"{' '.join(_seen(text[:_NAME]).split())[:60]}... ({len(text):,} characters, {digest})"


def slug(words: str) -> str:
    """Words as a part of an id: small letters, digits and dashes; a digest beside, where that loses any."""
    kept = re.sub("[^a-z0-9]+", "-", unicodedata.normalize("NFKD", words).lower())[:40].strip("-")
    return kept if kept == words else f"{kept}-{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:8]}"


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


def embed(figure: Figure, key: str, alternative: str, heavy: int = _HEAVY) -> Markup:
    """HTML of a figure: an `svg` with role=img, or an `img` of a PNG above `heavy` bytes; either has its alternative.

    `key` is the prefix of all ids within, so it must be unique in the page. The same figure and key give the same text.
    """
    figure.set_facecolor("white")
    for axes in figure.axes:
        _keep_written_on_colour(axes)
    label, buffer = escape(" ".join(plain(alternative).split())), io.StringIO()
    if _MARK * _marks(figure) <= heavy:
        with rc_context({"svg.hashsalt": key, "svg.fonttype": "path"}):
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=_NO_DATES)
    if not 0 < len(text := buffer.getvalue()) <= heavy:
        raw = io.BytesIO()
        figure.savefig(raw, format="png", bbox_inches="tight", dpi=_DPI, metadata={"Software": None})
        data = base64.b64encode(raw.getvalue()).decode()
        return Markup(f'<img alt="{label}" src="data:image/png;base64,{data}">')
    text = re.sub(r'\bid="', f'id="{key}-', _SCRAPS.sub("", text))
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{key}-", text)

    def root(match: re.Match[str]) -> str:
        width = round(float(match[1].split()[2]) * 4 / 3)  # CSS pixels, a third more than points
        return (
            f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{match[1]}" role="img" aria-label="{label}" '
            f'style="max-width:{width}px">'
        )

    text = _GREY.sub(lambda match: f"var(--g{round(int(match[1], 16) / 25.5)})", _ROOT.sub(root, text, count=1).strip())
    for colour, name in _TINTS.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return Markup(text)


def _marks(figure: Figure) -> int:
    """How many marks of points a figure has, each of which SVG names."""
    marks = [len(np.asarray(each.get_offsets())) for axes in figure.axes for each in axes.collections]
    lines = [line for axes in figure.axes for line in axes.lines if line.get_marker() not in ("None", "none", "", " ")]
    return sum(marks) + sum(np.size(line.get_xdata()) for line in lines)


def _keep_written_on_colour(axes: Axes) -> None:
    """Text within a coloured patch, such as a heat map's cell, was chosen for that colour: it stays as it is."""
    written = [text for text in axes.texts if text.get_bbox_patch() is None and to_hex(text.get_color()) in _FIXED]
    coloured = [patch for patch in axes.patches if patch.get_fill() and not _is_grey(to_hex(patch.get_facecolor()))]
    if not written or not coloured:
        return
    axes.get_figure(root=True).draw_without_rendering()  # type: ignore[union-attr]
    boxes = np.array([patch.get_window_extent().extents for patch in coloured])
    for text in written:
        box = text.get_window_extent()
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        if ((boxes[:, 0] <= x) & (x <= boxes[:, 2]) & (boxes[:, 1] <= y) & (y <= boxes[:, 3])).any():
            text.set_color(_FIXED[to_hex(text.get_color())])


def _is_grey(colour: str) -> bool:
    return colour[1:3] == colour[3:5] == colour[5:7]
