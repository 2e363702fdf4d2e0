"""One scenario on a model: who asks, how it is served, what comes of it. What is served is a function of how many.

The highest rate at which a limit holds is found by bisection over probes, then a run of full length at what it found; a
probe that is undecided at its end counts as failed. Where the full run does not hold the limit, which has more time to
go wrong, the search goes on below it.

A server has compiled powers of two up to its largest batch, before the first query; a batch between two is padded. No
shape is left open: a program of open shapes is another one than the one that is timed.
"""

from __future__ import annotations

import bisect
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from paradnn.worker.errors import Ended
from paradnn.worker.meters import ContentionWatch
from paradnn.worker.single_steps import compile_steps
from paradnn.workloads.serve.limit import Limit, LimitWatch
from paradnn.workloads.serve.queries import Load, Probe, QueryLog
from paradnn.workloads.serve.server import AllAtOnce, Arrivals, Generated, OneByOne, Policy, serve

if TYPE_CHECKING:
    from paradnn.worker.frameworks import Step
    from paradnn.worker.meters import EnergyMeter
    from paradnn.worker.point import PointRun

#: At the percentile that a scenario is about, a generator may be late by this share of the latency, or by so many ns.
_LATE_SHARE, _LATE_ALWAYS = 0.1, 1_000_000
#: A query that has waited for so many times the limit, and for so many seconds, ends a run.
_PATIENCE, _PATIENCE_SECONDS = 20, 10.0
#: Offline, LoadGen asks for so much more than what the model is expected to do in the time.
OFFLINE_SLACK = 1.1
#: A probe lasts no longer than this unless its verdict needs it; starting and ending a run takes so long at most.
_PROBE_SECONDS, _AROUND_SECONDS = 60.0, 5.0
#: What is left of the time when a load is ended: for its queries to reach the driver.
_LEFT_SECONDS = 1.0

Number = TypeVar("Number", int, float)


class NotServed(Ended):
    """What was asked for did not all come or was not all served; `load` is what was measured of it.

    outcome: "overload", or "timeout" where `measure.timeout` would have ended the process with queries yet to come.
    """

    def __init__(self, reason: str, load: Load, outcome: str = "overload") -> None:
        super().__init__(reason)
        self.load, self.outcome = load, outcome


@dataclass(frozen=True)
class _Run:
    """What was served, why it was not what was asked for, whether that is since the time was up; energy in J."""

    log: QueryLog
    problem: str | None = None
    cut: bool = False
    joules: float | None = None


@dataclass(frozen=True)
class Service:
    """A model that serves: `run(queries)` so many at once, up to `batch`, of which it does `capacity` a second at most.

    single_seconds: what one takes alone.
    """

    run: Callable[[int], object]
    batch: int
    capacity: float
    single_seconds: float


def measure_load(
    scenario: str, settings: Mapping[str, Any], service: Service, seconds_left: float, meter: EnergyMeter
) -> Load:
    """Let `scenario` ask, with the keys of its group, for `seconds_left` at most. Raises NotServed."""
    clock = time.monotonic_ns
    # A batch that has begun is served.
    usable = seconds_left - _LEFT_SECONDS - service.batch / service.capacity
    until = clock() + int(usable * 1e9)
    if scenario == "server":
        runs = _ScheduledRuns(settings, service, until, meter)
        return runs.peak() if settings["rate"] == "peak" else runs.single(float(settings["rate"]))
    arrivals: Arrivals = OneByOne(clock, settings["min_seconds"], settings["min_queries"])
    if scenario == "offline":
        expected = int(OFFLINE_SLACK * settings["min_seconds"] * service.capacity)
        arrivals = AllAtOnce(clock, max(settings["min_queries"], expected))
    meter.start()
    served = serve(arrivals, service.run, Policy(service.batch, until=until), clock)
    load = Load(None, service.single_seconds, served.log.packed(), [], meter.joules())
    if served.cut:
        raise NotServed(_cut_reason(f"scenario={scenario}", served.log), load, "timeout")
    return load


def _cut_reason(what: str, log: QueryLog) -> str:
    words = f"{what}: measure.timeout left time for {len(log):,} queries in {log.seconds():.1f} s"
    return f"{words}; raise it, or ask for fewer seconds or queries"


def percentile(values: Sequence[Number], share: float) -> Number:
    """The value that LoadGen reports: of n in order the one at place n x share, from 0."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def late_reason(log: QueryLog, share: float, rate: float) -> str | None:
    """Why queries did not come as scheduled at `rate`; None where they did."""
    if not log:
        return None
    late = percentile([issued - due for due, issued in zip(log.scheduled, log.issued, strict=True)], share)
    latency = percentile(log.latencies(), share)
    if late <= max(_LATE_ALWAYS, _LATE_SHARE * latency):
        return None
    return (
        f"server.rate={rate:g}: the load generator could not keep up: {late / 1e6:.3g} ms late at p{100 * share:g}, "
        f"where the latency is {latency / 1e6:.3g} ms; leave it a core (platform.cores), or ask for less"
    )


class _ScheduledRuns:
    """Runs of `scenario=server`, each with a generator of its own."""

    def __init__(self, settings: Mapping[str, Any], service: Service, until: int, meter: EnergyMeter) -> None:
        self._settings, self._service, self._until, self._meter = settings, service, until, meter
        self._seconds, self._queries = float(settings["min_seconds"]), int(settings["min_queries"])
        self._limit = Limit(int(settings["latency_ms"] * 1e6), settings["percentile"] / 100, settings["confidence"])
        patience = max(_PATIENCE * self._limit.latency, int(_PATIENCE_SECONDS * 1e9))
        delay = int(settings["delay_ms"] * 1e6)
        self._policy = Policy(service.batch, delay, patience, until)
        self._probe_seconds = min(self._seconds, _PROBE_SECONDS)
        self._probe_queries = 2 * self._limit.fewest
        self._probes: list[Probe] = []

    def single(self, rate: float) -> Load:
        """At one rate. Raises NotServed."""
        return self._checked(rate, self._run(rate, self._seconds, self._queries))

    def peak(self) -> Load:
        """At the highest rate that holds the limit. Raises NotServed."""
        alone = self._service.single_seconds
        if alone * 1e9 > self._limit.latency:
            reason = f"server.latency_ms={self._settings['latency_ms']:g}: even a single query takes longer"
            reason += f": {alone * 1e3:.3g} ms; raise the limit, or choose a smaller model"
            return self._checked(None, _Run(QueryLog(), reason))
        found = find_peak(self._probe, self._full, self._service.capacity, self._settings["precision"], self._has_time)
        run = found.run or _Run(QueryLog())
        if not found.held and not run.cut:
            run = replace(run, problem=f"server.rate=peak: {self._nothing(run.problem)}")
        return self._checked(found.rate, run)

    def _nothing(self, problem: str | None) -> str:
        """Why the search found no rate; `problem` is what the last run of full length lacked, if there was one."""
        if not self._probes:
            return "measure.timeout leaves no time to search; raise it, or ask for fewer server.min_seconds"
        wanted = f"{self._settings['latency_ms']:g} ms at p{self._settings['percentile']:g}"
        lowest, alone = min(probe.rate for probe in self._probes), self._service.single_seconds * 1e3
        found = f"no rate was shown to hold {wanted}, down to {lowest:.3g}/s; one query alone takes {alone:.3g} ms"
        return found + (f"; the last run of full length: {problem}" if problem else "")

    def _has_time(self, rate: float) -> bool:
        """Whether there is time for another probe and the run of full length, as long as they may take."""
        probe = max(self._probe_seconds, self._probe_queries / rate)
        needed = probe + max(self._seconds, self._queries / rate) + 2 * _AROUND_SECONDS
        return time.monotonic() + needed < self._until / 1e9

    def _probe(self, rate: float) -> bool:
        watch = LimitWatch(self._limit)
        run = self._run(rate, self._probe_seconds, self._probe_queries, watch)
        return self._note(rate, run, False if run.problem else watch.look())

    def _full(self, rate: float) -> tuple[bool, _Run]:
        run = self._run(rate, self._seconds, self._queries)
        held = False if run.problem else self._limit.verdict(run.log.latencies())
        return self._note(rate, run, held), run

    def _note(self, rate: float, run: _Run, held: bool | None) -> bool:
        """Keep a probe; whether it held."""
        log, latencies = run.log, run.log.latencies()
        late = sum(latency > self._limit.latency for latency in latencies)
        latency = percentile(latencies, self._limit.share) / 1e9 if latencies else 0.0
        self._probes.append(Probe(rate, len(log), late, log.seconds(), latency, held, run.problem))
        return held is True

    def _run(self, rate: float, seconds: float, queries: int, watch: LimitWatch | None = None) -> _Run:
        """What was served at `rate`, and why it was not what was asked for."""
        with Generated(rate, self._settings["seed"], seconds, queries) as arrivals:
            arrivals.begin()
            self._meter.start()
            served = serve(arrivals, self._service.run, self._policy, time.monotonic_ns, watch)
            joules = self._meter.joules()
        log = served.log
        if served.cut:
            return _Run(log, _cut_reason(f"server.rate={rate:g}", log), True, joules)
        if not served.overloaded:
            return _Run(log, late_reason(log, self._limit.share, rate), joules=joules)
        done = len(log) / log.seconds() if log else 0.0
        problem = (
            f"server.rate={rate:g}: queries come faster than they are served: {done:,.1f} a second were, and after "
            f"{log.seconds():.1f} s {served.waiting:,} waited"
        )
        return _Run(log, problem, joules=joules)

    def _checked(self, rate: float | None, run: _Run) -> Load:
        """The load; raises NotServed with it where there was a problem."""
        load = Load(rate, self._service.single_seconds, run.log.packed(), self._probes, run.joules)
        if run.problem:
            raise NotServed(run.problem, load, "timeout" if run.cut else "overload")
        return load


#: The search begins at this share of what the model can do at most, and gives up at this one.
_FIRST, _LOWEST = 0.5, 1e-3
#: Where nothing has held yet, and where nothing has failed yet, the next rate is so many times the last.
_DOWN, _UP = 0.4, 1.6
#: Runs of full length that may fail.
_RUNS = 4


@dataclass
class Found:
    """The rate of the last run of full length, queries/s, None where there was none; that run; whether the limit held;
    the lowest rate that failed."""

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
) -> Found:
    """Search from half of `capacity` (queries/s) until what held and what failed differ by a share `precision`.

    `probe(rate)` says whether the limit held, `run(rate)` the same of a run of full length, with the run.
    `has_time(rate)`: whether another probe leaves enough time for the run.
    """
    found, passed = Found(), [0.0]
    for number in range(_RUNS):
        low = max(rate for rate in passed if rate < found.high)
        while (not low or found.high > low * (1 + precision)) and has_time(rate := _next(low, found.high, capacity)):
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
_SINGLE_RUNS, _SINGLE_SECONDS = 30, 2.0


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4 and so on, and the largest."""
    return sorted({largest} | {2**power for power in range(largest.bit_length()) if 2**power < largest})


def _single_seconds(run: Callable[[int], object]) -> float:
    """The median of a query that comes alone."""
    seconds: list[float] = []
    end = time.perf_counter() + _SINGLE_SECONDS
    while len(seconds) < _SINGLE_RUNS and (not seconds or time.perf_counter() < end):
        start = time.perf_counter()
        run(1)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_served(run: PointRun) -> None:
    """A step as any other's, then the point's scenario asks; what it gave is in the answer, however it ends.

    A query of a stream is the whole batch; offline, all batches but the last are full, and that one is padded.
    """
    from paradnn.worker.step import synthetic_batch
    from paradnn.workloads.step import measure_step

    point, steps = run.request, list[Any]()
    largest, scenario = point["batch_size"], point["scenario"]
    sizes = batch_sizes(largest) if scenario == "server" else [largest]

    def beside(workload: Any, step: Step) -> Callable[[Any], None]:
        for size in sizes[:-1]:
            steps.append(run.framework.make_step(workload, synthetic_batch(workload, size, point["seed"]), point))
            compile_steps(steps[-1])
        steps.append(step)
        counts = [1] if scenario in ("single_stream", "multi_stream") else sizes
        return lambda _: _ask(run, lambda queries: steps[bisect.bisect_left(counts, queries)].run(1), counts[-1])

    measure_step(run, beside)


def _ask(run: PointRun, serve_queries: Callable[[int], object], batch: int) -> None:
    scenario, watch = run.request["scenario"], ContentionWatch()
    with run.phases("load"):
        service = Service(serve_queries, batch, batch / run.step_seconds(), _single_seconds(serve_queries))
        watch.start()
        try:
            run.note(work=measure_load(scenario, run.request[scenario], service, run.seconds_left, run.meter()))
        except NotServed as unserved:
            run.note(work=unserved.load)
            raise
        finally:
            watch.stop()
            run.note_contention("load", watch.seen)
