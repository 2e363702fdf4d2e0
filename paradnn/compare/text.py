"""A comparison in words, with the names of its sides, as tables, as a picture, and as its parent run holds it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.compare.comparison import Comparison, Result
from paradnn.compare.verdict import FEWEST, Estimate, Verdict
from paradnn.core.words import counted
from paradnn.session.course import Conclusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VERDICTS = {
    Verdict.FASTER: "faster",
    Verdict.SLOWER: "slower",
    Verdict.EQUIVALENT: "no difference",
    Verdict.NOT_SETTLED: "not settled",
    None: "no verdict",
}

#: More rounds than this are no advice: the machine is to be quietened instead.
_MANY = 1000
#: More points than colours are not drawn.
_MOST = 9


def sentences(comparison: Comparison) -> list[str]:
    """A sentence for each point, and one for all of them together."""
    results = comparison.results()
    lines = [
        (f"{result.name}: " if len(results) > 1 else "") + _sentence(result, comparison.labels, comparison.rule.margin)
        for result in results
    ]
    if overall := comparison.overall():
        count = sum(not result.problem for result in results)
        words = _sentence(overall, comparison.labels, comparison.rule.margin)
        lines.append(f"Geometric mean of these {count} points, and of no others: {words}")
    return lines


def describe(comparison: Comparison) -> None:
    """Sentences and a table on standard output."""
    console = standard_output()
    for line in sentences(comparison):
        console.print(line, soft_wrap=True, markup=False)
    measured = [result for result in comparison.results() if result.rounds]
    if not measured:
        return
    speeds = [f"{label}, examples/s" for label in comparison.labels]
    rows = []
    for result in measured:
        found = result.estimate
        numbers = (_number(found.ratio, found), _interval(found)) if found else ("", "")
        verdict = _VERDICTS[result.verdict(comparison.rule.margin)]
        rates = (f"{speed:,.1f}" for speed in result.speeds())
        rows.append((result.name, *rates, *numbers, str(len(result.rounds)), verdict))
    columns = [Column(heading, justify="right") for heading in speeds]
    columns += [Column(heading, justify="right", no_wrap=True) for heading in ("ratio", "95% interval", "rounds")]
    console.print()
    console.print(fitting_table(console, [Column("point"), *columns, Column("first is")], rows, ("rounds", *speeds)))


def verdict_table(comparison: Comparison) -> dict[str, Any]:
    """A row a point: its verdict, the ratio of the first side's speed to the second's, its 95% interval."""
    rows = []
    for result in comparison.results():
        verdict, ends = result.verdict(comparison.rule.margin), ends_of(result.estimate).values()
        rows.append([result.name, str(verdict) if verdict else None, *ends, len(result.rounds), result.problem])
    return {"columns": ["point", "verdict", "ratio", "low", "high", "rounds", "problem"], "data": rows}


def ends_of(found: Estimate | None) -> dict[str, float | None]:
    """The ratio and the ends of its interval, by name; None without one."""
    return {name: getattr(found, name) if found else None for name in ("ratio", "low", "high")}


def round_table(comparison: Comparison) -> dict[str, Any]:
    """A row a point and round: examples/s of both sides and their ratio."""
    first, second = comparison.labels
    rows = [
        [result.name, one.number, *one.speeds, math.exp(one.log_ratio)]
        for result in comparison.results()
        for one in result.rounds
    ]
    columns = ["point", "round", f"{first} examples_per_second", f"{second} examples_per_second", "ratio"]
    return {"columns": columns, "data": rows}


def _sentence(result: Result, labels: tuple[str, str], margin: float) -> str:
    if result.problem:
        return f"no verdict: {result.problem}"
    if result.estimate is None:
        return f"not settled: {counted(len(result.rounds), 'round')}, and fewer than {FEWEST} carry no interval"
    return describe_estimate(result.estimate, labels, margin)


def describe_estimate(found: Estimate, labels: tuple[str, str], margin: float) -> str:
    """The verdict in words: what is faster, by how much, how sure that is."""
    first, second = labels
    match found.verdict(margin):
        case Verdict.FASTER:
            return _faster(found, first, second)
        case Verdict.SLOWER:
            return _faster(found.inverse(), second, first)
        case Verdict.EQUIVALENT:
            basis = f"ratio {_number(found.ratio, found)}, 95% interval {_interval(found)}"
            same = f"no difference: {first} and {second} are equally fast within {100 * margin:.3g}%"
            return f"{same} ({basis}, {counted(found.rounds, 'round')})"
    seen = f"{first} is {_number(found.low, found)} .. {_number(found.high, found)} times as fast as {second}"
    needed = found.rounds_needed(margin)
    wanted = f"some {needed} rounds would tell" if needed <= _MANY else f"over {_MANY:,} rounds would be needed"
    return f"not settled: {seen} (95% interval, {counted(found.rounds, 'round')}); {wanted}"


def _faster(found: Estimate, faster: str, slower: str) -> str:
    ratio = f"{_number(found.ratio, found)} times as fast as {slower}"
    return f"{faster} is {ratio} (95% interval {_interval(found)}, {counted(found.rounds, 'round')})"


def _interval(found: Estimate) -> str:
    return f"{_number(found.low, found)} .. {_number(found.high, found)}"


def _number(value: float, found: Estimate) -> str:
    """A ratio with as many digits as its interval bears, two at least; an end beside 1 is not rounded onto it."""
    width = found.ratio * found.half
    digits = max(0, -math.floor(math.log10(width))) if width else 4
    while digits < 6 and any(end != 1 and round(end, digits) == 1 for end in (found.low, found.high)):
        digits += 1
    return f"{value:.{min(max(digits, 1 - math.floor(math.log10(value))), 6)}f}"


class RecordedComparison(Comparison):
    """A comparison as a session follows it."""

    def conclusion(self) -> Conclusion:
        """The verdict so far; the metrics are those of the only point, or of all points together."""
        from paradnn.record.record import image

        results = self.results()
        whole = self.overall() or results[0]
        metrics = {"comparison_rounds": float(len(whole.rounds))}
        if found := whole.estimate:
            metrics |= {"speed_ratio": found.ratio, "speed_ratio_low": found.low, "speed_ratio_high": found.high}
        artifacts = {"verdicts.json": verdict_table(self), "rounds.json": round_table(self)}
        if any(result.rounds for result in results):
            artifacts["comparison.png"] = image(_figure(self))
        return Conclusion("\n".join(f"- **{line}**" for line in sentences(self)), metrics, {}, artifacts, True)


def _figure(comparison: Comparison) -> Figure:
    """Ratios over rounds, a colour and a marker for each of the first nine points; bands are the 95% intervals."""
    from paradnn.plotting import COLOURS, MARKERS, figure, finish

    drawn, axes = figure(7.0, 4.0)
    results = [result for result in comparison.results() if result.rounds][:_MOST]
    axes.axhline(1.0, color="#444444", linewidth=1.0)
    for result, colour, marker in zip(results, COLOURS, MARKERS, strict=False):
        numbers = [one.number for one in result.rounds]
        ratios = [math.exp(one.log_ratio) for one in result.rounds]
        label = result.name if len(results) > 1 else "a round"
        axes.plot(numbers, ratios, marker, color=colour, markersize=5, label=label)
        if found := result.estimate:
            ends = numbers[0] - 0.5, numbers[-1] + 0.5
            axes.fill_between(ends, found.low, found.high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(ends, [found.ratio] * 2, color=colour, linewidth=1.2)
    ratios = [math.exp(one.log_ratio) for result in results for one in result.rounds]
    if max(ratios) > 3 * min(ratios):
        axes.set_yscale("log")
    first, second = comparison.labels
    finish(axes, f"{first} over {second}", "round", "ratio of examples/s")
    if len(results) > 1:
        axes.legend(fontsize=8, frameon=False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return drawn
