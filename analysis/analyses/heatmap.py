"""`heatmap`: show a metric over two hyperparameters, including points that ran out of memory.

These are the paper's Figures 2 a-c and 7. Each family on each device has a map. A cell shows the
median of its measured points. If only some of its points ran, the cell also states the number of
points that did not run. If every point of the cell failed, the cell states their outcome. A
sentence names the columns that the cells pool over; --where holds such a column constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from analysis.format import format_number, is_share
from analysis.heat_maps import HeatMaps, choose_axes, draw_heat_maps, make_heat_maps
from analysis.labels import label
from analysis.lazy import pd
from analysis.options import Options, column_option, metric_option, option
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, pooled_within
from paradnn.cli.console import si
from paradnn.core.words import counted


@dataclass(frozen=True, kw_only=True)
class HeatmapOptions(Options):
    """Options of the command `heatmap`: the two hyperparameters and the metric."""

    x: str = column_option("batch_size", "hyperparameter of the horizontal axis", "A")
    y: str = option(
        text="hyperparameter of the vertical axis, such as nodes, filters, precision",
        metavar="B",
        names="columns",
    )
    metric: str | None = metric_option("metric to show")


def _list_sections(rows: pd.DataFrame) -> Iterator[SectionSpec]:
    """Yield a report section for each group of families that share the axes of a heat map."""
    for names, x, y in choose_axes(rows):
        if y:
            yield SectionSpec(
                HeatmapOptions(x=x, y=y),
                title=f"Heat map: {', '.join(names)}",
                families=names,
                key=f"heatmap-{names[0]}",
            )


@analysis(
    HeatmapOptions,
    summary="a metric over two hyperparameters, with cells that ran out of memory marked",
    example="python -m analysis heatmap --x batch_size --y nodes --where model.layers=64 "
    "--figure map.png",
    section="system",
    order=20,
    reading="Median of the points in a cell; cells in which no point ran show the outcome.",
    list_sections=_list_sections,
)
def heatmap(frame: pd.DataFrame, options: HeatmapOptions) -> Result:
    """Show the median of a metric over two hyperparameters, for each family on each device.

    Args:
        frame: Runs, one per row.
        options: The hyperparameters of both axes, and the metric.

    Returns:
        The result. Its table has a row for each cell, with the columns of `HeatMaps.cells`. Its
        columns x, y and value are renamed to the hyperparameters and the metric.

    Raises:
        ConfigError: If a column or the metric does not exist.
        InsufficientData: If no family has data for a map.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    maps = make_heat_maps(frame, options.x, options.y, options.metric, pool=options.pool)
    names = {"x": maps.x.column, "y": maps.y.column, "value": maps.metric}
    axes = f"{maps.y.column} down, {maps.x.column} across"
    pooled = ""
    if options.pool:
        is_over_families = "model.name" in (maps.x.column, maps.y.column)
        groups = ["device"] if is_over_families else ["family", "device"]
        pooled = pooled_within(frame, groups, pool=True)
    return Result(
        numbers=maps.cells.drop(columns=["i", "j"]).rename(columns=names),
        answer=_answer(maps),
        sentences=[*_sentences(maps)],
        picture=lambda: draw_heat_maps(maps),
        rows=[
            (f"{name}, {maps.metric}: {axes}", _text_grid(cells, maps))
            for name, cells in maps.maps()
        ],
        sources=tuple(maps.run_ids),
        pooled=pooled,
    )


def _answer(maps: HeatMaps) -> AnalysisAnswer:
    """State the highest and the lowest value over all heat maps, with their cells."""
    points = int(maps.cells["points"].sum())
    measured = maps.cells[maps.cells["value"].notna()]
    name = label(maps.metric)
    if measured.empty:
        failed = int(maps.cells["failed"].sum())
        sentence = f"No cell has a {name}: {counted(failed, 'point')} did not run."
        return AnalysisAnswer(sentence=sentence, points=points)
    as_share = is_share(maps.metric, maps.unit, measured["value"])
    has_several = len(list(maps.maps())) > 1

    def format_cell(cell: pd.Series) -> str:
        value = format_number(cell["value"], maps.unit, share=as_share, digits=3)
        where = f"{label(maps.x.column)} {cell['x']}, {label(maps.y.column)} {cell['y']}"
        if has_several:
            where += f", {cell['family']} on {cell['device']}"
        return f"{value} ({where})"

    ordered = measured.sort_values("value", kind="stable")
    highest = ordered.iloc[-1]
    lowest = ordered.iloc[0]
    whose = "" if has_several else f" of {highest['family']} on {highest['device']}"
    name = f"{name[0].upper()}{name[1:]}{whose}"
    if len(ordered) == 1:
        return AnalysisAnswer(sentence=f"{name} is {format_cell(highest)}.", points=points)
    text = f"{name} ranges from {format_cell(lowest)} to {format_cell(highest)}"
    return AnalysisAnswer(sentence=f"{text}.", points=points)


def _text_grid(cells: pd.DataFrame, maps: HeatMaps) -> pd.DataFrame:
    """Return a heat map as a table of texts: a row for each y and a column for each x.

    A cell without a measured point shows its outcome, such as "oom_host".

    Args:
        cells: Cells of one map, from `maps.cells`.
        maps: All maps, with the labels of their axes.
    """
    values = cells["value"].map(lambda value: si(value).strip())
    texts = values.where(cells["value"].notna(), cells["outcome"])
    grid = cells.assign(text=texts).pivot(index="j", columns="i", values="text")
    grid = grid.reindex(index=range(len(maps.y.labels)), columns=range(len(maps.x.labels)))
    grid = grid.fillna("")
    grid.columns = pd.Index(maps.x.labels)
    grid.insert(0, "", maps.y.labels)
    return grid


def _sentences(maps: HeatMaps) -> Iterator[Paragraph]:
    for name, cells in maps.maps():
        head = f"{name}: {maps.metric} over {maps.x.column} and {maps.y.column}"
        extent = _format_extent(cells, maps)
        if extent:
            head += f": {extent}"
        yield Paragraph(f"{head}.", tuple(_details(name, cells, maps)))
    for omitted in maps.omitted:
        yield Paragraph(f"{omitted}: no map.")


def _format_extent(cells: pd.DataFrame, maps: HeatMaps) -> str:
    """Return the lowest and the highest value of a map with their cells, as text.

    The text is empty if no cell has a value.

    Args:
        cells: Cells of one map, from `maps.cells`.
        maps: All maps.
    """
    measured = cells[cells["value"].notna()].sort_values("value", kind="stable")
    if measured.empty:
        return ""
    as_share = is_share(maps.metric, maps.unit, measured["value"])
    extremes = measured.iloc[[0, -1]] if len(measured) > 1 else measured
    texts = []
    for cell in extremes.to_dict("records"):
        value = format_number(cell["value"], maps.unit, share=as_share, digits=3)
        where = f"{maps.x.column} {cell['x']}, {maps.y.column} {cell['y']}"
        texts.append(f"{value} at {where}")
    return " up to ".join(texts)


def _details(name: str, cells: pd.DataFrame, maps: HeatMaps) -> Iterator[str]:
    """Yield sentences on the settings that cells pool, and on the points that did not run.

    Args:
        name: Name of the map, such as "fc on TPU v2".
        cells: Cells of this map, from `maps.cells`.
        maps: All maps.
    """
    measured = cells[cells["value"].notna()]
    if len(measured):
        note = maps.notes[name]
        yield f"{note[0].upper()}{note[1:]}."
    for outcome, rows in cells[cells["value"].isna()].groupby("outcome"):
        yield f"{counted(len(rows), 'cell')} without a measurement: {label(str(outcome))}."
    partial = measured[measured["failed"] > 0]
    if len(partial):
        failed = counted(int(partial["failed"].sum()), "point")
        memory = int(partial["memory"].sum())
        yield (
            f"In {counted(len(partial), 'cell')}, {failed} did not run, {memory} of them out of "
            "memory. The value is the median of the other points, often of smaller models."
        )
    unmeasured = maps.unmeasured(cells)
    if unmeasured:
        yield f"{counted(unmeasured, 'cell')} not measured, left empty."
