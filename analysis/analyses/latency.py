"""`latency`: latency over the rate at which queries come, a curve for each policy and platform,
with its knee.

The knee is the rate at which power, rate / latency, is highest: below it a higher rate costs little
latency, above it latency grows faster than the rate does (Kleinrock, Power and deterministic rules
of thumb for probabilistic problems in computer communications, ICC 1979). Of one server with
exponential times it is at half of what it can serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from analysis.choices import estimate, tasks, words_of
from analysis.format import format_number
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import SectionSpec, analysis
from analysis.result import Paragraph, Result, joined
from analysis.store.frame import require_homogeneous
from paradnn.core.errors import NotEnoughData
from paradnn.statistics.estimate import LEVEL

_RATE = "scheduled_queries_per_second"
#: What is swept or searched, and so no policy.
_LIMIT = ("server.percentile", "server.latency_ms")
_SWEPT = ("server.rate", *_LIMIT)
_CURVES = 12


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Options):
    """Which quantile."""

    quantile: Literal["p50", "p90", "p95", "p99", "p99.9"] = option("p99", "of the latency")


class Curve(NamedTuple):
    """One policy on one platform. `table` has a row for each rate, in order: `rate`, `latency` (ms)
    with `low` and `high`, `median` (ms), `served` (queries/s), `held` (whether what came was
    served), `runs`. `peaks` has a row for each limit for which the highest rate was searched:
    `rate` (queries/s, of several searches their geometric mean) at which `server.percentile` of the
    queries took no longer than `server.latency_ms`. `knee`: as `knee_of` finds it.
    """

    task: str
    name: str
    table: pd.DataFrame
    knee: tuple[float, float, float] | None
    peaks: pd.DataFrame
    run_ids: tuple[str, ...]
    pooled: str = ""


@analysis(
    LatencyOptions,
    summary="latency over the rate of queries, by policy, with the knee",
    example="python -m analysis latency --where server.delay_ms=0 --figure latency.png",
    gate="queries",
    section="all",
    order=140,
    title="Latency over the rate of queries",
    reading="Ring: the knee, above which latency grows faster than the rate. Cross: queries came faster than"
    " they were served. Dotted: the highest rate that held its limit.",
    list_sections=lambda rows: (
        [SectionSpec()] if rows.get(_RATE, pd.Series()).notna().any() else []
    ),
)
def latency(frame: pd.DataFrame, options: LatencyOptions) -> Result:
    """Latency over rate, a row for each rate of each policy. NotEnoughData where no run was loaded
    by a schedule.
    """
    curves = latency_curves(frame, f"latency_{options.quantile}_ms", options.pool)
    parts = {(one.task, one.name): one.table for one in curves}
    return Result(
        numbers=pd.concat(parts, names=["task", "policy"])
        .reset_index(level=["task", "policy"])
        .reset_index(drop=True),
        sentences=[*_sentences(curves, options.quantile)],
        picture=lambda: draw_latency(curves[:_CURVES], options.quantile),
        sources=tuple(run for one in curves for run in one.run_ids),
        pooled=joined(one.pooled for one in curves),
    )


def _sentences(curves: Sequence[Curve], quantile: str) -> Iterator[Paragraph]:
    for task in dict.fromkeys(one.task for one in curves):
        points = (f"{one.name}: {'; '.join(_describe(one))}." for one in curves if one.task == task)
        yield Paragraph(f"{task}: {quantile} of the latency over the rate.", tuple(points))
    yield Paragraph(
        "At the knee rate / latency is highest (Kleinrock 1979); in brackets are rates where it may be."
    )


def _describe(one: Curve) -> Iterator[str]:
    held = one.table[one.table["held"]]
    lost = one.table[~one.table["held"]]
    knee = one.knee
    if len(held):
        ends = dict.fromkeys(
            held[["latency", "rate"]].iloc[[0, -1]].itertuples(index=False, name=None)
        )
        yield " to ".join(
            f"{format_number(ms, 'ms', digits=3)} at {_rate(rate)}" for ms, rate in ends
        )
    yield (
        "knee at {} ({} to {})".format(*map(_rate, knee)) if knee else "no knee within these rates"
    )
    if len(lost):
        yield f"not served from {_rate(lost['rate'].min())} on"
    for peak in one.peaks.to_dict("records"):
        limit = f"{peak['server.latency_ms']:g} ms at p{peak['server.percentile']:g}"
        yield f"highest rate that held {limit} {_rate(peak['rate'])}"


def _rate(value: float) -> str:
    return f"{format_number(value, digits=3)}/s"


def latency_curves(
    frame: pd.DataFrame, metric: str = "latency_p99_ms", pool: bool = False
) -> list[Curve]:
    """A curve for each policy of each platform and model. NotEnoughData where no run was loaded by
    a schedule.
    """
    if {_RATE, metric} <= set(frame):
        runs = frame.dropna(subset=[_RATE, metric])
    else:
        runs = frame[:0]
    runs = runs[runs["outcome"].isin(["ok", "overload"])]
    if runs.empty:
        command = "python -m paradnn.train -m mode=inference scenario=server server.rate=50,100,200"
        raise NotEnoughData(
            f"no run has queries by a schedule and {metric}; measure some: {command}"
        )
    curves = []
    for task in tasks(runs):
        rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
        columns = [name for name in task.varies if name not in _SWEPT]
        if columns:
            parts = [part for _, part in rows.groupby(columns, dropna=False, sort=True)]
        else:
            parts = [rows]
        for part in parts:
            if columns:
                name = words_of(part.iloc[0], columns)
            else:
                name = str(part["device"].iloc[0])
            table = pd.DataFrame(
                [_at(rate, runs_at, metric) for rate, runs_at in part.groupby(_RATE, sort=True)]
            )
            knee = knee_of(table[table["held"]])
            used = tuple(part["run_id"])
            curves.append(
                Curve(
                    task.name, name, table, knee, _peaks(part), used, rows.attrs.get("pooled", "")
                )
            )
    return curves


def _peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """The highest rates that were found, by limit."""
    searched = rows.reindex(columns=[*_LIMIT, "peak_queries_per_second"]).astype("float64").dropna()
    logs = (
        searched.assign(rate=np.log(searched["peak_queries_per_second"]))
        .groupby([*_LIMIT])["rate"]
        .mean()
    )
    return logs.map(np.exp).reset_index()


def _at(rate: object, part: pd.DataFrame, metric: str) -> dict[str, object]:
    held = part[part["outcome"].eq("ok")]
    shown = held if len(held) else part
    value, low, high = estimate(shown, metric, 1 - LEVEL)
    return {
        "rate": rate,
        "latency": value,
        "low": low,
        "high": high,
        "median": estimate(shown, "latency_p50_ms", 1 - LEVEL)[0],
        "served": estimate(shown, "queries_per_second", 1 - LEVEL)[0],
        "held": len(held) == len(part),
        "runs": len(part),
    }


def knee_of(table: pd.DataFrame) -> tuple[float, float, float] | None:
    """The knee of rates with `latency`, `low` and `high`, and the outermost rates whose power may
    be as high; None where the highest power is at an end of them.

    A rate whose latency has no interval is taken at its value; one whose interval has no upper end
    may have any power.
    """
    rate, latency = (table[name].to_numpy(dtype="float64") for name in ("rate", "latency"))
    place = int((rate / latency).argmax()) if len(table) else 0
    if not 0 < place < len(rate) - 1:
        return None
    low, high = (table[name].to_numpy(dtype="float64") for name in ("low", "high"))
    least, most = (np.where(np.isnan(low) & np.isnan(high), latency, end) for end in (low, high))
    possible = rate[
        rate * np.nan_to_num(most[place], nan=np.inf) >= rate[place] * np.nan_to_num(least)
    ]
    return float(rate[place]), float(possible.min()), float(possible.max())


def draw_latency(curves: Sequence[Curve], quantile: str) -> drawing.Figure:
    """The quantile over the rate, with rings at knees and crosses where not all was served."""
    drawn, (axes,) = drawing.panels(1, 6.4, 4.4)
    several = len({one.task for one in curves}) > 1
    for place, one in enumerate(curves):
        look = drawing.look(str(place), [str(other) for other in range(len(curves))])
        colour = look["color"]
        name = f"{one.task}: {one.name}" if several else one.name
        held = one.table[one.table["held"]]
        lost = one.table[~one.table["held"]]
        ends = held["low"], held["high"]
        drawing.marks(
            axes, held["rate"], held["latency"], y_ends=ends, label=name, linestyle="-", **look
        )
        axes.plot(lost["rate"], lost["latency"], "x", color=colour, markersize=7)
        if one.knee:
            at = held[held["rate"] == one.knee[0]]
            axes.plot(
                at["rate"], at["latency"], "o", markersize=13, markerfacecolor="none", color=colour
            )
        for rate in one.peaks["rate"]:
            axes.axvline(rate, color=colour, linewidth=1, linestyle=":")
    title = f"{quantile} over the rate; ring: knee, cross: not served"
    logs = dict.fromkeys("xy", drawing.plain)
    drawing.finish(axes, title, "queries/s", f"latency, {quantile} (ms)", logs=logs)
    drawing.legend(drawn)
    return drawn
