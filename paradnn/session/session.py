"""One session measures points one after the other and records each: claim, measure, record, say so.

Points that are measured in several processes are open together, a group at a time: each is measured once, then each
once more in another order, so that minutes lie between the processes of a point and drift shows in its interval.
Nothing else runs while a child measures. What the stack itself costs is part of the record: every second between two
points falls into one of the phases schedule, start and record.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from paradnn.config.identity import Identity, point_id
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, Settings
from paradnn.costs import Costs
from paradnn.costs.point import costs_of, exceeds_memory, memory_limit
from paradnn.errors import StoreError, WorkerError
from paradnn.execution.environments import WorkerEnvironments
from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits
from paradnn.record.record import Record, point_tags, run_name
from paradnn.session.course import Conclusion, Course
from paradnn.session.drift import Drift
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper
from paradnn.session.interruption import Interrupted, interruptible
from paradnn.session.open_point import OpenPoint
from paradnn.session.parent_run import ParentRun
from paradnn.session.partial import PartialResults
from paradnn.session.progress import Reporter
from paradnn.session.summary import Row, Summary
from paradnn.sweep.scheduler import restarts, task_name, task_tags, waiting_times
from paradnn.sweep.tasks import SweepInfo
from paradnn.tracking.base import ClaimedElsewhere, Finished, Tracker
from paradnn.tracking.fallback import looks_quickly, open_tracker
from paradnn.tracking.resume import ResumePolicy, first_accepted, point_statuses
from paradnn.tracking.run_index import enter_task

__all__ = ["Interrupted", "follow_course", "measure_ceilings", "measure_points", "report_problem"]

#: How many points are open together. A killed driver on another host blocks them for as long as they may take.
GROUP = 24


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun.

    Raises ParadnnError for what the user can correct before anything is measured.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _opened(points, len(points), reporter, settings, sweep) as session:
        return session.run(points)


def follow_course(course: Course, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure what `course` asks for, each time anew, batch after batch, until it asks for nothing more.

    Raises ParadnnError as `measure_points` does.
    """
    reporter = Reporter(course.most, sweep.name, at_most=True)
    with _opened(course.points, 0, reporter, replace(settings, resume=False), sweep) as session:
        return session.follow(course)


@contextlib.contextmanager
def _opened(
    points: Sequence[Point], total: int, reporter: Reporter, settings: Settings, sweep: SweepInfo | None
) -> Iterator[_Session]:
    """A session with its workers and its tracker, for as long as it lasts."""
    enter_task(task_name(sweep), restarts())
    with interruptible(), WorkerEnvironments(points, reporter.say) as environments, WorkerPool() as pool:
        if not looks_quickly(settings.tracking):
            _prepare_first(points, environments, pool)
        tracker = open_tracker(settings.tracking, reporter.say)
        try:
            yield _Session(pool, tracker, environments, reporter, settings, sweep, Summary(total))
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
    with interruptible(), WorkerEnvironments([point], reporter.say) as environments, WorkerPool() as pool:
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
        self._settings = settings
        self._resume = ResumePolicy(settings.resume, settings.retry)
        self._partial = PartialResults(settings.tracking)
        self._ceilings = CeilingsKeeper(pool, tracker, reporter.say) if settings.ceilings else None
        self._summary = summary
        self._sweep = sweep
        self._parent = ParentRun(tracker, sweep)
        self._random = random.Random(settings.sweep.seed)
        self._open: list[OpenPoint] = []
        self._drift = Drift()
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
        processes = sum(point.measure.processes for point in todo)
        return self._carry_out(lambda: self._work(todo), processes, begin, Conclusion)

    def follow(self, course: Course) -> Summary:
        """Measure what the course asks for; what it concludes stands on the parent run."""
        begin = time.perf_counter()
        self._tracker.close_abandoned()
        self._summary.parent = self._parent.open()
        return self._carry_out(lambda: self._visit(course), course.most, begin, course.conclusion)

    def _visit(self, course: Course) -> None:
        rows: Sequence[Row] = ()
        while visits := course.batch(rows):
            self._summary.total += len(visits)
            for visit in visits:
                self._enter(visit.point, further=visit.tags)
            rows = self._summary.rows[-len(visits) :]
            self._reporter.standing = course.standing

    def _carry_out(
        self, work: Callable[[], None], processes: int, begin: float, conclude: Callable[[], Conclusion]
    ) -> Summary:
        """Do the work and close what was opened for it, also after an interruption."""
        self._tags = task_tags(self._sweep)
        self._waited = waiting_times(self._sweep.launched if self._sweep else None)
        self._free_since = time.perf_counter()
        self._reporter.start(self._summary.skipped, processes)
        try:
            work()
        except KeyboardInterrupt:
            self._summary.interrupted = True
        finally:
            for entry in self._open:
                with contextlib.suppress(Exception):
                    self._tracker.abandon(entry.claim, "interrupted before its end")
        self._summary.seconds = time.perf_counter() - begin
        self._summary.drift = self._drift.estimate()
        self._parent.end(self._summary, self._environments.environment_ids, conclude())
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
        """Measure group after group; what another driver holds comes again at the end."""
        queue, elsewhere = deque(todo), 0  # points in a row that were held by others
        self._open_reference(queue)
        while queue:
            for _ in range(min(GROUP, len(queue))):
                point = queue.popleft()
                if self._enter(point):
                    elsewhere = 0
                else:
                    queue.append(point)
                    elsewhere += 1
            self._further_rounds()
            if elsewhere and elsewhere >= len(queue):
                self._reporter.begin(f"waiting for {len(queue)} point(s) that another driver measures")
                time.sleep(random.uniform(0.5, 1.5))
        for entry in self._open:
            entry.last_group = True
        self._further_rounds()

    def _open_reference(self, queue: deque[Point]) -> None:
        """Open the points that are measured once more with every group: the middle ones of a sample, by their FLOPs."""
        count = self._settings.sweep.reference_points
        if len(queue) <= GROUP or not count:
            return
        usable = [point for point in list(queue)[: 8 * GROUP] if not self._environments.problem(point)]
        usable.sort(key=lambda point: costs_of(point).flops_per_step)
        for share in range(1, count + 1):
            if usable:
                point = usable.pop(len(usable) * share // (count + 1))
                queue.remove(point)
                if not self._enter(point, reference=True):
                    queue.append(point)

    def _further_rounds(self) -> None:
        """Measure what is open in further processes, each once a round, until all is complete; and the references."""
        while waiting := [entry for entry in self._open if not entry.reference or entry.last_group]:
            if self._settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._process(entry)
        for entry in list(self._open):
            self._process(entry)

    def _enter(self, point: Point, reference: bool = False, further: Mapping[str, str] | None = None) -> bool:
        """Claim a point, measure it in its first process; False when another driver holds it. `further` are tags."""
        environment = self._environments.environment(point)
        begin = time.perf_counter()
        usable = not self._environments.problem(point)
        ceilings = self._ceilings.of(point, environment) if self._ceilings and usable else None
        # Measuring them is no cost of this point.
        self._free_since += time.perf_counter() - begin
        tags = {**point_tags(point, environment), **self._tags, **(further or {})}
        accepts = (lambda known: self._resume.accepts(point, known)) if self._resume.looks else None
        self._reporter.begin(run_name(point))
        # Its processes are spread over those of the whole group.
        longest = point.measure.timeout * (GROUP if point.measure.processes > 1 or reference else 1)
        identity = self._identity(point)
        claim = self._tracker.begin(identity, run_name(point), tags, longest, accepts)
        if isinstance(claim, ClaimedElsewhere):
            return False
        if isinstance(claim, Finished):
            self._partial.remove(identity)
            self._summary.skipped[claim.tags["outcome"]] += 1
            self._reporter.skipped(self._summary.skipped, point.measure.processes)
            return True
        entry = OpenPoint(point, environment, ceilings, claim, tags, costs_of(point), reference)
        if not claim.repeats:
            entry.results += self._partial.load(identity)
        self._open.append(entry)
        self._process(entry)
        return True

    def _identity(self, point: Point) -> Identity:
        return Identity(point_id(point), self._environments.environment(point).environment_id, point.replicate)

    def _process(self, entry: OpenPoint) -> None:
        """Measure a point in one more process; record it once it is complete."""
        if not entry.is_complete:
            wanted = entry.point.measure.processes
            self._reporter.begin(run_name(entry.point), len(entry.results) + 1 if wanted > 1 else None)
            entry.results.append(self._measure(entry))
            self._reporter.process_ended()
        if not entry.is_complete:
            if not entry.claim.repeats:
                self._partial.save(entry.claim.identity, entry.results)
            return
        record = entry.record()
        run_id = self._tracker.record(entry.claim, record, lambda: self._late(record))
        self._open.remove(entry)
        if len(entry.results) > 1:
            self._partial.remove(entry.claim.identity)
        self._drift.add(entry.steps())
        self._done(record, run_id, entry.wanted)

    def _measure(self, entry: OpenPoint) -> PointResult:
        point = entry.point
        limits = Limits(point.measure.timeout, memory_limit(point))
        schedule, begun = time.perf_counter() - self._free_since, time.time()
        problem = self._environments.problem(point)
        result = PointResult("unavailable", problem) if problem else self._predicted(point, entry.costs, limits)
        result = result or self._pool.measure(WorkerKey.of(point), entry.request(), limits, self._reporter.phase)
        self._free_since = time.perf_counter()
        return replace(result, phases={**result.phases, "schedule": schedule}, begun=begun)

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

    def _done(self, record: Record, run_id: str, spared: int) -> None:
        row = Row.of_record(run_id, record)
        self._summary.rows.append(row)
        self._reporter.done(row, spared)
