"""Measures points one after the other: claims each, measures it in as many processes as it needs, records it. Points
that are measured in several processes are open together, a group at a time: each is measured once, then each once more
in another order, so that minutes lie between the processes of a point and drift shows in its interval."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from paradnn.config.identity import Identity, point_id, request_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import Measure, Point, Settings, costs_of
from paradnn.core.errors import DataError, StoreError, WorkerError
from paradnn.core.layers import Costs
from paradnn.core.words import counted
from paradnn.core.workload import Moment, Part, Workload
from paradnn.platform.environment import Environment, exceeds_memory, memory_limit
from paradnn.platform.findings import Finding
from paradnn.platform.load import load_average
from paradnn.session.design import DesignPoint, RecordedPoint, Summary
from paradnn.session.environments import WorkerEnvironments, other_hosts, require_answers
from paradnn.session.hardware_peaks import Ceilings, CeilingsKeeper, below_ceilings, device_peaks, overrun_tags
from paradnn.session.measured import Measured, measurements, narrow_enough
from paradnn.session.progress import Reporter
from paradnn.session.record import make_record, point_tags, priced, profile_tags, run_name
from paradnn.session.reference import adjusted_times
from paradnn.session.turns import BlockTurns
from paradnn.session.workers import Limits, WorkerKey, WorkerPool
from paradnn.store.journal import Journal, PartialResults
from paradnn.store.runs import Claim, Finished, Record, ResumePolicy, wanted_extras

#: How many points are open together. A killed driver on another host blocks them for as long as they may take.
GROUP = 24
_PAUSE = 2.0  # seconds between two words on what a worker does
RENEW = 0.5  # the share of its time after which a claim is renewed


@dataclass(eq=False)
class Measuring:
    """The points of one session, and what it works with for as long as it lasts. `findings` about the machine go into
    the environment of every run, `tags` and the metrics `waited` into every run."""

    pool: WorkerPool
    tracker: Journal
    environments: WorkerEnvironments
    reporter: Reporter
    settings: Settings
    findings: Sequence[Finding] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    waited: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.summary = Summary()
        self.resume = ResumePolicy(self.settings.resume, self.settings.retry)
        self.partial = PartialResults(self.settings.tracking)
        self.ceilings = CeilingsKeeper(self.pool, self.tracker, self.reporter.say)
        self._random = random.Random(self.settings.sweep.seed)
        self._open: list[OpenPoint] = []
        self.start()

    def start(self) -> None:
        """What passes from now on is the schedule of the first point."""
        self._free_since = self._begun = time.perf_counter()

    def _recording(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, its figure included; what follows falls into the next point's schedule."""
        now = time.perf_counter()
        spent = now - self._free_since
        overhead = spent + sum(record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start"))
        self._free_since = now
        own = {"phase_record_seconds": spent, "overhead_seconds": overhead, "session_seconds": now - self._begun}
        return {**own, **self.waited}

    def abandon(self) -> None:
        """Give back what is claimed and not recorded."""
        for entry in self._open:
            with contextlib.suppress(Exception):
                self.tracker.abandon(entry.claim, "interrupted before its end")

    def work(self, todo: Sequence[Point]) -> None:
        """Measure all points, group after group; what another driver holds comes again at the end."""
        queue, elsewhere = [DesignPoint(point, {}) for point in todo], 0  # how many in a row were held by others
        while queue:
            held = self.visit(queue[:GROUP])
            elsewhere = elsewhere + len(held) if len(held) == len(queue[:GROUP]) else 0
            queue = queue[GROUP:] + held
            if elsewhere and elsewhere >= len(queue):
                # Who waits holds nothing: the other may wait for it.
                self.reporter.begin(f"waiting for {counted(len(queue), 'point')} that another driver measures")
                time.sleep(random.uniform(0.5, 1.5))

    def visit(
        self, visits: Sequence[DesignPoint], wanted: Callable[[DesignPoint, bool], bool] = lambda *_: True
    ) -> list[DesignPoint]:
        """Measure a batch, at most a group of points; how many are left out: not `wanted` (which is asked before a
        point is claimed, and once it is), or held by other drivers."""
        left = []
        for visit in visits:
            if not (wanted(visit, False) and self.enter(visit, partial(wanted, visit, True))):
                left.append(visit)
            both = [entry for entry in self._open if visit.turns and entry.turns is visit.turns]
            if visit.turns and len(both) == 2:
                self._take_turns(visit.turns, both)
        while waiting := list(self._open):  # each once a round, in as many processes as it needs
            if self.settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._further(entry)
        return left

    def enter(self, visit: DesignPoint, stays: Callable[[], bool] = lambda: True) -> bool:
        """Claim a point and measure it in its first process. False where another driver holds it, or where it does not
        `stay` once it is claimed; else it has an outcome, or will have."""
        point = visit.point
        environment = self.environments.environment(point)
        ceilings = None if visit.excluded else self._ceilings_of(point, environment)
        tags = {**point_tags(point, environment), **self.tags, **visit.tags}
        accepts = partial(self.resume.accepts, point) if self.resume.looks else None
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
        costs, kept = costs_of(point), self._kept(point, claim)
        asked = (longest, visit.excluded, visit.turns, kept)
        self._open.append(entry := OpenPoint(with_price, known, ceilings, claim, tags | price_tags, costs, *asked))
        self.reporter.spared(min(len(kept), point.measure.processes))
        if not visit.turns:
            self._further(entry)
        return True

    def skip(self, identity: Identity, done: Finished) -> None:
        """A point has an outcome already: who recorded it may have been killed before it removed what it kept."""
        outcome = done.tags["outcome"]
        self.partial.forget(identity, outcome == "ok")  # what was cut short may be measured again, and go on
        self.summary.skipped[outcome] += 1

    def _ceilings_of(self, point: Point, environment: Environment) -> Ceilings | None:
        """The ceilings of a point's platform; to measure them is no cost of this point, and of no other."""
        usable = self.settings.ceilings and not self.environments.problem(point)
        if not usable or not below_ceilings(point, costs_of(point).flops_per_step):
            return None
        begin = time.perf_counter()
        found = self.ceilings.of(point, environment)
        spent = time.perf_counter() - begin
        self._free_since += spent
        self.reporter.aside(spent)
        return found

    def _kept(self, point: Point, claim: Claim) -> list[PointResult]:
        """The processes that an earlier driver kept, unless their first lacks a profile that is wanted."""
        known = [] if claim.repeats else self.partial.load(claim.identity)
        if not known or not (answer := known[0].answer):
            return []
        has = profile_tags(answer.profile)["extras"].split() if answer.profile else ()
        return [] if wanted_extras(point).difference(has) else known

    def identity(self, point: Point) -> Identity:
        """The measurement that a point is, on this machine."""
        environment_id = self.environments.environment(point).environment_id
        return Identity(point_id(point), environment_id, point.replicate)

    def _further(self, entry: OpenPoint) -> None:
        if not entry.is_complete:
            several = entry.point.measure.processes > 1
            entry.turns = None
            self.reporter.begin(run_name(entry.point) + (f", process {len(entry.results) + 1}" if several else ""))
            begun = self._begin()
            self._ended([entry], [self._process(entry)], begun)
        if entry.is_complete:
            self._record(entry)
        elif not entry.claim.repeats:
            try:
                self.partial.save(entry.claim.identity, entry.results)
            except StoreError as error:  # where that cannot be done, only a driver that is killed loses it
                self.reporter.say(f"processes of points that are not complete are not kept: {error}", once=True)

    def _begin(self) -> tuple[float, float]:
        """Seconds since the last process, which are the schedule of the next one, and when that begins."""
        return time.perf_counter() - self._free_since, time.time()

    def _ended(self, entries: Sequence[OpenPoint], results: Sequence[PointResult], begun: tuple[float, float]) -> None:
        """A process of each point has ended."""
        self._free_since = time.perf_counter()
        for entry, result in zip(entries, results, strict=True):
            entry.results.append(replace(result, phases={**result.phases, "schedule": begun[0]}, begun=begun[1]))
            self.reporter.process_ended()
        # Other hosts believe a claim for as long as it says: what is open for longer says so in time.
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
            # Linux ends a worker with the thread that started it: this one lives as long as the session.
            with contextlib.suppress(OSError):
                self.pool.prepare(WorkerKey.of(entry.point, side))
        with turns, ThreadPoolExecutor(len(entries)) as threads:
            try:
                sides = [threads.submit(self._process, entry, side) for side, entry in enumerate(entries)]
                turns.play([side.done for side in sides])
                results = [side.result() for side in sides]
            except BaseException:
                self.pool.close()  # what the threads wait for
                raise
        self._ended(entries, results, begun)
        for entry in entries:
            self._record(entry)

    def _process(self, entry: OpenPoint, side: int = 0) -> PointResult:
        """How one more process of a point ends, or why it is not begun; which of two it is that take turns."""
        sides = 2 if entry.turns else 1  # each waits for the other, and has half of the memory
        limits = Limits(sides * entry.point.measure.timeout, memory_limit(entry.point) // sides)
        if problem := self.environments.problem(entry.point):
            return PointResult("unavailable", problem)
        # Out of memory by arithmetic or by what larger and smaller points did: no build is tried.
        if reason := entry.excluded or exceeds_memory(entry.point, entry.costs, limits.memory_bytes):
            return PointResult("oom_predicted", reason)
        try:
            return self._in_worker(entry, limits, side)
        except (DataError, WorkerError) as error:
            return PointResult("unavailable", str(error))

    def _in_worker(self, entry: OpenPoint, limits: Limits, side: int) -> PointResult:
        point, request, work = entry.point, entry.request(), entry.point.workload
        said = NewsSaid(work, partial(self.tracker.tell, entry.claim))

        def news(event: str | Part) -> None:
            if words := event if isinstance(event, str) else said.say(event):
                self.reporter.phase(words)

        request |= work.request(point)
        if work.resumes and not entry.claim.repeats:
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
        record, work = entry.record(), entry.point.workload
        run_id = self.tracker.record(entry.claim, record, partial(self._recording, record))
        self._open.remove(entry)
        if not entry.claim.repeats:
            self.partial.forget(entry.claim.identity, work.resumes and work.ended(entry.results[-1]))
        row = RecordedPoint.of_record(run_id, record)
        self.summary.rows.append(row)
        self.reporter.spared(entry.wanted)
        self.reporter.done(row)


class NewsSaid:
    """A word on the terminal of one point's news, and its curve in the store; not more often than every two seconds."""

    def __init__(self, work: Workload, tell: Callable[[Sequence[Moment]], None]) -> None:
        self._work, self._tell = work, tell
        self._news: list[Part] = []
        self._written, self._last = 0, 0.0

    def say(self, news: Part) -> str | None:
        """Take it in; what the terminal is to show, where it is time for that. The rest comes with the record."""
        self._news.append(news)
        if (now := time.monotonic()) - self._last < _PAUSE:
            return None
        moments = self._work.history(self._news)
        self._tell(moments[self._written :])
        self._written, self._last = len(moments), now
        return self._work.progress(news)


@dataclass
class OpenPoint:
    """A claimed point. `excluded` and `turns` are those of its visit; `longest`: seconds for which its claim holds from
    `claimed` on (on the monotonic clock)."""

    point: Point
    environment: Environment
    ceilings: Ceilings | None
    claim: Claim
    tags: Mapping[str, str]
    costs: Costs
    longest: float = 0.0
    excluded: str | None = None
    turns: BlockTurns | None = None
    results: list[PointResult] = field(default_factory=list)
    load: float | None = field(default_factory=load_average)
    claimed: float = field(default_factory=time.monotonic)

    @property
    def wanted(self) -> int:
        """How many more processes are known to be needed."""
        return max(0, self.point.measure.processes - len(self.results))

    @property
    def is_complete(self) -> bool:
        """Whether a process failed, or there are as many as were asked for and as make the interval narrow enough."""
        measure: Measure = self.point.measure
        failed = bool(self.results) and self.results[-1].outcome != "ok"
        if failed or self.wanted:
            return failed
        if measure.relative_interval is None or not 1 < measure.processes <= len(self.results) < measure.max_processes:
            return True
        seen = measurements([each.answer for each in self.results if each.answer])
        return not seen or narrow_enough(adjusted_times([one.timing for one in seen]), measure.relative_interval)

    def request(self) -> dict[str, Any]:
        """What the next process is asked: the first alone profiles; of several, none measures on for its interval, and
        each has a schedule of queries of its own."""
        measure = self.point.measure
        if measure.processes > 1:
            measure = replace(measure, relative_interval=None)
        if self.results:
            measure = replace(measure, profile=False, keep_trace=False)
        work = self.point.workload.of_process(self.point.replicate, len(self.results))
        return request_of(replace(self.point, measure=measure, workload=work))

    def record(self) -> Record:
        """All that the run is to hold."""
        point, environment, costs, results = self.point, self.environment, self.costs, self.results
        tags = {**self.tags, **(self.ceilings.tags(point.precision) if self.ceilings else {})}
        own = (self.load, self.claim.start_time, int(time.time() * 1000))
        seen = measurements([each.answer for each in results if each.answer])
        if seen and seen[0].counted:  # in the program, where arithmetic gives none
            costs, tags["costs"] = seen[0].counted, "counted"
        peaks = device_peaks(point, environment, self.ceilings)
        while True:
            try:
                record = make_record(Measured(point, environment, costs, results, tags, peaks, *own))
                break
            except (ArithmeticError, ValueError) as error:
                if results[-1].answer is None:  # numbers of which nothing can be computed end this point, not the sweep
                    raise
                reason = f"what its worker measured cannot be: {error}"
                results = [*results[:-1], replace(results[-1], outcome="crash", reason=reason, answer=None)]
        return replace(record, tags={**record.tags, **overrun_tags(point, environment, record.metrics)})
