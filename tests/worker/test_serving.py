"""Queries and what is said of them, on a clock that the test turns, beside SciPy and MLPerf's
LoadGen.
"""

import math
import re
import time
from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from scipy import stats

from paradnn.core.workload import WORKLOADS
from paradnn.worker.arrivals import LOADGEN_SEED, arrivals
from paradnn.worker.chance import events_factor, quantile_ranks, required_in_time_queries
from paradnn.worker.energy import EnergyMeter
from paradnn.worker.peak_search import find_peak
from paradnn.workloads.serve.generator import RECORD, issue
from paradnn.workloads.serve.load import (
    LimitMonitor,
    NotServed,
    ServedQueries,
    Service,
    measure_load,
    serve,
    serve_closed,
)

MS = 1_000_000


class Clock:
    """Nanoseconds that pass only when something is said to take some."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Schedule:
    """Queries that come at given times, as a generator that is never late issues them."""

    def __init__(self, clock: Clock, times: Sequence[int]) -> None:
        self._clock = clock
        self._times = times
        self._next = 0

    @property
    def ended(self) -> bool:
        return self._next == len(self._times)

    def take(self) -> list[tuple[int, int]]:
        first = self._next
        while not self.ended and self._times[self._next] <= self._clock.now:
            self._next += 1
        return [(due, due) for due in self._times[first : self._next]]

    def wait(self, until: int | None) -> None:
        moments = [
            moment
            for moment in (until, None if self.ended else self._times[self._next])
            if moment is not None
        ]
        self._clock.now = max(self._clock.now, min(moments))


def served(
    times: Sequence[int], service: Callable[[int, int], int], batch: int = 1, **limits: int
) -> ServedQueries:
    """Serve queries that come at `times`; `service(queries, batches before)` is how long a batch
    takes, ns.
    """
    clock = Clock()
    batches = 0

    def run(queries: int) -> None:
        nonlocal batches
        clock.now += service(queries, batches)
        batches += 1

    return serve(Schedule(clock, times), run, clock, batch, **limits)


def test_the_mean_wait_is_that_of_a_queue_of_fixed_service_times() -> None:
    """M/D/1 (Pollaczek, Khinchine): the mean wait is load / (1 - load) / 2 services.

    The server's waits are those of Lindley's recursion to the nanosecond; the recursion then runs
    on more queries than the server, since at high loads neighbours wait alike.
    """
    times = np.array(arrivals(1_000, LOADGEN_SEED, 0, 2_000_000))
    for load in (0.3, 0.5, 0.7, 0.9):
        fixed = round(load * MS)
        # W_n = max(0, W_{n-1} + S - A_n), as the distance of a walk from the lowest that it has
        # been.
        walk = np.concatenate([[0], np.cumsum(fixed - np.diff(times))])
        waits = walk - np.minimum.accumulate(walk)
        assert waits.mean() == pytest.approx(load / (1 - load) / 2 * fixed, rel=0.02)
        log = served(times[:10_000].tolist(), lambda *_, fixed=fixed: fixed).log
        assert (np.array(log.started) - np.array(log.scheduled) == waits[:10_000]).all()


def test_a_batch_is_full_or_its_oldest_query_has_waited() -> None:
    times = [0, 1 * MS, 2 * MS, 3 * MS, 50 * MS]
    log = served(times, lambda *_: MS, 3, delay=10 * MS).log
    assert list(log.started) == [2 * MS] * 3 + [13 * MS, 60 * MS]
    assert list(log.together) == [3, 3, 3, 1, 1]
    at_once = served(times, lambda *_: MS, 3).log
    assert list(at_once.together) == [1] * 5


def test_a_rate_that_cannot_be_served_ends_when_a_query_has_waited_too_long() -> None:
    server = served(arrivals(200, 1, 0, 100_000), lambda *_: 10 * MS, patience=500 * MS)
    assert server.outcome == "overload"
    assert (
        50 < len(server.log) < 200
    )  # half of what comes is served, and the wait grows by 5 ms a query
    assert server.waiting > 30


def test_a_stream_asks_when_the_last_query_was_answered_and_offline_asks_at_once() -> None:
    clock = Clock()

    def run(_: int) -> None:
        clock.now += 30 * MS

    stream = serve_closed(run, clock, queries=10, seconds=1.0, batch=0, until=10**18).log
    assert set(stream.latencies()) == {30 * MS}
    assert len(stream) == 34  # the first after a second or more
    few = serve_closed(run, clock, queries=10, seconds=0.0, batch=0, until=10**18)
    assert len(few.log) == 10
    offline = serve_closed(run, clock, queries=10, seconds=0.0, batch=4, until=10**18).log
    assert [latency // MS for latency in offline.latencies()] == [30] * 4 + [60] * 4 + [90] * 2


def test_the_schedule_is_seeded_and_of_independent_gaps() -> None:
    """That they are exponential is what makes the waits of a queue as long as they are."""
    times = np.array(arrivals(250, 5, 0, 200_000))
    gaps = np.diff(times) / 1e9
    assert gaps.mean() == pytest.approx(1 / 250, rel=0.01)
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.01
    assert arrivals(250, 5, 0, 200_000) == array("q", times.tolist())
    assert arrivals(250, 6, 0, 10) != arrivals(250, 5, 0, 10)


def test_a_generator_never_waits_for_its_reader_and_says_how_late_it_was() -> None:
    clock = Clock()
    taken = bytearray()

    def sleep(seconds: float) -> None:
        clock.now += round(seconds * 1e9) + 50_000  # woken late

    def write(pending: bytearray) -> int:
        room = 0 if clock.now < 40 * MS else len(pending)  # a pipe that is not read for 40 ms
        taken.extend(pending[:room])
        return room

    issue([0, 10 * MS, 20 * MS, 60 * MS], write, 5 * MS, clock, sleep)
    rows = list(RECORD.iter_unpack(taken))
    assert [due for due, _ in rows] == [5 * MS, 15 * MS, 25 * MS, 65 * MS]
    assert [issued - due for due, issued in rows] == [50_000] * 4


def test_no_batch_begins_once_the_time_is_up() -> None:
    times = [place * 10 * MS for place in range(100)]
    cut = served(times, lambda *_: 4 * MS, until=205 * MS)
    assert (len(cut.log), cut.outcome) == (21, "timeout")
    # One that begins in time is served, and one that ends in time is not cut.
    assert max(cut.log.ended) == 204 * MS
    assert served(times[:20], lambda *_: 4 * MS, until=205 * MS).outcome == "ok"
    # Nor does the server sleep over its end where the next query is far away.
    assert served([0, 10_000 * MS], lambda *_: MS, until=50 * MS).outcome == "timeout"


LASTING = {
    "single_stream": {"min_seconds": 9000.0},
    "offline": {"min_seconds": 0.0, "min_queries": 1_000_000},
}
LASTING["server"] = {"rate": 200.0, "min_seconds": 60.0, "latency_ms": 1000.0, "percentile": 99.0}


@pytest.mark.parametrize(("scenario", "keys"), LASTING.items())
def test_a_load_that_is_cut_is_kept(
    scenario: str, keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic_ns
    batches = 0

    def run(_: int) -> None:
        nonlocal batches
        batches += 1

    # The time is up when ten batches were served, however fast that was.
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() + (10**12 if batches >= 10 else 0))
    service = Service(run, batch=2, capacity=2000.0, single_seconds=0.001)
    with pytest.raises(NotServed, match=r"measure\.timeout left time for") as ending:
        measure_load(type(WORKLOADS[scenario])(**keys), service, 300.0, EnergyMeter("unavailable"))
    assert ending.value.outcome == "timeout"
    assert 10 <= len(ending.value.load.log()) <= 20
    assert ending.value.load.joules is None


#: Up to where every rate holds; above which rate runs of full length fail; how many probes there is
#: time for; within what the found rate must lie.
SEARCHES = [
    *(
        (peak, math.inf, 100, (peak / 1.05, peak))
        for peak in (5.0, 37.0, 499.0, 501.0, 990.0, 3_000.0)
    ),
    (800.0, 600.0, 100, (480.0, 600.0)),
    (800.0, math.inf, 2, (0.0, 800.0)),
    (0.0, math.inf, 100, (0.0, 0.0)),
]


@pytest.mark.parametrize(("peak", "unlucky", "most", "between"), SEARCHES)
def test_a_search_brackets_the_peak(
    peak: float, unlucky: float, most: int, between: tuple[float, float]
) -> None:
    probes: list[float] = []

    def probe(rate: float) -> bool:
        probes.append(rate)
        return rate <= peak

    found = find_peak(
        probe, lambda rate: (rate <= unlucky, rate), 1_000.0, 0.05, lambda _: len(probes) < most
    )
    assert between[0] <= (found.rate or 0.0) <= between[1]
    assert found.held is (peak > 0)
    assert len(probes) <= (16 if peak else most)
    if most > 2 and peak:
        assert (
            found.rate
            < found.lowest_failed
            <= (1.05 * found.rate if unlucky > peak else unlucky * 1.05)
        )


@pytest.mark.parametrize("late", [0, 1, 5, 40, 300])
@pytest.mark.parametrize("share", [0.9, 0.99, 0.999])
def test_as_many_queries_pass_as_the_binomial_says(late: int, share: float) -> None:
    fewest = required_in_time_queries(late, share, 0.99)
    chance = stats.binom.cdf(late, [late + fewest - 1, late + fewest], 1 - share)
    assert chance[0] >= 0.01 > chance[1]


def test_quantiles_lie_between_their_ranks_with_95_percent() -> None:
    for count, share in ((60, 0.5), (200, 0.9), (1_000, 0.99)):
        low, high = quantile_ranks(count, share)
        # The quantile is between values `low` and `high`, from 0, where low + 1 .. high values are
        # below it.
        covered = stats.binom.cdf(high, count, share) - stats.binom.cdf(low, count, share)
        assert 0.95 <= covered < 0.985
    assert quantile_ranks(100, 0.99)[1] is None  # no value is surely above it


@pytest.mark.parametrize("alike", [1, 20])
def test_events_that_come_together_are_worth_fewer(alike: int) -> None:
    """As the sample variances of 8, 16 and 32 parts say, each with Student's quantile for the
    normal one.
    """
    events = np.repeat(np.random.default_rng(0).random(1280 // alike) < 0.3, alike)
    share = events.mean()
    found = [1.0]
    for count in (8, 16, 32):
        student = stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)
        counts = events.reshape(count, -1).sum(axis=1)
        found.append(student**2 * counts.var(ddof=1) / (1280 / count * share * (1 - share)))
    assert events_factor(np.cumsum(events).tolist()) == pytest.approx(max(found), rel=1e-3)


#: 99% of the queries within 1 ms, with a confidence of 99%.
LIMIT = (1_000_000, 0.99, 0.99)


def probe(rate: float, latencies: Iterable[int]) -> tuple[bool | None, int]:
    """The verdict on queries that come evenly, and how many of them there were."""
    watch = LimitMonitor(*LIMIT)
    for number, latency in enumerate(latencies):
        due = round(number / rate * 1e9)
        if watch([due], due + latency):
            break
    return watch.look(), number + 1


def test_a_probe_ends_as_soon_as_it_is_sure() -> None:
    fewest = LimitMonitor(*LIMIT).min_queries
    assert fewest == required_in_time_queries(0, 0.99, 0.999)
    # At 100 a second the queries decide, at 1,000 a second the two seconds in which a queue would
    # show.
    assert probe(100, [500] * 10_000) == (True, fewest)
    assert probe(1_000, [500] * 10_000) == (True, 2_001)
    assert probe(1_000, [2_000_000] * 10_000) == (False, 2_001)
    assert probe(100, [500] * 10) == (None, 10)


def test_probes_seldom_err_however_often_they_look() -> None:
    """1.2% of all queries are late, where 1% may be: hardly one of a hundred probes says that the
    limit holds.
    """
    random = np.random.default_rng(2)
    verdicts = [
        probe(1_000, np.where(random.random(6_000) < 0.012, 2_000_000, 500).tolist())[0]
        for _ in range(300)
    ]
    assert verdicts.count(True) <= 6


def test_queries_that_are_needed_and_latencies_that_are_discarded_are_loadgens() -> None:
    from benchmarks.serving import answer, loadgen

    def told(wanted: str, scenario: str, queries: int, **settings: float) -> int:
        [found] = re.findall(rf"{wanted} (\d+)", loadgen(scenario, queries, answer, **settings))
        return int(found)

    assert (
        told("Need to process at least", "SingleStream", 50)
        == required_in_time_queries(1, 0.9, 0.99) + 1
    )
    for queries in (100, 1_000, 5_000):
        most = max(
            late
            for late in range(1, queries)
            if required_in_time_queries(late, 0.9, 0.99) + late <= queries
        )
        assert told("Would discard", "SingleStream", queries) == most - 1
    late = {"server_target_qps": 1e5, "server_target_latency_ns": 0}
    assert told("Would need to run at least", "Server", 200, **late) == required_in_time_queries(
        200, 0.99, 0.99
    )
