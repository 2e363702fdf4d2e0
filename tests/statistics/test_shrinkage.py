"""Shrinkage of the best of planted estimates, whose interval must cover the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from paradnn.statistics.shrinkage import luck_of_largest, shrink_largest, shrinkage


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param(0.0, id="equal truths"),
        pytest.param(0.03, id="truths spread by 3%"),
        pytest.param(0.1, id="truths spread by 10%"),
        pytest.param(0.5, id="truths spread by 50%"),
    ],
)
def test_the_interval_of_the_best_of_fifty_has_nominal_coverage(spread: float) -> None:
    generator = np.random.default_rng(3)
    processes = 5
    draws = 400
    covered = 0
    for _ in range(draws):
        truth = generator.normal(0, spread, 50)
        logs = truth[:, None] + generator.normal(0, 0.05, (50, processes))
        middle = logs.mean(axis=1)
        half_width = stats.t.ppf(0.975, processes - 1) * stats.sem(logs, axis=1)

        intervals = np.exp([middle, middle - half_width, middle + half_width])
        best = shrink_largest(*intervals, np.full(50, processes))

        true_of_best = truth[int(np.argmax(middle))]
        covered += math.log(best.low) <= true_of_best <= math.log(best.high)

    assert covered / draws >= 0.93 - 0.0128  # less one standard error


def test_a_clear_best_is_unchanged() -> None:
    values = np.array([100.0, 50.0, 49.0])

    best = shrink_largest(values, 0.95 * values, 1.05 * values, np.ones(3))

    assert best == pytest.approx((100.0, 95.0, 105.0))


def test_without_an_interval_nothing_is_shrunk() -> None:
    unknown = np.full(3, np.nan)

    best = shrink_largest(np.array([3.0, 2.9, 2.8]), unknown, unknown, unknown)

    assert best.value == 3.0
    assert math.isnan(best.low)


def test_means_are_shrunk_by_the_share_of_sampling_variance() -> None:
    # The sample variance of the means is 0.04; half of it is due to sampling.
    means = np.array([0.0, 0.2, 0.4])
    sampling = np.full(3, 0.02)

    assert shrinkage(means, sampling, 2) == pytest.approx(0.1)
    assert shrinkage(means, 2 * sampling, 2) == pytest.approx(0.2)
    assert shrinkage(means[:1], sampling, 0) == 0.0


@pytest.mark.parametrize(
    ("processes", "quantile"),
    [
        pytest.param(np.nan, stats.norm.ppf(0.975), id="unknown number"),
        pytest.param(1.0, stats.norm.ppf(0.975), id="one process"),
        pytest.param(2.0, stats.t.ppf(0.975, 1), id="two processes"),
        pytest.param(5.0, stats.t.ppf(0.975, 4), id="five processes"),
    ],
)
def test_the_error_follows_from_the_interval_and_the_number_of_processes(
    processes: float, quantile: float
) -> None:
    """Two values are two errors apart. The best moves by half the distance times the share."""
    logs = np.array([0.0, 0.02])
    half_width = 0.01 * quantile

    best = shrink_largest(
        np.exp(logs), np.exp(logs - half_width), np.exp(logs + half_width), np.full(2, processes)
    )

    between = 0.02**2 / 2 - 0.01**2
    share = 0.01**2 / (0.01**2 + between)

    assert math.log(best.value) == pytest.approx(0.02 - share * 0.01)
    assert math.log(best.high / best.low) == pytest.approx(2 * half_width)


def test_values_more_than_two_errors_below_the_best_are_ignored() -> None:
    logs = np.array([0.0, 0.027, 0.029])

    near = luck_of_largest(logs, np.full(3, 0.0103))
    far = luck_of_largest(logs, np.full(3, 0.0101))

    assert near == pytest.approx(shrinkage(logs, np.full(3, 0.0103**2), 2))
    assert far == pytest.approx(shrinkage(logs[1:], np.full(2, 0.0101**2), 1))
