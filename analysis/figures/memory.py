"""Where memory ends, over the two sizes that fill it fastest: how many points failed, and the line of even chances."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis import drawing as style
from analysis.labels import label
from analysis.methods.memory import GroupMemory, Memory

__all__ = ["draw_memory"]

_COLUMNS = 2  # panels side by side


def draw_memory(result: Memory) -> Figure:
    """A panel for each family and device in which some points ran out of memory and some did not.

    A mark stands for the points of two sizes, coloured by the share that ran out. Along the line the regression gives
    even chances, the other sizes at their geometric means.
    """
    groups = [group for group in result.groups if group.weights is not None]
    across = min(_COLUMNS, len(groups))
    down = -(-len(groups) // across)
    figure, panels = style.figure(4.6 * across + 1.2, 3.6 * down + 0.4, down, across)
    every: Sequence[Axes] = list(np.atleast_1d(panels).flat)
    for axes, group in zip(every, groups, strict=False):
        _panel(axes, group)
    for axes in every[len(groups) :]:
        axes.set_visible(False)
    mapped = ScalarMappable(Normalize(0, 100), style.SEQUENTIAL)
    bar = figure.colorbar(mapped, ax=list(every[: len(groups)]), fraction=0.04, pad=0.02, aspect=30)
    bar.set_label("points that ran out of memory (%)")
    return figure


def _panel(axes: Axes, group: GroupMemory) -> None:
    assert group.weights is not None
    order = group.weights["weight"].abs().sort_values(ascending=False, kind="stable").index
    shown = [*order[:2]][::-1]
    if len(shown) < 2:
        places, labels = (group.numbers[order[0]], np.zeros(len(group.points))), (str(order[0]), "")
    else:
        places, labels = tuple(group.numbers[name] for name in shown), (str(shown[0]), str(shown[1]))
    share = group.points.assign(x=places[0], y=places[1]).groupby(["x", "y"])["failed"].mean().reset_index()
    colours = matplotlib.colormaps[style.SEQUENTIAL](share["failed"])
    axes.scatter(share["x"], share["y"], c=colours, s=70, marker="s", edgecolor="#666666", linewidth=0.6, zorder=3)
    axes.set_xscale("log", base=2)
    if len(shown) == 2:
        axes.set_yscale("log", base=2)
        _line(axes, group, shown)
    else:
        axes.set_yticks([])
    x, y = map(label, labels)
    style.finish(axes, f"{group.name}: {len(group.points):,} points", x, y)


def _line(axes: Axes, group: GroupMemory, shown: Sequence[str]) -> None:
    """Where the log-odds are zero, in the range of the points."""
    assert group.weights is not None
    logs = np.log2(group.numbers)
    slopes, middle = group.weights["weight"], logs.mean()
    low, high = logs[shown[0]].min(), logs[shown[0]].max()
    x = np.linspace(low, high, 50)
    # The regression's columns are about their means.
    rest = group.intercept + slopes[shown[0]] * (x - middle[shown[0]])
    y = middle[shown[1]] - rest / slopes[shown[1]]
    inside = (y >= logs[shown[1]].min() - 0.5) & (y <= logs[shown[1]].max() + 0.5)
    axes.plot(2.0 ** x[inside], 2.0 ** y[inside], color="#333333", linewidth=1.2, linestyle="--", zorder=4)
