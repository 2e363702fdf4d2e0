"""Heat maps side by side on one colour scale: value, out of memory, other failures and gaps all look different."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from analysis import drawing as style
from analysis.format import is_share, short
from analysis.labels import label, labelled
from analysis.methods.heatmap import MEMORY, HeatMap, HeatMaps

__all__ = ["draw_heat_maps"]


class _Look(NamedTuple):
    letters: str
    legend: str
    hatch: str
    face: str


#: How a cell in which nothing ran looks, by the outcome.
_LOOKS = {
    "oom_device": _Look("OOM", "out of memory (device)", "////", "#f4f4f4"),
    "oom_host": _Look("OOM\nhost", "out of memory (host)", "xxxx", "#f4f4f4"),
    "oom_predicted": _Look("OOM\npred.", "out of memory, predicted", "....", "#ffffff"),
}
_FAILED = _Look("", "", "\\\\", "#fbe9e0")
_SHORTER = {"compile_error": "compile", "unavailable": "n/a"}

_CELL = 0.66  # width of a cell in inches, so that a value fits in it
_NARROW = 6  # cells that a map may have across to stand beside another
_LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue (ITU-R BT.709)
_WIDE = 30.0  # from this ratio of greatest to least on, colours are logarithmic


def draw_heat_maps(result: HeatMaps) -> Figure:
    """A map for each family and device. Cells hold their median; "2/5 OOM" below: that many points did not fit.

    Cells that nothing was measured in are empty. Colours are logarithmic where values differ by a factor over 30.
    """
    maps = result.maps
    values = np.concatenate([found.cells["value"].to_numpy(dtype="float64") for found in maps])
    share = is_share(result.metric, result.unit, values)
    norm = _norm(values)
    wide, high = len(maps[0].x.labels), len(maps[0].y.labels)
    across = min(2 if wide <= _NARROW else 1, len(maps))
    down = -(-len(maps) // across)
    width = max(3.2, _CELL * wide)
    figure, panels = style.figure(
        across * (width + 0.9) + 1.1, down * (max(1.6, 0.42 * high) + 1.4) + 0.6, down, across
    )
    every = list(panels.flat) if down * across > 1 else [panels]
    for number, (axes, found) in enumerate(zip(every, maps, strict=False)):
        _draw(axes, found, norm, share)
        last, first = number + across >= len(maps), number % across == 0
        style.finish(axes, found.name, label(found.x.column) if last else "", label(found.y.column) if first else "")
        _note(axes, found, width)
        axes.grid(False)
    for axes in every[len(maps) :]:
        axes.set_visible(False)
    if np.isfinite(values).any():
        _scale(figure, every[: len(maps)], norm, result, share)
    handles = [_key(outcome) for outcome in _failures(maps)]
    if any("measured" in found.cells for found in maps):
        handles += _marks(maps)
    if any(found.unmeasured for found in maps):
        handles.append(Patch(facecolor="white", edgecolor="#a8a8a8", label="not measured"))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=9
        )
    return figure


def _draw(axes: Axes, found: HeatMap, norm: Normalize, share: bool) -> None:
    colours = matplotlib.colormaps[style.SEQUENTIAL]
    wide, high = len(found.x.labels), len(found.y.labels)
    axes.set_xlim(-0.5, wide - 0.5)
    axes.set_ylim(-0.5, high - 0.5)
    for cell in found.cells.itertuples(index=False):
        _cell(axes, cell, colours, norm, share)
    tilted = max(len(label) for label in found.x.labels) > 6
    axes.set_xticks(
        range(wide),
        found.x.labels,
        rotation=45 if tilted else 0,
        ha="right" if tilted else "center",
        rotation_mode="anchor" if tilted else "default",
        fontsize=8,
    )
    axes.set_yticks(range(high), found.y.labels, fontsize=8)
    axes.tick_params(length=0)


def _cell(axes: Axes, cell: Any, colours: Any, norm: Normalize, share: bool) -> None:
    """A row of `HeatMap.cells` as a square with its value, or with the outcome of its points."""
    corner = (cell.i - 0.5, cell.j - 0.5)
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    if np.isnan(cell.value):
        look = _look(cell.outcome)
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=look.face, edgecolor="#a8a8a8", hatch=look.hatch, linewidth=0))
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=1.0))
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        axes.text(cell.i, cell.j, look.letters, fontsize=7, linespacing=0.9, bbox=behind, **middle)
        return
    colour = colours(norm(cell.value))
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5))
    ink = "black" if np.dot(colour[:3], _LUMINANCE) > 0.45 else "white"
    height = cell.j + ((0.06 if getattr(cell, "measured", 0) else 0.14) if cell.failed else 0)
    axes.text(cell.i, height, short(cell.value, "", share), fontsize=8, color=ink, **middle)
    if cell.failed:
        what = "OOM" if cell.memory == cell.failed else "failed"
        text = f"{cell.failed}/{cell.failed + cell.points} {what}"
        axes.text(cell.i, cell.j - 0.28, text, fontsize=6, color=ink, **middle)
    if getattr(cell, "measured", 0):
        _mark(axes, cell, ink)


def _mark(axes: Axes, cell: Any, ink: str) -> None:
    """How much of a predicted map's cell was measured: a dot where its one point was, else how many of how many."""
    if cell.points == 1:
        axes.plot(cell.i + 0.36, cell.j + 0.3, marker="o", markersize=3.5, color=ink, linewidth=0)
        return
    text = f"{cell.measured}/{cell.points}"
    axes.text(cell.i + 0.45, cell.j + 0.36, text, fontsize=6, color=ink, ha="right", va="center", style="italic")


def _marks(maps: Sequence[HeatMap]) -> list[Any]:
    """What tells measured from predicted, for the legend."""
    most = max(int(found.cells["points"].max()) for found in maps)
    if most == 1:
        return [Line2D([], [], marker="o", markersize=4, color="black", linewidth=0, label="measured, else predicted")]
    label = f"n/{most}: n points of a cell were measured, the others predicted"
    return [Line2D([], [], linewidth=0, label=label)]


def _note(axes: Axes, found: HeatMap, width: float) -> None:
    """Below the title, what a cell is the median of."""
    counts = found.cells.loc[found.cells["value"].notna(), "points"]
    if not len(counts):
        axes.set_title(f"{found.name}\nno point ran", loc="left", fontsize=9)
        return
    many = f"{counts.min()} to {counts.max()} points" if counts.min() < counts.max() else f"{counts.max()} points"
    text = f"a cell is the median of {many}" if counts.max() > 1 else "a cell is one point"
    pooled = [f"{label(name)} ({count})" for name, count in {**found.pooled, **found.settings}.items()]
    joined = " over" if counts.max() > 1 else "; runs differ in"
    lines = wrap(text + (f"{joined} {', '.join(pooled)}" if pooled else ""), int(width * 15))
    axes.set_title("\n".join([found.name, *lines]), loc="left", fontsize=9)


def _norm(values: np.ndarray) -> Normalize:
    """The common colour scale of all maps."""
    known = values[np.isfinite(values)]
    if not len(known):
        return Normalize(0, 1)
    low, high = float(known.min()), float(known.max())
    if low > 0 and high > _WIDE * low:
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + abs(low) + 1e-12)


def _scale(figure: Figure, axes: Sequence[Axes], norm: Normalize, result: HeatMaps, share: bool) -> None:
    mapped = ScalarMappable(norm, style.SEQUENTIAL)
    bar: Any = figure.colorbar(mapped, ax=list(axes), fraction=0.04, pad=0.02, aspect=30)
    if isinstance(norm, LogNorm):
        decades = np.log10((norm.vmax or 1.0) / (norm.vmin or 1.0))
        bar.locator = LogLocator(10, (1.0, 3.0) if decades < 4 else (1.0,))
    else:
        bar.locator = MaxNLocator(6)
    bar.minorticks_off()
    bar.formatter = FuncFormatter(lambda value, _: short(value, "", share))
    bar.update_ticks()
    bar.set_label(f"{(label if share else labelled)(result.metric)}, median of a cell")


def _failures(maps: Sequence[HeatMap]) -> list[str]:
    """The outcomes of cells in which nothing ran: out of memory first."""
    present = {str(cell) for found in maps for cell in found.cells.loc[found.cells["value"].isna(), "outcome"]}
    return [name for name in MEMORY if name in present] + sorted(present.difference(MEMORY))


def _look(outcome: str) -> _Look:
    name = _SHORTER.get(outcome, outcome)
    return _LOOKS.get(outcome, _FAILED._replace(letters=name, legend=outcome))


def _key(outcome: str) -> Any:
    look = _look(outcome)
    return Patch(facecolor=look.face, edgecolor="#a8a8a8", hatch=look.hatch, label=look.legend)
