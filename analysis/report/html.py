"""Text as HTML: everything that comes from a store or from a message is escaped here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote, urlsplit, urlunsplit

from analysis.result import Paragraph

__all__ = ["attribute", "code", "items", "prose", "run_link", "text", "ui_address"]

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_LISTED = 14  # points shown; more are collapsed


def text(value: object) -> str:
    """Any value as the content of an element."""
    return escape(_CONTROL.sub("�", str(value)), quote=False)


def attribute(value: object) -> str:
    """Any value as an attribute between double quotes, on one line."""
    return escape(" ".join(_CONTROL.sub("�", str(value)).split()), quote=True)


def code(value: object) -> str:
    """A command or an id."""
    return f"<code>{text(value)}</code>"


def items(values: Iterable[str]) -> str:
    """A list of HTML fragments."""
    return "<ul>" + "".join(f"<li>{value}</li>" for value in values) + "</ul>"


def prose(paragraphs: Iterable[Paragraph]) -> str:
    """An analysis' findings: paragraphs, the points of each as a list."""
    return "".join(f"<p>{text(head)}</p>{_points(points)}" for head, points in paragraphs)


def _points(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = items(text(line) for line in lines[:_LISTED])
    if len(lines) <= _LISTED:
        return shown
    more = items(text(line) for line in lines[_LISTED:])
    return f"{shown}<details><summary>{len(lines) - _LISTED} more</summary>{more}</details>"


def ui_address(uri: str) -> str:
    """The address of the MLflow UI of a tracking server, without user, password and query; empty for other stores."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def run_link(run_id: object, address: str) -> str:
    """A run's id, as a link to its page where there is a UI."""
    if not address:
        return code(run_id)
    return f'<a href="{attribute(address)}/#/runs/{quote(str(run_id), safe="")}">{code(run_id)}</a>'
