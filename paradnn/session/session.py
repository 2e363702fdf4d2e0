"""One session: which points are missing, measuring them, the parent run, what is said of it all.
Nothing else runs while a child measures. What the stack itself costs is part of the record: every
second between two points falls into one of the phases schedule, start and record.

Each point is claimed, measured in as many processes as it needs, and recorded. Points that are
measured in several processes are open together, a group at a time: each is measured once, then each
once more in another order, so that minutes lie between the processes of a point and drift shows in
its interval.
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

#: How many points are open together. A killed driver on another host blocks them for as long as
#: they may take.
GROUP = 24
RENEW = 0.5  # the share of its time after which a claim is renewed


def measure_points(points: Sequence[Point], settings: Settings, sweep: SweepInfo | None) -> Summary:
    """Measure and record `points` in the given order; `sweep` is None for a single point outside a
    multirun. Raises ParadnnError for what the user can correct before anything is measured.
    """
    reporter = Reporter(len(points), sweep.name if sweep else None)
    with _opened(points, reporter, settings, sweep) as session:
        return session.run(points)


def follow_design(design: SweepDesign, settings: Settings, sweep: SweepInfo) -> Summary:
    """Measure what `design` asks for, again each time, until it asks for nothing more; ParadnnError
    likewise.
    """
    reporter = Reporter(design.left, sweep.name, at_most=not design.resumes)
    if design.resumes:
        settings = settings
    else:
        settings = replace(settings, resume=False)
    with _opened(design.points, reporter, settings, sweep) as session:
        return session.follow(design)


def measure_ceilings(point: Point, settings: Settings) -> tuple[Ceilings | None, str]:
    """Re-measure the ceilings of a point's platform; also where they are recorded."""
    with _opened([point], Reporter(1, None), settings, None) as session:
        problem = session.environments.problem(point)
        if problem:
            raise WorkerError(problem)
        session.pool.prepare(WorkerKey.of(point))
        environment = session.environments.environment(point)
        return session.ceilings.of(point, environment, again=True), session.tracker.where


@dataclass(eq=False)
class _Session:
    """The points of one session, and what it works with for as long as it lasts. `findings` about
    the machine go into the environment of every run, `tags` and the metrics `waited` into every
    run. `watch` sees load since `begin`.
    """

    sweep: SweepInfo | None
    watch: LoadMonitor
    begin: float
    pool: WorkerPool
    tracker: Journal
    environments: WorkerEnvironments
    reporter: Reporter
    settings: Settings

    def __post_init__(self) -> None:
        self.findings: Sequence[Finding] = ()
        self.tags: Mapping[str, str] = {}
        self.waited: Mapping[str, float] = {}
        self.summary = Summary()
        self.resume = ResumePolicy(self.settings.resume, self.settings.retry)
        self.partial = PartialResults(self.settings.tracking)
        self.ceilings = CeilingsKeeper(self.pool, self.tracker, self.reporter.say)
        self._random = random.Random(self.settings.sweep.seed)
        self._open: list[OpenPoint] = []
        self.start()

    def run(self, points: Sequence[Point]) -> Summary:
        todo = self._missing(points)
        self.summary.total = len(points)
        if todo:
            self._prepare(todo, len(todo))
        processes = sum(point.measure.processes for point in todo)
        return self._carry_out(partial(self.work, todo), processes, DesignResult)

    def follow(self, design: SweepDesign) -> Summary:
        """Measure what the design asks for; what it concludes stands on the parent run."""
        self._prepare(design.points)
        return self._carry_out(partial(self._follow, design), design.left, design.conclusion)

    def _prepare(self, points: Sequence[Point], planned: int | None = None) -> None:
        """Start the first worker: the framework's import runs while the driver imports MLflow and
        opens the sweep.
        """
        first = next((point for point in points if not self.environments.problem(point)), None)
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
            self.reporter.begin("the next points", "choosing")  # which may take a while
            chosen = design.batch(rows)
            if not chosen:
                return
            self.summary.total += len(chosen)
            self.reporter.known = design.progress
            processes = sum(one.point.measure.processes for one in chosen) / len(chosen)
            self.reporter.expect(design.left, processes, design.seconds_left)
            before = len(self.summary.rows)
            self.summary.total -= len(self.measure(chosen, design.wants))
            rows = self.summary.rows[before:]

    def _carry_out(
        self, work: Callable[[], object], processes: int, conclude: Callable[[], DesignResult]
    ) -> Summary:
        how = self.settings.sweep
        summary = self.summary
        sweep = self.sweep
        if how.design != "grid":
            tags = {"design": how.design}
        elif sweep:
            tags = {"sweep_order": how.order}
        else:
            tags = {}
        of = {"sweep_id": sweep.sweep_id} if sweep else {}
        own = {**job_tags(), **of, **tags, "session_id": secrets.token_hex(8)}
        self.tags = {**self.settings.tracking.tags, **own}
        self.waited = start_seconds()
        self.start()
        self.reporter.start(summary.skipped.total(), processes)
        if processes:  # what is seen of the machine is recorded with every point
            load = self.watch.look()
            self.findings = load_findings(load)
            if load.is_busy:
                advice = "intervals will be wide; python -m paradnn.check says more"
                self.reporter.say(f"this machine is busy: {load}: {advice}")
        try:
            work()
        except KeyboardInterrupt:
            summary.interrupted = True
        finally:
            self.abandon()
        summary.seconds = time.perf_counter() - self.begin
        conclusion = conclude()
        summary.conclusion = conclusion.text
        if sweep and summary.parent:
            end_parent(self.tracker, sweep, summary, conclusion)
        summary.where = self.tracker.where
        summary.problem = self.tracker.problem
        return summary

    def _missing(self, points: Sequence[Point]) -> list[Point]:
        """The points without an outcome that is accepted, each once; the others are counted as
        skipped.
        """
        known: Mapping[Identity, Sequence[Finished]] = {}
        if self.resume.looks:
            known = self.tracker.finished(self.environments.environment_ids)
        todo = {}
        for point in points:
            identity = self.identity(point)
            done = self.resume.first(point, known.get(identity, ()))
            if done:
                self.skip(identity, done)
                if not self.sweep:  # a single point: say what is known of it
                    metrics, tags = self.tracker.fetch(done.run_id)
                    name = tags.get("mlflow.runName") or tags.get("name") or done.run_id
                    ending = (done.tags["outcome"], tags.get("reason"))
                    row = RecordedPoint(
                        done.run_id, name, point.model.name, *ending, metrics, tags, known=True
                    )
                    self.summary.rows.append(row)
            elif identity in todo:
                self.summary.repeated += 1
            else:
                todo[identity] = point
        former = (
            replace(point, measure=replace(point.measure, **FORMER_STANDARD))
            for point in todo.values()
        )
        if known and (count := sum(self.identity(point) in known for point in former)):
            words = " ".join(f"measure.{key}={value:g}" for key, value in FORMER_STANDARD.items())
            said = f"the store holds {counted(count, 'point')} of these as measure=standard measured before"
            self.reporter.say(f"{said}; to skip them add {words}")
        return [*todo.values()]

    def start(self) -> None:
        """What passes from now on is the schedule of the first point."""
        self._free_since = self._begun = time.perf_counter()

    def _recording(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, its figure included; what follows falls into the next
        point's schedule.
        """
        now = time.perf_counter()
        spent = now - self._free_since
        overhead = spent + sum(
            record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start")
        )
        self._free_since = now
        own = {
            "phase_record_seconds": spent,
            "overhead_seconds": overhead,
            "session_seconds": now - self._begun,
        }
        return {**own, **self.waited}

    def abandon(self) -> None:
        """Give back what is claimed and not recorded."""
        for entry in self._open:
            with contextlib.suppress(Exception):
                self.tracker.abandon(entry.claim, "interrupted before its end")

    def work(self, todo: Sequence[Point]) -> None:
        """Measure all points, group after group; what another driver holds comes again at the end."""
        # how many in a row were held by others
        queue = [DesignPoint(point, {}) for point in todo]
        elsewhere = 0
        while queue:
            held = self.measure(queue[:GROUP])
            if len(held) == len(queue[:GROUP]):
                elsewhere = elsewhere + len(held)
            else:
                elsewhere = 0
            queue = queue[GROUP:] + held
            if elsewhere and elsewhere >= len(queue):
                # Who waits holds nothing: the other may wait for it.
                self.reporter.begin(
                    f"waiting for {counted(len(queue), 'point')} that another driver measures"
                )
                time.sleep(random.uniform(0.5, 1.5))

    def measure(
        self,
        chosen: Sequence[DesignPoint],
        wanted: Callable[[DesignPoint, bool], bool] = lambda *_: True,
    ) -> list[DesignPoint]:
        """Measure a batch, at most a group of points; how many are left out: not `wanted` (which is
        asked before a point is claimed, and once it is), or held by other drivers.
        """
        left = []
        for one in chosen:
            if not (wanted(one, False) and self.enter(one, partial(wanted, one, True))):
                left.append(one)
            both = [entry for entry in self._open if one.turns and entry.turns is one.turns]
            if one.turns and len(both) == 2:
                self._take_turns(one.turns, both)
        while waiting := list(self._open):  # each once a round, in as many processes as it needs
            if self.settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._further(entry)
        return left

    def enter(self, chosen: DesignPoint, stays: Callable[[], bool] = lambda: True) -> bool:
        """Claim a point and measure it in its first process. False where another driver holds it,
        or where it does not `stay` once it is claimed; else it has an outcome, or will have.
        """
        point = chosen.point
        environment = self.environments.environment(point)
        if chosen.excluded:
            ceilings = None
        else:
            ceilings = self._ceilings_of(point, environment)
        tags = {**point_tags(point, environment), **self.tags, **chosen.tags}
        if self.resume.looks:
            accepts = partial(self.resume.accepts, point)
        else:
            accepts = None
        self.reporter.begin(run_name(point))
        # Its processes take turns with those of the whole group; the claim is renewed meanwhile.
        longest = point.measure.timeout * (GROUP if point.measure.processes > 1 else 1)
        identity = self.identity(point)
        claim = self.tracker.begin(identity, run_name(point), tags, longest, accepts)
        if claim is None:
            return False
        if isinstance(claim, Finished):
            self.skip(identity, claim)
            self.reporter.skipped(point.measure.processes)
            return True
        if not stays():
            self.tracker.abandon(claim, "other drivers began the last points at the same time")
            time.sleep(random.uniform(0.2, 1.0))  # else all would come back together
            return False
        known = replace(environment, findings=(*environment.findings, *self.findings))
        with_price, price_tags = priced(point, self.settings.price, environment)
        costs = step_costs(point)
        kept = self._kept(point, claim)
        asked = (longest, chosen.excluded, chosen.turns, kept)
        self._open.append(
            entry := OpenPoint(with_price, known, ceilings, claim, tags | price_tags, costs, *asked)
        )
        self.reporter.spared(min(len(kept), point.measure.processes))
        if not chosen.turns:
            self._further(entry)
        return True

    def skip(self, identity: Identity, done: Finished) -> None:
        """A point has an outcome already: who recorded it may have been killed before it removed
        what it kept.
        """
        outcome = done.tags["outcome"]
        self.partial.forget(
            identity, outcome == "ok"
        )  # what was cut short may be measured again, and go on
        self.summary.skipped[outcome] += 1

    def _ceilings_of(self, point: Point, environment: Environment) -> Ceilings | None:
        """The ceilings of a point's platform; to measure them is no cost of this point, and of no
        other.
        """
        usable = self.settings.ceilings and not self.environments.problem(point)
        if not usable or not below_ceilings(point, step_costs(point).flops_per_step):
            return None
        begin = time.perf_counter()
        found = self.ceilings.of(point, environment)
        spent = time.perf_counter() - begin
        self._free_since += spent
        self.reporter.aside(spent)
        return found

    def _kept(self, point: Point, claim: Claim) -> list[PointResult]:
        """The processes that an earlier driver kept, unless their first lacks a profile that is
        wanted.
        """
        known = [] if claim.repeats else self.partial.load(claim.identity)
        if not known or not (answer := known[0].answer):
            return []
        if answer.profile:
            has = profile_tags(answer.profile)["extras"].split()
        else:
            has = ()
        return [] if wanted_extras(point).difference(has) else known

    def identity(self, point: Point) -> Identity:
        """The measurement that a point is, on this machine."""
        environment_id = self.environments.environment(point).environment_id
        return Identity(point_id(point), environment_id, point.replicate)

    def _further(self, entry: OpenPoint) -> None:
        if not entry.is_complete:
            several = entry.point.measure.processes > 1
            entry.turns = None
            self.reporter.begin(
                run_name(entry.point) + (f", process {len(entry.results) + 1}" if several else "")
            )
            begun = self._begin()
            self._ended([entry], [self._process(entry)], begun)
        if entry.is_complete:
            self._record(entry)
        elif not entry.claim.repeats:
            try:
                self.partial.save(entry.claim.identity, entry.results)
            except (
                StoreError
            ) as error:  # where that cannot be done, only a driver that is killed loses it
                self.reporter.say(
                    f"processes of points that are not complete are not kept: {error}", once=True
                )

    def _begin(self) -> tuple[float, float]:
        """Seconds since the last process, which are the schedule of the next one, and when that
        begins.
        """
        return time.perf_counter() - self._free_since, time.time()

    def _ended(
        self,
        entries: Sequence[OpenPoint],
        results: Sequence[PointResult],
        begun: tuple[float, float],
    ) -> None:
        """A process of each point has ended."""
        self._free_since = time.perf_counter()
        for entry, result in zip(entries, results, strict=True):
            entry.results.append(
                replace(result, phases={**result.phases, "schedule": begun[0]}, begun=begun[1])
            )
            self.reporter.process_ended()
        # Other hosts believe a claim for as long as it says: what is open for longer says so in
        # time.
        now = time.monotonic()
        for each in self._open:
            if now - each.claimed > RENEW * each.longest:
                self.tracker.renew(each.claim, each.longest)
                each.claimed = now

    def _take_turns(self, turns: BlockTurns, entries: Sequence[OpenPoint]) -> None:
        """Measure two points at once, a block of each by turns, in a worker each."""
        self.reporter.begin(f"{' and '.join(run_name(entry.point) for entry in entries)}, by turns")
        begun = self._begin()
        for side, entry in enumerate(entries):
            # Linux ends a worker with the thread that started it: this one lives as long as the
            # session.
            with contextlib.suppress(OSError):
                self.pool.prepare(WorkerKey.of(entry.point, side))
        with turns, ThreadPoolExecutor(len(entries)) as threads:
            try:
                sides = [
                    threads.submit(self._process, entry, side) for side, entry in enumerate(entries)
                ]
                turns.play([side.done for side in sides])
                results = [side.result() for side in sides]
            except BaseException:
                self.pool.close()  # what the threads wait for
                raise
        self._ended(entries, results, begun)
        for entry in entries:
            self._record(entry)

    def _process(self, entry: OpenPoint, side: int = 0) -> PointResult:
        """How one more process of a point ends, or why it is not begun; which of two it is that
        take turns.
        """
        sides = 2 if entry.turns else 1  # each waits for the other, and has half of the memory
        limits = Limits(sides * entry.point.measure.timeout, memory_limit(entry.point) // sides)
        problem = self.environments.problem(entry.point)
        if problem:
            return PointResult("unavailable", problem)
        # Out of memory by arithmetic or by what larger and smaller points did: no build is tried.
        reason = entry.excluded or exceeds_memory(entry.point, entry.costs, limits.memory_bytes)
        if reason:
            return PointResult("oom_predicted", reason)
        try:
            return self._in_worker(entry, limits, side)
        except (DataError, WorkerError) as error:
            return PointResult("unavailable", str(error))

    def _in_worker(self, entry: OpenPoint, limits: Limits, side: int) -> PointResult:
        point = entry.point
        request = entry.request()
        work = entry.point.workload.role(RunRecords)
        said = ProgressPrinter(work, partial(self.tracker.tell, entry.claim))

        def news(event: str | WorkloadMessage) -> None:
            words = event if isinstance(event, str) else said.say(event)
            if words:
                self.reporter.phase(words)

        request |= work.request_fields(point)
        if work.is_resumable and not entry.claim.repeats:
            request["checkpoint"] = str(self.partial.checkpoint(entry.claim.identity))
        if entry.turns:
            request["turns"] = entry.turns.path(side)
        key = WorkerKey.of(point, side)
        if point.hosts > 1:
            request["other_hosts"] = other_hosts(point.hosts, key.variables())
        result = self.pool.measure(key, request, limits, news)
        if point.hosts > 1 and result.outcome != "ok":
            require_answers()
        return result

    def _record(self, entry: OpenPoint) -> None:
        record = entry.record()
        work = entry.point.workload.role(RunRecords)
        run_id = self.tracker.record(entry.claim, record, partial(self._recording, record))
        self._open.remove(entry)
        if not entry.claim.repeats:
            self.partial.forget(
                entry.claim.identity, work.is_resumable and work.is_finished(entry.results[-1])
            )
        row = RecordedPoint.of_record(run_id, record)
        self.summary.rows.append(row)
        self.reporter.spared(entry.wanted)
        self.reporter.done(row)


@contextlib.contextmanager
def _opened(
    points: Sequence[Point], reporter: Reporter, settings: Settings, sweep: SweepInfo | None
) -> Iterator[_Session]:
    watch = LoadMonitor()
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
            yield _Session(sweep, watch, begin, pool, tracker, environments, reporter, settings)
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
        tracker: Where runs are recorded.
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
    """Close the parent run of a sweep."""
    state = "interrupted" if summary.interrupted else "finished"
    what = f"A sweep of {counted(summary.total, 'point')}, {state} after {summary.seconds:.0f} s"
    said = (f"`{without_secrets(sweep.command)}`", conclusion.text, f"{what}: {summary.counts()}.")
    metrics = {f"points.{name}": float(count) for name, count in summary.outcomes.items()}
    metrics |= {"points": float(summary.total), **conclusion.metrics}
    if summary.interrupted:
        status = "KILLED"
    elif summary.missing:
        status = "FAILED"
    else:
        status = "FINISHED"
    end = SweepRun(
        status, "\n\n".join(filter(None, said)), metrics, conclusion.artifacts, conclusion.tags
    )
    tracker.close_sweep(end)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the session as Ctrl-C does."""
    # Only the main thread may ask for signals.
    if threading.current_thread() is threading.main_thread():
        signals = (signal.SIGTERM, signal.SIGHUP)
    else:
        signals = ()
    previous = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)
