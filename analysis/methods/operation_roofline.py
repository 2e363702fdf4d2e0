"""Roofline of one run's operations: which of its time memory limits, which arithmetic, and which neither can explain.

Starts from the operation table that a profiled run holds (`operations.json`, or by type `operation_types.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.methods.roofline import Roof, Verdict, verdict

__all__ = ["MINIMUM_SHARE", "OperationRoofline", "operation_roofline"]

#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01


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


def operation_roofline(table: pd.DataFrame, roof: Roof, minimum_share: float = MINIMUM_SHARE) -> OperationRoofline:
    """Place operations under a roof. Columns as in an operation table; without `operation`, rows are types.

    An operation's place is its own FLOPs / bytes and FLOPs / second while it runs. Those without FLOPs, such as data
    formatting, have no place; their time is reported, not dropped.
    """
    names = table["operation"] if "operation" in table else table["type"]
    numbers = table[["share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]].apply(
        pd.to_numeric, errors="coerce"
    )
    rows = numbers.assign(name=names.astype("str"), type=table["type"].astype("str"))
    works = (rows["flops"] > 0) | (rows["arithmetic_intensity"] > 0)
    placed = works & (rows["arithmetic_intensity"] > 0) & (rows["flops_per_second"] > 0)
    placed &= np.isfinite(rows["arithmetic_intensity"]) & np.isfinite(rows["flops_per_second"])
    found = rows[placed].sort_values("share", ascending=False, kind="stable").reset_index(drop=True)
    attainable = roof.attainable(found["arithmetic_intensity"])
    found = found.assign(
        attainable=attainable,
        roof_share=found["flops_per_second"] / attainable,
        verdict=verdict(found["arithmetic_intensity"], roof),
        drawn=found["share"] >= minimum_share,
    )[
        [
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
    ]
    time = {name: float(found.loc[found["verdict"] == name, "share"].sum()) for name in Verdict}
    return OperationRoofline(
        roof=roof,
        operations=found,
        time=time,
        without_flops=float(rows.loc[~works, "share"].sum()),
        unplaced=float(rows.loc[works & ~placed, "share"].sum()),
        covered=float(rows["share"].sum()),
        minimum_share=minimum_share,
    )
