"""Populations of a store against each other, where they measured the same points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pandas as pd

from analysis.options import Selection
from analysis.report.outline import Item, Missing
from analysis.report.populations import Population
from analysis.report.remedies import remedy
from analysis.report.sections import Context, Section, run_section
from analysis.store.frame import families, is_ok
from analysis.summaries.compare import CompareOptions, CompareResult, compare
from analysis.summaries.speedup import SpeedupOptions, speedup

__all__ = ["Comparison", "compare_populations", "side_of"]

_TRIED = 12  # pairs of populations that are tried
_SHOWN = 6  # comparisons that are in the page
_TELLING = ("software.name", "host", "environment_id", "protocol_id")
_IDENTITY = ("device", "environment_id", "protocol_id", "schema_version", "task")


@dataclass(frozen=True)
class Comparison:
    """Two populations with points in common, what was found of them, and the sections that show it."""

    a: Population
    b: Population
    result: CompareResult
    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        """Such as "TPU v2 over V100"."""
        return f"{self.a.name} over {self.b.name}"


def compare_populations(
    populations: Sequence[Population], frame: pd.DataFrame, selection: Selection, context: Context
) -> tuple[list[Comparison], list[Missing]]:
    """The comparisons of any two populations that pair, and why others do not; more than can be shown are counted."""
    comparisons: list[Comparison] = []
    missing: list[Missing] = []
    couples = list(combinations([one for one in populations if is_ok(one.rows).any()], 2))
    for number, (one, other) in enumerate(couples):
        if number >= _TRIED or len(comparisons) >= _SHOWN:
            left = f"{len(couples) - number} pairs of populations were not tried, to keep the page small"
            missing.append(Missing("Comparisons", "further populations", left, "python -m analysis compare A B"))
            break
        a, b = _ordered(one, other)
        outcome = _compare(a, b, f"c{number + 1}", frame, selection, context)
        if isinstance(outcome, Missing):
            missing.append(outcome)
        else:
            comparisons.append(outcome)
    return comparisons, missing


def side_of(population: Population, other: Population, frame: pd.DataFrame) -> str:
    """The condition, as `compare` takes it, that chooses a population: the most readable one, else its identity."""
    versions = [str(name) for name in frame.columns if str(name).startswith("version.")]
    for column in ("device", *versions, *_TELLING):
        value = population.value(column)
        if value is None or value == other.value(column):
            continue
        if int(frame[column].astype("str").eq(value).fillna(False).sum()) == len(population.rows):
            return f"{column}={value}"
    values = {column: population.value(column) for column in _IDENTITY}
    return " & ".join(f"{column}={value}" for column, value in values.items() if value is not None)


def _ordered(one: Population, other: Population) -> tuple[Population, Population]:
    """On one device the later over the earlier; else as the populations stand."""
    if one.device == other.device and one.rows["start_time"].min() < other.rows["start_time"].min():
        return other, one
    return one, other


def _compare(
    a: Population, b: Population, key: str, frame: pd.DataFrame, selection: Selection, context: Context
) -> Comparison | Missing:
    """Cell by cell, then against the size of the models, then operation by operation where both were profiled."""
    of = f"{a.name} over {b.name}"
    side_a, side_b = side_of(a, b, frame), side_of(b, a, frame)
    common = tuple(name for name in families(a.rows) if name in families(b.rows))
    if not common:
        return Missing("Comparison", of, "they have no model family in common", remedy("compare", a))
    same = len(common) == len(families(a.rows)) == len(families(b.rows))
    narrowed = () if same else common
    reading = "Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."
    cells = Item(
        compare, CompareOptions(a=side_a, b=side_b), "Cell by cell", reading, narrowed, remedy=remedy("compare", a)
    )
    first = run_section(cells, frame, selection, key, of, context)
    if isinstance(first, Missing):
        return replace(first, title="Comparison")
    options = SpeedupOptions(a=(side_a,), b=(side_b,))
    items = [Item(speedup, options, "What the speedup depends on", f"Points above 1 are faster on {a.name}.", narrowed)]
    if a.profiled().any() and b.profiled().any():
        options = replace(options, operations=True)
        reading = "Speedup of the FLOP rate of each operation type."
        items.append(Item(speedup, options, "Operation by operation", reading, narrowed, "operations"))
    more = [run_section(item, frame, selection, key, of, context) for item in items]
    sections = [first, *(section for section in more if isinstance(section, Section))]
    assert isinstance(first.result, CompareResult)
    called = zip(first.result.sides.called, (a.name, b.name), strict=True)
    names = "; ".join(f"{side} is {name}" for side, name in called if side != name)
    named = tuple(replace(section, names=f"{names}." if names else "") for section in sections)
    return Comparison(a, b, first.result, named)
