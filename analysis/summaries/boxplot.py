"""The sub-command `boxplot`: the spread of a metric over the models of each group, with the paper's percentiles."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from analysis.format import is_share, short
from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.boxplot import Boxes

__all__ = ["COMMANDS"]

#: What is drawn if no metric is named: the first that nine of ten runs have.
_CANDIDATES = ("flops_utilization", "flops_utilization_spec", "flops_per_second", "examples_per_second")
_FITTING = 30  # boxes that one figure holds
_WHISKERS = 50  # points below which a 2nd percentile lies between the two lowest of them
_BOX = 12  # points below which a 9th percentile does


def boxplot(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """A box for each value of --by."""
    from analysis.methods.boxplot import box_statistics
    from analysis.methods.columns import choose_metric, find_column, find_metric
    from analysis.store.frame import aggregate_replicates, families, units

    if frame.empty:
        return Result(frame[["family", "device"]], "no such runs in the store")
    by = [find_column(frame, name.strip(), "--by") for name in args.by.split(",") if name.strip()]
    if not by:
        raise ConfigError("--by", args.by, "names no column", "write for example --by family")
    metric = find_metric(frame, args.metric) if args.metric else choose_metric(frame, _CANDIDATES)
    pooled = alike_within(frame, by, args.pool)
    boxes = box_statistics(aggregate_replicates(frame), metric, by, order=families(frame))
    drawn = int((boxes.table["count"] > 0).sum())
    if drawn > _FITTING and (args.png or args.svg):
        raise ConfigError("--by", args.by, f"{drawn} boxes do not fit one figure", "choose runs with --where")

    def draw() -> Any:
        from analysis.figures.boxplot import draw_boxes

        return draw_boxes(boxes, args.scale)

    text = "\n".join([*_lines(boxes, units([metric]).get(metric, "")), *sentence(pooled)])
    return Result(boxes.table, text, draw if drawn else None, pooled=pooled)


def _lines(boxes: Boxes, unit: str) -> list[str]:
    share = is_share(boxes.metric, unit, boxes.table["maximum"].dropna())

    def said(value: float) -> str:
        return short(value, unit, share, digits=3)

    lines = []
    for row in boxes.table.to_dict("records"):
        missing = f"; {row['missing']} more have none" if row["missing"] else ""
        if not row["count"]:
            lines.append(f"{row['label']}: no point has {boxes.metric}{missing}.")
            continue
        known = row["median_low"] == row["median_low"]
        interval = f" (95% interval {said(row['median_low'])} to {said(row['median_high'])})" if known else ""
        points = f"{row['count']} points{missing}"
        start = f"{row['label']}: median {boxes.metric} {said(row['p50'])}{interval} over {points}."
        ends = f"{said(row['minimum'])} and {said(row['maximum'])}"
        if row["count"] < _BOX:
            lines.append(f"{start} They lie between {ends}, too few for percentiles.")
            continue
        lines.append(
            f"{start} 82% of them lie between {said(row['p9'])} and {said(row['p91'])}, 96% between {said(row['p2'])} "
            f"and {said(row['p98'])}; the extremes are {ends}."
        )
    few = [row["label"] for row in boxes.table.to_dict("records") if _BOX <= row["count"] < _WHISKERS]
    if few:
        lines.append(
            f"With fewer than {_WHISKERS} points the whiskers lie between the two outermost values: {'; '.join(few)}."
        )
    return lines


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="boxplot",
        summary="the spread of a metric over the models of each family, device or any other group",
        description="Box plots with the paper's percentiles: bar at the median, box from the 9th to the 91st,\n"
        "whiskers from the 2nd to the 98th, dots beyond. Replicates of a point count once.",
        example="python -m analysis boxplot --metric examples_per_second --by device,batch_size --png boxes.png",
        analyse=boxplot,
        arguments=(
            argument("--metric", metavar="NAME", help="a metric (default: FLOPS utilisation, else what runs have)"),
            argument(
                "--by",
                metavar="COLUMN",
                default="family",
                help="a box for each value; A,B for each pair of values (default: family)",
            ),
            argument(
                "--scale",
                choices=("auto", "linear", "log"),
                default="auto",
                help="of the axis (default: log where values span more than a factor of 100)",
            ),
        ),
        draws=True,
    ),
)
