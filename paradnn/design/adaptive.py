"""An adaptive sweep: before every batch the store is read, the model of step time fitted, and the next points chosen.

`Design` decides, for the code that measures: `paradnn.design.course` in this process, `paradnn.launch.rounds` through a
launcher.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradnn.config.point import Sweep
from paradnn.design.axes import Array
from paradnn.design.choose import first_points
from paradnn.design.knowledge import Knowledge
from paradnn.design.outlook import Outlook, deviations, outlook, with_measured
from paradnn.design.stop import Finding, Rule, drawn_weights, findings, growth_until_settled, median_error, strain
from paradnn.forecast.phases import point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Prediction
from paradnn.forecast.threads import one_thread

__all__ = ["Design", "Look", "rule_of", "start_size"]

#: The error at which a sweep ends to which no end is given.
USUAL_ERROR = 0.05
#: Fewest and most points of a batch that is measured here; choosing takes at most this share of measuring them.
_FEWEST, _MOST, _SHARE = 4, 24, 0.05
#: Draws of the whole space that conclusions are taken from, and of the seconds that a point takes.
_DRAWS, _TIMES = 1000, 20


def rule_of(settings: Sweep) -> Rule:
    """What ends the sweep that `settings` describe."""
    given = Rule(settings.points, settings.minutes, settings.error, settings.settled)
    return given if given != Rule() else Rule(error=USUAL_ERROR)


def start_size(axes: int) -> int:
    """Points that are spread over a space before the first is chosen: two for each axis, and some."""
    return 6 + 2 * axes


@dataclass(frozen=True)
class Look:
    """What was known at one moment: measured points, minutes since the command began, the median error expected of the
    others (None before anything is predicted), findings that are settled and all of them."""

    measured: int
    minutes: float
    error: float | None
    settled: int
    findings: int


@dataclass(frozen=True)
class _Forecast:
    """What the model says of the candidates: their step, (n,) seconds of measuring each, (n,) chance that it fits.

    strain: how many times larger its errors at measured points are, each left out, than it states.
    """

    step: Prediction
    strain: float
    seconds: Array
    fits: Array


@dataclass
class Design:
    """What is known, when it is enough, and what is measured next.

    begin: when the command began, on the monotonic clock. looks: one before every batch. reason: why the sweep is over;
    empty before. excluded: index -> why it is out of memory without being tried. found: conclusions so far. left: how
    many points more are expected. choosing: seconds that the last choice took.
    """

    knowledge: Knowledge
    rule: Rule
    seed: int
    begin: float = field(default_factory=time.monotonic)
    looks: list[Look] = field(default_factory=list)
    reason: str = ""
    excluded: dict[int, str] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)
    left: int = 0

    choosing: float = 0.0

    def next(self, largest: int | None = None, environments: Collection[str] = ()) -> list[int]:
        """Candidates to measure next, from what the store holds now; none once `reason` says why.

        While other drivers measure all that is left it waits for them: if one is killed, its points are for the others.
        `largest`: points of a batch that others measure, else as many as make choosing cheap. `environments` count too.
        """
        while True:
            self.knowledge.look(environments)
            chosen = self._choose(largest)
            if chosen or self.reason:
                return chosen
            time.sleep(random.uniform(0.5, 1.5))

    def wants_more(self) -> bool:
        """Whether a further point may be begun, as far as that is known: in time, and within `sweep.points`."""
        if self.rule.minutes is not None and time.monotonic() - self.begin >= 60 * self.rule.minutes:
            return False
        return self._room() > 0

    def has_room(self) -> bool:
        """Whether a point that was just claimed is within `sweep.points`, with all that other drivers have claimed.

        Of several that claim at once the last one sees all others. So no more points are kept than there is room for;
        perhaps fewer, and these are chosen again.
        """
        if self.rule.points is None:
            return True
        self.knowledge.look(read=False)
        return self.knowledge.tried + len(self.knowledge.claimed) <= self.rule.points

    @one_thread()
    def _choose(self, largest: int | None) -> list[int]:
        """Candidates to measure next; none where there is a `reason`, or others measure what is left."""
        begin = time.monotonic()
        knowledge = self.knowledge
        self.excluded = knowledge.too_large()
        gone = {*knowledge.ended, *self.excluded, *knowledge.unavailable()}
        every = np.arange(len(knowledge.candidates))
        unmeasured = ~np.isin(every, [*gone])
        allowed = unmeasured & ~np.isin(every, [*knowledge.claimed])
        forecast = self._forecast() if knowledge.past or self.rule.minutes is not None else None
        self._look(forecast, unmeasured)
        look = self.looks[-1]
        self.reason = self.rule.reached(look.measured, look.minutes, look.error, self.found) or self._exhausted(
            unmeasured
        )
        room = self._room()
        if self.reason or not allowed.any() or not room:
            self.left = 0
            return []
        chosen = self._chosen(forecast, unmeasured, allowed, min(room, largest or self._size(forecast, allowed)))
        self.choosing = time.monotonic() - begin
        return self._in_time(chosen, forecast) if largest is None else chosen

    @one_thread()
    def ahead(self, most: int) -> Outlook:
        """What up to `most` further points are expected to leave unknown, before any of them is measured."""
        self.knowledge.look()
        self.excluded = self.knowledge.too_large()
        forecast, every = self._forecast(), np.arange(len(self.knowledge.candidates))
        unmeasured = ~np.isin(every, [*self.knowledge.ended, *self.excluded])
        first = self._first()[: max(0, self._start - self.knowledge.tried)] if most else []
        first = [index for index in first if unmeasured[index]][:most]
        weights = np.where(unmeasured, forecast.fits, 0.0)
        return outlook(forecast.step, forecast.seconds, weights, unmeasured, most, looks=10, first=first)

    @property
    def standing(self) -> str:
        """What the last look knew, in a few words."""
        look = self.looks[-1]
        if look.error is None:
            return "a start spread over the space"
        words = [f"expected error {look.error:.1%}"]
        if look.findings:
            words.append(f"{look.settled} of {look.findings} conclusions settled")
        return ", ".join(words)

    def _forecast(self) -> _Forecast:
        runs, table = self.knowledge.runs(), self.knowledge.table()
        model = StepTimeModel.fit(runs)
        step, left_out = model.predict(table), model.left_out
        seconds = point_times(runs, table, _TIMES, steps=step).seconds.mean(axis=1)
        excess = strain(left_out.error, left_out.spread, left_out.freedom)
        return _Forecast(step, excess, seconds, self.knowledge.fits())

    def _look(self, forecast: _Forecast | None, unmeasured: NDArray[np.bool_]) -> None:
        """Note what is known; findings are asked for where they may end the sweep or the looks before had them."""
        error = None
        if forecast is not None and self.knowledge.past and self.knowledge.tried >= self._start:
            others = unmeasured & (forecast.fits > 0.5)
            spread = forecast.strain * deviations(forecast.step)
            error = median_error(spread[others]) if others.any() else None
            self.found = self._findings(forecast)
        minutes = (time.monotonic() - self.begin) / 60
        settled = sum(finding.settled for finding in self.found)
        self.looks.append(Look(self.knowledge.tried, minutes, error, settled, len(self.found)))

    @property
    def _start(self) -> int:
        most = self.rule.points or len(self.knowledge.candidates)
        return min(start_size(len(self.knowledge.candidates.axes)), max(2, most // 2))

    def _findings(self, forecast: _Forecast) -> list[Finding]:
        """Of each family what its speed depends on, over all candidates that are not out of memory."""
        table, step = self.knowledge.candidates.table, forecast.step
        batch = np.log(table.number("batch_size"))
        possible = ~np.isin(np.arange(len(table)), [*self.excluded])
        found = []
        for family, space in self.knowledge.candidates.families.items():
            kept = possible[space.indices]
            chosen, terms = space.indices[kept], space.terms[kept]
            if space.names and len(chosen) > len(space.names) + 1:
                part = replace(step, mean=step.mean[chosen], root=step.root[chosen], own=step.own[chosen])
                random = np.random.default_rng(self.seed)
                weights = drawn_weights(terms, part, batch[chosen], _DRAWS, random)
                of = f"{family}: " if len(self.knowledge.candidates.families) > 1 else ""
                found += [Finding(f"{of}{one.text}", one.share) for one in findings(space.names, weights)]
        return found

    def _exhausted(self, unmeasured: NDArray[np.bool_]) -> str:
        """Why there is nothing left to measure; empty where there is."""
        if unmeasured.any():
            return ""
        if not self.knowledge.tried:
            return "every point is out of memory"
        which = "every point that fits the memory is measured" if self.excluded else "every point is measured"
        return f"{which} before {' or '.join(self.rule.words)}"

    def _room(self) -> int:
        """How many points may still be begun, those that others measure now counted."""
        if self.rule.points is None:
            return len(self.knowledge.candidates)
        return max(0, self.rule.points - self.knowledge.tried - len(self.knowledge.claimed))

    def _size(self, forecast: _Forecast | None, allowed: NDArray[np.bool_]) -> int:
        """Points of the next batch: so many that choosing them costs little beside measuring them."""
        if forecast is None or self.knowledge.tried < self._start:
            return _MOST
        each = float(np.median(forecast.seconds[allowed]))
        return int(np.clip(math.ceil(self.choosing / _SHARE / each), _FEWEST, _MOST))

    def _chosen(
        self, forecast: _Forecast | None, unmeasured: NDArray[np.bool_], allowed: NDArray[np.bool_], count: int
    ) -> list[int]:
        missing = self._start - self.knowledge.tried
        if missing > 0 and (start := [index for index in self._first() if allowed[index]]):
            self.left = missing if self.rule.points is None else self._room()
            chosen = start[: min(count, missing)]
        elif forecast is None:  # all that was tried failed
            chosen = [int(index) for index in np.flatnonzero(allowed)[:count]]
        else:
            chosen = self._most_useful(forecast, unmeasured, allowed, count)
        random.Random(f"{self.seed} {self.knowledge.tried}").shuffle(chosen)
        return chosen

    def _first(self) -> list[int]:
        """Candidates that are spread over the space, what is known to be out of memory left out."""
        possible = [index for index in range(len(self.knowledge.candidates)) if index not in self.excluded]
        spread = first_points(self.knowledge.candidates.coordinates[possible], 2 * self._start, self.seed)
        return [possible[index] for index in spread]

    def _most_useful(
        self, forecast: _Forecast, unmeasured: NDArray[np.bool_], allowed: NDArray[np.bool_], count: int
    ) -> list[int]:
        step = with_measured(forecast.step, sorted(self.knowledge.claimed))
        # What may be out of memory teaches little, and need not be predicted.
        weights = np.where(unmeasured, forecast.fits, 0.0)
        seconds = forecast.seconds / np.maximum(forecast.fits, 1e-3)
        ahead = outlook(step, seconds, weights, allowed, min(count, self._room()), looks=3)
        self.left = self._expected_left(ahead, allowed)
        return list(ahead.order[:count])

    def _expected_left(self, ahead: Outlook, allowed: NDArray[np.bool_]) -> int:
        """How many points are left until the first rule that can be foretold ends the sweep."""
        ends = [int(allowed.sum()), self._room()]
        if self.rule.error is not None:
            ends.append(max(1, ahead.needed(self.rule.error, self.knowledge.tried)))
        if self.rule.settled and self.found:
            ends.append(max(1, round(self.knowledge.tried * (growth_until_settled(self.found) - 1))))
        if self.rule.minutes is not None and self.looks[-1].minutes > 0 and self._begun_with is not None:
            pace = (self.knowledge.tried - self._begun_with) / self.looks[-1].minutes
            ends.append(max(1, round(pace * (self.rule.minutes - self.looks[-1].minutes))))
        return min(ends)

    @property
    def _begun_with(self) -> int | None:
        """How many were measured when this command began, once it measured some itself."""
        return self.looks[0].measured if self.looks[-1].measured > self.looks[0].measured else None

    def _in_time(self, chosen: list[int], forecast: _Forecast | None) -> list[int]:
        """As many of them as `sweep.minutes` leaves time for."""
        if self.rule.minutes is None or forecast is None:
            return chosen
        ends = np.cumsum(forecast.seconds[chosen]) / 60 + self.looks[-1].minutes
        kept = chosen[: int((ends <= self.rule.minutes).sum())]
        if not kept:
            self.reason = f"sweep.minutes={self.rule.minutes:g}: the next point would take longer"
        return kept
