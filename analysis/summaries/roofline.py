"""`roofline`: models under the roofs of their devices, or one run's operations under its roof."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.options import Options, option, unit_option
from analysis.result import Paragraph, Result, pooled_within, require_runs
from analysis.summaries.gate import gated
from analysis.summaries.model_operations import ModelOperationsResult, operations_of_all
from analysis.summaries.operation_roofline import OperationRooflineResult, operations_of, percent, roof_in_words
from paradnn.core.words import counted
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.dependence import Unit
    from analysis.methods.roofline import Roofline
    from paradnn.forecast.estimate import Estimate

__all__ = ["Limits", "RooflineOptions", "RooflineResult", "roofline"]

_FAR = 0.1  # share of the roof below which neither ceiling explains a rate
_WAITING = 0.1  # infeed fraction above which a point waits for its input
_PANELS = 6
_ALL = "all"  # no run's id begins so: ids are hexadecimal


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """Models, or the operations of one of them."""

    command = "roofline"

    operations: str | None = option(
        None,
        "the operations of one profiled run instead, by the beginning of its id; all: the types of operation of all "
        "profiled runs",
        metavar="RUN_ID|all",
    )
    colour: str | None = option(
        None,
        "column that colours the marks, such as nodes or batch_size (default: the family, of operations their type)",
        metavar="C",
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


class Limits(NamedTuple):
    """Of the models whose verdict is known: how many, the share that is memory-bound, the median share of the roof."""

    models: int
    memory_bound: Estimate
    roof_share: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RooflineResult(Result):
    """Models under the roofs of their devices; `colour` is the column that colours them, None for the family."""

    roofline: Roofline
    colour: str | None = None
    unit: Unit = "crossed"

    @property
    def table(self) -> pd.DataFrame:
        points = self.roofline.points
        return points[[*(name for name in points if name != "run_id"), "run_id"]]

    @cached_property
    def families(self) -> pd.DataFrame:
        """A row for each device, precision and family: models by verdict, quartiles of their share of the roof."""
        from analysis.methods.roofline import summary

        return summary(self.roofline.points, self.unit)

    def limits(self) -> Limits | None:
        """What limits all these models; None where no verdict is known."""
        from analysis.methods.dependence import crossed_share, levels_of
        from analysis.methods.roofline import Verdict

        points = self.roofline.points
        known = points[points["verdict"] != Verdict.UNKNOWN]
        if not len(known):
            return None
        memory = crossed_share(known["verdict"] == Verdict.MEMORY, levels_of(known, self.unit))
        return Limits(len(known), memory, float(known["share"].median()))

    def _figure(self) -> Figure:
        from analysis.figures.roofline import draw_roofline

        panels = len(self.roofline.points[["device", "precision"]].drop_duplicates())
        if panels > _PANELS:
            problem = "roofs, one for each device and precision, do not fit one figure"
            raise ConfigError(
                "--device", "(all)", f"{panels} {problem}", "choose with --device or --where precision=..."
            )
        return draw_roofline(self.roofline, self.colour)

    def _paragraphs(self) -> Iterator[Paragraph]:
        points, left_out = self.roofline.points, self.roofline.left_out
        if not len(points):
            yield Paragraph("No run has a place under a roof: it takes an arithmetic intensity and a FLOP rate.")
        yield from (Paragraph(roof_in_words(roof)) for roof in self.roofline.roofs)
        for row in self.families.to_dict("records"):
            same = [points[name] == row[name] for name in ("device", "precision", "family")]
            yield _family(row, points[same[0] & same[1] & same[2]])
        yield from map(Paragraph, _traffic(self.roofline))
        if left_out:
            listed = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
            yield Paragraph(f"Without a place: {listed}.")


@gated
def roofline(
    frame: pd.DataFrame, options: RooflineOptions | None = None
) -> RooflineResult | OperationRooflineResult | ModelOperationsResult:
    """Models under their roofs, replicates counted once; with `operations` the operations of that run, or of all.

    ConfigError for a colour that is no column, NotEnoughData without runs, SchemaError for heterogeneous runs of a
    device.
    """
    from analysis.methods import roofline as method
    from analysis.methods.columns import find_column
    from analysis.store.frame import aggregate_replicates
    from paradnn.platform.specifications import find_hardware

    options = options or RooflineOptions()
    if options.operations and options.operations != _ALL:
        if options.colour not in (None, "type"):
            problem = "the operations of one run differ in nothing but their type"
            raise ConfigError("--colour", options.colour, problem, f"leave it out, or choose --operations {_ALL}")
        return operations_of(options.operations, frame, options.store)
    require_runs(frame)
    pooled = pooled_within(frame, ["device"], options.pool)
    if options.operations:
        return operations_of_all(frame, options.store, options.colour, pooled, options.unit)
    rows = aggregate_replicates(frame)
    colour = find_column(rows, options.colour, "--colour") if options.colour else None
    placed = method.roofline(rows, find_hardware)
    if colour is not None and colour not in placed.points:
        coloured = placed.points.merge(rows[["run_id", colour]], on="run_id", how="left")
        placed = dataclasses.replace(placed, points=coloured)
    # A point rests on all its replicates.
    points = rows.loc[rows["run_id"].isin(placed.points["run_id"]), "point_id"]
    sources = frame.loc[frame["point_id"].isin(points), "run_id"]
    return RooflineResult(roofline=placed, colour=colour, unit=options.unit, sources=tuple(sources), pooled=pooled)


def _family(row: dict[Any, Any], points: pd.DataFrame) -> Paragraph:
    """What limits a family's models on one device and precision, and how near they come to that limit."""
    name = f"{row['family']} on {row['device']} in {row['precision']}"
    if row["unknown"] == row["points"]:
        return Paragraph(
            f"{name}: {counted(row['points'], 'model')} between {row['lowest_intensity']:.3g} and "
            f"{row['highest_intensity']:.3g} FLOP/B, verdict unknown."
        )
    interval = ""
    if math.isfinite(row["median_low"]) and math.isfinite(row["median_high"]):
        ends = f"{percent(row['median_low'])} to {percent(row['median_high'])}"
        interval = f" (95% interval {ends} over {row['sample']})"
    ridge = f", {row['at_the_ridge']} are at the ridge" if row["at_the_ridge"] else ""
    head = (
        f"{name}: of {row['points']} models {row['memory_bound']} are memory-bound, {row['compute_bound']} "
        f"compute-bound{ridge}. They reach {percent(row['share_median'])} of their roof in the median{interval}, "
        f"the middle half {percent(row['share_q25'])} to {percent(row['share_q75'])}; the best, {_best(points)}."
    )
    return Paragraph(head, tuple(filter(None, (_where(points), _far(points), _above(points)))))


def _best(points: pd.DataFrame) -> str:
    best = points.sort_values("share", ascending=False).iloc[0]
    interval = ""
    if best["share_low"] == best["share_low"]:
        low = percent(best["share_low"])
        several = best["traffic"] == "trace"
        interval = f" (its captures from {low} on)" if several else f" ({low} to {percent(best['share_high'])})"
    return f"{_model(best)}, {percent(best['share'])}{interval}"


def _model(row: pd.Series) -> str:
    import pandas as pd

    parts = [f"{_short_name(name)} {row[name]}" for name in row.index if _is_model(name) and pd.notna(row[name])]
    return " ".join(parts) or str(row["run_id"])


def _where(points: pd.DataFrame) -> str:
    """Where in the space the compute-bound models are, if there are others as well."""
    import pandas as pd

    from analysis.methods.roofline import Verdict

    bound = points[points["verdict"] == Verdict.COMPUTE]
    if not len(bound) or len(bound) == len(points):
        return ""
    ranges = []
    for name in filter(_is_model, points):
        # Other families have this hyperparameter, or it is no number.
        if not pd.api.types.is_numeric_dtype(points[name]) or bound[name].isna().all():
            continue
        low, high = bound[name].min(), bound[name].max()
        if low > points[name].min() or high < points[name].max():
            ranges.append(f"{_short_name(name)} {low}" + (f" to {high}" if high > low else ""))
    return f"The compute-bound ones have {', '.join(ranges)}." if ranges else ""


def _is_model(column: object) -> bool:
    """Whether a column says which model a point is."""
    return column == "batch_size" or str(column).startswith("model.")


def _short_name(column: object) -> str:
    return str(column).removeprefix("model.").replace("_", " ")


def _far(points: pd.DataFrame) -> str:
    far = points[points["share"] < _FAR]
    if not len(far):
        return ""
    waiting = int((far["infeed_fraction"] > _WAITING).sum())
    cause = f" {waiting} of these wait for input more than {percent(_WAITING)} of the time." if waiting else ""
    are = "is" if len(far) == 1 else "are"
    return (
        f"{len(far)} {are} below {percent(_FAR)} of their roof: neither arithmetic nor memory limits "
        f"{'it' if len(far) == 1 else 'those'}, but dispatch, input or small operations.{cause}"
    )


def _above(points: pd.DataFrame) -> str:
    above = points[points["share"] > 1]
    if not len(above):
        return ""
    excess = percent(above["share"].max() - 1)
    return (
        f"{len(above)} are above their roof, by up to {excess}: caches save traffic that the intensity counts, "
        "or the ceilings are too low."
    )


def _traffic(of: Roofline) -> Iterator[str]:
    kinds = of.points["traffic"].value_counts()
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
        several = of.points[of.points["traffic"].eq("trace") & of.points["share_low"].notna()]
        if len(several):
            lost = 1 - several["share_low"] / several["share"]
            lines.append(
                f"A trace is the best of its run's captures: {len(several)} runs have several, the lowest is "
                f"{percent(lost.median())} below the best in the median and {percent(lost.max())} at most."
            )
    if lines:
        yield " ".join(lines)
