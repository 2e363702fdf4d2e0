"""The page: contents, headline, what was measured, a chapter a population, comparisons, claims, what is missing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.claims.judge import Verdict, sentences
from analysis.claims.kinds import Answer
from analysis.report.assets import SCRIPT, STYLE
from analysis.report.comparisons import Comparison
from analysis.report.findings import Finding
from analysis.report.html import attribute, code, items, prose, run_link, text
from analysis.report.outline import Missing
from analysis.report.overview import facts, overview
from analysis.report.sections import Chapter, Section
from analysis.report.table import html_table
from analysis.summaries.claims import ClaimsResult
from analysis.summaries.result import Result

__all__ = ["Content", "render"]

_SOURCES = 12  # run ids of a section that are listed
#: Answer -> the class that colours it.
_ANSWERS = {Answer.SUPPORTED: "supported", Answer.REFUTED: "refuted", Answer.NOT_ENOUGH: "open"}


@dataclass(frozen=True)
class Content:
    """All that the page shows. `ui` is the address of the MLflow UI or empty, `ui_command` opens it elsewhere."""

    title: str
    store: str
    made: str
    command: str
    ui: str
    ui_command: str
    chapters: Sequence[Chapter]
    shared: Sequence[Section]
    comparisons: Sequence[Comparison]
    claims: Section | None
    missing: Sequence[Missing]
    findings: Sequence[Finding]
    left_out: Sequence[str]


def render(content: Content) -> str:
    """The whole page. Only its own script may run, by its hash, and nothing is fetched."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    populations = [chapter.population for chapter in content.chapters]
    body = "\n".join(
        [
            _head(content),
            _headline(content.findings),
            _contents(content),
            '<main id="main">',
            f'<section id="measured"><h2>What was measured where</h2>{overview(populations)}'
            f"{_where_runs_are(content)}</section>",
            *(_chapter(chapter, content.ui) for chapter in content.chapters),
            _comparisons(content),
            _claims(content.claims),
            _missing(content),
            _reading(),
            "</main>",
            _foot(content),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(content.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _head(content: Content) -> str:
    where = f"From the runs in {code(content.store)}, written on {text(content.made)}."
    return (
        f'<a class="skip" href="#main">Skip to the content</a><header><h1>{text(content.title)}</h1>'
        f'<p class="note">{where}</p></header>'
    )


def _headline(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    lines = items(
        f'<strong>{text(one.topic)}.</strong> {text(one.words)} <a href="#{attribute(one.anchor)}">More</a>'
        for one in findings
    )
    return f'<section class="headline" aria-labelledby="found"><h2 id="found">What was found</h2>{lines}</section>'


def _contents(content: Content) -> str:
    """Links to every chapter and section."""
    chapters = ['<a href="#measured">What was measured where</a>']
    for one in content.chapters:
        chapters.append(f'<a href="#{one.population.key}">{text(one.population.name)}</a>{_links(one.sections)}')
    compared = [(one.title, one.sections[0].anchor) for one in content.comparisons]
    if compared or content.shared:
        compared += [(section.title, section.anchor) for section in content.shared]
        inner = items(f'<a href="#{anchor}">{text(name)}</a>' for name, anchor in compared)
        chapters.append(f'<a href="#compared">Populations against each other</a>{inner}')
    if content.claims:
        chapters.append('<a href="#claims">Claims</a>')
    chapters += ['<a href="#missing">What is missing</a>', '<a href="#reading">How to read this page</a>']
    return f'<nav aria-labelledby="toc"><h2 id="toc">Contents</h2>{items(chapters)}</nav>'


def _links(sections: Iterable[Section]) -> str:
    return items(f'<a href="#{section.anchor}">{text(section.title)}</a>' for section in sections)


def _chapter(chapter: Chapter, ui: str) -> str:
    population, inner = chapter.population, "".join(_section(section, ui) for section in chapter.sections)
    return f'<section id="{population.key}"><h2>{text(population.name)}</h2>{facts(population)}{inner}</section>'


def _section(section: Section, ui: str, words: str | None = None, heading: str = "h3") -> str:
    """Heading, how to read it, figure, numbers in words, table, the runs, the command."""
    figure = ""
    if section.figure:
        figure = (
            f'<figure><div class="chart">{section.figure}</div>'
            f"<figcaption>{text(section.reading)}</figcaption></figure>"
        )
    elif section.reading:
        figure = f'<p class="reading">{text(section.reading)}</p>'
    note = f'<p class="note">{text(section.left_out)}</p>' if section.left_out else ""
    names = f"<p>{text(section.names)}</p>" if section.names else ""
    table = html_table(section.result.table, section.title, ui, f"{section.command} --csv FILE")
    return (
        f'<section><{heading} id="{section.anchor}">{text(section.title)}</{heading}>{names}{figure}{note}'
        f"{prose(section.result.paragraphs()) if words is None else words}{table}{_sources(section.result, ui)}"
        f'<p class="command">Again: {code(section.command)}</p></section>'
    )


def _sources(result: Result, ui: str) -> str:
    """The runs that a section rests on."""
    runs = list(dict.fromkeys(result.sources))
    if not runs:
        return ""
    more = f" and {len(runs) - _SOURCES:,} more" if len(runs) > _SOURCES else ""
    listed = ", ".join(run_link(run, ui) for run in runs[:_SOURCES])
    count = f"{len(runs):,} run{'s'[: len(runs) != 1]}"
    return f"<details><summary>Rests on {count}</summary><p>{listed}{more}.</p></details>"


def _where_runs_are(content: Content) -> str:
    if content.ui:
        return f'<p>Run ids link to <a href="{attribute(content.ui)}/">the MLflow UI</a>.</p>'
    return f"<p>Look at single runs by their ids in the MLflow UI, which this opens: {code(content.ui_command)}</p>"


def _comparisons(content: Content) -> str:
    if not content.comparisons and not content.shared:
        return ""
    inner = "".join(
        f"<section><h3>{text(one.title)}</h3>"
        f"{''.join(_section(section, content.ui, heading='h4') for section in one.sections)}</section>"
        for one in content.comparisons
    )
    inner += "".join(_section(section, content.ui) for section in content.shared)
    return f'<section id="compared"><h2>Populations against each other</h2>{inner}</section>'


def _claims(section: Section | None) -> str:
    """Claims with an answer first; those without data collapsed."""
    if section is None:
        return ""
    assert isinstance(section.result, ClaimsResult)
    answered = [_claim(verdict) for verdict in section.result.verdicts if verdict.measured]
    without = [_claim(verdict) for verdict in section.result.verdicts if not verdict.measured]
    words = f"{prose(section.result.closing())}{''.join(answered)}"
    if without:
        words += f"<details><summary>{len(without)} claims without data</summary>{''.join(without)}</details>"
    return f'<section id="claims"><h2>Claims</h2>{_section(section, "", words)}</section>'


def _claim(verdict: Verdict) -> str:
    kind = _ANSWERS[verdict.answer]
    answer = f'<span class="answer {kind}">{text(verdict.answer)}</span>{text(verdict.extent)}'
    return f"<h4>{text(verdict.title)}</h4><p>{answer}</p>{items(map(text, sentences(verdict)))}"


def _missing(content: Content) -> str:
    """One line for each analysis that could not be made; those with the same reason together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in content.missing:
        groups.setdefault((one.title, one.reason, one.remedy), []).append(one.of)
    lines = []
    for (title, reason, remedy), of in groups.items():
        supply = f" Supply it: {code(remedy)}" if remedy else ""
        lines.append(f"<strong>{text(title)}</strong> ({text('; '.join(of))}): {text(reason)}.{supply}")
    lines += [text(line) for line in content.left_out]
    said = items(lines) if lines else "<p>Nothing: every analysis had its data.</p>"
    return f'<section id="missing"><h2>What is missing</h2>{said}</section>'


def _reading() -> str:
    words = (
        "Heterogeneous runs are never pooled silently: a population holds runs of one device, environment and timing "
        "protocol.",
        "Intervals are 95%. Those over points say how far a number would move had other points of the same space been "
        "measured; those of single runs hold the scatter within one process, and between processes where points have "
        "replicates.",
        "A point is one model with one configuration. Out of memory is an outcome, not an error, and is counted.",
        "Headings of tables sort them. What was cut from a table is written by the command below it with --csv.",
    )
    return f'<section id="reading"><h2>How to read this page</h2>{items(text(line) for line in words)}</section>'


def _foot(content: Content) -> str:
    return f"<footer><p>Made by {code(content.command)}. The page needs no network.</p></footer>"
