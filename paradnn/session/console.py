"""Standard output, for tables."""

from __future__ import annotations

from rich.console import Console

__all__ = ["standard_output"]

#: No table is as wide; one without a terminal then takes what its cells need, and no word of it is broken.
_UNLIMITED = 10_000


def standard_output() -> Console:
    """A console of the terminal's width, or of no width at all in a pipe or a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNLIMITED)
