"""Compare the points of two configurations: every round measures both sides of each point."""

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
    """The comparison of one point on both sides, or of the mean over all points.

    For the mean, `name` is empty.

    `measured` is in examples/s. For a served model, it is the inverse of the median latency, in
    1/s. If blocks of the sides are interleaved, `logs` are computed from these blocks, so they are
    more precise than the ratios of `measured`.

    Attributes:
        points: The point on each side; empty for the mean.
        order: Yields the order of the sides in each round, for sides whose blocks are not
            interleaved.
        turns: The interleaved blocks of the current round; None if the sides are measured one
            after the other.
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
        """Count a failure of a side. If there are too many, the point is no longer measured.

        Args:
            side: The side (0 or 1).
            row: The recorded failure.
        """
        self.failures[side] += 1
        if self.rounds and self.failures[side] < _MAX_FAILURES:
            return
        reason = f": {row.reason}" if row.reason else ""
        problem = f"{self.labels[side]} is {row.outcome}{reason}"
        self.problem = f"{self.problem}; {problem}" if self.problem else problem


def pairs_of(first: Sequence[Point], second: Sequence[Point], *, null: bool) -> list[Pair]:
    """Pair the points of two sides.

    Args:
        first: The points of the first side.
        second: The points of the second side, in the same order.
        null: Whether a point may be compared with itself.

    Returns:
        The distinct pairs.

    Raises:
        ConfigError: If the numbers of points differ, or the points of a pair are equal or differ in
            an axis of the sweep.
    """
    if len(first) != len(second):
        problem = f"the sides have different numbers of points, {len(first)} and {len(second)}"
        raise ConfigError("sides", "", problem, "write axes after both sides")
    first_params = [as_params(point_request(point)) for point in first]
    second_params = [as_params(point_request(point)) for point in second]
    axes = _varying_keys(first_params)
    pairs: list[Pair] = []
    for index, points in enumerate(zip(first, second, strict=True)):
        if first_params[index] == second_params[index] and not null:
            raise ConfigError(
                "sides",
                run_name(points[0]),
                "is the same point on both sides",
                "give two different sides, or add --null",
            )
        _check_axes(axes, first_params[index], second_params[index])
        # An axis may contain a value twice.
        if all(points != known for _, known in pairs):
            pairs.append((_shared_name(points), points))
    return pairs


def _varying_keys(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ between the points of a side, sorted."""
    keys = {key for row in params for key in row}
    return sorted(key for key in keys if len({row.get(key) for row in params}) > 1)


def _check_axes(axes: Sequence[str], first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Raise ConfigError if a pair of points differs in an axis of the sweep."""
    for key in axes:
        if first.get(key) != second.get(key):
            raise ConfigError(
                key,
                first.get(key),
                f"is an axis of the sweep, but the other side has {key}={second.get(key)}",
                "omit the key from both sides, or compare one point at a time",
            )


def _shared_name(points: tuple[Point, Point]) -> str:
    """Return the words that the names of both points share."""
    words = run_name(points[1]).split()
    return " ".join(word for word in run_name(points[0]).split() if word in words)


class Comparison(SweepDesign):
    """Sweep design that measures both sides of every point in rounds, until all are decided.

    A point is no longer measured if a side fails twice. Before the first complete round, one
    failure is enough, because causes such as too little memory or a missing device are permanent. A
    single later failure only invalidates its round.

    Args:
        name: Name of the comparison, which seeds the random order.
        pairs: The points to compare.
        labels: Names of the sides.
        rule: Decides when the comparison ends.
        minutes: Time limit; None for no limit.
        clock: Returns the time in seconds.
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
        """Maximum number of remaining measurements, including the current round."""
        return 2 * len(self.results) * (self.rule.most - max(0, self._round - 1))

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return self._limit - self._elapsed()

    @property
    def progress(self) -> str:
        """Number of the current round as text; if there is a single point, also the estimate."""
        if len(self.results) == 1:
            found = self.results[0].estimate
            if found:
                return (
                    f"round {self._round}: {found.ratio:.3f}, {found.low:.3f} .. {found.high:.3f}"
                )
        return f"round {self._round}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the measurements of the next round; an empty list if the comparison is over.

        The points are in random order. The two sides of a point are adjacent.

        Args:
            rows: The results of the previous round, in the order of its measurements.
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
        """Return the comparison of the geometric means over the points that have not failed.

        The interval of the mean is valid only for these points, not for other points. If fewer than
        two points have not failed, the comparison of the first point is returned.
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
        """Return one sentence per point, and one about their geometric mean."""
        if len(self.results) == 1:
            return [str(self.results[0])]
        lines = [f"{result.name}: {result}" for result in self.results]
        whole = self.overall()
        if whole is not self.results[0]:
            count = len(self._active())
            lines.append(f"Geometric mean of these {count} points only: {whole}")
        return lines

    def verdict_table(self) -> dict[str, Any]:
        """Return a table with one row per point: verdict, ratio of speeds, and its 95% interval.

        The ratio is the speed of the first side divided by the speed of the second side.
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
        """Return the verdicts so far, with the metrics of `overall`."""
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
        """Return the points that are still measured, because they have not failed."""
        return [result for result in self.results if not result.problem]

    def _elapsed(self) -> float:
        return 0.0 if self._begin is None else self._clock() - self._begin

    def _turns_of(self, result: ComparedPoint) -> BlockTurns | None:
        """Return the interleaved blocks of the next round; None if blocks cannot be interleaved."""
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
        """Add the results of the previous round, in which the sides of a point are adjacent."""
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
    """Return the speed in examples/s; for a served model, the inverse median latency in 1/s."""
    return row.metrics.get("examples_per_second") or 1e3 / row.metrics["latency_p50_ms"]


def _machine_correction(first: RecordedPoint, second: RecordedPoint) -> float:
    """Return a correction for the machine's speed, to add to the log ratio of the sides' speeds.

    A reference kernel ran between the blocks of each run. Its log time, corrected for the effect of
    the run on it, measures the speed of the machine. The correction is the slope of log step time
    over log kernel time, times the difference of the log kernel times
    (`paradnn.session.reference`). It is 0 if the devices or the kernels of the runs differ, or if a
    run has no reference.
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
