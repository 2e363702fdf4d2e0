"""`compare`: two platforms, environments, versions or sweeps, cell by cell, with a verdict for each family."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from analysis.summaries.command import Command, argument
from analysis.summaries.result import Result
from analysis.summaries.sides import apart, choose_sides, is_speed, join_on, tidy
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.compare import Comparison

__all__ = ["COMMANDS"]

_KEPT = (
    "family",
    "a",
    "b",
    "speedup",
    "speedup_low",
    "speedup_high",
    "interval_source",
    "a_count",
    "b_count",
    "p_value",
    "p_adjusted",
    "verdict",
)


def compare(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """The cells of A and B with interval, test and verdict, and a sentence for each family."""
    from analysis.methods.compare import compare as analyse

    if not 0 < args.rate < 1:
        raise ConfigError("--rate", args.rate, "is no share", "give one between 0 and 1, such as 0.05")
    sides = choose_sides(frame, [args.a], [args.b], ("A", "B"), args.pool)
    found = analyse(sides.a, sides.b, args.metric, join_on(args.on, sides), args.rate)
    word = "faster" if is_speed(args.metric) else "better"
    text = [f"A is {sides.name_a}, B is {sides.name_b}; ratios are of {args.metric}, above 1 where A is {word}."]
    text += [_sentence(row, word) for row in found.families.to_dict("records")]
    text += [_tests(found, word), *_intervals(found.cells), *apart(found.cells, sides)]

    def draw() -> Figure:
        from analysis.figures.compare import draw_comparison

        return draw_comparison(found, sides.name_a, sides.name_b)

    drawable = draw if len(found.cells) else None
    return Result(tidy(found.cells, _KEPT), "\n".join(filter(None, text)), drawable, sides.sources, sides.pooled)


def _sentence(row: dict[Any, Any], word: str) -> str:
    """The verdict of one family, with what it rests on."""
    from analysis.methods.compare import A_BETTER, B_BETTER, NOT_ENOUGH, NOT_SHOWN, REPLICATES
    from analysis.methods.speedup import MINIMUM_POINTS

    count = row["points"]
    points = f"{count} point{'s'[: count != 1]}"
    if not count:
        return f"{row['family']}: not enough data, no point was measured on both sides."
    mean, low, high = (row[name] for name in ("geometric_mean", "geometric_mean_low", "geometric_mean_high"))
    interval = f" ({low:.3g} to {high:.3g})" if low == low else ""
    spread = f"single points {row['minimum']:.3g} to {row['maximum']:.3g}" if count > 1 else "no more than that"
    numbers = f"geometric mean {mean:.3g}{interval} over {points}, {spread}"
    if row["verdict"] == NOT_ENOUGH:
        return (
            f"{row['family']}: not enough data: {numbers}. A verdict needs {MINIMUM_POINTS} points, or "
            f"{REPLICATES} replicates of each on both sides."
        )
    if row["verdict"] == NOT_SHOWN:
        return f"{row['family']}: no difference shown: {numbers}; A is ahead in {row['wins']}."
    side, ahead = ("A", row["wins"]) if row["verdict"] == A_BETTER else ("B", count - row["wins"])
    if row["verdict"] == B_BETTER:
        # Said from the winner's side: how many times faster B is.
        bounds = f" ({1 / high:.3g} to {1 / low:.3g})" if low == low else ""
        numbers = f"geometric mean {1 / mean:.3g}{bounds} of B over A, over {points}"
        numbers += f", single points {1 / row['maximum']:.3g} to {1 / row['minimum']:.3g}" if count > 1 else ""
    share = f"; {side} is ahead in {ahead} of them" if count > 1 else ""
    basis = ", by the tests of its points" if row["basis"] == "tests" else ""
    return f"{row['family']}: {side} {word}{basis}: {numbers}{share}."


def _tests(found: Comparison, word: str) -> str:
    """What was tested, and what the tests found."""
    from analysis.methods.compare import A_BETTER, B_BETTER, REPLICATES

    cells = found.cells
    tested = int(cells["tested"].sum())
    if not len(cells):
        return ""
    lacking = len(cells) - tested
    why = f"{lacking} of {len(cells)} cells are not tested: a test takes {REPLICATES} replicates on both sides."
    if not tested:
        return f"No cell is tested: that takes {REPLICATES} replicates of a point on both sides (replicate=0,1,2)."
    better = [int((cells["verdict"] == verdict).sum()) for verdict in (A_BETTER, B_BETTER)]
    return (
        f"Of {tested} cells tested (Welch's t on logarithms) A is {word} in {better[0]}, B in {better[1]}; at most "
        f"{found.rate:.0%} of these are expected to be false (Benjamini-Hochberg)." + (f" {why}" if lacking else "")
    )


def _intervals(cells: pd.DataFrame) -> list[str]:
    """How exactly single ratios are known."""
    if not len(cells):
        return []
    lines = ["Intervals are 95%; those of means are over points (bootstrap)."]
    for source, words in (("replicates", "between replicates"), ("within process", "within one process only")):
        rows = cells[cells["interval_source"] == source]
        if len(rows):
            reach = ((rows["speedup_high"] / rows["speedup_low"]) ** 0.5 - 1).median()
            lines.append(
                f"{len(rows)} single ratios have an interval from the spread {words}, in the median ±{reach:.1%}."
            )
    without = int((cells["interval_source"] == "none").sum())
    if without:
        lines.append(f"{without} single ratios have no interval: neither replicates nor one of their own.")
    return [" ".join(lines)]


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="compare",
        summary="A against B: each cell with interval and test, and a verdict for each family",
        description="Pair the points that two sides both measured: platforms, environments, versions or sweeps.\n"
        "A and B are conditions as in --where, several joined by ' & '. Each ratio has its interval,\n"
        "a test where there are three replicates on both sides, false discoveries held over all cells;\n"
        "each family has a verdict: A faster, B faster, no difference shown, or not enough data.",
        example="python -m analysis compare version.tensorflow=2.21.0 version.tensorflow=2.20.0 --png compare.png",
        analyse=compare,
        draws=True,
        arguments=(
            argument("a", metavar="A", help="condition of side A's runs, such as 'device=TPU v2'"),
            argument("b", metavar="B", help="condition of side B's runs, such as sweep_id=... or environment_id=..."),
            argument(
                "--metric",
                metavar="M",
                default="examples_per_second",
                help="what to compare (default: examples_per_second)",
            ),
            argument(
                "--on",
                metavar="X,Y",
                help="hyperparameters that tell a point, such as nodes,batch_size "
                "(default: the whole configuration, but for what sets A and B apart)",
            ),
            argument(
                "--rate",
                metavar="Q",
                type=float,
                default=0.05,
                help="share of false ones among the differences found (default: 0.05)",
            ),
        ),
    ),
)
