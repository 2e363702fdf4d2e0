"""What memory excludes, learnt from what was tried: memory grows with every size, so a few points tell of many.

What ran out of memory proves that all runs out that is no smaller in any size, and what fitted proves that all fits
that is no larger in any. Points of different kinds (family, precision, compile mode, host) prove nothing of each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.regression import Array

__all__ = ["excluded", "fitting"]


def excluded(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: NDArray[np.bool_],
    run_ids: Sequence[str],
) -> list[str | None]:
    """Of each candidate the run that proves it runs out of memory, None where none does.

    candidates: (n, k) sizes, larger numbers being larger sizes; tried: (m, k). kinds, tried_kinds: what must be equal
    for one to prove anything of the other. failed: (m,) whether it ran out of memory. Where several prove it, the
    smallest in the first size that differs. A failure that a success is no smaller than in any size proves nothing:
    something else took its memory.
    """
    own, theirs = _codes(kinds, tried_kinds)
    found: list[str | None] = [None] * len(candidates)
    fitted, fitted_kinds = tried[~failed], theirs[~failed]
    order = sorted(map(int, np.flatnonzero(failed)), key=lambda index: (*tried[index], run_ids[index]))
    for index in order:
        sizes, kind = tried[index], theirs[index]
        if ((fitted >= sizes).all(axis=1) & (fitted_kinds == kind)).any():
            continue
        for place in np.flatnonzero((candidates >= sizes).all(axis=1) & (own == kind)):
            found[place] = found[place] or run_ids[index]
    return found


def fitting(
    candidates: Array,
    kinds: Sequence[Hashable],
    tried: Array,
    tried_kinds: Sequence[Hashable],
    failed: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """(n,) which candidates a success proves to fit: one of the same kind that is no smaller in any size."""
    own, theirs = _codes(kinds, tried_kinds)
    found = np.zeros(len(candidates), dtype=bool)
    for sizes, kind in zip(tried[~failed], theirs[~failed], strict=True):
        found |= (candidates <= sizes).all(axis=1) & (own == kind)
    return found


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A number for every kind."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys([*kinds, *others]))}
    return np.array([numbers[kind] for kind in kinds], dtype=np.intp), np.array(
        [numbers[kind] for kind in others], dtype=np.intp
    )
