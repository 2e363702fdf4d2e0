"""From the values of a column to colours: a colour and a marker for each of few, a colour bar for many numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.drawing import COLOURS, MARKERS, SEQUENTIAL
from analysis.format import short
from analysis.labels import labelled

__all__ = ["GREY", "Colouring", "colouring"]

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
