"""The objective of a race between settings, and the limits that the winner must not exceed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.core.results import ResultDescription
from paradnn.core.words import rounded
from paradnn.core.workload import DEFAULT_KEYS
from paradnn.session.design import RecordedPoint
from paradnn.store.metrics import METRICS, metric


class _Goal(NamedTuple):
    """Text fragments of an answer.

    Attributes:
        predicate: Predicate of a sentence about the winner.
        rival: Text after the winner's score. The placeholder `{rival}` is the closest rival, and
            `{ratio}` compares the two scores.
    """

    predicate: str
    rival: str


#: Goals of `--for`.
GOALS = {
    "throughput": _Goal("is fastest", ", {ratio} ahead of {rival}"),
    "latency": _Goal("has the lowest latency", "; {rival} takes {ratio} as long"),
    "memory": _Goal("needs the least memory", "; {rival} needs {ratio} as much"),
    "cost": _Goal("is cheapest", "; {rival} costs {ratio} as much"),
}
_MEMORY = "peak_memory_bytes"
_STEP_TIME = "step_time_ms"
_P99 = "latency_p99_ms"
#: Cost metric -> the unit of work that the cost refers to.
COST_UNITS = {
    "cost_per_million_examples": "per million examples",
    "cost_per_million_tokens": "per million tokens",
    "cost_per_million_queries": "per million queries",
    "cost_of_learning": "per training",
}
#: Metric -> its unit, with the space that separates it from a number.
_UNITS = {
    "examples_per_second": " examples/s",
    "tokens_per_second": " tokens/s",
    "queries_per_second": " queries/s",
    "scheduled_queries_per_second": " queries/s",
}


@dataclass(frozen=True)
class WinnerLimits:
    """Limits of memory and latency that the winner of a race must not exceed.

    Attributes:
        memory_bytes: Largest peak memory in bytes; None for no limit.
        p99_ms: Largest 99th percentile of the latency in ms; None for no limit.
    """

    memory_bytes: int | None = None
    p99_ms: float | None = None

    def violation(self, rows: Sequence[RecordedPoint]) -> str | None:
        """Return which limit a combination of settings exceeds, as text.

        A single measurement may exceed the latency limit by chance. The lower end of its confidence
        interval is therefore compared with the limit. For several measurements, their geometric
        mean is compared.

        Args:
            rows: The successful measurements of the combination, one per process.

        Returns:
            A text with the value and the limit, or the reason why the latency is unknown although
            it is limited. None if no limit is exceeded.
        """
        if self.memory_bytes is not None:
            peak = max(row.metrics.get(_MEMORY, 0.0) for row in rows)
            if peak > self.memory_bytes:
                return f"needs {format_bytes(peak)}, the limit is {format_bytes(self.memory_bytes)}"
        if self.p99_ms is None:
            return None
        values = [row.metrics[_P99] for row in rows if _P99 in row.metrics]
        if not values:
            return self._unknown_p99(rows)
        typical = statistics.geometric_mean(values)
        if len(values) == 1:
            certain = rows[0].metrics.get("latency_p99_low_ms", typical)
        else:
            certain = typical
        if certain <= self.p99_ms:
            return None
        return f"has p99 {rounded(typical)} ms, the limit is {rounded(self.p99_ms)} ms"

    def _unknown_p99(self, rows: Sequence[RecordedPoint]) -> str:
        """Return why a candidate without a 99th percentile of latency is excluded.

        A 50th or 90th percentile above the limit proves that the 99th percentile exceeds it.

        Args:
            rows: The successful measurements of the candidate.
        """
        assert self.p99_ms is not None
        for share in (50, 90):
            values = [row.metrics.get(f"latency_p{share}_ms", 0.0) for row in rows]
            if min(values) > self.p99_ms:
                typical = statistics.geometric_mean(values)
                return (
                    f"has p{share} {rounded(typical)} ms, the limit of p99 is "
                    f"{rounded(self.p99_ms)} ms"
                )
        return "has no p99, since too few steps were timed; raise measure.min_seconds"


@dataclass(frozen=True)
class Objective:
    """The quantity by which a race compares combinations of settings.

    Attributes:
        goal: `throughput`, `latency`, `memory` or `cost`.
        names: Metrics that measure the goal; the first metric that a run has is used.
    """

    goal: str
    names: tuple[str, ...]

    @property
    def predicate(self) -> str:
        """The predicate of the winner in a sentence, such as "is fastest"."""
        return GOALS[self.goal].predicate

    def describe_rival(self, rival: str, ratio: str) -> str:
        """Return the part of a sentence that says how far the winner is ahead of its closest rival.

        Args:
            rival: The settings of the rival, as text.
            ratio: The winner's score divided by the rival's, as text.
        """
        return GOALS[self.goal].rival.format(rival=rival, ratio=ratio)

    def metric_name(self, row: RecordedPoint) -> str | None:
        """Return the first metric of `names` with a positive value in a run; None if absent."""
        return next((name for name in self.names if row.metrics.get(name, 0.0) > 0.0), None)

    def log_score(self, row: RecordedPoint) -> float | None:
        """Return the natural logarithm of a run's score, where a larger score is better.

        The score is the value of the run's metric, or its reciprocal if smaller values are better.

        Returns:
            The logarithm; None if the run has no metric of the objective.
        """
        name = self.metric_name(row)
        if name is None:
            return None
        return _sign(name) * math.log(row.metrics[name])

    def missing_score(self, row: RecordedPoint) -> str:
        """Return a text that says why a run has no score: no price, or no suitable metric."""
        if self.names[0].startswith("cost_per_million") and "device" in row.tags:
            return f"{row.tags['device']} has no price: add it to the table, or use --price 1.5"
        return f"its runs have no metric {' or '.join(self.names)}"


def objective_of(goal: str, points: Sequence[Point]) -> Objective:
    """Return the objective of a race between settings.

    Args:
        goal: `throughput`, `latency`, `memory` or `cost`.
        points: The combinations of settings to compare. Their kind of work determines the metrics.

    Raises:
        ConfigError: If the candidates do different kinds of work, which have no common metric.
    """
    for key in DEFAULT_KEYS:
        values = {str(point.workload.stored_keys()[key]) for point in points}
        if len(values) > 1:
            raise ConfigError(
                key,
                ",".join(sorted(values)),
                "selects different kinds of work, which have no common metric",
                "run paradnn best once for each of them",
            )
    work = points[0].workload
    cost, *benefits, last = work.role(ResultDescription).objectives
    latency = [last] if METRICS[last].better == "lower" else []
    names = {
        "throughput": tuple(benefits),
        "latency": (*latency, _STEP_TIME),
        "memory": (_MEMORY,),
        "cost": (cost,),
    }
    return Objective(goal, names[goal])


def format_value(name: str, value: float, currency: str = "") -> str:
    """Return a value of a metric with its unit, as text.

    Args:
        name: Name of the metric.
        value: The value, in the unit in which the metric is recorded.
        currency: Currency of a cost, such as "USD"; empty if unknown.
    """
    if name in _UNITS:
        return f"{rounded(value)}{_UNITS[name]}"
    if name == _MEMORY:
        return format_bytes(value)
    if name in COST_UNITS:
        return " ".join(filter(None, (rounded(value), currency, COST_UNITS[name])))
    return f"{rounded(value)} {metric(name).unit}"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text in GiB, such as `1.50 GiB`."""
    return f"{count / 2**30:.2f} GiB"


def as_value(name: str, score: float) -> float:
    """Convert a score to the value of a metric, or a value to its score.

    The score is the value itself if a larger value is better, else its reciprocal. The same
    function therefore converts in both directions.

    Args:
        name: Name of the metric.
        score: The score or the value; not 0.
    """
    return score ** _sign(name)


def mean_metrics(rows: Sequence[RecordedPoint]) -> Mapping[str, float]:
    """Return the geometric mean of each metric over all measurements of one candidate.

    Args:
        rows: The measurements of the candidate, at least one.

    Returns:
        Metric name -> mean. Metrics that a measurement lacks, or that are not positive in a
        measurement, are omitted.
    """
    shared = set.intersection(*(set(row.metrics) for row in rows))
    return {
        name: statistics.geometric_mean([row.metrics[name] for row in rows])
        for name in shared
        if all(row.metrics[name] > 0 for row in rows)
    }


def is_larger_better(name: str) -> bool:
    """Return whether a larger value of a metric is better.

    `METRICS` states no direction for the scheduled rate of requests to a server. Here, a larger
    scheduled rate is better.

    Args:
        name: Name of a metric that an objective uses.
    """
    return name in _UNITS or METRICS[name].better == "higher"


def _sign(name: str) -> int:
    return 1 if is_larger_better(name) else -1
