"""Summaries of raw values against the standard library."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats

from paradnn.record.statistics import quantile, summarise, t_quantile


def test_quantile_agrees_with_the_standard_library() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    expected = statistics.quantiles(values, n=100, method="inclusive")
    assert [quantile(values, share / 100) for share in range(1, 100)] == pytest.approx(expected)


def test_fewer_than_six_values_are_summarised_without_an_interval() -> None:
    assert summarise([[1.0, 2.0]]).low is None
    assert summarise([[1.0, 1.1, 0.9, 1.0, 1.1, 0.9]]).low is not None


def test_the_quantile_of_student_agrees_with_scipy() -> None:
    degrees = range(1, 300)
    assert [t_quantile(n) for n in degrees] == pytest.approx([stats.t.ppf(0.975, n) for n in degrees], abs=1e-4)


def test_several_processes_have_the_interval_of_their_medians() -> None:
    """Against SciPy, of the logarithms; the blocks within a process are only its median's."""
    processes = [[9.0, 10.0, 11.0], [11.0, 12.0, 90.0], [10.0, 11.0, 12.0], [8.0, 9.0, 10.0]]
    logs = np.log([10.0, 12.0, 11.0, 9.0])
    expected = np.exp(stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs)))
    found = summarise(processes)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-4)
    assert found.value == pytest.approx(np.exp(logs.mean()))
    assert (found.minimum, found.maximum) == (8.0, 90.0)
    assert found.process_cv == pytest.approx(logs.std(ddof=1))


def test_the_interval_of_processes_covers_where_that_of_one_does_not() -> None:
    """Planted: 2% between processes, 1% within, three of ten blocks; the blocks of one know nothing of the others."""
    random = np.random.default_rng(0)
    several, single, between = 0, 0, []
    for _ in range(2000):
        middles = random.normal(0, 0.02, 3)
        blocks = np.exp(middles[:, None] + random.normal(0, 0.01, (3, 10))).tolist()
        found, one = summarise(blocks), summarise(blocks[:1])
        several += found.low <= 1 <= found.high
        single += one.low <= 1 <= one.high
        between.append(found.between_cv)
    assert 1870 <= several <= 1930  # 95% within three standard deviations
    assert single < 1000
    assert np.sqrt(np.mean(np.square(between))) == pytest.approx(0.02, rel=0.1)
