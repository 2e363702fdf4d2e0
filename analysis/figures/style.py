"""The look of the analysis' figures: the project's own, and colours that a name keeps in every figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter

from paradnn.config.families import FAMILIES
from paradnn.plotting import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity

__all__ = [
    "COLOURS",
    "MARKERS",
    "SEQUENTIAL",
    "colour_of",
    "families_with",
    "figure",
    "finish",
    "finish_stacks",
    "log_ticks",
    "marker_of",
    "quantity",
    "stack",
]

#: A name's place decides its look.
_FAMILIES = tuple(FAMILIES)
_WIDE = 1e4  # ends of an axis that are further apart leave no room for more ticks than the decades


def families_with(names: Iterable[str]) -> list[str]:
    """All families in their fixed order, then others of `names`: the list in which a name's place is its look."""
    return [*_FAMILIES, *sorted(set(names).difference(_FAMILIES))]


def colour_of(name: str, among: Sequence[str] = ()) -> str:
    """The colour of a name: a family always has the same, others by their place in `among`."""
    return COLOURS[_place(name, among) % len(COLOURS)]


def marker_of(name: str, among: Sequence[str] = ()) -> str:
    """The marker of a name; it shifts by one after each round of colours, so that the pair stays unique."""
    place = _place(name, among)
    return MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def stack(axes: Axes, left: np.ndarray, shares: np.ndarray, label: str, colour: str, hatch: str, least: float) -> None:
    """Add a share to horizontal bars that end at `left`, one for each row; shares from `least` on are written."""
    axes.barh(
        range(len(left)),
        shares,
        left=left,
        color=colour,
        hatch=hatch,
        edgecolor="white",
        linewidth=0.6,
        height=0.6,
        label=label,
    )
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    for row, share in enumerate(shares):
        if share >= least:
            axes.text(left[row] + share / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=8, bbox=ground)


def finish_stacks(drawn: Figure, axes: Axes, rows: Sequence[str], ends: Sequence[str], title: str, per: str) -> None:
    """The ends of bars of shares below each other: their names, what stands behind each, axes in percent, the legend.

    `per` is what the shares are of.
    """
    for place, words in enumerate(ends):
        axes.text(1.01, place, words, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.17)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    finish(axes, title, f"share of {per}")
    axes.yaxis.grid(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)


def log_ticks(axis: Axis) -> None:
    """Plain numbers along a logarithmic axis, once all is drawn: 1, 2, 5 of each decade, over wide ranges decades."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _WIDE * low else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter("")


def _place(name: str, among: Sequence[str]) -> int:
    if name in among:
        return list(among).index(name)
    return _FAMILIES.index(name) if name in _FAMILIES else len(_FAMILIES)
