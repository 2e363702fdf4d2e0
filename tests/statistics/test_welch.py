"""Welch's interval and degrees of freedom, compared with SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from paradnn.statistics.welch import welch_difference, welch_variance

#: Samples of different sizes and variances.
FIRST = [math.log(value) for value in (101.0, 103.0, 99.0, 104.0)]
SECOND = [math.log(value) for value in (90.0, 90.5, 91.0)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(FIRST, SECOND, id="first is larger"),
        pytest.param(SECOND, FIRST, id="first is smaller"),
    ],
)
def test_welchs_interval_equals_scipys(first: list[float], second: list[float]) -> None:
    found = welch_difference(first, second)
    variance = welch_variance(first, second)

    expected = stats.ttest_ind(first, second, equal_var=False)
    interval = expected.confidence_interval(0.95)
    difference = np.mean(first) - np.mean(second)

    assert found == pytest.approx((difference, interval.low, interval.high))
    assert variance.freedom == pytest.approx(expected.df)
    assert math.sqrt(variance.variance) == pytest.approx(difference / expected.statistic)


def test_a_constant_sample_leaves_the_scatter_of_the_other_sample() -> None:
    found = welch_difference(FIRST, [4.5] * 3)

    low, high = stats.t.interval(0.95, df=3, loc=np.mean(FIRST), scale=stats.sem(FIRST))

    assert found == pytest.approx((np.mean(FIRST) - 4.5, low - 4.5, high - 4.5))


def test_two_constant_samples_have_an_exact_difference() -> None:
    assert welch_difference([3.0, 3.0], [1.0, 1.0, 1.0]) == (2.0, 2.0, 2.0)
