"""Print to a terminal: tables that fit its width, rounded numbers, and no control characters.

Names, tags and reasons in a store may come from other people. An escape sequence in them could move
the cursor, rename the window or hide a line. Control characters are therefore printed as readable
text.
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

#: Seconds between two progress lines of long work if the output is not a terminal.
QUIET_SECONDS = 15.0
#: Number of items between two updates of the progress line on a terminal.
_UPDATE_INTERVAL = 20
#: A width in characters that no table reaches, for output that is not a terminal.
_UNLIMITED = 10_000
#: Width in characters below which tables omit columns. On wider terminals, long cells wrap.
_NARROW = 70


def visible(text: str) -> str:
    """Return a text with its control characters replaced by escapes, such as \\x1b."""
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def say(text: object, file: TextIO | None = None) -> None:
    """Print a text with its control characters replaced by escapes.

    Args:
        text: The text, or an object that is converted by `str`.
        file: The file to print to; None for standard output.
    """
    print(visible(str(text)), file=file)


class Ticker:
    """Prints the progress of long work to standard error, such as `1,000 of 5,000 runs`.

    On a terminal, a single line is updated. Otherwise, a line is printed at most every
    `QUIET_SECONDS` seconds.

    Args:
        unit: Name of the items that are counted, such as "runs".
        clock: Returns the time in seconds, from any origin.
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit = unit
        self._clock = clock
        self._last_print = clock()

    def __call__(self, done: int, total: int) -> None:
        """Print that `done` of `total` items are done, unless the last line is too recent."""
        line = f"{done:,} of {total:,} {self._unit}"
        is_last = done == total
        now = self._clock()
        if sys.stderr.isatty():
            if is_last:
                print(f"\r{line}", file=sys.stderr, flush=True)
            elif done % _UPDATE_INTERVAL == 0:
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
        elif now - self._last_print >= QUIET_SECONDS:
            self._last_print = now
            print(line, file=sys.stderr, flush=True)


class SafeConsole(Console):
    """Console of the package rich that prints control characters in a text as escapes.

    Args:
        **settings: Arguments of `rich.console.Console`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments to print, with control characters replaced by escapes.

        Control segments are left unchanged, because they come from rich and never from a text.
        """
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = segment._replace(text=visible(segment.text))
            yield segment

    def on_broken_pipe(self) -> None:
        """Discard further output after the reader of a pipe, such as head, has ended.

        The command continues, and its exit code does not change.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def standard_output() -> SafeConsole:
    """Return a console with the terminal's width, or with unlimited width for a pipe or a file."""
    console = SafeConsole()
    if console.is_terminal:
        return console
    return unlimited_output()


def unlimited_output() -> SafeConsole:
    """Return a console with unlimited width."""
    return SafeConsole(width=_UNLIMITED)


def si(value: float) -> str:
    """Return a value with three significant digits and an SI prefix, such as "12.3 G".

    The text ends with the prefix or a space, so that a unit can follow. Infinite values give "∞ "
    and "-∞ ".
    """
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
    """Return a table without borders that fits the width of a console.

    Args:
        console: The console that will print the table.
        columns: The columns with their headings.
        rows: The cells of each row, one per column.
        spare: Headings of columns to omit on a narrow terminal, one after the other, until the
            table fits.
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
