"""Which points to measure next: a start that fills the space, then what teaches most for its time.

    first = first_points(coordinates, 10, seed=0)          # nothing is known yet
    posterior = StepTimeModel.fit(runs).predict(table)     # of all candidates, the measured among them
    batch = choose(posterior, seconds, 16)                 # indices of candidates, the best first

A point is worth the fall of the variance of the logarithm of the step that measuring it brings, summed over all
candidates (Cohn, Ghahramani, Jordan, JAIR 4, 1996), by the seconds that measuring it is expected to take. Each
candidate's variance counts in units of what it is now: else a few that are uncertain by nature would draw all points
(benchmarks/README.md). Within a batch each next point is chosen as if those before it were measured, for which a
variance needs no values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradnn.forecast.regression import Array, Prediction

__all__ = ["choose", "first_points"]


def choose(
    posterior: Prediction,
    seconds: Array,
    count: int,
    weights: Array | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Up to `count` indices of candidates (n,), the most useful first.

    seconds: (n,) that measuring a candidate is expected to take. weights: (n,) how much a candidate matters, 1 each
    unless given; 0 for what is not to be predicted, such as what runs out of memory. allowed: (n,) what may be
    chosen, all unless given: what was measured still counts in the variance, and is no candidate.
    """
    size = len(posterior.mean)
    weight = (1.0 if weights is None else weights) / posterior.spread**2
    open_ = np.ones(size, dtype=bool) if allowed is None else allowed.copy()
    root, own = posterior.root, posterior.own.copy()
    gram = (root * weight[:, None]).T @ root  # (k, k)
    core = np.eye(root.shape[1])  # covariance is root @ core @ root.T, and `own` beside it
    learnt = ((root @ gram) * root).sum(axis=1)  # (n,) of sum_i weight_i covariance_ij^2
    variance = (root * root).sum(axis=1)
    same = np.bincount(posterior.group, weight, minlength=size)[posterior.group]
    chosen: list[int] = []
    while len(chosen) < count and open_.any():
        # What a candidate shares with its own replicates alone: a second term of the same sum.
        alone = own * same * (2 * variance + own)
        worth = (learnt + alone) / (variance + own + posterior.noise**2) / seconds
        best = int(np.argmax(np.where(open_, worth, -np.inf)))
        chosen.append(best)
        open_[best] = False
        total = variance[best] + own[best] + posterior.noise**2
        step = core @ root[best] / np.sqrt(total)
        # What is measured need not be predicted any more, nor its replicates.
        gram -= same[best] * np.outer(root[best], root[best])
        turned = core @ (gram @ step)
        along, across = (root @ np.stack([step, turned], axis=1)).T
        learnt -= same[best] * total * along**2
        kin = posterior.group == posterior.group[best]
        same[kin] = 0.0
        # (core - s s') gram (core - s s') = core gram core - s t' - t s' + s (s' gram s) s'
        learnt += along * (along * float(step @ gram @ step) - 2 * across)
        variance -= along**2
        core -= np.outer(step, step)
        own[kin] *= 1 - own[best] / total
    return chosen


def first_points(coordinates: Array, count: int, seed: int) -> list[int]:
    """Up to `count` indices of candidates (n, k) that fill their space evenly, without repetition, in a random order.

    A scrambled Sobol sequence (Owen, 1998) over the ranks of each coordinate's values; each of its points takes the
    nearest candidate that is still free.
    """
    from scipy.stats import qmc

    size = len(coordinates)
    if count >= size:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)]
    places = [np.unique(column, return_inverse=True) for column in coordinates.T]
    varying = [(number + 0.5) / len(values) for values, number in places if len(values) > 1]
    if not varying:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)[:count]]
    unit = np.stack(varying, axis=1)  # (n, k) in 0..1
    draws = qmc.Sobol(unit.shape[1], rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    free, chosen = np.ones(size, dtype=bool), []
    for draw in draws:
        distance = np.where(free, ((unit - draw) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(distance)))
        free[chosen[-1]] = False
    return chosen
