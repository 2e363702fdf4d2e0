"""Where the time of a step goes, over all profiled models of a family: categories of operations, and leading types.

A profile's shares are of one step. A family's share of a category is the median over its models, with the interval of
order statistics over the models and batch sizes that points share: medians of several categories need not add up to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from analysis.methods.dependence import Unit, crossed_quantile, levels_of
from analysis.store.frame import aggregate_replicates, families, is_ok
from paradnn.errors import ParadnnError

__all__ = ["Breakdown", "breakdown"]

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


def breakdown(frame: pd.DataFrame, unit: Unit = "crossed") -> Breakdown:
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
