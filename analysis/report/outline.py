"""Which analyses the report tries on a population, with options that fit its runs, and what would supply more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.methods.heatmap import MEMORY
from analysis.methods.prediction import is_sparse
from analysis.options import Options
from analysis.registry import ANALYSES, Analysis
from analysis.report.populations import Population
from analysis.report.remedies import remedy, supply, sweep_of
from analysis.result import Result
from analysis.store.frame import families
from analysis.summaries.boxplot import BoxplotOptions, boxplot
from analysis.summaries.breakdown import BreakdownOptions, breakdown
from analysis.summaries.channel import ChannelOptions, channel
from analysis.summaries.frontier import FrontierOptions, frontier
from analysis.summaries.heatmap import HeatmapOptions, heatmap
from analysis.summaries.infeed import InfeedOptions, infeed
from analysis.summaries.latency import LatencyOptions, latency
from analysis.summaries.layers import LayersOptions, layers
from analysis.summaries.memory import MemoryOptions, memory
from analysis.summaries.parameters import ParametersOptions, parameters
from analysis.summaries.predict import PredictOptions, predict
from analysis.summaries.roofline import RooflineOptions, roofline
from analysis.summaries.scaling import ScalingOptions, scaling
from analysis.summaries.sensitivity import SensitivityOptions, sensitivity
from analysis.summaries.software import SoftwareOptions, software
from paradnn.families import FAMILIES, Family

__all__ = ["Item", "Missing", "across", "outline"]


@dataclass(frozen=True)
class Missing:
    """An analysis that could not be made: of which population, why, and the command that would supply it."""

    title: str
    of: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Item:
    """One analysis to try: the function and its options, and how the section is headed and read.

    `families` narrows the runs; `key` names the section within its population where the command's name would not do;
    `remedy` is the command that supplies what the analysis may lack.
    """

    analyse: Callable[[pd.DataFrame, Any], Result]
    options: Options
    title: str
    reading: str
    families: tuple[str, ...] = ()
    key: str = ""
    remedy: str = ""

    @property
    def anchor(self) -> str:
        """What names the section within its population."""
        return self.key or self.options.command


def outline(population: Population) -> list[Item | Missing]:
    """The analyses of one population, in the order of the page; what its runs rule out from the start is missing."""
    computing = _computing(population.rows)
    narrowed = computing if len(computing) < len(families(population.rows)) else ()
    items = [
        Item(boxplot, BoxplotOptions(by=("family",)), "Spread by family", "", narrowed),
        *_heat_maps(population),
        *_memory(population.rows),
        *_messages(population.rows),
        Item(
            sensitivity,
            SensitivityOptions(log_scale="both"),
            "What performance depends on",
            "Standardised weights of a regression on logarithms. Further from zero matters more; an interval that "
            "holds zero shows no effect.",
            narrowed,
        ),
        Item(
            roofline,
            RooflineOptions(),
            "Roofline of the models",
            "Left of the ridge memory traffic limits, right of it arithmetic. Distance below the roof is what could "
            "be gained.",
        ),
        _operations(population),
        *_around_the_step(population.rows),
    ]
    ordered = [
        (10 * place, replace(item, remedy=remedy(item.options.command, population)) if isinstance(item, Item) else item)
        for place, item in enumerate(items, start=1)
    ]
    ordered += [
        (one.order, item) for one in ANALYSES.values() if one.section == "system" for item in _items(one, population)
    ]
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]


def _items(one: Analysis[Any, Any], population: Population) -> Iterator[Item | Missing]:
    """What a registered analysis shows of a population, or why it cannot."""
    for each in one.shows(population.rows):
        if each.lacks:
            sweep = sweep_of([*each.sweep], population) if each.sweep else supply(one, population)
            yield Missing(each.title, population.name, each.lacks, sweep)
        elif each.options is not None:
            shown = (each.title, each.reading, each.families, each.key, supply(one, population))
            yield Item(one, each.options, *shown)


def across(frame: pd.DataFrame, price: tuple[str, ...]) -> Iterator[Item]:
    """What is asked of all systems together, where users were served or something was learnt; `price` as it was
    given."""
    scheduled = "scheduled_queries_per_second" in frame and frame["scheduled_queries_per_second"].notna().any()
    if scheduled:
        yield Item(
            latency,
            LatencyOptions(),
            "Latency over the rate of queries",
            "Ring: the knee, above which latency grows faster than the rate. Cross: queries came faster than they were "
            "served. Dotted: the highest rate that held its limit.",
        )
    learns = "best_accuracy" in frame and frame["best_accuracy"].notna().any()
    if scheduled or learns or (frame["mode"].isin(["inference", "generate"]).any() if "mode" in frame else False):
        yield Item(
            frontier,
            FrontierOptions(price=price),
            "What to choose",
            "The line joins what no other choice beats. Filled: surely so; hollow: undecided; grey: beaten.",
        )


def _around_the_step(rows: pd.DataFrame) -> list[Item]:
    """Where time goes, what devices and software bring, how large the models are, what the measuring costs."""
    return [
        Item(
            breakdown,
            BreakdownOptions(),
            "Where the step's time goes",
            "Median share of the profiled step, over the models of a family. What is blank ran in no known "
            "operation, or medians do not add up to the whole.",
        ),
        Item(
            infeed,
            InfeedOptions(),
            "Waiting for input",
            "Share of the step in which the device waits for its next batch.",
        ),
        Item(
            scaling,
            ScalingOptions(by="platform.threads") if _by_threads(rows) else ScalingOptions(),
            "Scaling over devices",
            "Speed against the same point on one device, with Amdahl's fraction.",
        ),
        Item(
            software,
            SoftwareOptions(),
            "Precision, compilation and versions",
            "Speedup over the baseline, point by point: median and 90th percentile.",
        ),
        Item(
            parameters,
            ParametersOptions(),
            "Sizes of the models",
            "Trainable parameters of the distinct models of each family.",
        ),
        Item(
            layers,
            LayersOptions(),
            "Layers of the stack",
            "Wall clock of a session by layer, from the scheduler's queue to recording. The rest is what no recorded "
            "point covers.",
        ),
    ]


def _memory(rows: pd.DataFrame) -> Iterator[Item]:
    """Where memory ends, if any point ran out of it."""
    if rows["outcome"].isin(MEMORY).any():
        yield Item(
            memory,
            MemoryOptions(),
            "Where memory ends",
            "Colour: the share of points of these sizes that ran out of memory. Dashed: even chances, by a regression.",
        )


def _messages(rows: pd.DataFrame) -> Iterator[Item]:
    """What messages cost, if any were measured."""
    if "transfer_us" in rows and rows["transfer_us"].notna().any():
        yield Item(
            channel,
            ChannelOptions(),
            "Messages between processes",
            "Lines are start-up + size / bandwidth; a dotted line is a size from which on another one holds.",
        )


def _heat_maps(population: Population) -> Iterator[Item | Missing]:
    """A map for each kind of family over its two first hyperparameters that vary."""
    rows = population.rows
    for names, known in _kinds(_computing(rows)):
        mine = rows[rows["family"].isin(names)]
        varied = _varied(mine, [f"model.{key}" for key in known[0].swept] if known else ())
        title = f"Heat map: {', '.join(names)}"
        if len(varied) < 2:
            only = f"only {varied[0]} varies" if varied else "no hyperparameter varies"
            sweep = sweep_of(names, population) if known else ""
            yield Missing(title, population.name, f"{only} in these runs, a map takes two", sweep)
            continue
        reading = "Median of the points in a cell; cells in which nothing ran say why."
        options = HeatmapOptions(x=varied[0], y=varied[1])
        yield Item(heatmap, options, title, reading, tuple(names), f"heatmap-{names[0]}")
        if is_sparse(mine):
            yield Item(
                predict,
                PredictOptions(x=varied[0], y=varied[1]),
                f"Predicted map: {', '.join(names)}",
                "The same over the whole grid that these runs are a part of: what was not measured is predicted.",
                tuple(names),
                f"predict-{names[0]}",
            )


def _computing(rows: pd.DataFrame) -> tuple[str, ...]:
    """The families whose rate is of examples: messages have a section of their own. All where nothing else ran."""
    there = tuple(families(rows))
    return tuple(name for name in there if name not in FAMILIES or not FAMILIES[name].is_communication) or there


def _kinds(present: Sequence[str]) -> Iterator[tuple[list[str], list[Family]]]:
    """The families that share a map, since they are swept over the same options, and all families of that kind."""
    swept = [family for family in FAMILIES.values() if family.swept]
    for options in dict.fromkeys(family.options for family in swept):
        kind = [family for family in swept if family.options is options]
        if names := [family.name for family in kind if family.name in present]:
            yield names, kind
    for name in present:
        if name not in FAMILIES or not FAMILIES[name].swept:
            yield [name], []


def _varied(rows: pd.DataFrame, preferred: Sequence[str]) -> list[str]:
    """Hyperparameters with more than one value, the preferred ones first."""
    named = [str(name) for name in rows.columns if str(name).startswith("model.") and name != "model.name"]
    candidates = list(dict.fromkeys(["batch_size", *preferred, *named]))
    return [name for name in candidates if name in rows and rows[name].nunique() > 1]


def _operations(population: Population) -> Item | Missing:
    """The operations of the profiled run with the highest rate, as the one with the most to show."""
    title = "Roofline of one model's operations"
    rows = population.rows
    profiled = rows[population.profiled()]
    rates = profiled["flops_per_second"].dropna() if "flops_per_second" in profiled else profiled.index.to_series()[:0]
    if not len(rates):
        return Missing(title, population.name, "none of these runs was profiled", remedy("breakdown", population))
    run = str(profiled["run_id"].loc[rates.index].iloc[int(rates.argmax())])
    return Item(
        roofline,
        RooflineOptions(operations=run),
        title,
        "Each mark is an operation, the larger the more of the step's time it takes. It is the profiled run with the "
        "highest FLOP rate.",
        key="operations",
    )


def _by_threads(rows: pd.DataFrame) -> bool:
    """Whether threads were varied and devices were not."""
    devices, threads = (name in rows and rows[name].nunique() > 1 for name in ("devices", "platform.threads"))
    return bool(threads and not devices)
