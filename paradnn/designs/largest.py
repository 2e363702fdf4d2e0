"""Search for the largest batch or model within limits of memory and time.

`batch_size=largest` doubles the batch size until an attempt fails, then bisects.
`largest.of=model.nodes` searches for the largest model by one of its sizes instead.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from paradnn.config.identity import Identity, point_id
from paradnn.config.point import Point, step_costs
from paradnn.config.settings import Settings
from paradnn.core.errors import ConfigError
from paradnn.core.words import rounded
from paradnn.forecast.history import History, open_history
from paradnn.platform.environment import memory_limit
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, SweepDesign
from paradnn.session.environments import current_environments
from paradnn.session.record import run_name
from paradnn.session.workers import WorkerKey
from paradnn.store.runs import ResumePolicy

#: A search starts where the analytic bound is this share of the memory.
_INITIAL_MEMORY_SHARE = 0.25
#: First batch size if the analytic bound is unknown.
_INITIAL_BATCH_SIZE = 64
#: Largest size to try; no framework supports larger shapes.
_MAX_SIZE = 2**39
#: Outcome of a size that the model cannot have.
_INVALID = "refused"
_TOO_LARGE = ("oom_host", "oom_device", "oom_predicted", "timeout", _INVALID)


@dataclass
class Search:
    """Bracketing search for the largest size at which one configuration (point) fits.

    Attributes:
        unit: All sizes are multiples of this number.
        begin: The first size to try.
        within: Gap between `fits` and `fails`, relative to `fits`, at which the search ends.
        fits: The largest size that is known to fit; 0 if unknown.
        fails: The smallest size that is known to fail; None if unknown.
        problem: Why the search cannot succeed; empty if it can.
    """

    unit: int
    begin: int
    within: float
    fits: int = 0
    fails: int | None = None
    problem: str = ""

    def next(self) -> int | None:
        """Return the size to try next; None once the search has ended."""
        if self.problem or self.fits >= _MAX_SIZE:
            return None
        if self.fails is None:
            return 2 * self.fits or self.begin
        if self.fails - self.fits <= max(self.unit, self.within * self.fits):
            return None
        middle = (self.fits + self.fails) // 2
        return max(self.fits + self.unit, middle // self.unit * self.unit)

    def take(self, size: int, *, fits: bool) -> None:
        """Record whether a tried size fits."""
        if fits:
            self.fits = max(self.fits, size)
        elif self.fails is None:
            self.fails = size
        else:
            self.fails = min(self.fails, size)

    @property
    def left(self) -> int:
        """Estimated number of further attempts."""
        if self.next() is None:
            return 0
        if self.fails is None:
            return 6
        gap = (self.fails - self.fits) / max(self.unit, self.within * self.fits)
        return max(1, math.ceil(math.log2(gap)))


class _SizeResult(NamedTuple):
    """Outcome of a point with one size, and its metrics."""

    outcome: str
    reason: str
    metrics: Mapping[str, float]


class LargestBatch(SweepDesign):
    """Sweep design that searches for the largest batch size or model size that fits.

    Each point (configuration) of the sweep has a separate search. All tried sizes are multiples of
    the size that the point specifies.

    Args:
        points: Points of the sweep.
        settings: Settings of the session, including the searched size and the time limits.
    """

    def __init__(self, points: Sequence[Point], settings: Settings) -> None:
        self.points = points
        self._settings = settings
        self._limits = settings.largest
        self._key = self._limits.of.removeprefix("model.")
        self._is_batch = self._key == "batch_size"
        self._searches = [self._new_search(point) for point in points]
        self._policy = ResumePolicy(settings.resume, settings.retry)
        #: (Index of a point, size) -> result of the attempt.
        self._attempts: dict[tuple[int, int], _SizeResult] = {}
        self._current: tuple[int, int] | None = None
        self._requirement = self._describe_requirement()

    def _new_search(self, point: Point) -> Search:
        size = point.batch_size if self._is_batch else getattr(point.model, self._key)
        if self._limits.has_time_limit or not self._is_batch:
            begin = size
        else:
            begin = _first_batch(point)
        return Search(size, begin, self._limits.within)

    def _describe_requirement(self) -> str:
        limits = {"steps": self._limits.step_ms, "a p90 latency": self._limits.latency_ms}
        requirements = [
            f"{name} of at most {limit:g} ms" for name, limit in limits.items() if limit is not None
        ]
        if requirements:
            return f"fits with {' and '.join(requirements)}"
        return "fits"

    @cached_property
    def _history(self) -> History:
        """History of the store, opened on first use, when the stacks and the store exist."""
        return open_history(self._settings.tracking)

    @cached_property
    def _environment_ids(self) -> Mapping[WorkerKey, str]:
        """Worker -> id of its environment; workers whose stack cannot be installed are absent."""
        return {
            key: environment.environment_id
            for key, environment in current_environments(self.points).items()
            if environment
        }

    @property
    def left(self) -> int:
        """Estimated number of further measurements."""
        return sum(search.left for search in self._searches)

    @property
    def progress(self) -> str:
        """The largest size that fits and the smallest that does not, in the first open search."""
        search = next((search for search in self._searches if search.next()), self._searches[-1])
        bracket = f"{search.fits:,} {self._requirement}"
        if search.fails:
            bracket += f", {search.fails:,} does not"
        return bracket

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the next attempt; an empty list if all searches have ended.

        Args:
            rows: The result of the previous attempt; empty at the start, or if another driver
                measures that point.
        """
        for row in rows:
            assert self._current
            attempt = _SizeResult(row.outcome, row.reason or "", row.metrics)
            self._take(*self._current, attempt)
        if self._current and not rows:
            time.sleep(1.0)  # another driver measures the requested point
        while self._take_stored():
            pass
        self._current = next(iter(self._next_sizes()), None)
        if self._current:
            return [DesignPoint(self._point(*self._current), {"search": "largest"})]
        return []

    def conclusion(self) -> DesignResult:
        """Return a text with the largest size that fits and the smallest that failed, per point."""
        answers = [f"- {self._answer(index)}" for index in range(len(self.points))]
        return DesignResult("\n".join(answers))

    def _next_sizes(self) -> list[tuple[int, int]]:
        """Return the next attempt of each unfinished search: index of the point, and size.

        A size that the model cannot have counts as too large.
        """
        sizes = []
        for index, search in enumerate(self._searches):
            while size := search.next():
                try:
                    self._point(index, size)
                except ConfigError as error:
                    self._take(index, size, _SizeResult(_INVALID, str(error), {}))
                else:
                    sizes.append((index, size))
                    break
        return sizes

    def _point(self, index: int, size: int) -> Point:
        """Return a copy of a point with the given size.

        Raises:
            ConfigError: If the model cannot have this size.
        """
        point = self.points[index]
        if self._is_batch:
            return replace(point, batch_size=size)
        keys = {**vars(point.model), self._key: size}
        return replace(point, model=type(point.model).from_config(keys))

    def _take(self, index: int, size: int, attempt: _SizeResult) -> None:
        """Record the result of an attempt, and update the search of its point."""
        self._attempts[index, size] = attempt
        search = self._searches[index]
        if attempt.outcome in ("ok", "nan"):
            search.take(size, fits=self._limits.fits(attempt.metrics))
        elif attempt.outcome in _TOO_LARGE:
            search.take(size, fits=False)
        else:
            search.problem = f"{attempt.outcome}: {attempt.reason}"

    def _take_stored(self) -> bool:
        """Record the next attempts whose results the store already has.

        Returns:
            Whether the store had the result of any attempt.
        """
        next_sizes = self._next_sizes()
        if not next_sizes or not self._policy.queries_store:
            return False
        finished = self._history.finished(set(self._environment_ids.values()))
        has_stored = False
        for index, size in next_sizes:
            point = self._point(index, size)
            environment_id = self._environment_ids.get(WorkerKey.of(point), "")
            identity = Identity(point_id(point), environment_id, point.replicate)
            run = self._policy.first(point, finished.get(identity, ()))
            if not run:
                continue
            has_stored = True
            outcome = run.tags["outcome"]
            metrics = self._history.metrics(run.run_id) if outcome == "ok" else {}
            self._take(index, size, _SizeResult(outcome, run.tags.get("reason", ""), metrics))
        return has_stored

    def _answer(self, index: int) -> str:
        """Return the answer for one point as one line of text."""
        search = self._searches[index]
        point = self._point(index, search.fits) if search.fits else self.points[index]
        size_name = self._key
        name = run_name(point)
        if self._is_batch:
            size_name = "batch"
            name = name.replace(f" b{point.batch_size} ", " ")
        if search.problem:
            return f"{name}: no largest {size_name} was found: {search.problem}"
        failure = ""
        if search.fails is not None:
            failure = f"; {search.fails:,}: {self._describe(index, search.fails)}"
        if not search.fits:
            return f"{name}: no {size_name} {self._requirement}{failure}"
        bound = "" if search.next() is None else "at least "
        result = self._describe(index, search.fits)
        return f"{name}: largest {size_name} {bound}{search.fits:,}: {result}{failure}"

    def _describe(self, index: int, size: int) -> str:
        """Return the result of an attempt as text."""
        outcome, reason, metrics = self._attempts[index, size]
        if outcome == _INVALID:
            return reason
        if outcome != "ok":
            return outcome
        step_ms = rounded(metrics["step_time_ms"])
        text = f"{step_ms} ms a step, {rounded(metrics['examples_per_second'])} examples/s"
        if self._limits.latency_ms is not None:
            names = ("latency_p90_ms", "latency_p90_low_ms", "latency_p90_high_ms")
            p90, low, high = (f"{metrics.get(name, math.nan):,.3f}" for name in names)
            text = f"p90 {p90} ms ({low} to {high}), {text}"
        memory = metrics.get("peak_device_memory_bytes") or metrics.get("peak_memory_bytes")
        if memory:
            text += f", {memory / 2**30:.2f} GiB at the peak"
        return text


def _first_batch(point: Point) -> int:
    """Return the batch size with which a search starts.

    It is the batch size of the point times a power of two, or another multiple of it.
    """
    size = point.batch_size
    if point.platform.name != "cpu" or not step_costs(point).memory_lower_bound_bytes:
        return size * max(1, _INITIAL_BATCH_SIZE // size)
    memory = _INITIAL_MEMORY_SHARE * memory_limit(point)
    while size < _MAX_SIZE:
        doubled = replace(point, batch_size=2 * size)
        if step_costs(doubled).memory_lower_bound_bytes > memory:
            break
        size *= 2
    return size
