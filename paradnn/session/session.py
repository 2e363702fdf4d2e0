"""One session: which points are missing, measuring them, the parent run, what is said of it all. Nothing else runs
while a child measures. What the stack itself costs is part of the record: every second between two points falls into
one of the phases schedule, start and record."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paradnn.config.identity import Identity
from paradnn.config.point import Platform, Point, Settings
from paradnn.config.scheduler import job_tags, start_seconds
from paradnn.config.tasks import SweepInfo
from paradnn.core.errors import ConfigError, WorkerError
from paradnn.core.words import core_list, core_text, counted, without_secrets
from paradnn.platform.environment import missing_device
from paradnn.platform.findings import load_findings
from paradnn.platform.load import LoadWatch
from paradnn.session.course import Conclusion, Course, Row, Summary
from paradnn.session.environments import WorkerEnvironments
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper
from paradnn.session.hosts import require_hosts
from paradnn.session.measuring import Measuring, SessionContext
from paradnn.session.progress import Reporter
from paradnn.session.workers import WorkerKey, WorkerPool
from paradnn.store.journal import Journal
from paradnn.store.runs import Finished, SweepRun, first_accepted
from paradnn.store.tracker import open_tracker


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun. Raises
    ParadnnError for what the user can correct before anything is measured."""
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _opened(points, len(points), reporter, settings, sweep) as session:
        return session.run(points)


def follow_course(course: Course, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure what `course` asks for, again each time, batch after batch, until it asks for nothing more. Raises
    ParadnnError as `measure_points` does."""
    reporter = Reporter(course.left, sweep.name, at_most=not course.resumes)
    settings = settings if course.resumes else replace(settings, resume=False)
    with _opened(course.points, 0, reporter, settings, sweep) as session:
        return session.follow(course)


@contextlib.contextmanager
def _opened(
    points: Sequence[Point], total: int, reporter: Reporter, settings: Settings, sweep: SweepInfo | None
) -> Iterator[_Session]:
    watch = LoadWatch()
    require_possible(points)
    with interruptible(), WorkerEnvironments(points, reporter.say) as environments, WorkerPool() as pool:
        tracker = open_tracker(settings.tracking, reporter.say)
        try:
            context = SessionContext(pool, tracker, environments, reporter, settings, Summary(total))
            yield _Session(context, sweep, watch)
        finally:
            reporter.close()


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Re-measure the ceilings of a point's platform; also where they are recorded."""
    require_possible([point])
    reporter = Reporter(1, None)
    with interruptible(), WorkerEnvironments([point], reporter.say) as environments, WorkerPool() as pool:
        if problem := environments.problem(point):
            raise WorkerError(problem)
        environment = environments.environment(point)
        pool.prepare(WorkerKey.of(point))
        tracker = open_tracker(settings.tracking, reporter.say)
        tracker.close_abandoned()
        return CeilingsKeeper(pool, tracker, reporter.say).of(point, environment, again=True), tracker.where


class _Session:
    def __init__(self, context: SessionContext, sweep: SweepInfo | None, watch: LoadWatch) -> None:
        self._context, self._sweep, self._watch = context, sweep, watch
        self._tracker, self._summary, self._reporter = context.tracker, context.summary, context.reporter
        self._parent = ParentRun(context.tracker, sweep)
        self._measuring = Measuring(context)

    def run(self, points: Sequence[Point]) -> Summary:
        begin = time.perf_counter()
        self._tracker.close_abandoned()
        todo = self._missing(points)
        if todo:
            self._prepare_first(todo)
            self._parent.open(len(todo))
        processes = sum(point.measure.processes for point in todo)
        return self._carry_out(partial(self._measuring.work, todo), processes, begin, Conclusion)

    def follow(self, course: Course) -> Summary:
        """Measure what the course asks for; what it concludes stands on the parent run."""
        begin = time.perf_counter()
        self._tracker.close_abandoned()
        self._prepare_first(course.points)
        self._summary.parent = self._parent.open()
        return self._carry_out(lambda: self._visit(course), course.left, begin, course.conclusion)

    def _prepare_first(self, points: Sequence[Point]) -> None:
        """Start the first worker: the framework's import runs while the driver imports MLflow and opens the sweep."""
        environments = self._context.environments
        if first := next((point for point in points if not environments.problem(point)), None):
            self._context.pool.prepare(WorkerKey.of(first))

    def _visit(self, course: Course) -> None:
        rows: Sequence[Row] = ()
        while True:
            self._reporter.begin("the next points")  # where choosing takes a while
            self._reporter.phase("choosing")
            if not (visits := course.batch(rows)):
                return
            self._summary.total += len(visits)
            self._reporter.standing = course.standing
            processes = sum(visit.point.measure.processes for visit in visits) / len(visits)
            self._reporter.expect(course.left, processes, course.seconds_left)
            before = len(self._summary.rows)
            self._summary.total -= self._measuring.visit(visits, course.wants)
            rows = self._summary.rows[before:]

    def _carry_out(
        self, work: Callable[[], object], processes: int, begin: float, conclude: Callable[[], Conclusion]
    ) -> Summary:
        how, summary = self._context.settings.sweep, self._summary
        tags = {"design": how.design} if how.design != "grid" else {"sweep_order": how.order} if self._sweep else {}
        of = {"sweep_id": self._sweep.sweep_id} if self._sweep else {}
        self._measuring.start({**job_tags(), **of, **tags}, start_seconds())
        self._reporter.start(summary.skipped, processes)
        if processes:  # what is seen of the machine is recorded with every point
            load = self._watch.look()
            self._measuring.findings = load_findings(load)
            if load.busy:
                advice = "intervals will be wide; python -m paradnn.check says more"
                self._reporter.say(f"this machine is busy: {load}: {advice}")
        try:
            work()
        except KeyboardInterrupt:
            summary.interrupted = True
        finally:
            self._measuring.abandon()
        summary.seconds = time.perf_counter() - begin
        conclusion = conclude()
        summary.conclusion = conclusion.text
        self._parent.end(summary, conclusion)
        summary.where = self._tracker.where
        return summary

    def _missing(self, points: Sequence[Point]) -> list[Point]:
        """The points without an outcome that is accepted, each once; the others are counted as skipped."""
        resume = self._context.resume
        known: Mapping[Identity, Sequence[Finished]] = {}
        if resume.looks:
            known = self._tracker.finished(self._context.environments.environment_ids)
        todo, seen = [], set()
        for point in points:
            identity = self._measuring.identity(point)
            if done := first_accepted(point, known.get(identity, ()), resume):
                outcome = done.tags["outcome"]
                self._measuring.partial.forget(identity, outcome)
                self._summary.skipped[outcome] += 1
                if not self._sweep:  # a single point: say what is known of it
                    metrics, tags = self._tracker.fetch(done.run_id)
                    name = tags.get("mlflow.runName") or tags.get("name") or done.run_id
                    row = Row(
                        done.run_id, name, point.model.name, outcome, tags.get("reason"), metrics, tags, known=True
                    )
                    self._summary.rows.append(row)
            elif identity in seen:
                self._summary.repeated += 1
            else:
                todo.append(point)
            seen.add(identity)
        return todo


class ParentRun:
    """The parent run of a sweep as this process sees it; without a sweep all of it does nothing."""

    def __init__(self, tracker: Journal, sweep: SweepInfo | None) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._opened = False

    def open(self, points: int | None = None) -> str:
        """Open the parent of so many points to measure; its run id."""
        if self._sweep is None:
            return ""
        self._opened = True
        command = without_secrets(self._sweep.command)
        tags = {"sweep_id": self._sweep.sweep_id, "command": command}
        tags |= {"planned_points": str(points)} if points is not None else {}
        return self._tracker.open_sweep(self._sweep.name, f"`{command}`\n\nrunning ...", tags)

    def end(self, summary: Summary, conclusion: Conclusion) -> None:
        """Close what was opened here."""
        if self._sweep is None or not self._opened:
            return
        what = counted(summary.total, "point")
        state = "interrupted" if summary.interrupted else "finished"
        closing = f"A sweep of {what}, {state} after {summary.seconds:.0f} s: {summary.counts()}."
        text = "\n\n".join(filter(None, (f"`{without_secrets(self._sweep.command)}`", conclusion.text, closing)))
        metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
        metrics |= {"points": float(summary.total), **conclusion.metrics}
        status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
        self._tracker.close_sweep(SweepRun(status, text, metrics, conclusion.artifacts, conclusion.tags))


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the sweep to end (Ctrl-C, SIGTERM)."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the session as Ctrl-C does."""

    def stop(*_: Any) -> None:
        raise Interrupted

    # Only the main thread may ask for signals.
    signals = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    previous = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)


def require_possible(points: Sequence[Point]) -> None:
    """Raise ConfigError for input that is not there, and where no point has the device, cores or hosts it names."""
    for data in dict.fromkeys(point.data for point in points):
        path = getattr(data, "path", None)
        if path is not None and not Path(path).exists():
            remedy = "give a file or a folder" + (", or leave it out for a generated set" if data.is_made else "")
            raise ConfigError("data.path", path, "there is no such file or folder", remedy)
    problems = [_problem(platform) for platform in dict.fromkeys(point.platform for point in points)]
    if problems and all(problems):
        raise next(filter(None, problems))
    require_hosts([point.hosts for point in points], os.environ)


def _problem(platform: Platform) -> ConfigError | None:
    if problem := missing_device(platform.name):
        return ConfigError("platform", platform.name, problem, "choose another, such as platform=cpu")
    if platform.cores is not None and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        if missing := sorted(set(core_list(str(platform.cores))) - allowed):
            problem = f"core {missing[0]} is none that this process may use"
            return ConfigError("platform.cores", platform.cores, problem, f"choose of {core_text(allowed)}")
    return None
