"""One look for every figure: colours that colour-blind readers distinguish, markers besides, readable axes."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

__all__ = ["COLOURS", "MARKERS", "SEQUENTIAL", "figure", "finish", "quantity"]

#: Okabe and Ito's palette (Color Universal Design, 2008), without its yellow, which is too pale on white; before its
#: black, two dark colours of Tol's muted scheme (2021).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<", "X")
#: A colour map that is even in lightness and survives grey print.
SEQUENTIAL = "cividis"


def figure(width: float = 7.0, height: float = 4.5, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """A figure without pyplot (which keeps every figure alive) and its axes; sizes in inches.

    One axes, or an array of them (rows x columns, 2-D) where there are several.
    """
    drawn = Figure(figsize=(width, height), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=rows * columns == 1)
    return drawn, axes


def finish(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and labels, a quiet grid behind the data, no box."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def quantity(unit: str) -> EngFormatter:
    """Tick labels with SI prefixes: 2.5 TFLOP/s."""
    return EngFormatter(unit=unit, sep=" ")
