"""The page: templates filled with what was found. They escape every word, so that no word of a store is markup."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["plain", "render", "slug"]

_FOLDER = Path(__file__).with_name("templates")
_LONGEST = 4000  # characters of one text in the page
#: Control characters, half surrogates, and what changes the direction of the text around it.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_STACKED = re.compile("([\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]{3})[\u0300-\u036f\u0483-\u0489\u20d0-\u20ff]+")


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
    text = _STACKED.sub(r"\1", _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(value)))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text):,} characters)"


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
