"""The frontier at which something ends that only grows: memory over the sizes of models and batches.

What fitted shows that all fits that is no larger in any size; what failed, that all fails that is no smaller in any.
Between the two nothing is known. An adaptive sweep measures there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Frontier", "Side"]


class Side(StrEnum):
    """What is known of a point."""

    FITS = "fits"
    FAILS = "fails"
    OPEN = "open"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True)
class Frontier:
    """The points that matter: `fitted` (m, k), which nothing that fitted exceeds in every size, and `failed` (p, k),
    below which nothing failed."""

    fitted: np.ndarray
    failed: np.ndarray

    @classmethod
    def fit(cls, points: ArrayLike, failed: ArrayLike) -> Frontier:
        """From points (n, k), larger numbers being larger sizes, and whether each failed (n,)."""
        sizes, outcome = np.asarray(points, dtype="float64"), np.asarray(failed, dtype=bool)
        return cls(-_least(-sizes[~outcome]), _least(sizes[outcome]))

    def side(self, points: ArrayLike) -> np.ndarray:
        """The `Side` of each point (n, k): `contradicted` what is no larger than one that fitted and no smaller than
        one that failed."""
        sizes = np.asarray(points, dtype="float64")
        fits, fails = np.zeros(len(sizes), dtype=bool), np.zeros(len(sizes), dtype=bool)
        for one in self.fitted:
            fits |= (sizes <= one).all(axis=1)
        for one in self.failed:
            fails |= (sizes >= one).all(axis=1)
        return _named(fits, fails)

    @staticmethod
    def sides_by_others(points: ArrayLike, failed: ArrayLike) -> np.ndarray:
        """What the others say of each point (n,): its `Side` with itself left out."""
        sizes, outcome = np.asarray(points, dtype="float64"), np.asarray(failed, dtype=bool)
        fits, fails = np.zeros(len(sizes), dtype=bool), np.zeros(len(sizes), dtype=bool)
        for number, one in enumerate(sizes):
            said = fails if outcome[number] else fits
            alike = (sizes >= one if outcome[number] else sizes <= one).all(axis=1)
            alike[number] = False
            said |= alike
        return _named(fits, fails)


def _named(fits: np.ndarray, fails: np.ndarray) -> np.ndarray:
    return np.select(
        [fits & fails, fits, fails], [Side.CONTRADICTED.value, Side.FITS.value, Side.FAILS.value], Side.OPEN.value
    )


def _least(sizes: np.ndarray) -> np.ndarray:
    """The distinct points (m, k) of some (n, k) that no other is below in every size."""
    distinct = np.unique(sizes, axis=0)
    kept = [not ((distinct <= one).all(axis=1) & (distinct < one).any(axis=1)).any() for one in distinct]
    return distinct[np.array(kept, dtype=bool)] if len(distinct) else distinct
