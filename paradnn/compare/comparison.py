"""A comparison round by round: every point on both sides, one right after the other, until the rule
says enough.
"""

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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

#: Pairs of blocks in a round at least: to build and warm up both sides takes as long as some twenty
#: of them.
PAIRS = 20

#: One point on both sides, and what they share of its name.
Pair = tuple[str, tuple[Point, Point]]


@dataclass
class ComparedPoint(PairedResult):
    """What is known of one point, or with `name` empty of all together: `logs`, block by block
    better known than by what is `measured`, examples/s of both sides, of a served model one by the
    median latency.

    points: the point on both sides. order: which side goes first, where they do not take `turns` in
    this round. failures: how often a side failed. alone: whether the sides are no longer measured
    block by block.
    """

    points: tuple[Point, ...] = ()
    order: Iterator[tuple[int, int]] = field(default_factory=lambda: orders(""))
    turns: BlockTurns | None = None
    failures: Counter[int] = field(default_factory=Counter)
    alone: bool = False


def pairs_of(first: Sequence[Point], second: Sequence[Point], null: bool) -> list[Pair]:
    """The points of two sides, which are in the same order, as pairs; ConfigError where they are
    none.
    """
    if len(first) != len(second):
        problem = f"the sides have {len(first)} and {len(second)} points"
        raise ConfigError("sides", "", problem, "write axes after both sides")
    params = [[as_params(point_request(point)) for point in points] for points in (first, second)]
    swept = {
        key for row in params[0] for key in row if len({each.get(key) for each in params[0]}) > 1
    }
    pairs: list[Pair] = []
    for points, (one, other) in zip(
        zip(first, second, strict=True), zip(*params, strict=True), strict=True
    ):
        if one == other and not null:
            raise ConfigError(
                "sides", run_name(points[0]), "is the same point on both", "give two that differ"
            )
        for key in sorted(swept):
            if one.get(key) != other.get(key):
                problem = f"meets {other.get(key)} on the other side"
                raise ConfigError(
                    key,
                    one.get(key),
                    problem,
                    "vary it on neither side, or compare one point at a time",
                )
        if any(points == both for _, both in pairs):
            continue  # an axis names a value twice
        words = run_name(points[1]).split()
        pairs.append(
            (" ".join(word for word in run_name(points[0]).split() if word in words), points)
        )
    return pairs


class Comparison(SweepDesign):
    """What is measured next and what is known.

    A side that fails in the first round, or twice, ends its point: out of memory and what is
    missing stay so, and one crash in many rounds is a round less.
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
        self.points = [point for entry in self.results for point in entry.points]
        self._name = name
        self._random = random.Random(name)
        self._clock = clock
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._begin: float | None = None
        self._number = 0
        self._asked: list[tuple[ComparedPoint, int]] = []

    @property
    def left(self) -> int:
        """Measurements at most, less those of the rounds before."""
        return 2 * len(self.results) * (self.rule.most - max(0, self._number - 1))

    @property
    def seconds_left(self) -> float:
        """What `minutes` leave."""
        return self._seconds - (0.0 if self._begin is None else self._clock() - self._begin)

    @property
    def progress(self) -> str:
        """Rounds so far, and of a single point its interval."""
        found = self.results[0].estimate if len(self.results) == 1 else None
        if found:
            interval = f": {found.ratio:.3f}, {found.low:.3f} .. {found.high:.3f}"
        else:
            interval = ""
        return f"round {self._number}{interval}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """The next round in random order, the two sides of a point one right after the other;
        nothing at the end.
        """
        if self._begin is None:
            self._begin = self._clock()
        self._take(rows)
        if self._number and self._is_over(self._clock() - self._begin):
            return []
        self._number += 1
        live = [entry for entry in self.results if not entry.problem]
        self._random.shuffle(live)
        self._asked = []
        for entry in live:
            entry.turns = self._turns_of(entry)
            self._asked += [
                (entry, side) for side in ((0, 1) if entry.turns else next(entry.order))
            ]
        return [self._visit(*asked) for asked in self._asked]

    def overall(self) -> ComparedPoint:
        """The only point; of several that both sides measured their geometric mean.

        Its interval is that of the mean over just these points: it says how well they were
        measured, and nothing of other points.
        """
        live = [entry for entry in self.results if not entry.problem]
        if len(live) < 2:
            return self.results[0]
        whole = ComparedPoint(self.labels, self.rule, last=all(entry.last for entry in live))
        rounds = [
            dict(zip(entry.numbers, zip(entry.logs, entry.measured, strict=True), strict=True))
            for entry in live
        ]
        for number in sorted(set.intersection(*map(set, rounds))):
            logs, speeds = zip(*(one[number] for one in rounds), strict=True)
            first, second = map(statistics.geometric_mean, zip(*speeds, strict=True))
            whole.add(number, statistics.fmean(logs), (first, second))
        return whole

    def sentences(self) -> list[str]:
        """A sentence for each point, and one for all of them together."""
        whole = self.overall()
        several = len(self.results) > 1
        lines = [f"{result.name}: {result}" if several else str(result) for result in self.results]
        if whole is not self.results[0]:
            count = sum(not result.problem for result in self.results)
            lines.append(f"Geometric mean of these {count} points, and of no others: {whole}")
        return lines

    def verdict_table(self) -> dict[str, Any]:
        """A row a point: its verdict, the ratio of the first side's speed to the second's, its 95%
        interval.
        """
        columns = ["point", "verdict", "ratio", "low", "high", "rounds", "problem"]
        rows = [{"point": result.name} | result.answer() for result in self.results]
        data = [
            [None if name == "verdict" and row["problem"] else row[name] for name in columns]
            for row in rows
        ]
        return {"columns": columns, "data": data}

    def conclusion(self) -> DesignResult:
        """The verdict so far; the metrics are those of the only point, or of all points together."""
        whole = self.overall()
        metrics = {"comparison_rounds": float(whole.rounds)}
        found = whole.estimate
        if found:
            metrics |= {
                "speed_ratio": found.ratio,
                "speed_ratio_low": found.low,
                "speed_ratio_high": found.high,
            }
        artifacts = {
            "verdicts.json": self.verdict_table(),
            "rounds.json": round_table(self.results),
        }
        return DesignResult(
            "\n".join(f"- **{line}**" for line in self.sentences()), metrics, {}, artifacts
        )

    def _turns_of(self, entry: ComparedPoint) -> BlockTurns | None:
        """How the two sides of a point take turns in blocks; None where each is to have the machine
        to itself.
        """
        if entry.alone or not all(map(takes_turns, entry.points)):
            return None
        measures = [point.measure for point in entry.points]
        seconds = max(each.min_seconds for each in measures)
        blocks = max(each.min_blocks for each in measures)
        return BlockTurns(
            orders(f"{self._name} {entry.name} {self._number}"), seconds, max(blocks, PAIRS)
        )

    def _visit(self, entry: ComparedPoint, side: int) -> DesignPoint:
        # The rounds are the processes, of which nobody asks where their time goes.
        measure = replace(entry.points[side].measure, processes=1, profile=False)
        point = replace(entry.points[side], replicate=self._number, measure=measure)
        return DesignPoint(
            point, {"comparison": self._name, "side": self.labels[side]}, turns=entry.turns
        )

    def _take(self, rows: Sequence[RecordedPoint]) -> None:
        """Note what the last round measured."""
        asked = list(zip(self._asked, rows, strict=True))
        for pair in zip(asked[::2], asked[1::2], strict=True):
            entry = pair[0][0][0]
            speeds = dict[int, float]()
            for (_, side), row in pair:
                if row.outcome == "ok":
                    speeds[side] = (
                        row.metrics.get("examples_per_second")
                        or 1e3 / row.metrics["latency_p50_ms"]
                    )
                elif entry.turns and row.outcome.startswith(("oom", "timeout")):  # beside the other
                    entry.alone = True
                else:
                    entry.failures[side] += 1
                    if not entry.rounds or entry.failures[side] > 1:
                        reason = f": {row.reason}" if row.reason else ""
                        problem = f"{self.labels[side]} is {row.outcome}{reason}"
                        if entry.problem:
                            entry.problem = f"{entry.problem}; {problem}"
                        else:
                            entry.problem = problem
            if len(speeds) == 2:
                of = {side: row for (_, side), row in pair}
                log_ratio = math.log(speeds[0] / speeds[1]) + _of_machine(of[0], of[1])
                if entry.turns and entry.turns.pairs:
                    sizes = [point.batch_size for point in entry.points]
                    log_ratio = math.log(sizes[0] / sizes[1]) + trimmed(entry.turns.pairs)
                entry.add(self._number, log_ratio, (speeds[0], speeds[1]))

    def _is_over(self, elapsed: float) -> bool:
        live = [entry for entry in self.results if not entry.problem]
        found = [entry.estimate for entry in live]
        if not live or (
            self.rule.looks(self._number) and all(one and self.rule.is_enough(one) for one in found)
        ):
            return True
        for entry in live:
            entry.last = self.rule.is_over(self._number, elapsed, self._seconds)
        return live[0].last


def _of_machine(first: RecordedPoint, second: RecordedPoint) -> float:
    """What of the log ratio of two speeds was the machine's: how much slower its kernel was beside
    the first, but for what that did itself, as far as the steps follow it
    (`paradnn.session.reference`). 0 on two devices, where their kernels differ, or without
    references.
    """
    kernel, device = (first.tags.get(name) for name in ("reference_kernel", "device"))
    if kernel is None or (second.tags.get("reference_kernel"), second.tags.get("device")) != (
        kernel,
        device,
    ):
        return 0.0
    sides = [row.metrics for row in (first, second)]
    slow = [math.log(side[f"reference_{kernel}_ms"]) - side["reference_own"] for side in sides]
    return statistics.fmean(side["reference_slope"] for side in sides) * (slow[0] - slow[1])
