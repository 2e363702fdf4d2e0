"""Print to a terminal: tables that fit its width, rounded numbers, and no control characters.

Names, tags and reasons in a store come from other people. An escape sequence in them could move the
cursor, rename the window or hide a line. So each control character is printed as readable text.
"""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table

#: Control characters except line feed and tab, characters that change the direction of text, and
#: bytes of a command line that are not valid text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

#: Without a terminal, long work reports its progress once per this many seconds.
QUIET_SECONDS = 15.0
#: Pieces of work between two updates of a terminal's line.
_UPDATE_INTERVAL = 20
#: A width that no table reaches. Without a terminal a table is as wide as its cells need.
_UNLIMITED = 10_000
#: On narrower terminals tables have fewer columns. On others a long name continues in the next
#: line.
_NARROW = 70


def visible(text: str) -> str:
    """The text with control characters as escapes, such as \\x1b."""
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text that may contain text of a store."""
    print(visible(str(text)), file=file)


class Ticker:
    """Progress of long work: one updated line on a terminal, else a line from time to time."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._said = clock()

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` pieces are done."""
        line = f"{done:,} of {total:,} {self._what}"
        last = done == total
        now = self._clock()
        if sys.stderr.isatty():
            if last:
                print(f"\r{line}", file=sys.stderr, flush=True)
            elif done % _UPDATE_INTERVAL == 0:
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
        elif now - self._said >= QUIET_SECONDS:
            self._said = now
            print(line, file=sys.stderr, flush=True)


class SafeConsole(Console):
    """A console that prints control characters in a text as escapes."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments to print. Control segments come from rich itself, never from a text."""
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = segment._replace(text=visible(segment.text))
            yield segment

    def on_broken_pipe(self) -> None:
        """Discard further output after the reader of a pipe, such as head, has ended.

        The command continues, and its exit code stays that of its result.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def standard_output() -> SafeConsole:
    """A console of the terminal's width, or of unlimited width for a pipe or a file."""
    console = SafeConsole()
    if console.is_terminal:
        return console
    return unlimited_output()


def unlimited_output() -> SafeConsole:
    """A console of unlimited width."""
    return SafeConsole(width=_UNLIMITED)


def si(value: float) -> str:
    """The value with three digits and an SI prefix: 12.3 G; an infinite one as ∞ or -∞."""
    if math.isinf(value):
        return "∞ " if value > 0 else "-∞ "
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:  # a value that rounds to 1000 has the next prefix
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def fitting_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[RenderableType]],
    spare: Sequence[str],
) -> Table:
    """A table without lines.

    Args:
        console: The console that prints the table.
        columns: The columns.
        rows: The cells of each row.
        spare: Headings that a narrow terminal omits, the first ones first, until the others fit.
    """
    spare = spare if console.width < _NARROW else ()
    headings = [str(column.header) for column in columns]
    wide = console.options.update(width=_UNLIMITED)
    for count in range(len(spare) + 1):
        kept = [
            position for position, heading in enumerate(headings) if heading not in spare[:count]
        ]
        table = Table(
            *(columns[position].copy() for position in kept),
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for row in rows:
            table.add_row(*(row[position] for position in kept))
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
    return table
