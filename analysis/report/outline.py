"""Which analyses the report tries on a population, with options that fit its runs, and what would supply more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.options import Options
from analysis.registry import ANALYSES, Analysis, Shown
from analysis.report.populations import Population
from analysis.report.remedies import supply
from analysis.result import Result

__all__ = ["Item", "Missing", "across", "outline"]


@dataclass(frozen=True)
class Missing:
    """An analysis that could not be made: of which population, why, and the command that would supply it."""

    title: str
    of: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Item:
    """One analysis to try: the function and its options, and how the section is headed and read.

    `families` narrows the runs; `key` names the section within its population where the command's name would not do;
    `remedy` is the command that supplies what the analysis may lack.
    """

    analyse: Callable[[pd.DataFrame, Any], Result]
    options: Options
    title: str
    reading: str
    families: tuple[str, ...] = ()
    key: str = ""
    remedy: str = ""

    @property
    def anchor(self) -> str:
        """What names the section within its population."""
        return self.key or self.options.command


def outline(population: Population) -> list[Item | Missing]:
    """The analyses of one population, in the order of the page; what its runs rule out from the start is missing."""
    return [_item(one, each, population) for one in _of("system") for each in one.shows(population.rows)]


def across(frame: pd.DataFrame, price: tuple[str, ...]) -> Iterator[Item]:
    """What is asked of all systems together, where the runs carry it; `price` as it was given."""
    for one in _of("all"):
        for each in one.shows(frame):
            options = each.options or one.options()
            priced: Options = replace(options, price=price) if hasattr(options, "price") else options
            yield Item(one, priced, each.title, each.reading)


def _of(section: str) -> list[Analysis[Any, Any]]:
    """The analyses of a section, those of other packages in their places."""
    return sorted((one for one in ANALYSES.values() if one.section == section), key=lambda one: one.order)


def _item(one: Analysis[Any, Any], each: Shown, population: Population) -> Item | Missing:
    remedy = supply(one, population, each.remedy)
    if each.lacks or each.options is None:
        return Missing(each.title, population.name, each.lacks, remedy)
    return Item(one, each.options, each.title, each.reading, each.families, each.key, remedy)
