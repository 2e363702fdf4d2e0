"""What a session asks of the code that chooses points while others are measured, and what became of
all of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from paradnn.config.point import Point
from paradnn.session.turns import BlockTurns
from paradnn.store.runs import Record


@dataclass(frozen=True)
class RecordedPoint:
    """One point of a session and its run; `known`: the store held the outcome already."""

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
        """The row of a point that was recorded just now."""
        family = record.params["model.name"]
        return cls(
            run_id, record.name, family, record.outcome, record.reason, record.metrics, record.tags
        )

    @classmethod
    def of(cls, family: str, values: Mapping[str, Any]) -> Self:
        """The row of a stored run: its id, name, tags (texts) and metrics in one mapping."""
        tags = {key: value for key, value in values.items() if isinstance(value, str)}
        metrics = {key: float(value) for key, value in values.items() if key not in tags}
        run_id, name, outcome = (tags.pop(key) for key in ("run_id", "name", "outcome"))
        return cls(run_id, name, family, outcome, tags.pop("reason", None), metrics, tags)


@dataclass(frozen=True)
class DesignPoint:
    """One measurement of a point, with tags of its own. excluded: why it is out of memory without
    being tried. turns: what it shares with the visit beside it, which is measured by turns with it.
    """

    point: Point
    tags: Mapping[str, str]
    excluded: str | None = None
    turns: BlockTurns | None = None


@dataclass(frozen=True)
class DesignResult:
    """What the parent run holds at the end beside counts and table: Markdown, metrics, tags,
    artifacts.
    """

    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)


class SweepDesign:
    """Decides after each batch of measurements what is measured next. points: one of every worker
    that will be needed. resumes: whether points that the store holds are as good as measured; else
    each visit is a measurement of its own.
    """

    points: Sequence[Point]
    resumes: bool = True

    @property
    def left(self) -> int:
        """How many measurements it still asks for, at most."""
        raise NotImplementedError

    @property
    def seconds_left(self) -> float:
        """How long it still asks for measurements: infinite where time does not end it."""
        return math.inf

    @property
    def progress(self) -> str:
        """What is known so far, in a few words; may be empty."""
        return ""

    def batch(self, rows: Sequence[RecordedPoint]) -> Sequence[DesignPoint]:
        """What is measured next, in this order; nothing ends it. `rows`: how those ended that were
        measured last.
        """
        raise NotImplementedError

    def wants(self, visit: DesignPoint, claimed: bool) -> bool:
        """Whether a visit of the batch is still to be made: asked before its point is claimed, and
        once it is.
        """
        return True

    def conclusion(self) -> DesignResult:
        """What came of it, also of one that was interrupted."""
        return DesignResult()


@dataclass
class Summary:
    """Rows of the measured points, and counts of those that needed none: `skipped` outcomes that
    the store held, points that are `repeated` in the sweep. parent: the parent run's id. problem:
    what happened to recorded results that were deleted, as text.
    conclusion: in Markdown.
    """

    total: int = 0
    rows: list[RecordedPoint] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    where: str = ""
    problem: str = ""
    parent: str = ""
    conclusion: str = ""

    @property
    def outcomes(self) -> Counter[str]:
        """How many points this session measured with each outcome."""
        return Counter(row.outcome for row in self.rows if not row.known)

    @property
    def measured(self) -> int:
        """Points measured by this session."""
        return self.outcomes.total()

    @property
    def missing(self) -> int:
        """Points without an outcome."""
        return self.total - self.measured - self.skipped.total() - self.repeated

    @property
    def exit_code(self) -> int:
        """Exit code of the command.

        130 after an interruption, 1 if a point has no outcome or recorded results were deleted,
        else 0.
        """
        if self.interrupted:
            return 130
        return 1 if self.missing > 0 or self.problem else 0

    def counts(self) -> str:
        """What became of the points, in words."""
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
            parts.append(f"{self.repeated} named twice")
        if self.missing:
            parts.append(f"{self.missing} not measured")
        return "; ".join(parts)
