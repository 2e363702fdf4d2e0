"""`boxplot`: the spread of a metric, or of the speedups of A over B, over the models of each group,
by the percentiles of the paper's Figure 11: bar at the median, box from the 9th to the 91st,
whiskers from the 2nd to the 98th, dots beyond. Replicates of a point count once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from analysis.columns import choose_metric, compute_families_if_mixed, find_column, find_metric
from analysis.format import format_number, is_share
from analysis.labels import label, label_with_unit
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, unit_option
from analysis.pairing import pair
from analysis.registry import SectionSpec, analysis
from analysis.result import Result, pooled_within, require_runs
from analysis.sides import choose_sides, side_option
from analysis.store.frame import aggregate_replicates, families, units
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import counted
from paradnn.statistics.dependence import Unit, crossed_quantile, shared_levels

#: What is drawn if no metric is named: the first that nine of ten runs have.
_CANDIDATES = (
    "flops_utilization",
    "flops_utilization_spec",
    "flops_per_second",
    "examples_per_second",
)
#: Whisker, box, bar, box, whisker: the percentiles of the paper's Figure 11.
LEVELS = (2, 9, 50, 91, 98)
_PERCENTILES = [f"p{level}" for level in LEVELS]
#: Points below which a 9th percentile lies between the two lowest of them, and below which a 2nd
#: does: a box, or whiskers, of fewer would be drawn from two values.
BOX = 13
WHISKERS = 51
_FITTING = 30  # boxes that one figure holds
_WIDE = 100  # largest over smallest value above which a scale is logarithmic
_SHORT = 18  # characters of a label that stand in one line
_DARK = "#555555"


@dataclass(frozen=True, kw_only=True)
class BoxplotOptions(Options):
    """Which metric, and over which groups."""

    metric: str | None = column_option(
        None, "a metric (default: FLOPS utilisation, else what runs have)", "NAME"
    )
    by: tuple[str, ...] = column_option(
        ("family",), "a box for each value; A,B for each pair of values"
    )
    a: tuple[str, ...] = side_option("A", "boxes of the speedups of A over --b in the metric: ")
    b: tuple[str, ...] = side_option("B")
    unit: Literal["crossed", "model", "point"] = unit_option()


@analysis(
    BoxplotOptions,
    summary="the spread of a metric over the models of each family, device or any other group",
    example="python -m analysis boxplot --metric examples_per_second --by device,batch_size --figure boxes.png",
    section="system",
    order=10,
    title="Spread by family",
    list_sections=lambda rows: [SectionSpec(families=compute_families_if_mixed(rows))],
)
def boxplot(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
    """A row for each value of `by`, of runs or with `a` and `b` of the speedups of A over B, point
    by point.

    NotEnoughData without runs, ConfigError for a column or metric that is not there, SchemaError
    for heterogeneous runs in a group.
    """
    require_runs(frame)
    if not options.by:
        raise ConfigError("--by", "", "names no column", "write for example --by family")
    if options.a or options.b:
        return _speedups(frame, options)
    by = [find_column(frame, name, "--by") for name in options.by]
    if options.metric:
        name = find_metric(frame, options.metric)
    else:
        name = choose_metric(frame, _CANDIDATES)
    unit = units([name]).get(name, "")
    pooled = pooled_within(frame, by, options.pool)
    boxes = box_statistics(aggregate_replicates(frame), name, by, families(frame), options.unit)
    words = partial(
        format_number, unit=unit, share=is_share(name, unit, boxes["maximum"].dropna()), digits=3
    )
    quantity = _Quantity(label(name), label_with_unit(name), words)
    answer = _answer(boxes, quantity, by, tuple(frame["run_id"]), pooled)
    return replace(answer, metrics=(name,))


def _speedups(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), options.pool)
    metric = options.metric or "examples_per_second"
    pairs = pair(sides.a, sides.b, metric)
    if pairs.empty:
        raise NotEnoughData(
            f"no point was measured on both sides, of {len(sides.a)} runs of A and {len(sides.b)} of B"
        )
    by = [find_column(pairs, name, "--by") for name in options.by]
    boxes = box_statistics(pairs, "speedup", by, families(pairs), options.unit)
    what = f"speedup of {sides.name_a} over {sides.name_b}"
    quantity = _Quantity(what, what, "{:.3g}x".format, is_ratio=True)
    words = [
        f"Speedups are in {metric}, of points that were measured on both sides.",
        *sides.describe_differences(pairs),
    ]
    answer = _answer(boxes, quantity, by, sides.sources, sides.pooled)
    return replace(answer, sentences=[*answer.sentences, *words], metrics=(metric,))


class _Quantity(NamedTuple):
    """What boxes are of: its name, that with its unit, how a number of it is written."""

    name: str
    named: str
    words: Callable[[float], str]
    is_ratio: bool = False


def _answer(
    boxes: pd.DataFrame, of: _Quantity, by: Sequence[str], sources: tuple[str, ...], pooled: str
) -> Result:
    """The boxes as numbers, without the percentiles that a group has too few points for; in words;
    and drawn.
    """
    least = {"p2": WHISKERS, "p9": BOX, "p91": BOX, "p98": WHISKERS}
    table = boxes.drop(columns="values")
    table = table.assign(
        **{name: table[name].where(table["count"] >= number) for name, number in least.items()}
    )
    known = boxes[boxes["count"] > 0]
    return Result(
        numbers=table,
        sentences=[_sentence(row, of) for row in boxes.to_dict("records")],
        picture=(lambda: draw_boxes(known, of, by)) if len(known) else None,
        sources=sources,
        pooled=pooled,
    )


def box_statistics(
    frame: pd.DataFrame,
    metric: str,
    by: Sequence[str],
    order: Sequence[str] = (),
    unit: Unit = "crossed",
) -> pd.DataFrame:
    """The paper's percentiles (section 5.3) of `metric` over the rows of each group: a row has the
    columns `by`, label, count, missing (rows whose metric is missing or infinite), p2, p9, p50,
    p91, p98, median_low, median_high (95% interval over the models and batch sizes of the group's
    points, NaN where these are too few for an end), sample (what that is over), minimum, maximum,
    outliers (how many are beyond the whiskers) and values (ascending).

    Percentiles are of Hyndman and Fan's definition 7. Groups stand in their own order (numbers
    ascending), except that the values in `order`, such as families, come first as given.
    """
    rows: list[dict[str, object]] = []
    for key, group in frame.groupby(list(by), sort=True, dropna=False):
        group = group.assign(value=group[metric].to_numpy(dtype="float64", na_value=np.nan))
        known = group[np.isfinite(group["value"])]
        values = np.sort(known["value"].to_numpy())
        name = ", ".join("(none)" if pd.Series([part]).isna().all() else str(part) for part in key)
        row: dict[str, object] = dict(zip(by, key, strict=True))
        row |= {
            "label": name,
            "count": len(values),
            "missing": len(group) - len(values),
            "outliers": 0,
        }
        if len(values):
            found = np.percentile(values, LEVELS)
            levels = shared_levels(known, unit)
            ends = crossed_quantile(known["value"], levels)[1:]
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
    return table.sort_values(
        by[0], key=lambda keys: keys.map(place).fillna(len(place)), kind="stable", ignore_index=True
    )


def _sentence(row: Mapping[Any, Any], of: _Quantity) -> str:
    """The median and the percentiles of one group."""

    def ends(low: str, high: str, word: str = "and") -> str:
        return f"{of.words(row[low])} {word} {of.words(row[high])}"

    if row["missing"]:
        missing = f"; {row['missing']} more have none"
    else:
        missing = ""
    if not row["count"]:
        return f"{row['label']}: no point has {of.name}{missing}."
    known = pd.notna(row["median_low"])
    if known:
        over = f" (95% interval {ends('median_low', 'median_high', 'to')} over {row['sample']})"
    else:
        over = ""
    points = counted(row["count"], "point")
    start = f"{row['label']}: median {of.name} {of.words(row['p50'])}{over}; {points}{missing}."
    extremes = ends("minimum", "maximum")
    if row["count"] == 1:
        return start
    if row["count"] < BOX:
        return f"{start} They lie between {extremes}, too few for percentiles."
    if row["count"] >= WHISKERS:
        most = f", 96% between {ends('p2', 'p98')}"
    else:
        most = ""
    return (
        f"{start} 82% of them lie between {ends('p9', 'p91')}{most}; the extremes are {extremes}."
    )


def draw_boxes(boxes: pd.DataFrame, of: _Quantity, by: Sequence[str]) -> drawing.Figure:
    """Bar at the median, box from the 9th to the 91st percentile, whiskers to the 2nd and the 98th,
    dots beyond.

    A group has a box or whiskers only where it has points enough for such percentiles; all points
    of smaller groups are dots. Ratios get a line at 1; the scale is logarithmic of ratios, and
    where values are positive and span more than a factor of 100.
    """
    rows = boxes.to_dict("records")
    if len(rows) > _FITTING:
        raise ConfigError(
            "--by",
            ",".join(by),
            f"{len(rows)} boxes do not fit one figure",
            "choose runs with --where",
        )
    longest = max(map(len, boxes["label"]))  # long ones are in several lines
    drawn, (axes,) = drawing.panels(1, 8.0, 1.2 + (0.32 if longest <= _SHORT else 0.65) * len(rows))
    keys = [str(row[by[0]]) for row in rows]
    if by[0] == "family":
        among = drawing.families_with(keys)
    else:
        among = [*dict.fromkeys(keys)]
    how: dict[str, Any] = {"color": _DARK, "markersize": 3, "alpha": 0.6, "zorder": 2}
    ways: dict[str, Any] = {
        "orientation": "horizontal",
        "widths": 0.55,
        "manage_ticks": False,
        "patch_artist": True,
    }
    ways |= {"whiskerprops": {"color": _DARK}, "capprops": {"color": _DARK}}
    ways |= {"medianprops": {"color": drawing.COLOURS[-1], "linewidth": 1.8}}
    for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
        low, high = (row["p2"], row["p98"]) if row["count"] >= WHISKERS else (row["p9"], row["p91"])
        dots = row["values"][(row["values"] < low) | (row["values"] > high) | (row["count"] < BOX)]
        axes.plot(dots, np.full(len(dots), place), drawing.MARKERS[0], **how)
        if row["count"] >= BOX:
            box = {
                "med": row["p50"],
                "q1": row["p9"],
                "q3": row["p91"],
                "whislo": low,
                "whishi": high,
                "fliers": [],
            }
            face = {
                "facecolor": drawing.look(key, among)["color"],
                "alpha": 0.55,
                "edgecolor": "#333333",
            }
            axes.bxp([box], positions=[place], boxprops=face, **ways)
    lowest = boxes["minimum"].min()
    highest = boxes["maximum"].max()
    most = boxes["count"].max()
    if of.is_ratio:
        axes.axvline(1, color="#333333", linewidth=1, zorder=1)
    logs: dict[str, Callable[[float], str]] = {}
    if lowest > 0 and (of.is_ratio or highest / lowest > _WIDE):
        logs = {"x": of.words}
    else:
        axes.xaxis.set_major_formatter(lambda value, _: of.words(value))
    drawing.names(axes.yaxis, [f"{row['label']} ({row['count']})" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    whiskers = ", whiskers: 2nd to 98th" if most >= WHISKERS else ""
    marks = f"bar: median, box: 9th to 91st percentile{whiskers}, dots: points beyond"
    if most >= BOX:
        marks = marks
    else:
        marks = f"dots: single points (a box takes {BOX} of them)"
    drawing.finish(
        axes,
        f"{of.name} by {', '.join(map(label, by))}",
        f"{of.named}\n{marks}",
        logs=logs,
        grid="x",
    )
    return drawn
