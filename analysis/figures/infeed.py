"""Waiting for input against the size of the model (Figure 5)."""

from __future__ import annotations

import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from analysis.figures.style import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity
from analysis.methods.infeed import Infeed

__all__ = ["draw_infeed"]

_NAMES = {"flops_per_step": ("work of a step", "FLOP"), "flops_per_example": ("work for an example", "FLOP"),
          "parameters": ("trainable parameters", "")}  # fmt: skip


def draw_infeed(found: Infeed) -> Figure:
    """A point for each model, what is above the line is input-bound. One family on one device is coloured by its batch
    size, several have a colour and a marker each."""
    drawn, axes = figure(7.5, 4.8)
    if len(found.groups) == 1 and found.points["batch_size"].nunique() > 1:
        batches = found.points["batch_size"].astype("float64")
        marks = axes.scatter(
            found.points["size"], found.points["infeed_fraction"], c=batches, cmap=SEQUENTIAL, s=26,
            norm=LogNorm(batches.min(), batches.max()), edgecolors="#444444", linewidths=0.3,
        )  # fmt: skip
        bar = drawn.colorbar(marks, ax=axes, label="batch size")
        values = sorted(set(batches))
        shown = values[:: max(1, len(values) // 8)]
        bar.set_ticks(shown, labels=[f"{value:g}" for value in shown])
        bar.ax.yaxis.set_minor_locator(NullLocator())
    else:
        for number, group in enumerate(found.groups):
            rows = _rows(found.points, group.family, group.device)
            axes.plot(rows["size"], rows["infeed_fraction"], MARKERS[number % len(MARKERS)], markersize=5, alpha=0.7,
                      color=COLOURS[number % len(COLOURS)], markeredgewidth=0, label=group.name)  # fmt: skip
    axes.axhline(found.threshold, color="#333333", linewidth=1, linestyle="--",
                 label=f"input-bound above {found.threshold:.0%}")  # fmt: skip
    drawn.legend(loc="outside lower center", ncols=3, frameon=False)
    axes.set_xscale("log")
    name, unit = _NAMES[found.against]
    axes.xaxis.set_major_formatter(quantity(unit))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.03, 1.03)
    where = f": {found.groups[0].name}" if len(found.groups) == 1 else ""
    finish(axes, f"Waiting for input{where}", name, "share of the step spent waiting")
    return drawn


def _rows(points: pd.DataFrame, family: str, device: str) -> pd.DataFrame:
    return points[(points["family"] == family) & (points["device"] == device)]
