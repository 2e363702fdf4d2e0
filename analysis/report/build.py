"""From a frame to the page: every population, every two of them, the claims, and what none of them could carry."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd

from analysis.options import Selection, command_line
from analysis.report.comparisons import compare_populations
from analysis.report.findings import headline
from analysis.report.html import ui_address
from analysis.report.outline import Item, Missing, outline
from analysis.report.page import Content, render
from analysis.report.populations import Population, split
from analysis.report.sections import Chapter, Context, Section, run_section
from analysis.summaries.claims import ClaimsOptions, check_claims
from analysis.summaries.software import SoftwareOptions, software
from paradnn.store.address import address_of, without_secrets

__all__ = ["make_report"]

_POPULATIONS = 8  # shown in full
_CLAIMS = Item(
    check_claims,
    ClaimsOptions(),
    "The paper's observations as checks",
    "Supported: the 95% interval of its number lies on the claimed side.",
)
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
    made: str = "",
    progress: Callable[[str], None] | None = None,
) -> str:
    """The page of the runs that a selection chose, as `analysis.store.load.load` gives them.

    `made` is the date that the page names (now, unless given); `progress` gets a word for each step.
    """
    show = progress or (lambda _: None)
    context = Context(selection.store, pool)
    if selection.store:
        selection = replace(selection, store=tuple(map(without_secrets, selection.store)))
    populations = split(frame, selection, pool)
    shown, missing = populations[:_POPULATIONS], []
    chapters: list[Chapter] = []
    for population in shown:
        show(population.name)
        sections, lacking = _chapter(population, context)
        chapters.append(Chapter(population, sections))
        missing += lacking
    show("comparisons")
    comparisons, not_compared = ([], []) if pool else compare_populations(shown, frame, selection, context)
    shared, lacking = _versions(shown, frame, selection, context)
    show("claims")
    claims = run_section(_CLAIMS, frame, selection, "all", "all runs", context)
    missing += [*lacking, *not_compared, *([claims] if isinstance(claims, Missing) else [])]
    stores = [address_of(uri) for uri in context.store] or [address_of()]
    store = next((each for each in stores if not each.is_bundle), stores[0])
    pooled = ["--pool"] if pool else []
    return render(
        Content(
            title="Performance report",
            store=", ".join(each.public for each in stores),
            made=made or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            command=shlex.join(["python", "-m", "analysis", "report", *command_line(selection), *pooled]),
            ui=ui_address(store.uri),
            ui_command=f"python -m paradnn.ui --store {shlex.quote(store.public)}",
            chapters=chapters,
            shared=shared,
            comparisons=comparisons,
            claims=claims if isinstance(claims, Section) else None,
            missing=missing,
            findings=headline(chapters, comparisons),
            left_out=_left_out(populations, context),
        )
    )


def _chapter(population: Population, context: Context) -> tuple[list[Section], list[Missing]]:
    """Every analysis of one population. What the published files do not hold, no command supplies."""
    done = [
        run_section(item, population.rows, population.selection, population.key, population.name, context)
        if isinstance(item, Item)
        else item
        for item in outline(population)
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
