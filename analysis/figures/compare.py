"""Two sides in one picture: every cell's ratio and every family's mean with its interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing as style
from analysis.figures.speedup import ratio_axis
from analysis.labels import label
from analysis.methods.compare import Comparison, Verdict

__all__ = ["draw_comparison"]

# Verdict of a cell -> (colour, marker).
_LOOK = {
    Verdict.A_BETTER: (style.COLOURS[0], "^"),
    Verdict.B_BETTER: (style.COLOURS[1], "v"),
    Verdict.NOT_SHOWN: ("#777777", "s"),
    Verdict.UNTESTED: ("#999999", "o"),
}


def draw_comparison(found: Comparison, a: str = "A", b: str = "B") -> Figure:
    """A row for each family: a mark for each cell, coloured by its verdict, and the geometric mean with its 95%
    interval over points in black. Right of 1 `a` is better."""
    families = [str(family) for family in found.families["family"]]
    figure, axes = style.figure(8.0, 1.5 + 0.8 * len(families))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    present = set()
    for place, row in enumerate(found.families.to_dict("records")):
        cells = found.cells[found.cells["family"] == row["family"]]
        present |= _marks(axes, cells, place)
        if row["points"]:
            reach = [
                [row["geometric_mean"] - row["geometric_mean_low"]],
                [row["geometric_mean_high"] - row["geometric_mean"]],
            ]
            axes.errorbar(
                [row["geometric_mean"]],
                [place],
                xerr=reach if np.isfinite(reach).all() else None,
                fmt="D",
                color="#000000",
                markersize=6,
                capsize=4,
                linewidth=1.6,
                zorder=4,
            )
    told = {Verdict.A_BETTER: f"{a} better", Verdict.B_BETTER: f"{b} better"}
    words = [
        f"{row['family']}\n{told.get(row['verdict'], row['verdict'])}" for row in found.families.to_dict("records")
    ]
    axes.set_yticks(range(len(families)), words)
    axes.set_ylim(len(families) - 0.45, -0.55)
    style.finish(axes, f"{label(found.metric)}: {a} against {b}", f"speedup of {a} over {b}")
    axes.grid(axis="y", visible=False)
    ratio_axis(axes.xaxis)
    handles = [
        axes.scatter([], [], color=colour, marker=marker, s=28, label=f"cell: {told.get(verdict, verdict)}")
        for verdict, (colour, marker) in _LOOK.items()
        if verdict in present
    ]
    handles.append(axes.errorbar([], [], xerr=[], fmt="D", color="#000000", label="geometric mean, 95% interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _marks(axes: Axes, cells: pd.DataFrame, place: int) -> set[str]:
    """A family's cells, spread evenly in height so that equal ratios are seen apart; returns the verdicts drawn."""
    ordered = cells.sort_values("speedup")
    count = len(ordered)
    # A low-discrepancy sequence: neighbours in ratio are far apart in height.
    height = pd.Series(place + (np.arange(count) * 0.6180339887 % 1 - 0.5) * 0.6, index=ordered.index)
    for verdict, (colour, marker) in _LOOK.items():
        rows = ordered[ordered["verdict"] == verdict]
        axes.scatter(rows["speedup"], height[rows.index], s=18, color=colour, marker=marker, alpha=0.7, linewidths=0)
    return set(ordered["verdict"])
