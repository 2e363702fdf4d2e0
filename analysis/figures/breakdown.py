"""Where the step's time goes: a bar for each family, stacked by category of operation."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.figures.style import COLOURS, figure, finish, stack
from analysis.methods.breakdown import Breakdown

__all__ = ["draw_breakdown"]

_HATCHES = ("", "////", "....", "xxxx")
_NAMED = 9  # more are drawn together, as "other"


def draw_breakdown(found: Breakdown) -> Figure:
    """Median shares by category; set apart by colours and hatches, the largest overall first."""
    table = found.categories
    families = list(dict.fromkeys(table["family"]))
    order = list(table.groupby("name")["median"].sum().sort_values(ascending=False).index)
    named = order[:_NAMED] if len(order) > _NAMED + 1 else order
    drawn, axes = figure(8.0, 1.9 + 0.5 * len(families))
    left = np.zeros(len(families))
    for place, name in enumerate([*named, *(["other"] if len(named) < len(order) else [])]):
        chosen = table["name"] == name if place < len(named) else ~table["name"].isin(named)
        shares = table[chosen].groupby("family")["median"].sum().reindex(families).fillna(0).to_numpy()
        colour, hatch = COLOURS[place % (len(COLOURS) - 1)], _HATCHES[place // (len(COLOURS) - 1) % len(_HATCHES)]
        stack(axes, left, shares, name, colour, hatch, 0.06)
        left += shares
    models = table.groupby("family")["models"].first()
    axes.set_yticks(range(len(families)), [f"{name} ({models[name]})" for name in families])
    axes.set_ylim(len(families) - 0.5, -0.5)
    axes.set_xlim(0, max(1.0, float(left.max())))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    title = "categories" if found.level == "category" else "types"
    finish(
        axes,
        f"Where the step's time goes: {title} of operations, by family (models)",
        "median share of the profiled step",
    )
    axes.yaxis.grid(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return drawn
