"""Adaptive sweeps: measure the most informative points and predict the others.

Before every batch, `AdaptiveSweep` reads the store, fits the model of step time, and chooses the
next points. A session measures them. All state comes from the store (`DesignKnowledge`), so the
same command continues an interrupted sweep, and several drivers can share a sweep.
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
from paradnn.designs.choice import (
    StoppingRule,
    calibration_ratio,
    choose,
    first_points,
    median_error,
)
from paradnn.designs.frontier import find_failure_proofs
from paradnn.forecast.history import CompletedRun, History, open_history
from paradnn.forecast.phases import point_times
from paradnn.forecast.predict import StepTimeModel
from paradnn.forecast.status import rates_of, sweep_status
from paradnn.forecast.table import RunHistory, make_table, point_params
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, SweepDesign
from paradnn.statistics.robust_regression import Array, Prediction, one_thread
from paradnn.store.files import read_json
from paradnn.store.runs import Finished, ResumePolicy

#: Default stopping error of an adaptive sweep.
_DEFAULT_ERROR = 0.05
#: Points per batch.
_BATCH_SIZE = 8
#: Number of draws from which the duration of a point is estimated.
_TIME_DRAWS = 20
#: Keys and groups of keys that change neither a step nor its memory.
_IRRELEVANT_KEYS = ("measure", "replicate", "seed")
#: Session of every candidate. The model of step time treats a design as one session.
_SESSION = "design"
#: Number of runs that no store exceeds.
_ALL_RUNS = 10**9


def start_size(axes: int) -> int:
    """Return the number of points with which an adaptive sweep starts.

    These points are spread evenly over the sweep. A model of the step time chooses all other
    points.

    Args:
        axes: Number of keys that the sweep varies.
    """
    return 6 + 2 * axes


class DesignKnowledge:
    """The n distinct points of a sweep (candidates), and their state in the store.

    A point is one configuration to measure.

    Args:
        points: Points of the sweep. Some may be equal.
        settings: Settings of the session.
        history: Read access to the store.
        sweep_id: Id of the sweep.

    Attributes:
        points: The n candidates.
        table: Inputs of the model of step time for the candidates.
        bounds: (n,) analytic lower bound of the required memory in bytes.
        limits: (n,) memory that each candidate may use, in bytes; infinite if unknown.
        ended: Index of a candidate -> the finished run of this candidate, with any outcome.
        past: Index of a candidate -> the successful run of this candidate, with its metrics.
        claimed: Indices of candidates that other drivers are measuring now.
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
        self._measured_here: set[int] = set()
        self._all_points = points
        self.describe()
        self._environments = set(self.table.environments)
        self._known_devices = set(self._devices)

    def describe(self) -> None:
        """Compute costs of the points and their inputs for the model of step time.

        The inputs depend on the machine's peak FLOP/s and memory bandwidth that the store contains
        now.

        Raises:
            ParadnnError: If a session with these points and settings would fail before its first
                measurement (see `sweep_status`).
        """
        status = sweep_status(self._all_points, self._settings, self._history)
        first_index: dict[Identity, int] = {}
        for index, identity in enumerate(status.identities):
            first_index.setdefault(identity, index)
        indices = sorted(first_index.values())
        self.points = [self._all_points[index] for index in indices]
        environments = [status.environments[index] for index in indices]
        environment_ids = [environment.environment_id for environment in environments]
        self._devices = [environment.device for environment in environments]
        self._indices = {
            status.identities[index]: candidate for candidate, index in enumerate(indices)
        }
        self._rates = rates_of(status)
        table = make_table(self.points, environment_ids, self._devices, self._rates)
        self.table = replace(table, sessions=[_SESSION] * len(table))
        self.bounds = status.costs["memory_lower_bound_bytes"][indices]
        self.limits = status.limits[indices]
        self._workers = [
            (status.workers[index], repr(point.data), point.devices, point.parallel)
            for index, point in zip(indices, self.points, strict=True)
        ]
        self.lacks_ceilings = self._settings.ceilings and not all(status.ceilings.values())

    @cached_property
    def axes(self) -> dict[str, NDArray[Any]]:
        """Key -> its values (n,), for each key in which candidates differ.

        The values are numbers if all of them are numeric, else texts. A candidate that lacks the
        key has the text "". A list of numbers, such as model.blocks, is replaced by its sum.
        """
        axes: dict[str, NDArray[Any]] = {}
        rows = self.table.rows
        keys = dict.fromkeys(key for row in rows for key in row)
        for key in keys:
            if key.split(".")[0] in _IRRELEVANT_KEYS:
                continue
            texts = [row.get(key, "") for row in rows]
            numbers = {text: _number(text) for text in set(texts)}
            if len(numbers) == 1:
                continue
            if None in numbers.values():
                axes[key] = np.array(texts)
            else:
                axes[key] = np.array([numbers[text] for text in texts])
        return axes

    @cached_property
    def coordinates(self) -> Array:
        """(n, k) rank of each candidate's value of each varying key.

        Texts are ordered alphabetically.
        """
        columns = [np.unique(axis, return_inverse=True)[1] for axis in self.axes.values()]
        if columns:
            return np.stack(columns, axis=1).astype(float)
        return np.zeros((len(self.points), 0))

    @cached_property
    def _sizes_and_kinds(self) -> tuple[Array, list[Hashable]]:
        """Sizes (n, k) and kinds (n,) of the n points, for `find_failure_proofs`.

        If a point does not fit in memory, neither does a point of the same kind that is at least as
        large in all sizes.

        Sizes are the numeric axes of model and batch, and the analytic memory bound in bytes. A
        kind consists of the environment and the values of all other axes.
        """
        sizes = []
        others = []
        for key, axis in self.axes.items():
            is_model_or_batch = key == "batch_size" or key.startswith("model.")
            if axis.dtype.kind == "f" and is_model_or_batch:
                sizes.append(axis)
            else:
                others.append(axis)
        kinds: list[Hashable] = [*zip(self.table.environments, *others, strict=True)]
        return np.stack([*sizes, self.bounds], axis=1), kinds

    def look(self, *, read_runs: bool = True) -> None:
        """Read the store again; if it does not answer, keep the earlier knowledge.

        Args:
            read_runs: Whether to read the measured values, too. If False, only the outcomes are
                read, and which points other drivers have claimed (reserved).
        """
        with contextlib.suppress(StoreError):
            # A point that ends between the two queries is in both results; it is removed from
            # `claimed` below.
            claimed = {self._indices.get(identity) for identity in self._history.claimed()}
            environments = self._environments if self._policy.queries_store else ()
            finished = self._history.finished(environments, self._sweep_id)
            for identity, runs in finished.items():
                index = self._indices.get(identity)
                if index is None or index in self._measured_here:
                    continue
                of_sweep = [run for run in runs if run.tags.get("sweep_id") == self._sweep_id]
                accepted = self._policy.first(self.points[index], runs) or next(
                    iter(of_sweep), None
                )
                if accepted:
                    self.ended[index] = accepted
                self._known_devices |= {run.tags["device"] for run in runs if "device" in run.tags}
            self.claimed = {index for index in claimed if index is not None}
            self.claimed -= self._measured_here | self.ended.keys()
            if read_runs:
                self._read_runs()

    def _read_runs(self) -> None:
        """Read from the store the successful runs of the candidates that `past` lacks.

        The runs are added to `past`.
        """
        wanted = {
            ended.run_id: index
            for index, ended in self.ended.items()
            if ended.tags["outcome"] == "ok"
        }
        # Missing runs are mostly few and recent, so a limited query comes first.
        for limit in (256 + 2 * len(wanted), _ALL_RUNS):
            missing = {run_id: index for run_id, index in wanted.items() if index not in self.past}
            if not missing:
                return
            for run in self._history.past(self._known_devices, limit):
                if run.run_id in missing:
                    self.past[missing[run.run_id]] = run

    def take(self, rows: Iterable[RecordedPoint]) -> None:
        """Add the results of points that this session measured.

        Args:
            rows: The results. Results of points that are not candidates are ignored.
        """
        for row in rows:
            tags = row.tags
            identity = Identity(tags["point_id"], tags["environment_id"], int(tags["replicate"]))
            index = self._indices.get(identity)
            if index is None:
                continue
            self._measured_here.add(index)
            self.ended[index] = Finished(row.run_id, {"outcome": row.outcome})
            if row.outcome == "ok":
                params = point_params(self.points[index])
                tags = {**tags, "outcome": row.outcome}
                self.past[index] = CompletedRun(row.run_id, time.time(), params, row.metrics, tags)

    @property
    def tried(self) -> int:
        """Number of points that were measured or attempted.

        Points that were only predicted to run out of memory do not count.
        """
        return sum(ended.tags["outcome"] != "oom_predicted" for ended in self.ended.values())

    def runs(self) -> RunHistory:
        """Return the runs of the measured candidates, treated as one session."""
        runs = RunHistory.from_runs(list(self.past.values()), self._rates)
        return replace(runs, table=replace(runs.table, sessions=[_SESSION] * len(runs)))

    def too_large(self) -> dict[int, str]:
        """Return the candidates that would run out of memory and were not tried.

        Returns:
            Index of a candidate -> the reason, which names a run that proves it, or the analytic
            memory bound.
        """
        outcomes = {index: ended.tags["outcome"] for index, ended in self.ended.items()}
        tried = [
            index
            for index, outcome in outcomes.items()
            if outcome in ("ok", "oom_host", "oom_device")
        ]
        failed = np.array([outcomes[index] != "ok" for index in tried], dtype=bool)
        sizes, kinds = self._sizes_and_kinds
        proofs = find_failure_proofs(
            candidates=sizes,
            kinds=kinds,
            tried=sizes[tried],
            tried_kinds=[kinds[index] for index in tried],
            failed=failed,
            run_ids=[self.ended[index].run_id for index in tried],
        )
        reasons = {}
        for index, proof in enumerate(proofs):
            if index in self.ended:
                continue
            bound = self.bounds[index]
            limit = self.limits[index]
            if proof:
                reasons[index] = (
                    f"at least as large in every size as run {proof}, which ran out of memory"
                )
            elif bound > limit:
                reasons[index] = (
                    f"needs at least {bound / 2**30:,.2f} GiB, the limit is {limit / 2**30:.2f} GiB"
                )
        return reasons

    def unavailable(self) -> set[int]:
        """Return the indices of candidates whose device or software is known to be missing."""
        missing = {
            self._workers[index]
            for index, ended in self.ended.items()
            if ended.tags["outcome"] == "unavailable"
        }
        return {index for index, worker in enumerate(self._workers) if worker in missing}


def _number(text: str) -> float | None:
    """Return the number in a JSON text, or the sum of a list of numbers; otherwise None."""
    try:
        value = read_json(text)
        if isinstance(value, list):
            value = sum(value)
        if value is None or isinstance(value, bool | str | dict):
            return None
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return None


class DesignState(NamedTuple):
    """State of an adaptive sweep before it chooses a batch of points.

    Attributes:
        measured: Number of measured points.
        minutes: Minutes since the command began.
        error: Expected median relative error of the predictions of all other points; None before
            the first prediction.
    """

    measured: int
    minutes: float
    error: float | None


class AdaptiveSweep(SweepDesign):
    """Sweep design that measures the most informative points and predicts the others.

    It decides which points to measure next, and when to stop.

    Args:
        points: Points (configurations) of the sweep.
        settings: Settings of the session, including the criteria that end the sweep.
        sweep: Name and id of the sweep.

    Attributes:
        points: Points (configurations) of the sweep.
        rule: Criteria that end the sweep.
        begin: Start of the command on the monotonic clock, in seconds.
        looks: States of the design, one before each batch.
        reason: Why the sweep is over; empty while it continues.
        excluded: Index of a candidate that was not tried -> why it would run out of memory.
    """

    def __init__(self, points: Sequence[Point], settings: Settings, sweep: SweepInfo) -> None:
        self.points = points
        self.begin = time.monotonic()
        rule = StoppingRule(settings.sweep.points, settings.sweep.minutes, settings.sweep.error)
        if rule == StoppingRule():
            rule = StoppingRule(error=_DEFAULT_ERROR)
        self.rule = rule
        self.looks: list[DesignState] = []
        self.excluded: dict[int, str] = {}
        self.reason = ""
        self._left = settings.sweep.points or len(points)
        self._settings = settings
        self._sweep = sweep
        self._has_ended = False

    @cached_property
    def knowledge(self) -> DesignKnowledge:
        """State of the candidates in the store.

        It is created on first use, when the session has installed stacks and created the store.
        """
        history = open_history(self._settings.tracking)
        return DesignKnowledge(self.points, self._settings, history, self._sweep.sweep_id)

    @property
    def left(self) -> int:
        """Maximum number of points that the sweep may still request."""
        return self._left

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit `sweep.minutes`; infinite without a limit."""
        if self.rule.minutes is None:
            return math.inf
        return 60 * (self.rule.minutes - self.minutes)

    @property
    def minutes(self) -> float:
        """Minutes since the command began."""
        return (time.monotonic() - self.begin) / 60

    @property
    def remaining_budget(self) -> float:
        """Number of points that may still start within the limit `sweep.points`; may be infinite.

        Points that other drivers measure now count as measured.
        """
        if self.rule.points is None:
            return math.inf
        return max(0, self.rule.points - self.knowledge.tried - len(self.knowledge.claimed))

    @property
    def progress(self) -> str:
        """The expected error of the predictions, or the current stage, for the progress line."""
        if not self.looks:
            return ""
        error = self.looks[-1].error
        if error is None:
            return "initial points, spread over the space"
        return f"expected error {error:.1%}"

    def batch(self, rows: Sequence[RecordedPoint]) -> list[DesignPoint]:
        """Return the next points to measure; an empty list if the sweep has ended.

        The last batch contains the points that would run out of memory. They are recorded without a
        measurement.

        Args:
            rows: The results of the previous batch.
        """
        if self._has_ended:
            return []
        knowledge = self.knowledge
        points = self.knowledge.points
        if rows and knowledge.lacks_ceilings:  # the first point measured them
            knowledge.describe()
        knowledge.take(rows)
        chosen = self.next()
        if chosen:
            return [DesignPoint(points[index], {}) for index in chosen]
        self._has_ended = True
        return [DesignPoint(points[index], {}, reason) for index, reason in self.excluded.items()]

    def wants(self, visit: DesignPoint, claimed: bool) -> bool:  # noqa: FBT001 - a callback
        """Return whether a point should still be measured, given the limits of the sweep.

        A driver, the process that controls a sweep, claims a point before it measures the point.
        The session calls this method before and after the claim. If several drivers claim at the
        same time, the last driver sees all claims, so `sweep.points` is never exceeded. More points
        than necessary may be dropped; a later batch replaces them.

        Args:
            visit: The measurement of the point.
            claimed: Whether this driver has claimed the point.
        """
        if visit.excluded:
            return True
        if not claimed:
            return self.seconds_left > 0 and self.remaining_budget > 0
        if self.rule.points is None:
            return True
        self.knowledge.look(read_runs=False)
        return self.knowledge.tried + len(self.knowledge.claimed) <= self.rule.points

    def next(self) -> list[int]:
        """Return the indices of the points to measure next; an empty list if the sweep is over.

        At the end of the sweep, `reason` states why it ended. While other drivers measure all
        remaining points, this function waits, because the points of a killed driver become free
        again.
        """
        while True:
            self.knowledge.look()
            chosen = self._choose()
            if chosen or self.reason:
                return chosen
            time.sleep(random.uniform(0.5, 1.5))

    @one_thread()
    def _choose(self) -> list[int]:
        """Return the indices of the candidates to measure next.

        The list is empty if the sweep is over or other drivers measure all remaining points.
        """
        knowledge = self.knowledge
        size = len(knowledge.points)
        self.excluded = knowledge.too_large()
        indices = np.arange(size)
        is_unmeasured = ~np.isin(
            indices, [*knowledge.ended, *self.excluded, *knowledge.unavailable()]
        )
        is_allowed = is_unmeasured & ~np.isin(indices, [*knowledge.claimed])
        initial = min(start_size(len(knowledge.axes)), max(2, (self.rule.points or size) // 2))
        step = None
        error = None
        if knowledge.past:
            runs = knowledge.runs()
            model = StepTimeModel.fit(runs.table, runs.step, runs.noise)
            step = model.predict(knowledge.table)
            if knowledge.tried >= initial and is_unmeasured.any():
                variance = (step.root[is_unmeasured] ** 2).sum(axis=1) + step.own[is_unmeasured]
                error = median_error(calibration_ratio(model.leave_one_out) * np.sqrt(variance))
        state = DesignState(knowledge.tried, self.minutes, error)
        self.looks.append(state)
        self.reason = self.rule.reached(*state)
        if not self.reason and not is_unmeasured.any():
            self.reason = self._exhausted()
        if self.reason or not is_allowed.any() or not self.remaining_budget:
            self._left = 0
            return []
        self._left = int(min(is_allowed.sum(), self.remaining_budget))
        count = int(min(self.remaining_budget, _BATCH_SIZE))
        chosen: list[int] = []
        if knowledge.tried < initial:
            chosen = self._initial_points(is_allowed, initial)[:count]
        if not chosen and step is None:  # every attempt failed
            chosen = np.flatnonzero(is_allowed)[:count].tolist()
        elif not chosen and step is not None:
            chosen = self._informative_points(runs, step, is_unmeasured, is_allowed, count)
        random.Random(f"{self._settings.sweep.seed} {knowledge.tried}").shuffle(chosen)
        return chosen

    def _initial_points(self, is_allowed: NDArray[np.bool_], initial: int) -> list[int]:
        """Return the indices of the candidates to measure first.

        They are spread evenly over the points that fit in memory.

        Args:
            is_allowed: (n,) whether a candidate may be chosen.
            initial: Number of initial points of the sweep, including those that were tried already.
        """
        knowledge = self.knowledge
        indices = np.arange(len(knowledge.points))
        possible = np.flatnonzero(~np.isin(indices, [*self.excluded]))
        positions = knowledge.coordinates[possible]
        spread_out = possible[first_points(positions, 2 * initial, self._settings.sweep.seed)]
        allowed: list[int] = spread_out[is_allowed[spread_out]].tolist()
        return allowed[: initial - knowledge.tried]

    def _informative_points(
        self,
        runs: RunHistory,
        step: Prediction,
        is_unmeasured: NDArray[np.bool_],
        is_allowed: NDArray[np.bool_],
        count: int,
    ) -> list[int]:
        """Return the indices of the points that reduce the variance of predictions the most.

        The reduction is divided by the time that the measurement of a point needs.

        Args:
            runs: The runs of the measured candidates.
            step: Predicted distribution of the step times.
            is_unmeasured: (n,) whether a candidate is unmeasured. Only the variances of unmeasured
                candidates count.
            is_allowed: (n,) whether a candidate may be chosen.
            count: Maximum number of points.
        """
        knowledge = self.knowledge
        seconds = point_times(runs, knowledge.table, _TIME_DRAWS, step).seconds.mean(axis=1)
        return choose(
            step,
            seconds,
            count,
            weights=is_unmeasured.astype(float),
            allowed=is_allowed,
            claimed=sorted(knowledge.claimed),
        )

    def _exhausted(self) -> str:
        """Return why no point is left to measure."""
        if not self.knowledge.tried:
            return "no point fits in memory"
        measured = "every point is measured"
        if self.excluded:
            measured = "every point that fits in memory is measured"
        return f"{measured}, before {' or '.join(self.rule.overrides)} was reached"

    def conclusion(self) -> DesignResult:
        """Return the result of the whole adaptive sweep, over all sessions and drivers."""
        if not self.looks:
            return DesignResult()
        state = self.looks[-1]
        size = len(self.knowledge.points)
        ended = self.knowledge.ended
        out_of_memory = sum(end.tags["outcome"].startswith("oom") for end in ended.values())
        out_of_memory += len(self.excluded.keys() - ended.keys())
        text = (
            f"Adaptive: {state.measured:,} of {counted(size, 'point')} measured "
            f"({state.measured / size:.1%})"
        )
        text += f", {out_of_memory:,} out of memory." if out_of_memory else "."
        metrics = {"design_candidates": float(size), "design_measured": float(state.measured)}
        if state.error is not None:
            text += f" Expected median error of the others: {state.error:.1%}."
            metrics["design_expected_error"] = state.error
        text += f" Ended: {self.reason}." if self.reason else " Interrupted."
        tags = {"design": "adaptive", "design_end": self.reason or "interrupted"}
        looks = {"columns": [*DesignState._fields], "data": [*map(list, self.looks)]}
        return DesignResult(text, metrics, tags, {"design.json": looks})
