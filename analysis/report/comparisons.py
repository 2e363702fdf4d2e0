"""Parts of a store against each other, where they measured the same points."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pandas as pd

from analysis.report.outline import REMEDIES, Item
from analysis.report.populations import Part
from analysis.report.sections import Budget, Missing, Section, carry_out
from analysis.store.frame import families, is_ok

__all__ = ["Pair", "compare_parts", "side_of"]

_COMPARED = 12  # pairs of parts that are tried
_SHOWN = 6  # comparisons that are in the page
_TELLING = ("device", "software.name", "host", "environment_id", "protocol_id")


@dataclass(frozen=True)
class Pair:
    """Two parts with points in common, and what was found of them."""

    a: Part
    b: Part
    sections: tuple[Section, ...]


def compare_parts(
    parts: Sequence[Part], frame: pd.DataFrame, options: Sequence[str], shared: argparse.Namespace, budget: Budget
) -> tuple[list[Pair], list[Missing]]:
    """The comparisons of any two parts that pair, and why others do not; more than can be shown are named."""
    pairs: list[Pair] = []
    missing: list[Missing] = []
    couples = list(combinations([part for part in parts if is_ok(part.rows).any()], 2))
    for number, (one, other) in enumerate(couples):
        if number >= _COMPARED or len(pairs) >= _SHOWN:
            missing.append(
                Missing(
                    "Comparisons",
                    "further parts",
                    f"{len(couples) - number} pairs of parts were not tried, to keep the page small",
                    "python -m analysis compare A B",
                )
            )
            break
        a, b = _ordered(one, other)
        found = _compare(a, b, f"c{number + 1}", frame, options, shared, budget)
        if isinstance(found, Missing):
            missing.append(found)
        else:
            pairs.append(found)
    return pairs, missing


def side_of(part: Part, other: Part, frame: pd.DataFrame) -> str:
    """The condition, as `compare` takes it, that chooses a part: the most readable that does, else its identity."""
    versions = [str(name) for name in frame.columns if str(name).startswith("version.")]
    for column in ("device", *versions, *_TELLING[1:]):
        value = part.one(column)
        if not value or value == other.one(column) or column not in frame:
            continue
        if int(frame[column].astype("str").eq(value).fillna(False).sum()) == len(part.rows):
            return f"{column}={value}"
    known = [column for column in ("device", "environment_id", "protocol_id", "schema_version") if part.one(column)]
    return " & ".join(f"{column}={part.one(column)}" for column in known)


def _ordered(one: Part, other: Part) -> tuple[Part, Part]:
    """On one device the later over the earlier; else as the parts stand."""
    if one.device == other.device and one.rows["start_time"].min() < other.rows["start_time"].min():
        return other, one
    return one, other


def _compare(
    a: Part, b: Part, key: str, frame: pd.DataFrame, options: Sequence[str], shared: argparse.Namespace, budget: Budget
) -> Pair | Missing:
    """Cell by cell, then against the size of the models, then operation by operation where both were profiled."""
    names, of = f"A is {a.name}; B is {b.name}.", f"{a.name} over {b.name}"
    sides = side_of(a, b, frame), side_of(b, a, frame)
    common = [name for name in families(a.rows) if name in families(b.rows)]
    if not common:
        return Missing("Comparison", of, "they have no model family in common", REMEDIES["compare"])
    alike = len(common) == len(families(a.rows)) == len(families(b.rows))
    narrowed = () if alike else ("--family", ",".join(common))
    reading = "Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."
    item = Item("compare", "Cell by cell", reading, (*sides, *narrowed))
    first = carry_out(item, frame, options, shared, key, of, budget)
    if isinstance(first, Missing):
        return replace(first, title="Comparison")
    named = ("--a", sides[0], "--b", sides[1], *narrowed)
    more = [Item("speedup", "What the speedup depends on", "Points above 1 are faster on A.", named)]
    if _profiled(a) and _profiled(b):
        more.append(
            Item(
                "speedup",
                "Operation by operation",
                "Speedup of the FLOP rate of each operation type.",
                (*named, "--operations"),
                "operations",
            )
        )
    found = [carry_out(item, frame, options, shared, key, of, budget) for item in more]
    sections = [first, *(section for section in found if isinstance(section, Section))]
    return Pair(a, b, tuple(replace(section, names=names) for section in sections))


def _profiled(part: Part) -> bool:
    names = [name for name in part.rows.columns if str(name).startswith("op_share.")]
    return bool(names) and bool(part.rows[names].notna().any(axis=None))
