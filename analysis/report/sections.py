"""The sections of the page: which analyses are tried with which options, and what became of each."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from analysis.options import Options, Selection, command_line
from analysis.registry import ANALYSES, Analysis, Shown
from analysis.report.page import embed, slug
from analysis.report.populations import Population, supply
from analysis.report.results import Table, frame_table
from analysis.result import Result
from paradnn.errors import ParadnnError

_ALTERNATIVE = 400  # characters of a figure's text alternative
_LINE = 170  # characters of what stands beside the title of a folded section
_LONGEST = 420  # characters of why an analysis is missing
_FIGURES = 10_000_000  # bytes of figures in the page


class Missing(NamedTuple):
    """An analysis that could not be made: of which population, why, and the command that would supply it."""

    title: str
    of: str
    reason: str
    remedy: str


class Item(NamedTuple):
    """An analysis to try, as `shown` says; `remedy` is the command that supplies what it may lack."""

    analyse: Callable[[pd.DataFrame, Any], Result]
    shown: Shown
    remedy: str = ""

    @property
    def options(self) -> Options:
        """With which it is called."""
        assert self.shown.options is not None
        return self.shown.options


class Finding(NamedTuple):
    """What was found, in a word and in a sentence, the anchor of its section, and a command to go on with."""

    topic: str
    words: str
    anchor: str
    command: str = ""


@dataclass(frozen=True)
class Section:
    """An analysis that was made: its name, where it stands in the page, what it found, its figure as HTML (empty where
    there is none).

    `left_out` says why a figure is not there.
    """

    name: str
    anchor: str
    title: str
    reading: str
    command: str
    result: Result
    figure: Markup | None = None
    left_out: str = ""

    @property
    def headline(self) -> str:
        """What is found, on the line that is seen while the section is folded."""
        found = self.result.headline()
        words = found.words if found else next((head for head, _ in self.result.paragraphs()), "")
        return _cut(words, _LINE)

    @cached_property
    def table(self) -> Table | None:
        """The numbers, as far as a page has room for them."""
        return frame_table(self.result.table, self.title, f"{self.command} --csv FILE")

    @property
    def runs(self) -> list[str]:
        """The runs that it rests on, each once."""
        return list(dict.fromkeys(self.result.sources))


class Chapter(NamedTuple):
    """A population and the sections about it."""

    population: Population
    sections: Sequence[Section]

    def named(self, several: bool) -> str:
        """What a sentence about it begins with, beside `several` others."""
        return f"{self.population.name}: " if several else ""


@dataclass
class Context:
    """What all sections share: the stores that tables are read from, whether heterogeneous runs are pooled, whether
    figures are drawn, and how many bytes of them the page still has room for."""

    store: tuple[str, ...]
    pool: bool
    draw: bool = True
    room: int = _FIGURES


def outline(population: Population) -> list[Item | Missing]:
    """The analyses of one population, in the order of the page; what its runs rule out from the start is missing."""
    found: list[Item | Missing] = []
    for one in _analyses("system"):
        for shown in one.shows(population.rows):
            remedy = supply(one, population, shown.remedy)
            lacks = Missing(shown.title, population.name, shown.lacks, remedy)
            found.append(lacks if shown.lacks or shown.options is None else Item(one, shown, remedy))
    return found


def across(frame: pd.DataFrame, price: tuple[str, ...]) -> Iterator[Item]:
    """What is asked of all systems together, where the runs carry it; `price` as it was given."""
    for one in _analyses("all"):
        for shown in one.shows(frame):
            options = shown.options or one.options()
            options = replace(options, price=price) if hasattr(options, "price") else options  # type: ignore[call-arg]
            yield Item(one, replace(shown, options=options))


def _analyses(section: str) -> list[Analysis[Any, Any]]:
    return sorted((one for one in ANALYSES.values() if one.section == section), key=lambda one: one.order)


def run_section(
    item: Item, frame: pd.DataFrame, selection: Selection, prefix: str, of: str, context: Context
) -> Section | Missing:
    """Analyse a frame as an item says; what the analysis refuses is a `Missing`.

    `selection` chooses this frame's runs from the store, for the command that the page shows. A fault of an analysis
    is named and leaves the rest of the report whole.
    """
    shown, options = item.shown, replace(item.options, pool=context.pool, store=context.store)
    if shown.families:
        frame = frame[frame["family"].isin(shown.families)].reset_index(drop=True)
        selection = replace(selection, family=shown.families)
    words = [*command_line(options), *command_line(selection)]
    line = shlex.join(["python", "-m", "analysis", options.command, *words])
    anchor = f"{prefix}-{slug(shown.key or options.command)}"
    try:
        result = item.analyse(frame.copy(), options)
    except ParadnnError as error:
        return Missing(shown.title, of, _cut(str(error), _LONGEST), item.remedy)
    except Exception as error:
        return Missing(shown.title, of, f"{_fault(options.command, error)}; it comes of {line}", "")
    if not len(result.table):
        return Missing(shown.title, of, " ".join(head for head, _ in result.paragraphs()).rstrip("."), item.remedy)
    figure, left_out = _figure(result, f"{shown.title}, {of}.", context)
    return Section(options.command, anchor, shown.title, shown.reading, line, result, figure, left_out)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[:most].rsplit(' ', 1)[0]} ..."


def _figure(result: Result, title: str, context: Context) -> tuple[Markup | None, str]:
    """The figure as HTML, or why there is none."""
    if not result.drawable or not context.draw:
        return None, ""
    if context.room <= 0:
        return None, "The figure is left out to keep the page small; the command below draws it with --figure FILE.svg."
    words = " ".join([title, *(sentence for head, points in result.paragraphs() for sentence in (head, *points))])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks
            figure = embed(result.figure(), _cut(words, _ALTERNATIVE))
    except ParadnnError as error:
        return None, f"No figure: {error}."
    except Exception as error:
        return None, f"No figure: {_fault('drawing', error)}."
    context.room -= len(figure)
    return figure, ""


def _fault(what: str, error: Exception) -> str:
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(f"{what} failed, a fault of this tool ({problem})", stacklevel=2)
    return f"{what} failed, a fault of this tool worth reporting ({problem})"
