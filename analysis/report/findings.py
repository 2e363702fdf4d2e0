"""What stands out: a few plain findings with their intervals, each pointing at the section it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.format import short
from analysis.report.populations import Population
from analysis.report.sections import Chapter, Section
from analysis.result import Result
from analysis.store.frame import is_ok
from analysis.summaries.boxplot import BoxplotResult
from analysis.summaries.breakdown import BreakdownResult, share_in_words
from analysis.summaries.heatmap import HeatmapResult
from analysis.summaries.roofline import RooflineResult

__all__ = ["Finding", "highlights"]

R = TypeVar("R", bound=Result)
_BEST = 2  # best points that are named


@dataclass(frozen=True)
class Finding:
    """What was found, in a word and in a sentence, and the anchor of its section."""

    topic: str
    words: str
    anchor: str


def highlights(chapters: Sequence[Chapter]) -> list[Finding]:
    """The best points, what limits the models and where their time goes.

    Of each kind but the first only one, from the first population that has it.
    """
    found = [_best(chapter.population, chapter.sections) for chapter in chapters[:_BEST]]
    kinds: tuple[Callable[[Population, Sequence[Section]], Finding | None], ...] = (_bound, _time)
    for kind in kinds:
        each = (kind(chapter.population, chapter.sections) for chapter in chapters)
        found.append(next(filter(None, each), None))
    return [finding for finding in found if finding is not None]


def _first(sections: Sequence[Section], kind: type[R]) -> tuple[R, str] | None:
    """The first result of a kind, and the anchor of its section."""
    return next(((one.result, one.anchor) for one in sections if isinstance(one.result, kind)), None)


def _best(population: Population, sections: Sequence[Section]) -> Finding | None:
    """The point with the highest FLOP rate, or of the highest throughput where no rate is known."""
    rows = population.rows[is_ok(population.rows)]
    known = [name for name in ("flops_per_second", "examples_per_second") if name in rows and rows[name].notna().any()]
    if not known:
        return None
    metric = known[0]
    row = rows.iloc[int(rows[metric].astype("float64").fillna(-np.inf).argmax())]
    unit = "FLOP/s" if metric == "flops_per_second" else "examples/s"
    words = f"{population.name}: {short(row[metric], unit, digits=3)}{_interval(row, metric, unit)}, by {_model(row)}"
    if "flops_utilization" in rows and pd.notna(row["flops_utilization"]):
        words += f", {short(row['flops_utilization'], share=True, digits=3)} of the measured peak"
    shown = [section for kind in (HeatmapResult, BoxplotResult) if (section := _first(sections, kind))]
    anchor = shown[0][1] if shown else population.key
    return Finding("Best measured", f"{words}. It is the highest of {len(rows):,} measured points.", anchor)


def _interval(row: pd.Series, metric: str, unit: str) -> str:
    """The 95% interval of a rate, as that of the run's own throughput; a run without one says so."""
    ends = [row.get(f"examples_per_second_{end}", np.nan) for end in ("low", "high")]
    whole = row.get("examples_per_second", np.nan)
    if not all(pd.notna(value) for value in (*ends, whole)):
        return " (no interval recorded)"
    low, high = (short(float(end / whole * row[metric]), unit, digits=3) for end in ends)
    return f" (95% CI{_processes(row)}: {low} to {high})"


def _processes(row: pd.Series) -> str:
    return " (single process)" if row.get("processes", 1) == 1 else ""


def _model(row: pd.Series) -> str:
    name = row.get("run_name")
    return str(name) if pd.notna(name) and str(name) else f"run {row['run_id']}"


def _bound(population: Population, sections: Sequence[Section]) -> Finding | None:
    shown = _first(sections, RooflineResult)
    limits = shown[0].limits() if shown else None
    if shown is None or limits is None:
        return None
    share, low, high = (short(value, share=True) for value in limits.memory_bound)
    words = (
        f"{population.name}: memory bounds {share} of {limits.models} models (95% interval {low} to {high}); "
        f"in the median they reach {short(limits.roof_share, share=True)} of their roof."
    )
    return Finding("Limits", words, shown[1])


def _time(population: Population, sections: Sequence[Section]) -> Finding | None:
    shown = _first(sections, BreakdownResult)
    if shown is None:
        return None
    shares = shown[0].breakdown.categories
    row = shares[shares["models"] == shares["models"].max()].sort_values("median", ascending=False).iloc[0]
    words = (
        f"{population.name}: {row['name']} takes {short(row['median'], share=True)} of the step of {row['family']} "
        f"in the median over {row['models']} profiled models ({share_in_words(row)})."
    )
    return Finding("Where time goes", words, shown[1])
