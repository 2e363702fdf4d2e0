"""`overhead`: what this tool itself costs: median and quartiles of every phase of a point, and how
much of it is measuring. Every outcome counts, since a failed point costs time as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from analysis.format import format_percent_interval, format_seconds
from analysis.lazy import drawing, np, pd, special
from analysis.options import Options
from analysis.registry import analysis
from analysis.result import Result, pooled_within, require_runs
from analysis.sides import rare_event_caveat
from analysis.store.frame import families
from paradnn.core.results import ResultDescription
from paradnn.core.words import counted
from paradnn.core.workload import WORKLOADS
from paradnn.statistics.dependence import crossed_ratio, shared_levels
from paradnn.statistics.estimate import Estimate
from paradnn.store.metrics import PHASES

_OWN = {name for work in WORKLOADS.values() for name in work.role(ResultDescription).phases}
#: What a point is run for: its speed, the latency of single steps, and what its kind of work does
#: beside.
MEASURING_PHASES = tuple(name for name in PHASES if name in ("measure", "latency") or name in _OWN)
#: What this tool itself costs; the rest is the model's own (build, compile, warm-up) or asked for
#: (profile).
OVERHEAD_PHASES = ("schedule", "start", "record")

#: By what a phase is for: a colour (a place in `drawing.COLOURS`) and hatches, so that no two
#: phases look the same.
_LOOKS = {
    1: {"schedule": "", "start": "////", "record": "xxxx"},
    5: {"build": "", "compile": "////", "warmup": "....", "input": "xxxx"},
    2: dict(
        zip(
            MEASURING_PHASES,
            ("....", "", "////", "xxxx", "----", "oooo", "++++", "****"),
            strict=False,
        )
    ),
    3: {"profile": "", "balance": "////"},
}
_WRITTEN = 0.08  # shares from here on have their number in the bar


@analysis(
    Options,
    summary="where the wall time of a sweep goes: measuring, the model's own cost, this tool's",
    example="python -m analysis overhead --tag source=measured --figure overhead.png",
    gate="none",
    section="system",
    order=120,
    title="Benchmarking overhead",
    reading="Wall time of a point by phase, in seconds. The stack's own part is schedule, start and record.",
)
def overhead(frame: pd.DataFrame, options: Options) -> Result:
    """A row for each phase. Wall time of a run is the sum of its `phase_<name>_seconds`; a phase
    that a run has not is no time in the sums and no row in the quartiles. NotEnoughData without
    runs, HeterogeneousError for unlike ones.
    """
    require_runs(frame)
    columns = {f"phase_{name}_seconds": name for name in PHASES}
    known = frame.reindex(columns=list(columns)).rename(columns=columns).astype("float64")
    known = known.where(np.isfinite(known)).dropna(how="all").dropna(axis=1, how="all")
    # Published and imported runs have no phases and mix with nothing.
    timed = frame.loc[known.index]
    spent = known.fillna(0.0)
    total = float(spent.to_numpy().sum())
    phases = known.quantile([0.25, 0.5, 0.75]).T.set_axis(["q25", "median", "q75"], axis=1)
    phases.insert(0, "runs", known.count())
    phases = phases.assign(total=spent.sum(), share=spent.sum() / total if total else math.nan)
    return Result(
        numbers=phases.rename_axis("phase").reset_index(),
        sentences=[*_sentences(spent, len(frame) - len(timed))],
        picture=lambda: draw_phases(spent, timed),
        sources=tuple(timed["run_id"]),
        pooled=pooled_within(timed, ["device"], options.pool) if len(timed) else "",
    )


def _sentences(spent: pd.DataFrame, without: int) -> Iterator[str]:
    """What `spent`, the seconds of runs by phase, says of measuring and of the stack; `without`
    runs say nothing.
    """
    if spent.empty:
        yield f"None of these {without} runs reports its phases; published ones do not."
        return
    mean = spent.sum(axis=1).mean()
    measuring, stack = (share_of(spent, parts) for parts in (MEASURING_PHASES, OVERHEAD_PHASES))
    yield f"{counted(len(spent), 'point')} took {format_seconds(mean * len(spent))} of wall time, {format_seconds(mean)} each."
    yield (
        f"{format_percent_interval(measuring)} of it is measuring; {format_percent_interval(stack)} is the stack's own overhead "
        f"({' + '.join(OVERHEAD_PHASES)}), {format_seconds(stack.value * mean)} a point. Intervals are 95%, over points."
    )
    yield from rare_event_caveat(len(spent))
    if without:
        yield f"{without} runs report no phases and are left out."


def share_of(spent: pd.DataFrame, parts: Collection[str]) -> Estimate:
    """The share of some phases in the sum of all, with its 95% interval over runs; that is
    symmetric in the log odds, since a part of the whole is never beyond 0 and 1.
    """
    part = spent.reindex(columns=list(parts)).sum(axis=1)
    value, _, high = crossed_ratio(part, spent.sum(axis=1), shared_levels(spent, "point"))
    if not 0 < value < 1:
        return Estimate(value, value, value)
    reach = np.array([-1, 1]) * (high - value) / (value * (1 - value))
    return Estimate(value, *map(float, special.expit(special.logit(value) + reach)))


def draw_phases(spent: pd.DataFrame, runs: pd.DataFrame) -> drawing.Figure:
    """Shares of wall time by phase, families below each other, mean seconds of a point at the end
    of each bar; those that are wide enough have their number in the bar.
    """
    family = runs["family"].fillna("(none)")
    mean = spent.groupby(family).mean()
    mean = mean.loc[[name for name in (*families(runs), "(none)") if name in mean.index]]
    whole = mean.sum(axis=1)
    counts = family.value_counts()
    drawn, (axes,) = drawing.panels(1, 8.0, 1.4 + 0.5 * len(mean))
    looks = {
        name: (drawing.COLOURS[at], hatch)
        for at, same in _LOOKS.items()
        for name, hatch in same.items()
    }
    left = np.zeros(len(mean))
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    least = max(_WRITTEN, 0.4 / drawn.get_figwidth())
    for name, column in mean.div(whole.where(whole > 0), axis=0).fillna(0.0).items():
        colour, hatch = looks[str(name)]
        how: dict[str, Any] = {
            "color": colour,
            "hatch": hatch,
            "edgecolor": "white",
            "linewidth": 0.6,
            "height": 0.6,
        }
        label = f"{name} (stack)" if name in OVERHEAD_PHASES else str(name)
        axes.barh(range(len(mean)), column, left=left, label=label, **how)
        for row, share in enumerate(column):
            if share >= least:
                middle = (left[row] + share / 2, row)
                axes.text(
                    *middle, f"{share:.0%}", ha="center", va="center", fontsize="small", bbox=ground
                )
        left += column.to_numpy()
    for place, each in enumerate(whole):
        axes.text(1.01, place, f"{each:.3g} s a point", va="center", fontsize="small")
    drawing.names(axes.yaxis, [f"{name} ({counts[name]})" for name in mean.index])
    axes.set(ylim=(len(mean) - 0.5, -0.5), xlim=(0, 1.17), xticks=np.linspace(0, 1, 6))
    title = "Where the time of a point goes, by family (points)"
    drawing.finish(axes, title, "share of wall time", shares="x", grid="x")
    drawing.legend(drawn)
    return drawn
