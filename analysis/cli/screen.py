"""A result on a terminal and as CSV: few digits, as many columns as there is room for, nothing that a cell could start.

What is left out is said, and how to get all of it. `paradnn.cli.console` shows control signs in place of obeying them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table
from rich.text import Text

from paradnn.cli.console import Screen, si, standard_output

if TYPE_CHECKING:
    import pandas as pd

    from analysis.result import Result

__all__ = ["show", "write_csv"]

_ROWS = 50  # of a table that are printed
_GAP = 2  # between columns
_WIDEST = 48  # characters of a text in a table that has no room
_EXACT = 100_000  # columns of smaller whole numbers have all their digits
_NONE = ("nan", "None", "<NA>", "NaT", "")
#: What a spreadsheet would compute, or send somewhere, when it opens a file (OWASP, CSV injection).
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d[\d_,.]*|\.\d+)(e[+-]?\d+)?%?|[+-]inf", re.IGNORECASE)


def show(result: Result) -> None:
    """Print the table, or its maps, and the findings in words."""
    screen, grids = standard_output(), list(result.grids())
    for title, cells in grids:
        _print_table(screen, cells, [], title)
    if not grids and len(result.table):
        cells = result.table.head(_ROWS)
        _print_table(screen, _texts(cells), [*cells.select_dtypes("number")])
        if len(result.table) > _ROWS:
            print(f"... and {len(result.table) - _ROWS:,} rows more; --csv FILE writes all of them")
    screen.print(result.text(), soft_wrap=True, markup=False)


def write_csv(table: pd.DataFrame, target: TextIO | Path) -> None:
    """A table as CSV, whose texts no spreadsheet takes for a formula; numbers stay as they are."""
    texts = {name: column.map(_inert) for name, column in table.items() if column.dtype.kind not in "biufcmM"}
    safe = table.assign(**{str(name): column for name, column in texts.items()}).rename(columns=_inert)
    safe.to_csv(target, index=False)


def _inert(value: Any) -> Any:
    """A value; of a text that begins as a formula does, one that a quotation mark makes a text."""
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Every cell as a person reads it, without columns that hold nothing."""
    kept = table[[name for name in table.columns if not table[name].map(_is_none).all()]]
    return kept.apply(_column).astype(str)


def _is_none(value: Any) -> bool:
    return str(value) in _NONE


def _column(values: pd.Series) -> pd.Series:
    """The cells of a column as texts; whole numbers are settings and counts, unless they are large."""
    numbers = [float(value) for value in values if not _is_none(value) and isinstance(value, Real)]
    exact = all(number.is_integer() and abs(number) < _EXACT for number in numbers)
    return values.map(lambda value: _text(value, exact))


def _text(value: Any, exact: bool) -> str:
    if _is_none(value):
        return "-"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    return f"{value:.0f}" if exact else si(float(value)).strip()


def _print_table(screen: Screen, cells: pd.DataFrame, numeric: Sequence[str], title: str = "") -> None:
    """A table of texts; where there is no room, without what is the same in all rows, then without its last columns."""
    if screen.is_terminal:
        cells = cells.map(lambda text: text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…")
    same = [name for name in cells.columns if cells[name].nunique() == 1] if len(cells) > 1 and not title else []
    kept, notes = cells, []
    if _width(kept) > screen.width and same and len(same) < len(kept.columns):
        kept = kept.drop(columns=same)
        notes.append(f"The same in all rows: {', '.join(f'{name} {cells[name].iloc[0]}' for name in same)}")
    while _width(kept) > screen.width and len(kept.columns) > 1:
        kept = kept.iloc[:, :-1]
    named = {*kept.columns, *(same if notes else ())}
    if left_out := [str(name) for name in cells.columns if name not in named]:
        notes.append(f"Columns without room here, which --csv FILE writes: {', '.join(left_out)}")
    if title:
        screen.print(title, style="bold", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(kept.columns):
        right = name in numeric or (bool(title) and place > 0)
        table.add_column(Text(str(name)), justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for row in kept.itertuples(index=False):
        table.add_row(*map(Text, row))
    screen.print(table)
    for note in notes:
        screen.print(note, style="dim", soft_wrap=True, markup=False)


def _width(cells: pd.DataFrame) -> int:
    widths = [max(len(str(name)), int(cells[name].str.len().max())) for name in cells.columns]
    return sum(widths) + _GAP * (len(widths) - 1)
