"""What memory excludes, learnt from what was tried: memory grows with every size, so a few points tell of many.

What ran out of memory proves that all runs out that is no smaller in any size, and what fitted proves that all fits
that is no larger in any. Points of different kinds (family, precision, compile mode, host) prove nothing of each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_ndtr, logsumexp, ndtr

from paradnn.forecast.regression import Array

__all__ = ["chances", "excluded", "fitting"]

#: Before data: how far off factors may be (log), how wide the frontier is (log); draws of these, rounds, draws kept.
_FACTOR_SPREAD, _WIDTH = 2.0, 0.02
_DRAWS, _ROUNDS, _KEPT = 1000, 3, 200


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
    own, tried_codes = _codes(kinds, tried_kinds)
    found: list[str | None] = [None] * len(candidates)
    fitted, fitted_kinds = tried[~failed], tried_codes[~failed]
    order = sorted(map(int, np.flatnonzero(failed)), key=lambda index: (*tried[index], run_ids[index]))
    for index in order:
        sizes, kind = tried[index], tried_codes[index]
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
    own, tried_codes = _codes(kinds, tried_kinds)
    found = np.zeros(len(candidates), dtype=bool)
    for sizes, kind in zip(tried[~failed], tried_codes[~failed], strict=True):
        found |= (candidates <= sizes).all(axis=1) & (own == kind)
    return found


def _codes(kinds: Sequence[Hashable], others: Sequence[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A number for every kind."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys([*kinds, *others]))}
    return np.array([numbers[kind] for kind in kinds], dtype=np.intp), np.array(
        [numbers[kind] for kind in others], dtype=np.intp
    )


def chances(parts: Array, tried: Array, failed: NDArray[np.bool_]) -> Array:
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
    logs, tried_logs = np.log(parts) - scale, np.log(tried) - scale
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
        apart = drawn - mean
        covariance = (apart * weight[:, None]).T @ apart
    likely = np.argsort(-weight)[:_KEPT]
    return np.asarray(weight[likely] @ ndtr(_margin(logs, drawn[likely])) / weight[likely].sum())


def _margin(logs: Array, drawn: Array) -> Array:
    """(draws, n) by how many widths the memory is over the limit."""
    total = logsumexp(logs + drawn[:, None, :-1], axis=2)
    return np.asarray(total / np.exp(drawn[:, -1:]))
