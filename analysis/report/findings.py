"""The headline: a few plain findings with their intervals, each pointing at the section it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.format import short
from analysis.methods.quantiles import share_interval
from analysis.methods.speedup import geometric_mean
from analysis.report.comparisons import Pair
from analysis.report.populations import Part
from analysis.report.sections import Section
from analysis.store.frame import is_ok

__all__ = ["Finding", "headline"]

_MOST = 6
_BEST = 2  # best points that are named


@dataclass(frozen=True)
class Finding:
    """What was found, in a word and in a sentence, and the anchor of its section."""

    topic: str
    words: str
    anchor: str


def headline(parts: Sequence[tuple[Part, Sequence[Section]]], pairs: Sequence[Pair]) -> list[Finding]:
    """At most six findings: best points, the largest comparison, what matters most, limits, time, memory.

    Of each kind but the first only one, from the first part that has it.
    """
    found = [best for part, sections in parts[:_BEST] for best in _best(part, sections)]
    found += [one for pair in sorted(pairs, key=_points, reverse=True)[:1] for one in _pair(pair)]
    for kind in (_matters, _bound, _time, _memory):
        found += [one for part, sections in parts for one in kind(part, sections)][:1]
    return found[:_MOST]


def _named(sections: Sequence[Section], name: str) -> list[Section]:
    return [section for section in sections if section.name == name]


def _best(part: Part, sections: Sequence[Section]) -> list[Finding]:
    """The point with the highest FLOP rate, or of the highest throughput where no rate is known."""
    rows = part.rows[is_ok(part.rows)]
    metric = next(
        (name for name in ("flops_per_second", "examples_per_second") if name in rows and rows[name].notna().any()), ""
    )
    if not metric:
        return []
    row = rows.iloc[int(rows[metric].astype("float64").fillna(-np.inf).argmax())]
    unit = "FLOP/s" if metric == "flops_per_second" else "examples/s"
    words = f"{part.name}: {short(row[metric], unit, digits=3)}{_interval(row, metric, unit)}, by {_model(row)}"
    if "flops_utilization" in rows and pd.notna(row["flops_utilization"]):
        words += f", {short(row['flops_utilization'], share=True, digits=3)} of the measured peak"
    anchor = next((section.anchor for name in ("heatmap", "boxplot") for section in _named(sections, name)), part.key)
    return [Finding("Best measured", f"{words}. It is the highest of {len(rows):,} measured points.", anchor)]


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


def _pair(pair: Pair) -> list[Finding]:
    section = pair.sections[0]
    ratios = section.result.table["speedup"].astype("float64")
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if not len(ratios):
        return []
    mean, low, high = geometric_mean(ratios.to_numpy())
    interval = f" (95% interval {low:.3g} to {high:.3g})" if np.isfinite(low) else " (too few points for an interval)"
    wins = int((ratios > 1).sum())
    return [
        Finding(
            "Against each other",
            f"{pair.a.name} runs {mean:.3g} times as fast as {pair.b.name} in the "
            f"geometric mean over {len(ratios)} points that both measured{interval}, and is ahead in {wins} of "
            "them.",
            section.anchor,
        )
    ]


def _points(pair: Pair) -> int:
    return len(pair.sections[0].result.table)


def _matters(part: Part, sections: Sequence[Section]) -> list[Finding]:
    for section in _named(sections, "sensitivity"):
        table = section.result.table
        rows = table[(table["low"] > 0) | (table["high"] < 0)]
        if not len(rows):
            continue
        largest = rows[rows["points"] == rows["points"].max()]
        row = largest.loc[largest["weight"].abs().idxmax()]
        words = (
            f"{part.name}: {row['term']} weighs most in {row['metric']} of {row['family']}, {row['weight']:+.2f} "
            f"(95% interval {row['low']:+.2f} to {row['high']:+.2f}) over {row['points']:,} points"
        )
        if "=" not in str(row["term"]):
            words += f"; doubling it multiplies {row['metric']} by {2 ** row['slope']:.2f}"
        return [Finding("What matters most", f"{words}.", section.anchor)]
    return []


def _bound(part: Part, sections: Sequence[Section]) -> list[Finding]:
    for section in _named(sections, "roofline"):
        table = section.result.table
        if "share" not in table or "family" not in table:
            continue
        known = table[table["verdict"] != "unknown"]
        if not len(known):
            continue
        share = share_interval(int((known["verdict"] == "memory-bound").sum()), len(known))
        said = [short(value, share=True) for value in share]
        median = short(float(known["share"].median()), share=True)
        words = (
            f"{part.name}: memory bounds {said[0]} of {len(known)} models (95% interval {said[1]} to {said[2]}); "
            f"in the median they reach {median} of their roof."
        )
        return [Finding("Limits", words, section.anchor)]
    return []


def _time(part: Part, sections: Sequence[Section]) -> list[Finding]:
    for section in _named(sections, "breakdown"):
        table = section.result.table
        table = table[table["level"] == table["level"].iloc[0]]
        row = table[table["models"] == table["models"].max()].sort_values("median", ascending=False).iloc[0]
        ends = [short(row[end], share=True) for end in ("low", "high") if np.isfinite(row[end])]
        interval = (
            f"95% interval {ends[0]} to {ends[1]}"
            if len(ends) == 2
            else f"middle half {short(row['q25'], share=True)} to {short(row['q75'], share=True)}"
        )
        words = (
            f"{part.name}: {row['name']} takes {short(row['median'], share=True)} of the step of {row['family']} "
            f"in the median over {row['models']} profiled models ({interval})."
        )
        return [Finding("Where time goes", words, section.anchor)]
    return []


def _memory(part: Part, _: Sequence[Section]) -> list[Finding]:
    full = int(part.rows["outcome"].isin(["oom_device", "oom_host", "oom_predicted"]).sum())
    if not full:
        return []
    return [Finding("Memory", f"{part.name}: {full:,} of {len(part.rows):,} points did not fit its memory.", part.key)]
