"""The page: first what decides (verdict, results, systems), then every analysis, claims, and what is missing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.claims.judge import Verdict, sentences
from analysis.claims.kinds import Answer
from analysis.report.assets import SCRIPT, STYLE
from analysis.report.comparisons import Comparison
from analysis.report.findings import Finding
from analysis.report.html import attribute, code, items, prose, run_link, text
from analysis.report.outline import Missing
from analysis.report.overview import facts, overview
from analysis.report.results import results_table
from analysis.report.sections import Chapter, Section
from analysis.report.systems import systems_table
from analysis.report.table import html_table
from analysis.result import Result
from analysis.summaries.claims import ClaimsResult
from paradnn.core.words import counted

__all__ = ["Audience", "Content", "render"]

#: For whom a page is: who decides, who wants to know why, or both.
Audience = Literal["both", "manager", "engineer"]

_TOLD = 4  # sentences of a topic that stand open
_CHOICES = "Latency and cost"
_SOURCES = 12  # run ids of a section that are listed
#: Answer -> the class that colours it.
_ANSWERS = {Answer.SUPPORTED: "supported", Answer.REFUTED: "refuted", Answer.NOT_ENOUGH: "open"}


@dataclass(frozen=True)
class Content:
    """All that the page shows. `ui` is the address of the MLflow UI or empty, `ui_command` opens it elsewhere;
    `whole` writes all runs, `silent` are the claims without data; `choices` and `shared` are about all systems."""

    title: str
    audience: Audience
    address: str | None
    store: str
    made: str
    command: str
    ui: str
    ui_command: str
    chapters: Sequence[Chapter]
    choices: Sequence[Section]
    shared: Sequence[Section]
    comparisons: Sequence[Comparison]
    claims: Section | None
    silent: Sequence[str]
    missing: Sequence[Missing]
    verdict: Sequence[Finding]
    findings: Sequence[Finding]
    left_out: Sequence[str]
    whole: str


def render(content: Content) -> str:
    """The whole page. Only its own script may run, by its hash, and nothing is fetched."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    decides = content.audience != "engineer"
    verdict = _headline("verdict", "Verdict", content.verdict, content.audience == "both") if decides else ""
    parts = [_results(content) if decides else "", _systems(content)]
    parts += _analyses(content) if content.audience != "manager" else []
    opening = [_head(content), verdict, _contents(content) if content.audience != "manager" else ""]
    body = "\n".join([*opening, '<main id="main">', *parts, _reading(), "</main>", _foot(content)])
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


def _results(content: Content) -> str:
    results = results_table([one.population for one in content.chapters], content.whole)
    return f'<section id="results"><h2>Results</h2>{results}</section>'


def _systems(content: Content) -> str:
    populations = [one.population for one in content.chapters]
    systems = systems_table(populations, content.address, linked=content.audience != "manager")
    return f'<section id="measured"><h2>Systems side by side</h2>{systems}{_where_runs_are(content)}</section>'


def _analyses(content: Content) -> list[str]:
    """What an engineer asks: every analysis, system by system and against each other, and what could not be made."""
    populations = [one.population for one in content.chapters]
    return [
        _headline("found", "In short", content.findings, True),
        _choices(content),
        f'<section id="counts"><h2>Points by family and outcome</h2>{overview(populations)}</section>',
        *(_chapter(chapter, content.ui) for chapter in content.chapters),
        _comparisons(content),
        _claims(content),
        _missing(content),
    ]


def _headline(key: str, title: str, findings: Sequence[Finding], linked: bool) -> str:
    """Findings in a box; `linked` to the sections they come from, where the page has them."""
    if not findings:
        return ""
    topics: dict[str, list[Finding]] = {}
    for one in findings:
        topics.setdefault(one.topic, []).append(one)
    lines = items(f"<strong>{text(topic)}.</strong> {_told(same, linked)}" for topic, same in topics.items())
    return f'<section class="headline" aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{lines}</section>'


def _told(findings: Sequence[Finding], linked: bool) -> str:
    """The sentences of a topic; of many, the first ones stand open."""
    said = [text(one.words) + (f' <a href="#{attribute(one.anchor)}">More</a>' if linked else "") for one in findings]
    rest = said[_TOLD:]
    folded = f"<details><summary>{len(rest)} more</summary>{items(rest)}</details>" if rest else ""
    return f"{' '.join(said[:_TOLD])}{folded}"


def _contents(content: Content) -> str:
    """Links to every chapter and section."""
    chapters = [] if content.audience == "engineer" else ['<a href="#results">Results</a>']
    chapters.append('<a href="#measured">Systems side by side</a>')
    if content.choices:
        chapters.append(f'<a href="#choices">{_CHOICES}</a>{_links(content.choices)}')
    chapters.append('<a href="#counts">Points by family and outcome</a>')
    for one in content.chapters:
        chapters.append(f'<a href="#{one.population.key}">{text(one.population.name)}</a>{_links(one.sections)}')
    compared = [(one.title, one.sections[0].anchor) for one in content.comparisons]
    if compared or content.shared:
        compared += [(section.title, section.anchor) for section in content.shared]
        inner = items(f'<a href="#{anchor}">{text(name)}</a>' for name, anchor in compared)
        chapters.append(f'<a href="#compared">Device comparisons</a>{inner}')
    if content.claims:
        chapters.append('<a href="#claims">Claims</a>')
    chapters += ['<a href="#missing">What is missing</a>', '<a href="#reading">How to read this page</a>']
    return f'<nav aria-labelledby="toc"><h2 id="toc">Contents</h2>{items(chapters)}</nav>'


def _links(sections: Iterable[Section]) -> str:
    return items(f'<a href="#{section.anchor}">{text(section.title)}</a>' for section in sections)


def _choices(content: Content) -> str:
    """What users wait for and what it costs, over all systems, where any run tells."""
    if not content.choices:
        return ""
    inner = "".join(_section(section, content.ui) for section in content.choices)
    return f'<section id="choices"><h2>{_CHOICES}</h2>{inner}</section>'


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
        f'<p class="command">Reproduce: {code(section.command)}</p></section>'
    )


def _sources(result: Result, ui: str) -> str:
    """The runs that a section rests on."""
    runs = list(dict.fromkeys(result.sources))
    if not runs:
        return ""
    more = f" and {len(runs) - _SOURCES:,} more" if len(runs) > _SOURCES else ""
    listed = ", ".join(run_link(run, ui) for run in runs[:_SOURCES])
    return f"<details><summary>Source runs: {len(runs):,}</summary><p>{listed}{more}.</p></details>"


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
    return f'<section id="compared"><h2>Device comparisons</h2>{inner}</section>'


def _claims(content: Content) -> str:
    """The claims that have data; where all have none there is no such section."""
    section = content.claims
    if section is None:
        return ""
    assert isinstance(section.result, ClaimsResult)
    answered = [_claim(verdict) for verdict in section.result.verdicts]
    words = f"{prose(section.result.closing())}{''.join(answered)}{_silent(content)}"
    return f'<section id="claims"><h2>Claims</h2>{_section(section, "", words)}</section>'


def _silent(content: Content) -> str:
    """In one line how many claims have no data, their names folded."""
    count = len(content.silent)
    if not count:
        return ""
    head = f"{counted(count, 'claim')} {'has' if count == 1 else 'have'} no data in these runs"
    return f"<details><summary>{head}</summary>{items(map(text, content.silent))}</details>"


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
        supply = f" To add this, run: {code(remedy)}" if remedy else ""
        lines.append(f"<strong>{text(title)}</strong> ({text('; '.join(of))}): {text(reason)}.{supply}")
    lines += [text(line) for line in content.left_out]
    said = items(lines) if lines else "<p>Nothing: every analysis had its data.</p>"
    silent = "" if content.claims else _silent(content)
    return f'<section id="missing"><h2>What is missing</h2>{said}{silent}</section>'


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
