"""From a frame to the page: every part, every pair of parts, the claims, and what none of them could carry."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pandas as pd

from analysis.report.comparisons import compare_parts
from analysis.report.findings import headline
from analysis.report.html import ui_address
from analysis.report.outline import Item, plan
from analysis.report.page import Content, render
from analysis.report.populations import Part, split
from analysis.report.sections import Budget, Missing, Section, carry_out
from paradnn.store.address import address_of

__all__ = ["make_report"]

_PARTS = 8  # shown in full
_FIGURES = 8_000_000  # bytes of figures in the page
_CLAIMS = Item(
    "claims",
    "The paper's observations as checks",
    "Supported: the 95% interval of its number lies on the claimed side.",
)
_ACROSS = Item(
    "software",
    "Software versions on one device",
    "Speedup over the baseline, point by point: median and 90th percentile.",
)


def make_report(
    frame: pd.DataFrame,
    args: argparse.Namespace,
    options: Sequence[str] = (),
    made: str = "",
    progress: Callable[[str], None] | None = None,
) -> str:
    """The page of a frame of runs, as `analysis.store.load.load` gives it.

    `args` are the report's own arguments (store and pool are read), `options` the command-line options that chose the
    frame, `made` the date that the page names (now, unless given), `progress` is told what is being done.
    """
    tell = progress or (lambda _: None)
    budget = Budget(_FIGURES)
    parts = split(frame, args.pool)
    chapters: list[tuple[Part, list[Section]]] = []
    missing: list[Missing] = []
    for part in parts[:_PARTS]:
        tell(part.name)
        sections, lacking = _part(part, options, args, budget)
        chapters.append((part, sections))
        missing += lacking
    tell("comparisons")
    shown = parts[:_PARTS]
    pairs, unpaired = ([], []) if args.pool else compare_parts(shown, frame, options, args, budget)
    shared = _versions(shown, frame, options, args, budget, missing)
    tell("claims")
    claims = carry_out(_CLAIMS, frame, options, args, "all", "all runs", budget)
    missing += [*unpaired, *([claims] if isinstance(claims, Missing) else [])]
    store = address_of(args.store)
    return render(
        Content(
            title="Performance report",
            store=store.public,
            made=made or _now(),
            command=shlex.join(["python", "-m", "analysis", "report", *options]),
            ui=ui_address(store.uri),
            ui_command=f"mlflow ui --backend-store-uri {shlex.quote(store.public)}",
            parts=chapters,
            shared=shared,
            pairs=pairs,
            claims=claims if isinstance(claims, Section) else None,
            missing=missing,
            findings=headline(chapters, pairs),
            left_out=_left_out(parts, budget),
        )
    )


def _part(
    part: Part, options: Sequence[str], args: argparse.Namespace, budget: Budget
) -> tuple[list[Section], list[Missing]]:
    """Every analysis of one part. What the published files do not hold, no command supplies."""
    chosen = [*options, *part.options]
    done = [carry_out(item, part.rows, chosen, args, part.key, part.name, budget) for item in plan(part)]
    sections = [one for one in done if isinstance(one, Section)]
    lacking = [one for one in done if isinstance(one, Missing)]
    if part.published:
        lacking = [
            replace(one, reason=f"{one.reason.rstrip('.')}; the published files do not hold it", remedy="")
            for one in lacking
        ]
    return sections, lacking


def _versions(
    parts: Sequence[Part],
    frame: pd.DataFrame,
    options: Sequence[str],
    args: argparse.Namespace,
    budget: Budget,
    missing: list[Missing],
) -> list[Section]:
    """Software against software where one device was measured with several; each part alone has its own section."""
    devices = [part.device for part in parts]
    if args.pool or len(set(devices)) == len(devices):
        return []
    found = carry_out(_ACROSS, frame, options, args, "all", "all runs of a device", budget)
    if isinstance(found, Missing):
        missing.append(found)
        return []
    return [found]


def _left_out(parts: Sequence[Part], budget: Budget) -> list[str]:
    """What the page has no room for."""
    lines = []
    if len(parts) > _PARTS:
        named = "; ".join(
            f"{part.name} ({len(part.rows):,} points, {shlex.join(part.options)})" for part in parts[_PARTS:]
        )
        lines.append(f"Parts left out to keep the page small, each chosen by the options beside it: {named}.")
    if budget.refused:
        lines.append(f"Figures left out to keep the page small: {', '.join(budget.refused)}.")
    return lines


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
