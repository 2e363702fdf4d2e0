"""`breakdown`: divide the time of profiled steps by category and type of operation.

A profile (measure.profile=true) states which share of the time of one step each operation takes.
For each family of models, the share of a category is the median over the family's points. A point
is one combination of hyperparameter values. The 95% interval of a median is based on order
statistics. It allows for the correlation of points that share a model or batch size. Medians of
several categories need not add up to 1. Points that differ in a setting which changes their
operations, such as the compile mode, form separate groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from analysis.columns import OPERATION_SETTINGS, settings, split_by_settings
from analysis.format import format_number, format_with_interval
from analysis.lazy import drawing, np, pd
from analysis.options import Options, unit_option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Highlight, Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, families, is_ok, profiling_remedy
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted
from paradnn.statistics.dependence import Unit, crossed_quantile, shared_levels

#: Prefixes of the columns with shares, by level of detail.
_PREFIXES = {"category": "category_share.", "type": "op_share."}
#: Maximum numbers of categories and of types that the sentences about a group name.
_NAMED_CATEGORIES = 5
_NAMED_TYPES = 3
#: Maximum number of rows in the figure.
_MAX_ROWS = 12

_COLUMNS = [
    "family",
    "settings",
    "level",
    "name",
    "points",
    "models",
    "median",
    "low",
    "high",
    "sample",
    "q25",
    "q75",
    "remaining",
]


@dataclass(frozen=True, kw_only=True)
class BreakdownOptions(Options):
    """Options of the command `breakdown`: the sampling unit of confidence intervals."""

    unit: Literal["crossed", "model", "point"] = unit_option()


@analysis(
    BreakdownOptions,
    summary="time of the profiled step by category and type of operation, for each family",
    example="python -m analysis breakdown --family fc --figure breakdown.png",
    section="system",
    order=70,
    title="Where the step's time goes",
    reading="Median share of the profiled step, over the points of a family. Time outside known "
    "operations is not shown. Medians need not add up to the whole.",
)
def breakdown(frame: pd.DataFrame, options: BreakdownOptions) -> Result:
    """Divide the time of profiled steps by category and type of operation, for each family.

    Args:
        frame: Runs, one per row.
        options: The sampling unit of confidence intervals, and whether to pool runs.

    Returns:
        The result. Its table is the first return value of `measure_shares`.

    Raises:
        ParadnnError: If no run was profiled.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    pooled = pooled_within(frame, ["family", "device"], pool=options.pool)
    points = aggregate_replicates(frame)
    points = points[is_ok(points)]
    table, profiled = measure_shares(points, options.unit)
    leading = table[table["level"] == table["level"].iloc[0]]
    types = table.drop(index=leading.index)
    is_source = frame["point_id"].isin(profiled["point_id"]) & is_ok(frame)
    return Result(
        numbers=table,
        sentences=[*_sentences(leading, types, points, profiled)],
        picture=lambda: draw_breakdown(leading),
        answer=_answer(leading),
        stands_out=_headline(leading),
        sources=tuple(frame.loc[is_source, "run_id"]),
        pooled=pooled,
    )


def _answer(shares: pd.DataFrame) -> AnalysisAnswer:
    """State the largest category of each group, and its share.

    Groups with the same largest category are listed together.

    Args:
        shares: Rows of `measure_shares` at one level, such as categories.
    """
    largest: dict[str, list[str]] = {}
    bases = []
    points = 0
    for _, rows in shares.groupby(["family", "settings"], sort=False):
        row = rows.sort_values("median", ascending=False, kind="stable").iloc[0].to_dict()
        points += int(row["points"])
        ends = (row["median"], row["low"], row["high"])
        share = format_with_interval(ends, partial(format_number, share=True))
        largest.setdefault(row["name"], []).append(f"{share} in {_group_name(row)}")
        if _has_interval(row):
            bases.append(str(row["sample"]))
    parts = [f"{name}, {', '.join(texts)}" for name, texts in largest.items()]
    return AnalysisAnswer(
        sentence=f"The largest part of the profiled step is {'; '.join(parts)}.",
        points=points,
        basis="; ".join(dict.fromkeys(bases)),
    )


def _headline(shares: pd.DataFrame) -> Highlight:
    """State the largest category of the group with the most points.

    Args:
        shares: Rows of `measure_shares` at one level, such as categories.
    """
    largest_group = shares[shares["points"] == shares["points"].max()]
    row = largest_group.sort_values("median", ascending=False).iloc[0]
    text = (
        f"{row['name']} takes {format_number(row['median'], share=True)} of the step of "
        f"{_group_name(row)} in the median over {_sample_size(row, 'profiled point')}"
    )
    interval = _format_interval(row)
    if interval:
        text += f" ({interval})"
    return Highlight("What limits it", f"{text}.")


def _sentences(
    shares: pd.DataFrame, types: pd.DataFrame, points: pd.DataFrame, profiled: pd.DataFrame
) -> Iterator[Paragraph]:
    """Yield a paragraph with the largest shares of each group, and remarks on the sample.

    Args:
        shares: Rows of `measure_shares` for categories of operations, or for types of operations if
            there are no categories.
        types: Rows for types if `shares` has rows for categories; otherwise empty.
        points: All measured points.
        profiled: The measured points with a profile.
    """
    keys = ["family", "settings"]
    for _, rows in shares.groupby(keys, sort=False):
        row = rows.iloc[0].to_dict()
        head = f"{_group_name(row)}, {_sample_size(row, 'profiled point')}"
        text = f"{head}: {_format_shares(rows, _NAMED_CATEGORIES)}."
        is_group = types["family"].eq(row["family"]) & types["settings"].eq(row["settings"])
        details: tuple[str, ...] = ()
        if is_group.any():
            details = (f"Leading types: {_format_shares(types[is_group], _NAMED_TYPES)}.",)
        yield Paragraph(text, details)
    missing = len(points) - len(profiled)
    if missing:
        verb = "has" if missing == 1 else "have"
        yield Paragraph(f"{counted(missing, 'measured point')} {verb} no profile.")
    varying = [name for name in settings(profiled) if name not in OPERATION_SETTINGS]
    if varying:
        names = ", ".join(f"{name} ({profiled[name].nunique(dropna=False)})" for name in varying)
        yield Paragraph(f"Points of a group may also differ in {names}.")
    samples = "; ".join(dict.fromkeys(shares["sample"]))
    yield Paragraph(
        f"Shares are medians, with 95% intervals over {samples}. If the points are too few for an "
        "interval, the range of their middle half is stated. Medians need not add up to the whole."
    )


def _group_name(row: Mapping[Any, Any]) -> str:
    """Return the family with the settings of a group, such as "fc, eager".

    Args:
        row: Row of the group in the table of `measure_shares`.
    """
    if not row["settings"]:
        return str(row["family"])
    return f"{row['family']}, {row['settings']}"


def _sample_size(row: Mapping[Any, Any], noun: str) -> str:
    """Return the size of a group as text, such as "12 profiled points of 2 models".

    Args:
        row: Row of the group in the table of `measure_shares`.
        noun: Noun for a point in the text, in the singular.
    """
    points = counted(int(row["points"]), noun)
    if row["models"] == row["points"]:
        return points
    return f"{points} of {counted(int(row['models']), 'model')}"


def _has_interval(row: Mapping[Any, Any]) -> bool:
    return math.isfinite(row["low"]) and math.isfinite(row["high"])


def _format_interval(row: Mapping[Any, Any]) -> str:
    """Return the 95% interval as text or, if it is unknown, the quartiles of the points.

    For a single point without an interval, the text is empty.

    Args:
        row: Row of `measure_shares` for one kind of operation.
    """
    if _has_interval(row):
        return f"95% interval {_format_range(row, 'low', 'high')}"
    if row["points"] > 1:
        return f"middle half {_format_range(row, 'q25', 'q75')}"
    return ""


def _format_range(row: Mapping[Any, Any], low: str, high: str) -> str:
    return f"{format_number(row[low], share=True)} to {format_number(row[high], share=True)}"


def _format_shares(rows: pd.DataFrame, limit: int) -> str:
    """Return the largest shares of a group and the sum of all other shares, as text.

    Args:
        rows: Rows of the group at one level of `measure_shares`, the largest share first.
        limit: Maximum number of shares that the text names.
    """
    texts = []
    for row in rows.head(limit).to_dict("records"):
        text = f"{row['name']} {format_number(row['median'], share=True)}"
        if _has_interval(row):
            text += f" ({_format_range(row, 'low', 'high')})"
        elif row["points"] > 1:
            text += f" ({_format_interval(row)})"
        texts.append(text)
    remaining = float(rows.head(limit)["remaining"].iloc[-1])
    if remaining >= 0.005:
        texts.append(f"everything else {format_number(remaining, share=True)}")
    return ", ".join(texts)


def measure_shares(
    points: pd.DataFrame, unit: Unit = "crossed"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compute the median share of each kind of operation in the profiled steps of a group.

    A group consists of points of the same family that agree in all settings that change their
    operations, such as the compile mode.

    Args:
        points: Measured points, one per row. Points without a profile are ignored.
        unit: Sampling unit of the confidence intervals: "crossed" (models and batch sizes),
            "model" (models, at fixed batch sizes) or "point" (single configurations).

    Returns:
        The shares, and the points that have a profile. The shares have a row for each level, group
        and kind of operation. Within a group, the largest share comes first. The columns are:

        - `family`, `settings`: the family and the settings of the group;
        - `level`: "category" or "type";
        - `name`: the category or type of operation;
        - `points`, `models`: the numbers of points and models in the group;
        - `median`, `low`, `high`: the median share with its 95% interval, NaN if the sample is too
          small; the share is 0 in a profile without this category or type;
        - `sample`: the sample behind the interval, as text, such as "23 models";
        - `q25`, `q75`: the quartiles;
        - `remaining`: the median, over points, of the share that is left after this kind of
          operation and all kinds in earlier rows of the group.

    Raises:
        ParadnnError: If no point has a profile.
    """
    columns_by_level = {
        level: _share_columns(points, prefix) for level, prefix in _PREFIXES.items()
    }
    first_level = next((columns for columns in columns_by_level.values() if columns), None)
    if first_level is None:
        raise ParadnnError(f"no measured run was profiled; {profiling_remedy(points)}")
    profiled = points[points[first_level].notna().any(axis=1)]
    parts = []
    for level, columns in columns_by_level.items():
        for family in families(profiled):
            rows = profiled[profiled["family"] == family]
            for text, group in split_by_settings(rows):
                shares = _group_shares(group, level, columns, unit)
                parts.append(shares.assign(family=family, settings=text, level=level))
    table = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return table[_COLUMNS], profiled


def _share_columns(points: pd.DataFrame, prefix: str) -> list[str]:
    return [
        str(name)
        for name in points
        if str(name).startswith(prefix)
        and not str(name).endswith("_spread")
        and points[name].notna().any()
    ]


def _group_shares(rows: pd.DataFrame, level: str, columns: list[str], unit: Unit) -> pd.DataFrame:
    """Return the rows of `measure_shares` for one group at one level.

    The columns `family`, `settings` and `level` are missing; the caller adds them.

    Args:
        rows: Profiled points of the group.
        level: "category" or "type".
        columns: Columns of `rows` with the shares of this level.
        unit: Sampling unit of the intervals of medians: "crossed", "model" or "point".
    """
    shares = rows[columns].astype("float64").dropna(how="all").fillna(0.0)
    shares = shares.loc[:, shares.any()]
    order = shares.median().sort_values(ascending=False, kind="stable").index
    shares = shares[order]
    remaining = (1 - shares.cumsum(axis=1)).clip(lower=0)
    sampled = rows.loc[shares.index]
    levels = shared_levels(sampled, unit)
    model_columns = [
        name for name in sampled if str(name).startswith("model.") and sampled[name].notna().any()
    ]
    models = len(sampled[["family", *model_columns]].drop_duplicates())
    found = []
    for column in shares:
        estimate = crossed_quantile(shares[column], levels)
        row = {
            "name": str(column).removeprefix(_PREFIXES[level]),
            "points": len(shares),
            "models": models,
            "median": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "sample": levels.description,
            "q25": shares[column].quantile(0.25),
            "q75": shares[column].quantile(0.75),
            "remaining": remaining[column].median(),
        }
        found.append(row)
    table = pd.DataFrame(found)
    # An unknown end of an interval is infinite in the estimate and NaN in the table.
    return table.replace({"low": -np.inf, "high": np.inf}, np.nan)


def draw_breakdown(table: pd.DataFrame) -> drawing.Figure:
    """Draw median shares of the profiled step, the largest on top, with a mark for each group.

    Error bars are 95% intervals. If a group has too few points for an interval, its bar covers the
    middle half of its points, and the legend says so. Shares are not stacked, since medians do not
    add up to the whole step.

    Args:
        table: Rows of `measure_shares` at one level.
    """
    largest = table.groupby("name")["median"].max().sort_values(ascending=False, kind="stable")
    named = list(largest.index[:_MAX_ROWS])
    names = [
        _group_name(row)
        for row in table[["family", "settings"]].drop_duplicates().to_dict("records")
    ]
    if table["settings"].any():
        known_names = names
    else:
        known_names = drawing.families_with(table["family"].unique())
    groups = {}
    styles = {}
    for _, rows in table.groupby(["family", "settings"], sort=False):
        first = rows.iloc[0].to_dict()
        group = _group_name(first)
        text, bars = _bars(rows)
        legend = f"{group}: {_sample_size(first, 'point')}, {text}"
        bars = bars.assign(name=rows["name"], value=rows["median"])
        groups[legend] = bars[bars["name"].isin(named)].set_index("name")
        styles[legend] = drawing.look(group, known_names)
    height = 1.2 + len(named) * (0.24 + 0.1 * len(groups))
    figure, (axes,) = drawing.panels(1, 7.5, height)
    drawing.forest(axes, {name: name for name in named}, groups, styles)
    axes.set_xlim(left=0)
    if table["level"].iloc[0] == "category":
        what = "categories"
    else:
        what = "types"
    x_label = "share of the profiled step, median"
    if len(largest) > len(named):
        x_label += f"; {len(largest) - len(named)} smaller ones are omitted"
    title = f"Where the step's time goes: {what} of operations"
    drawing.finish(axes, title, x_label, shares="x", grid="x")
    drawing.legend(figure)
    return figure


def _bars(rows: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return the ends of the error bars of a group, and a text that explains the bars.

    Args:
        rows: Rows of the group at one level of `measure_shares`.

    Returns:
        The text, such as "95% interval", and the ends in the columns `low` and `high`.
    """
    has_interval = rows["low"].notna() & rows["high"].notna()
    if has_interval.any():
        text = "95% interval" if has_interval.all() else "95% interval where known"
        return text, rows[["low", "high"]].where(has_interval)
    if rows["points"].iloc[0] > 1:
        return "middle half of the points", pd.DataFrame({"low": rows["q25"], "high": rows["q75"]})
    return "no interval", rows[["low", "high"]]
