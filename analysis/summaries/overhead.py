"""The sub-command `overhead`: what this tool itself costs, phase by phase."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from analysis.format import short
from analysis.summaries.command import Command
from analysis.summaries.pooling import alike_within, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from analysis.methods.overhead import Overhead
    from analysis.methods.quantiles import Estimate

__all__ = ["COMMANDS"]


def overhead(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Median and quartiles of every phase, and the shares of wall time."""
    from analysis.methods.overhead import phase_overhead
    from analysis.store.frame import families

    if frame.empty:
        return Result(frame[["family"]], "no such runs in the store")
    # Published and imported runs have no phases and mix with nothing.
    timed = frame[frame.filter(regex=r"^phase_.*_seconds$").notna().any(axis=1)]
    pooled = alike_within(timed, ["device"], args.pool) if len(timed) else ""
    found = phase_overhead(frame, families(frame))
    if not found.runs:
        return Result(found.phases, f"None of these {found.without} runs tells its phases; published ones do not.")

    def draw() -> Any:
        from analysis.figures.overhead import draw_overhead

        return draw_overhead(found)

    text = "\n".join([*_lines(found), *sentence(pooled)])
    return Result(found.phases, text, draw, list(timed["run_id"]), pooled)


def _lines(found: Overhead) -> list[str]:
    from analysis.methods.overhead import MEASURING_PHASES, OVERHEAD_PHASES

    mean = found.wall / found.runs
    lines = [
        f"{found.runs} points took {_seconds(found.wall)} of wall time, {_seconds(mean)} each.",
        f"{_share(found.measuring)} of it is measuring; {_share(found.stack)} is the stack's own overhead "
        f"({' + '.join(OVERHEAD_PHASES)}), {_seconds(found.stack.value * mean)} a point.",
    ]
    for phase in found.phases.sort_values("share", ascending=False).head(3).to_dict("records"):
        lines.append(
            f"{phase['phase']}: {_seconds(phase['median'])} in the median, {_seconds(phase['q25'])} to "
            f"{_seconds(phase['q75'])} in the middle half, {short(phase['share'], share=True)} of the wall time."
        )
    measuring = found.families[found.families["phase"].isin(MEASURING_PHASES)]
    shares = measuring.groupby("family", sort=False)["share"].sum()
    if len(shares) > 1:
        listed = ", ".join(f"{family} {short(share, share=True)}" for family, share in shares.items())
        lines.append(f"Measuring by family: {listed}.")
    for row in found.launches.to_dict("records"):
        lines.append(
            f"{row['launcher']}: {row['tasks']} tasks of {row['points'] / row['tasks']:.3g} points. In the median a "
            f"task waited {_seconds(row['queue'])} in the queue, needed {_seconds(row['task_start'])} to start, and "
            f"its first point {_seconds(row['framework'])} for the framework."
        )
    if found.without:
        lines.append(f"{found.without} runs tell no phases and are left out.")
    return lines


def _share(found: Estimate) -> str:
    said = short(found.value, share=True)
    if math.isnan(found.low):
        return said
    return f"{said} (95% interval {short(found.low, share=True)} to {short(found.high, share=True)})"


def _seconds(value: float) -> str:
    return short(value, "s", digits=3) if value >= 0.1 else short(1000 * value, "ms", digits=3)


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="overhead",
        summary="where the wall time of a sweep goes: measuring, the model's own cost, this tool's",
        description="Median and quartiles of every phase of a point, and the share of wall time that is measuring.\n"
        "Every outcome counts, since a failed point costs time as well.",
        example="python -m analysis overhead --tag source=measured --png overhead.png",
        analyse=overhead,
        draws=True,
    ),
)
