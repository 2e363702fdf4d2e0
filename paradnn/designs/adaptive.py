"""An adaptive sweep: before every batch the store is read, the model of step time fitted, and the
next points chosen.

Its whole state is read from the store (`Knowledge`): the same command goes on where it was ended,
and several drivers share a sweep. `AdaptiveSweep` decides, for the session that measures.
"""

import contextlib
import math
import random
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paradnn.config.identity import Identity
from paradnn.config.point import Point
from paradnn.config.settings import Settings
from paradnn.config.tasks import SweepInfo
from paradnn.core.errors import StoreError
from paradnn.core.words import counted
from paradnn.designs.choice import StoppingRule, choose, first_points, median_error, strain
from paradnn.designs.frontier import excluded
from paradnn.forecast.history import CompletedRun, History, open_history
from paradnn.forecast.phases import point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.status import rates_of, sweep_status
from paradnn.forecast.table import RunHistory, row_of, table_of_points
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, SweepDesign
from paradnn.statistics.robust_regression import Array, one_thread
from paradnn.store.files import read_json
from paradnn.store.runs import Finished, ResumePolicy

#: The error at which a sweep ends to which no end is given.
_USUAL_ERROR = 0.05
#: Points of a batch that is measured here.
_BATCH = 8
#: Draws of the seconds that a point takes.
_TIMES = 20
#: Groups of keys, and keys, that change neither a step nor what memory it takes.
_ASIDE = ("measure", "replicate", "seed")
#: All that a candidate's session is called: one design, in however many sessions it was measured.
_SESSION = "design"
_EVERY_RUN = 10**9


def start_size(axes: int) -> int:
    """Points that are spread over a space before the first is chosen: two for each axis, and some."""
    return 6 + 2 * axes


class DesignKnowledge:
    """The distinct points of a sweep, n candidates, and what is known of them.

    points: (n,), with their `table`. bounds, limits: (n,) bytes that arithmetic says a point takes,
    and that it may take, infinite where unknown. ended: index -> how it ended. past: index -> its
    measured run. claimed: indices that drivers measure now.
    """

    def __init__(
        self, points: Sequence[Point], settings: Settings, history: History, sweep_id: str
    ) -> None:
        self._settings = settings
        self._history = history
        self._sweep_id = sweep_id
        self._policy = ResumePolicy(settings.resume, settings.retry)
        self.ended: dict[int, Finished] = {}
        self.past: dict[int, CompletedRun] = {}
        self.claimed: set[int] = set()
        self._own: set[int] = set()
        self._all = points
        self.describe()
        self._environments, self._devices = set(self.table.environments), set(self._on)

    def describe(self) -> None:
        """Look at the points by the ceilings that the store has now; ParadnnError as a session's
        before its first.
        """
        points = self._all
        status = sweep_status(self._all, self._settings, self._history)
        places = sorted(
            {one: index for index, one in reversed([*enumerate(status.identities)])}.values()
        )
        self.points = [points[index] for index in places]
        environments = [status.environments[index] for index in places]
        ids = [place.environment_id for place in environments]
        self._on = [place.device for place in environments]
        self._indices = {status.identities[index]: number for number, index in enumerate(places)}
        self._rates = rates_of(status)
        table = table_of_points(self.points, ids, self._on, self._rates)
        self.table = replace(table, sessions=[_SESSION] * len(table))
        self.bounds = status.costs["memory_lower_bound_bytes"][places]
        self.limits = status.limits[places]
        self._workers = [
            (status.workers[index], repr(points[index].data), points[index].devices)
            for index in places
        ]
        self.lacks_ceilings = self._settings.ceilings and not all(status.ceilings.values())

    @cached_property
    def axes(self) -> dict[str, NDArray[Any]]:
        """The keys in which candidates differ, with the values (n,) of each: numbers, or texts
        where any is none; "" of a candidate that lacks the key. A list of numbers, such as
        model.blocks, counts as its sum.
        """
        axes: dict[str, NDArray[Any]] = {}
        rows = self.table.rows
        for key in dict.fromkeys(
            key for row in rows for key in row if key.split(".")[0] not in _ASIDE
        ):
            texts = [row.get(key, "") for row in rows]
            numbers = {text: _number(text) for text in set(texts)}
            if len(numbers) > 1:
                axes[key] = np.array(
                    texts if None in numbers.values() else [numbers[text] for text in texts]
                )
        return axes

    @cached_property
    def coordinates(self) -> Array:
        """(n, k) where each candidate lies in the space; words lie in their order."""
        columns = [np.unique(axis, return_inverse=True)[1] for axis in self.axes.values()]
        if columns:
            return np.stack(columns, axis=1).astype(float)
        return np.zeros((len(self.points), 0))

    @cached_property
    def _sizes_and_kinds(self) -> tuple[Array, list[Hashable]]:
        """(n, k) what memory grows with: sizes of model and batch, and its analytic lower bound in
        bytes; and what must be equal for one point's memory to say anything of another's: all that
        is no size, and the environment.
        """
        is_size = {
            key: axis.dtype.kind == "f" and (key == "batch_size" or key.startswith("model."))
            for key, axis in self.axes.items()
        }
        sizes = [axis for key, axis in self.axes.items() if is_size[key]]
        others = [axis for key, axis in self.axes.items() if not is_size[key]]
        return np.stack([*sizes, self.bounds], axis=1), [
            *zip(self.table.environments, *others, strict=True)
        ]

    def look(self, read: bool = True) -> None:
        """Ask the store again; one that does not answer leaves what is known.

        `read`: what was measured too, and not only which points ended or are claimed.
        """
        with contextlib.suppress(StoreError):
            # A point that ends between the two questions is in both answers, and counts once.
            claimed = {self._indices.get(identity) for identity in self._history.claimed()}
            known = self._history.finished(
                self._environments if self._policy.looks else (), self._sweep_id
            )
            for identity, runs in known.items():
                index = self._indices.get(identity)
                if index is None or index in self._own:
                    continue
                ours = [run for run in runs if run.tags.get("sweep_id") == self._sweep_id]
                found = self._policy.first(self.points[index], runs) or next(iter(ours), None)
                if found:
                    self.ended[index] = found
            self._devices |= {
                run.tags["device"]
                for runs in known.values()
                for run in runs
                if "device" in run.tags
            }
            self.claimed = (
                {index for index in claimed if index is not None} - self._own - self.ended.keys()
            )
            wanted = {
                one.run_id: index
                for index, one in self.ended.items()
                if one.tags["outcome"] == "ok"
            }
            for most in (
                (256 + 2 * len(wanted), _EVERY_RUN) if read else ()
            ):  # those not read yet: mostly few, and new
                missing = {
                    run_id: index for run_id, index in wanted.items() if index not in self.past
                }
                if missing:
                    past = self._history.past(self._devices, most)
                    self.past |= {missing[run.run_id]: run for run in past if run.run_id in missing}

    def take(self, rows: Iterable[RecordedPoint]) -> None:
        """Note what this session measured itself."""
        for row in rows:
            tags = row.tags
            found = Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
            index = self._indices.get(found)
            if index is None:
                continue
            self._own.add(index)
            self.ended[index] = Finished(row.run_id, {"outcome": row.outcome})
            if row.outcome == "ok":
                params = row_of(self.points[index])
                tags = {**tags, "outcome": row.outcome}
                self.past[index] = CompletedRun(row.run_id, time.time(), params, row.metrics, tags)

    @property
    def tried(self) -> int:
        """How many were measured, or tried: what memory excludes was not."""
        return sum(ended.tags["outcome"] != "oom_predicted" for ended in self.ended.values())

    def runs(self) -> RunHistory:
        """The measured ones, as one session."""
        runs = RunHistory.of(list(self.past.values()), self._rates)
        return replace(runs, table=replace(runs.table, sessions=[_SESSION] * len(runs)))

    def too_large(self) -> dict[int, str]:
        """Index -> why a candidate without an outcome is out of memory: by arithmetic, or by the
        run that proves it.
        """
        ends = {index: one.tags["outcome"] for index, one in self.ended.items()}
        tried = [
            index for index, outcome in ends.items() if outcome in ("ok", "oom_host", "oom_device")
        ]
        failed = np.array([ends[index] != "ok" for index in tried], dtype=bool)
        (sizes, kinds), names = self._sizes_and_kinds, [self.ended[index].run_id for index in tried]
        proofs = excluded(
            sizes, kinds, sizes[tried], [kinds[index] for index in tried], failed, names
        )
        found = {}
        for index, (proof, bound, limit) in enumerate(
            zip(proofs, self.bounds, self.limits, strict=True)
        ):
            if index not in self.ended and proof:
                found[index] = f"no smaller in any size than run {proof}, which was out of memory"
            elif index not in self.ended and bound > limit:
                found[index] = (
                    f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"
                )
        return found

    def unavailable(self) -> set[int]:
        """Candidates on a device or software that an earlier one did not find."""
        lacking = {
            self._workers[index]
            for index, one in self.ended.items()
            if one.tags["outcome"] == "unavailable"
        }
        return {index for index, worker in enumerate(self._workers) if worker in lacking}


def _number(text: str) -> float | None:
    try:
        value = read_json(text)
        value = sum(value) if isinstance(value, list) else value
        if value is None or isinstance(value, bool | str | dict):
            return None
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return None


class DesignState(NamedTuple):
    """What was known at one moment: measured points, minutes since the command began, the median
    error expected of the others (None before anything is predicted).
    """

    measured: int
    minutes: float
    error: float | None


class AdaptiveSweep(SweepDesign):
    """What is known, when it is enough, and what is measured next.

    begin: when the command began, on the monotonic clock. looks: one before every batch. reason:
    why the sweep is over; empty before. excluded: index -> why it is out of memory without being
    tried.
    """

    def __init__(self, points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> None:
        self.points = points
        self.begin = time.monotonic()
        given = settings.sweep
        rule = StoppingRule(given.points, given.minutes, given.error)
        if rule != StoppingRule():
            self.rule = rule
        else:
            self.rule = StoppingRule(error=_USUAL_ERROR)
        self.looks: list[DesignState] = []
        self.excluded: dict[int, str] = {}
        self.reason = ""
        self._left = given.points or len(points)
        self._settings = settings
        self._sweep = sweep
        self._ended = False

    @cached_property
    def knowledge(self) -> DesignKnowledge:
        """Asked for when stacks and store are there; nothing is read yet."""
        history = open_history(self._settings.tracking)
        return DesignKnowledge(self.points, self._settings, history, self._sweep.sweep_id)

    @property
    def left(self) -> int:
        """How many points more it may ask for."""
        return self._left

    @property
    def seconds_left(self) -> float:
        """What `sweep.minutes` leaves."""
        if self.rule.minutes is None:
            return math.inf
        return 60 * (self.rule.minutes - self.minutes)

    @property
    def minutes(self) -> float:
        """Since the command began."""
        return (time.monotonic() - self.begin) / 60

    @property
    def room(self) -> float:
        """How many points may still be begun within `sweep.points`, those that others measure now
        counted.
        """
        most = math.inf if self.rule.points is None else self.rule.points
        return max(0, most - self.knowledge.tried - len(self.knowledge.claimed))

    @property
    def progress(self) -> str:
        """What the last look knew, in a few words."""
        if not self.looks:
            return ""
        error = self.looks[-1].error
        if error is None:
            return "a start spread over the space"
        return f"expected error {error:.1%}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """The next points; at the end, once, what memory excludes."""
        if self._ended:
            return []
        knowledge = self.knowledge
        points = self.knowledge.points
        if rows and knowledge.lacks_ceilings:  # they came with the first point
            knowledge.describe()
        knowledge.take(rows)
        chosen = self.next()
        if chosen:
            return [DesignPoint(points[index], {}) for index in chosen]
        self._ended = True
        return [DesignPoint(points[index], {}, reason) for index, reason in self.excluded.items()]

    def wants(self, visit: DesignPoint, claimed: bool) -> bool:
        """Whether a point is still to be measured: in time, and within `sweep.points` with all that
        others measure.

        It is asked once more when the point is claimed. Of several drivers that claim at once the
        last one sees all others. So no more points are kept than there is room for; perhaps fewer,
        and these are chosen again.
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

        While other drivers measure all that is left it waits for them: if one is killed, its points
        are for the others.
        """
        while True:
            self.knowledge.look()
            chosen = self._choose()
            if chosen or self.reason:
                return chosen
            time.sleep(random.uniform(0.5, 1.5))

    @one_thread()
    def _choose(self) -> list[int]:
        """Candidates to measure next; none where there is a `reason`, or others measure what is
        left.
        """
        knowledge = self.knowledge
        size = len(self.knowledge.points)
        self.excluded = knowledge.too_large()
        every = np.arange(size)
        unmeasured = ~np.isin(every, [*knowledge.ended, *self.excluded, *knowledge.unavailable()])
        allowed = unmeasured & ~np.isin(every, [*knowledge.claimed])
        # A start is spread over the space; then the points that teach most are chosen.
        start = min(start_size(len(knowledge.axes)), max(2, (self.rule.points or size) // 2))
        step = None
        error = None
        if knowledge.past:
            runs = knowledge.runs()
            model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
            step = model.predict(knowledge.table)
            if knowledge.tried >= start and unmeasured.any():
                spread = np.sqrt((step.root[unmeasured] ** 2).sum(axis=1) + step.own[unmeasured])
                error = median_error(strain(model.left_out) * spread)
        look = DesignState(knowledge.tried, self.minutes, error)
        self.looks.append(look)
        self.reason = self.rule.reached(*look) or ("" if unmeasured.any() else self._exhausted())
        if self.reason or not allowed.any() or not self.room:
            self._left = 0
            return []
        self._left, count, chosen = (
            int(min(allowed.sum(), self.room)),
            int(min(self.room, _BATCH)),
            [],
        )
        if knowledge.tried < start:  # what is known to be out of memory left out
            possible = np.flatnonzero(~np.isin(every, [*self.excluded]))
            spread_out = possible[
                first_points(knowledge.coordinates[possible], 2 * start, self._settings.sweep.seed)
            ]
            chosen = spread_out[allowed[spread_out]][: min(count, start - knowledge.tried)].tolist()
        if not chosen and step is None:  # all that was tried failed
            chosen = np.flatnonzero(allowed)[:count].tolist()
        elif not chosen and step is not None:
            seconds = point_times(runs, knowledge.table, _TIMES, step).seconds.mean(axis=1)
            chosen = choose(
                step, seconds, count, unmeasured.astype(float), allowed, sorted(knowledge.claimed)
            )
        random.Random(f"{self._settings.sweep.seed} {knowledge.tried}").shuffle(chosen)
        return chosen

    def _exhausted(self) -> str:
        """Why there is nothing left to measure."""
        if not self.knowledge.tried:
            return "every point is out of memory"
        if self.excluded:
            which = "every point that fits the memory is measured"
        else:
            which = "every point is measured"
        return f"{which} before {' or '.join(self.rule.words)}"

    def conclusion(self) -> DesignResult:
        """The whole design, whichever session or driver measured it."""
        if not self.looks:
            return DesignResult()
        look = self.looks[-1]
        space = len(self.knowledge.points)
        ended = self.knowledge.ended
        large = sum(one.tags["outcome"].startswith("oom") for one in ended.values()) + len(
            self.excluded.keys() - ended.keys()
        )
        text = f"Adaptive: {look.measured:,} of {counted(space, 'point')} measured ({look.measured / space:.1%})"
        text += f", {large:,} out of memory." if large else "."
        metrics = {"design_candidates": float(space), "design_measured": float(look.measured)}
        if look.error is not None:
            text += f" Expected median error of the others: {look.error:.1%}."
            metrics["design_expected_error"] = look.error
        text += f" Ended by {self.reason}." if self.reason else " Interrupted."
        tags = {"design": "adaptive", "design_end": self.reason or "interrupted"}
        looks = {"columns": [*DesignState._fields], "data": [*map(list, self.looks)]}
        return DesignResult(text, metrics, tags, {"design.json": looks})
