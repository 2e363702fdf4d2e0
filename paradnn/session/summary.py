"""What became of the points of a session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradnn.core.workload import WORKLOADS
from paradnn.record.measured import t_quantile
from paradnn.store.runs import Record

#: Tags that are kept at hand: what a point is, and what is shown at once.
_SHOWN = (
    *("point_id", "environment_id", "replicate", "device", "steady", "steady_reason", "interval_reason", "contended"),
    *("contended_reason", "checks", "emulation_note", "precision_note", "ceilings_contended", "ceilings_note"),
    *("ceilings_remedy", "profile", "profile_note"),
)


@dataclass(frozen=True)
class Row:
    """One point of a session: its run, as far as it is shown; `known`: the store held the outcome already."""

    run_id: str
    name: str
    family: str
    outcome: str
    reason: str | None
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    known: bool = False

    @classmethod
    def of_record(cls, run_id: str, record: Record) -> Row:
        """The row of a point that was recorded just now."""
        shown = (*_SHOWN, *(key for work in WORKLOADS.values() for key in work.shown))
        tags = {key: record.tags[key] for key in shown if key in record.tags}
        family = record.params["model.name"]
        return cls(run_id, record.name, family, record.outcome, record.reason, record.metrics, tags)

    @classmethod
    def of(cls, family: str, values: Mapping[str, Any]) -> Row:
        """The row of a stored run: its id, name, tags (texts) and metrics in one mapping."""
        tags = {key: value for key, value in values.items() if isinstance(value, str)}
        metrics = {key: float(value) for key, value in values.items() if key not in tags}
        run_id, name, outcome = (tags.pop(key) for key in ("run_id", "name", "outcome"))
        return cls(run_id, name, family, outcome, tags.pop("reason", None), metrics, tags)


@dataclass
class Summary:
    """Rows of the measured points, and counts of those that needed no measuring.

    skipped: outcomes that the store held already, this sweep's or another driver's. repeated: points that the sweep
    names twice. drift: how step times changed meanwhile, where points were measured in several processes. parent: id of
    the parent run, which shows it. conclusion: what it came to, in Markdown, where points were chosen meanwhile."""

    total: int
    rows: list[Row] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    where: str = ""
    drift: DriftEstimate | None = None
    parent: str = ""
    conclusion: str = ""

    @property
    def outcomes(self) -> Counter[str]:
        """How many points this session measured with each outcome."""
        return Counter(row.outcome for row in self.rows if not row.known)

    @property
    def measured(self) -> int:
        """Points measured by this session."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Points without an outcome."""
        return self.total - self.measured - sum(self.skipped.values()) - self.repeated

    @property
    def exit_code(self) -> int:
        """0 when every point has an outcome, 130 after an interruption, 1 otherwise."""
        return 130 if self.interrupted else int(self.missing > 0)

    def counts(self) -> str:
        """What became of the points, in words."""
        parts = [", ".join(f"{count} {name}" for name, count in self.outcomes.most_common()) or "none measured"]
        if self.skipped:
            known = ", ".join(f"{count} {name}" for name, count in self.skipped.most_common())
            parts.append(f"{sum(self.skipped.values())} skipped, the store holds their outcome already ({known})")
        if self.repeated:
            parts.append(f"{self.repeated} named twice")
        if self.missing:
            parts.append(f"{self.missing} not measured")
        return "; ".join(parts)


#: Fewer repeated measurements than this tell no drift: whether neighbours are correlated cannot be told either.
_FEWEST = 20


@dataclass(frozen=True)
class DriftEstimate:
    """Growth of the logarithm of the step time in an hour (0.01: 1%), with its 95% interval; over how many hours."""

    per_hour: float
    low: float
    high: float
    hours: float

    @property
    def matters(self) -> bool:
        """Whether it is clear, and has changed step times by over 1% from the first process to the last."""
        return self.low * self.high > 0 and abs(self.per_hour) * self.hours > 0.01

    def __str__(self) -> str:
        """The change that was seen: a few minutes say nothing of an hour."""
        sign = 1 if self.per_hour > 0 else -1
        slopes = sorted((self.low, self.per_hour, self.high), key=abs)
        low, middle, high = (f"{math.expm1(min(50.0, sign * slope * self.hours)):.1%}" for slope in slopes)
        span = f"{self.hours:.1f} h" if self.hours >= 1 else f"{60 * self.hours:.1f} min"
        what = "longer" if sign > 0 else "shorter"
        return f"steps took {middle} {what} at the end than at the beginning, {span} before (95% CI {low} .. {high})"


def drift_of(points: Sequence[Sequence[tuple[float, float]]]) -> DriftEstimate | None:
    """The slope of log step time over time that all points share, each with a level of its own (least squares).

    Of each point: when each of its processes began (Unix seconds), and its step time in seconds. The interval is
    Student's, widened for the correlation of neighbours in time by sqrt((1 + r) / (1 - r)). Each point's level takes of
    that correlation what it takes of the degrees of freedom, and a short series underestimates it: hence (n r + 7) / (n
    - 8), found by simulation (`python -m benchmarks.drift`)."""
    import numpy as np

    several = [np.array(point) for point in points if len(point) > 1]
    count = sum(map(len, several)) - len(several)
    if count < _FEWEST:
        return None
    hours, logs = ([each[:, 0] / 3600 for each in several], [np.log(each[:, 1]) for each in several])
    begun = np.concatenate(hours)
    x, y = (np.concatenate([each - each.mean() for each in columns]) for columns in (hours, logs))
    if not (power := float(x @ x)):
        return None
    slope = float(x @ y) / power
    rest = (y - slope * x)[np.argsort(begun, kind="stable")]
    square = float(rest @ rest)
    r = float(rest[1:] @ rest[:-1]) / square * len(rest) / count if square else 0.0
    r = min(max((count * r + 7) / (count - 8), 0.0), 1 - 1.5 / count)
    half = t_quantile(count - 1) * math.sqrt(square / (count - 1) / power * (1 + r) / (1 - r))
    return DriftEstimate(slope, slope - half, slope + half, float(np.ptp(begun)))
