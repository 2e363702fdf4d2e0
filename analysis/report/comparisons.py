"""Populations of a store against each other, where they measured the same points, and the verdict on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from analysis.analyses.compare import CompareOptions, CompareResult, compare
from analysis.analyses.speedup import SpeedupOptions, SpeedupResult, speedup
from analysis.labels import label
from analysis.options import Selection
from analysis.report.outline import Item, Missing
from analysis.report.populations import Population
from analysis.report.remedies import supply
from analysis.report.sections import Context, Finding, Section, run_section
from analysis.statistics.contrast import Verdict
from analysis.statistics.pairing import sampling
from analysis.statistics.sessions import REMEDY, Standing
from analysis.store.frame import families, is_ok
from paradnn.core.words import counted

__all__ = ["Comparison", "compare_populations", "compared", "decides", "side_of"]

_TRIED = 12  # pairs of populations that are tried
_SHOWN = 6  # comparisons that are in the page
_TELLING = ("software.name", "host", "environment_id", "protocol_id")
_SAID = ("device", "platform.name")  # what the names of systems say
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
        return Missing("Comparison", of, "they have no model family in common", supply(compare, a))
    same = len(common) == len(families(a.rows)) == len(families(b.rows))
    narrowed = () if same else common
    reading = "Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."
    cells = Item(
        compare, CompareOptions(a=side_a, b=side_b), "Cell by cell", reading, narrowed, remedy=supply(compare, a)
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


def compared(comparison: Comparison) -> Iterator[Finding]:
    """A sentence for each family that both measured; families that say the same for the same reason in one."""
    anchor = comparison.sections[0].anchor
    a, b = comparison.a.name, comparison.b.name
    for row in comparison.result.families.to_dict("records"):
        if row["points"]:
            yield Finding("Which is faster", _sentence(row, a, b, comparison), anchor)
    differ = comparison.result.comparison.cells.attrs.get("differ", {})
    # What one side alone records, the section of the comparison lists.
    known = {name: values for name, values in differ.items() if name not in _SAID and "(none)" not in values}
    told = [f"{label(name)} ({one} / {two})" for name, (one, two) in known.items()]
    if told:
        words = f"{a} and {b} also differ in {', '.join(told)}: the ratios include that."
        yield Finding("Which is faster", words, anchor)


def _sentence(row: Mapping[Any, Any], a: str, b: str, comparison: Comparison) -> str:
    ratio = _Ratio(row, a, b)
    models, verdict = f"{row['family']} models", row["verdict"]
    if verdict in (Verdict.A_BETTER, Verdict.B_BETTER):
        return f"{ratio.faster} is faster on {models}: {ratio.words}."
    if verdict == Verdict.SAME:
        margin = comparison.result.comparison.margin
        return f"{a} and {b} are equally fast on {models}, within {margin:.0%}: {ratio.words}."
    if verdict == Verdict.WITHHELD:
        return f"No verdict on {models} between {a} and {b}: {_why(row, a, b, comparison)}. As measured, {ratio.words}."
    if verdict == Verdict.NOT_SHOWN:
        return f"No difference between {a} and {b} is shown on {models}: {ratio.words}."
    return f"Not enough data on {models} for {a} and {b}: {ratio.words}."


class _Ratio:
    """The geometric mean of a family, told from the side that is ahead."""

    def __init__(self, row: Mapping[Any, Any], a: str, b: str) -> None:
        self.ahead = row["geometric_mean"] >= 1
        self.faster, self.slower = (a, b) if self.ahead else (b, a)
        ends = [row[name] for name in ("geometric_mean", "geometric_mean_low", "geometric_mean_high")]
        mean, low, high = ends if self.ahead else (1 / ends[0], 1 / ends[2], 1 / ends[1])
        interval = f"95% CI {low:.3g} to {high:.3g}" if np.isfinite(low) and np.isfinite(high) else "no interval"
        wins = row["wins"] if self.ahead else row["points"] - row["wins"]
        self.words = (
            f"{self.faster} runs {mean:.3g} times as fast as {self.slower} ({interval}) in the geometric mean over "
            f"{counted(row['points'], 'point')} that both measured, and is ahead in {wins}"
        )


def _why(row: Mapping[Any, Any], a: str, b: str, comparison: Comparison) -> str:
    """Why sessions allow no verdict, and what to do."""
    design = sampling(comparison.result.comparison.cells, str(row["family"])).design
    first, second = (counted(count, "session") for count in design.sessions)
    reasons = {
        Standing.ALONE: f"{a} was measured in {first} and {b} in {second} of their own, and what a session does to "
        "all of its runs cannot be told from the difference",
        Standing.APART: "one was measured before the other, and a drift cannot be told from the difference",
        Standing.UNKNOWN: "when they were measured is not recorded, so their sessions cannot be told apart",
    }
    return f"{reasons.get(design.standing, 'their sessions do not allow one')}; {REMEDY}"


def decides(comparison: Comparison) -> Finding | None:
    """What the ratio depends on most, in the family with most points that has a regression."""
    for section in comparison.sections:
        if not isinstance(section.result, SpeedupResult) or not section.result.speedup.fits:
            continue
        fit = max(section.result.speedup.fits, key=lambda one: one.regression.clusters)
        weights = fit.regression.weights
        told = weights[(weights["low"] > 0) | (weights["high"] < 0)]
        if not len(told):
            return None
        term = str(told["weight"].abs().idxmax())
        row = told.loc[term]
        doubling = ""
        if term in fit.logarithms and fit.log_response:
            doubling = f"; doubling it multiplies the ratio by {2 ** row['slope']:.2f}"
        words = (
            f"How {comparison.a.name} stands to {comparison.b.name} on {fit.family} models depends most on "
            f"{label(term)}: weight {row['weight']:+.2f} (95% CI {row['low']:+.2f} to {row['high']:+.2f}){doubling}."
        )
        return Finding("What it depends on", words, section.anchor)
    return None
