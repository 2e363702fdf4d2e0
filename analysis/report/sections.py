"""The sections of the page: which analyses are tried with which options, and what became of each."""

import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from analysis.options import Selection, command_line
from analysis.registry import ANALYSES, Analysis, SectionSpec
from analysis.report.page import embed, slug
from analysis.report.populations import Population, thinned
from analysis.report.results import PageTable, frame_table
from analysis.result import Result
from paradnn.core.errors import ParadnnError

_ALTERNATIVE = 400  # characters of a figure's text alternative
_LINE = 170  # characters of what stands beside the title of a folded section
_LONGEST = 420  # characters of why an analysis is missing
_FIGURES = 10_000_000  # bytes of figures in the page


class Missing(NamedTuple):
    """An analysis that could not be made: of which runs, and why, with what would supply it."""

    title: str
    of: str
    reason: str


class KeyFinding(NamedTuple):
    """What was found, in a word and in a sentence, the anchor of its section, and a command to go
    on with.
    """

    topic: str
    words: str
    anchor: str
    command: str = ""


@dataclass(frozen=True)
class Section:
    """An analysis that was made: its name, where it stands in the page, what it found, its figure
    as HTML, or why (`left_out`) there is none.
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
        return _cut(
            found.words if found else next((head for head, _ in self.result.paragraphs()), ""),
            _LINE,
        )

    @cached_property
    def table(self) -> PageTable | None:
        """The numbers, as far as a page has room for them."""
        return frame_table(self.result.table, self.title, f"{self.command} --csv FILE")


class PopulationReport(NamedTuple):
    """A population and the sections about it."""

    population: Population
    sections: Sequence[Section]


@dataclass
class Context:
    """What all sections share: the stores that tables are read from, whether heterogeneous runs are
    pooled, how many bytes of figures the page still has room for, and what was missing so far.
    """

    store: tuple[str, ...]
    pool: bool
    room: int = _FIGURES
    missing: list[Missing] = field(default_factory=list)

    def sections(
        self,
        asked: Iterable[tuple[Analysis[Any, Any], SectionSpec]],
        frame: pd.DataFrame,
        selection: Selection,
        *of: str,
    ) -> list[Section]:
        """What became of analyses of a frame (`of`: key and name); what they lack joins the
        missing.
        """
        rows = thinned(frame)
        part = ""
        if len(rows) < len(frame):
            part = f" Of {len(rows):,} of the {len(frame):,} runs, points drawn at random; the command takes all."
        made = (
            self.section(
                one, replace(shown, reading=f"{shown.reading}{part}".strip()), rows, selection, *of
            )
            for one, shown in asked
        )
        return [section for section in made if section]

    def section(
        self,
        one: Analysis[Any, Any],
        shown: SectionSpec,
        frame: pd.DataFrame,
        selection: Selection,
        key: str,
        of: str,
    ) -> Section | None:
        """Analyse a frame as `shown` says; None where the analysis refuses, which is then missing.

        `selection` chooses this frame's runs from the store, for the command that the page shows;
        `key` begins the anchor, `of` names the runs. A fault of an analysis is named and leaves the
        rest of the report whole.
        """
        assert shown.options is not None
        options = replace(shown.options, pool=self.pool, store=self.store)
        if shown.families:
            frame = frame[frame["family"].isin(shown.families)].reset_index(drop=True)
            selection = replace(selection, family=shown.families)
        words = [*command_line(options), *command_line(selection)]
        line = shlex.join(["python", "-m", "analysis", one.name, *words])
        try:
            result = one(frame.copy(deep=False), options)
            if len(result.table):
                reason = ""
            else:
                reason = " ".join(head for head, _ in result.paragraphs()).rstrip(".")
        except ParadnnError as error:
            reason = _cut(str(error), _LONGEST)
        except Exception as error:
            reason = f"{_fault(one.name, error)}; it comes of {line}"
        if reason:
            self.missing.append(Missing(shown.title, of, reason))
            return None
        figure, left_out = self._figure(result, f"{shown.title}, {of}.")
        anchor = f"{key}-{slug(shown.key or one.name)}"
        return Section(one.name, anchor, shown.title, shown.reading, line, result, figure, left_out)

    def _figure(self, result: Result, title: str) -> tuple[Markup | None, str]:
        """The figure as HTML, or why there is none."""
        if not result.drawable:
            return None, ""
        if self.room <= 0:
            return (
                None,
                "The figure is left out to keep the page small; the command below draws it with --figure FILE.",
            )
        words = " ".join(
            [
                title,
                *(sentence for head, points in result.paragraphs() for sentence in (head, *points)),
            ]
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks
                figure = embed(result.figure(), _cut(words, _ALTERNATIVE))
        except ParadnnError as error:
            return None, f"No figure: {error}."
        except Exception as error:
            return None, f"No figure: {_fault('drawing', error)}."
        self.room -= len(figure)
        return figure, ""


def outline(
    section: str, rows: pd.DataFrame, price: tuple[str, ...] = ()
) -> Iterator[tuple[Analysis[Any, Any], SectionSpec]]:
    """The analyses of a section of the page that these runs may carry, in its order; `price` as it
    was given.
    """
    for one in sorted(
        (one for one in ANALYSES.values() if one.section == section), key=lambda one: one.order
    ):
        for shown in one.sections(rows):
            priced = price and hasattr(shown.options, "price")
            yield (
                one,
                replace(shown, options=replace(shown.options, price=price)) if priced else shown,
            )  # type: ignore


def _cut(words: str, most: int) -> str:
    if len(words) <= most:
        return words
    return f"{words[:most].rsplit(' ', 1)[0]} ..."


def _fault(what: str, error: Exception) -> str:
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    warnings.warn(f"{what} failed, a fault of this tool ({problem})", stacklevel=2)
    return f"{what} failed, a fault of this tool worth reporting ({problem})"
