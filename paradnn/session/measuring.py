"""Measures points one after the other: claims each, measures it in as many processes as it needs, records it.

Points that are measured in several processes are open together, a group at a time: each is measured once, then each
once more in another order, so that minutes lie between the processes of a point and drift shows in its interval.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paradnn.config.costs import costs_of
from paradnn.config.identity import Identity, point_id
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, Settings
from paradnn.core.words import counted
from paradnn.core.workload import Companion, Moment, Part, Workload
from paradnn.errors import DataError, StoreError, WorkerError
from paradnn.execution.environments import WorkerEnvironments
from paradnn.execution.hosts import OtherHosts
from paradnn.execution.pool import WorkerPool
from paradnn.execution.worker_key import WorkerKey
from paradnn.execution.worker_process import Limits
from paradnn.platform.findings import Finding
from paradnn.platform.memory import exceeds_memory, memory_limit
from paradnn.record.prices import price_tags, priced
from paradnn.record.profile_summary import profile_tags
from paradnn.record.record import Record, point_tags, run_name
from paradnn.session.course import Visit
from paradnn.session.drift import Drift
from paradnn.session.hardware_peaks import CeilingsKeeper, below_ceilings
from paradnn.session.open_point import OpenPoint
from paradnn.session.progress import Reporter
from paradnn.session.summary import Row, Summary
from paradnn.store.journal import PartialResults
from paradnn.store.resume import ResumePolicy, wanted_extras
from paradnn.store.runs import ClaimedElsewhere, Finished
from paradnn.store.tracker import Tracker

__all__ = ["Measuring", "NewsSaid", "SessionContext"]

#: How many points are open together. A killed driver on another host blocks them for as long as they may take.
GROUP = 24
#: Seconds between two words on what a worker does.
_PAUSE = 2.0
#: The share of its time after which a claim is renewed.
RENEW = 0.5


@dataclass(frozen=True)
class SessionContext:
    """What a session works with, for as long as it lasts."""

    pool: WorkerPool
    tracker: Tracker
    environments: WorkerEnvironments
    reporter: Reporter
    settings: Settings
    summary: Summary

    @property
    def resume(self) -> ResumePolicy:
        """Which stored outcomes are enough."""
        return ResumePolicy(self.settings.resume, self.settings.retry)


class Measuring:
    """The points of one session; `findings` about the machine go into the environment of every run."""

    def __init__(self, context: SessionContext) -> None:
        settings, self._summary, self._resume = context.settings, context.summary, context.resume
        self._pool, self._tracker = context.pool, context.tracker
        self._environments, self._reporter, self._settings = context.environments, context.reporter, settings
        self.partial = PartialResults(settings.tracking)
        self._ceilings = CeilingsKeeper(self._pool, self._tracker, self._reporter.say) if settings.ceilings else None
        self._companions: dict[str, Companion] = {}  # by the name of the kind of work
        self._hosts = OtherHosts()
        self._random = random.Random(settings.sweep.seed)
        self._keeps_nothing = False
        self._open: list[OpenPoint] = []
        self._free_since = self._begun = time.perf_counter()
        self._tags: Mapping[str, str] = {}
        self._waited: Mapping[str, float] = {}
        self.findings: Sequence[Finding] = ()
        self.drift = Drift()

    def start(self, tags: Mapping[str, str], waited: Mapping[str, float]) -> None:
        """What passes from now on is the schedule of the first point; `tags` and metrics `waited` go to every run."""
        self._tags, self._waited = {**tags, "session_id": secrets.token_hex(8)}, waited
        self._free_since = self._begun = time.perf_counter()

    def abandon(self) -> None:
        """Give back what is claimed and not recorded."""
        for entry in self._open:
            with contextlib.suppress(Exception):
                self._tracker.abandon(entry.claim, "interrupted before its end")
        for companion in self._companions.values():
            companion.close()
        self._hosts.close()

    def work(self, todo: Sequence[Point]) -> None:
        """Measure all points, group after group; what another driver holds comes again at the end."""
        queue, elsewhere = deque(todo), 0  # points in a row that were held by others
        self._open_reference(queue)
        while queue:
            for _ in range(min(GROUP, len(queue))):
                point = queue.popleft()
                if self.enter(point):
                    elsewhere = 0
                else:
                    queue.append(point)
                    elsewhere += 1
            self._further_rounds()
            if elsewhere and elsewhere >= len(queue):
                # Who waits holds nothing: the other may wait for it.
                self._end_references()
                self._reporter.begin(f"waiting for {counted(len(queue), 'point')} that another driver measures")
                time.sleep(random.uniform(0.5, 1.5))
        self._end_references()

    def _open_reference(self, queue: deque[Point]) -> None:
        """Open the points that are measured once more with every group: the middle ones of a sample, by their FLOPs."""
        count = self._settings.sweep.reference_points
        if len(queue) <= GROUP or not count:
            return
        usable = [point for point in list(queue)[: 8 * GROUP] if not self._environments.problem(point)]
        usable = [point for point in usable if point.workload.repeatable]
        usable.sort(key=lambda point: costs_of(point).flops_per_step)
        for share in range(1, count + 1):
            if usable:
                point = usable.pop(len(usable) * share // (count + 1))
                queue.remove(point)
                if not self.enter(point, reference=True):
                    queue.append(point)

    def _end_references(self) -> None:
        """Complete and record the points that were measured with every group."""
        for entry in self._open:
            entry.last_group = True
        self._further_rounds()

    def _further_rounds(self) -> None:
        """Measure what is open in further processes, each once a round, until all is complete; and the references."""
        while waiting := [entry for entry in self._open if not entry.reference or entry.last_group]:
            if self._settings.sweep.order == "random":
                self._random.shuffle(waiting)
            for entry in waiting:
                self._process(entry)
        for entry in list(self._open):
            self._process(entry)

    def visit(self, visits: Sequence[Visit], wanted: Callable[[Visit, bool], bool] = lambda *_: True) -> int:
        """Measure a batch, at most a group of points; how many are left out: not `wanted` (which is asked before a
        point is claimed, and once it is), or held by other drivers."""
        left_out = sum(
            not (wanted(visit, False) and self.enter(visit.point, visit=visit, stays=partial(wanted, visit, True)))
            for visit in visits
        )
        self._further_rounds()
        return left_out

    def enter(
        self,
        point: Point,
        reference: bool = False,
        visit: Visit | None = None,
        stays: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Claim a point, measure it in its first process; False when another driver holds it, or it no longer `stays`
        once it is claimed."""
        further, excluded = (visit.tags, visit.excluded) if visit else ({}, None)
        environment = self._environments.environment(point)
        begin = time.perf_counter()
        usable = not self._environments.problem(point) and not excluded
        below = usable and below_ceilings(costs_of(point))
        ceilings = self._ceilings.of(point, environment) if self._ceilings and below else None
        # Measuring them is no cost of this point, and of no other.
        spent = time.perf_counter() - begin
        self._free_since += spent
        self._reporter.aside(spent)
        tags = {**point_tags(point, environment), **self._tags, **further}
        accepts = (lambda known: self._resume.accepts(point, known)) if self._resume.looks else None
        self._reporter.begin(run_name(point))
        # Its processes take turns with those of the whole group; the claim is renewed meanwhile.
        longest = point.measure.timeout * (GROUP if point.measure.processes > 1 or reference else 1)
        identity = self.identity(point)
        claim = self._tracker.begin(identity, run_name(point), tags, longest, accepts)
        if isinstance(claim, ClaimedElsewhere):
            return False
        if isinstance(claim, Finished):
            self.partial.forget(identity, claim.tags["outcome"])
            self._summary.skipped[claim.tags["outcome"]] += 1
            self._reporter.skipped(self._summary.skipped, point.measure.processes)
            return True
        if not stays():
            self._tracker.abandon(claim, "other drivers began the last points at the same time")
            time.sleep(random.uniform(0.2, 1.0))  # else all would come back together
            return False
        known = replace(environment, findings=(*environment.findings, *self.findings))
        with_price = priced(point, self._settings.price, environment)
        tags |= price_tags(point, with_price, self._settings.price)
        entry = OpenPoint(with_price, known, ceilings, claim, tags, costs_of(point), reference, longest=longest)
        entry.excluded = excluded
        if not claim.repeats:
            self._take_up(entry)
        self._open.append(entry)
        self._process(entry)
        return True

    def _take_up(self, entry: OpenPoint) -> None:
        """Go on with the processes that an earlier driver kept, unless their first lacks a profile that is wanted."""
        known = self.partial.load(entry.claim.identity)
        answer = known[0].answer if known else None
        has = profile_tags(answer.profile)["extras"].split() if answer and answer.profile else ()
        if answer and not wanted_extras(entry.point).difference(has):
            entry.results += known
            self._reporter.spared(min(len(known), entry.point.measure.processes))

    def _keep(self, entry: OpenPoint) -> None:
        """Keep what a point has so far; where that cannot be done, only a driver that is killed loses it."""
        if entry.claim.repeats or self._keeps_nothing:
            return
        try:
            self.partial.save(entry.claim.identity, entry.results)
        except StoreError as error:
            self._keeps_nothing = True
            self._reporter.say(f"processes of points that are not complete are not kept: {error}")

    def identity(self, point: Point) -> Identity:
        """The measurement that a point is, on this machine."""
        return Identity(point_id(point), self._environments.environment(point).environment_id, point.replicate)

    def _process(self, entry: OpenPoint) -> None:
        """Measure a point in one more process; record it once it is complete."""
        if not entry.is_complete:
            wanted = entry.point.measure.processes
            self._reporter.begin(run_name(entry.point), len(entry.results) + 1 if wanted > 1 else None)
            entry.results.append(self._measure(entry))
            self._reporter.process_ended()
            self._renew_claims()
        if not entry.is_complete:
            self._keep(entry)
            return
        record = entry.record()
        run_id = self._tracker.record(entry.claim, record, lambda: self._late(record))
        self._open.remove(entry)
        if len(entry.results) > 1 and not entry.claim.repeats:
            self.partial.remove(entry.claim.identity)
        work = entry.point.workload
        if work.resumes and not entry.claim.repeats and work.ended(entry.results[-1]):
            self.partial.remove_checkpoint(entry.claim.identity)
        self.drift.add(entry.steps())
        self._done(record, run_id, entry.wanted)

    def _renew_claims(self) -> None:
        """Other hosts believe a claim for as long as it says: what is open for longer says so in time."""
        now = time.monotonic()
        for entry in self._open:
            if now - entry.claimed > RENEW * entry.longest:
                self._tracker.renew(entry.claim, entry.longest)
                entry.claimed = now

    def _measure(self, entry: OpenPoint) -> PointResult:
        point = entry.point
        limits = Limits(point.measure.timeout, memory_limit(point))
        schedule, begun = time.perf_counter() - self._free_since, time.time()
        problem = self._environments.problem(point)
        result = PointResult("unavailable", problem) if problem else self._predicted(entry, limits)
        result = result or self._in_worker(entry, limits)
        self._free_since = time.perf_counter()
        return replace(result, phases={**result.phases, "schedule": schedule}, begun=begun)

    def _in_worker(self, entry: OpenPoint, limits: Limits) -> PointResult:
        """Measure a point in one more process."""
        point, request = entry.point, entry.request()
        said = NewsSaid(point.workload, partial(self._tracker.tell, entry.claim))

        def news(event: str | Part) -> None:
            if words := event if isinstance(event, str) else said.say(event):
                self._reporter.phase(words)

        try:
            request |= self._companion(point.workload).request(point)
        except DataError as error:
            return PointResult("unavailable", str(error))
        if point.workload.resumes and not entry.claim.repeats:
            request["checkpoint"] = str(self.partial.checkpoint(entry.claim.identity))
        key = WorkerKey.of(point)
        if point.hosts > 1:
            try:
                request["other_hosts"] = self._hosts.of(point.hosts, key.variables())
            except WorkerError as error:
                return PointResult("unavailable", str(error))
        result = self._pool.measure(key, request, limits, news)
        if point.hosts > 1 and result.outcome != "ok":
            self._hosts.require()
        return result

    def _companion(self, work: Workload) -> Companion:
        if work.name not in self._companions:
            self._companions[work.name] = work.companion()
        return self._companions[work.name]

    @staticmethod
    def _predicted(entry: OpenPoint, limits: Limits) -> PointResult | None:
        """Out of memory by arithmetic or by what larger and smaller points did: no build is tried."""
        reason = entry.excluded or exceeds_memory(entry.point, entry.costs, limits.memory_bytes)
        return PointResult("oom_predicted", reason) if reason else None

    def _late(self, record: Record) -> dict[str, float]:
        """Metrics of the recording itself, its figure included; what follows falls into the next point's schedule."""
        now = time.perf_counter()
        spent = now - self._free_since
        overhead = spent + sum(record.metrics.get(f"phase_{name}_seconds", 0.0) for name in ("schedule", "start"))
        self._free_since = now
        own = {"phase_record_seconds": spent, "overhead_seconds": overhead, "session_seconds": now - self._begun}
        return {**own, **self._waited}

    def _done(self, record: Record, run_id: str, spared: int) -> None:
        row = Row.of_record(run_id, record)
        self._summary.rows.append(row)
        self._reporter.done(row, spared)


class NewsSaid:
    """What is said of one point's news while it is measured: a word on the terminal, and its curve in the store.

    Not more often than every two seconds: terminal and store stand on the machine that is measured, mostly.
    """

    def __init__(self, work: Workload, tell: Callable[[Sequence[Moment]], None]) -> None:
        self._work, self._tell = work, tell
        self._news: list[Part] = []
        self._written, self._last = 0, 0.0

    def say(self, news: Part) -> str | None:
        """Take it in; what the terminal is to show, where it is time for that. What the store was not told by the end
        comes with the record."""
        self._news.append(news)
        now = time.monotonic()
        if now - self._last < _PAUSE:
            return None
        moments = self._work.history(self._news)
        self._tell(moments[self._written :])
        self._written, self._last = len(moments), now
        return self._work.progress(news)
