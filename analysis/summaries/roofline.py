"""The sub-command `roofline`: models under the roofs of their devices, or one run's operations under its roof."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.operation_roofline import OperationRoofline
    from analysis.methods.roofline import Roof, Roofline

__all__ = ["COMMANDS"]

_FAR = 0.1  # share of the roof below which neither ceiling explains a rate
_WAITING = 0.1  # infeed fraction above which a point waits for its input
_PANELS = 6


def roofline(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Models, or with --operations the operations of a run, under their roofs."""
    if args.operations:
        return _of_operations(frame, args)
    from analysis.methods import roofline as method
    from analysis.store.frame import aggregate_replicates
    from paradnn.hardware.specifications import find_hardware

    if frame.empty:
        return Result(frame[["run_id"]], "no such runs in the store")
    pooled = alike_within(frame, ["device"], args.pool)
    rows = aggregate_replicates(frame)
    found = method.roofline(rows, find_hardware)
    panels = len(found.points[["device", "precision"]].drop_duplicates())
    if panels > _PANELS and (args.png or args.svg):
        problem = f"{panels} roofs, one for each device and precision, do not fit one figure"
        raise ConfigError("--device", args.device, problem, "choose with --device or --where precision=...")
    text = [*(_roof(roof) for roof in found.roofs), *_families(found, method.summary(found.points))]
    text += [_traffic(found), _left_out(found), *sentence(pooled)]
    table = found.points[[*(name for name in found.points if name != "run_id"), "run_id"]]
    if not len(table):
        text.insert(0, "No run has a place under a roof: it takes an arithmetic intensity and a FLOP rate.")
        return Result(table, "\n".join(filter(None, text)), pooled=pooled)

    def draw() -> Any:
        from analysis.figures.roofline import draw_roofline

        return draw_roofline(found)

    # A point rests on all its replicates.
    placed = rows.loc[rows["run_id"].isin(table["run_id"]), "point_id"]
    sources = frame.loc[frame["point_id"].isin(placed), "run_id"]
    return Result(table, "\n".join(filter(None, text)), draw, list(sources), pooled)


def _roof(roof: Roof) -> str:
    name = f"{roof.device} in {roof.precision}"
    if roof.ridge is None:
        known = [f"peak {_si(roof.peak, 'FLOP/s')} ({roof.peak_source})"] if roof.peak else []
        known += [f"bandwidth {_si(roof.bandwidth, 'B/s')} ({roof.bandwidth_source})"] if roof.bandwidth else []
        told = f"only its {known[0]} is known" if known else "neither ceiling is known"
        return f"{name}: no roof, {told}; measure the ceilings with python -m paradnn.ceilings."
    alike = roof.peak_source == roof.bandwidth_source
    assured = f"{roof.peak_source} ceilings" if alike else f"ceilings, {roof.source}"
    spread = ""
    if roof.ridge_low != roof.ridge_high:
        spread = f" ({roof.ridge_low:.3g} to {roof.ridge_high:.3g} over its runs)"
    return (
        f"{name}: {assured}, {_si(roof.peak or 0, 'FLOP/s')} and {_si(roof.bandwidth or 0, 'B/s')}; "
        f"the ridge point is at {roof.ridge:.3g} FLOP/B{spread}."
    )


def _families(found: Roofline, table: pd.DataFrame) -> list[str]:
    lines = []
    for row in table.to_dict("records"):
        name = f"{row['family']} on {row['device']} in {row['precision']}"
        mine = found.points.loc[
            (found.points["device"] == row["device"])
            & (found.points["precision"] == row["precision"])
            & (found.points["family"] == row["family"])
        ]
        if row["unknown"] == row["points"]:
            lines.append(
                f"{name}: {row['points']} models between {row['lowest_intensity']:.3g} and "
                f"{row['highest_intensity']:.3g} FLOP/B, verdict unknown."
            )
            continue
        interval = ""
        if math.isfinite(row["median_low"]) and math.isfinite(row["median_high"]):
            interval = f" (95% interval {_percent(row['median_low'])} to {_percent(row['median_high'])})"
        ridge = f", {row['at_the_ridge']} are at the ridge" if row["at_the_ridge"] else ""
        lines.append(
            f"{name}: of {row['points']} models {row['memory_bound']} are memory-bound, {row['compute_bound']} "
            f"compute-bound{ridge}. They reach {_percent(row['share_median'])} of their roof in the median{interval}, "
            f"the middle half {_percent(row['share_q25'])} to {_percent(row['share_q75'])}; the best, {_best(mine)}."
        )
        lines += [f"  {line}" for line in (_where(mine), _far(mine), _above(mine)) if line]
    return lines


def _best(points: pd.DataFrame) -> str:
    best = points.sort_values("share", ascending=False).iloc[0]
    interval = ""
    if best["share_low"] == best["share_low"]:
        interval = f" ({_percent(best['share_low'])} to {_percent(best['share_high'])})"
    return f"{_model(best)}, {_percent(best['share'])}{interval}"


def _model(row: pd.Series) -> str:
    import pandas as pd

    parts = [f"{_said(name)} {row[name]}" for name in row.index if _is_model(name) and pd.notna(row[name])]
    return " ".join(parts) or str(row["run_id"])


def _where(points: pd.DataFrame) -> str:
    """Where in the space the compute-bound models are, if there are others as well."""
    import pandas as pd

    bound = points[points["verdict"] == "compute-bound"]
    if not len(bound) or len(bound) == len(points):
        return ""
    ranges = []
    for name in filter(_is_model, points):
        # Other families have this hyperparameter, or it is no number.
        if not pd.api.types.is_numeric_dtype(points[name]) or bound[name].isna().all():
            continue
        low, high = bound[name].min(), bound[name].max()
        if low > points[name].min() or high < points[name].max():
            ranges.append(f"{_said(name)} {low}" + (f" to {high}" if high > low else ""))
    return f"The compute-bound ones have {', '.join(ranges)}." if ranges else ""


def _is_model(column: object) -> bool:
    """Whether a column says which model a point is."""
    return column == "batch_size" or str(column).startswith("model.")


def _said(column: object) -> str:
    return str(column).removeprefix("model.").replace("_", " ")


def _far(points: pd.DataFrame) -> str:
    far = points[points["share"] < _FAR]
    if not len(far):
        return ""
    waiting = int((far["infeed_fraction"] > _WAITING).sum())
    cause = f" {waiting} of these wait for input more than {_percent(_WAITING)} of the time." if waiting else ""
    return (
        f"{len(far)} are below {_percent(_FAR)} of their roof: neither arithmetic nor memory limits those, "
        f"but dispatch, input or small operations.{cause}"
    )


def _above(points: pd.DataFrame) -> str:
    above = points[points["share"] > 1]
    if not len(above):
        return ""
    excess = _percent(above["share"].max() - 1)
    return (
        f"{len(above)} are above their roof, by up to {excess}: caches save traffic that the intensity counts, "
        "or the ceilings are too low."
    )


def _traffic(found: Roofline) -> str:
    kinds = found.points["traffic"].value_counts()
    lines = []
    if kinds.get("analytic"):
        lines.append(
            "Intensity is exact work over compulsory traffic, every tensor once a use: real traffic is more "
            "where products do not fit the caches, less where tensors stay in them between uses."
        )
    if kinds.get("trace"):
        lines.append(
            f"{kinds['trace']} published models are placed by their profiler traces, with traffic as counted "
            "and the trace's own rate."
        )
    return " ".join(lines)


def _left_out(found: Roofline) -> str:
    if not found.left_out:
        return ""
    return "Without a place: " + ", ".join(f"{count} {reason}" for reason, count in found.left_out.items()) + "."


def _of_operations(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    from analysis.methods.operation_roofline import operation_roofline
    from analysis.methods.roofline import find_roofs
    from analysis.methods.roofline import roofline as roofline_of
    from analysis.store.operations import read_operations
    from paradnn.hardware.specifications import find_hardware

    rows = frame[frame["run_id"].str.startswith(args.operations)]
    if len(rows) != 1:
        problem = f"{len(rows)} runs begin so" if len(rows) else "no chosen run has this id"
        raise ConfigError("--operations", args.operations, problem, "see run_id in python -m analysis roofline --csv -")
    run = rows.iloc[0]
    (roof,) = find_roofs(rows, find_hardware)
    found = operation_roofline(read_operations(run["run_id"], args.store), roof)
    title = str(run["run_name"] or run["run_id"])
    title += "" if roof.device in title else f" on {roof.device}"
    placed = roofline_of(rows, find_hardware).points
    model = tuple(placed.loc[0, ["arithmetic_intensity", "flops_per_second"]]) if len(placed) else None
    text = "\n".join([_roof(roof), *_operation_lines(found)])

    def draw() -> Any:
        from analysis.figures.roofline import draw_operations

        return draw_operations(found, title, model)

    drawable = found.operations["drawn"].any()
    return Result(found.operations, text, draw if drawable else None, sources=[run["run_id"]])


def _operation_lines(found: OperationRoofline) -> list[str]:
    parts = [
        f"{_percent(share)} in {verdict} operations"
        for verdict, share in found.time.items()
        if share > 0 and verdict != "unknown"
    ]
    if found.time["unknown"] > 0:
        parts.append(f"{_percent(found.time['unknown'])} in operations under no known roof")
    parts.append(f"{_percent(found.without_flops)} in operations without FLOPs")
    if found.unplaced > 0:
        parts.append(f"{_percent(found.unplaced)} in operations with FLOPs but without a rate")
    missing = 1 - found.covered
    if missing > 0.0005:
        parts.append(f"{_percent(missing)} in no row of the table")
    lines = [f"Of the profiled time: {', '.join(parts)}."]
    operations = found.operations[found.operations["roof_share"].notna()]
    saved = operations["share"] * (1 - operations["roof_share"].clip(upper=1))
    if saved.sum() > 0:
        ranked = operations.assign(saved=saved).sort_values("saved", ascending=False).head(3)
        top = [
            f"{row['name']} ({row['verdict']}, at {_percent(row['roof_share'])} of its roof) {_percent(row['saved'])}"
            for row in ranked.to_dict("records")
        ]
        lines.append(
            f"Brought to their roofs, all operations together would save {_percent(saved.sum())} of the time; "
            f"most of it: {', '.join(top)}."
        )
    above = operations[operations["roof_share"] > 1.05]
    if len(above):
        lines.append(
            f"Above their roof: {len(above)} of them, {_percent(above['share'].sum())} of the time; "
            "their operands came from caches, or the ceilings are too low."
        )
    hidden = int((~found.operations["drawn"]).sum())
    if hidden:
        lines.append(f"Below {_percent(found.minimum_share)} of the time, and not drawn: {hidden} of them.")
    return lines


def _si(value: float, unit: str) -> str:
    return short(value, unit, digits=3)


def _percent(value: float) -> str:
    return "unknown" if math.isnan(value) else short(value, share=True, digits=3)


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="roofline",
        summary="what limits each model, arithmetic or memory, and how near it comes to that limit",
        description="Place models, or one run's operations, under the roofline of their device.\n"
        "The ceilings are those that the runs carry as measured, else the specification's; where\n"
        "neither is known, the verdict is unknown.",
        example="python -m analysis roofline --device 'TPU v2' --png roofline.png",
        analyse=roofline,
        arguments=(
            argument(
                "--operations",
                metavar="RUN_ID",
                help="the operations of one profiled run instead; the beginning of its id is enough",
            ),
        ),
        draws=True,
    ),
)
