"""Waiting for input against the size of the model, and utilisation against waiting (Figure 5)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from analysis.drawing import COLOURS, MARKERS, SEQUENTIAL, figure, finish, quantity
from analysis.methods.infeed import Infeed

__all__ = ["draw_infeed"]

_NAMES = {
    "flops_per_step": ("work of a step", "FLOP"),
    "flops_per_example": ("work for an example", "FLOP"),
    "parameters": ("trainable parameters", ""),
}


def draw_infeed(found: Infeed) -> Figure:
    """A point for each model, what is above the line is input-bound. One family on one device is coloured by its batch
    size, several have a colour and a marker each."""
    placed = "utilization" in found.points
    drawn, several = figure(12.0 if placed else 7.5, 4.8, columns=2 if placed else 1)
    axes = several[0, 0] if placed else several
    if len(found.groups) == 1 and found.points["batch_size"].nunique() > 1:
        batches = found.points["batch_size"].astype("float64")
        marks = axes.scatter(
            found.points["size"],
            found.points["infeed_fraction"],
            c=batches,
            cmap=SEQUENTIAL,
            s=26,
            norm=LogNorm(batches.min(), batches.max()),
            edgecolors="#444444",
            linewidths=0.3,
        )
        bar = drawn.colorbar(marks, ax=axes, label="batch size")
        values = sorted(set(batches))
        shown = values[:: max(1, len(values) // 8)]
        bar.set_ticks(shown, labels=[f"{value:g}" for value in shown])
        bar.ax.yaxis.set_minor_locator(NullLocator())
    else:
        for number, group in enumerate(found.groups):
            rows = _rows(found.points, group.family, group.device)
            axes.plot(
                rows["size"],
                rows["infeed_fraction"],
                MARKERS[number % len(MARKERS)],
                markersize=5,
                alpha=0.7,
                color=COLOURS[number % len(COLOURS)],
                markeredgewidth=0,
                label=group.name,
            )
    axes.axhline(
        found.threshold, color="#333333", linewidth=1, linestyle="--", label=f"input-bound above {found.threshold:.0%}"
    )
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    axes.set_xscale("log")
    name, unit = _NAMES[found.against]
    axes.xaxis.set_major_formatter(quantity(unit))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(-0.03, 1.03)
    where = f": {found.groups[0].name}" if len(found.groups) == 1 else ""
    finish(axes, f"Waiting for input{where}", name, "share of the step spent waiting")
    if placed:
        _utilisation(several[0, 1], found)
    return drawn


def _utilisation(axes: Axes, found: Infeed) -> None:
    """The paper's Figure 5: what waits longer uses less; where free input was measured, what it would use then."""
    for number, group in enumerate(found.groups):
        rows = _rows(found.points, group.family, group.device).dropna(subset="utilization")
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            rows["infeed_fraction"],
            rows["utilization"],
            MARKERS[number % len(MARKERS)],
            color=colour,
            markersize=5,
            alpha=0.7,
            markeredgewidth=0,
        )
        if "gain" in rows:
            free = rows["utilization"] * (1 + rows["gain"])
            axes.vlines(rows["infeed_fraction"], rows["utilization"], free, color=colour, linewidth=1, alpha=0.5)
    axes.axvline(found.threshold, color="#333333", linewidth=1, linestyle="--")
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(bottom=0)
    gain = "; lines reach to what free input brings" if "gain" in found.points else ""
    finish(axes, f"Utilisation{gain}", "share of the step spent waiting", "FLOPS utilisation")


def _rows(points: pd.DataFrame, family: str, device: str) -> pd.DataFrame:
    return points[(points["family"] == family) & (points["device"] == device)]
