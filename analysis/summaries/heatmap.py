"""`heatmap`: any metric over any two hyperparameters, out of memory included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from analysis.format import is_share, short
from analysis.options import option
from analysis.result import Paragraph, Result, pooled_within
from analysis.summaries.gate import gated
from analysis.summaries.predicted import PredictedOptions, completed_of, told_of
from paradnn.cli.console import si

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.heatmap import HeatMap, HeatMaps

__all__ = ["HeatmapOptions", "HeatmapResult", "heatmap"]


@dataclass(frozen=True, kw_only=True)
class HeatmapOptions(PredictedOptions):
    """Two hyperparameters and a metric."""

    command = "heatmap"

    x: str = option("batch_size", "hyperparameter across (default: batch_size)", metavar="A")
    y: str = option(text="hyperparameter up, such as nodes, filters, precision", metavar="B")
    metric: str | None = option(
        None, "what to show (default: flops_utilization, else flops_per_second, else examples_per_second)", metavar="M"
    )
    bins: int | None = option(
        None,
        "cut a numeric hyperparameter with more than N values into N ranges (default: 12 ranges from 25 values on)",
        metavar="N",
        least=1,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeatmapResult(Result):
    """A map for each family on each device, on shared axes."""

    maps: HeatMaps

    @property
    def table(self) -> pd.DataFrame:
        return self.maps.table

    def grids(self) -> Iterator[tuple[str, pd.DataFrame]]:
        for each in self.maps.maps:
            yield f"{each.name}, {self.maps.metric}: {each.y.column} down, {each.x.column} across", _grid(each)

    def _figure(self) -> Figure:
        from analysis.figures.heatmap import draw_heat_maps

        return draw_heat_maps(self.maps)

    def _paragraphs(self) -> Iterator[Paragraph]:
        for each in self.maps.maps:
            head = f"{each.name}: {self.maps.metric} over {each.x.column} and {each.y.column}."
            yield Paragraph(head, tuple(_describe(each, self.maps)))
        for lacking in self.maps.lacking:
            yield Paragraph(f"{lacking}: no map.")


@gated
def heatmap(frame: pd.DataFrame, options: HeatmapOptions) -> HeatmapResult:
    """The median of a metric over two hyperparameters, for each family on each device.

    ConfigError for a column or metric that is not there, NotEnoughData without any map, SchemaError for heterogeneous
    runs of a group.
    """
    from analysis.methods.conclusions import predicted_maps
    from analysis.methods.heatmap import heat_maps

    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    if not options.predicted:
        maps = heat_maps(frame, options.x, options.y, options.metric, bins=options.bins, pool=options.pool)
        return HeatmapResult(maps=maps, sources=maps.run_ids, pooled=pooled)
    completed = completed_of(frame, options.metric, options)
    maps = predicted_maps(completed, options.x, options.y, bins=options.bins, pool=options.pool)
    return HeatmapResult(maps=maps, sources=maps.run_ids, pooled=pooled, predicted=told_of([completed]))


def _grid(each: HeatMap) -> pd.DataFrame:
    """The map as texts: a row for each value of y, below the values of x; where nothing ran, how it ended."""
    import pandas as pd

    shown = {
        (cell["y"], cell["x"]): si(cell["value"]).strip() if pd.notna(cell["value"]) else str(cell["outcome"] or "-")
        for cell in each.cells.to_dict("records")
    }
    rows = [[str(y), *(shown.get((y, x), "") for x in each.x.labels)] for y in each.y.labels]
    return pd.DataFrame(rows, columns=["", *map(str, each.x.labels)])


def _describe(each: HeatMap, maps: HeatMaps) -> Iterator[str]:
    """Where the metric is high and low, what is out of memory, what was pooled."""
    measured = each.cells[each.cells["value"].notna()]
    share = is_share(maps.metric, maps.unit, measured["value"])
    if len(measured):
        values = measured["value"]
        places = [
            f"{short(cell['value'], maps.unit, share)} at {each.x.column} {cell['x']}, {each.y.column} {cell['y']}"
            for cell in (measured.iloc[int(values.argmin())], measured.iloc[int(values.argmax())])
        ]
        yield f"From {places[0]} up to {places[1]}."
        yield from _trends(each)
    elif each.cells["failed"].any():
        counts = each.cells.groupby("outcome")["failed"].sum()
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        yield f"None of its points ran ({listed}): the map says how they ended."
    yield from _failures(each)
    yield from _pooled(each, measured)
    if each.without_metric:
        yield f"{each.without_metric} measured points have no {maps.metric} and are left out."


def _trends(each: HeatMap) -> Iterator[str]:
    """What going from one end of an axis to the other does, over the lines of cells that have both ends."""
    for axis, other, grid in ((each.x, each.y, each.grid()), (each.y, each.x, each.grid().T)):
        ratios = _end_to_end(grid)
        if ratios and (axis.ordered or len(axis.labels) == 2) and len(axis.labels) > 1:
            ends = f"{short(min(ratios))} to {short(max(ratios))}"
            spread = f" ({ends} over {len(ratios)} values of {other.column})" if len(ratios) > 1 else ""
            change = f"{short(median(ratios))}-fold{spread}"
            yield f"From {axis.column} {axis.labels[0]} to {axis.labels[-1]} it changes {change}."


def _end_to_end(grid: np.ndarray) -> list[float]:
    """Last over first of each row of cells that has both."""
    return [float(row[-1] / row[0]) for row in grid if row[0] > 0 and row[-1] > 0]


def _failures(each: HeatMap) -> Iterator[str]:
    """What did not run, whole cells and parts of cells."""
    from analysis.methods.heatmap import MEMORY

    cells = each.cells
    whole = cells[cells["value"].isna()]
    full = whole[whole["outcome"].isin(MEMORY)]
    if len(full):
        predicted = int((full["outcome"] == "oom_predicted").sum())
        how = f" ({predicted} by prediction)" if predicted else ""
        yield f"{_cells(len(full))} out of memory{how}{_frontier(each, full)}."
    for outcome, rows in whole[~whole["outcome"].isin(MEMORY)].groupby("outcome"):
        places = [f"{each.x.column} {x}, {each.y.column} {y}" for x, y in zip(rows["x"], rows["y"], strict=True)]
        more = f" and {len(places) - 3} more" if len(places) > 3 else ""
        yield f"{_cells(len(rows))} without a measurement, outcome {outcome}: at {'; at '.join(places[:3])}{more}."
    partly = cells[cells["value"].notna() & (cells["failed"] > 0)]
    if len(partly):
        memory, failed = int(partly["memory"].sum()), int(partly["failed"].sum())
        kinds = [f"{memory} out of memory"] * (memory > 0) + [f"{failed - memory} failed otherwise"] * (failed > memory)
        yield (
            f"In {_cells(len(partly))} some points did not run ({', '.join(kinds)}): the value is that of the "
            "points that did, often the smaller models."
        )
    if each.unmeasured:
        yield f"{_cells(each.unmeasured)} not measured, left blank."


def _frontier(each: HeatMap, full: pd.DataFrame) -> str:
    """From which y on memory ends, at the least and at the greatest x."""
    if not (each.x.ordered and each.y.ordered):
        return ""
    ends = []
    for place in dict.fromkeys((0, len(each.x.labels) - 1)):
        rows = full.loc[full["i"] == place, "j"]
        where = f"from {each.y.column} {each.y.labels[rows.min()]}" if len(rows) else "nowhere"
        ends.append(f"at {each.x.column} {each.x.labels[place]} {where}")
    return f": {', '.join(ends)}"


def _pooled(each: HeatMap, measured: pd.DataFrame) -> Iterator[str]:
    """Over what a cell's median is taken, and how much that hides."""
    if len(measured):
        counts = measured["points"]
        count = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        text = f"A cell is the median of {count} points" if counts.max() > 1 else "A cell is one point"
        varied = [f"{name} ({count} values)" for name, count in {**each.pooled, **each.settings}.items()]
        if varied:
            text += f"{', pooled over' if counts.max() > 1 else ', though runs differ in'} {', '.join(varied)}"
        spread = (measured["high"] / measured["low"])[measured["low"] > 0].median()
        if counts.max() > 1 and spread > 1.1:
            text += f"; quartiles within a cell are typically {short(spread)}-fold apart"
        yield text + (": fix them with --where." if varied else ".")
    if each.fixed:
        yield f"The same in all: {', '.join(f'{name} = {value}' for name, value in each.fixed.items())}."


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"
