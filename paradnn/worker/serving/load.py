"""One scenario on a model: who asks, how it is served, what comes of it. What is served is a function of how many."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from paradnn.worker.serving.arrivals import AllAtOnce, Generated, OneByOne
from paradnn.worker.serving.limit import Limit, LimitWatch
from paradnn.worker.serving.messages import Load, Probe
from paradnn.worker.serving.peak import Found, find_peak
from paradnn.worker.serving.queries import QueryLog
from paradnn.worker.serving.server import Arrivals, Policy, Server

__all__ = [
    "OFFLINE_SLACK",
    "Meter",
    "NotServed",
    "OutOfTime",
    "Overload",
    "Service",
    "late_reason",
    "measure_load",
    "percentile",
]

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


class NotServed(Exception):
    """What was asked for did not all come or was not all served; `load` is what was measured of it."""

    def __init__(self, reason: str, load: Load) -> None:
        super().__init__(reason)
        self.load = load


class Overload(NotServed):
    """The load that was asked for could not be issued, or not be served."""


class OutOfTime(NotServed):
    """`measure.timeout` would have ended the process with queries yet to come."""


class Meter(Protocol):
    """Counts energy (`paradnn.worker.energy.EnergyMeter`)."""

    def start(self) -> None:
        """From now on."""

    def joules(self) -> float | None:
        """Since then; None where there is no counter."""


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

    single_seconds: what one takes alone. `prepare()`: what a thread does before it serves, which takes its time.
    """

    run: Callable[[int], object]
    batch: int
    capacity: float
    single_seconds: float
    prepare: Callable[[], object] | None = None


def measure_load(
    scenario: str, settings: Mapping[str, Any], service: Service, seconds_left: float, meter: Meter
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
    server = Server(arrivals, service.run, Policy(service.batch, until=until), clock)
    meter.start()
    log = server.serve()
    load = Load(None, service.single_seconds, log.packed(), [], meter.joules())
    if server.cut:
        raise OutOfTime(_cut_reason(f"scenario={scenario}", log), load)
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

    def __init__(self, settings: Mapping[str, Any], service: Service, until: int, meter: Meter) -> None:
        self._settings, self._service, self._until, self._meter = settings, service, until, meter
        self._seconds, self._queries = float(settings["min_seconds"]), int(settings["min_queries"])
        self._limit = Limit(int(settings["latency_ms"] * 1e6), settings["percentile"] / 100, settings["confidence"])
        patience = max(_PATIENCE * self._limit.latency, int(_PATIENCE_SECONDS * 1e9))
        delay = int(settings["delay_ms"] * 1e6)
        self._policy = Policy(service.batch, delay, settings["instances"], patience, until)
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
        end = self._until / 1e9
        precision, capacity = self._settings["precision"], self._service.capacity
        found: Found[_Run] = find_peak(
            self._probe, self._full, capacity, precision, lambda rate: time.monotonic() + self._needed(rate) < end
        )
        run = found.run or _Run(QueryLog())
        if not found.held and not run.cut:
            run = replace(run, problem=f"server.rate=peak: {self._nothing(found.rate, run.problem)}")
        return self._checked(found.rate, run)

    def _nothing(self, rate: float | None, problem: str | None) -> str:
        """Why the search found no rate; `rate` is that of the last run of full length, `problem` what it lacked."""
        if not self._probes:
            return "measure.timeout leaves no time to search; raise it, or ask for fewer server.min_seconds"
        wanted = f"{self._settings['latency_ms']:g} ms at p{self._settings['percentile']:g}"
        if rate is None:
            lowest, alone = min(probe.rate for probe in self._probes), self._service.single_seconds * 1e3
            return f"no rate was shown to hold {wanted}, down to {lowest:.3g}/s; one query alone takes {alone:.3g} ms"
        last = problem or "too many were late, or too few came to show it"
        return f"no run of full length held {wanted}; the last, at {rate:.4g}/s: {last}"

    def _needed(self, rate: float) -> float:
        """Seconds of another probe and of the run of full length, at most."""
        probe = max(self._probe_seconds, self._probe_queries / rate)
        return probe + max(self._seconds, self._queries / rate) + 2 * _AROUND_SECONDS

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

            def begin() -> None:
                arrivals.begin()
                self._meter.start()

            service, clock = self._service, time.monotonic_ns
            server = Server(arrivals, service.run, self._policy, clock, watch, begin, service.prepare)
            log = server.serve()
            joules = self._meter.joules()
        if server.cut:
            return _Run(log, _cut_reason(f"server.rate={rate:g}", log), True, joules)
        if not server.overloaded:
            return _Run(log, late_reason(log, self._limit.share, rate), joules=joules)
        served = len(log) / log.seconds() if log else 0.0
        problem = (
            f"server.rate={rate:g}: queries come faster than they are served: {served:,.1f} a second were, and after "
            f"{log.seconds():.1f} s {server.waiting:,} waited"
        )
        return _Run(log, problem, joules=joules)

    def _checked(self, rate: float | None, run: _Run) -> Load:
        """The load; raises NotServed with it where there was a problem."""
        load = Load(rate, self._service.single_seconds, run.log.packed(), self._probes, run.joules)
        if run.problem:
            raise (OutOfTime if run.cut else Overload)(run.problem, load)
        return load
