"""The paper's Figure 1: each family's range of trainable parameters, real models as labelled points."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.drawing import COLOURS, colour_of, figure, finish, marker_of
from analysis.format import short
from analysis.methods.parameters import ParameterRanges

__all__ = ["draw_parameters"]


def draw_parameters(result: ParameterRanges) -> Figure:
    """A bar from the smallest to the largest model of each family with every model as a tick and its median marked;
    real models below, a row each, so that their labels never meet."""
    families, real = list(result.ranges["family"]), result.real
    names = list(dict.fromkeys(real["family"]))
    count = len(families) + len(names)
    drawn, axes = figure(7.5, 1.6 + 0.5 * count)
    for place, row in enumerate(result.ranges.to_dict("records")):
        colour = colour_of(row["family"])
        axes.plot(
            [row["minimum"], row["maximum"]],
            [place, place],
            color=colour,
            linewidth=9,
            alpha=0.35,
            solid_capstyle="butt",
        )
        values = result.values.loc[result.values["family"] == row["family"], "parameters"].to_numpy()
        axes.plot(values, np.full(len(values), place), "|", color=colour, markersize=8, alpha=0.6)
        axes.plot(row["median"], place, marker_of(row["family"]), color=colour, markeredgecolor="white", markersize=8)
        ends = f"{short(row['minimum'], digits=3)} to {short(row['maximum'], digits=3)}"
        axes.annotate(ends, (row["minimum"], place), (0, 8), textcoords="offset points", fontsize=8, color="#333333")
    for place, name in enumerate(names, start=len(families)):
        values = real.loc[real["family"] == name, "parameters"].to_numpy()
        axes.plot(values, np.full(len(values), place), "*", color=COLOURS[-1], markersize=10, linestyle="none")
        sizes = ", ".join(short(value, digits=3) for value in values)
        axes.annotate(
            sizes, (values.max(), place), (8, 0), textcoords="offset points", fontsize=8, va="center", color="#333333"
        )
    counts = dict(zip(families, result.ranges["models"], strict=True))
    axes.set_yticks(range(count), [*(f"{name} ({counts[name]})" for name in families), *names])
    axes.set_ylim(count - 0.4, -0.8)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    marks = "tick: a model, marker: median" + (", star: real model" if names else "")
    finish(axes, "Trainable parameters by family (models)", f"trainable parameters ({marks})")
    axes.yaxis.grid(False)
    return drawn
