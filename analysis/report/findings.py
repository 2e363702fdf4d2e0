"""The headline: a few plain findings with their intervals, each pointing at the section it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis.format import short
from analysis.methods.heatmap import MEMORY
from analysis.report.comparisons import Comparison
from analysis.report.populations import Population
from analysis.report.sections import Chapter, Section
from analysis.store.frame import is_ok
from analysis.summaries.boxplot import BoxplotResult
from analysis.summaries.breakdown import BreakdownResult, share_in_words
from analysis.summaries.heatmap import HeatmapResult
from analysis.summaries.result import Result
from analysis.summaries.roofline import RooflineResult
from analysis.summaries.sensitivity import SensitivityResult

__all__ = ["Finding", "headline"]

R = TypeVar("R", bound=Result)
_MOST = 6
_BEST = 2  # best points that are named


@dataclass(frozen=True)
class Finding:
    """What was found, in a word and in a sentence, and the anchor of its section."""

    topic: str
    words: str
    anchor: str


def headline(chapters: Sequence[Chapter], comparisons: Sequence[Comparison]) -> list[Finding]:
    """At most six findings: best points, the largest comparison, what matters most, limits, time, memory.

    Of each kind but the first only one, from the first population that has it.
    """
    found = [_best(chapter.population, chapter.sections) for chapter in chapters[:_BEST]]
    largest = sorted(comparisons, key=lambda one: len(one.result.table), reverse=True)[:1]
    found += [_compared(comparison) for comparison in largest]
    kinds: tuple[Callable[[Population, Sequence[Section]], Finding | None], ...] = (_matters, _bound, _time, _memory)
    for kind in kinds:
        each = (kind(chapter.population, chapter.sections) for chapter in chapters)
        found.append(next(filter(None, each), None))
    return [finding for finding in found if finding is not None][:_MOST]


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
    return f" (95% interval within its process {low} to {high})"


def _model(row: pd.Series) -> str:
    name = row.get("run_name")
    return str(name) if pd.notna(name) and str(name) else f"run {row['run_id']}"


def _compared(comparison: Comparison) -> Finding | None:
    points, wins, mean = comparison.result.overall
    if not points:
        return None
    known = np.isfinite(mean.low)
    interval = f"95% interval {mean.low:.3g} to {mean.high:.3g}" if known else "too few points for an interval"
    words = (
        f"{comparison.a.name} runs {mean.value:.3g} times as fast as {comparison.b.name} in the geometric mean over "
        f"{points} points that both measured ({interval}), and is ahead in {wins} of them."
    )
    if not comparison.result.comparison.cells["comparable"].all():
        words += " That is no verdict: their sessions cannot be told from the difference."
    return Finding("Against each other", words, comparison.sections[0].anchor)


def _matters(population: Population, sections: Sequence[Section]) -> Finding | None:
    shown = _first(sections, SensitivityResult)
    strongest = shown[0].strongest() if shown else None
    if shown is None or strongest is None:
        return None
    result, anchor = shown
    value, low, high = strongest.weight
    metric = result.sensitivity.metric
    doubling = ""
    if strongest.doubling is not None:
        doubling = f"; doubling it multiplies {metric} by {strongest.doubling:.2f}"
    words = (
        f"{population.name}: {strongest.term} weighs most in {metric} of {strongest.family}, {value:+.2f} "
        f"(95% interval {low:+.2f} to {high:+.2f}) over {strongest.points:,} points{doubling}."
    )
    return Finding("What matters most", words, anchor)


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


def _memory(population: Population, _: Sequence[Section]) -> Finding | None:
    rows = population.rows
    full = int(rows["outcome"].isin(MEMORY).sum())
    words = f"{population.name}: {full:,} of {len(rows):,} points did not fit its memory."
    return Finding("Memory", words, population.key) if full else None
