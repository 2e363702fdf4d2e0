"""Which analyses the report tries on a part, with the options that fit its runs, and what would supply more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.report.populations import Part
from analysis.store.frame import families, is_ok
from paradnn.config.families import FAMILIES, Family

__all__ = ["REMEDIES", "Item", "plan"]

#: Analysis -> the command that supplies what it lacks.
REMEDIES = {
    "boxplot": "python -m paradnn.train -m experiment=quick",
    "heatmap": f"python -m paradnn.train -m model=fc {FAMILIES['fc'].sweep}",
    "sensitivity": "python -m paradnn.train -m experiment=paper_fc sweep.sample=60",
    "roofline": "python -m paradnn.ceilings",
    "operations": "python -m paradnn.train -m experiment=quick measure.profile=true",
    "breakdown": "python -m paradnn.train -m experiment=quick measure.profile=true",
    "infeed": "python -m analysis import-archive DIR, for the published TPU v2 traces",
    "scaling": "python -m paradnn.train -m model=fc model.nodes=256,1024 platform.threads=1,2, then "
    "python -m analysis scaling --by platform.threads",
    "software": "python -m paradnn.train -m model=fc model.nodes=64,256,1024 precision=float32,bfloat16",
    "parameters": "python -m paradnn.train -m experiment=quick",
    "overhead": "python -m paradnn.train -m experiment=quick",
    "compare": "the same sweep on both sides, such as python -m paradnn.train -m experiment=quick",
    "claims": "python -m paradnn.train -m experiment=paper_fc sweep.sample=60",
}


@dataclass(frozen=True)
class Item:
    """One analysis to try: the command `name`, its own options, and how the section is headed and read.

    `problem` says why it is not tried at all; empty where it is.
    """

    name: str
    title: str
    reading: str
    options: tuple[str, ...] = ()
    key: str = ""
    problem: str = ""
    remedy: str = ""

    @property
    def anchor(self) -> str:
        """What names the section within its part."""
        return self.key or self.name


def plan(part: Part) -> list[Item]:
    """The analyses of one part, in the order of the page."""
    return [
        Item(
            "boxplot",
            "Spread by family",
            "Bar: median. Box: 9th to 91st percentile. Whiskers: 2nd to 98th. Dots lie beyond.",
            ("--by", "family"),
        ),
        *_heat_maps(part.rows),
        Item(
            "sensitivity",
            "What performance depends on",
            "Standardised weights of a regression on logarithms. Further from zero matters more; an interval that "
            "holds zero tells nothing.",
            ("--log-scale", "both"),
        ),
        Item(
            "roofline",
            "Roofline of the models",
            "Left of the ridge memory traffic limits, right of it arithmetic. Distance below the roof is what could "
            "be gained.",
        ),
        _operations(part),
        Item(
            "breakdown",
            "Where the step's time goes",
            "Median share of the profiled step, over the models of a family. What is blank ran in no known "
            "operation, or medians do not add up to the whole.",
        ),
        Item("infeed", "Waiting for input", "Share of the step in which the device waits for its next batch."),
        Item(
            "scaling",
            "Scaling over devices",
            "Speed against the same point on one device, with Amdahl's fraction.",
            _by_threads(part.rows),
        ),
        Item(
            "software",
            "Precision, compilation and versions",
            "Speedup over the baseline, point by point: median and 90th percentile.",
        ),
        Item("parameters", "Sizes of the models", "Trainable parameters of the distinct models of each family."),
        Item(
            "overhead",
            "What the measuring itself costs",
            "Wall time of a point by phase. The stack's own part is schedule, start and record.",
        ),
    ]


def _heat_maps(rows: pd.DataFrame) -> Iterator[Item]:
    """A map for each kind of family over its two first hyperparameters that vary."""
    for names, known in _kinds(families(rows)):
        mine = rows[rows["family"].isin(names)]
        varied = _varied(mine, [f"model.{key}" for key in known[0].swept] if known else ())
        title = f"Heat map: {', '.join(names)}"
        reading = "Median of the points in a cell; cells in which nothing ran say why."
        key = f"heatmap-{names[0]}"
        if len(varied) < 2:
            only = f"only {varied[0]} varies" if varied else "no hyperparameter varies"
            yield Item(
                "heatmap",
                title,
                reading,
                key=key,
                problem=f"{only} in these runs, a map takes two",
                remedy=f"python -m paradnn.train -m model={','.join(family.name for family in known) or names[0]}"
                + (f" {known[0].sweep}" if known else ""),
            )
            continue
        yield Item("heatmap", title, reading, ("--family", ",".join(names), "--x", varied[0], "--y", varied[1]), key)


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


def _operations(part: Part) -> Item:
    """The operations of the profiled run with the highest rate, as the one with the most to tell."""
    title = "Roofline of one model's operations"
    reading = "Each mark is an operation, the larger the more of the step's time it takes."
    rows = part.rows
    shares = [name for name in rows.columns if str(name).startswith("op_share.")]
    profiled = rows[is_ok(rows) & rows[shares].notna().any(axis=1)] if shares else rows.iloc[:0]
    rates = profiled["flops_per_second"].dropna() if "flops_per_second" in profiled else profiled.index.to_series()[:0]
    if not len(rates):
        return Item(
            "roofline",
            title,
            reading,
            key="operations",
            problem="none of these runs was profiled",
            remedy=REMEDIES["operations"],
        )
    run = str(profiled["run_id"].loc[rates.index].iloc[int(rates.argmax())])
    return Item(
        "roofline",
        title,
        f"{reading} It is the profiled run with the highest FLOP rate.",
        ("--operations", run),
        "operations",
    )


def _by_threads(rows: pd.DataFrame) -> tuple[str, ...]:
    devices = "devices" in rows and rows["devices"].nunique() > 1
    threads = "platform.threads" in rows and rows["platform.threads"].nunique() > 1
    return ("--by", "platform.threads") if threads and not devices else ()
