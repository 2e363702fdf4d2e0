"""`predict`: every point of a space, measured or predicted with its 95% interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from analysis.analyses.heatmap import HeatMap, HeatMaps, draw_heat_maps, heat_maps, maps_of
from analysis.format import is_share, short
from analysis.lazy import np, pd
from analysis.options import Options, option
from analysis.prediction import Completed, completed_of, is_sparse, told_of
from analysis.registry import Shown, analysis
from analysis.result import Result, pooled_within
from analysis.store.frame import aggregate_replicates, is_ok


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """What is predicted of which space, and the axes of its map."""

    command = "predict"

    space: str | None = option(
        None,
        "the points of the space: axes of a sweep, such as 'model=fc model.nodes=32,64 batch_size=64,256' or "
        "experiment=paper_fc (default: the grid that the runs span)",
        metavar="SPACE",
        names="conditions",
    )
    metric: str | None = option(
        None,
        "what to predict (default: flops_utilization, else flops_per_second, else examples_per_second)",
        metavar="M",
        names="columns",
    )
    x: str | None = option(
        None, "hyperparameter across the map (default: batch_size where it varies)", metavar="A", names="columns"
    )
    y: str | None = option(
        None, "hyperparameter up the map (default: the one with the most values)", metavar="B", names="columns"
    )


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """Where the runs are a small part of a grid."""
    for names, x, y in maps_of(rows):
        if y and is_sparse(rows[rows["family"].isin(names)]):
            options = PredictOptions(x=x, y=y)
            yield Shown(options, f"Predicted map: {', '.join(names)}", families=names, key=f"predict-{names[0]}")


@analysis(
    PredictOptions,
    summary="every point of a space, measured or predicted with an interval, and where that extrapolates",
    description="Fit the step time of the measured runs and predict every point of the space they are part of,\n"
    "or of one that is named with --space. Points that were left out say how far to trust it.",
    example="python -m analysis predict --family fc --figure map.png",
    section="system",
    order=25,
    reading=("The same over the whole grid that these runs are a part of: what was not measured is predicted."),
    shown=_shown,
)
def predict(frame: pd.DataFrame, options: PredictOptions) -> Result:
    """Every point of the space that a frame's runs are part of.

    ConfigError for a metric that is not predicted or a space that names no points, NotEnoughData for too few runs,
    SchemaError for heterogeneous runs of a group.
    """
    completed = completed_of(frame, options.metric, options.space, options.pool)
    maps, table = _maps(completed, options), _every_point(completed)
    return Result(
        numbers=table,
        sentences=[*_ends(completed, table), *told_of(completed)],
        picture=None if maps is None else lambda: draw_heat_maps(maps),
        sources=completed.measured(list(completed.frame["run_id"])),
        pooled=pooled_within(frame, ["family", "device"], pool=True) if options.pool else "",
    )


def _every_point(completed: Completed) -> pd.DataFrame:
    """A row for each point of the spaces: the keys in which points differ, `status` (measured, predicted, or the
    outcome of what did not run or is taken not to), the metric, and its 95% interval where it is predicted."""
    rows = aggregate_replicates(completed.frame)
    keys = list(dict.fromkeys(name for space in completed.spaces for name in space.keys))
    ok, status = is_ok(rows), rows["outcome"].astype("object")
    rows["status"] = status.where(~ok, rows["predicted"].map({True: "predicted", False: "measured"}))
    numbers = [completed.metric, "low", "high"]
    found = rows[["family", "device", *keys, "status", *numbers]]
    found = found.assign(**{name: found[name].astype("float64").where(ok) for name in numbers})
    found = found.sort_values(["family", "device", *keys], ignore_index=True)
    found.attrs = {"units": completed.frame.attrs.get("units", {})}
    return found


def _ends(completed: Completed, table: pd.DataFrame) -> Iterator[str]:
    """Where the metric is least and greatest in each space."""
    unit, metric = table.attrs["units"].get(completed.metric, ""), completed.metric
    for space in completed.spaces:
        rows = table[(table["family"] == space.family) & (table["device"] == space.device)]
        rows = rows[rows["status"].isin(["measured", "predicted"])]
        if len(rows):
            share = is_share(metric, unit, rows[metric])
            ends = [rows.iloc[int(place)] for place in (rows[metric].argmin(), rows[metric].argmax())]
            words = [
                f"{short(row[metric], unit, share)} ({', '.join(f'{name} {row[name]}' for name in space.keys)}, "
                f"{row['status']})"
                for row in ends
            ]
            yield f"{space.name}: {metric} from {words[0]} up to {words[1]}."
    if completed.draws.empty:
        yield "Every point of the space was tried: there is nothing to predict."


def _maps(completed: Completed, options: PredictOptions) -> HeatMaps | None:
    """The map over the axes that are named, else over those with the most values; None where one key alone varies."""
    counts = completed.frame[list(dict.fromkeys(name for space in completed.spaces for name in space.keys))].nunique()
    ordered = list(counts.sort_values(ascending=False, kind="stable").index)
    x = options.x or ("batch_size" if "batch_size" in ordered else ordered[0])
    others = [name for name in ordered if name.removeprefix("model.") != x.removeprefix("model.")]
    y = options.y or next(iter(others), None)
    return None if y is None else predicted_maps(completed, x, y, pool=options.pool)


def predicted_maps(completed: Completed, x: str, y: str, *, pool: bool = False) -> HeatMaps:
    """`heat_maps` of every point of the spaces: a cell is the median over its points, `low` and `high` the ends of
    that median's 95% interval over draws; `measured` counts those of its `points` that were measured."""
    found = heat_maps(completed.frame, x, y, completed.metric, pool=pool)
    maps = tuple(replace(each, cells=_cells_over_draws(each, completed)) for each in found.maps)
    return replace(found, maps=maps, run_ids=completed.measured(found.run_ids))


def _cells_over_draws(each: HeatMap, completed: Completed) -> pd.DataFrame:
    points = each.points[is_ok(each.points)]
    values = completed.values(points)
    cells = each.cells.set_index(["i", "j"])
    cells["measured"] = 0
    for place, rows in points.groupby(["i", "j"]).indices.items():
        middle = np.median(values[rows], axis=0)
        cells.loc[place, ["value", "low", "high"]] = np.quantile(middle, [0.5, 0.025, 0.975])
        cells.loc[place, "measured"] = int((~points["predicted"].to_numpy()[rows]).sum())
    return cells.reset_index()[[*each.cells.columns, "measured"]]
