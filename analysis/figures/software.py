"""What versions, precisions and compile modes bring, family by family (Figure 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.drawing import colour_of, figure, finish
from analysis.labels import label
from analysis.methods.software import Software, order

__all__ = ["draw_software"]

_HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--")
_DARK = "#333333"


def draw_software(found: Software) -> Figure:
    """A panel for each column on each device: bars for the median speedup over the baseline, diamonds for the 90th
    percentile, both with their intervals; an end that the points are too few for has no whisker."""
    panels = list(found.table.groupby(["device", "column", "over"], sort=False))
    widest = max(len(rows) for _, rows in panels)
    drawn, axes = figure(max(7.0, 2.0 + 0.45 * widest), 3.2 * len(panels) + 0.7, len(panels), 1)
    for each, ((device, column, over), rows) in zip(np.ravel(axes), panels, strict=True):
        _panel(each, rows)
        finish(each, f"{label(str(column))} on {device}, over {over}", y="speedup")
        each.grid(axis="x", visible=False)
    marks = [
        Patch(facecolor="#bbbbbb", edgecolor=_DARK, label="median"),
        Line2D([], [], marker="D", color=_DARK, linestyle="none", label="90th percentile"),
    ]
    drawn.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False)
    return drawn


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    values, families = order(list(rows["value"].unique())), list(dict.fromkeys(rows["family"]))
    width = min(0.8 / len(values), 0.35)
    for number, value in enumerate(values):
        part = rows[rows["value"] == value].set_index("family")
        places = [families.index(family) + (number - (len(values) - 1) / 2) * width for family in part.index]
        axes.bar(
            places,
            part["median"],
            0.9 * width,
            color=colour_of(value, values),
            edgecolor=_DARK,
            linewidth=0.6,
            hatch=_HATCHES[number % len(_HATCHES)],
            alpha=0.75,
            label=value,
        )
        for offset, name, marker in ((-0.18, "median", "none"), (0.18, "p90", "D")):
            at = [place + offset * width for place in places]
            axes.plot(at, part[name], linestyle="none", marker=marker, color=_DARK, markersize=4)
            for end in (part[f"{name}_low"].to_numpy(), part[f"{name}_high"].to_numpy()):
                known = np.where(np.isfinite(end), end, np.nan)
                axes.vlines(at, part[name], known, color=_DARK, linewidth=1)
                axes.plot(at, known, linestyle="none", marker="_", color=_DARK, markersize=5)
    counts = rows.groupby("family", sort=False)["pairs"].agg(["min", "max"])
    axes.set_xticks(range(len(families)), [f"{name}\nn = {_count(counts.loc[name])}" for name in families])
    axes.axhline(1, color=_DARK, linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0, top=1.12 * float(_highest(rows)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.legend(fontsize=8, frameon=False, ncols=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _highest(rows: pd.DataFrame) -> float:
    numbers = rows[["median", "median_high", "p90", "p90_high"]].to_numpy(dtype="float64")
    return max(1.0, float(numbers[np.isfinite(numbers)].max()))


def _count(row: Mapping[str, Any] | pd.Series[Any]) -> str:
    return f"{row['min']}" if row["min"] == row["max"] else f"{row['min']}-{row['max']}"
