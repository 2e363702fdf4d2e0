"""The result of an interleaved comparison of two sides, and its formatting as a sentence.

A side is one of the two compared settings, commands or functions.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paradnn.core.words import counted
from paradnn.statistics.paired_rounds import MIN_ROUNDS, Rule, SpeedEstimate, estimate
from paradnn.statistics.verdict import Verdict

#: Largest number of rounds that a sentence recommends.
_MAX_ADVISED_ROUNDS = 1000
#: Maximum number of decimal places of a ratio.
_MAX_DIGITS = 6
#: Decimal places of a ratio whose interval has a width of 0.
_EXACT_DIGITS = 4


@dataclass
class PairedResult:
    """Measurements of two compared settings, commands or functions, with estimate and verdict.

    The two are called sides. A round measures both sides once. `str(result)` is one sentence.

    Attributes:
        labels: Names of the first and the second side.
        rule: Stopping rule of the comparison. It includes the largest difference that does not
            matter.
        name: Name of the compared configuration; empty if there is only one.
        unit: Unit of `measured`: `seconds`, `metric` or `examples_per_second`.
        logs: Natural logarithm of the first side's speed divided by the second's, for each round in
            which both sides were measured.
        numbers: Number of each of these rounds, counted over all rounds.
        measured: Measurements of both sides in each of these rounds, in `unit`.
        problem: Why the comparison is undecided regardless of its rounds, such as a side that
            fails; None without a problem.
        seconds: Duration of the comparison.
        last: Whether the comparison ended because time or rounds were used up.
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
        """Add a round in which both sides were measured.

        Args:
            number: Number of the round, counted over all rounds.
            log_ratio: Natural logarithm of the first side's speed divided by the second's.
            measured: Measurements of the first and the second side, in `unit`.
        """
        self.numbers.append(number)
        self.logs.append(log_ratio)
        self.measured.append(measured)

    @property
    def estimate(self) -> SpeedEstimate | None:
        """The ratio of speeds with its 95% interval; None for fewer than `MIN_ROUNDS` rounds."""
        if len(self.logs) >= MIN_ROUNDS:
            return estimate(self.logs, self.rule.misses, last=self.last)
        return None

    @property
    def rounds(self) -> int:
        """The number of rounds in which both sides were measured."""
        return len(self.logs)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the first side; undecided if there is a problem or no estimate."""
        found = self.estimate
        if found is None or self.problem:
            return Verdict.UNDECIDED
        return found.verdict(self.rule.margin)

    @property
    def ratio(self) -> float | None:
        """The first side's speed over the second's; None without an estimate."""
        found = self.estimate
        return found.ratio if found else None

    @property
    def low(self) -> float | None:
        """The lower end of the 95% interval of the ratio; None without an estimate."""
        found = self.estimate
        return found.low if found else None

    @property
    def high(self) -> float | None:
        """The upper end of the 95% interval of the ratio; None without an estimate."""
        found = self.estimate
        return found.high if found else None

    def values(self, side: int) -> list[float]:
        """Return the measurements of the first side (`side` 0) or of the second side (1).

        Their unit is the attribute `unit`.
        """
        return [pair[side] for pair in self.measured]

    def cpu_seconds(self, side: int) -> list[float]:
        """Return the processor times of the runs of a side, in seconds; empty if unknown.

        Args:
            side: 0 for the first side, 1 for the second.
        """
        return []

    def answer(self) -> dict[str, Any]:
        """Return the first part of the JSON document: ratio, 95% interval, verdict, and more."""
        names = ("ratio", "low", "high", "verdict", "rounds", "seconds", "problem")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        if self.problem:
            return f"undecided: {self.problem}{self._successful_rounds()}"
        found = self.estimate
        if found:
            return sentence(found, self.labels, self.rule.margin)
        return self._too_few_rounds()

    def _successful_rounds(self) -> str:
        """Return the result of the rounds in which both sides succeeded.

        It is a second sentence, to append to a sentence about failures.

        Returns:
            The sentence with a leading period; empty if there was no such round.
        """
        rounds = counted(self.rounds, "round")
        found = self.estimate
        if found:
            statement = sentence(found, self.labels, self.rule.margin)
            return f". In the {rounds} in which both succeeded: {statement}"
        if self.logs:
            first, second = self.labels
            ratio = math.exp(statistics.median(self.logs))
            return (
                f". In the only {rounds} in which both succeeded, {first} was about {ratio:.2g} "
                f"times as fast as {second}"
            )
        return ""

    def _too_few_rounds(self) -> str:
        first, second = self.labels
        if self.logs:
            ratio = math.exp(statistics.median(self.logs))
            measured = f"{first} is about {ratio:.2g} times as fast as {second}, but "
        else:
            measured = ""
        if self.last:
            # The time of two additional rounds covers the warm-up.
            minutes = math.ceil((MIN_ROUNDS + 2) * self.seconds / 60 / max(self.rounds, 1))
            remedy = f"; try --minutes {minutes}"
        else:
            remedy = ""
        return (
            f"undecided: {measured}an interval needs {MIN_ROUNDS} rounds, "
            f"not {counted(self.rounds, 'round')}{remedy}"
        )


def round_table(results: Sequence[PairedResult]) -> dict[str, Any]:
    """Return a table of all rounds, with the measurements of both sides and their ratio.

    Args:
        results: The result of each compared configuration; at least one.

    Returns:
        The table as `{"columns": names, "data": rows}`, with one row per configuration and round.
    """
    first, second = results[0].labels
    unit = results[0].unit
    columns = ["point", "round", f"{first} {unit}", f"{second} {unit}", "ratio"]
    rows = [
        [result.name, number, *measured, math.exp(log_ratio)]
        for result in results
        for number, measured, log_ratio in zip(
            result.numbers, result.measured, result.logs, strict=True
        )
    ]
    return {"columns": columns, "data": rows}


def sentence(found: SpeedEstimate, labels: tuple[str, str], margin: float) -> str:
    """Format an estimate as a sentence, which names the faster side first.

    Args:
        found: Estimated ratio of the first side's speed to the second side's.
        labels: Names of the first and the second side.
        margin: Largest difference that does not matter, as a share (0.02: 2%).
    """
    first, second = labels
    verdict = found.verdict(margin)
    if verdict is Verdict.SLOWER:
        found = found.inverse()
        first, second = second, first
    ratio = _format_ratio(found.ratio, found)
    interval = f"95% interval {format_interval(found)}, {counted(found.rounds, 'round')}"
    if verdict is Verdict.EQUAL:
        return (
            f"no difference: {first} and {second} are equally fast within {100 * margin:.3g}% "
            f"(ratio {ratio}, {interval})"
        )
    statement = f"{first} is {ratio} times as fast as {second} ({interval})"
    if verdict is not Verdict.UNDECIDED:
        return statement
    needed = found.rounds_needed(margin)
    if needed <= _MAX_ADVISED_ROUNDS:
        advice = f"about {needed} rounds would decide"
    else:
        advice = f"a decision would take over {_MAX_ADVISED_ROUNDS:,} rounds"
    return f"undecided: {statement}; {advice}"


def format_interval(found: SpeedEstimate) -> str:
    """Return the 95% interval of an estimated ratio of speeds as text, such as `1.08 .. 1.12`."""
    return f"{_format_ratio(found.low, found)} .. {_format_ratio(found.high, found)}"


def _format_ratio(value: float, found: SpeedEstimate) -> str:
    """Format a ratio with the digits that its interval justifies.

    There are at least two significant digits. Digits are added until no end of the interval is
    rounded to 1, unless the end is exactly 1.

    Args:
        value: The ratio, or an end of its interval.
        found: The estimate that determines the number of digits.
    """
    half_width = found.ratio * found.half
    if half_width:
        digits = max(0, -math.floor(math.log10(half_width)))
    else:
        digits = _EXACT_DIGITS
    ends = [end for end in (found.low, found.high) if end != 1]
    while digits < _MAX_DIGITS and any(round(end, digits) == 1 for end in ends):
        digits += 1
    significant = 1 - math.floor(math.log10(value))
    return f"{value:.{min(max(digits, significant), _MAX_DIGITS)}f}"
