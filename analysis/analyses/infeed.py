"""`infeed`: which models wait for their input, and what a faster input pipeline could bring (the
paper's Figure 5).

What the host does for an example is fixed while the device's work grows, so larger models wait
less. Each point gets a verdict and a bound on what a faster pipeline could bring, each family on
each device the share of its models that are input-bound. Runs with a real input (data=images) also
measured what input free of charge brings and what the pipeline costs the host, from which follows
how many cores would feed a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from analysis.columns import FamilyGroup, analyze_groups, hyperparameters, settings
from analysis.format import format_number, format_percent_interval
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option, unit_option
from analysis.registry import analysis
from analysis.result import Paragraph, Result, joined
from analysis.sides import rare_event_caveat
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import NotEnoughData
from paradnn.statistics.dependence import Unit, crossed_quantile, crossed_share, shared_levels
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.regression import Lacking

#: What the host does for an example is fixed, so that these are what the wait should fall with.
_SIZE = "flops_per_example"
#: The first of these that a run has is its utilisation.
_UTILIZATION = ("flops_utilization", "trace_flops_utilization", "flops_utilization_spec")


@dataclass(frozen=True, kw_only=True)
class InfeedOptions(Options):
    """From where on a wait counts."""

    threshold: float = option(
        0.1,
        "share of the step above which a model is input-bound",
        metavar="SHARE",
        above=0,
        below=1,
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


class InputBoundSummary(NamedTuple):
    """One family on one device: the share of its points that is input-bound, their median wait;
    medians of `gain` and `cores` where measured. `sample` says what intervals are over.

    `points`: family, device, hyperparameters, `size` (FLOPs of an example), `infeed_fraction`,
    `headroom` (the speedup that an input without cost would bring at most), `input_bound`, and
    where any point has them `utilization` (of FLOPS), `gain` (measured: what input free of charge
    brings) and `cores` (that the pipeline would need to feed the step at the speed it has then),
    the last two with `_low` and `_high`.
    """

    name: str
    runs: pd.DataFrame
    points: pd.DataFrame
    share: Estimate
    median: Estimate
    sample: str
    gain: Estimate | None
    cores: Estimate | None


@analysis(
    InfeedOptions,
    summary="share of the step spent waiting for input, against the size of the model",
    example="python -m analysis infeed --family residual,bottleneck",
    section="system",
    order=80,
    title="Waiting for input",
    reading="Share of the step in which the device waits for its next batch.",
)
def infeed(frame: pd.DataFrame, options: InfeedOptions) -> Result:
    """The points of `input_waits`, the longest wait first, and its errors."""
    found, lacking = input_waits(frame, options)
    table = pd.concat([group.points for group in found], ignore_index=True)
    table = table.sort_values("infeed_fraction", ascending=False, kind="stable", ignore_index=True)
    return Result(
        numbers=table.rename(columns={"size": _SIZE}),
        sentences=[*_sentences(found, lacking, options)],
        picture=lambda: draw_infeed(found, options),
        sources=tuple(run for group in found for run in group.runs["run_id"]),
        pooled=joined(group.runs.attrs.get("pooled", "") for group in found),
        metrics=_UTILIZATION,
    )


def _sentences(
    found: Sequence[InputBoundSummary], lacking: Sequence[Lacking], options: InfeedOptions
) -> Iterator[Paragraph | str]:
    for group in found:
        head = (
            f"{group.name}: {group.points['input_bound'].sum()} of {len(group.points)} points are input-bound, "
            f"{format_percent_interval(group.share)}: they wait for more than {options.threshold:.0%} of the step. "
            f"Median wait {format_percent_interval(group.median)}."
        )
        yield Paragraph(head, (*_about(group),))
    yield from (f"{each}." for each in lacking)
    samples = "; ".join(dict.fromkeys(group.sample for group in found))
    yield f"Intervals are 95%, over {samples}. Headroom is a bound: the step without the wait."
    yield from rare_event_caveat(min(len(group.points) for group in found))


def _about(group: InputBoundSummary) -> Iterator[str]:
    """Which sizes of model wait, and what would be gained without it."""
    bound = group.points[group.points["input_bound"]]
    if len(bound):
        ends = " to ".join(format_number(end) for end in (bound["size"].min(), bound["size"].max()))
        middle = bound["headroom"].median()
        most = bound["headroom"].max()
        gained = f"{middle:.3g}x (median) to {most:.3g}x as fast"
        yield f"Without it input-bound models of {ends} FLOP an example are {gained}."
    if group.gain is not None:
        yield f"Measured: input free of charge makes them {format_percent_interval(group.gain)} faster in the median."
    if group.cores is not None:
        most = group.points["cores"].max()
        yield f"Cores that would feed them at that speed: {group.cores.value:.3g} in the median, {most:.3g} at most."


def input_waits(
    frame: pd.DataFrame, options: InfeedOptions
) -> tuple[list[InputBoundSummary], list[Lacking]]:
    """Judge every point with an `infeed_fraction` f: input-bound above the threshold, headroom 1 /
    (1 - f). The second says which groups have nothing.

    The headroom is Amdahl's bound: the rest of the step stays as it is. Intervals are over the
    models and batch sizes that points share. Only ok runs count; replicates become their median.
    NotEnoughData where no run has both columns, SchemaError for heterogeneous runs of one group.
    """
    if {"flops_per_step", "batch_size"} <= set(frame.columns):
        frame = frame.assign(
            flops_per_example=frame["flops_per_step"] / frame["batch_size"].astype("Float64")
        )
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, "infeed_fraction", _SIZE])])

    def judged(group: FamilyGroup) -> InputBoundSummary:
        runs = group.rows[
            is_ok(group.rows)
            & group.rows["infeed_fraction"].between(0, 1)
            & (group.rows[_SIZE] > 0)
        ]
        if runs.empty:
            raise NotEnoughData(f"no measured run has both infeed_fraction and {_SIZE}")
        runs = require_homogeneous(runs, pool=options.pool)
        points = _judged(aggregate_replicates(runs), options)
        points.insert(0, "family", group.family)
        points.insert(1, "device", group.device)
        levels = shared_levels(points, options.unit)
        share = crossed_share(points["input_bound"], levels)
        wait = crossed_quantile(points["infeed_fraction"], levels)
        rest = (_median(points, name, options.unit) for name in ("gain", "cores"))
        return InputBoundSummary(group.name, runs, points, share, wait, levels.description, *rest)

    return analyze_groups(
        frame, judged, "not enough data", "measure with a real input pipeline, such as data=images"
    )


def _median(points: pd.DataFrame, name: str, unit: Unit) -> Estimate | None:
    """Over the points that have it; None where none has."""
    if name in points:
        known = points[points[name].notna()]
    else:
        known = points.iloc[:0]
    if len(known):
        return crossed_quantile(known[name], shared_levels(known, unit))
    return None


def _judged(rows: pd.DataFrame, options: InfeedOptions) -> pd.DataFrame:
    """What is known of each point; columns that no point has a value in are left out.

    Cores: examples a second that the step takes when its input is free of charge, times the
    processor time of the pipeline for an example. The ends pair the slowest step with the cheapest
    input and the reverse, so that they cover at least as often as each of the two does.
    """

    def numbers(name: str) -> pd.Series:
        if name in rows:
            return rows[name].astype("float64")
        return pd.Series(np.nan, index=rows.index)

    names = [*hyperparameters(rows), *(name for name in settings(rows) if name.startswith("data."))]
    waiting = numbers("infeed_fraction")
    with np.errstate(divide="ignore"):
        headroom = 1 / (1 - waiting)
    bound = waiting > options.threshold
    found = rows[list(dict.fromkeys(names))].assign(
        size=numbers(_SIZE), infeed_fraction=waiting, headroom=headroom, input_bound=bound
    )
    measured = {
        "utilization": pd.concat(map(numbers, _UTILIZATION), axis=1).bfill(axis=1).iloc[:, 0]
    }
    for end in ("", "_low", "_high"):
        measured[f"gain{end}"] = numbers(f"infeed_gain{end}")
        free = f"input_free_examples_per_second{end}"
        cost = f"input_cpu_ms_per_example{end}"
        measured[f"cores{end}"] = numbers(free) * numbers(cost) / 1e3
    return found.join(pd.DataFrame(measured).dropna(axis="columns", how="all"))


def draw_infeed(found: Sequence[InputBoundSummary], options: InfeedOptions) -> drawing.Figure:
    """Left a point for each model: what is above the line is input-bound. Right, the paper's Figure
    5: what waits longer uses less; where free input was measured, what it would use then.
    """
    known = {name for group in found for name in group.points}
    placed = "utilization" in known
    drawn, (left, *right) = drawing.panels(1 + placed, 6.0 if placed else 7.5, 4.4, across=2)
    line: dict[str, Any] = {"color": "#333333", "linewidth": 1, "linestyle": "--"}
    left.axhline(options.threshold, label=f"input-bound above {options.threshold:.0%}", **line)
    for group in found:
        rows = group.points
        size = {"markersize": 5, "alpha": 0.7, "markeredgewidth": 0, "linestyle": "none"}
        look = drawing.look(group.name, [one.name for one in found]) | size
        left.plot(rows["size"], rows["infeed_fraction"], label=group.name, **look)
        for axes in right if "utilization" in rows else ():
            axes.plot(rows["infeed_fraction"], rows["utilization"], **look)
            free = rows["utilization"] * (1 + rows.get("gain", 0.0))
            axes.vlines(
                rows["infeed_fraction"],
                rows["utilization"],
                free,
                color=look["color"],
                linewidth=1,
                alpha=0.5,
            )
    left.set_ylim(-0.03, 1.03)
    waiting = "share of the step spent waiting"
    logs = {"x": lambda value: format_number(value, "FLOP")}
    drawing.finish(left, "Waiting for input", "work for an example", waiting, logs=logs, shares="y")
    for axes in right:
        axes.axvline(options.threshold, **line)
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(bottom=0)
        if "gain" in known:
            gain = "; lines reach to what free input brings"
        else:
            gain = ""
        drawing.finish(axes, f"Utilisation{gain}", waiting, "FLOPS utilisation", shares="xy")
    drawing.legend(drawn)
    return drawn
