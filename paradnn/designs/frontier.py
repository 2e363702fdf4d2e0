"""Inference about memory from the points that were tried.

Memory grows with every size. A point that ran out of memory therefore proves that every point runs
out that is at least as large in all sizes, and a point that fitted proves that every point fits
that is at most as large in all sizes. Points of different kinds (family, precision, compile mode,
host) prove nothing about each other.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paradnn.statistics.robust_regression import Array

_Bools = NDArray[np.bool_]


def excluded(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: _Bools,
    run_ids: Sequence[str],
) -> list[str | None]:
    """Find the run that proves that a candidate runs out of memory.

    A failure is ignored if a point fitted that is at least as large in every size: something else
    took its memory.

    Args:
        candidates: (n, k) sizes; larger numbers are larger sizes.
        kinds: (n,) what must be equal for one point to prove anything about another.
        tried: (m, k) sizes of points that were tried.
        tried_kinds: (m,) their kinds.
        failed: (m,) whether they ran out of memory.
        run_ids: (m,) their run ids.

    Returns:
        (n,) the id of the smallest proving run, ordered by the first size, or None without a proof.
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


def fitting(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: _Bools,
) -> _Bools:
    """Return (n,) whether a success proves that a candidate fits in memory.

    Arguments are those of `excluded`.
    """
    candidate_codes, tried_codes = _codes(kinds, tried_kinds)
    covers = _at_least_as_large(tried[~failed], candidates, tried_codes[~failed], candidate_codes)
    return np.asarray(covers.any(axis=0))


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[Array, Array]:
    """Return the same number for equal kinds in both sequences."""
    numbers = {kind: number for number, kind in enumerate({*kinds, *others})}
    codes = np.array([numbers[kind] for kind in kinds], float)
    other_codes = np.array([numbers[kind] for kind in others], float)
    return codes, other_codes


def _at_least_as_large(
    one: Array, other: Array, kinds: Array | float = 0.0, other_kinds: Array | float = 0.0
) -> _Bools:
    """Return (n, m) whether row i of (n, k) `one` is of the kind of row j of (m, k) `other` and at
    least as large in all k sizes.
    """
    rows = np.zeros((len(one), len(other))) + np.reshape(kinds, (-1, 1))
    is_larger = rows == np.reshape(other_kinds, (1, -1))
    for column, other_column in zip(one.T, other.T, strict=True):
        is_larger &= column[:, None] >= other_column
    return np.asarray(is_larger)


def sides(points: ArrayLike, failed: ArrayLike) -> tuple[NDArray[np.str_], _Bools]:
    """Compare each point of one kind with the others.

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
