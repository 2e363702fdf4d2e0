"""Which points teach most, and when enough is known: functions of predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

from paradnn.forecast.process import LeaveOneOutErrors
from paradnn.statistics.robust_regression import Array, Prediction


def choose(
    posterior: Prediction,
    seconds: Array,
    count: int,
    weights: Array | None = None,
    allowed: NDArray[np.bool_] | None = None,
    claimed: Sequence[int] = (),
) -> list[int]:
    """Up to `count` indices of candidates (n,), the most useful first.

    seconds: (n,) that measuring a candidate is expected to take. weights: (n,) how much a candidate
    matters, 1 each unless given; 0 for what is not to be predicted, such as what runs out of
    memory. allowed: (n,) what may be chosen, all unless given: what was measured still counts in
    the variance, and is no candidate. claimed: indices of what others measure now: as if chosen
    before.
    """
    size = len(posterior.mean)
    weight = (1.0 if weights is None else weights) / posterior.spread**2
    if allowed is None:
        open_ = np.ones(size, dtype=bool)
    else:
        open_ = allowed.copy()
    root = posterior.root
    own = posterior.own.copy()
    gram = (root * weight[:, None]).T @ root  # (k, k)
    core = np.eye(root.shape[1])  # covariance is root @ core @ root.T, and `own` beside it
    learnt = ((root @ gram) * root).sum(axis=1)  # (n,) of sum_i weight_i covariance_ij^2
    variance = (root * root).sum(axis=1)
    same = np.bincount(posterior.group, weight, minlength=size)[posterior.group]
    chosen: list[int] = []
    while len(chosen) < len(claimed) or (len(chosen) < count + len(claimed) and open_.any()):
        # What a candidate shares with its own replicates alone: a second term of the same sum.
        alone = own * same * (2 * variance + own)
        worth = (learnt + alone) / (variance + own + posterior.noise**2) / seconds
        if len(chosen) >= len(claimed):
            best = int(np.argmax(np.where(open_, worth, -np.inf)))
        else:
            best = claimed[len(chosen)]
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
    return chosen[len(claimed) :]


def first_points(coordinates: Array, count: int, seed: int) -> list[int]:
    """Up to `count` indices of candidates (n, k) that fill their space evenly, without repetition,
    in a random order.

    A scrambled Sobol sequence (Owen, 1998) over the ranks of each coordinate's values; each of its
    points takes the nearest candidate that is still free.
    """
    from scipy.stats import qmc

    size = len(coordinates)
    places = [np.unique(column, return_inverse=True) for column in coordinates.T]
    varying = [(number + 0.5) / len(values) for values, number in places if len(values) > 1]
    if count >= size or not varying:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)[:count]]
    unit = np.stack(varying, axis=1)  # (n, k) in 0..1
    draws = qmc.Sobol(unit.shape[1], rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    free = np.ones(size, dtype=bool)
    chosen = []
    for draw in draws:
        distance = np.where(free, ((unit - draw) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(distance)))
        free[chosen[-1]] = False
    return chosen


def median_error(spreads: Array) -> float:
    """The median of |predicted / true - 1| expected over points whose log has these standard
    deviations (n,).

    Solves mean(P(|exp(s z) - 1| <= m)) = 1/2 for m, z standard normal; 0 for no points.
    """
    spread = np.maximum(spreads, 1e-12)

    def excess(middle: float) -> float:
        below = ndtr(np.log(max(1 - middle, 1e-300)) / spread)
        return float(np.mean(ndtr(np.log1p(middle) / spread) - below)) - 0.5

    if len(spread):
        return float(brentq(excess, 0.0, np.expm1(5 * spread.max()), xtol=1e-15))
    return 0.0


def strain(left_out: LeaveOneOutErrors) -> float:
    """How many times larger errors of what was left out are than their stated spreads, by the
    medians of their sizes.

    Errors are Student's t. At least 1, and 1 for fewer than eight.
    """
    if len(left_out.error) < 8:
        return 1.0
    ratio = np.abs(left_out.error) / np.maximum(left_out.spread, 1e-12)
    return max(1.0, float(np.median(ratio) / stdtrit(left_out.freedom, 0.75)))


@dataclass(frozen=True)
class StoppingRule:
    """What ends an adaptive sweep, whichever comes first; None: that does not.

    points: measured ones, of all drivers and sessions. minutes: of this command. error: median
    relative error expected of predicted step times.
    """

    points: int | None = None
    minutes: float | None = None
    error: float | None = None

    @property
    def words(self) -> list[str]:
        """Each end as it is written on the command line."""
        return [f"sweep.{key}={value:g}" for key, value in vars(self).items() if value is not None]

    def reached(self, measured: int, minutes: float, error: float | None) -> str:
        """Why the sweep is over, in words; empty while it is not. `error` is None before anything
        is predicted.
        """
        if self.points is not None and measured >= self.points:
            return f"sweep.points={self.points}"
        if self.minutes is not None and minutes >= self.minutes:
            return f"sweep.minutes={self.minutes:g}"
        if self.error is not None and error is not None and error <= self.error:
            return f"sweep.error={self.error:g}"
        return ""
