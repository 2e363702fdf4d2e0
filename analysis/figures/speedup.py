"""Speedups of A over B: against a quantity of the model, what they depend on, and operation by operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from analysis import drawing as style
from analysis.figures.colouring import colouring
from analysis.labels import labelled, term_label
from analysis.methods.operation_speedup import Level, OperationSpeedup
from analysis.methods.speedup import Speedup, SpeedupFit
from analysis.store.frame import families

__all__ = ["draw_operations", "draw_speedup", "ratio_axis"]


def draw_speedup(
    found: Speedup, x: str = "parameters", colour: str | None = None, a: str = "A", b: str = "B"
) -> Figure:
    """A row for each family: speedup against `x`, coloured by the column `colour`, and beside it the weights of the
    family's regression where it has one. Above the line at 1 `a` is faster; bars are 95% intervals where there are any.
    """
    names = families(found.pairs)
    fits = {fit.family: fit for fit in found.fits}
    across = 2 if fits else 1
    figure, axes = style.figure(6.2 * across, 3.9 * len(names) + 0.3, len(names), across)
    panels = np.array(axes, dtype=object).reshape(len(names), across)
    shades = colouring(found.pairs[colour], colour) if colour else None
    for number, family in enumerate(names):
        rows = found.pairs[found.pairs["family"] == family]
        last = number == len(names) - 1
        _scatter(panels[number, 0], rows, x)
        places = rows[x].astype("float64")
        parts = shades.parts(rows[colour]) if shades else [(slice(None), {"color": style.COLOURS[0]})]
        for mine, look in parts:
            panels[number, 0].scatter(
                places[mine], rows.loc[mine, "speedup"], s=20, alpha=0.85, linewidths=0, zorder=2, **look
            )
        wins = int((rows["speedup"] > 1).sum())
        title = f"{family}: {a} over {b}, ahead in {wins} of {len(rows)} points"
        style.finish(panels[number, 0], title, labelled(x) if last else "", "speedup")
        ratio_axis(panels[number, 0].yaxis)
        if across == 2:
            _weights(panels[number, 1], fits.get(family), last)
    if shades:
        shades.explain(figure, list(panels[:, 0]))
    return figure


def draw_operations(found: OperationSpeedup, ridges: Sequence[float] = (), a: str = "A", b: str = "B") -> Figure:
    """Speedup of each operation against its arithmetic intensity, a mark for each kind of limit, the ridge points
    dashed and each kind's mean as a line over the intensities it covers."""
    figure, axes = style.figure(8.0, 4.8)
    shown = [level for level in Level if (found.operations["level"] == level).any()]
    means = found.levels.set_index("level")["geometric_mean"]
    for level in shown:
        rows = found.operations[found.operations["level"] == level]
        look = {"color": style.colour_of(level, tuple(Level)), "marker": style.marker_of(level, tuple(Level))}
        axes.scatter(
            rows["arithmetic_intensity"],
            rows["speedup"],
            s=22,
            alpha=0.7,
            linewidths=0,
            **look,
            label=f"{level}: {means[level]:.2f}x ({len(rows)})",
        )
        ends = rows["arithmetic_intensity"].min() / 1.25, rows["arithmetic_intensity"].max() * 1.25
        axes.plot(ends, [means[level]] * 2, color=look["color"], linewidth=1.4)
    for ridge in ridges:
        axes.axvline(ridge, color="#666666", linestyle="--", linewidth=1)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    style.finish(
        axes,
        f"Operations: {a} over {b}",
        "arithmetic intensity in FLOP/B"
        + (f" (ridge {' and '.join(f'{ridge:.3g}' for ridge in ridges)} dashed)" if len(ridges) else ""),
        "speedup of the FLOP rate",
    )
    axes.set_yscale("log")
    ratio_axis(axes.yaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def ratio_axis(axis: Any) -> None:
    """Ticks of a logarithmic axis of ratios: 0.5x, 1x, 2x, few enough to be read."""
    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,), numticks=12))
    if decades < 0.8:
        step = next((step for limit, step in ((1.3, 0.05), (2, 0.1), (4, 0.25)) if high / low < limit), 0.5)
        axis.set_major_locator(_Steps(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


class _Steps(LogLocator):
    """Even steps, for a logarithmic axis that covers less than a decade."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        low, high = sorted((vmin, vmax))
        return [step * self._step for step in range(math.ceil(low / self._step), math.floor(high / self._step) + 1)]


def _scatter(axes: Axes, rows: pd.DataFrame, x: str) -> None:
    """Axes, the line at 1 and the intervals."""
    places = rows[x].astype("float64")
    axes.axhline(1, color="#333333", linewidth=1)
    known = rows["speedup_low"].notna()
    if known.any():
        reach = [rows["speedup"] - rows["speedup_low"], rows["speedup_high"] - rows["speedup"]]
        axes.errorbar(
            places[known],
            rows.loc[known, "speedup"],
            yerr=[side[known] for side in reach],
            fmt="none",
            ecolor="#999999",
            elinewidth=0.7,
            zorder=1,
        )
    if (places > 0).all() and places.max() > 20 * places.min():
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(style.quantity(""))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yscale("log")


def _weights(axes: Axes, fit: SpeedupFit | None, last: bool) -> None:
    if fit is None:
        axes.set_visible(False)
        return
    weights = fit.regression.weights.sort_values("weight", key=lambda column: column.abs())
    height = np.arange(len(weights))
    axes.axvline(0, color="#333333", linewidth=1)
    axes.errorbar(
        weights["weight"],
        height,
        fmt=style.MARKERS[0],
        color=style.COLOURS[0],
        capsize=3,
        xerr=[weights["weight"] - weights["low"], weights["high"] - weights["weight"]],
    )
    axes.set_yticks(height, [term_label(str(term)) for term in weights.index])
    axes.set_ylim(-0.7, len(weights) - 0.3)
    what = "log speedup" if fit.log_response else "speedup"
    style.finish(
        axes, f"what {what} depends on, R² {fit.regression.r2:.2f}", "standardised weight, 95% interval" if last else ""
    )
