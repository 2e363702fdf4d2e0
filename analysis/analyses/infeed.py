"""`infeed`: find the models that wait for input, and bound the speedup of a faster pipeline.

This is the paper's Figure 5. The host does a fixed amount of work per example, while the device's
work grows with the model, so larger models wait less. For each point, the analysis decides whether
it is input-bound, and bounds the speedup of a faster pipeline. For each family on each device, it
estimates the share of input-bound points. Runs with a real input pipeline (data=images) also
measure the processor time of the pipeline, and the gain from free input, which takes no time. These
two measurements give the number of cores that would feed a model without waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from analysis.columns import FamilyGroup, analyze_groups, hyperparameters, settings
from analysis.format import (
    format_number,
    format_percent_interval,
    format_share,
    format_with_interval,
)
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option, unit_option
from analysis.registry import analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, joined
from analysis.sides import rare_event_caveat
from analysis.store.frame import aggregate_replicates, is_ok, require_homogeneous
from paradnn.core.errors import InsufficientData
from paradnn.core.words import counted
from paradnn.statistics.dependence import Unit, crossed_quantile, crossed_share, shared_levels
from paradnn.statistics.estimate import Estimate

#: Column of a model's size. The host's work per example is fixed, so the wait should decrease with
#: the size.
_SIZE = "flops_per_example"
#: Columns of the utilization; the first that a run has is used.
_UTILIZATION = ("flops_utilization", "trace_flops_utilization", "flops_utilization_spec")


@dataclass(frozen=True, kw_only=True)
class InfeedOptions(Options):
    """Options of the command `infeed`: the wait above which a model is input-bound."""

    threshold: float = option(
        0.1,
        "share of the step above which a model is input-bound",
        metavar="SHARE",
        above=0,
        below=1,
    )
    unit: Literal["crossed", "model", "point"] = unit_option()


class InputBoundSummary(NamedTuple):
    """Waits for input of one family on one device.

    Attributes:
        name: Family and device, such as "residual on TPU v2".
        runs: The runs that measured these waits, one per row.
        points: One row per point, with the columns

            - `family`, `device`, and the hyperparameters;
            - `size`: FLOP per example;
            - `infeed_fraction`: the wait, as a share of the step;
            - `headroom`: upper bound of the speedup with free input;
            - `input_bound`: whether the wait exceeds the threshold;
            - `utilization` of FLOPS, if any point has it;
            - `gain`, if any point has it: measured relative increase of the speed with free input;
            - `cores`, if any point has it: number of cores that would feed the step at this speed;
            - `_low` and `_high` of `gain` and `cores`: the ends of their 95% intervals.
        share: Share of the points that are input-bound.
        median: Median wait, as a share of the step.
        sample: The sample behind the intervals, as text, such as "23 models".
        gain: Median gain; None if it was not measured.
        cores: Median number of cores; None if it was not measured.
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
    """Find the points that wait for their input.

    Args:
        frame: Runs, one per row.
        options: The share of the step above which a point is input-bound, and the sampling unit of
            confidence intervals.

    Returns:
        The result. Its table has the points of all summaries (`InputBoundSummary.points`), the
        longest wait first. The column `size` is named flops_per_example there.

    Raises:
        InsufficientData: If no run has both a wait and a size.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    summaries, omitted = input_waits(frame, options)
    table = pd.concat([summary.points for summary in summaries], ignore_index=True)
    table = table.sort_values("infeed_fraction", ascending=False, kind="stable", ignore_index=True)
    return Result(
        numbers=table.rename(columns={"size": _SIZE}),
        answer=_answer(summaries, options),
        sentences=[*_sentences(summaries, omitted, options)],
        picture=lambda: draw_infeed(summaries, options),
        sources=tuple(run for summary in summaries for run in summary.runs["run_id"]),
        pooled=joined(summary.runs.attrs.get("pooled", "") for summary in summaries),
        metrics=_UTILIZATION,
    )


def _answer(summaries: Sequence[InputBoundSummary], options: InfeedOptions) -> AnalysisAnswer:
    """State the number of input-bound points, and the bound of their speedup without the wait.

    Args:
        summaries: The waits for input of each family on each device.
        options: The options of the command.
    """
    points = sum(len(summary.points) for summary in summaries)
    waiting = [summary for summary in summaries if summary.points["input_bound"].any()]
    count = sum(int(summary.points["input_bound"].sum()) for summary in waiting)
    threshold = f"more than {options.threshold:.0%} of the step"
    if not count:
        sentence = f"None of {counted(points, 'point')} waits for its input for {threshold}."
        return AnalysisAnswer(sentence=sentence, points=points)
    share = ""
    basis = ""
    if len(summaries) == 1:
        share = f", {format_with_interval(summaries[0].share, format_share)},"
        basis = summaries[0].sample
    headroom = pd.concat(
        [summary.points.loc[summary.points["input_bound"], "headroom"] for summary in waiting]
    )
    return AnalysisAnswer(
        sentence=(
            f"{count} of {counted(points, 'point')}{share} wait for their input for {threshold}; "
            f"without the wait they would be at most {headroom.median():.3g}x (median) to "
            f"{headroom.max():.3g}x as fast."
        ),
        points=points,
        basis=basis,
    )


def _sentences(
    summaries: Sequence[InputBoundSummary],
    omitted: Sequence[InsufficientData],
    options: InfeedOptions,
) -> Iterator[Paragraph | str]:
    for summary in summaries:
        bound = summary.points["input_bound"].sum()
        count = len(summary.points)
        verb = "is" if count == 1 else "are"
        head = (
            f"{summary.name}: {bound} of {counted(count, 'point')} {verb} input-bound, "
            f"{format_percent_interval(summary.share)}: they wait for more than "
            f"{options.threshold:.0%} of the step. Median wait "
            f"{format_percent_interval(summary.median)}."
        )
        yield Paragraph(head, tuple(_details(summary)))
    yield from (f"{reason}." for reason in omitted)
    samples = "; ".join(dict.fromkeys(summary.sample for summary in summaries))
    yield (
        f"Intervals are 95%, over {samples}. Headroom is an upper bound: it assumes that the wait "
        "vanishes and the rest of the step does not change."
    )
    yield from rare_event_caveat(min(len(summary.points) for summary in summaries))


def _details(summary: InputBoundSummary) -> Iterator[str]:
    """Yield sentences on input-bound models: their sizes, possible gain, and required cores.

    Args:
        summary: The waits for input of one family on one device.
    """
    bound = summary.points[summary.points["input_bound"]]
    if len(bound):
        ends = (format_number(bound["size"].min()), format_number(bound["size"].max()))
        sizes = " to ".join(ends)
        headroom = bound["headroom"]
        gain = f"{headroom.median():.3g}x (median) to {headroom.max():.3g}x"
        yield (
            f"Without the wait, input-bound models of {sizes} FLOP an example would be at most "
            f"{gain} as fast."
        )
    if summary.gain is not None:
        gain = format_percent_interval(summary.gain)
        yield f"Measured: free input makes the median model {gain} faster."
    if summary.cores is not None:
        most = summary.points["cores"].max()
        yield (
            f"Cores that would feed a model at that speed: {summary.cores.value:.3g} in the "
            f"median, {most:.3g} at most."
        )


def input_waits(
    frame: pd.DataFrame, options: InfeedOptions
) -> tuple[list[InputBoundSummary], list[InsufficientData]]:
    """Find the input-bound points of each family on each device.

    A point with the infeed fraction f (the wait for input, as a share of the step) is input-bound
    if f exceeds the threshold. Its headroom is Amdahl's bound 1 / (1 - f), which assumes that the
    rest of the step does not change. Only runs with outcome ok count. A point with replicates has
    the median of its replicates.

    Args:
        frame: Runs, one per row.
        options: The threshold, the sampling unit of confidence intervals, and whether to pool runs.

    Returns:
        The summaries, and an InsufficientData with the reason for each group without data.

    Raises:
        InsufficientData: If no run has both a wait and a size.
        HeterogeneousError: If the runs of a family on a device differ in their environment or
            timing protocol, and the option `pool` is not set.
    """
    if {"flops_per_step", "batch_size"} <= set(frame.columns):
        batch = frame["batch_size"].astype("Float64")
        frame = frame.assign(**{_SIZE: frame["flops_per_step"] / batch})
    frame = frame.reindex(columns=[*dict.fromkeys([*frame, "infeed_fraction", _SIZE])])
    return analyze_groups(
        frame,
        lambda group: _summarize(group, options),
        "no run recorded how long it waits for its input",
        "measure with a real input pipeline: python -m paradnn.train model=residual data=images "
        "measure=quick, about 20 seconds",
    )


def _summarize(group: FamilyGroup, options: InfeedOptions) -> InputBoundSummary:
    rows = group.rows
    has_wait = rows["infeed_fraction"].between(0, 1) & (rows[_SIZE] > 0)
    runs = rows[is_ok(rows) & has_wait]
    if runs.empty:
        raise InsufficientData(f"no measured run has both infeed_fraction and {_SIZE}")
    runs = require_homogeneous(runs, pool=options.pool)
    points = _point_table(aggregate_replicates(runs), options)
    points.insert(0, "family", group.family)
    points.insert(1, "device", group.device)
    levels = shared_levels(points, options.unit)
    return InputBoundSummary(
        name=group.name,
        runs=runs,
        points=points,
        share=crossed_share(points["input_bound"], levels),
        median=crossed_quantile(points["infeed_fraction"], levels),
        sample=levels.description,
        gain=_median(points, "gain", options.unit),
        cores=_median(points, "cores", options.unit),
    )


def _median(points: pd.DataFrame, name: str, unit: Unit) -> Estimate | None:
    """Return the median of a column over the points that have a value; None if no point has one.

    Args:
        points: Points, one per row. They need not have the column.
        name: The column.
        unit: Sampling unit of the interval of the median: "crossed", "model" or "point".
    """
    if name not in points or not points[name].notna().any():
        return None
    known = points[points[name].notna()]
    return crossed_quantile(known[name], shared_levels(known, unit))


def _point_table(rows: pd.DataFrame, options: InfeedOptions) -> pd.DataFrame:
    """Return `InputBoundSummary.points` without family and device, and without empty columns.

    The number of cores is the rate of the step with free input, in examples/s, times the processor
    time of the pipeline per example. The low end of its interval is the product of both low ends,
    and the high end the product of both high ends. The interval is therefore conservative.

    Args:
        rows: Measured points, one per row, with the metrics of their runs.
        options: The options of the command.
    """

    def numbers(name: str) -> pd.Series:
        if name in rows:
            return rows[name].astype("float64")
        return pd.Series(np.nan, index=rows.index)

    data_settings = [name for name in settings(rows) if name.startswith("data.")]
    names = list(dict.fromkeys([*hyperparameters(rows), *data_settings]))
    waits = numbers("infeed_fraction")
    with np.errstate(divide="ignore"):
        headroom = 1 / (1 - waits)
    points = rows[names].assign(
        size=numbers(_SIZE),
        infeed_fraction=waits,
        headroom=headroom,
        input_bound=waits > options.threshold,
    )
    utilizations = pd.concat([numbers(name) for name in _UTILIZATION], axis=1)
    measured = {"utilization": utilizations.bfill(axis=1).iloc[:, 0]}
    for suffix in ("", "_low", "_high"):
        rate = numbers(f"input_free_examples_per_second{suffix}")
        cpu_seconds = numbers(f"input_cpu_ms_per_example{suffix}") / 1e3
        measured[f"gain{suffix}"] = numbers(f"infeed_gain{suffix}")
        measured[f"cores{suffix}"] = rate * cpu_seconds
    return points.join(pd.DataFrame(measured).dropna(axis="columns", how="all"))


def draw_infeed(summaries: Sequence[InputBoundSummary], options: InfeedOptions) -> drawing.Figure:
    """Draw the wait of every point over the size of its model, and the utilization over the wait.

    Points above the line in the left panel are input-bound. The right panel is the paper's Figure
    5: models that wait longer have a lower utilization. If the gain of free input was measured, a
    line ends at the utilization with free input. Without utilizations, the right panel is omitted.

    Args:
        summaries: The waits for input of each family on each device.
        options: The options of the command; the threshold is drawn as a line.
    """
    columns = {name for summary in summaries for name in summary.points}
    has_utilization = "utilization" in columns
    if has_utilization:
        figure, (left, right) = drawing.panels(2, 6.0, 4.4, across=2)
    else:
        figure, (left,) = drawing.panels(1, 7.5, 4.4)
        right = None
    line: dict[str, Any] = {"color": "#333333", "linewidth": 1, "linestyle": "--"}
    left.axhline(options.threshold, label=f"input-bound above {options.threshold:.0%}", **line)
    names = [summary.name for summary in summaries]
    for summary in summaries:
        style = drawing.look(summary.name, names)
        _draw_summary(left, right, summary, style)
    left.set_ylim(-0.03, 1.03)
    wait_label = "share of the step spent waiting"
    logs = {"x": lambda value: format_number(value, "FLOP")}
    drawing.finish(
        left, "Waiting for input", "work for an example", wait_label, logs=logs, shares="y"
    )
    if right is not None:
        right.axvline(options.threshold, **line)
        right.set_xlim(-0.03, 1.03)
        right.set_ylim(bottom=0)
        title = "Utilization"
        if "gain" in columns:
            title += "; lines end at the utilization with free input"
        drawing.finish(right, title, wait_label, "FLOPS utilization", shares="xy")
    drawing.legend(figure)
    return figure


def _draw_summary(
    left: drawing.Axes,
    right: drawing.Axes | None,
    summary: InputBoundSummary,
    style: dict[str, Any],
) -> None:
    points = summary.points
    marks = style | {"markersize": 5, "alpha": 0.7, "markeredgewidth": 0, "linestyle": "none"}
    left.plot(points["size"], points["infeed_fraction"], label=summary.name, **marks)
    if right is None or "utilization" not in points:
        return
    right.plot(points["infeed_fraction"], points["utilization"], **marks)
    without_wait = points["utilization"] * (1 + points.get("gain", 0.0))
    right.vlines(
        points["infeed_fraction"],
        points["utilization"],
        without_wait,
        color=style["color"],
        linewidth=1,
        alpha=0.5,
    )
