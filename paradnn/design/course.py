"""An adaptive sweep as a session measures it: batch after batch, and at the end what it came to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paradnn.config.point import Point, Settings
from paradnn.core.words import counted
from paradnn.design.adaptive import Design, rule_of
from paradnn.design.knowledge import Candidates, Knowledge
from paradnn.forecast.history import open_history
from paradnn.session.course import Conclusion, Visit
from paradnn.session.summary import Row
from paradnn.sweep.tasks import SweepInfo

__all__ = ["AdaptiveSweep", "conclusion_of", "open_design"]


def open_design(points: Sequence[Point], settings: Settings, sweep: SweepInfo, begin: float, anywhere: bool) -> Design:
    """The design of a sweep over `points`, with nothing read yet; see `Knowledge` for `anywhere`."""
    history = open_history(settings.tracking)
    candidates = Candidates.of(points, settings, history, anywhere)
    knowledge = Knowledge(candidates, settings, history, sweep.sweep_id, anywhere)
    return Design(knowledge, rule_of(settings.sweep), settings.sweep.seed, begin)


class AdaptiveSweep:
    """A `paradnn.session.course.Course`: what another driver or an earlier session measured is as good as its own."""

    resumes = True

    def __init__(self, points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> None:
        self.points = points
        self._settings, self._sweep, self._begin = settings, sweep, time.monotonic()
        self._design: Design | None = None
        self._ended = False

    @property
    def left(self) -> int:
        """As far as it is known before the first look: the end in points, or every point."""
        return self._design.left if self._design else self._settings.sweep.points or len(self.points)

    @property
    def seconds_left(self) -> float:
        """What `sweep.minutes` leaves."""
        minutes = self._settings.sweep.minutes
        return math.inf if minutes is None else self._begin + 60 * minutes - time.monotonic()

    @property
    def standing(self) -> str:
        """The expected error and how many conclusions are settled."""
        return self._design.standing if self._design else ""

    def batch(self, rows: Sequence[Row]) -> list[Visit]:
        """The next points; at the end, once, what memory excludes."""
        if self._ended:
            return []
        if self._design is None:
            # Stacks and store are there by now.
            self._design = open_design(self.points, self._settings, self._sweep, self._begin, anywhere=False)
        knowledge = self._design.knowledge
        if rows and knowledge.candidates.lacks_ceilings:  # they came with the first point
            knowledge.candidates = Candidates.of(self.points, self._settings, open_history(self._settings.tracking))
        knowledge.take(rows)
        points = knowledge.candidates.points
        if chosen := self._design.next():
            return [Visit(points[index], {}) for index in chosen]
        self._ended = True
        return [Visit(points[index], {}, reason) for index, reason in self._design.excluded.items()]

    def wants(self, visit: Visit, claimed: bool) -> bool:
        """Whether other drivers left room for the point since it was chosen."""
        if visit.excluded or self._design is None:
            return True
        return self._design.has_room() if claimed else self._design.wants_more()

    def conclusion(self) -> Conclusion:
        """The whole design, whichever session or driver measured it."""
        return conclusion_of(self._design) if self._design else Conclusion()


def conclusion_of(design: Design) -> Conclusion:
    """What a design came to, for its parent run."""
    if not design.looks:
        return Conclusion()
    look, space = design.looks[-1], len(design.knowledge.candidates)
    large = sum(ended.outcome.startswith("oom") for ended in design.knowledge.ended.values())
    large += len(design.excluded.keys() - design.knowledge.ended.keys())
    text = f"Adaptive: {look.measured:,} of {counted(space, 'point')} measured ({look.measured / space:.1%})"
    text += f", {large:,} out of memory." if large else "."
    if look.error is not None:
        text += f" Expected median error of the others: {look.error:.1%}."
    text += f" Ended by {design.reason}." if design.reason else " Interrupted."
    told = [f"- {finding.text} ({finding.share:.0%})" for finding in design.found]
    metrics = {
        "design_candidates": float(space),
        "design_measured": float(look.measured),
        "design_findings": float(look.findings),
        "design_settled": float(look.settled),
    }
    metrics |= {"design_expected_error": look.error} if look.error is not None else {}
    columns = list(asdict(look))
    table: dict[str, Any] = {
        "columns": columns,
        "data": [[asdict(entry)[name] for name in columns] for entry in design.looks],
    }
    tags = {"design": "adaptive", "design_end": design.reason or "interrupted"}
    return Conclusion("\n".join([text, "", *told]).strip(), metrics, tags, {"design.json": table})
