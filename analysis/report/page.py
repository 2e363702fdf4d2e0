"""The page: contents, headline, what was measured, a chapter for each part, comparisons, claims, what is missing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.report.assets import SCRIPT, STYLE
from analysis.report.comparisons import Pair
from analysis.report.findings import Finding
from analysis.report.html import attribute, code, items, prose, run_link, text
from analysis.report.overview import facts, overview
from analysis.report.populations import Part
from analysis.report.sections import Missing, Section
from analysis.report.table import html_table
from analysis.summaries.result import Result

__all__ = ["Content", "render"]

_SOURCES = 12  # run ids of a section that are listed
_LONGEST = 420  # characters of why an analysis is missing
_ANSWER = re.compile(r"^(.*): (SUPPORTED|REFUTED|NOT ENOUGH DATA)(.*)$")


@dataclass(frozen=True)
class Content:
    """All that the page shows. `ui` is the address of the MLflow UI or empty, `ui_command` opens it elsewhere."""

    title: str
    store: str
    made: str
    command: str
    ui: str
    ui_command: str
    parts: Sequence[tuple[Part, Sequence[Section]]]
    shared: Sequence[Section]
    pairs: Sequence[Pair]
    claims: Section | None
    missing: Sequence[Missing]
    findings: Sequence[Finding]
    left_out: Sequence[str]


def render(content: Content) -> str:
    """The whole page. Only its own script may run, by its hash, and nothing is fetched."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    body = "\n".join(
        [
            _head(content),
            _headline(content.findings),
            _contents(content),
            '<main id="main">',
            f'<section id="measured"><h2>What was measured where</h2>{overview(_parts(content))}'
            f"{_where_runs_are(content)}</section>",
            *(_chapter(part, sections, content.ui) for part, sections in content.parts),
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


def _parts(content: Content) -> list[Part]:
    return [part for part, _ in content.parts]


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
        f'<strong>{text(found.topic)}.</strong> {text(found.words)} <a href="#{attribute(found.anchor)}">More</a>'
        for found in findings
    )
    return f'<section class="headline" aria-labelledby="found"><h2 id="found">What was found</h2>{lines}</section>'


def _contents(content: Content) -> str:
    """Links to every chapter and section."""
    chapters = ['<a href="#measured">What was measured where</a>']
    for part, sections in content.parts:
        chapters.append(f'<a href="#{part.key}">{text(part.name)}</a>{_links(sections)}')
    compared = [(f"{pair.a.name} over {pair.b.name}", pair.sections[0].anchor) for pair in content.pairs]
    if compared or content.shared:
        compared += [(section.title, section.anchor) for section in content.shared]
        inner = items(f'<a href="#{anchor}">{text(name)}</a>' for name, anchor in compared)
        chapters.append(f'<a href="#compared">Parts against each other</a>{inner}')
    if content.claims:
        chapters.append('<a href="#claims">Claims</a>')
    chapters += ['<a href="#missing">What is missing</a>', '<a href="#reading">How to read this page</a>']
    return f'<nav aria-labelledby="toc"><h2 id="toc">Contents</h2>{items(chapters)}</nav>'


def _links(sections: Iterable[Section]) -> str:
    return items(f'<a href="#{section.anchor}">{text(section.title)}</a>' for section in sections)


def _chapter(part: Part, sections: Sequence[Section], ui: str) -> str:
    inner = "".join(_section(section, ui) for section in sections)
    return f'<section id="{part.key}"><h2>{text(part.name)}</h2>{facts(part)}{inner}</section>'


def _section(section: Section, ui: str, words: str | None = None) -> str:
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
        f'<section><h3 id="{section.anchor}">{text(section.title)}</h3>{names}{figure}{note}'
        f"{prose(section.result.text) if words is None else words}{table}{_sources(section.result, ui)}"
        f'<p class="command">Again: {code(section.command)}</p></section>'
    )


def _sources(result: Result, ui: str) -> str:
    """The runs that a section rests on."""
    runs = list(dict.fromkeys(result.sources or ()))
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
    if not content.pairs and not content.shared:
        return ""
    inner = "".join(
        f"<section><h3>{text(pair.a.name)} over {text(pair.b.name)}</h3>"
        + "".join(
            _section(section, content.ui).replace("<h3 ", "<h4 ").replace("</h3>", "</h4>") for section in pair.sections
        )
        + "</section>"
        for pair in content.pairs
    )
    inner += "".join(_section(section, content.ui) for section in content.shared)
    return f'<section id="compared"><h2>Parts against each other</h2>{inner}</section>'


def _claims(section: Section | None) -> str:
    """Claims with an answer first; those without data collapsed."""
    if section is None:
        return ""
    answered: list[str] = []
    open_ones: list[str] = []
    rest: list[str] = []
    for block in re.split(r"\n(?=\S)", section.result.text):
        head, *lines = block.splitlines()
        match = _ANSWER.match(head)
        if match is None:
            rest.append(f"<p>{text(block)}</p>")
            continue
        kind = {"SUPPORTED": "supported", "REFUTED": "refuted"}.get(match[2], "open")
        answer = f'<span class="answer {kind}">{text(match[2].lower())}</span>{text(match[3])}'
        entry = f"<h4>{text(match[1])}</h4><p>{answer}</p>{items(text(line.strip()) for line in lines)}"
        measured = any("over" in line and "points" in line for line in lines)
        (open_ones if kind == "open" and not measured else answered).append(entry)
    words = "".join([*rest, *answered])
    if open_ones:
        words += f"<details><summary>{len(open_ones)} claims without data</summary>{''.join(open_ones)}</details>"
    return f'<section id="claims"><h2>Claims</h2>{_section(section, "", words)}</section>'


def _missing(content: Content) -> str:
    """One line for each analysis that could not be made; those with the same reason together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in content.missing:
        groups.setdefault((one.title, _shorter(one.reason), one.remedy), []).append(one.of)
    lines = []
    for (title, reason, remedy), of in groups.items():
        supply = f" Supply it: {code(remedy)}" if remedy else ""
        lines.append(f"<strong>{text(title)}</strong> ({text('; '.join(of))}): {text(reason)}.{supply}")
    lines += [text(line) for line in content.left_out]
    said = items(lines) if lines else "<p>Nothing: every analysis had its data.</p>"
    return f'<section id="missing"><h2>What is missing</h2>{said}</section>'


def _shorter(reason: str) -> str:
    """A message on one short line: groups that lack the same are counted, the end of a long one is cut."""
    clauses: dict[str, list[str]] = {}
    for clause in reason.rstrip(".").split("; "):
        head, sign, problem = clause.rpartition(": ")
        clauses.setdefault(problem if sign else clause, []).append(head)
    said = []
    for problem, heads in clauses.items():
        more = f" and {len(heads) - 1} more" if len(heads) > 1 else ""
        said.append(f"{heads[0]}{more}: {problem}" if heads[0] else problem)
    words = "; ".join(said)
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST].rsplit(' ', 1)[0]} ..."


def _reading() -> str:
    words = (
        "Unlike runs are never pooled silently: a part holds runs of one device, environment and timing protocol.",
        "Intervals are 95%. Those over points say how far a number would move had other points of the same space been "
        "measured; those of single runs hold the scatter within one process, and between processes where points have "
        "replicates.",
        "A point is one model with one configuration. Out of memory is an outcome, not an error, and is counted.",
        "Headings of tables sort them. What was cut from a table is written by the command below it with --csv.",
    )
    return f'<section id="reading"><h2>How to read this page</h2>{items(text(line) for line in words)}</section>'


def _foot(content: Content) -> str:
    return f"<footer><p>Made by {code(content.command)}. The page needs no network.</p></footer>"
