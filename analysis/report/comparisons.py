"""Populations of a store against each other, where they measured the same points, and the verdict
on them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from analysis.analyses.compare import CompareOptions, compare
from analysis.analyses.speedup import SpeedupOptions, speedup
from analysis.format import format_distinct
from analysis.labels import label
from analysis.options import Selection
from analysis.prices import PRICE
from analysis.registry import SectionSpec
from analysis.report.populations import Population
from analysis.report.sections import Context, KeyFinding, Missing, Section
from analysis.sides import Compared
from analysis.store.frame import families, is_ok
from paradnn.core.words import counted
from paradnn.statistics.contrast import Verdict
from paradnn.statistics.sessions import REMEDY, SessionOverlap, get_sampling

FASTER = "Which is faster"
COSTS = "What it costs"
_TRIED = 12  # pairs of populations that are tried
_SHOWN = 6  # comparisons that are in the page
_TELLING = ("software.name", "host", "environment_id", "protocol_id")
_SAID = ("device", "platform.name")  # what the names of systems say
_IDENTITY = ("device", "environment_id", "protocol_id", "schema_version", "task")
#: Why sessions allow no verdict.
_REASONS = {
    SessionOverlap.ALONE: "one was measured in {}, the other in {} of their own, and what a session does to all of its runs "
    "cannot be told from the difference",
    SessionOverlap.APART: "one was measured before the other, and a drift cannot be told from the difference",
    SessionOverlap.UNKNOWN: "when they were measured is not recorded, so their sessions cannot be told apart",
}


class SystemComparison(NamedTuple):
    """Two populations with points in common, what was found of them, and the sections that show it."""

    a: Population
    b: Population
    result: Compared
    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        """Such as "TPU v2 over V100"."""
        return f"{self.a.name} over {self.b.name}"

    @property
    def rows(self) -> list[dict[Any, Any]]:
        """The families of which both have points."""
        return [row for row in self.result.families.to_dict("records") if row["points"]]


def compare_populations(
    populations: Sequence[Population], frame: pd.DataFrame, selection: Selection, context: Context
) -> list[SystemComparison]:
    """The comparisons of any two populations that pair; why others do not, and how many were not
    tried, is missing.
    """
    comparisons: list[SystemComparison] = []
    couples = list(combinations([one for one in populations if is_ok(one.rows).any()], 2))
    for number, pair in enumerate(couples):
        if number >= _TRIED or len(comparisons) >= _SHOWN:
            left = f"{len(couples) - number} pairs of populations were not tried, to keep the page small: compare A B"
            context.missing.append(Missing("Comparisons", "further populations", left))
            break
        # On one device the later over the earlier; else as the populations stand.
        begun = [one.rows["start_time"].min() for one in pair]
        a, b = pair[::-1] if pair[0].device == pair[1].device and begun[0] < begun[1] else pair
        comparisons += _compare(a, b, f"c{number + 1}", frame, selection, context)
    return comparisons


def side_of(population: Population, other: Population, frame: pd.DataFrame) -> str:
    """The condition, as `compare` takes it, that chooses a population: the most readable one, else
    its identity.
    """
    versions = [str(name) for name in frame.columns if str(name).startswith("version.")]
    for column in ("device", *versions, *_TELLING):
        value = population.value(column)
        if value is None or value == other.value(column):
            continue
        if int(frame[column].astype("str").eq(value).fillna(False).sum()) == len(population.rows):
            return f"{column}={value.replace(' & ', ' ? ')}"  # " & " divides conditions, and ? stands for any letter
    values = {column: population.value(column) for column in _IDENTITY}
    return " & ".join(
        f"{name}={value.replace(' & ', ' ? ')}"
        for name, value in values.items()
        if value is not None
    )


def _compare(
    a: Population,
    b: Population,
    key: str,
    frame: pd.DataFrame,
    selection: Selection,
    context: Context,
) -> Iterator[SystemComparison]:
    """Cell by cell, then against the size of the models, then operation by operation where both
    were profiled.
    """
    of = f"{a.name} over {b.name}"
    sides = (side_of(a, b, frame), side_of(b, a, frame))
    common = tuple(name for name in families(a.rows) if name in families(b.rows))
    if not common:
        context.missing.append(Missing("Comparison", of, "they have no model family in common"))
        return
    if len(common) == len(families(a.rows)) == len(families(b.rows)):
        narrowed = ()
    else:
        narrowed = common

    def made(one: Any, options: Any, title: str, reading: str, name: str = "") -> Section | None:
        return context.section(
            one, SectionSpec(options, title, reading, narrowed, name), frame, selection, key, of
        )

    reading = "Each mark is a point that both measured; the bar is the geometric mean with its 95% interval."
    first = made(
        compare, CompareOptions(a=sides[0], b=sides[1]), "Comparison, cell by cell", reading
    )
    if first is None:
        return
    options = SpeedupOptions(a=sides[:1], b=sides[1:])
    reading = f"Points above 1 are faster on {a.name}."
    more = [made(speedup, options, "What the speedup depends on", reading)]
    if a.profiled().any() and b.profiled().any():
        reading = "Speedup of the FLOP rate of each operation type."
        more.append(
            made(
                speedup,
                replace(options, operations=True),
                "Operation by operation",
                reading,
                "operations",
            )
        )
    assert isinstance(first.result, Compared)
    yield SystemComparison(a, b, first.result, tuple(each for each in (first, *more) if each))


def compared(comparison: SystemComparison) -> Iterator[KeyFinding]:
    """A sentence for each family that both measured, and what else sets the two apart."""
    anchor, (a, b) = comparison.sections[0].anchor, (comparison.a.name, comparison.b.name)
    for row in comparison.rows:
        yield KeyFinding(FASTER, _sentence(row, a, b, comparison), anchor)
    differ = comparison.result.cells.attrs.get("differ", {})
    # What one side alone records, the section of the comparison lists.
    known = {
        name: values
        for name, values in differ.items()
        if name not in _SAID and "(none)" not in values
    }
    said = [f"{label(name)} ({one} / {two})" for name, (one, two) in known.items()]
    if said:
        yield KeyFinding(
            FASTER,
            f"{a} and {b} also differ in {', '.join(said)}: the ratios include that.",
            anchor,
        )


def _told(row: Mapping[Any, Any], factor: float = 1.0) -> tuple[bool, float, float, str]:
    """A geometric mean from the side that is ahead: whether that is the first, mean, low end, both
    in words.
    """
    mean, low, high = (row[f"geometric_mean{end}"] * factor for end in ("", "_low", "_high"))
    ahead = mean >= 1
    mean, low, high = (mean, low, high) if ahead else (1 / mean, 1 / high, 1 / low)
    known = abs(low) < float("inf") and abs(high) < float("inf")
    return (
        ahead,
        mean,
        low,
        "95% CI {1} to {2}".format(*format_distinct(mean, low, high)) if known else "no interval",
    )


def _sentence(row: Mapping[Any, Any], a: str, b: str, comparison: SystemComparison) -> str:
    ahead, mean, _, interval = _told(row)
    faster, slower = (a, b) if ahead else (b, a)
    wins = row["wins"] if ahead else row["points"] - row["wins"]
    models = f"{row['family']} models"
    verdict = row["verdict"]
    words = (
        f"{faster} runs {format_distinct(1, mean)[1]} times as fast as {slower} ({interval}) in the geometric mean over "
        f"{counted(row['points'], 'point')} that both measured"
    ) + f", and is ahead in {wins}" * (verdict != Verdict.SAME)
    alone = row["missing_a"] + row["missing_b"]
    if alone:
        words += (
            f"; the interval allows for {counted(alone, 'point')} that ran on one of them alone"
        )
    if verdict == Verdict.WITHHELD:
        design = get_sampling(comparison.result.cells, str(row["family"])).design
        reason = _REASONS.get(design.overlap, "their sessions do not allow one")
        why = reason.format(*(counted(count, "session") for count in design.sessions))
        return f"No verdict on {models} between {a} and {b}: {why}; {REMEDY}. As measured, {words}."
    begin = {
        Verdict.A_BETTER: f"{faster} is faster on {models}",
        Verdict.B_BETTER: f"{faster} is faster on {models}",
        Verdict.SAME: f"{a} and {b} are equally fast on {models}, within {comparison.result.asked.margin:.0%}",
        Verdict.NOT_SHOWN: f"No difference between {a} and {b} is shown on {models}",
    }.get(verdict, f"Not enough data on {models} for {a} and {b}")
    return f"{begin}: {words}."


def hourly(rows: pd.DataFrame) -> float | None:
    """What an hour costs, where all runs that say so agree."""
    known = rows[PRICE].dropna().unique()
    return float(known[0]) if len(known) == 1 else None


def relative_costs(comparison: SystemComparison) -> Iterator[KeyFinding]:
    """Which system is cheaper for the same work, family by family: the ratio of their speeds times
    that of prices.
    """
    a = comparison.a
    b = comparison.b
    first = hourly(a.rows)
    second = hourly(b.rows)
    for row in comparison.rows if first is not None and second is not None else ():
        ahead, mean, low, interval = _told(row, second / first)  # type: ignore[operator]
        cheap, dear = (a.name, b.name) if ahead else (b.name, a.name)
        words = f"the same work on {row['family']} models costs {mean:.3g} times as much on {dear} ({interval})"
        shown = low > 1 and row["verdict"] not in (Verdict.WITHHELD, Verdict.NOT_ENOUGH)
        unsure = f"Which of {a.name} and {b.name} is cheaper is not shown: as measured, {words}."
        yield KeyFinding(
            COSTS,
            f"{cheap} is cheaper: {words}." if shown else unsure,
            comparison.sections[0].anchor,
        )
