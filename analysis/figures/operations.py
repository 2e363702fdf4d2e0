"""Pictures of operations under their roof: those of one run, and the types of operation of many models."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing import COLOURS, colour_of, figure, finish, marker_of
from analysis.figures.colouring import GREY, colouring
from analysis.figures.roofline import describe, frame_roof, marks
from analysis.format import short
from analysis.methods.operation_roofline import OperationRoofline, OperationsOfModels

__all__ = ["draw_operations", "draw_operations_of_models"]

_TYPES = 8  # operation types with a colour of their own
_WRAP = 30  # characters of a legend's line


def draw_operations(result: OperationRoofline, title: str, model: tuple[float, float] | None = None) -> Figure:
    """Operations that take at least the minimum share of the time; a marker's area is that share.

    `model` is the intensity (FLOP/B) and rate (FLOP/s) of the whole run, drawn as a star.
    """
    points = result.operations[result.operations["drawn"]]
    types = points.groupby("type")["share"].sum().sort_values(ascending=False)
    named = _named(types)
    drawn, axes = figure(8.5, 4.8)
    handles = []
    for kind in [*named, None]:
        here = points[points["type"] == kind] if kind else points[~points["type"].isin(named)]
        colour, marker = _look(kind, named)
        marks(axes, here, 20 + 900 * here["share"], colour, marker)
        if kind:
            handles.append(_handle(colour, marker, f"{kind} {short(types[kind], share=True, digits=3)}"))
    rest = types.drop(named)
    if len(rest):
        handles.append(_handle(GREY, "o", f"{len(rest)} others {short(rest.sum(), share=True, digits=3)}"))
    placed = points[["arithmetic_intensity", "flops_per_second"]]
    if model is not None:
        axes.plot(*model, "*", color=COLOURS[-1], markersize=13, markeredgecolor="white", zorder=4)
        handles.append(_handle(COLOURS[-1], "*", "the whole model"))
        placed = pd.concat([placed, pd.DataFrame([model], columns=placed.columns)])
    frame_roof(axes, placed, result.roof)
    finish(axes, f"{title}\n{describe(result.roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    _legend(drawn, handles, "type, share of the time\n(area: share)")
    return drawn


def draw_operations_of_models(result: OperationsOfModels, colour: str | None = None) -> Figure:
    """The types of operation of many models, a panel for each device and precision: the paper's Figure 3b.

    Drawn is what takes at least the minimum share of its model's time, coloured by type or by the column `colour`.
    """
    points = result.operations[result.operations["drawn"]]
    types = points["type"].value_counts()
    named = _named(types)
    keys = list(dict.fromkeys(zip(points["device"], points["precision"], strict=True)))
    drawn, several = figure(8.5, 0.4 + 4.4 * len(keys), rows=len(keys))
    panels = list(several.flat) if len(keys) > 1 else [several]
    shades = None if colour is None else colouring(points[colour], colour)
    for axes, (device, precision) in zip(panels, keys, strict=True):
        mine = points[(points["device"] == device) & (points["precision"] == precision)]
        roof = next(roof for roof in result.roofs if (roof.device, roof.precision) == (device, precision))
        if shades is None or colour is None:
            for kind in [*named, None]:
                here = mine[mine["type"] == kind] if kind else mine[~mine["type"].isin(named)]
                marks(axes, here, 16, *_look(kind, named))
        else:
            for part, look in shades.parts(mine[colour]):
                axes.scatter(
                    mine.loc[part, "arithmetic_intensity"],
                    mine.loc[part, "flops_per_second"],
                    s=14,
                    linewidths=0,
                    alpha=0.8,
                    zorder=2,
                    **look,
                )
        frame_roof(axes, mine, roof)
        models = mine["run_id"].nunique()
        title = f"{len(mine)} operations of {models} models on {device}, {precision}"
        finish(axes, f"{title}\n{describe(roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    if shades is not None:
        shades.explain(drawn, panels)
        return drawn
    handles = [_handle(*_look(kind, named), f"{kind} ({types[kind]})") for kind in named]
    rest = types.drop(named)
    if len(rest):
        handles.append(_handle(GREY, "o", f"{len(rest)} other types ({rest.sum()})"))
    _legend(drawn, handles, "type (operations)")
    return drawn


def _named(types: pd.Series) -> list[str]:
    """The types with a look of their own: all where there are few, else all but those of the last places."""
    return list(types.index[: _TYPES if len(types) <= _TYPES else _TYPES - 1])


def _look(kind: str | None, named: Sequence[str]) -> tuple[str, str]:
    """Colour and marker; grey for what has no name of its own."""
    return (GREY, "o") if kind is None else (colour_of(kind, named), marker_of(kind, named))


def _handle(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=textwrap.fill(label, _WRAP))


def _legend(drawn: Figure, handles: list[Line2D], title: str) -> None:
    drawn.legend(
        handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False, title_fontsize=8, title=title
    )
