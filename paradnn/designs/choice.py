"""The choice of informative points from predictions, and the stopping rule of adaptive sweeps."""

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
    """Choose the candidates that reduce the variance of all predictions most per second.

    A candidate is a point (configuration) whose step time is predicted. The choice is greedy: a
    chosen candidate counts as measured when the next one is chosen. The variance of a candidate is
    divided by the square of its spread, so that inherently uncertain steps do not attract all
    measurements.

    Args:
        posterior: Prediction of n candidates. Its covariance is root @ root.T, plus `own` between
            the candidates of one group.
        seconds: (n,) expected duration of the measurement of a candidate, in seconds.
        count: Maximum number of candidates to choose.
        weights: (n,) importance of a prediction, by default 1; 0 for points that need no
            prediction, such as those out of memory.
        allowed: (n,) whether a candidate may be chosen, by default all. The variances of candidates
            that may not be chosen count as well.
        claimed: Indices of candidates that other drivers measure now. They count as measured.

    Returns:
        Indices of at most `count` candidates, the most useful first.
    """
    size = len(posterior.mean)
    weight = (1.0 if weights is None else weights) / posterior.spread**2
    if allowed is None:
        is_open = np.ones(size, dtype=bool)
    else:
        is_open = allowed.copy()
    root = posterior.root
    own = posterior.own.copy()
    gram = (root * weight[:, None]).T @ root  # (k, k)
    core = np.eye(root.shape[1])  # the covariance is root @ core @ root.T, plus `own`
    reduction = ((root @ gram) * root).sum(axis=1)  # (n,) sum_i weight_i covariance_ij^2
    variance = (root * root).sum(axis=1)
    group_weight = np.bincount(posterior.group, weight, minlength=size)[posterior.group]
    chosen: list[int] = []
    while len(chosen) < len(claimed) or (len(chosen) < count + len(claimed) and is_open.any()):
        # The second term is the variance that a candidate shares only with its replicates.
        own_reduction = own * group_weight * (2 * variance + own)
        worth = (reduction + own_reduction) / (variance + own + posterior.noise**2) / seconds
        if len(chosen) < len(claimed):
            best = claimed[len(chosen)]
        else:
            best = int(np.argmax(np.where(is_open, worth, -np.inf)))
        chosen.append(best)
        is_open[best] = False
        total = variance[best] + own[best] + posterior.noise**2
        step = core @ root[best] / np.sqrt(total)
        # A measured candidate and its replicates need no prediction.
        gram -= group_weight[best] * np.outer(root[best], root[best])
        turned = core @ (gram @ step)
        along, across = (root @ np.stack([step, turned], axis=1)).T
        reduction -= group_weight[best] * total * along**2
        is_replicate = posterior.group == posterior.group[best]
        group_weight[is_replicate] = 0.0
        # (core - s s') gram (core - s s') = core gram core - s t' - t s' + s (s' gram s) s'
        reduction += along * (along * float(step @ gram @ step) - 2 * across)
        variance -= along**2
        core -= np.outer(step, step)
        own[is_replicate] *= 1 - own[best] / total
    return chosen[len(claimed) :]


def first_points(coordinates: Array, count: int, seed: int) -> list[int]:
    """Choose candidates that fill their space evenly.

    Each point of a scrambled Sobol sequence (Owen, 1998) selects the nearest candidate that is not
    chosen yet. Distances are measured between the ranks of each coordinate's values.

    Args:
        coordinates: (n, k) positions of the candidates, such as ranks of hyperparameter values.
        count: Maximum number of candidates to choose.
        seed: Seed of the sequence.

    Returns:
        Distinct indices of candidates, in the order of the sequence. If `count` covers all
        candidates, they are in random order.
    """
    from scipy.stats import qmc

    size = len(coordinates)
    columns = [np.unique(column, return_inverse=True) for column in coordinates.T]
    varying = [(rank + 0.5) / len(values) for values, rank in columns if len(values) > 1]
    if count >= size or not varying:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)[:count]]
    unit = np.stack(varying, axis=1)  # (n, k) in 0..1
    draws = qmc.Sobol(unit.shape[1], rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    is_free = np.ones(size, dtype=bool)
    chosen = []
    for draw in draws:
        distance = np.where(is_free, ((unit - draw) ** 2).sum(axis=1), np.inf)
        nearest = int(np.argmin(distance))
        chosen.append(nearest)
        is_free[nearest] = False
    return chosen


def median_error(spreads: Array) -> float:
    """Return the expected median relative error of predictions, |predicted / true - 1|.

    It is the m that solves mean(P(|exp(s z) - 1| <= m)) = 1/2, for the spreads s and a standard
    normal z.

    Args:
        spreads: (n,) standard deviations of the logarithms of the predictions.

    Returns:
        The median relative error; 0 for no points.
    """
    if not len(spreads):
        return 0.0
    spread = np.maximum(spreads, 1e-12)

    def excess(median: float) -> float:
        below = ndtr(np.log(max(1 - median, 1e-300)) / spread)
        return float(np.mean(ndtr(np.log1p(median) / spread) - below)) - 0.5

    return float(brentq(excess, 0.0, np.expm1(5 * spread.max()), xtol=1e-15))


def calibration_ratio(errors: LeaveOneOutErrors) -> float:
    """Return by how much the predictions of a model underestimate their own errors.

    It is the median of |error| / spread, relative to its expectation for Student's t.

    Args:
        errors: Errors of observed steps, each predicted from the other steps, with their predicted
            spreads.

    Returns:
        The ratio, at least 1; exactly 1 for fewer than eight errors.
    """
    if len(errors.error) < 8:
        return 1.0
    ratio = np.abs(errors.error) / np.maximum(errors.spread, 1e-12)
    return max(1.0, float(np.median(ratio) / stdtrit(errors.freedom, 0.75)))


@dataclass(frozen=True)
class StoppingRule:
    """Criteria that end an adaptive sweep: the first criterion that is met ends it.

    A criterion of None is never met.

    Attributes:
        points: Number of measured points, of all drivers and sessions.
        minutes: Duration of this command in minutes.
        error: Expected median relative error of the predicted step times.
    """

    points: int | None = None
    minutes: float | None = None
    error: float | None = None

    @property
    def overrides(self) -> list[str]:
        """Each criterion that is set, as an override of the command line: `sweep.points=100`."""
        return [f"sweep.{key}={value:g}" for key, value in vars(self).items() if value is not None]

    def reached(self, measured: int, minutes: float, error: float | None) -> str:
        """Return the criterion that is met, or an empty string.

        Args:
            measured: Number of measured points.
            minutes: Minutes since the command began.
            error: Expected median relative error; None before the first prediction.
        """
        if self.points is not None and measured >= self.points:
            return f"sweep.points={self.points}"
        if self.minutes is not None and minutes >= self.minutes:
            return f"sweep.minutes={self.minutes:g}"
        if self.error is not None and error is not None and error <= self.error:
            return f"sweep.error={self.error:g}"
        return ""
