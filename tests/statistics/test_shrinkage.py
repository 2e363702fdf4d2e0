"""The best of planted estimates: its interval covers the truth in spite of the selection."""

import math

import numpy as np
import pytest
from scipy import stats

from paradnn.statistics.shrinkage import luck_of_largest, shrink_largest, shrinkage


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param(0.0, id="equal"),
        pytest.param(0.03, id="spread by 3%"),
        pytest.param(0.1, id="spread by 10%"),
        pytest.param(0.5, id="spread by 50%"),
    ],
)
def test_the_interval_of_the_best_of_fifty_holds_the_truth(spread: float) -> None:
    generator = np.random.default_rng(3)
    processes = 5
    draws = 400
    covered = 0
    for _ in range(draws):
        truth = generator.normal(0, spread, 50)
        logs = truth[:, None] + generator.normal(0, 0.05, (50, processes))
        middle = logs.mean(axis=1)
        half = stats.t.ppf(0.975, processes - 1) * stats.sem(logs, axis=1)

        ends = np.exp([middle, middle - half, middle + half])
        best = shrink_largest(*ends, np.full(50, processes))

        true = truth[int(np.argmax(middle))]
        covered += math.log(best.low) <= true <= math.log(best.high)
    assert covered / draws >= 0.93 - 0.0128  # a standard error


def test_one_clear_best_is_unchanged() -> None:
    values = np.array([100.0, 50.0, 49.0])

    best = shrink_largest(values, 0.95 * values, 1.05 * values, np.ones(3))

    assert best == pytest.approx((100.0, 95.0, 105.0))


def test_without_an_interval_nothing_is_shrunk() -> None:
    unknown = np.full(3, np.nan)

    best = shrink_largest(np.array([3.0, 2.9, 2.8]), unknown, unknown, unknown)

    assert best.value == 3.0
    assert math.isnan(best.low)


def test_means_move_by_the_share_of_sampling() -> None:
    means = np.array([0.0, 0.2, 0.4])  # sample variance 0.04: half of it is sampling
    sampling = np.full(3, 0.02)

    assert shrinkage(means, sampling, 2) == pytest.approx(0.1)
    assert shrinkage(means, 2 * sampling, 2) == pytest.approx(0.2)
    assert shrinkage(means[:1], sampling, 0) == 0.0


@pytest.mark.parametrize(
    ("processes", "quantile"),
    [
        pytest.param(np.nan, stats.norm.ppf(0.975), id="unknown"),
        pytest.param(1.0, stats.norm.ppf(0.975), id="one process"),
        pytest.param(2.0, stats.t.ppf(0.975, 1), id="two processes"),
        pytest.param(5.0, stats.t.ppf(0.975, 4), id="five processes"),
    ],
)
def test_an_interval_has_the_quantile_of_its_processes(processes: float, quantile: float) -> None:
    """Two values at a distance of two errors: the shift is half the distance times the share."""
    logs = np.array([0.0, 0.02])
    half = 0.01 * quantile

    best = shrink_largest(
        np.exp(logs), np.exp(logs - half), np.exp(logs + half), np.full(2, processes)
    )

    between = 0.02**2 / 2 - 0.01**2
    share = 0.01**2 / (0.01**2 + between)
    assert math.log(best.value) == pytest.approx(0.02 - share * 0.01)
    assert math.log(best.high / best.low) == pytest.approx(2 * half)


def test_values_beyond_two_errors_of_their_difference_do_not_count() -> None:
    logs = np.array([0.0, 0.027, 0.029])

    near = luck_of_largest(logs, np.full(3, 0.0103))
    far = luck_of_largest(logs, np.full(3, 0.0101))

    assert near == pytest.approx(shrinkage(logs, np.full(3, 0.0103**2), 2))
    assert far == pytest.approx(shrinkage(logs[1:], np.full(2, 0.0101**2), 1))
