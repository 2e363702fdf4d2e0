"""What a terminal shows: tables as wide as it is, numbers of few digits, and no sign that would
command it.

Names, tags and reasons in a store are written by others. An escape sequence among them could move
the cursor, rename the window or hide a line; on the way out each control sign becomes a word that
can be read.
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

#: Control signs but for the end of a line and the tab, those that turn the direction of what
#: follows, and bytes of a command line that are no text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

#: Without a terminal, long work says where it is after so many seconds without a word.
QUIET_SECONDS = 15.0
_EVERY = 20  # pieces of work between two states of a line
#: No table is as wide; one without a terminal then takes what its cells need, and no word of it is
#: broken.
_UNLIMITED = 10_000
#: On narrower terminals tables have fewer columns; on others a name that is too long goes on in the
#: next line.
_NARROW = 70


def visible(text: str) -> str:
    """A text whose control signs are written out, such as \\x1b for the escape."""
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def say(text: object, file: TextIO | None = None) -> None:
    """Print words of which some may be a store's."""
    print(visible(str(text)), file=file)


class Ticker:
    """How far long work is: one line of a terminal that is written again, elsewhere a line now and
    then.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._said = clock()

    def __call__(self, done: int, total: int) -> None:
        """So many are done."""
        line = f"{done:,} of {total:,} {self._what}"
        last = done == total
        now = self._clock()
        if sys.stderr.isatty():
            if done % _EVERY == 0 or last:
                print(f"\r{line}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif now - self._said >= QUIET_SECONDS:
            self._said = now
            print(line, file=sys.stderr, flush=True)


class SafeConsole(Console):
    """A console that shows control signs in a text in place of obeying them."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is shown; those that drive the terminal are rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def on_broken_pipe(self) -> None:
        """Who reads, such as head, has seen enough: the command goes on to its end, and its own
        exit code.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def standard_output() -> SafeConsole:
    """A console of the terminal's width, or of no width at all in a pipe or a file."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=_UNLIMITED)


def si(value: float) -> str:
    """The value with three digits and an SI prefix: 12.3 G; an infinite one as ∞ or -∞."""
    if math.isinf(value):
        return "∞ " if value > 0 else "-∞ "
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:  # what rounds to 1000 has the next prefix
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def fitting_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[RenderableType]],
    spare: Sequence[str],
) -> Table:
    """A table without lines; on a narrow terminal without the first `spare` headings, so that
    others stand unbroken.
    """
    spare = spare if console.width < _NARROW else ()
    headings = [str(column.header) for column in columns]
    wide = console.options.update(width=_UNLIMITED)
    for count in range(len(spare) + 1):
        kept = [place for place, heading in enumerate(headings) if heading not in spare[:count]]
        table = Table(
            *(columns[place].copy() for place in kept),
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for row in rows:
            table.add_row(*(row[place] for place in kept))
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
    return table
