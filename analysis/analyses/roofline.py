"""`roofline`: models under the roofs of their devices, or one run's operations under its roof.

Roofline: what limits a model or an operation, arithmetic or memory traffic, and how near it comes to that limit.

A roof belongs to a device and a precision. Its two ceilings are those that the runs carry as measured; where they carry
none, the specification's; where neither is known they stay unknown, and so do verdict and share. Out come the roofs,
one row for each point placed under them, what could not be placed and why, and a summary for each family.

Pictures of rooflines: models under the roofs of their devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.columns import find_column
from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.operations import (
    ModelOperationsResult,
    OperationRooflineResult,
    operations_of,
    operations_of_all,
    percent,
    roof_in_words,
)
from analysis.options import Options, option, unit_option
from analysis.registry import Remedy, Shown, analysis
from analysis.result import Headline, Paragraph, Result, pooled_within, require_runs
from analysis.roofs import Roofline, Verdict, _bars, describe, frame_roof, marks, place_models, summary
from analysis.statistics.dependence import Unit, crossed_share, levels_of
from analysis.store.frame import aggregate_replicates, is_ok
from paradnn.core.words import counted
from paradnn.errors import ConfigError
from paradnn.forecast.estimate import Estimate
from paradnn.platform.specifications import find_hardware

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        names="columns",
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
        return summary(self.roofline.points, self.unit)

    def limits(self) -> Limits | None:
        """What limits all these models; None where no verdict is known."""
        points = self.roofline.points
        known = points[points["verdict"] != Verdict.UNKNOWN]
        if not len(known):
            return None
        memory = crossed_share(known["verdict"] == Verdict.MEMORY, levels_of(known, self.unit))
        return Limits(len(known), memory, float(known["share"].median()))

    def headline(self) -> Headline | None:
        limits = self.limits()
        if limits is None:
            return None
        share, low, high = (short(value, share=True) for value in limits.memory_bound)
        words = (
            f"memory bounds {share} of {limits.models} models (95% interval {low} to {high}); in the median they reach "
            f"{short(limits.roof_share, share=True)} of their roof."
        )
        return Headline("What limits it", words)

    def _figure(self) -> Figure:
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


def _shown(rows: pd.DataFrame) -> Iterator[Shown]:
    """The models, then the operations of the profiled run with the highest rate, as the one with the most to show."""
    yield Shown()
    title = "Roofline of one model's operations"
    shares = [str(name) for name in rows.columns if str(name).startswith("op_share.")]
    profiled = rows[rows[shares].notna().any(axis=1) & is_ok(rows)]
    rates = profiled["flops_per_second"].dropna() if "flops_per_second" in profiled else profiled.index.to_series()[:0]
    if not len(rates):
        remedy = Remedy(("measure.profile=true",))
        yield Shown(title=title, key="operations", lacks="none of these runs was profiled", remedy=remedy)
        return
    run = str(profiled["run_id"].loc[rates.index].iloc[int(rates.argmax())])
    reading = (
        "Each mark is an operation, the larger the more of the step's time it takes. It is the profiled run with the "
        "highest FLOP rate."
    )
    yield Shown(RooflineOptions(operations=run), title, reading, key="operations")


@analysis(
    RooflineOptions,
    summary="what limits each model, arithmetic or memory, and how near it comes to that limit",
    description="Place models, or one run's operations, under the roofline of their device.\n"
    "The ceilings are those that the runs carry as measured, else the specification's; where\n"
    "neither is known, the verdict is unknown.",
    example="python -m analysis roofline --device 'TPU v2' --figure roofline.png",
    section="system",
    order=60,
    title="Roofline of the models",
    reading=(
        "Left of the ridge memory traffic limits, right of it arithmetic. Distance below the roof is "
        "what could be gained."
    ),
    shown=_shown,
)
def roofline(
    frame: pd.DataFrame, options: RooflineOptions
) -> RooflineResult | OperationRooflineResult | ModelOperationsResult:
    """Models under their roofs, replicates counted once; with `operations` the operations of that run, or of all.

    ConfigError for a colour that is no column, NotEnoughData without runs, SchemaError for heterogeneous runs of a
    device.
    """
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
    placed = place_models(rows, find_hardware)
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
    parts = [f"{_short_name(name)} {row[name]}" for name in row.index if _is_model(name) and pd.notna(row[name])]
    return " ".join(parts) or str(row["run_id"])


def _where(points: pd.DataFrame) -> str:
    """Where in the space the compute-bound models are, if there are others as well."""
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


def draw_roofline(result: Roofline, colour: str | None = None) -> Figure:
    """Models by intensity and rate: a panel for each device and precision, coloured by family or by a column `colour`.

    Panels of a device have the same scales; its other precisions' roofs are grey there. Bars are the intervals of the
    rates, or of traces the range of a run's captures.
    """
    keys = list(dict.fromkeys(zip(result.points["device"], result.points["precision"], strict=True)))
    # A family keeps its colour whichever others are drawn; real models come after the parametric ones.
    families = drawing.families_with(result.points["family"])
    shades = None if colour is None else drawing.colouring(result.points[colour], colour)
    columns = min(2, len(keys))
    rows = math.ceil(len(keys) / columns)
    drawn, axes = drawing.figure(7.5 if columns == 1 else 11.0, 0.6 + 4.2 * rows, rows, columns)
    panels = list(np.atleast_1d(axes).flat)
    for panel, (device, precision) in zip(panels, keys, strict=False):
        points = result.points[result.points["device"] == device]
        mine = points[points["precision"] == precision]
        _bars(panel, mine)
        if shades is None or colour is None:
            for family, group in mine.groupby("family", sort=False):
                marks(panel, group, 20, *_look(str(family), families))
        else:
            for part, look in shades.parts(mine[colour]):
                panel.scatter(
                    mine.loc[part, "arithmetic_intensity"],
                    mine.loc[part, "flops_per_second"],
                    s=20,
                    linewidths=0,
                    alpha=0.85,
                    zorder=2,
                    **look,
                )
        roofs = [result.roof_of(device, other) for key, other in keys if key == device and other != precision]
        roof = result.roof_of(device, precision)
        frame_roof(panel, points, roof, roofs)
        title = f"{device}, {precision}\n{describe(roof)}"
        drawing.finish(panel, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    for panel in panels[len(keys) :]:
        panel.set_axis_off()
    if shades is not None:
        shades.explain(drawn, panels[: len(keys)])
        return drawn
    counts = result.points["family"].value_counts()
    handles = [_handle(*_look(name, families), f"{name} ({counts[name]})") for name in families if name in counts]
    drawn.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return drawn


def _look(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Colour and marker."""
    return drawing.colour_of(name, names), drawing.marker_of(name, names)


def _handle(colour: str, marker: str, label: str) -> drawing.Line2D:
    return drawing.Line2D([], [], color=colour, marker=marker, linestyle="none", label=label)
