"""`predict`: every point of a space, measured or predicted with its 95% interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.analyses.heatmap import HeatMaps, draw_heat_maps, maps_of, predicted_maps
from analysis.format import is_share, short
from analysis.lazy import pd
from analysis.options import option
from analysis.prediction import Completed, SpaceOptions, completed_of, every_point, is_sparse, told_of
from analysis.registry import Shown, analysis
from analysis.result import Result, pooled_within

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class PredictOptions(SpaceOptions):
    """What is predicted of which space, and the axes of its map."""

    command = "predict"

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictResult(Result):
    """Every point of the spaces, and a map where two hyperparameters vary."""

    completed: Completed
    maps: HeatMaps | None

    @property
    def table(self) -> pd.DataFrame:
        return every_point(self.completed)

    @property
    def drawable(self) -> bool:
        return self.maps is not None

    def _figure(self) -> Figure:
        assert self.maps is not None, "drawable"
        return draw_heat_maps(self.maps)

    def _paragraphs(self) -> Iterator[str]:
        completed, table = self.completed, self.table
        unit = table.attrs.get("units", {}).get(completed.metric, "")
        for space in completed.spaces:
            rows = table[(table["family"] == space.family) & (table["device"] == space.device)]
            rows = rows[rows["status"].isin(["measured", "predicted"])]
            if len(rows):
                share = is_share(completed.metric, unit, rows[completed.metric])
                yield f"{space.name}: {completed.metric} {_ends(rows, completed.metric, space.keys, unit, share)}."
        if not len(completed.places):
            yield "Every point of the space was tried: there is nothing to predict."


def _ends(rows: pd.DataFrame, metric: str, keys: tuple[str, ...], unit: str, share: bool) -> str:
    """Where the metric is least and greatest, such as "from 28 GFLOP/s at ... (predicted) up to ..."."""
    words = []
    for place in (rows[metric].argmin(), rows[metric].argmax()):
        row = rows.iloc[int(place)]
        at = ", ".join(f"{name} {row[name]}" for name in keys)
        interval = ""
        if row["status"] == "predicted":
            low, high = (short(row[end], unit, share) for end in ("low", "high"))
            interval = f", predicted, {low} to {high}"
        words.append(f"{short(row[metric], unit, share)} ({at}{interval})")
    return f"from {words[0]} up to {words[1]}"


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
    "or of one that is named with --space. Points that were left out say how far to trust it. Others\n"
    "that speak of the whole space: sensitivity, heatmap, compare and claims with --predicted.",
    example="python -m analysis predict --family fc --figure map.png",
    section="system",
    order=25,
    reading=("The same over the whole grid that these runs are a part of: what was not measured is predicted."),
    shown=_shown,
)
def predict(frame: pd.DataFrame, options: PredictOptions) -> PredictResult:
    """Every point of the space that a frame's runs are part of.

    ConfigError for a metric that is not predicted or a space that names no points, NotEnoughData for too few runs,
    SchemaError for heterogeneous runs of a group.
    """
    completed = completed_of(frame, options.metric, options)
    pooled = pooled_within(frame, ["family", "device"], pool=True) if options.pool else ""
    sources = completed.measured(list(completed.frame["run_id"]))
    return PredictResult(
        completed=completed,
        maps=_maps(completed, options),
        sources=sources,
        pooled=pooled,
        predicted=told_of([completed]),
    )


def _maps(completed: Completed, options: PredictOptions) -> HeatMaps | None:
    """The map over the axes that are named, else over those with the most values; None where one key alone varies."""
    counts = completed.frame[list(dict.fromkeys(name for space in completed.spaces for name in space.keys))].nunique()
    ordered = list(counts.sort_values(ascending=False, kind="stable").index)
    x = options.x or ("batch_size" if "batch_size" in ordered else ordered[0])
    others = [name for name in ordered if name.removeprefix("model.") != x.removeprefix("model.")]
    y = options.y or next(iter(others), None)
    return None if y is None else predicted_maps(completed, x, y, pool=options.pool)
