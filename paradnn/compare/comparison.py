"""Compare two settings of this suite: every round measures both settings at each point.

A point is one combination of hyperparameter values. A side is one of the two settings.
"""

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paradnn.compare.result import PairedResult, round_table
from paradnn.config.identity import as_params, point_request
from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.core.words import counted
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, SweepDesign
from paradnn.session.record import run_name
from paradnn.session.turns import BlockTurns, takes_turns
from paradnn.statistics.paired_rounds import Rule, orders, trimmed

#: Minimum number of pairs of blocks in a round. 20 pairs take about as long as the build and the
#: warm-up of both sides.
MIN_PAIRS = 20
#: Number of failures of a side after which its point is no longer measured. If the point has no
#: complete round yet, one failure is enough.
_MAX_FAILURES = 2

#: A compared point: the words of its name that both sides share, and the point on each side.
Pair = tuple[str, tuple[Point, Point]]


@dataclass
class ComparedPoint(PairedResult):
    """Comparison of two settings at one combination of hyperparameter values (a point).

    It can also represent the mean over all points; then, `name` is empty. The two settings are
    called sides.

    `measured` is in examples/s. For a served model, it is the inverse of the median latency, in
    1/s. A block is a number of steps that are timed together. If blocks of the sides are
    interleaved, `logs` are computed from these blocks. They are then more precise than the ratios
    of `measured`.

    Attributes:
        points: The configuration on each side; empty for the mean.
        order: Yields the order of the sides in each round, (0, 1) or (1, 0), for sides whose blocks
            are not interleaved.
        turns: Alternates blocks of the two sides in the current round; None if the sides are
            measured one after the other.
        failures: Side (0 or 1) -> number of its failures.
        needs_whole_machine: Whether the sides must be measured one after the other, because they do
            not fit into memory together.
    """

    points: tuple[Point, ...] = ()
    order: Iterator[tuple[int, int]] = field(default_factory=lambda: orders(""))
    turns: BlockTurns | None = None
    failures: Counter[int] = field(default_factory=Counter)
    needs_whole_machine: bool = False

    def add_failure(self, side: int, row: RecordedPoint) -> None:
        """Count a failed measurement; after too many failures, set `problem` to end the comparison.

        One failure is enough if no round is complete yet, else two failures of the same side.

        Args:
            side: The setting that failed: 0 for the first, 1 for the second.
            row: The recorded failure, with its outcome and its reason.
        """
        self.failures[side] += 1
        if self.rounds and self.failures[side] < _MAX_FAILURES:
            return
        reason = f": {row.reason}" if row.reason else ""
        problem = f"{self.labels[side]} is {row.outcome}{reason}"
        self.problem = f"{self.problem}; {problem}" if self.problem else problem


def pairs_of(first: Sequence[Point], second: Sequence[Point], *, null: bool) -> list[Pair]:
    """Pair the points of two settings, which are the sides of a comparison.

    A point is one configuration to measure.

    Args:
        first: The points of the first setting.
        second: The points of the second setting, in the same order.
        null: Whether a point may be compared with itself.

    Returns:
        The distinct pairs. Each consists of the words that both names share, and a tuple with the
        point of each setting.

    Raises:
        ConfigError: If the numbers of points differ, if the points of a pair are equal although
            `null` is False, or if they differ in a key that varies among the first setting's
            points.
    """
    if len(first) != len(second):
        problem = f"one side has {counted(len(first), 'point')}, and the other has {len(second)}"
        raise ConfigError("sides", "", problem, "write keys with several values after both sides")
    first_params = [as_params(point_request(point)) for point in first]
    second_params = [as_params(point_request(point)) for point in second]
    axes = _varying_keys(first_params)
    pairs: list[Pair] = []
    for index, points in enumerate(zip(first, second, strict=True)):
        if first_params[index] == second_params[index] and not null:
            raise ConfigError(
                "sides",
                run_name(points[0]),
                "is the configuration of both sides",
                "give two different sides, or add --null",
            )
        _check_axes(axes, first_params[index], second_params[index])
        # An axis may contain a value twice.
        if all(points != known for _, known in pairs):
            pairs.append((_shared_name(points), points))
    return pairs


def _varying_keys(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the sorted keys whose values differ between points.

    Args:
        params: For each point of one side, its keys and their values.
    """
    keys = {key for row in params for key in row}
    return sorted(key for key in keys if len({row.get(key) for row in params}) > 1)


def _check_axes(axes: Sequence[str], first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Raise ConfigError if the two points of a pair differ in an axis of the sweep.

    Args:
        axes: The keys that the sweep varies.
        first: Keys and values of the first side's point.
        second: Keys and values of the second side's point.
    """
    for key in axes:
        if first.get(key) != second.get(key):
            raise ConfigError(
                key,
                first.get(key),
                f"varies in the sweep, but the other side has {key}={second.get(key)}",
                f"omit {key} from both sides, or give it a single value",
            )


def _shared_name(points: tuple[Point, Point]) -> str:
    """Return the words that the names of both points share."""
    words = run_name(points[1]).split()
    return " ".join(word for word in run_name(points[0]).split() if word in words)


class Comparison(SweepDesign):
    """Sweep design that compares two settings in rounds, until every point is decided.

    A point is one combination of hyperparameter values. The two settings are called sides. A round
    measures both sides of every point.

    A point is no longer measured if a side fails twice. Before the first complete round, one
    failure is enough, because causes such as too little memory or a missing device are permanent. A
    single later failure only invalidates its round.

    Args:
        name: Name of the comparison, which seeds the random order.
        pairs: The points to compare, as returned by `pairs_of`.
        labels: Names of the first and the second side.
        rule: Decides when the comparison ends.
        minutes: Time limit; None for no limit.
        clock: Returns the time in seconds, from any origin.
    """

    resumes = False  # every round is measured

    def __init__(
        self,
        name: str,
        pairs: Sequence[Pair],
        labels: tuple[str, str],
        rule: Rule,
        minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.labels = labels
        self.rule = rule
        self.results = [
            ComparedPoint(labels, rule, shared, points=points, order=orders(f"{name} {index}"))
            for index, (shared, points) in enumerate(pairs)
        ]
        self.points = [point for result in self.results for point in result.points]
        self._name = name
        self._random = random.Random(name)
        self._clock = clock
        self._limit = math.inf if minutes is None else 60 * minutes
        self._begin: float | None = None
        self._round = 0
        self._requested: list[tuple[ComparedPoint, int]] = []

    @property
    def left(self) -> int:
        """Maximum number of remaining measurements, including those of the current round."""
        return 2 * len(self.results) * (self.rule.most - max(0, self._round - 1))

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without a limit, negative after it."""
        return self._limit - self._elapsed()

    @property
    def progress(self) -> str:
        """Number of the current round, as text.

        If only one configuration is compared, the text includes the estimated ratio of speeds and
        its 95% interval: `round 12: 1.051, 1.020 .. 1.083`.
        """
        if len(self.results) == 1:
            found = self.results[0].estimate
            if found:
                return (
                    f"round {self._round}: {found.ratio:.3f}, {found.low:.3f} .. {found.high:.3f}"
                )
        return f"round {self._round}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the measurements of the next round; an empty list if the comparison is over.

        A round measures each configuration with both settings. The configurations are in random
        order. The two measurements of a configuration are adjacent.

        Args:
            rows: The results of the previous round, in the order of its measurements; empty before
                the first round.
        """
        if self._begin is None:
            self._begin = self._clock()
        self._collect(rows)
        if self._round and self._is_over():
            return []
        self._round += 1
        active = self._active()
        self._random.shuffle(active)
        self._requested = []
        for result in active:
            result.turns = self._turns_of(result)
            sides = (0, 1) if result.turns else next(result.order)
            self._requested += [(result, side) for side in sides]
        return [self._visit(result, side) for result, side in self._requested]

    def overall(self) -> ComparedPoint:
        """Return the comparison of the two settings' geometric mean speeds over all points.

        The means exclude points at which a setting failed. The interval of the ratio is valid only
        for the remaining points, not for other points. If fewer than two points remain, the
        comparison of the first point is returned.
        """
        active = self._active()
        if len(active) < 2:
            return self.results[0]
        is_last = all(result.last for result in active)
        whole = ComparedPoint(self.labels, self.rule, last=is_last)
        by_round = [
            dict(
                zip(
                    result.numbers,
                    zip(result.logs, result.measured, strict=True),
                    strict=True,
                )
            )
            for result in active
        ]
        complete_rounds = set.intersection(*(set(rounds) for rounds in by_round))
        for number in sorted(complete_rounds):
            logs, speeds = zip(*(rounds[number] for rounds in by_round), strict=True)
            first, second = zip(*speeds, strict=True)
            means = (statistics.geometric_mean(first), statistics.geometric_mean(second))
            whole.add(number, statistics.fmean(logs), means)
        return whole

    def sentences(self) -> list[str]:
        """Return the results as sentences: one per compared point, and one about their mean.

        The last sentence, about the geometric mean, is missing if fewer than two points are left.
        """
        if len(self.results) == 1:
            return [str(self.results[0])]
        lines = [f"{result.name}: {result}" for result in self.results]
        whole = self.overall()
        if whole is not self.results[0]:
            count = len(self._active())
            lines.append(f"Geometric mean of these {count} points only: {whole}")
        return lines

    def verdict_table(self) -> dict[str, Any]:
        """Return a table with one row per compared point: verdict, ratio of speeds, 95% interval.

        The ratio is the speed of the first setting divided by the speed of the second setting.

        Returns:
            The table as `{"columns": names, "data": rows}`. The verdict is None if a setting failed
            at the point.
        """
        columns = ["point", "verdict", "ratio", "low", "high", "rounds", "problem"]
        data = []
        for result in self.results:
            row = {"point": result.name} | result.answer()
            if result.problem:
                row["verdict"] = None
            data.append([row[name] for name in columns])
        return {"columns": columns, "data": data}

    def conclusion(self) -> DesignResult:
        """Return the result of the sweep so far.

        It contains the verdicts as Markdown, the table of verdicts, and the table of rounds. Its
        metrics are the number of rounds, and the ratio of speeds of `overall` with its 95%
        interval.
        """
        whole = self.overall()
        metrics = {"comparison_rounds": float(whole.rounds)}
        found = whole.estimate
        if found:
            metrics["speed_ratio"] = found.ratio
            metrics["speed_ratio_low"] = found.low
            metrics["speed_ratio_high"] = found.high
        artifacts = {
            "verdicts.json": self.verdict_table(),
            "rounds.json": round_table(self.results),
        }
        markdown = "\n".join(f"- **{line}**" for line in self.sentences())
        return DesignResult(markdown, metrics, {}, artifacts)

    def _active(self) -> list[ComparedPoint]:
        return [result for result in self.results if not result.problem]

    def _elapsed(self) -> float:
        return 0.0 if self._begin is None else self._clock() - self._begin

    def _turns_of(self, result: ComparedPoint) -> BlockTurns | None:
        """Return an object that alternates blocks of the two settings in the next round of a point.

        A block is a number of steps that are timed together.

        Returns:
            The object; None if the two settings must be measured one after the other.
        """
        if result.needs_whole_machine or not all(takes_turns(point) for point in result.points):
            return None
        protocols = [point.measure for point in result.points]
        blocks = max(protocol.min_blocks for protocol in protocols)
        return BlockTurns(
            orders(f"{self._name} {result.name} {self._round}"),
            seconds=max(protocol.min_seconds for protocol in protocols),
            blocks=max(blocks, MIN_PAIRS),
        )

    def _visit(self, result: ComparedPoint, side: int) -> DesignPoint:
        # Each round starts one new process per side. Profiles would not be read.
        measure = replace(result.points[side].measure, processes=1, profile=False)
        point = replace(result.points[side], replicate=self._round, measure=measure)
        tags = {"comparison": self._name, "side": self.labels[side]}
        return DesignPoint(point, tags, turns=result.turns)

    def _collect(self, rows: Sequence[RecordedPoint]) -> None:
        """Add the results of the previous round.

        Args:
            rows: The results in the order of measurement. The two sides of a point are adjacent.
        """
        measured = list(zip(self._requested, rows, strict=True))
        for pair in zip(measured[::2], measured[1::2], strict=True):
            result = pair[0][0][0]
            self._add_round(result, {side: row for (_, side), row in pair})

    def _add_round(self, result: ComparedPoint, rows: Mapping[int, RecordedPoint]) -> None:
        speeds: dict[int, float] = {}
        for side, row in rows.items():
            if row.outcome == "ok":
                speeds[side] = _speed(row)
            elif result.turns and row.outcome.startswith(("oom", "timeout")):
                # Both sides were in memory together. From now on, they are measured separately.
                result.needs_whole_machine = True
            else:
                result.add_failure(side, row)
        if len(speeds) < 2:
            return
        if result.turns and result.turns.pairs:
            batch_sizes = [point.batch_size for point in result.points]
            log_ratio = math.log(batch_sizes[0] / batch_sizes[1]) + trimmed(result.turns.pairs)
        else:
            log_ratio = math.log(speeds[0] / speeds[1]) + _machine_correction(rows[0], rows[1])
        result.add(self._round, log_ratio, (speeds[0], speeds[1]))

    def _is_over(self) -> bool:
        active = self._active()
        if not active:
            return True
        if self.rule.looks(self._round):
            estimates = [result.estimate for result in active]
            if all(found is not None and self.rule.is_enough(found) for found in estimates):
                return True
        is_last = self.rule.is_over(self._round, self._elapsed(), self._limit)
        for result in active:
            result.last = is_last
        return is_last


def _speed(row: RecordedPoint) -> float:
    """Return the measured speed in examples/s; for a served model, 1 / median latency in 1/s."""
    return row.metrics.get("examples_per_second") or 1e3 / row.metrics["latency_p50_ms"]


def _machine_correction(first: RecordedPoint, second: RecordedPoint) -> float:
    """Return a correction for the machine's speed, to add to the log ratio of the sides' speeds.

    A small reference kernel ran between the timed blocks of each run. The logarithm of its time,
    corrected for the effect of the run on the kernel, measures the speed of the machine. The
    correction is the product of two factors: the slope of log step time over log kernel time, and
    the difference of the log kernel times (`paradnn.session.reference`).

    Args:
        first: The recorded run of the first side.
        second: The recorded run of the second side.

    Returns:
        The correction; 0 if the devices or the kernels of the runs differ, or if a run has no
        reference kernel.
    """
    kernel = first.tags.get("reference_kernel")
    if kernel is None or kernel != second.tags.get("reference_kernel"):
        return 0.0
    if first.tags.get("device") != second.tags.get("device"):
        return 0.0
    first_time, second_time = (
        math.log(row.metrics[f"reference_{kernel}_ms"]) - row.metrics["reference_own"]
        for row in (first, second)
    )
    slope = statistics.fmean(row.metrics["reference_slope"] for row in (first, second))
    return slope * (first_time - second_time)
