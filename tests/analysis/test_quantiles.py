import numpy as np
import pytest
from scipy import stats

from analysis.statistics.quantiles import bootstrap_ratio, quantile_interval


@pytest.mark.parametrize(("n", "share"), [(6, 0.5), (25, 0.5), (60, 0.9), (40, 0.1)])
def test_quantile_intervals_cover_at_their_stated_rate(n: int, share: float) -> None:
    truth = np.exp(stats.norm.ppf(share))
    draws = np.random.default_rng(7).lognormal(size=(2000, n))
    covered = np.mean([found.low <= truth <= found.high for found in (quantile_interval(row, share) for row in draws)])
    assert 0.94 <= covered <= 0.995, "order statistics are discrete: never below the stated rate"


def test_quantile_intervals_are_those_of_the_binomial_by_hand() -> None:
    # The sign test's table: of 20 values the 6th to the 15th, of 10 the 2nd to the 9th.
    assert quantile_interval(np.arange(1, 21)) == (10.5, 6, 15)
    assert quantile_interval(np.arange(1, 11)) == (5.5, 2, 9)
    assert quantile_interval([3.0]) == (3, -np.inf, np.inf)
    assert quantile_interval(np.arange(35), 0.9).high == np.inf
    assert quantile_interval(np.arange(36), 0.9).high == 35
    assert np.isnan(quantile_interval([])).all()


@pytest.mark.parametrize("n", [20, 40])
def test_bootstrap_ratios_cover_at_their_stated_rate(n: int) -> None:
    generator = np.random.default_rng(11)
    covered = 0
    for _ in range(1000):
        below = generator.uniform(0.5, 1.5, n)
        above = below * (0.2 + 0.1 * generator.standard_normal(n))
        found = bootstrap_ratio(above, below, draws=1500)
        assert found.value == pytest.approx(above.sum() / below.sum())
        covered += found.low <= 0.2 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_bootstrap_ratios_of_few_points_have_no_interval() -> None:
    assert bootstrap_ratio([1, 2], [2, 4]).value == 0.5
    assert np.isnan(bootstrap_ratio([1, 2], [2, 4]).low)
    assert bootstrap_ratio([1, 1, 1], [2, 2, 2]) == (0.5, 0.5, 0.5)
    assert np.isnan(bootstrap_ratio([], [])).all()
