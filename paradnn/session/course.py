"""Points that are chosen while they are measured: what a session asks of the code that chooses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paradnn.config.point import Point
from paradnn.execution.turns import Turns
from paradnn.session.summary import Row


@dataclass(frozen=True)
class Visit:
    """One measurement of a point, and tags that its run has beside those of any point. excluded: why the point is out
    of memory without being tried; None where it is to be measured. turns: what it shares with the visit beside it, the
    two being measured at once, a block of each by turns; None where it is measured alone."""

    point: Point
    tags: Mapping[str, str]
    excluded: str | None = None
    turns: Turns | None = None


@dataclass(frozen=True)
class Conclusion:
    """What the parent run holds at the end beside counts and table: Markdown, metrics, tags, artifacts."""

    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)


class Course(Protocol):
    """Decides after each batch of measurements what is measured next."""

    @property
    def points(self) -> Sequence[Point]:
        """A point of every worker that will be needed."""

    @property
    def resumes(self) -> bool:
        """Whether points that the store holds are as good as measured; else each visit is a measurement of its own."""

    @property
    def left(self) -> int:
        """How many measurements it still asks for, at most."""

    @property
    def seconds_left(self) -> float:
        """How long it still asks for measurements: infinite where time does not end it."""

    @property
    def standing(self) -> str:
        """What is known so far, in a few words; may be empty."""

    def batch(self, rows: Sequence[Row]) -> Sequence[Visit]:
        """What is measured next, in this order; nothing ends it. `rows` are those of the batch before, as they ended,
        but for visits whose point another driver measures or has measured."""

    def wants(self, visit: Visit, claimed: bool) -> bool:
        """Whether a visit of the batch is still to be made: asked before its point is claimed, and once it is."""

    def conclusion(self) -> Conclusion:
        """What came of it, also of one that was interrupted."""
