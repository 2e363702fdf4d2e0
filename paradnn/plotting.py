"""One look for every figure: colours that colour-blind readers distinguish, markers besides, readable axes."""

from __future__ import annotations

from textwrap import fill as wrap_lines
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

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


def cell(axes: Axes) -> tuple[float, float]:
    """Inches of width and height that a panel has in its figure, with all that stands around it."""
    width, height = axes.figure.get_size_inches()  # type: ignore[union-attr]
    spec = axes.get_subplotspec()
    rows, columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
    return width / columns, height / rows


def letters_in(inches: float, size: float) -> int:
    """How many letters of `size` points have room."""
    return int(72 * inches / (0.55 * size))


def finish(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and labels on as many lines as there is room for, a quiet grid behind the data, no box."""
    size = float(rcParams["font.size"])
    width, height = cell(axes)

    def fill(text: str, inches: float) -> str:
        return "\n".join(wrap_lines(line, max(12, letters_in(inches, 1.1 * size))) for line in text.split("\n"))

    # Beside long names the room is less than is taken here: what is too wide then is wrapped as it is drawn.
    axes.set_title(fill(title, width - 0.7), loc="left", fontsize=size, wrap=True)
    axes.set_xlabel(fill(x, width - 0.3), wrap=True)
    axes.set_ylabel(fill(y, 0.8 * height))
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def quantity(unit: str) -> EngFormatter:
    """Tick labels with SI prefixes: 2.5 TFLOP/s."""
    return EngFormatter(unit=unit, sep=" ")
