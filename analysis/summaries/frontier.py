"""`frontier`: what no other choice beats in cost against latency, or accuracy, or throughput; and which to choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.format import short
from analysis.labels import label, unit_of
from analysis.options import Options, option
from analysis.prices import PriceList, currency_of, price_option, priced, read_prices
from analysis.result import Paragraph, Result, joined
from analysis.summaries.gate import gated_with_queries
from paradnn.core.words import counted
from paradnn.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.frontiers import Advice, Frontier

__all__ = ["FrontierOptions", "FrontierResult", "frontier"]

_LISTED = 5
_WRITTEN = 3  # tasks that are written out where no limit asks for all


@dataclass(frozen=True, kw_only=True)
class FrontierOptions(Options):
    """What an hour costs, which quantities, and what is asked of them."""

    command = "frontier"

    price: tuple[str, ...] = price_option("cost becomes a quantity to choose by")
    limit: tuple[tuple[str, str], ...] = option(
        (),
        "what a metric may be at most (at least where more is better), such as latency_p99_ms=15, repeatable: says "
        "which choice to take",
        metavar="METRIC=VALUE",
        several="repeat",
    )
    x: str | None = option(None, "first quantity (default: cost; without prices throughput, or time)", metavar="METRIC")
    y: str | None = option(
        None, "second (default: p99 of served queries, median latency of others, accuracy)", metavar="METRIC"
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FrontierResult(Result):
    """A frontier for each task; `currency` is that of the prices, `limits` are those that were given."""

    frontiers: tuple[Frontier, ...]
    prices: PriceList
    currency: str
    limits: Mapping[str, float]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each choice."""
        import pandas as pd

        parts = [one.table.drop(columns="run_ids").assign(task=one.task) for one in self.frontiers]
        table = pd.concat(parts, ignore_index=True)
        return table[["task", *(name for name in table.columns if name != "task")]]

    def _figure(self) -> Figure:
        from analysis.figures.frontier import draw_frontiers

        return draw_frontiers(self.largest, self.limits, self.currency)

    @property
    def largest(self) -> list[Frontier]:
        """The frontiers, those of most choices first."""
        return sorted(self.frontiers, key=lambda one: -len(one.table))

    def ends(self, one: Frontier) -> str:
        """Both ends of a frontier in a sentence: what is best in either quantity, as measured."""
        from analysis.methods.frontiers import less_is_better

        x, y = one.axes.x, one.axes.y
        by_y = one.table.sort_values(y, ascending=less_is_better(y), kind="stable")
        best = [
            (metric, row["choice"], _values(row, metric, other, self.currency))
            for metric, other, row in ((x, y, one.table.iloc[0]), (y, x, by_y.iloc[0]))
        ]
        head = f"{one.task}: as measured, of {counted(len(one.table), 'choice')} "
        if best[0][1] == best[1][1]:
            return f"{head}{best[0][1]} is best in {label(x)} and in {label(y)} ({best[0][2]})."
        (x, first, here), (y, second, there) = best
        return f"{head}{first} is best in {label(x)} ({here}), {second} in {label(y)} ({there})."

    def _paragraphs(self) -> Iterator[Paragraph]:
        written = list(self.frontiers) if self.limits else self.largest[:_WRITTEN]
        for one in written:
            yield _describe(one, self.currency)
            if one.advice:
                yield _advise(one, one.advice, self.limits, self.currency)
        if rest := self.largest[len(written) :]:
            yield Paragraph(f"{counted(len(rest), 'further task')} of {_sizes(rest)} choices: see the table.")
        if not self.limits:
            yield Paragraph(_how_to_choose(written[0]))
        yield Paragraph(
            "A choice is beaten where another is better whatever the true values within the intervals of both, which "
            "all hold at once with 95%; it is on the frontier where none can be better, else undecided."
        )
        if self.prices:
            said = f": {self.prices.origin}" if self.prices.origin else ""
            yield Paragraph(f"Prices given here win over those that runs recorded{said}.")


@gated_with_queries
def frontier(frame: pd.DataFrame, options: FrontierOptions | None = None) -> FrontierResult:
    """The frontiers of measured choices. NotEnoughData where nothing is to be chosen from."""
    from analysis.methods.frontiers import frontiers

    options = options or FrontierOptions()
    prices = read_prices(options.price, frame)
    limits = dict(_limit(name, value) for name, value in options.limit)
    frame = priced(frame, prices)
    found = frontiers(frame, options.x, options.y, limits, options.pool)
    sources = tuple(run for one in found for runs in one.table["run_ids"] for run in runs)
    pooled = joined(one.pooled for one in found)
    return FrontierResult(
        frontiers=tuple(found),
        prices=prices,
        currency=currency_of(frame),
        limits=limits,
        sources=sources,
        pooled=pooled,
    )


def _limit(name: str, value: str) -> tuple[str, float]:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError("--limit", f"{name}={value}", "is no number", "write for example latency_p99_ms=15")
    return name, number


def _describe(one: Frontier, currency: str) -> Paragraph:
    from analysis.methods.frontier import Standing

    head = (
        f"{one.task}: of {counted(len(one.table), 'choice')} in {label(one.axes.x)} against {label(one.axes.y)}, "
        f"{one.count(Standing.ON)} on the frontier, {one.count(Standing.UNDECIDED)} undecided, "
        f"{one.count(Standing.BEATEN)} beaten."
    )
    rows = one.table[~one.table["standing"].eq(Standing.BEATEN.value)]
    points = [
        f"{row['choice']}: {_quantity(row, one.axes.x, currency)}, {_quantity(row, one.axes.y, currency)}"
        + ("" if row["standing"] == Standing.ON.value else " (undecided)")
        for _, row in rows.head(_LISTED).iterrows()
    ]
    if len(rows) > _LISTED:
        points.append(f"and {len(rows) - _LISTED} more, see --csv")
    unknown = int(one.table[[f"{one.axes.x}_high", f"{one.axes.y}_high"]].isna().any(axis=1).sum())
    if unknown:
        points.append(f"{counted(unknown, 'choice')} with an open interval: measure longer, or replicates.")
    if one.incomplete:
        points.append(f"{counted(one.incomplete, 'choice')} without one of the quantities left out.")
    return Paragraph(head, tuple(points))


def _how_to_choose(one: Frontier) -> str:
    """What to add for an advice: a limit that about half of the choices keep."""
    name = one.axes.y
    return f"To be told which to choose, say what you need, such as --limit {name}={one.table[name].median():.3g}."


def _sizes(rest: Sequence[Frontier]) -> str:
    """How many choices there are: "2", or "2 to 4"."""
    counts = [len(one.table) for one in rest]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _values(row: pd.Series, metric: str, other: str, currency: str) -> str:
    """Both quantities of a choice."""
    return (
        f"{short(row[metric], _unit(metric, currency), digits=3)}, "
        f"{label(other)} {short(row[other], _unit(other, currency), digits=3)}"
    )


def _quantity(row: pd.Series, metric: str, currency: str) -> str:
    """A quantity of a choice with its interval."""
    unit = _unit(metric, currency)
    words = f"{label(metric)} {short(row[metric], unit, digits=3)}"
    low, high = row[f"{metric}_low"], row[f"{metric}_high"]
    if low == low and high == high and low < high:
        words += f" ({short(low, digits=3)} to {short(high, digits=3)})"
    return words


def _unit(metric: str, currency: str) -> str:
    unit = unit_of(metric)
    return currency if unit == "currency" else unit


def _advise(one: Frontier, advice: Advice, limits: Mapping[str, float], currency: str) -> Paragraph:
    from analysis.methods.frontiers import less_is_better

    asked = " and ".join(
        f"{label(name)} at {'most' if less_is_better(name) else 'least'} "
        f"{short(value, _unit(name, currency), digits=4)}"
        for name, value in limits.items()
    )
    rows = {row["choice"]: row for _, row in one.table.iterrows()}

    def said(name: str, why: str = "") -> str:
        return f"{name}{why}: {', '.join(_quantity(rows[name], metric, currency) for metric in (advice.by, *limits))}"

    points = []
    if advice.nearest:
        head = f"For {asked} no choice of {one.task} will do; nearest comes {said(advice.nearest)}."
    elif not advice.best:
        head = f"For {asked} no choice of {one.task} surely does; it may be {said(advice.unsure[0])}."
    else:
        best = "lowest" if less_is_better(advice.by) else "highest"
        why = f", of the {best} {label(advice.by)} among those that surely keep it"
        head = f"For {asked} choose {said(advice.best, why)}."
        if advice.rivals:
            points.append(f"Not surely worse in {label(advice.by)}: {'; '.join(advice.rivals[:_LISTED])}.")
        if advice.unsure:
            points.append(f"Better, but not surely within the limit: {'; '.join(advice.unsure[:_LISTED])}.")
    return Paragraph(head, tuple(points))
