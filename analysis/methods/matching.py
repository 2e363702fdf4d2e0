"""Which runs of two sides measured the same point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.methods.joining import describes, given_columns, is_place, join_columns, shown, values_of
from paradnn.errors import ConfigError

__all__ = ["Match", "Runs", "match", "stacked"]


@dataclass(frozen=True)
class Runs:
    """A side's measured runs (n,) with the number of their point, and which of them have a counterpart."""

    frame: pd.DataFrame
    group: np.ndarray[Any, Any]
    paired: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Match:
    """The runs of both sides and the columns that they were joined on (`keys`, the last of them the `further` ones).

    `points` has these columns of every point that both sides measured, whose numbers are `both`; `differ` are the
    columns that set the sides apart; `mixed` counts by column the points that are left out, since their runs on one
    side differ there and the other side does not tell which it means.
    """

    keys: list[str]
    sides: tuple[Runs, Runs]
    both: np.ndarray[Any, Any]
    points: pd.DataFrame
    further: tuple[str, ...] = ()
    differ: dict[str, tuple[str, str]] = field(default_factory=dict)
    mixed: dict[str, int] = field(default_factory=dict)

    def unpaired(self) -> tuple[int, int]:
        """How many points of each side have no counterpart."""
        a, b = (len(np.setdiff1d(side.group, self.both)) for side in self.sides)
        return a, b


def match(a: pd.DataFrame, b: pd.DataFrame, on: Sequence[str] | None = None) -> Match:
    """Match the runs of A with those of B by `join_columns`, or by the columns of `on`.

    Where runs of a point differ, on one side, in a further column, that is joined on as well if the other side holds
    one of these values, or as some of these runs none; else these points are left out. ConfigError where that leaves
    no point, or where columns were given.
    """
    keys, differ = join_columns(a, b) if on is None else given_columns(on, a, b)
    further: tuple[str, ...] = ()
    found = _by_keys(a, b, keys)
    mixed = list(_mixed(found))
    while on is None and (name := next(_telling(found, mixed), None)):
        further = (*further, name)
        found = _by_keys(a, b, [*keys, *further])
        mixed = list(_mixed(found))
    differ = {name: values for name, values in differ.items() if name not in further}
    if not mixed:
        return replace(found, differ=differ, further=further)
    left_out = np.unique(np.concatenate([one.groups for one in mixed]))
    if on is not None or len(left_out) == len(found.both):
        raise mixed[0].error(found)
    counts: dict[str, int] = {}
    for one in mixed:
        counts[one.column] = counts.get(one.column, 0) + len(one.groups)
    return replace(_by_keys(a, b, found.keys, left_out), differ=differ, further=further, mixed=counts)


def stacked(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The join columns of A's runs and below them B's, in types that compare: numbers with numbers, else text."""
    columns = {}
    for name in keys:
        parts = [a[name], b[name]]
        numeric = [pd.api.types.is_numeric_dtype(part) for part in parts]
        if numeric[0] != numeric[1]:
            parts = [part.astype("string").astype("object") for part in parts]
        columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


class _Mixed(NamedTuple):
    """Points (`groups`) whose runs on a side, 0 or 1, differ in a column that says what was computed, or where."""

    side: int
    column: str
    groups: np.ndarray[Any, Any]

    def error(self, found: Match) -> ConfigError:
        """That they are no replicates."""
        runs = found.sides[self.side]
        return ConfigError(
            f"runs of {'AB'[self.side]}",
            f"{self.column} = {shown(values_of(runs.frame.loc[runs.paired, self.column]))}",
            "are no replicates of one point, and the other side does not separate them",
            f"choose one {self.column}",
        )


def _by_keys(a: pd.DataFrame, b: pd.DataFrame, keys: list[str], left_out: Sequence[int] | np.ndarray = ()) -> Match:
    rows = stacked(a, b, keys)
    code = rows.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    groups = code[: len(a)], code[len(a) :]
    both = np.setdiff1d(np.intersect1d(*groups), left_out)
    sides = Runs(a, groups[0], np.isin(groups[0], both)), Runs(b, groups[1], np.isin(groups[1], both))
    points = rows.iloc[np.unique(code, return_index=True)[1][both]].reset_index(drop=True)
    return Match(keys, sides, both, points)


def _mixed(found: Match) -> Iterator[_Mixed]:
    for place, side in enumerate(found.sides):
        frame, group = side.frame[side.paired], side.group[side.paired]
        for name in frame.columns:
            if name in found.keys or not (describes(name) or is_place(name)):
                continue
            if frame[name].nunique(dropna=False) > 1:
                counts = frame[name].groupby(group).nunique(dropna=False)
                if (counts > 1).any():
                    yield _Mixed(place, name, counts.index[counts > 1].to_numpy())


def _telling(found: Match, mixed: Iterable[_Mixed]) -> Iterator[str]:
    """Columns of which the other side holds a value that runs of these points have, or as these none."""
    for one in mixed:
        if all(one.column in side.frame for side in found.sides):
            held = [side.frame.loc[np.isin(side.group, one.groups), one.column] for side in found.sides]
            if all(part.isna().any() for part in held) or values_of(held[0]) & values_of(held[1]):
                yield one.column
