"""Compare points of two configurations: every round measures both sides of each point."""

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

#: Minimum number of pairs of blocks in a round. Twenty pairs take about as long as the build and
#: the warm-up of both sides.
MIN_PAIRS = 20
#: Number of failures of a side after which its point is no longer measured. Before the point has a
#: complete round, one failure is enough.
_MAX_FAILURES = 2

#: The part of a point's name that both sides share, and the point on both sides.
Pair = tuple[str, tuple[Point, Point]]


@dataclass
class ComparedPoint(PairedResult):
    """One point on both sides; with an empty `name` the mean over all points.

    `measured` is in examples/s; for a served model it is the inverse of the median latency, in 1/s.
    `logs` come from interleaved blocks if there are any, so they are more precise than the ratio of
    `measured`.

    Attributes:
        points: The point on both sides.
        order: The order of the sides in each round, if their blocks are not interleaved.
        turns: The interleaved blocks of the current round; None if each side is measured as a
            whole.
        failures: Side (0 or 1) -> number of its failures.
        needs_whole_machine: Whether both sides do not fit into memory together.
    """

    points: tuple[Point, ...] = ()
    order: Iterator[tuple[int, int]] = field(default_factory=lambda: orders(""))
    turns: BlockTurns | None = None
    failures: Counter[int] = field(default_factory=Counter)
    needs_whole_machine: bool = False

    def add_failure(self, side: int, row: RecordedPoint) -> None:
        """Count a failure of a side, which may end the point."""
        self.failures[side] += 1
        if self.rounds and self.failures[side] < _MAX_FAILURES:
            return
        reason = f": {row.reason}" if row.reason else ""
        problem = f"{self.labels[side]} is {row.outcome}{reason}"
        self.problem = f"{self.problem}; {problem}" if self.problem else problem


def pairs_of(first: Sequence[Point], second: Sequence[Point], *, null: bool) -> list[Pair]:
    """Pair the points of two sides.

    Args:
        first: The points of one side.
        second: The points of the other side, in the same order.
        null: Whether a point may be compared with itself.

    Raises:
        ConfigError: If the numbers of points differ, or the points of a pair are equal or differ in
            an axis of the sweep.
    """
    if len(first) != len(second):
        problem = f"the sides have {len(first)} and {len(second)} points"
        raise ConfigError("sides", "", problem, "write axes after both sides")
    first_params = [as_params(point_request(point)) for point in first]
    second_params = [as_params(point_request(point)) for point in second]
    axes = _varying_keys(first_params)
    pairs: list[Pair] = []
    for index, points in enumerate(zip(first, second, strict=True)):
        if first_params[index] == second_params[index] and not null:
            raise ConfigError(
                "sides", run_name(points[0]), "is the same point on both", "give two that differ"
            )
        _check_axes(axes, first_params[index], second_params[index])
        # An axis may contain a value twice.
        if all(points != known for _, known in pairs):
            pairs.append((_shared_name(points), points))
    return pairs


def _varying_keys(params: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys that differ between the points of one side."""
    keys = {key for row in params for key in row}
    return sorted(key for key in keys if len({row.get(key) for row in params}) > 1)


def _check_axes(axes: Sequence[str], first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Raise ConfigError if a pair of points differs in an axis of the sweep."""
    for key in axes:
        if first.get(key) != second.get(key):
            raise ConfigError(
                key,
                first.get(key),
                f"is paired with {second.get(key)} of the other side",
                "vary it on neither side, or compare one point at a time",
            )


def _shared_name(points: tuple[Point, Point]) -> str:
    """The words that the names of both points share."""
    words = run_name(points[1]).split()
    return " ".join(word for word in run_name(points[0]).split() if word in words)


class Comparison(SweepDesign):
    """Chooses the measurements of each round, and collects their results.

    A point is no longer measured if a side fails twice, or once before the first complete round:
    out of memory or a missing device are permanent. A single later crash costs one round.
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
        """Maximum number of measurements that are left, including the current round."""
        return 2 * len(self.results) * (self.rule.most - max(0, self._round - 1))

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return self._limit - self._elapsed()

    @property
    def progress(self) -> str:
        """The number of the round, and the interval if there is one point."""
        if len(self.results) == 1:
            found = self.results[0].estimate
            if found:
                return (
                    f"round {self._round}: {found.ratio:.3f}, {found.low:.3f} .. {found.high:.3f}"
                )
        return f"round {self._round}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the measurements of the next round; an empty list if the comparison is over.

        The points are in random order, and the sides of each point follow each other.

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
        """Return the only point, or the geometric mean over the points that have not failed.

        The interval of the mean holds for exactly these points, not for other points.
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
        """One row per point: verdict, ratio of the first side's speed to the second's, interval."""
        columns = ["point", "verdict", "ratio", "low", "high", "rounds", "problem"]
        data = []
        for result in self.results:
            row = {"point": result.name} | result.answer()
            if result.problem:
                row["verdict"] = None
            data.append([row[name] for name in columns])
        return {"columns": columns, "data": data}

    def conclusion(self) -> DesignResult:
        """The verdicts so far, with metrics of the only point or of all points together."""
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
        """Points that have not failed."""
        return [result for result in self.results if not result.problem]

    def _elapsed(self) -> float:
        return 0.0 if self._begin is None else self._clock() - self._begin

    def _turns_of(self, result: ComparedPoint) -> BlockTurns | None:
        """Return the interleaved blocks of a round; None if the sides cannot run concurrently."""
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
        # Each round is one new process per side, and nothing would read a profile.
        measure = replace(result.points[side].measure, processes=1, profile=False)
        point = replace(result.points[side], replicate=self._round, measure=measure)
        tags = {"comparison": self._name, "side": self.labels[side]}
        return DesignPoint(point, tags, turns=result.turns)

    def _collect(self, rows: Sequence[RecordedPoint]) -> None:
        """Add the measurements of the last round, in which the sides of a point are adjacent."""
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
                # Both sides were in memory. From now on, measure one after the other.
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
    """Return the speed in examples/s; for a served model the inverse of its median latency."""
    return row.metrics.get("examples_per_second") or 1e3 / row.metrics["latency_p50_ms"]


def _machine_correction(first: RecordedPoint, second: RecordedPoint) -> float:
    """Return the correction of a log ratio of speeds for the machine's speed during each run.

    A reference kernel ran before and after each run. Its log time, without the run's own effect on
    it, measures the speed of the machine. The correction is the difference of these log times times
    the slope of log step time on log kernel time (`paradnn.session.reference`). It is 0 if the
    devices or their kernels differ, or if there is no reference.
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
