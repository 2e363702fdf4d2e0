"""Pairwise comparisons of systems that measured the same points, and their verdicts.

A system is represented by a population: its runs in one environment, with one timing protocol. A
point is one configuration to measure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from analysis.analyses.compare import CompareOptions, compare
from analysis.analyses.speedup import SpeedupOptions, speedup, speedup_dependence
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
from paradnn.statistics.verdict import Verdict

FASTER = "Which is faster"
COSTS = "What it costs"
#: Largest number of pairs of populations that are compared, and of comparisons in the page.
_MAX_TRIED = 12
_MAX_COMPARISONS = 6
#: Columns that may select a population, the most readable first.
_CHOOSING_COLUMNS = ("software.name", "host", "environment_id", "protocol_id")
_IDENTITY_COLUMNS = ("device", "environment_id", "protocol_id", "schema_version", "task")
#: Columns that the names of systems already state.
_NAMED_COLUMNS = ("device", "platform.name")


class SystemComparison(NamedTuple):
    """Comparison of two systems that measured some of the same configurations.

    A population consists of the runs of one system.

    Attributes:
        a: The population of the first system, A.
        b: The population of the second system, B.
        result: The comparison of the configurations that both measured.
        sections: The sections of the report that show the comparison.
    """

    a: Population
    b: Population
    result: Compared
    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        """The title of the comparison, such as "TPU v2 over V100"."""
        return f"{self.a.name} over {self.b.name}"

    @property
    def rows(self) -> list[dict[Any, Any]]:
        """Statistics of the comparison, one dictionary per family that both sides measured."""
        return [row for row in self.result.families.to_dict("records") if row["points"]]


def compare_populations(
    populations: Sequence[Population], frame: pd.DataFrame, selection: Selection, context: Context
) -> list[SystemComparison]:
    """Compare every two populations that have points in common.

    A population consists of the runs of one system, and a point is one configuration to measure.

    Args:
        populations: The populations.
        frame: The runs of all of them.
        selection: The options that select these runs from the store.
        context: Makes the sections of the report. Its list `missing` receives pairs without a
            comparison.
    """
    comparisons: list[SystemComparison] = []
    measured = [population for population in populations if is_ok(population.rows).any()]
    pairs = list(combinations(measured, 2))
    for number, (first, second) in enumerate(pairs):
        if number >= _MAX_TRIED or len(comparisons) >= _MAX_COMPARISONS:
            reason = (
                f"not compared to keep the page small: {counted(len(pairs) - number, 'pair')} of "
                "populations; to compare two populations, use python -m analysis compare"
            )
            context.missing.append(Missing("Comparisons", "further populations", reason))
            break
        a, b = _order_pair(first, second)
        comparison = _compare_pair(a, b, f"c{number + 1}", frame, selection, context)
        if comparison is not None:
            comparisons.append(comparison)
    return comparisons


def _order_pair(first: Population, second: Population) -> tuple[Population, Population]:
    """Return two populations (runs of one system each) in the order A, B.

    On the same device, A is the population that was measured later. Otherwise A is `first`.
    """
    is_earlier = first.rows["start_time"].min() < second.rows["start_time"].min()
    if first.device == second.device and is_earlier:
        return second, first
    return first, second


def describe_side(population: Population, other: Population, frame: pd.DataFrame) -> str:
    """Return the condition with which the command `compare` selects a population.

    If single conditions select exactly these runs, the most readable one is returned. Otherwise the
    condition combines the columns of the population's identity, such as device and environment.

    Args:
        population: The population: runs of one system.
        other: The population on the other side of the comparison.
        frame: The runs of both populations.
    """
    versions = [str(name) for name in frame.columns if str(name).startswith("version.")]
    for column in ("device", *versions, *_CHOOSING_COLUMNS):
        value = population.value(column)
        if value is None or value == other.value(column):
            continue
        chosen = frame[column].astype("str").eq(value).fillna(False).sum()
        if int(chosen) == len(population.rows):
            return f"{column}={_escape_side(value)}"
    conditions = []
    for column in _IDENTITY_COLUMNS:
        value = population.value(column)
        if value is not None:
            conditions.append(f"{column}={_escape_side(value)}")
    return " & ".join(conditions)


def _escape_side(value: str) -> str:
    """Return a value without " & ", which would separate conditions.

    The "&" becomes "?", which matches any character.
    """
    return value.replace(" & ", " ? ")


def _compare_pair(
    a: Population,
    b: Population,
    key: str,
    frame: pd.DataFrame,
    selection: Selection,
    context: Context,
) -> SystemComparison | None:
    """Compare two populations by configuration, by model size, and by operation.

    Operations are compared only if both populations were profiled.

    Args:
        a: The first population (runs of one system).
        b: The second population.
        key: First part of the anchors of the sections.
        frame: The runs of both.
        selection: The options that select these runs from the store.
        context: Makes the sections. Its list `missing` receives a pair without a comparison.

    Returns:
        The comparison; None if the populations have nothing in common.
    """
    title = f"{a.name} over {b.name}"
    if not set(families(a.rows)) & set(families(b.rows)):
        reason = "they have no model family in common"
        context.missing.append(Missing("Comparison", title, reason))
        return None
    sections: list[Section] = []
    for analysis, spec in _pair_analyses(a, b, frame):
        section = context.section(analysis, spec, frame, selection, key, title)
        if section is not None:
            sections.append(section)
        elif not sections:
            # The other analyses explain the comparison by cell, which comes first.
            return None
    by_cell = sections[0].result
    assert isinstance(by_cell, Compared)
    return SystemComparison(a, b, by_cell, tuple(sections))


def _pair_analyses(
    a: Population, b: Population, frame: pd.DataFrame
) -> Iterator[tuple[Any, SectionSpec]]:
    """Yield the analyses that compare two populations, with the sections for their results.

    The first is the comparison by configuration.

    Args:
        a: The first population (runs of one system).
        b: The second population.
        frame: The runs of both.
    """
    a_families = families(a.rows)
    b_families = families(b.rows)
    common = tuple(name for name in a_families if name in b_families)
    if len(common) == len(a_families) == len(b_families):
        # Both have the same families, so no choice is needed.
        common = ()
    side_a = describe_side(a, b, frame)
    side_b = describe_side(b, a, frame)
    yield (
        compare,
        SectionSpec(
            CompareOptions(a=side_a, b=side_b),
            "Comparison, cell by cell",
            "Each mark is a point that both systems measured; the bar is the geometric mean with "
            "its 95% interval.",
            common,
        ),
    )
    options = SpeedupOptions(a=(side_a,), b=(side_b,))
    # The comparison by cell already has the ratios and the verdict of the same points.
    yield (
        replace(speedup, function=speedup_dependence),
        SectionSpec(
            options,
            "What the speedup depends on",
            f"Points above 1 are faster on {a.name}.",
            common,
        ),
    )
    if a.is_profiled().any() and b.is_profiled().any():
        yield (
            speedup,
            SectionSpec(
                replace(options, operations=True),
                "Operation by operation",
                "Speedup of the FLOP rate of each operation type.",
                common,
                "operations",
            ),
        )


def comparison_findings(comparison: SystemComparison) -> Iterator[KeyFinding]:
    """Yield the findings of a comparison of two systems.

    There is one finding for each model family that both systems measured, and one on the
    differences between the systems. Differences are columns in which the systems differ and which
    their names do not state.

    Args:
        comparison: The comparison.
    """
    anchor = comparison.sections[0].anchor
    for row in comparison.rows:
        yield KeyFinding(FASTER, _verdict_sentence(row, comparison), anchor)
    differences = comparison.result.cells.attrs.get("differ", {})
    # Columns that only one side recorded are listed in the section, not in the finding.
    parts = [
        f"{label(name)} ({one} / {other})"
        for name, (one, other) in differences.items()
        if name not in _NAMED_COLUMNS and "(none)" not in (one, other)
    ]
    if parts:
        sentence = (
            f"{comparison.a.name} and {comparison.b.name} also differ in {', '.join(parts)}: "
            "the ratios include these effects."
        )
        yield KeyFinding(FASTER, sentence, anchor)


@dataclass(frozen=True)
class _Ratio:
    """Geometric mean of the ratios of the leading side to the trailing side of a comparison.

    Attributes:
        is_a_ahead: Whether side A leads.
        mean: The geometric mean, 1 or more.
        low: Lower end of its 95% interval.
        interval: The interval as text.
    """

    is_a_ahead: bool
    mean: float
    low: float
    interval: str


def _read_ratio(row: Mapping[Any, Any], factor: float = 1.0) -> _Ratio:
    """Return the mean ratio of a model family, multiplied by a factor.

    Args:
        row: A row of `Compared.families`.
        factor: Factor by which the ratio of A to B is multiplied, such as price of B / price of A.
    """
    mean = row["geometric_mean"] * factor
    low = row["geometric_mean_low"] * factor
    high = row["geometric_mean_high"] * factor
    is_a_ahead = bool(mean >= 1)
    if not is_a_ahead:
        mean = 1 / mean
        low, high = 1 / high, 1 / low
    interval = "no interval"
    if abs(low) < float("inf") and abs(high) < float("inf"):
        _, low_text, high_text = format_distinct(mean, low, high)
        interval = f"95% CI {low_text} to {high_text}"
    return _Ratio(is_a_ahead, mean, low, interval)


def _verdict_sentence(row: Mapping[Any, Any], comparison: SystemComparison) -> str:
    """Return a sentence with the verdict on a model family and its mean ratio.

    Args:
        row: Statistics of the family: a row of `Compared.families`.
        comparison: The comparison of two systems.
    """
    a = comparison.a.name
    b = comparison.b.name
    verdict = row["verdict"]
    ratio = _read_ratio(row)
    faster = a if ratio.is_a_ahead else b
    evidence = _describe_ratio(row, ratio, a, b)
    models = f"{row['family']} models"
    if verdict in (Verdict.FASTER, Verdict.SLOWER):
        statement = f"{faster} is faster on {models}"
    elif verdict == Verdict.EQUAL:
        margin = comparison.result.options.margin
        statement = f"{a} and {b} are equally fast on {models}, within {margin:.0%}"
    else:
        statement = f"Which of {a} and {b} is faster on {models} is undecided"
    return f"{statement}: {evidence}."


def _describe_ratio(row: Mapping[Any, Any], ratio: _Ratio, a: str, b: str) -> str:
    faster, slower = (a, b) if ratio.is_a_ahead else (b, a)
    text = (
        f"{faster} runs {format_distinct(1, ratio.mean)[1]} times as fast as {slower} "
        f"({ratio.interval}) in the geometric mean over {counted(row['points'], 'point')} "
        "that both measured"
    )
    if row["verdict"] != Verdict.EQUAL:
        wins = row["wins"] if ratio.is_a_ahead else row["points"] - row["wins"]
        text += f", and is ahead on {wins}"
    only_one_side = row["missing_a"] + row["missing_b"]
    if only_one_side:
        text += f"; {counted(only_one_side, 'point')} ran on only one of the two"
    return text


def price_per_hour(rows: pd.DataFrame) -> float | None:
    """Return the price of an hour; None if the runs state no price, or several prices.

    Args:
        rows: Runs of one system, one row each.
    """
    prices = rows[PRICE].dropna().unique()
    if len(prices) == 1:
        return float(prices[0])
    return None


def cost_findings(comparison: SystemComparison) -> Iterator[KeyFinding]:
    """Yield a finding for each model family on which of two systems is cheaper for the same work.

    The ratio of costs is the ratio of speeds times the ratio of prices. Yields nothing if the price
    per hour of a system is unknown.

    Args:
        comparison: The comparison of the two systems.
    """
    a = comparison.a
    b = comparison.b
    a_price = price_per_hour(a.rows)
    b_price = price_per_hour(b.rows)
    if a_price is None or b_price is None:
        return
    for row in comparison.rows:
        ratio = _read_ratio(row, b_price / a_price)
        cheaper, dearer = (a.name, b.name) if ratio.is_a_ahead else (b.name, a.name)
        evidence = (
            f"the same work on {row['family']} models costs {ratio.mean:.3g} times as much on "
            f"{dearer} ({ratio.interval})"
        )
        if ratio.low > 1:
            sentence = f"{cheaper} is cheaper: {evidence}."
        else:
            sentence = (
                f"Which of {a.name} and {b.name} is cheaper is undecided: as measured, {evidence}."
            )
        yield KeyFinding(COSTS, sentence, comparison.sections[0].anchor)
