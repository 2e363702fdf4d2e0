"""Regression weights with their intervals: what the metric depends on, family by family (the paper's Figure 2 d-f)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing as style
from analysis.labels import label, term_label
from analysis.methods.sensitivity import Fit, Sensitivity

__all__ = ["draw_sensitivity"]

_COLUMNS = 2  # panels side by side
_MOST = 12  # terms of a panel; the weakest beyond it are left to the table
_LETTERS = 58  # of a line of a panel's title
_STEP = 0.22  # vertical distance of two devices' marks, in rows


def draw_sensitivity(result: Sensitivity) -> Figure:
    """A panel for each family, a row for each term, a mark with its interval for each device; zero is no effect.

    Rows are in order of the greatest weight that any device gives them. A term that one device's runs hold constant or
    cannot separate from others says so in place of a mark.
    """
    fits: dict[str, list[Fit]] = {}
    for fit in result.fits:
        fits.setdefault(fit.family, []).append(fit)
    devices = sorted({fit.device for fit in result.fits})
    terms = {family: _terms(found) for family, found in fits.items()}
    across = min(_COLUMNS, len(fits))
    down = -(-len(fits) // across)
    rows = max(len(names) * max(1.0, 0.6 * len(fits[family])) for family, names in terms.items())
    figure, panels = style.figure(4.5 * across + 2.5, down * (0.34 * rows + 1.5) + 0.3, down, across)
    every = list(panels.flat) if len(fits) > 1 else [panels]
    reach = [_reach(found) for found in fits.values()]
    for number, (axes, (family, found)) in enumerate(zip(every, fits.items(), strict=False)):
        _panel(axes, family, found, terms[family], devices)
        axes.set_xlim(min(low for low, _ in reach), max(high for _, high in reach))
        last = number + across >= len(fits)
        style.finish(axes, _title(family, found), x="standardised weight" if last else "")
        axes.grid(axis="y", visible=False)
    for axes in every[len(fits) :]:
        axes.set_visible(False)
    what = f"{'log ' if result.settings.log_metric else ''}{label(result.metric)}"
    scale = ", logarithms of the hyperparameters" if result.settings.log_hyperparameters else ""
    heading = f"What {what} depends on ({result.fits[0].regression.level:.0%} intervals{scale})"
    figure.suptitle(fill(heading, _LETTERS * across), x=0.01, ha="left", fontsize=10)
    if len(devices) > 1:
        handles = [_handle(every[0], device, devices) for device in devices]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(devices)), frameon=False)
    return figure


def _panel(axes: Axes, family: str, fits: Sequence[Fit], terms: Sequence[str], devices: Sequence[str]) -> None:
    axes.axvline(0, color="#666666", linewidth=0.8)
    columns = {term: column for fit in fits for term, column in fit.columns.items()}
    for place, fit in enumerate(fits):
        offset = ((len(fits) - 1) / 2 - place) * _STEP
        look = _look(family, fit, devices)
        weights = fit.regression.weights
        known = [term for term in terms if term in weights.index]
        height = [len(terms) - 1 - terms.index(term) + offset for term in known]
        found = weights.loc[known]
        error = [found["weight"] - found["low"], found["high"] - found["weight"]]
        axes.errorbar(
            found["weight"],
            height,
            xerr=error,
            fmt=look["marker"],
            color=look["color"],
            markersize=6,
            linewidth=1.6,
            capsize=3,
        )
        for term in terms:
            words = _lacking(fit, term, columns.get(term, term))
            if words:
                axes.annotate(
                    words,
                    (0, len(terms) - 1 - terms.index(term) + offset),
                    (4, 0),
                    va="center",
                    textcoords="offset points",
                    fontsize=7.5,
                    color=look["color"],
                )
    axes.set_yticks(range(len(terms)), [term_label(term) for term in reversed(terms)])
    axes.set_ylim(-0.6, len(terms) - 0.4)


def _terms(fits: Sequence[Fit]) -> list[str]:
    """All terms of a family's fits, the greatest weight first, and at most so many as are legible."""
    weights = pd.concat([fit.regression.weights["weight"].abs() for fit in fits])
    order = weights.groupby(level=0).max().sort_values(ascending=False, kind="stable")
    return list(order.index[:_MOST])


def _reach(fits: Sequence[Fit]) -> tuple[float, float]:
    """The ends of a horizontal axis that shows all intervals, and zero."""
    low = min(0.0, *(fit.regression.weights["low"].min() for fit in fits))
    high = max(0.0, *(fit.regression.weights["high"].max() for fit in fits))
    margin = 0.06 * (high - low)
    return low - margin, high + margin


def _lacking(fit: Fit, term: str, column: str) -> str:
    if term in fit.regression.weights.index:
        return ""
    if column in fit.constant:
        return f"constant: {fit.constant[column]}"
    return "not separable from others" if term in fit.regression.collinear else "not in this fit"


def _title(family: str, fits: Sequence[Fit]) -> str:
    found = [fit.regression for fit in fits]
    if len(found) == 1:
        where = fits[0].device
        return f"{family} on {where}: {found[0].clusters:,} points, R² {found[0].r2:.2f}"
    return fill(f"{family}: R² {', '.join(f'{fit.regression.r2:.2f} ({fit.device})' for fit in fits)}", _LETTERS)


def _look(family: str, fit: Fit, devices: Sequence[str]) -> Mapping[str, Any]:
    """A device's colour and marker; those of the family where there is one device."""
    name, among = (fit.device, devices) if len(devices) > 1 else (family, ())
    return {"color": style.colour_of(name, among), "marker": style.marker_of(name, among)}


def _handle(axes: Axes, device: str, devices: Sequence[str]) -> Any:
    colour, marker = style.colour_of(device, devices), style.marker_of(device, devices)
    return axes.plot([], [], linestyle="-", label=device, color=colour, marker=marker)[0]
