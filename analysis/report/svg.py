"""Figures as part of a page: SVG whose ids are the same every time and clash with no other figure's; PNG when heavy.

Greys become CSS variables, so that a figure follows the page into the dark: what is black on white there is light on
dark here. Colours that carry data stay, but for those too dark to be seen on a dark ground.
"""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis.report.page import plain

__all__ = ["HEAVY", "embed"]

#: Bytes of SVG above which a figure goes in as PNG: tens of thousands of marks are no longer smaller as vectors.
HEAVY = 1_500_000

#: No mark takes fewer bytes as SVG.
_MARK = 60
_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DPI = 150
_OUTSIDE = re.compile(r"^.*?(?=<svg\b)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_ROOT = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')
#: The greys that figures are drawn in; a colour map has others.
_GREYS = ["00", "26", "33", "44", "55", "66", "77", "80", "88", "99", "a8", "b0", "bb", "cc", "dd", "f4", "ff"]
_GREY = re.compile(rf"(?<=: )#({'|'.join(_GREYS)})\1\1(?=[;\"])")
#: Colours of figures that change in the dark, and the variables of the page's style that hold them.
_TINTS = {"#882255": "wine", "#0072b2": "blue", "#dbe7d3": "asked"}
_FIXED = {"#000000": "#000001", "#ffffff": "#fffffe"}


def embed(figure: Figure, key: str, alternative: str, heavy: int = HEAVY) -> Markup:
    """HTML of a figure: an `svg` with role=img, or an `img` of a PNG above `heavy` bytes; either has its alternative.

    `key` is the prefix of all ids within, so it must be unique in the page. The same figure and key give the same text.
    """
    figure.set_facecolor("white")
    for axes in figure.axes:
        _keep_written_on_colour(axes)
    if _MARK * _marks(figure) > heavy:
        return _png(figure, alternative)
    with rc_context({"svg.hashsalt": key, "svg.fonttype": "path"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=_NO_DATES)
    text = buffer.getvalue()
    if len(text) > heavy:
        return _png(figure, alternative)
    text = _METADATA.sub("", _COMMENT.sub("", _OUTSIDE.sub("", text)))
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{key}-", text)
    label = _attribute(alternative)
    root = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{{}}" role="img" aria-label="{label}" '
        f'style="max-width:{_width(text)}px">'
    )
    return Markup(_themed(_ROOT.sub(lambda match: root.replace("{}", match[1], 1), text, count=1).strip()))


def _attribute(words: str) -> Markup:
    """Words of a store as an attribute between double quotes, on one line."""
    return escape(" ".join(plain(words).split()))


def _marks(figure: Figure) -> int:
    """How many marks of points a figure has, each of which SVG names."""
    marks = [len(np.asarray(each.get_offsets())) for axes in figure.axes for each in axes.collections]
    lines = [line for axes in figure.axes for line in axes.lines if line.get_marker() not in ("None", "none", "", " ")]
    return sum(marks) + sum(np.size(line.get_xdata()) for line in lines)


def _themed(text: str) -> str:
    """Greys and dark colours as variables of the page."""
    text = _GREY.sub(lambda match: f"var(--g{round(int(match[1], 16) / 25.5)})", text)
    for colour, name in _TINTS.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return text


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


def _png(figure: Figure, alternative: str) -> Markup:
    raw = io.BytesIO()
    figure.savefig(raw, format="png", bbox_inches="tight", dpi=_DPI, metadata={"Software": None})
    data = base64.b64encode(raw.getvalue()).decode()
    return Markup(f'<img alt="{_attribute(alternative)}" src="data:image/png;base64,{data}">')


def _width(text: str) -> int:
    """The figure's width in CSS pixels, a third more than its points."""
    match = _ROOT.search(text)
    return round(float(match[1].split()[2]) * 4 / 3) if match else 960
