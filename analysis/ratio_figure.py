"""The figure of a comparison: the ratio of A to B at every point, sorted, with its interval.

A point is one measured configuration. Up to `_MAX_NAMED` points have a named row each. More points
are drawn by their rank, as in Figures 8 and 10 of the ParaDnn paper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from analysis.lazy import drawing, np, pd
from analysis.point_names import point_names

#: Largest number of points that have a named row each.
_MAX_NAMED = 24
_LINE_COLOR = "#333333"
_BAND_COLOR = "#e6e6e6"


def draw_ratios(
    pairs: pd.DataFrame,
    *,
    title: str,
    label: str,
    mean: Sequence[float | None] = (),
    differing: Collection[str] = (),
) -> drawing.Figure:
    """Draw the ratio of A to B at every point, from the smallest to the largest.

    A point is one measured configuration. The marks are colored by model family if there are
    several, else by batch size if it varies.

    Args:
        pairs: One row per point: the columns of its configuration, `speedup` and its 95% interval
            `speedup_low` to `speedup_high`, NaN if it is unknown.
        title: Title of the figure.
        label: Label of the axis of ratios.
        mean: The geometric mean and the lower and upper end of its interval, drawn as a line and a
            band; empty to omit both.
        differing: Configuration columns in which the sides differ, and which the names of points
            therefore omit; see `point_names`.
    """
    ordered = pairs.sort_values("speedup", kind="stable", ignore_index=True)
    shades = _coloring(ordered)
    known = [end for end in mean if end is not None and np.isfinite(end) and end > 0]
    if len(ordered) <= _MAX_NAMED:
        figure, (axes,) = drawing.panels(1, 8.0, 1.3 + 0.28 * len(ordered))
        axes.set_xscale("log")
        axes.axvline(1, color=_LINE_COLOR, linewidth=1)
        if known:
            axes.axvline(known[0], color=_LINE_COLOR, linewidth=1, linestyle="--")
        if len(known) == 3:
            axes.axvspan(known[1], known[2], color=_BAND_COLOR, zorder=0)
        _draw_marks(axes, ordered, shades, is_named=True)
        drawing.names(axes.yaxis, point_names(ordered, differing))
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        drawing.finish(axes, title, label, logs={"x": drawing.times}, grid="x")
    else:
        figure, (axes,) = drawing.panels(1, 8.0, 4.4)
        axes.set_yscale("log")
        axes.axhline(1, color=_LINE_COLOR, linewidth=1)
        if known:
            axes.axhline(known[0], color=_LINE_COLOR, linewidth=1, linestyle="--")
        if len(known) == 3:
            axes.axhspan(known[1], known[2], color=_BAND_COLOR, zorder=0)
        _draw_marks(axes, ordered, shades, is_named=False)
        axes.set_xlim(-1, len(ordered))
        x_label = "points, from the smallest ratio"
        drawing.finish(axes, title, x_label, label, logs={"y": drawing.times})
    if len(shades.styles) > 1 or shades.norm is not None:
        shades.explain(figure, [axes])
    return figure


def _draw_marks(
    axes: drawing.Axes, pairs: pd.DataFrame, shades: drawing.Coloring, *, is_named: bool
) -> None:
    """Draw sorted ratios with their intervals.

    Args:
        axes: The panel.
        pairs: One row per ratio, sorted by `speedup`.
        shades: The colors of the marks.
        is_named: Whether each ratio has a row with its name; else each has a column.
    """
    positions = np.arange(len(pairs))
    ends = (pairs["speedup_low"], pairs["speedup_high"])
    bars: dict[str, Any] = {
        "marker": "",
        "color": "#999999",
        "elinewidth": 1.0,
        "capsize": 0,
        "zorder": 1.5,
    }
    if is_named:
        drawing.marks(axes, pairs["speedup"], positions, x_ends=ends, **bars)
    else:
        drawing.marks(axes, positions, pairs["speedup"], y_ends=ends, **bars)
    for is_part, how in shades.parts(pairs[_color_column(pairs)]):
        ratios = pairs["speedup"][is_part]
        if is_named:
            axes.scatter(ratios, positions[is_part], s=26, zorder=2, edgecolors="none", **how)
        else:
            axes.scatter(positions[is_part], ratios, s=14, zorder=2, edgecolors="none", **how)


def _coloring(pairs: pd.DataFrame) -> drawing.Coloring:
    """Return the colors of the marks; a model family has the same color in every figure."""
    column = _color_column(pairs)
    shades = drawing.coloring(pairs[column], column)
    if column != "family":
        return shades
    families = drawing.families_with(pairs[column])
    styles = {name: drawing.look(name, families) | {"label": name} for name in shades.styles}
    return drawing.Coloring(shades.label, styles, None)


def _color_column(pairs: pd.DataFrame) -> str:
    has_batch_sizes = "batch_size" in pairs and pairs["batch_size"].nunique() > 1
    if pairs["family"].nunique() == 1 and has_batch_sizes:
        return "batch_size"
    return "family"
