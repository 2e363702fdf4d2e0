"""`batch_size=largest`: the largest batch that fits memory, or whose step is short enough:
doubling, then bisection. With `largest.of=model.nodes` the largest model, by one of its sizes.
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

#: A search begins where the analytic bound is this share of the memory; where that says nothing,
#: with so many examples.
_SHARE = 0.25
_USUAL = 64
#: No framework has larger shapes.
_END = 2**39
_REFUSED = "refused"  # a size that the model cannot have
_TOO_LARGE = ("oom_host", "oom_device", "oom_predicted", "timeout", _REFUSED)


@dataclass
class Search:
    """The search of one point.

    unit: sizes are multiples of it. begin: the first that is tried. within: how near, as a share,
    what fits and what does not shall come. fits: the largest known to fit, 0 for none. fails: the
    smallest known not to, None for none. problem: why it cannot be found.
    """

    unit: int
    begin: int
    within: float
    fits: int = 0
    fails: int | None = None
    problem: str = ""

    def next(self) -> int | None:
        """The batch to try next; None once the answer is known."""
        if self.problem or self.fits >= _END:
            return None
        if self.fails is None:
            return 2 * self.fits or self.begin
        if self.fails - self.fits <= max(self.unit, self.within * self.fits):
            return None
        middle = (self.fits + self.fails) // 2
        return max(self.fits + self.unit, middle // self.unit * self.unit)

    def take(self, size: int, fits: bool) -> None:
        """Note whether a batch of `size` fits."""
        if fits:
            self.fits = max(self.fits, size)
        else:
            self.fails = size if self.fails is None else min(self.fails, size)

    @property
    def left(self) -> int:
        """About how many more batches are tried."""
        if self.next() is None or self.fails is None:
            return 0 if self.next() is None else 6
        return max(
            1,
            math.ceil(
                math.log2((self.fails - self.fits) / max(self.unit, self.within * self.fits))
            ),
        )


class _Tried(NamedTuple):
    """How a point with one batch ended, and what it measured."""

    outcome: str
    reason: str
    metrics: Mapping[str, float]


class LargestBatch(SweepDesign):
    """Searches the largest batch, or model, of each of `points`, beginning with its own."""

    def __init__(self, points: Sequence[Point], settings: Settings) -> None:
        self.points = points
        self._settings = settings
        self._limits = settings.largest
        self._key = self._limits.of.removeprefix("model.")
        self._searches = []
        for point in points:
            if self._key == "batch_size":
                least = point.batch_size
            else:
                least = getattr(point.model, self._key)
            if self._limits.has_time_limit or self._key != "batch_size":
                begin = least
            else:
                begin = _begin(point)
            self._searches.append(Search(least, begin, self._limits.within))
        self._policy = ResumePolicy(settings.resume, settings.retry)
        #: By the index of a point and its batch.
        self._tried: dict[tuple[int, int], _Tried] = {}
        self._asked: tuple[int, int] | None = None
        limits = {"steps": self._limits.step_ms, "a p90 latency": self._limits.latency_ms}
        asked = " and ".join(
            f"{what} of at most {most:g} ms" for what, most in limits.items() if most is not None
        )
        self._asks = f"fits with {asked}" if asked else "fits"

    @cached_property
    def _history(self) -> History:
        """Asked for when stacks and store are there."""
        return open_history(self._settings.tracking)

    @cached_property
    def _places(self) -> Mapping[WorkerKey, str]:
        """A stack that cannot be made has no environment: its points end as unavailable."""
        return {
            key: one.environment_id for key, one in current_environments(self.points).items() if one
        }

    @property
    def left(self) -> int:
        """About how many more measurements it takes."""
        return sum(search.left for search in self._searches)

    @property
    def progress(self) -> str:
        """Between which batches the answer of the point lies that is searched."""
        search = next((search for search in self._searches if search.next()), self._searches[-1])
        return f"{search.fits:,} {self._asks}" + (
            f", {search.fails:,} does not" if search.fails else ""
        )

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """The next try."""
        for row in rows:
            assert self._asked
            self._take(*self._asked, _Tried(row.outcome, row.reason or "", row.metrics))
        if self._asked and not rows:
            time.sleep(1.0)  # another driver measures it
        while self._stored():
            pass
        self._asked = next(iter(self._next()), None)
        if self._asked:
            return [DesignPoint(self._point(*self._asked), {"search": "largest"})]
        return []

    def conclusion(self) -> DesignResult:
        """The answer for every point, and what lies beyond it."""
        return DesignResult(
            "\n".join(f"- {self._answer(index)}" for index in range(len(self.points)))
        )

    def _next(self) -> list[tuple[int, int]]:
        """What is tried next of each point; a size that its model cannot have is none that fits."""
        found = []
        for index, search in enumerate(self._searches):
            while size := search.next():
                try:
                    self._point(index, size)
                except ConfigError as error:
                    self._take(index, size, _Tried(_REFUSED, str(error), {}))
                else:
                    found.append((index, size))
                    break
        return found

    def _point(self, index: int, size: int) -> Point:
        point = self.points[index]
        if self._key == "batch_size":
            return replace(point, batch_size=size)
        return replace(
            point, model=type(point.model).from_config({**vars(point.model), self._key: size})
        )

    def _take(self, index: int, size: int, tried: _Tried) -> None:
        """Note how a point with a batch ended."""
        self._tried[index, size], search = tried, self._searches[index]
        if tried.outcome in ("ok", "nan"):
            search.take(size, self._limits.fits(tried.metrics))
        elif tried.outcome in _TOO_LARGE:
            search.take(size, False)
        else:
            search.problem = f"{tried.outcome}: {tried.reason}"

    def _stored(self) -> bool:
        """Take what the store holds of what would be tried; whether it held any."""
        keys = self._next()
        found = False
        if keys and self._policy.looks:
            known = self._history.finished(set(self._places.values()))
        else:
            known = {}
        for key in keys:
            point = self._point(*key)
            identity = Identity(
                point_id(point), self._places.get(WorkerKey.of(point), ""), point.replicate
            )
            run = self._policy.first(point, known.get(identity, ()))
            if run:
                outcome = run.tags["outcome"]
                found = True
                metrics = self._history.metrics(run.run_id) if outcome == "ok" else {}
                self._take(*key, _Tried(outcome, run.tags.get("reason", ""), metrics))
        return found

    def _answer(self, index: int) -> str:
        """What was found of one point, in a line."""
        search = self._searches[index]
        point = self.points[index]
        found = self._point(index, search.fits) if search.fits else point
        what = self._key
        name = run_name(found)
        if self._key == "batch_size":
            what = "batch"
            name = name.replace(f" b{found.batch_size} ", " ")
        if search.problem:
            return f"{name}: no largest {what}, {search.problem}"
        if search.fails is None:
            beyond = ""
        else:
            beyond = f"; {search.fails:,}: {self._ended(index, search.fails)}"
        if not search.fits:
            return f"{name}: no {what} {self._asks}{beyond}"
        known = "" if search.next() is None else "at least "
        return f"{name}: largest {what} {known}{search.fits:,}: {self._ended(index, search.fits)}{beyond}"

    def _ended(self, index: int, size: int) -> str:
        """How a point with a batch ended, in a few words."""
        outcome, reason, metrics = self._tried[index, size]
        if outcome != "ok":
            return reason if outcome == _REFUSED else outcome
        words = f"{rounded(metrics['step_time_ms'])} ms a step, {rounded(metrics['examples_per_second'])} examples/s"
        if self._limits.latency_ms is not None:
            names = ("latency_p90_ms", "latency_p90_low_ms", "latency_p90_high_ms")
            p90, low, high = (f"{metrics.get(name, math.nan):,.3f}" for name in names)
            words = f"p90 {p90} ms ({low} to {high}), {words}"
        memory = metrics.get("peak_device_memory_bytes") or metrics.get("peak_memory_bytes")
        if memory:
            return f"{words}, {memory / 2**30:.2f} GiB at the peak"
        return words


def _begin(point: Point) -> int:
    """The batch that is tried first: a power of two times the least one."""
    least = point.batch_size
    if point.platform.name != "cpu" or not step_costs(point).memory_lower_bound_bytes:
        return least * max(1, _USUAL // least)
    size = least
    room = _SHARE * memory_limit(point)
    while (
        size < _END
        and step_costs(replace(point, batch_size=2 * size)).memory_lower_bound_bytes <= room
    ):
        size *= 2
    return size
