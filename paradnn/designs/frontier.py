"""What memory excludes, learnt from what was tried: memory grows with every size, so a few points
tell of many.

What ran out of memory proves that all runs out that is no smaller in any size, and what fitted
proves that all fits that is no larger in any. Points of different kinds (family, precision, compile
mode, host) prove nothing of each other.
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
    """Of each candidate the run that proves it runs out of memory, None where none does.

    candidates: (n, k) sizes, larger numbers being larger sizes; tried: (m, k). kinds, tried_kinds:
    what must be equal for one to prove anything of the other. failed: (m,) whether it ran out of
    memory. Where several prove it, the smallest in the first size that differs. A failure that a
    success is no smaller than in any size proves nothing: something else took its memory.
    """
    own, codes = _codes(kinds, tried_kinds)
    order = sorted(
        map(int, np.flatnonzero(failed)), key=lambda index: (*tried[index], run_ids[index])
    )
    if not order:
        return [None] * len(candidates)
    disturbed = _no_smaller(tried[~failed], tried[order], codes[~failed], codes[order]).any(axis=0)
    proofs = _no_smaller(candidates, tried[order], own, codes[order]) & ~disturbed
    return [run_ids[order[int(proved.argmax())]] if proved.any() else None for proved in proofs]


def fitting(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: _Bools,
) -> _Bools:
    """(n,) which candidates a success proves to fit: one of the same kind that is no smaller in any
    size.
    """
    own, codes = _codes(kinds, tried_kinds)
    return np.asarray(_no_smaller(tried[~failed], candidates, codes[~failed], own).any(axis=0))


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[Array, Array]:
    """A number for every kind."""
    numbers = {kind: number for number, kind in enumerate({*kinds, *others})}
    return np.array([numbers[kind] for kind in kinds], float), np.array(
        [numbers[kind] for kind in others], float
    )


def _no_smaller(
    one: Array, other: Array, kinds: Array | float = 0.0, other_kinds: Array | float = 0.0
) -> _Bools:
    """(n, m) whether each of (n, k) sizes is in none smaller than each of (m, k), and of the same
    kind.
    """
    found = np.zeros((len(one), len(other))) + np.reshape(kinds, (-1, 1)) == np.reshape(
        other_kinds, (1, -1)
    )
    for column, other_column in zip(one.T, other.T, strict=True):
        found &= column[:, None] >= other_column
    return np.asarray(found)


def sides(points: ArrayLike, failed: ArrayLike) -> tuple[NDArray[np.str_], _Bools]:
    """What the others say of each of points (n, k) of one kind: "fits", "fails", "contradicted" or
    "open"; and whether it is at the edge: of those that failed none is smaller, or of those that
    fitted none larger.
    """
    sizes = np.asarray(points, dtype=float)
    outcome = np.asarray(failed, dtype=bool)
    above = _no_smaller(sizes, sizes)
    others = above & ~np.eye(len(sizes), dtype=bool)
    larger = above & ~above.T
    fits = others[~outcome].any(axis=0)
    fails = others[:, outcome].any(axis=1)
    said = np.select([fits & fails, fits, fails], ["contradicted", "fits", "fails"], "open")
    return said, np.where(outcome, ~larger[:, outcome].any(axis=1), ~larger[~outcome].any(axis=0))
