"""Choice of points, expected errors, and exclusions by memory, in adaptive sweeps.

Plain computations and simulations give the expected results.
"""

import numpy as np
import pytest
from scipy import stats

from paradnn.designs.choice import calibration_ratio, choose, first_points, median_error
from paradnn.designs.frontier import find_failure_proofs, proven_to_fit
from paradnn.forecast.process import LeaveOneOutErrors
from paradnn.statistics.robust_regression import Array, Prediction


def posterior(
    random: np.random.Generator, count: int, group: list[int] | None = None
) -> Prediction:
    """Return a random prediction of `count` points; points of one group are replicates."""
    groups = np.array(group if group is not None else range(count), dtype=np.intp)
    own = random.uniform(0.01, 0.2, count)[groups]
    root = random.normal(0, 0.3, (count, 4))[groups]
    return Prediction(np.zeros(count), root, own, groups, 0.1, 50.0)


def brute_force_choice(
    prediction: Prediction, seconds: Array, weights: Array, count: int
) -> list[int]:
    """Choose points by conditioning the whole covariance matrix for every candidate.

    Each choice maximizes the fall of the weighted relative variance per second. Chosen points and
    their replicates no longer count.
    """
    same = prediction.group[:, None] == prediction.group
    covariance = prediction.root @ prediction.root.T + same * prediction.own
    relative = weights / prediction.spread**2
    chosen: list[int] = []
    for _ in range(count):
        gains = []
        for index in range(len(weights)):
            column = covariance[:, index]
            fall = column**2 / (column[index] + prediction.noise**2)
            gains.append(-np.inf if index in chosen else relative @ fall / seconds[index])
        chosen.append(int(np.argmax(gains)))
        column = covariance[:, chosen[-1]].copy()
        covariance -= np.outer(column, column) / (column[chosen[-1]] + prediction.noise**2)
        relative[same[chosen[-1]]] = 0.0
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_the_most_useful_points_are_chosen(seed: int) -> None:
    random = np.random.default_rng(seed)
    prediction = posterior(random, 40)
    seconds = random.uniform(1, 5, 40)
    weights = random.uniform(0.1, 1, 40)

    assert choose(prediction, seconds, 6, weights) == brute_force_choice(
        prediction, seconds, weights, 6
    )

    first, *others = choose(prediction, seconds, 5)
    allowed = np.arange(40) != first

    assert choose(prediction, seconds, 4, allowed=allowed, claimed=[first]) == others, (
        "points claimed by other drivers must count as chosen"
    )
    assert sorted(choose(prediction, seconds, 99, allowed=allowed)) == sorted(
        {*range(40)} - {first}
    )

    with_replicates = posterior(random, 12, [0, 0, 0, 3, 4, 5, 5, 7, 8, 9, 10, 11])
    ones = np.ones(12)

    assert choose(with_replicates, ones, 1) == brute_force_choice(with_replicates, ones, ones, 1)


def test_the_first_points_are_spread_over_every_axis() -> None:
    """Each level of an axis has its share of the points, which random points would not give."""
    axes = np.meshgrid(np.arange(8), 10.0 ** np.arange(4), [3.0], indexing="ij")
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    chosen = first_points(grid, 16, seed=3)

    assert len(set(chosen)) == 16
    assert all(1 <= (grid[chosen, 0] == level).sum() <= 3 for level in np.unique(grid[:, 0]))
    assert all(3 <= (grid[chosen, 1] == level).sum() <= 5 for level in np.unique(grid[:, 1]))
    assert chosen == first_points(grid, 16, seed=3) != first_points(grid, 16, seed=4)

    # Ask for fewer and for more points than there are candidates.
    for count in (0, 1, 2, 5):
        assert len(set(first_points(np.array([[1.0], [2.0]]), count, seed=0))) == min(count, 2)
        assert len(first_points(np.ones((3, 2)), count, seed=0)) == min(count, 3)


def test_the_expected_error_equals_that_of_a_simulation() -> None:
    random = np.random.default_rng(1)
    spreads = random.uniform(0.01, 0.9, 400)
    errors = np.abs(np.expm1(spreads * random.standard_normal((4000, 400))))

    assert median_error(spreads) == pytest.approx(np.median(errors), rel=0.01)
    # For a single point, it is the quartile of a normal distribution, up to second order.
    assert median_error(np.array([0.01])) == pytest.approx(0.006745, rel=0.001)
    assert median_error(np.array([])) == 0
    assert median_error(np.zeros(3)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("count", "factor", "expected"),
    [
        pytest.param(4000, 3.0, 3.0, id="errors three times as large"),
        pytest.param(4000, 0.5, 1.0, id="smaller errors"),
        pytest.param(7, 9.0, 1.0, id="too few errors"),
    ],
)
def test_the_calibration_ratio_finds_errors_that_are_larger_than_stated(
    count: int, factor: float, expected: float
) -> None:
    errors = np.random.default_rng(2).standard_t(9, count)
    leave_one_out = LeaveOneOutErrors(factor * 0.1 * errors, np.full(count, 0.1), 9.0)

    assert calibration_ratio(leave_one_out) == pytest.approx(expected, rel=0.05)

    inside = stats.t(9).cdf(stats.t(9).isf(0.05) / factor) * 2 - 1
    assert count < 8 or leave_one_out.coverage(0.9) == pytest.approx(inside, abs=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_proofs_equal_a_comparison_of_all_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, (random.integers(1, 12), 2)).astype(float)
    kinds = list(random.choice(["a", "b"], len(sizes)))
    tried = random.permutation(len(sizes))[: random.integers(0, len(sizes) + 1)]
    failed = sizes[tried].prod(axis=1) > random.integers(2, 11)
    names = [f"run {index}" for index in tried]
    tried_kinds = [kinds[index] for index in tried]
    found = find_failure_proofs(sizes, kinds, sizes[tried], tried_kinds, failed, names)
    fits = proven_to_fit(sizes, kinds, sizes[tried], tried_kinds, failed)
    for number, size in enumerate(sizes):
        same_kind = [index for index, kind in enumerate(tried_kinds) if kind == kinds[number]]
        proofs = {
            names[index]
            for index in same_kind
            if failed[index] and (size >= sizes[tried[index]]).all()
        }
        if proofs:
            assert found[number] in proofs
        else:
            assert found[number] is None
        assert fits[number] == any(
            not failed[index] and (size <= sizes[tried[index]]).all() for index in same_kind
        )


def test_a_failure_that_a_larger_success_contradicts_proves_nothing() -> None:
    sizes = np.array([[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    failed = np.array([True, False])

    assert (
        find_failure_proofs(sizes, [0] * 3, sizes[:2], [0] * 2, failed, ["disturbed", "larger"])
        == [None] * 3
    )
    assert proven_to_fit(sizes, [0] * 3, sizes[:2], [0] * 2, failed).tolist() == [True, True, False]
