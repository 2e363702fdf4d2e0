"""`heatmap`: any metric over any two hyperparameters, out of memory included."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.format import is_share, short
from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.heatmap import HeatMap, HeatMaps

__all__ = ["COMMANDS"]


def heatmap(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """The maps, and in words: where the metric is high and low, what is out of memory, what was pooled."""
    from analysis.methods.heatmap import heat_maps

    found = heat_maps(frame, args.x, args.y, args.metric, bins=args.bins, pool=args.pool)

    def draw() -> Figure:
        from analysis.figures.heatmap import draw_heat_maps

        return draw_heat_maps(found)

    parts = [_describe(each, found) for each in found.maps]
    parts += [f"{reason}: no map." for reason in found.lacking]
    pooled = alike_within(frame, ["family", "device"], pool=True) if args.pool else ""
    parts += sentence(pooled)
    return Result(found.table, "\n".join(filter(None, parts)), draw, found.run_ids, pooled)


def _describe(found: HeatMap, all_maps: HeatMaps) -> str:
    cells = found.cells
    measured = cells[cells["value"].notna()]
    share = is_share(all_maps.metric, all_maps.unit, measured["value"])

    def shown(value: float) -> str:
        return short(value, all_maps.unit, share)

    lines = [f"{found.name}: {all_maps.metric} over {found.x.column} and {found.y.column}."]
    if len(measured):
        best, worst = (measured.iloc[int(place)] for place in (measured["value"].argmax(), measured["value"].argmin()))
        places = [
            f"{shown(cell['value'])} at {found.x.column} {cell['x']}, {found.y.column} {cell['y']}"
            for cell in (best, worst)
        ]
        lines.append(f"From {places[1]} up to {places[0]}.")
        lines += _trends(found)
    lines += _failures(found)
    lines += _pooled(found, measured)
    if found.without_metric:
        lines.append(f"{found.without_metric} measured points have no {all_maps.metric} and are left out.")
    return "\n  ".join(lines)


def _trends(found: HeatMap) -> Iterable[str]:
    """What going from one end of an axis to the other does, over the lines of cells that have both ends."""
    for axis, other, grid in ((found.x, found.y, found.grid()), (found.y, found.x, found.grid().T)):
        ratios = _end_to_end(grid)
        if ratios and (axis.ordered or len(axis.labels) == 2) and len(axis.labels) > 1:
            middle, low, high = ratios[len(ratios) // 2] if len(ratios) % 2 else _middle(ratios), ratios[0], ratios[-1]
            spread = (
                f" ({short(low)} to {short(high)} over {len(ratios)} values of {other.column})"
                if len(ratios) > 1
                else ""
            )
            yield f"From {axis.column} {axis.labels[0]} to {axis.labels[-1]} it changes {short(middle)}-fold{spread}."


def _end_to_end(grid: np.ndarray) -> list[float]:
    """Last over first of each row of cells that has both, sorted."""
    return sorted(float(row[-1] / row[0]) for row in grid if row[0] > 0 and row[-1] > 0)


def _middle(ratios: list[float]) -> float:
    half = len(ratios) // 2
    return (ratios[half - 1] + ratios[half]) / 2


def _failures(found: HeatMap) -> Iterable[str]:
    """What did not run, whole cells and parts of cells."""
    from analysis.methods.heatmap import MEMORY

    cells = found.cells
    whole = cells[cells["value"].isna()]
    full = whole[whole["outcome"].isin(MEMORY)]
    if len(full):
        predicted = int((full["outcome"] == "oom_predicted").sum())
        how = f" ({predicted} by prediction)" if predicted else ""
        yield f"{_cells(len(full))} out of memory{how}{_frontier(found, full)}."
    for outcome, rows in whole[~whole["outcome"].isin(MEMORY)].groupby("outcome"):
        places = [f"{found.x.column} {x}, {found.y.column} {y}" for x, y in zip(rows["x"], rows["y"], strict=True)]
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"{_cells(len(rows))} without a measurement, outcome {outcome}: at {'; at '.join(places[:3])}{more}."
    partly = cells[cells["value"].notna() & (cells["failed"] > 0)]
    if len(partly):
        memory, failed = int(partly["memory"].sum()), int(partly["failed"].sum())
        kinds = [f"{memory} out of memory"] * (memory > 0) + [f"{failed - memory} ended otherwise"] * (failed > memory)
        yield (
            f"In {_cells(len(partly))} some points did not run ({', '.join(kinds)}): the value is that of the "
            "points that did, often the smaller models."
        )
    if found.unmeasured:
        yield f"{_cells(found.unmeasured)} not measured, left blank."


def _frontier(found: HeatMap, full: pd.DataFrame) -> str:
    """From which y on memory ends, at the least and at the greatest x."""
    if not (found.x.ordered and found.y.ordered):
        return ""
    ends = []
    for place in dict.fromkeys((0, len(found.x.labels) - 1)):
        rows = full.loc[full["i"] == place, "j"]
        where = f"from {found.y.column} {found.y.labels[rows.min()]}" if len(rows) else "nowhere"
        ends.append(f"at {found.x.column} {found.x.labels[place]} {where}")
    return f": {', '.join(ends)}"


def _pooled(found: HeatMap, measured: pd.DataFrame) -> Iterable[str]:
    """Over what a cell's median is taken, and how much that hides."""
    if len(measured):
        counts = measured["points"]
        each = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        text = f"A cell is the median of {each} points" if counts.max() > 1 else "A cell is one point"
        varied = [f"{name} ({count} values)" for name, count in {**found.pooled, **found.unlike}.items()]
        if varied:
            text += f"{', pooled over' if counts.max() > 1 else ', though runs differ in'} {', '.join(varied)}"
        spread = (measured["high"] / measured["low"])[measured["low"] > 0].median()
        if counts.max() > 1 and spread > 1.1:
            text += f"; quartiles within a cell are typically {short(spread)}-fold apart"
        yield text + (": fix them with --where." if varied else ".")
    if found.fixed:
        yield f"The same in all: {', '.join(f'{name} = {value}' for name, value in found.fixed.items())}."


def _words(outcome: str) -> str:
    memory = {
        "oom_device": "out of memory",
        "oom_host": "out of host memory",
        "oom_predicted": "predicted out of memory",
    }
    return memory.get(outcome, outcome)


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="heatmap",
        summary="a metric over two hyperparameters, out of memory shown",
        description="Show the median of a metric over two hyperparameters, a map for each family on each device.\n"
        "Cells in which nothing ran say why. What varies besides is pooled and named; fix it with --where.",
        example="python -m analysis heatmap --x batch_size --y nodes --where model.layers=64 --png map.png",
        analyse=heatmap,
        draws=True,
        arguments=(
            argument("--x", metavar="A", default="batch_size", help="hyperparameter across (default: batch_size)"),
            argument("--y", metavar="B", required=True, help="hyperparameter up, such as nodes, filters, precision"),
            argument(
                "--metric",
                metavar="M",
                help="what to show (default: flops_utilization, else flops_per_second, else examples_per_second)",
            ),
            argument(
                "--bins",
                metavar="N",
                type=int,
                help="cut a numeric hyperparameter with more than N values "
                "into N ranges (default: 12 ranges from 25 values on)",
            ),
        ),
    ),
)
