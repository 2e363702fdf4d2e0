"""An adaptive sweep: before every batch the store is read, the model of step time fitted, and the next points chosen.

`AdaptiveSweep` decides, for the code that measures: a session in this process.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from paradnn.config.point import Point, Settings
from paradnn.config.tasks import SweepInfo
from paradnn.core.words import counted
from paradnn.designs.choice import Rule, choose, first_points, median_error, strain
from paradnn.designs.knowledge import Knowledge
from paradnn.forecast.history import open_history
from paradnn.forecast.phases import point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import one_thread
from paradnn.session.course import Conclusion, Row, Visit

#: The error at which a sweep ends to which no end is given.
_USUAL_ERROR = 0.05
#: Points of a batch that is measured here.
_BATCH = 8
#: Draws of the seconds that a point takes.
_TIMES = 20


def start_size(axes: int) -> int:
    """Points that are spread over a space before the first is chosen: two for each axis, and some."""
    return 6 + 2 * axes


class Look(NamedTuple):
    """What was known at one moment: measured points, minutes since the command began, the median error expected of the
    others (None before anything is predicted)."""

    measured: int
    minutes: float
    error: float | None


class AdaptiveSweep:
    """What is known, when it is enough, and what is measured next: a `paradnn.session.course.Course`.

    begin: when the command began, on the monotonic clock. looks: one before every batch. reason: why the sweep is over;
    empty before. excluded: index -> why it is out of memory without being tried. left: how many points more it may ask
    for.
    """

    resumes = True

    def __init__(self, points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> None:
        self.points, self.begin, given = points, time.monotonic(), settings.sweep
        rule = Rule(given.points, given.minutes, given.error)
        self.rule = rule if rule != Rule() else Rule(error=_USUAL_ERROR)
        self.looks: list[Look] = []
        self.excluded: dict[int, str] = {}
        self.reason, self.left = "", given.points or len(points)
        self._settings, self._sweep, self._ended = settings, sweep, False

    @cached_property
    def knowledge(self) -> Knowledge:
        """Asked for when stacks and store are there; nothing is read yet."""
        history = open_history(self._settings.tracking)
        return Knowledge(self.points, self._settings, history, self._sweep.sweep_id)

    @property
    def seconds_left(self) -> float:
        """What `sweep.minutes` leaves."""
        return math.inf if self.rule.minutes is None else 60 * (self.rule.minutes - self.minutes)

    @property
    def minutes(self) -> float:
        """Since the command began."""
        return (time.monotonic() - self.begin) / 60

    @property
    def room(self) -> float:
        """How many points may still be begun within `sweep.points`, those that others measure now counted."""
        most = math.inf if self.rule.points is None else self.rule.points
        return max(0, most - self.knowledge.tried - len(self.knowledge.claimed))

    @property
    def standing(self) -> str:
        """What the last look knew, in a few words."""
        if not self.looks:
            return ""
        error = self.looks[-1].error
        return "a start spread over the space" if error is None else f"expected error {error:.1%}"

    def batch(self, rows: Sequence[Row]) -> list[Visit]:
        """The next points; at the end, once, what memory excludes."""
        if self._ended:
            return []
        knowledge, points = self.knowledge, self.knowledge.points
        if rows and knowledge.lacks_ceilings:  # they came with the first point
            knowledge.describe()
        knowledge.take(rows)
        if chosen := self.next():
            return [Visit(points[index], {}) for index in chosen]
        self._ended = True
        return [Visit(points[index], {}, reason) for index, reason in self.excluded.items()]

    def wants(self, visit: Visit, claimed: bool) -> bool:
        """Whether a point is still to be measured: in time, and within `sweep.points` with all that others measure.

        It is asked once more when the point is claimed. Of several drivers that claim at once the last one sees all
        others. So no more points are kept than there is room for; perhaps fewer, and these are chosen again.
        """
        if visit.excluded:
            return True
        if not claimed:
            return self.seconds_left > 0 and self.room > 0
        if self.rule.points is None:
            return True
        self.knowledge.look(read=False)
        return self.knowledge.tried + len(self.knowledge.claimed) <= self.rule.points

    def next(self) -> list[int]:
        """Candidates to measure next, from what the store holds now; none once `reason` says why.

        While other drivers measure all that is left it waits for them: if one is killed, its points are for the others.
        """
        while True:
            self.knowledge.look()
            chosen = self._choose()
            if chosen or self.reason:
                return chosen
            time.sleep(random.uniform(0.5, 1.5))

    @one_thread()
    def _choose(self) -> list[int]:
        """Candidates to measure next; none where there is a `reason`, or others measure what is left."""
        knowledge, size = self.knowledge, len(self.knowledge.points)
        self.excluded, every = knowledge.too_large(), np.arange(size)
        unmeasured = ~np.isin(every, [*knowledge.ended, *self.excluded, *knowledge.unavailable()])
        allowed = unmeasured & ~np.isin(every, [*knowledge.claimed])
        # A start is spread over the space; then the points that teach most are chosen.
        start = min(start_size(len(knowledge.axes)), max(2, (self.rule.points or size) // 2))
        step, error = None, None
        if knowledge.past:
            runs = knowledge.runs()
            model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
            step = model.predict(knowledge.table)
            if knowledge.tried >= start and unmeasured.any():
                spread = np.sqrt((step.root[unmeasured] ** 2).sum(axis=1) + step.own[unmeasured])
                error = median_error(strain(model.left_out) * spread)
        look = Look(knowledge.tried, self.minutes, error)
        self.looks.append(look)
        self.reason = self.rule.reached(*look) or ("" if unmeasured.any() else self._exhausted())
        if self.reason or not allowed.any() or not self.room:
            self.left = 0
            return []
        self.left, count, chosen = int(min(allowed.sum(), self.room)), int(min(self.room, _BATCH)), []
        if knowledge.tried < start:  # what is known to be out of memory left out
            possible = np.flatnonzero(~np.isin(every, [*self.excluded]))
            spread_out = possible[first_points(knowledge.coordinates[possible], 2 * start, self._settings.sweep.seed)]
            chosen = spread_out[allowed[spread_out]][: min(count, start - knowledge.tried)].tolist()
        if not chosen and step is None:  # all that was tried failed
            chosen = np.flatnonzero(allowed)[:count].tolist()
        elif not chosen and step is not None:
            seconds = point_times(runs, knowledge.table, _TIMES, steps=step).seconds.mean(axis=1)
            chosen = choose(step, seconds, count, unmeasured.astype(float), allowed, sorted(knowledge.claimed))
        random.Random(f"{self._settings.sweep.seed} {knowledge.tried}").shuffle(chosen)
        return chosen

    def _exhausted(self) -> str:
        """Why there is nothing left to measure."""
        if not self.knowledge.tried:
            return "every point is out of memory"
        which = "every point that fits the memory is measured" if self.excluded else "every point is measured"
        return f"{which} before {' or '.join(self.rule.words)}"

    def conclusion(self) -> Conclusion:
        """The whole design, whichever session or driver measured it."""
        if not self.looks:
            return Conclusion()
        look, space, ended = self.looks[-1], len(self.knowledge.points), self.knowledge.ended
        large = sum(one.outcome.startswith("oom") for one in ended.values()) + len(self.excluded.keys() - ended.keys())
        text = f"Adaptive: {look.measured:,} of {counted(space, 'point')} measured ({look.measured / space:.1%})"
        text += f", {large:,} out of memory." if large else "."
        metrics = {"design_candidates": float(space), "design_measured": float(look.measured)}
        if look.error is not None:
            text += f" Expected median error of the others: {look.error:.1%}."
            metrics["design_expected_error"] = look.error
        text += f" Ended by {self.reason}." if self.reason else " Interrupted."
        tags = {"design": "adaptive", "design_end": self.reason or "interrupted"}
        looks = {"columns": [*Look._fields], "data": [*map(list, self.looks)]}
        return Conclusion(text, metrics, tags, {"design.json": looks})
