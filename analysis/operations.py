"""Operations of profiled runs under the rooflines of their devices (`roofline --operations`).

The operations show which shares of the time are limited by memory, by arithmetic, by the links
between devices, and by other causes. Each profiled run has a table of its operations
(`operations.json`) and a table of the types of operation (`operation_types.json`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from analysis.ceilings import with_best_ceilings
from analysis.format import format_percent_interval, format_share, format_with_interval
from analysis.labels import not_recorded
from analysis.lazy import drawing, np, pd
from analysis.result import AnalysisAnswer, Paragraph, Result
from analysis.roofs import (
    Roof,
    RoofVerdict,
    draw_roofs,
    find_roofs,
    find_verdict,
    format_roof,
    roof_sentences,
)
from analysis.store.frame import is_ok, profiling_remedy
from paradnn.core.errors import ConfigError, StoreError
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.dependence import Levels, Unit, crossed_quantile, shared_levels
from paradnn.statistics.estimate import Estimate

#: Operations below this share of the time are not drawn, as in the paper's Figure 3.
MINIMUM_SHARE = 0.01
#: Types of operation that move bytes between devices. The links limit them, not the memory.
TRANSFERS = re.compile(
    r"cross-replica|all-?reduce|all-?gather|all-?to-?all|reduce-?scatter|collective|nccl",
    re.IGNORECASE,
)
#: Value of --operations for all profiled runs. No run id can be equal to it: ids are hexadecimal.
ALL = "all"
_KEYS = ["run_id", "device", "precision"]
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
_MAX_TYPES = 8  # largest number of types with separate colors
_MIN_STATED_SHARE = 5e-4  # smallest share of the time without a verdict that a sentence states


def place_operations(
    table: pd.DataFrame, roofs: Sequence[Roof]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compare the FLOP/s of operations with the rate that their roofline allows.

    A roof has the peak FLOP/s and the memory bandwidth of a device at a precision. The verdict on
    an operation states which of them limits it. The roof does not limit exchanges between devices:
    their bytes cross links between devices, and the rate of links is not part of a roof.

    Args:
        table: One row per operation, or per type if there is no column `operation`, with run_id,
            device and precision.
        roofs: A roof for each device and precision in the table.

    Returns:
        The placed operations, and the time of each run by verdict.

        The operations have these columns:

        - `run_id`, `device`, `precision`, `name`, `type`;
        - `share`: share of the profiled time;
        - `flops_per_second`: rate while the operation runs;
        - `arithmetic_intensity` in FLOP/B;
        - `attainable`: the rate in FLOP/s that the roof allows;
        - `roof_share`: rate / attainable;
        - `verdict`: a value of `RoofVerdict`;
        - `drawn`: whether the operation takes at least `MINIMUM_SHARE` of the time.

        The runs have these columns, in addition to run_id, device and precision:

        - a column for each verdict, named by its value: the share of the profiled time;
        - `without_flops`: the share of operations without FLOPs, such as data formatting;
        - `unplaced`: the share of operations with FLOPs but without rate or traffic;
        - `covered`: the sum of the shares of all rows of the table.
    """
    parts = []
    for roof in roofs:
        is_under = table["device"].eq(roof.device) & table["precision"].eq(roof.precision)
        parts.append(_place_under_roof(table[is_under], roof))
    rows = pd.concat(parts, ignore_index=True)
    times = rows[_KEYS].copy()
    for verdict in RoofVerdict:
        has_verdict = rows["placed"] & rows["verdict"].eq(verdict.value)
        times[verdict.value] = rows["share"].where(has_verdict, 0.0)
    times["without_flops"] = rows["share"].where(~rows["has_flops"], 0.0)
    times["unplaced"] = rows["share"].where(rows["has_flops"] & ~rows["placed"], 0.0)
    times["covered"] = rows["share"]
    runs = times.groupby(_KEYS, sort=False, as_index=False).sum()
    operations = rows.loc[rows["placed"], [*_KEYS, *_COLUMNS]].reset_index(drop=True)
    return operations, runs


def _place_under_roof(table: pd.DataFrame, roof: Roof) -> pd.DataFrame:
    """Add the attainable rate, the verdict and further columns to the operations under a roof.

    The column `placed` is false if the rate or the arithmetic intensity is unknown.

    Args:
        table: Operations of the device and precision of the roof.
        roof: Peak FLOP/s and memory bandwidth.
    """
    numbers = ["share", "flops", "bytes", "flops_per_second", "arithmetic_intensity"]
    name_column = "operation" if "operation" in table else "type"
    rows = table.assign(
        name=table[name_column].astype("str"),
        type=table["type"].astype("str"),
        **table[numbers].apply(pd.to_numeric, errors="coerce"),
    )
    intensity = rows["arithmetic_intensity"]
    rate = rows["flops_per_second"]
    has_flops = (rows["flops"] > 0) | (intensity > 0)
    is_finite = np.isfinite(intensity) & np.isfinite(rate)
    placed = has_flops & (intensity > 0) & (rate > 0) & is_finite
    attainable = roof.attainable(intensity)
    verdicts = find_verdict(intensity, roof)
    is_transfer = rows["type"].str.contains(TRANSFERS).to_numpy(dtype=bool)
    verdicts[is_transfer] = RoofVerdict.TRANSFER.value
    return rows.assign(
        attainable=attainable,
        roof_share=rate / attainable,
        verdict=verdicts,
        drawn=placed & (rows["share"] >= MINIMUM_SHARE),
        has_flops=has_flops,
        placed=placed,
    )


def operations_of(
    run_id: str,
    frame: pd.DataFrame,
    store: Sequence[str],
    pooled: str = "",
    unit: Unit = "crossed",
) -> OperationsResult:
    """Place the operations of one profiled run, or of all profiled runs, under their rooflines.

    For all runs, the rows are types of operation, as in Figure 3b of the ParaDnn paper. The
    replicates of a configuration are reduced to their medians.

    Args:
        run_id: Beginning of the id of a run, or `ALL` for all profiled runs.
        frame: One row per run.
        store: Addresses of the stores of the runs; empty for the default store.
        pooled: How the pooled runs differ, as text; empty if no heterogeneous runs were pooled.
        unit: Sampling unit of the confidence intervals: "crossed", "model" or "point".

    Raises:
        ConfigError: If no id, or more than one, begins with the given text.
        StoreError: If no run was profiled.
    """
    if run_id == ALL:
        runs, table = _read_types(frame, store)
    else:
        runs, table = _read_run(run_id, frame, store)
    runs = runs.assign(
        device=runs["device"].astype("object").fillna(not_recorded("device")),
        precision=runs["precision"].astype("object").fillna(not_recorded("precision")),
    )
    roofs = find_roofs(with_best_ceilings(runs, store), find_hardware)
    operations, times = place_operations(table.merge(runs[_KEYS], on="run_id"), roofs)
    sizes = _varying_sizes(runs)
    operations = operations.merge(runs[["run_id", *sizes]], on="run_id", how="left")
    placed_runs = runs.set_index("run_id").loc[times["run_id"]]
    single_run = ""
    if run_id != ALL:
        single_run = str(runs["run_name"].iloc[0] or runs["run_id"].iloc[0])
    return make_result(
        roofs,
        operations,
        times,
        levels=shared_levels(placed_runs, unit),
        single_run=single_run,
        sources=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _read_types(frame: pd.DataFrame, store: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return one profiled run for each configuration, and the types of operation of these runs.

    Raises:
        StoreError: If no run was profiled.
    """
    from analysis.store.load import load_types

    runs = frame[is_ok(frame)]
    types = load_types(runs, store)
    profiled = runs[runs["run_id"].isin(types["run_id"])]
    if profiled.empty:
        raise StoreError(f"no chosen run was profiled; {profiling_remedy(runs)}")
    if "point_id" not in profiled:
        return profiled, types
    # Points of different environments are different points.
    keys = [name for name in ("point_id", "environment_id", "protocol_id") if name in profiled]
    return _aggregate_replicates(profiled, types, keys)


def _aggregate_replicates(
    runs: pd.DataFrame, types: pd.DataFrame, keys: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the first run of each configuration, and the medians of its operation types.

    The medians are over the replicates of the configuration. If a replicate lacks a type, its share
    of the time counts as 0.

    Args:
        runs: Profiled runs, one row each.
        types: Types of operation of these runs.
        keys: Columns that identify a configuration.
    """
    first_ids = runs.groupby(list(keys), dropna=False, sort=False)["run_id"].transform("first")
    representative = dict(zip(runs["run_id"], first_ids, strict=True))
    first = runs[runs["run_id"].eq(first_ids)]
    if len(first) == len(runs):
        return first, types
    table = types[types["run_id"].isin(representative)]
    table = table.assign(run_id=table["run_id"].map(representative))
    numbers = [
        name
        for name in table.columns
        if name not in ("run_id", "type") and pd.api.types.is_numeric_dtype(table[name])
    ]
    groups = table.groupby(["run_id", "type"], sort=False)
    merged = groups[numbers].median().reset_index()
    replicates = first_ids.value_counts()
    merged["share"] = [
        _median_with_zeros(shares.to_numpy(), int(replicates[str(run_id)]))
        for (run_id, _), shares in groups["share"]
    ]
    return first, merged


def _median_with_zeros(values: np.ndarray, count: int) -> float:
    """Return the median of values that are padded with zeros to a given count."""
    padded = np.zeros(max(count, len(values)))
    padded[: len(values)] = values
    return float(np.median(padded))


def _read_run(
    run_id: str, frame: pd.DataFrame, store: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the run with a given id, as a frame of one row, and its operations.

    Args:
        run_id: Beginning of the id.
        frame: One row per run.
        store: Addresses of the stores of the runs; empty for the default store.

    Raises:
        ConfigError: If no id, or more than one, begins with the given text.
    """
    from analysis.store.load import read_operations

    runs = frame[frame["run_id"].str.startswith(run_id)]
    if len(runs) != 1:
        problem = "matches no chosen run"
        if len(runs):
            problem = f"matches {len(runs)} chosen runs"
        remedy = "write an id from the column run_id of python -m analysis roofline --csv -"
        raise ConfigError("--operations", run_id, problem, remedy)
    full_id = runs["run_id"].iloc[0]
    return runs, read_operations(full_id, store).assign(run_id=full_id)


def _varying_sizes(runs: pd.DataFrame) -> list[str]:
    """Return the batch size and the columns `model.*` that vary among runs."""
    sizes = sorted(
        str(name)
        for name in runs
        if str(name).startswith("model.") and name != "model.name" and runs[name].nunique() > 1
    )
    return ["batch_size", *sizes] if "batch_size" in runs else sizes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OperationsResult(Result):
    """Operations of one run, or types of operation of several runs, under their rooflines.

    Attributes:
        operations: The operations, as `place_operations` returns them.
        models: A row per run, with the share of each limit in its profiled time, as
            `place_operations` returns them.
        levels: Which models share a level of a factor, such as a batch size, and are therefore not
            independent.
    """

    operations: pd.DataFrame
    models: pd.DataFrame
    levels: Levels


def make_result(
    roofs: Sequence[Roof],
    operations: pd.DataFrame,
    models: pd.DataFrame,
    *,
    levels: Levels,
    single_run: str = "",
    **attributes: Any,
) -> OperationsResult:
    """Return placed operations as a result with sentences and a figure.

    Args:
        roofs: Peak FLOP/s and memory bandwidth for each device and precision.
        operations: The operations, as `place_operations` returns them.
        models: A row per run, with the share of each limit in its profiled time, as
            `place_operations` returns them.
        levels: Which models share a level of a factor, such as a batch size, and are therefore not
            independent.
        single_run: Name of the run, if the operations are from a single run; else empty.
        **attributes: Further attributes of the result.
    """
    findings: list[Paragraph | str]
    if single_run:
        table = operations[_COLUMNS].sort_values(
            "share", ascending=False, kind="stable", ignore_index=True
        )
        findings = [*_run_sentences(operations, models.iloc[0].to_dict())]
    else:
        columns = [name for name in operations.columns if name not in ("name", "run_id")]
        table = operations[[*columns, "run_id"]]
        findings = [*_type_sentences(operations, models, levels)]
    picture = None
    if operations["drawn"].any():
        picture = partial(_draw, roofs, operations, single_run)
    return OperationsResult(
        operations=operations,
        models=models,
        levels=levels,
        numbers=table,
        answer=_answer(operations, models, levels, single_run),
        sentences=[*map(roof_sentences, roofs), *findings],
        picture=picture,
        **attributes,
    )


def _answer(
    operations: pd.DataFrame, models: pd.DataFrame, levels: Levels, single_run: str
) -> AnalysisAnswer:
    """State which limit takes the largest part of the profiled time."""
    verdicts = [verdict for verdict in RoofVerdict if verdict in models]
    times = {verdict: median_time(models, levels, verdict) for verdict in verdicts}
    longest = max(times, key=lambda verdict: times[verdict].value)
    share = format_with_interval(times[longest], format_share)
    if single_run:
        where = f"of {single_run}"
    else:
        where = f"in the median of {counted(len(models), 'model')}"
    basis = ""
    if len(models) > 1:
        basis = levels.description
    return AnalysisAnswer(
        sentence=f"Operations that are {longest} take {share} of the profiled time {where}.",
        points=len(models),
        basis=basis,
    )


def summarize_types(operations: pd.DataFrame) -> pd.DataFrame:
    """Summarize the operations that take a large enough share of the time to be drawn, by type.

    Args:
        operations: The operations, as `place_operations` returns them.

    Returns:
        One row per type, the most frequent first. The columns are:

        - `type`, and `operations`: their number;
        - `compute_bound`: the number of operations that arithmetic limits;
        - `between_devices`: whether the operations move bytes between devices;
        - `lowest_intensity`, `highest_intensity`: arithmetic intensities in FLOP/B;
        - `roof_share`, `roof_share_best`: the median and the maximum of the rate relative to the
          roofline;
        - `share`: the median share of the time.
    """
    rows = operations[operations["drawn"]]
    rows = rows.assign(
        is_compute=rows["verdict"].eq(RoofVerdict.COMPUTE.value),
        is_transfer=rows["verdict"].eq(RoofVerdict.TRANSFER.value),
    )
    table = rows.groupby("type").agg(
        operations=("share", "size"),
        compute_bound=("is_compute", "sum"),
        between_devices=("is_transfer", "any"),
        lowest_intensity=("arithmetic_intensity", "min"),
        highest_intensity=("arithmetic_intensity", "max"),
        roof_share=("roof_share", "median"),
        roof_share_best=("roof_share", "max"),
        share=("share", "median"),
    )
    return table.sort_values("operations", ascending=False, kind="stable").reset_index()


def median_time(models: pd.DataFrame, levels: Levels, *columns: str) -> Estimate:
    """Return the median over models of a share of the time, with its 95% interval.

    Args:
        models: A row per model with shares of its profiled time, as `place_operations` returns
            them.
        levels: Which models share a level of a factor, such as a batch size, and are therefore not
            independent.
        *columns: Columns of `models`, such as "memory-bound", whose sum is the share of a model.
    """
    return crossed_quantile(models[list(columns)].sum(axis=1), levels)


def _run_sentences(operations: pd.DataFrame, time: dict[Any, Any]) -> Iterator[str]:
    """State where a run's time goes, and how much time is saved if each operation reaches its roof.

    Args:
        operations: The operations of the run, as `place_operations` returns them.
        time: Shares of the profiled time of the run, as `place_operations` returns them.
    """
    shares = {name.value: time[name.value] for name in RoofVerdict if time[name.value] > 0}
    others = {
        "without FLOPs": time["without_flops"],
        "with FLOPs but without a rate": time["unplaced"],
        "in no row of the table": 1 - time["covered"],
    }
    shares |= {name: share for name, share in others.items() if share > _MIN_STATED_SHARE}
    listed = ", ".join(f"{format_share(share)} {name}" for name, share in shares.items())
    yield f"Of the profiled time: {listed}."
    # This roof does not limit operations between devices.
    is_limited = operations["roof_share"].notna() & operations["verdict"].ne(RoofVerdict.TRANSFER)
    rows = operations[is_limited]
    rows = rows.assign(saved=rows["share"] * (1 - rows["roof_share"].clip(upper=1)))
    total = rows["saved"].sum()
    if total > 0:
        largest = ", ".join(
            f"{row['name']} ({row['verdict']}, at {format_share(row['roof_share'])} of its roof) "
            f"{format_share(row['saved'])}"
            for row in rows.nlargest(3, "saved").to_dict("records")
        )
        yield (
            f"If every operation reached its roof, {format_share(total)} of the time would be "
            f"saved, most of it by {largest}."
        )


def _type_sentences(
    operations: pd.DataFrame, models: pd.DataFrame, levels: Levels
) -> Iterator[Paragraph | str]:
    """State what limits each type of operation, and which share of the time each limit takes.

    Args:
        operations: Types of operation, as `place_operations` returns them.
        models: A row per run, with the share of each limit in its profiled time.
        levels: Which models share a level of a factor, such as a batch size, and are therefore not
            independent.
    """
    drawn = counted(int(operations["drawn"].sum()), "operation")
    head = (
        f"Drawn: {drawn} of {counted(len(models), 'model')}. These are the types of operation with "
        f"FLOPs and at least {format_share(MINIMUM_SHARE)} of their model's time."
    )
    types = summarize_types(operations).to_dict("records")
    yield Paragraph(head, tuple(_type_sentence(row) for row in types))
    parts = [
        f"{name.value} {format_percent_interval(median_time(models, levels, name.value))}"
        for name in RoofVerdict
        if (models[name.value] > 0).any()
    ]
    rest = median_time(models, levels, "without_flops", "unplaced")
    parts.append(f"without FLOPs or a rate {format_percent_interval(rest)}")
    yield (
        f"Of a model's profiled time, in the median (95% intervals over {levels.description}): "
        f"{'; '.join(parts)}."
    )


def _type_sentence(row: dict[Any, Any]) -> str:
    low = f"{row['lowest_intensity']:.3g}"
    high = f"{row['highest_intensity']:.3g}"
    intensity = f"{low} FLOP/B" if low == high else f"{low} to {high} FLOP/B"
    name = f"{row['type']}, {counted(row['operations'], 'operation')} at {intensity}"
    best = format_share(row["roof_share_best"])
    if row["between_devices"]:
        return f"{name}: between devices; they reach at most {best} of what memory would allow."
    return (
        f"{name}: {row['compute_bound']} compute-bound; {format_share(row['roof_share'])} of the "
        f"roof in the median, at most {best}."
    )


class _TypeStyle(NamedTuple):
    """Style of the marks of some types of operation.

    Attributes:
        label: Label in the legend.
        types: The types of operation with this style.
        style: Keyword arguments for Matplotlib.
    """

    label: str
    types: list[str]
    style: dict[str, Any]


def _draw(roofs: Sequence[Roof], operations: pd.DataFrame, single_run: str) -> drawing.Figure:
    """Draw the operations that take at least `MINIMUM_SHARE` of the time, in a panel per roofline.

    For a single run, the area of a mark shows its share of the time.
    """
    points = operations[operations["drawn"]]
    shares = points.groupby("type")["share"]
    if single_run:
        weights = shares.sum()
        format_weight = format_share
        legend_title = "type, share of the time (area: share)"
    else:
        weights = shares.size()
        format_weight = "({})".format
        legend_title = "type (operations)"
    weights = weights.sort_values(ascending=False, kind="stable")
    styles = list(_type_styles(weights))
    keys = points[["device", "precision"]].drop_duplicates()
    figure, panels = drawing.panels(len(keys), 8.5, 4.4)
    for axes, (device, precision) in zip(panels, keys.itertuples(index=False), strict=True):
        is_under = points["device"].eq(device) & points["precision"].eq(precision)
        rows = points[is_under]
        for entry in styles:
            _draw_marks(
                axes,
                rows[rows["type"].isin(entry.types)],
                entry.style,
                area_is_share=bool(single_run),
            )
        roof = next(roof for roof in roofs if (roof.device, roof.precision) == (device, precision))
        draw_roofs(axes, rows, roof)
        owner = single_run or counted(rows["run_id"].nunique(), "model")
        count = counted(len(rows), "operation")
        title = f"{count} of {owner} on {device}, {precision}\n{format_roof(roof)}"
        drawing.finish(axes, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    handles = []
    for entry in styles:
        weight = format_weight(weights[entry.types].sum())
        handles.append(drawing.handle(f"{entry.label} {weight}", **entry.style))
    drawing.legend(figure, handles, legend_title)
    return figure


def _draw_marks(
    axes: drawing.Axes, rows: pd.DataFrame, style: dict[str, Any], *, area_is_share: bool
) -> None:
    size: Any = 16
    if area_is_share:
        size = 20 + 900 * rows["share"]
    axes.scatter(
        rows["arithmetic_intensity"],
        rows["flops_per_second"],
        s=size,
        alpha=0.8,
        zorder=2,
        edgecolors="white",
        linewidths=0.4,
        **style,
    )


def _type_styles(weights: pd.Series) -> Iterator[_TypeStyle]:
    """Yield a style per type; beyond `_MAX_TYPES` types, the rarest ones share a gray style.

    Args:
        weights: Weight of each type, the largest first.
    """
    count = _MAX_TYPES
    if len(weights) > _MAX_TYPES:
        count -= 1
    named = list(weights.index[:count])
    for name in named:
        yield _TypeStyle(name, [name], drawing.look(name, named))
    rest = list(weights.index[count:])
    if rest:
        yield _TypeStyle(f"{len(rest)} other types", rest, drawing.look(None))
