"""Issue the queries of a scenario to a model, and measure how the model serves them.

Before the first query of scenario=server, the worker compiles a program for each power of two up to
the largest batch, and one for the largest batch. A batch of another size is padded to the next
compiled size. A single program with a variable batch size would differ from the program of the
timed step.
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

#: Maximum delay with which the generator may issue queries: the larger of this fraction of the
#: latency and this time in ns. Delay and latency are compared at the scenario's percentile.
_MAX_DELAY_FRACTION = 0.1
_MAX_DELAY_NS = 1_000_000
#: A run ends with outcome "overload" if a query waits longer than this multiple of the latency
#: limit and longer than this time in seconds.
_PATIENCE_LIMITS = 20
_PATIENCE_SECONDS = 10.0
#: As in LoadGen, scenario=offline issues this factor times the number of queries that the model is
#: expected to serve in min_seconds.
OFFLINE_SLACK = 1.1
#: Maximum duration of a probe in seconds, unless its verdict needs more queries.
_PROBE_SECONDS = 60.0
#: Assumed time to start and end a run, in seconds.
_OVERHEAD_SECONDS = 5.0
#: A load ends this number of seconds before the time limit of the point, so that the results can
#: still be sent to the driver.
_RESERVE_SECONDS = 1.0
#: Number of queries with which the time of a single query is measured, and the limit in seconds for
#: all of them together.
_SINGLE_RUNS = 30
_SINGLE_SECONDS = 2.0


class Arrivals(Protocol):
    """A source of queries with the methods of `QueryGenerator` that `serve` calls."""

    @property
    def ended(self) -> bool: ...

    def take(self) -> list[tuple[int, int]]: ...

    def wait(self, until: int | None) -> None: ...


@dataclass(frozen=True)
class ServedQueries:
    """The queries of one run of a load, and how the run ended.

    Attributes:
        log: The served queries, in the order of the schedule.
        waiting: Number of queries that were still waiting when the run ended.
        outcome: "ok"; "overload" if a query waited too long; "timeout" if the time limit
            was reached before all queries were served.
        problem: Why the requested load was not served as scheduled; None if it was.
        joules: Energy during the run in J; None if it is not measured.
    """

    log: QueryLog
    waiting: int = 0
    outcome: str = "ok"
    problem: str | None = None
    joules: float | None = None

    def with_result(self, load: str, joules: float | None) -> ServedQueries:
        """Return a copy with the energy, and with a problem if the run ended early.

        Args:
            load: The load as text, such as "server.rate=100"; the problem begins with this text.
            joules: Energy during the run in J; None if it is not measured.
        """
        queries = len(self.log)
        seconds = self.log.seconds()
        problem = None
        if self.outcome == "timeout":
            noun = "query" if queries == 1 else "queries"
            problem = (
                f"{load}: measure.timeout ended the load after {queries:,} {noun} in "
                f"{seconds:.1f} s; raise it, or request fewer seconds or queries"
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
    """Serve queries in batches as they arrive, until the source ends.

    Each batch consists of all waiting queries, up to its maximum size.

    Args:
        arrivals: The source of queries.
        run: Serves a given number of queries at once, and returns when they are done.
        clock: Returns the time in ns.
        batch: Maximum number of queries per batch.
        delay: Maximum time that the oldest query waits for others to fill the batch, in ns.
        patience: The run ends with outcome "overload" if a query has waited longer than this, in
            ns.
        until: The run ends with outcome "timeout" at this time of the clock, in ns; None: never.
        is_enough: Called after each batch with the scheduled times of its queries and the end of
            the batch, in ns. The run ends if it returns True. None: the source alone ends the run.
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
    """Serve queries in a closed loop, until both their minimum number and duration are reached.

    Args:
        run: Serves a given number of queries at once, and returns when they are done.
        clock: Returns the time in ns.
        queries: Minimum number of queries.
        seconds: Minimum duration in seconds.
        batch: If 0, each query arrives when the previous one has been answered. Otherwise, all
            queries arrive at the beginning and are served in batches of this size.
        until: The run ends with outcome "timeout" at this time of the clock, in ns.
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
    """Raised if the requested load was not issued on schedule, or not served completely.

    Attributes:
        load: Result of the part of the load that was served.
        outcome: Outcome of the measurement, "timeout" or "overload".
    """

    def __init__(self, reason: str, load: Load, outcome: str) -> None:
        super().__init__(reason)
        self.load = load
        self.outcome = outcome


@dataclass(frozen=True)
class Service:
    """A model that serves queries.

    Attributes:
        run: Function that serves a given number of queries at once, at most `batch`.
        batch: Maximum number of queries that are served at once.
        capacity: Queries per second if every batch is full, the maximum.
        single_seconds: Service time of a single query without other load, in seconds.
    """

    run: Callable[[int], object]
    batch: int
    capacity: float
    single_seconds: float

    def load(self, rate: float | None, served: ServedQueries, probes: list[Probe]) -> Load:
        """Return the result of a load as a message to the driver.

        Args:
            rate: Scheduled queries per second; None without a schedule.
            served: The served queries and the outcome of the run.
            probes: Results of all rates that a search for the highest rate tried; empty if there
                was no search.

        Raises:
            NotServed: If `served` has a problem. The exception contains the same message.
        """
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
    """The methods of a scenario that determine the batch sizes and when queries are issued."""

    def batches(self, largest: int) -> dict[int, int]:
        """Return the batch sizes to compile.

        Args:
            largest: Number of examples in the largest batch.

        Returns:
            The number of examples of each batch by its number of queries.
        """

    def run_load(self, service: Service, until: int, meter: EnergyMeter) -> Load:
        """Issue the queries of the scenario, and return the measured load.

        Args:
            service: The model that serves the queries.
            until: Time of `time.monotonic_ns()` after which no query is started.
            meter: Measures the energy during the load.

        Raises:
            NotServed: If the load was not served completely.
        """


def measure_load(
    scenario: QueryScenario, service: Service, seconds_left: float, meter: EnergyMeter
) -> Load:
    """Serve the queries of a scenario, and return the measured load.

    Args:
        scenario: Determines when queries are issued.
        service: The model that serves the queries.
        seconds_left: Maximum duration in seconds.
        meter: Measures the energy during the load.

    Raises:
        NotServed: If the load was not served completely.
    """
    # Leave time for the last batch, which is served to its end once it has started.
    usable = seconds_left - _RESERVE_SECONDS - service.batch / service.capacity
    return scenario.run_load(service, time.monotonic_ns() + int(usable * 1e9), meter)


class ScheduledRuns:
    """Runs of `scenario=server`, in which a separate process issues queries on a schedule.

    A run serves queries at one rate. A search for the highest rate needs several runs.

    Args:
        settings: The values of the scenario's options by name.
        service: The model that serves the queries.
        until: Time of `time.monotonic_ns()` after which no batch is started.
        meter: Measures the energy of each run.
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
        # Minimum duration in seconds and minimum number of queries, of a full-length run and of a
        # probe.
        self._full_length = (float(settings["min_seconds"]), int(settings["min_queries"]))
        min_queries = 2 * self._monitor().min_queries
        self._probe_length = (min(self._full_length[0], _PROBE_SECONDS), min_queries)
        self._probes: list[Probe] = []

    def load(self) -> Load:
        """Return the load at the requested rate or, with rate=peak, at the highest rate found.

        Raises:
            NotServed: If the queries were not served at the requested rate, or if no rate was shown
                to meet the limit.
        """
        rate = self._settings["rate"]
        if rate != "peak":
            return self._service.load(float(rate), self._run(float(rate), self._full_length), [])
        return self._peak_load()

    def _peak_load(self) -> Load:
        """Search for the highest rate that meets the latency limit, and return its load.

        Raises:
            NotServed: If no rate was shown to meet the limit.
        """
        service = self._service
        settings = self._settings
        alone = service.single_seconds
        limit = f"server.latency_ms={settings['latency_ms']:g}"
        if alone * 1e9 > self._limit:
            problem = (
                f"{limit}: a single query takes {alone * 1e3:.3g} ms, which exceeds the limit; "
                "raise the limit, or choose a smaller model"
            )
            return service.load(None, ServedQueries(QueryLog(), problem=problem), [])
        search = find_peak(
            probe=self._probe,
            run_full_length=self._full_run,
            capacity=service.capacity,
            precision=settings["precision"],
            has_time=self._has_time,
        )
        run: ServedQueries = search.result or ServedQueries(QueryLog())
        if not search.held and run.outcome != "timeout":
            reason = self._failure_reason(limit, run.problem)
            run = replace(run, problem=f"server.rate=peak: {reason}")
        return service.load(search.rate, run, self._probes)

    def _failure_reason(self, limit: str, last_problem: str | None) -> str:
        """Return the reason why the search for the highest rate found no rate.

        Args:
            limit: The latency limit as text, such as "server.latency_ms=15".
            last_problem: Problem of the last full-length run; None if it had none.
        """
        if not self._probes:
            return (
                "measure.timeout leaves no time for a search; raise it, or lower server.min_seconds"
            )
        lowest = min(probe.rate for probe in self._probes)
        alone = self._service.single_seconds * 1e3
        reason = (
            f"the search confirmed no rate that meets {limit} at "
            f"p{self._settings['percentile']:g}; it tried rates down to {lowest:.3g}/s, and one "
            f"query alone takes {alone:.3g} ms"
        )
        if last_problem:
            reason += f"; the last full-length run failed: {last_problem}"
        return reason

    def _has_time(self, rate: float) -> bool:
        """Return whether the remaining time suffices for a probe and a full-length run at a rate.

        Args:
            rate: Mean queries per second.
        """
        needed = sum(
            max(seconds, queries / rate) + _OVERHEAD_SECONDS
            for seconds, queries in (self._probe_length, self._full_length)
        )
        return time.monotonic() + needed < self._until / 1e9

    def _monitor(self) -> LimitMonitor:
        return LimitMonitor(self._limit, self._share, self._settings["confidence"])

    def _probe(self, rate: float) -> bool:
        """Run a probe: a short run that ends as soon as its verdict is certain.

        Args:
            rate: Mean queries per second.

        Returns:
            Whether the probe shows that queries at this rate meet the latency limit.
        """
        monitor = self._monitor()
        served = self._run(rate, self._probe_length, monitor)
        is_met = None if served.problem else monitor.look()
        self._add_probe(rate, served, is_met=is_met)
        return self._probes[-1].held is True

    def _full_run(self, rate: float) -> tuple[bool, ServedQueries]:
        """Run a full-length run at a rate, and add it to the probes.

        Args:
            rate: Mean queries per second.

        Returns:
            Whether it shows that queries at this rate meet the latency limit; and the run.
        """
        served = self._run(rate, self._full_length)
        error = 1 - self._settings["confidence"]
        is_met = verdict(self._cumulative_late(served.log), self._share, error)
        self._add_probe(rate, served, is_met=is_met)
        return self._probes[-1].held is True, served

    def _cumulative_late(self, log: QueryLog) -> list[int]:
        """Return, for each query, the number of late queries up to and including it.

        Args:
            log: The served queries.
        """
        return list(accumulate(latency > self._limit for latency in log.latencies()))

    def _add_probe(self, rate: float, served: ServedQueries, *, is_met: bool | None) -> None:
        """Add the result of a run to the list of probes, the rates that were tried.

        Args:
            rate: Scheduled queries per second.
            served: The run. If it has a problem, it counts as a run that missed the limit.
            is_met: Whether the latency limit was met; None if there are too few queries to decide.
        """
        latencies = served.log.latencies()
        probe = Probe(
            rate=rate,
            queries=len(latencies),
            late=self._cumulative_late(served.log)[-1] if latencies else 0,
            seconds=served.log.seconds(),
            latency=percentile(latencies, self._share) / 1e9 if latencies else 0.0,
            held=False if served.problem else is_met,
            reason=served.problem,
        )
        self._probes.append(probe)

    def _run(
        self, rate: float, length: tuple[float, int], monitor: LimitMonitor | None = None
    ) -> ServedQueries:
        """Serve queries that arrive at a rate, and return the run.

        Args:
            rate: Mean queries per second.
            length: Minimum duration in seconds, and minimum number of queries.
            monitor: Ends the run once its verdict is certain; None for a run of full length.
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
            served = served.with_result(f"server.rate={rate:g}", self._meter.joules())
        if served.problem:
            return served
        return replace(served, problem=self._delay_reason(served.log, rate))

    def _delay_reason(self, log: QueryLog, rate: float) -> str | None:
        """Check whether the generator issued the queries of a run on time.

        Args:
            log: The served queries.
            rate: Scheduled queries per second.

        Returns:
            A problem if they were issued too late; None if the generator was punctual.
        """
        if not log:
            return None
        delay = percentile(log.delays(), self._share)
        latency = percentile(log.latencies(), self._share)
        if delay <= max(_MAX_DELAY_NS, _MAX_DELAY_FRACTION * latency):
            return None
        return (
            f"server.rate={rate:g}: the load generator could not keep up (at p"
            f"{100 * self._share:g}, its delay is {delay / 1e6:.3g} ms and the latency "
            f"{latency / 1e6:.3g} ms); leave it a core with platform.cores, or lower the rate"
        )


#: Maximum number of interim looks at a probe, that is, evaluations before all queries are served.
#: The number of queries grows by the factor _GROWTH from one look to the next.
LOOKS = 10
_GROWTH = 1.5
#: Minimum duration of a probe: the larger of this multiple of the latency limit and this time in
#: ns.
_MIN_LIMITS = 20
_MIN_DURATION_NS = 2_000_000_000


class LimitMonitor:
    """Ends a short run once it is certain whether a share of all queries meets a latency limit.

    The verdict is sought in at most `LOOKS` interim evaluations (looks). The probability of a false
    verdict is divided equally among them. The first look is late enough to detect a growing queue.
    If queries arrive twice as fast as they are served, the waiting time reaches the latency limit L
    after a time of 2 L. If they arrive 5% too fast, it reaches L after a time of about 20 L.

    Args:
        latency: The latency limit, in ns.
        share: Fraction (0..1) of the queries that must meet the limit.
        confidence: Confidence (0..1) of the verdict.

    Attributes:
        min_queries: Number of queries that suffice to show that the limit is met, if all of them
            are in time.
        is_met: The verdict; None while it is uncertain.
    """

    def __init__(self, latency: int, share: float, confidence: float) -> None:
        self._latency = latency
        self._share = share
        self._error = (1 - confidence) / LOOKS
        self.min_queries = required_in_time_queries(0, share, 1 - self._error)
        self._next_look = float(self.min_queries)
        self._looks = 0
        self._cumulative_late: list[int] = []
        self._begin: int | None = None
        self.is_met: bool | None = None

    def __call__(self, scheduled: Sequence[int], ended: int) -> bool:
        """Add a batch of served queries, and return whether the verdict is certain.

        Args:
            scheduled: When the queries of the batch were due, in ns.
            ended: When the batch ended, in ns.
        """
        late = self._cumulative_late[-1] if self._cumulative_late else 0
        for due in scheduled:
            if ended - due > self._latency:
                late += 1
            self._cumulative_late.append(late)
        if self._begin is None:
            self._begin = scheduled[0]
        min_duration = max(_MIN_DURATION_NS, _MIN_LIMITS * self._latency)
        is_short = scheduled[-1] - self._begin < min_duration
        if is_short or len(self._cumulative_late) < self._next_look:
            return False
        self._next_look = _GROWTH * len(self._cumulative_late)
        return self.look() is not None

    def look(self) -> bool | None:
        """Evaluate the queries so far and return whether they meet the latency limit.

        After `LOOKS` evaluations, the verdict no longer changes.

        Returns:
            Whether the limit is met; None if that is uncertain.
        """
        if self.is_met is None and self._looks < LOOKS:
            self._looks += 1
            self.is_met = verdict(self._cumulative_late, self._share, self._error)
        return self.is_met


def measure_served(run: PointRun, scenario: QueryScenario) -> None:
    """Time the steps of a model, then measure it under the load of a scenario.

    The load is reported to the driver even if it was not served completely.

    Args:
        run: Context of the measurement in the worker; it collects the results.
        scenario: Determines the batch sizes and when queries are issued.

    Raises:
        NotServed: If the load was not served completely.
    """
    from paradnn.worker.measure import compile_steps
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.step import measure_step

    point = run.request
    batches = scenario.batches(point["batch_size"])
    query_counts = list(batches)
    steps: list[Any] = []

    def run_queries(count: int) -> None:
        """Run the program of the smallest compiled batch with at least `count` queries."""
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
    """Measure single queries, then the load; record the load and the contention for cores.

    Args:
        run: Context of the measurement in the worker; it collects the results.
        scenario: Determines when queries are issued.
        run_queries: Serves a given number of queries at once.
        batch: Maximum number of queries that are served at once.
    """
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
        except NotServed as error:
            run.note(work=error.load)
            raise
        finally:
            monitor.stop()
            run.note_contention("load", monitor.seen)
