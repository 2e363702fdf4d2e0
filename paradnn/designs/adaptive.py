"""An adaptive sweep: before every batch the store is read, the model of step time fitted, and the next points chosen.

`Design` decides, for the code that measures: `AdaptiveSweep` in this process, `paradnn.launch.submit` through a
launcher. `lookahead` says what measuring further points would leave unknown: the variances of a joint normal need no
measured values.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from paradnn.cli.console import standard_output
from paradnn.config.point import Point, Settings, Sweep
from paradnn.core.words import counted
from paradnn.designs.knowledge import Candidates, Knowledge
from paradnn.designs.stop import Finding, Rule, drawn_weights, findings, growth_until_settled, median_error, strain
from paradnn.forecast.history import open_history
from paradnn.forecast.phases import point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.regression import Array, Prediction, one_thread
from paradnn.forecast.text import duration, table_of
from paradnn.session.course import Conclusion, Visit
from paradnn.session.summary import Row
from paradnn.sweep.tasks import SweepInfo

__all__ = [
    "AdaptiveSweep",
    "Design",
    "Lookahead",
    "Snapshot",
    "choose",
    "conclusion_of",
    "describe_ahead",
    "deviations",
    "first_points",
    "lookahead",
    "open_design",
    "rule_of",
    "start_size",
    "with_measured",
]


def choose(
    posterior: Prediction,
    seconds: Array,
    count: int,
    weights: Array | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Up to `count` indices of candidates (n,), the most useful first.

    seconds: (n,) that measuring a candidate is expected to take. weights: (n,) how much a candidate matters, 1 each
    unless given; 0 for what is not to be predicted, such as what runs out of memory. allowed: (n,) what may be
    chosen, all unless given: what was measured still counts in the variance, and is no candidate.
    """
    size = len(posterior.mean)
    weight = (1.0 if weights is None else weights) / posterior.spread**2
    open_ = np.ones(size, dtype=bool) if allowed is None else allowed.copy()
    root, own = posterior.root, posterior.own.copy()
    gram = (root * weight[:, None]).T @ root  # (k, k)
    core = np.eye(root.shape[1])  # covariance is root @ core @ root.T, and `own` beside it
    learnt = ((root @ gram) * root).sum(axis=1)  # (n,) of sum_i weight_i covariance_ij^2
    variance = (root * root).sum(axis=1)
    same = np.bincount(posterior.group, weight, minlength=size)[posterior.group]
    chosen: list[int] = []
    while len(chosen) < count and open_.any():
        # What a candidate shares with its own replicates alone: a second term of the same sum.
        alone = own * same * (2 * variance + own)
        worth = (learnt + alone) / (variance + own + posterior.noise**2) / seconds
        best = int(np.argmax(np.where(open_, worth, -np.inf)))
        chosen.append(best)
        open_[best] = False
        total = variance[best] + own[best] + posterior.noise**2
        step = core @ root[best] / np.sqrt(total)
        # What is measured need not be predicted any more, nor its replicates.
        gram -= same[best] * np.outer(root[best], root[best])
        turned = core @ (gram @ step)
        along, across = (root @ np.stack([step, turned], axis=1)).T
        learnt -= same[best] * total * along**2
        kin = posterior.group == posterior.group[best]
        same[kin] = 0.0
        # (core - s s') gram (core - s s') = core gram core - s t' - t s' + s (s' gram s) s'
        learnt += along * (along * float(step @ gram @ step) - 2 * across)
        variance -= along**2
        core -= np.outer(step, step)
        own[kin] *= 1 - own[best] / total
    return chosen


def first_points(coordinates: Array, count: int, seed: int) -> list[int]:
    """Up to `count` indices of candidates (n, k) that fill their space evenly, without repetition, in a random order.

    A scrambled Sobol sequence (Owen, 1998) over the ranks of each coordinate's values; each of its points takes the
    nearest candidate that is still free.
    """
    from scipy.stats import qmc

    size = len(coordinates)
    if count >= size:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)]
    places = [np.unique(column, return_inverse=True) for column in coordinates.T]
    varying = [(number + 0.5) / len(values) for values, number in places if len(values) > 1]
    if not varying:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)[:count]]
    unit = np.stack(varying, axis=1)  # (n, k) in 0..1
    draws = qmc.Sobol(unit.shape[1], rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    free, chosen = np.ones(size, dtype=bool), []
    for draw in draws:
        distance = np.where(free, ((unit - draw) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(distance)))
        free[chosen[-1]] = False
    return chosen


@dataclass(frozen=True)
class Lookahead:
    """Further points, the most useful first, and what is expected after some of them.

    order: indices of candidates. counts: numbers of further points, from 0. errors: expected median error after each
    count. seconds: expected seconds of measuring them.
    """

    order: Sequence[int]
    counts: Sequence[int]
    errors: Sequence[float]
    seconds: Sequence[float]

    def needed(self, error: float, known: int) -> int:
        """How many further points it takes until the error is that small, where `known` are measured.

        Beyond these points errors fall by the power of the number of points by which they fell last.
        """
        last = zip(self.counts[-2:], self.errors[-2:], strict=True)
        for count, found in zip(self.counts, self.errors, strict=True):
            if found <= error:
                return count
        (one, high), *rest = [(known + count, found) for count, found in last]
        power = np.log(high / rest[0][1]) / np.log(rest[0][0] / one) if rest and one else 0.5
        end, found = self.counts[-1] + known, self.errors[-1]
        return int(end * (found / error) ** (1 / max(power, 0.1))) - known


def deviations(prediction: Prediction, measured: Sequence[int] = ()) -> Array:
    """(n,) standard deviations of the logarithm of each point's step, without the noise of measuring it, once the
    points with the indices `measured` are measured too."""
    root, chosen = prediction.root, list(measured)
    variance, own = (root**2).sum(axis=1), prediction.own
    if chosen:
        rows = _observed(prediction, chosen)
        lower = cholesky(np.eye(len(chosen)) + rows @ rows.T, lower=True)
        variance = variance - (solve_triangular(lower, rows @ root.T, lower=True) ** 2).sum(axis=0)
        own = _own_after(prediction, chosen)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0) + own))


def with_measured(prediction: Prediction, indices: Sequence[int]) -> Prediction:
    """The prediction once these points are measured too, but for its mean, which their values would decide.

    Latent normals w, of which a point's log seconds are root @ w, get the precision I + sum(r r' / (own + noise^2)).
    """
    chosen = list(indices)
    if not chosen:
        return prediction
    root, rows = prediction.root, _observed(prediction, chosen)
    values, vectors = np.linalg.eigh(np.eye(root.shape[1]) + rows.T @ rows)
    return replace(prediction, root=np.asarray(root @ (vectors / np.sqrt(values))), own=_own_after(prediction, chosen))


def _observed(prediction: Prediction, chosen: Sequence[int]) -> Array:
    """(m, k) rows of points in units of what measuring them does not tell of the others."""
    scale = np.sqrt(prediction.own[chosen] + prediction.noise**2)
    return np.asarray(prediction.root[chosen] / scale[:, None])


def _own_after(prediction: Prediction, chosen: Sequence[int]) -> Array:
    """(n,) variances of what is peculiar to a point, once these are measured: their replicates share it."""
    left = prediction.own.copy()
    for index in chosen:
        kin = prediction.group == prediction.group[index]
        left[kin] *= prediction.noise**2 / (left[index] + prediction.noise**2 + 1e-300)
    return left


def lookahead(
    prediction: Prediction,
    seconds: Array,
    weights: Array,
    allowed: NDArray[np.bool_],
    most: int,
    looks: int,
    first: Sequence[int] = (),
) -> Lookahead:
    """What up to `most` further points would leave unknown of candidates: `first`, and then as `choose` chooses them.

    seconds: (n,) expected of measuring each. weights: (n,), 0 for what is not to be predicted. allowed: (n,) what may
    be measured. `looks`: at how many numbers of points.
    """
    others = allowed & ~np.isin(np.arange(len(allowed)), first)
    order = [*first, *choose(with_measured(prediction, first), seconds, most - len(first), weights, others)]
    counts = sorted(
        {0, *(round(mark) for mark in np.geomspace(max(1, len(first)), max(len(order), 1), looks) if order)}
    )
    errors = []
    for count in counts:
        left = allowed & (weights > 0)
        left[order[:count]] = False
        errors.append(median_error(deviations(prediction, order[:count])[left]))
    spent = np.concatenate([[0.0], np.cumsum(seconds[order])])
    return Lookahead(order, counts, errors, [float(spent[count]) for count in counts])


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
class Snapshot:
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
    looks: list[Snapshot] = field(default_factory=list)
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
    def ahead(self, most: int) -> Lookahead:
        """What up to `most` further points are expected to leave unknown, before any of them is measured."""
        self.knowledge.look()
        self.excluded = self.knowledge.too_large()
        forecast, every = self._forecast(), np.arange(len(self.knowledge.candidates))
        unmeasured = ~np.isin(every, [*self.knowledge.ended, *self.excluded])
        first = self._first()[: max(0, self._start - self.knowledge.tried)] if most else []
        first = [index for index in first if unmeasured[index]][:most]
        weights = np.where(unmeasured, forecast.fits, 0.0)
        return lookahead(forecast.step, forecast.seconds, weights, unmeasured, most, looks=10, first=first)

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
        self.looks.append(Snapshot(self.knowledge.tried, minutes, error, settled, len(self.found)))

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
        ahead = lookahead(step, seconds, weights, allowed, min(count, self._room()), looks=3)
        self.left = self._expected_left(ahead, allowed)
        return list(ahead.order[:count])

    def _expected_left(self, ahead: Lookahead, allowed: NDArray[np.bool_]) -> int:
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


#: As many further points are looked at, and no more than the first share of the space where that is more.
_MOST_AHEAD, _SHARE_AHEAD = 300, 0.1


def describe_ahead(points: Sequence[Point], settings: Settings) -> None:
    """Print the expected error after some further points, with the time until then on one host."""
    design = open_design(points, settings, SweepInfo("", "", ""), time.monotonic(), anywhere=False)
    rule, space = design.rule, len(design.knowledge.candidates)
    ahead = design.ahead(rule.points or max(_MOST_AHEAD, int(_SHARE_AHEAD * space)))
    console = standard_output()
    known = design.knowledge.tried
    console.print(
        f"\nAdaptive, until {' or '.join(rule.words)}; {known:,} of {counted(space, 'point')} measured so far."
    )
    shown = table_of("further points", "of the space", "expected error", "expected time")
    for count, error, seconds in zip(ahead.counts, ahead.errors, ahead.seconds, strict=True):
        shown.add_row(f"{count:,}", f"{(known + count) / space:.1%}", f"{error:.1%}", duration(seconds))
        if (rule.error and error <= rule.error) or (rule.minutes and seconds / 60 >= rule.minutes):
            break
    console.print(shown)
    if rule.error and min(ahead.errors) > rule.error:
        needed = min(ahead.needed(rule.error, known), space - known)
        console.print(f"An error of {rule.error:.1%} is expected after about {counted(needed, 'further point')}.")
    console.print("Errors are those that the model expects of itself; measuring corrects it.", style="dim")
