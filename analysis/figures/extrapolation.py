"""Steps predicted from kernels over the same steps measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing import colour_of, figure, finish, marker_of
from analysis.store.frame import families

__all__ = ["draw_extrapolation"]


def draw_extrapolation(table: pd.DataFrame, device: str) -> Figure:
    """Predicted with its 95% interval over measured, a marker for each family; on the line both are equal."""
    known = table[table["measured"].notna()]
    drawn, axes = figure(5.6, 5.0)
    ends = np.array([known[["measured", "seconds"]].min().min(), known[["measured", "seconds"]].max().max()]) * 1e3
    ends = ends * np.array([0.7, 1.4])
    axes.plot(ends, ends, color="0.4", linewidth=0.8, zorder=1)
    for name in families(known):
        rows = known[known["family"] == name]
        middle = rows["seconds"].to_numpy() * 1e3
        around = np.array([middle - rows["low"] * 1e3, rows["high"] * 1e3 - middle])
        axes.errorbar(
            rows["measured"] * 1e3,
            middle,
            yerr=around,
            fmt=marker_of(name),
            color=colour_of(name),
            markersize=5,
            elinewidth=0.7,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    finish(axes, f"Steps on {device}, predicted from its kernels", "measured step (ms)", "predicted step (ms)")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return drawn
