"""`overhead`: what this tool itself costs, phase by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.options import Options
from analysis.summaries.pooling import pooled_within, require_runs
from analysis.summaries.result import Paragraph, Result
from analysis.summaries.told import rare
from paradnn.core.words import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.overhead import Overhead
    from paradnn.forecast.estimate import Estimate

__all__ = ["OverheadOptions", "OverheadResult", "overhead"]


@dataclass(frozen=True, kw_only=True)
class OverheadOptions(Options):
    """Only what every analysis takes."""

    command = "overhead"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OverheadResult(Result):
    """Median and quartiles of every phase, and the shares of wall time."""

    overhead: Overhead

    @property
    def table(self) -> pd.DataFrame:
        return self.overhead.phases

    def _figure(self) -> Figure:
        from analysis.figures.overhead import draw_overhead

        return draw_overhead(self.overhead)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of = self.overhead
        if not of.runs:
            yield Paragraph(f"None of these {of.without} runs reports its phases; published ones do not.")
        else:
            yield from map(Paragraph, _sentences(of))


def overhead(frame: pd.DataFrame, options: OverheadOptions | None = None) -> OverheadResult:
    """Where the wall time of runs went: median and quartiles of every phase, and the shares of measuring and stack.

    NotEnoughData without runs, SchemaError for heterogeneous runs on a device.
    """
    from analysis.methods.overhead import phase_overhead
    from analysis.store.frame import families

    options = options or OverheadOptions()
    require_runs(frame)
    # Published and imported runs have no phases and mix with nothing.
    timed = frame[frame.filter(regex=r"^phase_.*_seconds$").notna().any(axis=1)]
    pooled = pooled_within(timed, ["device"], options.pool) if len(timed) else ""
    return OverheadResult(
        overhead=phase_overhead(frame, families(frame)), sources=tuple(timed["run_id"]), pooled=pooled
    )


def _sentences(of: Overhead) -> Iterator[str]:
    from analysis.methods.overhead import MEASURING_PHASES, OVERHEAD_PHASES

    mean = of.wall / of.runs
    yield f"{counted(of.runs, 'point')} took {_seconds(of.wall)} of wall time, {_seconds(mean)} each."
    yield (
        f"{_share(of.measuring)} of it is measuring; {_share(of.stack)} is the stack's own overhead "
        f"({' + '.join(OVERHEAD_PHASES)}), {_seconds(of.stack.value * mean)} a point."
    )
    for phase in of.phases.sort_values("share", ascending=False).head(3).to_dict("records"):
        yield (
            f"{phase['phase']}: {_seconds(phase['median'])} in the median, {_seconds(phase['q25'])} to "
            f"{_seconds(phase['q75'])} in the middle half, {short(phase['share'], share=True)} of the wall time."
        )
    measuring = of.families[of.families["phase"].isin(MEASURING_PHASES)]
    shares = measuring.groupby("family", sort=False)["share"].sum()
    if len(shares) > 1:
        listed = ", ".join(f"{family} {short(share, share=True)}" for family, share in shares.items())
        yield f"Measuring by family: {listed}."
    for row in of.launches.to_dict("records"):
        yield (
            f"{row['launcher']}: {row['tasks']} tasks of {row['points'] / row['tasks']:.3g} points. In the median a "
            f"task waited {_seconds(row['queue'])} in the queue, needed {_seconds(row['task_start'])} to start, and "
            f"its first point {_seconds(row['framework'])} for the framework."
        )
    yield from rare(of.runs)
    if of.without:
        yield f"{of.without} runs report no phases and are left out."


def _share(share: Estimate) -> str:
    value = short(share.value, share=True)
    if math.isnan(share.low):
        return value
    return f"{value} (95% interval {short(share.low, share=True)} to {short(share.high, share=True)})"


def _seconds(value: float) -> str:
    return short(value, "s", digits=3) if value >= 0.1 else short(1000 * value, "ms", digits=3)
