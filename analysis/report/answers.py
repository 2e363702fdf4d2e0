"""What a page says first: what is fastest, what limits it, what to change next, how far to trust it; what it costs.

Of one system that is all; of several the verdict on them comes before. A sentence points at the section that it is of.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.analyses.heatmap import MEMORY
from analysis.format import short
from analysis.labels import label
from analysis.report.comparisons import Comparison, compared, decides
from analysis.report.populations import Population
from analysis.report.remedies import surroundings
from analysis.report.results import interval_of, model_name, rate
from analysis.report.sections import Chapter, Finding
from analysis.report.systems import are_busy
from analysis.store.frame import families, is_ok
from paradnn.core.words import counted
from paradnn.families import FAMILIES

__all__ = ["TOPICS", "decision", "explanation"]

FASTER, FASTEST, LIMITS, NEXT = "Which is faster", "What is fastest", "What limits it", "What to change next"
DEPENDS, MEMORY_ENDS, TRUST = "What it depends on", "Where memory ends", "How far to trust it"

COSTS, CHOOSE = "What it costs", "What to choose"
#: In the order of the page.
TOPICS = (COSTS, FASTER, FASTEST, LIMITS, NEXT, DEPENDS, MEMORY_ENDS, TRUST, CHOOSE)

_SYSTEMS = 2  # whose own answers are given
#: Settings of a model that one can change, with the value that others are set against where it was measured.
_LEVERS = {
    "batch_size": None,
    "precision": "float32",
    "compile": "graph",
    "platform.threads": None,
    "devices": None,
    "framework.name": "tensorflow",
    "software.name": "current",
}
_GAIN = 1.05  # times the throughput, from which on a change is worth a word
_BUSY = " (which was measured beside other work, and is too low)"
_FAR = 0.5  # of the roof, below which neither arithmetic nor memory is what limits


def explanation(chapters: Sequence[Chapter]) -> Iterator[Finding]:
    """What is fastest, what limits it and what to change, of the first systems."""
    for chapter in chapters[:_SYSTEMS]:
        yield from _fastest(chapter.population, len(chapters) > 1)
    yield from filter(None, [_first(_below_the_roof, chapters)])
    yield from _headlines(chapters, 1, lambda topic: topic != DEPENDS)
    yield from filter(None, [_first(_change, chapters)])


def _first(kind: Callable[[Chapter, bool], Finding | None], chapters: Sequence[Chapter]) -> Finding | None:
    """What is found of the first system that has it."""
    return next(filter(None, (kind(chapter, len(chapters) > 1) for chapter in chapters)), None)


def decision(chapters: Sequence[Chapter], comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Which of several systems is faster and on what that depends; where memory ends, and how far to trust it."""
    found = [finding for comparison in comparisons for finding in compared(comparison)]
    if not found and len(chapters) > 1:
        names = ", ".join(chapter.population.name for chapter in chapters)
        words = (
            f"No point was measured on two of {names}: none can be preferred. Measure the same sweep on both, into the "
            "same store, or compare settings by turns with python -m paradnn.compare."
        )
        found.append(Finding(FASTER, words, chapters[0].population.key))
    yield from found
    told = [finding for comparison in comparisons if (finding := decides(comparison))]
    yield from told or _headlines(chapters, _SYSTEMS, lambda topic: topic == DEPENDS)
    for tell in (_memory, _trust):
        for chapter in chapters:
            yield from filter(None, [tell(chapter, len(chapters) > 1)])


def _named(population: Population, several: bool) -> str:
    return f"{population.name}: " if several else ""


def _fastest(population: Population, several: bool) -> Iterator[Finding]:
    """The point with the highest throughput, and the one with the highest FLOP rate, with its share of the peak."""
    rows = population.points
    if not len(rows):
        return
    row = rows.iloc[int(rows["examples_per_second"].argmax())]
    words = f"{_called(row)}: {rate(row['examples_per_second'])} examples/s{_interval(row)}"
    words += f", the most of {counted(len(rows), 'point')}." if len(rows) > 1 else "."
    yield Finding(FASTEST, _named(population, several) + words, "results")
    if "flops_per_second" not in rows or not rows["flops_per_second"].notna().any():
        return
    row = rows.iloc[int(rows["flops_per_second"].astype("float64").fillna(0).argmax())]
    words = f"Most arithmetic: {_called(row)}, {short(row['flops_per_second'], 'FLOP/s', digits=3)}"
    if pd.notna(row.get("flops_utilization")):
        words += f", {short(row['flops_utilization'], share=True, digits=3)} of this machine's measured peak"
        words += _BUSY if are_busy(rows) else ""
    yield Finding(FASTEST, _named(population, several) + f"{words}.", "results")


def _called(row: pd.Series) -> str:
    batch = row.get("batch_size")
    mode = row.get("mode", "train")
    words = model_name(row.to_dict()) + (f" at batch size {int(batch):,}" if pd.notna(batch) else "")
    return words if mode == "train" or pd.isna(mode) else f"{words} ({mode})"


def _interval(row: pd.Series) -> str:
    """The 95% interval of a throughput, or that there is none."""
    ends = interval_of(row.to_dict())
    return f" (95% interval {rate(ends[0])} to {rate(ends[1])})" if ends else " (no interval)"


def _below_the_roof(chapter: Chapter, several: bool) -> Finding | None:
    """Where most models are far below their roof, that neither arithmetic nor memory is what limits them."""
    points = chapter.population.points
    shares = points["roofline_fraction"].astype("float64") if "roofline_fraction" in points else pd.Series(dtype=float)
    if not shares.notna().any() or shares.median() >= _FAR:
        return None
    disturbed = _count(points, "contended", True) > _FAR * len(points)
    cause = "other work on the machine and small operations" if disturbed else "small operations, or waiting for input,"
    words = (
        f"Mostly neither arithmetic nor memory: the median point reaches {short(shares.median(), share=True)} of what "
        f"the machine's measured peaks allow; {cause} take the rest."
    )
    return Finding(LIMITS, _named(chapter.population, several) + words, chapter.population.key)


def _headlines(chapters: Sequence[Chapter], most: int, chosen: Callable[[str], bool]) -> Iterator[Finding]:
    """What analyses say first, on the topics that are chosen, each analysis of at most so many systems."""
    counts: Counter[type] = Counter()
    for chapter in chapters:
        for section in chapter.sections:
            found, kind = section.result.headline(), type(section.result)
            if found is None or not chosen(found.topic) or counts[kind] >= most:
                continue
            counts[kind] += 1
            words = _named(chapter.population, len(chapters) > 1) + found.words
            if "roof" in found.words and are_busy(chapter.population.rows):
                words += " The peaks were measured beside other work and are too low."
            yield Finding(found.topic, words[0].upper() + words[1:], section.anchor)


@dataclasses.dataclass(frozen=True)
class _Change:
    """What one setting brings: of each group of points that differ in it alone the best value over the reference."""

    column: str
    pairs: pd.DataFrame  # columns best, reference, gain, unsure (their intervals are not apart)
    largest: Any  # of the values that were tried

    @property
    def gain(self) -> float:
        """The geometric mean over the groups."""
        return float(np.exp(np.log(self.pairs["gain"]).mean()))

    @property
    def words(self) -> str:
        """Such as "Batch size 512 instead of 64 gives 1.4 to 5.2 times the throughput on the 3 models ..."."""
        pairs = self.pairs[self.pairs["gain"] > 1]
        best, before = (_listed(pairs[name]) for name in ("best", "reference"))
        low, high = (f"{value:.3g}" for value in (pairs["gain"].min(), pairs["gain"].max()))
        what, count = label(self.column), len(self.pairs)
        whose = "each" if len(pairs) == count else str(len(pairs))
        on = f"{whose} of the {count} models" if count > 1 else "the one model"
        gain = low if low == high else f"{low} to {high}"
        words = (
            f"{what[0].upper()}{what[1:]} {best} instead of {before}: {gain} times the throughput on {on} measured "
            "with both"
        )
        unsure = int(pairs["unsure"].sum())
        return f"{words}; unsure on {unsure}, whose intervals are not apart" if unsure else words


def _change(chapter: Chapter, several: bool) -> Finding | None:
    """The setting that brought most, and what to measure next: beyond its largest value, else what was not varied."""
    population, points = chapter.population, chapter.population.points
    if population.published or not len(points):
        return None
    tried = filter(None, (_lever(points, name, reference) for name, reference in _LEVERS.items()))
    best = max(tried, key=lambda one: one.gain, default=None)
    if best is None or best.gain < _GAIN:
        words, command = _untried(population, best is None)
    else:
        words, command = f"{best.words}.", ""
        family = points["family"].mode()[0]
        if best.column == "batch_size" and (best.pairs["best"] == best.largest).mean() > _FAR:
            words += " The largest was the fastest: measure larger ones."
            own = points[points["family"].eq(family)]
            command = _command(population, own, *_larger(best.largest))
    return Finding(NEXT, _named(population, several) + words, population.key, command)


def _untried(population: Population, bare: bool) -> tuple[str, str]:
    """What to try where no setting brought anything, or none was varied (`bare`), of the model farthest from its
    roof."""
    points = population.points
    names = ("roofline_fraction", "examples_per_second")
    name = next(name for name in names if name in points and points[name].notna().any())
    row = points.iloc[[int(points[name].astype("float64").fillna(np.inf).argmin())]]
    words = "Nothing but the models was varied" if bare else "No other setting was faster"
    larger = _larger(row["batch_size"].iloc[0]) if bare else ()
    what = "larger batches" if larger else "another precision"
    words += f": try {what}, first where most can be gained, on {model_name(row.iloc[0].to_dict())}."
    return words, _command(population, row, *(larger or ("precision=float32,bfloat16",)))


def _lever(points: pd.DataFrame, column: str, reference: str | None) -> _Change | None:
    """What a setting brings where it was varied; numbers are set against the smallest, names against `reference`."""
    if column not in points or points[column].nunique() < 2:
        return None
    same = [name for name in map(str, points.columns) if _is_setting(name) and name != column]
    same = [name for name in same if points[name].nunique(dropna=False) > 1]
    columns = {"rate": "examples_per_second", "low": "examples_per_second_low", "high": "examples_per_second_high"}
    table = pd.DataFrame({name: points.get(of, np.nan) for name, of in columns.items()})
    table["value"] = points[column]
    table["group"] = points.groupby(["family", *same], dropna=False, sort=False).ngroup()
    table = table[table["value"].notna()].sort_values("rate", ascending=False, kind="stable")
    table = table.drop_duplicates(["group", "value"])
    best = table.drop_duplicates("group").set_index("group")
    first = table.assign(last=table["value"].ne(reference) if reference else table["value"])
    start = first.sort_values("last", kind="stable").drop_duplicates("group").set_index("group").loc[best.index]
    pairs = pd.DataFrame({"best": best["value"], "reference": start["value"], "gain": best["rate"] / start["rate"]})
    pairs["unsure"] = bool(table["low"].notna().any()) & ~(best["low"] > start["high"]).to_numpy(dtype=bool)
    pairs = pairs[table.groupby("group").size().loc[pairs.index] > 1]
    return _Change(column, pairs, points[column].max() if reference is None else None) if len(pairs) else None


def _is_setting(name: str) -> bool:
    """Whether a column says what is run, or how."""
    return name.startswith(("model.", "generate.")) or name in (
        *_LEVERS,
        "mode",
        "optimizer.name",
        "data.name",
        "scenario",
        "hosts",
        "transport",
    )


def _listed(values: pd.Series) -> str:
    """The distinct values: one, or the first and the last."""
    found = sorted(values.unique())
    ends = [f"{value:,}" if pd.api.types.is_number(value) else str(value) for value in found]
    return ends[0] if len(found) == 1 else f"{ends[0]} to {ends[-1]}" if len(found) > 2 else " or ".join(ends)


def _larger(batch: Any) -> tuple[str, ...]:
    return (f"batch_size={2 * int(batch)},{4 * int(batch)}",) if pd.notna(batch) else ()


def _command(population: Population, rows: pd.DataFrame, *more: str) -> str:
    """A sweep of the models of these rows, which are of one family, with other settings."""
    family = str(rows["family"].iloc[0])
    if family not in FAMILIES:
        return ""
    words = [f"model={family}"]
    for entry in dataclasses.fields(FAMILIES[family].options):
        name = f"model.{entry.name}"
        if entry.name != "name" and name in rows and rows[name].notna().all():
            values = sorted(rows[name].unique())
            chosen = dict.fromkeys((values[0], values[len(values) // 2], values[-1]))
            words.append(f"{name}={','.join(map(str, chosen))}")
    given = {word.partition("=")[0] for word in more}
    for name, usual in (("precision", "float32"), ("compile", "graph"), ("mode", "train")):
        value = population.value(name)
        if name not in given and value not in (None, usual):
            words.append(f"{name}={value}")
    return shlex.join(["python", "-m", "paradnn.train", "-m", *words, *more, *surroundings(population)])


def _memory(chapter: Chapter, several: bool) -> Finding | None:
    """Where memory ends: of each family the smallest point that did not fit, and the largest that ran."""
    population = chapter.population
    rows = population.rows
    full = rows["outcome"].isin(MEMORY)
    if not len(rows):
        return None
    if not full.any():
        largest = rows.loc[is_ok(rows)]
        if "peak_memory_bytes" not in largest or not largest["peak_memory_bytes"].notna().any():
            return None
        most = float(largest["peak_memory_bytes"].max())
        words = f"{_named(population, several)}Every point fitted; the largest took {most / 2**30:.3g} GiB."
        return Finding(MEMORY_ENDS, words, population.key)
    parts = []
    for family in families(rows[full]):
        mine = rows[rows["family"].eq(family)]
        failed, ran = (
            _extreme(mine[mask.loc[mine.index]], last) for mask, last in ((full, False), (is_ok(rows), True))
        )
        parts.append(f"from {failed} on" + (f" (the largest that ran: {ran})" if ran else ""))
    count = counted(int(full.sum()), "point")
    words = f"{_named(population, several)}{count} of {len(rows):,} did not fit: {'; '.join(parts)}."
    return Finding(MEMORY_ENDS, words, population.key)


def _trust(chapter: Chapter, several: bool) -> Finding | None:
    """What of the measured points is not to be relied on, how wide their intervals are, and what to do."""
    population = chapter.population
    rows = population.rows[is_ok(population.rows)]
    if not len(rows):
        return None
    if population.published:
        words = f"{_named(population, several)}Published figures, one for each point, without an interval."
        return Finding(TRUST, words, population.key)
    counts = {
        "beside other work on the machine": _count(rows, "contended", True),
        "not steady": _count(rows, "steady", False),
        "with a failed self-check": int(rows["checks"].str.startswith("failed").sum()) if "checks" in rows else 0,
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    words = f"{_named(population, several)}{counted(len(rows), 'measured point')}"
    watched = all(name in rows and rows[name].notna().all() for name in ("steady", "contended"))
    fine = ", all steady, none beside other work on the machine." if watched else "."
    words += f", of them {', '.join(told)}." if told else fine
    words = " ".join([words, *_widths(population.points)])
    if are_busy(rows):
        words += " The measured peaks are too low, since other work ran beside them: utilisations are too high."
    if told:
        words += " Measure them again on a quiet machine; this says what disturbs it:"
        return Finding(TRUST, words, population.key, "python -m paradnn.check")
    if population.value("measure.processes") == "1":
        words += " These intervals are of one process each; measure=standard has several, whose spread is larger."
    return Finding(TRUST, words, population.key)


def _widths(points: pd.DataFrame) -> Iterator[str]:
    """How far intervals reach, in the median and at most; and how many points have none."""
    if not len(points):
        return
    names = ("examples_per_second_low", "examples_per_second_high")
    low, high = (points[name] if name in points else pd.Series(np.nan, points.index) for name in names)
    half = ((high - low) / 2 / points["examples_per_second"]).astype("float64").dropna()
    if len(half):
        ends = [short(value, share=True) for value in (half.median(), half.max())]
        yield f"Their 95% intervals reach ±{ends[0]} in the median, ±{ends[1]} at most."
    if lacking := len(points) - len(half):
        yield f"{counted(lacking, 'point')} {'has' if lacking == 1 else 'have'} no interval."


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
