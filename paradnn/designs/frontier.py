"""What memory excludes, learnt from what was tried: memory grows with every size, so a few points tell of many.

What ran out of memory proves that all runs out that is no smaller in any size, and what fitted proves that all fits
that is no larger in any. Points of different kinds (family, precision, compile mode, host) prove nothing of each other.
`excluded` and `fitting` say so of points that are to be tried; `Frontier`, of points of one kind, where memory ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from paradnn.forecast.regression import Array

#: How far from the failures the frontier is looked for (log), and how wide it is before data (log).
_REACH, _WIDTH = 6.0, 0.02

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

    candidates: (n, k) sizes, larger numbers being larger sizes; tried: (m, k). kinds, tried_kinds: what must be equal
    for one to prove anything of the other. failed: (m,) whether it ran out of memory. Where several prove it, the
    smallest in the first size that differs. A failure that a success is no smaller than in any size proves nothing:
    something else took its memory.
    """
    own, codes = _codes(kinds, tried_kinds)
    order = sorted(map(int, np.flatnonzero(failed)), key=lambda index: (*tried[index], run_ids[index]))
    if not order:
        return [None] * len(candidates)
    disturbed = _no_smaller(tried[~failed], tried[order], codes[~failed], codes[order]).any(axis=0)
    proofs = _no_smaller(candidates, tried[order], own, codes[order]) & ~disturbed
    found = zip(proofs.argmax(axis=1), _some(proofs, axis=1), strict=True)
    return [run_ids[order[first]] if proved else None for first, proved in found]


def fitting(
    candidates: Array, kinds: Sequence[Hashable], tried: Array, tried_kinds: Sequence[Hashable], failed: _Bools
) -> _Bools:
    """(n,) which candidates a success proves to fit: one of the same kind that is no smaller in any size."""
    own, codes = _codes(kinds, tried_kinds)
    return _some(_no_smaller(tried[~failed], candidates, codes[~failed], own), axis=0)


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[Array, Array]:
    """A number for every kind."""
    numbers = {kind: number for number, kind in enumerate({*kinds, *others})}
    return np.array([numbers[kind] for kind in kinds], float), np.array([numbers[kind] for kind in others], float)


def _no_smaller(one: Array, other: Array, kinds: Array | float = 0.0, other_kinds: Array | float = 0.0) -> _Bools:
    """(n, m) whether each of (n, k) sizes is in none smaller than each of (m, k), and of the same kind."""
    found = np.zeros((len(one), len(other))) + np.reshape(kinds, (-1, 1)) == np.reshape(other_kinds, (1, -1))
    for column, other_column in zip(one.T, other.T, strict=True):
        found &= column[:, None] >= other_column
    return np.asarray(found)


def _some(table: _Bools, axis: int) -> _Bools:
    return np.asarray(table.any(axis=axis))


class Side(StrEnum):
    """What is known of a point."""

    FITS = "fits"
    FAILS = "fails"
    OPEN = "open"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True)
class Frontier:
    """The points of one kind that matter: `fitted` (m, k), which nothing that fitted exceeds in every size, and
    `failed` (p, k), below which nothing failed."""

    fitted: Array
    failed: Array

    @classmethod
    def fit(cls, points: ArrayLike, failed: ArrayLike) -> Frontier:
        """From points (n, k), larger numbers being larger sizes, and whether each failed (n,)."""
        sizes, outcome = np.asarray(points, dtype=float), np.asarray(failed, dtype=bool)
        return cls(-_least(-sizes[~outcome]), _least(sizes[outcome]))

    def side(self, points: ArrayLike) -> NDArray[np.str_]:
        """The `Side` of each point (n, k): `contradicted` what is no larger than one that fitted and no smaller than
        one that failed."""
        sizes = np.asarray(points, dtype=float)
        return _named(_some(_no_smaller(self.fitted, sizes), 0), _some(_no_smaller(sizes, self.failed), 1))

    @staticmethod
    def sides_by_others(points: ArrayLike, failed: ArrayLike) -> NDArray[np.str_]:
        """What the others say of each point (n,): its `Side` with itself left out."""
        sizes, outcome = np.asarray(points, dtype=float), np.asarray(failed, dtype=bool)
        others = _no_smaller(sizes, sizes) & ~np.eye(len(sizes), dtype=bool)
        return _named(_some(others[~outcome], 0), _some(others[:, outcome], 1))


def _named(fits: _Bools, fails: _Bools) -> NDArray[np.str_]:
    sides = [Side.CONTRADICTED.value, Side.FITS.value, Side.FAILS.value]
    return np.select([fits & fails, fits, fails], sides, Side.OPEN.value)


def _least(sizes: Array) -> Array:
    """The distinct points (m, k) of some (n, k) that no other is below in every size."""
    distinct = np.unique(sizes, axis=0)
    above = _no_smaller(distinct, distinct) & ~np.eye(len(distinct), dtype=bool)
    return np.asarray(distinct[~above.any(axis=1)])


def chances(bounds: Array, tried: Array, failed: _Bools) -> Array:
    """(n,) the probability that each candidate runs out of memory, from its analytic bound in bytes (n,).

    tried: (m,) bounds of the points that were tried, and `failed` (m,) whether they ran out. A point fails with the
    probability Phi(log(bound / frontier) / width), of frontier and width weighed by what was seen, over a grid.
    """
    if not failed.any():
        return np.zeros(len(bounds))
    frontiers = np.log(np.median(tried[failed])) + np.linspace(-_REACH, _REACH, 601)
    widths = _WIDTH * np.exp(np.linspace(-2, 2, 9))
    frontier, width = (axis.ravel() for axis in np.meshgrid(frontiers, widths))
    margin = (np.log(tried)[:, None] - frontier) / width
    seen = np.where(failed[:, None], log_ndtr(margin), log_ndtr(-margin)).sum(axis=0)
    seen -= 0.5 * (((frontier - frontiers.mean()) / 2) ** 2 + np.log(width / _WIDTH) ** 2)
    weight = np.exp(seen - seen.max())
    places = np.linspace(frontiers[0], frontiers[-1], 601)
    found = ndtr((places[:, None] - frontier) / width) @ weight / weight.sum()
    return np.asarray(np.interp(np.log(bounds), places, found))
