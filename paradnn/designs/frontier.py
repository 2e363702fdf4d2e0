"""Which points fit in memory, as proven by points that were tried.

Memory grows with every size. So a point that ran out of memory proves that every point which is at
least as large in all sizes runs out too. A point that fitted proves that every point which is at
most as large in all sizes fits too. Points of different kinds (family, precision, compile mode,
host) prove nothing about each other.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paradnn.statistics.robust_regression import Array

_Bools = NDArray[np.bool_]


def find_failure_proofs(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: _Bools,
    run_ids: Sequence[str],
) -> list[str | None]:
    """Find, for each candidate, a run that proves that the candidate runs out of memory.

    Such a run failed although it is at most as large as the candidate in every size. A failure is
    ignored if a point that is at least as large in every size did fit in memory. Other processes
    must then have used the memory.

    Args:
        candidates: (n, k) sizes of the candidates, such as batch size and number of nodes.
        kinds: (n,) kinds of the candidates. A point proves something only about points of its kind.
        tried: (m, k) sizes of the points (configurations) that were tried.
        tried_kinds: (m,) kinds of the tried points.
        failed: (m,) whether the tried points ran out of memory.
        run_ids: (m,) ids of the runs of the tried points.

    Returns:
        (n,) the id of the proving run, or None without a proof. Of several proving runs, it is the
        smallest by the first size, then by the next ones.
    """
    candidate_codes, tried_codes = _codes(kinds, tried_kinds)
    failures = sorted(
        map(int, np.flatnonzero(failed)), key=lambda index: (*tried[index], run_ids[index])
    )
    if not failures:
        return [None] * len(candidates)
    failed_codes = tried_codes[failures]
    is_contradicted = _at_least_as_large(
        tried[~failed], tried[failures], tried_codes[~failed], failed_codes
    ).any(axis=0)
    is_proof = _at_least_as_large(candidates, tried[failures], candidate_codes, failed_codes)
    is_proof &= ~is_contradicted
    return [run_ids[failures[int(row.argmax())]] if row.any() else None for row in is_proof]


def proven_to_fit(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: _Bools,
) -> _Bools:
    """Return, for each candidate, whether the success of a larger point proves that it fits.

    Args:
        candidates: (n, k) sizes of the candidates, such as batch size and number of nodes.
        kinds: (n,) kinds of the candidates. A point proves something only about points of its kind.
        tried: (m, k) sizes of the points (configurations) that were tried.
        tried_kinds: (m,) kinds of the tried points.
        failed: (m,) whether the tried points ran out of memory.

    Returns:
        (n,) whether a candidate is proven to fit in memory.
    """
    candidate_codes, tried_codes = _codes(kinds, tried_kinds)
    covers = _at_least_as_large(tried[~failed], candidates, tried_codes[~failed], candidate_codes)
    return np.asarray(covers.any(axis=0))


def _codes(kinds: Sequence[Hashable], tried_kinds: Sequence[Hashable]) -> tuple[Array, Array]:
    """Return a number for each kind of both sequences; equal kinds have equal numbers."""
    numbers = {kind: number for number, kind in enumerate({*kinds, *tried_kinds})}
    codes = np.array([numbers[kind] for kind in kinds], float)
    tried_codes = np.array([numbers[kind] for kind in tried_kinds], float)
    return codes, tried_codes


def _at_least_as_large(
    first: Array, second: Array, kinds: Array | float = 0.0, second_kinds: Array | float = 0.0
) -> _Bools:
    """Compare n rows of sizes with m rows of sizes.

    Args:
        first: (n, k) sizes of n points.
        second: (m, k) sizes of m points.
        kinds: (n,) number of the kind of each row of `first`, or one number for all.
        second_kinds: (m,) number of the kind of each row of `second`, or one number for all.

    Returns:
        (n, m) whether row i of `first` has the same kind as row j of `second` and is at least as
        large in all k sizes.
    """
    rows = np.zeros((len(first), len(second))) + np.reshape(kinds, (-1, 1))
    is_larger = rows == np.reshape(second_kinds, (1, -1))
    for column, second_column in zip(first.T, second.T, strict=True):
        is_larger &= column[:, None] >= second_column
    return np.asarray(is_larger)


def cross_check_points(points: ArrayLike, failed: ArrayLike) -> tuple[NDArray[np.str_], _Bools]:
    """Check each tried point against the other points: do they prove that it fits or fails?

    All points must be of one kind: same family, precision, compile mode and host.

    Args:
        points: (n, k) sizes of the points, such as batch size and number of nodes.
        failed: (n,) whether a point ran out of memory.

    Returns:
        Two arrays (n,). The first says what the other points prove about a point: "fits", "fails",
        "contradicted" or "open". The second says whether the point is at the edge: it failed and no
        smaller point failed, or it fits and no larger point fits.
    """
    sizes = np.asarray(points, dtype=float)
    has_failed = np.asarray(failed, dtype=bool)
    is_above = _at_least_as_large(sizes, sizes)
    is_other_above = is_above & ~np.eye(len(sizes), dtype=bool)
    is_larger = is_above & ~is_above.T
    fits = is_other_above[~has_failed].any(axis=0)
    fails = is_other_above[:, has_failed].any(axis=1)
    proven = np.select([fits & fails, fits, fails], ["contradicted", "fits", "fails"], "open")
    is_smallest_failure = ~is_larger[:, has_failed].any(axis=1)
    is_largest_fit = ~is_larger[~has_failed].any(axis=0)
    return proven, np.where(has_failed, is_smallest_failure, is_largest_fit)
