"""The figure of a sweep: every point's throughput with its interval, and what of it failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["NAMED", "Mark", "sweep_figure"]

#: Points that have a line each, with their names; of more, each family has one.
NAMED = 40
_LINE = 0.22  # inches
_INTERVAL = "#888888"


@dataclass(frozen=True)
class Mark:
    """A point: its rate or time with its 95% interval (None where it has none), or None and its `outcome`."""

    name: str
    family: str
    outcome: str
    value: float | None = None
    interval: tuple[float, float] | None = None


def sweep_figure(title: str, unit: str, marks: Sequence[Mark]) -> Figure:
    """Values in `unit` on a logarithmic axis, the points of a family together; at least one mark has a value."""
    from paradnn.plotting import figure, finish

    families = sorted({mark.family for mark in marks})
    ordered = sorted(marks, key=lambda mark: (mark.family, -(mark.value or 0.0)))
    named = len(marks) <= NAMED
    labels = [mark.name for mark in ordered] if named else families
    drawn, axes = figure(8.0, 1.3 + _LINE * max(len(labels), 4))
    axes.set_xscale("log")
    for number, mark in enumerate(ordered):
        place = families.index(mark.family)
        _draw(axes, mark, number if named else place, place)
        if named and mark.value is None:
            # A failed point stands at the left edge, whatever the axis shows; without a line of its own it is counted.
            axes.text(0.01, number, mark.outcome, transform=axes.get_yaxis_transform(), fontsize=8, va="center")
    if not named:
        failed = Counter(mark.family for mark in marks if mark.value is None)
        labels = [f"{family}, {failed[family]} failed" if failed[family] else family for family in families]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    finish(axes, title, f"{unit}, 95% interval")
    return drawn


def _draw(axes: Axes, mark: Mark, line: int, place: int) -> None:
    """A mark with its interval; `place` is its family's, which decides its look."""
    from paradnn.plotting import COLOURS, MARKERS

    if mark.value is None:
        return
    if mark.interval is not None:
        axes.plot(mark.interval, (line, line), color=_INTERVAL, linewidth=1.2)
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    axes.plot(mark.value, line, marker, color=colour, markersize=5)
