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
from paradnn.config.point import Point, Settings
from paradnn.costs import Costs
from paradnn.costs.point import costs_of, exceeds_memory, memory_limit
from paradnn.errors import StoreError, WorkerError
from paradnn.execution.environments import Surroundings
from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_process import Answer, Limits, WorkerKey
from paradnn.hardware import environment as environments
from paradnn.hardware.environment import Environment
from paradnn.record.record import Record, make_record, point_tags, run_name
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper, limits_of, overrun_tags, yardstick
from paradnn.session.parent_run import SweepParent
from paradnn.session.progress import Reporter
from paradnn.session.summary import Summary
from paradnn.sweep.scheduler import restarts, task_name, task_tags, waiting_times
from paradnn.sweep.tasks import SweepInfo
from paradnn.tracking.base import Busy, Finished, Ticket, Tracker
from paradnn.tracking.fallback import looks_quickly, open_tracker
from paradnn.tracking.resume import ResumePolicy, first_that_counts, stand
from paradnn.tracking.run_index import enter_task

__all__ = ["Interrupted", "measure_ceilings", "measure_points", "report_problem"]

#: Tags that a person is told at once.
_NOTES = ("emulation_note", "precision_note", "ceilings_note", "ceilings_remedy", "profile")


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the sweep to end (Ctrl-C, SIGTERM)."""


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun.

    Raises ParadnnError for what the user can mend before anything is measured.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    enter_task(task_name(sweep), restarts())
    with _interruptible(), Surroundings(points, reporter.say) as surroundings, WorkerPool() as pool:
        if not looks_quickly(settings.tracking):
            _prepare_first(points, surroundings, pool)
        tracker = open_tracker(settings.tracking, reporter.say)
        session = _Session(pool, tracker, surroundings, reporter, settings, sweep, Summary(len(points)))
        try:
            return session.run(points)
        finally:
            reporter.close()


def report_problem(settings: Settings, sweep: SweepInfo, problem: str) -> None:
    """Tell the sweep's parent why a launched task measured nothing, where its store can be reached."""
    with contextlib.suppress(StoreError):
        parent = SweepParent(open_tracker(settings.tracking, lambda _: None), sweep)
        parent.enter()
        parent.fail(problem)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Measure the ceilings of a point's platform anew; also where they are recorded."""
    reporter = Reporter(1, None)
    with _interruptible(), Surroundings([point], reporter.say) as surroundings, WorkerPool() as pool:
        if problem := surroundings.problem(point):
            raise WorkerError(problem)
        environment = surroundings.environment(point)
        pool.prepare(WorkerKey.of(point))
        tracker = open_tracker(settings.tracking, reporter.say)
        tracker.close_abandoned()
        return CeilingsKeeper(pool, tracker, reporter.say).of(point, environment, anew=True), tracker.where


def _prepare_first(points: Sequence[Point], surroundings: Surroundings, pool: WorkerPool) -> None:
    """Start the first worker: the framework's import runs while the driver imports MLflow and opens the sweep."""
    if first := next((point for point in points if not surroundings.problem(point)), None):
        pool.prepare(WorkerKey.of(first))


class _Session:
    def __init__(
        self,
        pool: WorkerPool,
        tracker: Tracker,
        surroundings: Surroundings,
        reporter: Reporter,
        settings: Settings,
        sweep: SweepInfo | None,
        summary: Summary,
    ) -> None:
        self._pool = pool
        self._tracker = tracker
        self._surroundings = surroundings
        self._reporter = reporter
        self._resume = ResumePolicy(settings.resume, settings.retry)
        self._ceilings = CeilingsKeeper(pool, tracker, reporter.say) if settings.ceilings else None
        self._summary = summary
        self._sweep = sweep
        self._parent = SweepParent(tracker, sweep)
        self._tags: Mapping[str, str] = {}
        self._waited: Mapping[str, float] = {}
        self._free_since = time.perf_counter()

    def run(self, points: Sequence[Point]) -> Summary:
        begin = time.perf_counter()
        self._tracker.close_abandoned()
        self._parent.enter()
        todo = self._missing(points)
        if todo:
            _prepare_first(todo, self._surroundings, self._pool)
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
        self._parent.end(self._summary, self._surroundings.environment_ids)
        self._summary.where = self._tracker.where
        return self._summary

    def _missing(self, points: Sequence[Point]) -> list[Point]:
        """The points without an outcome that counts, each once; the others are counted as skipped."""
        sweep_id = self._sweep.sweep_id if self._sweep and self._sweep.launched else None
        known: Mapping[Identity, Sequence[Finished]] = {}
        if self._resume.looks or sweep_id:
            places = self._surroundings.environment_ids if self._resume.looks else ()
            known = self._tracker.finished(places, sweep_id)
        # An earlier attempt of a launched task may have run on another kind of node: its outcomes are enough.
        ours = (run for runs in known.values() for run in runs if sweep_id and run.tags.get("sweep_id") == sweep_id)
        own = {(run.tags["point_id"], int(run.tags["replicate"])): run for run in ours}

        def done(point: Point, identity: Identity) -> Finished | None:
            return own.get((identity.point_id, identity.replicate)) or first_that_counts(
                point, known.get(identity, ()), self._resume
            )

        todo = []
        for standing in stand(points, self._identity, done):
            if standing.done:
                self._skip(standing.done)
            elif standing.repeated:
                self._summary.repeated += 1
            else:
                todo.append(standing.point)
        return todo

    def _skip(self, done: Finished) -> None:
        self._summary.skipped[done.tags["outcome"]] += 1
        if not self._sweep:  # a single point: say what is known of it
            metrics, tags = self._tracker.fetch(done.run_id)
            name = tags.get("mlflow.runName") or tags.get("name") or done.run_id
            self._summary.rows.append({"run_id": done.run_id, "name": name, "known": True, **tags, **metrics})

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
        environment = self._surroundings.environment(point)
        begin = time.perf_counter()
        usable = not self._surroundings.problem(point)
        ceilings = self._ceilings.of(point, environment) if self._ceilings and usable else None
        # Measuring them is no cost of this point.
        self._free_since += time.perf_counter() - begin
        tags = {**point_tags(point, environment), **self._tags}
        counts = (lambda known: self._resume.counts(point, known)) if self._resume.looks else None
        self._reporter.begin(run_name(point))
        ticket = self._tracker.begin(self._identity(point), run_name(point), tags, point.measure.timeout, counts)
        if isinstance(ticket, Busy):
            return False
        if isinstance(ticket, Finished):
            self._summary.skipped[ticket.tags["outcome"]] += 1
            self._reporter.skipped(self._summary.skipped)
            return True
        try:
            record = self._measure(point, environment, ceilings, ticket, tags)
            run_id = self._tracker.record(ticket, record, lambda: self._late(record))
        except BaseException:
            with contextlib.suppress(Exception):
                self._tracker.abandon(ticket, "interrupted before its end")
            raise
        self._done(record, run_id)
        return True

    def _identity(self, point: Point) -> Identity:
        return Identity(point_id(point), self._surroundings.environment(point).environment_id, point.replicate)

    def _measure(
        self, point: Point, environment: Environment, ceilings: Ceilings | None, ticket: Ticket, tags: Mapping[str, str]
    ) -> Record:
        costs = costs_of(point)
        load = environments.load_average()
        limits = Limits(point.measure.timeout, memory_limit(point))
        schedule = time.perf_counter() - self._free_since
        problem = self._surroundings.problem(point)
        answer = Answer("unavailable", problem, {}, {}) if problem else self._predicted(point, costs, limits)
        answer = answer or self._pool.measure(WorkerKey.of(point), request_of(point), limits, self._reporter.phase)
        self._free_since = time.perf_counter()
        answer = Answer(
            answer.outcome,
            answer.reason,
            answer.result,
            {**answer.phases, "schedule": schedule},
            answer.stderr,
            answer.peak_memory_bytes,
        )
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
            answer,
            tags=tags,
            limits=limits_of(point, environment, ceilings),
            load=load,
            start_time=ticket.start_time,
            end_time=end,
        )
        return replace(record, tags={**record.tags, **overrun_tags(yardstick(point, environment), record.metrics)})

    @staticmethod
    def _predicted(point: Point, costs: Costs, limits: Limits) -> Answer | None:
        """Out of memory by arithmetic: no build is tried."""
        reason = exceeds_memory(point, costs, limits.memory_bytes)
        return Answer("oom_predicted", reason, {}, {}) if reason else None

    def _late(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, its figure included; what follows falls into the next point's schedule."""
        now = time.perf_counter()
        spent = now - self._free_since
        overhead = spent + sum(record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start"))
        self._free_since = now
        return {"phase_record_seconds": spent, "overhead_seconds": overhead, **self._waited}

    def _done(self, record: Record, run_id: str) -> None:
        row = {
            "run_id": run_id,
            "name": record.name,
            "outcome": record.outcome,
            "reason": record.reason,
            "steady": record.tags.get("steady"),
            "checks": record.tags.get("checks"),
            **{key: record.tags[key] for key in _NOTES if key in record.tags},
            **record.metrics,
        }
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
