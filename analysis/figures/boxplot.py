"""Box plots with the paper's percentiles, the count of points at each box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from analysis.figures.style import COLOURS, MARKERS, colour_of, families_with, figure, finish, quantity
from analysis.format import is_share, short
from analysis.methods.boxplot import Boxes
from paradnn.store.metrics import metric as registered

__all__ = ["draw_boxes"]

_WIDE = 100  # largest over smallest value above which a scale is logarithmic
_UPRIGHT = 8  # boxes beside each other; more lie below each other, where their labels have room
_FEW = 12  # points below which the box says little, so that all of them are drawn
_DARK = "#555555"


def draw_boxes(boxes: Boxes, scale: str = "auto") -> Figure:
    """Bar at the median, box from the 9th to the 91st percentile, whiskers to the 2nd and the 98th, dots beyond.

    `scale` is linear, log or auto: logarithmic where values are positive and span more than a factor of 100.
    """
    rows = boxes.table[boxes.table["count"] > 0].to_dict("records")
    upright = len(rows) <= _UPRIGHT
    width, height = (max(5.0, 1.6 + 0.9 * len(rows)), 4.8) if upright else (8.0, 1.4 + 0.32 * len(rows))
    drawn, axes = figure(width, height)
    artists = axes.bxp(
        [_statistics(row, boxes, upright) for row in rows],
        orientation="vertical" if upright else "horizontal",
        widths=0.55,
        patch_artist=True,
        medianprops={"color": COLOURS[-1], "linewidth": 1.8},
        whiskerprops={"color": _DARK},
        capprops={"color": _DARK},
        flierprops={"marker": MARKERS[0], "markersize": 3, "markeredgecolor": _DARK, "alpha": 0.6},
    )
    keys = [str(row[boxes.by[0]]) for row in rows]
    among = families_with(keys) if boxes.by[0] == "family" else [*dict.fromkeys(keys)]
    for box, key in zip(artists["boxes"], keys, strict=True):
        box.set(facecolor=colour_of(key, among), alpha=0.55, edgecolor="#333333")
    value_axis = axes.yaxis if upright else axes.xaxis
    lowest, highest = min(row["minimum"] for row in rows), max(row["maximum"] for row in rows)
    if scale == "log" or (scale == "auto" and lowest > 0 and highest / lowest > _WIDE):
        axes.set(**{"yscale" if upright else "xscale": "log"})
    _label(axes, boxes, upright)
    (axes.xaxis if upright else axes.yaxis).grid(False)
    value_axis.grid(True, color="#dddddd", linewidth=0.6)
    if not upright:
        axes.invert_yaxis()
    drawn.supxlabel("bar: median, box: 9th to 91st percentile, whiskers: 2nd to 98th", fontsize=8, color=_DARK)
    return drawn


def _statistics(row: Mapping[Any, Any], boxes: Boxes, upright: bool) -> dict[str, Any]:
    """What Matplotlib draws a box from."""
    values = boxes.values[row["label"]]
    beyond = values if len(values) < _FEW else values[(values < row["p2"]) | (values > row["p98"])]
    count = f"n = {row['count']}"
    label = row["label"].replace(", ", "\n") + f"\n{count}" if upright else f"{row['label']} ({count})"
    return {
        "med": row["p50"],
        "q1": row["p9"],
        "q3": row["p91"],
        "whislo": row["p2"],
        "whishi": row["p98"],
        "fliers": np.asarray(beyond),
        "label": label,
    }


def _label(axes: Axes, boxes: Boxes, upright: bool) -> None:
    """Title and the axis of the values, with its unit."""
    unit = _unit(boxes.metric)
    name = boxes.metric.replace("_", " ")
    if unit not in ("", "1"):
        name = f"{name} ({unit})"
        formatter = quantity("" if unit.startswith("1/") else unit)
        (axes.yaxis if upright else axes.xaxis).set_major_formatter(formatter)
    elif is_share(boxes.metric, unit, boxes.table["maximum"].dropna()):
        percent = FuncFormatter(lambda value, _: short(value, share=True))
        (axes.yaxis if upright else axes.xaxis).set_major_formatter(percent)
    finish(axes, f"{boxes.metric} by {', '.join(boxes.by)}", *(("", name) if upright else (name, "")))


def _unit(name: str) -> str:
    try:
        return registered(name).unit
    except KeyError:
        return ""
