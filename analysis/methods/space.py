"""The whole space that some runs are part of: what was measured of it, and a row for every point that was not.

Runs of a sweep that was a sample, or that chose its own points, tell of more points than they are. The space is the
grid that the values of the runs span, or one that is given. A row that was not measured stands in for the run that
there might have been: the same environment, protocol and session, other sizes. Memory grows with every size: what a
failure excludes is out of memory here as well, and what lies between fitting and failing goes by a regression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from analysis.methods.columns import Group, GroupKey
from analysis.methods.logistic import firth
from analysis.methods.memory import RAN_OUT, size_of
from analysis.store.frame import IDENTITY, aggregate_replicates, is_ok, require_homogeneous
from analysis.store.past import WORK, costs_of, is_key
from paradnn.design.frontier import excluded, fitting
from paradnn.errors import ConfigError, NotEnoughData

__all__ = ["EXCLUDED", "Space", "fill", "space_of"]

#: Points that a space may have: the interval of each takes draws of all of them together.
MOST_POINTS = 50_000
#: The outcome of a point that the memory frontier excludes.
EXCLUDED = "oom_predicted"

#: Columns that say when and how a run was measured: an unmeasured point stands in time as the measured ones do.
_CIRCUMSTANCES = ("start_time", "sweep_id", "host", "source", "protocol", "experiment", "store")


@dataclass(frozen=True)
class Space(GroupKey):
    """The points of one family on one device.

    `known` are all runs of the family, `runs` those of points of the space, failed ones among them. `others` has a row
    for every other point: its `outcome` is ok or `EXCLUDED`, by the `chance` that it runs out of memory, which is 0 or
    1 where that is proved. `keys` are the columns in which points differ. `measured`, `failed` and `excluded` count
    points. `beyond` says in words, by key, where the space goes beyond what was measured.
    """

    known: pd.DataFrame
    runs: pd.DataFrame
    others: pd.DataFrame
    keys: tuple[str, ...]
    measured: int
    failed: int
    beyond: Mapping[str, str]

    @property
    def excluded(self) -> int:
        """Unmeasured points that do not fit into memory."""
        return int((self.others["outcome"] == EXCLUDED).sum())

    @property
    def total(self) -> int:
        """All points, those that failed and those that do not fit among them."""
        return self.measured + self.failed + len(self.others)


def space_of(group: Group, given: pd.DataFrame | None = None, pool: bool = False) -> Space:
    """The space of a group's runs: the points of `given` (rows of keys), else the grid that the runs span.

    The grid is the product of the values of model.* and batch_size, for each combination of the other settings by
    itself; keys that went together in every point (a sweep with zipped axes) stay together. NotEnoughData where there
    is nothing to span, ConfigError where `given` does not say what a point is, SchemaError for heterogeneous runs.
    """
    rows = require_homogeneous(group.rows, pool=pool)
    rows = rows[rows["outcome"].notna()]
    points = aggregate_replicates(rows)
    if points.empty or not is_ok(points).any():
        ended = ", ".join(f"{count} {name}" for name, count in points["outcome"].value_counts().items())
        raise NotEnoughData(f"no point was measured ({ended})" if ended else "no point was tried")
    if given is None:
        keys = [name for name in _identities(points) if points[name].nunique(dropna=False) > 1]
        if not keys:
            raise NotEnoughData("all runs are of one point, so the space is one point")
        wanted = _spanned(points, keys)
    else:
        wanted, keys = _given(points, given, group)
    if len(wanted) > MOST_POINTS:
        raise ConfigError(
            "--space", f"{len(wanted):,} points", f"is more than {MOST_POINTS:,}", "name a smaller one with --space"
        )
    codes, known = _codes(wanted, keys), _codes(points, keys)
    inside = known.isin(set(codes))
    others = _rows_of(wanted[~codes.isin(set(known))], points, keys)
    others = _without_impossible(others, points)
    others["chance"] = _chances(others, points, keys)
    others["outcome"] = np.where(others["chance"] > 0.5, EXCLUDED, "ok")
    return Space(
        group.family,
        group.device,
        rows,
        rows[_codes(rows, keys).isin(set(codes)).to_numpy()],
        others.reset_index(drop=True),
        tuple(keys),
        int((is_ok(points) & inside).sum()),
        int((~is_ok(points) & inside).sum()),
        _beyond(others[others["outcome"] == "ok"], points[is_ok(points)], keys),
    )


def _identities(points: pd.DataFrame) -> list[str]:
    return [str(name) for name in points if is_key(str(name)) and points[name].notna().any()]


def _is_size(name: str) -> bool:
    """Whether values of a key are crossed with those of others, rather than a setting that points share."""
    return name.startswith("model.") or name == "batch_size"


def _spanned(points: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The grid of the values of sizes, for each combination of settings."""
    axes = [name for name in keys if _is_size(name)]
    settings = [name for name in keys if name not in axes]
    groups = points.groupby(settings, dropna=False, sort=False) if settings else [((), points)]
    parts = []
    for _, part in groups:
        bundles = [part[bundle].drop_duplicates() for bundle in _tied(part, axes)]
        if np.prod([float(len(bundle)) for bundle in bundles]) > MOST_POINTS:
            return pd.DataFrame(index=range(MOST_POINTS + 1))  # is refused
        grid = part[settings].head(1)
        for bundle in bundles:
            grid = grid.merge(bundle, how="cross")
        parts.append(grid)
    return pd.concat(parts, ignore_index=True)[list(keys)]


def _tied(points: pd.DataFrame, axes: Sequence[str]) -> list[list[str]]:
    """The axes, those together whose values went together in all points, and not by chance: on average twice each."""
    codes = {name: points[name].astype("category").cat.codes.to_numpy() for name in axes}
    bundles: list[list[str]] = []
    for name in axes:
        for bundle in bundles:
            pairs = len(set(zip(codes[bundle[0]], codes[name], strict=True)))
            if 1 < pairs == points[name].nunique() == points[bundle[0]].nunique() and len(points) >= 2 * pairs:
                bundle.append(name)
                break
        else:
            bundles.append([name])
    return bundles


def _given(points: pd.DataFrame, given: pd.DataFrame, group: Group) -> tuple[pd.DataFrame, list[str]]:
    """The given points of the group's family, and the keys that tell points apart.

    A setting that is the same in all given points and the same in all runs is that of the runs: the device was chosen.
    """
    mine = given[given["family"] == group.family] if "family" in given else given
    if mine.empty:
        raise NotEnoughData("the given space has no point of this family")
    wanted, keys = pd.DataFrame(index=mine.index), []
    for name in dict.fromkeys([*_identities(points), *_identities(mine)]):
        stated, held = (frame[name] if name in frame else pd.Series(dtype="object") for frame in (mine, points))
        varies = held.nunique(dropna=False) > 1
        if stated.notna().sum() == 0:
            if varies:
                raise ConfigError("--space", group.name, f"does not say {name}, which varies among the runs", "name it")
            continue
        if not varies and stated.nunique() == 1 and (not held.notna().any() or not _is_size(name)):
            continue
        wanted[name] = stated
        if varies or stated.nunique() > 1 or set(map(_plain, stated)) != set(map(_plain, held)):
            keys.append(name)
    if not keys:
        raise NotEnoughData("the given space is one point")
    return wanted[keys].drop_duplicates().reset_index(drop=True), keys


def _plain(value: object) -> str:
    """A value as text, equal for equal numbers."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        return f"{float(value):.12g}"
    return "null" if value is None or value is pd.NA else str(value).lower()


def _codes(points: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    columns = [points[name].astype("object").map(_plain) if name in points else ["null"] * len(points) for name in keys]
    return pd.Series(list(zip(*columns, strict=True)), index=points.index, dtype="object")


def _rows_of(wanted: pd.DataFrame, points: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """A row for each wanted point, with what it shares with the measured ones."""
    wanted = wanted.reset_index(drop=True)
    versions = [name for name in points if str(name).startswith("version.")]
    shared = ["family", "device", *IDENTITY, *_identities(points), *_CIRCUMSTANCES, *versions]
    ok = points[is_ok(points)]
    settings = [name for name in keys if not _is_size(name) and name in ok]
    known = _codes(ok, settings) if settings else pd.Series([()] * len(ok), index=ok.index)
    places = {code: np.flatnonzero(known == code) for code in set(known)}
    every, codes = np.arange(len(ok)), _codes(wanted, settings) if settings else [()] * len(wanted)
    chosen = [places.get(code, every) for code in codes]
    # In turn, so that unmeasured points are spread over sessions as the measured ones are.
    turn = [int(each[number % len(each)]) for number, each in enumerate(chosen)]
    rows = ok.iloc[turn][[name for name in dict.fromkeys(shared) if name in ok]].reset_index(drop=True)
    for name in keys:
        column = wanted[name]
        rows[name] = column.astype(points[name].dtype) if name in points else column
    place = " ".join(str(points[name].iloc[0]) for name in ("family", "device", *IDENTITY) if name in points)
    names = [f"unmeasured {number} of {place}" for number in range(len(rows))]
    rows = rows.assign(run_id=names, point_id=names)
    work = costs_of(rows)
    return rows.assign(**{name: work[name] for name in WORK if name in points})


def _without_impossible(others: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Without combinations that are no model, where measured ones are."""
    if costs_of(points.head(1))["parameters"].isna().any():
        return others
    return others[costs_of(others)["parameters"].notna()].reset_index(drop=True)


def _chances(others: pd.DataFrame, points: pd.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """The chance (n,) that each unmeasured point runs out of memory: by the frontier, and between what is proved to fit
    and to fail by a regression."""
    tried = points[is_ok(points) | points["outcome"].isin((*RAN_OUT, EXCLUDED))]
    failed = (~is_ok(tried)).to_numpy(dtype=bool)
    if not failed.any() or others.empty:
        return np.zeros(len(others))
    both = pd.concat([tried[list(keys)], others[list(keys)]], ignore_index=True)
    columns = {name: size_of(both[name]) for name in keys if _is_size(name)}
    sizes = np.column_stack([column for column in columns.values() if column is not None])
    settings = [name for name in keys if columns.get(name) is None]
    kinds = list(_codes(both, settings)) if settings else [()] * len(both)
    count = len(tried)
    known = (sizes[count:], kinds[count:], sizes[:count], kinds[:count], failed)
    fails = [proof is not None for proof in excluded(*known, list(tried["run_id"]))]
    return np.asarray(np.select([fitting(*known), fails], [0.0, 1.0], _by_size(tried, others, sizes, failed)))


def _by_size(tried: pd.DataFrame, others: pd.DataFrame, sizes: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """The chance (n,) that unmeasured points run out of memory, by a logistic regression on the analytic bound of
    memory, or on the sizes of a model whose bound is not known."""
    bounds = [np.log(costs_of(rows)["memory_lower_bound_bytes"].to_numpy()) for rows in (tried, others)]
    known = all(np.isfinite(bound).all() for bound in bounds)
    columns = np.concatenate(bounds)[:, None] if known else np.log2(sizes)
    columns = columns[:, np.ptp(columns, axis=0) > 0]
    design = np.column_stack([np.ones(len(columns)), columns - columns.mean(axis=0)])
    found = firth(design[: len(tried)], failed)[0]
    chances: np.ndarray = special.expit(design[len(tried) :] @ found)
    return chances


def _beyond(others: pd.DataFrame, points: pd.DataFrame, keys: Sequence[str]) -> dict[str, str]:
    """By key, in words, which values of unmeasured points lie outside those of the measured ones."""
    found = {}
    for name in keys if len(others) else ():
        held = points[name] if name in points else pd.Series(dtype="object")
        new = others[name][~others[name].map(_plain).isin(set(map(_plain, held)))]
        if pd.api.types.is_numeric_dtype(others[name]) and pd.api.types.is_numeric_dtype(held) and held.notna().any():
            new = new[(new < held.min()) | (new > held.max())]
            measured = f"{held.min():,} to {held.max():,}"
        else:
            measured = ", ".join(sorted(map(str, held.dropna().unique()))) or "none"
        if len(new):
            values = [str(value) for value in sorted(new.unique(), key=str)]
            found[name] = f"{', '.join(values[:4])}{' and more' if len(values) > 4 else ''} (measured {measured})"
    return found


def fill(frame: pd.DataFrame, others: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The runs, and below them the rows of unmeasured points, marked in the column `predicted`."""
    rows = pd.concat([frame, *others], ignore_index=True)
    rows["predicted"] = np.arange(len(rows)) >= len(frame)
    rows.attrs = dict(frame.attrs)
    return rows
