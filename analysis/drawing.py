"""The look of the analysis' figures: the project's own, and colours that a name keeps in every figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter
from numpy.typing import ArrayLike

from paradnn.families import FAMILIES
from paradnn.plotting import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity

__all__ = [
    "COLOURS",
    "MARKERS",
    "SEQUENTIAL",
    "below",
    "colour_of",
    "families_with",
    "figure",
    "finish",
    "log_ticks",
    "marker_of",
    "quantity",
    "stacked",
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


def stacked(
    rows: Mapping[str, str],
    parts: Mapping[str, tuple[str, ArrayLike]],
    looks: Mapping[str, tuple[str, str]],
    title: str,
    per: str,
    written: float,
) -> Figure:
    """Bars of shares below each other: one for each of `rows`, a name with what stands at the bar's end.

    `parts` are what a bar is made of, a key with its name in the legend and its share of each row; `looks` are colour
    and hatch by the same keys. Shares from `written` on have their number in the bar; `per` is what they are shares of.
    """
    drawn, axes = figure(8.0, 1.9 + 0.5 * len(rows) + 0.1 * (len(parts) > 10))
    left = np.zeros(len(rows))
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    for key, (name, given) in parts.items():
        shares = np.asarray(given, dtype="float64")
        colour, hatch = looks[key]
        how = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6, "height": 0.6, "label": name}
        axes.barh(range(len(rows)), shares, left=left, **how)
        for row, share in enumerate(shares):
            if share >= written:
                middle = (left[row] + share / 2, row)
                axes.text(*middle, f"{share:.0%}", ha="center", va="center", fontsize=8, bbox=ground)
        left += shares
    for place, words in enumerate(rows.values()):
        axes.text(1.01, place, words, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.17)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    finish(axes, title, f"share of {per}")
    axes.yaxis.grid(False)
    below(drawn, axes, columns=5)
    return drawn


def below(drawn: Figure, axes: Axes, columns: int = 4) -> None:
    """The legend of a panel below the figure."""
    known = axes.get_legend_handles_labels()
    drawn.legend(*known, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)


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
