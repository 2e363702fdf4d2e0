"""What memory excludes: against every pair of points, and where something disturbed a run."""

import numpy as np
import pytest

from paradnn.designs.frontier import excluded, fitting


@pytest.mark.parametrize("seed", range(12))
def test_proofs_are_those_of_every_pair(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 5, (random.integers(1, 12), 2)).astype(float)
    kinds = list(random.choice(["a", "b"], len(sizes)))
    tried = random.permutation(len(sizes))[: random.integers(0, len(sizes) + 1)]
    failed = sizes[tried].prod(axis=1) > random.integers(2, 11)
    names, tried_kinds = [f"run {index}" for index in tried], [kinds[index] for index in tried]
    found = excluded(sizes, kinds, sizes[tried], tried_kinds, failed, names)
    fits = fitting(sizes, kinds, sizes[tried], tried_kinds, failed)
    for place, size in enumerate(sizes):
        like = [index for index, kind in enumerate(tried_kinds) if kind == kinds[place]]
        proofs = {names[index] for index in like if failed[index] and (size >= sizes[tried[index]]).all()}
        assert (found[place] in proofs) if proofs else found[place] is None
        assert fits[place] == any(not failed[index] and (size <= sizes[tried[index]]).all() for index in like)


def test_a_failure_that_a_larger_success_contradicts_proves_nothing() -> None:
    sizes = np.array([[2.0, 2.0], [4.0, 4.0], [8.0, 8.0]])
    failed = np.array([True, False])
    assert excluded(sizes, [0] * 3, sizes[:2], [0] * 2, failed, ["disturbed", "larger"]) == [None] * 3
    assert fitting(sizes, [0] * 3, sizes[:2], [0] * 2, failed).tolist() == [True, True, False]
