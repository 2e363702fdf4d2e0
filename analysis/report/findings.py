"""What a page says first: what it costs, what is fastest, what limits it, what to change next, how far to trust it.

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

from analysis.analyses.frontier import FrontierResult
from analysis.analyses.heatmap import MEMORY
from analysis.format import short
from analysis.labels import label
from analysis.prices import PRICE
from analysis.report.comparisons import COSTS, DEPENDS, FASTER, Comparison, compared, decides, hourly, relative_costs
from analysis.report.populations import Population, surroundings
from analysis.report.results import interval_of, model_name, rate
from analysis.report.sections import Chapter, Finding, Section
from analysis.report.systems import are_busy, flagged
from analysis.store.frame import families, is_ok
from paradnn.core.words import counted
from paradnn.families import FAMILIES, message_families

FASTEST, LIMITS, NEXT = "What is fastest", "What limits it", "What to change next"
MEMORY_ENDS, TRUST, CHOOSE = "Where memory ends", "How far to trust it", "What to choose"
BESIDE = "Beside published platforms"
#: In the order of the page.
TOPICS = (COSTS, FASTER, FASTEST, BESIDE, LIMITS, NEXT, DEPENDS, MEMORY_ENDS, TRUST, CHOOSE)

_SYSTEMS = 2  # whose own answers are given
_TASKS = 3  # of which is said what to choose
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
#: Columns, beside those of the model, that say what is run, or how.
_SETTINGS = (*_LEVERS, "mode", "optimizer.name", "data.name", "scenario", "hosts", "transport")
_GAIN = 1.05  # times the throughput, from which on a change is worth a word
_BUSY = " (which was measured beside other work, and is too low)"
_FAR = 0.5  # of the roof, below which neither arithmetic nor memory is what limits
#: What is paid for, by metric. A run counts as the first of which it has a cost: what serves queries has steps too.
_KINDS = {
    "cost_to_target": "a training to its target costs",
    "cost_of_learning": "a training costs",
    "cost_per_million_queries": "a million queries cost",
    "cost_per_million_tokens": "a million tokens cost",
    "cost_per_million_examples": "a million examples cost",
}
_MODES = {"train": " in training", "inference": " in inference"}


def costs(
    chapters: Sequence[Chapter], comparisons: Sequence[Comparison], choices: Sequence[Section]
) -> Iterator[Finding]:
    """What systems cost against each other, what the work costs on each, and what to choose; nothing without prices."""
    priced = [chapter.population for chapter in chapters if chapter.population.rows[PRICE].notna().any()]
    if not priced:
        return
    for comparison in comparisons:
        yield from relative_costs(comparison)
    for population in priced:
        yield from _own_costs(population)
    for section in choices:
        if isinstance(section.result, FrontierResult):
            for one in section.result.largest[:_TASKS]:
                yield Finding(CHOOSE, section.result.ends(one), section.anchor)


def _own_costs(population: Population) -> Iterator[Finding]:
    """What each kind of work costs, from the cheapest model to the dearest."""
    rows = population.rows[is_ok(population.rows) & ~population.rows["family"].isin(message_families())]
    known = list(rows["price_currency"].dropna().unique()) if "price_currency" in rows else []
    price, currency = hourly(rows), str(known[0]) if len(known) == 1 else ""
    hour = f", at a price of {short(price, currency, digits=3)} an hour" if price is not None else ""
    for metric, what in _KINDS.items():
        if metric not in rows or not rows[metric].notna().any():
            continue
        mine, rows = rows[rows[metric].notna()], rows[rows[metric].isna()]
        apart = metric == "cost_per_million_examples" and "mode" in mine
        for mode, part in mine.groupby("mode", sort=False) if apart else [("", mine)]:
            order = part.sort_values(metric, kind="stable", key=lambda values: values.astype("float64"))
            ends = [order.iloc[place].to_dict() for place in sorted({0, len(order) - 1})]
            each = [f"{short(float(row[metric]), currency, digits=3)} ({model_name(row, batch=True)})" for row in ends]
            extent = each[0] if len(each) == 1 else f"from {each[0]} to {each[1]}"
            words = f"{population.name}: {what} {extent}{_MODES.get(str(mode), '')}{hour}."
            yield Finding(COSTS, words, population.key)


def explanation(chapters: Sequence[Chapter]) -> Iterator[Finding]:
    """What is fastest, what limits it and what to change, of the first systems."""
    several = len(chapters) > 1
    for chapter in chapters[:_SYSTEMS]:
        for words in _fastest(chapter.population):
            yield Finding(FASTEST, chapter.named(several) + words, "results")
    yield from _first(_below_the_roof, chapters)
    yield from _headlines(chapters, 1, lambda topic: topic != DEPENDS)
    yield from _first(_change, chapters)


def _first(kind: Callable[[Chapter, bool], Finding | None], chapters: Sequence[Chapter]) -> list[Finding]:
    """What is found of the first system that has it."""
    return [found for chapter in chapters if (found := kind(chapter, len(chapters) > 1))][:1]


def decision(chapters: Sequence[Chapter], comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Which of several systems is faster and on what that depends; where memory ends, and how far to trust it."""
    several = len(chapters) > 1
    found = [finding for comparison in comparisons for finding in compared(comparison)]
    yield from found
    if not found and several:
        names = ", ".join(chapter.population.name for chapter in chapters)
        words = (
            f"No point was measured on two of {names}: none can be preferred. Measure the same sweep on both, into the "
            "same store, or compare settings by turns with python -m paradnn.compare."
        )
        yield Finding(FASTER, words, chapters[0].population.key)
    depends = [finding for comparison in comparisons if (finding := decides(comparison))]
    yield from depends or _headlines(chapters, _SYSTEMS, lambda topic: topic == DEPENDS)
    for tell in (_memory, _trust):
        yield from filter(None, (tell(chapter, several) for chapter in chapters))


def _fastest(population: Population) -> Iterator[str]:
    """The point with the highest throughput, and the one with the highest FLOP rate, with its share of the peak."""
    points = population.points
    if not len(points):
        return
    row = points.iloc[int(points["examples_per_second"].argmax())].to_dict()
    ends = interval_of(row)
    interval = f"95% interval {rate(ends[0])} to {rate(ends[1])}" if ends else "no interval"
    most = f", the most of {counted(len(points), 'point')}" if len(points) > 1 else ""
    yield f"{_called(row)}: {rate(row['examples_per_second'])} examples/s ({interval}){most}."
    if "flops_per_second" not in points or not points["flops_per_second"].notna().any():
        return
    row = points.iloc[int(points["flops_per_second"].astype("float64").fillna(0).argmax())].to_dict()
    words = f"Most arithmetic: {_called(row)}, {short(row['flops_per_second'], 'FLOP/s', digits=3)}"
    share = row.get("flops_utilization")
    if share is not None and pd.notna(share):
        words += f", {short(share, share=True, digits=3)} of this machine's measured peak"
        words += _BUSY if are_busy(points) else ""
    yield f"{words}."


def _called(row: dict[Any, Any]) -> str:
    mode = row.get("mode", "train")
    return model_name(row, batch=True) + ("" if mode == "train" or pd.isna(mode) else f" ({mode})")


def _below_the_roof(chapter: Chapter, several: bool) -> Finding | None:
    """Where most models are far below their roof, that neither arithmetic nor memory is what limits them."""
    points = chapter.population.points
    shares = points["roofline_fraction"].astype("float64") if "roofline_fraction" in points else pd.Series(dtype=float)
    if not shares.notna().any() or shares.median() >= _FAR:
        return None
    disturbed = flagged(points, "contended", True) > _FAR * len(points)
    cause = "other work on the machine and small operations" if disturbed else "small operations, or waiting for input,"
    words = (
        f"Mostly neither arithmetic nor memory: the median point reaches {short(shares.median(), share=True)} of what "
        f"the machine's measured peaks allow; {cause} take the rest."
    )
    return Finding(LIMITS, chapter.named(several) + words, chapter.population.key)


def _headlines(chapters: Sequence[Chapter], most: int, chosen: Callable[[str], bool]) -> Iterator[Finding]:
    """What analyses say first, on the topics that are chosen, each analysis of at most so many systems."""
    counts: Counter[str] = Counter()
    for chapter in chapters:
        for section in chapter.sections:
            found, name = section.result.headline(), section.name
            if found is None or not chosen(found.topic) or counts[name] >= most:
                continue
            counts[name] += 1
            words = chapter.named(len(chapters) > 1) + found.words
            if "roof" in found.words and are_busy(chapter.population.rows):
                words += " The peaks were measured beside other work and are too low."
            yield Finding(found.topic, words[0].upper() + words[1:], section.anchor)


def _change(chapter: Chapter, several: bool) -> Finding | None:
    """The setting that brought most, and what to measure next: beyond its largest value, else what was not varied."""
    population, points = chapter.population, chapter.population.points
    if population.published or not len(points):
        return None
    pairs = {name: found for name, usual in _LEVERS.items() if (found := _lever(points, name, usual)) is not None}
    gains = {name: float(np.exp(np.log(found["gain"]).mean())) for name, found in pairs.items()}
    column = max(gains, key=lambda name: gains[name], default="")
    if not column or gains[column] < _GAIN:
        words, command = _untried(population, not column)
    else:
        words, command = f"{_gain(column, pairs[column])}.", ""
        largest = points["batch_size"].max() if "batch_size" in points else None
        if column == "batch_size" and (pairs[column]["best"] == largest).mean() > _FAR:
            words += " The largest was the fastest: measure larger ones."
            own = points[points["family"].eq(points["family"].mode()[0])]
            command = _command(population, own, *_larger(largest))
    return Finding(NEXT, chapter.named(several) + words, population.key, command)


def _lever(points: pd.DataFrame, column: str, reference: str | None) -> pd.DataFrame | None:
    """What a setting brings where it was varied: of each group of points that differ in it alone the best value over
    the reference, columns best, reference, gain, unsure (their intervals are not apart). Numbers are set against the
    smallest, names against `reference`."""
    if column not in points or points[column].nunique() < 2:
        return None
    same = [name for name in map(str, points.columns) if name.startswith(("model.", "generate.")) or name in _SETTINGS]
    same = [name for name in same if name != column and points[name].nunique(dropna=False) > 1]
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
    return pairs if len(pairs) else None


def _gain(column: str, every: pd.DataFrame) -> str:
    """Such as "Batch size 512 instead of 64: 1.4 to 5.2 times the throughput on each of the 3 models ..."."""
    pairs, what, count = every[every["gain"] > 1], label(column), len(every)
    best, before = (_listed(pairs[name]) for name in ("best", "reference"))
    gain = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (pairs["gain"].min(), pairs["gain"].max())))
    whose = "each" if len(pairs) == count else str(len(pairs))
    on = f"{whose} of the {count} models" if count > 1 else "the one model"
    unsure = int(pairs["unsure"].sum())
    return (
        f"{what[0].upper()}{what[1:]} {best} instead of {before}: {gain} times the throughput on {on} measured with "
        "both"
        f"{f'; unsure on {unsure}, whose intervals are not apart' if unsure else ''}"
    )


def _listed(values: pd.Series) -> str:
    """The distinct values: one, or the first and the last."""
    found = sorted(values.unique())
    ends = [f"{value:,}" if pd.api.types.is_number(value) else str(value) for value in found]
    return ends[0] if len(found) == 1 else f"{ends[0]} to {ends[-1]}" if len(found) > 2 else " or ".join(ends)


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
    rows, key = chapter.population.rows, chapter.population.key
    ok, full = is_ok(rows), rows["outcome"].isin(MEMORY)
    if not full.any():
        if "peak_memory_bytes" not in rows or not rows.loc[ok, "peak_memory_bytes"].notna().any():
            return None
        most = float(rows.loc[ok, "peak_memory_bytes"].max())
        words = f"Every point fitted; the largest took {most / 2**30:.3g} GiB."
        return Finding(MEMORY_ENDS, chapter.named(several) + words, key)
    parts = []
    for family in families(rows[full]):
        mine = rows["family"].eq(family)
        failed, ran = _extreme(rows[full & mine], last=False), _extreme(rows[ok & mine], last=True)
        parts.append(f"the smallest {failed}" + (f", the largest that ran {ran}" if ran else ""))
    words = f"{counted(int(full.sum()), 'point')} of {len(rows):,} did not fit: {'; '.join(parts)}."
    return Finding(MEMORY_ENDS, chapter.named(several) + words, key)


def _extreme(rows: pd.DataFrame, last: bool) -> str:
    """The point of least, or most, memory: by the analytic bound where all points have one, else batch size times
    size."""
    if not len(rows):
        return ""
    options = [name for name in rows if str(name).startswith("model.") and pd.api.types.is_numeric_dtype(rows[name])]
    size = rows.loc[:, ["batch_size", *options]].astype("float64").fillna(1).prod(axis=1)
    for name, factor in (("parameters", rows["batch_size"].astype("float64")), ("memory_lower_bound_bytes", 1.0)):
        if name in rows and rows[name].notna().all():
            size = rows[name].astype("float64") * factor
    row = rows.iloc[int(size.argmax() if last else size.argmin())].to_dict()
    known = pd.notna(row.get("parameters", np.nan))
    of = f", {short(float(row['parameters']))} parameters" if known else ""
    return f"{model_name(row, batch=True)}{of}"


def _trust(chapter: Chapter, several: bool) -> Finding | None:
    """What of the measured points is not to be relied on, how wide their intervals are, and what to do."""
    population = chapter.population
    rows, begin = population.rows[is_ok(population.rows)], chapter.named(several)
    if not len(rows):
        return None
    if population.published:
        words = f"{begin}Published figures, one for each point, without an interval."
        return Finding(TRUST, words, population.key)
    counts = {
        "beside other work on the machine": flagged(rows, "contended", True),
        "not steady": flagged(rows, "steady", False),
        "with a failed self-check": int(rows["checks"].str.startswith("failed").sum()) if "checks" in rows else 0,
    }
    doubtful = [f"{count} {what}" for what, count in counts.items() if count]
    watched = all(name in rows and rows[name].notna().all() for name in ("steady", "contended"))
    fine = ", all steady, none beside other work on the machine." if watched else "."
    words = begin + counted(len(rows), "measured point")
    words += f", of them {', '.join(doubtful)}." if doubtful else fine
    words = " ".join([words, *_widths(population.points)])
    if are_busy(rows):
        words += " The measured peaks are too low, since other work ran beside them: utilisations are too high."
    if doubtful:
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
