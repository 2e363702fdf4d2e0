"""`boxplot`: the spread of a metric, or of the speedups of A over B, over the points of each group.

Boxes show the percentiles of the paper's Figure 11. A bar is at the median, the box covers the 9th
to the 91st percentile, and whiskers the 2nd to the 98th. Points beyond the whiskers are dots. A
point is one measured combination of hyperparameter values. A point with replicates counts once,
with the median of its replicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from analysis.columns import (
    OPERATION_SETTINGS,
    choose_metric,
    families_of_examples_if_mixed,
    find_column,
    find_metric,
)
from analysis.format import format_number, format_with_interval, is_share
from analysis.labels import label, label_with_unit, not_recorded
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, unit_option
from analysis.pairing import pair
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Result, pooled_within, require_runs
from analysis.sides import choose_sides, side_option
from analysis.store.frame import aggregate_replicates, families, units
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.dependence import Unit, crossed_quantile, shared_levels

#: Candidates for the default metric, in order of preference (see `choose_metric`).
_DEFAULT_METRICS = (
    "flops_utilization",
    "flops_utilization_spec",
    "flops_per_second",
    "examples_per_second",
)
#: The percentiles of the paper's Figure 11: whisker, box, bar, box, whisker.
PERCENTILES = (2, 9, 50, 91, 98)
_PERCENTILE_COLUMNS = [f"p{percentile}" for percentile in PERCENTILES]
#: With fewer points, the 9th percentile lies between the two lowest points, so there is no box.
MIN_POINTS_OF_BOX = 13
#: With fewer points, the 2nd percentile lies between the two lowest points, so there are no
#: whiskers.
MIN_POINTS_OF_WHISKERS = 51

#: Maximum number of boxes in a figure.
_MAX_BOXES = 30
#: Ratio of the largest to the smallest value above which the scale is logarithmic.
_LOGARITHMIC_RATIO = 100
#: Maximum number of characters of a label on one line.
_SINGLE_LINE_CHARS = 18
_DARK_GRAY = "#555555"


@dataclass(frozen=True, kw_only=True)
class BoxplotOptions(Options):
    """Options of the command `boxplot`: the metric, the groups, and the sides of a comparison."""

    metric: str | None = column_option(
        None,
        "metric to show (default: FLOPS utilization, else a metric that most runs have)",
        "NAME",
    )
    by: tuple[str, ...] = column_option(
        ("family",), "columns of the groups: a box for each combination of their values"
    )
    a: tuple[str, ...] = side_option("A", "show the speedups of A over B in the metric: ")
    b: tuple[str, ...] = side_option("B")
    unit: Literal["crossed", "model", "point"] = unit_option()


def _list_sections(rows: pd.DataFrame) -> list[SectionSpec]:
    return [SectionSpec(families=families_of_examples_if_mixed(rows))]


@analysis(
    BoxplotOptions,
    summary="the spread of a metric over the models of each family, device or any other group",
    example="python -m analysis boxplot --metric examples_per_second --by device,batch_size "
    "--figure boxes.png",
    section="system",
    order=10,
    title="Spread by family",
    list_sections=_list_sections,
)
def boxplot(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
    """Summarize the distribution of a metric by group, as percentiles.

    If the options `a` and `b` are set, each selects the runs of one side of a comparison. The
    summarized values are then the speedups of side A over side B at the points that both sides
    measured.

    Args:
        frame: Runs, one per row.
        options: The metric, the columns that define groups, and the conditions of sides A and B.

    Returns:
        The result. Its table has a row for each group, with the columns of `box_statistics` except
        `values`. Percentiles are missing in groups with too few points.

    Raises:
        InsufficientData: If there are no runs, or no point was measured on both sides.
        ConfigError: If a column or the metric does not exist, or if only one side has conditions.
        HeterogeneousError: If the runs of a group or of a side differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    require_runs(frame)
    if not options.by:
        raise ConfigError("--by", "", "names no column", "for example, write --by family")
    if options.a or options.b:
        return _speedup_boxes(frame, options)
    by = [find_column(frame, name, "--by") for name in options.by]
    if options.metric:
        metric = find_metric(frame, options.metric)
    else:
        metric = choose_metric(frame, _DEFAULT_METRICS)
    unit = units([metric]).get(metric, "")
    pooled = pooled_within(frame, by, pool=options.pool)
    points = aggregate_replicates(frame)
    boxes = box_statistics(points, metric, by, families(frame), options.unit)
    as_share = is_share(metric, unit, boxes["maximum"].dropna())
    format_value = partial(format_number, unit=unit, share=as_share, digits=3)
    quantity = _Quantity(label(metric), label_with_unit(metric), format_value)
    result = _make_result(boxes, quantity, by)
    return replace(
        result,
        sentences=[*result.sentences, *_pooled_settings_sentences(points, metric, by)],
        sources=tuple(frame["run_id"]),
        pooled=pooled,
        metrics=(metric,),
    )


def _speedup_boxes(frame: pd.DataFrame, options: BoxplotOptions) -> Result:
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), pool=options.pool)
    metric = options.metric or "examples_per_second"
    pairs = pair(sides.a, sides.b, metric)
    if pairs.empty:
        raise InsufficientData(
            f"no point was measured on both sides: A has {counted(len(sides.a), 'run')} and B has "
            f"{len(sides.b)}; measure the same points on both sides"
        )
    by = [find_column(pairs, name, "--by") for name in options.by]
    boxes = box_statistics(pairs, "speedup", by, families(pairs), options.unit)
    name = f"speedup of {sides.name_a} over {sides.name_b}"
    quantity = _Quantity(name, name, "{:.3g}x".format, is_ratio=True)
    result = _make_result(boxes, quantity, by)
    remarks = [
        f"Speedups are ratios of {metric} at the points that were measured on both sides.",
        *sides.describe_differences(pairs),
    ]
    return replace(
        result,
        sentences=[*result.sentences, *remarks],
        sources=sides.sources,
        pooled=sides.pooled,
        metrics=(metric,),
    )


class _Quantity(NamedTuple):
    """Name and number format of the metric or speedup that the boxes show.

    Attributes:
        name: Name of the quantity.
        name_with_unit: Name of the quantity followed by its unit, for the label of an axis.
        format_value: Function that formats one value as text.
        is_ratio: Whether the quantity is a speedup of A over B, rather than a metric.
    """

    name: str
    name_with_unit: str
    format_value: Callable[[float], str]
    is_ratio: bool = False


def _make_result(boxes: pd.DataFrame, quantity: _Quantity, by: Sequence[str]) -> Result:
    """Return a result with the table, the sentences and the figure; the caller adds the run ids.

    Args:
        boxes: The table that `box_statistics` returns.
        quantity: Name and number format of the metric or speedup that the boxes show.
        by: Columns of `boxes` whose values define a group, such as "family" and "device".
    """
    table = boxes.drop(columns="values")
    has_box = table["count"] >= MIN_POINTS_OF_BOX
    has_whiskers = table["count"] >= MIN_POINTS_OF_WHISKERS
    for column, is_known in (
        ("p2", has_whiskers),
        ("p9", has_box),
        ("p91", has_box),
        ("p98", has_whiskers),
    ):
        table[column] = table[column].where(is_known)
    known = boxes[boxes["count"] > 0]
    picture = None
    if len(known):
        picture = partial(draw_boxes, known, quantity, by)
    return Result(
        numbers=table,
        answer=_answer(known, quantity, by),
        sentences=[_box_sentence(row, quantity, by) for row in boxes.to_dict("records")],
        picture=picture,
        sources=(),
    )


def _answer(boxes: pd.DataFrame, quantity: _Quantity, by: Sequence[str]) -> AnalysisAnswer:
    """State the median of the only group, or the highest and the lowest median of all groups.

    Args:
        boxes: Rows of `box_statistics` with at least one value each.
        quantity: Name and number format of the metric or speedup.
        by: Columns of `boxes` whose values define a group.
    """
    points = int(boxes["count"].sum())
    if not points:
        return AnalysisAnswer(sentence=f"No point has {quantity.name}.", points=0)

    def format_median(row: Mapping[Any, Any]) -> str:
        ends = (row["p50"], row["median_low"], row["median_high"])
        note = counted(row["count"], "point")
        return format_with_interval(ends, quantity.format_value, note)

    ordered = boxes.sort_values("p50", ascending=False, kind="stable").to_dict("records")
    highest = ordered[0]
    lowest = ordered[-1]
    best = _describe_group(highest, by)
    if len(ordered) == 1:
        text = f"The median {quantity.name} of {best} is {format_median(highest)}"
    else:
        worst = _describe_group(lowest, by)
        text = (
            f"The median {quantity.name} is highest for {best}, "
            f"{format_median(highest)}, and lowest for {worst}, {format_median(lowest)}"
        )
    basis = str(highest["sample"]) if pd.notna(highest["median_low"]) else ""
    return AnalysisAnswer(sentence=f"{text}.", points=points, basis=basis)


def _describe_group(row: Mapping[Any, Any], by: Sequence[str]) -> str:
    """Return the name of a group for a sentence, such as "V100, batch size 64".

    Args:
        row: Row of the group in the table of `box_statistics`.
        by: Columns of the row whose values define the group.
    """
    parts = []
    for column in by:
        value = row[column]
        if pd.isna(value):
            parts.append(not_recorded(column))
        elif isinstance(value, str):
            parts.append(value)
        else:
            parts.append(f"{label(column)} {value}")
    return ", ".join(parts)


def _pooled_settings_sentences(
    points: pd.DataFrame, metric: str, by: Sequence[str]
) -> Iterator[str]:
    """Yield a warning if a box pools points that differ in a setting such as the precision.

    The warning covers the settings that change the operations of a step.

    Args:
        points: One row per point.
        metric: Column of the metric.
        by: Columns whose values define a group, and thus a box.
    """
    measured = points[points[metric].notna()]
    groups = measured.groupby(list(by), dropna=False)
    varying = [
        name
        for name in OPERATION_SETTINGS
        if name in measured and name not in by and (groups[name].nunique() > 1).any()
    ]
    if varying:
        names = ", ".join(varying)
        yield f"Boxes pool points that differ in {names}; --by separates them."


def box_statistics(
    frame: pd.DataFrame,
    metric: str,
    by: Sequence[str],
    order: Sequence[str] = (),
    unit: Unit = "crossed",
) -> pd.DataFrame:
    """Compute the percentiles of a metric by group, as in section 5.3 of the paper.

    Percentiles follow definition 7 of Hyndman and Fan (The American Statistician 50, 1996).

    Args:
        frame: Measured points, one per row. A point is a combination of hyperparameter values.
        metric: Column of the values.
        by: Columns whose values define the groups.
        order: Values of the first column in `by` whose groups come first, in this order, such as
            families. Other groups follow in ascending order.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).

    Returns:
        A row per group, with the columns `by` and

        - `label`: the values of `by` as text;
        - `count`: the number of points with a value;
        - `missing`: the number of points whose value is missing or infinite;
        - `p2`, `p9`, `p50`, `p91`, `p98`, `minimum`, `maximum`;
        - `median_low`, `median_high`: the 95% interval of the median; an end is NaN if the sample
          is too small for it;
        - `sample`: the sample behind the interval, as text, such as "23 models";
        - `outliers`: the number of values beyond the whiskers;
        - `values`: the values, ascending.
    """
    rows = []
    for key, group in frame.groupby(list(by), sort=True, dropna=False):
        row: dict[str, object] = dict(zip(by, key, strict=True))
        parts = pd.Series(key, dtype="object").fillna("(none)")
        row["label"] = ", ".join(parts.astype(str))
        rows.append(row | _statistics_of_group(group, metric, unit))
    columns = [
        *by,
        "label",
        "count",
        "missing",
        *_PERCENTILE_COLUMNS,
        "median_low",
        "median_high",
        "sample",
        "minimum",
        "maximum",
        "outliers",
        "values",
    ]
    table = pd.DataFrame(rows, columns=columns)
    # An unknown end of an interval is infinite in the estimate and NaN in the table.
    ends = ["median_low", "median_high"]
    table[ends] = table[ends].replace([np.inf, -np.inf], np.nan)
    positions = {name: position for position, name in enumerate(order)}
    return table.sort_values(
        by[0],
        key=lambda keys: keys.map(positions).fillna(len(positions)),
        kind="stable",
        ignore_index=True,
    )


def _statistics_of_group(group: pd.DataFrame, metric: str, unit: Unit) -> dict[str, object]:
    """Return the columns of `box_statistics` for one group, except `by` and `label`.

    Args:
        group: The points of the group, one per row.
        metric: Column of the values.
        unit: Sampling unit of the interval of the median: "crossed", "model" or "point".
    """
    numbers = group[metric].to_numpy(dtype="float64", na_value=np.nan)
    group = group.assign(value=numbers)
    known = group[np.isfinite(group["value"])]
    values = np.sort(known["value"].to_numpy())
    row: dict[str, object] = {
        "count": len(values),
        "missing": len(group) - len(values),
        "outliers": 0,
    }
    if not len(values):
        return row
    percentiles = np.percentile(values, PERCENTILES)
    row |= dict(zip(_PERCENTILE_COLUMNS, percentiles, strict=True))
    levels = shared_levels(known, unit)
    interval = crossed_quantile(known["value"], levels)
    row["median_low"] = interval.low
    row["median_high"] = interval.high
    row["sample"] = levels.description
    row["minimum"] = values[0]
    row["maximum"] = values[-1]
    row["values"] = values
    is_outlier = (values < percentiles[0]) | (values > percentiles[-1])
    row["outliers"] = int(is_outlier.sum())
    return row


def _box_sentence(row: Mapping[Any, Any], quantity: _Quantity, by: Sequence[str]) -> str:
    def format_range(low: str, high: str, conjunction: str = "and") -> str:
        low_text = quantity.format_value(row[low])
        return f"{low_text} {conjunction} {quantity.format_value(row[high])}"

    missing = ""
    if row["missing"]:
        missing = f"; {counted(row['missing'], 'point')} without a value omitted"
    group = _describe_group(row, by)
    if not row["count"]:
        return f"{group}: no point has {quantity.name}{missing}."
    interval = ""
    if pd.notna(row["median_low"]):
        ends = format_range("median_low", "median_high", "to")
        interval = f" (95% interval {ends} over {row['sample']})"
    median = quantity.format_value(row["p50"])
    points = counted(row["count"], "point")
    start = f"{group}: median {quantity.name} {median}{interval}; {points}{missing}."
    if row["count"] == 1:
        return start
    if row["count"] < MIN_POINTS_OF_BOX:
        extremes = format_range("minimum", "maximum", "to")
        return f"{start} They range from {extremes}; they are too few for percentiles."
    extremes = format_range("minimum", "maximum")
    whiskers = ""
    if row["count"] >= MIN_POINTS_OF_WHISKERS:
        whiskers = f", 96% between {format_range('p2', 'p98')}"
    box = format_range("p9", "p91")
    return f"{start} 82% lie between {box}{whiskers}; the extremes are {extremes}."


def draw_boxes(boxes: pd.DataFrame, quantity: _Quantity, by: Sequence[str]) -> drawing.Figure:
    """Draw a box for each group, with one row of the figure per group.

    A group has a box if it has at least 13 points, and whiskers if it has at least 51 points. In a
    group without a box, every point is a dot. Speedups have a line at 1. The scale is logarithmic
    for speedups, and for positive values that span more than a factor of 100.

    Args:
        boxes: Rows of `box_statistics` with at least one value each.
        quantity: Name and number format of the metric or speedup that the boxes show.
        by: Columns of `boxes` whose values define a group.

    Raises:
        ConfigError: If there are more than 30 groups.
    """
    rows = boxes.to_dict("records")
    if len(rows) > _MAX_BOXES:
        problem = f"{len(rows)} boxes do not fit one figure, which has at most {_MAX_BOXES}"
        raise ConfigError("--by", ",".join(by), problem, "select fewer runs with --where")
    longest = max(map(len, boxes["label"]))
    row_height = 0.32 if longest <= _SINGLE_LINE_CHARS else 0.65
    figure, (axes,) = drawing.panels(1, 8.0, 1.2 + row_height * len(rows))
    keys = [str(row[by[0]]) for row in rows]
    if by[0] == "family":
        known_keys = drawing.families_with(keys)
    else:
        known_keys = list(dict.fromkeys(keys))
    for position, (row, key) in enumerate(zip(rows, keys, strict=True)):
        _draw_box(axes, row, position, drawing.look(key, known_keys)["color"])
    if quantity.is_ratio:
        axes.axvline(1, color="#333333", linewidth=1, zorder=1)
    lowest = boxes["minimum"].min()
    highest = boxes["maximum"].max()
    is_wide = quantity.is_ratio or highest > _LOGARITHMIC_RATIO * lowest
    logs: dict[str, Callable[[float], str]] = {}
    if lowest > 0 and is_wide:
        logs["x"] = quantity.format_value
    else:
        axes.xaxis.set_major_formatter(lambda value, _: quantity.format_value(value))
    drawing.names(axes.yaxis, [f"{row['label']} ({row['count']})" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    title = f"{quantity.name} by {', '.join(map(label, by))}"
    x_label = f"{quantity.name_with_unit}\n{_describe_marks(boxes['count'].max())}"
    drawing.finish(axes, title, x_label, logs=logs, grid="x")
    return figure


def _draw_box(axes: drawing.Axes, row: Mapping[Any, Any], position: int, color: str) -> None:
    values = row["values"]
    low = row["p9"]
    high = row["p91"]
    if row["count"] >= MIN_POINTS_OF_WHISKERS:
        low = row["p2"]
        high = row["p98"]
    has_box = row["count"] >= MIN_POINTS_OF_BOX
    dots = values[(values < low) | (values > high)] if has_box else values
    axes.plot(
        dots,
        np.full(len(dots), position),
        drawing.MARKERS[0],
        color=_DARK_GRAY,
        markersize=3,
        alpha=0.6,
        zorder=2,
    )
    if not has_box:
        return
    statistics = {
        "med": row["p50"],
        "q1": row["p9"],
        "q3": row["p91"],
        "whislo": low,
        "whishi": high,
        "fliers": [],
    }
    axes.bxp(
        [statistics],
        positions=[position],
        orientation="horizontal",
        widths=0.55,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": color, "alpha": 0.55, "edgecolor": "#333333"},
        whiskerprops={"color": _DARK_GRAY},
        capprops={"color": _DARK_GRAY},
        medianprops={"color": drawing.COLORS[-1], "linewidth": 1.8},
    )


def _describe_marks(largest_count: int) -> str:
    """Return a text that explains bars, boxes, whiskers and dots below the axis of a figure.

    Args:
        largest_count: Number of points in the largest group. It decides which marks occur.
    """
    if largest_count < MIN_POINTS_OF_BOX:
        return f"dots: single points (a box needs {MIN_POINTS_OF_BOX})"
    parts = ["bar: median", "box: 9th to 91st percentile"]
    if largest_count >= MIN_POINTS_OF_WHISKERS:
        parts.append("whiskers: 2nd to 98th")
    parts.append("dots: points beyond")
    return ", ".join(parts)
