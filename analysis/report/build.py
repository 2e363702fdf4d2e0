"""From a frame to the page: every population, every two of them, the claims, and what none of them could carry."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import pandas as pd

from analysis.analyses.claims import ClaimsOptions, ClaimsResult, check_claims
from analysis.analyses.software import SoftwareOptions, software
from analysis.claims.judge import sentences
from analysis.claims.kinds import Answer
from analysis.options import Selection, command_line
from analysis.prices import PriceList, priced
from analysis.report.answers import TOPICS, decision, explanation
from analysis.report.chart import throughput
from analysis.report.comparisons import compare_populations
from analysis.report.costs import costs
from analysis.report.outline import Item, Missing, across, outline
from analysis.report.page import legible, render
from analysis.report.populations import Population, split
from analysis.report.results import results
from analysis.report.sections import Chapter, Context, Finding, Section, run_section
from analysis.report.systems import are_busy, beside, counts, facts, systems
from analysis.store.frame import families
from analysis.store.quality import without_wild_intervals
from paradnn.core.words import counted
from paradnn.store.address import address_of, without_secrets

__all__ = ["make_report", "ui_address"]

#: For whom a page is: who decides, who wants to know why, or both.
Audience = Literal["both", "manager", "engineer"]
#: Answer -> the class that colours it.
_LOOKS = {Answer.SUPPORTED: "supported", Answer.REFUTED: "refuted", Answer.NOT_ENOUGH: "open"}
_DECIDING = ("sensitivity", "roofline", "breakdown")  # analyses that the first screen takes
_POPULATIONS = 8  # shown in full
_ACROSS = Item(software, SoftwareOptions(), "Software versions on one device", software.reading)


def make_report(
    frame: pd.DataFrame,
    selection: Selection,
    pool: bool = False,
    audience: Audience = "both",
    prices: PriceList | None = None,
    made: str = "",
    progress: Callable[[str], None] | None = None,
) -> str:
    """The page of the runs that a selection chose, as `analysis.store.load.load` gives them.

    `audience` is for whom it is, `prices` are those of an hour, over what runs recorded. `made` is the date that the
    page names (now, unless given); `progress` gets a word for each step.
    """
    show, prices = progress or (lambda _: None), prices or PriceList()
    frame, _ = without_wild_intervals(priced(legible(frame), prices))
    context = Context(selection.store, pool, audience != "manager")
    if selection.store:
        selection = replace(selection, store=tuple(map(without_secrets, selection.store)))
    populations = split(frame, selection, pool)
    shown = populations[:_POPULATIONS]
    chapters, missing = _analyse(shown, context, show)
    show("comparisons")
    comparisons, not_compared = ([], []) if pool else compare_populations(shown, frame, selection, context)
    shared, lacking = _versions(shown, frame, selection, context)
    choices, absent = _across(frame, prices, selection, context)
    lacking += absent
    show("claims")
    claims, silent = _claims(frame, selection, context)
    missing += [*lacking, *not_compared, *([claims] if isinstance(claims, Missing) and not silent else [])]
    findings = [*explanation(chapters), *(decision(chapters, comparisons) if audience != "engineer" else [])]
    findings = [*(costs(chapters, comparisons, choices) if audience != "engineer" else []), *findings]
    return render(
        "page.html",
        made=made or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        answers=_by_topic(findings),
        contents=_contents(chapters, choices, bool(comparisons or shared), claims, audience),
        chapters=chapters,
        choices=choices,
        comparisons=comparisons,
        shared=shared,
        claims=claims if isinstance(claims, Section) else None,
        without_data=silent,
        missing=_grouped(missing),
        left_out=_left_out(populations, context),
        analysed=audience != "manager",
        command=_command(selection, pool, audience, prices),
        looks=_LOOKS,
        sentences=sentences,
        **_described(shown, context, selection, audience),
    )


def _described(
    shown: Sequence[Population], context: Context, selection: Selection, audience: Audience
) -> dict[str, Any]:
    """What the page says of the systems, of what they measured, and of where the runs are."""
    stores = [address_of(uri) for uri in context.store] or [address_of()]
    store = next((each for each in stores if not each.is_bundle), stores[0])
    whole = shlex.join(["python", "-m", "analysis", "export", "runs.csv", *command_line(selection)])
    described = systems(shown, context.store[0] if context.store else None)
    return {
        "title": _title(shown),
        "measured": _measured(shown),
        "chart": throughput(shown),
        "results": results(shown, whole) if audience != "engineer" else None,
        "systems": described,
        "beside": beside(shown[0], described) if len(shown) == 1 else [],
        "facts": [facts(one) for one in shown],
        "busy": [are_busy(one.rows) for one in shown],
        "counts": counts(shown),
        "store": ", ".join(each.public for each in stores),
        "ui": ui_address(store.uri),
        "ui_command": f"python -m paradnn.ui --store {shlex.quote(store.public)}",
    }


def _title(populations: Sequence[Population]) -> str:
    names = [one.name for one in populations]
    return (
        names[0] if len(names) == 1 else f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"
    )


def _measured(populations: Sequence[Population]) -> str:
    """What the page is about in a sentence."""
    runs = sum(len(one.rows) for one in populations)
    named = list(dict.fromkeys(name for one in populations for name in families(one.rows)))
    listed = ", ".join(named[:8]) + (f" and {len(named) - 8} more" if named[8:] else "")
    return f"Performance report of {counted(runs, 'run')}: {listed}."


def _by_topic(findings: Iterable[Finding]) -> list[tuple[str, list[Finding]]]:
    topics: dict[str, list[Finding]] = {}
    for one in findings:
        topics.setdefault(one.topic, []).append(one)
    places = {topic: place for place, topic in enumerate(TOPICS)}
    return sorted(topics.items(), key=lambda topic: places.get(topic[0], len(TOPICS)))


def _contents(
    chapters: Sequence[Chapter],
    choices: Sequence[Section],
    compared: bool,
    claims: Section | Missing,
    audience: Audience,
) -> list[tuple[str, str]]:
    """(anchor, words) of the parts of the page."""
    parts = [("results", "Results")] if audience != "engineer" else []
    parts.append(("measured", "Systems side by side" if len(chapters) > 1 else "The system"))
    if audience != "manager":
        parts += [("choices", "Latency and cost")] if choices else []
        parts += [(one.population.key, f"Analyses of {one.population.name}") for one in chapters]
        parts += [("compared", "Device comparisons")] if compared else []
        parts += [("claims", "Claims")] if isinstance(claims, Section) else []
        parts += [("missing", "What is missing")]
    return [*parts, ("reading", "How to read this page")]


def _grouped(missing: Iterable[Missing]) -> list[tuple[str, str, str, str]]:
    """(title, of, reason, remedy) of each analysis that could not be made; those with the same reason together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in missing:
        groups.setdefault((one.title, one.reason, one.remedy), []).append(one.of)
    return [(title, "; ".join(of), reason, remedy) for (title, reason, remedy), of in groups.items()]


def ui_address(uri: str) -> str:
    """The address of the MLflow UI of a tracking server, without user, password and query; empty for other stores."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _analyse(
    populations: Sequence[Population], context: Context, show: Callable[[str], None]
) -> tuple[list[Chapter], list[Missing]]:
    """A chapter for each population, and what they lack."""
    chapters: list[Chapter] = []
    missing: list[Missing] = []
    for population in populations:
        show(population.name)
        sections, lacking = _chapter(population, context)
        chapters.append(Chapter(population, sections))
        missing += lacking
    return chapters, missing


def _across(
    frame: pd.DataFrame, prices: PriceList, selection: Selection, context: Context
) -> tuple[list[Section], list[Missing]]:
    """Sections over all systems, and what they lack."""
    items = [item for item in across(frame, prices.given) if context.draw or item.options.command == "frontier"]
    made = [run_section(item, frame, selection, "all", "all runs", context) for item in items]
    return [one for one in made if isinstance(one, Section)], [one for one in made if isinstance(one, Missing)]


def _command(selection: Selection, pool: bool, audience: Audience, prices: PriceList) -> str:
    """The command line that makes the same page."""
    words = [*command_line(selection), *(["--pool"] if pool else [])]
    words += ["--for", audience] if audience != "both" else []
    words += [word for given in prices.given for word in ("--price", given)]
    return shlex.join(["python", "-m", "analysis", "report", *words])


def _claims(frame: pd.DataFrame, selection: Selection, context: Context) -> tuple[Section | Missing, list[str]]:
    """The claims that have data as a section (`Missing` where none has), and the titles of the others."""
    silent: list[str] = []

    def measured(runs: pd.DataFrame, options: ClaimsOptions) -> ClaimsResult:
        result = check_claims(runs, options)
        silent.extend(verdict.title for verdict in result.verdicts if not verdict.measured)
        return replace(result, verdicts=tuple(verdict for verdict in result.verdicts if verdict.measured))

    item = Item(measured, ClaimsOptions(), check_claims.title, check_claims.reading)
    return run_section(item, frame, selection, "all", "all runs", context), silent


def _chapter(population: Population, context: Context) -> tuple[list[Section], list[Missing]]:
    """Every analysis of one population, for a manager what the verdict takes. What the published files do not hold, no
    command supplies."""
    done = [
        run_section(item, population.rows, population.selection, population.key, population.name, context)
        if isinstance(item, Item)
        else item
        for item in outline(population)
        if context.draw or (isinstance(item, Item) and item.options.command in _DECIDING)
    ]
    lacking = [one for one in done if isinstance(one, Missing)]
    if population.published:
        lacking = [
            replace(one, reason=f"{one.reason}; the published files do not hold it", remedy="") for one in lacking
        ]
    return [one for one in done if isinstance(one, Section)], lacking


def _versions(
    populations: Sequence[Population], frame: pd.DataFrame, selection: Selection, context: Context
) -> tuple[list[Section], list[Missing]]:
    """Software against software where one device was measured with several; each alone has its own section."""
    devices = [population.device for population in populations]
    if context.pool or len(set(devices)) == len(devices):
        return [], []
    section = run_section(_ACROSS, frame, selection, "all", "all runs of a device", context)
    return ([], [section]) if isinstance(section, Missing) else ([section], [])


def _left_out(populations: Sequence[Population], context: Context) -> list[str]:
    """What the page has no room for."""
    lines = []
    if len(populations) > _POPULATIONS:
        named = "; ".join(
            f"{one.name} ({len(one.rows):,} points, {shlex.join(command_line(one.selection))})"
            for one in populations[_POPULATIONS:]
        )
        lines.append(f"Populations left out to keep the page small, each chosen by the options beside it: {named}.")
    if context.refused:
        lines.append(f"Figures left out to keep the page small: {', '.join(context.refused)}.")
    return lines
