"""Efficiency over numbers of hosts that were not measured, as a channel predicts it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import colour_of, figure, finish

__all__ = ["draw_hosts"]

_QUARTILES = (0.25, 0.75)


def draw_hosts(table: pd.DataFrame, title: str) -> Figure:
    """Left the speed as a share of that without loss, right the share of the step that waits for gradients; medians
    over the points of a family, solid with overlap, dashed without where that differs, quartiles as a band.
    """
    drawn, (both,) = figure(11.0, 4.8, 1, 2)
    hides = not np.allclose(table["overlapped_ms"], table["serial_ms"])
    kinds_drawn = (("-o", ", with overlap"), ("--s", ", without")) if hides else (("-o", ""),)
    for family, rows in table.groupby("family"):
        colour = colour_of(str(family))
        counts = rows["devices"]
        for axes, kinds in (
            (both[0], (rows["efficiency"], rows["efficiency_serial"])),
            (both[1], tuple(1 - rows["alone_ms"] / rows[name] for name in ("overlapped_ms", "serial_ms"))),
        ):
            for values, (line, words) in zip(kinds, kinds_drawn, strict=False):
                by_count = values.groupby(counts)
                middle = by_count.median()
                axes.plot(middle.index, middle, line, color=colour, markersize=4, label=f"{family}{words}")
                if line == "-o":
                    low, high = (by_count.quantile(share) for share in _QUARTILES)
                    axes.fill_between(low.index, low, high, color=colour, alpha=0.15, linewidth=0)
    for axes in both:
        _counts(axes, sorted(set(table["devices"])))
    finish(both[0], f"Speed, {title}", "hosts", "share of the speed without loss")
    finish(both[1], "Waiting for gradients", "hosts", "share of the step")
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawn


def _counts(axes: Axes, counts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
