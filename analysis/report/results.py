"""The measured results in a report: models, throughput, and time and cost of a million examples.

They are shown as sortable tables and a chart. Cells show few digits, but sorting uses exact values.
Columns without information are omitted. The chart on the first screen shows throughput by model
with intervals, one mark per system.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import drawing
from analysis.columns import MEMORY_OUTCOMES, is_number
from analysis.format import format_number
from analysis.labels import interval_ends, label, label_with_unit
from analysis.point_names import Row, describe_rows, is_known, model_name
from analysis.report.page import embed
from analysis.report.populations import Population
from analysis.store.frame import is_ok
from analysis.store.load import read_environment
from paradnn.core.words import counted

#: Largest number of rows of a table on the page.
_MAX_ROWS = 200
_RUN_ID_COLUMNS = ("run_id", "a_run_id", "b_run_id")
_SETTING_COLUMNS = (
    "mode",
    "compile",
    "optimizer.name",
    "data.name",
    "devices",
    "parallel",
    "platform.threads",
    "framework.name",
)
#: Columns that the text of `_describe_quality` depends on.
_QUALITY_COLUMNS = ("steady", "contended", "checks", "processes", "replicates")
#: Largest numbers of models and systems in the chart.
_MAX_CHART_MODELS = 18
_MAX_CHART_SYSTEMS = 4
_SOFTWARE = ("tensorflow", "jax", "torch", "keras", "python")
_NOT_RECORDED = "not recorded"
#: Format of the batch size in the name of a point.
AT_BATCH = " at batch size {:,.0f}"


class Cell(NamedTuple):
    """A cell of a table on the report page.

    Attributes:
        words: Content of the cell, shown to the reader.
        exact: Number by which the column is sorted; None if the cell contains text.
        is_run: Whether the content is the id of a run.
    """

    words: Any
    exact: float | None = None
    is_run: bool = False


_EMPTY_CELL = Cell("-")


class PageTable(NamedTuple):
    """A table of the report page.

    Attributes:
        caption: Caption of the table.
        head: Headings of the columns.
        rows: Rows of cells.
        note: Note above the table; empty for none.
        size: Number of rows as text, such as "200 of 1,548 rows" if the page shows only a part.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    size: str = ""

    @property
    def numbers(self) -> list[bool]:
        """Whether each column holds numbers, in the order of the columns."""
        return [
            any(row[position].exact is not None for row in self.rows)
            for position in range(len(self.head))
        ]


def frame_table(
    frame: pd.DataFrame, caption: str, export_command: str = "", cap: int = _MAX_ROWS
) -> PageTable | None:
    """Make a table of the report page from a frame.

    Columns with the same value in every row move into the note. Empty columns are omitted. The two
    ends of an interval share a column. This column is omitted if every interval is empty or
    consists of its value only.

    Args:
        frame: The frame.
        caption: Caption of the table.
        export_command: Command that writes all rows, for the note of a shortened table; empty to
            name no command.
        cap: Largest number of rows of the table.

    Returns:
        The table; None if the frame has no rows.
    """
    if frame.empty:
        return None
    filled = frame.dropna(axis="columns", how="all")
    constant = _constant_columns(filled)
    notes = []
    if constant:
        values = [f"{label(str(name))} = {_as_texts(filled[name].head(1))[0]}" for name in constant]
        notes.append(f"The same in every row: {', '.join(values)}.")
    size = counted(len(frame), "row")
    if len(frame) > cap:
        size = f"{cap} of {len(frame):,} rows"
        rest = f"; all of them: {export_command}" if export_command else "."
        notes.append(f"The first {size}{rest}")
    columns = dict(_make_columns(filled.drop(columns=constant).head(cap)))
    return PageTable(
        caption=caption,
        head=list(columns),
        rows=list(zip(*columns.values(), strict=True)),
        note=" ".join(notes),
        size=size,
    )


def _constant_columns(frame: pd.DataFrame) -> list[Any]:
    """Return the columns with the same value in every row; empty if all columns are constant."""
    constant = [
        name
        for name in frame.columns
        if frame[name].notna().all() and frame[name].eq(frame[name].iloc[0]).all()
    ]
    if len(frame.columns) > 1 and len(constant) < len(frame.columns):
        return constant
    return []


def _make_columns(frame: pd.DataFrame) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the heading and the cells of each column of a table.

    The two ends of an interval form one column.
    """
    names = [str(name) for name in frame.columns]
    intervals = interval_ends(names)
    highs = {ends.high for ends in intervals.values()}
    for name in names:
        if name in intervals:
            high, value_name = intervals[name]
            values = frame[value_name] if value_name else None
            cells = _interval_cells(frame[name], frame[high], values)
            if cells is not None:
                heading = "95% interval"
                if value_name:
                    heading += f" of {label(value_name)}"
                yield heading, cells
        elif name not in highs:
            yield label_with_unit(name), _value_cells(frame[name])


def _interval_cells(low: pd.Series, high: pd.Series, values: pd.Series | None) -> list[Cell] | None:
    """Return a cell for each interval.

    Args:
        low: Lower ends of the intervals.
        high: Upper ends of the intervals.
        values: The values that the intervals belong to; None if the table has no such column.

    Returns:
        The cells; None if every interval is missing or consists of its value only.
    """
    is_empty = low.isna() | high.isna()
    if values is not None:
        is_empty |= (values.eq(low) & values.eq(high)).fillna(False)
    if is_empty.all():
        return None
    cells = []
    for empty, low_text, high_text in zip(is_empty, _as_texts(low), _as_texts(high), strict=True):
        if empty:
            cells.append(_EMPTY_CELL)
        else:
            cells.append(Cell(f"{low_text}\u00a0to\u00a0{high_text}"))
    return cells


def _value_cells(values: pd.Series) -> list[Cell]:
    numeric = is_number(values)
    is_run = values.name in _RUN_ID_COLUMNS
    cells = []
    for value, text in zip(values, _as_texts(values), strict=True):
        if pd.isna(value):
            cells.append(_EMPTY_CELL)
        else:
            cells.append(Cell(text, float(value) if numeric else None, is_run))
    return cells


def _as_texts(values: pd.Series) -> list[str]:
    """Return the values of a column as texts, with "-" for missing values.

    Floating-point numbers have four significant digits.
    """
    is_float = pd.api.types.is_float_dtype(values)
    texts = []
    for value in values:
        if pd.isna(value):
            texts.append("-")
        elif is_float:
            texts.append(format_number(float(value), digits=4))
        else:
            texts.append(str(value))
    return texts


def _number(row: Row, name: str) -> float:
    """Return a number from a row of a frame; NaN if the row lacks the column or its value."""
    if is_known(row.get(name)):
        return float(row[name])
    return math.nan


def results(
    populations: Sequence[Population], export_command: str
) -> tuple[PageTable | None, list[str]]:
    """Return the table of measured points, and sentences on points that were not measured.

    A point is one configuration to measure.

    Args:
        populations: The populations: sets of runs of one system each.
        export_command: Command that writes every run.

    Returns:
        The table, or None if no point was measured; and the sentences.
    """
    sentences = []
    for population in populations:
        failures = _describe_failures(population)
        if failures:
            sentences.append(f"{population.name}: {failures}.")
    tables = [_results_frame(population) for population in populations if len(population.points)]
    if not tables:
        return None, ["No point was measured.", *sentences]
    whole = pd.concat(tables, ignore_index=True)
    return frame_table(whole, "Measured points", export_command), sentences


def _describe_failures(population: Population) -> str:
    outcomes = population.rows.loc[~is_ok(population.rows), "outcome"]
    descriptions = outcomes.fillna("unfinished").astype(str).map(_describe_outcome)
    return "; ".join(
        f"{counted(int(count), 'point')} {description}"
        for description, count in descriptions.value_counts().items()
    )


def _describe_outcome(name: str) -> str:
    if name in MEMORY_OUTCOMES:
        return "did not fit into memory"
    return f"ended as {label(name)}"


def _results_frame(population: Population) -> pd.DataFrame:
    """Return the table of measured configurations of a system, one row each."""
    points = population.points

    def column(name: str) -> pd.Series:
        if name in points:
            return points[name].astype("float64")
        return pd.Series(np.nan, points.index)

    size_names = [name for name in map(str, points) if name.startswith(("model.", "generate."))]
    settings = {
        name: points[name]
        for name in ("batch_size", "precision", *_SETTING_COLUMNS)
        if name in points
    }
    if "optimizer.name" in settings and "mode" in points:
        settings["optimizer.name"] = settings["optimizer.name"].where(points["mode"].eq("train"))
    quality: Any = "published, no interval"
    if not population.is_published:
        rounded = points.assign(processes=column("processes").round())
        quality = describe_rows(rounded, _QUALITY_COLUMNS, _describe_quality)
    memory_bytes = column("peak_device_memory_bytes").fillna(column("peak_memory_bytes"))
    joules_per_example = column("energy_per_step_joules") / column("batch_size")
    above_idle = column("energy_per_example_above_idle_joules")
    columns = {
        "system": population.name,
        "model": describe_rows(points, ["family", "batch_size", *size_names], model_name),
        **settings,
        "cost_per_million_examples": column("cost_per_million_examples"),
        "price_currency": points.get("price_currency"),
        "examples_per_second": column("examples_per_second"),
        "examples_per_second_low": column("examples_per_second_low"),
        "examples_per_second_high": column("examples_per_second_high"),
        "minutes per million examples": 1e6 / column("examples_per_second") / 60,
        "peak memory (GiB)": memory_bytes / 2**30,
        # A million times joules per example, at 3.6 million joules per kWh.
        "energy per million examples (kWh)": joules_per_example / 3.6,
        "energy above idle (kWh)": above_idle / 3.6,
        "quality": quality,
    }
    return pd.DataFrame(columns, index=points.index)


def _describe_quality(values: Row) -> str:
    """Return how reliable a measurement is, such as "steady, 3 processes".

    Args:
        values: Values of a measured configuration in the columns `_QUALITY_COLUMNS`.
    """
    steady = _number(values, "steady")
    processes = _number(values, "processes")
    replicates = _number(values, "replicates")
    if math.isnan(steady):
        parts = ["not checked"]
    elif steady > 0:
        parts = ["steady"]
    else:
        parts = ["not steady"]
    if _number(values, "contended") > 0:
        parts.append("shared its machine")
    if str(values.get("checks") or "").startswith("failed"):
        parts.append("a self-check failed")
    parts.append(f"{processes:.0f} processes" if processes > 1 else "single process")
    if replicates > 1:
        parts.append(f"{replicates:.0f} replicates")
    return ", ".join(parts)


def chart(populations: Sequence[Population]) -> tuple[Markup, str] | None:
    """Draw the throughput of models for the first screen of the report.

    The chart has room for `_MAX_CHART_MODELS` configurations of `_MAX_CHART_SYSTEMS` systems. If a
    single system has more, each model is drawn at its fastest setting only.

    Args:
        populations: Sets of runs of one system each.

    Returns:
        The figure as HTML and the caption; None if nothing was measured.
    """
    measured = [population for population in populations if len(population.points)]
    if not measured:
        return None
    tables = {population.name: population.points for population in measured[:_MAX_CHART_SYSTEMS]}
    count = sum(map(len, tables.values()))
    # On several systems a model may be fastest at different settings.
    show_settings = len(tables) > 1 or count <= _MAX_CHART_MODELS
    groups = {
        name: _throughput_by_name(points, every_setting=show_settings)
        for name, points in tables.items()
    }
    best = pd.concat([table["value"] for table in groups.values()]).groupby(level=0, sort=False)
    names = _evenly_spaced_names(best)
    groups = {name: table.loc[table.index.intersection(names)] for name, table in groups.items()}
    labels = {
        name: f"{name}: {format_number(value, digits=3)}"
        for name, value in best.max()[names].items()
    }
    return _draw_chart(groups, labels), _chart_caption(groups, count)


def _evenly_spaced_names(values: Any) -> list[Any]:
    """Return at most `_MAX_CHART_MODELS` names of configurations for the chart.

    They are chosen from the names that the largest number of systems have, at evenly spaced
    positions if there are too many.

    Args:
        values: Throughputs grouped by the name of the configuration.
    """
    counts = values.size()
    names = counts.index[counts == counts.max()]
    positions = np.linspace(0, len(names) - 1, _MAX_CHART_MODELS).round().astype(int)
    return list(names[np.unique(positions)])


def _draw_chart(groups: Mapping[str, pd.DataFrame], labels: Mapping[Any, str]) -> Markup:
    with drawing.page(None):
        figure, (axes,) = drawing.panels(1, 7.0, 0.8 + 0.3 * len(labels))
        styles = {name: drawing.look(name, [*groups]) for name in groups}
        drawing.forest(axes, labels, groups, styles)
        drawing.finish(axes, "", "examples/s", logs={"x": format_number})
        if len(groups) > 1:
            drawing.legend(figure)
        alternative = "; ".join(labels.values())
        return embed(figure, f"Throughput in examples per second by model: {alternative}")


def _chart_caption(groups: Mapping[str, pd.DataFrame], count: int) -> str:
    has_intervals = any(table["low"].notna().any() for table in groups.values())
    if has_intervals:
        caption = "Each mark is a point; its line is the 95% interval."
    else:
        caption = "Each mark is a point; no point has an interval."
    marks = sum(map(len, groups.values()))
    if marks < count:
        if len(groups) > 1:
            choice = "chosen from those that most systems measured"
        else:
            choice = "each model at its fastest setting"
        caption += f" The chart shows {marks} of {count:,} points, {choice}."
    return caption


def _throughput_by_name(points: pd.DataFrame, *, every_setting: bool) -> pd.DataFrame:
    """Return the throughput of measured configurations by name, with its interval.

    If several share a name, only the fastest is included. Generations count as separate models,
    since their throughput is in tokens.

    Args:
        points: One row per configuration.
        every_setting: Whether to keep every setting of a model. Otherwise, only the fastest
            configuration of each model is kept.

    Returns:
        Columns `value`, `low` and `high`, indexed by name.
    """
    metric = "examples_per_second"
    size_names = [
        name for name in map(str, points.columns) if name.startswith(("model.", "generate."))
    ]
    model = ["family", *size_names]
    columns = [
        name
        for name in (*model, "batch_size", metric, f"{metric}_low", f"{metric}_high")
        if name in points
    ]
    fastest = points[columns].sort_values(metric, ascending=False, kind="stable")
    if not every_setting:
        fastest = fastest.drop_duplicates(model)
    table = drawing.ends_of(fastest, metric).astype("float64")
    names = [model_name(row, " b{:.0f}") for row in fastest.to_dict("records")]
    table = table.assign(name=names).drop_duplicates("name")
    in_order = points.index.intersection(table.index, sort=False)
    return table.loc[in_order].set_index("name")


def systems(populations: Sequence[Population], store: str | None) -> list[tuple[str, list[str]]]:
    """Return the properties of the measured systems, such as processor and software.

    Args:
        populations: The populations, one per system.
        store: Address of the store of runs that do not record a store; None for the default store.

    Returns:
        For each property, its name and its value on each system, as text. Properties that are
        unknown for all systems are omitted.
    """
    descriptions = [_describe_system(population, store) for population in populations]
    rows = []
    for name in descriptions[0]:
        values = [description[name] for description in descriptions]
        if any(values):
            rows.append((name, [value or _NOT_RECORDED for value in values]))
    return rows


def _describe_system(population: Population, store: str | None) -> dict[str, str]:
    """Return the properties of a system: name of the property -> value, or empty if unknown.

    Args:
        population: Runs of the system.
        store: Address of the store of runs that do not record a store; None for the default store.
    """
    machine = _read_machine(population, store)
    host = population.listed("host")
    if machine.get("virtualised"):
        host += ", virtual machine"
    software = [
        f"{name} {population.listed(f'version.{name}')}"
        for name in _SOFTWARE
        if population.listed(f"version.{name}")
    ]
    operating_system = [str(machine[name]) for name in ("system", "kernel") if machine.get(name)]
    identity = [
        f"{name.replace('_', ' ')} {population.listed(name)}"
        for name in ("environment_id", "protocol_id")
        if population.listed(name)
    ]
    memory = ""
    if machine.get("memory_gib"):
        memory = f"{machine['memory_gib']:g} GiB"
    return {
        "Processor": str(machine.get("processor", "")),
        "Cores": _describe_cores(machine),
        "Memory": memory,
        "Largest point": _describe_largest_point(population),
        "Accelerator": _describe_accelerators(population, machine),
        "Measured hardware peaks": _describe_peaks(population.rows),
        "Software": ", ".join(software),
        "Operating system": " ".join(operating_system),
        "Host": host,
        "Measured (UTC)": _describe_period(population),
        "Protocol": _describe_protocol(population),
        "Commit": population.listed("git_commit"),
        "Identity": ", ".join(identity),
        "Runs": _describe_counts(population.rows),
    }


def _read_machine(population: Population, store: str | None) -> dict[str, Any]:
    """Return the description of host and hardware that the newest run recorded; empty if unknown.

    Args:
        population: Runs of the system.
        store: Address of the store of runs that do not record a store; None for the default store.
    """
    if population.is_published or population.rows.empty:
        return {}
    newest = population.rows.iloc[-1].to_dict()
    environment = read_environment(newest, newest.get("store", store))
    return {**environment.get("host", {}), **environment.get("hardware", {})}


def _describe_cores(machine: Mapping[str, Any]) -> str:
    cores = machine.get("cores")
    physical = machine.get("physical_cores")
    if not cores:
        return ""
    if physical in (None, 0, cores):
        return str(cores)
    return f"{cores} ({physical} physical)"


def _describe_largest_point(population: Population) -> str:
    """Return the largest host memory that a configuration used, as text; empty if unknown."""
    if "peak_memory_bytes" not in population.points:
        return ""
    largest = population.points["peak_memory_bytes"].max()
    if not largest > 0:
        return ""
    return format_number(float(largest) / 2**30, "GiB", digits=3)


def _describe_accelerators(population: Population, machine: Mapping[str, Any]) -> str:
    cards = [
        f"{card['name']}, {card['memory']}, driver {card['driver']}"
        for card in machine.get("accelerators") or ()
    ]
    if cards:
        return "; ".join(f"{cards.count(kind)} x {kind}" for kind in dict.fromkeys(cards))
    if machine or population.value("platform.name") == "cpu":
        return "none"
    return population.device


def _describe_peaks(rows: pd.DataFrame) -> str:
    """Return the measured hardware peaks of a system as text, as ranges over all runs.

    The text has the arithmetic peak in FLOP/s and the memory peak in B/s. It is empty if no run
    recorded a peak.
    """
    parts = []
    for kind, resource, unit in (("flops", "arithmetic", "FLOP/s"), ("bytes", "memory", "B/s")):
        column = f"peak_{kind}_per_second"
        if column in rows and rows[column].notna().any():
            low = format_number(float(rows[column].min()), unit, digits=3)
            high = format_number(float(rows[column].max()), unit, digits=3)
            parts.append(f"{resource} {' to '.join(dict.fromkeys((low, high)))}")
    if not parts:
        return ""
    text = ", ".join(parts)
    if have_contended_ceilings(rows):
        text += " (measured under contention, so too low: utilizations are too high)"
    return text


def have_contended_ceilings(rows: pd.DataFrame) -> bool:
    """Return whether any run used a peak rate that was measured while other work ran.

    Args:
        rows: Runs of one system, one row each.
    """
    return "ceilings_contended" in rows and bool(rows["ceilings_contended"].notna().any())


def _describe_period(population: Population) -> str:
    """Return the time (UTC) of the first and the last run of a system, to the minute."""
    if population.is_published:
        return "not published"
    started = population.rows["start_time"].dropna()
    if started.empty:
        return ""
    ends = [f"{moment:%Y-%m-%d %H:%M}" for moment in (started.min(), started.max())]
    return " to ".join(dict.fromkeys(ends))


def _describe_protocol(population: Population) -> str:
    """Return the timing protocol of the runs of a system as text; empty if it is unknown."""
    if population.is_published:
        return "one value per point, without an interval (docs/validation/published-data.md)"
    parts = []
    processes = population.value("measure.processes")
    if processes == "1":
        parts.append("single process")
    elif processes:
        parts.append(f"{processes} processes per point")
    min_seconds = population.value("measure.min_seconds")
    min_blocks = population.value("measure.min_blocks")
    if min_seconds and min_blocks:
        parts.append(f"at least {min_seconds} s and {min_blocks} blocks each")
    return ", ".join(parts)


def _describe_counts(rows: pd.DataFrame) -> str:
    """Return the number of measured runs, and the number of runs per configuration, as text."""
    ok = rows[is_ok(rows)]
    text = f"{len(ok):,} measured"
    if len(ok) < len(rows):
        text += f" of {len(rows):,}"
    if "point_id" in ok:
        counts = ok.groupby("point_id").size()
        if len(counts) and counts.max() > 1:
            text += (
                f"; {counted(len(counts), 'point')}, {counts.min()} to {counts.max()} times each"
            )
    return text
