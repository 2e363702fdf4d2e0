"""What a page says first: what it costs, what is fastest, what limits it, what to change next, how
far to trust it.

A question is a function of a population that answers in sentences, each with a command to go on
with or none; of several systems the verdict on them comes before. A sentence points at the section
that it is of.
"""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.columns import MEMORY_OUTCOMES
from analysis.format import format_number
from analysis.labels import label
from analysis.prices import PRICE
from analysis.report.comparisons import (
    COSTS,
    FASTER,
    SystemComparison,
    compared,
    hourly,
    relative_costs,
)
from analysis.report.populations import Population, common_overrides
from analysis.report.results import AT_BATCH, are_busy, model_name
from analysis.report.sections import KeyFinding, PopulationReport, Section
from analysis.store.frame import families, is_ok, select_rows
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.core.words import counted, rounded
from paradnn.families import FAMILIES, message_families

FASTEST = "What is fastest"
LIMITS = "What limits it"
NEXT = "What to change next"
DEPENDS = "What it depends on"
MEMORY_ENDS = "Where memory ends"
TRUST = "How far to trust it"
_BESIDE = "Compared with published platforms"
_CHOOSE = "What to choose"
#: In the order of the page.
TOPICS = (COSTS, FASTER, FASTEST, _BESIDE, LIMITS, NEXT, DEPENDS, MEMORY_ENDS, TRUST, _CHOOSE)

#: Settings of a model that one can change, with the value that others are set against where it was
#: measured.
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
#: What is paid for, by metric. A run counts as the first of which it has a cost: what serves
#: queries has steps too.
_KINDS = {
    "cost_to_target": "A training to its target costs",
    "cost_of_learning": "A training costs",
    "cost_per_million_queries": "A million queries cost",
    "cost_per_million_tokens": "A million tokens cost",
    "cost_per_million_examples": "A million examples cost",
}

Answers = Iterator[tuple[str, str]]


def find(
    chapters: Sequence[PopulationReport],
    comparisons: Sequence[SystemComparison],
    choices: Sequence[Section],
) -> list[KeyFinding]:
    """Everything that is said first, in the order of the page."""

    def named(one: Population) -> str:  # what a sentence about one of several begins with
        return f"{one.name}: " if len(chapters) > 1 else ""

    def ask(
        topic: str, tell: Callable[[Population], Answers], of: Sequence[PopulationReport] = chapters
    ) -> list[KeyFinding]:
        told = (
            (chapter.population, answer) for chapter in of for answer in tell(chapter.population)
        )
        return [
            KeyFinding(topic, named(one) + words, one.key, command)
            for one, (words, command) in told
        ]

    priced = [chapter for chapter in chapters if chapter.population.rows[PRICE].notna().any()]
    every = [
        finding for comparison in comparisons if priced for finding in relative_costs(comparison)
    ]
    every += ask(COSTS, _own_costs, priced)
    every += [one._replace(anchor="results") for one in ask(FASTEST, _fastest)]
    every += [
        *ask(LIMITS, _below_the_roof)[:1],
        *_headlines(chapters, named),
        *ask(NEXT, _change)[:1],
    ]
    every += (
        between := [finding for comparison in comparisons for finding in compared(comparison)]
    )
    if not between and len(chapters) > 1:
        words = (
            f"No point was measured on two of {', '.join(one.population.name for one in chapters)}: none can be "
            "preferred. Measure the same sweep on both, into the same store, or compare settings by turns with "
            "python -m paradnn.compare."
        )
        every.append(KeyFinding(FASTER, words, chapters[0].population.key))
    every += [*ask(MEMORY_ENDS, _memory), *ask(TRUST, _trust)]
    told = ((section, section.result.headline()) for section in choices)
    every += [
        KeyFinding(found.topic, found.words, section.anchor) for section, found in told if found
    ]
    return sorted(
        every, key=lambda one: TOPICS.index(one.topic) if one.topic in TOPICS else len(TOPICS)
    )


def _own_costs(population: Population) -> Answers:
    """What each kind of work costs, from the cheapest model to the dearest."""
    rows = select_rows(
        population.rows,
        is_ok(population.rows) & ~population.rows["family"].isin(message_families()),
    )
    price = hourly(rows)
    currency = population.value("price_currency") or ""
    if price is not None:
        hour = f", at a price of {format_number(price, currency, digits=3)} an hour"
    else:
        hour = ""
    for metric, what in _KINDS.items():
        if metric not in rows or not rows[metric].notna().any():
            continue
        mine = rows[rows[metric].notna()]
        rows = rows[rows[metric].isna()]
        for mode, part in mine.groupby("mode", sort=False) if "mode" in mine else [("", mine)]:
            values = part[metric].astype("float64")
            ends = part.loc[[*dict.fromkeys((values.idxmin(), values.idxmax()))]].to_dict("records")
            each = [
                f"{format_number(float(row[metric]), currency, digits=3)} ({model_name(row, AT_BATCH)})"
                for row in ends
            ]
            extent = each[0] if len(each) == 1 else f"from {each[0]} to {each[1]}"
            yield f"{what} {extent}{' in inference' if mode == 'inference' else ''}{hour}.", ""


def _fastest(population: Population) -> Answers:
    """The point with the highest throughput, and the one with the highest FLOP rate, with its share
    of the peak.
    """
    points = population.points
    if not len(points):
        return

    def most_of(column: str) -> tuple[dict[Any, Any], str]:
        row = points.iloc[int(points[column].astype("float64").fillna(0).argmax())].to_dict()
        mode = row.get("mode", "train")
        return row, model_name(row, AT_BATCH) + (
            "" if mode == "train" or pd.isna(mode) else f" ({mode})"
        )

    row, called = most_of("examples_per_second")
    value, low, high = (row[f"examples_per_second{end}"] for end in ("", "_low", "_high"))
    if low == low:
        interval = f"95% interval {rounded(low, 3)} to {rounded(high, 3)}"
    else:
        interval = "no interval"
    if len(points) > 1:
        most = f", the most of {counted(len(points), 'point')}"
    else:
        most = ""
    most += ", of which others may be as fast" if most and low != low else ""
    reach = points["examples_per_second_high"].fillna(points["examples_per_second"])
    rivals = int((reach >= low).sum()) - 1 if low == low else 0
    if rivals:
        most += f"; {counted(rivals, 'other')} may be as fast, and the highest of several such is high by chance"
    yield f"{called}: {rounded(value, 3)} examples/s ({interval}){most}.", ""
    if "flops_per_second" in points and points["flops_per_second"].notna().any():
        row, called = most_of("flops_per_second")
        words = f"Most arithmetic: {called}, {format_number(row['flops_per_second'], 'FLOP/s', digits=3)}"
        if pd.notna(share := row.get("flops_utilization")):
            words += (
                f", {format_number(share, share=True, digits=3)} of this machine's measured peak"
            )
            words += _BUSY if are_busy(points) else ""
        yield f"{words}.", ""


def _below_the_roof(population: Population) -> Answers:
    """Where most models are far below their roof, that neither arithmetic nor memory is what limits
    them.
    """
    points = population.points
    shares = points.get("roofline_fraction", pd.Series(dtype=float)).astype("float64")
    if shares.notna().any() and shares.median() < _FAR:
        disturbed = _flagged(points, "contended", True) > _FAR * len(points)
        what = "other work on the machine and small operations"
        if disturbed:
            what = what
        else:
            what = "small operations, or waiting for input,"
        share = format_number(shares.median(), share=True)
        words = f"Mostly neither arithmetic nor memory: the median point reaches {share} of what the machine's measured"
        yield f"{words} peaks allow; {what} take the rest.", ""


def _headlines(
    chapters: Sequence[PopulationReport], named: Callable[[Population], str]
) -> Iterator[KeyFinding]:
    """What analyses say first: each of one system, what it depends on of two."""
    counts: Counter[str] = Counter()
    for one, section in (
        (each.population, section) for each in chapters for section in each.sections
    ):
        found = section.result.headline()
        if found is not None and counts[section.name] < (2 if found.topic == DEPENDS else 1):
            counts[section.name] += 1
            words = named(one) + found.words
            if section.name == "roofline" and are_busy(one.rows):
                words += " The peaks were measured beside other work and are too low."
            yield KeyFinding(found.topic, words[0].upper() + words[1:], section.anchor)


def _change(population: Population) -> Answers:
    """The setting that brought most, and what to measure next: beyond its largest value, else what
    was not varied.
    """
    points = population.points
    if population.published or not len(points):
        return
    pairs = {
        name: found for name, usual in _LEVERS.items() if len(found := _lever(points, name, usual))
    }
    gains = {name: float(np.exp(np.log(found["gain"]).mean())) for name, found in pairs.items()}
    column = max(gains, key=lambda name: gains[name], default="")
    if column and gains[column] >= _GAIN:
        words = _gain(column, pairs[column])
        largest = points[column].max() if column == "batch_size" else None
        if largest is None or (pairs[column]["best"] == largest).mean() <= _FAR:
            yield f"{words}.", ""
            return
        own = points[points["family"].eq(points["family"].mode()[0])]
        yield (
            f"{words}. The largest was the fastest: measure larger ones.",
            _command(population, own, _larger(largest)),
        )
        return
    # No setting brought anything, or none was varied: of the model that is farthest from its roof.
    known = "roofline_fraction" in points and points["roofline_fraction"].notna().any()
    least = (
        points["roofline_fraction" if known else "examples_per_second"]
        .astype("float64")
        .fillna(np.inf)
        .argmin()
    )
    row = points.iloc[[int(least)]]
    if column:
        batch = None
    else:
        batch = row.get("batch_size", pd.Series([None])).iloc[0]
    what = "another precision"
    more = "precision=float32,bfloat16"
    if pd.notna(batch):
        what = "larger batches"
        more = _larger(batch)
    if column:
        words = "No other setting was faster"
    else:
        words = "Nothing but the models was varied"
    words += (
        f": try {what}, first where most can be gained, on {model_name(row.iloc[0].to_dict())}."
    )
    yield words, _command(population, row, more)


def _lever(points: pd.DataFrame, column: str, reference: str | None) -> pd.DataFrame:
    """What a setting brings where it was varied: of each group of points that differ in it alone
    the best value over the reference, columns best, reference, gain, unsure (their intervals are
    not apart). Numbers are set against the smallest, names against `reference`.
    """
    if column not in points or points[column].nunique() < 2:
        return points.head(0)
    same = [
        name
        for name in map(str, points.columns)
        if name.startswith(("model.", "generate.")) or name in _SETTINGS
    ]
    same = [name for name in same if name != column and points[name].nunique(dropna=False) > 1]
    names = {
        "rate": "examples_per_second",
        "low": "examples_per_second_low",
        "high": "examples_per_second_high",
    }
    table = pd.DataFrame({name: points[of] for name, of in names.items()})
    group = points.groupby(["family", *same], dropna=False, sort=False).ngroup()
    table = table.assign(value=points[column], group=group)
    table["last"] = table["value"].ne(reference) if reference else table["value"]
    table = table.dropna(subset="value").sort_values("rate", ascending=False, kind="stable")
    table = table.drop_duplicates(["group", "value"])
    table = table[table.groupby("group")["value"].transform("size") > 1]
    best = table.drop_duplicates("group").set_index("group")
    start = (
        table.sort_values("last", kind="stable")
        .drop_duplicates("group")
        .set_index("group")
        .loc[best.index]
    )
    unsure = ~(best["low"] > start["high"]) & bool(points[names["low"]].notna().any())
    gain = best["rate"] / start["rate"]
    return pd.DataFrame(
        {"best": best["value"], "reference": start["value"], "gain": gain, "unsure": unsure}
    )


def _gain(column: str, every: pd.DataFrame) -> str:
    """Such as "Batch size 512 instead of 64: 1.4 to 5.2 times the throughput on each of the 3
    models ...".
    """
    pairs = every[every["gain"] > 1]
    what = label(column)
    count = len(every)
    best, before = (_listed(pairs[name]) for name in ("best", "reference"))
    gain = " to ".join(
        dict.fromkeys(f"{value:.3g}" for value in (pairs["gain"].min(), pairs["gain"].max()))
    )
    whose = "each" if len(pairs) == count else str(len(pairs))
    noun = "model" if column == "batch_size" else "point"
    if count > 1:
        on = f"{whose} of the {count} {noun}s"
    else:
        on = f"the one {noun}"
    unsure = int(pairs["unsure"].sum())
    words = f"{what[0].upper()}{what[1:]} {best} instead of {before}: {gain} times the throughput on {on}"
    return f"{words} measured with both" + (
        f"; unsure on {unsure}, whose intervals are not apart" if unsure else ""
    )


def _listed(values: pd.Series) -> str:
    """The distinct values: one, or the first and the last."""
    found = sorted(values.unique())
    ends = [f"{value:,}" if pd.api.types.is_number(value) else str(value) for value in found]
    if len(found) == 1:
        return ends[0]
    if len(found) > 2:
        return f"{ends[0]} to {ends[-1]}"
    return " or ".join(ends)


def _larger(batch: Any) -> str:
    return f"batch_size={2 * int(batch)},{4 * int(batch)}"


def _command(population: Population, rows: pd.DataFrame, more: str) -> str:
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
    for name, usual in (("precision", "float32"), ("compile", "graph"), ("mode", "train")):
        value = population.value(name)
        if not more.startswith(f"{name}=") and value not in (None, usual):
            words.append(f"{name}={value}")
    return shlex.join(
        ["python", "-m", "paradnn.train", "-m", *words, more, *common_overrides(population)]
    )


def _memory(population: Population) -> Answers:
    """Where memory ends: of each family the smallest point that did not fit, and the largest that
    ran.
    """
    rows = population.rows
    ok = is_ok(rows)
    full = rows["outcome"].isin(MEMORY_OUTCOMES)
    if full.any():
        size = rows["batch_size"].astype("float64").fillna(1)
        held = rows.get("parameters", pd.Series(np.nan, rows.index)).astype(
            "float64"
        )  # what failed may have none
        size *= held.fillna(step_inputs.analytic_costs(rows[held.isna()])["parameters"]).fillna(1)
        ordered = rows.loc[size.sort_values(kind="stable").index]
        parts = []
        for family in families(rows[full]):
            mine = ordered["family"].eq(family)
            failed, ran = (
                ordered[which[ordered.index] & mine].to_dict("records") for which in (full, ok)
            )
            words = f"the smallest {model_name(failed[0], AT_BATCH)}"
            parts.append(
                words + (f", the largest that ran {model_name(ran[-1], AT_BATCH)}" if ran else "")
            )
        yield (
            f"{counted(int(full.sum()), 'point')} of {len(rows):,} did not fit: {'; '.join(parts)}.",
            "",
        )
    elif "peak_memory_bytes" in rows and rows.loc[ok, "peak_memory_bytes"].notna().any():
        most = float(rows.loc[ok, "peak_memory_bytes"].max())
        yield f"Every point fitted; the largest took {most / 2**30:.3g} GiB.", ""


def _trust(population: Population) -> Answers:
    """What of the measured points is not to be relied on, how wide their intervals are, and what to
    do.
    """
    rows = select_rows(population.rows, is_ok(population.rows))
    points = population.points
    if not len(rows):
        return
    if population.published:
        yield "Published figures, one for each point, without an interval.", ""
        return
    counts = {
        "beside other work on the machine": _flagged(rows, "contended", True),
        "not steady": _flagged(rows, "steady", False),
        "with a failed self-check": int(rows["checks"].str.startswith("failed").sum())
        if "checks" in rows
        else 0,
    }
    doubtful = [f"{count} {what}" for what, count in counts.items() if count]
    watched = all(name in rows and rows[name].notna().all() for name in ("steady", "contended"))
    if watched:
        fine = ", all steady, none beside other work on the machine."
    else:
        fine = "."
    words = [
        counted(len(rows), "measured point")
        + (f", of them {', '.join(doubtful)}." if doubtful else fine)
    ]
    low, high = (
        points.get(f"examples_per_second_{end}", pd.Series(dtype=float)) for end in ("low", "high")
    )
    half = ((high - low) / 2 / points.get("examples_per_second", low)).astype("float64").dropna()
    if len(half):
        ends = [format_number(value, share=True) for value in (half.median(), half.max())]
        words.append(f"Their 95% intervals reach ±{ends[0]} in the median, ±{ends[1]} at most.")
    lacking = len(points) - len(half)
    if lacking:
        words.append(
            f"{counted(lacking, 'point')} {'has' if lacking == 1 else 'have'} no interval."
        )
    if "reference_speed" in rows and rows["reference_speed"].notna().any():
        speed = format_number(rows["reference_speed"].median(), share=True)
        words.append(f"The machine was {speed} as fast as for its ceilings, in the median.")
    if are_busy(rows):
        words.append(
            "The measured peaks are too low, since other work ran beside them: utilisations are too high."
        )
    if doubtful:
        words.append("Measure them again on a quiet machine; this says what disturbs it:")
    elif population.value("measure.processes") == "1":
        words.append(
            "These intervals are of one process each; measure=standard has several, whose spread is larger."
        )
    yield " ".join(words), "python -m paradnn.check" if doubtful else ""


def _flagged(rows: pd.DataFrame, column: str, value: bool) -> int:
    """How many rows say so."""
    if column in rows:
        return int((rows[column].astype("boolean") == value).fillna(False).sum())
    return 0
