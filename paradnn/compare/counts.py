"""Compare two commands by counts: instructions, cache misses or heap use."""

import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paradnn.compare.counters import QUANTITIES, Count, Counter
from paradnn.compare.flame_graph import FunctionChange, changed_functions, draw_flame_graph
from paradnn.compare.processes import Command, CommandProtocol, prepare_run
from paradnn.compare.profiles import profile_command
from paradnn.core.words import counted
from paradnn.platform.process_guard import ProcessGuard
from paradnn.statistics.estimate import Estimate
from paradnn.statistics.paired_rounds import SpeedEstimate
from paradnn.statistics.welch import welch_difference
from paradnn.store.files import whole_file

#: Maximum number of runs of each side.
RUNS = 5
#: Number of runs of each side that suffices if the counts are repeatable.
_RUNS_IF_REPEATABLE = 3
#: The counts of a side are repeatable if their relative difference is at most this value.
_REPEATABLE_WITHIN = 1e-4
#: Smallest relative difference of counts that is attributed to the code. Paths of different length,
#: the size of the environment and the dates of files cause smaller differences.
RESOLUTION = 0.001


@dataclass
class CountComparison:
    """Counts of one quantity in runs of two sides.

    Side 0 is the head, the commit to check. Side 1 is the base, the commit to compare it with.

    Attributes:
        quantity: The counted quantity: `instructions`, `cache-misses` or `memory`.
        program: The counting program: perf, cachegrind, callgrind or dhat.
        labels: Names of head and base.
        counts: Successful counts of each side.
        problem: Why a side could not be counted; None if both sides were counted.
        failed_side: The side (0 or 1) that failed; None if no side failed.
    """

    quantity: str
    program: str
    labels: tuple[str, str]
    counts: tuple[list[Count], list[Count]] = field(default_factory=lambda: ([], []))
    problem: str | None = None
    failed_side: int | None = None

    def values(self, side: int) -> list[float]:
        """Return the count of each run of the head (`side` 0) or of the base (`side` 1)."""
        return [count.value for count in self.counts[side]]

    @property
    def increase(self) -> Estimate:
        """The relative increase of the count from the base to the head (0.01: 1% more).

        The 95% interval is computed by Welch's method on logarithms. Its half width is at least
        `RESOLUTION`.
        """
        logs = [[math.log(value) for value in self.values(side)] for side in (0, 1)]
        found = welch_difference(*logs)
        half = max(found.high - found.value, math.log1p(RESOLUTION))
        ends = (found.value, found.value - half, found.value + half)
        return Estimate(*map(math.expm1, ends))

    @property
    def is_repeatable(self) -> bool:
        """Whether the counts of each side differ by at most `_REPEATABLE_WITHIN`, as a share."""
        return all(
            max(values) <= min(values) * (1 + _REPEATABLE_WITHIN)
            for values in (self.values(0), self.values(1))
        )

    @property
    def differs(self) -> bool:
        """Whether the 95% interval of the increase from base to head excludes 0."""
        increase = self.increase
        return increase.low > 0 or increase.high < 0

    def basis(self) -> str:
        """Return a text with the increase, its 95% interval, the number of runs and the program."""
        increase = self.increase
        percents = [f"{100 * value:+.3g}%" for value in increase]
        return (
            f"{percents[0]}, 95% CI {percents[1]} to {percents[2]}, "
            f"{counted(len(self.counts[0]), 'run')} each, by {self.program}"
        )

    def sentence(self) -> str:
        """Return a sentence with the difference of the counts, or with the reason of a failure."""
        first, second = self.labels
        if self.problem:
            return f"{self.quantity}: not counted: {self.problem}"
        increase = self.increase
        base = statistics.fmean(self.values(1))
        basis = f"{counted(len(self.counts[0]), 'run')} each, by {self.program}"
        amount = f"{base:,.0f} {QUANTITIES[self.quantity]} at {second}"
        if not self.differs:
            resolution = max(abs(increase.low), abs(increase.high))
            return (
                f"{self.quantity}: {first} and {second} are equal within "
                f"{100 * resolution:.2g}% ({amount}; {basis})"
            )
        direction = "more" if increase.value > 0 else "less"
        ends = sorted(abs(end) for end in (increase.low, increase.high))
        return (
            f"{self.quantity}: {first} needs {_percent(abs(increase.value))} {direction} than "
            f"{second} "
            f"(95% CI {_percent(ends[0])} to {_percent(ends[1])}; {amount}; {basis})"
        )

    def document(self) -> dict[str, Any]:
        """Return the entry of this quantity in the JSON document of `paradnn gate --json`."""
        result: dict[str, Any] = {
            "program": self.program,
            "head": self.values(0),
            "base": self.values(1),
            "problem": self.problem,
        }
        if not self.problem:
            value, low, high = self.increase
            result |= {"increase": value, "low": low, "high": high}
        if self.quantity == "memory":
            result["allocations"] = {
                name: [count.allocations for count in self.counts[side]]
                for side, name in enumerate(("head", "base"))
            }
        return result


@dataclass
class CountReport:
    """Comparisons of two commits by counts, and the functions whose work changed most.

    The counted quantities are instructions, cache misses and heap use. The head is the commit to
    check, and the base is the commit to compare it with.

    Attributes:
        comparisons: One comparison per quantity.
        functions: The functions whose work, without their callees, changed most.
        unit: Unit of the work of functions: "instructions" or "lines of Python".
        notes: Further sentences for the report.
    """

    comparisons: list[CountComparison] = field(default_factory=list)
    functions: list[FunctionChange] = field(default_factory=list)
    unit: str = ""
    notes: list[str] = field(default_factory=list)

    def sentences(self, speed: SpeedEstimate | None) -> list[str]:
        """Return the results as sentences, with a remark if instructions and times disagree.

        Args:
            speed: Estimated ratio of the head's speed to the base's speed; None if it was not
                measured.
        """
        lines = [each.sentence() for each in self.comparisons]
        instructions = next(
            (each for each in self.comparisons if each.quantity == "instructions"), None
        )
        if speed and instructions and not instructions.problem:
            is_time_equal = speed.low <= 1 <= speed.high
            if instructions.differs and is_time_equal:
                lines.append(
                    "The number of instructions changed, but the times show no difference."
                )
            elif not instructions.differs and not is_time_equal:
                lines.append(
                    "The times differ, but the numbers of instructions do not: look at caches, "
                    "waiting, and work that is not counted (GPU, kernel)."
                )
        if self.functions:
            changes = ", ".join(
                f"{function.name} {function.change:+,d}" for function in self.functions
            )
            lines.append(f"Functions that changed most, in {self.unit}: {changes}.")
        return [*lines, *self.notes]

    def document(self) -> dict[str, Any]:
        """Return the value of the key `counts` in the JSON document of `paradnn gate --json`.

        Returns:
            Quantity -> its counts and their increase. The entry of `instructions` also lists the
            functions that changed most.
        """
        result = {each.quantity: each.document() for each in self.comparisons}
        if self.functions and "instructions" in result:
            functions = [function._asdict() for function in self.functions]
            result["instructions"] |= {"unit_of_functions": self.unit, "functions": functions}
        return result


def count_sides(
    sides: Sequence[Command],
    quantities: Sequence[str],
    protocol: CommandProtocol,
    flame_graph: Path | None = None,
) -> CountReport:
    """Count the work of two commands, and find the functions whose work changed.

    Args:
        sides: The head, which is the command to check, and the base, with which it is compared.
        quantities: Any of `instructions`, `cache-misses` and `memory`.
        protocol: Timeout of a run, and exit codes that count as success.
        flame_graph: SVG file for a flame graph of the change from base to head; None to draw none.

    Raises:
        ConfigError: If no program on this machine can count a quantity.
    """
    report = CountReport([compare_counts(sides, name, protocol) for name in quantities])
    instructions = [each for each in report.comparisons if each.quantity == "instructions"]
    is_counted = all(each.problem is None for each in instructions)
    is_changed = any(is_counted and each.differs for each in instructions)
    if not flame_graph and not is_changed:
        return report
    head = None
    base = None
    if is_counted and shutil.which("valgrind"):
        with ProcessGuard() as guard:
            head, base = (profile_command(side, protocol, guard) for side in sides)
    if head is None or base is None or head.unit != base.unit:
        if flame_graph:
            report.notes.append(
                f"{flame_graph} was not written: valgrind is missing, or a side failed under the "
                "profiler."
            )
        return report
    report.unit = head.unit
    report.functions = changed_functions(head, base)
    if flame_graph:
        drawing = draw_flame_graph(head, base, [side.label for side in sides])
        with whole_file(flame_graph, "--flame-graph") as path:
            path.write_text(drawing, encoding="utf-8")
    return report


def compare_counts(
    sides: Sequence[Command], quantity: str, protocol: CommandProtocol
) -> CountComparison:
    """Count a quantity, such as instructions, in alternating runs of two commands.

    Args:
        sides: The head, which is the command to check, and the base, with which it is compared.
        quantity: `instructions`, `cache-misses` or `memory`.
        protocol: Timeout of a run, and exit codes that count as success.

    Raises:
        ConfigError: If no program on this machine can count the quantity.
    """
    counter = Counter(quantity)
    comparison = _count_runs(sides, counter, protocol)
    if any(count.counts_twice for counts in comparison.counts for count in counts):
        comparison = _count_runs(sides, Counter(quantity, program="callgrind"), protocol)
    return comparison


def _count_runs(
    sides: Sequence[Command], counter: Counter, protocol: CommandProtocol
) -> CountComparison:
    """Count alternating runs of head and base.

    The runs end after `RUNS` runs of each side. They end earlier if the counts are repeatable, if a
    run fails, or if a count includes work twice.

    Args:
        sides: The head and the base.
        counter: Counts one quantity with one program.
        protocol: Timeout of a run, exit codes that count as success, and the --prepare command.
    """
    quantity = counter.quantity
    comparison = CountComparison(quantity, counter.program, (sides[0].label, sides[1].label))
    with ProcessGuard() as guard:
        for side in (1, 0):
            if prepare_run(sides[side], protocol, guard) is None:
                counter.warm_up(sides[side], protocol, guard)
        for run in range(RUNS):
            # The base runs first, because nothing can be compared with a base that fails.
            for side in (1, 0):
                reason = prepare_run(sides[side], protocol, guard)
                if reason:
                    count = Count(failure=reason)
                else:
                    count = counter.count(sides[side], protocol, guard)
                if count.failure is None and count.value <= 0:
                    count = Count(failure=f"the count of {quantity} is 0")
                if count.failure:
                    comparison.failed_side = side
                    comparison.problem = f"{sides[side].label} failed: {count.failure}"
                    return comparison
                comparison.counts[side].append(count)
                if count.counts_twice:
                    return comparison
            if run + 1 >= _RUNS_IF_REPEATABLE and comparison.is_repeatable:
                break
    return comparison


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
