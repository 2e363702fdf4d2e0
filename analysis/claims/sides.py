"""The rows a check speaks of: runs of one side, points paired over two sides, operations of profiled runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from analysis.columns import join_columns
from analysis.lazy import pd
from analysis.operation_speedup import TYPE as _OPERATION
from analysis.operation_speedup import identity_columns
from analysis.statistics.pairing import RESULT_COLUMNS, pair
from analysis.store.conditions import Condition, Conditions, choose, in_words
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL

__all__ = ["Data", "paired_operations", "paired_points", "points", "require", "side", "versions"]


@dataclass
class Data:
    """A frame, how to read its operation tables, whether heterogeneous runs are pooled, and the level of intervals.

    `read_operations` takes runs and returns the rows of their operation tables with `run_id`; without it the shares
    in the frame's op_share.* columns stand for them. `used` gathers the ids of the runs that answers rest on, `pooled`
    what differed among runs that were pooled.
    """

    frame: pd.DataFrame
    read_operations: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    pool: bool = False
    level: float = LEVEL
    used: set[str] = field(default_factory=set)
    pooled: set[str] = field(default_factory=set)

    @cached_property
    def operations(self) -> pd.DataFrame:
        """A row for each operation type of each profiled run: run_id, type, share and whatever else was recorded."""
        profiled = [name for name in self.frame.columns if str(name).startswith("op_share.")]
        runs = self.frame[self.frame[profiled].notna().any(axis=1)] if profiled else self.frame.iloc[:0]
        if self.read_operations is not None and len(runs):
            table = self.read_operations(runs)
            if len(table):
                return table
        melted = runs.melt("run_id", profiled, _OPERATION, "share").dropna(subset="share")
        return melted.assign(type=melted.pop(_OPERATION).astype("str").str.removeprefix("op_share."))


def require(frame: pd.DataFrame, conditions: Conditions, what: str = "run") -> pd.DataFrame:
    """The rows that meet every condition, at least one; NotEnoughData names the first one that leaves none."""
    left, met = frame, dict[str, tuple[Condition, ...]]()
    for name, group in conditions.items():
        if name not in frame:
            raise NotEnoughData(f"no {what} says {name}")
        left, met[name] = choose(left, group, "condition"), group
        if left.empty:
            raise NotEnoughData(f"no {what}s with {in_words(met)}")
    if left.empty:
        raise NotEnoughData(f"no {what}s")
    return left


def side(data: Data, conditions: Conditions, metric: str | None = None) -> pd.DataFrame:
    """The runs that meet the conditions, homogeneous in environment and protocol unless pooled.

    With `metric` only ok runs that hold it. Raises NotEnoughData naming what there is none of, SchemaError for
    heterogeneous runs.
    """
    rows = require(data.frame, conditions)
    if metric is not None:
        rows = rows[is_ok(rows)]
        if rows.empty:
            raise NotEnoughData("none of these runs is ok")
        if metric not in rows or rows[metric].notna().sum() == 0:
            raise NotEnoughData(f"no {metric} was measured in these {len(rows)} runs")
        rows = rows[rows[metric].notna()]
    rows = require_homogeneous(rows, pool=data.pool)
    data.used.update(rows["run_id"])
    if rows.attrs.get("pooled"):
        data.pooled.add(rows.attrs["pooled"])
    return rows


def points(data: Data, conditions: Conditions, metric: str) -> pd.DataFrame:
    """A row for each point that was measured, replicates brought to their median."""
    return aggregate_replicates(side(data, conditions, metric))


def paired_points(
    data: Data, where: Conditions, a: Conditions, b: Conditions, metric: str, extra: Sequence[str] = ()
) -> pd.DataFrame:
    """`pair` of the two sides. Columns `extra` that identify no point, such as parameters, are those of side B.

    Runs that were tried and hold no metric make no pair, but say which points are missing on one side."""
    wanted_of = [{**where, **conditions} for conditions in (a, b)]
    sides = [side(data, conditions, metric) for conditions in wanted_of]
    tried = [require(data.frame, conditions) for conditions in wanted_of]
    both = [pd.concat([ok, rows[~is_ok(rows)]]) for ok, rows in zip(sides, tried, strict=True)]
    found = pair(both[0], both[1], metric)
    if found.empty:
        raise NotEnoughData(f"no point was measured on both sides, of {len(sides[0])} and {len(sides[1])} runs")
    wanted = [name for name in extra if name not in found and name in sides[1]]
    if wanted:
        keys = [name for name in found.columns if name not in RESULT_COLUMNS]
        values = sides[1].groupby(keys, dropna=False)[wanted].median(numeric_only=True).reset_index()
        found = found.merge(values, on=keys, how="left", validate="one_to_one")
    return found


def paired_operations(
    data: Data, where: Conditions, a: Conditions, b: Conditions, operations: Conditions, metric: str
) -> pd.DataFrame:
    """`pair` of operation types within points; B's operations are those that meet the conditions."""
    sides = []
    for conditions in (a, b):
        runs = side(data, {**where, **conditions})
        rows = data.operations.merge(runs[identity_columns(runs)], on="run_id")
        if rows.empty:
            raise NotEnoughData(f"none of {len(runs)} runs was profiled; measure with measure.profile=true")
        if metric not in rows or rows[metric].notna().sum() == 0:
            raise NotEnoughData(f"no {metric} in the operation tables")
        sides.append(rows.rename(columns={"type": _OPERATION}))
    chosen = require(sides[1].rename(columns={_OPERATION: "type"}), operations, "operation")
    sides[1] = chosen.rename(columns={"type": _OPERATION})
    keys, _ = join_columns(sides[0], sides[1])
    found = pair(sides[0], sides[1], metric, on=[*keys, _OPERATION])
    if found.empty:
        raise NotEnoughData("no operation was profiled on both sides")
    return found


def versions(data: Data, where: Conditions, column: str) -> list[str]:
    """The versions among the runs, oldest first; NotEnoughData for fewer than two."""
    rows = require(data.frame, where)
    found = sorted(set(rows[column].dropna().astype("str")), key=_version) if column in rows else []
    if len(found) < 2:
        raise NotEnoughData(f"one {column} alone: {found[0]}" if found else f"no run says {column}")
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
