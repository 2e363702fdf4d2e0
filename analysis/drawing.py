"""Figures of analyses: one style, a fixed color for each name, and a layout that fits the width.

Within `page(width)`, panels that do not fit next to each other are placed below each other. Text
shrinks to no less than 6 points. Names, legends and ticks use the available room.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_context, rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch as Patch
from matplotlib.patches import Rectangle as Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter
from numpy.typing import ArrayLike

from analysis.format import format_number
from analysis.labels import label_with_unit
from analysis.palette import COLORS as COLORS
from analysis.palette import GRAY as GRAY
from paradnn.families import FAMILIES

MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<", "X")
#: A color map whose lightness increases evenly, so that it remains legible in gray print.
SEQUENTIAL = "cividis"
#: Width of the page in inches, if the figure is for print.
_PAGE_WIDTH: ContextVar[float | None] = ContextVar("page_width", default=None)
_MIN_PANEL_WIDTH = 3.0  # inches on a page
_LEGEND_MARK_CHARS = 6  # width of the mark of a legend entry, in characters
_ROW_SHARE = 0.7  # share of the height of a row that its marks use


@contextmanager
def page(width: float | None) -> Iterator[None]:
    """Make all figures within this context exactly as wide as a printed page.

    Args:
        width: Width of the page in inches; None for figures on a screen, whose width depends on the
            number and width of their panels.
    """
    size = 10.0
    if width is not None:
        size = min(10.0, max(7.2, 1.25 * width))
    token = _PAGE_WIDTH.set(width)
    # Text is not parsed as math, since a name may hold dollar signs: "$5 slice, $6 slice".
    fonts = {"font.size": size, "legend.fontsize": "small", "legend.title_fontsize": "small"}
    try:
        with rc_context({**fonts, "legend.frameon": False, "text.parse_math": False}):
            yield
    finally:
        _PAGE_WIDTH.reset(token)


def panels(count: int, width: float, height: float, across: int = 1) -> tuple[Figure, list[Axes]]:
    """Create a figure with panels of equal size.

    The figure is created without pyplot, which would keep every figure in memory.

    Args:
        count: Number of panels.
        width: Width of a panel in inches on a screen. Within `page`, the panels share the width of
            the page.
        height: Height of a panel in inches. On a narrow page, panels are lower, by a factor of at
            least 0.7.
        across: Largest number of panels next to each other. A narrow page may have fewer.

    Returns:
        The figure, and its panels from left to right and from top to bottom.
    """
    page_width = _PAGE_WIDTH.get()
    across = min(across, count)
    if page_width is not None:
        across = min(across, max(1, int(page_width / _MIN_PANEL_WIDTH)))
        height *= min(1.0, max(0.7, page_width / across / width))
        width = page_width / across
    rows = math.ceil(count / across)
    figure = Figure(figsize=(width * across, height * rows), layout="constrained")
    all_axes = [figure.add_subplot(rows, across, position + 1) for position in range(count)]
    for axes in all_axes:
        axes.tick_params(which="both", labelsize=rcParams["font.size"])
    return figure, all_axes


def families_with(names: Iterable[str]) -> list[str]:
    """Return all known model families in their fixed order, then the other names alphabetically.

    The position of a name in this list determines its color and marker.

    Args:
        names: Names of families or of other groups.
    """
    return [*FAMILIES, *sorted(set(names).difference(FAMILIES))]


def look(name: str | None, among: Sequence[str] = ()) -> dict[str, Any]:
    """Return the color and marker of a name, as keyword arguments for Matplotlib.

    If there are more names than colors, colors repeat with different markers. Each combination of
    color and marker then still occurs once.

    Args:
        name: Name of a model family or of another group; None for a gray circle.
        among: Names in the order that determines their styles. If `name` is not among them, it is
            treated as a family. Each family has the same style in every figure.
    """
    if name is None:
        return {"color": GRAY, "marker": "o"}
    order = [*among] if name in among else [*FAMILIES, name]
    position = order.index(name)
    marker = MARKERS[(position + position // len(COLORS)) % len(MARKERS)]
    return {"color": COLORS[position % len(COLORS)], "marker": marker}


def names(
    axis: Axis, labels: Sequence[str], places: Sequence[float] | None = None, smaller: float = 1.0
) -> None:
    """Write names along an axis, wrapped to the available width.

    A word of a name may be too long for its share of a horizontal axis. In that case, all names on
    this axis are rotated by 90 degrees and not wrapped. If wrapped names need more height than a
    vertical axis has, the height of the figure is increased.

    Args:
        axis: The horizontal or vertical axis.
        labels: The names.
        places: Positions of the names, in data coordinates; None for 0, 1, 2 and so on.
        smaller: Text size of the figure divided by the text size of the names, so 1.0 for equal
            sizes and more than 1.0 for smaller names.
    """
    axes = axis.axes
    positions = range(len(labels)) if places is None else places
    size = float(rcParams["font.size"]) / smaller
    axis.set_tick_params(labelsize=size)
    width, height = cell(axes)
    is_vertical = axis is axes.yaxis
    if is_vertical:
        max_chars = fitting_chars(0.46 * width, size)
    else:
        max_chars = fitting_chars((width - 1.1) / max(1, len(labels)), size)
    longest_word = max((len(word) for name in labels for word in name.split()), default=0)
    if not is_vertical and longest_word >= max_chars:
        axis.set_ticks(positions, list(labels), rotation=90)
        return
    wrapped = [_wrap(name, max_chars) for name in labels]
    axis.set_ticks(positions, wrapped)
    if is_vertical:
        figure: Any = axes.figure
        lines = sum(name.count("\n") + 1 for name in wrapped)
        needed = lines * size * 1.35 / 72 + 0.9
        figure.set_figheight(figure.get_figheight() * max(1.0, needed / height))


def label_width_chars(width: float, smaller: float) -> int:
    """Return how many characters of a name fit into one line along a vertical axis.

    Args:
        width: Width of the panel in inches on a screen. Within `page`, the width of the page is
            used instead.
        smaller: Text size of the figure divided by the text size of the names; more than 1.0 if the
            names are smaller than the other text.
    """
    return fitting_chars(
        0.46 * (_PAGE_WIDTH.get() or width), float(rcParams["font.size"]) / smaller
    )


def legend(drawn: Figure, handles: Sequence[Artist] = (), title: str = "") -> None:
    """Draw one legend below all panels, with the largest number of columns that fits.

    Args:
        drawn: The figure.
        handles: The entries; if empty, the labeled marks of all panels.
        title: Title of the legend.
    """
    entries: dict[str, Any] = {str(handle.get_label()): handle for handle in handles}
    if not handles:
        for axes in drawn.axes:
            marks, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, marks, strict=True))
    if not entries:
        return
    size = float(rcParams["font.size"]) / 1.2
    max_chars = fitting_chars(0.98 * drawn.get_figwidth(), size)
    texts = [_wrap(name, max_chars - _LEGEND_MARK_CHARS) for name in entries]
    columns = _legend_columns(texts, max_chars)
    drawn.legend(
        list(entries.values()),
        texts,
        title=_wrap(title, max_chars) or None,
        ncols=columns,
        loc="outside lower center",
        columnspacing=1.2,
    )
    rows = math.ceil(len(texts) / columns)
    lines = rows * max(text.count("\n") + 1 for text in texts)
    if title:
        lines += 1
    drawn.set_figheight(drawn.get_figheight() + lines * size * 1.5 / 72)


def _legend_columns(texts: Sequence[str], max_chars: int) -> int:
    """Return how many columns of a legend fit next to each other, at most 8."""
    widths = [max(map(len, text.split("\n"))) + _LEGEND_MARK_CHARS for text in texts]
    widths.sort(reverse=True)
    columns = 1
    for count in range(2, min(len(texts), 8) + 1):
        if sum(widths[:count]) <= max_chars:
            columns = count
    return columns


def add_caveats(drawn: Figure, caveats: Sequence[str]) -> None:
    """Write caveats above the panels of a figure, in small italics.

    Args:
        drawn: The figure.
        caveats: The sentences, one per line.
    """
    size = float(rcParams["font.size"]) / 1.2
    chars = fitting_chars(0.98 * drawn.get_figwidth(), size)
    text = _wrap("\n".join(caveats), chars)
    drawn.suptitle(text, x=0.01, ha="left", fontsize=size, style="italic")
    height = (text.count("\n") + 1) * size * 1.35 / 72
    drawn.set_figheight(drawn.get_figheight() + height)


def handle(label: str, **how: Any) -> Line2D:
    """Return an entry of a legend: a mark, or a line if `how` has a line style.

    Args:
        label: Text of the entry.
        **how: Arguments of Matplotlib's `Line2D`.
    """
    return Line2D([], [], label=label, **({"linestyle": "none"} | how))


#: Formats a number with up to six significant digits and thousands separators.
plain = "{:,g}".format


def log_ticks(axis: Axis, format_value: Callable[[float], str] = plain) -> None:
    """Make an axis logarithmic, with ticks at 1, 2 and 5 of each decade, or fewer if needed.

    Call it after all data are drawn, since the ticks depend on the range of the axis.

    Args:
        axis: The axis.
        format_value: Formats the number of a tick.
    """
    is_horizontal = axis is axis.axes.xaxis
    if axis.get_scale() != "log" and is_horizontal:
        axis.axes.set_xscale("log")
    elif axis.get_scale() != "log":
        axis.axes.set_yscale("log")
    low, high = sorted(axis.get_view_interval())
    width, height = cell(axis.axes)
    points_per_char = float(rcParams["font.size"])
    if is_horizontal:
        longest = max(4, len(format_value(low)), len(format_value(high)))
        fitting = int(72 * (width - 1) / points_per_char / (longest + 1) / 0.75)
    else:
        fitting = int(72 * (height - 1) / points_per_char / 2.2)
    fitting = max(2, fitting)
    decades = math.log10(high / low)
    if decades < 0.9:
        axis.set_major_locator(MaxNLocator(min(fitting, 6), steps=[1, 2, 2.5, 5, 10]))
    else:
        multiples = (1, 2, 5) if 3 * decades <= fitting else (1,)
        axis.set_major_locator(LogLocator(subs=multiples, numticks=fitting))
    axis.set_major_formatter(lambda value, _: format_value(value))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


#: Formats a ratio, such as 0.5x or 2x.
times = "{:.4g}x".format


def color_bar(
    drawn: Figure,
    axes: Sequence[Axes],
    norm: Normalize,
    label: str,
    format_value: Callable[[float], str] = format_number,
) -> None:
    """Draw the color bar of a scale to the right of the given panels.

    Args:
        drawn: The figure.
        axes: The panels.
        norm: The color scale.
        label: Label of the color bar.
        format_value: Formats the number of a tick.
    """
    bar: Any = drawn.colorbar(
        ScalarMappable(norm, SEQUENTIAL), ax=list(axes), fraction=0.04, pad=0.02, aspect=30
    )
    if isinstance(norm, LogNorm):
        log_ticks(bar.ax.yaxis, format_value)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(6))
        bar.ax.yaxis.set_major_formatter(lambda value, _: format_value(value))
    bar.set_label(filled(label, 0.7 * drawn.get_figheight()))
    bar.outline.set_visible(False)


def cell(axes: Axes) -> tuple[float, float]:
    """Return the width and height of a panel in inches, including its labels and title."""
    width, height = axes.figure.get_size_inches()  # type: ignore[union-attr]
    spec = axes.get_subplotspec()
    if spec is None:
        return width, height
    rows, columns = spec.get_gridspec().get_geometry()
    return width / columns, height / rows


def fitting_chars(inches: float, size: float) -> int:
    """Return how many characters fit into a width.

    Args:
        inches: The width in inches.
        size: Text size in points (1/72 inch).
    """
    return int(72 * inches / (0.55 * size))


def finish(
    axes: Axes,
    title: str = "",
    x: str = "",
    y: str = "",
    *,
    logs: Mapping[str, Callable[[float], str]] | None = None,
    shares: str = "",
    grid: Literal["both", "x", "y"] = "both",
) -> None:
    """Finish a panel: set its title, labels and scales, and draw a pale grid behind the data.

    Args:
        axes: The panel.
        title: Title of the panel, wrapped to the width of the panel; empty for no title.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        logs: Axes with a logarithmic scale: "x" or "y" -> function that formats the numbers at the
            ticks of this axis. None if both scales are linear.
        shares: Axes whose numbers are shares, shown in percent: "x", "y" or "xy"; empty if no axis
            shows shares.
        grid: Axes that have grid lines.
    """
    axis_by_name = {"x": axes.xaxis, "y": axes.yaxis}
    for name, format_value in (logs or {}).items():
        log_ticks(axis_by_name[name], format_value)
    for name in shares:
        axis_by_name[name].set_major_formatter(PercentFormatter(1.0, decimals=0))
    width, height = cell(axes)
    # Long names at the left leave less room than these widths assume. Matplotlib then wraps the
    # text again while it draws.
    axes.set_title(
        filled(title, width - 0.7), loc="left", fontsize=rcParams["font.size"], wrap=True
    )
    axes.set_xlabel(filled(x, width - 0.3), wrap=True)
    axes.set_ylabel(filled(y, 0.8 * height))
    axes.grid(True, axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def fits(chars: int, inches: float) -> bool:
    """Return whether a line of small text fits into a width.

    Args:
        chars: Number of characters of the line.
        inches: The width in inches.
    """
    return chars <= fitting_chars(inches, float(rcParams["font.size"]) / 1.2)


def filled(text: str, inches: float) -> str:
    """Return a text wrapped to a width in inches, at the size of a title."""
    return _wrap(text, fitting_chars(inches, 1.1 * float(rcParams["font.size"])))


def _wrap(text: str, max_chars: int) -> str:
    width = max(5, max_chars)
    lines = [textwrap.fill(line, width, break_long_words=False) for line in text.split("\n")]
    return "\n".join(lines)


_MAX_STYLES = 9  # distinct numbers, each with its own style; more get a color map


@dataclass(frozen=True)
class Coloring:
    """Colors for the values of a column, which are the same in every panel.

    Attributes:
        label: Label of the column.
        styles: Distinct value -> its style, as keyword arguments for Matplotlib, in display order.
            Empty if a color map is used.
        norm: Scale of the color map; None if each distinct value has its own color.
    """

    label: str
    styles: Mapping[Any, dict[str, Any]]
    norm: Normalize | None

    def parts(self, values: pd.Series) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """Yield the style of each distinct value, with a mask of the rows that have this value.

        With a color map, all values share one style. Missing values come last, in gray.

        Args:
            values: (n,) values of the column.

        Yields:
            A mask (n,), and the style as arguments of `Axes.scatter`.
        """
        missing = values.isna().to_numpy(dtype=bool)
        if self.norm is not None:
            numbers = values.astype("float64").to_numpy()[~missing]
            yield (
                ~missing,
                {"c": numbers, "cmap": SEQUENTIAL, "norm": self.norm, "marker": MARKERS[0]},
            )
        for level, style in self.styles.items():
            yield values.eq(level).fillna(False).to_numpy(dtype=bool), style
        yield missing, look(None)

    def explain(self, drawn: Figure, axes: Sequence[Axes]) -> None:
        """Draw the legend or the color bar that explains the colors.

        Args:
            drawn: The figure. The legend of distinct values is below all of its panels.
            axes: The panels next to which the color bar of a color map is drawn.
        """
        if self.norm is not None:
            color_bar(drawn, axes, self.norm, self.label)
        else:
            legend(drawn, [handle(**style) for style in self.styles.values()], self.label)


def coloring(values: pd.Series, name: str) -> Coloring:
    """Choose the colors for the values of a column.

    A column with more than nine distinct numbers gets a color map, with a logarithmic scale if all
    numbers are positive. A column with fewer numbers gets shades from dark to light. A text column
    gets the colors of the palette.

    Args:
        values: All values of the column, from all panels.
        name: Name of the column.

    Returns:
        The colors and the label of the column.
    """
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and values.nunique() > _MAX_STYLES:
        return Coloring(label_with_unit(name), {}, scale_of(values))
    levels = sorted(values.dropna().unique())
    styles = {level: look(level, levels) | {"label": str(level)} for level in levels}
    if numeric:
        whole = all(isinstance(level, (int, np.integer)) for level in levels)
        for level, shade in zip(levels, np.linspace(0, 0.95, len(levels)), strict=True):
            text = f"{level:,}" if whole else f"{level:g}"
            styles[level] |= {"color": colormaps[SEQUENTIAL](shade), "label": text}
    return Coloring(label_with_unit(name), styles, None)


def scale_of(values: ArrayLike, wide: float = 1.0) -> Normalize:
    """Return the color scale for some numbers: logarithmic if they are positive and spread widely.

    Args:
        values: The numbers. Infinite and missing numbers are ignored.
        wide: Ratio of the largest to the smallest number above which the scale is logarithmic.
    """
    known = np.asarray(values, dtype="float64")
    known = known[np.isfinite(known)]
    low = 0.0
    high = 1.0
    if len(known):
        low = float(known.min())
        high = float(known.max())
    if 0 < low < high / wide:
        return LogNorm(low, high)
    if high <= low:
        # A scale needs two ends.
        high = low + abs(low) + 1e-12
    return Normalize(low, high)


def marks(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    *,
    x_ends: Sequence[ArrayLike] = (),
    y_ends: Sequence[ArrayLike] = (),
    **how: Any,
) -> None:
    """Draw marks, with bars for their intervals.

    Args:
        axes: The panel.
        x: Horizontal positions (n,).
        y: Vertical positions (n,).
        x_ends: Two arrays (n,): the lower and the upper ends of horizontal intervals. An end that
            is not finite has no bar. Empty for no bars.
        y_ends: The same for vertical intervals.
        **how: Arguments of Matplotlib's `Axes.errorbar`.
    """
    how = dict[str, Any](linestyle="none", markersize=5, capsize=2.5, elinewidth=1.2) | how
    for name, middle, ends in (("xerr", x, x_ends), ("yerr", y, y_ends)):
        if len(ends):
            value, low, high = (
                np.atleast_1d(np.asarray(each, dtype="float64")) for each in (middle, *ends)
            )
            reach = np.array([value - low, high - value])
            how[name] = np.where(np.isfinite(reach), reach.clip(min=0), 0.0)
    axes.errorbar(x, y, **how)


def ends_of(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a quantity and the ends of its interval in the form that `forest` needs.

    Args:
        table: Table with the columns `<name>`, `<name>_low` and `<name>_high`.
        name: Name of the quantity.

    Returns:
        A table with the same index and the columns `value`, `low` and `high`.
    """
    return table[[name, f"{name}_low", f"{name}_high"]].set_axis(["value", "low", "high"], axis=1)


def forest(
    axes: Axes,
    rows: Mapping[str, str],
    groups: Mapping[str, pd.DataFrame],
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    """Draw a forest plot: horizontal intervals in named rows.

    Within a row, the intervals of different groups are drawn one below the other.

    Args:
        axes: The panel.
        rows: Key of each row -> name of the row, from top to bottom.
        groups: Label of each group -> table of its intervals. The index of a table holds keys of
            `rows`, and the columns are `value`, `low` and `high`.
        styles: Label of each group -> style of its marks, as keyword arguments for Matplotlib.
    """
    keys = list(rows)
    for position, (label, table) in enumerate(groups.items()):
        offset = (position - (len(groups) - 1) / 2) * _ROW_SHARE / len(groups)
        heights = [keys.index(key) + offset for key in table.index]
        marks(
            axes,
            table["value"],
            heights,
            x_ends=(table["low"], table["high"]),
            label=label,
            **styles[label],
        )
    names(axes.yaxis, list(rows.values()))
    axes.set_ylim(len(rows) - 0.4, -0.6)
