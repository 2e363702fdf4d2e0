"""A frame as an HTML table that sorts: few digits to read, the exact value to sort by, no constant columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from analysis.format import short
from analysis.labels import label, labelled
from analysis.report.html import attribute, run_link, text

__all__ = ["CAP", "Cell", "boxed", "html_table", "sortable"]

#: The class of cells that hold numbers.
_NUMBER = ' class="n"'
#: Rows of a table that are in the page.
CAP = 200
_COLLAPSED = 12  # rows above which a table is collapsed
_WIDE = 6  # columns above which those that say the same in every row are named above the table instead
_CROWDED = 10  # columns above which a printed table is set smaller
_IDS = ("run_id", "a_run_id", "b_run_id")


class Cell(NamedTuple):
    """A cell of a table: its words, and the number to sort by where it is one."""

    words: Any
    exact: float | None = None

    def html(self) -> str:
        """The cell as an element."""
        if self.exact is None:
            return f"<td>{text(self.words)}</td>"
        return f'<td class="n" data-v="{self.exact!r}">{text(self.words)}</td>'


def sortable(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> str:
    """A table of cells that sorts by its headings."""
    numbers = [any(row[place].exact is not None for row in rows) for place in range(len(head))]
    top = "".join(
        f'<th scope="col"{_NUMBER if number else ""}>{text(name)}</th>'
        for name, number in zip(head, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in rows)
    return boxed(_framed(top, body, caption, " results"), caption)


def _framed(top: str, body: str, caption: str, wide: str = "") -> str:
    return (
        f'<table class="sortable{wide}"><caption>{text(caption)}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def html_table(frame: pd.DataFrame, caption: str, address: str = "", whole: str = "", cap: int = CAP) -> str:
    """The first `cap` rows; `whole` is the command that writes all of them, `address` the UI that run ids link to.

    Long tables stand in `details`. Numbers carry their exact value as `data-v`, by which the page sorts.
    """
    if not len(frame):
        return ""
    varied, same = _without_constants(frame)
    shown = varied.head(cap)
    columns = [_Column(shown[name], address) for name in shown.columns]
    head = "".join(f'<th scope="col"{column.align}>{column.title}</th>' for column in columns)
    rows = zip(*(column.cells() for column in columns), strict=True)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    notes = [f"Constant columns: {same}."] if same else []
    if len(frame) > cap:
        notes.append(
            f"The first {cap} of {len(frame):,} rows; all of them: {whole}"
            if whole
            else f"The first {cap} of {len(frame):,} rows."
        )
    wide = " wide" if len(shown.columns) > _CROWDED else ""
    note = f'<p class="note">{text(" ".join(notes))}</p>' if notes else ""
    table = boxed(_framed(head, body, caption, wide), caption)
    if len(shown) <= _COLLAPSED:
        return note + table
    count = f"{len(frame):,} rows" if len(frame) <= cap else f"{cap} of {len(frame):,} rows"
    return f"<details><summary>Table: {text(caption)}, {count}</summary>{note}{table}</details>"


def boxed(table: str, caption: str) -> str:
    """A table in a box that scrolls, by keyboard as well."""
    return f'<div class="scroll" role="region" aria-label="{attribute(caption)}" tabindex="0">{table}</div>'


def _without_constants(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The frame without empty columns, and in a wide one without those of one value, which are named."""
    held = frame[[name for name in frame.columns if frame[name].notna().any()]]
    if len(held) < 2 or len(held.columns) <= _WIDE:
        return held, ""
    same = [name for name in held.columns if held[name].notna().all() and held[name].nunique() == 1]
    if len(same) == len(held.columns):
        return held, ""
    words = ", ".join(
        f"{label(str(name))} = {_Column(held[name].head(1), '').plain(held[name].iloc[0])}" for name in same
    )
    return held.drop(columns=same), words


class _Column:
    """How the values of one column are written."""

    def __init__(self, values: pd.Series, address: str) -> None:
        self.values = values
        self.address = address
        self.name = str(values.name)
        self.number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        self.align = _NUMBER if self.number else ""

    @property
    def title(self) -> str:
        """What the column is called, with its unit."""
        return text(labelled(self.name)).replace("_", "_<wbr>")

    def plain(self, value: Any) -> str:
        """One value as text."""
        if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
            return "-"
        if not self.number:
            return str(value)
        if isinstance(value, float) or self.values.dtype.kind == "f":
            return short(float(value), digits=4)
        return str(value)

    def cells(self) -> list[str]:
        """The table cells of the column."""
        found = []
        for value in self.values.astype("object"):
            words = self.plain(value)
            inner = run_link(value, self.address) if self.name in _IDS and words != "-" else text(words)
            exact = f' data-v="{float(value)!r}"' if self.number and words not in ("-", str(value)) else ""
            found.append(f"<td{self.align}{exact}>{inner}</td>")
        return found
