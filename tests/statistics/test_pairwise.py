"""Differences between all pairs, compared with enumerated partitions and planted truths."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scipy import stats

from paradnn.statistics.dependence import Component
from paradnn.statistics.pairwise import count_equal_pairs, find_differences

Pair = tuple[int, int]


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield all partitions of items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for index, group in enumerate(groups):
            yield [*groups[:index], [first, *group], *groups[index + 1 :]]


def equal_pairs(count: int) -> list[set[Pair]]:
    """Return the possible sets of equal pairs of `count` items, one set per partition."""
    return [
        {pair for group in groups for pair in itertools.combinations(sorted(group), 2)}
        for groups in partitions(range(count))
    ]


def differences(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[:, None] - values[None, :])


def exact_step_down(p_values: dict[Pair, float], count: int) -> set[Pair]:
    """Return the differing pairs by Shaffer's step-down method with exact counts of equal pairs."""
    found: set[Pair] = set()
    while True:
        possible = [equal for equal in equal_pairs(count) if not equal & found]
        new = {
            pair
            for pair, p_value in p_values.items()
            if pair not in found
            and p_value <= 0.05 / max(len(equal) for equal in possible if pair in equal)
        }
        if not new:
            return found
        found |= new


@pytest.mark.parametrize("seed", range(8))
def test_found_pairs_are_between_bonferroni_and_the_exact_step_down(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(0, 2.5, 5)
    variance = generator.uniform(0.5, 1.5, (5, 5))
    error = Component((variance + variance.T) / 2, np.full((5, 5), 9.0))
    distances = np.abs(differences(values))
    p_values = {
        pair: float(2 * stats.t.sf(distances[pair] / np.sqrt(error.variance[pair]), 9))
        for pair in itertools.combinations(range(5), 2)
    }

    found = find_differences(differences(values), [error])

    pairs = {pair for pair in p_values if found[pair]}

    assert (found == found.T).all()
    assert {pair for pair, p_value in p_values.items() if p_value <= 0.005} <= pairs
    assert pairs <= exact_step_down(p_values, 5)


@pytest.mark.parametrize(
    ("count", "pairs"), [pytest.param(2, 1, id="one pair"), pytest.param(3, 3, id="three pairs")]
)
@pytest.mark.parametrize(
    ("factor", "differ"),
    [
        pytest.param(0.999, False, id="below the limit"),
        pytest.param(1.001, True, id="above the limit"),
    ],
)
def test_the_first_step_is_a_two_sided_t_test_with_bonferronis_correction(
    count: int, pairs: int, factor: float, differ: bool
) -> None:
    """Half-widths of independent errors add in quadrature (Zou and Donner 2008)."""
    shape = (count, count)
    errors = [
        Component(np.full(shape, 0.5), 7.0),
        Component(np.full(shape, 1.5), np.full(shape, 20.0)),
    ]
    level = 1 - 0.05 / pairs / 2
    limit = np.hypot(stats.t.ppf(level, 7) * np.sqrt(0.5), stats.t.ppf(level, 20) * np.sqrt(1.5))
    values = np.zeros(count)
    values[0] = factor * limit

    found = find_differences(differences(values), errors)

    assert found[0, 1:].all() == found[1:, 0].all() == differ
    assert not found[1:, 1:].any()


def test_a_later_step_finds_a_difference_that_the_first_step_misses() -> None:
    # 2.3 standard errors have a two-sided p of 0.021, which exceeds 0.05 / 3.
    error = Component(np.ones((3, 3)), np.inf)

    found = find_differences(differences(np.array([0.0, 3.2, 2.3])), [error])

    assert found[0, 1]
    assert found[0, 2]  # 0 and 1 differ, so if 0 and 2 are equal, no other pair is
    assert not found[1, 2]


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_no_partition_has_more_equal_pairs_than_the_counted_maximum(count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    graph = np.triu(generator.random((count, count)) < 0.7, k=1)
    graph |= graph.T

    counted = count_equal_pairs(graph)

    possible = [equal for equal in equal_pairs(count) if all(graph[pair] for pair in equal)]
    for pair in zip(*np.nonzero(np.triu(graph)), strict=True):
        most = max(len(equal) for equal in possible if pair in equal)
        assert most <= counted[pair] <= graph.sum() // 2


def test_exact_differences_need_no_test() -> None:
    error = Component(np.zeros((3, 3)), np.inf)

    found = find_differences(differences(np.array([1.0, 1.0, 1.0 + 1e-9])), [error])

    assert found.tolist() == [[False, False, True], [False, False, True], [True, True, False]]


@pytest.mark.parametrize(
    ("truth", "equal"),
    [
        pytest.param([0.0] * 4, {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}, id="all equal"),
        pytest.param([9.0, 0.0, 0.0, 0.0], {(1, 2), (1, 3), (2, 3)}, id="one apart"),
        pytest.param([9.0, 9.0, 0.0, 0.0], {(0, 1), (2, 3)}, id="two and two"),
        pytest.param([9.0, 4.0, 0.0, 0.0], {(2, 3)}, id="one pair"),
    ],
)
def test_the_family_wise_error_rate_is_at_most_five_percent(
    truth: list[float], equal: set[Pair]
) -> None:
    generator = np.random.default_rng(5)
    error = Component(np.full((4, 4), 2.0), np.inf)
    draws = 1000
    false_differences = 0

    for _ in range(draws):
        found = find_differences(differences(truth + generator.normal(0, 1, 4)), [error])
        false_differences += any(found[pair] for pair in equal)

    assert false_differences / draws <= 0.065  # 5% plus two standard errors
