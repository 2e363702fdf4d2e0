"""The interval of the median against SciPy's binomial, and its coverage on drawn samples."""

from __future__ import annotations

import random
import statistics

import pytest
from scipy.stats import binom

from paradnn.record.statistics import median_interval, quantile, summarise


@pytest.mark.parametrize("n", [6, 7, 10, 25, 100])
def test_interval_is_the_narrowest_that_keeps_its_confidence(n: int) -> None:
    interval = median_interval(range(n))
    assert interval is not None
    rank = interval[0] + 1  # of the lower end, from one
    assert interval[1] == n - rank
    assert 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(rank, n, 0.5) < 0.95


def test_five_values_carry_no_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert summarise([1.0, 2.0]).low is None


def test_interval_covers_the_true_median_of_a_skewed_law() -> None:
    generator = random.Random(1)
    covered = 0
    for _ in range(1000):
        interval = median_interval([generator.expovariate(1.0) for _ in range(15)])
        assert interval is not None
        covered += interval[0] <= 0.693147 <= interval[1]
    assert covered >= 940  # 95% less three standard deviations of 1,000 draws, and the law's own discreteness


def test_quantile_agrees_with_the_standard_library() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    expected = statistics.quantiles(values, n=100, method="inclusive")
    assert [quantile(values, share / 100) for share in range(1, 100)] == pytest.approx(expected)
