"""`breakdown`: where the time of a step goes, over all profiled models of a family, by categories and types.

A profile's shares are of one step. A family's share of a category is the median over its models, with the interval of
order statistics over the models and batch sizes that points share: medians of several categories need not add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.format import short
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options, unit_option
from analysis.registry import analysis
from analysis.result import Headline, Paragraph, Result, pooled_within
from analysis.statistics.dependence import Unit, crossed_quantile, levels_of
from analysis.store.frame import aggregate_replicates, families, is_ok
from paradnn.core.errors import ParadnnError
from paradnn.core.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CATEGORY, _TYPE = "category_share.", "op_share."
_LEADING = 3  # types of operation that are named for a family
_NAMED = 12  # rows of the picture; smaller ones are counted in the axis' label
_COLUMNS = ["family", "level", "name", "models", "median", "low", "high", "sample", "q25", "q75"]


@dataclass(frozen=True, kw_only=True)
class BreakdownOptions(Options):
    """What intervals are over."""

    command = "breakdown"

    unit: Literal["crossed", "model", "point"] = unit_option()


class Shares(NamedTuple):
    """`categories` and `types` have a row for each family and name, the largest first: `_COLUMNS`, `low` and `high` the
    95% interval of the median. `categories` of runs without any, as published ones are, are their types. `without`
    counts measured points without a profile."""

    categories: pd.DataFrame
    types: pd.DataFrame
    without: int
    run_ids: tuple[str, ...]


@analysis(
    BreakdownOptions,
    summary="where the step's time goes: categories and types of operations by family",
    description="Median share of the profiled step that each category and type of operation takes, over the\n"
    "models of a family. Profiles are taken with measure.profile=true.",
    example="python -m analysis breakdown --family fc --figure breakdown.png",
    section="system",
    order=70,
    title="Where the step's time goes",
    reading="Median share of the profiled step, over the models of a family. What is blank ran in no known "
    "operation, or medians do not add up to the whole.",
)
def breakdown(frame: pd.DataFrame, options: BreakdownOptions) -> Result:
    """Median share of every category and type of operation, family by family.

    ParadnnError where no run was profiled, SchemaError for heterogeneous runs of a family on a device.
    """
    pooled = pooled_within(frame, ["family", "device"], options.pool)
    found = measure_shares(frame, options.unit)
    parts = [found.categories, *([] if found.types is found.categories else [found.types])]
    return Result(
        numbers=pd.concat([part for part in parts if len(part)], ignore_index=True),
        sentences=[*_sentences(found)],
        picture=lambda: draw_breakdown(found.categories),
        stands_out=_headline(found.categories),
        sources=found.run_ids,
        pooled=pooled,
    )


def _headline(shares: pd.DataFrame) -> Headline:
    row = shares[shares["models"] == shares["models"].max()].sort_values("median", ascending=False).iloc[0]
    return Headline(
        "What limits it",
        f"{row['name']} takes {short(row['median'], share=True)} of the step of {row['family']} in the median over "
        f"{row['models']} profiled models ({_interval(row, '95% interval ')}).",
    )


def _sentences(found: Shares) -> Iterator[Paragraph]:
    for family, rows in found.categories.groupby("family", sort=False):
        types = found.types[found.types["family"] == family].head(_LEADING).to_dict("records")
        leading = f"Leading types: {', '.join(map(_share, types))}."
        shares = ", ".join(map(_share, rows.head(_LEADING + 2).to_dict("records")))
        head = f"{family}, {counted(int(rows['models'].iloc[0]), 'profiled point')}: {shares}."
        yield Paragraph(head, (leading,) if types and found.types is not found.categories else ())
    if found.without:
        yield Paragraph(f"{found.without} measured points have no profile.")
    samples = "; ".join(dict.fromkeys(found.categories["sample"]))
    yield Paragraph(
        f"Shares are medians, with their 95% interval over {samples}, or the middle half where these are too few "
        "for one; medians need not add up to the whole."
    )


def _interval(row: Mapping[Any, Any], what: str = "") -> str:
    """The interval of a share, or where models are too few for one, the middle half."""
    known = math.isfinite(row["low"]) and math.isfinite(row["high"])
    low, high = (short(row[end], share=True) for end in (("low", "high") if known else ("q25", "q75")))
    return f"{what if known else 'middle half '}{low} to {high}"


def _share(row: Mapping[Any, Any]) -> str:
    interval = f" ({_interval(row)})" if row["models"] > 1 else ""
    return f"{row['name']} {short(row['median'], share=True)}{interval}"


def measure_shares(frame: pd.DataFrame, unit: Unit = "crossed") -> Shares:
    """Median shares of the profiled step by family; a category that a profile does not name has share 0 there.

    Replicates of a point count once, by their median. ParadnnError where no run was profiled.
    """
    rows = aggregate_replicates(frame)
    rows = rows[is_ok(rows)]
    held = [str(name) for name in rows if not str(name).endswith("_spread") and rows[name].notna().any()]
    categories, types = ([name for name in held if name.startswith(prefix)] for prefix in (_CATEGORY, _TYPE))
    if not categories and not types:
        raise ParadnnError("no measured run has category_share.* or op_share.*: set measure.profile=true")
    profiled = rows[rows[categories or types].notna().any(axis=1)]
    by_type = _shares(profiled, types, unit)
    used = frame.loc[frame["point_id"].isin(profiled["point_id"]) & is_ok(frame), "run_id"]
    by_category = _shares(profiled, categories, unit) if categories else by_type
    return Shares(by_category, by_type, len(rows) - len(profiled), tuple(used))


def _shares(rows: pd.DataFrame, columns: list[str], unit: Unit) -> pd.DataFrame:
    parts: list[list[object]] = []
    for family in families(rows):
        shares = rows.loc[rows["family"] == family, columns].astype("float64")
        shares = shares[shares.notna().any(axis=1)].fillna(0.0)
        levels = levels_of(rows.loc[shares.index], unit)
        own = []
        for column in shares.columns[shares.any()]:
            middle = crossed_quantile(shares[column], levels)
            ends = (end if math.isfinite(end) else np.nan for end in middle[1:])
            level, name = "category" if column.startswith(_CATEGORY) else "type", column.partition(".")[2]
            quarters = shares[column].quantile([0.25, 0.75])
            own.append([family, level, name, len(shares), middle.value, *ends, levels.words, *quarters])
        parts += sorted(own, key=lambda row: -row[4])  # type: ignore[operator]
    return pd.DataFrame(parts, columns=_COLUMNS)


def draw_breakdown(table: pd.DataFrame) -> Figure:
    """Median shares, the largest on top, a mark for each family with the interval of its median, or its middle half
    where models are too few for one. Marks stand beside each other, since medians do not sum to the whole step."""
    order = list(table.groupby("name")["median"].max().sort_values(ascending=False, kind="stable").index)
    named = order[:_NAMED]
    known = table["low"].notna() & table["high"].notna()
    table = table.assign(
        value=table["median"],
        low=table["low"].where(known, table["q25"]),
        high=table["high"].where(known, table["q75"]),
    )
    groups, looks = {}, {}
    everyone = drawing.families_with(table["family"].unique())
    for family, rows in table.groupby("family", sort=False):
        models = int(rows["models"].iloc[0])
        whole = known[rows.index].all()
        bar = "95% interval" if whole else "middle half of the models" if models > 1 else "one model"
        label = f"{family}: {counted(models, 'model')}, {bar}"
        groups[label] = rows[rows["name"].isin(named)].set_index("name")
        looks[label] = drawing.look(str(family), everyone)
    drawn, (axes,) = drawing.panels(1, 7.5, 1.2 + len(named) * (0.24 + 0.1 * len(groups)))
    drawing.forest(axes, {name: name for name in named}, groups, looks)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    what = "categories" if table["level"].iloc[0] == "category" else "types"
    rest = f"; {len(order) - len(named)} smaller ones are left out" if len(order) > len(named) else ""
    title = f"Where the step's time goes: {what} of operations"
    drawing.finish(axes, title, f"share of the profiled step, median{rest}")
    axes.yaxis.grid(False)
    drawing.legend(drawn)
    return drawn
