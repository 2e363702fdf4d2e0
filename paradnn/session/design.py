"""Interface of sweep designs, which choose points during a session, and summaries of sessions."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from paradnn.config.point import Point
from paradnn.session.turns import BlockTurns
from paradnn.store.runs import Record


@dataclass(frozen=True)
class RecordedPoint:
    """One point of a session and its run.

    Attributes:
        run_id: Identifier of the run.
        name: Name of the run.
        family: Model family.
        outcome: Outcome of the point.
        reason: Reason of the outcome; None if it needs none.
        metrics: Metrics of the run.
        tags: Tags of the run.
        known: Whether the store already held the outcome before this session.
    """

    run_id: str
    name: str
    family: str
    outcome: str
    reason: str | None
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    known: bool = False

    @classmethod
    def of_record(cls, run_id: str, record: Record) -> Self:
        """Return the row of a point that this session has just recorded."""
        family = record.params["model.name"]
        return cls(
            run_id, record.name, family, record.outcome, record.reason, record.metrics, record.tags
        )

    @classmethod
    def of(cls, family: str, values: Mapping[str, Any]) -> Self:
        """Return the row of a stored run.

        Args:
            family: Model family.
            values: Fields of the run: run_id, name, outcome, tags (strings) and metrics.
        """
        tags = {key: value for key, value in values.items() if isinstance(value, str)}
        metrics = {key: float(value) for key, value in values.items() if key not in tags}
        run_id, name, outcome = (tags.pop(key) for key in ("run_id", "name", "outcome"))
        return cls(run_id, name, family, outcome, tags.pop("reason", None), metrics, tags)


@dataclass(frozen=True)
class DesignPoint:
    """One measurement of a point, also called a visit.

    Attributes:
        point: The point.
        tags: Additional tags of this measurement.
        excluded: Reason why the point counts as out of memory without a trial; None if it is to be
            measured.
        turns: Turns in which this point and another point of the batch alternate; None if it is
            measured alone.
    """

    point: Point
    tags: Mapping[str, str]
    excluded: str | None = None
    turns: BlockTurns | None = None


@dataclass(frozen=True)
class DesignResult:
    """Result of a design, which the parent run of the sweep holds next to the counts of points.

    Attributes:
        text: Conclusion in Markdown.
        metrics: Metrics of the parent run.
        tags: Tags of the parent run.
        artifacts: Artifacts of the parent run, by path.
    """

    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)


class SweepDesign:
    """Base class of designs, which choose the next measurements after each batch.

    Attributes:
        points: One representative point per required worker.
        resumes: Whether an outcome in the store replaces a measurement. If False, every visit is
            measured.
    """

    points: Sequence[Point]
    resumes: bool = True

    @property
    def left(self) -> int:
        """Maximum number of measurements that are still needed."""
        raise NotImplementedError

    @property
    def seconds_left(self) -> float:
        """Remaining time limit in seconds; infinite if time does not end the design."""
        return math.inf

    @property
    def progress(self) -> str:
        """Short text about the result so far; may be empty."""
        return ""

    def batch(self, rows: Sequence[RecordedPoint]) -> Sequence[DesignPoint]:
        """Return the next measurements in order; an empty batch ends the design.

        Args:
            rows: Outcomes of the previous batch.
        """
        raise NotImplementedError

    def wants(self, visit: DesignPoint, claimed: bool) -> bool:  # noqa: FBT001 - a callback
        """Return whether a measurement of the batch is still needed.

        Args:
            visit: The measurement.
            claimed: False in the call before the claim of the point, True in the call after it.
        """
        return True

    def conclusion(self) -> DesignResult:
        """Return the result of the design so far; also called after an interruption."""
        return DesignResult()


@dataclass
class Summary:
    """Summary of a session.

    Attributes:
        total: Number of points, including repeated ones.
        rows: Rows of the recorded points.
        skipped: Outcome -> number of points that the store already held.
        repeated: Number of points that repeat an earlier point of the sweep.
        interrupted: Whether the session was interrupted.
        seconds: Duration of the session in seconds.
        started: Start of the session in Unix seconds.
        where: Location of the runs, as text.
        problem: Why results or points are missing, as text; empty if there is no problem.
        parent: Identifier of the parent run.
        conclusion: Conclusion in Markdown.
    """

    total: int = 0
    rows: list[RecordedPoint] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    started: float = field(default_factory=time.time)
    where: str = ""
    problem: str = ""
    parent: str = ""
    conclusion: str = ""

    @property
    def outcomes(self) -> Counter[str]:
        """Number of points that this session measured, by outcome."""
        return Counter(row.outcome for row in self.rows if not row.known)

    @property
    def measured(self) -> int:
        """Number of points that this session measured."""
        return self.outcomes.total()

    @property
    def missing(self) -> int:
        """Number of points without an outcome."""
        return self.total - self.measured - self.skipped.total() - self.repeated

    @property
    def exit_code(self) -> int:
        """Exit code of the command.

        130 after an interruption. 1 if a point has no outcome, if recorded results were deleted, or
        if every point is `unavailable`. Otherwise 0, since other outcomes are results.
        """
        if self.interrupted:
            return 130
        outcomes = self.outcomes + self.skipped
        if self.missing > 0 or self.problem or set(outcomes) == {"unavailable"}:
            return 1
        return 0

    def counts(self) -> str:
        """Return as text the counts of outcomes, and of skipped, repeated and missing points."""
        parts = [
            ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
            or "none measured"
        ]
        if self.skipped:
            known = ", ".join(f"{count} {name}" for name, count in self.skipped.most_common())
            parts.append(
                f"{self.skipped.total()} skipped, the store holds their outcome already ({known})"
            )
        if self.repeated:
            parts.append(f"{self.repeated} repeated in the sweep")
        if self.missing:
            parts.append(f"{self.missing} not measured")
        return "; ".join(parts)
