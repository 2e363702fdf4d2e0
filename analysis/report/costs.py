"""What it costs, as a manager asks: a sentence for each kind of work of a system, for each two systems, and what to
choose where the same work can be done in several ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.analyses.frontier import FrontierResult
from analysis.format import short
from analysis.prices import PRICE
from analysis.report.comparisons import Comparison
from analysis.report.populations import Population
from analysis.report.results import model_name
from analysis.report.sections import Chapter, Finding, Section
from analysis.statistics.contrast import Verdict
from analysis.store.frame import is_ok
from paradnn.families import message_families

__all__ = ["costs"]

_TASKS = 3  # of which is said what to choose
_UNDECIDED = (Verdict.WITHHELD, Verdict.NOT_ENOUGH)
_COSTS = "What it costs"


#: What is paid for, by metric. A run counts as the first of which it has a cost: what serves queries has steps too.
_KINDS = {
    "cost_to_target": "a training to its target costs",
    "cost_of_learning": "a training costs",
    "cost_per_million_queries": "a million queries cost",
    "cost_per_million_tokens": "a million tokens cost",
    "cost_per_million_examples": "a million examples cost",
}
_MODES = {"train": " in training", "inference": " in inference"}


def costs(
    chapters: Sequence[Chapter], comparisons: Sequence[Comparison], choices: Sequence[Section]
) -> Iterator[Finding]:
    """What systems cost against each other, what the work costs on each, and what to choose; nothing without prices."""
    priced = [chapter.population for chapter in chapters if chapter.population.rows[PRICE].notna().any()]
    if not priced:
        return
    for comparison in comparisons:
        yield from _relative(comparison)
    for population in priced:
        yield from _of_system(population)
    for section in choices:
        if isinstance(section.result, FrontierResult):
            for one in section.result.largest[:_TASKS]:
                yield Finding("What to choose", section.result.ends(one), section.anchor)


def _money(value: float, rows: pd.DataFrame) -> str:
    """An amount in the currency that runs were priced in, if they say."""
    known = list(rows["price_currency"].dropna().unique()) if "price_currency" in rows else []
    return short(value, str(known[0]) if len(known) == 1 else "", digits=3)


def _relative(comparison: Comparison) -> Iterator[Finding]:
    """Which system is cheaper for the same work, family by family: the ratio of their speeds times that of prices."""
    a, b = comparison.a, comparison.b
    prices = _price(a.rows), _price(b.rows)
    if prices[0] is None or prices[1] is None:
        return
    of_prices = prices[1] / prices[0]
    for row in comparison.result.families.to_dict("records"):
        if row["points"]:
            ends = [row[f"geometric_mean{end}"] * of_prices for end in ("", "_low", "_high")]
            yield Finding(_COSTS, _cheaper(ends, row, a.name, b.name), comparison.sections[0].anchor)


def _cheaper(ends: Sequence[float], row: dict[Any, Any], a: str, b: str) -> str:
    """`ends` is what B costs over A, with its interval."""
    cheap, dear = (a, b) if ends[0] >= 1 else (b, a)
    mean, low, high = ends if ends[0] >= 1 else (1 / ends[0], 1 / ends[2], 1 / ends[1])
    known = low == low and high == high
    interval = f"95% CI {low:.3g} to {high:.3g}" if known else "no interval"
    words = f"the same work on {row['family']} models costs {mean:.3g} times as much on {dear} ({interval})"
    if known and low > 1 and row["verdict"] not in _UNDECIDED:
        return f"{cheap} is cheaper: {words}."
    return f"Which of {a} and {b} is cheaper is not shown: as measured, {words}."


def _price(rows: pd.DataFrame) -> float | None:
    """What an hour costs, where all runs that say so agree."""
    known = [float(price) for price in rows[PRICE].dropna().unique()]
    return known[0] if len(known) == 1 else None


def _of_system(population: Population) -> Iterator[Finding]:
    """What each kind of work costs, from the cheapest model to the dearest."""
    rows = population.rows[is_ok(population.rows) & ~population.rows["family"].isin(message_families())]
    price = _price(rows)
    hour = f", at a price of {_money(price, rows)} an hour" if price is not None else ""
    for metric, what in _KINDS.items():
        if metric not in rows or not rows[metric].notna().any():
            continue
        mine, rows = rows[rows[metric].notna()], rows[rows[metric].isna()]
        told = metric == "cost_per_million_examples" and "mode" in mine
        for mode, part in mine.groupby("mode", sort=False) if told else [("", mine)]:
            words = f"{what} {_range(part, metric)}{_MODES.get(str(mode), '')}"
            yield Finding(_COSTS, f"{population.name}: {words}{hour}.", population.key)


def _range(rows: pd.DataFrame, metric: str) -> str:
    """The least and the most of a cost, each with the model that it is of."""
    order = rows[metric].astype("float64").sort_values(kind="stable")
    least, most = rows.loc[order.index[0]], rows.loc[order.index[-1]]
    if len(rows) == 1:
        return f"{_money(float(least[metric]), rows)} ({_called(least)})"
    return (
        f"from {_money(float(least[metric]), rows)} ({_called(least)}) to {_money(float(most[metric]), rows)} "
        f"({_called(most)})"
    )


def _called(row: pd.Series) -> str:
    batch = row.get("batch_size")
    return model_name(row.to_dict()) + (f" at batch size {int(batch):,}" if pd.notna(batch) else "")
