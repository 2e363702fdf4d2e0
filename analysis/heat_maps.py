"""Heat maps of a metric over two hyperparameters: the values of the cells, and the figure."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from analysis.columns import (
    DEFAULT_METRICS,
    MEMORY_OUTCOMES,
    choose_metric,
    families_of_examples,
    family_groups,
    find_column,
    find_metric,
    hyperparameters,
    is_number,
    parse_blocks,
    settings,
)
from analysis.format import format_number, format_setting, is_share
from analysis.labels import label, label_with_unit
from analysis.lazy import drawing, np, pd
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous, units
from paradnn.core.errors import ConfigError, InsufficientData
from paradnn.core.metric import interval_names
from paradnn.families import FAMILIES

#: Largest number of distinct values on a numeric axis; more are cut into `_RANGES` ranges.
_MAX_VALUES = 24
_RANGES = 12


class Axis(NamedTuple):
    """One axis of a heat map.

    Attributes:
        column: The hyperparameter that the axis shows.
        labels: Labels of the positions along the axis, in order.
    """

    column: str
    labels: tuple[str, ...]


class HeatMaps(NamedTuple):
    """A heat map for each model family on each device, on shared axes.

    A point is one configuration to measure; its value is the median over its replicates. A cell
    holds the points with the same position on both axes.

    Attributes:
        metric: Name of the metric.
        unit: Its unit.
        x: The horizontal axis.
        y: The vertical axis.
        cells: One row per cell with a point, and these columns:

            - `family`, `device`;
            - `x`, `y`: the labels of the cell;
            - `i`, `j`: the positions of the cell on x and y;
            - `value`: the median over the points that ran; NaN if none ran;
            - `q25`, `q75`: the quartiles over these points;
            - `low`, `high`: the 95% interval of the value if a single point ran and has an
              interval, else NaN;
            - `points`: the number of points that ran;
            - `failed`: the number of points that failed;
            - `memory`: the number of failed points that ran out of memory;
            - `outcome`: "ok" if any point ran, else the most frequent outcome;
            - `measured`, only in a predicted map: the number of measured points.
        points: The points in the cells, one row each.
        notes: Name of a map, such as "fc on TPU v2" -> a note on the number of points per cell, and
            on the settings that vary among them.
        omitted: Families on devices without a map, with the reason.
        run_ids: Ids of the runs of the points.
    """

    metric: str
    unit: str
    x: Axis
    y: Axis
    cells: pd.DataFrame
    points: pd.DataFrame
    notes: Mapping[str, str]
    omitted: Sequence[InsufficientData]
    run_ids: Sequence[str]

    def maps(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the name of every map, such as "fc on TPU v2", and its cells."""
        for (family, device), cells in self.cells.groupby(["family", "device"], sort=False):
            yield f"{family} on {device}", cells

    def unmeasured(self, cells: pd.DataFrame) -> int:
        """Return the number of empty cells of a map: those without any run.

        Args:
            cells: The cells of the map, as `maps` yields them.
        """
        return len(self.x.labels) * len(self.y.labels) - len(cells)


def choose_axes(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Choose two hyperparameters as the axes of the heat maps of each model family.

    Args:
        rows: One row per run.

    Yields:
        Families that are swept over the same options and therefore share a map, and the columns of
        its horizontal and vertical axis. These are the first two columns that vary, in the order
        batch size, swept options, other options of the model. An axis is empty if too few columns
        vary.
    """
    kinds: dict[object, list[str]] = {}
    for name in families_of_examples(rows):
        family = FAMILIES.get(name)
        kind: object = name
        if family and family.swept:
            kind = family.options
        kinds.setdefault(kind, []).append(name)
    # Swept families come first.
    for kind, names in sorted(kinds.items(), key=lambda pair: isinstance(pair[0], str)):
        selected = rows[rows["family"].isin(names)]
        swept = []
        if not isinstance(kind, str):
            swept = [f"model.{key}" for key in FAMILIES[names[0]].swept]
        others = [str(name) for name in rows if str(name).startswith("model.")]
        candidates = dict.fromkeys(["batch_size", *swept, *others])
        varying = [
            name
            for name in candidates
            if name != "model.name" and name in selected and selected[name].nunique() > 1
        ]
        x, y = [*varying, "", ""][:2]
        yield tuple(names), x, y


def make_heat_maps(
    frame: pd.DataFrame, x: str, y: str, metric: str | None = None, *, pool: bool = False
) -> HeatMaps:
    """Compute the median of a metric for each pair of values of two hyperparameters.

    Each pair of values is a cell of the map. A point is one configuration to measure. The value of
    a point is the median over its successful replicates, and the value of a cell is the median over
    its points. A numeric axis with more than 24 values is cut into 12 ranges of equal width. If its
    values are positive and span a factor of ten or more, the ranges have equal width on a
    logarithmic scale.

    Args:
        frame: One row per run.
        x: Hyperparameter of the horizontal axis, such as "nodes" or "model.nodes".
        y: Hyperparameter of the vertical axis.
        metric: Name of the metric; None for the default of `choose_metric`.
        pool: Whether runs of different environments or timing protocols may share a map.

    Raises:
        ConfigError: If a column or the metric does not exist.
        InsufficientData: If no family on any device has data for a map.
        HeterogeneousError: If the runs of a map differ in environment or protocol, and `pool` is
            false.
    """
    metric = _resolve_metric(frame, metric)
    if metric not in frame:
        frame = frame.assign(**{metric: np.nan})
    columns = (find_column(frame, x, "--x"), find_column(frame, y, "--y"))
    if columns[0] == columns[1]:
        raise ConfigError("--y", y, "is already on the x axis", "name a different hyperparameter")
    if "model.name" in columns:
        # `model.name` is constant within a family, so a single map shows all families.
        frame = frame.assign(family="all")
    placed = frame[frame[list(columns)].notna().all(axis=1) & frame["outcome"].notna()]
    reason = f"no run has both {columns[0]} and {columns[1]}"
    omitted = [
        InsufficientData(reason, group=group.name)
        for group in family_groups(frame)
        if not group.rows.index.isin(placed.index).any()
    ]
    x_axis, x_positions = _make_axis(placed, columns[0])
    y_axis, y_positions = _make_axis(placed, columns[1])
    placed = placed.assign(i=x_positions, j=y_positions)
    parts: list[pd.DataFrame] = []
    notes = {}
    run_ids: list[str] = []
    for group in family_groups(placed):
        rows = require_homogeneous(group.rows, pool=pool)
        if not _has_content(rows, metric):
            omitted.append(InsufficientData(f"no measured run has {metric}", group=group.name))
            continue
        points = aggregate_replicates(rows)
        has_run = is_ok(points).astype(bool)
        values = points[metric].astype("float64").where(has_run)
        points = points.assign(value=values, ok=has_run)[~has_run | points[metric].notna()]
        notes[group.name] = _describe_cells(points, columns)
        parts.append(points.assign(family=group.family, device=group.device, map=len(parts)))
        run_ids += list(rows["run_id"])
    if not parts:
        problem = f"no point can be shown in a heat map of {metric}"
        remedy = "measure points with this metric, or choose other runs"
        raise InsufficientData(problem, groups=omitted, remedy=remedy)
    all_points = pd.concat(parts, ignore_index=True)
    return HeatMaps(
        metric=metric,
        unit=units([metric]).get(metric, ""),
        x=x_axis,
        y=y_axis,
        cells=_make_cells(all_points, metric, x_axis, y_axis),
        points=all_points,
        notes=notes,
        omitted=omitted,
        run_ids=run_ids,
    )


def _resolve_metric(frame: pd.DataFrame, metric: str | None) -> str:
    if not is_ok(frame).any():
        # No point ran, so the maps show outcomes and no values.
        return metric or DEFAULT_METRICS[1]
    if metric:
        return find_metric(frame, metric)
    return choose_metric(frame)


def _has_content(rows: pd.DataFrame, metric: str) -> bool:
    """Return whether a heat map of these runs would show anything: a metric value or a failure."""
    ran = is_ok(rows)
    if not ran.any():
        return True
    ran_out_of_memory = rows["outcome"].isin(MEMORY_OUTCOMES).any()
    return bool(rows.loc[ran, metric].notna().any() or ran_out_of_memory)


def _describe_cells(points: pd.DataFrame, axes: Collection[str]) -> str:
    """Return the number of configurations per cell, and the settings that vary among them, as text.

    Args:
        points: One row per configuration.
        axes: The columns of both axes.
    """
    counts = points[points["ok"]].groupby(["j", "i"]).size()
    if not len(counts):
        return "no point ran"
    varying = {}
    for name in hyperparameters(points):
        if name not in axes and points[name].nunique() > 1:
            varying[name] = points[name].nunique()
    for name in settings(points):
        if name not in axes:
            varying[name] = points[name].nunique(dropna=False)
    listed = ", ".join(f"{label(name)} ({count})" for name, count in varying.items())
    if counts.max() == 1:
        text = "a cell is one point"
        if listed:
            text += f"; runs differ in {listed}"
        return text
    sizes = " to ".join(map(str, dict.fromkeys([counts.min(), counts.max()])))
    text = f"a cell is the median of {sizes} points"
    if listed:
        text += f" over {listed}"
    return text


def _make_cells(points: pd.DataFrame, metric: str, x: Axis, y: Axis) -> pd.DataFrame:
    points = points.assign(
        failed=~points["ok"],
        memory=points["outcome"].isin(MEMORY_OUTCOMES),
        low=np.nan,
        high=np.nan,
    )
    for end, name in zip(("low", "high"), interval_names(metric), strict=True):
        if name in points:
            points[end] = points[name].where(points["ok"])
    groups: Any = points.groupby(["map", "family", "device", "j", "i"])
    ran = groups["ok"].sum()
    # Only a cell with a single point has an interval: the intervals of several points are not an
    # interval of their median.
    cells = pd.DataFrame(
        {
            "value": groups["value"].median(),
            "q25": groups["value"].quantile(0.25),
            "q75": groups["value"].quantile(0.75),
            "low": groups["low"].median().where(ran == 1),
            "high": groups["high"].median().where(ran == 1),
            "points": ran,
            "failed": groups["failed"].sum(),
            "memory": groups["memory"].sum(),
            "outcome": groups["outcome"].agg(_most_frequent_outcome),
        }
    ).reset_index()
    cells.insert(3, "x", [x.labels[i] for i in cells["i"]])
    cells.insert(4, "y", [y.labels[j] for j in cells["j"]])
    return cells.drop(columns="map")


def _most_frequent_outcome(outcomes: pd.Series) -> str:
    """Return "ok" if it occurs among the outcomes, else the most frequent outcome.

    Among equally frequent outcomes, the first in alphabetical order is returned.
    """
    counts = outcomes.value_counts()
    if "ok" in counts:
        return "ok"
    return str(min(counts.index[counts == counts.max()]))


def _make_axis(rows: pd.DataFrame, column: str) -> tuple[Axis, pd.Series]:
    """Return the axis of a column, and the position of each row on it."""
    values = rows[column]
    if is_number(values) and values.nunique() > _MAX_VALUES:
        return _make_range_axis(values, column)
    distinct = sorted(values.unique(), key=_sort_key)
    positions = {value: position for position, value in enumerate(distinct)}
    labels = tuple(map(format_setting, distinct))
    return Axis(column, labels), values.astype("object").map(positions).astype("int64")


def _make_range_axis(values: pd.Series, column: str) -> tuple[Axis, pd.Series]:
    low = float(values.min())
    high = float(values.max())
    if low > 0 and high >= 10 * low:
        edges = np.geomspace(low, high, _RANGES + 1)
    else:
        edges = np.linspace(low, high, _RANGES + 1)
    positions = np.searchsorted(edges, values.astype("float64"), side="right") - 1
    positions = np.clip(positions, 0, _RANGES - 1)
    labels = tuple(f"{format_number(a)}–{format_number(b)}" for a, b in pairwise(edges))  # noqa: RUF001
    return Axis(column, labels), pd.Series(positions, index=values.index)


def _sort_key(value: object) -> tuple[int, Sequence[object]]:
    """Return a key that sorts numbers first, then lists of block counts, then other text.

    Lists of block counts, such as "[3, 4, 6, 3]", are sorted by their total.
    """
    # In a column that contains lists, numbers are text as well.
    with contextlib.suppress(ValueError):
        return 0, [float(value)]  # type: ignore[arg-type]
    counts = parse_blocks(value)
    if counts:
        return 1, [sum(counts), *counts]
    return 2, [str(value)]


class _OutcomeStyle(NamedTuple):
    """Style of a cell whose points all failed in the same way, such as out of memory.

    Attributes:
        letters: Text in the cell.
        text: Text in the legend.
        hatch: Matplotlib's pattern of the hatching.
        color: Color of the background.
    """

    letters: str
    text: str
    hatch: str
    color: str


_OUTCOME_LOOKS = {
    "oom_device": _OutcomeStyle("OOM", "out of memory (device)", "////", "#f4f4f4"),
    "oom_host": _OutcomeStyle("OOM\nhost", "out of memory (host)", "xxxx", "#f4f4f4"),
    "oom_predicted": _OutcomeStyle("OOM\npred.", "out of memory, predicted", "....", "#ffffff"),
}
_UNMEASURED_STYLE = _OutcomeStyle("", "not measured", "", "white")
_ABBREVIATIONS = {"compile_error": "compile", "unavailable": "n/a"}
_EDGE_COLOR = "#a8a8a8"
_CELL_WIDTH = 0.66  # inches, enough for a value
_CELL_HEIGHT = 0.42  # inches
_MARGIN = 1.2  # inches of a panel for labels and title
_MAX_NARROW = 6  # largest number of columns with which two maps fit next to each other
_LIGHT = 0.45  # luminance of a cell above which its text is black
_LUMINANCE = (0.2126, 0.7152, 0.0722)  # weights of red, green and blue (ITU-R BT.709)
_LOGARITHMIC_RATIO = 30.0  # ratio of largest to smallest value above which colors are logarithmic


def draw_heat_maps(maps: HeatMaps) -> drawing.Figure:
    """Draw a heat map for each model family and device.

    A cell shows the median of the metric over its points (configurations). "2/5 OOM" below it means
    that two of five points ran out of memory. Cells without points are empty. Colors are
    logarithmic if values differ by more than a factor of 30. If a page is too narrow for the
    numbers, the colors alone show the values.

    Args:
        maps: The values of the cells, as `make_heat_maps` returns them.
    """
    named_cells = list(maps.maps())
    values = maps.cells["value"]
    as_share = is_share(maps.metric, maps.unit, values)
    norm = drawing.scale_of(values, _LOGARITHMIC_RATIO)
    columns = len(maps.x.labels)
    rows = len(maps.y.labels)
    width = max(3.2, _CELL_WIDTH * columns) + _MARGIN
    height = max(1.6, _CELL_HEIGHT * rows) + _MARGIN
    across = 2 if columns <= _MAX_NARROW else 1
    figure, panels = drawing.panels(len(named_cells), width, height, across=across)
    for axes, (name, cells) in zip(panels, named_cells, strict=True):
        cell_width = (drawing.cell(axes)[0] - _MARGIN) / columns
        texts = [format_number(value, share=as_share) for value in cells["value"].dropna()]
        longest = max(map(len, texts), default=0)
        text_width = cell_width if drawing.fits(longest, cell_width) else 0.0
        for cell in cells.itertuples(index=False):
            _draw_cell(axes, cell, norm, as_share=as_share, text_width=text_width)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5))
        drawing.names(axes.xaxis, maps.x.labels)
        drawing.names(axes.yaxis, maps.y.labels)
        axes.tick_params(length=0)
        # The color bar needs room as well.
        note = drawing.filled(maps.notes[name], drawing.cell(axes)[0] - 1.6)
        drawing.finish(axes, f"{name}\n{note}", label(maps.x.column), label(maps.y.column))
        axes.grid(False)
    if values.notna().any():
        metric = label(maps.metric) if as_share else label_with_unit(maps.metric)
        text = f"{metric}, median per cell"
        drawing.color_bar(
            figure, panels, norm, text, lambda value: format_number(value, share=as_share)
        )
    handles = _legend_handles(maps)
    if handles:
        drawing.legend(figure, handles)
    return figure


def _legend_handles(maps: HeatMaps) -> list[Any]:
    """Return the entries of the legend: outcomes, empty cells and measured cells."""
    failed = set(maps.cells.loc[maps.cells["value"].isna(), "outcome"])
    ordered = [name for name in MEMORY_OUTCOMES if name in failed]
    ordered += sorted(failed.difference(MEMORY_OUTCOMES))
    styles = [_outcome_style(name) for name in ordered]
    if any(maps.unmeasured(cells) for _, cells in maps.maps()):
        styles.append(_UNMEASURED_STYLE)
    handles: list[Any] = [
        drawing.Patch(
            edgecolor=_EDGE_COLOR, label=style.text, facecolor=style.color, hatch=style.hatch
        )
        for style in styles
    ]
    if "measured" in maps.cells:
        text = "all points of the cell measured, else predicted"
        handles.append(drawing.handle(text, marker="o", markersize=4, color="black"))
    return handles


def _draw_cell(
    axes: drawing.Axes, cell: Any, norm: drawing.Normalize, *, as_share: bool, text_width: float
) -> None:
    """Draw a cell with its value, or with the outcome of its configurations if none ran.

    Args:
        axes: The panel.
        cell: A row of `HeatMaps.cells`.
        norm: Scale of the colors.
        as_share: Whether the value is written in percent.
        text_width: Width in inches for text; 0 for a cell without text.
    """
    if np.isnan(cell.value):
        _draw_outcome(axes, cell, has_text=text_width > 0)
        return
    color = drawing.colormaps[drawing.SEQUENTIAL](norm(cell.value))
    corner = (cell.i - 0.5, cell.j - 0.5)
    axes.add_patch(
        drawing.Rectangle(corner, 1, 1, facecolor=color, edgecolor="white", linewidth=0.5)
    )
    if not text_width:
        return
    text_color = "white"
    if np.dot(color[:3], _LUMINANCE) > _LIGHT:
        text_color = "black"
    centered: dict[str, Any] = {"ha": "center", "va": "center", "color": text_color}
    measured = getattr(cell, "measured", 0)
    height = cell.j
    if cell.failed and measured:
        height += 0.06
    elif cell.failed:
        height += 0.14
    axes.text(
        cell.i, height, format_number(cell.value, share=as_share), fontsize="small", **centered
    )
    if cell.failed:
        label = "OOM" if cell.memory == cell.failed else "failed"
        text = f"{cell.failed}/{cell.failed + cell.points} {label}"
        if drawing.fits(len(text), 1.2 * text_width):
            axes.text(cell.i, cell.j - 0.28, text, fontsize=6, **centered)
    if measured == cell.points:
        x = cell.i + 0.36
        y = cell.j + 0.3
        axes.plot(x, y, marker="o", markersize=3.5, color=text_color, linewidth=0)


def _draw_outcome(axes: drawing.Axes, cell: Any, *, has_text: bool) -> None:
    style = _outcome_style(cell.outcome)
    corner = (cell.i - 0.5, cell.j - 0.5)
    axes.add_patch(
        drawing.Rectangle(
            corner,
            1,
            1,
            facecolor=style.color,
            edgecolor=_EDGE_COLOR,
            hatch=style.hatch,
            linewidth=0,
        )
    )
    axes.add_patch(drawing.Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=1.0))
    if has_text:
        axes.text(
            cell.i,
            cell.j,
            style.letters,
            fontsize="small",
            linespacing=0.9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            ha="center",
            va="center",
        )


def _outcome_style(outcome: str) -> _OutcomeStyle:
    if outcome in _OUTCOME_LOOKS:
        return _OUTCOME_LOOKS[outcome]
    letters = _ABBREVIATIONS.get(outcome, outcome)
    return _OutcomeStyle(letters, outcome, "\\\\", "#fbe9e0")
