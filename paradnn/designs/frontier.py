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
    """Find the run that proves that a candidate runs out of memory.

    A failure is ignored if a point that is at least as large in every size fitted: other processes
    must have used the memory.

    Args:
        candidates: (n, k) sizes of the candidates.
        kinds: (n,) kinds of the candidates. A point proves something only about points of its kind.
        tried: (m, k) sizes of the points that were tried.
        tried_kinds: (m,) kinds of these points.
        failed: (m,) whether these points ran out of memory.
        run_ids: (m,) ids of their runs.

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
    """Return (n,) whether a success proves that a candidate fits in memory.

    Arguments are those of `find_failure_proofs`.
    """
    candidate_codes, tried_codes = _codes(kinds, tried_kinds)
    covers = _at_least_as_large(tried[~failed], candidates, tried_codes[~failed], candidate_codes)
    return np.asarray(covers.any(axis=0))


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[Array, Array]:
    """Return a number for each kind of both sequences; equal kinds have equal numbers."""
    numbers = {kind: number for number, kind in enumerate({*kinds, *others})}
    codes = np.array([numbers[kind] for kind in kinds], float)
    other_codes = np.array([numbers[kind] for kind in others], float)
    return codes, other_codes


def _at_least_as_large(
    one: Array, other: Array, kinds: Array | float = 0.0, other_kinds: Array | float = 0.0
) -> _Bools:
    """Return (n, m) whether row i of `one` has the kind of row j of `other` and is not smaller.

    Args:
        one: (n, k) sizes.
        other: (m, k) sizes; row i must be at least as large in all k sizes.
        kinds: (n,) numbers of the kinds of `one`, or one number.
        other_kinds: (m,) numbers of the kinds of `other`, or one number.
    """
    rows = np.zeros((len(one), len(other))) + np.reshape(kinds, (-1, 1))
    is_larger = rows == np.reshape(other_kinds, (1, -1))
    for column, other_column in zip(one.T, other.T, strict=True):
        is_larger &= column[:, None] >= other_column
    return np.asarray(is_larger)


def cross_check_points(points: ArrayLike, failed: ArrayLike) -> tuple[NDArray[np.str_], _Bools]:
    """Return what the other points of one kind prove about each point, and which are at the edge.

    Args:
        points: (n, k) sizes.
        failed: (n,) whether a point ran out of memory.

    Returns:
        (n,) what the other points prove about a point: "fits", "fails", "contradicted" or "open";
        and (n,) whether it is at the edge: it failed and no smaller point failed, or it fits
        and no larger point fits.
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
