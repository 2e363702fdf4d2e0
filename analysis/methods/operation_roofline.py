"""Roofline of operations, of one run or of many: which of the time memory limits, which arithmetic, which the links
between devices, and which none of them can explain.

Starts from the operation tables that profiled runs hold (`operations.json`, or by type `operation_types.json`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.roofline import Roof, Verdict, verdict

__all__ = [
    "MINIMUM_SHARE",
    "TRANSFERS",
    "OperationRoofline",
    "OperationsOfModels",
    "operation_roofline",
    "operations_of_models",
]

#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01

#: Types whose bytes go from device to device, which says nothing of either's memory.
TRANSFERS = re.compile(
    r"cross-replica|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective|nccl", re.IGNORECASE
)


@dataclass(frozen=True)
class OperationRoofline:
    """The operations of a run under its roof.

    `operations` has one row for each operation that has a place, greatest share of the time first: name, type, share
    (of the profiled time), flops_per_second, arithmetic_intensity (FLOP/B), attainable (FLOP/s), roof_share, verdict,
    drawn (whether it takes `minimum_share` of the time). `time` maps each verdict to its share of the time,
    `without_flops` is the share of operations without FLOPs, `unplaced` of those with FLOPs but no rate or traffic,
    `covered` the share of the time that the whole table accounts for.
    """

    roof: Roof
    operations: pd.DataFrame
    time: Mapping[Verdict, float]
    without_flops: float
    unplaced: float
    covered: float
    minimum_share: float


@dataclass(frozen=True)
class OperationsOfModels:
    """The types of operation of many profiled models under their roofs.

    `operations` has the columns of `OperationRoofline.operations` and before them run_id, device and precision; a row
    for each type in each model. `models` has a row a model: run_id, device, precision, the share of its profiled time
    under each verdict (columns named by its value), `without_flops`, `unplaced` and `covered`. `left_out` counts, by
    reason, the rows of the tables that are not drawn.
    """

    roofs: tuple[Roof, ...]
    operations: pd.DataFrame
    models: pd.DataFrame
    left_out: Mapping[str, int]
    minimum_share: float


_COLUMNS = [
    "name",
    "type",
    "share",
    "flops_per_second",
    "arithmetic_intensity",
    "attainable",
    "roof_share",
    "verdict",
    "drawn",
]


def operation_roofline(table: pd.DataFrame, roof: Roof, minimum_share: float = MINIMUM_SHARE) -> OperationRoofline:
    """Place operations under a roof. Columns as in an operation table; without `operation`, rows are types.

    An operation's place is its own FLOPs / bytes and FLOPs / second while it runs. Those without FLOPs, such as data
    formatting, have no place; their time is reported, not dropped. Exchanges between devices have a place but neither
    of the roof's limits: their bytes cross links, whose rate the roof does not hold.
    """
    rows = _placed(table, roof, minimum_share)
    found = rows[rows["placed"]].sort_values("share", ascending=False, kind="stable").reset_index(drop=True)
    time = {name: float(found.loc[found["verdict"] == name, "share"].sum()) for name in Verdict}
    return OperationRoofline(
        roof=roof,
        operations=found[_COLUMNS],
        time=time,
        without_flops=float(rows.loc[~rows["works"], "share"].sum()),
        unplaced=float(rows.loc[rows["works"] & ~rows["placed"], "share"].sum()),
        covered=float(rows["share"].sum()),
        minimum_share=minimum_share,
    )


def operations_of_models(
    types: pd.DataFrame, models: pd.DataFrame, roofs: tuple[Roof, ...], minimum_share: float = MINIMUM_SHARE
) -> OperationsOfModels:
    """Place the types of operation of many models, as `operation_roofline` does those of one (paper, Figure 3b).

    `types` are operation tables with the column run_id (`analysis.store.operations.load_types`), `models` says the
    device and precision of each run_id. Without a row all parts are empty.
    """
    keyed = types.merge(models[["run_id", "device", "precision"]], on="run_id")
    parts = [
        _placed(keyed[(keyed["device"] == roof.device) & (keyed["precision"] == roof.precision)], roof, minimum_share)
        for roof in roofs
    ]
    keys = ["run_id", "device", "precision"]
    rows = pd.concat(parts, ignore_index=True) if parts else _placed(keyed, Roof("", "", None, None, "", ""), 0)
    time = {
        name.value: rows["share"].where(rows["placed"] & rows["verdict"].eq(name.value), 0.0) for name in Verdict
    } | {
        "without_flops": rows["share"].where(~rows["works"], 0.0),
        "unplaced": rows["share"].where(rows["works"] & ~rows["placed"], 0.0),
        "covered": rows["share"],
    }
    shares = rows[keys].assign(**time).groupby(keys, sort=False, as_index=False).sum()
    left_out = {
        "without FLOPs": int((~rows["works"]).sum()),
        "without a rate or traffic of their own": int((rows["works"] & ~rows["placed"]).sum()),
        f"below {100 * minimum_share:g}% of the time": int((rows["placed"] & ~rows["drawn"]).sum()),
    }
    found = rows.loc[rows["placed"], [*keys, *_COLUMNS]].reset_index(drop=True)
    return OperationsOfModels(
        roofs, found, shares, {reason: count for reason, count in left_out.items() if count}, minimum_share
    )


def _placed(table: pd.DataFrame, roof: Roof, minimum_share: float) -> pd.DataFrame:
    """The rows of a table with what `OperationRoofline.operations` holds, and whether each `works` (has FLOPs) and is
    `placed` (has a rate and an intensity as well)."""
    names = table["operation"] if "operation" in table else table["type"]
    numbers = table[["share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]].apply(
        pd.to_numeric, errors="coerce"
    )
    rows = table.assign(**numbers, name=names.astype("str"), type=table["type"].astype("str"))
    works = (rows["flops"] > 0) | (rows["arithmetic_intensity"] > 0)
    placed = works & (rows["arithmetic_intensity"] > 0) & (rows["flops_per_second"] > 0)
    placed &= np.isfinite(rows["arithmetic_intensity"]) & np.isfinite(rows["flops_per_second"])
    attainable = roof.attainable(rows["arithmetic_intensity"])
    limits = verdict(rows["arithmetic_intensity"], roof)
    limits[rows["type"].str.contains(TRANSFERS).to_numpy(dtype=bool)] = Verdict.TRANSFER.value
    return rows.assign(
        attainable=attainable,
        roof_share=rows["flops_per_second"] / attainable,
        verdict=limits,
        drawn=placed & (rows["share"] >= minimum_share),
        works=works,
        placed=placed,
    )
