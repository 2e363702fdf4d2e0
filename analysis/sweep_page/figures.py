"""The figures of a sweep as Plotly's JSON: traces and layout.

All texts come from a store and are escaped, since Plotly reads markup in labels.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.columns import DEFAULT_METRICS, choose_metric, hyperparameters, is_number, settings
from analysis.format import format_number
from analysis.heat_maps import HeatMaps, choose_axes, make_heat_maps
from analysis.labels import label, label_with_unit
from analysis.palette import COLORS, GRAY
from analysis.point_names import POINT, point_names
from analysis.roofs import Roof, place_models
from analysis.store.frame import aggregate_replicates, families, is_ok
from paradnn.core.errors import InsufficientData
from paradnn.core.metric import interval_names
from paradnn.core.results import ResultDescription
from paradnn.core.workload import WORKLOADS
from paradnn.families import FAMILIES
from paradnn.platform.specifications import find_hardware

#: Candidates for the metric that the figures show as throughput, in order of preference. Kinds of
#: work without a rate are represented by their headline metrics.
RATES = (
    "examples_per_second",
    "queries_per_second",
    "tokens_per_second",
    "step_time_ms",
    *(name for work in WORKLOADS.values() for name in work.role(ResultDescription).headlines),
)
#: Largest number of marks of a figure that is drawn as SVG; with more marks it is drawn with WebGL.
_MAX_VECTOR_MARKS = 3_000
#: Legend entry of points that did not run.
_NOT_RUN = "did not run"
_MAX_AXES = 6
_MAX_CATEGORIES = 30
_MAX_TICKS = 10
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "hexagon")
_PLOT_HEIGHT = 520  # pixels
_CELL_HEIGHT = 34  # pixels


class Figure(NamedTuple):
    """One figure of a sweep's page.

    Attributes:
        title: Heading of the figure.
        caption: Explanation of the figure.
        traces: Plotly's traces, in the form of its JSON.
        layout: Plotly's layout, in the form of its JSON.
    """

    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]


class SweepPoints(NamedTuple):
    """The points of a sweep: the configurations that it tried to measure.

    Attributes:
        rows: One row per point, with its replicates aggregated. The column `point` has its name.
        axes: Columns of hyperparameters and settings that vary; `batch_size` comes first, then the
            other hyperparameters.
        rate: Name of the metric that the figures show as throughput; None if no point has one of
            the candidates `RATES`.
    """

    rows: pd.DataFrame
    axes: list[str]
    rate: str | None

    @property
    def measured(self) -> pd.DataFrame:
        """The points that were measured successfully, one row each."""
        return self.rows[is_ok(self.rows).astype(bool)]

    @property
    def default_metric(self) -> str | None:
        """Name of the metric that heat maps and box plots show; None if no point has a throughput.

        It is one of `DEFAULT_METRICS`, or else the throughput.
        """
        if self.rate is None:
            return None
        return choose_metric(self.measured, (*DEFAULT_METRICS, self.rate))


def sweep_points(frame: pd.DataFrame) -> SweepPoints:
    """Return the points (configurations) of a sweep, with the replicates of each aggregated.

    Args:
        frame: One row per run.
    """
    rows = aggregate_replicates(frame)
    rows = rows.assign(**{POINT: point_names(rows)})
    varying = [name for name in hyperparameters(rows) if rows[name].nunique() > 1]
    varying.sort(key=lambda name: name != "batch_size")
    axes = list(dict.fromkeys([*varying, *settings(rows)]))
    measured = rows[is_ok(rows).astype(bool)]
    rates = [name for name in RATES if name in measured and measured[name].notna().any()]
    return SweepPoints(rows, axes, rates[0] if rates else None)


def sweep_figures(points: SweepPoints) -> Iterator[Figure]:
    """Yield the figures of a sweep, without those for which there are no data.

    Args:
        points: The configurations of the sweep with their results.
    """
    if points.rate is not None:
        yield from _throughput(points, points.rate)
    yield from _heat_maps(points)
    if points.rate is not None:
        yield from _roofline(points)
        yield from _boxes(points)
        yield from _parallel(points, points.rate)


def _throughput(points: SweepPoints, rate: str) -> Iterator[Figure]:
    """Yield a figure of the throughput, with a menu that selects the horizontal axis.

    The menu offers the swept columns of numbers. If there are only columns of names, it offers
    those. Yields nothing if no column has values.

    Args:
        points: The configurations of the sweep with their results.
        rate: Name of the metric on the vertical axis.
    """
    axes = [name for name in points.axes if is_number(points.rows[name])][:_MAX_AXES]
    if not axes:
        names = [name for name in points.axes if points.rows[name].nunique() <= _MAX_CATEGORIES]
        axes = names[:_MAX_AXES] or ["batch_size"]
    axes = [name for name in axes if name in points.rows and points.rows[name].notna().any()]
    if not axes:
        return
    traces = []
    owners = []
    for axis in axes:
        for trace in _axis_traces(points, rate, axis):
            traces.append({**trace, "visible": axis == axes[0]})
            owners.append(axis)
    buttons = [
        {
            "label": _escaped_text(label(axis)),
            "method": "update",
            "args": [
                {"visible": [owner == axis for owner in owners]},
                {
                    "xaxis.title.text": _escaped_text(label_with_unit(axis)),
                    **_axis_ticks(points, axis),
                },
            ],
        }
        for axis in axes
    ]
    layout = _layout(x=label_with_unit(axes[0]), y=label_with_unit(rate), is_log=True)
    layout["xaxis"] |= {
        key.removeprefix("xaxis."): value for key, value in _axis_ticks(points, axes[0]).items()
    }
    if len(axes) > 1:
        menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.12, "yanchor": "top"}
        layout["updatemenus"] = [menu]
        layout["margin"] = {**layout["margin"], "t": 60}
    _fit_ticks(layout, traces)
    caption = "Bars are 95% intervals."
    if is_number(points.rows[axes[0]]):
        caption += " Lines connect points that differ only in the horizontal axis."
    if any(trace["name"] == _NOT_RUN for trace in traces):
        caption += " Crosses are points that did not run; their labels state the reason."
    yield Figure(f"{_sentence(label(rate))} over the swept axes", caption, traces, layout)


def _axis_ticks(points: SweepPoints, axis: str) -> dict[str, Any]:
    """Return Plotly's settings for the ticks of a horizontal axis.

    An axis of numbers has a tick at each value, unless there are more than `_MAX_TICKS` values.

    Args:
        points: The configurations of the sweep with their results.
        axis: Column that the axis shows.
    """
    if not is_number(points.rows[axis]):
        return {"xaxis.type": "category", "xaxis.dtick": None}
    values = sorted({value for value in _json_numbers(points.rows[axis]) if value and value > 0})
    if len(values) > _MAX_TICKS:
        return {"xaxis.tickmode": "auto", "xaxis.dtick": None}
    return {
        "xaxis.tickmode": "array",
        "xaxis.tickvals": values,
        "xaxis.ticktext": [f"{value:g}" for value in values],
    }


def _axis_traces(points: SweepPoints, rate: str, axis: str) -> Iterator[dict[str, Any]]:
    measured = points.measured
    measured = measured[_has_position(measured[axis]) & (measured[rate] > 0)]
    others = [name for name in points.axes if name != axis]
    shown = [POINT, axis, rate, *others, *interval_names(rate)]
    for family in families(measured):
        rows = measured.loc[
            measured["family"] == family, [name for name in shown if name in measured]
        ]
        yield _marks(_with_gaps(rows, axis, others), family, axis, rate)
    failed = points.rows[~points.rows.index.isin(points.measured.index)]
    failed = failed[_has_position(failed[axis])]
    if len(failed) and len(measured):
        floor = float(measured[rate].min()) / 1.5
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": _NOT_RUN,
            "x": _positions(failed[axis]),
            "y": [floor] * len(failed),
            "marker": {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": GRAY}},
            "hovertext": [
                f"{_escaped_text(name)}<br>{_escaped_text(outcome)}"
                for name, outcome in zip(failed[POINT], failed["outcome"], strict=True)
            ],
            "hoverinfo": "text",
        }


def _has_position(values: pd.Series) -> pd.Series:
    """Return whether an axis can show each value: positive numbers, or any names."""
    if is_number(values):
        return values > 0
    return values.notna()


def _positions(values: pd.Series) -> list[Any]:
    """Return the values of a column as positions on an axis: numbers or names.

    A missing value becomes None, which interrupts a line.
    """
    if is_number(values):
        return _json_numbers(values)
    return [None if pd.isna(value) else _escaped_text(value) for value in values]


def _with_gaps(rows: pd.DataFrame, axis: str, others: Sequence[str]) -> pd.DataFrame:
    """Sort configurations by the lines to draw along an axis, with an empty row after each line.

    Configurations belong to the same line if they differ only in the column of the axis.

    Args:
        rows: One row per configuration.
        axis: Column that the axis shows.
        others: Columns that vary in the sweep, without that of the axis.
    """
    keys = [name for name in others if rows[name].nunique(dropna=False) > 1]
    if not keys:
        return rows.sort_values(axis, kind="stable")
    line = rows.groupby(keys, dropna=False, sort=False).ngroup()
    lines = rows.assign(line=line)
    gaps = pd.DataFrame({"line": line.unique()})
    # Missing values sort last, so the empty row of each line follows its points.
    return pd.concat([lines, gaps]).sort_values(["line", axis], kind="stable", ignore_index=True)


def _marks(rows: pd.DataFrame, family: str, x: str, y: str) -> dict[str, Any]:
    """Return the Plotly trace for the configurations of a model family.

    A line connects the marks if the horizontal axis is numeric. Rows without values interrupt the
    line. The trace has vertical error bars if the rows have intervals.

    Args:
        rows: One row per configuration, in the order of the line.
        family: Name of the family.
        x: Column on the horizontal axis.
        y: Metric on the vertical axis.
    """
    low, high = interval_names(y)
    trace = {
        "type": "scattergl" if len(rows) > _MAX_VECTOR_MARKS else "scatter",
        "mode": "lines+markers" if is_number(rows[x]) else "markers",
        "name": _escaped_text(family),
        "x": _positions(rows[x]),
        "y": _json_numbers(rows[y]),
        "connectgaps": False,
        "marker": _marker(family),
        "line": {"width": 1, "color": _marker(family)["color"]},
        "text": [_escaped_text(name) for name in rows[POINT]],
        "hovertemplate": "%{text}<br>%{y:.4s} at %{x}<extra></extra>",
    }
    if low in rows and high in rows:
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": _json_numbers(rows[high] - rows[y]),
            "arrayminus": _json_numbers(rows[y] - rows[low]),
            "thickness": 1,
            "width": 2,
        }
    return trace


def _marker(family: str) -> dict[str, Any]:
    """Return the Plotly marker of a model family.

    A family has the same color and symbol in every figure.
    """
    order = [*FAMILIES, family]
    position = order.index(family)
    return {
        "color": COLORS[position % len(COLORS)],
        "symbol": _SYMBOLS[position % len(_SYMBOLS)],
        "size": 7,
    }


def _heat_maps(points: SweepPoints) -> Iterator[Figure]:
    metric = points.default_metric
    if metric is None and len(points.measured):
        return
    for _, x, y in choose_axes(points.rows):
        if not y:
            continue
        try:
            maps = make_heat_maps(points.rows, x, y, metric, pool=True)
        except InsufficientData:
            continue
        for name, cells in maps.maps():
            yield _heat_map(name, cells, maps)


def _heat_map(name: str, cells: pd.DataFrame, maps: HeatMaps) -> Figure:
    shape = (len(maps.y.labels), len(maps.x.labels))
    values = np.full(shape, np.nan)
    texts = np.full(shape, "", dtype=object)
    hovers = np.full(shape, "not measured", dtype=object)
    for cell in cells.to_dict("records"):
        place = (cell["j"], cell["i"])
        values[place] = cell["value"]
        texts[place] = _cell_text(cell, maps.unit)
        hovers[place] = _cell_hover(cell, maps)
    x_labels = [_escaped_text(text) for text in maps.x.labels]
    y_labels = [_escaped_text(text) for text in maps.y.labels]
    known = values[np.isfinite(values)]
    is_log = bool(len(known) and known.min() > 0 and known.max() / known.min() > 30)
    with np.errstate(divide="ignore", invalid="ignore"):
        colors = np.log10(values) if is_log else values
    common = {"x": x_labels, "y": y_labels, "hovertext": hovers.tolist(), "hoverinfo": "text"}
    failed = np.where(np.isnan(values) & (texts != ""), 1.0, np.nan)
    traces = [
        {
            "type": "heatmap",
            "z": _grid(failed),
            "colorscale": [[0, "#e4e4e4"], [1, "#e4e4e4"]],
            "showscale": False,
            "text": texts.tolist(),
            "texttemplate": "%{text}",
            "xgap": 2,
            "ygap": 2,
            **common,
        },
        {
            "type": "heatmap",
            "z": _grid(colors),
            "colorscale": "Cividis",
            "text": texts.tolist(),
            "texttemplate": "%{text}",
            "xgap": 2,
            "ygap": 2,
            "colorbar": {
                "title": {"text": _escaped_text(label_with_unit(maps.metric))},
                **_ticks(known, is_log=is_log),
            },
            **common,
        },
    ]
    layout = _layout(x=label_with_unit(maps.x.column), y=label_with_unit(maps.y.column))
    layout["height"] = max(260, 140 + _CELL_HEIGHT * shape[0])
    layout["xaxis"] |= {"type": "category"}
    layout["yaxis"] |= {"type": "category"}
    caption = f"{_sentence(label(maps.metric))}; {maps.notes.get(name, 'a cell is one point')}."
    if np.isfinite(failed).any():
        caption += " The points of gray cells did not run."
    return Figure(f"Heat map: {name}", caption, traces, layout)


def _cell_text(cell: Mapping[Any, Any], unit: str) -> str:
    if math.isnan(cell["value"]):
        return "OOM" if cell["memory"] else _escaped_text(cell["outcome"])
    text = format_number(cell["value"])
    if cell["memory"]:
        text += f"<br>{cell['memory']} OOM"
    return text


def _cell_hover(cell: Mapping[Any, Any], maps: HeatMaps) -> str:
    lines = [
        f"{label(maps.x.column)} {cell['x']}",
        f"{label(maps.y.column)} {cell['y']}",
    ]
    if math.isnan(cell["value"]):
        lines.append(str(cell["outcome"]))
    else:
        lines.append(f"{label(maps.metric)} {format_number(cell['value'], maps.unit)}")
        if not math.isnan(cell["low"]):
            ends = [format_number(cell[end], maps.unit) for end in ("low", "high")]
            lines.append(f"95% interval {ends[0]} to {ends[1]}")
    lines.append(f"points: {cell['points']:.0f} ran, {cell['failed']:.0f} did not")
    return "<br>".join(map(_escaped_text, lines))


def _ticks(known: np.ndarray, *, is_log: bool) -> dict[str, Any]:
    """Return Plotly's settings for the ticks of a color bar.

    Args:
        known: The numbers in the map.
        is_log: Whether the color bar shows their logarithms.
    """
    if not is_log:
        return {}
    positions = np.linspace(np.log10(known.min()), np.log10(known.max()), 5)
    return {
        "tickvals": positions.tolist(),
        "ticktext": [format_number(10.0**position) for position in positions],
    }


def _roofline(points: SweepPoints) -> Iterator[Figure]:
    """Yield a roofline figure for each device and precision, with the measured configurations."""
    measured = points.measured
    if "flops_per_second" not in measured or "arithmetic_intensity" not in measured:
        return
    placed = place_models(measured, find_hardware)
    names = dict(zip(measured["run_id"], measured[POINT], strict=True))
    for roof in placed.roofs:
        is_below = (placed.points["device"] == roof.device) & (
            placed.points["precision"] == roof.precision
        )
        rows = placed.points[is_below]
        if rows.empty:
            continue
        traces = [*_roof_traces(roof, rows), *_placed_traces(rows, names)]
        caption = (
            "Memory traffic is the limit left of the ridge, and arithmetic right of it. Bars are "
            f"95% intervals. Source of the roof: {roof.source}."
        )
        layout = _layout(
            x=label_with_unit("arithmetic_intensity"),
            y=label_with_unit("flops_per_second"),
            is_log=True,
        )
        _fit_ticks(layout, traces)
        yield Figure(f"Roofline: {roof.device}, {roof.precision}", caption, traces, layout)


def _roof_traces(roof: Roof, rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    if roof.ridge is None:
        return
    low = min(float(rows["arithmetic_intensity"].min()), roof.ridge) / 2
    high = max(float(rows["arithmetic_intensity"].max()), roof.ridge) * 2
    x = [low, roof.ridge, high]
    yield {
        "type": "scatter",
        "mode": "lines",
        "name": "roof",
        "x": x,
        "y": roof.attainable(x).tolist(),
        "line": {"color": "#000000", "width": 2},
        "hovertemplate": "%{y:.3s}FLOP/s<extra>roof</extra>",
    }


def _placed_traces(rows: pd.DataFrame, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for family, part in rows.groupby("family", sort=False):
        yield {
            "type": "scattergl" if len(part) > _MAX_VECTOR_MARKS else "scatter",
            "mode": "markers",
            "name": _escaped_text(family),
            "x": _json_numbers(part["arithmetic_intensity"]),
            "y": _json_numbers(part["flops_per_second"]),
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": _json_numbers(part["rate_high"] - part["flops_per_second"]),
                "arrayminus": _json_numbers(part["flops_per_second"] - part["rate_low"]),
                "thickness": 1,
                "width": 2,
            },
            "marker": _marker(str(family)),
            "text": [_escaped_text(names.get(run_id, "")) for run_id in part["run_id"]],
            "hovertemplate": "%{text}<br>%{y:.3s}FLOP/s at %{x:.3g} FLOP/B<extra></extra>",
        }


def _boxes(points: SweepPoints) -> Iterator[Figure]:
    """Yield a box plot of the default metric by model family."""
    measured = points.measured
    metric = points.default_metric
    if metric is None or measured[metric].notna().sum() < 2:
        return
    traces = []
    for family in families(measured):
        rows = measured[(measured["family"] == family) & measured[metric].notna()]
        traces.append(
            {
                "type": "box",
                "name": _escaped_text(family),
                "y": _json_numbers(rows[metric]),
                "text": [_escaped_text(name) for name in rows[POINT]],
                "boxpoints": "all",
                "jitter": 0.4,
                "pointpos": 0,
                "marker": {"color": _marker(family)["color"], "size": 5},
                "hovertemplate": "%{text}<br>%{y:.4s}<extra></extra>",
            }
        )
    layout = _layout(x=label("family"), y=label_with_unit(metric))
    layout["showlegend"] = False
    caption = "Each mark is a point. The box spans the quartiles, its line is the median."
    yield Figure(f"{_sentence(label(metric))} by family", caption, traces, layout)


def _parallel(points: SweepPoints, rate: str) -> Iterator[Figure]:
    """Yield a figure of parallel coordinates: swept settings and throughput.

    Args:
        points: The configurations of the sweep with their results.
        rate: Name of the metric of throughput.
    """
    measured = points.measured
    measured = measured[measured[rate] > 0]
    keys = [*(["family"] if measured["family"].nunique() > 1 else []), *points.axes]
    keys = [key for key in keys if 1 < measured[key].nunique() <= _MAX_CATEGORIES]
    if len(measured) < 2 or not keys:
        return
    rates = np.log10(measured[rate].to_numpy("float64"))
    positions = np.linspace(rates.min(), rates.max(), 5)
    ticks = {
        "tickvals": positions.tolist(),
        "ticktext": [format_number(10.0**position) for position in positions],
    }
    dimensions = [_dimension(measured[key], key) for key in keys]
    dimensions.append({"label": _escaped_text(label(rate)), "values": rates.tolist(), **ticks})
    color_bar = {"title": {"text": _escaped_text(label_with_unit(rate))}, **ticks}
    trace = {
        "type": "parcoords",
        "dimensions": dimensions,
        "line": {
            "color": rates.tolist(),
            "colorscale": "Cividis",
            "showscale": True,
            "colorbar": color_bar,
        },
    }
    layout = _layout(x="", y="")
    layout["margin"] = {"l": 80, "r": 80, "t": 70, "b": 30}
    caption = "Each line is a point. Drag along an axis to select points; drag a label to move it."
    yield Figure("The swept keys", caption, [trace], layout)


def _dimension(column: pd.Series, key: str) -> dict[str, Any]:
    """Return an axis of parallel coordinates, with distinct values at equal distances.

    Args:
        column: The values.
        key: Name of the setting, for the label.
    """
    values = column.astype("object").where(column.notna(), "none")
    distinct = sorted(values.unique(), key=_sort_key)
    codes = {value: position for position, value in enumerate(distinct)}
    return {
        "label": _escaped_text(label(key)),
        "values": [codes[value] for value in values],
        "tickvals": list(range(len(distinct))),
        "ticktext": [_escaped_text(value) for value in distinct],
        "range": [-0.1, len(distinct) - 0.9],
    }


def _sort_key(value: object) -> tuple[bool, float, str]:
    is_numeric = isinstance(value, int | float)
    number: Callable[[Any], float] = float
    return not is_numeric, number(value) if is_numeric else 0.0, str(value)


def _layout(*, x: str, y: str, is_log: bool = False) -> dict[str, Any]:
    kind: dict[str, Any] = {}
    x_format = {}
    y_format = {}
    if is_log:
        # Without a format, Plotly shortens the ticks between powers of ten to one digit.
        kind = {"type": "log", "dtick": "D2"}
        x_format = {"tickformat": ",~r"}
        y_format = {"tickformat": "~s"}
    axis = {"gridcolor": "#e8e8e8", "zeroline": False, "automargin": True}
    return {
        "height": _PLOT_HEIGHT,
        "margin": {"l": 70, "r": 20, "t": 30, "b": 60},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {**axis, **kind, **x_format, "title": {"text": _escaped_text(x)}},
        "yaxis": {
            **axis,
            **kind,
            **y_format,
            "title": {"text": _escaped_text(y)},
            "exponentformat": "SI",
        },
        "legend": {"orientation": "v"},
        "hovermode": "closest",
    }


def _fit_ticks(layout: dict[str, Any], traces: Iterable[Mapping[str, Any]]) -> None:
    """Let Plotly choose the ticks of a vertical axis that spans less than a power of ten.

    With `dtick` "D2", ticks are at 1, 2 and 5 of each decade, and such an axis may have no tick.

    Args:
        layout: Layout of the figure, which is changed in place.
        traces: Traces of the figure.
    """
    values = [value for trace in traces for value in trace["y"] if value is not None]
    if values and max(values) < 10 * min(values):
        layout["yaxis"].pop("dtick", None)


def _escaped_text(value: object) -> str:
    """Return a text with markup escaped, at most 200 characters long."""
    return html.escape(str(value)[:200], quote=False)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _json_numbers(values: Iterable[Any]) -> list[float | None]:
    """Return numbers that are valid JSON; None for missing and infinite values."""
    return [_json_number(value) for value in values]


def _grid(values: np.ndarray) -> list[list[float | None]]:
    return [_json_numbers(row) for row in values]


def _json_number(value: Any) -> float | None:
    if value is None or pd.isna(value) or not math.isfinite(value):
        return None
    return float(value)
