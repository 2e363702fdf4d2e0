"""`speedup`: how much faster A is than B, over which points, and what that depends on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from analysis.summaries.command import Command, argument
from analysis.summaries.result import Result
from analysis.summaries.sides import Sides, apart, choose_sides, is_speed, join_on, names_of, tidy
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.operation_speedup import OperationSpeedup
    from analysis.methods.speedup import Speedup, SpeedupFit

__all__ = ["COMMANDS"]

_KEPT = ("family", "a", "b", "speedup", "speedup_low", "speedup_high", "interval_source")
_PANELS = 6


def speedup(frame: pd.DataFrame, args: argparse.Namespace) -> Result:
    """The pairs of A and B, and in words the share of wins, the mean, and what the speedup depends on."""
    from analysis.methods import speedup as method
    from analysis.methods.columns import find_column

    if not args.a or not args.b:
        raise ConfigError(
            "--a" if not args.a else "--b",
            "(none)",
            "both sides are needed",
            "name for example --a 'device=TPU v2' --b device=V100",
        )
    sides = choose_sides(frame, args.a, args.b, ("--a", "--b"), args.pool)
    if args.operations:
        return _operations(sides, args)
    carry = tuple(dict.fromkeys(name for name in ("parameters", args.x) if name in _numbers(sides.a)))
    found = method.speedup(
        sides.a, sides.b, args.metric, join_on(args.on, sides), carry, names_of(args.terms), args.linear
    )
    text = [*_summary(found, sides, args.metric), *(_fit(fit) for fit in found.fits)]
    text += [f"{reason}: no regression." for reason in found.lacking] + apart(found.pairs, sides)
    if found.pairs.empty:
        return Result(found.pairs, "\n".join(text), None, sides.sources, sides.pooled)

    def draw() -> Figure:
        from analysis.figures.speedup import draw_speedup

        if len(found.summary) > _PANELS + 1:
            raise ConfigError("--family", "(all)", f"more than {_PANELS} families do not fit one figure", "choose some")
        colour = find_column(found.pairs, args.colour, "--colour") if args.colour else None
        x = find_column(found.pairs, args.x, "--x")
        if not _is_number(found.pairs[x]):
            raise ConfigError("--x", x, "is not a number", "choose for example parameters or nodes")
        return draw_speedup(found, x, colour, sides.name_a, sides.name_b, frame.attrs.get("units", {}))

    return Result(tidy(found.pairs, _KEPT), "\n".join(text), draw, sides.sources, sides.pooled)


def _summary(found: Speedup, sides: Sides, metric: str) -> list[str]:
    word = "faster" if is_speed(metric) else f"better in {metric}"
    if found.pairs.empty:
        return [f"No point was measured on both sides, of {len(sides.a)} runs of A and {len(sides.b)} of B."]
    lines = [f"A is {sides.name_a}, B is {sides.name_b}; speedup is A over B in {metric}, above 1 where A is better."]
    for row in found.summary.to_dict("records"):
        lines.append(
            f"{row['family']}: A is {word} in {row['wins']} of {row['points']} points, {row['share']:.1%} "
            f"({row['share_low']:.1%} to {row['share_high']:.1%}). Geometric mean {_times(row, 'geometric_mean')}, "
            f"quartiles {row['q25']:.3g} / {row['median']:.3g} / {row['q75']:.3g}, "
            f"from {row['minimum']:.3g} to {row['maximum']:.3g}."
        )
        if row["with_interval"]:
            unclear = row["with_interval"] - row["clear_wins"] - row["clear_losses"]
            lines.append(
                f"  Of {row['with_interval']} points with an interval of their own, A is ahead beyond it in "
                f"{row['clear_wins']}, B in {row['clear_losses']}, {unclear} are not told apart."
            )
    sources = found.pairs["interval_source"].value_counts()
    lines.append(
        "Intervals of share and mean are 95%, over points: what other points of this kind would give. "
        + _sources(sources.to_dict())
    )
    return lines


def _sources(counts: dict[Any, int]) -> str:
    if set(counts) == {"none"}:
        return "Single ratios have no interval: these runs have neither replicates nor intervals of their own."
    words = {
        "replicates": "from replicates",
        "none": "unknown",
        "within process": "from blocks within one process, without the spread between processes",
    }
    parts = [f"{count} {words[source]}" for source, count in counts.items()]
    return f"Intervals of single ratios: {', '.join(parts)}."


def _times(row: dict[Any, Any], name: str) -> str:
    return _between(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _between(value: float, low: float, high: float) -> str:
    return f"{value:.3g} ({low:.3g} to {high:.3g})" if low == low else f"{value:.3g} (too few points for an interval)"


def _fit(fit: SpeedupFit) -> str:
    """One family's regression in a sentence, and what a doubling does."""
    weights = fit.regression.weights.sort_values("weight", key=lambda column: -column.abs())
    parts = []
    for term, row in weights.iterrows():
        text = f"{term} {row['weight']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"
        if term in fit.logarithms:
            text += f", doubling it multiplies the speedup by {2 ** row['slope']:.2f}"
        parts.append(text)
    what = "log speedup" if fit.log_response else "speedup"
    baseline = "".join(f" {name} is against {value}." for name, value in fit.baselines.items())
    found = fit.regression
    return (
        f"{fit.family}: standardised weights on {what}: {'; '.join(parts)}. "
        f"R² {found.r2:.2f}, on held-out points {found.r2_held_out:.2f}.{baseline}"
    )


def _operations(sides: Sides, args: argparse.Namespace) -> Result:
    """Operation by operation, with the bandwidth gain that the memory-bound ones imply."""
    import pandas as pd

    from analysis.methods.operation_speedup import operation_speedup
    from analysis.store.operations import load_types

    ridges = _ridges(sides, args.ridge)
    types = load_types(pd.concat([sides.a, sides.b], ignore_index=True), args.store)
    found = operation_speedup(sides.a, sides.b, types, ridges, join_on(args.on, sides))
    text = "\n".join([*_operation_lines(found, sides, ridges), *apart(found.operations, sides, "operation types")])

    def draw() -> Figure:
        from analysis.figures.speedup import draw_operations

        return draw_operations(found, ridges, sides.name_a, sides.name_b)

    drawable = draw if len(found.operations) else None
    return Result(tidy(found.operations, ("operation_type", *_KEPT)), text, drawable, sides.sources, sides.pooled)


def _operation_lines(found: OperationSpeedup, sides: Sides, ridges: list[float]) -> list[str]:
    lines = [
        f"A is {sides.name_a}, B is {sides.name_b}; speedup of the FLOP rate of {len(found.operations)} operation "
        f"types in paired points; {found.small} below 1% of the time are left out."
    ]
    for row in found.levels.to_dict("records"):
        lines.append(
            f"{row['level']}: {_times(row, 'geometric_mean')} over {row['operations']} operations "
            f"in {row['points']} points."
        )
    if not ridges:
        lines.append(
            "No ridge point is known, so memory-bound operations cannot be told: give it with --ridge, or "
            "measure the ceilings."
        )
    elif found.gain_from:
        edges = ", ".join(f"{ridge:.3g}" for ridge in ridges)
        lines.append(
            f"Memory bandwidth gain of A over B, from the level {found.gain_from!r}: "
            f"{_between(*found.gain)}; ridge at {edges} FLOP/B."
        )
    else:
        lines.append("No operation is memory-bound on both sides: nothing is said of the bandwidth.")
    return lines


def _ridges(sides: Sides, given: list[float] | None) -> list[float]:
    """The ridge points as given, else those of the sides' roofs that are known."""
    if given:
        if min(given) <= 0:
            raise ConfigError("--ridge", min(given), "is not above zero", "give FLOP per byte, such as 75")
        return sorted(given)
    from analysis.methods.roofline import find_roofs
    from paradnn.hardware.specifications import find_hardware

    roofs = [find_roofs(side, find_hardware) for side in (sides.a, sides.b)]
    # Half a knowledge would call operations memory-bound that are so on one side alone.
    if any(roof.ridge is None for side in roofs for roof in side):
        return []
    return sorted({roof.ridge for side in roofs for roof in side if roof.ridge is not None})


def _numbers(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame.columns if _is_number(frame[name])]


def _is_number(column: pd.Series) -> bool:
    from pandas.api import types

    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


#: What this module adds to the command line.
COMMANDS = (
    Command(
        name="speedup",
        summary="how much faster A is than B, point by point, and what that depends on",
        description="Pair the points that A and B both measured. Tells the share of points where A wins, the\n"
        "geometric mean and the quartiles of the speedup, and which hyperparameters it depends on.\n"
        "With --operations it compares operation by operation, and tells the gain in memory bandwidth\n"
        "that this implies.",
        example="python -m analysis speedup --a 'device=TPU v2' --b device=V100 --colour batch_size --png speedup.png",
        analyse=speedup,
        draws=True,
        arguments=(
            argument("--a", metavar="COLUMN=VALUE", action="append", help="condition of side A's runs, repeatable"),
            argument("--b", metavar="COLUMN=VALUE", action="append", help="condition of side B's runs, repeatable"),
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
                "--x", metavar="X", default="parameters", help="what the speedup is drawn against (default: parameters)"
            ),
            argument("--colour", metavar="C", help="hyperparameter that colours the marks, such as batch_size"),
            argument("--terms", metavar="X,Y", help="hyperparameters of the regression (default: all that vary)"),
            argument(
                "--linear",
                action="store_true",
                help="regress the speedup itself on the hyperparameters as they "
                "are, as the paper does (default: logarithms of both)",
            ),
            argument("--operations", action="store_true", help="compare the operations of profiled runs"),
            argument(
                "--ridge",
                metavar="R",
                type=float,
                action="append",
                help="ridge point in FLOP/B for --operations, repeatable (default: from the devices' ceilings)",
            ),
        ),
    ),
)
