"""`latency`: compute latency over the rate at which queries arrive, and the knee of the curve.

A policy is a combination of server settings. Each policy on each platform has a curve. The knee is
the rate with the highest power, rate / latency. Below the knee, a higher rate adds little latency;
above it, latency grows faster than the rate (Kleinrock, "Power and deterministic rules of thumb for
probabilistic problems in computer communications", ICC 1979). For a single server with exponential
times, the knee is at half of the rate that it can serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from analysis.choices import describe_choice, estimate, tasks
from analysis.format import format_number, format_with_interval
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import SectionSpec, analysis
from analysis.result import AnalysisAnswer, Paragraph, Result, joined
from analysis.store.frame import require_homogeneous
from paradnn.core.errors import InsufficientData
from paradnn.statistics.estimate import LEVEL

_RATE = "scheduled_queries_per_second"
#: Columns of the latency limit: some runs search for the highest rate within this limit.
_LIMIT = ("server.percentile", "server.latency_ms")
#: Settings that are swept or searched, and thus not part of a policy.
_SWEPT = ("server.rate", *_LIMIT)
#: Probability that an interval excludes the true value.
_ERROR = 1 - LEVEL
#: Maximum number of curves in a figure.
_MAX_CURVES = 12


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Options):
    """Options of the command `latency`: the quantile of the latency."""

    quantile: Literal["p50", "p90", "p95", "p99", "p99.9"] = option(
        "p99", "quantile of the latency"
    )


class Knee(NamedTuple):
    """Knee of a latency curve: the rate of queries/s with the highest power, rate / latency.

    Attributes:
        rate: Rate with the highest power.
        low: Lowest rate whose power may be the highest, given the intervals of the latencies.
        high: Highest rate whose power may be the highest.
    """

    rate: float
    low: float
    high: float


class Curve(NamedTuple):
    """Latency over the rate of queries for one policy (server settings) on one platform.

    Attributes:
        task: The work that the policies do, such as serving one model.
        name: Name of the policy and platform.
        table: One row per rate, in ascending order, with the columns

            - `rate`, `served`: queries/s that arrived and that were served;
            - `latency`: the quantile in ms, with its 95% interval `low` to `high`;
            - `median`: the median latency in ms;
            - `held`: whether every run served the queries that arrived;
            - `runs`: the number of runs.
        knee: The knee; None if it is at or beyond the lowest or highest rate.
        peaks: One row per latency limit for which runs searched the highest rate: the columns of
            the limit, and `rate` in queries/s, the geometric mean over searches. At this rate,
            `server.percentile` percent of the queries took at most `server.latency_ms`.
        run_ids: Ids of the runs.
        pooled: How the pooled runs differ, as text; empty if no heterogeneous runs were pooled.
    """

    task: str
    name: str
    table: pd.DataFrame
    knee: Knee | None
    peaks: pd.DataFrame
    run_ids: tuple[str, ...]
    pooled: str = ""


def _list_sections(rows: pd.DataFrame) -> list[SectionSpec]:
    if _RATE in rows and rows[_RATE].notna().any():
        return [SectionSpec()]
    return []


@analysis(
    LatencyOptions,
    summary="latency over the rate of queries, by policy, with the knee",
    example="python -m analysis latency --where server.delay_ms=0 --figure latency.png",
    gate="queries",
    section="all",
    order=140,
    title="Latency over the rate of queries",
    reading="Ring: the knee, above which latency grows faster than the rate. Cross: queries "
    "arrived faster than they were served. Dotted: the highest rate within its latency limit.",
    list_sections=_list_sections,
)
def latency(frame: pd.DataFrame, options: LatencyOptions) -> Result:
    """Compute latency over the rate of queries for each policy (combination of server settings).

    Args:
        frame: Runs, one per row.
        options: The quantile of the latency.

    Returns:
        The result. Its table has a row for each rate of each policy: task, policy, and the columns
        of `Curve.table`.

    Raises:
        InsufficientData: If no run issued queries by a schedule.
        HeterogeneousError: If the runs of the same model differ in timing protocol or schema
            version, and the option `pool` is not set.
    """
    metric = f"latency_{options.quantile}_ms"
    curves = latency_curves(frame, metric, pool=options.pool)
    parts = []
    for curve in curves:
        part = curve.table.copy()
        part.insert(0, "task", curve.task)
        part.insert(1, "policy", curve.name)
        parts.append(part)
    return Result(
        numbers=pd.concat(parts, ignore_index=True),
        answer=_answer(curves, options.quantile),
        sentences=[*_sentences(curves, options.quantile)],
        picture=lambda: draw_latency(curves[:_MAX_CURVES], options.quantile),
        sources=tuple(run for curve in curves for run in curve.run_ids),
        pooled=joined(curve.pooled for curve in curves),
    )


def _answer(curves: Sequence[Curve], quantile: str) -> AnalysisAnswer:
    """State the latency and the knee of the policy that served the highest rate.

    A policy is a combination of server settings.

    Args:
        curves: The curves of all policies.
        quantile: The quantile of the latency, such as "p99".
    """
    rates = sum(len(curve.table) for curve in curves)
    served = [curve for curve in curves if curve.table["held"].any()]
    if not served:
        return AnalysisAnswer(sentence="No rate of queries was served.", points=rates)
    best = max(served, key=lambda curve: float(curve.table.loc[curve.table["held"], "rate"].max()))
    held = best.table[best.table["held"]].iloc[-1]
    ends = (held["latency"], held["low"], held["high"])
    milliseconds = format_with_interval(ends, partial(format_number, unit="ms", digits=3))
    text = f"{best.task}, {best.name}: {_format_rate(held['rate'])} is served with a {quantile} "
    text += f"latency of {milliseconds}"
    if len(curves) > 1:
        text += f", the highest rate of {len(curves)} policies"
    if best.knee:
        low = _format_rate(best.knee.low)
        high = _format_rate(best.knee.high)
        text += f"; its knee is at {_format_rate(best.knee.rate)} ({low} to {high})"
    return AnalysisAnswer(sentence=f"{text}.", points=rates, basis="the scatter between runs")


def _sentences(curves: Sequence[Curve], quantile: str) -> Iterator[Paragraph]:
    for task in dict.fromkeys(curve.task for curve in curves):
        points = [
            f"{curve.name}: {'; '.join(_describe_curve(curve))}."
            for curve in curves
            if curve.task == task
        ]
        yield Paragraph(f"{task}: {quantile} of the latency over the rate.", tuple(points))
    yield Paragraph(
        "The knee is the rate with the highest rate / latency (Kleinrock 1979); the parentheses "
        "state the range in which the knee may lie."
    )


def _describe_curve(curve: Curve) -> Iterator[str]:
    held = curve.table[curve.table["held"]]
    overloaded = curve.table[~curve.table["held"]]
    if len(held):
        ends = held[["latency", "rate"]].iloc[[0, -1]].itertuples(index=False, name=None)
        texts = [
            f"{format_number(milliseconds, 'ms', digits=3)} at {_format_rate(rate)}"
            for milliseconds, rate in dict.fromkeys(ends)
        ]
        yield " to ".join(texts)
    if curve.knee:
        low = _format_rate(curve.knee.low)
        high = _format_rate(curve.knee.high)
        yield f"knee at {_format_rate(curve.knee.rate)} ({low} to {high})"
    else:
        yield "no knee within these rates"
    if len(overloaded):
        yield f"not served from {_format_rate(overloaded['rate'].min())} on"
    for peak in curve.peaks.to_dict("records"):
        limit = f"{peak['server.latency_ms']:g} ms at p{peak['server.percentile']:g}"
        yield f"highest rate that met {limit}: {_format_rate(peak['rate'])}"


def _format_rate(value: float) -> str:
    return f"{format_number(value, digits=3)}/s"


def latency_curves(
    frame: pd.DataFrame, metric: str = "latency_p99_ms", *, pool: bool = False
) -> list[Curve]:
    """Compute latency over the rate of queries for each policy of each platform and model.

    A policy is a combination of server settings.

    Args:
        frame: Runs, one per row.
        metric: Column of a latency quantile in ms.
        pool: Whether to pool runs that differ in timing protocol or schema version.

    Raises:
        InsufficientData: If no run issued queries by a schedule.
        HeterogeneousError: If the runs of the same model differ in timing protocol or schema
            version, and `pool` is false.
    """
    runs = frame[:0]
    if {_RATE, metric} <= set(frame):
        runs = frame.dropna(subset=[_RATE, metric])
        runs = runs[runs["outcome"].isin(["ok", "overload"])]
    if runs.empty:
        command = (
            "python -m paradnn.train -m mode=inference scenario=server server.rate=50,100,200 "
            "measure=quick"
        )
        raise InsufficientData(
            f"no run with scenario=server has {metric}; measure some (about two minutes): {command}"
        )
    curves = []
    for task in tasks(runs):
        rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
        columns = [name for name in task.varies if name not in _SWEPT]
        pooled = rows.attrs.get("pooled", "")
        if not columns:
            device = str(rows["device"].iloc[0])
            curves.append(_make_curve(task.name, device, rows, metric, pooled))
            continue
        for _, part in rows.groupby(columns, dropna=False, sort=True):
            name = describe_choice(part.iloc[0], columns)
            curves.append(_make_curve(task.name, name, part, metric, pooled))
    return curves


def _make_curve(task: str, name: str, runs: pd.DataFrame, metric: str, pooled: str) -> Curve:
    rows = [_rate_row(rate, part, metric) for rate, part in runs.groupby(_RATE, sort=True)]
    table = pd.DataFrame(rows)
    return Curve(
        task=task,
        name=name,
        table=table,
        knee=find_knee(table[table["held"]]),
        peaks=_searched_peaks(runs),
        run_ids=tuple(runs["run_id"]),
        pooled=pooled,
    )


def _searched_peaks(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the highest query rate that a search found within each latency limit.

    Args:
        runs: Runs of one policy (combination of server settings).

    Returns:
        The table `Curve.peaks`: a row per limit, with the geometric mean over searches.
    """
    peak = "peak_queries_per_second"
    searched = runs.reindex(columns=[*_LIMIT, peak]).astype("float64").dropna()
    searched = searched.assign(log_rate=np.log(searched[peak]))
    means = searched.groupby([*_LIMIT])["log_rate"].mean()
    return means.map(np.exp).rename("rate").reset_index()


def _rate_row(rate: object, runs: pd.DataFrame, metric: str) -> dict[str, object]:
    """Return the row of `Curve.table` for the runs at one rate.

    If any run served all its queries, runs that did not are excluded from the statistics.

    Args:
        rate: Rate of the queries, in queries/s.
        runs: Runs of one policy (combination of server settings) at this rate.
        metric: Column of the latency quantile in ms.
    """
    served = runs[runs["outcome"].eq("ok")]
    shown = served if len(served) else runs
    value, low, high = estimate(shown, metric, _ERROR)
    median, _, _ = estimate(shown, "latency_p50_ms", _ERROR)
    throughput, _, _ = estimate(shown, "queries_per_second", _ERROR)
    return {
        "rate": rate,
        "latency": value,
        "low": low,
        "high": high,
        "median": median,
        "served": throughput,
        "held": len(served) == len(runs),
        "runs": len(runs),
    }


def find_knee(table: pd.DataFrame) -> Knee | None:
    """Find the knee of a latency curve: the rate with the highest power, rate / latency.

    A latency without an interval counts as exact. If the interval of a latency has no upper end,
    the power at that rate may be arbitrarily low.

    Args:
        table: A row per rate, in ascending order: `rate` in queries/s, and `latency` in ms with the
            ends `low` and `high` of its interval.

    Returns:
        The knee; None if there is no rate, or the highest power is at the first or the last rate.
    """
    rate = table["rate"].to_numpy(dtype="float64")
    latencies = table["latency"].to_numpy(dtype="float64")
    if not len(rate):
        return None
    knee = int((rate / latencies).argmax())
    if knee in (0, len(rate) - 1):
        return None
    low = table["low"].to_numpy(dtype="float64")
    high = table["high"].to_numpy(dtype="float64")
    has_no_interval = np.isnan(low) & np.isnan(high)
    low = np.where(has_no_interval, latencies, low)
    high = np.where(has_no_interval, latencies, high)
    # A rate may be the knee if its highest possible power reaches the lowest power of the knee.
    highest_knee_latency = np.nan_to_num(high[knee], nan=np.inf)
    is_possible = rate * highest_knee_latency >= rate[knee] * np.nan_to_num(low)
    possible = rate[is_possible]
    return Knee(float(rate[knee]), float(possible.min()), float(possible.max()))


def draw_latency(curves: Sequence[Curve], quantile: str) -> drawing.Figure:
    """Draw latency over rate, with a ring at each knee and a cross at each rate not served.

    Args:
        curves: Curves to draw, each in a separate color.
        quantile: The quantile of the latency, such as "p99", for labels.
    """
    figure, (axes,) = drawing.panels(1, 6.4, 4.4)
    has_several_tasks = len({curve.task for curve in curves}) > 1
    keys = [str(position) for position in range(len(curves))]
    for key, curve in zip(keys, curves, strict=True):
        name = f"{curve.task}: {curve.name}" if has_several_tasks else curve.name
        _draw_curve(axes, curve, name, drawing.look(key, keys))
    title = f"{quantile} over the rate; ring: knee, cross: not served"
    logs = dict.fromkeys("xy", drawing.plain)
    drawing.finish(axes, title, "queries/s", f"latency, {quantile} (ms)", logs=logs)
    drawing.legend(figure)
    return figure


def _draw_curve(axes: drawing.Axes, curve: Curve, name: str, style: dict[str, str]) -> None:
    color = style["color"]
    held = curve.table[curve.table["held"]]
    overloaded = curve.table[~curve.table["held"]]
    drawing.marks(
        axes,
        held["rate"],
        held["latency"],
        y_ends=(held["low"], held["high"]),
        label=name,
        linestyle="-",
        **style,
    )
    axes.plot(overloaded["rate"], overloaded["latency"], "x", color=color, markersize=7)
    if curve.knee:
        at_knee = held[held["rate"] == curve.knee.rate]
        axes.plot(
            at_knee["rate"],
            at_knee["latency"],
            "o",
            markersize=13,
            markerfacecolor="none",
            color=color,
        )
    for rate in curve.peaks["rate"]:
        axes.axvline(rate, color=color, linewidth=1, linestyle=":")
