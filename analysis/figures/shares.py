"""Shares of the variance with their intervals: which hyperparameters a metric is due to, family by family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing as style
from analysis.labels import label
from analysis.methods.sensitivity import Fit, Sensitivity
from analysis.methods.shares import Shares

__all__ = ["draw_shares"]

_COLUMNS = 2  # panels side by side
_STEP = 0.24  # vertical distance of two devices' marks, in rows


def draw_shares(result: Sensitivity) -> Figure:
    """A panel for each family, a row for each hyperparameter: a mark with its interval for its share on each device, a
    hollow one for what it explains alone. The lowest row is what is left."""
    fits: dict[str, list[tuple[Fit, Shares]]] = {}
    for fit in result.fits:
        if isinstance(fit.shares, Shares):
            fits.setdefault(fit.family, []).append((fit, fit.shares))
    devices = sorted({fit.device for found in fits.values() for fit, _ in found})
    across = min(_COLUMNS, len(fits))
    down = -(-len(fits) // across)
    rows = max(len(_names(found)) for found in fits.values()) + 1
    figure, panels = style.figure(4.5 * across + 1.5, down * (0.4 * rows + 1.2) + 0.4, down, across)
    every: Sequence[Axes] = list(np.atleast_1d(panels).flat)
    for number, (axes, (family, found)) in enumerate(zip(every, fits.items(), strict=False)):
        _panel(axes, found, devices)
        title = f"{family} on {found[0][0].device}" if len(devices) == 1 else family
        style.finish(axes, title, "share of the variance (%)" if number + across >= len(fits) else "")
        axes.grid(axis="y", visible=False)
    for axes in every[len(fits) :]:
        axes.set_visible(False)
    what = f"{'log ' if result.settings.log_metric else ''}{label(result.metric)}"
    level = f"{result.fits[0].regression.level:.0%}"
    figure.suptitle(f"What the variance of {what} is due to ({level} intervals)", x=0.01, ha="left", fontsize=10)
    handles = [every[0].plot([], [], "o", color=style.colour_of(name, devices), label=name)[0] for name in devices]
    handles = handles if len(devices) > 1 else []
    handles.append(every[0].plot([], [], "o", markerfacecolor="none", color="#444444", label="explained alone")[0])
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    return figure


def _names(found: Sequence[tuple[Fit, Shares]]) -> list[str]:
    """All hyperparameters of a family, the largest share on any device first."""
    largest: dict[str, float] = {}
    for _, shares in found:
        for name, share in shares.table["share"].items():
            largest[str(name)] = max(largest.get(str(name), 0.0), float(share))
    return sorted(largest, key=lambda name: -largest[name])


def _panel(axes: Axes, found: Sequence[tuple[Fit, Shares]], devices: Sequence[str]) -> None:
    names = [*_names(found), "(not explained)"]
    for place, (fit, shares) in enumerate(found):
        colour = style.colour_of(fit.device, devices)
        offset = ((len(found) - 1) / 2 - place) * _STEP
        table, rest = shares.table, 1 - np.array(shares.together)
        height = [len(names) - 1 - names.index(str(name)) + offset for name in table.index]
        value = 100 * np.append(table["share"], rest[0])
        low, high = 100 * np.append(table["low"], rest[2]), 100 * np.append(table["high"], rest[1])
        error = np.maximum([value - low, high - value], 0.0)
        axes.errorbar(value, [*height, offset], xerr=error, fmt="o", color=colour, linewidth=1.6, capsize=3)
        axes.plot(100 * table["alone"], height, "o", markerfacecolor="white", color=colour, markersize=5, zorder=4)
    axes.set_yticks(range(len(names)), [name.replace("model.", "") for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
