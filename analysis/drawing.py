"""The look of the analysis' figures: the project's own, and colours that a name keeps in every figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.labels import labelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

import textwrap
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)
from numpy.typing import ArrayLike

from analysis.format import short
from paradnn.families import FAMILIES
from paradnn.plotting import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity

__all__ = [
    "COLOURS",
    "GREY",
    "MARKERS",
    "SEQUENTIAL",
    "Colouring",
    "Line2D",
    "LogNorm",
    "Normalize",
    "Patch",
    "Rectangle",
    "ScalarMappable",
    "below",
    "colormaps",
    "colour_of",
    "colouring",
    "families_with",
    "figure",
    "finish",
    "fit",
    "log_ticks",
    "marker_of",
    "quantity",
    "ratio_axis",
    "settle",
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


#: Of what has no value, or none that is set apart.
GREY = "#888888"

_LEVELS = 9  # distinct values that get a colour and a marker each
_WRAP = 26  # characters of a legend's line


@dataclass(frozen=True)
class Colouring:
    """How a column is coloured: by `levels`, its distinct values in order, or where `norm` is given along a colour map.

    A value has the same look wherever it is drawn. `numeric` levels go from dark to light, words through the palette.
    """

    label: str
    levels: tuple[Any, ...]
    norm: Normalize | None
    numeric: bool

    def parts(self, values: pd.Series) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """Which of `values` are drawn alike, and how, as `Axes.scatter` takes it; those without a value are grey."""
        missing = values.isna().to_numpy(dtype=bool)
        if self.norm is not None:
            numbers = values.astype("float64").to_numpy()[~missing]
            yield ~missing, {"c": numbers, "cmap": SEQUENTIAL, "norm": self.norm, "marker": MARKERS[0]}
        for place, level in enumerate(self.levels):
            mine = values.eq(level).fillna(False).to_numpy(dtype=bool)
            if mine.any():
                colour, marker = self._look(place)
                yield mine, {"color": colour, "marker": marker}
        if missing.any():
            yield missing, {"color": GREY, "marker": MARKERS[0]}

    def explain(self, figure: Figure, axes: Sequence[Axes], where: str = "outside lower center") -> None:
        """A legend of the figure, or a colour bar beside `axes`."""
        if self.norm is None:
            handles = [
                Line2D([], [], color=colour, marker=marker, linestyle="none", label=_level(level))
                for level, (colour, marker) in zip(self.levels, map(self._look, range(len(self.levels))), strict=True)
            ]
            longest = max((len(_level(level)) for level in self.levels), default=1)
            rows = math.ceil(len(handles) / max(1, 84 // (longest + 4)))
            figure.legend(
                handles=handles,
                loc=where,
                ncols=math.ceil(len(handles) / rows),
                title=self.label,
                frameon=False,
                fontsize=8,
                title_fontsize=8,
            )
            return
        logarithmic = isinstance(self.norm, LogNorm)
        bar = figure.colorbar(ScalarMappable(self.norm, SEQUENTIAL), ax=list(axes), label=self.label, aspect=30)
        if logarithmic:
            wide = self.norm.vmax / self.norm.vmin > 50  # type: ignore[operator]
            bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
            bar.ax.yaxis.set_minor_formatter(NullFormatter())
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        bar.outline.set_visible(False)  # type: ignore[operator]

    def _look(self, place: int) -> tuple[Any, str]:
        if self.numeric:
            return colormaps[SEQUENTIAL](place / max(1, len(self.levels) - 1) * 0.95), MARKERS[place % len(MARKERS)]
        return COLOURS[place % len(COLOURS)], MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def colouring(values: pd.Series, name: str) -> Colouring:
    """How the column `name` is coloured, judged by all its values: along a colour map where it holds more than nine
    numbers, logarithmic where all are positive."""
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and values.nunique() > _LEVELS:
        every = values.astype("float64").dropna()
        norm = LogNorm if (every > 0).all() else Normalize
        return Colouring(labelled(name), (), norm(every.min(), every.max()), numeric)
    return Colouring(labelled(name), tuple(sorted(values.dropna().unique())), None, numeric)


def _level(value: Any) -> str:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, (float, np.floating)) else textwrap.fill(str(value), _WRAP)


_SMALLEST = 6.0  # points
_PANEL = 3.0  # inches that a panel needs
_LETTER = 0.55  # mean width of a letter, in its size
_CELLS = 12  # texts in a panel from which on they are the numbers of its cells
_AROUND = 0.7  # inches of height that title, label and legend take of a panel
_NAMES = 0.46  # of the width, that names along the left may take


def settle(figure: Figure) -> Figure:
    """Make a figure of any size legible: every text as it is written, since a name such as "$5 slice, $6 slice" is no
    formula; titles and legends no wider than the figure."""
    _plain(figure)
    figure.draw_without_rendering()
    if any(legend.get_window_extent().width > figure.bbox.width for legend in figure.legends):
        _narrow_legends(figure, [])
    _wrap(figure)
    return figure


def fit(figure: Figure, width: float) -> Figure:
    """Set a figure to `width` inches, its height as its rows need; the axes, legends and texts are changed in place."""
    natural_width, natural_height = (float(side) for side in figure.get_size_inches())
    scale = width / natural_width
    rows = _reflow(figure, width)
    _shrink(figure, min(1.0, max(scale, 0.72)))
    _cells(figure, width)
    height = natural_height * rows * min(1.0, max(scale, 0.62))
    height = max(height, _names(figure, width) + _AROUND * len(figure.axes))
    figure.set_size_inches(width, height)
    beside = [legend for axes in figure.axes if (legend := axes.get_legend()) and _is_beside(legend, axes)]
    _narrow_legends(figure, beside)
    _plain(figure)
    figure.draw_without_rendering()
    _wrap(figure)
    figure.draw_without_rendering()
    # What stands on more lines takes its room from the panels: give it back.
    lost = natural_height * rows * min(1.0, max(scale, 0.5)) * 0.62 - _panels_height(figure)
    if lost > 0:
        figure.set_size_inches(width, height + lost)
    _tilt(figure)
    return figure


def _plain(figure: Figure) -> None:
    for text in _texts(figure):
        text.set_parse_math(False)


def _shrink(figure: Figure, small: float) -> None:
    """Letters, marks and lines' marks by a factor, as far as they stay legible."""
    for text in _texts(figure):
        text.set_fontsize(max(_SMALLEST, float(text.get_fontsize()) * small))
    for axes in figure.axes:
        axes.tick_params(which="both", labelsize=max(_SMALLEST, 10 * small))
        for marks in axes.collections:
            if isinstance(marks, PathCollection):
                marks.set_sizes(marks.get_sizes() * small**2)
        for line in axes.lines:
            line.set_markersize(line.get_markersize() * small)


def _texts(figure: Figure) -> Iterator[Text]:
    """Every text but those that Matplotlib writes as powers of ten."""
    powers = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for formatter, minor in ((axis.get_major_formatter(), False), (axis.get_minor_formatter(), True)):
                if isinstance(formatter, LogFormatter):
                    powers |= {id(label) for label in axis.get_ticklabels(minor=minor)}
    return (text for text in figure.findobj(Text) if id(text) not in powers)


def _reflow(figure: Figure, width: float) -> float:
    """Put panels below each other where the page has no room beside; returns by how many times the rows grew."""
    panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    grids = {id(axes.get_subplotspec().get_gridspec()): axes for axes in panels}  # type: ignore[union-attr]
    if len(grids) != 1:
        return 1.0
    grid: Any = panels[0].get_subplotspec().get_gridspec()  # type: ignore[union-attr]
    columns = max(1, min(grid.ncols, int(width / _PANEL)))
    if columns == grid.ncols:
        return 1.0
    drawn = [axes for axes in panels if axes.axison and axes.get_visible()]
    for axes in set(panels).difference(drawn):
        axes.remove()
    rows = math.ceil(len(drawn) / columns)
    new = GridSpec(rows, columns, figure=figure)
    for place, axes in enumerate(drawn):
        axes.set_subplotspec(new[place // columns, place % columns])
    return float(rows / grid.nrows)


def _wrap(figure: Figure) -> None:
    """Titles and labels on as many lines as the figure is wide where they stand; after a draw."""
    whole = figure.bbox.width / figure.dpi
    for axes in figure.axes:
        left, right = axes.bbox.x0 / figure.dpi, axes.bbox.x1 / figure.dpi
        # Another panel, or a colour bar, ends the room of a title.
        ends = min((part.bbox.x0 / figure.dpi for part in figure.axes if part.bbox.x0 > axes.bbox.x1), default=whole)
        _fill(axes._left_title, ends - left)  # type: ignore[attr-defined]
        for text in (axes.title, axes.xaxis.label):
            _fill(text, min(left + right, 2 * whole - left - right, 1.3 * (right - left)))
        _fill(axes.yaxis.label, 1.1 * axes.bbox.height / figure.dpi)
    for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
        if text is not None:
            _fill(text, 0.97 * whole)


def _fill(text: Text, room: float) -> None:
    """Break a text's lines where `room` inches end."""
    letters = max(12, int(72 * room / (_LETTER * float(text.get_fontsize()))))
    lines = text.get_text().split("\n")
    text.set_text("\n".join(part for line in lines for part in (textwrap.wrap(line, letters) or [""])))


def _is_beside(legend: Legend, axes: Axes) -> bool:
    """Whether a legend stands right of its panel."""
    return bool(legend.get_bbox_to_anchor().x0 >= axes.bbox.x1 - 1)


def _narrow_legends(figure: Figure, beside: list[Legend]) -> None:
    """One legend below the figure in as many columns as fit, of all that are there and of those `beside` a panel."""
    # A legend's own handles are the first part of what they stand for: of a mark with its interval the interval alone.
    known = {
        name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    handles: dict[str, Any] = {}
    titles, size, old = [], _SMALLEST, [*beside, *figure.legends]
    for legend in old:
        names = [text.get_text() for text in legend.get_texts()]
        handles |= {name: known.get(name, part) for name, part in zip(names, legend.legend_handles, strict=True)}
        titles.append(legend.get_title().get_text())
        size = max(size, float(legend.get_texts()[0].get_fontsize()))
        legend.remove()
    if not old:
        return
    room = figure.bbox.width * 0.98
    letters = int(72 * room / figure.dpi / (_LETTER * size))
    labels = [textwrap.fill(name, letters - 6) for name in handles]
    title = textwrap.fill("; ".join(filter(None, dict.fromkeys(titles))), letters)
    for columns in range(min(len(labels), 8), 0, -1):
        made = figure.legend(
            list(handles.values()),
            labels,
            title=title,
            ncols=columns,
            fontsize=size,
            title_fontsize=size,
            frameon=False,
            loc="outside lower center",
            columnspacing=1.2,
        )
        if columns == 1 or made.get_window_extent().width <= room:
            break
        made.remove()
    _plain(figure)


def _cells(figure: Figure, width: float) -> None:
    """Numbers within cells go where they have no room; the colour bar tells them."""
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        across = len({text.get_position()[0] for text in axes.texts})
        if spec is None or len(axes.texts) <= _CELLS or not across:
            continue
        room = 72 * 0.62 * width / spec.get_gridspec().ncols / across
        if max(_LETTER * float(text.get_fontsize()) * len(text.get_text()) for text in axes.texts) > room:
            for text in list(axes.texts):
                text.remove()


def _names(figure: Figure, width: float) -> float:
    """Names along an axis, such as devices and families, on more lines where they would take the panel's room; upright
    where a word is wider than its place. Returns the inches of height that those along the left need."""
    needed = 0.0
    for axes in figure.axes:
        for axis, room in ((axes.yaxis, _NAMES * width), (axes.xaxis, _between(axes, width))):
            names = [label.get_text() for label in axis.get_ticklabels()]
            if not isinstance(axis.get_major_locator(), FixedLocator) or not any(names):
                continue
            size = float(axis.get_ticklabels()[0].get_fontsize())
            letters = max(5, int(72 * room / (_LETTER * size)))
            wide = max(len(word) for name in names for word in name.split()) > letters
            if axis is axes.xaxis and wide:
                axis.set_tick_params(rotation=90)
                continue
            wrapped = [_broken(name, letters) for name in names]
            axis.set_ticks(axis.get_ticklocs(), wrapped)
            if axis is axes.yaxis:
                needed += max(name.count("\n") + 1 for name in wrapped) * len(wrapped) * size * 1.35 / 72
    _plain(figure)
    return needed


def _broken(name: str, letters: int) -> str:
    """A name in lines of at most so many letters; its own lines are kept where they fit."""
    if max(map(len, name.split("\n"))) <= letters:
        return name
    return textwrap.fill(name.replace("\n", " "), letters, break_long_words=False, break_on_hyphens=False)


def _tilt(figure: Figure) -> None:
    """Numbers along the horizontal axis that come too near to each other are slanted."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        labels = [label for label in axes.get_xticklabels() if label.get_text() and not label.get_rotation()]
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.x0)
        gap = 0.4 * float(labels[0].get_fontsize()) * figure.dpi / 72 if labels else 0.0
        if any(right.x0 - left.x1 < gap for left, right in pairwise(boxes)):
            axes.tick_params(axis="x", rotation=35)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")


def _between(axes: Axes, width: float) -> float:
    """Inches between neighbouring ticks along the horizontal axis."""
    spec = axes.get_subplotspec()
    columns = spec.get_gridspec().ncols if spec is not None else 1
    return 0.62 * width / columns / max(1, len(axes.xaxis.get_ticklocs()))


def _panels_height(figure: Figure) -> float:
    """Inches of height that the rows of panels have together."""
    heights: dict[int, float] = {}
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        if spec is not None:
            heights[spec.rowspan.start] = max(heights.get(spec.rowspan.start, 0), axes.bbox.height / figure.dpi)
    return sum(heights.values())


def ratio_axis(axis: Any) -> None:
    """Ticks of a logarithmic axis of ratios: 0.5x, 1x, 2x, few enough to be read."""
    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,), numticks=12))
    if decades < 0.8:
        step = next((step for limit, step in ((1.3, 0.05), (2, 0.1), (4, 0.25)) if high / low < limit), 0.5)
        axis.set_major_locator(_Steps(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


class _Steps(LogLocator):
    """Even steps, for a logarithmic axis that covers less than a decade."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        low, high = sorted((vmin, vmax))
        return [step * self._step for step in range(math.ceil(low / self._step), math.floor(high / self._step) + 1)]
