"""`breakdown`: where the step's time goes, by categories and types of operations.

Where the time of a step goes, over all profiled models of a family: categories of operations, and leading types.

A profile's shares are of one step. A family's share of a category is the median over its models, with the interval of
order statistics over the models and batch sizes that points share: medians of several categories need not add up to 1.

Where the step's time goes: a mark for each category of operation in each family, with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from analysis.format import short
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options, unit_option
from analysis.registry import Remedy, analysis
from analysis.result import Headline, Paragraph, Result, pooled_within
from analysis.statistics.dependence import Unit, crossed_quantile, levels_of
from analysis.store.frame import aggregate_replicates, families, is_ok
from paradnn.errors import ParadnnError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LEADING = 3  # types of operation that are named for a family


@dataclass(frozen=True, kw_only=True)
class BreakdownOptions(Options):
    """What intervals are over."""

    command = "breakdown"

    unit: Literal["crossed", "model", "point"] = unit_option()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BreakdownResult(Result):
    """Median shares of the profiled step, of categories and of types of operations."""

    breakdown: Breakdown

    @property
    def table(self) -> pd.DataFrame:
        parts = [self.breakdown.categories, *([self.breakdown.types] if self.breakdown.level == "category" else [])]
        return pd.concat([part for part in parts if len(part)], ignore_index=True)

    def headline(self) -> Headline | None:
        shares = self.breakdown.categories
        row = shares[shares["models"] == shares["models"].max()].sort_values("median", ascending=False).iloc[0]
        words = (
            f"{row['name']} takes {short(row['median'], share=True)} of the step of {row['family']} in the median over "
            f"{row['models']} profiled models ({share_in_words(row)})."
        )
        return Headline("What limits it", words)

    def _figure(self) -> Figure:
        return draw_breakdown(self.breakdown)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of = self.breakdown
        for family, rows in of.categories.groupby("family", sort=False):
            models = rows["models"].iloc[0]
            shares = ", ".join(map(_share, rows.head(_LEADING + 2).to_dict("records")))
            types = of.types[(of.types["family"] == family) & (of.level == "category")].head(_LEADING)
            leading = f"Leading types: {', '.join(map(_share, types.to_dict('records')))}." if len(types) else ""
            head = f"{family}, {models} profiled point{'s' if models != 1 else ''}: {shares}."
            yield Paragraph(head, (leading,) if leading else ())
        if of.without:
            yield Paragraph(f"{of.without} measured points have no profile.")
        samples = "; ".join(dict.fromkeys(of.categories["sample"]))
        yield Paragraph(
            f"Shares are medians, with their 95% interval over {samples}, or the middle half where these are too few "
            "for one; medians need not add up to the whole."
        )


@analysis(
    BreakdownOptions,
    summary="where the step's time goes: categories and types of operations by family",
    description="Median share of the profiled step that each category and type of operation takes, over the\n"
    "models of a family. Profiles are taken with measure.profile=true.",
    example="python -m analysis breakdown --family fc --figure breakdown.png",
    section="system",
    order=70,
    title="Where the step's time goes",
    reading=(
        "Median share of the profiled step, over the models of a family. What is blank ran in no known "
        "operation, or medians do not add up to the whole."
    ),
    remedy=lambda rows: Remedy(("measure.profile=true",)),
)
def breakdown(frame: pd.DataFrame, options: BreakdownOptions) -> BreakdownResult:
    """Median share of every category and type of operation, family by family.

    ParadnnError where no run was profiled, SchemaError for heterogeneous runs of a family on a device.
    """
    pooled = pooled_within(frame, ["family", "device"], options.pool)
    shares = measure_shares(frame, options.unit)
    return BreakdownResult(breakdown=shares, sources=shares.run_ids, pooled=pooled)


def share_in_words(row: Mapping[Any, Any], what: str = "95% interval ") -> str:
    """The interval of a share, or where models are too few for one, the middle half."""
    known = math.isfinite(row["low"]) and math.isfinite(row["high"])
    low, high = (short(row[end], share=True) for end in (("low", "high") if known else ("q25", "q75")))
    return f"{what if known else 'middle half '}{low} to {high}"


def _share(row: Mapping[Any, Any]) -> str:
    interval = f" ({share_in_words(row, '')})" if row["models"] > 1 else ""
    return f"{row['name']} {short(row['median'], share=True)}{interval}"


_CATEGORY, _TYPE = "category_share.", "op_share."


@dataclass(frozen=True)
class Breakdown:
    """`categories` and `types` have a row for each family and name: family, level ("category" or "type"), name, models,
    median, low, high (95% interval of the median; NaN where models are too few), sample (what the interval is over),
    q25, q75; the largest first.

    `level` says what `categories` holds: runs without categories, as published ones are, are broken down by type.
    `without` counts measured points without a profile, `run_ids` the runs used.
    """

    level: str
    categories: pd.DataFrame
    types: pd.DataFrame
    without: int
    run_ids: tuple[str, ...]


def measure_shares(frame: pd.DataFrame, unit: Unit = "crossed") -> Breakdown:
    """Median shares of the profiled step by family; a category that a profile does not name has share 0 there.

    Replicates of a point count once, by their median. ParadnnError where no run was profiled.
    """
    rows = aggregate_replicates(frame)
    rows = rows[is_ok(rows)]
    found = {
        prefix: [
            name
            for name in rows.columns
            if str(name).startswith(prefix) and not name.endswith("_spread") and rows[name].notna().any()
        ]
        for prefix in (_CATEGORY, _TYPE)
    }
    prefix = _CATEGORY if found[_CATEGORY] else _TYPE
    if not found[prefix]:
        raise ParadnnError("no measured run has category_share.* or op_share.*: set measure.profile=true")
    profiled = rows[rows[found[prefix]].notna().any(axis=1)]
    used = frame.loc[frame["point_id"].isin(profiled["point_id"]) & is_ok(frame), "run_id"]
    return Breakdown(
        "category" if prefix == _CATEGORY else "type",
        _shares(profiled, found[prefix], prefix, unit),
        _shares(profiled, found[_TYPE], _TYPE, unit),
        len(rows) - len(profiled),
        tuple(used),
    )


def _shares(rows: pd.DataFrame, columns: list[str], prefix: str, unit: Unit) -> pd.DataFrame:
    parts = []
    for family in families(rows):
        shares = rows.loc[rows["family"] == family, columns].astype("float64")
        shares = shares[shares.notna().any(axis=1)].fillna(0.0)
        levels = levels_of(rows.loc[shares.index], unit)
        for column in columns:
            if not len(shares) or not shares[column].any():
                continue
            middle = crossed_quantile(shares[column], levels)
            parts.append(
                {
                    "family": family,
                    "level": "category" if prefix == _CATEGORY else "type",
                    "name": column.removeprefix(prefix),
                    "models": len(shares),
                    "median": middle.value,
                    "low": _known(middle.low),
                    "high": _known(middle.high),
                    "sample": levels.words,
                    "q25": shares[column].quantile(0.25),
                    "q75": shares[column].quantile(0.75),
                }
            )
    names = ["family", "level", "name", "models", "median", "low", "high", "sample", "q25", "q75"]
    table = pd.DataFrame(parts, columns=names)
    place = {family: number for number, family in enumerate(families(rows))}
    order = table.assign(place=table["family"].map(place)).sort_values(["place", "median"], ascending=[True, False])
    return order.drop(columns="place").reset_index(drop=True)


def _known(end: float) -> float:
    """An end of an interval; NaN for one that the sample is too small for."""
    return end if math.isfinite(end) else math.nan


_NAMED = 12  # rows; smaller ones are counted in the axis' label
_STEP = 0.7  # of a row's height that its families share


def draw_breakdown(found: Breakdown) -> Figure:
    """Median shares, the largest on top, a mark for each family with the interval of its median, or its middle half
    where models are too few for one. Marks stand beside each other, since medians do not sum to the whole step."""
    table = found.categories
    families = list(dict.fromkeys(table["family"]))
    order = list(table.groupby("name")["median"].max().sort_values(ascending=False, kind="stable").index)
    named = order[:_NAMED]
    drawn, axes = drawing.figure(7.5, 1.7 + len(named) * (0.24 + 0.1 * len(families)))
    look = drawing.families_with(families)
    for place, family in enumerate(families):
        rows = table[(table["family"] == family) & table["name"].isin(named)]
        offset = (place - (len(families) - 1) / 2) * _STEP / len(families)
        _marks(axes, rows, [named.index(name) + offset for name in rows["name"]], family, look)
    axes.set_yticks(range(len(named)), named)
    axes.set_ylim(len(named) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    what = "categories" if found.level == "category" else "types"
    rest = f"; {len(order) - len(named)} smaller ones are left out" if len(order) > len(named) else ""
    drawing.finish(
        axes, f"Where the step's time goes: {what} of operations", f"share of the profiled step, median{rest}"
    )
    axes.yaxis.grid(False)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return drawn


def _marks(axes: object, rows: pd.DataFrame, heights: list[float], family: str, look: list[str]) -> None:
    """One family's medians, each with its interval or the middle half of its models."""
    known = rows["low"].notna() & rows["high"].notna()
    low, high = rows["low"].where(known, rows["q25"]), rows["high"].where(known, rows["q75"])
    reach = np.array([rows["median"] - low, high - rows["median"]]).clip(min=0)
    models = int(rows["models"].iloc[0])
    bar = "95% interval" if known.all() else "middle half of the models" if models > 1 else "one model"
    axes.errorbar(  # type: ignore[attr-defined]
        rows["median"],
        heights,
        xerr=reach,
        fmt=drawing.marker_of(family, look),
        color=drawing.colour_of(family, look),
        markersize=5,
        capsize=2.5,
        linewidth=1.2,
        label=f"{family}: {models} model{'s' if models != 1 else ''}, {bar}",
    )
