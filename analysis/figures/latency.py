"""Latency over rate with its knees, and the distribution of latencies at the highest rate that each policy served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import COLOURS, MARKERS, figure, finish, log_ticks
from analysis.format import short
from analysis.methods.latency import Curve
from analysis.store.latencies import Distribution

__all__ = ["draw_latency"]


def draw_latency(curves: Sequence[Curve], quantile: str, distributions: Mapping[str, Distribution]) -> Figure:
    """Left the quantile over the rate, with rings at knees and crosses where not all was served; right, where
    histograms are known, the share of queries that took no longer."""
    columns = 2 if distributions else 1
    drawn, axes = figure(6.4 * columns, 4.8, 1, columns)
    panels = list(np.ravel(axes))
    several = len({one.task for one in curves}) > 1
    for place, one in enumerate(curves):
        look = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        name = f"{one.task}: {one.name}" if several else one.name
        rate = _distribution(panels[1], one, distributions, look[0]) if distributions else ""
        _over_rate(panels[0], one, f"{name} (right: {rate})" if rate else name, *look)
    panels[0].set(xscale="log", yscale="log")
    for axis in (panels[0].xaxis, panels[0].yaxis):
        log_ticks(axis)
    finish(
        panels[0], f"{quantile} over the rate; ring: knee, cross: not served", "queries/s", f"latency, {quantile} (ms)"
    )
    if distributions:
        _finish_distribution(panels[1], distributions)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return drawn


def _over_rate(axes: Axes, one: Curve, name: str, colour: str, marker: str) -> None:
    held, lost = one.table[one.table["held"]], one.table[~one.table["held"]]
    down = (held["latency"] - held["low"]).clip(lower=0).fillna(0)
    up = (held["high"] - held["latency"]).clip(lower=0).fillna(0)
    axes.errorbar(
        held["rate"], held["latency"], [down, up], color=colour, marker=marker, markersize=5, capsize=2, label=name
    )
    axes.plot(lost["rate"], lost["latency"], "x", color=colour, markersize=7)
    if one.knee and one.knee.inside:
        at = held[held["rate"] == one.knee.rate]
        axes.plot(at["rate"], at["latency"], "o", markersize=13, markerfacecolor="none", color=colour)
    for peak in one.peaks:
        axes.axvline(peak.rate, color=colour, linewidth=1, linestyle=":")


def _distribution(axes: Axes, one: Curve, distributions: Mapping[str, Distribution], colour: str) -> str:
    """Draw the distribution of a curve, where it is known; the rate at which it was."""
    rate = ""
    for _, row in one.table.iterrows():
        if (found := distributions.get(row["run_id"])) is not None:
            # The last query has nothing beyond it, which a logarithm cannot show.
            beyond = np.maximum(1 - np.concatenate([[0.0], found.shares[:-1]]), 1e-9)
            rate = f"{short(row['rate'], digits=3)}/s"
            axes.step(found.milliseconds, beyond, where="post", color=colour)
    return rate


def _finish_distribution(axes: Axes, distributions: Mapping[str, Distribution]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.invert_yaxis()
    least = min(1 - float(found.shares[-2]) if len(found.shares) > 1 else 1.0 for found in distributions.values())
    ticks = [0.5, *(10.0**-power for power in range(1, 7) if 10.0**-power >= least)]
    axes.set_yticks(ticks, [f"{100 * (1 - tick):.6g}%" for tick in ticks])
    log_ticks(axes.xaxis)
    axes.minorticks_off()
    finish(axes, "At the highest rate that was served", "latency (ms)", "share of the queries that took no longer")
