"""Serving on a simulated clock.

Statistics are compared with SciPy, and query counts with MLPerf's LoadGen.
"""

import math
import re
import time
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
    """A clock in ns that advances only if a test advances it."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Schedule:
    """Queries due at given times in ns, issued by a generator that is never late."""

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
        times = [] if until is None else [until]
        if not self.ended:
            times.append(self._times[self._next])
        self._clock.now = max(self._clock.now, min(times))


def serve_schedule(
    times: Sequence[int], service: Callable[[int, int], int], batch: int = 1, **limits: int
) -> ServedQueries:
    """Serve queries in simulated time.

    Args:
        times: Times in ns at which queries are due.
        service: Returns the duration of a batch in ns, given its number of queries and the number
            of batches before it.
        batch: Largest number of queries per batch.
        limits: Further arguments of `serve`.
    """
    clock = Clock()
    batches = 0

    def run(queries: int) -> None:
        nonlocal batches
        clock.now += service(queries, batches)
        batches += 1

    return serve(Schedule(clock, times), run, clock, batch, **limits)


def test_the_mean_wait_agrees_with_queueing_theory() -> None:
    """Compare with the Pollaczek-Khinchine formula of an M/D/1 queue.

    Its mean wait is load / (1 - load) / 2 service times. The server's waits must equal those of
    Lindley's recursion to the nanosecond. The recursion covers more queries than the server,
    because the waits of neighboring queries are correlated at high loads.
    """
    times = np.array(arrivals(1_000, LOADGEN_SEED, 0, 2_000_000))
    for load in (0.3, 0.5, 0.7, 0.9):
        service_time = round(load * MS)
        # W_n = max(0, W_{n-1} + S - A_n) is the distance of a random walk from its minimum so far.
        walk = np.concatenate([[0], np.cumsum(service_time - np.diff(times))])
        waits = walk - np.minimum.accumulate(walk)
        assert waits.mean() == pytest.approx(load / (1 - load) / 2 * service_time, rel=0.02)
        log = serve_schedule(
            times[:10_000].tolist(), lambda *_, duration=service_time: duration
        ).log
        assert (np.array(log.started) - np.array(log.scheduled) == waits[:10_000]).all()


def test_a_batch_starts_when_it_is_full_or_its_oldest_query_has_waited_long_enough() -> None:
    times = [0, 1 * MS, 2 * MS, 3 * MS, 50 * MS]
    log = serve_schedule(times, lambda *_: MS, 3, delay=10 * MS).log
    assert list(log.started) == [2 * MS] * 3 + [13 * MS, 60 * MS]
    assert list(log.together) == [3, 3, 3, 1, 1]
    without_delay = serve_schedule(times, lambda *_: MS, 3).log
    assert list(without_delay.together) == [1] * 5


def test_an_overload_ends_when_a_query_has_waited_too_long() -> None:
    server = serve_schedule(arrivals(200, 1, 0, 100_000), lambda *_: 10 * MS, patience=500 * MS)
    assert server.outcome == "overload"
    # Half of the queries are served, and the wait grows by 5 ms per query.
    assert 50 < len(server.log) < 200
    assert server.waiting > 30


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run_batch(clock: Clock) -> Callable[[int], None]:
    """Return a function that serves a batch in 30 ms of the planted clock."""

    def run(_: int) -> None:
        clock.now += 30 * MS

    return run


def test_a_stream_waits_for_each_answer(clock: Clock, run_batch: Callable[[int], None]) -> None:
    stream = serve_closed(run_batch, clock, queries=10, seconds=1.0, batch=0, until=10**18).log

    assert set(stream.latencies()) == {30 * MS}
    # The stream ends with the first query after a second.
    assert len(stream) == 34


def test_a_stream_ends_after_its_queries(clock: Clock, run_batch: Callable[[int], None]) -> None:
    short_stream = serve_closed(run_batch, clock, queries=10, seconds=0.0, batch=0, until=10**18)

    assert len(short_stream.log) == 10


def test_offline_issues_all_queries_at_once(clock: Clock, run_batch: Callable[[int], None]) -> None:
    offline = serve_closed(run_batch, clock, queries=10, seconds=0.0, batch=4, until=10**18).log

    assert [latency // MS for latency in offline.latencies()] == [30] * 4 + [60] * 4 + [90] * 2


def test_the_schedule_has_independent_gaps() -> None:
    """Check the mean and the independence of the gaps.

    The test of the mean wait shows that their distribution is exponential.
    """
    gaps = np.diff(np.array(arrivals(250, 5, 0, 200_000))) / 1e9

    assert gaps.mean() == pytest.approx(1 / 250, rel=0.01)
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.01


def test_the_schedule_depends_only_on_the_seed() -> None:
    assert arrivals(250, 5, 0, 200_000) == arrivals(250, 5, 0, 200_000)
    assert arrivals(250, 6, 0, 10) != arrivals(250, 5, 0, 10)


def test_a_generator_never_waits_for_its_reader_and_records_its_delay() -> None:
    clock = Clock()
    taken = bytearray()

    def sleep(seconds: float) -> None:
        # The system wakes the process late.
        clock.now += round(seconds * 1e9) + 50_000

    def write(pending: bytearray) -> int:
        # The reader does not read the pipe for 40 ms.
        room = 0 if clock.now < 40 * MS else len(pending)
        taken.extend(pending[:room])
        return room

    issue([0, 10 * MS, 20 * MS, 60 * MS], write, 5 * MS, clock, sleep)
    rows = list(RECORD.iter_unpack(taken))
    assert [due for due, _ in rows] == [5 * MS, 15 * MS, 25 * MS, 65 * MS]
    assert [issued - due for due, issued in rows] == [50_000] * 4


def test_no_batch_starts_after_the_deadline() -> None:
    times = [place * 10 * MS for place in range(100)]
    cut_short = serve_schedule(times, lambda *_: 4 * MS, until=205 * MS)
    assert (len(cut_short.log), cut_short.outcome) == (21, "timeout")
    # A batch that starts in time is served to its end.
    assert max(cut_short.log.ended) == 204 * MS
    assert serve_schedule(times[:20], lambda *_: 4 * MS, until=205 * MS).outcome == "ok"
    # The server does not sleep past its deadline if the next query is far away.
    assert serve_schedule([0, 10_000 * MS], lambda *_: MS, until=50 * MS).outcome == "timeout"


@pytest.mark.parametrize(
    ("scenario", "keys"),
    [
        pytest.param("single_stream", {"min_seconds": 9000.0}, id="single-stream"),
        pytest.param("offline", {"min_seconds": 0.0, "min_queries": 1_000_000}, id="offline"),
        pytest.param(
            "server",
            {"rate": 200.0, "min_seconds": 60.0, "latency_ms": 1000.0, "percentile": 99.0},
            id="server",
        ),
    ],
)
def test_the_queries_of_a_load_that_is_cut_short_are_reported(
    scenario: str, keys: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic_ns
    batches = 0

    def run(_: int) -> None:
        nonlocal batches
        batches += 1

    # The deadline comes after ten batches, on a machine of any speed.
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() + (10**12 if batches >= 10 else 0))
    service = Service(run, batch=2, capacity=2000.0, single_seconds=0.001)
    with pytest.raises(NotServed, match=r"measure\.timeout ended the load") as raised:
        measure_load(type(WORKLOADS[scenario])(**keys), service, 300.0, EnergyMeter("unavailable"))
    assert raised.value.outcome == "timeout"
    assert 10 <= len(raised.value.load.log()) <= 20
    assert raised.value.load.joules is None


@pytest.mark.parametrize(
    ("peak", "full_run_peak", "max_probes", "between"),
    [
        *(
            pytest.param(peak, math.inf, 100, (peak / 1.05, peak), id=f"peak-{peak:g}")
            for peak in (5.0, 37.0, 499.0, 501.0, 990.0, 3_000.0)
        ),
        pytest.param(800.0, 600.0, 100, (480.0, 600.0), id="full-runs-fail-above"),
        pytest.param(800.0, math.inf, 2, (0.0, 800.0), id="time-for-two-probes"),
        pytest.param(0.0, math.inf, 100, (0.0, 0.0), id="no-rate"),
    ],
)
def test_a_search_brackets_the_peak(
    peak: float, full_run_peak: float, max_probes: int, between: tuple[float, float]
) -> None:
    """Let probes pass at rates up to `peak`, and runs of full length up to `full_run_peak`."""
    probes: list[float] = []

    def probe(rate: float) -> bool:
        probes.append(rate)
        return rate <= peak

    search = find_peak(
        probe,
        run_full_length=lambda rate: (rate <= full_run_peak, rate),
        capacity=1_000.0,
        precision=0.05,
        has_time=lambda _: len(probes) < max_probes,
    )

    assert between[0] <= (search.rate or 0.0) <= between[1]
    assert search.held is (peak > 0)
    assert len(probes) <= (16 if peak else max_probes)
    if max_probes > 2 and peak:
        highest = full_run_peak * 1.05 if full_run_peak < peak else 1.05 * search.rate
        assert search.rate < search.lowest_failed <= highest


def test_a_second_full_length_run_needs_time() -> None:
    full_length_rates: list[float] = []

    def run_full_length(rate: float) -> tuple[bool, None]:
        full_length_rates.append(rate)
        return False, None

    search = find_peak(
        probe=lambda rate: rate <= 400.0,
        run_full_length=run_full_length,
        capacity=1_000.0,
        precision=0.05,
        has_time=lambda _: not full_length_rates,
    )

    assert full_length_rates == [search.rate]
    assert not search.held


@pytest.mark.parametrize("late", [0, 1, 5, 40, 300])
@pytest.mark.parametrize("share", [0.9, 0.99, 0.999])
def test_the_required_queries_follow_from_the_binomial_distribution(
    late: int, share: float
) -> None:
    required = required_in_time_queries(late, share, 0.99)

    one_too_few, enough = stats.binom.cdf(late, [late + required - 1, late + required], 1 - share)
    assert one_too_few >= 0.01 > enough


@pytest.mark.parametrize(
    ("count", "share"),
    [
        pytest.param(60, 0.5, id="median of 60"),
        pytest.param(200, 0.9, id="90% of 200"),
        pytest.param(1_000, 0.99, id="99% of 1,000"),
    ],
)
def test_quantiles_lie_between_their_ranks_with_95_percent(count: int, share: float) -> None:
    low, high = quantile_ranks(count, share)

    # The quantile is between the values `low` and `high`, counted from 0, if low + 1 to high
    # values are below it.
    covered = stats.binom.cdf(high, count, share) - stats.binom.cdf(low, count, share)
    assert 0.95 <= covered < 0.985


def test_a_high_quantile_of_few_values_has_no_upper_rank() -> None:
    assert quantile_ranks(100, 0.99)[1] is None


@pytest.mark.parametrize("run_length", [1, 20])
def test_clustered_events_count_as_fewer_events(run_length: int) -> None:
    """Compare with the variances of sums over 8, 16 and 32 parts, relative to independent events.

    Each ratio is multiplied by the squared ratio of Student's quantile to the normal quantile.
    """
    events = np.repeat(np.random.default_rng(0).random(1280 // run_length) < 0.3, run_length)
    share = events.mean()
    factors = [1.0]
    for count in (8, 16, 32):
        student = stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)
        counts = events.reshape(count, -1).sum(axis=1)
        factors.append(student**2 * counts.var(ddof=1) / (1280 / count * share * (1 - share)))
    assert events_factor(np.cumsum(events).tolist()) == pytest.approx(max(factors), rel=1e-3)


#: 99% of the queries within 1 ms, with a confidence of 99%.
LIMIT = (1_000_000, 0.99, 0.99)


def probe(rate: float, latencies: Iterable[int]) -> tuple[bool | None, int]:
    """Return the verdict on queries at a constant rate, and the number of queries it needed."""
    monitor = LimitMonitor(*LIMIT)
    for number, latency in enumerate(latencies):
        due = round(number / rate * 1e9)
        if monitor([due], due + latency):
            break
    return monitor.look(), number + 1


def test_a_probe_ends_as_soon_as_it_is_certain() -> None:
    min_queries = LimitMonitor(*LIMIT).min_queries
    assert min_queries == required_in_time_queries(0, 0.99, 0.999)
    # At 100 per second, the number of queries decides. At 1,000 per second, it is the two seconds
    # in which a growing queue would show.
    assert probe(100, [500] * 10_000) == (True, min_queries)
    assert probe(1_000, [500] * 10_000) == (True, 2_001)
    assert probe(1_000, [2_000_000] * 10_000) == (False, 2_001)
    assert probe(100, [500] * 10) == (None, 10)


def test_repeated_looks_rarely_let_a_late_probe_pass() -> None:
    """Plant 1.2% late queries if 1% is allowed; at most 1% of the probes should pass."""
    random = np.random.default_rng(2)
    verdicts = [
        probe(1_000, np.where(random.random(6_000) < 0.012, 2_000_000, 500).tolist())[0]
        for _ in range(300)
    ]
    assert verdicts.count(True) <= 6


def test_required_queries_and_discarded_latencies_equal_those_of_loadgen() -> None:
    from benchmarks.serving import answer, loadgen

    def reported(phrase: str, scenario: str, queries: int, **settings: float) -> int:
        """Return the number after a phrase in LoadGen's summary."""
        summary = loadgen(scenario, queries, answer, **settings)
        [number] = re.findall(rf"{phrase} (\d+)", summary)
        return int(number)

    required = reported("Need to process at least", "SingleStream", 50)
    assert required == required_in_time_queries(1, 0.9, 0.99) + 1
    for queries in (100, 1_000, 5_000):
        discardable = [
            late
            for late in range(1, queries)
            if required_in_time_queries(late, 0.9, 0.99) + late <= queries
        ]
        assert reported("Would discard", "SingleStream", queries) == max(discardable) - 1
    all_late = {"server_target_qps": 1e5, "server_target_latency_ns": 0}
    required = reported("Would need to run at least", "Server", 200, **all_late)
    assert required == required_in_time_queries(200, 0.99, 0.99)
