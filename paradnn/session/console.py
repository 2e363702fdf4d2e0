"""Standard output, for tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

__all__ = ["fitting_table", "standard_output"]

#: No table is as wide; one without a terminal then takes what its cells need, and no word of it is broken.
_UNLIMITED = 10_000
#: On narrower terminals tables have fewer columns; on others a name that is too long goes on in the next line.
_NARROW = 70


def standard_output() -> Console:
    """A console of the terminal's width, or of no width at all in a pipe or a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNLIMITED)


def fitting_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[RenderableType]], spare: Sequence[str]
) -> Table:
    """A table without lines; on a narrow terminal without as many of the `spare` headings, first ones first, as let the
    others stand unbroken."""
    spare = spare if console.width < _NARROW else ()
    headings, wide = [str(column.header) for column in columns], console.options.update(width=_UNLIMITED)
    for count in range(len(spare) + 1):
        kept = [place for place, heading in enumerate(headings) if heading not in spare[:count]]
        table = Table(*(columns[place].copy() for place in kept), box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(row[place] for place in kept))
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
    return table
