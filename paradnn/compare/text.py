"""What two sides by turns came to: in words with the names of the sides, as tables, as JSON and
CSV.
"""

import csv
import math
import statistics
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Column

from paradnn.cli.console import fitting_table, standard_output
from paradnn.core.words import counted, in_seconds, rounded
from paradnn.platform.findings import host_findings
from paradnn.statistics.paired_rounds import (
    FEWEST,
    Rule,
    SpeedEstimate,
    SpeedVerdict,
    estimate,
    false_alarms,
)
from paradnn.store.files import whole_file, write_json

#: More rounds than this are no advice: the machine is to be quietened instead.
_MANY = 1000
#: How often the rounds of one side against itself are played again.
_AGAIN = 400


@dataclass
class Paired:
    """Two sides by turns, as far as they are known; as a text which is faster, by how much and how
    sure that is.

    logs: logarithms of the first side's speed over the second's, one for each round in which both
    were measured; `numbers` are those of the rounds, `measured` what both sides took or did in
    them, in `unit`. last: whether the time or the rounds are over. problem: why there can be no
    verdict.
    """

    labels: tuple[str, str]
    rule: Rule
    name: str = ""
    unit: str = "examples_per_second"
    logs: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    measured: list[tuple[float, float]] = field(default_factory=list)
    problem: str | None = None
    seconds: float = 0.0
    last: bool = False

    def add(self, number: int, log_ratio: float, measured: tuple[float, float]) -> None:
        """What a round measured."""
        self.numbers.append(number)
        self.logs.append(log_ratio)
        self.measured.append(measured)

    @property
    def estimate(self) -> SpeedEstimate | None:
        """The ratio of speeds with its interval; None after fewer than `FEWEST` rounds."""
        if len(self.logs) >= FEWEST:
            return estimate(self.logs, self.rule.misses, self.last)
        return None

    @property
    def rounds(self) -> int:
        """How many rounds count."""
        return len(self.logs)

    @property
    def verdict(self) -> SpeedVerdict:
        """What is said of the first side; undecided where there can be no verdict, too."""
        found = self.estimate
        if found and not self.problem:
            return found.verdict(self.rule.margin)
        return SpeedVerdict.NOT_SETTLED

    ratio = property(lambda self: self.estimate and self.estimate.ratio)
    low = property(lambda self: self.estimate and self.estimate.low)
    high = property(lambda self: self.estimate and self.estimate.high)

    def values(self, side: int) -> list[float]:
        """What a side measured, in `unit`."""
        return [pair[side] for pair in self.measured]

    def cpu_seconds(self, side: int) -> list[float]:
        """Processor seconds of a side's runs, where they are known."""
        return []

    def answer(self) -> dict[str, Any]:
        """What --json begins with: the first side's speed over the second's, its 95% interval, a
        verdict.
        """
        names = ("ratio", "low", "high", "verdict", "rounds", "seconds", "problem")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        if self.problem:
            return f"no verdict: {self.problem}"
        found = self.estimate
        if found:
            return sentence(found, self.labels, self.rule.margin)
        first, second = self.labels
        if self.logs:
            ratio = math.exp(statistics.median(self.logs))
            measured = f"{first} is about {ratio:.2g} times as fast as {second}, but "
        else:
            measured = ""
        if self.last:
            # Two rounds' time for the warm-up.
            minutes = math.ceil((FEWEST + 2) * self.seconds / 60 / max(self.rounds, 1))
            remedy = f"; try --minutes {minutes}"
        else:
            remedy = ""
        return (
            f"undecided: {measured}{counted(self.rounds, 'round')} cannot carry an interval, "
            f"which needs {FEWEST}{remedy}"
        )


def round_table(results: Sequence[Paired]) -> dict[str, Any]:
    """A row a point and round: what both sides measured, and the ratio of their speeds."""
    columns = [
        "point",
        "round",
        *(f"{label} {results[0].unit}" for label in results[0].labels),
        "ratio",
    ]
    rows = [
        [result.name, number, *measured, math.exp(log)]
        for result in results
        for number, measured, log in zip(result.numbers, result.measured, result.logs, strict=True)
    ]
    return {"columns": columns, "data": rows}


def write_files(given: Namespace, document: Mapping[str, Any], results: Sequence[Paired]) -> None:
    """What --json and --csv ask for, the round table the latter."""
    if given.json:
        write_json(given.json, document)
    if given.csv:
        table = round_table(results)
        with whole_file(given.csv, "--csv") as making, making.open("w", newline="") as file:
            csv.writer(file).writerows([table["columns"], *table["data"]])


def sentence(found: SpeedEstimate, labels: tuple[str, str], margin: float) -> str:
    """An estimate in words."""
    (first, second), verdict = labels, found.verdict(margin)
    if verdict is SpeedVerdict.SLOWER:
        found, first, second = found.inverse(), second, first
    ratio = _number(found.ratio, found)
    interval = _interval(found)
    rounds_of = counted(found.rounds, "round")
    if verdict is SpeedVerdict.EQUIVALENT:
        same = f"no difference: {first} and {second} are equally fast within {100 * margin:.3g}%"
        return f"{same} (ratio {ratio}, 95% interval {interval}, {rounds_of})"
    if verdict is not SpeedVerdict.NOT_SETTLED:
        return (
            f"{first} is {ratio} times as fast as {second} (95% interval {interval}, {rounds_of})"
        )
    needed = found.rounds_needed(margin)
    if needed <= _MANY:
        wanted = f"about {needed} rounds would settle it"
    else:
        wanted = f"settling it would take over {_MANY:,} rounds"
    return (
        f"undecided: {first} is {ratio} times as fast as {second} "
        f"(95% interval {interval}, {rounds_of}); {wanted}"
    )


def describe(
    results: Sequence[Paired], sentences: Sequence[str], closing: Sequence[str], detail: int = 1
) -> None:
    """Sentences, a table of what each side measured and closing words; without `detail` (0) the
    sentences alone, with more (2) a table of the rounds as well.
    """
    _print(*sentences)
    if not detail:
        return
    rows = [row for result in results for row in _rows(result)]
    table = round_table(results)
    if detail > 1:
        rounds = [
            [name, str(number), *map("{:,.6g}".format, rest)]
            for name, number, *rest in table["data"]
        ]
        _table(table["columns"], rounds)
    unit = {"seconds": "time", "examples_per_second": "examples/s"}.get(
        results[0].unit, results[0].unit
    )
    _table(
        ("point", "side", f"{unit}, median", "smallest .. largest", "processor time", "runs"), rows
    )
    _print(*closing)


def _rows(result: Paired) -> Iterator[list[str]]:
    show = {"seconds": in_seconds, "examples_per_second": rounded}.get(
        result.unit, "{:,.6g}".format
    )
    for side, label in enumerate(result.labels):
        values = result.values(side)
        if values:
            range_ = f"{show(min(values))} .. {show(max(values))}"
            cpu = result.cpu_seconds(side)
            took = in_seconds(statistics.median(cpu)) if cpu else ""
            yield [
                result.name,
                label,
                show(statistics.median(values)),
                range_,
                took,
                f"{len(values):,}",
            ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without the columns that are empty."""
    kept = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    names = [headings[place] for place in kept]
    columns = [
        Column(name, justify="left" if name in ("point", "side") else "right") for name in names
    ]
    if rows:
        console = standard_output()
        console.print()
        console.print(
            fitting_table(console, columns, [[row[place] for place in kept] for row in rows], ())
        )


def seen(result: Paired, null: bool = False) -> list[str]:
    """What it took and what difference would have been found; of one side against itself (`null`)
    in how many minutes, how often equal sides would be called different, and what of this machine
    hurts.
    """
    found = result.estimate
    took = f"{counted(result.rounds, 'round')} by turns in {in_seconds(result.seconds)}"
    if found is None:
        return [f"{took}."]
    lines = [
        f"{took}; a side {_percent(found.visible)} faster would be found in four of five such comparisons."
    ]
    if null:

        def visible(
            minutes: int,
        ) -> str:  # the interval narrows as the root of the rounds, which the time buys
            rounds = max(FEWEST, found.rounds * 60 * minutes / result.seconds)
            share = math.expm1(math.log1p(found.visible) * math.sqrt(found.rounds / rounds))
            return f"{_percent(share)} in {minutes} min"

        shares = ", ".join(map(visible, (1, 5, 20)))
        false = false_alarms(result.logs, result.rule, _AGAIN)
        lines.append(
            f"What this machine can tell apart, in four of five comparisons of such a command: {shares}."
        )
        again = f"these rounds were played {_AGAIN} times, the sides of each exchanged at random"
        lines.append(
            f"False alarms: {_percent(false)} ({again}: so often equal sides were called different)."
        )
        harms = [f"{one.what} {one.value} ({one.why})" for one in host_findings() if one.harms]
        lines.append(
            f"What hurts most: {harms[0] if harms else 'no setting of this host'}; paradnn check says more."
        )
    return lines


def _print(*lines: str) -> None:
    for line in lines:
        standard_output().print(line, soft_wrap=True, markup=False, highlight=False)


def _interval(found: SpeedEstimate) -> str:
    return f"{_number(found.low, found)} .. {_number(found.high, found)}"


def _number(value: float, found: SpeedEstimate) -> str:
    """A ratio with as many digits as its interval bears, two at least; an end beside 1 is not
    rounded onto it.
    """
    width = found.ratio * found.half
    digits = max(0, -math.floor(math.log10(width))) if width else 4
    while digits < 6 and any(
        end != 1 and round(end, digits) == 1 for end in (found.low, found.high)
    ):
        digits += 1
    return f"{value:.{min(max(digits, 1 - math.floor(math.log10(value))), 6)}f}"


def _percent(share: float) -> str:
    if share < 0.995:
        return f"{100 * share:.2g}%"
    return f"{100 * share:.0f}%"
