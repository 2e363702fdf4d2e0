"""The figure of a comparison: the ratio of every point, sorted, with its interval.

Up to `_MAX_NAMED` points have a named row each. More points are drawn by their rank, as in the
paper's Figures 8 and 10.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analysis.lazy import drawing, np, pd
from analysis.point_names import point_names

#: Points that are named.
_MAX_NAMED = 24
_MEAN_COLOR = "#333333"
_BAND_COLOR = "#e6e6e6"


def draw_ratios(
    pairs: pd.DataFrame,
    *,
    title: str,
    label: str,
    mean: Sequence[float | None] = (),
    differing: Collection[str] = (),
) -> drawing.Figure:
    """Draw the ratio of every point, from the smallest to the largest.

    The marks are coloured by family if there are several, else by batch size if it varies.

    Args:
        pairs: One row per point: the columns of its configuration, `speedup` and its 95% interval
            `speedup_low` to `speedup_high`, NaN if it is unknown.
        title: Title of the figure.
        label: Label of the axis of ratios.
        mean: The geometric mean and the ends of its interval, drawn as a line and a band; empty
            for none.
        differing: Columns that set the sides apart, see `point_names`.
    """
    ordered = pairs.sort_values("speedup", kind="stable", ignore_index=True)
    is_named = len(ordered) <= _MAX_NAMED
    column = _colour_column(ordered)
    shades = drawing.colouring(ordered[column], column)
    if column == "family":
        families = drawing.families_with(ordered[column])
        looks = {name: drawing.look(name, families) | {"label": name} for name in shades.looks}
        shades = drawing.Colouring(shades.label, looks, None)
    place = np.arange(len(ordered))
    if is_named:
        figure, (axes,) = drawing.panels(1, 8.0, 1.3 + 0.28 * len(ordered))
        axes.set_xscale("log")
        draw_line = axes.axvline
        draw_band = axes.axvspan
    else:
        figure, (axes,) = drawing.panels(1, 8.0, 4.4)
        axes.set_yscale("log")
        draw_line = axes.axhline
        draw_band = axes.axhspan
    draw_line(1, color=_MEAN_COLOR, linewidth=1)
    known = [end for end in mean if end is not None and np.isfinite(end) and end > 0]
    if known:
        draw_line(known[0], color=_MEAN_COLOR, linewidth=1, linestyle="--")
    if len(known) == 3:
        draw_band(known[1], known[2], color=_BAND_COLOR, zorder=0)
    ends = (ordered["speedup_low"], ordered["speedup_high"])
    bars = {"marker": "", "color": "#999999", "elinewidth": 1.0, "capsize": 0, "zorder": 1.5}
    if is_named:
        drawing.marks(axes, ordered["speedup"], place, x_ends=ends, **bars)
    else:
        drawing.marks(axes, place, ordered["speedup"], y_ends=ends, **bars)
    for is_part, how in shades.parts(ordered[column]):
        x = ordered["speedup"][is_part] if is_named else place[is_part]
        y = place[is_part] if is_named else ordered["speedup"][is_part]
        axes.scatter(x, y, s=26 if is_named else 14, zorder=2, edgecolors="none", **how)
    if is_named:
        drawing.names(axes.yaxis, point_names(ordered, differing))
        axes.set_ylim(-0.6, len(ordered) - 0.4)
        drawing.finish(axes, title, label, logs={"x": drawing.times}, grid="x")
    else:
        axes.set_xlim(-1, len(ordered))
        drawing.finish(
            axes, title, "points, from the smallest ratio", label, logs={"y": drawing.times}
        )
    if ordered[column].nunique() > 1:
        shades.explain(figure, [axes])
    return figure


def _colour_column(pairs: pd.DataFrame) -> str:
    """Return the column that colours the marks."""
    has_batch_sizes = "batch_size" in pairs and pairs["batch_size"].nunique() > 1
    if pairs["family"].nunique() == 1 and has_batch_sizes:
        return "batch_size"
    return "family"
