"""From a frame to the page: every population, every two of them, the claims, and what none of them could carry."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd

from analysis.options import Selection, command_line
from analysis.prices import PriceList, priced
from analysis.report.comparisons import compare_populations
from analysis.report.costs import costs
from analysis.report.findings import highlights
from analysis.report.html import ui_address
from analysis.report.outline import Item, Missing, across, outline
from analysis.report.page import Audience, Content, render
from analysis.report.populations import Population, split
from analysis.report.sections import Chapter, Context, Section, run_section
from analysis.report.verdict import verdicts
from analysis.summaries.claims import ClaimsOptions, ClaimsResult, check_claims
from analysis.summaries.software import SoftwareOptions, software
from paradnn.store.address import address_of, without_secrets

__all__ = ["make_report"]

_POPULATIONS = 8  # shown in full
_ACROSS = Item(
    software,
    SoftwareOptions(),
    "Software versions on one device",
    "Speedup over the baseline, point by point: median and 90th percentile.",
)


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
    frame = priced(frame, prices)
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
    stores = [address_of(uri) for uri in context.store] or [address_of()]
    store = next((each for each in stores if not each.is_bundle), stores[0])
    return render(
        Content(
            title="Performance report",
            audience=audience,
            address=context.store[0] if context.store else None,
            store=", ".join(each.public for each in stores),
            made=made or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            command=_command(selection, pool, audience, prices),
            ui=ui_address(store.uri),
            ui_command=f"python -m paradnn.ui --store {shlex.quote(store.public)}",
            chapters=chapters,
            choices=choices,
            shared=shared,
            comparisons=comparisons,
            claims=claims if isinstance(claims, Section) else None,
            silent=silent,
            missing=missing,
            verdict=[*costs(chapters, comparisons, choices), *verdicts(chapters, comparisons)],
            findings=highlights(chapters),
            left_out=_left_out(populations, context),
            whole=shlex.join(["python", "-m", "analysis", "export", "runs.csv", *command_line(selection)]),
        )
    )


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

    item = Item(
        measured,
        ClaimsOptions(),
        "The paper's observations as checks",
        "Supported: the 95% interval of its number lies on the claimed side.",
    )
    return run_section(item, frame, selection, "all", "all runs", context), silent


def _chapter(population: Population, context: Context) -> tuple[list[Section], list[Missing]]:
    """Every analysis of one population, for a manager what the verdict takes. What the published files do not hold, no
    command supplies."""
    done = [
        run_section(item, population.rows, population.selection, population.key, population.name, context)
        if isinstance(item, Item)
        else item
        for item in outline(population)
        if context.draw or (isinstance(item, Item) and item.options.command == "sensitivity")
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
