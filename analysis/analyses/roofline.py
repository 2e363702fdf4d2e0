"""`roofline`: find the limit of each model (arithmetic or memory traffic), and the share reached.

With --operations, the analysis finds the limits of the operations of profiled runs instead.

A roof belongs to a device and a precision. It has two ceilings, the peak arithmetic rate and the
peak memory bandwidth. Runs record the measured ceilings; if they have none, specified ceilings
replace them. If a ceiling is unknown, verdict and share are unknown as well. A ceiling that was
measured while other programs were running is a lower bound. It is marked as too low, and a later
measurement in the store replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.ceilings import with_best_ceilings
from analysis.columns import find_column
from analysis.format import format_share, format_with_interval
from analysis.labels import label
from analysis.lazy import drawing, pd
from analysis.operations import ALL, operations_of
from analysis.options import Options, color_option, option, unit_option
from analysis.point_names import POINT, with_point_names
from analysis.registry import SectionSpec, analysis
from analysis.result import (
    AnalysisAnswer,
    Highlight,
    Paragraph,
    Result,
    pooled_within,
    require_runs,
)
from analysis.roofs import (
    PlacedModels,
    Roof,
    RoofVerdict,
    draw_roofs,
    format_roof,
    group_columns,
    place_models,
    roof_sentences,
    summarize_families,
)
from analysis.store.frame import aggregate_replicates
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.dependence import Unit, crossed_share, shared_levels

#: Share of the roof below which neither ceiling explains a rate.
_UNEXPLAINED_SHARE = 0.1
#: Infeed fraction above which a point counts as waiting for its input.
_WAITING_FRACTION = 0.1
_MAX_PANELS = 6
#: First columns of the table, after the point.
_LEADING_COLUMNS = (
    "device",
    "verdict",
    "share",
    "share_low",
    "share_high",
    "arithmetic_intensity",
    "flops_per_second",
    "rate_low",
    "rate_high",
)


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """Options of the command `roofline`: whether to show models or operations, and the colors."""

    operations: str | None = option(
        None,
        "show the operations of one profiled run, given the beginning of its id; all: the types "
        "of operation of all profiled runs",
        metavar="RUN_ID|all",
    )
    color: str | None = color_option(
        "column that colors the marks, such as nodes or batch_size (default: the family)"
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


def _list_sections(_: pd.DataFrame) -> list[SectionSpec]:
    operations = SectionSpec(
        RooflineOptions(operations=ALL),
        title="Roofline of the operations",
        reading="Each mark is a type of operation of one model.",
        key="operations",
    )
    return [SectionSpec(), operations]


@analysis(
    RooflineOptions,
    summary="the limit of each model, arithmetic or memory, and the share of it that is reached",
    example="python -m analysis roofline --device 'TPU v2' --figure roofline.png",
    section="system",
    order=60,
    title="Roofline of the models",
    reading="Left of the ridge, memory traffic is the limit; right of it, arithmetic. The distance below "
    "the roof is the possible gain.",
    list_sections=_list_sections,
)
def roofline(frame: pd.DataFrame, options: RooflineOptions) -> Result:
    """Place models, or the operations of profiled runs, under the roofs of their devices.

    The roof of a device is the highest FLOP rate at each arithmetic intensity, given the peak FLOP
    rate and memory bandwidth. A point with replicates counts once, with the median of its
    replicates.

    Args:
        frame: Runs, one per row.
        options: The id of a profiled run whose operations are shown (None for models), the column
            that colors the marks, and the sampling unit of confidence intervals.

    Returns:
        A result with the points of `analysis.roofs.PlacedModels`. If `operations` is given, an
        `OperationsResult`.

    Raises:
        ConfigError: If the color is not a column, or a color is combined with `operations`.
        InsufficientData: If there are no runs.
        HeterogeneousError: If the runs of a device differ in their environment or timing protocol,
            and the option `pool` is not set.
    """
    if options.operations and options.color not in (None, "type"):
        problem = "cannot be combined with --operations, which colors operations by type"
        raise ConfigError("--color", options.color, problem, "omit it")
    if options.operations and options.operations != ALL:
        return operations_of(options.operations, frame, options.store)
    require_runs(frame)
    pooled = pooled_within(frame, ["device"], pool=options.pool)
    if options.operations:
        return operations_of(ALL, frame, options.store, pooled, options.unit)
    rows = with_best_ceilings(aggregate_replicates(frame), options.store)
    if options.color:
        color = find_column(rows, options.color, "--color")
    else:
        color = None
    placed = place_models(rows, find_hardware)
    points = placed.points
    if color is not None and color not in points:
        points = points.merge(rows[["run_id", color]], on="run_id", how="left")
    # All replicates of a point are sources.
    used_points = rows.loc[rows["run_id"].isin(points["run_id"]), "point_id"]
    groups = summarize_families(points, options.unit)
    answer = _answer(placed, options.unit)
    headline = None
    if answer:
        headline = Highlight("What limits it", answer.sentence)
    return Result(
        numbers=_table(points, rows),
        sentences=[*_sentences(placed, groups)],
        picture=lambda: draw_roofline(points, placed.roofs, color),
        answer=answer,
        stands_out=headline,
        sources=tuple(frame.loc[frame["point_id"].isin(used_points), "run_id"]),
        pooled=pooled,
    )


def _table(points: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points with their names; the columns that describe the limit come first.

    Args:
        points: The points of `PlacedModels`.
        rows: Runs from which the names of the points are taken.
    """
    named = rows.set_index("run_id").loc[points["run_id"]].reset_index(drop=True)
    table = with_point_names(points.reset_index(drop=True), named)
    leading = [POINT, *_LEADING_COLUMNS]
    others = [name for name in table if name not in (*leading, "run_id")]
    return table[[*leading, *others, "run_id"]]


def _answer(placed: PlacedModels, unit: Unit) -> AnalysisAnswer | None:
    """State what limits the models with a known verdict; None if no verdict is known.

    Args:
        placed: The models under their roofs.
        unit: Sampling unit of the interval of the share of memory-bound points: "crossed", "model"
            or "point".
    """
    known = placed.points[placed.points["verdict"] != RoofVerdict.UNKNOWN]
    if not len(known):
        return None
    is_memory = known["verdict"] == RoofVerdict.MEMORY
    count = int(is_memory.sum())
    points = counted(len(known), "point")
    basis = ""
    every = "The point is"
    if len(known) > 1:
        every = f"All {points} are"
    if count == 0:
        text = f"{every} limited by arithmetic or overhead, none by memory bandwidth"
    elif count == len(known):
        text = f"{every} limited by memory bandwidth"
    else:
        levels = shared_levels(known, unit)
        basis = levels.description
        share = format_with_interval(crossed_share(is_memory, levels), format_share)
        text = (
            f"Memory bandwidth limits {count} of {points}, {share}, and arithmetic or overhead "
            "the others"
        )
    reached = format_share(known["share"].median())
    text += f"; in the median they reach {reached} of their limit"
    if any(roof.is_low for roof in placed.roofs):
        text += " (at most: some measured ceilings are too low)"
    return AnalysisAnswer(sentence=f"{text}.", points=len(known), basis=basis)


def draw_roofline(
    points: pd.DataFrame, roofs: Sequence[Roof], color: str | None = None
) -> drawing.Figure:
    """Draw models by arithmetic intensity and FLOP rate, with a panel per device and precision.

    Panels of one device have the same scales, and show the roofs of the device at other precisions
    in gray. Bars are the intervals of the rates. If the rate is from a trace, its bar is the range
    over the captures of the run.

    Args:
        points: The points of `analysis.roofs.PlacedModels`.
        roofs: The roofs of these points.
        color: Column that colors the marks; None for the family.

    Raises:
        ConfigError: If there are more than six roofs, and so more than six panels.
    """
    rows_by_roof = [(roof, points[_is_under(points, roof)]) for roof in roofs]
    rows_by_roof = [(roof, rows) for roof, rows in rows_by_roof if len(rows)]
    if len(rows_by_roof) > _MAX_PANELS:
        problem = (
            f"{len(rows_by_roof)} roofs, one for each device and precision, do not fit one figure, "
            f"which has at most {_MAX_PANELS}"
        )
        remedy = "choose fewer with --device or --where precision=..."
        raise ConfigError("--device", "(all)", problem, remedy)
    if color is None:
        coloring = _family_colors(points)
    else:
        coloring = drawing.coloring(points[color], color)
    figure, panels = drawing.panels(len(rows_by_roof), 6.5, 4.4, across=2)
    for axes, (roof, rows) in zip(panels, rows_by_roof, strict=True):
        intensity = rows["arithmetic_intensity"]
        rate = rows["flops_per_second"]
        drawing.marks(
            axes,
            intensity,
            rate,
            y_ends=(rows["rate_low"], rows["rate_high"]),
            marker="",
            color="#999999",
            elinewidth=0.8,
            capsize=0,
            zorder=1.5,
        )
        for is_colored, style in coloring.parts(rows[color or "family"]):
            axes.scatter(
                intensity[is_colored],
                rate[is_colored],
                s=20,
                edgecolors="white",
                linewidths=0.4,
                alpha=0.8,
                zorder=2,
                **style,
            )
        device_points = points[points["device"] == roof.device]
        others = [
            other for other, _ in rows_by_roof if other.device == roof.device and other != roof
        ]
        draw_roofs(axes, device_points, roof, others)
        title = f"{roof.device}, {roof.precision}\n{format_roof(roof)}"
        drawing.finish(axes, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    coloring.explain(figure, panels)
    return figure


def _family_colors(points: pd.DataFrame) -> drawing.Coloring:
    """Return the color and marker of every family, with a legend.

    A family keeps its color no matter which other families are drawn. Real models come after
    parametric families. The title of the legend names the settings that vary.

    Args:
        points: The points of `PlacedModels`.
    """
    names = drawing.families_with(points["family"])
    counts = points["family"].value_counts()
    styles = {}
    for name in names:
        if name in counts:
            styles[name] = drawing.look(name, names) | {"label": f"{name} ({counts[name]})"}
    settings = group_columns(points)[3:]
    if settings:
        varying = ", ".join(label(name) for name in settings)
        title = f"family (points; these differ in {varying})"
    else:
        title = ""
    return drawing.Coloring(title, styles, None)


def _is_under(points: pd.DataFrame, roof: Roof) -> pd.Series:
    return (points["device"] == roof.device) & (points["precision"] == roof.precision)


def _sentences(placed: PlacedModels, groups: pd.DataFrame) -> Iterator[Paragraph | str]:
    points = placed.points
    if not len(points):
        yield "No run can be placed under a roof: none has an arithmetic intensity and a FLOP rate."
    yield from map(roof_sentences, placed.roofs)
    keys = group_columns(points)
    for row in groups.to_dict("records"):
        is_member = pd.Series(True, index=points.index)
        for key in keys:
            if pd.notna(row[key]):
                is_member &= points[key].eq(row[key]).fillna(False)
            else:
                is_member &= points[key].isna()
        yield _family_paragraph(row, points[is_member], keys)
    yield from _traffic_sentences(points)
    if placed.omitted:
        reasons = ", ".join(f"{count} {reason}" for reason, count in placed.omitted.items())
        yield f"Not placed: {reasons}."


def _family_paragraph(row: dict[Any, Any], points: pd.DataFrame, keys: Sequence[str]) -> Paragraph:
    """State what limits the points of a group, and the share of the roof that they reach.

    Args:
        row: Row of the group in the table of `summarize_families`.
        points: The points of the group.
        keys: Columns that define groups: family, device, precision, and then settings.
    """
    settings = "".join(f", {row[key]}" for key in keys[3:] if pd.notna(row[key]))
    name = f"{row['family']} on {row['device']} in {row['precision']}{settings}"
    count = counted(row["points"], "point")
    if row["unknown"] == row["points"]:
        intensities = f"{row['lowest_intensity']:.3g} and {row['highest_intensity']:.3g} FLOP/B"
        return Paragraph(f"{name}: {count} between {intensities}, verdict unknown.")
    verdicts = [f"{row['memory_bound']} memory-bound", f"{row['compute_bound']} compute-bound"]
    if row["at_the_ridge"]:
        verdicts.append(f"{row['at_the_ridge']} at the ridge")
    interval = ""
    if math.isfinite(row["median_low"]) and math.isfinite(row["median_high"]):
        ends = f"{format_share(row['median_low'])} to {format_share(row['median_high'])}"
        interval = f" (95% interval {ends} over {row['sample']})"
    quartiles = f"{format_share(row['share_q25'])} to {format_share(row['share_q75'])}"
    best = points.sort_values("share", ascending=False).iloc[0]
    head = (
        f"{name}: {count}, {', '.join(verdicts)}. They reach {format_share(row['share_median'])} "
        f"of their roof in the median{interval}, the middle half {quartiles}; the best, "
        f"{_format_point(best)}, {format_share(best['share'])}."
    )
    return Paragraph(head, tuple(_unexplained_remarks(points)))


def _format_point(point: pd.Series) -> str:
    """Return the sizes of a point as text or, if it has none, the id of its run.

    Args:
        point: Row of the points of `PlacedModels`.
    """
    sizes = [
        f"{label(name)} {point[name]}"
        for name in point.index
        if (name == "batch_size" or str(name).startswith("model.")) and pd.notna(point[name])
    ]
    return " ".join(sizes) or str(point["run_id"])


def _unexplained_remarks(points: pd.DataFrame) -> Iterator[str]:
    """Yield remarks on points whose rate is far below or above the roof of their device.

    Args:
        points: The points of one group, from `PlacedModels`.
    """
    below = points[points["share"] < _UNEXPLAINED_SHARE]
    above = points[points["share"] > 1]
    if len(below):
        waiting = int((below["infeed_fraction"] > _WAITING_FRACTION).sum())
        cause = ""
        if waiting:
            fraction = format_share(_WAITING_FRACTION)
            cause = f"; {waiting} of them wait for input more than {fraction} of the time"
        yield (
            f"Below {format_share(_UNEXPLAINED_SHARE)} of the roof, where dispatch, input or small "
            f"operations limit the rate: {counted(len(below), 'point')}{cause}."
        )
    if len(above):
        excess = format_share(above["share"].max() - 1)
        yield (
            f"Above the roof, by up to {excess}: {counted(len(above), 'point')}. Either caches "
            "save traffic that the intensity counts, or the ceilings are too low."
        )


def _traffic_sentences(points: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on how the memory traffic of the points was determined.

    Args:
        points: The points of `PlacedModels`.
    """
    traced = int((points["traffic"] == "trace").sum())
    if traced < len(points):
        yield (
            "Intensity is exact work over compulsory traffic, which counts every tensor once per "
            "use. Real traffic is higher if products exceed the caches, and lower if tensors stay "
            "in the caches between uses."
        )
    if traced:
        points_text = counted(traced, "point")
        yield f"Placed by the best capture of the run's profiler trace: {points_text}."
