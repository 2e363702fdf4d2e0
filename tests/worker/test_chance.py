"""What counts say of a percentile, beside SciPy's distributions and MLPerf's LoadGen."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from paradnn.worker.chance import beta_share, events_factor, fewest_to_pass, quantile_ranks
from paradnn.workloads.serve.load import LimitWatch


@pytest.mark.parametrize("a", [0.5, 3, 459, 12_345.6])
@pytest.mark.parametrize("b", [1, 7.5, 800])
def test_the_beta_function_is_scipys(a: float, b: float) -> None:
    for x in (0.001, 0.3, a / (a + b), 0.99):
        assert beta_share(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("late", [0, 1, 5, 40, 300])
@pytest.mark.parametrize("share", [0.9, 0.99, 0.999])
def test_as_many_queries_pass_as_the_binomial_says(late: int, share: float) -> None:
    fewest = fewest_to_pass(late, share, 0.99)
    chance = stats.binom.cdf(late, [late + fewest - 1, late + fewest], 1 - share)
    assert chance[0] >= 0.01 > chance[1]


def test_quantiles_lie_between_their_ranks_with_95_percent() -> None:
    for count, share in ((60, 0.5), (200, 0.9), (1_000, 0.99)):
        low, high = quantile_ranks(count, share)
        assert low is not None
        assert high is not None
        # The quantile is between values `low` and `high`, from 0, where low + 1 .. high values are below it.
        covered = stats.binom.cdf(high, count, share) - stats.binom.cdf(low, count, share)
        assert 0.95 <= covered < 0.985
    assert quantile_ranks(100, 0.99)[1] is None  # no value is surely above it


@pytest.mark.parametrize(("load", "count", "share"), [(0.7, 4_000, 0.9), (0.7, 500, 0.9), (0.9, 2_000, 0.5)])
def test_intervals_hold_where_neighbours_share_a_long_queue(load: float, count: int, share: float) -> None:
    """What 32 short parts do not show, fewer longer ones do."""
    random = np.random.default_rng(1)

    def waits(number: int) -> np.ndarray:
        walk = np.concatenate([[0.0], np.cumsum(load - random.exponential(size=number - 1))])
        return walk - np.minimum.accumulate(walk)

    truth, covered = np.quantile(waits(4_000_000), share), []
    for _ in range(150):
        values = waits(count)
        late = np.cumsum(values > np.quantile(values, share)).tolist()
        low, high = quantile_ranks(count, share, events_factor(late))
        ordered = np.sort(values)
        covered.append((low is None or ordered[low] <= truth) and (high is None or ordered[high] >= truth))
    assert np.mean(covered) > 0.88


#: 99% of the queries within 1 ms, with a confidence of 99%.
LIMIT = (1_000_000, 0.99, 0.99)


def probe(rate: float, latencies: Iterable[int]) -> tuple[bool | None, int]:
    """The verdict on queries that come evenly, and how many of them there were."""
    watch = LimitWatch(*LIMIT)
    for number, latency in enumerate(latencies):
        due = round(number / rate * 1e9)
        if watch([due], due + latency):
            break
    return watch.look(), number + 1


def test_a_probe_ends_as_soon_as_it_is_sure() -> None:
    fewest = LimitWatch(*LIMIT).fewest
    assert fewest == fewest_to_pass(0, 0.99, 0.999)
    # At 100 a second the queries decide, at 1,000 a second the two seconds in which a queue would show.
    assert probe(100, [500] * 10_000) == (True, fewest)
    assert probe(1_000, [500] * 10_000) == (True, 2_001)
    assert probe(1_000, [2_000_000] * 10_000) == (False, 2_001)
    assert probe(100, [500] * 10) == (None, 10)


def test_probes_seldom_err_however_often_they_look() -> None:
    """1.2% of all queries are late, where 1% may be: hardly one of a hundred probes says that the limit holds."""
    random = np.random.default_rng(2)
    verdicts = [probe(1_000, np.where(random.random(6_000) < 0.012, 2_000_000, 500).tolist())[0] for _ in range(300)]
    assert verdicts.count(True) <= 6


@pytest.fixture
def loadgen(tmp_path: Path):
    """LoadGen's summary of a scenario that is answered at once."""
    import mlperf_loadgen as lg

    def summary(scenario: str, queries: int, **settings: float) -> str:
        asked = lg.TestSettings()
        asked.scenario, asked.mode = getattr(lg.TestScenario, scenario), lg.TestMode.PerformanceOnly
        asked.min_duration_ms, asked.min_query_count, asked.max_query_count = 0, queries, queries
        for name, value in settings.items():
            setattr(asked, name, value)

        def answer(samples: list) -> None:
            lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

        system, library = lg.ConstructSUT(answer, lambda: None), lg.ConstructQSL(8, 8, lambda _: None, lambda _: None)
        log = lg.LogSettings()
        log.log_output.outdir, log.log_output.copy_summary_to_stdout, log.enable_trace = str(tmp_path), False, False
        lg.StartTestWithLogSettings(system, library, asked, log)
        lg.DestroySUT(system)
        lg.DestroyQSL(library)
        return (tmp_path / "mlperf_log_summary.txt").read_text()

    return summary


def test_a_stream_that_is_too_short_needs_as_many_queries_as_loadgen_says(loadgen) -> None:
    [needed] = re.findall(r"Need to process at least (\d+) queries", loadgen("SingleStream", 50))
    assert int(needed) == fewest_to_pass(1, 0.9, 0.99) + 1


@pytest.mark.parametrize("queries", [100, 1_000, 5_000])
def test_a_stream_discards_as_many_latencies_as_loadgen(loadgen, queries: int) -> None:
    [discarded] = re.findall(r"Would discard (\d+) highest", loadgen("SingleStream", queries))
    most = max(late for late in range(1, queries) if fewest_to_pass(late, 0.9, 0.99) + late <= queries)
    assert int(discarded) == most - 1


def test_a_server_whose_queries_are_late_needs_as_many_more_as_loadgen_says(loadgen) -> None:
    text = loadgen("Server", 200, server_target_qps=1e5, server_target_latency_ns=0)
    [more] = re.findall(r"Would need to run at least (\d+) more queries", text)
    assert int(more) == fewest_to_pass(200, 0.99, 0.99)
