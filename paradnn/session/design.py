"""Interface of adaptive sweep designs, and summaries of sessions.

A design chooses the points to measure while a sweep runs. A point is one configuration: a model
with its sizes, batch size, precision and so on.
"""

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
    """One point (configuration to measure) of a session, and the run with its result.

    Attributes:
        run_id: Identifier of the run.
        name: Name of the run.
        family: Model family, such as "fc".
        outcome: How the measurement of the point ended: "ok", "timeout", "crash" and so on.
        reason: Reason of the outcome; None if it needs none.
        metrics: Metrics of the run by name.
        tags: Tags of the run by name.
        known: Whether the outcome was in the store before this session.
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
        """Create an object from the record of a point (configuration) that was just measured.

        Args:
            run_id: Identifier of the run.
            record: Content of the run: name, outcome, metrics, tags and so on.
        """
        family = record.params["model.name"]
        return cls(
            run_id, record.name, family, record.outcome, record.reason, record.metrics, record.tags
        )

    @classmethod
    def of(cls, family: str, values: Mapping[str, Any]) -> Self:
        """Create an object from the values of a stored run.

        Args:
            family: Model family, such as "fc".
            values: Name -> value of `run_id`, `name`, `outcome` and optionally `reason`, and of
                the run's tags (strings) and metrics (numbers).
        """
        tags = {key: value for key, value in values.items() if isinstance(value, str)}
        metrics = {key: float(value) for key, value in values.items() if key not in tags}
        run_id, name, outcome = (tags.pop(key) for key in ("run_id", "name", "outcome"))
        return cls(run_id, name, family, outcome, tags.pop("reason", None), metrics, tags)


@dataclass(frozen=True)
class DesignPoint:
    """One measurement of a point, requested by a sweep design; also called a visit.

    Attributes:
        point: The configuration to measure.
        tags: Additional tags of this measurement.
        excluded: Reason why the point counts as out of memory without a trial; None if it is to be
            measured.
        turns: Alternates blocks (steps that are timed together) of this point and of another point
            of the batch; None if the point is measured alone.
    """

    point: Point
    tags: Mapping[str, str]
    excluded: str | None = None
    turns: BlockTurns | None = None


@dataclass(frozen=True)
class DesignResult:
    """Result of a sweep design, stored in the parent run of the sweep.

    Attributes:
        text: Conclusion in Markdown; empty without one.
        metrics: Additional metrics of the parent run.
        tags: Additional tags of the parent run.
        artifacts: Path -> content of additional artifacts of the parent run.
    """

    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)


class SweepDesign:
    """Base class of adaptive sweep designs, which choose the next measurements after each batch.

    Attributes:
        points: One representative point per required worker process, so that the session can start
            the workers and describe their environments.
        resumes: Whether an outcome in the store replaces a measurement. If False, the session
            measures every point that the design chooses.
    """

    points: Sequence[Point]
    resumes: bool = True

    @property
    def left(self) -> int:
        """Maximum number of measurements that are still needed."""
        raise NotImplementedError

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit of the design; infinite if it has no time limit."""
        return math.inf

    @property
    def progress(self) -> str:
        """Short text about the result so far, for the status line; may be empty."""
        return ""

    def batch(self, rows: Sequence[RecordedPoint]) -> Sequence[DesignPoint]:
        """Return the next measurements in order; an empty batch ends the sweep.

        Args:
            rows: Points of the previous batch with their outcomes and metrics; empty in the first
                call.
        """
        raise NotImplementedError

    def wants(self, visit: DesignPoint, claimed: bool) -> bool:  # noqa: FBT001 - a callback
        """Return whether a measurement of the batch is still needed.

        The session claims (reserves) a configuration in the store before it measures it. It calls
        this method before and after the claim. If several drivers share a sweep, others may have
        claimed configurations in the meantime.

        Args:
            visit: The measurement.
            claimed: Whether this session has already claimed its configuration.
        """
        return True

    def conclusion(self) -> DesignResult:
        """Return the result of the design so far; also called after an interruption."""
        return DesignResult()


@dataclass
class Summary:
    """Summary of a session, which measures the points (configurations) of one command.

    Attributes:
        total: Number of points, including repeated ones.
        rows: The recorded points with their outcomes and metrics.
        skipped: Outcome -> number of points with this outcome that were in the store before.
        repeated: Number of points that repeat an earlier point of the sweep.
        interrupted: Whether the session was interrupted.
        seconds: Duration of the session in seconds.
        started: Start of the session in Unix seconds.
        where: Location of the store with the runs, as text.
        problem: Why results or points are missing, as text; empty if there is no problem.
        parent: Identifier of the sweep's parent run; empty without one.
        conclusion: Conclusion of the sweep's design in Markdown; empty without one.
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
        """Return the counts of outcomes, and of skipped, repeated and missing points as text."""
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
