"""Pictures of analyses: one look, colours that a name keeps in every figure, a layout for the width
that is asked.

A picture is laid out as it is made: within `page(width)` panels stand below each other where there
is no room beside, letters shrink to 6 points at the least, and names, legends and ticks take the
room that there is.
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
from paradnn.families import FAMILIES

#: Okabe and Ito's palette (Color Universal Design, 2008), without its yellow, which is too pale on
#: white; before its black, two dark colours of Tol's muted scheme (2021).
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#999933",
    "#000000",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "h", "<", "X")
#: A colour map that is even in lightness and survives grey print.
SEQUENTIAL = "cividis"
#: Of what has no value, or none that is set apart.
GREY = "#888888"
_PAGE: ContextVar[float | None] = ContextVar("page", default=None)
_PANEL = 3.0  # inches that a panel needs on a page
_ROW = 0.7  # of a row's height that its marks share


@contextmanager
def page(width: float | None) -> Iterator[None]:
    """Pictures made within are exactly `width` inches wide; None: as wide as they need, for a
    screen.
    """
    size = 10.0 if width is None else min(10.0, max(7.2, 1.25 * width))
    token = _PAGE.set(width)
    # Every text is as it is written: a name such as "$5 slice, $6 slice" is no formula.
    letters = {"font.size": size, "legend.fontsize": "small", "legend.title_fontsize": "small"}
    try:
        with rc_context({**letters, "legend.frameon": False, "text.parse_math": False}):
            yield
    finally:
        _PAGE.reset(token)


def panels(count: int, width: float, height: float, across: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels of `width` x `height` inches, at most so many beside each other;
    on a page as many as have room. Without pyplot, which keeps every figure alive.
    """
    asked = _PAGE.get()
    across = min(across, count)
    if asked is not None:
        across = min(across, max(1, int(asked / _PANEL)))
        height *= min(1.0, max(0.7, asked / across / width))
        width = asked / across
    rows = math.ceil(count / across)
    drawn = Figure(figsize=(width * across, height * rows), layout="constrained")
    every = [drawn.add_subplot(rows, across, place + 1) for place in range(count)]
    for axes in every:
        axes.tick_params(which="both", labelsize=rcParams["font.size"])
    return drawn, every


def families_with(names: Iterable[str]) -> list[str]:
    """All families in their fixed order, then others of `names`: the list in which a name's place
    is its look.
    """
    return [*FAMILIES, *sorted(set(names).difference(FAMILIES))]


def look(name: str | None, among: Sequence[str] = ()) -> dict[str, Any]:
    """Colour and marker of a name as Matplotlib's functions take them: a family always has the
    same, others by their place in `among`; grey of none. The marker shifts after each round of
    colours, so that the pair stays unique.
    """
    if name is None:
        return {"color": GREY, "marker": "o"}
    place = ([*among] if name in among else [*FAMILIES, name]).index(name)
    marker = MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]
    return {"color": COLOURS[place % len(COLOURS)], "marker": marker}


# What stands around the data: names, numbers, colours, the legend.


def names(
    axis: Axis, words: Sequence[str], places: Sequence[float] | None = None, smaller: float = 1.0
) -> None:
    """Names at `places` along an axis, else at 0, 1, 2 ..., on as many lines as they need: upright
    along the horizontal one where a word is too long; with those along the vertical one the figure
    grows.
    """
    axes = axis.axes
    at = range(len(words)) if places is None else places
    size = float(rcParams["font.size"]) / smaller
    axis.set_tick_params(labelsize=size)
    width, height = cell(axes)
    vertical = axis is axes.yaxis
    letters = chars_per_inch(0.46 * width if vertical else (width - 1.1) / max(1, len(words)), size)
    if (
        not vertical
        and max((len(word) for name in words for word in name.split()), default=0) >= letters
    ):
        axis.set_ticks(at, list(words), rotation=90)
        return
    lines = [_filled(name, letters) for name in words]
    axis.set_ticks(at, lines)
    if vertical:
        drawn: Any = axes.figure
        needed = sum(name.count("\n") + 1 for name in lines) * size * 1.35 / 72 + 0.9
        drawn.set_figheight(drawn.get_figheight() * max(1.0, needed / height))


def label_width_chars(width: float, smaller: float) -> int:
    """How many letters a line of `names` has along the left of a panel that is `width` inches wide
    on a screen.
    """
    return chars_per_inch(0.46 * (_PAGE.get() or width), float(rcParams["font.size"]) / smaller)


def legend(drawn: Figure, handles: Sequence[Artist] = (), title: str = "") -> None:
    """One legend below all panels, in as many columns as fit: of `handles`, else of what has a
    label there.
    """
    known: dict[str, Any] = {str(one.get_label()): one for one in handles}
    if not handles:
        for axes in drawn.axes:
            known |= {
                name: one for one, name in zip(*axes.get_legend_handles_labels(), strict=True)
            }
    if not known:
        return
    size = float(rcParams["font.size"]) / 1.2
    letters = chars_per_inch(0.98 * drawn.get_figwidth(), size)
    labels = [_filled(name, letters - 6) for name in known]
    wide = sorted((max(map(len, name.split("\n"))) + 6 for name in labels), reverse=True)
    fitting = [count for count in range(2, min(len(labels), 8) + 1) if sum(wide[:count]) <= letters]
    columns = max(fitting, default=1)
    drawn.legend(
        list(known.values()),
        labels,
        title=_filled(title, letters) or None,
        ncols=columns,
        loc="outside lower center",
        columnspacing=1.2,
    )
    lines = math.ceil(len(labels) / columns) * max(name.count("\n") + 1 for name in labels) + bool(
        title
    )
    drawn.set_figheight(drawn.get_figheight() + lines * size * 1.5 / 72)


def add_caveats(drawn: Figure, caveats: Sequence[str]) -> None:
    """Write caveats above the panels of a figure, in small italics."""
    size = float(rcParams["font.size"]) / 1.2
    chars = chars_per_inch(0.98 * drawn.get_figwidth(), size)
    text = _filled("\n".join(caveats), chars)
    drawn.suptitle(text, x=0.01, ha="left", fontsize=size, style="italic")
    height = (text.count("\n") + 1) * size * 1.35 / 72
    drawn.set_figheight(drawn.get_figheight() + height)


def handle(label: str, **how: Any) -> Line2D:
    """A mark of a legend, or a line where `how` has a style of one."""
    return Line2D([], [], label=label, **({"linestyle": "none"} | how))


#: A number with all its digits.
plain = "{:,g}".format


def log_ticks(axis: Axis, words: Callable[[float], str] = plain) -> None:
    """Make an axis logarithmic, once all is drawn, with 1, 2, 5 of each decade, or fewer where
    there is no room.
    """
    if axis.get_scale() != "log":
        (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    across, up = (72 * (side - 1) / float(rcParams["font.size"]) for side in cell(axis.axes))
    longest = max(4, len(words(low)), len(words(high)))
    fitting = max(2, int(across / (longest + 1) / 0.75 if axis is axis.axes.xaxis else up / 2.2))
    decades = math.log10(high / low)
    if decades < 0.9:
        axis.set_major_locator(MaxNLocator(min(fitting, 6), steps=[1, 2, 2.5, 5, 10]))
    else:
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if 3 * decades <= fitting else (1,), numticks=fitting)
        )
    axis.set_major_formatter(lambda value, _: words(value))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


#: A ratio: 0.5x, 1x, 2x.
times = "{:.4g}x".format


def colour_bar(
    drawn: Figure,
    axes: Sequence[Axes],
    norm: Normalize,
    label: str,
    words: Callable[[float], str] = format_number,
) -> None:
    """The colours of numbers, right of some panels."""
    bar: Any = drawn.colorbar(
        ScalarMappable(norm, SEQUENTIAL), ax=list(axes), fraction=0.04, pad=0.02, aspect=30
    )
    if isinstance(norm, LogNorm):
        log_ticks(bar.ax.yaxis, words)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(6))
        bar.ax.yaxis.set_major_formatter(lambda value, _: words(value))
    bar.set_label(filled(label, 0.7 * drawn.get_figheight()))
    bar.outline.set_visible(False)


def cell(axes: Axes) -> tuple[float, float]:
    """Inches of width and height that a panel has in its figure, with all that stands around it."""
    width, height = axes.figure.get_size_inches()  # type: ignore[union-attr]
    spec = axes.get_subplotspec()
    rows, columns = (1, 1) if spec is None else spec.get_gridspec().get_geometry()
    return width / columns, height / rows


def chars_per_inch(inches: float, size: float) -> int:
    """How many letters of `size` points have room."""
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
    """Title and labels on as many lines as there is room for, a quiet grid behind the data, no box.

    `logs`: which of the axes "x" and "y" are logarithmic, and how their numbers are written;
    `shares`: which are in percent.
    """
    for name, words in (logs or {}).items():
        log_ticks(axes.xaxis if name == "x" else axes.yaxis, words)
    for name in shares:
        (axes.xaxis if name == "x" else axes.yaxis).set_major_formatter(
            PercentFormatter(1.0, decimals=0)
        )
    width, height = cell(axes)
    # Beside long names the room is less than is taken here: what is too wide then is wrapped as it
    # is drawn.
    axes.set_title(
        filled(title, width - 0.7), loc="left", fontsize=rcParams["font.size"], wrap=True
    )
    axes.set_xlabel(filled(x, width - 0.3), wrap=True)
    axes.set_ylabel(filled(y, 0.8 * height))
    axes.grid(True, axis=grid, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def fits(letters: int, inches: float) -> bool:
    """Whether so many small letters have room."""
    return letters <= chars_per_inch(inches, float(rcParams["font.size"]) / 1.2)


def filled(text: str, inches: float) -> str:
    """A text on as many lines as it needs in so much room."""
    return _filled(text, chars_per_inch(inches, 1.1 * float(rcParams["font.size"])))


def _filled(text: str, letters: int) -> str:
    """A text in lines of at most so many letters; its own lines stay."""
    return "\n".join(
        textwrap.fill(line, max(5, letters), break_long_words=False) for line in text.split("\n")
    )


_LEVELS = 9  # distinct values that get a colour and a marker each


@dataclass(frozen=True)
class Colouring:
    """How a column is coloured: by the `looks` of its distinct values in order, or where `norm` is
    given along a colour map. A value has the same look wherever it is drawn.
    """

    label: str
    looks: Mapping[Any, dict[str, Any]]
    norm: Normalize | None

    def parts(self, values: pd.Series) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """Which of `values` have one look, and which, as `Axes.scatter` takes it; those without a
        value are grey.
        """
        missing = values.isna().to_numpy(dtype=bool)
        if self.norm is not None:
            numbers = values.astype("float64").to_numpy()[~missing]
            yield (
                ~missing,
                {"c": numbers, "cmap": SEQUENTIAL, "norm": self.norm, "marker": MARKERS[0]},
            )
        for level, how in self.looks.items():
            yield values.eq(level).fillna(False).to_numpy(dtype=bool), how
        yield missing, look(None)

    def explain(self, drawn: Figure, axes: Sequence[Axes]) -> None:
        """A legend of the figure, or a colour bar beside `axes`."""
        if self.norm is not None:
            colour_bar(drawn, axes, self.norm, self.label)
        else:
            legend(drawn, [handle(**how) for how in self.looks.values()], self.label)


def colouring(values: pd.Series, name: str) -> Colouring:
    """How the column `name` is coloured, judged by all its values: along a colour map where it
    holds more than nine numbers, logarithmic where all are positive; fewer numbers go from dark to
    light, words through the palette.
    """
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and values.nunique() > _LEVELS:
        return Colouring(label_with_unit(name), {}, scale_of(values))
    levels = sorted(values.dropna().unique())
    looks = {level: look(level, levels) | {"label": str(level)} for level in levels}
    if numeric:
        whole = all(isinstance(level, (int, np.integer)) for level in levels)
        for level, shade in zip(levels, np.linspace(0, 0.95, len(levels)), strict=True):
            words = f"{level:,}" if whole else f"{level:g}"
            looks[level] |= {"color": colormaps[SEQUENTIAL](shade), "label": words}
    return Colouring(label_with_unit(name), looks, None)


def scale_of(values: ArrayLike, wide: float = 1.0) -> Normalize:
    """The colour scale of numbers: logarithmic where all are positive and reach over `wide` times
    the least.
    """
    known = np.asarray(values, dtype="float64")
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if 0 < low < high / wide:
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + abs(low) + 1e-12)


# Generic pictures.


def marks(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    *,
    x_ends: Sequence[ArrayLike] = (),
    y_ends: Sequence[ArrayLike] = (),
    **how: Any,
) -> None:
    """Marks with their intervals, each ends (low, high); an end that is not known has no bar."""
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
    """A quantity and the ends of its interval, called as `forest` takes them."""
    return table[[name, f"{name}_low", f"{name}_high"]].set_axis(["value", "low", "high"], axis=1)


def forest(
    axes: Axes,
    rows: Mapping[str, str],
    groups: Mapping[str, pd.DataFrame],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Intervals along the horizontal axis, in a row for each of `rows` (a key with its name) side
    by side those of `groups`: by its label a table whose index is the row, with the columns value,
    low and high.
    """
    keys = list(rows)
    for place, (label, table) in enumerate(groups.items()):
        offset = (place - (len(groups) - 1) / 2) * _ROW / len(groups)
        heights = [keys.index(key) + offset for key in table.index]
        marks(
            axes,
            table["value"],
            heights,
            x_ends=(table["low"], table["high"]),
            label=label,
            **looks[label],
        )
    names(axes.yaxis, list(rows.values()))
    axes.set_ylim(len(rows) - 0.4, -0.6)
