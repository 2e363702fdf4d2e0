"""Pictures of rooflines: models under the roofs of their devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.drawing import COLOURS, colour_of, families_with, figure, finish, marker_of, quantity
from analysis.figures.colouring import colouring
from analysis.format import short
from analysis.methods.roofline import Roof, Roofline

__all__ = ["describe", "draw_roofline", "frame_roof", "marks"]

_WIDE = 500  # greatest over least intensity from which on powers of ten are ticks enough


def draw_roofline(result: Roofline, colour: str | None = None) -> Figure:
    """Models by intensity and rate: a panel for each device and precision, coloured by family or by a column `colour`.

    Panels of a device have the same scales; its other precisions' roofs are grey there. Bars are the intervals of the
    rates, or of traces the range of a run's captures.
    """
    keys = list(dict.fromkeys(zip(result.points["device"], result.points["precision"], strict=True)))
    # A family keeps its colour whichever others are drawn; real models come after the parametric ones.
    families = families_with(result.points["family"])
    shades = None if colour is None else colouring(result.points[colour], colour)
    columns = min(2, len(keys))
    rows = math.ceil(len(keys) / columns)
    drawn, axes = figure(7.5 if columns == 1 else 11.0, 0.6 + 4.2 * rows, rows, columns)
    panels = list(np.atleast_1d(axes).flat)
    for panel, (device, precision) in zip(panels, keys, strict=False):
        points = result.points[result.points["device"] == device]
        mine = points[points["precision"] == precision]
        _bars(panel, mine)
        if shades is None or colour is None:
            for family, group in mine.groupby("family", sort=False):
                marks(panel, group, 20, *_look(str(family), families))
        else:
            for part, look in shades.parts(mine[colour]):
                panel.scatter(
                    mine.loc[part, "arithmetic_intensity"],
                    mine.loc[part, "flops_per_second"],
                    s=20,
                    linewidths=0,
                    alpha=0.85,
                    zorder=2,
                    **look,
                )
        roofs = [result.roof_of(device, other) for key, other in keys if key == device and other != precision]
        roof = result.roof_of(device, precision)
        frame_roof(panel, points, roof, roofs)
        title = f"{device}, {precision}\n{describe(roof)}"
        finish(panel, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    for panel in panels[len(keys) :]:
        panel.set_axis_off()
    if shades is not None:
        shades.explain(drawn, panels[: len(keys)])
        return drawn
    counts = result.points["family"].value_counts()
    handles = [_handle(*_look(name, families), f"{name} ({counts[name]})") for name in families if name in counts]
    drawn.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return drawn


def frame_roof(axes: Axes, points: pd.DataFrame, roof: Roof, others: Sequence[Roof] = ()) -> None:
    """Logarithmic scales around the points and the ridge, and the roofs."""
    roofs = [roof, *others]
    ridges = [one.ridge for one in roofs if one.ridge is not None]
    peaks = [one.peak for one in roofs if one.peak is not None]
    left = min([points["arithmetic_intensity"].min(), *(ridge / 4 for ridge in ridges)]) / 1.5
    right = max([points["arithmetic_intensity"].max(), *(ridge * 4 for ridge in ridges)]) * 1.5
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    for one in others:
        _roof(axes, one, left, right, {"color": "#bbbbbb", "linewidth": 1.0, "linestyle": "--", "zorder": 0.5})
    _roof(axes, roof, left, right, {"color": COLOURS[-1], "linewidth": 1.6, "zorder": 3})
    if roof.ridge is not None and roof.peak is not None:
        axes.plot(roof.ridge, roof.peak, marker="|", markersize=12, color=COLOURS[-1], zorder=3)
    axes.set_ylim(float(points["flops_per_second"].min()) / 2, max([points["flops_per_second"].max(), *peaks]) * 2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if right < _WIDE * left else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(quantity("FLOP/s"))
    for axis in (axes.xaxis, axes.yaxis):  # Matplotlib names minor ticks too, where there are few others
        axis.set_minor_formatter(NullFormatter())


def _roof(axes: Axes, roof: Roof, left: float, right: float, look: dict[str, Any]) -> None:
    """The two ceilings; one alone, dotted, where the other is unknown."""
    if roof.ridge is not None:
        intensity = np.array([left, roof.ridge, right])
        axes.plot(intensity, roof.attainable(intensity), **look)
    elif roof.peak is not None:
        axes.plot([left, right], [roof.peak] * 2, **(look | {"linestyle": ":"}))
    elif roof.bandwidth is not None:
        axes.plot([left, right], [left * roof.bandwidth, right * roof.bandwidth], **(look | {"linestyle": ":"}))


def describe(roof: Roof) -> str:
    """Such as "180 TFLOP/s, 2.4 TB/s, ridge 75 FLOP/B (specification)"."""
    if roof.peak is None and roof.bandwidth is None:
        return "no ceiling known"
    peak = "peak unknown" if roof.peak is None else short(roof.peak, "FLOP/s", digits=3)
    bandwidth = "bandwidth unknown" if roof.bandwidth is None else short(roof.bandwidth, "B/s", digits=3)
    ridge = "" if roof.ridge is None else f", ridge {roof.ridge:.3g} FLOP/B"
    return f"{peak}, {bandwidth}{ridge} ({roof.source})"


def marks(axes: Axes, points: pd.DataFrame, size: Any, colour: Any, marker: str) -> None:
    """Points by intensity and rate, set apart by a white rim where they overlap."""
    axes.scatter(
        points["arithmetic_intensity"],
        points["flops_per_second"],
        s=size,
        marker=marker,
        facecolors=colour,
        edgecolors="white",
        linewidths=0.4,
        alpha=0.8,
        zorder=2,
    )


def _bars(axes: Axes, points: pd.DataFrame) -> None:
    """How uncertain the rates are, where that is known."""
    known = points[points["rate_low"].notna() & points["rate_high"].notna()]
    if len(known):
        rate = known["flops_per_second"]
        axes.errorbar(
            known["arithmetic_intensity"],
            rate,
            yerr=[(rate - known["rate_low"]).clip(lower=0), (known["rate_high"] - rate).clip(lower=0)],
            fmt="none",
            ecolor="#999999",
            elinewidth=0.8,
            zorder=1.5,
        )


def _look(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Colour and marker."""
    return colour_of(name, names), marker_of(name, names)


def _handle(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label)
