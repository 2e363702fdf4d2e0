"""A comparison round by round: every point on both sides, one right after the other, until the rule says enough."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paradnn.compare.text import round_table, sentences, verdict_table
from paradnn.compare.verdict import FEWEST, Estimate, Rule, Verdict, estimate, orders, trimmed
from paradnn.config.identity import request_of, texts
from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.session.course import Conclusion, Row, Visit
from paradnn.session.record import run_name
from paradnn.session.turns import Turns

#: Pairs of blocks in a round at least: to build and warm up both sides takes as long as some twenty of them.
PAIRS = 20


class Pair(NamedTuple):
    """One point on both sides; `name` is what they share."""

    name: str
    points: tuple[Point, Point]


class Round(NamedTuple):
    """What a round measured at one point: examples/s of both sides, of a served model one by the median latency; and
    the logarithm of the first side's speed over the second's, which block by block is better known than by these."""

    number: int
    speeds: tuple[float, float]
    log_ratio: float


@dataclass
class Result:
    """What is known of one point, or with `name` empty of all together; `problem`: why it cannot be compared,
    `failures`: how often a side failed, `alone`: whether the sides are no longer measured block by block."""

    name: str
    rounds: list[Round] = field(default_factory=list)
    problem: str | None = None
    failures: Counter[int] = field(default_factory=Counter)
    alone: bool = False

    @property
    def estimate(self) -> Estimate | None:
        """The ratio of speeds; None after fewer than `FEWEST` rounds."""
        return estimate([entry.log_ratio for entry in self.rounds]) if len(self.rounds) >= FEWEST else None

    def verdict(self, margin: float) -> Verdict | None:
        """What is said of it; None where a side cannot be measured."""
        if self.problem:
            return None
        found = self.estimate
        return found.verdict(margin) if found else Verdict.NOT_SETTLED


def takes_turns(point: Point) -> bool:
    """Whether blocks of a point can stand between those of another: while it waits it must not compute, nor hold a
    device of which the other needs the memory."""
    alone = point.devices == point.hosts == 1 and point.data.name == "synthetic" and not point.measure.reference
    return alone and point.platform.name == "cpu" and point.workload.by_turns


def pairs_of(first: Sequence[Point], second: Sequence[Point], null: bool) -> list[Pair]:
    """The points of two sides, which are in the same order, as pairs; ConfigError where they are none."""
    if len(first) != len(second):
        problem = f"the sides have {len(first)} and {len(second)} points"
        raise ConfigError("sides", "", problem, "write axes after both sides")
    params = [[texts(request_of(point)) for point in points] for points in (first, second)]
    swept = {key for row in params[0] for key in row if len({each.get(key) for each in params[0]}) > 1}
    pairs: list[Pair] = []
    for points, (one, other) in zip(zip(first, second, strict=True), zip(*params, strict=True), strict=True):
        if one == other and not null:
            raise ConfigError("sides", run_name(points[0]), "is the same point on both", "give two that differ")
        for key in sorted(swept):
            if one.get(key) != other.get(key):
                problem = f"meets {other.get(key)} on the other side"
                raise ConfigError(key, one.get(key), problem, "vary it on neither side, or compare one point at a time")
        if any(points == pair.points for pair in pairs):
            continue  # an axis names a value twice
        words = run_name(points[1]).split()
        pairs.append(Pair(" ".join(word for word in run_name(points[0]).split() if word in words), points))
    return pairs


class Comparison:
    """What is measured next and what is known; a `paradnn.session.course.Course`.

    A side that fails in the first round, or twice, ends its point: out of memory and what is missing stay so, and one
    crash in many rounds is a round less.
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
        self.labels, self.rule = labels, rule
        self.results = [Result(pair.name) for pair in pairs]
        self._name, self._pairs = name, pairs
        self._random = random.Random(name)
        self._orders: list[Iterator[tuple[int, int]]] = [orders(f"{name} {index}") for index in range(len(pairs))]
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._clock = clock
        self._begin: float | None = None
        self._number = 0
        self._asked: list[tuple[int, int]] = []
        self._turns: dict[int, Turns | None] = {}

    @property
    def points(self) -> list[Point]:
        """Every point of both sides."""
        return [point for pair in self._pairs for point in pair.points]

    @property
    def left(self) -> int:
        """Measurements at most, less those of the rounds before."""
        return 2 * len(self._pairs) * (self.rule.most - max(0, self._number - 1))

    @property
    def seconds_left(self) -> float:
        """What `minutes` leave."""
        return self._seconds - (0.0 if self._begin is None else self._clock() - self._begin)

    @property
    def standing(self) -> str:
        """Rounds so far, and of a single point its interval."""
        found = self.results[0].estimate if len(self.results) == 1 else None
        interval = f": {found.ratio:.3f}, {found.low:.3f} .. {found.high:.3f}" if found else ""
        return f"round {self._number}{interval}"

    def batch(self, rows: Sequence[Row]) -> list[Visit]:
        """The next round in random order, the two sides of a point one right after the other; nothing at the end."""
        if self._begin is None:
            self._begin = self._clock()
        self._take(rows)
        if self._number and self._is_over(self._clock() - self._begin):
            return []
        self._number += 1
        live = [index for index, entry in enumerate(self.results) if not entry.problem]
        self._random.shuffle(live)
        self._turns = {index: self._turns_of(index) for index in live}
        self._asked = [
            (index, side) for index in live for side in ((0, 1) if self._turns[index] else next(self._orders[index]))
        ]
        return [self._visit(index, side) for index, side in self._asked]

    def wants(self, visit: Visit, claimed: bool) -> bool:
        """Each visit is a part of its round."""
        return True

    def overall(self) -> Result:
        """The only point; of several that both sides measured their geometric mean.

        Its interval is that of the mean over just these points: it says how well they were measured, and nothing of
        other points.
        """
        live = [entry.rounds for entry in self.results if not entry.problem]
        if len(live) < 2:
            return self.results[0]
        means = []
        for number in sorted(set.intersection(*({one.number for one in rounds} for rounds in live))):
            both = [one for rounds in live for one in rounds if one.number == number]
            first, second = (statistics.geometric_mean(one.speeds[side] for one in both) for side in (0, 1))
            means.append(Round(number, (first, second), statistics.fmean(one.log_ratio for one in both)))
        return Result("", means)

    def conclusion(self) -> Conclusion:
        """The verdict so far; the metrics are those of the only point, or of all points together."""
        whole = self.overall()
        metrics = {"comparison_rounds": float(len(whole.rounds))}
        if found := whole.estimate:
            metrics |= {"speed_ratio": found.ratio, "speed_ratio_low": found.low, "speed_ratio_high": found.high}
        artifacts = {"verdicts.json": verdict_table(self), "rounds.json": round_table(self)}
        return Conclusion("\n".join(f"- **{line}**" for line in sentences(self)), metrics, {}, artifacts)

    def _turns_of(self, index: int) -> Turns | None:
        """How the two sides of a point take turns in blocks; None where each is to have the machine to itself."""
        points = self._pairs[index].points
        if self.results[index].alone or not all(map(takes_turns, points)):
            return None
        measures = [point.measure for point in points]
        seconds, blocks = max(each.min_seconds for each in measures), max(each.min_blocks for each in measures)
        return Turns(orders(f"{self._name} {index} {self._number}"), seconds, max(blocks, PAIRS))

    def _visit(self, index: int, side: int) -> Visit:
        point = self._pairs[index].points[side]
        # The rounds are the processes, of which nobody asks where their time goes.
        measure = replace(point.measure, processes=1, profile=False)
        point, tags = replace(point, replicate=self._number, measure=measure), {"comparison": self._name}
        return Visit(point, {**tags, "side": self.labels[side]}, turns=self._turns[index])

    def _take(self, rows: Sequence[Row]) -> None:
        """Note what the last round measured."""
        speeds: dict[int, dict[int, float]] = {}
        for (index, side), row in zip(self._asked, rows, strict=True):
            entry = self.results[index]
            if row.outcome == "ok":
                rate = row.metrics.get("examples_per_second") or 1e3 / row.metrics["latency_p50_ms"]
                speeds.setdefault(index, {})[side] = rate
                continue
            if self._turns[index] and row.outcome.startswith(("oom", "timeout")):  # beside the other
                entry.alone = True
                continue
            entry.failures[side] += 1
            if not entry.rounds or entry.failures[side] > 1:
                reason = f": {row.reason}" if row.reason else ""
                problem = f"{self.labels[side]} is {row.outcome}{reason}"
                entry.problem = f"{entry.problem}; {problem}" if entry.problem else problem
        for index, both in speeds.items():
            if len(both) == 2:
                log_ratio, turns = math.log(both[0] / both[1]), self._turns[index]
                if turns and turns.pairs:
                    sizes = [point.batch_size for point in self._pairs[index].points]
                    log_ratio = math.log(sizes[0] / sizes[1]) + trimmed(turns.pairs)
                self.results[index].rounds.append(Round(self._number, (both[0], both[1]), log_ratio))

    def _is_over(self, elapsed: float) -> bool:
        live = [entry for entry in self.results if not entry.problem]
        if not live or self._number >= self.rule.most or elapsed * (1 + 1 / self._number) > self._seconds:
            return True
        return self.rule.looks(self._number) and all(
            found is not None and self.rule.is_enough(found) for found in (entry.estimate for entry in live)
        )
