"""One session of a driver: find the missing points, measure them and record them.

The driver is the process of `python -m paradnn.train`. A point is one configuration to measure: a
model with its sizes, batch size, precision and so on. Worker processes measure the points. While a
worker measures, the driver only monitors it and renews its lease in the store. The driver's own
cost is recorded too: every second between two points belongs to one of the phases schedule, start
and record.

Each point is claimed, measured in one or more processes, and recorded. A session measures a group
of points in rounds. Each round runs one process of every incomplete point of the group. With
sweep.order=random, the order differs between rounds. Minutes therefore lie between the processes of
a point, so its confidence interval includes drift.
"""

import contextlib
import math
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paradnn.config.identity import FORMER_STANDARD, Identity, point_id
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, step_costs
from paradnn.config.scheduler import (
    driver_start,
    job_tags,
    start_seconds,
    visible_cores,
    visible_devices,
)
from paradnn.config.settings import Settings
from paradnn.config.tasks import SweepInfo
from paradnn.core.errors import ClaimLostError, DataError, StoreError, WorkerError
from paradnn.core.messages import WorkloadMessage
from paradnn.core.words import counted
from paradnn.platform.environment import (
    Environment,
    exceeds_memory,
    memory_limit,
    separate_hosts,
)
from paradnn.platform.findings import Finding, load_findings
from paradnn.platform.load import LoadMonitor
from paradnn.session.design import DesignPoint, DesignResult, RecordedPoint, Summary, SweepDesign
from paradnn.session.environments import (
    WorkerEnvironments,
    other_hosts,
    require_answers,
    require_possible,
)
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper, below_ceilings
from paradnn.session.open_point import OpenPoint, ProgressPrinter
from paradnn.session.progress import Reporter
from paradnn.session.record import point_tags, priced, profile_tags, run_name
from paradnn.session.run_records import RunRecords
from paradnn.session.signals import end_with_processes, interruptible
from paradnn.session.sweep_page import SweepPage
from paradnn.session.sweep_run import end_parent, end_shared_sweep, open_parent
from paradnn.session.system_metrics import SystemSampler, is_requested, sampling_seconds
from paradnn.session.turns import BlockTurns
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Journal, PartialResults
from paradnn.store.leases import HEARTBEAT_SECONDS, Heartbeat, Lease, Owner
from paradnn.store.runs import (
    EARLIER_POINTS,
    Claim,
    Finished,
    Record,
    ResumePolicy,
    SweepRun,
    wanted_extras,
)
from paradnn.store.tracker import open_tracker

#: Maximum number of points in a group.
GROUP = 24
#: Minimum number of groups per driver of a shared sweep, so that all drivers end at about the same
#: time.
_GROUPS_PER_DRIVER = 3
#: Longest mean pause in seconds before a driver retries points that other drivers hold.
_LONGEST_PAUSE = 5.0


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record points in the given order.

    Args:
        points: The configurations to measure. A point is skipped if the store has an outcome that
            `settings.resume` accepts.
        settings: Settings of the command.
        sweep: Name and id of the sweep; None for a single point outside a multirun.

    Returns:
        A summary of the session: the recorded points, and counts of skipped and missing points.

    Raises:
        ParadnnError: If an error that the user can correct is found before the first measurement.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _open_session(points, reporter, settings, sweep) as session:
        return session.run(points)


def follow_design(design: SweepDesign, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure the points (configurations) that an adaptive sweep design chooses, in batches.

    The session ends when the design returns an empty batch.

    Args:
        design: Chooses each batch of points, given the results of the previous batch.
        settings: Settings of the command.
        sweep: Name and id of the sweep.

    Returns:
        A summary of the session, with the conclusion of the design.

    Raises:
        ParadnnError: If an error that the user can correct is found before the first measurement.
    """
    reporter = Reporter(design.left, sweep.name, at_most=not design.resumes)
    if not design.resumes:
        settings = replace(settings, resume=False)
    with _open_session(design.points, reporter, settings, sweep) as session:
        return session.follow(design)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Measure the peak rates of a point's platform, even if the store contains them.

    Args:
        point: A configuration. Only its platform and software are used.
        settings: Settings of the command.

    Returns:
        A pair (ceilings, location). The ceilings are the peak FLOP/s and the memory bandwidth; None
        if they cannot be measured. The location says in which store their run is.

    Raises:
        WorkerError: If the device or the software stack of the point is unavailable.
    """
    with _open_session([point], Reporter(1, None), settings, None) as session:
        problem = session.environments.problem(point)
        if problem:
            raise WorkerError(problem)
        session.pool.prepare(WorkerKey.of(point))
        environment = session.environments.environment(point)
        ceilings = session.ceilings.of(point, environment, again=True)
        return ceilings, session.tracker.where


@dataclass(frozen=True)
class _ProcessStart:
    """Start time of a process of a point, and the driver's time before this start.

    Attributes:
        schedule_seconds: Seconds from the end of the previous process, or from the recording of the
            previous point, to the start of this process. The time to measure the peak rates of the
            platform is excluded.
        unix_seconds: Start of the process in Unix seconds.
    """

    schedule_seconds: float
    unix_seconds: float


@dataclass(eq=False)
class _Session:
    """One session: its points, the resources that it holds, and its results so far.

    Attributes:
        sweep: Name and id of the sweep; None for a single point.
        load_monitor: Observes the load that other processes have caused since `begin`.
        begin: Start of the session in seconds, on the clock of `time.perf_counter`.
        pool: The workers.
        tracker: Journal through which the session claims and records points in the store.
        environments: Hardware and software versions under which each point is measured.
        reporter: Prints the progress.
        settings: Settings of the command.
        findings: Problems of this machine, recorded in the environment of every run.
        tags: Tags of every run.
        start_metrics: Start-up durations of this driver in seconds, recorded with every run.
    """

    sweep: SweepInfo | None
    load_monitor: LoadMonitor
    begin: float
    pool: WorkerPool
    tracker: Journal
    environments: WorkerEnvironments
    reporter: Reporter
    settings: Settings

    def __post_init__(self) -> None:
        self.findings: Sequence[Finding] = ()
        self.tags: Mapping[str, str] = {}
        self.start_metrics: Mapping[str, float] = {}
        self.summary = Summary()
        self.resume = ResumePolicy(self.settings.resume, self.settings.retry, self._shared_sweep_id)
        self.partial = PartialResults(self.settings.tracking)
        self.ceilings = CeilingsKeeper(self.pool, self.tracker, self.reporter.say)
        self._random = random.Random(self.settings.sweep.seed)
        self._next_check_for_lost_points = 0.0  # monotonic seconds
        self._open: list[OpenPoint] = []
        self._lost: list[OpenPoint] = []  # points that other drivers took over
        self._points: Sequence[Point] = ()
        self._planned: Mapping[str, int] | None = None  # environment id -> number of points
        self._earlier_points: list[str] = []  # ids of other sweeps' runs that replace measurements
        self._start_clock()

    @property
    def _shared_sweep_id(self) -> str | None:
        """Id of the sweep if several drivers share it; otherwise None."""
        if self.sweep and self.sweep.driver is not None:
            return self.sweep.sweep_id
        return None

    def run(self, points: Sequence[Point]) -> Summary:
        """Measure the points that have no accepted outcome in the store.

        Returns:
            The summary of the session.
        """
        missing = self._find_missing(points)
        self._points = points
        self.summary.total = len(points)
        processes = sum(point.measure.processes for point in missing)

        def prepare() -> None:
            if missing or self._shared_sweep_id:
                self._prepare(missing, len(missing))

        work = partial(self._measure_all, missing)
        return self._carry_out(prepare, work, processes, DesignResult)

    def follow(self, design: SweepDesign) -> Summary:
        """Measure the points that a design chooses, and store its conclusion in the parent run.

        Returns:
            The summary of the session, with the conclusion.
        """
        prepare = partial(self._prepare, design.points)
        work = partial(self._follow, design)
        return self._carry_out(prepare, work, design.left, design.conclusion)

    def _prepare(self, points: Sequence[Point], planned: int | None = None) -> None:
        """Start the first worker and, for a sweep, open the parent run.

        The parent run holds the runs of the sweep's points. The worker imports its framework while
        the driver imports MLflow and opens the parent run.

        Args:
            points: The points to measure, or one representative point per required worker.
            planned: Number of points to measure; None if a design chooses them.
        """
        possible = (point for point in points if not self.environments.problem(point))
        first = next(possible, None)
        if first:
            self.pool.prepare(WorkerKey.of(first))
        if self.sweep:
            self.summary.parent = open_parent(
                self.tracker,
                self.sweep,
                planned_points=planned,
                own_tags=self.settings.tracking.tags,
            )
            self._register(self.sweep)
            self._record_earlier_points()

    def _record_earlier_points(self) -> None:
        """Record the ids of earlier runs that replace measurements, for the sweep's HTML page."""
        if self._earlier_points:
            table = {"columns": ["run_id"], "data": [[run_id] for run_id in self._earlier_points]}
            self.tracker.annotate_sweep(
                SweepRun(status="RUNNING", description="", artifacts={EARLIER_POINTS: table})
            )

    def _register(self, sweep: SweepInfo) -> None:
        """Register this driver with its sweep; warn about other drivers on the same cores."""
        planned = self._planned if self._shared_sweep_id else None
        lease = Lease(
            owner=Owner.current(),
            expires=0.0,
            cores=visible_cores(),
            devices=visible_devices(),
            job_id=job_tags().get("job_id", ""),
            planned=planned,
        )
        driver = str(sweep.driver or 0)
        self.tracker.register(driver, lease)
        if self._shared_sweep_id is None:
            return
        for other, other_lease in self.tracker.leases_of_sweep().items():
            is_alive = other != driver and other_lease.is_alive
            if is_alive and other_lease.shares_cores_with(lease):
                self.reporter.say(
                    f"drivers {other} and {driver} share cores of {lease.owner.host} and disturb "
                    "each other's measurements; give each driver separate cores or a separate host"
                )

    def _follow(self, design: SweepDesign) -> None:
        rows: Sequence[RecordedPoint] = ()
        while True:
            self.reporter.begin("the next points", "choosing")  # this may take a while
            batch = design.batch(rows)
            if not batch:
                return
            self.summary.total += len(batch)
            self.reporter.known = design.progress
            processes = sum(visit.point.measure.processes for visit in batch) / len(batch)
            self.reporter.expect(design.left, processes, design.seconds_left)
            count_before = len(self.summary.rows)
            unmeasured = self._measure_batch(batch, design.wants)
            self.summary.total -= len(unmeasured)
            rows = self.summary.rows[count_before:]

    def _carry_out(
        self,
        prepare: Callable[[], None],
        work: Callable[[], object],
        processes: int,
        conclude: Callable[[], DesignResult],
    ) -> Summary:
        """Run `prepare` and `work`; return the summary, even after an interruption.

        Args:
            prepare: Starts the first worker and registers this driver with its sweep.
            work: Measures the points.
            processes: Expected number of processes; 0 if no point is measured.
            conclude: Returns, after `work`, the result of the design that chose the points.
        """
        summary = self.summary
        self._start_clock()
        try:
            prepare()
            self.tags = self._session_tags()
            self.start_metrics = start_seconds()
            self._start_clock()
            self.reporter.start(summary.skipped.total(), processes)
            if processes:
                self._check_load()
            work()
        except KeyboardInterrupt:
            summary.interrupted = True
        finally:
            self._abandon_open_points()
        summary.seconds = time.perf_counter() - self.begin
        conclusion = conclude()
        summary.conclusion = conclusion.text
        if self.sweep and summary.parent:
            page = SweepPage(self.settings.tracking, self.sweep, self.reporter.say)
            if self._shared_sweep_id:
                end_shared_sweep(self.tracker, self.sweep, self._points, summary, conclusion, page)
            else:
                end_parent(self.tracker, self.sweep, summary, conclusion, page)
        summary.where = self.tracker.where
        summary.problem = self.tracker.problem
        return summary

    def _session_tags(self) -> dict[str, str]:
        """Return the tags that every run of this session gets.

        ParaDnn's tags override the user's tags of the same name.
        """
        options = self.settings.sweep
        tags = {**self.settings.tracking.tags, **job_tags()}
        if self.sweep:
            tags["sweep_id"] = self.sweep.sweep_id
            if self.sweep.driver is not None:
                tags["driver"] = str(self.sweep.driver)
        start = driver_start()
        if start is not None and start.launcher:
            tags["launcher"] = start.launcher
        if options.design != "grid":
            tags["design"] = options.design
        elif self.sweep:
            tags["sweep_order"] = options.order
        tags["session_id"] = secrets.token_hex(8)
        return tags

    def _check_load(self) -> None:
        """Record the load of this machine in every run, and warn if the machine is busy."""
        load = self.load_monitor.look()
        self.findings = load_findings(load)
        if load.is_busy:
            advice = "intervals will be wide; python -m paradnn.check has details"
            self.reporter.say(f"this machine is busy: {load}: {advice}")

    def _find_missing(self, points: Sequence[Point]) -> list[Point]:
        """Return the points without an accepted outcome in the store, once each.

        A point with an accepted outcome counts as skipped in the summary, and a point that occurs
        again in `points` counts as repeated.
        """
        finished: Mapping[Identity, Sequence[Finished]] = {}
        if self.resume.queries_store:
            finished = self.tracker.finished(
                self.environments.environment_ids, self._shared_sweep_id
            )
        missing: dict[Identity, Point] = {}
        of_sweep: set[Identity] = set()
        for point in points:
            identity = self._identify(point)
            accepted = self.resume.first(point, finished.get(identity, ()))
            if accepted:
                if self.resume.is_of_sweep(accepted.tags):
                    of_sweep.add(identity)
                else:
                    self._earlier_points.append(accepted.run_id)
                self._skip(identity, accepted)
                if not self.sweep:  # a single point: show the stored result
                    self.summary.rows.append(self._stored_row(point, accepted))
            elif identity in missing:
                self.summary.repeated += 1
            else:
                missing[identity] = point
        self._report_former_protocol(list(missing.values()), finished)
        counts = Counter(identity.environment_id for identity in (*missing, *of_sweep))
        self._planned = dict(counts)
        return list(missing.values())

    def _stored_row(self, point: Point, finished: Finished) -> RecordedPoint:
        metrics, tags = self.tracker.fetch(finished.run_id)
        return RecordedPoint(
            run_id=finished.run_id,
            name=tags.get("mlflow.runName") or tags.get("name") or finished.run_id,
            family=point.model.name,
            outcome=finished.tags["outcome"],
            reason=tags.get("reason"),
            metrics=metrics,
            tags=tags,
            known=True,
        )

    def _report_former_protocol(
        self, missing: Sequence[Point], finished: Mapping[Identity, Sequence[Finished]]
    ) -> None:
        """Tell the user if the store has results that were measured under an earlier protocol.

        The message names the overrides to add to the command line so that these results are
        accepted.

        Args:
            missing: The points that have no accepted outcome.
            finished: Identity of a measurement -> its finished runs in the store.
        """
        if not finished:
            return
        count = 0
        for point in missing:
            former = replace(point, measure=replace(point.measure, **FORMER_STANDARD))
            if self._identify(former) in finished:
                count += 1
        if count:
            keys = " ".join(f"measure.{key}={value:g}" for key, value in FORMER_STANDARD.items())
            self.reporter.say(
                f"the store holds {counted(count, 'point')} of this sweep, measured under the "
                f"former protocol of measure=standard; to skip them, add {keys}"
            )

    def _start_clock(self) -> None:
        """Start the clock of the session and the clock of the first schedule phase.

        The schedule phase of a point is the driver's time before its process starts.
        """
        now = time.perf_counter()
        self._clock_start = now
        self._schedule_start = now

    def _recording_metrics(self, record: Record) -> dict[str, float]:
        """Return durations in seconds that are known only while a point is recorded, as metrics.

        They are the durations of the recording, of the driver's overhead for the point, and of the
        session so far. The durations of the driver's start-up are added. The call also starts the
        schedule phase of the next point.

        Args:
            record: The record that is being stored.
        """
        now = time.perf_counter()
        recording = now - self._schedule_start
        self._schedule_start = now
        schedule = record.metrics.get("phase_schedule_seconds", 0.0)
        start = record.metrics.get("phase_start_seconds", 0.0)
        return {
            "phase_record_seconds": recording,
            "overhead_seconds": recording + schedule + start,
            "session_seconds": now - self._clock_start,
            **self.start_metrics,
        }

    def _abandon_open_points(self) -> None:
        """Release the reservations of points that this session began but did not record."""
        for entry in self._open:
            with contextlib.suppress(Exception):
                self.tracker.abandon(entry.claim, "interrupted before its end")

    def _measure_all(self, points: Sequence[Point]) -> None:
        """Measure points in groups, until every point is recorded by this or another driver.

        If other drivers are measuring all remaining points, this driver waits and tries again.

        Args:
            points: Points without an accepted outcome in the store.
        """
        queue = [DesignPoint(point, {}) for point in self._own_order(points)]
        unmeasured_in_a_row = 0
        pause = 1.0
        while queue:
            queue = self._with_lost_points_first(queue)
            size = self._group_size(len(queue))
            group = queue[:size]
            count_before = len(self.summary.rows)
            unmeasured = self._measure_batch(group)
            queue = queue[size:] + unmeasured
            if len(unmeasured) == len(group):
                unmeasured_in_a_row += len(unmeasured)
            else:
                unmeasured_in_a_row = 0
                pause = 1.0
            if len(self.summary.rows) == count_before:  # other drivers measure these points
                queue = self._without_finished(queue)
            if unmeasured_in_a_row and unmeasured_in_a_row >= len(queue):
                # A waiting driver holds no claim, so drivers that wait for each other cannot
                # deadlock.
                waiting = counted(len(queue), "point")
                self.reporter.begin("waiting", f"another driver is measuring {waiting}")
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(1.5 * pause, _LONGEST_PAUSE)

    def _with_lost_points_first(self, queue: list[DesignPoint]) -> list[DesignPoint]:
        """Return the queue of a shared sweep with the points of lost drivers at the front.

        A driver is lost if it ended without recording a point that it had claimed. The store is
        queried at random intervals, so that drivers rarely claim the same point at once.
        """
        now = time.monotonic()
        if self._shared_sweep_id is None or now < self._next_check_for_lost_points:
            return queue
        self._next_check_for_lost_points = now + HEARTBEAT_SECONDS * random.uniform(0.5, 1.5)
        try:
            lost = self.tracker.lost_points(self._shared_sweep_id)
        except StoreError:  # lost points then keep their places in the queue
            return queue
        if not lost:
            return queue
        return sorted(queue, key=lambda visit: self._identify(visit.point) not in lost)

    def _own_order(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points in the order in which this driver measures them.

        All drivers of a shared sweep use the same cyclic order, but begin at different positions.
        """
        drivers = self.settings.sweep.drivers
        if self.sweep is None or self.sweep.driver is None:
            return points
        start = len(points) * (self.sweep.driver % drivers) // drivers
        return [*points[start:], *points[:start]]

    def _group_size(self, missing: int) -> int:
        """Return the number of points in the next group.

        The points of a group are measured in rounds, with one process per point and round. If
        several drivers share the sweep, groups become smaller towards its end.

        Args:
            missing: Number of points that have no outcome yet.
        """
        drivers = self.settings.sweep.drivers
        if drivers == 1:
            return GROUP
        return max(1, min(GROUP, math.ceil(missing / (drivers * _GROUPS_PER_DRIVER))))

    def _without_finished(self, queue: Sequence[DesignPoint]) -> list[DesignPoint]:
        """Return the queue without the points that other drivers have recorded in the meantime."""
        if not self.resume.queries_store or len(queue) < 2:
            return list(queue)
        try:
            finished = self.tracker.finished(
                self.environments.environment_ids, self._shared_sweep_id
            )
        except StoreError:  # an attempt to claim a finished point returns its result
            return list(queue)
        missing = []
        for visit in queue:
            identity = self._identify(visit.point)
            accepted = self.resume.first(visit.point, finished.get(identity, ()))
            if accepted:
                self._skip(identity, accepted)
                self.reporter.skipped(visit.point.measure.processes)
            else:
                missing.append(visit)
        return missing

    def _measure_batch(
        self,
        batch: Sequence[DesignPoint],
        is_wanted: Callable[[DesignPoint, bool], bool] = lambda *_: True,
    ) -> list[DesignPoint]:
        """Measure a batch of points in rounds, with one process per point and round.

        Args:
            batch: The visits. A visit is one measurement of a point.
            is_wanted: Returns whether a visit is still needed, given the visit and whether its
                point has been claimed. It is called before and after the claim.

        Returns:
            The visits that were not measured, because they are no longer needed or because other
            drivers hold their points.
        """
        unmeasured = []
        for visit in batch:
            is_begun = is_wanted(visit, False) and self._begin_visit(
                visit, is_still_wanted=partial(is_wanted, visit, True)
            )
            if not is_begun:
                unmeasured.append(visit)
            self._take_turns_if_both_are_open(visit)
        while self._open:  # one process per point and round
            waiting = list(self._open)
            if self.settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._advance(entry)
        lost = [entry.claim.identity for entry in self._lost]
        self._lost.clear()
        unmeasured += [visit for visit in batch if self._identify(visit.point) in lost]
        return unmeasured

    def _take_turns_if_both_are_open(self, visit: DesignPoint) -> None:
        if visit.turns is None:
            return
        pair = [entry for entry in self._open if entry.turns is visit.turns]
        if len(pair) == 2:
            self._take_turns(visit.turns, pair)

    def _begin_visit(
        self, visit: DesignPoint, is_still_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Claim (reserve) the point of a visit and run its first process.

        A visit is one measurement of a point. If blocks of two visits are to alternate, no process
        is run yet.

        Args:
            visit: The visit to begin.
            is_still_wanted: Returns, after the claim, whether the visit is still needed.

        Returns:
            Whether this driver has claimed the point or skipped it because it has an outcome.
            False if another driver holds the point, or if the visit is no longer needed.
        """
        point = visit.point
        name = run_name(point)
        identity = self._identify(point)
        environment = self.environments.environment(point)
        ceilings = None if visit.excluded else self._find_ceilings(point, environment)
        tags = {**self.tags, **point_tags(point, environment), **visit.tags}
        accepts = partial(self.resume.accepts, point) if self.resume.queries_store else None
        self.reporter.begin(name)
        claim = self.tracker.begin(identity, name, tags, accepts)
        if claim is None:
            return False
        if isinstance(claim, Finished):
            self._skip(identity, claim)
            self.reporter.skipped(point.measure.processes)
            return True
        if self.resume.resume is False:
            # Record this measurement even if the store holds a result of the point by then.
            claim = replace(claim, repeats=True)
        if not is_still_wanted():
            self.tracker.abandon(claim, "other drivers began the last points at the same time")
            time.sleep(random.uniform(0.2, 1.0))  # otherwise all drivers would retry at once
            return False
        entry = self._open_point(
            visit, claim, environment=environment, ceilings=ceilings, tags=tags
        )
        self._open.append(entry)
        self.reporter.subtract_processes(min(len(entry.results), point.measure.processes))
        if not visit.turns:
            self._advance(entry)
        return True

    def _open_point(
        self,
        visit: DesignPoint,
        claim: Claim,
        *,
        environment: Environment,
        ceilings: Ceilings | None,
        tags: Mapping[str, str],
    ) -> OpenPoint:
        point, price_tags = priced(visit.point, self.settings.price, environment)
        return OpenPoint(
            point=point,
            environment=replace(environment, findings=(*environment.findings, *self.findings)),
            ceilings=ceilings,
            claim=claim,
            tags={**tags, **price_tags},
            costs=step_costs(point),
            excluded=visit.excluded,
            turns=visit.turns,
            results=self._load_kept_results(visit.point, claim),
        )

    def _skip(self, identity: Identity, finished: Finished) -> None:
        """Count a point as skipped, and remove its partial results.

        The driver that recorded the outcome may have been killed before it removed them. The
        checkpoint of a training that did not finish is kept, because the training may be resumed.
        """
        outcome = finished.tags["outcome"]
        self.partial.forget(identity, ended=outcome == "ok")
        self.summary.skipped[outcome] += 1

    def _find_ceilings(self, point: Point, environment: Environment) -> Ceilings | None:
        """Return the ceilings of a point's platform: its peak FLOP/s and memory bandwidth.

        The time to measure them is excluded from the phases of all points.

        Returns:
            The ceilings; None if they are disabled, do not bound the point, or are unavailable.
        """
        is_usable = self.settings.ceilings and not self.environments.problem(point)
        if not is_usable or not below_ceilings(point, step_costs(point).flops_per_step):
            return None
        begin = time.perf_counter()
        ceilings = self.ceilings.of(point, environment)
        spent = time.perf_counter() - begin
        self._schedule_start += spent
        self.reporter.exclude_from_estimate(spent)
        return ceilings

    def _load_kept_results(self, point: Point, claim: Claim) -> list[PointResult]:
        """Return the results of a point's processes that an earlier, interrupted driver saved.

        The list is empty if no usable results were saved, or if the point is measured again
        regardless of stored results. It is also empty if the point requests a profile or a trace
        that the saved results lack.
        """
        if claim.repeats:
            return []
        results = self.partial.load(claim.identity)
        if not results or not results[0].answer:
            return []
        profile = results[0].answer.profile
        extras = profile_tags(profile)["extras"].split() if profile else []
        lacks_extras = wanted_extras(point).difference(extras)
        return [] if lacks_extras else results

    def _identify(self, point: Point) -> Identity:
        """Return what identifies a measurement of a point here: two hashes and the replicate."""
        environment_id = self.environments.environment(point).environment_id
        return Identity(point_id(point), environment_id, point.replicate)

    def _advance(self, entry: OpenPoint) -> None:
        """Run the next process of an incomplete point, and record the point once it is complete."""
        if not entry.is_complete:
            entry.turns = None
            name = run_name(entry.point)
            if entry.point.measure.processes > 1:
                name = f"{name}, process {len(entry.results) + 1}"
            self.reporter.begin(name)
            start = self._begin_process()
            result = self._run_process(entry)
            self._end_processes([entry], [result], start)
        if entry.is_complete:
            self._record(entry)
        elif not entry.claim.repeats:
            self._keep_results(entry)

    def _keep_results(self, entry: OpenPoint) -> None:
        """Save the results of an incomplete point, in case this driver is killed."""
        try:
            self.partial.save(entry.claim.identity, entry.results)
        except StoreError as error:
            self.reporter.say(f"results of incomplete points are not saved: {error}", once=True)

    def _begin_process(self) -> _ProcessStart:
        return _ProcessStart(time.perf_counter() - self._schedule_start, time.time())

    def _end_processes(
        self, entries: Sequence[OpenPoint], results: Sequence[PointResult], start: _ProcessStart
    ) -> None:
        """Add the result of a process to each point.

        Args:
            entries: The points.
            results: One result per point, in the same order.
            start: Start of the processes.
        """
        self._schedule_start = time.perf_counter()
        for entry, result in zip(entries, results, strict=True):
            phases = {**result.phases, "schedule": start.schedule_seconds}
            entry.results.append(replace(result, phases=phases, begun=start.unix_seconds))
            self.reporter.process_ended()

    def _take_turns(self, turns: BlockTurns, entries: Sequence[OpenPoint]) -> None:
        """Measure and record two points in alternating blocks, each in a separate worker.

        A block is a number of steps that are timed together.

        Args:
            turns: Decides which point runs its next block.
            entries: The two points.
        """
        names = " and ".join(run_name(entry.point) for entry in entries)
        self.reporter.begin(f"{names}, by turns")
        start = self._begin_process()
        for side, entry in enumerate(entries):
            # Linux kills a worker when the thread that started it ends, so start the workers in
            # this thread, which lives as long as the session.
            with contextlib.suppress(OSError):
                self.pool.prepare(WorkerKey.of(entry.point, side))
        with turns, ThreadPoolExecutor(len(entries)) as threads:
            try:
                futures = [
                    threads.submit(self._run_process, entry, side)
                    for side, entry in enumerate(entries)
                ]
                turns.play([future.done for future in futures])
                results = [future.result() for future in futures]
            except BaseException:
                self.pool.close()  # unblocks the threads, which wait for the workers
                raise
        self._end_processes(entries, results, start)
        for entry in entries:
            self._record(entry)

    def _run_process(self, entry: OpenPoint, side: int = 0) -> PointResult:
        """Run the next process of a point.

        Args:
            entry: The point.
            side: Index of the point, 0 or 1, in a pair measured in alternating blocks; otherwise 0.

        Returns:
            The result. If no process was started, its outcome is `unavailable` or `oom_predicted`.
        """
        # Points that take turns share the time and the memory.
        sides = 2 if entry.turns else 1
        limits = Limits(sides * entry.point.measure.timeout, memory_limit(entry.point) // sides)
        entry.memory_limit = limits.memory_bytes
        problem = self.environments.problem(entry.point)
        if problem:
            return PointResult("unavailable", problem)
        # Do not build a model that exceeds the memory according to its costs or to other points.
        reason = entry.excluded or exceeds_memory(entry.point, entry.costs, limits.memory_bytes)
        if reason:
            return PointResult("oom_predicted", reason)
        try:
            return self._run_in_worker(entry, limits, side)
        except (DataError, WorkerError) as error:
            return PointResult("unavailable", str(error))

    def _run_in_worker(self, entry: OpenPoint, limits: Limits, side: int) -> PointResult:
        point = entry.point
        records = point.workload.role(RunRecords)
        printer = ProgressPrinter(records, partial(self.tracker.log_snapshots, entry.claim))

        def report(event: str | WorkloadMessage) -> None:
            text = event if isinstance(event, str) else printer.accept(event)
            if text:
                self.reporter.phase(text)

        request = self._request(entry, side)
        sampler = None
        if is_requested():
            sampler = SystemSampler(sampling_seconds(), entry.claim.start_time)
        with sampler or contextlib.nullcontext():
            result = self.pool.measure(WorkerKey.of(point, side), request, limits, report)
        if sampler:
            entry.system_samples += sampler.samples
        if separate_hosts(point) > 1 and result.outcome != "ok":
            require_answers()
        return result

    def _request(self, entry: OpenPoint, side: int) -> dict[str, Any]:
        """Return the request that makes a worker run the next process of a point.

        Args:
            entry: The point.
            side: Index of the point, 0 or 1, in a pair measured in alternating blocks; otherwise 0.
        """
        point = entry.point
        records = point.workload.role(RunRecords)
        request = entry.request() | records.request_fields(point)
        if records.is_resumable and not entry.claim.repeats:
            request["checkpoint"] = str(self.partial.checkpoint(entry.claim.identity))
        if entry.turns:
            request["turns"] = entry.turns.path(side)
        if separate_hosts(point) > 1:
            variables = WorkerKey.of(point, side).variables()
            request["other_hosts"] = other_hosts(point.hosts, variables)
        return request

    def _record(self, entry: OpenPoint) -> None:
        record = entry.record()
        records = entry.point.workload.role(RunRecords)
        recording_metrics = partial(self._recording_metrics, record)
        try:
            run_id = self.tracker.record(entry.claim, record, recording_metrics)
        except ClaimLostError as error:
            self.reporter.say(str(error))
            self._open.remove(entry)
            self._lost.append(entry)
            return
        self._open.remove(entry)
        if not entry.claim.repeats:
            is_finished = records.is_resumable and records.is_finished(entry.results[-1])
            self.partial.forget(entry.claim.identity, ended=is_finished)
        row = RecordedPoint.of_record(run_id, record)
        self.summary.rows.append(row)
        self.reporter.subtract_processes(entry.missing_processes)
        self.reporter.done(row)


@contextlib.contextmanager
def _open_session(
    points: Sequence[Point], reporter: Reporter, settings: Settings, sweep: SweepInfo | None
) -> Iterator[_Session]:
    load_monitor = LoadMonitor()
    begin = time.perf_counter()
    require_possible(points)
    with (
        interruptible(),
        WorkerEnvironments(points, reporter.say) as environments,
        WorkerPool() as pool,
    ):
        end_with_processes(driver_start(), reporter.say)
        tracker = open_tracker(settings.tracking, reporter.say)
        heartbeat = Heartbeat(tracker.renew_lease, partial(_end_driver, reporter.say))
        try:
            tracker.close_abandoned()
            yield _Session(
                sweep=sweep,
                load_monitor=load_monitor,
                begin=begin,
                pool=pool,
                tracker=tracker,
                environments=environments,
                reporter=reporter,
                settings=settings,
            )
        finally:
            heartbeat.close()
            reporter.close()


def _end_driver(say: Callable[[str], None], reason: str) -> None:
    """Print why this driver must end, and send SIGTERM to this process.

    The heartbeat thread calls this function.

    Args:
        say: Prints a message to the user.
        reason: Why the driver must end.
    """
    say(f"ended: {reason}")
    os.kill(os.getpid(), signal.SIGTERM)
