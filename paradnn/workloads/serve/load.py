"""One scenario on a model: who asks, how it is served, what comes of it. What is served is a
function of how many.

The highest rate at which a limit holds is found by bisection over probes, then a run of full length
at what it found; a probe that is undecided at its end counts as failed. Where the full run does not
hold the limit, which has more time to go wrong, the search goes on below it. A server has compiled
powers of two up to its largest batch, before the first query; a batch between two is padded: a
program of open shapes is another one than the one that is timed.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from paradnn.core.errors import PointEnded
from paradnn.worker.chance import beta_share, events_factor, passes, required_in_time_queries
from paradnn.worker.meters import ContentionMonitor, EnergyMeter
from paradnn.workloads.serve.generator import Generated
from paradnn.workloads.serve.queries import Load, Probe, QueryLog, percentile

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Step
    from paradnn.worker.point import PointRun

#: At the percentile that a scenario is about, a generator may be late by this share of the latency,
#: or by so many ns.
_LATE_SHARE = 0.1
_LATE_ALWAYS = 1_000_000
#: A query that has waited for so many times the limit, and for so many seconds, ends a run.
_PATIENCE = 20
_PATIENCE_SECONDS = 10.0
#: Offline, LoadGen asks for so much more than what the model is expected to do in the time.
OFFLINE_SLACK = 1.1
#: A probe lasts no longer than this unless its verdict needs it; starting and ending a run takes so
#: long at most.
_PROBE_SECONDS = 60.0
_AROUND_SECONDS = 5.0
#: What is left of the time when a load is ended: for its queries to reach the driver.
_LEFT_SECONDS = 1.0


@dataclass(frozen=True)
class ServedQueries:
    """The queries that were served, in the order in which they were to come, and how many waited at
    the end. outcome: "ok"; "overload" where one waited for too long, "timeout" where the time was
    up, with queries yet to come. problem: why it was not what was asked for; joules: energy, None
    where it is not counted.
    """

    log: QueryLog
    waiting: int = 0
    outcome: str = "ok"
    problem: str | None = None
    joules: float | None = None

    def told(self, what: str, joules: float | None) -> ServedQueries:
        """With its energy, and why `what` ended before its end."""
        log = self.log
        seconds = self.log.seconds()
        problem = {
            "ok": None,
            "timeout": f"{what}: measure.timeout left time for {len(log):,} queries in {seconds:.1f} s; raise it, or "
            "ask for fewer seconds or queries",
            "overload": f"{what}: queries come faster than they are served: {len(log) / (seconds or math.inf):,.1f} a "
            f"second were, and after {seconds:.1f} s {self.waiting:,} waited",
        }
        return replace(self, problem=problem[self.outcome], joules=joules)


def serve(
    arrivals: Any,
    run: Callable[[int], object],
    clock: Callable[[], int],
    batch: int,
    delay: int = 0,
    patience: float = math.inf,
    until: int | None = None,
    enough: Callable[[list[int], int], bool] | None = None,
) -> ServedQueries:
    """Serve what comes (`Generated`), at most `batch` at once, after a wait for more of `delay` ns
    at most.

    It ends when none comes any more, one has waited for `patience` ns, the clock shows `until`,
    after which no batch begins, or `enough(scheduled, ended)` is true, which is called with every
    batch: when its queries were to come, and its end, ns. `run(queries)` serves so many at once and
    returns when they are done.
    """
    log = QueryLog()
    queue = deque[tuple[int, int]]()
    while True:
        queue.extend(arrivals.take())
        now = clock()
        if not queue and arrivals.ended:
            return ServedQueries(log)
        if until is not None and now >= until:
            return ServedQueries(log, len(queue), "timeout")
        if not queue:
            arrivals.wait(until)
            continue
        oldest = queue[0][0]
        if now - oldest > patience:
            return ServedQueries(log, len(queue), "overload")
        if len(queue) < batch and now < oldest + delay:
            arrivals.wait(oldest + delay)
            continue
        taken = [queue.popleft() for _ in range(min(len(queue), batch))]
        started = clock()
        run(len(taken))
        ended = clock()
        log.add(taken, started, ended)
        if enough and enough([scheduled for scheduled, _ in taken], ended):
            return ServedQueries(log)


def serve_closed(
    run: Callable[[int], object],
    clock: Callable[[], int],
    queries: int,
    seconds: float,
    batch: int,
    until: int,
) -> ServedQueries:
    """Serve queries until there were so many and so much time has passed, of which each comes when
    the one before it was answered; with `batch` above 0 so many at once, all of which have come at
    the beginning.
    """
    log = QueryLog()
    begin = clock()
    while len(log) < queries or clock() < begin + seconds * 1e9:
        now = clock()
        if now >= until:
            return ServedQueries(log, outcome="timeout")
        count = max(1, min(batch, queries - len(log)))
        run(count)
        log.add([(begin if batch else now,) * 2] * count, now, clock())
    return ServedQueries(log)


class NotServed(PointEnded):
    """What was asked for did not all come or was not all served; `load` is what was measured of it."""

    def __init__(self, reason: str, load: Load, outcome: str) -> None:
        super().__init__(reason)
        self.load = load
        self.outcome = outcome


@dataclass(frozen=True)
class Service:
    """A model that serves: `run(queries)` so many at once, up to `batch`, of which it does
    `capacity` a second at most. single_seconds: what one takes alone.
    """

    run: Callable[[int], object]
    batch: int
    capacity: float
    single_seconds: float

    def load(self, rate: float | None, served: ServedQueries, probes: list[Probe]) -> Load:
        """What it gave; raises NotServed with it where there was a problem."""
        load = Load(rate, self.single_seconds, served.log.packed(), probes, served.joules)
        if served.problem:
            raise NotServed(
                served.problem, load, "timeout" if served.outcome == "timeout" else "overload"
            )
        return load


class QueryScenario(Protocol):
    """What a scenario decides: how queries become batches, and when they are asked."""

    def batches(self, largest: int) -> dict[int, int]:
        """Return the examples of each compiled batch by the number of queries that it serves."""

    def ask(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        """Ask queries until the monotonic clock shows `until` ns at most; raises NotServed."""


def measure_load(
    scenario: QueryScenario, service: Service, seconds_left: float, meter: EnergyMeter
) -> Load:
    """Let a scenario ask, for `seconds_left` at most. Raises NotServed."""
    # A batch that has begun is served.
    usable = seconds_left - _LEFT_SECONDS - service.batch / service.capacity
    return scenario.ask(service, time.monotonic_ns() + int(usable * 1e9), meter)


class ScheduledRuns:
    """Runs of `scenario=server`, each with a generator of its own."""

    def __init__(
        self, settings: Mapping[str, Any], service: Service, until: int, meter: EnergyMeter
    ) -> None:
        self._settings = settings
        self._service = service
        self._until = until
        self._meter = meter
        self._limit = int(settings["latency_ms"] * 1e6)
        self._share = settings["percentile"] / 100
        self._full = float(settings["min_seconds"]), int(settings["min_queries"])
        self._short = min(self._full[0], _PROBE_SECONDS), 2 * self._watch().fewest
        self._probes: list[Probe] = []

    def load(self) -> Load:
        """At the rate that is asked for, or at the highest that holds the limit. Raises NotServed."""
        service = self._service
        settings = self._settings
        if settings["rate"] != "peak":
            rate = float(settings["rate"])
            return service.load(rate, self._run(rate, self._full), [])
        alone = service.single_seconds
        wanted = f"server.latency_ms={settings['latency_ms']:g}"
        if alone * 1e9 > self._limit:
            reason = f"{wanted}: even a single query takes longer: {alone * 1e3:.3g} ms; raise the limit, or choose a "
            return service.load(
                None, ServedQueries(QueryLog(), problem=f"{reason}smaller model"), []
            )
        found = find_peak(
            self._probe, self._held, service.capacity, settings["precision"], self._has_time
        )
        run: ServedQueries = found.run or ServedQueries(QueryLog())
        if not found.held and run.outcome != "timeout":
            reason = "measure.timeout leaves no time to search; raise it, or ask for fewer server.min_seconds"
            if self._probes:
                lowest = min(probe.rate for probe in self._probes)
                reason = (
                    f"no rate was shown to hold {wanted} at p{settings['percentile']:g}, down to "
                )
                reason += f"{lowest:.3g}/s; one query alone takes {alone * 1e3:.3g} ms"
                reason += f"; the last run of full length: {run.problem}" if run.problem else ""
            run = replace(run, problem=f"server.rate=peak: {reason}")
        return service.load(found.rate, run, self._probes)

    def _has_time(self, rate: float) -> bool:
        """Whether there is time for another probe and the run of full length, as long as they may
        take.
        """
        needed = sum(
            max(seconds, queries / rate) + _AROUND_SECONDS
            for seconds, queries in (self._short, self._full)
        )
        return time.monotonic() + needed < self._until / 1e9

    def _watch(self) -> LimitMonitor:
        return LimitMonitor(self._limit, self._share, self._settings["confidence"])

    def _probe(self, rate: float) -> bool:
        return self._held(rate, self._watch())[0]

    def _held(self, rate: float, watch: LimitMonitor | None = None) -> tuple[bool, ServedQueries]:
        """Whether a rate held, in a full run or while a watch looks, and what was served; noted as
        a probe.
        """
        run = self._run(rate, self._short if watch else self._full, watch)
        latencies = run.log.latencies()
        late = [0, *accumulate(latency > self._limit for latency in latencies)]
        error = 1 - self._settings["confidence"]
        if run.problem:
            held = False
        elif watch:
            held = watch.look()
        else:
            held = verdict(late[1:], self._share, error)
        if latencies:
            latency = percentile(latencies, self._share) / 1e9
        else:
            latency = 0.0
        self._probes.append(
            Probe(rate, len(latencies), late[-1], run.log.seconds(), latency, held, run.problem)
        )
        return held is True, run

    def _run(
        self, rate: float, length: tuple[float, int], watch: LimitMonitor | None = None
    ) -> ServedQueries:
        """What was served at `rate` in so many seconds, and queries, at least; why it was not what
        was asked for.
        """
        patience = max(_PATIENCE * self._limit, _PATIENCE_SECONDS * 1e9)
        limits = (self._service.batch, int(self._settings["delay_ms"] * 1e6), patience, self._until)
        with Generated(rate, self._settings["seed"], *length) as arrivals:
            arrivals.begin()
            self._meter.start()
            served = serve(arrivals, self._service.run, time.monotonic_ns, *limits, watch)
            served = served.told(f"server.rate={rate:g}", self._meter.joules())
        if served.problem:
            return served
        return replace(served, problem=self._late_reason(served.log, rate))

    def _late_reason(self, log: QueryLog, rate: float) -> str | None:
        """Why queries did not come as scheduled; None where they did."""
        if not log:
            return None
        late = percentile(log.late(), self._share)
        latency = percentile(log.latencies(), self._share)
        if late <= max(_LATE_ALWAYS, _LATE_SHARE * latency):
            return None
        return (
            f"server.rate={rate:g}: the load generator could not keep up: {late / 1e6:.3g} ms late at "
            f"p{100 * self._share:g}, where the latency is {latency / 1e6:.3g} ms; leave it a core (platform.cores), "
            "or ask for less"
        )


# Whether a percentile of the latency holds a limit: told at the end of a run, or during it as soon
# as it is sure.

#: How often a probe may be looked at, each time when there are so many times as many queries as at
#: the last look.
LOOKS = 10
_GROWTH = 1.5
#: A probe lasts so many times the limit, and so many ns, at least.
_LIMITS = 20
_LEAST = 2_000_000_000


def verdict(cumulative: Sequence[int], share: float, error: float) -> bool | None:
    """True: `share` of the queries is in time; False: it is not; None: neither is sure. Each errs
    with chance `error`. `cumulative` counts the late queries up to each. Counts are divided by how
    much less they say than independent ones.
    """
    if not cumulative:
        return None
    count = len(cumulative)
    late = cumulative[-1]
    factor = events_factor(cumulative)
    if passes((count - late) / factor, late / factor, share, 1 - error):
        return True
    # P(so many late ones or more), were just as many late as may be.
    unlikely = (
        late > (1 - share) * count
        and beta_share(1 - share, late / factor, (count - late) / factor + 1) < error
    )
    return False if unlikely else None


class LimitMonitor:
    """Ends a probe once it is sure, with `confidence`, whether a share of all queries takes no
    longer than `latency` ns. Every look has its part of the chance of a false verdict.

    The first look is when queries have come for so long that a queue which grows would show: where
    twice as many come as are served the wait exceeds the limit after twice the limit, where 5% more
    do after 20 times; or two seconds.

    fewest: queries after which a probe can be told to hold it, if none of them is late.
    """

    def __init__(self, latency: int, share: float, confidence: float) -> None:
        self._latency = latency
        self._share = share
        self._error = (1 - confidence) / LOOKS
        self.fewest = required_in_time_queries(0, share, 1 - self._error)
        self._next, self._looks = float(self.fewest), 0
        self._late: list[int] = []
        self._begin: int | None = None
        self.held: bool | None = None

    def __call__(self, scheduled: Sequence[int], ended: int) -> bool:
        """Note a batch, ns: when its queries were to come, and its end; whether the verdict is
        sure.
        """
        late = self._late[-1] if self._late else 0
        for due in scheduled:
            late += ended - due > self._latency
            self._late.append(late)
        self._begin = scheduled[0] if self._begin is None else self._begin
        if (
            scheduled[-1] - self._begin < max(_LEAST, _LIMITS * self._latency)
            or len(self._late) < self._next
        ):
            return False
        self._next = _GROWTH * len(self._late)
        return self.look() is not None

    def look(self) -> bool | None:
        """The verdict; None where neither is sure, or where it was looked at too often."""
        if self.held is None and self._looks < LOOKS:
            self._looks += 1
            self.held = verdict(self._late, self._share, self._error)
        return self.held


#: A search begins at this share of what the model can do at most, and gives up at this one.
_FIRST = 0.5
_LOWEST = 1e-3
#: Where nothing has held yet, and where nothing has failed yet, the next rate is so many times the
#: last.
_DOWN = 0.4
_UP = 1.6
#: Runs of full length that may fail.
_RUNS = 4


@dataclass
class PeakSearch:
    """The rate of the last run of full length, queries/s, None where there was none; that run;
    whether the limit held; the lowest rate that failed.
    """

    rate: float | None = None
    run: Any = None
    held: bool = False
    high: float = math.inf


def find_peak(
    probe: Callable[[float], bool],
    run: Callable[[float], tuple[bool, Any]],
    capacity: float,
    precision: float,
    has_time: Callable[[float], bool],
) -> PeakSearch:
    """Search from half of `capacity` (queries/s) until what held and what failed differ by a share
    `precision`. `probe(rate)` says whether the limit held, `run(rate)` the same of a run of full
    length, with the run. `has_time(rate)`: whether another probe leaves enough time for the run.
    """
    found = PeakSearch()
    passed = [0.0]
    for number in range(_RUNS):
        low = max(rate for rate in passed if rate < found.high)
        while (not low or found.high > low * (1 + precision)) and has_time(
            rate := _next(low, found.high, capacity)
        ):
            if rate < _LOWEST * capacity:
                return found
            if probe(rate):
                passed.append(rate)
            else:
                found.high = rate
            low = max(rate for rate in passed if rate < found.high)
        if not low or (found.run is not None and not has_time(low)):
            return found
        found.rate = low
        found.held, found.run = run(low)
        if found.held:
            return found
        # Probes are shorter, and will say again that it holds nearby: step down, further each time.
        found.high = low / (1 + precision) ** 2**number
    return found


def _next(low: float, high: float, capacity: float) -> float:
    """The rate to be tried next: `low` held, or is 0, `high` failed, or is infinite."""
    if not low:
        return high * _DOWN if high < math.inf else capacity * _FIRST
    return math.sqrt(low * high) if high < math.inf else low * _UP


#: Runs of a single query that say what it takes alone, and for how long they may go on.
_SINGLE_RUNS = 30
_SINGLE_SECONDS = 2.0


def measure_served(run: PointRun, scenario: QueryScenario) -> None:
    """A step as any other's, then the point's scenario asks; what it gave is in the answer, however
    it ends.
    """
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.step import measure_step

    point = run.request
    steps = list[Any]()
    batches = scenario.batches(point["batch_size"])
    counts = list(batches)

    def beside(workload: Any, step: Step) -> Callable[[Any], None]:
        for size in list(batches.values())[:-1]:
            steps.append(
                run.framework.make_step(
                    workload, synthetic_batch(workload, size, point["seed"]), point
                )
            )
            compile_steps(steps[-1])
        steps.append(step)
        return lambda _: _ask(
            run, scenario, lambda count: steps[bisect.bisect_left(counts, count)].run(1), counts[-1]
        )

    measure_step(run, beside)


def _ask(
    run: PointRun, scenario: QueryScenario, serve_queries: Callable[[int], object], batch: int
) -> None:
    watch = ContentionMonitor()
    with run.phases("load"):
        until = time.perf_counter_ns() + int(_SINGLE_SECONDS * 1e9)
        alone = serve_closed(
            serve_queries, time.perf_counter_ns, _SINGLE_RUNS, 0.0, 0, until
        ).log.latencies()
        service = Service(
            serve_queries, batch, batch / run.step_seconds(), statistics.median(alone) / 1e9
        )
        watch.start()
        try:
            run.note(work=measure_load(scenario, service, run.seconds_left, run.meter()))
        except NotServed as unserved:
            run.note(work=unserved.load)
            raise
        finally:
            watch.stop()
            run.note_contention("load", watch.seen)
