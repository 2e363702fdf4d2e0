"""Pictures of rooflines: models under the roofs of their devices, and the operations of one run under its roof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figures.style import COLOURS, colour_of, families_with, figure, finish, marker_of, quantity
from analysis.format import short
from analysis.methods.operation_roofline import OperationRoofline
from analysis.methods.roofline import Roof, Roofline

__all__ = ["draw_operations", "draw_roofline"]

_TYPES = 8  # operation types with a colour of their own
_GREY = "#777777"


def draw_roofline(result: Roofline) -> Figure:
    """Models by intensity and rate: a panel for each device and precision, a marker for each family.

    Panels of a device have the same scales; its other precisions' roofs are grey there.
    """
    keys = list(dict.fromkeys(zip(result.points["device"], result.points["precision"], strict=True)))
    # A family keeps its colour whichever others are drawn; real models come after the parametric ones.
    families = families_with(result.points["family"])
    columns = min(2, len(keys))
    rows = math.ceil(len(keys) / columns)
    drawn, axes = figure(7.5 if columns == 1 else 11.0, 0.6 + 4.2 * rows, rows, columns)
    panels = list(np.atleast_1d(axes).flat)
    for panel, (device, precision) in zip(panels, keys, strict=False):
        points = result.points[result.points["device"] == device]
        mine = points[points["precision"] == precision]
        for family, group in mine.groupby("family", sort=False):
            colour, marker = _look(str(family), families)
            panel.scatter(
                group["arithmetic_intensity"],
                group["flops_per_second"],
                s=20,
                marker=marker,
                facecolors=colour,
                edgecolors="white",
                linewidths=0.3,
                alpha=0.75,
            )
        roofs = [result.roof_of(device, other) for key, other in keys if key == device and other != precision]
        roof = result.roof_of(device, precision)
        _frame(panel, points, roof, roofs)
        finish(panel, f"{device}, {precision}\n", "arithmetic intensity (FLOP/B)", "FLOP/s")
        panel.text(0, 1.02, _describe(roof), transform=panel.transAxes, fontsize=8, color="#333333")
    for panel in panels[len(keys) :]:
        panel.set_axis_off()
    counts = result.points["family"].value_counts()
    handles = [_handle(*_look(name, families), f"{name} ({counts[name]})") for name in families if name in counts]
    drawn.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return drawn


def _frame(axes: Axes, points: pd.DataFrame, roof: Roof, others: Sequence[Roof] = ()) -> None:
    """Logarithmic scales around the points and the ridge, and the roofs."""
    roofs = [roof, *others]
    ridges = [one.ridge for one in roofs if one.ridge is not None]
    peaks = [one.peak for one in roofs if one.peak is not None]
    left = min([points["arithmetic_intensity"].min(), *(ridge / 4 for ridge in ridges)]) / 1.5
    right = max([points["arithmetic_intensity"].max(), *(ridge * 4 for ridge in ridges)]) * 1.5
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    for one in others:
        _roof(axes, one, left, right, {"color": "#bbbbbb", "linewidth": 1.0, "linestyle": "--", "zorder": 0.5})
    _roof(axes, roof, left, right, {"color": COLOURS[-1], "linewidth": 1.6, "zorder": 3})
    if roof.ridge is not None and roof.peak is not None:
        axes.plot(roof.ridge, roof.peak, marker="|", markersize=12, color=COLOURS[-1], zorder=3)
    axes.set_ylim(float(points["flops_per_second"].min()) / 2, max([points["flops_per_second"].max(), *peaks]) * 2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(quantity("FLOP/s"))


def _roof(axes: Axes, roof: Roof, left: float, right: float, look: dict[str, Any]) -> None:
    """The two ceilings; one alone, dotted, where the other is unknown."""
    if roof.ridge is not None:
        intensity = np.array([left, roof.ridge, right])
        axes.plot(intensity, roof.attainable(intensity), **look)
    elif roof.peak is not None:
        axes.plot([left, right], [roof.peak] * 2, **(look | {"linestyle": ":"}))
    elif roof.bandwidth is not None:
        axes.plot([left, right], [left * roof.bandwidth, right * roof.bandwidth], **(look | {"linestyle": ":"}))


def _describe(roof: Roof) -> str:
    """Such as "180 TFLOP/s, 2.4 TB/s, ridge 75 FLOP/B (specification)"."""
    if roof.peak is None and roof.bandwidth is None:
        return "no ceiling known"
    peak = "peak unknown" if roof.peak is None else short(roof.peak, "FLOP/s", digits=3)
    bandwidth = "bandwidth unknown" if roof.bandwidth is None else short(roof.bandwidth, "B/s", digits=3)
    ridge = "" if roof.ridge is None else f", ridge {roof.ridge:.3g} FLOP/B"
    return f"{peak}, {bandwidth}{ridge} ({roof.source})"


def draw_operations(result: OperationRoofline, title: str, model: tuple[float, float] | None = None) -> Figure:
    """Operations that take at least the minimum share of the time; a marker's area is that share.

    `model` is the intensity (FLOP/B) and rate (FLOP/s) of the whole run, drawn as a star.
    """
    points = result.operations[result.operations["drawn"]]
    types = points.groupby("type")["share"].sum().sort_values(ascending=False)
    named = list(types.index[: _TYPES if len(types) <= _TYPES else _TYPES - 1])
    drawn, axes = figure(8.5, 4.8)
    for kind in named:
        _operations(axes, points[points["type"] == kind], *_look(kind, named))
    _operations(axes, points[~points["type"].isin(named)], _GREY, "o")
    handles = [_handle(*_look(kind, named), f"{kind} {short(types[kind], share=True, digits=3)}") for kind in named]
    rest = types.drop(named)
    if len(rest):
        handles.append(_handle(_GREY, "o", f"{len(rest)} others {short(rest.sum(), share=True, digits=3)}"))
    placed = points[["arithmetic_intensity", "flops_per_second"]]
    if model is not None:
        axes.plot(*model, "*", color=COLOURS[-1], markersize=13, markeredgecolor="white", zorder=4)
        handles.append(_handle(COLOURS[-1], "*", "the whole model"))
        placed = pd.concat([placed, pd.DataFrame([model], columns=placed.columns)])
    _frame(axes, placed, result.roof)
    finish(axes, f"{title}\n", "arithmetic intensity (FLOP/B)", "FLOP/s")
    axes.text(0, 1.02, _describe(result.roof), transform=axes.transAxes, fontsize=8, color="#333333")
    drawn.legend(
        handles=handles,
        loc="outside right upper",
        fontsize=8,
        frameon=False,
        title_fontsize=8,
        title="type, share of the time\n(area: share)",
    )
    return drawn


def _look(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Colour and marker."""
    return colour_of(name, names), marker_of(name, names)


def _handle(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label)


def _operations(axes: Axes, points: pd.DataFrame, colour: str, marker: str) -> None:
    axes.scatter(
        points["arithmetic_intensity"],
        points["flops_per_second"],
        s=20 + 900 * points["share"],
        marker=marker,
        facecolors=colour,
        edgecolors="white",
        linewidths=0.6,
        alpha=0.8,
    )
