"""`roofline --operations`: the operations of one profiled run, or the types of those of all, under
the roof of their device: which of the time memory limits, which arithmetic, which the links between
devices, and which none of them.

Starts from the operation tables that profiled runs hold (`operations.json`, or by type
`operation_types.json`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.ceilings import with_best_ceilings
from analysis.format import format_percent_interval
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.result import Paragraph, Result
from analysis.roofs import (
    Roof,
    RoofVerdict,
    draw_roofs,
    find_roofs,
    find_verdict,
    format_roof,
    format_share,
    roof_sentences,
)
from analysis.store.frame import is_ok
from paradnn.core.errors import ConfigError, StoreError
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.dependence import Levels, Unit, crossed_quantile, shared_levels
from paradnn.statistics.estimate import Estimate

#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01
#: Types whose bytes go from device to device, which says nothing of either's memory.
TRANSFERS = re.compile(
    r"cross-replica|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective|nccl",
    re.IGNORECASE,
)
ALL = "all"  # no run's id begins so: ids are hexadecimal
_KEYS = ["run_id", "device", "precision"]
_COLUMNS = ["name", "type", "share", "flops_per_second", "arithmetic_intensity", "attainable"]
_COLUMNS += ["roof_share", "verdict", "drawn"]
_TYPES = 8  # operation types with a colour of their own


def place_operations(
    table: pd.DataFrame, roofs: Sequence[Roof]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Operations, or types where there is no column `operation`, under the roofs of their device
    and precision.

    The first holds those that have a place, their own FLOPs / bytes and FLOPs / second while they
    run: run_id, device, precision, name, type, share (of the profiled time), flops_per_second,
    arithmetic_intensity (FLOP/B), attainable (FLOP/s), roof_share, verdict, drawn (whether it takes
    MINIMUM_SHARE of the time). Exchanges between devices have neither of the roof's limits: their
    bytes cross links, whose rate the roof does not hold. The second has a row for each run: the
    share of its time under each verdict (columns named by its value), `without_flops`, such as data
    formatting, `unplaced` (with FLOPs but no rate or traffic) and `covered`, what the whole table
    accounts for.
    """
    of_roof = (
        table["device"].eq(roof.device) & table["precision"].eq(roof.precision) for roof in roofs
    )
    parts = [_placed(table[mine], roof) for mine, roof in zip(of_roof, roofs, strict=True)]
    rows = pd.concat(parts, ignore_index=True)
    columns = {name.value: rows["placed"] & rows["verdict"].eq(name.value) for name in RoofVerdict}
    columns |= {"without_flops": ~rows["works"], "unplaced": rows["works"] & ~rows["placed"]}
    shares = {name: rows["share"].where(here, 0.0) for name, here in columns.items()}
    times = pd.DataFrame(shares | {"covered": rows["share"]})
    models = rows[_KEYS].join(times).groupby(_KEYS, sort=False, as_index=False).sum()
    return rows.loc[rows["placed"], [*_KEYS, *_COLUMNS]].reset_index(drop=True), models


def _placed(table: pd.DataFrame, roof: Roof) -> pd.DataFrame:
    """Rows under one roof, and whether each `works` (has FLOPs) and is `placed` (has rate and
    intensity, too).
    """
    names = ["share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]
    rows = table.assign(name=table["operation" if "operation" in table else "type"].astype("str"))
    rows = rows.assign(
        type=rows["type"].astype("str"), **rows[names].apply(pd.to_numeric, errors="coerce")
    )
    intensity = rows["arithmetic_intensity"]
    rate = rows["flops_per_second"]
    works = (rows["flops"] > 0) | (intensity > 0)
    placed = works & (intensity > 0) & (rate > 0) & np.isfinite(intensity) & np.isfinite(rate)
    attainable = roof.attainable(intensity)
    limits = find_verdict(intensity, roof)
    limits[rows["type"].str.contains(TRANSFERS).to_numpy(dtype=bool)] = RoofVerdict.TRANSFER.value
    drawn = placed & (rows["share"] >= MINIMUM_SHARE)
    reached = {"attainable": attainable, "roof_share": rate / attainable, "verdict": limits}
    return rows.assign(**reached, drawn=drawn, works=works, placed=placed)


def operations_of(
    which: str, frame: pd.DataFrame, store: Sequence[str], pooled: str = "", unit: Unit = "crossed"
) -> OperationsResult:
    """The operations of the run whose id begins so, or the types of operation of all profiled runs
    (paper, Figure 3b), one run for each point.

    ConfigError where not exactly one id begins so, StoreError where nothing was profiled.
    """
    from analysis.store.load import load_types, read_operations

    if which == ALL:
        runs = frame[is_ok(frame)]
        table = load_types(runs, store)
        runs = runs[runs["run_id"].isin(table["run_id"])]
        if runs.empty:
            raise StoreError(
                "none of the chosen runs was profiled; measure them with measure.profile=true"
            )
        # Replicates of a point say the same thing again; points of different environments do not.
        keys = [name for name in ("point_id", "environment_id", "protocol_id") if name in runs]
        runs = runs.drop_duplicates(keys) if "point_id" in runs else runs
    else:
        runs = frame[frame["run_id"].str.startswith(which)]
        if len(runs) != 1:
            if len(runs):
                problem = f"{len(runs)} runs begin so"
            else:
                problem = "no chosen run has this id"
            raise ConfigError(
                "--operations", which, problem, "see run_id in python -m analysis roofline --csv -"
            )
        table = read_operations(runs["run_id"].iloc[0], store).assign(run_id=runs["run_id"].iloc[0])
    places = ("device", "precision")
    runs = runs.assign(
        **{name: runs[name].astype("object").fillna(not_recorded(name)) for name in places}
    )
    roofs = find_roofs(with_best_ceilings(runs, store), find_hardware)
    found, models = place_operations(table.merge(runs[_KEYS], on="run_id"), roofs)
    sizes = sorted(
        str(name) for name in runs if str(name).startswith("model.") and name != "model.name"
    )
    extra = [name for name in sizes if runs[name].nunique() > 1]
    extra = ["batch_size", *extra] if "batch_size" in runs else extra
    return operations_result(
        roofs,
        found.merge(runs[["run_id", *extra]], on="run_id", how="left"),
        models=models,
        levels=shared_levels(runs.set_index("run_id").loc[models["run_id"]], unit),
        alone="" if which == ALL else str(runs["run_name"].iloc[0] or runs["run_id"].iloc[0]),
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationsResult(Result):
    """The operations of one run, or the types of operation of many, under their roofs: `operations`
    and `models` as of `place_operations`, `levels` are what the models share.
    """

    operations: pd.DataFrame
    models: pd.DataFrame
    levels: Levels


def operations_result(
    roofs: Sequence[Roof],
    operations: pd.DataFrame,
    models: pd.DataFrame,
    levels: Levels,
    alone: str = "",
    **more: Any,
) -> OperationsResult:
    """Placed operations as a result: those of one run, whose name is `alone`, or the types of those
    of many.
    """
    table = operations[[*operations.columns.drop(["name", "run_id"]), "run_id"]]
    if alone:
        table = operations[_COLUMNS].sort_values(
            "share", ascending=False, kind="stable", ignore_index=True
        )
    return OperationsResult(
        operations=operations,
        models=models,
        levels=levels,
        numbers=table,
        sentences=[
            *map(roof_sentences, roofs),
            *(
                _of_one(operations, models.iloc[0].to_dict())
                if alone
                else _of_many(operations, models, levels)
            ),
        ],
        picture=(lambda: _draw(roofs, operations, alone)) if operations["drawn"].any() else None,
        **more,
    )


def types_of(operations: pd.DataFrame) -> pd.DataFrame:
    """A row for each type that is drawn, the most frequent first: operations, how many are
    compute-bound, whether they go between devices, the range of their intensities (FLOP/B), of roof
    shares median and maximum, of time median.
    """
    rows = operations[operations["drawn"]]
    limits = {
        "compute": rows["verdict"].eq("compute-bound"),
        "between": rows["verdict"].eq("between devices"),
    }
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


def time_of(models: pd.DataFrame, levels: Levels, *verdicts: str) -> Estimate:
    """Median over models of the share of the profiled time under these verdicts together, with its
    95% interval.
    """
    return crossed_quantile(models[list(verdicts)].sum(axis=1), levels)


def _verdicts(models: Any) -> list[str]:
    """The verdicts under which any time is."""
    return [name.value for name in RoofVerdict if np.any(models[name.value] > 0)]


def _of_one(operations: pd.DataFrame, time: dict[Any, Any]) -> Iterator[str]:
    """Where the time of a run is, and what its operations would save at their own roofs; links have
    another.
    """
    rest = {
        "without FLOPs": time["without_flops"],
        "with FLOPs but without a rate": time["unplaced"],
    }
    rest |= {"in no row of the table": 1 - time["covered"]}
    shares = {name: time[name] for name in _verdicts(time)} | {
        name: rest[name] for name in rest if rest[name] > 5e-4
    }
    yield f"Of the profiled time: {', '.join(f'{format_share(part)} {name}' for name, part in shares.items())}."
    rows = operations[
        operations["roof_share"].notna() & operations["verdict"].ne(RoofVerdict.TRANSFER)
    ]
    rows = rows.assign(saved=rows["share"] * (1 - rows["roof_share"].clip(upper=1)))
    if rows["saved"].sum() > 0:
        top = ", ".join(
            f"{row['name']} ({row['verdict']}, at {format_share(row['roof_share'])} of its roof) {format_share(row['saved'])}"
            for row in rows.nlargest(3, "saved").to_dict("records")
        )
        whole = format_share(rows["saved"].sum())
        yield f"Brought to their roofs, all operations would save {whole} of the time; most of it: {top}."


def _of_many(
    operations: pd.DataFrame, models: pd.DataFrame, levels: Levels
) -> Iterator[Paragraph | str]:
    yield Paragraph(
        f"{operations['drawn'].sum()} operations of {len(models)} models are drawn, types of operation with FLOPs and "
        f"at least {format_share(MINIMUM_SHARE)} of their model's time.",
        tuple(map(_type, types_of(operations).to_dict("records"))),
    )
    times = [
        f"{one} {format_percent_interval(time_of(models, levels, one))}"
        for one in _verdicts(models)
    ]
    times.append(
        f"without FLOPs {format_percent_interval(time_of(models, levels, 'without_flops', 'unplaced'))}"
    )
    yield f"Of a model's profiled time, in the median (95% intervals over {levels.description}): {'; '.join(times)}."


def _draw(roofs: Sequence[Roof], operations: pd.DataFrame, alone: str) -> drawing.Figure:
    """A panel for each device and precision. Drawn is what takes at least the minimum share of its
    model's time; of one run a mark's area is that share.
    """
    points = operations[operations["drawn"]]
    of_type = points.groupby("type")["share"]
    types = (of_type.sum() if alone else of_type.size()).sort_values(ascending=False, kind="stable")
    looks = list(_looks(types))
    keys = list(dict.fromkeys(zip(points["device"], points["precision"], strict=True)))
    drawn, panels = drawing.panels(len(keys), 8.5, 4.4)
    for axes, (device, precision) in zip(panels, keys, strict=True):
        mine = points[points["device"].eq(device) & points["precision"].eq(precision)]
        for _, kinds, look in looks:
            rows = mine[mine["type"].isin(kinds)]
            size: Any = 20 + 900 * rows["share"] if alone else 16
            x = rows["arithmetic_intensity"]
            y = rows["flops_per_second"]
            axes.scatter(
                x, y, s=size, alpha=0.8, zorder=2, edgecolors="white", linewidths=0.4, **look
            )
        roof = next(roof for roof in roofs if (roof.device, roof.precision) == (device, precision))
        draw_roofs(axes, mine, roof)
        whose = alone or f"{mine['run_id'].nunique()} models"
        title = f"{len(mine)} operations of {whose} on {device}, {precision}\n{format_roof(roof)}"
        drawing.finish(axes, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    sums = [types[kinds].sum() for _, kinds, _ in looks]
    said = [format_share(part) if alone else f"({part})" for part in sums]
    handles = [
        drawing.handle(f"{one[0]} {words}", **one[2])
        for one, words in zip(looks, said, strict=True)
    ]
    drawing.legend(
        drawn, handles, "type, share of the time (area: share)" if alone else "type (operations)"
    )
    return drawn


def _type(row: dict[Any, Any]) -> str:
    """One type's operations: what limits them, where they lie, how near they come to the roof."""
    low, high = (f"{row[end]:.3g}" for end in ("lowest_intensity", "highest_intensity"))
    where = f"{low} FLOP/B" if low == high else f"{low} to {high} FLOP/B"
    name = f"{row['type']}, {row['operations']} operations at {where}"
    if row["between_devices"]:
        best = format_share(row["roof_share_best"])
        return (
            f"{name}: between devices; they never draw more than {best} of what memory would give."
        )
    return (
        f"{name}: {row['compute_bound']} compute-bound; {format_share(row['roof_share'])} of the roof in the median, at "
        f"most {format_share(row['roof_share_best'])}."
    )


def _looks(types: pd.Series) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """Label, types and look: all where there are few, else the first by themselves and the others
    in grey.
    """
    named = list(types.index[: _TYPES if len(types) <= _TYPES else _TYPES - 1])
    for kind in named:
        yield kind, [kind], drawing.look(kind, named)
    rest = list(types.index[len(named) :])
    if rest:
        yield f"{len(rest)} other types", rest, drawing.look(None)
