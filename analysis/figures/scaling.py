"""Scaling over devices: each point on many against itself on one, and Amdahl's law through all of them (Figure 4)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import colour_of, figure, finish, log_ticks, marker_of, quantity
from analysis.labels import label, unit_of
from analysis.methods.scaling import Scaling, amdahl_speedup
from analysis.methods.scaling_prediction import Expected

__all__ = ["draw_predicted", "draw_scaling"]

_LINE = "#555555"


def draw_scaling(found: Scaling, expected: Expected | None = None) -> Figure:
    """Left the rate of each device against that of one alone, with x = y where nothing is lost; then the speedup
    over the count, with each family's fitted law, its interval as a band, and the line without loss; right, where a
    channel predicts steps, these against measured ones."""
    panels = 2 if expected is None else 3
    drawn, (row,) = figure(5.5 * panels, 4.8, 1, panels)
    _rates(row[0], found)
    _speedups(row[1], found)
    handles, labels = row[0].get_legend_handles_labels()
    if expected is not None:
        _predicted(row[2], expected, _unusual(found))
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def draw_predicted(expected: Expected) -> Figure:
    """Predicted steps against measured ones alone."""
    drawn, axes = figure(6.0, 4.8)
    _predicted(axes, expected, [])
    axes.legend(frameon=False)
    return drawn


def _rates(axes: Axes, found: Scaling) -> None:
    among = _unusual(found)
    for family in found.families:
        rows = found.pairs[found.pairs["family"] == family.family]
        axes.plot(
            rows["one"],
            rows["many"] / rows["devices"],
            marker_of(family.family, among),
            color=colour_of(family.family, among),
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
            linestyle="none",
            label=f"{family.family}: non-parallel {_percent(family.fraction)}",
        )
    each = found.pairs["many"] / found.pairs["devices"]
    ends = [min(found.pairs["one"].min(), each.min()), max(found.pairs["one"].max(), each.max())]
    axes.plot(ends, ends, "--", color=_LINE, linewidth=1, label="nothing lost")
    name, unit = label(found.metric), unit_of(found.metric)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        log_ticks(axis)
        axis.set_major_formatter(quantity(""))
    sides = f"{name} on one ({unit})", f"{name} of each of n ({unit})"
    finish(axes, f"Each of n {_counted(found.by)} against one alone", *sides)


def _speedups(axes: Axes, found: Scaling) -> None:
    most = int(found.pairs["devices"].max())
    counts = np.geomspace(1, most, 100)
    reach, among = len(found.families), _unusual(found)
    for number, family in enumerate(found.families):
        colour, rows = colour_of(family.family, among), found.pairs[found.pairs["family"] == family.family]
        # Families stand beside each other at each count.
        shift = 2 ** (0.08 * (number - (reach - 1) / 2))
        axes.plot(
            rows["devices"] * shift,
            rows["speedup"],
            marker_of(family.family, among),
            color=colour,
            markersize=4,
            alpha=0.5,
            markeredgewidth=0,
            linestyle="none",
        )
        axes.plot(counts, amdahl_speedup(family.fraction.value, counts), color=colour, linewidth=1.8)
        low, high = (amdahl_speedup(end, counts) for end in (family.fraction.low, family.fraction.high))
        if np.isfinite(low).all() and (low > 0).all():  # else the law has no upper end at some count
            axes.fill_between(counts, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(counts, counts, "--", color=_LINE, linewidth=1)
    axes.axhline(1, color=_LINE, linewidth=0.8)
    ticks = sorted({1, *(int(count) for count in found.pairs["devices"])})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    finish(axes, "Speedup, and Amdahl's law fitted", _counted(found.by), "speedup over one")


def _predicted(axes: Axes, expected: Expected, among: list[str]) -> None:
    """A bar for each point from the step with overlap to that without, at the measured one; x = y where it holds."""
    rows = expected.table
    names = rows["family"] + ", " + rows["transport"] if among and "transport" in rows else rows["family"]
    for name in dict.fromkeys(names):
        own, colour = rows[names == name], colour_of(name, among)
        axes.vlines(own["measured_ms"], own["overlapped_ms"], own["serial_ms"], color=colour, alpha=0.6, linewidth=1.5)
        axes.plot(
            own["measured_ms"],
            own["serial_ms"],
            marker_of(name, among),
            color=colour,
            markersize=5,
            alpha=0.6,
            markeredgewidth=0,
            linestyle="none",
            label=name,
        )
    ends = [
        min(rows["measured_ms"].min(), rows["overlapped_ms"].min()),
        max(rows["measured_ms"].max(), rows["serial_ms"].max()),
    ]
    axes.plot(ends, ends, "--", color=_LINE, linewidth=1)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        log_ticks(axis)
    finish(
        axes,
        f"Predicted over {expected.link.name}",
        "measured step (ms)",
        "predicted: full overlap to none, marked (ms)" if expected.exchange.hides else "predicted (ms)",
    )


def _unusual(found: Scaling) -> list[str]:
    """All names, where a family stands there once for each transport and so has no colour of its own."""
    names = [family.family for family in found.families]
    return names if any(", " in name for name in names) else []


def _counted(by: str) -> str:
    return by.rpartition(".")[2]


def _percent(value: tuple[float, float, float]) -> str:
    middle, low, high = (f"{100 * number:.1f}%" for number in value)
    return f"{middle} ({low} to {high})" if np.isfinite(value[1]) else middle
