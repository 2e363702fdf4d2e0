"""`overhead`: what this tool itself costs. Where the wall time of a sweep goes, phase by phase, and how much of it is
measuring.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.format import seconds, with_interval
from analysis.lazy import drawing, np, pd, ticker
from analysis.options import Options
from analysis.registry import analysis
from analysis.result import Result, pooled_within, require_runs
from analysis.sides import rare
from analysis.statistics.quantiles import bootstrap_ratio
from analysis.store.frame import families
from paradnn.core.words import counted
from paradnn.core.workload import WORKLOADS
from paradnn.forecast.estimate import LEVEL, Estimate
from paradnn.store.metrics import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OWN = {name for work in WORKLOADS.values() for name in work.phases}
#: What a point is run for: its speed, the latency of single steps, and what its kind of work does beside.
MEASURING_PHASES = tuple(name for name in PHASES if name in ("measure", "latency") or name in _OWN)
#: What this tool itself costs; the rest is the model's own (build, compile, warm-up) or asked for (profile).
OVERHEAD_PHASES = ("schedule", "start", "record")

#: By what a phase is for: a colour (a place in `drawing.COLOURS`) and hatches, so that no two phases look the same.
_LOOKS = {
    1: {"schedule": "", "start": "////", "record": "xxxx"},
    5: {"build": "", "compile": "////", "warmup": "....", "input": "xxxx"},
    2: dict(zip(MEASURING_PHASES, ("....", "", "////", "xxxx", "----", "oooo", "++++", "****"), strict=False)),
    3: {"profile": "", "balance": "////"},
}
_WRITTEN = 0.08  # shares from here on have their number in the bar


@dataclass(frozen=True, kw_only=True)
class OverheadOptions(Options):
    """Of what."""

    command = "overhead"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OverheadResult(Result):
    """Where wall time went: `phases` and `families` as in `overhead`, `wall` in s; `measuring` and `stack` are the
    shares of MEASURING_PHASES and OVERHEAD_PHASES, with 95% intervals over points. `runs` have phases, `without`
    none."""

    phases: pd.DataFrame
    families: pd.DataFrame
    wall: float
    measuring: Estimate
    stack: Estimate
    runs: int
    without: int

    @property
    def table(self) -> pd.DataFrame:
        return self.phases

    def _paragraphs(self) -> Iterator[str]:
        if not self.runs:
            yield f"None of these {self.without} runs reports its phases; published ones do not."
            return
        mean = self.wall / self.runs
        yield f"{counted(self.runs, 'point')} took {seconds(self.wall)} of wall time, {seconds(mean)} each."
        yield (
            f"{with_interval(self.measuring)} of it is measuring; {with_interval(self.stack)} is the stack's own "
            f"overhead ({' + '.join(OVERHEAD_PHASES)}), {seconds(self.stack.value * mean)} a point."
        )
        yield from rare(self.runs)
        if self.without:
            yield f"{self.without} runs report no phases and are left out."

    def _figure(self) -> Figure:
        """Share of wall time by phase, families below each other, mean seconds of a point at the end of each bar."""
        of_family = self.families.groupby("family", sort=False).agg(points=("points", "first"), mean=("seconds", "sum"))
        rows = {f"{row.Index} ({row.points})": f"{row.mean:.3g} s a point" for row in of_family.itertuples()}
        shares = self.families.pivot(index="family", columns="phase", values="share").fillna(0.0).loc[of_family.index]
        shares = shares[list(dict.fromkeys(self.families["phase"]))]
        return _draw(rows, shares, "Where the time of a point goes, by family (points)", "wall time")


@analysis(
    OverheadOptions,
    summary="where the wall time of a sweep goes: measuring, the model's own cost, this tool's",
    description="Median and quartiles of every phase of a point, and the share of wall time that is measuring.\n"
    "Every outcome counts, since a failed point costs time as well.",
    example="python -m analysis overhead --tag source=measured --figure overhead.png",
    gate="none",
    section="system",
    order=120,
    title="Benchmarking overhead",
    reading="Wall time of a point by phase. The stack's own part is schedule, start and record.",
)
def overhead(frame: pd.DataFrame, options: OverheadOptions) -> OverheadResult:
    """Where the wall time of runs went: median and quartiles of every phase, and the shares of measuring and stack.

    One row a run; every outcome counts, since a failed point costs time as well. Wall time of a run is the sum of its
    `phase_<name>_seconds`; a phase that a run has not is no time in the sums and no row in the quartiles. NotEnoughData
    without runs, HeterogeneousError for heterogeneous runs on a device.
    """
    require_runs(frame)
    timed, known = _phases(frame)
    # Published and imported runs have no phases and mix with nothing.
    pooled = pooled_within(timed, ["device"], options.pool) if len(timed) else ""
    known = known.dropna(axis=1, how="all")
    spent = known.fillna(0.0)
    wall = spent.sum(axis=1)
    total = float(wall.sum())
    phases = known.quantile([0.25, 0.5, 0.75]).T.set_axis(["q25", "median", "q75"], axis=1)
    phases.insert(0, "runs", known.count())
    phases = phases.assign(total=spent.sum(), share=spent.sum() / total if total else math.nan)
    return OverheadResult(
        phases=phases.rename_axis("phase").reset_index(),
        families=_by_family(spent, timed["family"].fillna("(none)"), families(frame)),
        wall=total,
        measuring=share_of(spent, MEASURING_PHASES, wall),
        stack=share_of(spent, OVERHEAD_PHASES, wall),
        runs=len(timed),
        without=len(frame) - len(timed),
        sources=tuple(timed["run_id"]),
        pooled=pooled,
    )


def _phases(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs that report phases, and their seconds in each."""
    columns = {f"phase_{name}_seconds": name for name in PHASES}
    every = frame.reindex(columns=list(columns)).rename(columns=columns).astype("float64")
    every = every.where(np.isfinite(every))
    has = every.notna().any(axis=1)
    return frame[has], every[has]


def share_of(spent: pd.DataFrame, parts: Collection[str], wall: pd.Series, level: float = LEVEL) -> Estimate:
    """The share of sums; the bootstrap knows nothing of 0 and 1, and a part of the whole is never beyond them."""
    part = spent.reindex(columns=list(parts)).sum(axis=1)
    return Estimate(*(float(np.clip(end, 0.0, 1.0)) for end in bootstrap_ratio(part, wall, level)))


def _draw(rows: dict[str, str], shares: pd.DataFrame, title: str, per: str) -> Figure:
    """Bars of shares below each other, one for each of `rows` (a name, with what stands at the bar's end), made of the
    columns of `shares`; those that are wide enough have their number in the bar."""
    drawn, (axes,) = drawing.panels(1, 8.0, 1.4 + 0.5 * len(rows))
    looks = {name: (drawing.COLOURS[at], hatch) for at, same in _LOOKS.items() for name, hatch in same.items()}
    left = np.zeros(len(rows))
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    least = max(_WRITTEN, 0.4 / drawn.get_figwidth())
    for name, column in shares.items():
        colour, hatch = looks[str(name)]
        how: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6, "height": 0.6}
        label = f"{name} (stack)" if name in OVERHEAD_PHASES else str(name)
        axes.barh(range(len(rows)), column, left=left, label=label, **how)
        for row, share in enumerate(column):
            if share >= least:
                middle = (left[row] + share / 2, row)
                axes.text(*middle, f"{share:.0%}", ha="center", va="center", fontsize="small", bbox=ground)
        left += column.to_numpy()
    for place, words in enumerate(rows.values()):
        axes.text(1.01, place, words, va="center", fontsize="small")
    drawing.names(axes.yaxis, list(rows))
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.17), xticks=np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0))
    drawing.finish(axes, title, f"share of {per}")
    axes.yaxis.grid(False)
    drawing.legend(drawn)
    return drawn


def _by_family(spent: pd.DataFrame, family: pd.Series, order: list[str]) -> pd.DataFrame:
    """Mean seconds of a point and share by family, those of `order` first, and phase."""
    order = [*order, *sorted(set(family).difference(order))]
    names = pd.Series(pd.Categorical(family, order), spent.index)
    mean = spent.groupby(names, observed=True).mean().rename_axis("family").reset_index()
    table = mean.melt("family", var_name="phase", value_name="seconds").sort_values("family", kind="stable")
    table = table.astype({"family": "object"}).reset_index(drop=True)
    table.insert(2, "points", table["family"].map(family.value_counts()))
    whole = table.groupby("family")["seconds"].transform("sum")
    found: pd.DataFrame = table.assign(share=table["seconds"] / whole.where(whole > 0))
    return found
