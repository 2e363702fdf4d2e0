"""One session measures points one after the other and records each: claim, measure, record, say so.

Nothing else runs while a child measures. What the stack itself costs is part of the record: every second between two
points falls into one of the phases schedule, start and record.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paradnn.config.identity import Identity, point_id, request_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, Settings
from paradnn.costs import Costs
from paradnn.costs.point import costs_of, exceeds_memory, memory_limit
from paradnn.errors import StoreError, WorkerError
from paradnn.execution.environments import WorkerEnvironments
from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits
from paradnn.hardware.environment import Environment, load_average
from paradnn.record.record import Record, make_record, point_tags, run_name
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper, device_peaks, overrun_tags, single_device
from paradnn.session.parent_run import ParentRun
from paradnn.session.progress import Reporter
from paradnn.session.summary import Row, Summary
from paradnn.sweep.scheduler import restarts, task_name, task_tags, waiting_times
from paradnn.sweep.tasks import SweepInfo
from paradnn.tracking.base import Claim, ClaimedElsewhere, Finished, Tracker
from paradnn.tracking.fallback import looks_quickly, open_tracker
from paradnn.tracking.resume import ResumePolicy, first_accepted, point_statuses
from paradnn.tracking.run_index import enter_task

__all__ = ["Interrupted", "measure_ceilings", "measure_points", "report_problem"]

#: Tags that are shown at once.
_SHOWN = (
    "steady",
    "steady_reason",
    "checks",
    "emulation_note",
    "precision_note",
    "ceilings_note",
    "ceilings_remedy",
    "profile",
    "profile_note",
)


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the sweep to end (Ctrl-C, SIGTERM)."""


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun.

    Raises ParadnnError for what the user can correct before anything is measured.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    enter_task(task_name(sweep), restarts())
    with _interruptible(), WorkerEnvironments(points, reporter.say) as environments, WorkerPool() as pool:
        if not looks_quickly(settings.tracking):
            _prepare_first(points, environments, pool)
        tracker = open_tracker(settings.tracking, reporter.say)
        session = _Session(pool, tracker, environments, reporter, settings, sweep, Summary(len(points)))
        try:
            return session.run(points)
        finally:
            reporter.close()


def report_problem(settings: Settings, sweep: SweepInfo, problem: str) -> None:
    """Report to the sweep's parent why a launched task measured nothing, where its store can be reached."""
    with contextlib.suppress(StoreError):
        parent = ParentRun(open_tracker(settings.tracking, lambda _: None), sweep)
        parent.enter()
        parent.fail(problem)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Re-measure the ceilings of a point's platform; also where they are recorded."""
    reporter = Reporter(1, None)
    with _interruptible(), WorkerEnvironments([point], reporter.say) as environments, WorkerPool() as pool:
        if problem := environments.problem(point):
            raise WorkerError(problem)
        environment = environments.environment(point)
        pool.prepare(WorkerKey.of(point))
        tracker = open_tracker(settings.tracking, reporter.say)
        tracker.close_abandoned()
        return CeilingsKeeper(pool, tracker, reporter.say).of(point, environment, again=True), tracker.where


def _prepare_first(points: Sequence[Point], environments: WorkerEnvironments, pool: WorkerPool) -> None:
    """Start the first worker: the framework's import runs while the driver imports MLflow and opens the sweep."""
    if first := next((point for point in points if not environments.problem(point)), None):
        pool.prepare(WorkerKey.of(first))


class _Session:
    def __init__(
        self,
        pool: WorkerPool,
        tracker: Tracker,
        environments: WorkerEnvironments,
        reporter: Reporter,
        settings: Settings,
        sweep: SweepInfo | None,
        summary: Summary,
    ) -> None:
        self._pool = pool
        self._tracker = tracker
        self._environments = environments
        self._reporter = reporter
        self._resume = ResumePolicy(settings.resume, settings.retry)
        self._ceilings = CeilingsKeeper(pool, tracker, reporter.say) if settings.ceilings else None
        self._summary = summary
        self._sweep = sweep
        self._parent = ParentRun(tracker, sweep)
        self._tags: Mapping[str, str] = {}
        self._waited: Mapping[str, float] = {}
        self._free_since = time.perf_counter()

    def run(self, points: Sequence[Point]) -> Summary:
        begin = time.perf_counter()
        self._tracker.close_abandoned()
        self._parent.enter()
        todo = self._missing(points)
        if todo:
            _prepare_first(todo, self._environments, self._pool)
            self._parent.open()
        self._tags = task_tags(self._sweep)
        self._waited = waiting_times(self._sweep.launched if self._sweep else None)
        self._free_since = time.perf_counter()
        self._reporter.start(self._summary.skipped)
        try:
            self._work(todo)
        except KeyboardInterrupt:
            self._summary.interrupted = True
        self._summary.seconds = time.perf_counter() - begin
        self._parent.end(self._summary, self._environments.environment_ids)
        self._summary.where = self._tracker.where
        return self._summary

    def _missing(self, points: Sequence[Point]) -> list[Point]:
        """The points without an outcome that is accepted, each once; the others are counted as skipped."""
        sweep_id = self._sweep.sweep_id if self._sweep and self._sweep.launched else None
        known: Mapping[Identity, Sequence[Finished]] = {}
        if self._resume.looks or sweep_id:
            places = self._environments.environment_ids if self._resume.looks else ()
            known = self._tracker.finished(places, sweep_id)
        # An earlier attempt of a launched task may have run on another kind of node: its outcomes are enough.
        ours = (run for runs in known.values() for run in runs if sweep_id and run.tags.get("sweep_id") == sweep_id)
        own = {(run.tags["point_id"], int(run.tags["replicate"])): run for run in ours}

        def done(point: Point, identity: Identity) -> Finished | None:
            return own.get((identity.point_id, identity.replicate)) or first_accepted(
                point, known.get(identity, ()), self._resume
            )

        todo = []
        for status in point_statuses(points, self._identity, done):
            if status.done:
                self._skip(status.point, status.done)
            elif status.repeated:
                self._summary.repeated += 1
            else:
                todo.append(status.point)
        return todo

    def _skip(self, point: Point, done: Finished) -> None:
        self._summary.skipped[done.tags["outcome"]] += 1
        if not self._sweep:  # a single point: say what is known of it
            metrics, tags = self._tracker.fetch(done.run_id)
            name = tags.get("mlflow.runName") or tags.get("name") or done.run_id
            outcome, reason = done.tags["outcome"], tags.get("reason")
            row = Row(done.run_id, name, point.model.name, outcome, reason, metrics, tags, known=True)
            self._summary.rows.append(row)

    def _work(self, todo: Sequence[Point]) -> None:
        """Measure point after point; what another driver holds comes again at the end."""
        queue = deque(todo)
        waiting = 0  # points in a row that were held by others
        while queue:
            point = queue.popleft()
            if self._one(point):
                waiting = 0
                continue
            queue.append(point)
            waiting += 1
            if waiting >= len(queue):
                self._reporter.begin(f"waiting for {len(queue)} point(s) that another driver measures")
                time.sleep(random.uniform(0.5, 1.5))

    def _one(self, point: Point) -> bool:
        """Claim, measure and record one point; False when another driver holds it."""
        environment = self._environments.environment(point)
        begin = time.perf_counter()
        usable = not self._environments.problem(point)
        ceilings = self._ceilings.of(point, environment) if self._ceilings and usable else None
        # Measuring them is no cost of this point.
        self._free_since += time.perf_counter() - begin
        tags = {**point_tags(point, environment), **self._tags}
        accepts = (lambda known: self._resume.accepts(point, known)) if self._resume.looks else None
        self._reporter.begin(run_name(point))
        claim = self._tracker.begin(self._identity(point), run_name(point), tags, point.measure.timeout, accepts)
        if isinstance(claim, ClaimedElsewhere):
            return False
        if isinstance(claim, Finished):
            self._summary.skipped[claim.tags["outcome"]] += 1
            self._reporter.skipped(self._summary.skipped)
            return True
        try:
            record = self._measure(point, environment, ceilings, claim, tags)
            run_id = self._tracker.record(claim, record, lambda: self._late(record))
        except BaseException:
            with contextlib.suppress(Exception):
                self._tracker.abandon(claim, "interrupted before its end")
            raise
        self._done(record, run_id)
        return True

    def _identity(self, point: Point) -> Identity:
        return Identity(point_id(point), self._environments.environment(point).environment_id, point.replicate)

    def _measure(
        self, point: Point, environment: Environment, ceilings: Ceilings | None, claim: Claim, tags: Mapping[str, str]
    ) -> Record:
        costs = costs_of(point)
        load = load_average()
        limits = Limits(point.measure.timeout, memory_limit(point))
        schedule = time.perf_counter() - self._free_since
        problem = self._environments.problem(point)
        result = PointResult("unavailable", problem) if problem else self._predicted(point, costs, limits)
        result = result or self._pool.measure(WorkerKey.of(point), request_of(point), limits, self._reporter.phase)
        self._free_since = time.perf_counter()
        result = replace(result, phases={**result.phases, "schedule": schedule})
        end = int(time.time() * 1000)
        if ceilings:
            tags = {**tags, "ceilings_run": ceilings.run_id}
            if share := ceilings.emulated(point.precision):
                note = f"{point.precision} products are emulated here: {share:.2f} of float32's rate"
                tags = {**tags, "emulation_note": note}
        record = make_record(
            point,
            environment,
            costs,
            result,
            tags=tags,
            peaks=device_peaks(point, environment, ceilings),
            load=load,
            start_time=claim.start_time,
            end_time=end,
        )
        return replace(record, tags={**record.tags, **overrun_tags(single_device(point, environment), record.metrics)})

    @staticmethod
    def _predicted(point: Point, costs: Costs, limits: Limits) -> PointResult | None:
        """Out of memory by arithmetic: no build is tried."""
        reason = exceeds_memory(point, costs, limits.memory_bytes)
        return PointResult("oom_predicted", reason) if reason else None

    def _late(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, its figure included; what follows falls into the next point's schedule."""
        now = time.perf_counter()
        spent = now - self._free_since
        overhead = spent + sum(record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start"))
        self._free_since = now
        return {"phase_record_seconds": spent, "overhead_seconds": overhead, **self._waited}

    def _done(self, record: Record, run_id: str) -> None:
        tags = {key: record.tags[key] for key in _SHOWN if key in record.tags}
        family = record.params["model.name"]
        row = Row(run_id, record.name, family, record.outcome, record.reason, record.metrics, tags)
        self._summary.rows.append(row)
        self._reporter.done(row)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the session as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise Interrupted

    # Only the main thread may ask for signals; a launcher may run its tasks in another.
    signals = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    previous = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
