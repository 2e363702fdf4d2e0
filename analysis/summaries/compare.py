"""`compare`: two platforms, environments, versions or sweeps, cell by cell, with a verdict for each family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.options import option
from analysis.result import Paragraph, Result
from analysis.summaries.gate import gated
from analysis.summaries.predicted import PredictedOptions, completed_of, told_of
from analysis.summaries.sides import KEPT, PairedOptions, Sides, apart, choose_sides, is_speed, join_on, tidy
from analysis.summaries.told import more_replicates, no_verdict, selection, smallest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.methods.compare import Comparison
    from paradnn.forecast.estimate import Estimate

__all__ = ["CompareOptions", "CompareResult", "Overall", "compare"]

_KEPT = (*KEPT, "a_count", "b_count", "p_value", "p_adjusted", "verdict")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(PredictedOptions, PairedOptions):
    """Two sides, and what to compare of them."""

    command = "compare"

    a: str = option(text="condition of side A's runs, such as 'device=TPU v2'", metavar="A", positional=True)
    b: str = option(
        text="condition of side B's runs, such as sweep_id=... or environment_id=...", metavar="B", positional=True
    )
    rate: float = option(
        0.05, "share of false ones among the differences found (default: 0.05)", metavar="Q", above=0, below=1
    )


class Overall(NamedTuple):
    """All paired points together: how many, on how many A is ahead, and the geometric mean of the ratios."""

    points: int
    wins: int
    mean: Estimate


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareResult(Result):
    """The cells of both sides with interval, test and verdict, and a verdict for each family."""

    comparison: Comparison
    sides: Sides
    unit: Literal["crossed", "model", "point"] = "crossed"
    power: bool = False

    @property
    def table(self) -> pd.DataFrame:
        return tidy(self.comparison.cells, _KEPT)

    @property
    def families(self) -> pd.DataFrame:
        """A row for each family, with its verdict."""
        return self.comparison.families

    @cached_property
    def overall(self) -> Overall:
        """All points together, whatever their family."""
        from analysis.methods.dependence import geometric_mean, levels_of
        from analysis.methods.pairing import sampling

        cells = self.comparison.cells
        ratios = cells["speedup"].to_numpy(dtype="float64")
        between = sampling(cells, "all").between
        mean = geometric_mean(ratios, levels_of(cells, self.unit), more=between)
        return Overall(len(ratios), int((ratios > 1).sum()), mean)

    def _power(self) -> Iterator[str]:
        """What more replicates could find, family by family."""
        tests = int(self.comparison.cells["tested"].sum()) if len(self.comparison.cells) else 0
        for row in self.families.to_dict("records"):
            words = more_replicates(
                row["spread"], self.comparison.rate, max(tests, row["points"], 1), self.comparison.margin
            )
            yield f"{row['family']}: {words}"

    def _figure(self) -> Figure:
        from analysis.figures.compare import draw_comparison

        return draw_comparison(self.comparison, self.sides.name_a, self.sides.name_b)

    def _paragraphs(self) -> Iterator[Paragraph]:
        metric, cells = self.comparison.metric, self.comparison.cells
        word = "faster" if is_speed(metric) else "better"
        a, b = names = self.sides.called
        yield Paragraph(f"{self.sides.named()}Ratios are {a} over {b} in {metric}, above 1 where {a} is {word}.")
        for row in self.families.to_dict("records"):
            left = tuple(filter(None, [selection(row, names)]))
            yield Paragraph(_sentence(row, word, self.comparison.margin, names), left)
        yield from map(Paragraph, no_verdict(cells))
        if len(cells):
            yield Paragraph(_tests(self.comparison, word, names))
            yield Paragraph(_intervals(cells, self.families))
        if self.power:
            yield from map(Paragraph, self._power())
        yield from apart(cells, self.sides)


@gated
def compare(frame: pd.DataFrame, options: CompareOptions) -> CompareResult:
    """The cells of A and B with interval, test and verdict, and a verdict for each family.

    ConfigError for a side without runs or a metric without direction, SchemaError for heterogeneous runs of a side.
    """
    from analysis.methods.compare import compare as analyse
    from analysis.methods.conclusions import predicted_comparison

    sides = choose_sides(frame, [options.a], [options.b], ("A", "B"), options.pool)
    on = join_on(options.on, sides)
    predicted: tuple[Paragraph, ...] = ()
    how: dict[str, Any] = {"on": on, "rate": options.rate, "margin": options.margin, "unit": options.unit}
    if options.predicted:
        completed = [completed_of(side, options.metric, options) for side in (sides.a, sides.b)]
        comparison, predicted = predicted_comparison(*completed, **how), told_of(completed)
    else:
        comparison = analyse(sides.a, sides.b, options.metric, **how)
    return CompareResult(
        comparison=comparison,
        sides=sides,
        unit=options.unit,
        power=options.power,
        sources=sides.sources,
        pooled=sides.pooled,
        predicted=predicted,
    )


def _sentence(row: dict[Any, Any], word: str, margin: float, names: tuple[str, str]) -> str:
    """The verdict of one family, with what it rests on."""
    from analysis.methods.compare import REPLICATES, Verdict
    from analysis.methods.speedup import MINIMUM_POINTS

    count = row["points"]
    points = f"{count} point{'s'[: count != 1]}"
    if not count:
        return f"{row['family']}: not enough data, no point was measured on both sides."
    mean, low, high = (row[name] for name in ("geometric_mean", "geometric_mean_low", "geometric_mean_high"))
    interval = f" ({low:.3g} to {high:.3g})" if low == low else ""
    spread = f"single points {row['minimum']:.3g} to {row['maximum']:.3g}" if count > 1 else "no more than that"
    numbers = f"geometric mean {mean:.3g}{interval} over {points}, {spread}"
    if row["verdict"] == Verdict.NOT_ENOUGH:
        return (
            f"{row['family']}: not enough data: {numbers}. A verdict needs {MINIMUM_POINTS} points, or "
            f"{REPLICATES} replicates of each on both sides."
        )
    if row["verdict"] == Verdict.SAME:
        return f"{row['family']}: the same within {margin:.0%}: {numbers}."
    if row["verdict"] == Verdict.WITHHELD:
        return f"{row['family']}: no verdict: {numbers}; {names[0]} is ahead in {row['wins']}."
    if row["verdict"] == Verdict.NOT_SHOWN:
        could = row["detectable"] if row["basis"] == "points" else row["cell_detectable"]
        found = f"{row['family']}: no difference shown: {numbers}; {names[0]} is ahead in {row['wins']}"
        return f"{found}; {smallest(could)}{_of_one(row)}."
    won = row["verdict"] == Verdict.A_BETTER
    side, ahead = (names[0], row["wins"]) if won else (names[1], count - row["wins"])
    if not won:
        # Said from the winner's side: how many times faster B is.
        bounds = f" ({1 / high:.3g} to {1 / low:.3g})" if low == low else ""
        numbers = f"geometric mean {1 / mean:.3g}{bounds} of {names[1]} over {names[0]}, over {points}"
        numbers += f", single points {1 / row['maximum']:.3g} to {1 / row['minimum']:.3g}" if count > 1 else ""
    share = f"; {side} is ahead in {ahead} of them" if count > 1 else ""
    basis = ", by the tests of its points" if row["basis"] == "tests" else ""
    return f"{row['family']}: {side} {word}{basis}: {numbers}{share}."


def _of_one(row: dict[Any, Any]) -> str:
    """Whether a smallest difference is one of the mean or of a single point."""
    return " of their mean" if row["basis"] == "points" else " in one point"


def _tests(comparison: Comparison, word: str, names: tuple[str, str]) -> str:
    """What was tested, and what the tests found."""
    from analysis.methods.compare import REPLICATES, Verdict

    cells = comparison.cells
    tested = int(cells["tested"].sum())
    if not tested and not cells["comparable"].any():
        return "No cell is tested, since the sessions of the sides carry no verdict."
    if not tested:
        return f"No cell is tested: that takes {REPLICATES} replicates of a point on both sides (replicate=0,1,2)."
    lacking = len(cells) - tested
    why = f" {lacking} of {len(cells)} cells are not tested: a test takes {REPLICATES} replicates on both sides."
    a, b, same, open_ = (
        int((cells["verdict"] == verdict).sum())
        for verdict in (Verdict.A_BETTER, Verdict.B_BETTER, Verdict.SAME, Verdict.NOT_SHOWN)
    )
    alike = f" {same} are the same within {comparison.margin:.0%}." if same else ""
    return (
        f"Of {tested} cells tested (Welch's t on logarithms) {names[0]} is {word} in {a}, {names[1]} in {b}; at most "
        f"{comparison.rate:.0%} of these are expected to be false (Benjamini-Hochberg).{alike}"
        f"{_undecided(comparison, open_)}{why if lacking else ''}"
    )


def _undecided(comparison: Comparison, count: int) -> str:
    """What the tests of the cells without a difference could have found."""
    rows = comparison.families.dropna(subset="spread")
    if not count or rows.empty:
        return ""
    row = rows.sort_values("points").iloc[-1]
    needed = row["replicates_needed"]
    takes = f"{needed:.0f} replicates" if needed == needed else "over a thousand replicates"
    return (
        f" In {count} none is shown: {smallest(row['cell_detectable'])} in one of them, and {comparison.margin:.0%} "
        f"takes {takes} a side."
    )


def _intervals(cells: pd.DataFrame, families: pd.DataFrame) -> str:
    """How exactly single ratios are known, and what the intervals of means are over."""
    samples = dict.fromkeys(families.loc[families["points"] > 0, "sample"])
    parts = [f"Intervals are 95%; those of means are over {'; '.join(samples)} as a sample of such."]
    sources = (
        ("replicates", "between replicates"),
        ("processes", "between processes of one run"),
        ("within process", "within one process only"),
        ("prediction", "of what was predicted on a side"),
    )
    for source, words in sources:
        rows = cells[cells["interval_source"] == source]
        if len(rows):
            reach = ((rows["speedup_high"] / rows["speedup_low"]) ** 0.5 - 1).median()
            parts.append(
                f"{len(rows)} single ratios have an interval from the spread {words}, in the median ±{reach:.1%}."
            )
    without = int((cells["interval_source"] == "none").sum())
    if without:
        parts.append(f"{without} single ratios have no interval: neither replicates nor one of their own.")
    return " ".join(parts)
