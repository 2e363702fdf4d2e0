"""Build the HTML report on runs: systems, their comparisons, claims, and missing analyses."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pandas as pd

from analysis.analyses.claims import ClaimsOptions, ClaimsResult, answered, check_claims
from analysis.options import Selection, command_line
from analysis.page_texts import legible
from analysis.prices import PriceList, with_costs
from analysis.registry import SectionSpec
from analysis.report.comparisons import SystemComparison, compare_populations
from analysis.report.findings import key_findings
from analysis.report.page import render
from analysis.report.populations import Population, split
from analysis.report.results import chart, results, systems
from analysis.report.sections import Context, Missing, PopulationReport, Section, outline
from analysis.store.frame import families
from analysis.store.quality import drop_implausible_intervals
from paradnn.core.words import counted, without_secrets
from paradnn.store.address import address_of

#: Largest number of populations that the page shows; further populations are only listed.
_MAX_POPULATIONS = 8


def make_report(
    frame: pd.DataFrame,
    selection: Selection,
    *,
    pool: bool = False,
    prices: PriceList | None = None,
    made: str = "",
) -> str:
    """Return the report on runs as an HTML page.

    Args:
        frame: The runs that the selection chose, as `analysis.store.load.load` returns them.
        selection: The options that chose the runs. The commands on the page repeat them.
        pool: Whether all runs of a device are shown together, even if they differ in their
            environment or timing protocol.
        prices: Prices per hour, which override those that the runs recorded; None for no prices.
        made: Date on the page, as text; empty for the present time.

    Returns:
        The HTML of the page.
    """
    prices = prices or PriceList()
    frame, _ = drop_implausible_intervals(with_costs(legible(frame), prices))
    context = Context(selection.store, pool)
    if selection.store:
        selection = replace(selection, store=tuple(map(without_secrets, selection.store)))
    populations = split(frame, selection, pool=pool)
    shown = populations[:_MAX_POPULATIONS]
    reports = [_report_population(population, context) for population in shown]
    for population in populations[_MAX_POPULATIONS:]:
        command = _report_command(population.selection)
        reason = f"omitted to keep the page small; for a separate report, use {command}"
        context.missing.append(Missing("Further populations", population.name, reason))
    comparisons: list[SystemComparison] = []
    if not pool:
        comparisons = compare_populations(shown, frame, selection, context)
    choices = context.sections(
        outline("all", frame, prices.given), frame, selection, "all", "all runs"
    )
    claims_analysis = replace(check_claims, function=_answered_claims)
    claims_spec = SectionSpec(ClaimsOptions(), check_claims.title)
    claims = context.sections([(claims_analysis, claims_spec)], frame, selection, "all", "all runs")
    findings = key_findings(reports, comparisons, choices)
    return render(
        "page.html",
        made=made or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        answers=[
            (topic, list(group)) for topic, group in groupby(findings, lambda entry: entry.topic)
        ],
        chapters=reports,
        choices=choices,
        rooflines=_rooflines(reports),
        comparisons=comparisons,
        claims=claims,
        missing=_group_missing(context.missing),
        command=_report_command(selection, pool=pool, prices=prices),
        **_describe_runs(shown, selection, context),
    )


def _report_population(population: Population, context: Context) -> PopulationReport:
    sections = context.sections(
        outline("system", population.rows),
        population.rows,
        population.selection,
        population.key,
        population.name,
    )
    return PopulationReport(population, sections)


def _rooflines(reports: Sequence[PopulationReport]) -> list[tuple[str, Section]]:
    """Return the name of each measured system with its roofline section.

    The beginning of the page shows these rooflines. Systems without one are omitted.
    """
    rooflines = []
    for report in reports:
        for section in report.sections:
            if section.name == "roofline" and section.figure:
                rooflines.append((report.population.name, section))
                break
    return rooflines


def _describe_runs(
    shown: Sequence[Population], selection: Selection, context: Context
) -> dict[str, Any]:
    """Return the variables of the page's template about systems, results and stores.

    Args:
        shown: The populations: sets of runs of one system each.
        selection: The options that chose the runs.
        context: Data that all sections of the page share.
    """
    stores = [address_of(uri) for uri in context.store] or [address_of()]
    store = next((address for address in stores if not address.is_read_only), stores[0])
    export = shlex.join(
        ["python", "-m", "analysis", "export", "runs.csv", *command_line(selection)]
    )
    store_names = [
        address.public.rpartition("/")[2] if address.is_read_only else address.public
        for address in stores
    ]
    ui_command = ""
    if not store.is_read_only:
        ui_command = f"python -m paradnn.ui --store {shlex.quote(store.public)}"
    return {
        "names": [population.name for population in shown],
        "runs": counted(sum(len(population.rows) for population in shown), "run"),
        "families": list(
            dict.fromkeys(name for population in shown for name in families(population.rows))
        ),
        "chart": chart(shown),
        "results": results(shown, export),
        "systems": systems(shown, context.store[0] if context.store else None),
        "store": ", ".join(store_names),
        "ui": ui_address(store.uri),
        "ui_command": ui_command,
    }


def _answered_claims(runs: pd.DataFrame, options: ClaimsOptions) -> ClaimsResult:
    """Check claims about platforms, and return the result of those with data in the runs."""
    result = check_claims.function(runs, options)
    verdicts = tuple(verdict for verdict in result.verdicts if verdict.measured)
    return answered(verdicts, result.sources, result.pooled)


def _group_missing(missing: Iterable[Missing]) -> list[tuple[str, str, str]]:
    """Group the analyses without a result by title and reason.

    Returns:
        For each group: the title, the names of the runs joined by "; ", and the reason.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for title, runs, reason in missing:
        groups.setdefault((title, reason), []).append(runs)
    return [(title, "; ".join(runs), reason) for (title, reason), runs in groups.items()]


def ui_address(uri: str) -> str:
    """Return the address of a tracking server's MLflow UI, without user, password and query.

    Args:
        uri: Address of an MLflow store.

    Returns:
        The address; empty if the store is not a server.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _report_command(
    selection: Selection, *, pool: bool = False, prices: PriceList | None = None
) -> str:
    """Return the command line that makes a report on the runs of a selection.

    Args:
        selection: The options that choose the runs.
        pool: Whether the command has the option --pool.
        prices: Prices for the option --price; None to omit it.
    """
    words = ["python", "-m", "analysis", "report", *command_line(selection)]
    if pool:
        words.append("--pool")
    if prices is not None:
        for price in prices.given:
            words += ["--price", price]
    return shlex.join(words)
