"""`latency`: latency over the rate of queries for each policy, its knee, and how latencies are distributed.

Latency over the rate at which queries come: a curve for each policy and platform, and its knee.

The knee is the rate at which power, rate / latency, is highest: below it a higher rate costs little latency, above it
latency grows faster than the rate does (Kleinrock, Power and deterministic rules of thumb for probabilistic problems in
computer communications, ICC 1979; Jain, The Art of Computer Systems Performance Analysis, 1991, section 3.3). Of one
server with exponential times it is at half of what it can serve, whatever the quantile.

Latency over rate with its knees, and the distribution of latencies at the highest rate that each policy served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from analysis.choices import estimate, tasks, words_of
from analysis.format import short
from analysis.lazy import drawing, np, pd
from analysis.options import Options, option
from analysis.registry import Shown, analysis
from analysis.result import Paragraph, Result, joined
from analysis.store.frame import require_homogeneous
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from analysis.store.load import Distribution


_CURVES = 12


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Options):
    """Which quantile."""

    command = "latency"

    quantile: Literal["p50", "p90", "p95", "p99", "p99.9"] = option("p99", "of the latency (default: p99)")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LatencyResult(Result):
    """A curve for each policy; `distributions` of the runs at the highest rate that each policy served."""

    curves: tuple[Curve, ...]
    quantile: str
    distributions: Mapping[str, Distribution]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each rate of each policy."""
        parts = [one.table.drop(columns="run_id").assign(task=one.task, policy=one.name) for one in self.curves]
        table = pd.concat(parts, ignore_index=True)
        return table[["task", "policy", *(name for name in table.columns if name not in ("task", "policy"))]]

    def _figure(self) -> Figure:
        return draw_latency(self.curves[:_CURVES], self.quantile, self.distributions)

    def _paragraphs(self) -> Iterator[Paragraph]:
        tasks = dict.fromkeys(one.task for one in self.curves)
        for task in tasks:
            curves = [one for one in self.curves if one.task == task]
            yield Paragraph(
                f"{task}: {self.quantile} of the latency over the rate.", tuple(map(self._describe, curves))
            )
        yield Paragraph(
            "The knee is the rate at which rate / latency is highest (Kleinrock 1979): above it latency grows faster "
            "than the rate. In brackets are the outermost rates of which that may be as high."
        )

    def _describe(self, one: Curve) -> str:
        held = one.table[one.table["held"]]
        words = []
        if len(held):
            ends = [held.iloc[0], held.iloc[-1]][: min(2, len(held))]
            words.append(
                " to ".join(f"{short(row['latency'], 'ms', digits=3)} at {_rate(row['rate'])}" for row in ends)
            )
        if one.knee and one.knee.inside:
            spread = f" ({_rate(one.knee.low)} to {_rate(one.knee.high)})" if one.knee.low < one.knee.high else ""
            words.append(f"knee at {_rate(one.knee.rate)}{spread}")
        elif one.knee:
            words.append(f"no knee within these rates: rate / latency is highest at {_rate(one.knee.rate)}, their end")
        else:
            words.append("a knee takes three rates that were served")
        lost = one.table[~one.table["held"]]
        if len(lost):
            words.append(f"not served from {_rate(lost['rate'].min())} on")
        for peak in one.peaks:
            limit = f"{peak.limit:g} ms at p{peak.percentile:g}"
            words.append(f"highest rate that held {limit} {_rate(peak.rate)}")
        return f"{one.name}: {'; '.join(words)}."


def _shown(frame: pd.DataFrame) -> Iterator[Shown]:
    """Where users were served."""
    if "scheduled_queries_per_second" in frame and frame["scheduled_queries_per_second"].notna().any():
        yield Shown()


@analysis(
    LatencyOptions,
    summary="latency over the rate of queries, by policy, with the knee",
    description="A quantile of the latency over the rates of scenario=server, a curve for each policy and device:\n"
    "where its knee is, from which rate on queries were not served, and how latencies are distributed.",
    example="python -m analysis latency --where server.delay_ms=0 --figure latency.png",
    gate="queries",
    section="all",
    order=140,
    title="Latency over the rate of queries",
    reading=(
        "Ring: the knee, above which latency grows faster than the rate. Cross: queries came faster than"
        " they were served. Dotted: the highest rate that held its limit."
    ),
    shown=_shown,
)
def latency(frame: pd.DataFrame, options: LatencyOptions) -> LatencyResult:
    """Latency over rate. NotEnoughData where no run was loaded by a schedule."""
    from analysis.store.load import load_distributions

    curves = latency_curves(frame, f"latency_{options.quantile}_ms", options.pool)
    wanted = {_last(one) for one in curves[:_CURVES]}
    runs = frame[frame["run_id"].isin(wanted)]
    distributions = load_distributions(runs, options.store) if "artifact_uri" in runs else {}
    sources = tuple(run for one in curves for run in one.run_ids)
    pooled = joined(one.pooled for one in curves)
    return LatencyResult(
        curves=tuple(curves), quantile=options.quantile, distributions=distributions, sources=sources, pooled=pooled
    )


def _last(one: Curve) -> str:
    """The run at the highest rate that was served, else at the lowest that was not."""
    held = one.table[one.table["held"]]
    return str(held["run_id"].iloc[-1] if len(held) else one.table["run_id"].iloc[0])


def _rate(value: float) -> str:
    return f"{short(value, digits=3)}/s"


_RATE = "scheduled_queries_per_second"
#: What is swept or searched, and so no policy.
_LIMIT = ("server.percentile", "server.latency_ms")
_SWEPT = ("server.rate", *_LIMIT)
_FEWEST = 3


@dataclass(frozen=True)
class Knee:
    """The measured rate with the highest power, queries/s; `low` and `high` are the outermost rates whose power may be
    as high. `inside`: whether rates on both of its sides were measured."""

    rate: float
    low: float
    high: float
    inside: bool


@dataclass(frozen=True)
class Peak:
    """The highest rate (queries/s) found at which `percentile` of the queries took no longer than `limit` (ms); of
    several searches their geometric mean."""

    rate: float
    percentile: float
    limit: float


@dataclass(frozen=True)
class Curve:
    """One policy on one platform. `table` has a row for each rate, in order: `rate`, `latency` (ms) with `low` and
    `high`, `median` (ms), `served` (queries/s), `held` (whether what came was served), `runs`, `run_id` (of the first).

    `peaks` are those of the limits for which one was searched.
    """

    task: str
    name: str
    table: pd.DataFrame
    knee: Knee | None
    peaks: tuple[Peak, ...]
    run_ids: tuple[str, ...]
    pooled: str = ""


def latency_curves(frame: pd.DataFrame, metric: str = "latency_p99_ms", pool: bool = False) -> list[Curve]:
    """A curve for each policy of each platform and model. NotEnoughData where no run was loaded by a schedule."""
    there = frame[_RATE].notna() & frame[metric].notna() if {_RATE, metric} <= set(frame) else frame["family"].isna()
    runs = frame[there & frame["outcome"].isin(["ok", "overload"])]
    if runs.empty:
        command = "python -m paradnn.train -m mode=inference scenario=server server.rate=50,100,200"
        raise NotEnoughData(f"no run has queries by a schedule and {metric}; measure some: {command}")
    curves = []
    for task in tasks(runs):
        rows = require_homogeneous(task.rows, ("protocol_id", "schema_version"), pool=pool)
        columns = [name for name in task.varies if name not in _SWEPT]
        parts = [part for _, part in rows.groupby(columns, dropna=False, sort=True)] if columns else [rows]
        for part in parts:
            name = words_of(part.iloc[0], columns) if columns else str(part["device"].iloc[0])
            curves.append(_curve(task.name, name, part, metric, rows.attrs.get("pooled", "")))
    return curves


def _curve(task: str, name: str, rows: pd.DataFrame, metric: str, pooled: str) -> Curve:
    table = pd.DataFrame([_at(rate, part, metric) for rate, part in rows.groupby(_RATE, sort=True)])
    return Curve(task, name, table, knee_of(table[table["held"]]), _peaks(rows), tuple(rows["run_id"]), pooled)


def _peaks(rows: pd.DataFrame) -> tuple[Peak, ...]:
    if "peak_queries_per_second" not in rows:
        return ()
    searched = rows[rows["peak_queries_per_second"].notna()]
    found = []
    for _, part in searched.groupby([*_LIMIT]):
        percentile, limit = (float(part[name].iloc[0]) for name in _LIMIT)
        rates = part["peak_queries_per_second"].astype("float64")
        found.append(Peak(float(np.exp(np.log(rates).mean())), percentile, limit))
    return tuple(found)


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
        "run_id": shown["run_id"].iloc[0],
    }


def knee_of(table: pd.DataFrame) -> Knee | None:
    """The knee of rates with `latency`, `low` and `high`; None of fewer than three rates.

    A rate whose latency has no interval is taken at its value; one whose interval has no upper end may have any power.
    """
    if len(table) < _FEWEST:
        return None
    rate, latency = (table[name].to_numpy(dtype="float64") for name in ("rate", "latency"))
    ends = table[["low", "high"]].astype("float64")
    unknown = ends.isna().all(axis=1)
    low = ends["low"].where(~unknown, table["latency"]).fillna(0.0).to_numpy()
    high = ends["high"].where(~unknown, table["latency"]).fillna(np.inf).to_numpy()
    place = int((rate / latency).argmax())
    possible = np.flatnonzero(rate * high[place] >= rate[place] * low)  # inf and 0 are no divisors
    inside = 0 < place < len(rate) - 1
    return Knee(float(rate[place]), float(rate[possible.min()]), float(rate[possible.max()]), inside)


def draw_latency(curves: Sequence[Curve], quantile: str, distributions: Mapping[str, Distribution]) -> Figure:
    """Left the quantile over the rate, with rings at knees and crosses where not all was served; right, where
    histograms are known, the share of queries that took no longer."""
    columns = 2 if distributions else 1
    drawn, axes = drawing.figure(6.4 * columns, 4.8, 1, columns)
    panels = list(np.ravel(axes))
    several = len({one.task for one in curves}) > 1
    for place, one in enumerate(curves):
        look = drawing.COLOURS[place % len(drawing.COLOURS)], drawing.MARKERS[place % len(drawing.MARKERS)]
        name = f"{one.task}: {one.name}" if several else one.name
        rate = _distribution(panels[1], one, distributions, look[0]) if distributions else ""
        _over_rate(panels[0], one, f"{name} (right: {rate})" if rate else name, *look)
    panels[0].set(xscale="log", yscale="log")
    for axis in (panels[0].xaxis, panels[0].yaxis):
        drawing.log_ticks(axis)
    drawing.finish(
        panels[0], f"{quantile} over the rate; ring: knee, cross: not served", "queries/s", f"latency, {quantile} (ms)"
    )
    if distributions:
        _finish_distribution(panels[1], distributions)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return drawn


def _over_rate(axes: Axes, one: Curve, name: str, colour: str, marker: str) -> None:
    held, lost = one.table[one.table["held"]], one.table[~one.table["held"]]
    down = (held["latency"] - held["low"]).clip(lower=0).fillna(0)
    up = (held["high"] - held["latency"]).clip(lower=0).fillna(0)
    axes.errorbar(
        held["rate"], held["latency"], [down, up], color=colour, marker=marker, markersize=5, capsize=2, label=name
    )
    axes.plot(lost["rate"], lost["latency"], "x", color=colour, markersize=7)
    if one.knee and one.knee.inside:
        at = held[held["rate"] == one.knee.rate]
        axes.plot(at["rate"], at["latency"], "o", markersize=13, markerfacecolor="none", color=colour)
    for peak in one.peaks:
        axes.axvline(peak.rate, color=colour, linewidth=1, linestyle=":")


def _distribution(axes: Axes, one: Curve, distributions: Mapping[str, Distribution], colour: str) -> str:
    """Draw the distribution of a curve, where it is known; the rate at which it was."""
    rate = ""
    for _, row in one.table.iterrows():
        if (found := distributions.get(row["run_id"])) is not None:
            # The last query has nothing beyond it, which a logarithm cannot show.
            beyond = np.maximum(1 - np.concatenate([[0.0], found.shares[:-1]]), 1e-9)
            rate = f"{short(row['rate'], digits=3)}/s"
            axes.step(found.milliseconds, beyond, where="post", color=colour)
    return rate


def _finish_distribution(axes: Axes, distributions: Mapping[str, Distribution]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.invert_yaxis()
    least = min(1 - float(found.shares[-2]) if len(found.shares) > 1 else 1.0 for found in distributions.values())
    ticks = [0.5, *(10.0**-power for power in range(1, 7) if 10.0**-power >= least)]
    axes.set_yticks(ticks, [f"{100 * (1 - tick):.6g}%" for tick in ticks])
    drawing.log_ticks(axes.xaxis)
    axes.minorticks_off()
    drawing.finish(
        axes, "At the highest rate that was served", "latency (ms)", "share of the queries that took no longer"
    )
