"""Points that are chosen while they are measured: what a session asks of the code that chooses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paradnn.config.point import Point
from paradnn.session.summary import Row

__all__ = ["Conclusion", "Course", "Visit"]


@dataclass(frozen=True)
class Visit:
    """One measurement of a point, and tags that its run has beside those of any point."""

    point: Point
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Conclusion:
    """What the parent run holds at the end beside counts and table: Markdown, metrics, artifacts as in a `Record`."""

    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)


class Course(Protocol):
    """Decides after each batch of measurements what is measured next."""

    @property
    def points(self) -> Sequence[Point]:
        """A point of every worker that will be needed."""

    @property
    def most(self) -> int:
        """How many measurements it asks for at most."""

    @property
    def standing(self) -> str:
        """What is known so far, in a few words; may be empty."""

    def batch(self, rows: Sequence[Row]) -> Sequence[Visit]:
        """What is measured next, in this order; nothing ends it. `rows` are those of the batch before, in order."""

    def conclusion(self) -> Conclusion:
        """What came of it, also of one that was interrupted."""
