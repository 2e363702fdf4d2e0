"""Any metric over any two hyperparameters, with out of memory as a result (the paper's Figures 2 a-c and 7).

One map for each family on each device. A cell is the median of the points that ran; a cell in which none did says how
they ended, one in which some did says how many did not. What the map pools over is named, with the scatter it hides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis.format import short
from analysis.methods.columns import (
    DEFAULT_METRICS,
    Group,
    GroupKey,
    blocks_of,
    choose_metric,
    find_column,
    find_metric,
    groups,
    hyperparameters,
    settings,
)
from analysis.methods.regression import Lacking
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.errors import ConfigError, NotEnoughData

__all__ = ["MEMORY", "Axis", "HeatMap", "HeatMaps", "heat_maps"]

#: Outcomes that say that a point needs more memory than there is.
MEMORY = ("oom_device", "oom_host", "oom_predicted")

_BINS = 12  # of an axis with more values than are legible
_LEGIBLE = 24  # values an axis may have and still show each


@dataclass(frozen=True)
class Axis:
    """One side of a map: the column, its cells in order as labels, whether a cell is a range of values, and whether
    the order means anything (numbers and lists of blocks, not words)."""

    column: str
    labels: tuple[str, ...]
    binned: bool
    ordered: bool


@dataclass(frozen=True)
class HeatMap(GroupKey):
    """One family on one device.

    `cells`, a row for each measured or failed cell: `i` and `j` (its place on x and y), `x` and `y` (labels), `value`
    (median over points, NaN if none ran), `low` and `high` (quartiles), `points` (that ran), `failed` (points that did
    not end ok), `memory` (those of them out of memory), `outcome` (ok, else the commonest ending); of a predicted map
    `low` and `high` are the 95% interval of the value, and `measured` counts points that were. `points` are those
    behind the cells, with their `i` and `j`. `pooled` maps each other hyperparameter that varies to how many values it
    has, `settings` each setting. `unmeasured` counts empty cells, `without_metric` ok points without a value.
    """

    x: Axis
    y: Axis
    cells: pd.DataFrame
    points: pd.DataFrame
    pooled: Mapping[str, int]
    settings: Mapping[str, int]
    fixed: Mapping[str, str]
    without_metric: int

    @property
    def unmeasured(self) -> int:
        """Cells without any point."""
        return len(self.x.labels) * len(self.y.labels) - len(self.cells)

    def grid(self, column: str = "value") -> np.ndarray:
        """A column of `cells` as an array (y, x), NaN where there is no cell."""
        grid = np.full((len(self.y.labels), len(self.x.labels)), np.nan)
        grid[self.cells["j"], self.cells["i"]] = self.cells[column]
        return grid


@dataclass(frozen=True)
class HeatMaps:
    """The maps of a frame, on shared axes; `lacking` says why other groups have none, `run_ids` are the runs used."""

    metric: str
    unit: str
    maps: tuple[HeatMap, ...]
    lacking: tuple[Lacking, ...]
    run_ids: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each cell of each map."""
        parts = []
        for found in self.maps:
            part = found.cells.drop(columns=["i", "j"]).rename(columns={"x": found.x.column, "y": found.y.column})
            part.insert(0, "family", found.family)
            part.insert(1, "device", found.device)
            parts.append(part.rename(columns={"value": self.metric}))
        return pd.concat(parts, ignore_index=True)


def heat_maps(
    frame: pd.DataFrame, x: str, y: str, metric: str | None = None, *, bins: int | None = None, pool: bool = False
) -> HeatMaps:
    """Median of `metric` over the cells of `x` and `y`, for each family on each device.

    A cell's value is the median over its points, a point's the median over its ok replicates; low and high are the
    quartiles over points. All maps have the same axes, so that they can stand side by side. A numeric hyperparameter
    with more than 24 values, or any with `bins`, is cut into that many ranges, equally wide or, from one power of ten
    on, equally wide in the logarithm. A group in which nothing ran has a map of how its points ended. ConfigError for a
    column or metric that is not there, NotEnoughData when no group has data, SchemaError when the runs of a group are
    heterogeneous and `pool` is not given.
    """
    metric = _metric(frame, metric)
    frame = frame if metric in frame else frame.assign(**{metric: np.nan})
    columns = find_column(frame, x, "--x"), find_column(frame, y, "--y")
    if columns[0] == columns[1]:
        raise ConfigError("--y", y, "is on the x axis already", "name another hyperparameter")
    if bins is not None and bins < 1:
        raise ConfigError("--bins", bins, "is no number of ranges", "give 1 or more")
    both = frame[frame[list(columns)].notna().all(axis=1) & frame["outcome"].notna()]
    lacking = [
        Lacking(group.name, f"no run with both {columns[0]} and {columns[1]}")
        for group in groups(frame)
        if not group.rows.index.isin(both.index).any()
    ]
    (across, place_x), (up, place_y) = (_axis(both, column, bins) for column in columns)
    maps, used = [], []
    for group in groups(both):
        rows = require_homogeneous(group.rows, pool=pool)
        ok = is_ok(rows)
        if ok.any() and rows.loc[ok, metric].isna().all() and not rows["outcome"].isin(MEMORY).any():
            lacking.append(Lacking(group.name, f"no measured run has {metric}"))
            continue
        placed = rows.assign(i=place_x.loc[rows.index], j=place_y.loc[rows.index])
        maps.append(_map(group, placed, metric, across, up))
        used += list(rows["run_id"])
    if not maps:
        raise NotEnoughData(
            f"not enough data for a map of {metric}", lacking, "measure those points, or choose other runs"
        )
    unit = frame.attrs.get("units", {}).get(metric, "")
    return HeatMaps(metric, unit, tuple(maps), tuple(lacking), tuple(used))


def _metric(frame: pd.DataFrame, name: str | None) -> str:
    """The metric to show; where no point ran at all any will do, since there is nothing to show of it."""
    if is_ok(frame).any():
        return find_metric(frame, name) if name else choose_metric(frame)
    return name or DEFAULT_METRICS[1]


def _map(group: Group, rows: pd.DataFrame, metric: str, x: Axis, y: Axis) -> HeatMap:
    points = aggregate_replicates(rows)
    ok = is_ok(points).to_numpy(dtype=bool)
    without = int((ok & points[metric].isna()).sum())
    points = points[~ok | points[metric].notna()]
    others = [name for name in hyperparameters(points) if name not in (x.column, y.column)]
    distinct = {name: int(points[name].nunique()) for name in others}
    return HeatMap(
        group.family,
        group.device,
        x,
        y,
        _cells(points, metric, x, y),
        points,
        {name: count for name, count in distinct.items() if count > 1},
        {name: int(points[name].nunique(dropna=False)) for name in settings(points)},
        {name: str(points[name].dropna().iloc[0]) for name, count in distinct.items() if count == 1},
        without,
    )


def _cells(points: pd.DataFrame, metric: str, x: Axis, y: Axis) -> pd.DataFrame:
    ok = is_ok(points).to_numpy(dtype=bool)
    table = pd.DataFrame(
        {
            "i": points["i"].to_numpy(dtype=int),
            "j": points["j"].to_numpy(dtype=int),
            "value": points[metric].astype("float64").where(ok).to_numpy(),
            "ok": ok,
            "memory": points["outcome"].isin(MEMORY).to_numpy(dtype=bool),
            "outcome": points["outcome"].astype("object").to_numpy(),
        }
    )
    cell = table.groupby(["j", "i"])
    values = cell["value"]
    result = pd.DataFrame(
        {
            "value": values.median(),
            "low": values.quantile(0.25),
            "high": values.quantile(0.75),
            "points": cell["ok"].sum(),
            "failed": cell.size() - cell["ok"].sum(),
            "memory": cell["memory"].sum(),
            "outcome": cell["outcome"].agg(_ending),
        }
    ).reset_index()
    result.insert(0, "x", [x.labels[i] for i in result["i"]])
    result.insert(1, "y", [y.labels[j] for j in result["j"]])
    return result


def _ending(outcomes: pd.Series) -> str:
    """Ok where any point is, else the commonest outcome; of equally common ones the first by name."""
    counts = outcomes.value_counts()
    return "ok" if "ok" in counts else str(min(counts.index[counts == counts.max()]))


def _axis(rows: pd.DataFrame, column: str, bins: int | None) -> tuple[Axis, pd.Series]:
    """The axis of a column, and the place on it of each row."""
    values = rows[column]
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    count = values.nunique()
    if numeric and (count > _LEGIBLE if bins is None else count > bins):
        return _binned(values.astype("float64"), column, _BINS if bins is None else bins)
    distinct = sorted(values.unique(), key=_order)
    places = {value: place for place, value in enumerate(distinct)}
    labels = tuple(f"{value:g}" if isinstance(value, float) else str(value) for value in distinct)
    ordered = all(_order(value)[0] < 2 for value in distinct)
    return Axis(column, labels, False, ordered), values.astype("object").map(places).astype("int64")


def _order(value: object) -> tuple[int, Sequence[object]]:
    """Numbers by size, lists of blocks by their total and then entry by entry, words by the alphabet."""
    with contextlib.suppress(ValueError):  # beside lists, numbers are texts as well
        return 0, [float(value)]  # type: ignore[arg-type]
    counts = blocks_of(value)
    return (1, [sum(counts), *counts]) if counts else (2, [str(value)])


def _binned(values: pd.Series, column: str, bins: int) -> tuple[Axis, pd.Series]:
    low, high = float(values.min()), float(values.max())
    logarithmic = low > 0 and high >= 10 * low
    edges = np.geomspace(low, high, bins + 1) if logarithmic else np.linspace(low, high, bins + 1)
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
    labels = tuple(f"{short(a)}–{short(b)}" for a, b in pairwise(edges))  # noqa: RUF001
    return Axis(column, labels, True, True), pd.Series(place, index=values.index)
