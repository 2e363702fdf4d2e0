"""`scaling`: how speed grows with devices, and the fraction that does not run in parallel."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import joined, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.quantiles import Estimate
    from analysis.methods.scaling import FamilyScaling, Scaling

__all__ = ["COMMANDS"]


def scaling(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Every point on several devices against itself on one, and Amdahl's fraction of each family."""
    from analysis.methods.scaling import scaling as analyse

    found = analyse(frame, args.metric, args.by, args.pool)

    def draw() -> Figure:
        from analysis.figures.scaling import draw_scaling

        return draw_scaling(found)

    lines = [line for family in found.families for line in _describe(family, found)]
    pooled = joined(found.pooled)
    lines += sentence(pooled)
    lines.append(
        "The fraction is that of Amdahl's law, speedup = 1 / (s + (1 - s) / n), fitted over points; intervals "
        "are 95%, over points as a sample of their design space."
    )
    return Result(_table(found), "\n".join(lines), draw, found.run_ids, pooled)


def _describe(family: FamilyScaling, found: Scaling) -> list[str]:
    counts, what = ", ".join(map(str, family.counts)), found.by.rpartition(".")[2]
    most = family.counts[-1]
    lines = [
        f"{family.family}: over {family.points} points on {counts} against 1 ({what}), {_percent(family.fraction)} of "
        f"the step does not run in parallel{_bound(family.fraction.value, what)}.",
        f"  Point by point: median {_percent(family.median)}, 90th percentile {_percent(family.upper)}, at most "
        f"{100 * family.largest:.3g}%.",
        f"  On {most}: a median of {_percent(family.efficiency)} of the speed of {most} without loss.",
    ]
    if family.largest_batch is not None:
        lines.append(
            f"  At the largest batch size, {family.largest_batch}: 90th percentile "
            f"{_percent(family.upper_at_largest_batch)}."
        )
    odd = [f"{family.slower} slower than on one"] * (family.slower > 0)
    odd += [f"{family.superlinear} more than n times as fast"] * (family.superlinear > 0)
    if odd:
        lines.append(f"  Of {family.measurements} measurements {', '.join(odd)}.")
    return lines


def _percent(value: Estimate) -> str:
    ends = [f"{100 * end:.3g}%" if abs(end) < 1e6 else "unknown" for end in (value.low, value.high)]
    return f"{100 * value.value:.3g}% ({ends[0]} to {ends[1]})"


def _bound(fraction: float, what: str) -> str:
    """What the fraction means for any number of devices."""
    if fraction >= 1:
        return f": more {what} make it slower"
    return (
        f", so no number of {what} makes it more than {1 / fraction:.3g}x as fast"
        if fraction > 0
        else ": nothing is lost"
    )


def _table(found: Scaling) -> pd.DataFrame:
    """The pairs; columns that are the same in all of them only crowd it."""
    pairs = found.pairs
    shown = (
        "family",
        "devices",
        "one",
        "many",
        "speedup",
        "speedup_low",
        "speedup_high",
        "efficiency",
        "fraction",
        "interval_source",
    )
    hidden = {"a_count", "b_count", "a_spread", "b_spread", "p_value"}
    same = {name for name in pairs.columns if name not in shown and pairs[name].nunique(dropna=False) < 2}
    told = [name for name in pairs.columns if name not in {*shown, *hidden, *same}]
    return pairs[["family", *told, *shown[1:]]]


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="scaling",
        summary="speed over device counts, with Amdahl's non-parallel fraction",
        description="Pair each point measured on several devices with the same point on one, and fit Amdahl's law:\n"
        "the fraction of the step that does not run in parallel, for each family, with its interval.",
        example="python -m analysis scaling --family fc --png scaling.png",
        arguments=(
            argument("--metric", default="examples_per_second", help="examples_per_second or flops_per_second"),
            argument(
                "--by",
                default="devices",
                metavar="COLUMN",
                help="what counts the devices (default: devices), such as platform.threads",
            ),
        ),
        analyse=scaling,
        draws=True,
    ),
)
