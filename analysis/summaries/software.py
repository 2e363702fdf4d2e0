"""`software`: what versions, precisions and compile modes bring, family by family."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from analysis.summaries.command import Command, argument
from analysis.summaries.pooling import joined, sentence
from analysis.summaries.result import Result
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["COMMANDS"]


def software(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """The median and the 90th percentile of each family's speedups over the baseline."""
    from analysis.methods.software import software as analyse

    columns = None if args.by is None else [part.strip() for part in args.by.split(",") if part.strip()]
    if args.baseline is not None and (columns is None or len(columns) != 1):
        raise ConfigError("--baseline", args.baseline, "is of one column", "name it: --by version.tensorflow")
    found = analyse(frame, columns, args.baseline, args.metric, args.pool)

    def draw() -> Figure:
        from analysis.figures.software import draw_software

        return draw_software(found)

    lines = [_describe(row) for row in found.table.to_dict("records")]
    lines += [f"Not compared: {reason}." for reason in found.lacking]
    pooled = joined(found.pooled)
    lines += sentence(pooled)
    lines.append(
        f"Speedups are in {args.metric}, point by point; intervals are 95%, over points as a sample of their "
        "design space."
    )
    return Result(found.table, "\n".join(lines), draw, found.run_ids, pooled)


def _describe(row: Mapping[Any, Any]) -> str:
    low, high = row["median_low"], row["median_high"]
    verdict = "faster" if low > 1 else "slower" if high < 1 else "not told apart"
    return (
        f"{row['family']} on {row['device']}, {row['column']} {row['value']} over {row['over']}: {verdict}. Median "
        f"{_times(row, 'median')}, 90th percentile {_times(row, 'p90')}; faster in {row['faster']:.0%} of "
        f"{row['pairs']} points ({row['faster_low']:.0%} to {row['faster_high']:.0%})."
    )


def _times(row: Mapping[Any, Any], name: str) -> str:
    ends = [f"{row[end]:.3g}" if math.isfinite(row[end]) else "unknown" for end in (f"{name}_low", f"{name}_high")]
    return f"{row[name]:.3g}x ({ends[0]} to {ends[1]})"


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="software",
        summary="speedup of software versions, precisions and compile modes, with 90th percentiles",
        description="Pair every value of software.name or version.tensorflow, precision and compile with its\n"
        "baseline (the oldest version, float32, graph), and give the median and the 90th percentile of\n"
        "each family's speedups, with intervals. A 90th percentile has an upper end from 36 points on.",
        example="python -m analysis software --by version.tensorflow --baseline 2.18.0",
        arguments=(
            argument("--by", metavar="COLUMNS", help="what to compare, such as precision (default: what varies)"),
            argument("--baseline", metavar="VALUE", help="what the others are compared with"),
            argument("--metric", default="examples_per_second", help="any metric with a direction"),
        ),
        analyse=software,
        draws=True,
    ),
)
