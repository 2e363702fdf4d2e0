"""`speedup`: how much faster A is than B, over which points, and what that depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.options import option
from analysis.result import Paragraph, Result
from analysis.summaries.gate import gated
from analysis.summaries.operation_speedup import OperationSpeedupResult, operations_over
from analysis.summaries.sides import (
    KEPT,
    PairedOptions,
    Sides,
    apart,
    choose_sides,
    is_speed,
    join_on,
    mean_in_words,
    tidy,
)
from analysis.summaries.told import more_replicates, no_verdict, selection
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.speedup import Speedup, SpeedupFit

__all__ = ["Equal", "SpeedupOptions", "SpeedupResult", "speedup"]

_PANELS = 6


@dataclass(frozen=True, kw_only=True)
class SpeedupOptions(PairedOptions):
    """Two sides, how they are paired, and how the speedup is drawn and regressed."""

    command = "speedup"

    a: tuple[str, ...] = option((), "condition of side A's runs, repeatable", metavar="COLUMN=VALUE", several="repeat")
    b: tuple[str, ...] = option((), "condition of side B's runs, repeatable", metavar="COLUMN=VALUE", several="repeat")
    x: str = option("parameters", "what the speedup is drawn against (default: parameters)", metavar="X")
    colour: str | None = option(None, "hyperparameter that colours the marks, such as batch_size", metavar="C")
    terms: tuple[str, ...] | None = option(
        None, "hyperparameters of the regression (default: all that vary)", metavar="X,Y"
    )
    linear: bool = option(
        False,
        "regress the speedup itself on the hyperparameters as they are, as in the paper (default: logarithms of both)",
    )
    equal: str | None = option(
        None, "hyperparameter: say for which of its values A and B are equally good, such as density", metavar="C"
    )
    operations: bool = option(False, "compare the operations of profiled runs")
    ridge: tuple[float, ...] = option(
        (),
        "ridge point in FLOP/B for --operations, repeatable (default: from the devices' ceilings)",
        metavar="R",
        several="repeat",
        above=0,
    )


@dataclass(frozen=True)
class Equal:
    """What `equality.equal_at` found in a column, for the groups that `keys` make."""

    column: str
    keys: tuple[str, ...]
    table: pd.DataFrame


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SpeedupResult(Result):
    """The pairs of A and B, a summary and a regression for each family; `x` and `colour` say how they are drawn."""

    speedup: Speedup
    sides: Sides
    metric: str
    x: str
    colour: str | None
    equal: Equal | None = None
    margin: float = 0.05
    power: bool = False

    @property
    def table(self) -> pd.DataFrame:
        return tidy(self.speedup.pairs, KEPT)

    @property
    def families(self) -> pd.DataFrame:
        """A row for each family, and one for all: the share of points in which A wins, means and quartiles."""
        return self.speedup.summary

    def _figure(self) -> Figure:
        from analysis.figures.speedup import draw_speedup
        from analysis.methods.columns import find_column

        pairs = self.speedup.pairs
        if len(self.families) > _PANELS + 1:
            raise ConfigError("--family", "(all)", f"more than {_PANELS} families do not fit one figure", "choose some")
        colour = find_column(pairs, self.colour, "--colour") if self.colour else None
        x = find_column(pairs, self.x, "--x")
        if not _is_number(pairs[x]):
            raise ConfigError("--x", x, "is not a number", "choose for example parameters or nodes")
        return draw_speedup(self.speedup, x, colour, self.sides.name_a, self.sides.name_b)

    def _paragraphs(self) -> Iterator[Paragraph]:
        of, sides = self.speedup, self.sides
        if of.pairs.empty:
            runs = f"{len(sides.a)} runs of {sides.called[0]} and {len(sides.b)} of {sides.called[1]}"
            yield Paragraph(f"No point was measured on both sides, of {runs}.")
        else:
            a, b = names = sides.called
            yield Paragraph(f"{sides.named()}Speedup is {a} over {b} in {self.metric}, above 1 where {a} is better.")
            word = "faster" if is_speed(self.metric) else f"better in {self.metric}"
            for row in self.families.to_dict("records"):
                yield _family(row, word, names)
            yield Paragraph(
                f"Intervals of share and mean are 95%, over {self.families['sample'].iloc[-1]}: what others of their "
                f"kind would give. {_sources(of.pairs['interval_source'].value_counts().to_dict())}"
            )
            yield from map(Paragraph, no_verdict(of.pairs))
            if self.power:
                yield Paragraph(_power(of.pairs, self.margin))
        yield from map(_fit, of.fits)
        if self.equal is not None:
            yield from _equal(self.equal, sides.called)
        for lacking in of.lacking:
            yield Paragraph(f"{lacking}: no regression.")
        yield from apart(of.pairs, sides)


@gated
def speedup(frame: pd.DataFrame, options: SpeedupOptions) -> SpeedupResult | OperationSpeedupResult:
    """A over B point by point: the share of wins, the mean, and what the speedup depends on.

    With `operations` the same operation by operation. ConfigError for a side without runs or a column that is not
    there, SchemaError for heterogeneous runs of a side.
    """
    from analysis.methods import speedup as method

    for name, conditions in (("--a", options.a), ("--b", options.b)):
        if not conditions:
            remedy = "name for example --a 'device=TPU v2' --b device=V100"
            raise ConfigError(name, "(none)", "both sides are needed", remedy)
    sides = choose_sides(frame, options.a, options.b, ("--a", "--b"), options.pool)
    on = join_on(options.on, sides)
    if options.operations:
        return operations_over(sides, on, options.ridge, options.store)
    numbers = [name for name in sides.a.columns if _is_number(sides.a[name])]
    carry = tuple(dict.fromkeys(name for name in ("parameters", options.x) if name in numbers))
    pairs = method.speedup(sides.a, sides.b, options.metric, on, carry, options.terms, options.linear, options.unit)
    return SpeedupResult(
        speedup=pairs,
        equal=_equal_in(pairs.pairs, options.equal, carry) if options.equal else None,
        sides=sides,
        metric=options.metric,
        x=options.x,
        colour=options.colour,
        margin=options.margin,
        power=options.power,
        sources=sides.sources,
        pooled=sides.pooled,
    )


def _equal_in(pairs: pd.DataFrame, wanted: str, carried: Sequence[str]) -> Equal:
    from analysis.methods.columns import find_column
    from analysis.methods.equality import equal_at
    from analysis.methods.pairing import RESULT_COLUMNS

    column = find_column(pairs, wanted, "--equal")
    others = [str(name) for name in pairs if name not in (*RESULT_COLUMNS, *carried, column)]
    keys = tuple(name for name in others if pairs[name].nunique(dropna=False) > 1)
    return Equal(column, keys, equal_at(pairs, column, keys))


def _equal(equal: Equal, names: tuple[str, str]) -> Iterator[Paragraph]:
    """Where the sides are equal, a line for each group of points."""
    lines = []
    for row in equal.table.to_dict("records"):
        group = ", ".join(f"{name} {row[name]}" for name in equal.keys)
        ends = f"{row['lowest']:g} to {row['highest']:g}"
        first, other = names if row["ahead"] == "A" else names[::-1]
        if row["crossings"] == 0:
            text = f"{first} is ahead from {ends}"
        elif row["crossings"] > 1:
            text = f"who is ahead changes {row['crossings']} times from {ends}"
        else:
            text = f"equal at {row['value']:.3g} ({_ends(row)}); {first} is ahead below, {other} above"
        lines.append(f"{group}: {text}." if group else f"{text}.")
    yield Paragraph(f"Where {names[0]} and {names[1]} are equal in {equal.column}:", tuple(lines))


def _ends(row: dict[Any, Any]) -> str:
    """The interval of a crossing in words."""
    low, high = row["low"], row["high"]
    if low != low:
        return "without an interval"
    first = f"{low:.3g}" if low > -float("inf") else f"below {row['lowest']:g}"
    last = f"{high:.3g}" if high < float("inf") else f"above {row['highest']:g}"
    return f"{first} to {last}"


def _family(row: dict[Any, Any], word: str, names: tuple[str, str]) -> Paragraph:
    mean = mean_in_words(row["geometric_mean"], row["geometric_mean_low"], row["geometric_mean_high"])
    head = (
        f"{row['family']}: {names[0]} is {word} in {row['wins']} of {row['points']} points, {row['share']:.1%} "
        f"({row['share_low']:.1%} to {row['share_high']:.1%}). Geometric mean {mean}, "
        f"quartiles {row['q25']:.3g} / {row['median']:.3g} / {row['q75']:.3g}, "
        f"from {row['minimum']:.3g} to {row['maximum']:.3g}."
    )
    left = selection(row, names)
    if not row["with_interval"]:
        return Paragraph(head, (left,) if left else ())
    unclear = row["with_interval"] - row["clear_wins"] - row["clear_losses"]
    clear = (
        f"Of {row['with_interval']} points with an interval between processes, {names[0]} is ahead beyond it in "
        f"{row['clear_wins']}, {names[1]} in {row['clear_losses']}, {unclear} are not distinguished."
    )
    return Paragraph(head, tuple(filter(None, (left, clear))))


def _power(pairs: pd.DataFrame, margin: float) -> str:
    """What more replicates could find in one point."""
    import numpy as np

    from analysis.methods.power import spread_of

    return more_replicates(spread_of(pairs), 0.05, int(np.isfinite(pairs["speedup"]).sum()), margin)


def _sources(counts: dict[Any, int]) -> str:
    if set(counts) == {"none"}:
        return "Single ratios have no interval: these runs have neither replicates nor intervals of their own."
    words = {
        "replicates": "from replicates",
        "processes": "from several processes of one run",
        "none": "unknown",
        "within process": "from blocks within one process, without the spread between processes, so no verdict on them",
    }
    parts = [f"{count} {words[source]}" for source, count in counts.items()]
    return f"Intervals of single ratios: {', '.join(parts)}."


def _fit(fit: SpeedupFit) -> Paragraph:
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
    result = fit.regression
    return Paragraph(
        f"{fit.family}: standardised weights on {what}: {'; '.join(parts)}. "
        f"R² {result.r2:.2f}, on held-out points {result.r2_held_out:.2f}.{baseline}"
    )


def _is_number(column: pd.Series) -> bool:
    from pandas.api import types

    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
