"""`boxplot`: the spread of a metric, or of the speedups of A over B, over the models of each group, with the paper's
percentiles.

Box plots as the paper draws them: the spread of a metric over the models of a group, without assuming its shape.

Out come, for each group, five percentiles, the values outside the whiskers and an interval of the median.

Box plots with the paper's percentiles, the count of points at each box.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.columns import choose_metric, find_column, find_metric, narrowed
from analysis.format import is_share, short
from analysis.labels import label, unit_of
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options, option, unit_option
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.sides import Sides, apart, choose_sides
from analysis.statistics.dependence import Levels, Unit, crossed_quantile, levels_of
from analysis.statistics.pairing import pair
from analysis.store.frame import aggregate_replicates, families, units
from paradnn.core.words import counted
from paradnn.errors import ConfigError, NotEnoughData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: What is drawn if no metric is named: the first that nine of ten runs have.
_CANDIDATES = ("flops_utilization", "flops_utilization_spec", "flops_per_second", "examples_per_second")
_FITTING = 30  # boxes that one figure holds


@dataclass(frozen=True, kw_only=True)
class BoxplotOptions(Options):
    """Which metric, and over which groups."""

    command = "boxplot"

    metric: str | None = option(
        None, "a metric (default: FLOPS utilisation, else what runs have)", metavar="NAME", names="columns"
    )
    by: tuple[str, ...] = option(
        ("family",),
        "a box for each value; A,B for each pair of values (default: family)",
        metavar="COLUMN",
        names="columns",
    )
    scale: Literal["auto", "linear", "log"] = option(
        "auto", "of the axis (default: log where values span more than a factor of 100)"
    )
    a: tuple[str, ...] = option(
        (),
        "boxes of the speedups of A over --b in the metric: condition of side A's runs, repeatable",
        metavar="COLUMN=VALUE",
        several="repeat",
        names="conditions",
    )
    b: tuple[str, ...] = option(
        (), "condition of side B's runs, repeatable", metavar="COLUMN=VALUE", several="repeat", names="conditions"
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BoxplotResult(Result):
    """The boxes of a metric, in `unit`; `scale` is that of the axis they are drawn on. With `sides` the metric is the
    speedup of A over B in `compared`, and `pairs` are the paired points."""

    boxes: Boxes
    unit: str
    scale: str
    sides: Sides | None = None
    compared: str = ""
    pairs: pd.DataFrame | None = None

    @property
    def what(self) -> str:
        """What the boxes are of, in words."""
        if self.sides is None:
            return label(self.boxes.metric)
        return f"speedup of {self.sides.name_a} over {self.sides.name_b}"

    @property
    def table(self) -> pd.DataFrame:
        """As `Boxes.table`, without the percentiles that a group has too few points for."""
        found, count = self.boxes.table, self.boxes.table["count"]
        least = {"p2": WHISKERS, "p9": BOX, "p91": BOX, "p98": WHISKERS}
        return found.assign(**{name: found[name].where(count >= number) for name, number in least.items()})

    @property
    def drawn(self) -> int:
        """How many groups have a box."""
        return int((self.table["count"] > 0).sum())

    @property
    def drawable(self) -> bool:
        return self.drawn > 0

    def _figure(self) -> Figure:
        if self.drawn > _FITTING:
            by = ",".join(self.boxes.by)
            raise ConfigError("--by", by, f"{self.drawn} boxes do not fit one figure", "choose runs with --where")
        return draw_boxes(self.boxes, self.what, self.unit, self.scale)

    def _paragraphs(self) -> Iterator[Paragraph]:
        rows = self.table.to_dict("records")
        for row in rows:
            yield Paragraph(self._group(row))
        few = [row["label"] for row in rows if BOX <= row["count"] < WHISKERS]
        if few:
            yield Paragraph(
                f"With fewer than {WHISKERS} points whiskers would lie between the two outermost values, so none are "
                f"drawn: {'; '.join(few)}."
            )
        if self.sides is not None and self.pairs is not None:
            yield Paragraph(f"Speedups are in {self.compared}, of points that were measured on both sides.")
            yield from apart(self.pairs, self.sides)

    def _group(self, row: Mapping[Any, Any]) -> str:
        """The median and the percentiles of one group."""
        share = is_share(self.boxes.metric, self.unit, self.table["maximum"].dropna())

        def shown(name: str) -> str:
            return f"{row[name]:.3g}x" if self.sides else short(row[name], self.unit, share, digits=3)

        missing = f"; {row['missing']} more have none" if row["missing"] else ""
        if not row["count"]:
            return f"{row['label']}: no point has {self.what}{missing}."
        known = row["median_low"] == row["median_low"]
        ends = f"{shown('median_low')} to {shown('median_high')}"
        interval = f" (95% interval {ends} over {row['sample']})" if known else ""
        points = f"{counted(row['count'], 'point')}{missing}"
        start = f"{row['label']}: median {self.what} {shown('p50')}{interval}; {points}."
        ends = f"{shown('minimum')} and {shown('maximum')}"
        if row["count"] < BOX:
            return f"{start} They lie between {ends}, too few for percentiles."
        most = f", 96% between {shown('p2')} and {shown('p98')}" if row["count"] >= WHISKERS else ""
        return f"{start} 82% of them lie between {shown('p9')} and {shown('p91')}{most}; the extremes are {ends}."


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    yield Shown(families=narrowed(rows))


@analysis(
    BoxplotOptions,
    summary="the spread of a metric over the models of each family, device or any other group",
    description="Box plots with the paper's percentiles: bar at the median, box from the 9th to the 91st,\n"
    "whiskers from the 2nd to the 98th, dots beyond. Replicates of a point count once.",
    example="python -m analysis boxplot --metric examples_per_second --by device,batch_size --figure boxes.png",
    section="system",
    order=10,
    title="Spread by family",
    shown=_shown,
)
def boxplot(frame: pd.DataFrame, options: BoxplotOptions) -> BoxplotResult:
    """A box for each value of `by`, over points: replicates count once. With `a` and `b`, of the speedups of A over B.

    NotEnoughData without runs, ConfigError for a column or metric that is not there, SchemaError for heterogeneous
    runs in a group.
    """
    require_runs(frame)
    if not options.by:
        raise ConfigError("--by", "", "names no column", "write for example --by family")
    if options.a or options.b:
        return _speedups(frame, options)
    by = [find_column(frame, name, "--by") for name in options.by]
    metric = find_metric(frame, options.metric) if options.metric else choose_metric(frame, _CANDIDATES)
    pooled = pooled_within(frame, by, options.pool)
    return BoxplotResult(
        boxes=box_statistics(aggregate_replicates(frame), metric, by, families(frame), options.unit),
        unit=units([metric]).get(metric, ""),
        scale=options.scale,
        sources=tuple(frame["run_id"]),
        pooled=pooled,
    )


def _speedups(frame: pd.DataFrame, options: BoxplotOptions) -> BoxplotResult:
    """Boxes of the speedups of A over B, point by point (the paper's Figure 11, top)."""
    for name, conditions in (("--a", options.a), ("--b", options.b)):
        if not conditions:
            remedy = "name for example --a 'device=TPU v2' --b device=V100"
            raise ConfigError(name, "(none)", "both sides are needed", remedy)
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), options.pool)
    metric = options.metric or "examples_per_second"
    pairs = pair(sides.a, sides.b, metric)
    if pairs.empty:
        raise NotEnoughData(f"no point was measured on both sides, of {len(sides.a)} runs of A and {len(sides.b)} of B")
    by = [find_column(pairs, name, "--by") for name in options.by]
    return BoxplotResult(
        boxes=box_statistics(pairs, "speedup", by, families(pairs), options.unit),
        unit="x",
        scale=options.scale,
        sides=sides,
        compared=metric,
        pairs=pairs,
        sources=sides.sources,
        pooled=sides.pooled,
    )


#: Whisker, box, bar, box, whisker: the percentiles of the paper's Figure 11.
LEVELS = (2, 9, 50, 91, 98)

#: Points below which a 9th percentile lies between the two lowest of them, and below which a 2nd does: a box, or
#: whiskers, of fewer would be drawn from two values.
BOX, WHISKERS = 13, 51


@dataclass(frozen=True)
class Boxes:
    """The boxes of a metric.

    `table` has one row a group: the columns grouped by, label, count, missing (rows of the group without the metric,
    such as out of memory), p2, p9, p50, p91, p98, median_low, median_high (95% interval, NaN where the sample is too
    small for an end), sample (what the interval is over), minimum, maximum, outliers (how many are beyond the
    whiskers). `values` maps a label to its values, ascending.
    """

    metric: str
    by: tuple[str, ...]
    table: pd.DataFrame
    values: Mapping[str, np.ndarray]


def box_statistics(
    frame: pd.DataFrame, metric: str, by: Sequence[str], order: Sequence[str] = (), unit: Unit = "crossed"
) -> Boxes:
    """The paper's percentiles of `metric` over the rows of each group (columns `by`).

    Percentiles interpolate linearly between order statistics (Hyndman and Fan's definition 7, NumPy's default). The
    bar is the median, the box reaches from the 9th to the 91st percentile, the whiskers from the 2nd to the 98th
    (paper, section 5.3 and Figure 11). The median's interval is over the models and batch sizes that the points of a
    group share (`dependence.crossed_quantile`). Infinite and missing values are counted as missing. Groups stand in
    their own order (numbers ascending), except that the values in `order`, such as families, come first as given.
    """
    rows: list[dict[str, object]] = []
    kept: dict[str, np.ndarray] = {}
    for key, group in frame.groupby(list(by), sort=True, dropna=False):
        label = ", ".join("(none)" if pd.Series([part]).isna().all() else str(part) for part in key)
        values = group[metric].to_numpy(dtype="float64", na_value=np.nan)
        known = np.isfinite(values)
        values = values[known]
        row = dict(zip(by, key, strict=True)) | {"label": label, "count": len(values)}
        row["missing"] = len(group) - len(values)
        if len(values):
            row |= _box(values, levels_of(group[known], unit))
            kept[label] = np.sort(values)
        rows.append(row)
    columns = [
        *by,
        "label",
        "count",
        "missing",
        *(f"p{level}" for level in LEVELS),
        "median_low",
        "median_high",
        "sample",
        "minimum",
        "maximum",
        "outliers",
    ]
    table = pd.DataFrame(rows).reindex(columns=columns)
    # Families come in the paper's order; sorted() is stable, so the rest keeps its own.
    place = {name: position for position, name in enumerate(order)}
    ranks = [place.get(value, len(place)) for value in table[by[0]]]
    table = table.iloc[sorted(range(len(table)), key=ranks.__getitem__)].reset_index(drop=True)
    table["outliers"] = table["outliers"].fillna(0).astype("int64")
    return Boxes(metric, tuple(by), table, kept)


def _box(values: np.ndarray, levels: Levels) -> dict[str, object]:
    """What `Boxes.table` says of the values of one group, none of them missing."""
    found = np.percentile(values, LEVELS)
    low, high = (end if np.isfinite(end) else np.nan for end in crossed_quantile(values, levels)[1:])
    outliers = int(((values < found[0]) | (values > found[-1])).sum())
    row: dict[str, object] = {f"p{level}": value for level, value in zip(LEVELS, found, strict=True)}
    row |= {"median_low": low, "median_high": high, "sample": levels.words}
    return row | {"minimum": values.min(), "maximum": values.max(), "outliers": outliers}


_WIDE = 100  # largest over smallest value above which a scale is logarithmic
_UPRIGHT = 8  # boxes beside each other; more lie below each other, where their labels have room
_WRAP, _TITLE = 18, 60  # characters of a label's line, and of the title's
_DARK = "#555555"


def draw_boxes(boxes: Boxes, what: str, unit: str = "", scale: str = "auto") -> Figure:
    """Bar at the median, box from the 9th to the 91st percentile, whiskers to the 2nd and the 98th, dots beyond.

    A group has a box or whiskers only where it has points enough for such percentiles; all points of smaller groups are
    dots. `what` names the values, which are in `unit`: "x" of ratios, which get a line at 1. `scale` is linear, log or
    auto: logarithmic of ratios, and where values are positive and span more than a factor of 100.
    """
    rows = boxes.table[boxes.table["count"] > 0].to_dict("records")
    upright = len(rows) <= _UPRIGHT
    width, height = (max(5.0, 1.6 + 0.9 * len(rows)), 4.8) if upright else (8.0, 1.4 + 0.32 * len(rows))
    drawn, axes = drawing.figure(width, height)
    keys = [str(row[boxes.by[0]]) for row in rows]
    among = drawing.families_with(keys) if boxes.by[0] == "family" else [*dict.fromkeys(keys)]
    for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
        _draw_box(axes, row, boxes.values[row["label"]], place, drawing.colour_of(key, among), upright)
    value_axis, group_axis = (axes.yaxis, axes.xaxis) if upright else (axes.xaxis, axes.yaxis)
    lowest, highest = min(row["minimum"] for row in rows), max(row["maximum"] for row in rows)
    if scale == "log" or (scale == "auto" and lowest > 0 and (unit == "x" or highest / lowest > _WIDE)):
        axes.set(**{"yscale" if upright else "xscale": "log"})
    if unit == "x":
        (axes.axhline if upright else axes.axvline)(1, color="#333333", linewidth=1, zorder=1)
    _label(axes, boxes, what, unit, upright)
    group_axis.set_ticks(range(len(rows)), [_name(row, upright) for row in rows])
    group_axis.grid(False)
    value_axis.grid(True, color="#dddddd", linewidth=0.6)
    (axes.set_xlim if upright else axes.set_ylim)(-0.6, len(rows) - 0.4)
    if not upright:
        axes.invert_yaxis()
    drawn.supxlabel(_key(rows), fontsize=8, color=_DARK)
    return drawn


def _draw_box(axes: Axes, row: Mapping[Any, Any], values: np.ndarray, place: int, colour: str, upright: bool) -> None:
    """One group at its place: what of box, whiskers and dots its points can carry."""
    boxed, whiskered = row["count"] >= BOX, row["count"] >= WHISKERS
    low, high = (row["p2"], row["p98"]) if whiskered else (row["p9"], row["p91"])
    dots = values[(values < low) | (values > high)] if boxed else values
    places = np.full(len(dots), place)
    horizontal, vertical = (places, dots) if upright else (dots, places)
    axes.plot(horizontal, vertical, drawing.MARKERS[0], color=_DARK, markersize=3, alpha=0.6, zorder=2)
    if not boxed:
        return
    statistics = {"med": row["p50"], "q1": row["p9"], "q3": row["p91"], "whislo": low, "whishi": high, "fliers": []}
    artists = axes.bxp(
        [statistics],
        positions=[place],
        orientation="vertical" if upright else "horizontal",
        widths=0.55,
        patch_artist=True,
        manage_ticks=False,
        showcaps=whiskered,
        medianprops={"color": drawing.COLOURS[-1], "linewidth": 1.8},
        whiskerprops={"color": _DARK},
        capprops={"color": _DARK},
    )
    artists["boxes"][0].set(facecolor=colour, alpha=0.55, edgecolor="#333333")


def _key(rows: Sequence[Mapping[Any, Any]]) -> str:
    """What the marks stand for, of those that are drawn."""
    most = max(row["count"] for row in rows)
    if most < BOX:
        return f"dots: single points (a box takes {BOX} of them)"
    whiskers = ", whiskers: 2nd to 98th" if most >= WHISKERS else ""
    return f"bar: median, box: 9th to 91st percentile{whiskers}, dots: points beyond"


def _name(row: Mapping[Any, Any], upright: bool) -> str:
    if upright:
        lines = [textwrap.fill(part, _WRAP) for part in row["label"].split(", ")]
        return "\n".join([*lines, f"n = {row['count']}"])
    return f"{row['label']} ({row['count']})"


def _label(axes: Axes, boxes: Boxes, what: str, unit: str, upright: bool) -> None:
    """Title and the axis of the values, with its unit."""
    axis = axes.yaxis if upright else axes.xaxis
    name = what
    if unit == "x":
        drawing.ratio_axis(axis)
    elif unit not in ("", "1"):
        name = f"{name} ({unit_of(boxes.metric) or unit})"
        axis.set_major_formatter(drawing.quantity("" if unit.startswith("1/") else unit))
    else:
        share = is_share(boxes.metric, unit, boxes.table["maximum"].dropna())
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: short(value, share=share)))
    if unit != "x" and axis.get_scale() == "log":
        axis.set_minor_formatter(ticker.NullFormatter())
    by = ", ".join(map(label, boxes.by))
    title = textwrap.fill(f"{what} by {by}", _TITLE)
    drawing.finish(axes, title, *(("", name) if upright else (name, "")))
