"""What two sides by turns came to: in words with the names of the sides, as tables and as JSON."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.compare.verdict import FEWEST, SpeedEstimate, Verdict, estimate
from paradnn.core.words import counted, in_seconds

if TYPE_CHECKING:
    from paradnn.compare.commands import Turns
    from paradnn.compare.comparison import Comparison

#: More rounds than this are no advice: the machine is to be quietened instead.
_MANY = 1000


@dataclass
class Paired:
    """Two sides by turns, as far as they are known; as a text which is faster, by how much and how sure that is.

    logs: logarithms of the first side's speed over the second's, one for each round in which both were measured.
    margin: a difference of less than this share does not matter. problem: why there can be no verdict.
    """

    labels: tuple[str, str]
    margin: float
    logs: list[float] = field(default_factory=list)
    problem: str | None = None
    seconds: float = 0.0

    @property
    def estimate(self) -> SpeedEstimate | None:
        """The ratio of speeds with its interval; None after fewer than `FEWEST` rounds."""
        return estimate(self.logs) if len(self.logs) >= FEWEST else None

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return len(self.logs)

    @property
    def verdict(self) -> Verdict:
        """What is said of the first side; undecided where there can be no verdict, too."""
        found = self.estimate
        return found.verdict(self.margin) if found and not self.problem else Verdict.NOT_SETTLED

    ratio = property(lambda self: self.estimate and self.estimate.ratio)
    low = property(lambda self: self.estimate and self.estimate.low)
    high = property(lambda self: self.estimate and self.estimate.high)

    def answer(self) -> dict[str, Any]:
        """What --json begins with: the first side's speed over the second's, its 95% interval, a verdict."""
        names = ("ratio", "low", "high", "verdict", "rounds", "seconds", "problem")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        if self.problem:
            return f"no verdict: {self.problem}"
        if found := self.estimate:
            return sentence(found, self.labels, self.margin)
        return f"undecided: {counted(self.rounds, 'round')}, and fewer than {FEWEST} carry no interval"


def sentence(found: SpeedEstimate, labels: tuple[str, str], margin: float) -> str:
    """An estimate in words."""
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


def describe(comparison: Comparison) -> None:
    """Sentences and a table on standard output."""
    _print(*comparison.sentences())
    measured = [result for result in comparison.results if result.rounds]
    if not measured:
        return
    speeds = [f"{label}, examples/s" for label in comparison.labels]
    rows = []
    for result in measured:
        found = result.estimate
        numbers = (_number(found.ratio, found), _interval(found)) if found else ("", "")
        rates = (f"{statistics.median(side):,.1f}" for side in zip(*result.speeds, strict=True))
        verdict = "no verdict" if result.problem else result.verdict
        rows.append((result.name, *rates, *numbers, str(result.rounds), verdict))
    columns = [Column(heading, justify="right") for heading in speeds]
    columns += [Column(heading, justify="right", no_wrap=True) for heading in ("ratio", "95% interval", "rounds")]
    console = standard_output()
    console.print()
    console.print(fitting_table(console, [Column("point"), *columns, Column("first is")], rows, ("rounds", *speeds)))


def describe_turns(turns: Turns, null: bool = False) -> None:
    """The verdict on commands, a table of both sides, and what could have been seen."""
    _print(str(turns), "")
    is_time = turns.metric.pattern is None
    values = [turns.values(side) for side in (0, 1)]
    cpu = [[run.cpu_seconds for visit in visits for run in visit if not run.failure] for visits in turns.visits]
    show = in_seconds if is_time else "{:,.6g}".format
    rows = [
        [
            f"{'time' if is_time else 'metric'}, median",
            *(show(statistics.median(one)) if one else "" for one in values),
        ],
        ["smallest .. largest", *(f"{show(min(one))} .. {show(max(one))}" if one else "" for one in values)],
        ["processor time, median", *(in_seconds(statistics.median(one)) if one else "" for one in cpu)],
        ["runs", *(f"{len(one):,}" for one in cpu)],
    ]
    console = standard_output()
    columns = [Column(""), *(Column(label, justify="right") for label in turns.labels)]
    console.print(fitting_table(console, columns, rows, ()))
    _print(*_closing(turns, null))


def _closing(turns: Turns, null: bool) -> list[str]:
    lines = []
    for side, label in enumerate(turns.labels):
        if (failures := turns.failures(side)) and not turns.problem:
            rounds = f"{len(failures)} of {len(turns.visits[side])} rounds ({failures[-1]})"
            lines.append(f"{label} failed in {rounds}; the verdict is about rounds in which both succeeded.")
    found, took = turns.estimate, f"{counted(turns.rounds, 'round')} by turns in {in_seconds(turns.seconds)}"
    if found is None:
        return [*lines, f"{took}."]
    lines.append(f"{took}; a side {_percent(found.visible)} faster would be found in four of five such comparisons.")
    if null:

        def seen(minutes: int) -> str:  # the interval narrows as the root of the rounds, which the time buys
            rounds = max(FEWEST, found.rounds * 60 * minutes / turns.seconds)
            share = math.expm1(math.log1p(found.visible) * math.sqrt(found.rounds / rounds))
            return f"{_percent(share)} in {minutes} min"

        shares = ", ".join(map(seen, (1, 5, 20)))
        lines.append(f"What this machine can tell apart, in four of five comparisons of such a command: {shares}.")
        lines.append("What hurts most is named by: paradnn check")
    return lines


def _print(*lines: str) -> None:
    for line in lines:
        standard_output().print(line, soft_wrap=True, markup=False, highlight=False)


def _interval(found: SpeedEstimate) -> str:
    return f"{_number(found.low, found)} .. {_number(found.high, found)}"


def _number(value: float, found: SpeedEstimate) -> str:
    """A ratio with as many digits as its interval bears, two at least; an end beside 1 is not rounded onto it."""
    width = found.ratio * found.half
    digits = max(0, -math.floor(math.log10(width))) if width else 4
    while digits < 6 and any(end != 1 and round(end, digits) == 1 for end in (found.low, found.high)):
        digits += 1
    return f"{value:.{min(max(digits, 1 - math.floor(math.log10(value))), 6)}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
