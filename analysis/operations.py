"""`roofline --operations`: the operations of one profiled run, or the types of those of all, under the roof of their
device: which of the time memory limits, which arithmetic, which the links between devices, and which none of them.

Starts from the operation tables that profiled runs hold (`operations.json`, or by type `operation_types.json`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.format import percent_interval, short
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.result import Answer, Paragraph, Result
from analysis.roofs import Roof, Verdict, describe, find_roofs, frame_roof, marks, place_models, verdict
from analysis.statistics.dependence import Levels, Unit, crossed_quantile, levels_of
from analysis.store.frame import is_ok
from paradnn.errors import ConfigError, StoreError
from paradnn.forecast.estimate import Estimate
from paradnn.platform.specifications import find_hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01
#: Types whose bytes go from device to device, which says nothing of either's memory.
TRANSFERS = re.compile(
    r"cross-replica|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective|nccl", re.IGNORECASE
)
_KEYS = ["run_id", "device", "precision"]
_COLUMNS = ["name", "type", "share", "flops_per_second", "arithmetic_intensity", "attainable"]
_COLUMNS += ["roof_share", "verdict", "drawn"]
_TYPES = 8  # operation types with a colour of their own


@dataclass(frozen=True)
class OperationRoofline:
    """The operations of a run under its roof.

    `operations` has one row for each operation that has a place, greatest share of the time first: name, type, share
    (of the profiled time), flops_per_second, arithmetic_intensity (FLOP/B), attainable (FLOP/s), roof_share, verdict,
    drawn (whether it takes MINIMUM_SHARE of the time). `time` maps each verdict to its share of the time,
    `without_flops` is the share of operations without FLOPs, `unplaced` of those with FLOPs but no rate or traffic,
    `covered` the share of the time that the whole table accounts for.
    """

    roof: Roof
    operations: pd.DataFrame
    time: Mapping[str, float]
    without_flops: float
    unplaced: float
    covered: float


def operation_roofline(table: pd.DataFrame, roof: Roof) -> OperationRoofline:
    """Place operations under a roof. Columns as in an operation table; without `operation`, rows are types.

    An operation's place is its own FLOPs / bytes and FLOPs / second while it runs. Those without FLOPs, such as data
    formatting, have no place; their time is reported, not dropped. Exchanges between devices have a place but neither
    of the roof's limits: their bytes cross links, whose rate the roof does not hold.
    """
    rows = _placed(table, roof)
    found = rows[rows["placed"]].sort_values("share", ascending=False, kind="stable", ignore_index=True)
    time = _time_of(rows).sum()
    verdicts = {name.value: float(time[name.value]) for name in Verdict}
    rest = (float(time[name]) for name in ("without_flops", "unplaced", "covered"))
    return OperationRoofline(roof, found[_COLUMNS], verdicts, *rest)


def _placed(table: pd.DataFrame, roof: Roof) -> pd.DataFrame:
    """The rows of a table with what `OperationRoofline.operations` holds, and whether each `works` (has FLOPs) and is
    `placed` (has a rate and an intensity as well)."""
    names = table["operation"] if "operation" in table else table["type"]
    numbers = table[["share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]].apply(
        pd.to_numeric, errors="coerce"
    )
    rows = table.assign(**numbers, name=names.astype("str"), type=table["type"].astype("str"))
    works = (rows["flops"] > 0) | (rows["arithmetic_intensity"] > 0)
    placed = works & (rows["arithmetic_intensity"] > 0) & (rows["flops_per_second"] > 0)
    placed &= np.isfinite(rows["arithmetic_intensity"]) & np.isfinite(rows["flops_per_second"])
    attainable = roof.attainable(rows["arithmetic_intensity"])
    limits = verdict(rows["arithmetic_intensity"], roof)
    limits[rows["type"].str.contains(TRANSFERS).to_numpy(dtype=bool)] = Verdict.TRANSFER.value
    return rows.assign(
        attainable=attainable,
        roof_share=rows["flops_per_second"] / attainable,
        verdict=limits,
        drawn=placed & (rows["share"] >= MINIMUM_SHARE),
        works=works,
        placed=placed,
    )


def _time_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The share of the time of each of some rows under each verdict, `without_flops`, `unplaced` and `covered`."""
    columns = {name.value: rows["placed"] & rows["verdict"].eq(name.value) for name in Verdict}
    columns |= {"without_flops": ~rows["works"], "unplaced": rows["works"] & ~rows["placed"]}
    shares = {name: rows["share"].where(here, 0.0) for name, here in columns.items()}
    return pd.DataFrame(shares | {"covered": rows["share"]})


def operations_of(run_id: str, frame: pd.DataFrame, store: Sequence[str]) -> Answer:
    """The operations of the run whose id begins so; ConfigError where not exactly one does, StoreError where it was
    not profiled."""
    from analysis.store.load import read_operations

    rows = frame[frame["run_id"].str.startswith(run_id)]
    if len(rows) != 1:
        problem = f"{len(rows)} runs begin so" if len(rows) else "no chosen run has this id"
        raise ConfigError("--operations", run_id, problem, "see run_id in python -m analysis roofline --csv -")
    run = rows.iloc[0]
    (roof,) = find_roofs(rows, find_hardware)
    title = str(run["run_name"] or run["run_id"])
    title = title if roof.device in title else f"{title} on {roof.device}"
    placed = place_models(rows, find_hardware).points
    model = tuple(placed.loc[0, ["arithmetic_intensity", "flops_per_second"]]) if len(placed) else None
    found = operation_roofline(read_operations(run["run_id"], store), roof)
    time = f"Of the profiled time: {', '.join(_time(found))}."
    return Answer(
        numbers=found.operations,
        sentences=[roof_in_words(roof), time, *_savings(found.operations)],
        picture=(lambda: draw_operations(found, title, model)) if found.operations["drawn"].any() else None,
        sources=(str(run["run_id"]),),
    )


def _time(of: OperationRoofline) -> Iterator[str]:
    """Where the profiled time went, by what limits it."""
    words = {name.value: f"{name} operations" for name in Verdict if name is not Verdict.UNKNOWN}
    shares = [(of.time[name], said) for name, said in words.items() if of.time[name] > 0]
    if of.time[Verdict.UNKNOWN] > 0:
        shares.append((of.time[Verdict.UNKNOWN], "operations under no known roof"))
    shares.append((of.without_flops, "operations without FLOPs"))
    if of.unplaced > 0:
        shares.append((of.unplaced, "operations with FLOPs but without a rate"))
    if 1 - of.covered > 0.0005:
        shares.append((1 - of.covered, "no row of the table"))
    return (f"{percent(share)} in {said}" for share, said in shares)


def _savings(rows: pd.DataFrame) -> Iterator[str]:
    """What the operations would save at their own roofs, and which of them are above those or not drawn."""
    # Links between devices have another roof.
    operations = rows[rows["roof_share"].notna() & rows["verdict"].ne(Verdict.TRANSFER)]
    saved = operations["share"] * (1 - operations["roof_share"].clip(upper=1))
    if saved.sum() > 0:
        ranked = operations.assign(saved=saved).sort_values("saved", ascending=False).head(3)
        top = [
            f"{row['name']} ({row['verdict']}, at {percent(row['roof_share'])} of its roof) {percent(row['saved'])}"
            for row in ranked.to_dict("records")
        ]
        yield (
            f"Brought to their roofs, all operations together would save {percent(saved.sum())} of the time; "
            f"most of it: {', '.join(top)}."
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelOperationsResult(Result):
    """The types of operation of many models under their roofs.

    `operations` has the columns of `OperationRoofline.operations` and before them run_id, device and precision; a row
    for each type in each model. `models` has a row a model: run_id, device, precision, the share of its profiled time
    under each verdict (columns named by its value), `without_flops`, `unplaced` and `covered`. `levels` are what the
    models share.
    """

    roofs: tuple[Roof, ...]
    operations: pd.DataFrame
    models: pd.DataFrame
    levels: Levels

    @property
    def table(self) -> pd.DataFrame:
        rows = self.operations.drop(columns="name")
        return rows[[*(name for name in rows if name != "run_id"), "run_id"]]

    @cached_property
    def types(self) -> pd.DataFrame:
        """A row for each type that is drawn, the most frequent first: operations, how many are compute-bound, whether
        they go between devices, the range of their intensities (FLOP/B), median and maximum of their share of the roof,
        median share of the time."""
        rows = self.operations[self.operations["drawn"]]
        limits = {"compute": rows["verdict"].eq("compute-bound"), "between": rows["verdict"].eq("between devices")}
        grouped = rows.assign(**limits).groupby("type")
        table = grouped.agg(
            operations=("share", "size"),
            compute_bound=("compute", "sum"),
            between_devices=("between", "any"),
            lowest_intensity=("arithmetic_intensity", "min"),
            highest_intensity=("arithmetic_intensity", "max"),
            roof_share=("roof_share", "median"),
            roof_share_best=("roof_share", "max"),
            share=("share", "median"),
        )
        return table.sort_values("operations", ascending=False, kind="stable").reset_index()

    def time(self, *verdicts: str) -> Estimate:
        """Median over models of the share of the profiled time under these verdicts together, with its 95% interval."""
        return crossed_quantile(self.models[list(verdicts)].sum(axis=1), self.levels)

    @property
    def drawable(self) -> bool:
        return bool(self.operations["drawn"].any())

    def _figure(self) -> Figure:
        return _draw_types(self)

    def _paragraphs(self) -> Iterator[Paragraph | str]:
        yield from map(roof_in_words, self.roofs)
        yield Paragraph(
            f"{self.operations['drawn'].sum()} operations of {len(self.models)} models are drawn, types of operation "
            f"with FLOPs and at least {percent(MINIMUM_SHARE)} of their model's time.",
            tuple(map(_type, self.types.to_dict("records"))),
        )
        verdicts = ("memory-bound", "between devices", "at the ridge", "compute-bound", "unknown")
        times = [f"{one} {percent_interval(self.time(one))}" for one in verdicts if (self.models[one] > 0).any()]
        times.append(f"without FLOPs {percent_interval(self.time('without_flops', 'unplaced'))}")
        over = f"95% intervals over {self.levels.words}"
        yield f"Of a model's profiled time, in the median ({over}): {'; '.join(times)}."
        if len(self.types) and self.types["between_devices"].any():
            both = percent_interval(self.time("memory-bound", "between devices"))
            yield (
                "What goes between devices has an intensity far left of the ridge, yet its bytes cross links, which "
                f"are no ceiling of this roof. Counted as memory-bound, these would be {both} of the time together."
            )


def operations_of_all(frame: pd.DataFrame, store: Sequence[str], pooled: str, unit: Unit) -> ModelOperationsResult:
    """The types of operation of the profiled runs of a frame (paper, Figure 3b), one run for each point; StoreError
    where none was profiled."""
    from analysis.store.load import load_types

    runs = frame[is_ok(frame)]
    types = load_types(runs, store)
    runs = runs[runs["run_id"].isin(types["run_id"])]
    if runs.empty:
        raise StoreError("none of the chosen runs was profiled; measure them with measure.profile=true")
    # Replicates of a point say the same thing again; points of different environments do not.
    keys = [name for name in ("point_id", "environment_id", "protocol_id") if name in runs]
    runs = runs.drop_duplicates(keys) if "point_id" in runs else runs
    places = ("device", "precision")
    runs = runs.assign(**{name: runs[name].astype("object").fillna(not_recorded(name)) for name in places})
    roofs = find_roofs(runs, find_hardware)
    keyed = types.merge(runs[_KEYS], on="run_id")
    rows = pd.concat(
        [
            _placed(keyed[keyed["device"].eq(roof.device) & keyed["precision"].eq(roof.precision)], roof)
            for roof in roofs
        ],
        ignore_index=True,
    )
    models = rows[_KEYS].join(_time_of(rows)).groupby(_KEYS, sort=False, as_index=False).sum()
    sizes = sorted(str(name) for name in runs if str(name).startswith("model.") and name != "model.name")
    extra = ["batch_size", *(name for name in sizes if runs[name].nunique() > 1)]
    extra = [name for name in dict.fromkeys(extra) if name in runs and name not in (*_KEYS, *_COLUMNS)]
    found = rows.loc[rows["placed"], [*_KEYS, *_COLUMNS]].merge(runs[["run_id", *extra]], on="run_id", how="left")
    return ModelOperationsResult(
        roofs=roofs,
        operations=found,
        models=models,
        levels=levels_of(runs.set_index("run_id").loc[models["run_id"]], unit),
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _type(row: dict[Any, Any]) -> str:
    """One type's operations: what limits them, where they lie, how near they come to the roof."""
    low, high = (f"{row[end]:.3g}" for end in ("lowest_intensity", "highest_intensity"))
    where = f"{low} FLOP/B" if low == high else f"{low} to {high} FLOP/B"
    name = f"{row['type']}, {row['operations']} operations at {where}"
    if row["between_devices"]:
        best = percent(row["roof_share_best"])
        return f"{name}: between devices; they never draw more than {best} of what memory would give."
    return (
        f"{name}: {row['compute_bound']} compute-bound; {percent(row['roof_share'])} of the roof in the median, at "
        f"most {percent(row['roof_share_best'])}."
    )


def roof_in_words(roof: Roof) -> str:
    """The ceilings with their sources and the ridge point, or what is not known of them."""
    name = f"{roof.device} in {roof.precision}"
    peak, bandwidth = short(roof.peak or 0, "FLOP/s", digits=3), short(roof.bandwidth or 0, "B/s", digits=3)
    if roof.ridge is None:
        known = [f"peak {peak} ({roof.peak_source})"] if roof.peak else []
        known += [f"bandwidth {bandwidth} ({roof.bandwidth_source})"] if roof.bandwidth else []
        extent = f"only its {known[0]} is known" if known else "neither ceiling is known"
        return f"{name}: no roof, {extent}; measure the ceilings with python -m paradnn.ceilings."
    same = roof.peak_source == roof.bandwidth_source
    source = f"{roof.peak_source} ceilings" if same else f"ceilings, {roof.source}"
    spread = ""
    if roof.ridge_low != roof.ridge_high:
        spread = f" ({roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs)"
    return f"{name}: {source}, {peak} and {bandwidth}; the ridge point is at {roof.ridge:.3g} FLOP/B{spread}."


def percent(value: float) -> str:
    """A share to three digits, "unknown" where it is NaN."""
    return "unknown" if math.isnan(value) else short(value, share=True, digits=3)


def draw_operations(found: OperationRoofline, title: str, model: tuple[float, float] | None = None) -> Figure:
    """Operations that take at least the minimum share of the time; a marker's area is that share.

    `model` is the intensity (FLOP/B) and rate (FLOP/s) of the whole run, drawn as a star.
    """
    points = found.operations[found.operations["drawn"]]
    types = points.groupby("type")["share"].sum().sort_values(ascending=False)
    drawn, (axes,) = drawing.panels(1, 8.5, 4.4)
    handles = []
    for label, kinds, look in _looks(types):
        rows = points[points["type"].isin(kinds)]
        marks(axes, rows, 20 + 900 * rows["share"], look["color"], look["marker"])
        handles.append(drawing.handle(f"{label} {short(types[kinds].sum(), share=True, digits=3)}", **look))
    placed = points[["arithmetic_intensity", "flops_per_second"]]
    if model is not None:
        star: dict[str, Any] = {"color": drawing.COLOURS[-1], "marker": "*"}
        axes.plot(*model, markersize=13, markeredgecolor="white", zorder=4, **star)
        handles.append(drawing.handle("the whole model", **star))
        placed = pd.concat([placed, pd.DataFrame([model], columns=placed.columns)])
    frame_roof(axes, placed, found.roof)
    drawing.finish(axes, f"{title}\n{describe(found.roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    drawing.legend(drawn, handles, "type, share of the time (area: share)")
    return drawn


def _draw_types(found: ModelOperationsResult) -> Figure:
    """A panel for each device and precision. Drawn is what takes at least the minimum share of its model's time."""
    points = found.operations[found.operations["drawn"]]
    types = points["type"].value_counts()
    keys = list(dict.fromkeys(zip(points["device"], points["precision"], strict=True)))
    drawn, panels = drawing.panels(len(keys), 8.5, 4.4)
    for axes, key in zip(panels, keys, strict=True):
        mine = points[points["device"].eq(key[0]) & points["precision"].eq(key[1])]
        roof = next(roof for roof in found.roofs if (roof.device, roof.precision) == key)
        for _, kinds, look in _looks(types):
            marks(axes, mine[mine["type"].isin(kinds)], 16, look["color"], look["marker"])
        frame_roof(axes, mine, roof)
        title = f"{len(mine)} operations of {mine['run_id'].nunique()} models on {key[0]}, {key[1]}"
        drawing.finish(axes, f"{title}\n{describe(roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    handles = [drawing.handle(f"{label} ({types[kinds].sum()})", **look) for label, kinds, look in _looks(types)]
    drawing.legend(drawn, handles, "type (operations)")
    return drawn


def _looks(types: pd.Series) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Label, types and look: all where there are few, else the first by themselves and the others in grey."""
    named = list(types.index[: _TYPES if len(types) <= _TYPES else _TYPES - 1])
    for kind in named:
        yield kind, [kind], drawing.look(kind, named)
    if rest := list(types.index[len(named) :]):
        yield f"{len(rest)} other types", rest, drawing.look(None)
