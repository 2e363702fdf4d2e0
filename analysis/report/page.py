"""Render a report page from templates, which escape every text: no text of a store becomes markup.

Figures are embedded as images. An SVG then cannot run scripts or fetch anything, and its ids cannot
clash with those of another SVG.
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
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.page_texts import to_plain_text

_TEMPLATES = Path(__file__).with_name("templates")
_MAX_SLUG_LENGTH = 40
#: Number of marks above which a figure is a PNG image instead of an SVG.
_MAX_VECTOR_MARKS = 20_000
#: Metadata that would differ between equal figures.
_NO_SVG_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_DOTS_PER_INCH_OF_CSS = 96


def render(template: str, **values: Any) -> str:
    """Return the HTML of a template in the folder `templates`, filled with values.

    The content security policy of the page allows only its own script, identified by its hash, and
    no requests.

    Args:
        template: File name of the template.
        **values: Variables of the template.
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


def slug(text: str) -> str:
    """Convert a text to a part of an HTML id: lower-case letters, digits and dashes.

    If the text has other characters or is too long, a digest follows. Different texts thus give
    different results.
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
    """Return a figure as an HTML `img` element with a text alternative.

    The image is an SVG; it is a PNG if the SVG would be larger because of its many marks. The same
    figure always gives the same text.

    Args:
        figure: The figure.
        alternative: The text alternative, for readers who do not see the image.
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
