"""Time to accuracy over batch sizes, and the epochs that it took: what a larger batch gains and what it loses."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis.drawing import colour_of, figure, finish, marker_of
from analysis.methods.time_to_accuracy import TimeToAccuracy

__all__ = ["draw_time_to_accuracy"]


def draw_time_to_accuracy(found: TimeToAccuracy) -> Figure:
    """Left the score over the batch size, right the epochs to the target; bars are 95% intervals over seeds."""
    lines = found.scores.groupby(["family", "platform", "choice"], sort=False).ngroups
    # The legend takes its room from the axes.
    drawn, (both,) = figure(11.0, 4.8 + 0.25 * max(0, lines - 4), 1, 2)
    for axes, name, what in zip(both, ("seconds", "epochs"), ("seconds", "epochs"), strict=True):
        _lines(axes, found, name)
        axes.set(xscale="log", yscale="log")
        title = "Time to the target" if name == "seconds" else "Epochs to the target"
        finish(axes, title, "batch size", what)
        batches = sorted({int(size) for size in found.scores["batch_size"].dropna()})
        axes.set_xticks(batches, [str(size) for size in batches])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    handles, labels = both[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def _lines(axes: Axes, found: TimeToAccuracy, name: str) -> None:
    series = list(found.scores.groupby(["family", "platform", "choice"], sort=False))
    labels = [", ".join(filter(None, map(str, key))) for key, _ in series]
    for label, (_, rows) in zip(labels, series, strict=True):
        held = rows[np.isfinite(rows[name]) & rows["batch_size"].notna()]
        low, high = ((held[name] - held[f"{name}_low"]), (held[f"{name}_high"] - held[name]))
        colour, marker = colour_of(label, labels), marker_of(label, labels)
        # An interval of few seeds may reach below what a logarithmic axis has.
        errors = np.array([np.minimum(low.fillna(0), 0.9 * held[name]), high.fillna(0)])
        axes.errorbar(
            held["batch_size"].astype("float64"),
            held[name],
            errors,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.4,
            capsize=3,
            label=label,
        )
