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
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp, ndtr

from paradnn.forecast.regression import Array

#: Before data: how far off factors may be (log), how wide the frontier is (log); draws of these, rounds, draws kept.
_FACTOR_SPREAD, _WIDTH = 2.0, 0.02
_DRAWS, _ROUNDS, _KEPT = 1000, 3, 200

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


def chances(parts: Array, tried: Array, failed: _Bools) -> Array:
    """(n,) the probability that each candidate runs out of memory, from (n, k) parts of what it needs, in bytes.

    tried: (m, k) parts of the points of the same kind that were tried, and `failed` (m,) whether they ran out.
    Memory is taken as sum_k factor_k part_k, and a point fails with the probability Phi(log(memory / limit) / width):
    factors (how much more than the arithmetic a framework holds, in units of the limit) and the width are drawn from
    their posterior, by importance sampling from a normal about its maximum that is fitted to it in rounds (Cornuet and
    others, Adaptive Multiple Importance Sampling, 2012). Every draw grows with every part, so the probability does.
    """
    if not failed.any():
        return np.zeros(len(parts))
    scale = np.log(np.median(tried[failed], axis=0))
    tried_logs = np.log(tried) - scale
    centre = np.array([*np.zeros(parts.shape[1]), np.log(_WIDTH)])
    spread = np.array([*np.full(parts.shape[1], _FACTOR_SPREAD), 1.0])

    def height(drawn: Array) -> Array:
        margin = _margin(tried_logs, drawn)
        likelihood = np.where(failed, log_ndtr(margin), log_ndtr(-margin)).sum(axis=1)
        return np.asarray(likelihood - 0.5 * (((drawn - centre) / spread) ** 2).sum(axis=1))

    top = minimize(lambda one: -float(height(one[None])[0]), centre, method="BFGS")
    normal = np.random.default_rng(0).standard_normal((_DRAWS, len(centre)))
    mean, covariance = top.x, top.hess_inv
    for _ in range(_ROUNDS):
        drawn = mean + normal @ np.linalg.cholesky(1.5 * covariance + 1e-4 * np.eye(len(centre))).T
        logs_of_weight = height(drawn) + 0.5 * (normal**2).sum(axis=1)
        weight = np.exp(logs_of_weight - logs_of_weight.max())
        weight /= weight.sum()
        mean = weight @ drawn
        covariance = np.cov(drawn.T, aweights=weight, ddof=0)
    likely = np.argsort(-weight)[:_KEPT]
    return np.asarray(weight[likely] @ ndtr(_margin(np.log(parts) - scale, drawn[likely])) / weight[likely].sum())


def _margin(logs: Array, drawn: Array) -> Array:
    """(draws, n) by how many widths the memory is over the limit."""
    total = logsumexp(logs + drawn[:, None, :-1], axis=2)
    return np.asarray(total / np.exp(drawn[:, -1:]))
