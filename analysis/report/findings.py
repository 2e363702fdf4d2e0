"""The findings at the top of a report page.

The findings state costs, the fastest configurations, bottlenecks, the next changes to try, and the
reliability of the numbers. A population consists of the runs of one system. A question is a
function that takes a population and yields answers. An answer is a sentence and a command that
shows more; the command may be empty. If there are several systems, their comparison comes first. A
finding links to its section.
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
from analysis.point_names import model_name
from analysis.prices import PRICE
from analysis.report.comparisons import (
    COSTS,
    FASTER,
    SystemComparison,
    comparison_findings,
    cost_findings,
    price_per_hour,
)
from analysis.report.populations import Population, common_overrides
from analysis.report.results import AT_BATCH, have_contended_ceilings
from analysis.report.sections import KeyFinding, PopulationReport, Section
from analysis.store.frame import families, is_ok, select_rows
from analysis.store.lazy_step_inputs import step_inputs
from paradnn.core.words import counted, rounded
from paradnn.families import FAMILIES, message_families
from paradnn.statistics.shrinkage import shrink_largest

FASTEST = "What is fastest"
LIMITS = "What limits it"
NEXT = "What to change next"
DEPENDS = "What it depends on"
MEMORY_ENDS = "Memory limits"
TRUST = "How far to trust it"
_PUBLISHED_PLATFORMS = "Compared with published platforms"
_CHOICE = "What to choose"
#: The topics in the order of the page.
TOPICS = (
    COSTS,
    FASTER,
    FASTEST,
    _PUBLISHED_PLATFORMS,
    LIMITS,
    NEXT,
    DEPENDS,
    MEMORY_ENDS,
    TRUST,
    _CHOICE,
)

#: Settings that a user can change, with the baseline value of each. None is the smallest
#: measured value.
_SETTINGS = {
    "batch_size": None,
    "precision": "float32",
    "compile": "graph",
    "platform.threads": None,
    "devices": None,
    "parallel": "data",
    "framework.name": "tensorflow",
    "software.name": "current",
}
#: Columns, in addition to those of the model, that identify what a point runs and how.
_IDENTIFYING_COLUMNS = (
    *_SETTINGS,
    "mode",
    "optimizer.name",
    "data.name",
    "scenario",
    "hosts",
    "transport",
)
#: Defaults that a proposed command omits.
_COMMAND_DEFAULTS = {
    "precision": "float32",
    "compile": "graph",
    "mode": "train",
    "parallel": "data",
}
#: Smallest gain in throughput for which a change is proposed.
_MIN_GAIN = 1.05
#: Below this share of the roof, neither arithmetic nor memory is the limit.
_FAR_FROM_ROOF = 0.5
#: A statement about a population requires more than this share of its points.
_MAJORITY = 0.5
#: Beginning of the sentence by cost metric. A run counts for the first metric that it has, since a
#: run that serves queries has step times as well.
_COST_SENTENCES = {
    "cost_to_target": "A training to its target costs",
    "cost_of_learning": "A training costs",
    "cost_per_million_queries": "A million queries cost",
    "cost_per_million_tokens": "A million tokens cost",
    "cost_per_million_examples": "A million examples cost",
}

#: Sentences, each with the command that shows more. The command may be an empty string.
Answers = Iterator[tuple[str, str]]


def key_findings(
    reports: Sequence[PopulationReport],
    comparisons: Sequence[SystemComparison],
    choices: Sequence[Section],
) -> list[KeyFinding]:
    """Return the findings at the top of the report page, in the order of `TOPICS`.

    Args:
        reports: The populations (runs of one system each) with their sections.
        comparisons: Comparisons of populations.
        choices: Sections about latency and cost.
    """
    findings: list[KeyFinding] = []
    priced = [report for report in reports if report.population.rows[PRICE].notna().any()]
    if priced:
        for comparison in comparisons:
            findings += cost_findings(comparison)
    name_systems = len(reports) > 1

    def ask(
        topic: str,
        question: Callable[[Population], Answers],
        of_reports: Sequence[PopulationReport] = reports,
    ) -> list[KeyFinding]:
        return list(_ask(topic, question, of_reports, name_systems=name_systems))

    findings += ask(COSTS, _costs, priced)
    findings += [finding._replace(anchor="results") for finding in ask(FASTEST, _fastest)]
    findings += ask(LIMITS, _distance_to_roof)[:1]
    findings += _section_headlines(reports, name_systems=name_systems)
    findings += ask(NEXT, _next_change)[:1]
    findings += _comparison_findings(reports, comparisons)
    findings += ask(MEMORY_ENDS, _memory_limit)
    findings += ask(TRUST, _trust)
    for section in choices:
        highlight = section.result.headline()
        if highlight is not None:
            findings.append(KeyFinding(highlight.topic, highlight.words, section.anchor))
    return sorted(findings, key=_topic_rank)


def _topic_rank(finding: KeyFinding) -> int:
    if finding.topic in TOPICS:
        return TOPICS.index(finding.topic)
    return len(TOPICS)


def _ask(
    topic: str,
    question: Callable[[Population], Answers],
    reports: Sequence[PopulationReport],
    *,
    name_systems: bool,
) -> Iterator[KeyFinding]:
    """Yield the sentences of a function on each population, as findings on a topic.

    Args:
        topic: The topic, one of `TOPICS`.
        question: Function that yields sentences on a population, each with a command.
        reports: The populations (runs of one system each) with their sections.
        name_systems: Whether each finding starts with the name of the system.
    """
    for report in reports:
        population = report.population
        for sentence, command in question(population):
            text = _prefix(population, name_systems=name_systems) + sentence
            yield KeyFinding(topic, text, population.key, command)


def _prefix(population: Population, *, name_systems: bool) -> str:
    """Return the text that precedes a finding: the name of the system and a colon, or nothing.

    Args:
        population: Runs of one system.
        name_systems: Whether findings name the system, which they do if there are several.
    """
    if name_systems:
        return f"{population.name}: "
    return ""


def _comparison_findings(
    reports: Sequence[PopulationReport], comparisons: Sequence[SystemComparison]
) -> list[KeyFinding]:
    findings = [
        finding for comparison in comparisons for finding in comparison_findings(comparison)
    ]
    if findings or len(reports) < 2:
        return findings
    names = ", ".join(report.population.name for report in reports)
    sentence = (
        f"No point was measured on more than one of {names}, so they cannot be compared. Measure "
        "the same sweep on two of them, into the same store, or interleave two settings with "
        "python -m paradnn.compare."
    )
    return [KeyFinding(FASTER, sentence, reports[0].population.key)]


def _costs(population: Population) -> Answers:
    """Yield a sentence with the range of costs, for each cost metric and mode of the runs.

    Args:
        population: Runs of one system.
    """
    is_model = ~population.rows["family"].isin(message_families())
    rows = select_rows(population.rows, is_ok(population.rows) & is_model)
    currency = population.value("price_currency") or ""
    price = price_per_hour(rows)
    basis = ""
    if price is not None:
        basis = f", at a price of {format_number(price, currency, digits=3)} an hour"
    for metric, beginning in _COST_SENTENCES.items():
        if metric not in rows or not rows[metric].notna().any():
            continue
        priced = rows[rows[metric].notna()]
        rows = rows[rows[metric].isna()]
        parts: Any = [("", priced)]
        if "mode" in priced:
            parts = priced.groupby("mode", sort=False)
        for mode, part in parts:
            extent = _cost_range(part, metric, currency)
            condition = " in inference" if mode == "inference" else ""
            yield f"{beginning} {extent}{condition}{basis}.", ""


def _cost_range(rows: pd.DataFrame, metric: str, currency: str) -> str:
    """Return the lowest and the highest cost as text, each with the model that it belongs to.

    Args:
        rows: Runs that have the metric.
        metric: The cost metric.
        currency: Currency of the costs.
    """
    values = rows[metric].astype("float64")
    extremes = list(dict.fromkeys((values.idxmin(), values.idxmax())))
    texts = [
        f"{format_number(float(row[metric]), currency, digits=3)} ({model_name(row, AT_BATCH)})"
        for row in rows.loc[extremes].to_dict("records")
    ]
    if len(texts) == 1:
        return texts[0]
    return f"from {texts[0]} to {texts[1]}"


def _fastest(population: Population) -> Answers:
    """Yield a sentence on the highest throughput, and one on the highest FLOP rate.

    Args:
        population: Runs of one system.
    """
    points = population.points
    if points.empty:
        return
    row = _maximum(points, "examples_per_second")
    processes = np.ones(len(points))
    if "processes" in points:
        processes = points["processes"].to_numpy(dtype="float64", na_value=1.0)
    best = shrink_largest(
        points["examples_per_second"].to_numpy(dtype="float64"),
        points["examples_per_second_low"].to_numpy(dtype="float64", na_value=np.nan),
        points["examples_per_second_high"].to_numpy(dtype="float64", na_value=np.nan),
        processes,
    )
    interval = "no interval"
    if not pd.isna(best.low):
        interval = f"95% interval {rounded(best.low, 3)} to {rounded(best.high, 3)}"
    rank = _describe_rank(points, row["examples_per_second_low"])
    measured = row["examples_per_second"]
    if rounded(best.value, 3) != rounded(measured, 3):
        rank += (
            f"; {rounded(measured, 3)} was measured, but the highest of several is biased upward"
        )
    yield f"{_name_with_mode(row)}: {rounded(best.value, 3)} examples/s ({interval}){rank}.", ""
    if "flops_per_second" not in points or not points["flops_per_second"].notna().any():
        return
    row = _maximum(points, "flops_per_second")
    rate = format_number(row["flops_per_second"], "FLOP/s", digits=3)
    sentence = f"Highest FLOP rate: {_name_with_mode(row)}, {rate}"
    share = row.get("flops_utilization")
    if pd.notna(share):
        sentence += (
            f", {format_number(share, share=True, digits=3)} of this machine's measured peak"
        )
        if have_contended_ceilings(points):
            sentence += " (which was measured under contention, and is too low)"
    yield f"{sentence}.", ""


def _maximum(points: pd.DataFrame, column: str) -> dict[Any, Any]:
    """Return the row of the point with the highest value of a column."""
    position = int(points[column].astype("float64").fillna(0).argmax())
    return points.iloc[position].to_dict()


def _name_with_mode(row: dict[Any, Any]) -> str:
    name = model_name(row, AT_BATCH)
    mode = row.get("mode", "train")
    if mode == "train" or pd.isna(mode):
        return name
    return f"{name} ({mode})"


def _describe_rank(points: pd.DataFrame, low: float) -> str:
    """Return the number of points, and how many of them may be as fast as the fastest, as text.

    Args:
        points: The points (measured configurations), one row each.
        low: Lower end of the interval of the throughput of the fastest point; NaN if unknown.
    """
    text = ""
    if len(points) > 1:
        text = f", the highest of {counted(len(points), 'point')}"
    if pd.isna(low):
        return f"{text}; other points may be as fast" if text else ""
    upper = points["examples_per_second_high"].fillna(points["examples_per_second"])
    rivals = int((upper >= low).sum()) - 1
    if rivals:
        text += f"; {counted(rivals, 'other point')} may be as fast"
    return text


def _distance_to_roof(population: Population) -> Answers:
    """Yield a sentence if neither arithmetic nor memory limits most of the measured configurations.

    This is so if the median configuration reaches less than `_FAR_FROM_ROOF` of the rate that the
    measured peak FLOP/s and memory bandwidth allow (its roof).

    Args:
        population: Runs of one system.
    """
    points = population.points
    shares = points.get("roofline_fraction", pd.Series(dtype=float)).astype("float64")
    if not (shares.notna().any() and shares.median() < _FAR_FROM_ROOF):
        return
    if _count_flagged(points, "contended", value=True) > _MAJORITY * len(points):
        cause = "other work on the machine and small operations"
    else:
        cause = "small operations or waiting for input"
    share = format_number(shares.median(), share=True)
    yield (
        (
            f"Mostly neither arithmetic nor memory is the limit: the median point reaches {share} "
            f"of the rate that the machine's measured peaks allow. Likely causes are {cause}."
        ),
        "",
    )


def _section_headlines(
    reports: Sequence[PopulationReport], *, name_systems: bool
) -> Iterator[KeyFinding]:
    """Yield the highlighted finding of each section of all populations.

    Args:
        reports: The populations (runs of one system each) with their sections.
        name_systems: Whether each finding starts with the name of the system.
    """
    counts: Counter[str] = Counter()
    for report in reports:
        population = report.population
        for section in report.sections:
            highlight = section.result.headline()
            if highlight is None:
                continue
            limit = 2 if highlight.topic == DEPENDS else 1
            if counts[section.name] >= limit:
                continue
            counts[section.name] += 1
            sentence = _prefix(population, name_systems=name_systems) + highlight.words
            sentence = sentence[0].upper() + sentence[1:]
            yield KeyFinding(highlight.topic, sentence, section.anchor)


def _next_change(population: Population) -> Answers:
    """Yield the setting that raised the throughput most, and a command for the next sweep.

    If the largest batch size was the fastest, the next sweep has larger batch sizes. If no setting
    raised the throughput, the next sweep varies a setting that was not varied.

    Args:
        population: Runs of one system.
    """
    points = population.points
    if population.is_published or points.empty:
        return
    comparisons = {}
    for name, baseline in _SETTINGS.items():
        pairs = _compare_setting(points, name, baseline)
        if len(pairs):
            comparisons[name] = pairs
    gains = {
        name: float(np.exp(np.log(pairs["gain"]).mean())) for name, pairs in comparisons.items()
    }
    best = max(gains, key=lambda name: gains[name], default="")
    if best and gains[best] >= _MIN_GAIN:
        yield _propose_setting(population, best, comparisons[best])
    else:
        yield _propose_experiment(population, was_varied=bool(best))


def _propose_setting(population: Population, column: str, pairs: pd.DataFrame) -> tuple[str, str]:
    """Return a sentence on the gain by a setting, and a command that measures further values.

    The command is empty, except if the setting is the batch size and the largest was the fastest.

    Args:
        population: Runs of one system.
        column: The setting.
        pairs: The table that `_compare_setting` returns for the setting.
    """
    points = population.points
    sentence = _describe_gain(column, pairs)
    if column != "batch_size":
        return f"{sentence}.", ""
    largest = points[column].max()
    if (pairs["best"] == largest).mean() <= _MAJORITY:
        return f"{sentence}.", ""
    main_family = points[points["family"].eq(points["family"].mode()[0])]
    command = _train_command(population, main_family, _larger_batches(largest))
    return f"{sentence}. The largest batch size was the fastest: measure larger ones.", command


def _propose_experiment(population: Population, *, was_varied: bool) -> tuple[str, str]:
    """Return a sentence that proposes a setting to vary, and a command for this sweep.

    The command measures the model that is farthest below its roofline, or the slowest model if no
    roofline is known.

    Args:
        population: Runs of one system.
        was_varied: Whether any setting was varied, without a gain in throughput.
    """
    points = population.points
    column = "examples_per_second"
    if "roofline_fraction" in points and points["roofline_fraction"].notna().any():
        column = "roofline_fraction"
    position = int(points[column].astype("float64").fillna(np.inf).argmin())
    row = points.iloc[[position]]
    batch_size = None
    if not was_varied and "batch_size" in row:
        batch_size = row["batch_size"].iloc[0]
    if batch_size is not None and pd.notna(batch_size):
        proposal = "larger batches"
        override = _larger_batches(batch_size)
    else:
        proposal = "a different precision"
        override = "precision=float32,bfloat16"
    finding = "No other setting was faster" if was_varied else "Only the models were varied"
    name = model_name(row.iloc[0].to_dict())
    sentence = f"{finding}: try {proposal}, first on {name}, which has the most to gain."
    return sentence, _train_command(population, row, override)


def _compare_setting(points: pd.DataFrame, column: str, baseline: str | None) -> pd.DataFrame:
    """Compare the values of a setting at configurations that differ only in this setting.

    Args:
        points: The measured configurations, one row each.
        column: The setting.
        baseline: Value with which the fastest value is compared; None for the smallest value.

    Returns:
        A row per group of configurations that differ only in the setting. Its columns are:

        - `best`: the fastest value;
        - `reference`: the baseline, or a different value if the group lacks the baseline;
        - `gain`: throughput of `best` / throughput of `reference`;
        - `unsure`: whether the intervals of these two throughputs overlap.
    """
    if column not in points or points[column].nunique() < 2:
        return points.head(0)
    fixed = [
        name
        for name in map(str, points.columns)
        if name != column
        and (name.startswith(("model.", "generate.")) or name in _IDENTIFYING_COLUMNS)
        and points[name].nunique(dropna=False) > 1
    ]
    table = pd.DataFrame(
        {
            "rate": points["examples_per_second"],
            "low": points["examples_per_second_low"],
            "high": points["examples_per_second_high"],
            "value": points[column],
            "group": points.groupby(["family", *fixed], dropna=False, sort=False).ngroup(),
        }
    )
    if baseline:
        table["order"] = table["value"].ne(baseline)
    else:
        table["order"] = table["value"]
    table = table.dropna(subset="value").sort_values("rate", ascending=False, kind="stable")
    table = table.drop_duplicates(["group", "value"])
    table = table[table.groupby("group")["value"].transform("size") > 1]
    best = table.drop_duplicates("group").set_index("group")
    by_order = table.sort_values("order", kind="stable").drop_duplicates("group")
    reference = by_order.set_index("group").loc[best.index]
    has_intervals = bool(points["examples_per_second_low"].notna().any())
    return pd.DataFrame(
        {
            "best": best["value"],
            "reference": reference["value"],
            "gain": best["rate"] / reference["rate"],
            "unsure": ~(best["low"] > reference["high"]) & has_intervals,
        }
    )


def _describe_gain(column: str, pairs: pd.DataFrame) -> str:
    """Return the gain by the fastest values of a setting, as a sentence without a full stop.

    An example is "Batch size 512 instead of 64: 1.4 to 5.2 times the throughput on each of the 3
    models measured with both".

    Args:
        column: The setting.
        pairs: The table that `_compare_setting` returns for the setting.
    """
    gained = pairs[pairs["gain"] > 1]
    name = label(column)
    best = _format_values(gained["best"])
    reference = _format_values(gained["reference"])
    factors = [f"{value:.3g}" for value in (gained["gain"].min(), gained["gain"].max())]
    gain = " to ".join(dict.fromkeys(factors))
    noun = "model" if column == "batch_size" else "point"
    if len(pairs) == 1:
        where = f"the only {noun}"
    elif len(gained) == len(pairs):
        where = f"each of the {len(pairs)} {noun}s"
    else:
        where = f"{len(gained)} of the {len(pairs)} {noun}s"
    sentence = (
        f"{name[0].upper()}{name[1:]} {best} instead of {reference}: {gain} times the throughput "
        f"on {where} measured with both"
    )
    unsure = int(gained["unsure"].sum())
    if unsure:
        sentence += f"; uncertain on {unsure} of them, where the intervals overlap"
    return sentence


def _format_values(values: pd.Series) -> str:
    """Return the distinct values as text: "a", "a or b", or "first to last"."""
    distinct = sorted(values.unique())
    texts = [f"{value:,}" if pd.api.types.is_number(value) else str(value) for value in distinct]
    if len(texts) == 1:
        return texts[0]
    if len(texts) > 2:
        return f"{texts[0]} to {texts[-1]}"
    return " or ".join(texts)


def _larger_batches(batch_size: Any) -> str:
    return f"batch_size={2 * int(batch_size)},{4 * int(batch_size)}"


def _train_command(population: Population, rows: pd.DataFrame, override: str) -> str:
    """Return the command that measures the models of some rows with further values of a setting.

    Args:
        population: The population, whose platform and timing protocol the command repeats.
        rows: Rows of one family.
        override: The setting and its values, such as "batch_size=128,256".

    Returns:
        The command; empty if this version of ParaDnn does not know the family.
    """
    family = str(rows["family"].iloc[0])
    if family not in FAMILIES:
        return ""
    words = [f"model={family}"]
    for entry in dataclasses.fields(FAMILIES[family].options):
        name = f"model.{entry.name}"
        if entry.name != "name" and name in rows and rows[name].notna().all():
            values = sorted(rows[name].unique())
            sample = dict.fromkeys((values[0], values[len(values) // 2], values[-1]))
            words.append(f"{name}={','.join(map(str, sample))}")
    for name, default in _COMMAND_DEFAULTS.items():
        value = population.value(name)
        if not override.startswith(f"{name}=") and value not in (None, default):
            words.append(f"{name}={value}")
    return shlex.join(
        ["python", "-m", "paradnn.train", "-m", *words, override, *common_overrides(population)]
    )


def _memory_limit(population: Population) -> Answers:
    """Yield a sentence on the configurations that did not fit into memory.

    For each model family with such configurations, it names the smallest of them and the largest
    that ran. If every configuration fit, the sentence states the largest memory that one of them
    used.

    Args:
        population: Runs of one system.
    """
    rows = population.rows
    ok = is_ok(rows)
    is_out_of_memory = rows["outcome"].isin(MEMORY_OUTCOMES)
    if is_out_of_memory.any():
        ordered = rows.loc[_relative_size(rows).sort_values(kind="stable").index]
        parts = []
        for family in families(rows[is_out_of_memory]):
            is_family = ordered["family"].eq(family)
            failed = ordered[is_out_of_memory[ordered.index] & is_family].iloc[0].to_dict()
            part = f"the smallest is {model_name(failed, AT_BATCH)}"
            ran = ordered[ok[ordered.index] & is_family]
            if len(ran):
                part += f", the largest that ran is {model_name(ran.iloc[-1].to_dict(), AT_BATCH)}"
            parts.append(part)
        count = counted(int(is_out_of_memory.sum()), "point")
        yield f"{count} of {len(rows):,} did not fit into memory: {'; '.join(parts)}.", ""
    elif "peak_memory_bytes" in rows and rows.loc[ok, "peak_memory_bytes"].notna().any():
        most = float(rows.loc[ok, "peak_memory_bytes"].max())
        yield f"Every point fit into memory; the largest used {most / 2**30:.3g} GiB.", ""


def _relative_size(rows: pd.DataFrame) -> pd.Series:
    """Return the size of each run, to order runs by their need of memory.

    The size is batch size x number of parameters. If a run did not record its number of parameters,
    as failed runs may not, the number is computed.
    """
    recorded = rows.get("parameters", pd.Series(np.nan, rows.index)).astype("float64")
    analytic = step_inputs.analytic_costs(rows[recorded.isna()])["parameters"]
    parameters = recorded.fillna(analytic).fillna(1)
    return rows["batch_size"].astype("float64").fillna(1) * parameters


def _trust(population: Population) -> Answers:
    """Yield sentences on the reliability of measurements: doubtful points, intervals, a remedy.

    Args:
        population: Runs of one system.
    """
    rows = select_rows(population.rows, is_ok(population.rows))
    if rows.empty:
        return
    if population.is_published:
        yield "Published values, one per point, without intervals.", ""
        return
    doubts = _doubts(rows)
    sentences = [_describe_doubts(rows, doubts), *_describe_intervals(population.points)]
    if "reference_speed" in rows and rows["reference_speed"].notna().any():
        speed = format_number(rows["reference_speed"].median(), share=True)
        sentences.append(
            f"In the median, the machine was {speed} as fast as when its ceilings were measured."
        )
    if have_contended_ceilings(rows):
        sentences.append(
            "The measured peaks are too low, since other work ran at the same time: "
            "utilizations are too high."
        )
    command = ""
    if doubts:
        sentences.append(
            "Measure the doubtful points again on a quiet machine; this command names the sources "
            "of noise:"
        )
        command = "python -m paradnn.check"
    elif population.value("measure.processes") == "1":
        sentences.append(
            "Each interval is from a single process. Several processes differ more than the blocks "
            "of one process; measure=standard runs several."
        )
    yield " ".join(sentences), command


def _doubts(rows: pd.DataFrame) -> list[str]:
    """Return the number of doubtful runs for each reason that occurs, such as "3 not steady".

    Args:
        rows: One row per run or measured configuration.
    """
    failed_checks = 0
    if "checks" in rows:
        failed_checks = int(rows["checks"].str.startswith("failed").sum())
    counts = {
        "on a contended machine": _count_flagged(rows, "contended", value=True),
        "not steady": _count_flagged(rows, "steady", value=False),
        "with a failed self-check": failed_checks,
    }
    return [f"{count} {reason}" for reason, count in counts.items() if count]


def _describe_doubts(rows: pd.DataFrame, doubts: Sequence[str]) -> str:
    sentence = counted(len(rows), "measured point")
    if doubts:
        return f"{sentence}, including {', '.join(doubts)}."
    was_watched = all(name in rows and rows[name].notna().all() for name in ("steady", "contended"))
    if was_watched:
        return f"{sentence}, all steady, none on a contended machine."
    return f"{sentence}."


def _describe_intervals(points: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on the widths of the intervals, and on measurements without an interval."""
    half_widths = pd.Series(dtype=float)
    if "examples_per_second_low" in points:
        width = points["examples_per_second_high"] - points["examples_per_second_low"]
        relative = width / 2 / points["examples_per_second"]
        half_widths = relative.astype("float64").dropna()
    if len(half_widths):
        median = format_number(half_widths.median(), share=True)
        largest = format_number(half_widths.max(), share=True)
        yield (
            f"The half width of their 95% intervals is {median} in the median and {largest} at "
            "most."
        )
    missing = len(points) - len(half_widths)
    if missing:
        verb = "has" if missing == 1 else "have"
        yield f"{counted(missing, 'point')} {verb} no interval."


def _count_flagged(rows: pd.DataFrame, column: str, *, value: bool) -> int:
    """Return the number of rows in which a boolean column has a given value.

    Args:
        rows: The rows.
        column: The column.
        value: The value to count.
    """
    if column not in rows:
        return 0
    return int((rows[column].astype("boolean") == value).fillna(False).sum())
