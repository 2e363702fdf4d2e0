"""Series of block times: intervals against SciPy's binomial and drawn samples, changes against NumPy's fits."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.steadiness import PROTOCOLS, coverage, planted, stopped
from paradnn.worker.series import block_interval, find_change, median_interval


@pytest.mark.parametrize("n", [6, 7, 10, 25, 100])
def test_interval_is_the_narrowest_that_keeps_its_confidence(n: int) -> None:
    interval = median_interval(range(n))
    assert interval is not None
    rank = interval[0] + 1  # of the lower end, from one
    assert interval[1] == n - rank
    assert 1 - 2 * binom.cdf(rank - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(rank, n, 0.5) < 0.95


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("n", [20, 40, 120])
def test_few_series_of_correlated_values_get_an_interval_that_is_wrong(n: int, rho: float) -> None:
    """6% at most; of 600 series three standard deviations are 3%. Independent ones nearly all have one."""
    found = coverage(n, f"ar {rho}", 600)
    assert found.wrong < 0.09
    assert rho or (found.given > 0.94 and found.width < 1.6)


def test_a_line_is_fitted_as_numpy_does() -> None:
    values = np.array([1 + 0.02 * index + 0.01 * (index % 3) for index in range(30)])
    change = find_change(values.tolist())
    slope, offset = np.polyfit(range(30), values, 1)
    rest = values - offset - slope * np.arange(30)
    assert change.at is None
    assert change.size * np.median(values) == pytest.approx(29 * slope)
    assert change.explained == pytest.approx(1 - (rest**2).sum() / ((values - values.mean()) ** 2).sum())
    assert change.matters


def test_a_jump_is_found_where_it_is() -> None:
    values = [2.0 + 0.001 * (index % 2) for index in range(14)] + [3.0 + 0.001 * (index % 2) for index in range(6)]
    change = find_change(values)
    assert change.at == 14
    assert change.size * statistics.median(values) == pytest.approx(1.0)
    assert change.matters
    assert str(change).startswith("jump before block 15 of +50.0% explains 100% of the variance")


def test_a_clear_change_that_is_small_does_not_matter() -> None:
    assert not find_change([1.0] * 10 + [1.015] * 10).matters
    assert find_change([1.0] * 10 + [1.025] * 10).matters
    assert not find_change([1.0] * 6).matters


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.7, 0.9])
def test_few_steady_machines_are_called_unsteady(label: str, rho: float) -> None:
    timings, _ = planted("nothing", PROTOCOLS[label], rho, 0.03, 100)
    assert sum(not timing.steady for timing in timings) <= 8


@pytest.mark.parametrize("label", list(PROTOCOLS))
@pytest.mark.parametrize("name", ["jump of 50%", "slow warm-up"])
def test_what_is_reported_of_a_machine_that_settles_is_after_it(label: str, name: str) -> None:
    timings, truths = planted(name, PROTOCOLS[label], 0.7, 0.01, 40)
    errors = [
        statistics.median(timing.blocks) / timing.steps_per_block / truth - 1
        for timing, truth in zip(timings, truths, strict=True)
        if timing.steady
    ]
    assert not errors or statistics.median(map(abs, errors)) < 0.05


@pytest.mark.parametrize("label", list(PROTOCOLS))
def test_a_drift_is_seldom_called_steady(label: str) -> None:
    timings, _ = planted("drift of 5%/s", PROTOCOLS[label], 0.5, 0.01, 40)
    assert sum(timing.steady for timing in timings) <= 20


def test_a_jump_has_no_interval() -> None:
    """Two levels look like perfectly correlated noise, which says nothing of the median."""
    random = np.random.default_rng(0)
    for n in (8, 24, 60, 120):
        series = (np.repeat([1.0, 1.5], n // 2) * np.exp(random.normal(0, 0.01, n))).tolist()
        assert block_interval(series) is None


def test_a_stop_by_the_interval_holds_the_true_median() -> None:
    looking = replace(PROTOCOLS["standard"], relative_interval=0.02)
    held, _, _ = stopped(looking, rho=0.7, noise=0.03, series=60)
    assert held > 0.9
