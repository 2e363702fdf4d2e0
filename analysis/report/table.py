"""A frame as a table that sorts: few digits to read, the exact value to sort by, no column that says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from analysis.format import short
from analysis.labels import label, labelled

__all__ = ["CAP", "Cell", "Table", "frame_table", "without_constants"]

#: Rows of a table that are in the page.
CAP = 200
_CROWDED = 10  # columns above which a printed table is set smaller
_IDS = ("run_id", "a_run_id", "b_run_id")


class Cell(NamedTuple):
    """A cell of a table: its words, the number to sort by where it is one, and whether it is the id of a run."""

    words: Any
    exact: float | None = None
    is_run: bool = False


@dataclass(frozen=True)
class Table:
    """What a page shows as a table: headings, whether a column holds numbers, cells, and a note above them."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    size: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(row[place].exact is not None for row in self.rows) for place in range(len(self.head))]

    @property
    def wide(self) -> bool:
        """Whether it has so many columns that it is printed smaller."""
        return len(self.head) > _CROWDED


def frame_table(frame: pd.DataFrame, caption: str, whole: str = "", cap: int = CAP) -> Table | None:
    """The first `cap` rows of a frame, None of an empty one; `whole` is the command that writes all of them.

    The ends of an interval share a column, which is not there where no interval says more than its value.
    """
    if not len(frame):
        return None
    varied, same = without_constants(frame)
    shown = varied.head(cap)
    columns = list(_columns(shown))
    notes = [f"The same in every row: {same}."] if same else []
    if len(frame) > cap:
        notes.append(f"The first {cap} of {len(frame):,} rows{f'; all of them: {whole}' if whole else '.'}")
    size = f"{len(frame):,} row{'s'[: len(frame) != 1]}" if len(frame) <= cap else f"{cap} of {len(frame):,} rows"
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table(caption, [title for title, _ in columns], rows, " ".join(notes), size)


def without_constants(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The frame without empty columns and those of one value, and the latter in words."""
    held = frame[[name for name in frame.columns if frame[name].notna().any()]]
    if len(held) < 2:
        return held, ""
    same = [name for name in held.columns if held[name].notna().all() and held[name].nunique() == 1]
    if len(same) == len(held.columns):
        return held, ""
    words = ", ".join(f"{label(str(name))} = {_plain(held[name].iloc[0], held[name])}" for name in same)
    return held.drop(columns=same), words


def _columns(frame: pd.DataFrame) -> Iterator[tuple[str, list[Cell]]]:
    """Heading and cells of each column; the two ends of an interval as one, behind what it is of."""
    names, before = [str(name) for name in frame.columns], ""
    for name in names:
        high = _other_end(name)
        if high in names:
            cells = _interval(frame, before, name, str(high))
            if any(cell.words != "-" for cell in cells):
                yield f"95% interval of {label(before)}" if before else "95% interval", cells
        elif not any(_other_end(low) == name for low in names):
            before = name
            yield labelled(name), _cells(frame[name])


def _other_end(name: str) -> str | None:
    """The column of the upper end that belongs to one of a lower end."""
    return f"{name.removesuffix('low')}high" if name == "low" or name.endswith("_low") else None


def _interval(frame: pd.DataFrame, of: str, low: str, high: str) -> list[Cell]:
    """Both ends in a cell; none where they are the value itself."""
    found = []
    for place in range(len(frame)):
        ends = [frame[name].iloc[place] for name in (low, high)]
        value = frame[of].iloc[place] if of else None
        nothing = any(pd.isna(end) for end in ends) or (ends[0] == ends[1] == value)
        words = [_plain(end, frame[name]) for end, name in zip(ends, (low, high), strict=True)]
        found.append(Cell("-") if nothing else Cell("\u00a0to\u00a0".join(words)))
    return found


def _cells(values: pd.Series) -> list[Cell]:
    number, run = _is_number(values), values.name in _IDS
    cells = []
    for value in values.astype("object"):
        words = _plain(value, values)
        exact = float(value) if number and words != "-" else None
        cells.append(Cell(words, exact, run and words != "-"))
    return cells


def _is_number(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _plain(value: Any, values: pd.Series) -> str:
    """One value of a column as text."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if _is_number(values) and (isinstance(value, float) or values.dtype.kind == "f"):
        return short(float(value), digits=4)
    return str(value)
