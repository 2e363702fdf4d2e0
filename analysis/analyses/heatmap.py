"""`heatmap`: any metric over any two hyperparameters, with out of memory as a result (the paper's
Figures 2 a-c and 7).

One map for each family on each device. A cell is the median of the points that ran; a cell in which
none did says how they ended, one in which some did says how many did not. What the map pools over
is named; fix it with --where.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from analysis.columns import (
    DEFAULT_METRICS,
    choose_metric,
    compute_families,
    family_groups,
    find_column,
    find_metric,
    hyperparameters,
    parse_blocks,
    settings,
)
from analysis.format import is_share, short
from analysis.labels import label, labelled
from analysis.lazy import drawing, np, pd
from analysis.options import Options, column_option, metric_option, option
from analysis.registry import SectionSpec, analysis
from analysis.result import Paragraph, Result, pooled_within
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous, units
from paradnn.cli.console import si
from paradnn.core.errors import ConfigError, NotEnoughData
from paradnn.core.words import counted
from paradnn.families import FAMILIES
from paradnn.statistics.regression import Lacking


@dataclass(frozen=True, kw_only=True)
class HeatmapOptions(Options):
    """Two hyperparameters and a metric."""

    x: str = column_option("batch_size", "hyperparameter across", "A")
    y: str = option(
        text="hyperparameter up, such as nodes, filters, precision", metavar="B", names="columns"
    )
    metric: str | None = metric_option("what to show")


def _shown(rows: pd.DataFrame) -> Iterator[SectionSpec]:
    """A map for each kind of family over its two first hyperparameters that vary."""
    for names, x, y in maps_of(rows):
        if y:
            title = f"Heat map: {', '.join(names)}"
            yield SectionSpec(
                HeatmapOptions(x=x, y=y), title, families=names, key=f"heatmap-{names[0]}"
            )


def maps_of(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(families that share a map, being swept over the same options; its two axes, batch size and
    what is swept first; empty where too few vary).
    """
    kinds: dict[object, list[str]] = {}
    for name in compute_families(rows):
        family = FAMILIES.get(name)
        kinds.setdefault(family.options if family and family.swept else name, []).append(name)
    for kind, names in sorted(kinds.items(), key=lambda pair: isinstance(pair[0], str)):
        own = rows[rows["family"].isin(names)]
        if isinstance(kind, str):
            swept = ()
        else:
            swept = (f"model.{key}" for key in FAMILIES[names[0]].swept)
        models = (
            str(name) for name in rows if str(name).startswith("model.") and name != "model.name"
        )
        candidates = dict.fromkeys(["batch_size", *swept, *models])
        x, y, *_ = *(name for name in candidates if name in own and own[name].nunique() > 1), "", ""
        yield tuple(names), x, y


@analysis(
    HeatmapOptions,
    summary="a metric over two hyperparameters, out of memory shown",
    example="python -m analysis heatmap --x batch_size --y nodes --where model.layers=64 --figure map.png",
    section="system",
    order=20,
    reading=("Median of the points in a cell; cells in which nothing ran say why."),
    list_sections=_shown,
)
def heatmap(frame: pd.DataFrame, options: HeatmapOptions) -> Result:
    """The median of a metric over two hyperparameters, for each family on each device; errors are
    `heat_maps`'s.
    """
    maps = heat_maps(frame, options.x, options.y, options.metric, pool=options.pool)
    named = {"x": maps.x.column, "y": maps.y.column, "value": maps.metric}
    if "model.name" in (maps.x.column, maps.y.column):
        by = ["device"]
    else:
        by = ["family", "device"]
    return Result(
        numbers=maps.cells.drop(columns=["i", "j"]).rename(columns=named),
        sentences=[*_sentences(maps)],
        picture=lambda: draw_heat_maps(maps),
        rows=[
            (
                f"{name}, {maps.metric}: {maps.y.column} down, {maps.x.column} across",
                _grid(cells, maps),
            )
            for name, cells in maps.each()
        ],
        sources=tuple(maps.runs),
        pooled=pooled_within(frame, by, pool=True) if options.pool else "",
    )


def _grid(cells: pd.DataFrame, maps: HeatMaps) -> pd.DataFrame:
    """A map as texts: a row for each value of y, below the values of x; where nothing ran, how it
    ended.
    """
    words = (
        cells["value"]
        .map(lambda value: si(value).strip())
        .where(cells["value"].notna(), cells["outcome"])
    )
    shown = cells.assign(words=words).pivot(index="j", columns="i", values="words")
    shown = shown.reindex(
        index=range(len(maps.y.labels)), columns=range(len(maps.x.labels))
    ).fillna("")
    shown.columns = pd.Index(maps.x.labels)
    shown.insert(0, "", maps.y.labels)
    return shown


def _sentences(maps: HeatMaps) -> Iterator[Paragraph]:
    for name, cells in maps.each():
        head = f"{name}: {maps.metric} over {maps.x.column} and {maps.y.column}"
        yield Paragraph(f"{head}{_extent(cells, maps)}.", tuple(_describe(name, cells, maps)))
    for lacking in maps.lacking:
        yield Paragraph(f"{lacking}: no map.")


def _extent(cells: pd.DataFrame, maps: HeatMaps) -> str:
    """Where the metric is low and high."""
    measured = cells[cells["value"].notna()].sort_values("value", kind="stable")
    share = is_share(maps.metric, maps.unit, measured["value"])
    ends = measured.iloc[[0, -1]] if len(measured) > 1 else measured
    places = [
        f"{short(cell['value'], maps.unit, share)} at {maps.x.column} {cell['x']}, {maps.y.column} {cell['y']}"
        for _, cell in ends.iterrows()
    ]
    return f": {' up to '.join(places)}" if places else ""


def _describe(name: str, cells: pd.DataFrame, maps: HeatMaps) -> Iterator[str]:
    """What did not run, over what a cell's median is."""
    measured = cells[cells["value"].notna()]
    if len(measured):
        note = maps.notes[name]
        yield f"{note[0].upper()}{note[1:]}."
    for outcome, rows in cells[cells["value"].isna()].groupby("outcome"):
        yield f"{counted(len(rows), 'cell')} without a measurement: {label(str(outcome))}."
    partly = measured[measured["failed"] > 0]
    if len(partly):
        memory = int(partly["memory"].sum())
        failed = int(partly["failed"].sum())
        yield (
            f"In {counted(len(partly), 'cell')} {failed} points did not run, {memory} of them out of memory: the value "
            "is that of those that did, often the smaller models."
        )
    unmeasured = maps.unmeasured(cells)
    if unmeasured:
        yield f"{counted(unmeasured, 'cell')} not measured, left blank."


#: Outcomes that say that a point needs more memory than there is.
MEMORY = ("oom_device", "oom_host", "oom_predicted")

_BINS = 12  # of an axis with more values than are legible
_LEGIBLE = 24  # values an axis may have and still show each


class Axis(NamedTuple):
    """One side of a map: the column, and its cells in order as labels."""

    column: str
    labels: tuple[str, ...]


class HeatMaps(NamedTuple):
    """A map for each family on each device, on shared axes.

    `cells`, a row for each measured or failed cell: `family`, `device`, `x` and `y` (labels), `j`
    and `i` (its place on y and x), `value` (median over points, NaN if none ran), `low` and `high`
    (quartiles; of a predicted map the 95% interval), `points` (that ran), `failed` (that did not),
    `memory` (those of them out of memory), `outcome` (ok, else the commonest ending), of a
    predicted map `measured` (points that were). `points` are those behind the cells. `notes` say
    what the cells of each map are the median of, `lacking` why other groups have no map.
    """

    metric: str
    unit: str
    x: Axis
    y: Axis
    cells: pd.DataFrame
    points: pd.DataFrame
    notes: Mapping[str, str]
    lacking: Sequence[Lacking]
    runs: Sequence[str]

    def each(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """The maps: such as "fc on TPU v2", and its cells."""
        for (family, device), cells in self.cells.groupby(["family", "device"], sort=False):
            yield f"{family} on {device}", cells

    def unmeasured(self, cells: pd.DataFrame) -> int:
        """How many cells of a map hold no point."""
        return len(self.x.labels) * len(self.y.labels) - len(cells)


def heat_maps(
    frame: pd.DataFrame, x: str, y: str, metric: str | None = None, *, pool: bool = False
) -> HeatMaps:
    """Median of `metric` over the cells of `x` and `y`, for each family on each device.

    A cell's value is the median over its points, a point's that over its ok replicates. A numeric
    hyperparameter with more than 24 values is cut into 12 ranges, equally wide or, from one power
    of ten on, equally wide in the logarithm. ConfigError for a column or metric that is not there,
    NotEnoughData when no group has data, SchemaError when the runs of a group are heterogeneous and
    `pool` is not given.
    """
    if is_ok(frame).any():
        if metric:
            metric = find_metric(frame, metric)
        else:
            metric = choose_metric(frame)
    metric = metric or DEFAULT_METRICS[1]  # where no point ran any will do
    frame = frame if metric in frame else frame.assign(**{metric: np.nan})
    columns = find_column(frame, x, "--x"), find_column(frame, y, "--y")
    if columns[0] == columns[1]:
        raise ConfigError("--y", y, "is on the x axis already", "name another hyperparameter")
    if "model.name" in columns:  # every family has one value of it: one map of all tells them apart
        frame = frame.assign(family="all")
    both = frame[frame[list(columns)].notna().all(axis=1) & frame["outcome"].notna()]
    lacking = [
        Lacking(group.name, f"no run with both {columns[0]} and {columns[1]}")
        for group in family_groups(frame)
        if not group.rows.index.isin(both.index).any()
    ]
    (across, place_x), (up, place_y) = (_axis(both, column) for column in columns)
    parts = list[pd.DataFrame]()
    notes = {}
    used = list[str]()
    for group in family_groups(both):
        rows = require_homogeneous(group.rows, pool=pool)
        ok = is_ok(rows)
        if (
            ok.any()
            and rows.loc[ok, metric].isna().all()
            and not rows["outcome"].isin(MEMORY).any()
        ):
            lacking.append(Lacking(group.name, f"no measured run has {metric}"))
            continue
        points = aggregate_replicates(
            rows.assign(i=place_x.loc[rows.index], j=place_y.loc[rows.index])
        )
        ok = is_ok(points).astype(bool)
        points = points.assign(value=points[metric].astype("float64").where(ok), ok=ok)[
            ~ok | points[metric].notna()
        ]
        notes[group.name] = _note(points, columns)
        parts.append(points.assign(family=group.family, device=group.device, map=len(parts)))
        used += list(rows["run_id"])
    if not parts:
        raise NotEnoughData(
            f"not enough data for a map of {metric}",
            lacking,
            "measure those points, or choose other runs",
        )
    every = pd.concat(parts, ignore_index=True)
    unit = units([metric]).get(metric, "")
    return HeatMaps(
        metric, unit, across, up, _cells(every, across, up), every, notes, lacking, used
    )


def _note(points: pd.DataFrame, axes: Collection[str]) -> str:
    """What a cell of a map is the median of, and what else varies among its points, with how many
    values.
    """
    counts = points[points["ok"]].groupby(["j", "i"]).size()
    if not len(counts):
        return "no point ran"
    many = " to ".join(map(str, dict.fromkeys([counts.min(), counts.max()])))
    text = "a cell is one point"
    over = "; runs differ in"
    if counts.max() > 1:
        text = f"a cell is the median of {many} points"
        over = " over"
    varied = {name: points[name].nunique() for name in hyperparameters(points) if name not in axes}
    varied = {name: count for name, count in varied.items() if count > 1}
    varied |= {
        name: points[name].nunique(dropna=False) for name in settings(points) if name not in axes
    }
    return text + (
        f"{over} {', '.join(f'{label(name)} ({count})' for name, count in varied.items())}"
        if varied
        else ""
    )


def _cells(points: pd.DataFrame, x: Axis, y: Axis) -> pd.DataFrame:
    """The rows of `HeatMaps.cells`."""
    memory = points["outcome"].isin(MEMORY)
    cell: Any = points.assign(memory=memory, failed=~points["ok"]).groupby(
        ["map", "family", "device", "j", "i"]
    )
    values = cell["value"]
    cells = pd.DataFrame(
        {"value": values.median(), "low": values.quantile(0.25), "high": values.quantile(0.75)}
    )
    cells = cells.assign(
        points=cell["ok"].sum(), failed=cell["failed"].sum(), memory=cell["memory"].sum()
    )
    cells = cells.assign(outcome=cell["outcome"].agg(_ending)).reset_index()
    cells.insert(3, "x", [x.labels[i] for i in cells["i"]])
    cells.insert(4, "y", [y.labels[j] for j in cells["j"]])
    return cells.drop(columns="map")


def _ending(outcomes: pd.Series) -> str:
    """Ok where any point is, else the commonest outcome; of equally common ones the first by name."""
    counts = outcomes.value_counts()
    if "ok" in counts:
        return "ok"
    return str(min(counts.index[counts == counts.max()]))


def _axis(rows: pd.DataFrame, column: str) -> tuple[Axis, pd.Series]:
    """The axis of a column, and the place on it of each row."""
    values = rows[column]
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numeric and values.nunique() > _LEGIBLE:
        low = float(values.min())
        high = float(values.max())
        edges = (np.geomspace if low > 0 and high >= 10 * low else np.linspace)(
            low, high, _BINS + 1
        )
        place = np.clip(
            np.searchsorted(edges, values.astype("float64"), side="right") - 1, 0, _BINS - 1
        )
        labels = tuple(f"{short(a)}–{short(b)}" for a, b in pairwise(edges))  # noqa: RUF001
        return Axis(column, labels), pd.Series(place, index=values.index)
    distinct = sorted(values.unique(), key=_order)
    places = {value: place for place, value in enumerate(distinct)}
    labels = tuple(f"{value:g}" if isinstance(value, float) else str(value) for value in distinct)
    return Axis(column, labels), values.astype("object").map(places).astype("int64")


def _order(value: object) -> tuple[int, Sequence[object]]:
    """Numbers by size, lists of blocks by their total and then entry by entry, words by the
    alphabet.
    """
    with contextlib.suppress(ValueError):  # beside lists, numbers are texts as well
        return 0, [float(value)]  # type: ignore[arg-type]
    counts = parse_blocks(value)
    return (1, [sum(counts), *counts]) if counts else (2, [str(value)])


#: How a cell in which nothing ran looks, by the outcome: letters, words, hatch and ground.
_LOOKS = {
    "oom_device": ("OOM", "out of memory (device)", "////", "#f4f4f4"),
    "oom_host": ("OOM\nhost", "out of memory (host)", "xxxx", "#f4f4f4"),
    "oom_predicted": ("OOM\npred.", "out of memory, predicted", "....", "#ffffff"),
}
_SHORTER = {"compile_error": "compile", "unavailable": "n/a"}
_EDGE = "#a8a8a8"
_CELL = 0.66  # width of a cell in inches, so that a value fits in it
_NARROW = 6  # cells that a map may have across to stand beside another
_LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue (ITU-R BT.709)
_WIDE = 30.0  # from this ratio of greatest to least on, colours are logarithmic


def draw_heat_maps(maps: HeatMaps) -> drawing.Figure:
    """A map for each family and device. Cells hold their median; "2/5 OOM" below: that many points
    did not fit.

    Cells that nothing was measured in are empty. Colours are logarithmic where values differ by a
    factor over 30. On a page that is too narrow for them the numbers of cells are left to the
    colours.
    """
    every = list(maps.each())
    values = maps.cells["value"]
    share = is_share(maps.metric, maps.unit, values)
    norm = drawing.scale_of(values, _WIDE)
    wide = len(maps.x.labels)
    high = len(maps.y.labels)
    size = max(3.2, _CELL * wide) + 1.2, max(1.6, 0.42 * high) + 1.2
    figure, panels = drawing.panels(len(every), *size, across=2 if wide <= _NARROW else 1)
    for axes, (name, cells) in zip(panels, every, strict=True):
        room = (drawing.cell(axes)[0] - 1.2) / wide
        longest = max(
            (len(short(value, "", share)) for value in cells["value"].dropna()), default=0
        )
        for row in cells.itertuples(index=False):
            _cell(axes, row, norm, share, room if drawing.fits(longest, room) else 0.0)
        axes.set(xlim=(-0.5, wide - 0.5), ylim=(-0.5, high - 0.5))
        drawing.names(axes.xaxis, maps.x.labels)
        drawing.names(axes.yaxis, maps.y.labels)
        axes.tick_params(length=0)
        note = drawing.filled(maps.notes[name], drawing.cell(axes)[0] - 1.6)  # beside the colours
        drawing.finish(axes, f"{name}\n{note}", label(maps.x.column), label(maps.y.column))
        axes.grid(False)
    if values.notna().any():
        named = f"{(label if share else labelled)(maps.metric)}, median of a cell"
        drawing.colour_bar(figure, panels, norm, named, lambda value: short(value, "", share))
    failed = set(maps.cells.loc[values.isna(), "outcome"])
    looks = [
        _look(name)
        for name in [*(name for name in MEMORY if name in failed), *sorted(failed - {*MEMORY})]
    ]
    if any(maps.unmeasured(cells) for _, cells in every):
        looks.append(("", "not measured", "", "white"))
    handles: list[Any] = [
        drawing.Patch(edgecolor=_EDGE, label=words, facecolor=face, hatch=hatch)
        for _, words, hatch, face in looks
    ]
    if "measured" in maps.cells:
        words = "all points of the cell measured, else predicted"
        handles.append(drawing.handle(words, marker="o", markersize=4, color="black"))
    if handles:
        drawing.legend(figure, handles)
    return figure


def _cell(axes: drawing.Axes, cell: Any, norm: drawing.Normalize, share: bool, room: float) -> None:
    """A row of `HeatMaps.cells` as a square with its value, or with the outcome of its points, in
    `room` inches.
    """
    corner = (cell.i - 0.5, cell.j - 0.5)
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    if np.isnan(cell.value):
        letters, _, hatch, face = _look(cell.outcome)
        how: dict[str, Any] = {
            "facecolor": face,
            "edgecolor": _EDGE,
            "hatch": hatch,
            "linewidth": 0,
        }
        axes.add_patch(drawing.Rectangle(corner, 1, 1, **how))
        axes.add_patch(
            drawing.Rectangle(corner, 1, 1, fill=False, edgecolor="white", linewidth=1.0)
        )
        if room:
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            axes.text(
                cell.i, cell.j, letters, fontsize="small", linespacing=0.9, bbox=behind, **middle
            )
        return
    colour = drawing.colormaps[drawing.SEQUENTIAL](norm(cell.value))
    axes.add_patch(
        drawing.Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5)
    )
    if not room:
        return
    middle["color"] = "black" if np.dot(colour[:3], _LUMINANCE) > 0.45 else "white"
    measured = getattr(cell, "measured", 0)
    height = cell.j + ((0.06 if measured else 0.14) if cell.failed else 0)
    axes.text(cell.i, height, short(cell.value, "", share), fontsize="small", **middle)
    text = f"{cell.failed}/{cell.failed + cell.points} {'OOM' if cell.memory == cell.failed else 'failed'}"
    if cell.failed and drawing.fits(len(text), 1.2 * room):
        axes.text(cell.i, cell.j - 0.28, text, fontsize=6, **middle)
    if measured == cell.points:
        axes.plot(
            cell.i + 0.36,
            cell.j + 0.3,
            marker="o",
            markersize=3.5,
            color=middle["color"],
            linewidth=0,
        )


def _look(outcome: str) -> tuple[str, str, str, str]:
    return _LOOKS.get(outcome, (_SHORTER.get(outcome, outcome), outcome, "\\\\", "#fbe9e0"))
