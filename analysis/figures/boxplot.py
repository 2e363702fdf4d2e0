"""Box plots with the paper's percentiles, the count of points at each box."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.drawing import COLOURS, MARKERS, colour_of, families_with, figure, finish, quantity
from analysis.figures.speedup import ratio_axis
from analysis.format import is_share, short
from analysis.labels import label, unit_of
from analysis.methods.boxplot import BOX, WHISKERS, Boxes

__all__ = ["draw_boxes"]

_WIDE = 100  # largest over smallest value above which a scale is logarithmic
_UPRIGHT = 8  # boxes beside each other; more lie below each other, where their labels have room
_WRAP, _TITLE = 18, 60  # characters of a label's line, and of the title's
_DARK = "#555555"


def draw_boxes(boxes: Boxes, what: str, unit: str = "", scale: str = "auto") -> Figure:
    """Bar at the median, box from the 9th to the 91st percentile, whiskers to the 2nd and the 98th, dots beyond.

    A group has a box or whiskers only where it has points enough for such percentiles; all points of smaller groups are
    dots. `what` names the values, which are in `unit`: "x" of ratios, which get a line at 1. `scale` is linear, log or
    auto: logarithmic of ratios, and where values are positive and span more than a factor of 100.
    """
    rows = boxes.table[boxes.table["count"] > 0].to_dict("records")
    upright = len(rows) <= _UPRIGHT
    width, height = (max(5.0, 1.6 + 0.9 * len(rows)), 4.8) if upright else (8.0, 1.4 + 0.32 * len(rows))
    drawn, axes = figure(width, height)
    keys = [str(row[boxes.by[0]]) for row in rows]
    among = families_with(keys) if boxes.by[0] == "family" else [*dict.fromkeys(keys)]
    for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
        _box(axes, row, boxes.values[row["label"]], place, colour_of(key, among), upright)
    value_axis, group_axis = (axes.yaxis, axes.xaxis) if upright else (axes.xaxis, axes.yaxis)
    lowest, highest = min(row["minimum"] for row in rows), max(row["maximum"] for row in rows)
    if scale == "log" or (scale == "auto" and lowest > 0 and (unit == "x" or highest / lowest > _WIDE)):
        axes.set(**{"yscale" if upright else "xscale": "log"})
    if unit == "x":
        (axes.axhline if upright else axes.axvline)(1, color="#333333", linewidth=1, zorder=1)
    _label(axes, boxes, what, unit, upright)
    group_axis.set_ticks(range(len(rows)), [_name(row, upright) for row in rows])
    group_axis.grid(False)
    value_axis.grid(True, color="#dddddd", linewidth=0.6)
    (axes.set_xlim if upright else axes.set_ylim)(-0.6, len(rows) - 0.4)
    if not upright:
        axes.invert_yaxis()
    drawn.supxlabel(_key(rows), fontsize=8, color=_DARK)
    return drawn


def _box(axes: Axes, row: Mapping[Any, Any], values: np.ndarray, place: int, colour: str, upright: bool) -> None:
    """One group at its place: what of box, whiskers and dots its points can carry."""
    boxed, whiskered = row["count"] >= BOX, row["count"] >= WHISKERS
    low, high = (row["p2"], row["p98"]) if whiskered else (row["p9"], row["p91"])
    dots = values[(values < low) | (values > high)] if boxed else values
    places = np.full(len(dots), place)
    horizontal, vertical = (places, dots) if upright else (dots, places)
    axes.plot(horizontal, vertical, MARKERS[0], color=_DARK, markersize=3, alpha=0.6, zorder=2)
    if not boxed:
        return
    statistics = {"med": row["p50"], "q1": row["p9"], "q3": row["p91"], "whislo": low, "whishi": high, "fliers": []}
    artists = axes.bxp(
        [statistics],
        positions=[place],
        orientation="vertical" if upright else "horizontal",
        widths=0.55,
        patch_artist=True,
        manage_ticks=False,
        showcaps=whiskered,
        medianprops={"color": COLOURS[-1], "linewidth": 1.8},
        whiskerprops={"color": _DARK},
        capprops={"color": _DARK},
    )
    artists["boxes"][0].set(facecolor=colour, alpha=0.55, edgecolor="#333333")


def _key(rows: Sequence[Mapping[Any, Any]]) -> str:
    """What the marks stand for, of those that are drawn."""
    most = max(row["count"] for row in rows)
    if most < BOX:
        return f"dots: single points (a box takes {BOX} of them)"
    whiskers = ", whiskers: 2nd to 98th" if most >= WHISKERS else ""
    return f"bar: median, box: 9th to 91st percentile{whiskers}, dots: points beyond"


def _name(row: Mapping[Any, Any], upright: bool) -> str:
    if upright:
        lines = [textwrap.fill(part, _WRAP) for part in row["label"].split(", ")]
        return "\n".join([*lines, f"n = {row['count']}"])
    return f"{row['label']} ({row['count']})"


def _label(axes: Axes, boxes: Boxes, what: str, unit: str, upright: bool) -> None:
    """Title and the axis of the values, with its unit."""
    axis = axes.yaxis if upright else axes.xaxis
    name = what
    if unit == "x":
        ratio_axis(axis)
    elif unit not in ("", "1"):
        name = f"{name} ({unit_of(boxes.metric) or unit})"
        axis.set_major_formatter(quantity("" if unit.startswith("1/") else unit))
    else:
        share = is_share(boxes.metric, unit, boxes.table["maximum"].dropna())
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, share=share)))
    if unit != "x" and axis.get_scale() == "log":
        axis.set_minor_formatter(NullFormatter())
    by = ", ".join(map(label, boxes.by))
    title = textwrap.fill(f"{what} by {by}", _TITLE)
    finish(axes, title, *(("", name) if upright else (name, "")))
