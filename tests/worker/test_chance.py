"""Counts of late queries: the incomplete beta function, clustered events and ranks of quantiles."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from paradnn.worker.chance import (
    beta_share,
    events_factor,
    passes,
    quantile_ranks,
    required_in_time_queries,
)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(1.0, 1.0, id="uniform"),
        pytest.param(0.5, 3.0, id="below one"),
        pytest.param(20.0, 4.0, id="skewed"),
        pytest.param(270_336.0, 50.0, id="LoadGen's counts"),
    ],
)
@pytest.mark.parametrize("x", [0.001, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_beta_share_equals_scipy(x: float, a: float, b: float) -> None:
    assert beta_share(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-8, abs=1e-290)


@pytest.mark.parametrize(
    ("x", "share"),
    [
        pytest.param(-0.5, 0.0, id="below"),
        pytest.param(0.0, 0.0, id="lower end"),
        pytest.param(1.0, 1.0, id="upper end"),
        pytest.param(1.5, 1.0, id="above"),
    ],
)
def test_beta_share_is_clipped(x: float, share: float) -> None:
    assert beta_share(x, 2.0, 3.0) == share


def test_one_query_in_time_can_pass_a_low_share() -> None:
    # With one query, the probability that it is in time is the share itself.
    assert passes(1, 0, share=0.04, confidence=0.95)
    assert not passes(1, 0, share=0.06, confidence=0.95)
    assert not passes(0, 0, share=0.04, confidence=0.95)


@pytest.mark.parametrize("late", [0, 1, 7])
@pytest.mark.parametrize(
    ("share", "confidence"),
    [
        pytest.param(0.99, 0.99, id="99th percentile"),
        pytest.param(0.9, 0.95, id="90th percentile"),
        pytest.param(0.02, 0.5, id="a low share"),
    ],
)
def test_the_required_queries_are_the_fewest_that_a_binomial_test_accepts(
    late: int, share: float, confidence: float
) -> None:
    required = required_in_time_queries(late, share, confidence)

    in_time = np.arange(1, 3000)
    chance = stats.binom.cdf(late, in_time + late, 1 - share)
    assert required == in_time[chance < 1 - confidence].min()


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="no trials"),
        pytest.param([0] * 1000, id="no events"),
        pytest.param([1] * 1000, id="only events"),
        pytest.param([1] * 31 + [0] * 32, id="fewer than two trials per batch"),
    ],
)
def test_series_without_information_count_as_independent(events: list[int]) -> None:
    assert events_factor(list(itertools.accumulate(events))) == 1.0


@pytest.mark.parametrize(
    ("run_length", "largest"),
    [
        pytest.param(2, 32, id="runs as long as the shortest batches"),
        pytest.param(4, 16, id="runs of four"),
        pytest.param(8, 8, id="runs as long as the longest batches"),
    ],
)
def test_the_factor_is_the_largest_over_three_batch_counts(run_length: int, largest: int) -> None:
    """Compare with variances of batch sums from NumPy and quantiles of Student's t from SciPy."""
    events = np.tile(np.repeat([1, 0], run_length), 32 // run_length)
    expected = {}
    for count in (32, 16, 8):
        sums = events.reshape(count, -1).sum(axis=1)
        independent = len(events) / count * 0.25
        caution = (stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)) ** 2
        expected[count] = caution * sums.var(ddof=1) / independent

    factor = events_factor(events.cumsum().tolist())

    assert max(expected, key=expected.__getitem__) == largest
    assert factor == pytest.approx(expected[largest], rel=1e-3)


def test_regular_events_count_as_independent() -> None:
    assert events_factor(np.tile([1, 0], 32).cumsum().tolist()) == 1.0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("count", [5, 20, 36, 100, 1000])
def test_ranks_of_independent_values_are_binomial(count: int, share: float) -> None:
    """The number of values below the quantile is binomial; each tail has at most 2.5%."""
    ranks = np.arange(1, count + 1)
    below = ranks[stats.binom.cdf(ranks - 1, count, share) <= 0.025]
    above = ranks[stats.binom.sf(ranks - 1, count, share) <= 0.025]

    low, high = quantile_ranks(count, share)

    assert low == (below.max() - 1 if len(below) else None)
    assert high == (above.min() - 1 if len(above) else None)


def test_correlated_values_have_the_ranks_of_fewer_values() -> None:
    low, high = quantile_ranks(100, 0.5)
    assert low is not None
    assert high is not None

    correlated = quantile_ranks(400, 0.5, factor=4.0)

    assert correlated == (4 * (low + 1) - 1, 4 * (high + 1) - 1)
