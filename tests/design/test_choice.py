"""Choice of points, expected errors, and exclusions by memory, in adaptive sweeps.

Plain computations and simulations give the expected results.
"""

from typing import NamedTuple

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
    return Prediction(
        mean=np.zeros(count), root=root, own=own, group=groups, noise=0.1, freedom=50.0
    )


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


@pytest.mark.parametrize("seed", range(3))
def test_points_claimed_by_other_drivers_count_as_chosen(seed: int) -> None:
    random = np.random.default_rng(seed)
    prediction = posterior(random, 40)
    seconds = random.uniform(1, 5, 40)
    first, *others = choose(prediction, seconds, 5)
    allowed = np.arange(40) != first

    assert choose(prediction, seconds, 4, allowed=allowed, claimed=[first]) == others


@pytest.mark.parametrize("seed", range(3))
def test_all_allowed_points_are_chosen_if_the_count_exceeds_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    prediction = posterior(random, 40)
    seconds = random.uniform(1, 5, 40)
    [excluded] = choose(prediction, seconds, 1)
    allowed = np.arange(40) != excluded

    assert sorted(choose(prediction, seconds, 99, allowed=allowed)) == sorted(
        {*range(40)} - {excluded}
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_most_useful_point_is_chosen_among_replicates(seed: int) -> None:
    # Points 0, 1 and 2 are replicates, and so are points 5 and 6.
    groups = [0, 0, 0, 3, 4, 5, 5, 7, 8, 9, 10, 11]
    prediction = posterior(np.random.default_rng(seed), 12, groups)
    ones = np.ones(12)

    assert choose(prediction, ones, 1) == brute_force_choice(prediction, ones, ones, 1)


def test_the_first_points_are_spread_over_every_axis() -> None:
    """Each level gets its share of the points. A random choice would not guarantee that."""
    axes = np.meshgrid(np.arange(8), 10.0 ** np.arange(4), [3.0], indexing="ij")
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    chosen = first_points(grid, 16, seed=3)

    assert len(set(chosen)) == 16
    # The shares are 16 / 8 = 2 points and 16 / 4 = 4 points, each with a tolerance of one point.
    assert all(1 <= (grid[chosen, 0] == level).sum() <= 3 for level in np.unique(grid[:, 0]))
    assert all(3 <= (grid[chosen, 1] == level).sum() <= 5 for level in np.unique(grid[:, 1]))


def test_the_seed_determines_the_first_points() -> None:
    axes = np.meshgrid(np.arange(8), 10.0 ** np.arange(4), [3.0], indexing="ij")
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    chosen = first_points(grid, 16, seed=3)

    assert chosen == first_points(grid, 16, seed=3)
    assert chosen != first_points(grid, 16, seed=4)


def test_the_first_points_are_at_most_all_candidates() -> None:
    for count in (0, 1, 2, 5):
        assert len(set(first_points(np.array([[1.0], [2.0]]), count, seed=0))) == min(count, 2)
        assert len(first_points(np.ones((3, 2)), count, seed=0)) == min(count, 3)


def test_the_expected_error_equals_that_of_a_simulation() -> None:
    random = np.random.default_rng(1)
    spreads = random.uniform(0.01, 0.9, 400)
    errors = np.abs(np.expm1(spreads * random.standard_normal((4000, 400))))

    assert median_error(spreads) == pytest.approx(np.median(errors), rel=0.01)
    # For a single point, it is 0.6745 spreads (the quartile of a normal distribution), up to second
    # order.
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


@pytest.mark.parametrize(
    "factor",
    [
        pytest.param(3.0, id="errors three times as large"),
        pytest.param(0.5, id="smaller errors"),
    ],
)
def test_the_coverage_is_the_share_of_errors_within_their_intervals(factor: float) -> None:
    errors = np.random.default_rng(2).standard_t(9, 4000)
    leave_one_out = LeaveOneOutErrors(factor * 0.1 * errors, np.full(4000, 0.1), 9.0)

    # An error is in its 90% interval if the draw from Student's t is at most `limit`.
    limit = stats.t(9).isf(0.05) / factor
    expected_coverage = 2 * stats.t(9).cdf(limit) - 1
    assert leave_one_out.coverage(0.9) == pytest.approx(expected_coverage, abs=0.02)


class TriedPoint(NamedTuple):
    """A point that was tried, and whether it ran out of memory."""

    size: Array
    kind: str
    run_id: str
    has_failed: bool


def proving_run_ids(size: Array, kind: str, tried: list[TriedPoint]) -> set[str]:
    """Return the runs that prove that a point runs out of memory."""
    return {
        point.run_id
        for point in tried
        if point.kind == kind and point.has_failed and (size >= point.size).all()
    }


def has_larger_success(size: Array, kind: str, tried: list[TriedPoint]) -> bool:
    """Return whether a point fits that has the same kind and is at least as large in all sizes."""
    return any(
        point.kind == kind and not point.has_failed and (size <= point.size).all()
        for point in tried
    )


@pytest.mark.parametrize("seed", range(12))
def test_failure_and_fit_proofs_match_a_comparison_of_all_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    candidate_count = random.integers(1, 12)
    sizes = random.integers(1, 5, (candidate_count, 2)).astype(float)
    kinds = [str(kind) for kind in random.choice(["a", "b"], candidate_count)]
    shuffled = random.permutation(candidate_count)
    tried_indices = shuffled[: random.integers(0, candidate_count + 1)]
    memory_limit = random.integers(2, 11)
    tried = [
        TriedPoint(
            sizes[index], kinds[index], f"run {index}", bool(sizes[index].prod() > memory_limit)
        )
        for index in tried_indices
    ]
    tried_sizes = sizes[tried_indices]
    tried_kinds = [point.kind for point in tried]
    failed = np.array([point.has_failed for point in tried], dtype=bool)
    run_ids = [point.run_id for point in tried]

    proofs = find_failure_proofs(sizes, kinds, tried_sizes, tried_kinds, failed, run_ids)
    fits = proven_to_fit(sizes, kinds, tried_sizes, tried_kinds, failed)

    for size, kind, proof, fit in zip(sizes, kinds, proofs, fits, strict=True):
        expected_proofs = proving_run_ids(size, kind, tried)
        if expected_proofs:
            assert proof in expected_proofs
        else:
            assert proof is None
        assert fit == has_larger_success(size, kind, tried)


def test_a_failure_that_a_larger_success_contradicts_proves_nothing() -> None:
    sizes = np.array([[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    failed = np.array([True, False])

    assert (
        find_failure_proofs(sizes, [0] * 3, sizes[:2], [0] * 2, failed, ["disturbed", "larger"])
        == [None] * 3
    )
    assert proven_to_fit(sizes, [0] * 3, sizes[:2], [0] * 2, failed).tolist() == [True, True, False]
