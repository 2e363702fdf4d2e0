"""One session of a driver: find the missing points, measure them and record them.

Nothing else runs while a worker measures. The driver's own cost is recorded too: every second
between two points belongs to one of the phases schedule, start and record.

Each point is claimed, measured in the processes that it needs, and recorded. Points that need
several processes are open together, in groups. Each point of a group is measured once; then each is
measured again, in another order. Minutes therefore lie between the processes of a point, and drift
shows in its interval.
"""

import contextlib
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paradnn.config.identity import FORMER_STANDARD, Identity, point_id
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, step_costs
from paradnn.config.scheduler import job_tags, start_seconds
from paradnn.config.settings import Settings
from paradnn.config.tasks import SweepInfo
from paradnn.core.errors import DataError, StoreError, WorkerError
from paradnn.core.messages import WorkloadMessage
from paradnn.core.words import counted, without_secrets
from paradnn.platform.environment import Environment, exceeds_memory, memory_limit
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
from paradnn.session.turns import BlockTurns
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Journal, PartialResults
from paradnn.store.runs import Claim, Finished, Record, ResumePolicy, SweepRun, wanted_extras
from paradnn.store.tracker import open_tracker

#: Number of points that are open together. If a driver on another host is killed, its open points
#: stay claimed until their claims expire.
GROUP = 24
#: Share of a claim's duration after which the driver renews it.
RENEW = 0.5


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record points in the given order.

    Args:
        points: The points; those that the store already holds are skipped.
        settings: Settings of the command.
        sweep: Name and id of the sweep, None for a single point outside a multirun.

    Raises:
        ParadnnError: The user can correct something before the first point is measured.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _open_session(points, reporter, settings, sweep) as session:
        return session.run(points)


def follow_design(design: SweepDesign, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure batches of points that a design chooses, until it chooses none.

    Raises:
        ParadnnError: The user can correct something before the first point is measured.
    """
    reporter = Reporter(design.left, sweep.name, at_most=not design.resumes)
    if not design.resumes:
        settings = replace(settings, resume=False)
    with _open_session(design.points, reporter, settings, sweep) as session:
        return session.follow(design)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Measure the ceilings of a point's platform again.

    Returns:
        The ceilings, None if they cannot be measured; and where the run is, as text.
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
class _Begin:
    """When a process of a point begins.

    schedule_seconds: time since the previous process ended. unix_seconds: the begin itself.
    """

    schedule_seconds: float
    unix_seconds: float


@dataclass(eq=False)
class _Session:
    """The points of one session and the resources that it holds.

    Attributes:
        sweep: Name and id of the sweep, None for a single point.
        load_monitor: Observes the load by other processes since `begin`.
        begin: Start of the session, on the clock of `time.perf_counter`.
        findings: Problems of this machine, recorded in the environment of every run.
        tags: Tags of every run.
        start_metrics: Seconds until this process was ready, recorded with every run.
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
        self.resume = ResumePolicy(self.settings.resume, self.settings.retry)
        self.partial = PartialResults(self.settings.tracking)
        self.ceilings = CeilingsKeeper(self.pool, self.tracker, self.reporter.say)
        self._random = random.Random(self.settings.sweep.seed)
        self._open: list[OpenPoint] = []
        self._start_clock()

    def run(self, points: Sequence[Point]) -> Summary:
        """Measure the points that have no outcome yet."""
        missing = self._find_missing(points)
        self.summary.total = len(points)
        if missing:
            self._prepare(missing, len(missing))
        processes = sum(point.measure.processes for point in missing)
        return self._carry_out(partial(self._measure_all, missing), processes, DesignResult)

    def follow(self, design: SweepDesign) -> Summary:
        """Measure what the design chooses; its result is stored in the parent run."""
        self._prepare(design.points)
        return self._carry_out(partial(self._follow, design), design.left, design.conclusion)

    def _prepare(self, points: Sequence[Point], planned: int | None = None) -> None:
        """Start the first worker and open the parent run.

        The worker imports its framework while the driver imports MLflow and opens the sweep.
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
        self, work: Callable[[], object], processes: int, conclude: Callable[[], DesignResult]
    ) -> Summary:
        """Run `work` and summarize it, also if it is interrupted.

        Args:
            work: Measures the points.
            processes: Expected number of processes; 0 if nothing is to be measured.
            conclude: Gives the result of the design once the work has ended.
        """
        summary = self.summary
        self.tags = self._session_tags()
        self.start_metrics = start_seconds()
        self._start_clock()
        self.reporter.start(summary.skipped.total(), processes)
        if processes:
            self._look_at_load()
        try:
            work()
        except KeyboardInterrupt:
            summary.interrupted = True
        finally:
            self._abandon_open_points()
        summary.seconds = time.perf_counter() - self.begin
        conclusion = conclude()
        summary.conclusion = conclusion.text
        if self.sweep and summary.parent:
            end_parent(self.tracker, self.sweep, summary, conclusion)
        summary.where = self.tracker.where
        summary.problem = self.tracker.problem
        return summary

    def _session_tags(self) -> dict[str, str]:
        """Tags of every run of this session; those of ParaDnn override the user's."""
        options = self.settings.sweep
        tags = {**self.settings.tracking.tags, **job_tags()}
        if self.sweep:
            tags["sweep_id"] = self.sweep.sweep_id
        if options.design != "grid":
            tags["design"] = options.design
        elif self.sweep:
            tags["sweep_order"] = options.order
        tags["session_id"] = secrets.token_hex(8)
        return tags

    def _look_at_load(self) -> None:
        """Record the load of this machine with every point, and warn about a busy one."""
        load = self.load_monitor.look()
        self.findings = load_findings(load)
        if load.is_busy:
            advice = "intervals will be wide; python -m paradnn.check has details"
            self.reporter.say(f"this machine is busy: {load}: {advice}")

    def _find_missing(self, points: Sequence[Point]) -> list[Point]:
        """The distinct points without an accepted outcome; the others are counted as skipped."""
        finished: Mapping[Identity, Sequence[Finished]] = {}
        if self.resume.looks:
            finished = self.tracker.finished(self.environments.environment_ids)
        missing: dict[Identity, Point] = {}
        for point in points:
            identity = self._identify(point)
            accepted = self.resume.first(point, finished.get(identity, ()))
            if accepted:
                self._skip(identity, accepted)
                if not self.sweep:  # a single point: show the stored result
                    self.summary.rows.append(self._stored_row(point, accepted))
            elif identity in missing:
                self.summary.repeated += 1
            else:
                missing[identity] = point
        self._report_former_protocol(list(missing.values()), finished)
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
        """Say how to skip points that the store holds under the earlier standard protocol."""
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
                f"the store holds {counted(count, 'point')} of these as measure=standard measured "
                f"before; to skip them add {keys}"
            )

    def _start_clock(self) -> None:
        """Count the time from now on as the schedule of the first point."""
        now = time.perf_counter()
        self._begun = now
        self._free_since = now

    def _recording_metrics(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, in seconds; later time belongs to the next schedule."""
        now = time.perf_counter()
        recording = now - self._free_since
        self._free_since = now
        schedule = record.metrics.get("phase_schedule_seconds", 0.0)
        start = record.metrics.get("phase_start_seconds", 0.0)
        return {
            "phase_record_seconds": recording,
            "overhead_seconds": recording + schedule + start,
            "session_seconds": now - self._begun,
            **self.start_metrics,
        }

    def _abandon_open_points(self) -> None:
        """Release the claims of points that are not recorded."""
        for entry in self._open:
            with contextlib.suppress(Exception):
                self.tracker.abandon(entry.claim, "interrupted before its end")

    def _measure_all(self, points: Sequence[Point]) -> None:
        """Measure all points in groups; a point that another driver holds is tried again later."""
        queue = [DesignPoint(point, {}) for point in points]
        held_in_a_row = 0
        while queue:
            group = queue[:GROUP]
            held = self._measure_batch(group)
            if len(held) == len(group):
                held_in_a_row += len(held)
            else:
                held_in_a_row = 0
            queue = queue[GROUP:] + held
            if held_in_a_row and held_in_a_row >= len(queue):
                # Hold no claim while waiting; two drivers could deadlock.
                waiting = counted(len(queue), "point")
                self.reporter.begin(f"waiting for {waiting} that another driver measures")
                time.sleep(random.uniform(0.5, 1.5))

    def _measure_batch(
        self,
        batch: Sequence[DesignPoint],
        is_wanted: Callable[[DesignPoint, bool], bool] = lambda *_: True,
    ) -> list[DesignPoint]:
        """Measure a batch of at most a group of points.

        Args:
            batch: The visits to make.
            is_wanted: Whether a visit is still to be made; called before its point is claimed
                (with False), and again once it is claimed (with True).

        Returns:
            The visits that were not made: not wanted any more, or claimed by other drivers.
        """
        unmeasured = []
        for visit in batch:
            is_measured = is_wanted(visit, False) and self._enter(
                visit, is_still_wanted=partial(is_wanted, visit, True)
            )
            if not is_measured:
                unmeasured.append(visit)
            self._take_turns_if_both_are_open(visit)
        while self._open:  # one process per point and round
            waiting = list(self._open)
            if self.settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._advance(entry)
        return unmeasured

    def _take_turns_if_both_are_open(self, visit: DesignPoint) -> None:
        if visit.turns is None:
            return
        pair = [entry for entry in self._open if entry.turns is visit.turns]
        if len(pair) == 2:
            self._take_turns(visit.turns, pair)

    def _enter(
        self, visit: DesignPoint, is_still_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Claim a point and measure it in its first process.

        Returns:
            Whether the point has an outcome or will get one. False if another driver holds it, or
            if it is no longer wanted once it is claimed.
        """
        point = visit.point
        name = run_name(point)
        identity = self._identify(point)
        environment = self.environments.environment(point)
        ceilings = None if visit.excluded else self._find_ceilings(point, environment)
        tags = {**self.tags, **point_tags(point, environment), **visit.tags}
        accepts = partial(self.resume.accepts, point) if self.resume.looks else None
        self.reporter.begin(name)
        claim = self.tracker.begin(identity, name, tags, _claim_seconds(point), accepts)
        if claim is None:
            return False
        if isinstance(claim, Finished):
            self._skip(identity, claim)
            self.reporter.skipped(point.measure.processes)
            return True
        if not is_still_wanted():
            self.tracker.abandon(claim, "other drivers began the last points at the same time")
            time.sleep(random.uniform(0.2, 1.0))  # else all drivers would come back together
            return False
        entry = self._open_point(
            visit, claim, environment=environment, ceilings=ceilings, tags=tags
        )
        self._open.append(entry)
        self.reporter.spared(min(len(entry.results), point.measure.processes))
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
            longest=_claim_seconds(point),
            excluded=visit.excluded,
            turns=visit.turns,
            results=self._load_kept_results(visit.point, claim),
        )

    def _skip(self, identity: Identity, finished: Finished) -> None:
        """Count a point that has an outcome already, and remove its partial results.

        The driver that recorded it may have been killed before it removed them. The checkpoint of a
        training that was cut short stays, since the training may be resumed.
        """
        outcome = finished.tags["outcome"]
        self.partial.forget(identity, ended=outcome == "ok")
        self.summary.skipped[outcome] += 1

    def _find_ceilings(self, point: Point, environment: Environment) -> Ceilings | None:
        """The ceilings of a point's platform; the time to measure them is no cost of any point."""
        is_usable = self.settings.ceilings and not self.environments.problem(point)
        if not is_usable or not below_ceilings(point, step_costs(point).flops_per_step):
            return None
        begin = time.perf_counter()
        ceilings = self.ceilings.of(point, environment)
        spent = time.perf_counter() - begin
        self._free_since += spent
        self.reporter.aside(spent)
        return ceilings

    def _load_kept_results(self, point: Point, claim: Claim) -> list[PointResult]:
        """Results that an earlier driver kept; none if the first lacks a requested profile."""
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
        """The identity of a point's measurement on this machine."""
        environment_id = self.environments.environment(point).environment_id
        return Identity(point_id(point), environment_id, point.replicate)

    def _advance(self, entry: OpenPoint) -> None:
        """Run one more process of a point, if it needs one, and record the point once complete."""
        if not entry.is_complete:
            entry.turns = None
            name = run_name(entry.point)
            if entry.point.measure.processes > 1:
                name = f"{name}, process {len(entry.results) + 1}"
            self.reporter.begin(name)
            begin = self._begin_process()
            result = self._run_process(entry)
            self._end_processes([entry], [result], begin)
        if entry.is_complete:
            self._record(entry)
        elif not entry.claim.repeats:
            self._keep_results(entry)

    def _keep_results(self, entry: OpenPoint) -> None:
        """Keep the results of an incomplete point, in case that this driver is killed."""
        try:
            self.partial.save(entry.claim.identity, entry.results)
        except StoreError as error:
            self.reporter.say(
                f"processes of points that are not complete are not kept: {error}", once=True
            )

    def _begin_process(self) -> _Begin:
        return _Begin(time.perf_counter() - self._free_since, time.time())

    def _end_processes(
        self, entries: Sequence[OpenPoint], results: Sequence[PointResult], begin: _Begin
    ) -> None:
        """Add the result of a process to each point, and renew claims that are half over."""
        self._free_since = time.perf_counter()
        for entry, result in zip(entries, results, strict=True):
            phases = {**result.phases, "schedule": begin.schedule_seconds}
            entry.results.append(replace(result, phases=phases, begun=begin.unix_seconds))
            self.reporter.process_ended()
        now = time.monotonic()
        for entry in self._open:  # other hosts take over a claim that has expired
            if now - entry.claimed > RENEW * entry.longest:
                self.tracker.renew(entry.claim, entry.longest)
                entry.claimed = now

    def _take_turns(self, turns: BlockTurns, entries: Sequence[OpenPoint]) -> None:
        """Measure two points together, in a worker each, whose blocks alternate."""
        names = " and ".join(run_name(entry.point) for entry in entries)
        self.reporter.begin(f"{names}, by turns")
        begin = self._begin_process()
        for side, entry in enumerate(entries):
            # Linux ends a worker together with the thread that started it. This thread lives as
            # long as the session.
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
                self.pool.close()  # the threads wait for its workers
                raise
        self._end_processes(entries, results, begin)
        for entry in entries:
            self._record(entry)

    def _run_process(self, entry: OpenPoint, side: int = 0) -> PointResult:
        """Run one more process of a point.

        Args:
            entry: The point.
            side: 0 or 1: which of two points it is that take turns.

        Returns:
            How the process ended, or why it was not started.
        """
        # Two points that take turns wait for each other and share the memory.
        sides = 2 if entry.turns else 1
        limits = Limits(sides * entry.point.measure.timeout, memory_limit(entry.point) // sides)
        problem = self.environments.problem(entry.point)
        if problem:
            return PointResult("unavailable", problem)
        # Out of memory by arithmetic, or by what larger and smaller points did: build nothing.
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
        printer = ProgressPrinter(records, partial(self.tracker.tell, entry.claim))

        def report(event: str | WorkloadMessage) -> None:
            text = event if isinstance(event, str) else printer.say(event)
            if text:
                self.reporter.phase(text)

        request = self._request(entry, side)
        result = self.pool.measure(WorkerKey.of(point, side), request, limits, report)
        if point.hosts > 1 and result.outcome != "ok":
            require_answers()
        return result

    def _request(self, entry: OpenPoint, side: int) -> dict[str, Any]:
        """What the worker gets to measure the next process of a point."""
        point = entry.point
        records = point.workload.role(RunRecords)
        request = entry.request() | records.request_fields(point)
        if records.is_resumable and not entry.claim.repeats:
            request["checkpoint"] = str(self.partial.checkpoint(entry.claim.identity))
        if entry.turns:
            request["turns"] = entry.turns.path(side)
        if point.hosts > 1:
            variables = WorkerKey.of(point, side).variables()
            request["other_hosts"] = other_hosts(point.hosts, variables)
        return request

    def _record(self, entry: OpenPoint) -> None:
        record = entry.record()
        records = entry.point.workload.role(RunRecords)
        recording_metrics = partial(self._recording_metrics, record)
        run_id = self.tracker.record(entry.claim, record, recording_metrics)
        self._open.remove(entry)
        if not entry.claim.repeats:
            is_finished = records.is_resumable and records.is_finished(entry.results[-1])
            self.partial.forget(entry.claim.identity, ended=is_finished)
        row = RecordedPoint.of_record(run_id, record)
        self.summary.rows.append(row)
        self.reporter.spared(entry.wanted)
        self.reporter.done(row)


def _claim_seconds(point: Point) -> float:
    """How long a claim lasts unless it is renewed: the processes of a group alternate."""
    group = GROUP if point.measure.processes > 1 else 1
    return point.measure.timeout * group


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
        tracker = open_tracker(settings.tracking, reporter.say)
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
            reporter.close()


def open_parent(
    tracker: Journal,
    sweep: SweepInfo,
    *,
    planned_points: int | None = None,
    own_tags: Mapping[str, str] | None = None,
) -> str:
    """Open the parent run of a sweep and return its id.

    Args:
        tracker: Records the runs.
        sweep: Id, name and command of the sweep.
        planned_points: Number of points to measure; None if a design chooses them.
        own_tags: The user's tags.
    """
    command = without_secrets(sweep.command)
    tags = {**(own_tags or {}), "sweep_id": sweep.sweep_id, "command": command}
    if planned_points is not None:
        tags["planned_points"] = str(planned_points)
    return tracker.open_sweep(sweep.name, f"`{command}`\n\nrunning ...", tags)


def end_parent(
    tracker: Journal, sweep: SweepInfo, summary: Summary, conclusion: DesignResult
) -> None:
    """Close the parent run of a sweep with its counts and the result of its design."""
    state = "interrupted" if summary.interrupted else "finished"
    points = counted(summary.total, "point")
    paragraphs = [
        f"`{without_secrets(sweep.command)}`",
        conclusion.text,
        f"A sweep of {points}, {state} after {summary.seconds:.0f} s: {summary.counts()}.",
    ]
    metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
    metrics["points"] = float(summary.total)
    if summary.interrupted:
        status = "KILLED"
    elif summary.missing:
        status = "FAILED"
    else:
        status = "FINISHED"
    tracker.close_sweep(
        SweepRun(
            status=status,
            description="\n\n".join(filter(None, paragraphs)),
            metrics={**metrics, **conclusion.metrics},
            artifacts=conclusion.artifacts,
            tags=conclusion.tags,
        )
    )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and a closed terminal end the session as Ctrl-C does."""
    signals: tuple[signal.Signals, ...] = ()
    if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
        signals = (signal.SIGTERM, signal.SIGHUP)
    previous = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
