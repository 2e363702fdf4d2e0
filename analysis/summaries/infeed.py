"""`infeed`: which models wait for their input, and what a faster input pipeline could bring."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import joined, sentence
from analysis.summaries.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.infeed import GroupInfeed, Infeed
    from analysis.methods.quantiles import Estimate

__all__ = ["COMMANDS"]


def infeed(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """Every point with its wait and its headroom, and in words which are input-bound."""
    from analysis.methods.infeed import infeed as analyse

    found = analyse(frame, args.against, args.threshold, args.pool)

    def draw() -> Figure:
        from analysis.figures.infeed import draw_infeed

        return draw_infeed(found)

    lines = [line for group in found.groups for line in _describe(group, found)]
    lines += [f"{reason}." for reason in found.lacking]
    pooled = joined(found.pooled)
    lines += sentence(pooled)
    if any(group.cores for group in found.groups):
        lines.append("Cores: examples a second without the wait, times the pipeline's processor time for an example.")
    lines.append(
        "Intervals are 95%, over points as a sample of their design space. Headroom is a bound: the step "
        "without the wait."
    )
    table = found.points.rename(columns={"size": found.against})
    return Result(table, "\n".join(lines), draw, found.run_ids, pooled)


def _describe(group: GroupInfeed, found: Infeed) -> list[str]:
    rows = found.points[(found.points["family"] == group.family) & (found.points["device"] == group.device)]
    bound, free = rows[rows["input_bound"]], rows[~rows["input_bound"]]
    lines = [
        f"{group.name}: {group.bound} of {group.points} points are input-bound, {_percent(group.share)}: they wait for "
        f"more than {found.threshold:.0%} of the step. Median wait {_percent(group.median)}."
    ]
    size = found.against.replace("_", " ")
    value, low, high = group.correlation
    if not math.isnan(value):
        told = "falls with" if high < 0 else "rises with" if low > 0 else "is not told to depend on"
        lines.append(f"  The wait {told} {size}: rank correlation {value:+.2f} ({low:+.2f} to {high:+.2f}).")
    if len(bound):
        others = f"; the others have {_range(free)}" if len(free) else ""
        middle, most = bound["headroom"].median(), bound["headroom"].max()
        lines.append(f"  Input-bound are models of {_range(bound)} {size}{others}.")
        lines.append(
            f"  Without the wait they would be up to {middle:.3g}x as fast in the median, {most:.3g}x at most."
        )
    return lines + _balance(group, rows)


def _balance(group: GroupInfeed, rows: pd.DataFrame) -> list[str]:
    """What was measured with input free of charge, and what would feed the models."""
    lines = []
    if group.gain is not None:
        gains = rows.dropna(subset="gain").sort_values("gain")
        told = gains[gains["gain_low"] > 0] if "gain_low" in gains else gains.iloc[:0]
        most = gains.iloc[-1]
        lines.append(
            f"  Measured: input free of charge makes them {_percent(group.gain)} faster in the median, "
            f"{100 * most['gain']:.3g}% at most; told from none for {len(told)} of {len(gains)}."
        )
    if group.cores is not None:
        cores = rows.dropna(subset="cores").sort_values("cores")
        last = cores.iloc[-1]
        ends = f" ({last['cores_low']:.3g} to {last['cores_high']:.3g})" if "cores_low" in cores else ""
        lines.append(
            f"  Cores that would feed them at that speed: {cores['cores'].min():.3g} to "
            f"{last['cores']:.3g}{ends}, median {group.cores.value:.3g}."
        )
    return lines


def _range(rows: pd.DataFrame) -> str:
    return f"{short(rows['size'].min())} to {short(rows['size'].max())}"


def _percent(value: Estimate) -> str:
    low, high = (f"{100 * end:.3g}%" if math.isfinite(end) else "unknown" for end in (value.low, value.high))
    return f"{100 * value.value:.3g}% ({low} to {high})"


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="infeed",
        summary="share of the step spent waiting for input, against the size of the model",
        description="Show which models wait for their input, how the wait falls with the size of the model, and the\n"
        "speedup that an input pipeline without cost would bring at most. Runs with data=images or\n"
        "data=text also say what free input did bring, and how many cores would feed the model.",
        example="python -m analysis infeed --family residual,bottleneck --against parameters",
        arguments=(
            argument(
                "--against",
                default="flops_per_example",
                metavar="SIZE",
                help="flops_per_example (default), flops_per_step or parameters",
            ),
            argument(
                "--threshold",
                type=float,
                default=0.1,
                metavar="SHARE",
                help="share of the step above which a model is input-bound (default: 0.1)",
            ),
        ),
        analyse=infeed,
        draws=True,
    ),
)
