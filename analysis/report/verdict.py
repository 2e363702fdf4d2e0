"""The verdict: which system is faster, on what, by how much and how surely; what that depends on; where memory ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.format import short
from analysis.labels import label
from analysis.methods.compare import Verdict
from analysis.methods.heatmap import MEMORY
from analysis.methods.pairing import sampling
from analysis.methods.sessions import REMEDY, Standing
from analysis.report.comparisons import Comparison
from analysis.report.findings import Finding
from analysis.report.populations import Population
from analysis.report.results import model_name
from analysis.report.sections import Chapter, Section
from analysis.store.frame import families, is_ok
from analysis.summaries.sensitivity import SensitivityResult
from analysis.summaries.speedup import SpeedupResult
from paradnn.core.words import counted

__all__ = ["verdicts"]

_SAID = ("device", "platform.name")  # what the names of systems say


def verdicts(chapters: Sequence[Chapter], comparisons: Sequence[Comparison]) -> list[Finding]:
    """A sentence for each two systems and family, then what decides it and where memory ends, system by system."""
    found = [finding for comparison in comparisons for finding in _compared(comparison)]
    if not found and chapters:
        found.append(_alone([chapter.population for chapter in chapters]))
    told = [comparison for comparison in comparisons if _decides(comparison) is not None]
    if told:
        found += [finding for one in told if (finding := _decides(one))]
    else:
        found += [finding for chapter in chapters if (finding := _depends(chapter))][:2]
    for tell in (_memory, _trust):
        found += [finding for chapter in chapters if (finding := tell(chapter.population))]
    return found


def _alone(populations: Sequence[Population]) -> Finding:
    one = populations[0]
    if len(populations) == 1:
        words = f"Only {one.name} was measured: there is no other to prefer."
    else:
        words = (
            f"No point was measured on two of {', '.join(each.name for each in populations)}: none can be preferred."
        )
    how = "Measure the same sweep on another machine, into the same store, or compare settings by turns with"
    return Finding("Which is faster", f"{words} {how} python -m paradnn.compare.", one.key)


def _compared(comparison: Comparison) -> Iterator[Finding]:
    """A sentence for each family that both measured; families that say the same for the same reason in one."""
    anchor = comparison.sections[0].anchor
    a, b = comparison.a.name, comparison.b.name
    for row in comparison.result.families.to_dict("records"):
        if row["points"]:
            yield Finding("Which is faster", _sentence(row, a, b, comparison), anchor)
    differ = comparison.result.comparison.cells.attrs.get("differ", {})
    # What one side alone records, the section of the comparison lists.
    known = {name: values for name, values in differ.items() if name not in _SAID and "(none)" not in values}
    told = [f"{label(name)} ({one} / {two})" for name, (one, two) in known.items()]
    if told:
        words = f"{a} and {b} also differ in {', '.join(told)}: the ratios include that."
        yield Finding("Which is faster", words, anchor)


def _sentence(row: Mapping[Any, Any], a: str, b: str, comparison: Comparison) -> str:
    ratio = _Ratio(row, a, b)
    models, verdict = f"{row['family']} models", row["verdict"]
    if verdict in (Verdict.A_BETTER, Verdict.B_BETTER):
        return f"{ratio.faster} is faster on {models}: {ratio.words}."
    if verdict == Verdict.SAME:
        margin = comparison.result.comparison.margin
        return f"{a} and {b} are equally fast on {models}, within {margin:.0%}: {ratio.words}."
    if verdict == Verdict.WITHHELD:
        return f"No verdict on {models} between {a} and {b}: {_why(row, a, b, comparison)}. As measured, {ratio.words}."
    if verdict == Verdict.NOT_SHOWN:
        return f"No difference between {a} and {b} is shown on {models}: {ratio.words}."
    return f"Not enough data on {models} for {a} and {b}: {ratio.words}."


class _Ratio:
    """The geometric mean of a family, told from the side that is ahead."""

    def __init__(self, row: Mapping[Any, Any], a: str, b: str) -> None:
        self.ahead = row["geometric_mean"] >= 1
        self.faster, self.slower = (a, b) if self.ahead else (b, a)
        ends = [row[name] for name in ("geometric_mean", "geometric_mean_low", "geometric_mean_high")]
        mean, low, high = ends if self.ahead else (1 / ends[0], 1 / ends[2], 1 / ends[1])
        interval = f"95% CI {low:.3g} to {high:.3g}" if np.isfinite(low) and np.isfinite(high) else "no interval"
        wins = row["wins"] if self.ahead else row["points"] - row["wins"]
        self.words = (
            f"{self.faster} runs {mean:.3g} times as fast as {self.slower} ({interval}) in the geometric mean over "
            f"{counted(row['points'], 'point')} that both measured, and is ahead in {wins}"
        )


def _why(row: Mapping[Any, Any], a: str, b: str, comparison: Comparison) -> str:
    """Why sessions allow no verdict, and what to do."""
    design = sampling(comparison.result.comparison.cells, str(row["family"])).design
    first, second = (counted(count, "session") for count in design.sessions)
    reasons = {
        Standing.ALONE: f"{a} was measured in {first} and {b} in {second} of their own, and what a session does to "
        "all of its runs cannot be told from the difference",
        Standing.APART: "one was measured before the other, and a drift cannot be told from the difference",
        Standing.UNKNOWN: "when they were measured is not recorded, so their sessions cannot be told apart",
    }
    return f"{reasons.get(design.standing, 'their sessions do not allow one')}; {REMEDY}"


def _decides(comparison: Comparison) -> Finding | None:
    """What the ratio depends on most, in the family with most points that has a regression."""
    for section in comparison.sections:
        if not isinstance(section.result, SpeedupResult) or not section.result.speedup.fits:
            continue
        fit = max(section.result.speedup.fits, key=lambda one: one.regression.clusters)
        weights = fit.regression.weights
        told = weights[(weights["low"] > 0) | (weights["high"] < 0)]
        if not len(told):
            return None
        term = str(told["weight"].abs().idxmax())
        row = told.loc[term]
        doubling = ""
        if term in fit.logarithms and fit.log_response:
            doubling = f"; doubling it multiplies the ratio by {2 ** row['slope']:.2f}"
        words = (
            f"How {comparison.a.name} stands to {comparison.b.name} on {fit.family} models depends most on "
            f"{label(term)}: weight {row['weight']:+.2f} (95% CI {row['low']:+.2f} to {row['high']:+.2f}){doubling}."
        )
        return Finding("What it depends on", words, section.anchor)
    return None


def _depends(chapter: Chapter) -> Finding | None:
    """What the throughput of one system depends on most."""
    section = _first(chapter.sections)
    strongest = section.result.strongest() if section and isinstance(section.result, SensitivityResult) else None
    if section is None or strongest is None or not isinstance(section.result, SensitivityResult):
        return None
    value, low, high = strongest.weight
    metric = label(section.result.sensitivity.metric)
    doubling = f"; doubling it multiplies it by {strongest.doubling:.2f}" if strongest.doubling is not None else ""
    words = (
        f"{chapter.population.name}: {metric} of {strongest.family} depends most on {label(strongest.term)}, weight "
        f"{value:+.2f} (95% CI {low:+.2f} to {high:+.2f}) over {counted(strongest.points, 'point')}{doubling}."
    )
    return Finding("What it depends on", words, section.anchor)


def _first(sections: Sequence[Section]) -> Section | None:
    return next((one for one in sections if isinstance(one.result, SensitivityResult)), None)


def _memory(population: Population) -> Finding | None:
    """Where memory ends: of each family the smallest point that did not fit, and the largest that ran."""
    rows = population.rows
    full = rows["outcome"].isin(MEMORY)
    if not len(rows):
        return None
    if not full.any():
        largest = rows.loc[is_ok(rows)]
        if "peak_memory_bytes" not in largest or not largest["peak_memory_bytes"].notna().any():
            return None
        most = float(largest["peak_memory_bytes"].max())
        words = f"{population.name}: every point fitted; the largest took {most / 2**30:.3g} GiB."
        return Finding("Where memory ends", words, population.key)
    parts = []
    for family in families(rows[full]):
        mine = rows[rows["family"].eq(family)]
        failed, ran = (
            _extreme(mine[mask.loc[mine.index]], last) for mask, last in ((full, False), (is_ok(rows), True))
        )
        parts.append(f"from {failed} on" + (f" (the largest that ran: {ran})" if ran else ""))
    words = f"{population.name}: {counted(int(full.sum()), 'point')} of {len(rows):,} did not fit: {'; '.join(parts)}."
    return Finding("Where memory ends", words, population.key)


def _trust(population: Population) -> Finding | None:
    """What of the measured points is not to be relied on, and what to do."""
    rows = population.rows[is_ok(population.rows)]
    if population.published or not len(rows):
        return None
    counts = {
        "beside other work on the machine": _count(rows, "contended", True),
        "not steady": _count(rows, "steady", False),
        "with a failed self-check": int(rows["checks"].str.startswith("failed").sum()) if "checks" in rows else 0,
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    if not told:
        return None
    words = f"{population.name}: {counted(len(rows), 'measured point')}, of them {', '.join(told)}"
    advice = "Measure them again on a quiet machine (python -m paradnn.check says what disturbs it)."
    return Finding("How far to trust it", f"{words}. {advice}", population.key)


def _count(rows: pd.DataFrame, column: str, value: bool) -> int:
    return int((rows[column].astype("boolean") == value).fillna(False).sum()) if column in rows else 0


def _extreme(rows: pd.DataFrame, last: bool) -> str:
    """The point of least, or most, memory."""
    if not len(rows):
        return ""
    size = _size(rows)
    row = rows.iloc[int(size.argmax() if last else size.argmin())].to_dict()
    of = f", {short(float(row['parameters']))} parameters" if row.get("parameters") == row.get("parameters") else ""
    return f"{model_name(row)} at batch size {row['batch_size']}{of}"


def _size(rows: pd.DataFrame) -> pd.Series:
    """By what memory grows: the analytic bound where all points have one, else batch size times size."""
    batch = rows["batch_size"].astype("float64")
    for name, factor in (("memory_lower_bound_bytes", 1.0), ("parameters", batch)):
        if name in rows and rows[name].notna().all():
            return rows[name].astype("float64") * factor
    options = [name for name in rows if str(name).startswith("model.") and pd.api.types.is_numeric_dtype(rows[name])]
    return rows.loc[:, ["batch_size", *options]].astype("float64").fillna(1).prod(axis=1)
