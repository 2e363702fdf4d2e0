"""Put the load of a scenario on a model, and measure how it is served.

A server compiles batches of all powers of two up to its largest batch before the first query. A
batch between two of them is padded: a program with open shapes would not be the one that is timed.
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
from paradnn.worker.chance import required_in_time_queries
from paradnn.worker.contention import ContentionMonitor
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.peak_search import Probe, find_peak, percentile, verdict
from paradnn.workloads.serve.generator import QueryGenerator
from paradnn.workloads.serve.queries import Load, QueryLog

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Step
    from paradnn.worker.point import PointRun

#: At the percentile of the limit, a generator may be late by this fraction of the latency, or by
#: this time in ns.
_MAX_DELAY_FRACTION = 0.1
_MAX_DELAY = 1_000_000
#: A query that waits for this multiple of the limit, and for this time, ends a run.
_PATIENCE_LIMITS = 20
_PATIENCE_SECONDS = 10.0
#: LoadGen's offline scenario issues this multiple of the queries that the model is expected to
#: serve in the time.
OFFLINE_SLACK = 1.1
#: Maximum duration of a probe, unless its verdict needs more queries; and the time to start and
#: end a run.
_PROBE_SECONDS = 60.0
_OVERHEAD_SECONDS = 5.0
#: Time that is left when a load is ended, so that its queries reach the driver.
_RESERVE_SECONDS = 1.0
#: Single queries that determine the time of one query alone, and the time limit for them.
_SINGLE_RUNS = 30
_SINGLE_SECONDS = 2.0


class Arrivals(Protocol):
    """A source of queries, such as `QueryGenerator`."""

    @property
    def ended(self) -> bool: ...

    def take(self) -> list[tuple[int, int]]: ...

    def wait(self, until: int | None) -> None: ...


@dataclass(frozen=True)
class ServedQueries:
    """The queries of one run.

    Attributes:
        log: The served queries, in the order of the schedule.
        waiting: Number of queries that waited at the end.
        outcome: "ok"; "overload" if a query waited for too long; "timeout" if queries were left
            when the time was up.
        problem: Why the load was not the requested one; None if it was.
        joules: Energy during the run; None if nothing counts it.
    """

    log: QueryLog
    waiting: int = 0
    outcome: str = "ok"
    problem: str | None = None
    joules: float | None = None

    def explained(self, load: str, joules: float | None) -> ServedQueries:
        """Return the run with its energy, and with the reason if `load` ended early."""
        queries = len(self.log)
        seconds = self.log.seconds()
        problem = None
        if self.outcome == "timeout":
            problem = (
                f"{load}: measure.timeout left time for {queries:,} queries in {seconds:.1f} s; "
                "raise it, or request fewer seconds or queries"
            )
        elif self.outcome == "overload":
            rate = queries / (seconds or math.inf)
            problem = (
                f"{load}: queries arrive faster than they are served: {rate:,.1f} per second were "
                f"served, and {self.waiting:,} waited after {seconds:.1f} s"
            )
        return replace(self, problem=problem, joules=joules)


def serve(
    arrivals: Arrivals,
    run: Callable[[int], object],
    clock: Callable[[], int],
    batch: int,
    *,
    delay: int = 0,
    patience: float = math.inf,
    until: int | None = None,
    is_enough: Callable[[list[int], int], bool] | None = None,
) -> ServedQueries:
    """Serve queries as they arrive.

    A free server takes all waiting queries, up to a batch. It ends when no further query comes.

    Args:
        arrivals: The source of queries.
        run: Serves a number of queries at once, and returns when they are done.
        clock: Returns the time in ns.
        batch: Maximum number of queries at once.
        delay: Maximum time to wait for more queries than the oldest, in ns.
        patience: End when a query has waited for this time, in ns.
        until: Start no batch when the clock shows this time, in ns.
        is_enough: Called after each batch with the scheduled times of its queries and its end, in
            ns; the run ends if it returns True.
    """
    log = QueryLog()
    queue: deque[tuple[int, int]] = deque()
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
        if is_enough and is_enough([scheduled for scheduled, _ in taken], ended):
            return ServedQueries(log)


def serve_closed(
    run: Callable[[int], object],
    clock: Callable[[], int],
    *,
    queries: int,
    seconds: float,
    batch: int,
    until: int,
) -> ServedQueries:
    """Serve queries in a closed loop, until both minimums are reached.

    Args:
        run: Serves a number of queries at once, and returns when they are done.
        clock: Returns the time in ns.
        queries: Minimum number of queries.
        seconds: Minimum duration.
        batch: 0: each query arrives when the one before it was answered. Otherwise all queries
            arrive at the beginning, and this number is served at once.
        until: Start no batch when the clock shows this time, in ns.
    """
    log = QueryLog()
    begin = clock()
    while len(log) < queries or clock() < begin + seconds * 1e9:
        now = clock()
        if now >= until:
            return ServedQueries(log, outcome="timeout")
        count = max(1, min(batch, queries - len(log)))
        run(count)
        arrived = begin if batch else now
        log.add([(arrived, arrived)] * count, now, clock())
    return ServedQueries(log)


class NotServed(PointEnded):
    """The requested load did not arrive or was not served; `load` is the measured part."""

    def __init__(self, reason: str, load: Load, outcome: str) -> None:
        super().__init__(reason)
        self.load = load
        self.outcome = outcome


@dataclass(frozen=True)
class Service:
    """A model that serves queries.

    Attributes:
        run: Serves a number of queries at once, up to `batch`.
        batch: Maximum number of queries at once.
        capacity: Maximum queries per second.
        single_seconds: Time that one query takes alone.
    """

    run: Callable[[int], object]
    batch: int
    capacity: float
    single_seconds: float

    def load(self, rate: float | None, served: ServedQueries, probes: list[Probe]) -> Load:
        """Return the result as a message; raises NotServed, which holds it, if it has a problem."""
        load = Load(
            rate=rate,
            single_seconds=self.single_seconds,
            queries=served.log.packed(),
            probes=probes,
            joules=served.joules,
        )
        if served.problem:
            outcome = "timeout" if served.outcome == "timeout" else "overload"
            raise NotServed(served.problem, load, outcome)
        return load


class QueryScenario(Protocol):
    """The part of a scenario that decides how queries become batches, and when they are issued."""

    def batches(self, largest: int) -> dict[int, int]:
        """Return the batches to compile: for the number of queries, the number of examples."""

    def run_load(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        """Issue queries until the monotonic clock shows `until` (ns) at most; raises NotServed."""


def measure_load(
    scenario: QueryScenario, service: Service, seconds_left: float, meter: EnergyMeter
) -> Load:
    """Put the load of a scenario on a service, for `seconds_left` at most; raises NotServed."""
    # A batch that has started is served to its end.
    usable = seconds_left - _RESERVE_SECONDS - service.batch / service.capacity
    return scenario.run_load(service, time.monotonic_ns() + int(usable * 1e9), meter)


class ScheduledRuns:
    """Runs of `scenario=server`, each with its own generator.

    Args:
        settings: The options of the scenario.
        service: The model.
        until: Start no batch when the clock shows this time, in ns.
        meter: Counts the energy.
    """

    def __init__(
        self, settings: Mapping[str, Any], service: Service, until: int, meter: EnergyMeter
    ) -> None:
        self._settings = settings
        self._service = service
        self._until = until
        self._meter = meter
        self._limit = int(settings["latency_ms"] * 1e6)
        self._share = settings["percentile"] / 100
        # Minimum seconds and queries of a run of full length and of a probe.
        self._full = (float(settings["min_seconds"]), int(settings["min_queries"]))
        min_queries = 2 * self._monitor().min_queries
        self._short = (min(self._full[0], _PROBE_SECONDS), min_queries)
        self._probes: list[Probe] = []

    def load(self) -> Load:
        """Return the load at the requested rate, or at the highest that meets the limit.

        Raises:
            NotServed: If the rate was not served, or no rate was shown to meet the limit.
        """
        rate = self._settings["rate"]
        if rate != "peak":
            return self._service.load(float(rate), self._run(float(rate), self._full), [])
        return self._peak_load()

    def _peak_load(self) -> Load:
        service = self._service
        settings = self._settings
        alone = service.single_seconds
        limit = f"server.latency_ms={settings['latency_ms']:g}"
        if alone * 1e9 > self._limit:
            problem = (
                f"{limit}: a single query takes longer, {alone * 1e3:.3g} ms; raise the limit, "
                "or choose a smaller model"
            )
            return service.load(None, ServedQueries(QueryLog(), problem=problem), [])
        search = find_peak(
            probe=self._probe,
            run=self._full_run,
            capacity=service.capacity,
            precision=settings["precision"],
            has_time=self._has_time,
        )
        run: ServedQueries = search.run or ServedQueries(QueryLog())
        if not search.held and run.outcome != "timeout":
            reason = self._failure_reason(limit, run.problem)
            run = replace(run, problem=f"server.rate=peak: {reason}")
        return service.load(search.rate, run, self._probes)

    def _failure_reason(self, limit: str, last_problem: str | None) -> str:
        """Return why the search found no rate."""
        if not self._probes:
            return "measure.timeout leaves no time to search; raise it, or lower server.min_seconds"
        lowest = min(probe.rate for probe in self._probes)
        alone = self._service.single_seconds * 1e3
        reason = (
            f"no rate was shown to meet {limit} at p{self._settings['percentile']:g}, down to "
            f"{lowest:.3g}/s; one query alone takes {alone:.3g} ms"
        )
        if last_problem:
            reason += f"; the last run of full length: {last_problem}"
        return reason

    def _has_time(self, rate: float) -> bool:
        """Whether another probe at this rate and the run of full length fit into the time."""
        needed = sum(
            max(seconds, queries / rate) + _OVERHEAD_SECONDS
            for seconds, queries in (self._short, self._full)
        )
        return time.monotonic() + needed < self._until / 1e9

    def _monitor(self) -> LimitMonitor:
        return LimitMonitor(self._limit, self._share, self._settings["confidence"])

    def _probe(self, rate: float) -> bool:
        """Return whether a rate met the limit in a short run, which ends once this is certain."""
        monitor = self._monitor()
        served = self._run(rate, self._short, monitor)
        is_met = None if served.problem else monitor.look()
        self._add_probe(rate, served, is_met=is_met)
        return self._probes[-1].held is True

    def _full_run(self, rate: float) -> tuple[bool, ServedQueries]:
        """Return whether a rate met the limit in a run of full length, and the run."""
        served = self._run(rate, self._full)
        error = 1 - self._settings["confidence"]
        self._add_probe(rate, served, is_met=verdict(self._late(served.log), self._share, error))
        return self._probes[-1].held is True, served

    def _late(self, log: QueryLog) -> list[int]:
        """Return the number of late queries up to each query."""
        return list(accumulate(latency > self._limit for latency in log.latencies()))

    def _add_probe(self, rate: float, served: ServedQueries, *, is_met: bool | None) -> None:
        """Add a probe; a run with a problem did not meet the limit."""
        latencies = served.log.latencies()
        probe = Probe(
            rate=rate,
            queries=len(latencies),
            late=self._late(served.log)[-1] if latencies else 0,
            seconds=served.log.seconds(),
            latency=percentile(latencies, self._share) / 1e9 if latencies else 0.0,
            held=False if served.problem else is_met,
            reason=served.problem,
        )
        self._probes.append(probe)

    def _run(
        self, rate: float, length: tuple[float, int], monitor: LimitMonitor | None = None
    ) -> ServedQueries:
        """Serve queries at a rate.

        Args:
            rate: Mean queries per second.
            length: Minimum seconds and queries.
            monitor: Ends the run once its verdict is certain.
        """
        seconds, queries = length
        with QueryGenerator(rate, self._settings["seed"], seconds, queries) as generator:
            generator.begin()
            self._meter.start()
            served = serve(
                generator,
                self._service.run,
                time.monotonic_ns,
                batch=self._service.batch,
                delay=int(self._settings["delay_ms"] * 1e6),
                patience=max(_PATIENCE_LIMITS * self._limit, _PATIENCE_SECONDS * 1e9),
                until=self._until,
                is_enough=monitor,
            )
            served = served.explained(f"server.rate={rate:g}", self._meter.joules())
        if served.problem:
            return served
        return replace(served, problem=self._delay_reason(served.log, rate))

    def _delay_reason(self, log: QueryLog, rate: float) -> str | None:
        """Return why queries did not come on schedule; None if they did."""
        if not log:
            return None
        delay = percentile(log.delays(), self._share)
        latency = percentile(log.latencies(), self._share)
        if delay <= max(_MAX_DELAY, _MAX_DELAY_FRACTION * latency):
            return None
        return (
            f"server.rate={rate:g}: the load generator could not keep up: {delay / 1e6:.3g} ms "
            f"late at p{100 * self._share:g}, where the latency is {latency / 1e6:.3g} ms; "
            "leave it a core (platform.cores), or lower the rate"
        )


#: Maximum number of looks at a probe, and the factor by which its queries grow between two looks.
LOOKS = 10
_GROWTH = 1.5
#: Minimum duration of a probe: this multiple of the limit, and this time in ns.
_MIN_LIMITS = 20
_MIN_DURATION = 2_000_000_000


class LimitMonitor:
    """Ends a probe once it is certain whether a share of all queries meets a limit.

    Every look has its part of the probability of a false verdict. The first look comes when a
    growing queue would show. If queries arrive at twice the rate at which they are served, the wait
    exceeds the limit after twice the limit; with 5% more, after 20 times the limit.

    Args:
        latency: The limit, in ns.
        share: Fraction of the queries that must meet it.
        confidence: Confidence of the verdict.

    Attributes:
        min_queries: Queries after which a probe can meet the limit, if none is late.
        is_met: The verdict; None if it is not certain.
    """

    def __init__(self, latency: int, share: float, confidence: float) -> None:
        self._latency = latency
        self._share = share
        self._error = (1 - confidence) / LOOKS
        self.min_queries = required_in_time_queries(0, share, 1 - self._error)
        self._next_look = float(self.min_queries)
        self._looks = 0
        self._late: list[int] = []
        self._begin: int | None = None
        self.is_met: bool | None = None

    def __call__(self, scheduled: Sequence[int], ended: int) -> bool:
        """Add a batch, and return whether the verdict is certain.

        Args:
            scheduled: When the queries of the batch were due, in ns.
            ended: When the batch ended, in ns.
        """
        late = self._late[-1] if self._late else 0
        for due in scheduled:
            if ended - due > self._latency:
                late += 1
            self._late.append(late)
        if self._begin is None:
            self._begin = scheduled[0]
        is_short = scheduled[-1] - self._begin < max(_MIN_DURATION, _MIN_LIMITS * self._latency)
        if is_short or len(self._late) < self._next_look:
            return False
        self._next_look = _GROWTH * len(self._late)
        return self.look() is not None

    def look(self) -> bool | None:
        """Return the verdict; None if it is not certain, or after too many looks."""
        if self.is_met is None and self._looks < LOOKS:
            self._looks += 1
            self.is_met = verdict(self._late, self._share, self._error)
        return self.is_met


def measure_served(run: PointRun, scenario: QueryScenario) -> None:
    """Measure a step like any other, then put the load of the scenario on it.

    The answer holds the load however it ends.
    """
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.step import measure_step

    point = run.request
    batches = scenario.batches(point["batch_size"])
    query_counts = list(batches)
    steps: list[Any] = []

    def run_queries(count: int) -> None:
        """Run the smallest compiled batch for this number of queries."""
        steps[bisect.bisect_left(query_counts, count)].run(1)

    def compile_batches(workload: Any, step: Step) -> Callable[[Any], None]:
        for size in list(batches.values())[:-1]:
            batch = synthetic_batch(workload, size, point["seed"])
            smaller = run.framework.make_step(workload, batch, point)
            compile_steps(smaller)
            steps.append(smaller)
        steps.append(step)
        return lambda _: _measure_under_load(run, scenario, run_queries, query_counts[-1])

    measure_step(run, compile_batches)


def _measure_under_load(
    run: PointRun, scenario: QueryScenario, run_queries: Callable[[int], object], batch: int
) -> None:
    monitor = ContentionMonitor()
    with run.phases("load"):
        singles = serve_closed(
            run_queries,
            time.perf_counter_ns,
            queries=_SINGLE_RUNS,
            seconds=0.0,
            batch=0,
            until=time.perf_counter_ns() + int(_SINGLE_SECONDS * 1e9),
        )
        service = Service(
            run=run_queries,
            batch=batch,
            capacity=batch / run.step_seconds(),
            single_seconds=statistics.median(singles.log.latencies()) / 1e9,
        )
        monitor.start()
        try:
            run.note(work=measure_load(scenario, service, run.seconds_left, run.energy_meter()))
        except NotServed as unserved:
            run.note(work=unserved.load)
            raise
        finally:
            monitor.stop()
            run.note_contention("load", monitor.seen)
