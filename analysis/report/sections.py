"""The sections of the report page: selection of analyses and options, and the results."""

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
from analysis.report.populations import Population, thin_out
from analysis.report.results import PageTable, frame_table
from analysis.result import Result
from paradnn.core.errors import ParadnnError

#: Largest number of characters of a figure's text alternative, of the line next to the title of a
#: folded section, of the reason why an analysis is missing, and of the text of an exception.
_MAX_ALTERNATIVE_LENGTH = 400
_MAX_HEADLINE_LENGTH = 220
_MAX_REASON_LENGTH = 420
_MAX_FAULT_LENGTH = 300
#: Largest number of bytes of all figures in the page.
_MAX_FIGURE_BYTES = 10_000_000


class Missing(NamedTuple):
    """An analysis without a result, which the report lists.

    Attributes:
        title: Title of the analysis.
        runs_name: Name of the analyzed runs, such as that of their system.
        reason: Why it has no result, and a remedy.
    """

    title: str
    runs_name: str
    reason: str


class KeyFinding(NamedTuple):
    """A finding at the top of the report page.

    Attributes:
        topic: The question that the finding answers, such as "Which is faster".
        words: The finding, in a sentence.
        anchor: Anchor of the section with the details.
        command: A command that shows more; empty for none.
    """

    topic: str
    words: str
    anchor: str
    command: str = ""


@dataclass(frozen=True)
class Section:
    """The result of an analysis, as a section of the report page.

    Attributes:
        name: Name of the analysis.
        anchor: Anchor of the section.
        title: Title of the section.
        reading: How to read the figure.
        command: Command that prints the same result.
        result: The result.
        figure: The figure as HTML; None if the section has no figure.
        no_figure_reason: Why the section has no figure; empty if the analysis draws none.
    """

    name: str
    anchor: str
    title: str
    reading: str
    command: str
    result: Result
    figure: Markup | None = None
    no_figure_reason: str = ""

    @property
    def headline(self) -> str:
        """The answer, shortened for the line that a folded section shows."""
        return _cut(self.result.opening(), _MAX_HEADLINE_LENGTH)

    @cached_property
    def table(self) -> PageTable | None:
        """The table of the result, cut to the largest number of rows; None if it has no rows."""
        return frame_table(self.result.table, self.title, f"{self.command} --csv FILE")


class PopulationReport(NamedTuple):
    """A population (runs of one system) and the sections of the report about it."""

    population: Population
    sections: Sequence[Section]


@dataclass
class Context:
    """Data that all sections of a report page share.

    Attributes:
        store: Addresses of the stores from which tables of operations are read; empty for the
            default store.
        pool: Whether runs of different environments or protocols are analyzed together.
        figure_bytes_left: Bytes of figures that the page still has room for.
        missing: Analyses without a result so far.
    """

    store: tuple[str, ...]
    pool: bool
    figure_bytes_left: int = _MAX_FIGURE_BYTES
    missing: list[Missing] = field(default_factory=list)

    def sections(
        self,
        requests: Iterable[tuple[Analysis[Any, Any], SectionSpec]],
        frame: pd.DataFrame,
        selection: Selection,
        key: str,
        runs_name: str,
    ) -> list[Section]:
        """Run several analyses on a frame, and return their sections of the report.

        If the frame is large, the analyses get a random sample of its runs (`thin_out`).

        Args:
            requests: The analyses, each with its options, title and reading.
            frame: The runs.
            selection: The options that select these runs from the store, for the commands on the
                page.
            key: First part of the anchors.
            runs_name: Name of the runs, for messages.

        Returns:
            The sections of the analyses that have a result.
        """
        rows = thin_out(frame)
        sample_note = ""
        if len(rows) < len(frame):
            sample_note = (
                f" From {len(rows):,} of the {len(frame):,} runs, whose points were drawn at "
                "random; the command uses all runs."
            )
        sections = []
        for analysis, spec in requests:
            reading = f"{spec.reading}{sample_note}".strip()
            section = self.section(
                analysis, replace(spec, reading=reading), rows, selection, key, runs_name
            )
            if section is not None:
                sections.append(section)
        return sections

    def section(
        self,
        analysis: Analysis[Any, Any],
        spec: SectionSpec,
        frame: pd.DataFrame,
        selection: Selection,
        key: str,
        runs_name: str,
    ) -> Section | None:
        """Run one analysis on a frame, and return its section of the report.

        An unexpected exception in an analysis becomes a warning, and the page omits the section.

        Args:
            analysis: The analysis.
            spec: Its options, title and reading.
            frame: The runs.
            selection: The options that select these runs from the store, for the command on the
                page.
            key: First part of the anchor.
            runs_name: Name of the runs, for messages.

        Returns:
            The section; None if the analysis has no result, which is then recorded in `missing`.
        """
        assert spec.options is not None
        options = replace(spec.options, pool=self.pool, store=self.store)
        if spec.families:
            frame = frame[frame["family"].isin(spec.families)].reset_index(drop=True)
            selection = replace(selection, family=spec.families)
        words = [*command_line(options), *command_line(selection)]
        command = shlex.join(["python", "-m", "analysis", analysis.name, *words])
        result: Result | None = None
        try:
            result = analysis(frame.copy(deep=False), options)
            reason = ""
            if not len(result.table):
                reason = " ".join(head for head, _ in result.paragraphs()).rstrip(".")
        except ParadnnError as error:
            reason = _cut(str(error), _MAX_REASON_LENGTH)
        except Exception as error:
            reason = f"{_report_fault(analysis.name, error)}; the command is {command}"
        if reason or result is None:
            self.missing.append(Missing(spec.title, runs_name, reason))
            return None
        figure, no_figure_reason = self._make_figure(result, f"{spec.title}, {runs_name}.")
        return Section(
            name=analysis.name,
            anchor=f"{key}-{slug(spec.key or analysis.name)}",
            title=spec.title,
            reading=spec.reading,
            command=command,
            result=result,
            figure=figure,
            no_figure_reason=no_figure_reason,
        )

    def _make_figure(self, result: Result, title: str) -> tuple[Markup | None, str]:
        """Return the figure of a result as HTML, or None and the reason why there is no figure.

        Args:
            result: The result.
            title: Start of the text alternative of the figure.
        """
        if not result.drawable:
            return None, ""
        if self.figure_bytes_left <= 0:
            return None, (
                "The figure is omitted to keep the page small; "
                "the command below draws it with --figure FILE."
            )
        sentences = [title]
        for head, points in result.paragraphs():
            sentences += [head, *points]
        alternative = _cut(" ".join(sentences), _MAX_ALTERNATIVE_LENGTH)
        try:
            with warnings.catch_warnings():
                # Matplotlib warns about glyphs that the font lacks.
                warnings.simplefilter("ignore", UserWarning)
                figure = embed(result.figure(), alternative)
        except ParadnnError as error:
            return None, f"No figure: {error}."
        except Exception as error:
            return None, f"No figure: {_report_fault('drawing', error)}."
        self.figure_bytes_left -= len(figure)
        return figure, ""


def outline(
    section: str, rows: pd.DataFrame, price: tuple[str, ...] = ()
) -> Iterator[tuple[Analysis[Any, Any], SectionSpec]]:
    """Yield the analyses of one part of the report in their order, each with its options.

    Args:
        section: The part of the page, a value of `Analysis.section`, such as "system".
        rows: The runs, one row each.
        price: Values of --price, for analyses with this option.

    Yields:
        The analysis, and the title, options and explanation of its section.
    """
    analyses = [analysis for analysis in ANALYSES.values() if analysis.section == section]
    for analysis in sorted(analyses, key=lambda analysis: analysis.order):
        for spec in analysis.sections(rows):
            if price and hasattr(spec.options, "price"):
                options: Any = spec.options
                yield analysis, replace(spec, options=replace(options, price=price))
            else:
                yield analysis, spec


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[:length].rsplit(' ', 1)[0]} ..."


def _report_fault(activity: str, error: Exception) -> str:
    """Warn about an unexpected exception, which is a bug in this tool, and return a description.

    Args:
        activity: What failed, such as the name of an analysis.
        error: The exception.
    """
    problem = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_FAULT_LENGTH]
    warnings.warn(f"{activity} failed because of a bug in this tool ({problem})", stacklevel=2)
    return f"{activity} failed because of a bug in this tool, please report it ({problem})"
