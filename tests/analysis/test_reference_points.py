"""The test of reference points, beside what MLPerf's own checker says of the same points, and its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats

from analysis.analyses.time_to_accuracy import convergence, judge, prune


def test_the_least_that_passes_is_where_a_t_test_says_five_percent() -> None:
    point = convergence(256, [40.0, 42, 43, 44, 44, 45, 46, 47, 49, 60])
    assert point.mean == pytest.approx(np.mean([42, 43, 44, 44, 45, 46, 47, 49]))
    assert point.deviation == pytest.approx(np.std([40, 42, 43, 44, 44, 45, 46, 47, 49, 60]))
    least = point.least(5)
    found = ttest_ind_from_stats(least, point.deviation, 3, point.mean, point.deviation, 8)
    assert found.statistic < 0
    assert found.pvalue / 2 == pytest.approx(0.05)
    assert math.isnan(point.least(2))
    assert convergence(256, [4.0] * 10).least(5) == 4


def test_points_on_the_slow_side_do_not_count() -> None:
    points = [
        convergence(size, [mean] * 10) for size, mean in ((16, 9), (32, 8), (64, 12), (128, 11), (256, 20), (512, 21))
    ]
    # 16 is below the fastest's batch size; 64 and 256 are above the lines between their neighbours.
    assert [point.batch_size for point in prune(points)] == [32, 128, 512]
    assert [point.batch_size for point in prune(reversed(points))] == [32, 128, 512]


REFERENCE = prune([convergence(100, [10.0, 10, 11, 9, 10]), convergence(200, [20.0, 20, 22, 18, 20])])


@pytest.mark.parametrize(
    ("batch_size", "epochs", "basis", "passes"),
    [
        (100, [10.0, 10, 10], "found", True),
        (100, [5.0, 5, 5], "found", False),
        (150, [15.0, 15, 15], "interpolated", True),
        (150, [9.0, 9, 9], "interpolated", False),
        (150, [9.0, 30, math.inf], "interpolated", True),
        (150, [9.0, math.inf, math.inf], "unfinished", False),
        (50, [10.0, 10, 10], "smallest", True),
        (50, [5.0, 5, 5], "smallest", False),
        (300, [50.0, 50, 50], "beyond", False),
        (150, [1.0, 1], "few", True),
    ],
)
def test_every_way_that_it_can_end(batch_size: int, epochs: list[float], basis: str, passes: bool) -> None:
    verdict = judge(REFERENCE, batch_size, epochs)
    assert (verdict.basis, verdict.passes) == (basis, passes)


def test_it_is_what_mlperfs_checker_says() -> None:
    """`RCP_Checker` of github.com/mlcommons/logging (7bbf792) for resnet, of which five runs are submitted."""
    epochs = {
        400: [36, 37, 38, 38, 39, 39, 40, 40, 41, 44],
        800: [37, 39, 39, 40, 40, 41, 41, 42, 43, 47],
        1600: [45, 46, 46, 47, 47, 48, 48, 49, 50, 52],
        3200: [47, 48, 49, 50, 50, 50, 51, 52, 53, 58],
    }
    points = [convergence(size, list(map(float, took))) for size, took in epochs.items()]
    found = [(point.mean, point.least(5)) for point in points]
    expected = ((39, 36.35), (40.625, 37.415), (47.625, 45.155), (50.375, 46.744))
    assert found == [pytest.approx(pair, abs=1e-3) for pair in expected]
    kept = prune(points)
    assert [point.batch_size for point in kept] == [400, 800, 3200]
    verdict = judge(kept, 1200, [42.0] * 5, reference_runs=10)
    assert (verdict.expected, verdict.least) == pytest.approx((42.25, 39.125), abs=1e-3)
