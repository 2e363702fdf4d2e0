"""`boxplot`: the spread of a metric, or of the speedups of A over B, over the models of each group, whatever its shape:
five percentiles (the paper's Figure 11), the values beyond, and an interval of the median."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.columns import choose_metric, find_column, find_metric, narrowed
from analysis.format import is_share, short
from analysis.labels import label, unit_of
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option, unit_option
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.sides import apart, choose_sides
from analysis.statistics.dependence import Unit, crossed_quantile, levels_of
from analysis.statistics.pairing import pair
from analysis.store.frame import aggregate_replicates, families, units
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What is drawn if no metric is named: the first that nine of ten runs have.
_CANDIDATES = ("flops_utilization", "flops_utilization_spec", "flops_per_second", "examples_per_second")
#: Whisker, box, bar, box, whisker: the percentiles of the paper's Figure 11.
LEVELS = (2, 9, 50, 91, 98)
_PERCENTILES = [f"p{level}" for level in LEVELS]
#: Points below which a 9th percentile lies between the two lowest of them, and below which a 2nd does: a box, or
#: whiskers, of fewer would be drawn from two values.
BOX, WHISKERS = 13, 51
_FITTING = 30  # boxes that one figure holds
_WIDE = 100  # largest over smallest value above which a scale is logarithmic
_SHORT = 18  # characters of a label that stand in one line
_DARK = "#555555"


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
def boxplot(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
    """A box for each value of `by`, over points: replicates count once. With `a` and `b`, of the speedups of A over B,
    point by point.

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
    boxes = box_statistics(aggregate_replicates(frame), metric, by, families(frame), options.unit)
    drawn = Boxes(boxes, metric, by, label(metric), units([metric]).get(metric, ""))
    return drawn.answer(tuple(frame["run_id"]), pooled)


def _speedups(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
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
    boxes = box_statistics(pairs, "speedup", by, families(pairs), options.unit)
    words = [f"Speedups are in {metric}, of points that were measured on both sides.", *apart(pairs, sides)]
    drawn = Boxes(boxes, "speedup", by, f"speedup of {sides.name_a} over {sides.name_b}", "x")
    return drawn.answer(sides.sources, sides.pooled, words)


def box_statistics(
    frame: pd.DataFrame, metric: str, by: Sequence[str], order: Sequence[str] = (), unit: Unit = "crossed"
) -> pd.DataFrame:
    """The paper's percentiles of `metric` over the rows of each group: a row has the columns `by`, label, count,
    missing (rows of the group without the metric, such as out of memory), p2, p9, p50, p91, p98, median_low,
    median_high (95% interval, NaN where the sample is too small for an end), sample (what the interval is over),
    minimum, maximum, outliers (how many are beyond the whiskers) and values (all of them, ascending).

    Percentiles interpolate linearly between order statistics (Hyndman and Fan's definition 7, NumPy's default). The
    bar is the median, the box reaches from the 9th to the 91st percentile, the whiskers from the 2nd to the 98th
    (paper, section 5.3 and Figure 11). The median's interval is over the models and batch sizes that the points of a
    group share (`dependence.crossed_quantile`). Infinite and missing values are counted as missing. Groups stand in
    their own order (numbers ascending), except that the values in `order`, such as families, come first as given.
    """
    rows: list[dict[str, object]] = []
    for key, group in frame.groupby(list(by), sort=True, dropna=False):
        every = group[metric].to_numpy(dtype="float64", na_value=np.nan)
        values = np.sort(every[np.isfinite(every)])
        name = ", ".join("(none)" if pd.Series([part]).isna().all() else str(part) for part in key)
        row: dict[str, object] = dict(zip(by, key, strict=True))
        row |= {"label": name, "count": len(values), "missing": len(group) - len(values), "outliers": 0}
        if len(values):
            found = np.percentile(values, LEVELS)
            levels = levels_of(group[np.isfinite(every)], unit)
            ends = crossed_quantile(every[np.isfinite(every)], levels)[1:]
            low, high = (end if np.isfinite(end) else np.nan for end in ends)
            row |= dict(zip(_PERCENTILES, found, strict=True))
            row |= {"median_low": low, "median_high": high, "sample": levels.words}
            row |= {"minimum": values[0], "maximum": values[-1], "values": values}
            row["outliers"] = int(((values < found[0]) | (values > found[-1])).sum())
        rows.append(row)
    ends_of = ["median_low", "median_high", "sample", "minimum", "maximum", "outliers", "values"]
    table = pd.DataFrame(rows, columns=[*by, "label", "count", "missing", *_PERCENTILES, *ends_of])
    # Families come in the paper's order; the sort is stable, so the rest keeps its own.
    place = {name: position for position, name in enumerate(order)}
    ranks = [place.get(value, len(place)) for value in table[by[0]]]
    return table.iloc[np.argsort(ranks, kind="stable")].reset_index(drop=True)


@dataclass(frozen=True)
class Boxes:
    """Boxes (rows of `box_statistics`) of `what`, in `unit`: "x" of ratios."""

    rows: pd.DataFrame
    metric: str
    by: list[str]
    what: str
    unit: str

    def answer(self, sources: tuple[str, ...], pooled: str, more: Sequence[Paragraph | str] = ()) -> Result:
        """The boxes as numbers, without the percentiles that a group has too few points for; in words; and drawn."""
        count = self.rows["count"]
        least = {"p2": WHISKERS, "p9": BOX, "p91": BOX, "p98": WHISKERS}
        table = self.rows.drop(columns="values")
        table = table.assign(**{name: table[name].where(count >= number) for name, number in least.items()})
        return Result(
            numbers=table,
            sentences=[*self._sentences(), *more],
            picture=self.draw if (count > 0).any() else None,
            sources=sources,
            pooled=pooled,
        )

    def _sentences(self) -> Iterator[str]:
        share = is_share(self.metric, self.unit, self.rows["maximum"].dropna())
        for row in self.rows.to_dict("records"):
            yield self._group(row, share)

    def _group(self, row: Mapping[Any, Any], share: bool) -> str:
        """The median and the percentiles of one group."""

        def ends(low: str, high: str, word: str) -> str:
            return f"{shown(low)} {word} {shown(high)}"

        def shown(name: str) -> str:
            return f"{row[name]:.3g}x" if self.unit == "x" else short(row[name], self.unit, share, digits=3)

        missing = f"; {row['missing']} more have none" if row["missing"] else ""
        if not row["count"]:
            return f"{row['label']}: no point has {self.what}{missing}."
        known = row["median_low"] == row["median_low"]
        over = f" (95% interval {ends('median_low', 'median_high', 'to')} over {row['sample']})" if known else ""
        start = f"{row['label']}: median {self.what} {shown('p50')}{over}; {counted(row['count'], 'point')}{missing}."
        extremes = ends("minimum", "maximum", "and")
        if row["count"] < BOX:
            return f"{start} They lie between {extremes}, too few for percentiles."
        most = f", 96% between {ends('p2', 'p98', 'and')}" if row["count"] >= WHISKERS else ""
        return f"{start} 82% of them lie between {ends('p9', 'p91', 'and')}{most}; the extremes are {extremes}."

    def draw(self) -> Figure:
        """Bar at the median, box from the 9th to the 91st percentile, whiskers to the 2nd and the 98th, dots beyond.

        A group has a box or whiskers only where it has points enough for such percentiles; all points of smaller
        groups are dots. Ratios get a line at 1; the scale is logarithmic of ratios, and where values are positive and
        span more than a factor of 100.
        """
        rows = self.rows[self.rows["count"] > 0].to_dict("records")
        if len(rows) > _FITTING:
            problem = f"{len(rows)} boxes do not fit one figure"
            raise ConfigError("--by", ",".join(self.by), problem, "choose runs with --where")
        longest = max(len(row["label"]) for row in rows)  # long ones are in several lines
        drawn, (axes,) = drawing.panels(1, 8.0, 1.2 + (0.32 if longest <= _SHORT else 0.65) * len(rows))
        keys = [str(row[self.by[0]]) for row in rows]
        among = drawing.families_with(keys) if self.by[0] == "family" else [*dict.fromkeys(keys)]
        for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
            _draw_box(axes, row, place, drawing.colour_of(key, among))
        lowest, highest = min(row["minimum"] for row in rows), max(row["maximum"] for row in rows)
        if self.unit == "x":
            axes.axvline(1, color="#333333", linewidth=1, zorder=1)
        logarithmic = lowest > 0 and (self.unit == "x" or highest / lowest > _WIDE)
        if logarithmic:
            axes.set_xscale("log")
        drawing.names(axes.yaxis, [f"{row['label']} ({row['count']})" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        named = f"{self._number(axes.xaxis, logarithmic)}\n{_key(rows)}"
        drawing.finish(axes, f"{self.what} by {', '.join(map(label, self.by))}", named)
        axes.yaxis.grid(False)
        return drawn

    def _number(self, axis: Any, logarithmic: bool) -> str:
        """The name of the values with their unit; their numbers along the axis."""
        if self.unit == "x":
            drawing.ratio_axis(axis)
            return self.what
        named = self.unit not in ("", "1")
        share = not named and is_share(self.metric, self.unit, self.rows["maximum"].dropna())
        unit = "" if self.unit.startswith("1/") else self.unit
        words = drawing.quantity(unit) if named else lambda value: short(value, share=share)
        if logarithmic:
            drawing.log_ticks(axis, words)
        else:
            axis.set_major_formatter(lambda value, _: words(value))
        return f"{self.what} ({unit_of(self.metric) or self.unit})" if named else self.what


def _draw_box(axes: Axes, row: Mapping[Any, Any], place: int, colour: str) -> None:
    """One group at its place: what of box, whiskers and dots its points can carry."""
    boxed, whiskered, values = row["count"] >= BOX, row["count"] >= WHISKERS, row["values"]
    low, high = (row["p2"], row["p98"]) if whiskered else (row["p9"], row["p91"])
    dots = values[(values < low) | (values > high)] if boxed else values
    how: dict[str, Any] = {"color": _DARK, "markersize": 3, "alpha": 0.6, "zorder": 2}
    axes.plot(dots, np.full(len(dots), place), drawing.MARKERS[0], **how)
    if not boxed:
        return
    statistics = {"med": row["p50"], "q1": row["p9"], "q3": row["p91"], "whislo": low, "whishi": high, "fliers": []}
    artists = axes.bxp(
        [statistics],
        positions=[place],
        orientation="horizontal",
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
