"""Choices in two quantities, with the line that none of them beats: filled on it, hollow undecided, grey beaten."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing import colour_of, figure, finish, log_ticks, marker_of
from analysis.labels import label, unit_of
from analysis.methods.frontier import Standing
from analysis.methods.frontiers import Frontier, less_is_better

__all__ = ["draw_frontiers"]

_GREY = "#999999"
_LIMIT = "#555555"
_PANELS = 6
_NAMED = 6


def draw_frontiers(found: Sequence[Frontier], limits: Mapping[str, float], currency: str) -> Figure:
    """A panel for each task, six at most; colours are platforms, bars the intervals that hold all at once."""
    shown = found[:_PANELS]
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    drawn, axes = figure(6.2 * columns + 0.8, 4.6 * rows, rows, columns)
    panels = list(np.ravel(axes))
    platforms = list(dict.fromkeys(name for one in shown for name in one.table["platform"]))
    for panel, one in zip(panels, shown, strict=False):
        _panel(panel, one, platforms, limits, currency)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    limited = any(name in (one.axes.x, one.axes.y) for one in shown for name in limits)
    drawn.legend(handles=_keys(platforms, limited), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def _panel(axes: Axes, one: Frontier, platforms: Sequence[str], limits: Mapping[str, float], currency: str) -> None:
    x, y = one.axes.x, one.axes.y
    for _, row in one.table.iterrows():
        beaten, on = row["standing"] == Standing.BEATEN.value, row["standing"] == Standing.ON.value
        colour = _GREY if beaten else colour_of(row["platform"], platforms)
        axes.errorbar(
            row[x],
            row[y],
            xerr=_reach(row, x),
            yerr=_reach(row, y),
            fmt=marker_of(row["platform"], platforms),
            color=colour,
            markerfacecolor=colour if on or beaten else "white",
            markersize=4 if beaten else 7,
            elinewidth=0.8,
            capsize=2,
            alpha=0.6 if beaten else 1.0,
            zorder=2 if beaten else 3,
        )
    best = one.table[one.table["efficient"]].sort_values(x)
    axes.step(best[x], best[y], where="post" if less_is_better(x) else "pre", color=_LIMIT, linewidth=1, zorder=1)
    for _, row in best.head(_NAMED).iterrows():
        axes.annotate(row["choice"], (row[x], row[y]), (5, 5), textcoords="offset points", fontsize=7)
    for name, limit in limits.items():
        if name in (x, y):
            (axes.axvline if name == x else axes.axhline)(limit, color=_LIMIT, linewidth=1, linestyle="--")
    for name, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if not name.endswith(("accuracy", "fraction")) and (one.table[name] > 0).all():
            scale("log")
            log_ticks(axes.xaxis if name == x else axes.yaxis)
    finish(axes, one.task, _named(x, currency), _named(y, currency))


def _reach(row: pd.Series, metric: str) -> list[list[float]]:
    """How far the interval reaches down and up; where it is open, not at all."""
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    down, up = (distance if np.isfinite(distance) else 0.0 for distance in (row[metric] - low, high - row[metric]))
    return [[max(0.0, down)], [max(0.0, up)]]


def _named(metric: str, currency: str) -> str:
    unit = unit_of(metric)
    unit = currency if unit == "currency" else unit
    return f"{label(metric)} ({unit})" if unit else label(metric)


def _keys(platforms: Sequence[str], limited: bool) -> list[Line2D]:
    kinds = [("on the frontier", "black", "black", 7), ("undecided", "black", "white", 7), ("beaten", _GREY, _GREY, 4)]
    keys = [
        Line2D([], [], linestyle="", marker="o", color=edge, markerfacecolor=face, markersize=size, label=name)
        for name, edge, face, size in kinds
    ]
    keys += [Line2D([], [], color=_LIMIT, linewidth=1, linestyle="--", label="limit")] if limited else []
    return keys + [
        Line2D([], [], linestyle="", marker=marker_of(name, platforms), color=colour_of(name, platforms), label=name)
        for name in platforms
    ]
