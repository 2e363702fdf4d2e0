"""Where the step's time goes: a mark for each category of operation in each family, with its interval."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.drawing import colour_of, families_with, figure, finish, marker_of
from analysis.methods.breakdown import Breakdown

__all__ = ["draw_breakdown"]

_NAMED = 12  # rows; smaller ones are counted in the axis' label
_STEP = 0.7  # of a row's height that its families share


def draw_breakdown(found: Breakdown) -> Figure:
    """Median shares, the largest on top, a mark for each family with the interval of its median, or its middle half
    where models are too few for one. Marks stand beside each other, since medians do not sum to the whole step."""
    table = found.categories
    families = list(dict.fromkeys(table["family"]))
    order = list(table.groupby("name")["median"].max().sort_values(ascending=False, kind="stable").index)
    named = order[:_NAMED]
    drawn, axes = figure(7.5, 1.7 + len(named) * (0.24 + 0.1 * len(families)))
    look = families_with(families)
    for place, family in enumerate(families):
        rows = table[(table["family"] == family) & table["name"].isin(named)]
        offset = (place - (len(families) - 1) / 2) * _STEP / len(families)
        _marks(axes, rows, [named.index(name) + offset for name in rows["name"]], family, look)
    axes.set_yticks(range(len(named)), named)
    axes.set_ylim(len(named) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    what = "categories" if found.level == "category" else "types"
    rest = f"; {len(order) - len(named)} smaller ones are left out" if len(order) > len(named) else ""
    finish(axes, f"Where the step's time goes: {what} of operations", f"share of the profiled step, median{rest}")
    axes.yaxis.grid(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return drawn


def _marks(axes: object, rows: pd.DataFrame, heights: list[float], family: str, look: list[str]) -> None:
    """One family's medians, each with its interval or the middle half of its models."""
    known = rows["low"].notna() & rows["high"].notna()
    low, high = rows["low"].where(known, rows["q25"]), rows["high"].where(known, rows["q75"])
    reach = np.array([rows["median"] - low, high - rows["median"]]).clip(min=0)
    models = int(rows["models"].iloc[0])
    bar = "95% interval" if known.all() else "middle half of the models" if models > 1 else "one model"
    axes.errorbar(  # type: ignore[attr-defined]
        rows["median"],
        heights,
        xerr=reach,
        fmt=marker_of(family, look),
        color=colour_of(family, look),
        markersize=5,
        capsize=2.5,
        linewidth=1.2,
        label=f"{family}: {models} model{'s' if models != 1 else ''}, {bar}",
    )
