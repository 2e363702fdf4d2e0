"""A comparison in words, with the names of its sides, as tables and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.compare.verdict import FEWEST, Estimate, Verdict
from paradnn.core.words import counted
from paradnn.store.files import whole_file

if TYPE_CHECKING:
    from paradnn.compare.commands import Turns
    from paradnn.compare.comparison import Comparison

#: More rounds than this are no advice: the machine is to be quietened instead.
_MANY = 1000


def sentence(found: Estimate | None, labels: tuple[str, str], margin: float, rounds: int, problem: str | None) -> str:
    """The verdict in words: what is faster, by how much and how sure that is; or why there is none."""
    if problem:
        return f"no verdict: {problem}"
    if found is None:
        return f"undecided: {counted(rounds, 'round')}, and fewer than {FEWEST} carry no interval"
    (first, second), verdict = labels, found.verdict(margin)
    if verdict is Verdict.SLOWER:
        found, first, second = found.inverse(), second, first
    ratio, interval, rounds_of = _number(found.ratio, found), _interval(found), counted(found.rounds, "round")
    if verdict is Verdict.EQUIVALENT:
        same = f"no difference: {first} and {second} are equally fast within {100 * margin:.3g}%"
        return f"{same} (ratio {ratio}, 95% interval {interval}, {rounds_of})"
    if verdict is not Verdict.NOT_SETTLED:
        return f"{first} is {ratio} times as fast as {second} (95% interval {interval}, {rounds_of})"
    needed = found.rounds_needed(margin)
    wanted = f"some {needed} rounds would tell" if needed <= _MANY else f"over {_MANY:,} rounds would be needed"
    return f"undecided: {first} is {interval} times as fast as {second} (95% interval, {rounds_of}); {wanted}"


def answer(found: Estimate | None, margin: float, rounds: int, seconds: float, problem: str | None) -> dict[str, Any]:
    """What --json begins with: the first side's speed over the second's, its 95% interval, a verdict."""
    verdict = found.verdict(margin) if found and not problem else Verdict.NOT_SETTLED
    more = {"verdict": verdict.value, "rounds": rounds, "seconds": seconds, "problem": problem}
    return {name: getattr(found, name) if found else None for name in ("ratio", "low", "high")} | more


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write --json whole or not at all; ConfigError where it cannot be written."""
    with whole_file(path, "--json") as making:
        making.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def sentences(comparison: Comparison) -> list[str]:
    """A sentence for each point, and one for all of them together."""
    results, whole = comparison.results, comparison.overall()
    named = [(f"{result.name}: " if len(results) > 1 else "", result) for result in results]
    if whole is not results[0]:
        count = sum(not result.problem for result in results)
        named.append((f"Geometric mean of these {count} points, and of no others: ", whole))
    labels, margin = comparison.labels, comparison.rule.margin
    return [
        begin + sentence(result.estimate, labels, margin, len(result.rounds), result.problem) for begin, result in named
    ]


def verdict_table(comparison: Comparison) -> dict[str, Any]:
    """A row a point: its verdict, the ratio of the first side's speed to the second's, its 95% interval."""
    columns = ["point", "verdict", "ratio", "low", "high", "rounds", "problem"]
    rows = []
    for result in comparison.results:
        known = answer(result.estimate, comparison.rule.margin, len(result.rounds), 0.0, result.problem)
        known |= {"point": result.name} | ({"verdict": None} if result.problem else {})
        rows.append([known[name] for name in columns])
    return {"columns": columns, "data": rows}


def round_table(comparison: Comparison) -> dict[str, Any]:
    """A row a point and round: examples/s of both sides and their ratio."""
    columns = ["point", "round", *(f"{label} examples_per_second" for label in comparison.labels), "ratio"]
    rows = [
        [result.name, one.number, *one.speeds, math.exp(one.log_ratio)]
        for result in comparison.results
        for one in result.rounds
    ]
    return {"columns": columns, "data": rows}


def describe(comparison: Comparison) -> None:
    """Sentences and a table on standard output."""
    _print(*sentences(comparison))
    measured = [result for result in comparison.results if result.rounds]
    if not measured:
        return
    speeds = [f"{label}, examples/s" for label in comparison.labels]
    rows = []
    for result in measured:
        found = result.estimate
        numbers = (_number(found.ratio, found), _interval(found)) if found else ("", "")
        rates = (f"{statistics.median(side):,.1f}" for side in zip(*(one.speeds for one in result.rounds), strict=True))
        verdict = result.verdict(comparison.rule.margin) or "no verdict"
        rows.append((result.name, *rates, *numbers, str(len(result.rounds)), verdict))
    columns = [Column(heading, justify="right") for heading in speeds]
    columns += [Column(heading, justify="right", no_wrap=True) for heading in ("ratio", "95% interval", "rounds")]
    console = standard_output()
    console.print()
    console.print(fitting_table(console, [Column("point"), *columns, Column("first is")], rows, ("rounds", *speeds)))


def describe_turns(turns: Turns, null: bool = False) -> None:
    """The verdict on commands, a table of both sides, and what could have been seen."""
    _print(turns.sentence(), "")
    values = [turns.values(side) for side in (0, 1)]
    show = in_seconds if turns.metric.pattern is None else "{:,.6g}".format
    cpu = [[run.cpu_seconds for visit in visits for run in visit.runs if not run.failure] for visits in turns.visits]
    rows = [
        [
            "time, median" if turns.metric.pattern is None else "metric, median",
            *(show(statistics.median(found)) if found else "" for found in values),
        ],
        ["smallest .. largest", *(f"{show(min(found))} .. {show(max(found))}" if found else "" for found in values)],
        ["processor time, median", *(in_seconds(statistics.median(one)) if one else "" for one in cpu)],
        ["runs", *(f"{len(one):,}" for one in cpu)],
    ]
    console = standard_output()
    columns = [Column(""), *(Column(side.label, justify="right") for side in turns.sides)]
    console.print(fitting_table(console, columns, rows, ()))
    _print(*_closing(turns, null))


def _closing(turns: Turns, null: bool) -> list[str]:
    lines = []
    for side, visits in zip(turns.sides, turns.visits, strict=True):
        failures = [visit.failure for visit in visits if visit.failure]
        if failures and not turns.problem:
            lines.append(
                f"{side.label} failed in {len(failures)} of {len(visits)} rounds ({failures[-1]}); the verdict is "
                "about rounds in which both succeeded."
            )
    found, took = turns.estimate, f"{counted(len(turns.rounds), 'round')} by turns in {in_seconds(turns.seconds)}"
    if found is None:
        return [*lines, f"{took}."]
    lines.append(f"{took}; a side {_percent(found.visible)} faster would be found in four of five such comparisons.")
    if null:
        seen = ", ".join(f"{_percent(share)} in {minutes} min" for minutes, share in outlook(turns).items())
        lines.append(f"What this machine can tell apart, in four of five comparisons of such a command: {seen}.")
        lines.append("What hurts most is named by: paradnn check")
    return lines


def outlook(turns: Turns) -> dict[int, float]:
    """By minutes the share by which a side must then be faster to be found in four of five comparisons.

    The interval narrows as the root of the rounds, which the time buys in proportion.
    """
    found = turns.estimate
    if found is None or not turns.seconds:
        return {}
    rounds = {minutes: max(FEWEST, found.rounds * 60 * minutes / turns.seconds) for minutes in (1, 5, 20)}
    visible = math.log1p(found.visible)
    return {minutes: math.expm1(visible * math.sqrt(found.rounds / count)) for minutes, count in rounds.items()}


def in_seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value < 0.1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def _print(*lines: str) -> None:
    for line in lines:
        standard_output().print(line, soft_wrap=True, markup=False, highlight=False)


def _interval(found: Estimate) -> str:
    return f"{_number(found.low, found)} .. {_number(found.high, found)}"


def _number(value: float, found: Estimate) -> str:
    """A ratio with as many digits as its interval bears, two at least; an end beside 1 is not rounded onto it."""
    width = found.ratio * found.half
    digits = max(0, -math.floor(math.log10(width))) if width else 4
    while digits < 6 and any(end != 1 and round(end, digits) == 1 for end in (found.low, found.high)):
        digits += 1
    return f"{value:.{min(max(digits, 1 - math.floor(math.log10(value))), 6)}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
