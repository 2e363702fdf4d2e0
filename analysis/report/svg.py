"""Figures as part of a page: SVG whose ids are the same every time and clash with no other figure's; PNG when heavy."""

from __future__ import annotations

import base64
import io
import re

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.report.html import attribute

__all__ = ["HEAVY", "embed"]

#: Bytes of SVG above which a figure goes in as PNG: tens of thousands of marks are no longer smaller as vectors.
HEAVY = 1_500_000

_NO_DATES = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DPI = 150
_OUTSIDE = re.compile(r"^.*?(?=<svg\b)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_ROOT = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')


def embed(figure: Figure, key: str, alternative: str, heavy: int = HEAVY) -> str:
    """HTML of a figure: an `svg` with role=img, or an `img` of a PNG above `heavy` bytes; either has its alternative.

    `key` is the prefix of all ids within, so it must be unique in the page. The same figure and key give the same text.
    """
    figure.set_facecolor("white")
    with rc_context({"svg.hashsalt": key, "svg.fonttype": "path"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=_NO_DATES)
    text = buffer.getvalue()
    if len(text) > heavy:
        return _png(figure, alternative)
    text = _METADATA.sub("", _COMMENT.sub("", _OUTSIDE.sub("", text)))
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{key}-", text)
    label = attribute(alternative)
    root = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{{}}" role="img" aria-label="{label}" '
        f'style="max-width:{_width(text)}px">'
    )
    return _ROOT.sub(lambda match: root.replace("{}", match[1], 1), text, count=1).strip()


def _png(figure: Figure, alternative: str) -> str:
    raw = io.BytesIO()
    figure.savefig(raw, format="png", bbox_inches="tight", dpi=_DPI, metadata={"Software": None})
    data = base64.b64encode(raw.getvalue()).decode()
    return f'<img alt="{attribute(alternative)}" src="data:image/png;base64,{data}">'


def _width(text: str) -> int:
    """The figure's width in CSS pixels, a third more than its points."""
    match = _ROOT.search(text)
    return round(float(match[1].split()[2]) * 4 / 3) if match else 960
