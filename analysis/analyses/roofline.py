"""`roofline`: what limits models, arithmetic or memory traffic, and how near they come to it; or a
run's operations.

A roof belongs to a device and a precision. Its two ceilings are those that the runs carry as
measured; where they carry none, the specification's; where neither is known they stay unknown, and
so do verdict and share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analysis.columns import find_column
from analysis.format import short
from analysis.labels import label
from analysis.lazy import drawing, pd
from analysis.operations import ALL, operations_of
from analysis.options import Options, column_option, option, unit_option
from analysis.registry import SectionSpec, analysis
from analysis.result import Highlight, Paragraph, Result, pooled_within, require_runs
from analysis.roofs import (
    Placed,
    Roof,
    RoofVerdict,
    describe,
    frame_roof,
    percent,
    place_models,
    roof_in_words,
    summary,
)
from analysis.store.frame import aggregate_replicates
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.platform.specifications import find_hardware
from paradnn.statistics.dependence import Unit, crossed_share, levels_of

_FAR = 0.1  # share of the roof below which neither ceiling explains a rate
_WAITING = 0.1  # infeed fraction above which a point waits for its input
_PANELS = 6


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(Options):
    """Models, or the operations of one of them."""

    operations: str | None = option(
        None,
        "the operations of one profiled run instead, by the beginning of its id; all: the types of operation of all "
        "profiled runs",
        metavar="RUN_ID|all",
    )
    colour: str | None = column_option(
        None,
        "column that colours the marks, such as nodes or batch_size (default: the family)",
        "C",
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


def _headline(points: pd.DataFrame, unit: Unit) -> Highlight | None:
    """What limits all the models whose verdict is known."""
    known = points[points["verdict"] != RoofVerdict.UNKNOWN]
    if not len(known):
        return None
    memory = crossed_share(known["verdict"] == RoofVerdict.MEMORY, levels_of(known, unit))
    share, low, high, of_roof = (
        short(value, share=True) for value in (*memory, known["share"].median())
    )
    words = (
        f"memory, not arithmetic, sets the limit of {share} of {counted(len(known), 'model')} (95% interval {low} to "
        f"{high}); in the median they reach {of_roof} of their limit."
    )
    return Highlight("What limits it", words)


def draw_roofline(
    points: pd.DataFrame, roofs: Sequence[Roof], colour: str | None = None
) -> drawing.Figure:
    """Models by intensity and rate: a panel for each device and precision, coloured by family or by
    a column.

    Panels of a device have the same scales; its other precisions' roofs are grey there. Bars are
    the intervals of the rates, or of traces the range of a run's captures.
    """
    shown = [(roof, mine) for roof in roofs if len(mine := points[_under(points, roof)])]
    if len(shown) > _PANELS:
        problem = f"{len(shown)} roofs, one for each device and precision, do not fit one figure"
        raise ConfigError(
            "--device", "(all)", problem, "choose with --device or --where precision=..."
        )
    # A family keeps its colour whichever others are drawn; real models come after the parametric
    # ones.
    named = drawing.families_with(points["family"])
    counts = points["family"].value_counts()
    looks = {
        name: drawing.look(name, named) | {"label": f"{name} ({counts[name]})"}
        for name in named
        if name in counts
    }
    if colour is None:
        shades = drawing.Colouring("", looks, None)
    else:
        shades = drawing.colouring(points[colour], colour)
    drawn, panels = drawing.panels(len(shown), 6.5, 4.4, across=2)
    for panel, (roof, mine) in zip(panels, shown, strict=True):
        x = mine["arithmetic_intensity"]
        y = mine["flops_per_second"]
        ends = (mine["rate_low"], mine["rate_high"])
        drawing.marks(
            panel,
            x,
            y,
            y_ends=ends,
            marker="",
            color="#999999",
            elinewidth=0.8,
            capsize=0,
            zorder=1.5,
        )
        for part, look in shades.parts(mine[colour or "family"]):
            panel.scatter(
                x[part],
                y[part],
                s=20,
                edgecolors="white",
                linewidths=0.4,
                alpha=0.8,
                zorder=2,
                **look,
            )
        others = [other for other, _ in shown if other.device == roof.device and other != roof]
        frame_roof(panel, points[points["device"] == roof.device], roof, others)
        title = f"{roof.device}, {roof.precision}\n{describe(roof)}"
        drawing.finish(panel, title, "arithmetic intensity (FLOP/B)", "FLOP/s")
    shades.explain(drawn, panels)
    return drawn


def _under(points: pd.DataFrame, at: Roof) -> pd.Series:
    """Which points are under a roof."""
    return (points["device"] == at.device) & (points["precision"] == at.precision)


def _sentences(placed: Placed, groups: pd.DataFrame) -> Iterator[Paragraph | str]:
    points = placed.points
    if not len(points):
        yield "No run has a place under a roof: it takes an arithmetic intensity and a FLOP rate."
    yield from map(roof_in_words, placed.roofs)
    for row in groups.to_dict("records"):
        same = [points[name] == row[name] for name in ("device", "precision", "family")]
        yield _family(row, points[same[0] & same[1] & same[2]])
    yield from _traffic(points)
    if placed.left_out:
        yield f"Without a place: {', '.join(f'{count} {reason}' for reason, count in placed.left_out.items())}."


_OPERATIONS = "Roofline of the operations", "Each mark is a type of operation of one model."


@analysis(
    RooflineOptions,
    summary="what limits each model, arithmetic or memory, and how near it comes to that limit",
    example="python -m analysis roofline --device 'TPU v2' --figure roofline.png",
    section="system",
    order=60,
    title="Roofline of the models",
    reading=(
        "Left of the ridge memory traffic limits, right of it arithmetic. Distance below the roof is "
        "what could be gained."
    ),
    list_sections=lambda _: [
        SectionSpec(),
        SectionSpec(RooflineOptions(operations=ALL), *_OPERATIONS, key="operations"),
    ],
)
def roofline(frame: pd.DataFrame, options: RooflineOptions) -> Result:
    """Models under their roofs, replicates counted once; with `operations` the operations of that
    run, or of all. ConfigError for a colour that is no column, NotEnoughData without runs,
    SchemaError for unlike runs of a device.
    """
    if options.operations and options.colour not in (None, "type"):
        problem = "is of models: operations have that of their type"
        raise ConfigError("--colour", options.colour, problem, "leave it out")
    if options.operations and options.operations != ALL:
        return operations_of(options.operations, frame, options.store)
    require_runs(frame)
    pooled = pooled_within(frame, ["device"], options.pool)
    if options.operations:
        return operations_of(ALL, frame, options.store, pooled, options.unit)
    rows = aggregate_replicates(frame)
    if options.colour:
        colour = find_column(rows, options.colour, "--colour")
    else:
        colour = None
    placed = place_models(rows, find_hardware)
    points = placed.points
    if colour is not None and colour not in points:
        points = points.merge(rows[["run_id", colour]], on="run_id", how="left")
    # A point rests on all its replicates.
    used = rows.loc[rows["run_id"].isin(points["run_id"]), "point_id"]
    groups = summary(points, options.unit)
    return Result(
        numbers=points[[*(name for name in points if name != "run_id"), "run_id"]],
        sentences=[*_sentences(placed, groups)],
        picture=lambda: draw_roofline(points, placed.roofs, colour),
        stands_out=_headline(points, options.unit),
        sources=tuple(frame.loc[frame["point_id"].isin(used), "run_id"]),
        pooled=pooled,
    )


def _family(row: dict[Any, Any], points: pd.DataFrame) -> Paragraph:
    """What limits a family's models on one device and precision, and how near they come to that
    limit.
    """
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
    best = points.sort_values("share", ascending=False).iloc[0]
    names = [name for name in best.index if name == "batch_size" or str(name).startswith("model.")]
    parts = [f"{label(name)} {best[name]}" for name in names if pd.notna(best[name])]
    if row["at_the_ridge"]:
        ridge = f", {row['at_the_ridge']} at the ridge"
    else:
        ridge = ""
    head = (
        f"{name}: {counted(row['points'], 'model')}, {row['memory_bound']} memory-bound, {row['compute_bound']} "
        f"compute-bound{ridge}. They reach {percent(row['share_median'])} of their roof in the median{interval}, "
        f"the middle half {percent(row['share_q25'])} to {percent(row['share_q75'])}; the best, "
        f"{' '.join(parts) or best['run_id']}, {percent(best['share'])}."
    )
    return Paragraph(head, tuple(_remarks(points)))


def _remarks(points: pd.DataFrame) -> Iterator[str]:
    """What neither ceiling explains."""
    far = points[points["share"] < _FAR]
    above = points[points["share"] > 1]
    if len(far):
        waiting = int((far["infeed_fraction"] > _WAITING).sum())
        if waiting:
            cause = f"; {waiting} of them wait for input more than {percent(_WAITING)} of the time"
        else:
            cause = ""
        yield (
            f"Below {percent(_FAR)} of the roof, where dispatch, input or small operations limit: "
            f"{counted(len(far), 'model')}{cause}."
        )
    if len(above):
        yield (
            f"Above the roof, by up to {percent(above['share'].max() - 1)}, since caches save traffic that the "
            f"intensity counts or the ceilings are too low: {counted(len(above), 'model')}."
        )


def _traffic(points: pd.DataFrame) -> Iterator[str]:
    traced = int((points["traffic"] == "trace").sum())
    if traced < len(points):
        yield (
            "Intensity is exact work over compulsory traffic, every tensor once a use: real traffic is more "
            "where products do not fit the caches, less where tensors stay in them between uses."
        )
    if traced:
        yield f"{traced} models are placed by their profiler traces, the best of a run's captures."
