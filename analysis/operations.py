"""`roofline --operations all`: the types of operation of all profiled models under the roofs of their devices.

`roofline --operations`: the operations of one profiled run under the roof of its device.

Roofline of operations, of one run or of many: which of the time memory limits, which arithmetic, which the links
between devices, and which none of them can explain.

Starts from the operation tables that profiled runs hold (`operations.json`, or by type `operation_types.json`).

Pictures of operations under their roof: those of one run, and the types of operation of many models.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis.columns import find_column
from analysis.format import percent_interval, short
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.result import Paragraph, Result
from analysis.roofs import Roof, Verdict, describe, find_roofs, frame_roof, marks, place_models, verdict
from analysis.statistics.dependence import Levels, Unit, crossed_quantile, levels_of
from analysis.store.frame import is_ok
from paradnn.errors import ConfigError, StoreError
from paradnn.forecast.estimate import Estimate
from paradnn.platform.specifications import find_hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelOperationsResult(Result):
    """The types of operation of many models; `levels` are what these (rows of `found.models`) share, `colour` is the
    column that colours the types, None for the type itself."""

    found: OperationsOfModels
    levels: Levels
    colour: str | None = None

    @property
    def table(self) -> pd.DataFrame:
        rows = self.found.operations.drop(columns="name")
        return rows[[*(name for name in rows if name != "run_id"), "run_id"]]

    @cached_property
    def types(self) -> pd.DataFrame:
        """A row for each type that is drawn, the most frequent first: operations, how many are compute-bound, whether
        they go between devices, the range of their intensities (FLOP/B), median and maximum of their share of the roof,
        median share of the time."""
        rows = self.found.operations[self.found.operations["drawn"]]
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
        return crossed_quantile(self.found.models[list(verdicts)].sum(axis=1), self.levels)

    @property
    def drawable(self) -> bool:
        return bool(self.found.operations["drawn"].any())

    def _figure(self) -> Figure:
        return draw_operations_of_models(self.found, self.colour)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield from (Paragraph(roof_in_words(roof)) for roof in self.found.roofs)
        drawn, models = int(self.found.operations["drawn"].sum()), len(self.found.models)
        left_out = ", ".join(f"{count} {reason}" for reason, count in self.found.left_out.items())
        least = percent(self.found.minimum_share)
        yield Paragraph(
            f"{drawn} operations of {models} models are drawn, types of operation with FLOPs and at least {least} of "
            f"their model's time{f'; left out: {left_out}' if left_out else ''}.",
            tuple(map(_type, self.types.to_dict("records"))),
        )
        over = f"95% intervals over {self.levels.words}"
        yield Paragraph(f"Of a model's profiled time, in the median ({over}): {'; '.join(self._times())}.")
        if len(self.types) and self.types["between_devices"].any():
            both = percent_interval(self.time("memory-bound", "between devices"))
            yield Paragraph(
                "What goes between devices has an intensity far left of the ridge, yet its bytes cross links, which "
                f"are no ceiling of this roof. Counted as memory-bound, these would be {both} of the time together."
            )

    def _times(self) -> Iterator[str]:
        models = self.found.models
        for name in ("memory-bound", "between devices", "at the ridge", "compute-bound", "unknown"):
            if (models[name] > 0).any():
                yield f"{name} {percent_interval(self.time(name))}"
        yield f"without FLOPs {percent_interval(self.time('without_flops', 'unplaced'))}"


def operations_of_all(
    frame: pd.DataFrame, store: Sequence[str], colour: str | None, pooled: str, unit: Unit
) -> ModelOperationsResult:
    """The types of operation of the profiled runs of a frame, one run for each point; StoreError where none was
    profiled, ConfigError for a `colour` that is no column."""
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
    found = operations_of_models(types, runs, find_roofs(runs, find_hardware))
    column = None if colour in (None, "type") else find_column(runs, str(colour), "--colour")
    extra = [name for name in ("batch_size", *sorted(_model_columns(runs)), column) if name and name in runs]
    extra = [name for name in dict.fromkeys(extra) if name not in found.operations]
    return ModelOperationsResult(
        found=_with(found, runs[["run_id", *extra]]),
        levels=levels_of(runs.set_index("run_id").loc[found.models["run_id"]], unit),
        colour=column,
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _model_columns(runs: pd.DataFrame) -> list[str]:
    sizes = [str(name) for name in runs if str(name).startswith("model.") and name != "model.name"]
    return [name for name in sizes if runs[name].nunique() > 1]


def _with(found: OperationsOfModels, columns: pd.DataFrame) -> OperationsOfModels:
    return replace(found, operations=found.operations.merge(columns, on="run_id", how="left"))


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationRooflineResult(Result):
    """One run's operations; `title` names the run, `model` is its own place (FLOP/B, FLOP/s), None without one."""

    roofline: OperationRoofline
    title: str
    model: tuple[float, float] | None

    @property
    def table(self) -> pd.DataFrame:
        return self.roofline.operations

    @property
    def drawable(self) -> bool:
        return bool(self.roofline.operations["drawn"].any())

    def _figure(self) -> Figure:
        return draw_operations(self.roofline, self.title, self.model)

    def _paragraphs(self) -> Iterator[Paragraph]:
        yield Paragraph(roof_in_words(self.roofline.roof))
        yield Paragraph(f"Of the profiled time: {', '.join(_time(self.roofline))}.")
        yield from map(Paragraph, _savings(self.roofline))


def operations_of(run_id: str, frame: pd.DataFrame, store: Sequence[str]) -> OperationRooflineResult:
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
    placed = place_models(rows, find_hardware).points
    return OperationRooflineResult(
        roofline=operation_roofline(read_operations(run["run_id"], store), roof),
        title=title if roof.device in title else f"{title} on {roof.device}",
        model=tuple(placed.loc[0, ["arithmetic_intensity", "flops_per_second"]]) if len(placed) else None,
        sources=(str(run["run_id"]),),
    )


def _time(of: OperationRoofline) -> Iterator[str]:
    """Where the profiled time went, by what limits it."""
    for kind, share in of.time.items():
        if share > 0 and kind is not Verdict.UNKNOWN:
            yield f"{percent(share)} in {kind} operations"
    if of.time[Verdict.UNKNOWN] > 0:
        yield f"{percent(of.time[Verdict.UNKNOWN])} in operations under no known roof"
    yield f"{percent(of.without_flops)} in operations without FLOPs"
    if of.unplaced > 0:
        yield f"{percent(of.unplaced)} in operations with FLOPs but without a rate"
    missing = 1 - of.covered
    if missing > 0.0005:
        yield f"{percent(missing)} in no row of the table"


def _savings(of: OperationRoofline) -> Iterator[str]:
    """What the operations would save at their own roofs, and which of them are above those or not drawn."""
    # Links between devices have another roof.
    here = of.operations["roof_share"].notna() & of.operations["verdict"].ne(Verdict.TRANSFER)
    operations = of.operations[here]
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
    above = operations[operations["roof_share"] > 1.05]
    if len(above):
        yield (
            f"Above their roof: {len(above)} of them, {percent(above['share'].sum())} of the time; "
            "their operands came from caches, or the ceilings are too low."
        )
    hidden = int((~of.operations["drawn"]).sum())
    if hidden:
        yield f"Below {percent(of.minimum_share)} of the time, and not drawn: {hidden} of them."


def roof_in_words(roof: Roof) -> str:
    """The ceilings with their sources and the ridge point, or what is not known of them."""
    name = f"{roof.device} in {roof.precision}"
    if roof.ridge is None:
        known = [f"peak {_si(roof.peak, 'FLOP/s')} ({roof.peak_source})"] if roof.peak else []
        known += [f"bandwidth {_si(roof.bandwidth, 'B/s')} ({roof.bandwidth_source})"] if roof.bandwidth else []
        extent = f"only its {known[0]} is known" if known else "neither ceiling is known"
        return f"{name}: no roof, {extent}; measure the ceilings with python -m paradnn.ceilings."
    same = roof.peak_source == roof.bandwidth_source
    source = f"{roof.peak_source} ceilings" if same else f"ceilings, {roof.source}"
    spread = ""
    if roof.ridge_low != roof.ridge_high:
        spread = f" ({roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs)"
    return (
        f"{name}: {source}, {_si(roof.peak or 0, 'FLOP/s')} and {_si(roof.bandwidth or 0, 'B/s')}; "
        f"the ridge point is at {roof.ridge:.3g} FLOP/B{spread}."
    )


def percent(value: float) -> str:
    """A share to three digits, "unknown" where it is NaN."""
    return "unknown" if math.isnan(value) else short(value, share=True, digits=3)


def _si(value: float, unit: str) -> str:
    return short(value, unit, digits=3)


#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01

#: Types whose bytes go from device to device, which says nothing of either's memory.
TRANSFERS = re.compile(
    r"cross-replica|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective|nccl", re.IGNORECASE
)


@dataclass(frozen=True)
class OperationRoofline:
    """The operations of a run under its roof.

    `operations` has one row for each operation that has a place, greatest share of the time first: name, type, share
    (of the profiled time), flops_per_second, arithmetic_intensity (FLOP/B), attainable (FLOP/s), roof_share, verdict,
    drawn (whether it takes `minimum_share` of the time). `time` maps each verdict to its share of the time,
    `without_flops` is the share of operations without FLOPs, `unplaced` of those with FLOPs but no rate or traffic,
    `covered` the share of the time that the whole table accounts for.
    """

    roof: Roof
    operations: pd.DataFrame
    time: Mapping[Verdict, float]
    without_flops: float
    unplaced: float
    covered: float
    minimum_share: float


@dataclass(frozen=True)
class OperationsOfModels:
    """The types of operation of many profiled models under their roofs.

    `operations` has the columns of `OperationRoofline.operations` and before them run_id, device and precision; a row
    for each type in each model. `models` has a row a model: run_id, device, precision, the share of its profiled time
    under each verdict (columns named by its value), `without_flops`, `unplaced` and `covered`. `left_out` counts, by
    reason, the rows of the tables that are not drawn.
    """

    roofs: tuple[Roof, ...]
    operations: pd.DataFrame
    models: pd.DataFrame
    left_out: Mapping[str, int]
    minimum_share: float


_COLUMNS = [
    "name",
    "type",
    "share",
    "flops_per_second",
    "arithmetic_intensity",
    "attainable",
    "roof_share",
    "verdict",
    "drawn",
]


def operation_roofline(table: pd.DataFrame, roof: Roof, minimum_share: float = MINIMUM_SHARE) -> OperationRoofline:
    """Place operations under a roof. Columns as in an operation table; without `operation`, rows are types.

    An operation's place is its own FLOPs / bytes and FLOPs / second while it runs. Those without FLOPs, such as data
    formatting, have no place; their time is reported, not dropped. Exchanges between devices have a place but neither
    of the roof's limits: their bytes cross links, whose rate the roof does not hold.
    """
    rows = _placed(table, roof, minimum_share)
    found = rows[rows["placed"]].sort_values("share", ascending=False, kind="stable").reset_index(drop=True)
    time = {name: float(found.loc[found["verdict"] == name, "share"].sum()) for name in Verdict}
    return OperationRoofline(
        roof=roof,
        operations=found[_COLUMNS],
        time=time,
        without_flops=float(rows.loc[~rows["works"], "share"].sum()),
        unplaced=float(rows.loc[rows["works"] & ~rows["placed"], "share"].sum()),
        covered=float(rows["share"].sum()),
        minimum_share=minimum_share,
    )


def operations_of_models(
    types: pd.DataFrame, models: pd.DataFrame, roofs: tuple[Roof, ...], minimum_share: float = MINIMUM_SHARE
) -> OperationsOfModels:
    """Place the types of operation of many models, as `operation_roofline` does those of one (paper, Figure 3b).

    `types` are operation tables with the column run_id (`analysis.store.load.load_types`), `models` says the
    device and precision of each run_id. Without a row all parts are empty.
    """
    keyed = types.merge(models[["run_id", "device", "precision"]], on="run_id")
    parts = [
        _placed(keyed[(keyed["device"] == roof.device) & (keyed["precision"] == roof.precision)], roof, minimum_share)
        for roof in roofs
    ]
    keys = ["run_id", "device", "precision"]
    rows = pd.concat(parts, ignore_index=True) if parts else _placed(keyed, Roof("", "", None, None, "", ""), 0)
    time = {
        name.value: rows["share"].where(rows["placed"] & rows["verdict"].eq(name.value), 0.0) for name in Verdict
    } | {
        "without_flops": rows["share"].where(~rows["works"], 0.0),
        "unplaced": rows["share"].where(rows["works"] & ~rows["placed"], 0.0),
        "covered": rows["share"],
    }
    shares = rows[keys].assign(**time).groupby(keys, sort=False, as_index=False).sum()
    left_out = {
        "without FLOPs": int((~rows["works"]).sum()),
        "without a rate or traffic of their own": int((rows["works"] & ~rows["placed"]).sum()),
        f"below {100 * minimum_share:g}% of the time": int((rows["placed"] & ~rows["drawn"]).sum()),
    }
    found = rows.loc[rows["placed"], [*keys, *_COLUMNS]].reset_index(drop=True)
    return OperationsOfModels(
        roofs, found, shares, {reason: count for reason, count in left_out.items() if count}, minimum_share
    )


def _placed(table: pd.DataFrame, roof: Roof, minimum_share: float) -> pd.DataFrame:
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
        drawn=placed & (rows["share"] >= minimum_share),
        works=works,
        placed=placed,
    )


_TYPES = 8  # operation types with a colour of their own
_WRAP = 30  # characters of a legend's line


def draw_operations(result: OperationRoofline, title: str, model: tuple[float, float] | None = None) -> Figure:
    """Operations that take at least the minimum share of the time; a marker's area is that share.

    `model` is the intensity (FLOP/B) and rate (FLOP/s) of the whole run, drawn as a star.
    """
    points = result.operations[result.operations["drawn"]]
    types = points.groupby("type")["share"].sum().sort_values(ascending=False)
    named = _named(types)
    drawn, axes = drawing.figure(8.5, 4.8)
    handles = []
    for kind in [*named, None]:
        here = points[points["type"] == kind] if kind else points[~points["type"].isin(named)]
        colour, marker = _look(kind, named)
        marks(axes, here, 20 + 900 * here["share"], colour, marker)
        if kind:
            handles.append(_handle(colour, marker, f"{kind} {short(types[kind], share=True, digits=3)}"))
    rest = types.drop(named)
    if len(rest):
        handles.append(_handle(drawing.GREY, "o", f"{len(rest)} others {short(rest.sum(), share=True, digits=3)}"))
    placed = points[["arithmetic_intensity", "flops_per_second"]]
    if model is not None:
        axes.plot(*model, "*", color=drawing.COLOURS[-1], markersize=13, markeredgecolor="white", zorder=4)
        handles.append(_handle(drawing.COLOURS[-1], "*", "the whole model"))
        placed = pd.concat([placed, pd.DataFrame([model], columns=placed.columns)])
    frame_roof(axes, placed, result.roof)
    drawing.finish(axes, f"{title}\n{describe(result.roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    _legend(drawn, handles, "type, share of the time\n(area: share)")
    return drawn


def draw_operations_of_models(result: OperationsOfModels, colour: str | None = None) -> Figure:
    """The types of operation of many models, a panel for each device and precision: the paper's Figure 3b.

    Drawn is what takes at least the minimum share of its model's time, coloured by type or by the column `colour`.
    """
    points = result.operations[result.operations["drawn"]]
    types = points["type"].value_counts()
    named = _named(types)
    keys = list(dict.fromkeys(zip(points["device"], points["precision"], strict=True)))
    drawn, several = drawing.figure(8.5, 0.4 + 4.4 * len(keys), rows=len(keys))
    panels = list(several.flat) if len(keys) > 1 else [several]
    shades = None if colour is None else drawing.colouring(points[colour], colour)
    for axes, (device, precision) in zip(panels, keys, strict=True):
        mine = points[(points["device"] == device) & (points["precision"] == precision)]
        roof = next(roof for roof in result.roofs if (roof.device, roof.precision) == (device, precision))
        if shades is None or colour is None:
            for kind in [*named, None]:
                here = mine[mine["type"] == kind] if kind else mine[~mine["type"].isin(named)]
                marks(axes, here, 16, *_look(kind, named))
        else:
            for part, look in shades.parts(mine[colour]):
                axes.scatter(
                    mine.loc[part, "arithmetic_intensity"],
                    mine.loc[part, "flops_per_second"],
                    s=14,
                    linewidths=0,
                    alpha=0.8,
                    zorder=2,
                    **look,
                )
        frame_roof(axes, mine, roof)
        models = mine["run_id"].nunique()
        title = f"{len(mine)} operations of {models} models on {device}, {precision}"
        drawing.finish(axes, f"{title}\n{describe(roof)}", "arithmetic intensity (FLOP/B)", "FLOP/s")
    if shades is not None:
        shades.explain(drawn, panels)
        return drawn
    handles = [_handle(*_look(kind, named), f"{kind} ({types[kind]})") for kind in named]
    rest = types.drop(named)
    if len(rest):
        handles.append(_handle(drawing.GREY, "o", f"{len(rest)} other types ({rest.sum()})"))
    _legend(drawn, handles, "type (operations)")
    return drawn


def _named(types: pd.Series) -> list[str]:
    """The types with a look of their own: all where there are few, else all but those of the last places."""
    return list(types.index[: _TYPES if len(types) <= _TYPES else _TYPES - 1])


def _look(kind: str | None, named: Sequence[str]) -> tuple[str, str]:
    """Colour and marker; grey for what has no name of its own."""
    return (drawing.GREY, "o") if kind is None else (drawing.colour_of(kind, named), drawing.marker_of(kind, named))


def _handle(colour: str, marker: str, label: str) -> drawing.Line2D:
    return drawing.Line2D([], [], color=colour, marker=marker, linestyle="none", label=textwrap.fill(label, _WRAP))


def _legend(drawn: Figure, handles: list[drawing.Line2D], title: str) -> None:
    drawn.legend(
        handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False, title_fontsize=8, title=title
    )
