"""`breakdown`: where the time of a step goes, over all profiled models of a family, by categories
and types.

A profile's shares (measure.profile=true) are of one step. A family's share of a category is the
median over its models, with the interval of order statistics over the models and batch sizes that
points share: medians of several categories need not add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, unit_option
from analysis.registry import analysis
from analysis.result import Highlight, Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, families, is_ok
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted
from paradnn.statistics.dependence import Unit, crossed_quantile, levels_of

_PREFIXES = {"category": "category_share.", "type": "op_share."}
_LEADING = 3  # types of operation that are named for a family
_NAMED = 12  # rows of the picture; smaller ones are counted in the axis' label

_COLUMNS = ["family", "level", "name", "models", "median", "low", "high", "sample", "q25", "q75"]


@dataclass(frozen=True, kw_only=True)
class BreakdownOptions(Options):
    """What intervals are over."""

    unit: Literal["crossed", "model", "point"] = unit_option()


@analysis(
    BreakdownOptions,
    summary="where the step's time goes: categories and types of operations by family",
    example="python -m analysis breakdown --family fc --figure breakdown.png",
    section="system",
    order=70,
    title="Where the step's time goes",
    reading="Median share of the profiled step, over the models of a family. What is blank ran in no known "
    "operation, or medians do not add up to the whole.",
)
def breakdown(frame: pd.DataFrame, options: BreakdownOptions) -> Result:
    """The rows of `measure_shares`, and its error; SchemaError for heterogeneous runs of a family
    on a device.
    """
    pooled = pooled_within(frame, ["family", "device"], options.pool)
    points = aggregate_replicates(frame)
    points = points[is_ok(points)]
    table, profiled = measure_shares(points, options.unit)
    leading = table[table["level"] == table["level"].iloc[0]]
    return Result(
        numbers=table,
        sentences=[
            *_sentences(leading, table.drop(index=leading.index), len(points) - len(profiled))
        ],
        picture=lambda: draw_breakdown(leading),
        stands_out=_headline(leading),
        sources=tuple(
            frame.loc[frame["point_id"].isin(profiled["point_id"]) & is_ok(frame), "run_id"]
        ),
        pooled=pooled,
    )


def _headline(shares: pd.DataFrame) -> Highlight:
    row = (
        shares[shares["models"] == shares["models"].max()]
        .sort_values("median", ascending=False)
        .iloc[0]
    )
    return Highlight(
        "What limits it",
        f"{row['name']} takes {short(row['median'], share=True)} of the step of {row['family']} in the median over "
        f"{row['models']} profiled models ({_interval(row, '95% interval ')}).",
    )


def _sentences(shares: pd.DataFrame, types: pd.DataFrame, without: int) -> Iterator[Paragraph]:
    """`types` beside shares of categories; none where the shares are of types."""
    for family, rows in shares.groupby("family", sort=False):
        leading = ", ".join(
            map(_share, types[types["family"] == family].head(_LEADING).to_dict("records"))
        )
        words = ", ".join(map(_share, rows.head(_LEADING + 2).to_dict("records")))
        head = f"{family}, {counted(int(rows['models'].iloc[0]), 'profiled point')}: {words}."
        yield Paragraph(head, (f"Leading types: {leading}.",) if leading else ())
    if without:
        yield Paragraph(f"{without} measured points have no profile.")
    samples = "; ".join(dict.fromkeys(shares["sample"]))
    yield Paragraph(
        f"Shares are medians, with their 95% interval over {samples}, or the middle half where these are too few "
        "for one; medians need not add up to the whole."
    )


def _interval(row: Mapping[Any, Any], what: str = "") -> str:
    """The interval of a share, or where models are too few for one, the middle half."""
    known = math.isfinite(row["low"]) and math.isfinite(row["high"])
    low, high = (
        short(row[end], share=True) for end in (("low", "high") if known else ("q25", "q75"))
    )
    return f"{what if known else 'middle half '}{low} to {high}"


def _share(row: Mapping[Any, Any]) -> str:
    interval = f" ({_interval(row)})" if row["models"] > 1 else ""
    return f"{row['name']} {short(row['median'], share=True)}{interval}"


def measure_shares(
    points: pd.DataFrame, unit: Unit = "crossed"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Median shares of the profiled step, and the points that have a profile; ParadnnError where
    none has.

    A row for each level (category, then type), family and name, the largest first: family, level,
    name, models, median, its 95% interval low and high over `sample`, q25 and q75. What a profile
    does not name has share 0 there.
    """
    held = [
        str(name)
        for name in points
        if not str(name).endswith("_spread") and points[name].notna().any()
    ]
    levels = {
        level: [name for name in held if name.startswith(prefix)]
        for level, prefix in _PREFIXES.items()
    }
    columns = next(filter(None, levels.values()), None)
    if columns is None:
        raise ParadnnError(
            "no measured run has category_share.* or op_share.*: set measure.profile=true"
        )
    profiled = points[points[columns].notna().any(axis=1)]
    parts = [
        _shares(profiled[profiled["family"] == family], level, columns, unit)
        for level, columns in levels.items()
        for family in families(profiled)
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True), profiled


def _shares(rows: pd.DataFrame, level: str, columns: list[str], unit: Unit) -> pd.DataFrame:
    """The rows of a family at a level."""
    shares = rows[columns].astype("float64").dropna(how="all").fillna(0.0)
    levels = levels_of(rows.loc[shares.index], unit)
    found = list[list[Any]]()
    for column in shares.columns[shares.any()]:
        numbers = [
            end if math.isfinite(end) else np.nan
            for end in crossed_quantile(shares[column], levels)
        ]
        named = [rows["family"].iloc[0], level, column.removeprefix(_PREFIXES[level]), len(shares)]
        quarters = [shares[column].quantile(share) for share in (0.25, 0.75)]
        found.append([*named, *numbers, levels.words, *quarters])
    found.sort(key=lambda row: -float(row[4]))
    return pd.DataFrame(found, columns=_COLUMNS)


def draw_breakdown(table: pd.DataFrame) -> drawing.Figure:
    """Median shares, the largest on top, a mark for each family with the interval of its median, or
    its middle half where models are too few for one. Marks stand beside each other, since medians
    do not sum to the whole step.
    """
    order = list(
        table.groupby("name")["median"].max().sort_values(ascending=False, kind="stable").index
    )
    named = order[:_NAMED]
    known = table["low"].notna() & table["high"].notna()
    ends = {
        end: table[end].where(known, table[other])
        for end, other in (("low", "q25"), ("high", "q75"))
    }
    groups = {}
    looks = {}
    everyone = drawing.families_with(table["family"].unique())
    for family, rows in table.assign(value=table["median"], **ends).groupby("family", sort=False):
        models = int(rows["models"].iloc[0])
        whole = known[rows.index].all()
        if whole:
            bar = "95% interval"
        elif models > 1:
            bar = "middle half of the models"
        else:
            bar = "one model"
        label = f"{family}: {counted(models, 'model')}, {bar}"
        groups[label] = rows[rows["name"].isin(named)].set_index("name")
        looks[label] = drawing.look(str(family), everyone)
    drawn, (axes,) = drawing.panels(1, 7.5, 1.2 + len(named) * (0.24 + 0.1 * len(groups)))
    drawing.forest(axes, {name: name for name in named}, groups, looks)
    axes.set_xlim(left=0)
    if table["level"].iloc[0] == "category":
        what = "categories"
    else:
        what = "types"
    if len(order) > len(named):
        rest = f"; {len(order) - len(named)} smaller ones are left out"
    else:
        rest = ""
    title = f"Where the step's time goes: {what} of operations"
    drawing.finish(axes, title, f"share of the profiled step, median{rest}", shares="x", grid="x")
    drawing.legend(drawn)
    return drawn
