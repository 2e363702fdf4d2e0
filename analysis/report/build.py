"""From a frame to the page: every population, every two of them, the claims, and what none of them
could carry.
"""

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
from analysis.prices import PriceList, with_costs
from analysis.registry import Analysis, SectionSpec
from analysis.report.comparisons import compare_populations
from analysis.report.findings import find
from analysis.report.page import legible, render
from analysis.report.populations import Population, split
from analysis.report.results import chart, results, systems
from analysis.report.sections import Context, Missing, PopulationReport, outline
from analysis.store.frame import families
from analysis.store.quality import drop_implausible_intervals
from paradnn.core.words import counted, without_secrets
from paradnn.store.address import address_of

_POPULATIONS = 8  # shown in full


def make_report(
    frame: pd.DataFrame,
    selection: Selection,
    pool: bool = False,
    prices: PriceList | None = None,
    made: str = "",
) -> str:
    """The page of the runs that a selection chose, as `analysis.store.load.load` gives them.

    `prices` are those of an hour, over what runs recorded; `made` is the date that the page names
    (now, unless given).
    """
    prices = prices or PriceList()
    frame, _ = drop_implausible_intervals(with_costs(legible(frame), prices))
    context = Context(selection.store, pool)
    if selection.store:
        selection = replace(selection, store=tuple(map(without_secrets, selection.store)))
    populations = split(frame, selection, pool)
    shown = populations[:_POPULATIONS]
    asked = ((one, outline("system", one.rows)) for one in shown)
    chapters = [
        PopulationReport(one, context.sections(each, one.rows, one.selection, one.key, one.name))
        for one, each in asked
    ]
    for one in populations[_POPULATIONS:]:
        command = shlex.join(["python", "-m", "analysis", "report", *command_line(one.selection)])
        reason = f"left out to keep the page small: {command}"
        context.missing.append(Missing("Further populations", one.name, reason))
    if pool:
        comparisons = []
    else:
        comparisons = compare_populations(shown, frame, selection, context)

    def of_all(*asked: tuple[Analysis[Any, Any], SectionSpec]) -> list[Any]:
        return context.sections(asked, frame, selection, "all", "all runs")

    choices = of_all(*outline("all", frame, prices.given))
    claims = of_all(
        (
            replace(check_claims, function=_measured),
            SectionSpec(ClaimsOptions(), check_claims.title),
        )
    )
    answers = groupby(find(chapters, comparisons, choices), lambda one: one.topic)
    return render(
        "page.html",
        made=made or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        answers=[(topic, [*own]) for topic, own in answers],
        chapters=chapters,
        choices=choices,
        comparisons=comparisons,
        claims=claims,
        missing=_grouped(context.missing),
        command=_command(selection, pool, prices),
        **_described(shown, selection, context),
    )


def _described(
    shown: Sequence[Population], selection: Selection, context: Context
) -> dict[str, Any]:
    """What the page says of the systems, of what they measured, and of where the runs are."""
    stores = [address_of(uri) for uri in context.store] or [address_of()]
    store = next((each for each in stores if not each.is_bundle), stores[0])
    whole = shlex.join(["python", "-m", "analysis", "export", "runs.csv", *command_line(selection)])
    return {
        "names": [one.name for one in shown],
        "runs": counted(sum(len(one.rows) for one in shown), "run"),
        "families": list(dict.fromkeys(name for one in shown for name in families(one.rows))),
        "chart": chart(shown),
        "results": results(shown, whole),
        "systems": systems(shown, context.store[0] if context.store else None),
        "store": ", ".join(
            each.public.rpartition("/")[2] if each.is_bundle else each.public for each in stores
        ),
        "ui": ui_address(store.uri),
        "ui_command": ""
        if store.is_bundle
        else f"python -m paradnn.ui --store {shlex.quote(store.public)}",
    }


def _measured(runs: pd.DataFrame, options: ClaimsOptions) -> ClaimsResult:
    """The claims that have data."""
    result = check_claims.function(runs, options)
    return answered(
        tuple(one for one in result.verdicts if one.measured), result.sources, result.pooled
    )


def _grouped(missing: Iterable[Missing]) -> list[tuple[str, str, str]]:
    """(title, of, reason) of each analysis that could not be made; those with the same reason
    together.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for title, of, reason in missing:
        groups.setdefault((title, reason), []).append(of)
    return [(title, "; ".join(of), reason) for (title, reason), of in groups.items()]


def ui_address(uri: str) -> str:
    """The address of the MLflow UI of a tracking server, without user, password and query; empty
    for other stores.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")
    )


def _command(selection: Selection, pool: bool, prices: PriceList) -> str:
    """The command line that makes the same page."""
    words = [*command_line(selection), *(["--pool"] if pool else [])]
    words += [word for given in prices.given for word in ("--price", given)]
    return shlex.join(["python", "-m", "analysis", "report", *words])
