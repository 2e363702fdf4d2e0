"""Out of memory as an outcome: where memory ends, for each family on each device.

Two descriptions of the same points. The frontier assumes only that memory grows with every size, and says what is known
for certain; a logistic regression says which size fills memory fastest, and how likely it is that a point fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from analysis.methods.columns import Group, GroupKey, blocks_of, groups, hyperparameters
from analysis.methods.dependence import levels_of
from analysis.methods.logistic import firth, profile_interval
from analysis.methods.regression import Lacking, independent_columns
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.design.frontier import Frontier, Side
from paradnn.errors import NotEnoughData

__all__ = ["RAN_OUT", "GroupMemory", "Memory", "memory", "size_of"]

#: Outcomes of points that ran out of memory when they were tried.
RAN_OUT = ("oom_device", "oom_host")

#: Sizes that take less memory of a device the larger they are, and numbers that are no size.
_FALLING = ("model.patch", "devices")
_NO_SIZE = ("model.dropout", "model.label_smoothing")


@dataclass(frozen=True)
class GroupMemory(GroupKey):
    """One family on one device.

    `points` has a row for each point that fitted or ran out of memory: its hyperparameters, `failed`, `side` (what the
    frontier of the others says, `frontier.Side`), `edge` (whether it is one of the smallest that failed or of the
    largest that fitted) and `chance` (of running out, by the regression of the other models; NaN without one), the
    smallest first. `weights`: a row for each size, with `weight` (what doubling it adds to the log-odds), `low`,
    `high`; None where all fitted or none did. `left_out` counts points
    that say nothing of memory, by outcome; `numbers` (rows of `points`, in order) are the sizes that they differ in,
    `collinear` those that have no weight of their own. `intercept` is the log-odds at the sizes' geometric means.
    """

    points: pd.DataFrame
    numbers: pd.DataFrame
    weights: pd.DataFrame | None
    intercept: float
    left_out: Mapping[str, int]
    collinear: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[int, int, float]:
        """(points on whose side the others agree, how many of these are on the other one, the share of all points that
        the regression without their model has on the wrong side)."""
        said = self.points["side"].isin([Side.FITS, Side.FAILS])
        missed = said & (self.points["side"].eq(Side.FAILS) != self.points["failed"])
        false = (self.points["chance"] > 0.5) != self.points["failed"]
        return int(said.sum()), int(missed.sum()), float(false.mean())


@dataclass(frozen=True)
class Memory:
    """Every group; `lacking` says why others have none, `run_ids` are the runs used."""

    groups: tuple[GroupMemory, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each point, those at the edge first."""
        parts = []
        for group in self.groups:
            part = group.points.copy()
            part.insert(0, "family", group.family)
            part.insert(1, "device", group.device)
            parts.append(part.sort_values("edge", ascending=False, kind="stable"))
        return pd.concat(parts, ignore_index=True)


def memory(frame: pd.DataFrame, pool: bool = False) -> Memory:
    """Where memory ends, for each family on each device, over points: replicates count once, ok where any is.

    Points compare where they agree in all that is no size, such as the precision. Only what was tried counts: a
    predicted outcome is none. NotEnoughData without a group in which sizes differ, SchemaError for heterogeneous runs
    of one.
    """
    found, lacking, used = [], [], []
    for group in groups(frame):
        try:
            found.append(_group(group, pool))
        except NotEnoughData as problem:
            lacking.append(Lacking(group.name, str(problem)))
            continue
        used += list(group.rows["run_id"])
    if not found:
        raise NotEnoughData("not enough data", lacking, "measure points of several sizes")
    return Memory(tuple(found), tuple(lacking), tuple(used))


def _group(group: Group, pool: bool) -> GroupMemory:
    rows = aggregate_replicates(require_homogeneous(group.rows, pool=pool))
    tells = is_ok(rows) | rows["outcome"].isin(RAN_OUT)
    left_out = rows.loc[~tells, "outcome"].fillna("unfinished").value_counts()
    rows = rows[tells].reset_index(drop=True)
    names = [name for name in hyperparameters(rows) if rows[name].nunique(dropna=False) > 1]
    numbers = {name: size for name in names if (size := size_of(rows[name])) is not None and name not in _NO_SIZE}
    if not numbers:
        raise NotEnoughData("no size varies among the points that were tried" if len(rows) else "no point was tried")
    sizes, failed = pd.DataFrame(numbers), (~is_ok(rows)).to_numpy(dtype=bool)
    rising = sizes * [-1.0 if name in _FALLING else 1.0 for name in sizes]
    words = [name for name in names if name not in numbers]
    side, edge = _frontiers(
        rising.to_numpy(), failed, rows[words].astype("str").agg(" ".join, axis=1) if words else None
    )
    fit = _Regression.of(sizes, rows, failed) if failed.any() and not failed.all() else None
    points = rows[names].assign(failed=failed, side=side, edge=edge)
    score = np.log(np.maximum(sizes, 1e-300)).sum(axis=1) if fit is None else fit.odds
    points["chance"] = np.nan if fit is None else fit.chance
    order = np.argsort(score, kind="stable")
    return GroupMemory(
        group.family,
        group.device,
        points.iloc[order].reset_index(drop=True),
        sizes.iloc[order].reset_index(drop=True),
        None if fit is None else fit.weights,
        np.nan if fit is None else fit.intercept,
        {str(outcome): int(count) for outcome, count in left_out.items()},
        () if fit is None else fit.collinear,
    )


def size_of(column: pd.Series) -> pd.Series | None:
    """A column of numbers above zero or of lists of blocks as float64; None for what is no size."""
    if pd.api.types.is_bool_dtype(column) or column.isna().any():
        return None
    if pd.api.types.is_numeric_dtype(column):
        return column.astype("float64") if (column > 0).all() else None
    totals = {value: blocks_of(value) for value in column.unique()}
    return column.map(lambda value: float(sum(totals[value] or ()))) if all(totals.values()) else None


def _frontiers(sizes: np.ndarray, failed: np.ndarray, words: pd.Series | None) -> tuple[np.ndarray, np.ndarray]:
    """(what the others say of each point, whether it lies at the edge), among points that agree in `words`."""
    side, edge = np.full(len(failed), Side.OPEN.value, dtype=object), np.zeros(len(failed), dtype=bool)
    kinds = np.zeros(len(failed), dtype="int64") if words is None else words.astype("category").cat.codes.to_numpy()
    for kind in np.unique(kinds):
        here = np.flatnonzero(kinds == kind)
        side[here] = Frontier.sides_by_others(sizes[here], failed[here])
        found = Frontier.fit(sizes[here], failed[here])
        for outcome, ends in ((True, found.failed), (False, found.fitted)):
            at = (sizes[here][:, None] == ends[None]).all(axis=2).any(axis=1)
            edge[here] |= at & (failed[here] == outcome)
    return side, edge


@dataclass(frozen=True)
class _Regression:
    weights: pd.DataFrame
    intercept: float
    odds: np.ndarray
    chance: np.ndarray
    collinear: tuple[str, ...]

    @classmethod
    def of(cls, sizes: pd.DataFrame, rows: pd.DataFrame, failed: np.ndarray) -> _Regression:
        """The log-odds on binary logarithms of the sizes, and of each point by the other models."""
        logs = np.log2(sizes.to_numpy(dtype="float64"))
        kept, collinear = independent_columns(logs, list(map(str, sizes)))
        design = np.column_stack([np.ones(len(logs)), logs[:, kept] - logs[:, kept].mean(axis=0)])
        found, height = firth(design, failed)
        ends = [profile_interval(design, failed, found, height, place) for place in range(1, len(found))]
        weights = pd.DataFrame(
            ends, index=pd.Index([sizes.columns[i] for i in kept], name="size"), columns=["low", "high"]
        )
        weights.insert(0, "weight", found[1:])
        codes = levels_of(rows, "model").codes[0]
        chance = _by_others(design, failed, found, codes)
        return cls(weights, float(found[0]), design @ found, chance, tuple(collinear))


def _by_others(design: np.ndarray, failed: np.ndarray, start: np.ndarray, code: np.ndarray) -> np.ndarray:
    """The chance of each point with all points of its level left out of the fit, (n,)."""
    chance = np.empty(len(failed))
    for level in np.unique(code):
        held = code == level
        chance[held] = special.expit(design[held] @ firth(design[~held], failed[~held], start)[0])
    return chance
