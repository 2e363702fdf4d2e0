"""One session: which points are missing, measuring them, the parent run, what is said of it all. Nothing else runs
while a child measures. What the stack itself costs is part of the record: every second between two points falls into
one of the phases schedule, start and record."""

from __future__ import annotations

import contextlib
import os
import secrets
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
from paradnn.session.design import Conclusion, Design, RecordedPoint, Summary
from paradnn.session.environments import WorkerEnvironments, require_hosts
from paradnn.session.hardware_peaks import Ceilings
from paradnn.session.measuring import Measuring
from paradnn.session.progress import Reporter
from paradnn.session.workers import WorkerKey, WorkerPool
from paradnn.store.journal import Journal
from paradnn.store.runs import Finished, SweepRun
from paradnn.store.tracker import open_tracker


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a multirun. Raises
    ParadnnError for what the user can correct before anything is measured."""
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _opened(points, reporter, settings, sweep) as session:
        return session.run(points)


def follow_design(design: Design, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure what `design` asks for, again each time, until it asks for nothing more; ParadnnError likewise."""
    reporter = Reporter(design.left, sweep.name, at_most=not design.resumes)
    settings = settings if design.resumes else replace(settings, resume=False)
    with _opened(design.points, reporter, settings, sweep) as session:
        return session.follow(design)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Re-measure the ceilings of a point's platform; also where they are recorded."""
    with _opened([point], Reporter(1, None), settings, None) as session:
        if problem := session.environments.problem(point):
            raise WorkerError(problem)
        session.pool.prepare(WorkerKey.of(point))
        environment = session.environments.environment(point)
        return session.ceilings.of(point, environment, again=True), session.tracker.where


@contextlib.contextmanager
def _opened(
    points: Sequence[Point], reporter: Reporter, settings: Settings, sweep: SweepInfo | None
) -> Iterator[_Session]:
    watch, begin = LoadWatch(), time.perf_counter()
    require_possible(points)
    with interruptible(), WorkerEnvironments(points, reporter.say) as environments, WorkerPool() as pool:
        tracker = open_tracker(settings.tracking, reporter.say)
        try:
            tracker.close_abandoned()
            yield _Session(sweep, watch, begin, pool, tracker, environments, reporter, settings)
        finally:
            reporter.close()


class _Session(Measuring):
    def __init__(self, sweep: SweepInfo | None, watch: LoadWatch, begin: float, *given: Any) -> None:
        super().__init__(*given)
        self._sweep, self._watch, self._since = sweep, watch, begin

    def run(self, points: Sequence[Point]) -> Summary:
        todo = self._missing(points)
        self.summary.total = len(points)
        if todo:
            self._prepare(todo, len(todo))
        processes = sum(point.measure.processes for point in todo)
        return self._carry_out(partial(self.work, todo), processes, Conclusion)

    def follow(self, design: Design) -> Summary:
        """Measure what the design asks for; what it concludes stands on the parent run."""
        self._prepare(design.points)
        return self._carry_out(partial(self._visit, design), design.left, design.conclusion)

    def _prepare(self, points: Sequence[Point], planned: int | None = None) -> None:
        """Start the first worker: the framework's import runs while the driver imports MLflow and opens the sweep."""
        if first := next((point for point in points if not self.environments.problem(point)), None):
            self.pool.prepare(WorkerKey.of(first))
        if self._sweep:
            self.summary.parent = open_parent(self.tracker, self._sweep, planned)

    def _visit(self, design: Design) -> None:
        rows: Sequence[RecordedPoint] = ()
        while True:
            self.reporter.begin("the next points", "choosing")  # which may take a while
            if not (visits := design.batch(rows)):
                return
            self.summary.total += len(visits)
            self.reporter.known = design.progress
            processes = sum(visit.point.measure.processes for visit in visits) / len(visits)
            self.reporter.expect(design.left, processes, design.seconds_left)
            before = len(self.summary.rows)
            self.summary.total -= len(self.visit(visits, design.wants))
            rows = self.summary.rows[before:]

    def _carry_out(self, work: Callable[[], object], processes: int, conclude: Callable[[], Conclusion]) -> Summary:
        how, summary, sweep = self.settings.sweep, self.summary, self._sweep
        tags = {"design": how.design} if how.design != "grid" else {"sweep_order": how.order} if sweep else {}
        of = {"sweep_id": sweep.sweep_id} if sweep else {}
        self.tags = {**job_tags(), **of, **tags, "session_id": secrets.token_hex(8)}
        self.waited = start_seconds()
        self.start()
        self.reporter.start(summary.skipped.total(), processes)
        if processes:  # what is seen of the machine is recorded with every point
            load = self._watch.look()
            self.findings = load_findings(load)
            if load.busy:
                advice = "intervals will be wide; python -m paradnn.check says more"
                self.reporter.say(f"this machine is busy: {load}: {advice}")
        try:
            work()
        except KeyboardInterrupt:
            summary.interrupted = True
        finally:
            self.abandon()
        summary.seconds = time.perf_counter() - self._since
        conclusion = conclude()
        summary.conclusion = conclusion.text
        if sweep and summary.parent:
            end_parent(self.tracker, sweep, summary, conclusion)
        summary.where = self.tracker.where
        return summary

    def _missing(self, points: Sequence[Point]) -> list[Point]:
        """The points without an outcome that is accepted, each once; the others are counted as skipped."""
        known: Mapping[Identity, Sequence[Finished]] = {}
        if self.resume.looks:
            known = self.tracker.finished(self.environments.environment_ids)
        todo = {}
        for point in points:
            identity = self.identity(point)
            if done := self.resume.first(point, known.get(identity, ())):
                self.skip(identity, done)
                if not self._sweep:  # a single point: say what is known of it
                    metrics, tags = self.tracker.fetch(done.run_id)
                    name = tags.get("mlflow.runName") or tags.get("name") or done.run_id
                    ending = (done.tags["outcome"], tags.get("reason"))
                    row = RecordedPoint(done.run_id, name, point.model.name, *ending, metrics, tags, known=True)
                    self.summary.rows.append(row)
            elif identity in todo:
                self.summary.repeated += 1
            else:
                todo[identity] = point
        return [*todo.values()]


def open_parent(tracker: Journal, sweep: SweepInfo, points: int | None = None) -> str:
    """Open the parent run of a sweep of so many points to measure; its id."""
    command = without_secrets(sweep.command)
    tags = {"sweep_id": sweep.sweep_id, "command": command}
    tags |= {"planned_points": str(points)} if points is not None else {}
    return tracker.open_sweep(sweep.name, f"`{command}`\n\nrunning ...", tags)


def end_parent(tracker: Journal, sweep: SweepInfo, summary: Summary, conclusion: Conclusion) -> None:
    """Close the parent run of a sweep."""
    state = "interrupted" if summary.interrupted else "finished"
    what = f"A sweep of {counted(summary.total, 'point')}, {state} after {summary.seconds:.0f} s"
    said = (f"`{without_secrets(sweep.command)}`", conclusion.text, f"{what}: {summary.counts()}.")
    metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
    metrics |= {"points": float(summary.total), **conclusion.metrics}
    status = "KILLED" if summary.interrupted else "FAILED" if summary.missing else "FINISHED"
    end = SweepRun(status, "\n\n".join(filter(None, said)), metrics, conclusion.artifacts, conclusion.tags)
    tracker.close_sweep(end)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the session as Ctrl-C does."""
    # Only the main thread may ask for signals.
    signals = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    previous = [signal.signal(number, signal.default_int_handler) for number in signals]
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
