"""Which points teach most, what measuring them would leave unknown, and when that is enough: functions of predictions.

What measuring further points would leave unknown needs no measured values: so it is with variances of a joint normal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtr, ndtri, stdtrit

from paradnn.forecast.regression import Array, Prediction

#: A weight below this, in standard deviations of the response, is as good as none; two that differ by less than the
#: second are as good as equal. Without such margins what is truly equal would never be settled.
_SMALL, _EQUAL = 0.1, 0.05
#: How sure a conclusion must be.
_LEVEL = 0.95


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
    places = [np.unique(column, return_inverse=True) for column in coordinates.T]
    varying = [(number + 0.5) / len(values) for values, number in places if len(values) > 1]
    if count >= size or not varying:
        return [int(index) for index in np.random.default_rng(seed).permutation(size)[:count]]
    unit = np.stack(varying, axis=1)  # (n, k) in 0..1
    draws = qmc.Sobol(unit.shape[1], rng=seed).random(1 << max(count - 1, 1).bit_length())[:count]
    free, chosen = np.ones(size, dtype=bool), []
    for draw in draws:
        distance = np.where(free, ((unit - draw) ** 2).sum(axis=1), np.inf)
        chosen.append(int(np.argmin(distance)))
        free[chosen[-1]] = False
    return chosen


def deviations(prediction: Prediction, measured: Sequence[int] = ()) -> Array:
    """(n,) standard deviations of the logarithm of each point's step, without the noise of measuring it, once the
    points with the indices `measured` are measured too."""
    root, chosen = prediction.root, list(measured)
    variance, own = (root**2).sum(axis=1), prediction.own
    if chosen:
        rows, own = _observed(prediction, chosen)
        lower = cholesky(np.eye(len(chosen)) + rows @ rows.T, lower=True)
        variance = variance - (solve_triangular(lower, rows @ root.T, lower=True) ** 2).sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0) + own))


def with_measured(prediction: Prediction, indices: Sequence[int]) -> Prediction:
    """The prediction once these points are measured too, but for its mean, which their values would decide.

    Latent normals w, of which a point's log seconds are root @ w, get the precision I + sum(r r' / (own + noise^2)).
    """
    if not indices:
        return prediction
    rows, own = _observed(prediction, list(indices))
    values, vectors = np.linalg.eigh(np.eye(rows.shape[1]) + rows.T @ rows)
    return replace(prediction, root=np.asarray(prediction.root @ (vectors / np.sqrt(values))), own=own)


def _observed(prediction: Prediction, chosen: list[int]) -> tuple[Array, Array]:
    """(m, k) rows of points in units of what measuring them does not say of the others; (n,) variances of a point's
    own deviation once these are measured: their replicates share it."""
    noise, left = prediction.noise**2, prediction.own.copy()
    for index in chosen:
        kin = prediction.group == prediction.group[index]
        left[kin] *= noise / (left[index] + noise + 1e-300)
    return np.asarray(prediction.root[chosen] / np.sqrt(prediction.own[chosen] + noise)[:, None]), left


@dataclass(frozen=True)
class Lookahead:
    """Further points, the most useful first, and what is expected after some of them.

    order: indices of candidates. counts: numbers of further points, from 0. errors: expected median error after each
    count. seconds: expected seconds of measuring them.
    """

    order: Sequence[int]
    counts: Sequence[int]
    errors: Sequence[float]
    seconds: Sequence[float]

    def needed(self, error: float, known: int) -> int:
        """How many further points it takes until the error is that small, where `known` are measured.

        Beyond these points errors fall by the power of the number of points by which they fell last.
        """
        for count, expected in zip(self.counts, self.errors, strict=True):
            if expected <= error:
                return count
        power, end = 0.5, self.counts[-1] + known
        if len(self.counts) > 1 and (before := self.counts[-2] + known):
            power = max(np.log(self.errors[-2] / self.errors[-1]) / np.log(end / before), 0.1)
        return int(end * (self.errors[-1] / error) ** (1 / power)) - known


def lookahead(
    prediction: Prediction,
    seconds: Array,
    weights: Array,
    allowed: NDArray[np.bool_],
    most: int,
    looks: int,
    first: Sequence[int] = (),
) -> Lookahead:
    """What up to `most` further points would leave unknown of candidates: `first`, and then as `choose` chooses them.

    seconds: (n,) expected of measuring each. weights: (n,), 0 for what is not to be predicted. allowed: (n,) what may
    be measured. `looks`: at how many numbers of points.
    """
    others = allowed & ~np.isin(np.arange(len(allowed)), first)
    order = [*first, *choose(with_measured(prediction, first), seconds, most - len(first), weights, others)]
    marks = np.geomspace(max(1, len(first)), max(len(order), 1), looks) if order else ()
    counts, errors = sorted({0, *map(round, marks)}), []
    for count in counts:
        left = allowed & (weights > 0)
        left[order[:count]] = False
        errors.append(median_error(deviations(prediction, order[:count])[left]))
    spent = np.concatenate([[0.0], np.cumsum(seconds[order])])
    return Lookahead(order, counts, errors, [float(spent[count]) for count in counts])


def median_error(spreads: Array) -> float:
    """The median of |predicted / true - 1| expected over points whose log has these standard deviations (n,).

    Solves mean(P(|exp(s z) - 1| <= m)) = 1/2 for m, z standard normal, by bisection; 0 for no points.
    """
    spread = np.maximum(spreads, 1e-12)
    if not len(spread):
        return 0.0
    low, high = 0.0, float(np.expm1(5 * spread.max()))
    for _ in range(60):
        middle = (low + high) / 2
        below = ndtr(np.log(max(1 - middle, 1e-300)) / spread)
        if float(np.mean(ndtr(np.log1p(middle) / spread) - below)) < 0.5:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def strain(errors: Array, spreads: Array, freedom: float) -> float:
    """How many times larger errors (n,) are than their stated spreads (n,), by the medians of their sizes.

    Errors are Student's t with so many degrees of freedom. At least 1, and 1 for fewer than eight.
    """
    if len(errors) < 8:
        return 1.0
    return max(1.0, float(np.median(np.abs(errors) / np.maximum(spreads, 1e-12)) / stdtrit(freedom, 0.75)))


def drawn_weights(terms: Array, step: Prediction, offset: Array, count: int, random: np.random.Generator) -> Array:
    """(k, count) draws of the standardised regression weights of `offset` - log step, (n,) each, on `terms` (n, k).

    As in `python -m analysis sensitivity`: with z = (x - mean) / s for every column, least squares of z(values) on
    z(terms). Terms that vary together share their weight (the shortest solution). Weights are linear in the values but
    for their scale, which is taken from the mean; so they are jointly normal, and drawing them needs no draws of n
    values. Tails are those of `Prediction.draws`; noise of measuring is left out.
    """
    solver = np.linalg.pinv((terms - terms.mean(axis=0)) / np.maximum(terms.std(axis=0), 1e-12))  # (k, n)
    mean = offset - step.mean
    variance = step.own * solver @ solver.T
    values, vectors = np.linalg.eigh((variance + variance.T) / 2)
    root = np.hstack([solver @ step.root, vectors * np.sqrt(np.maximum(values, 0.0))])
    scale = np.minimum(np.sqrt(step.freedom / random.chisquare(step.freedom, count)), 2.0)
    drawn = (solver @ mean)[:, None] + scale * (root @ random.standard_normal((root.shape[1], count)))
    return np.asarray(drawn / max(float(mean.std()), 1e-12))


@dataclass(frozen=True)
class Finding:
    """One conclusion, in words, and the share of draws in which it holds."""

    text: str
    share: float

    @property
    def settled(self) -> bool:
        """Whether it stands with 95%."""
        return self.share >= _LEVEL


def findings(names: Sequence[str], weights: Array) -> list[Finding]:
    """What draws of standardised `weights` (k, d) of terms, called `names`, conclude.

    Of each term the sign of its weight, or that it hardly matters; of neighbours in the order of their weights which
    weighs more, or that they weigh the same.
    """
    sizes = np.abs(weights)
    order = np.argsort(-np.median(sizes, axis=1), kind="stable")
    signs = [_sign(names[term], weights[term]) for term in order]
    return [*signs, *_orders([names[term] for term in order], sizes[order])]


def _sign(name: str, weight: Array) -> Finding:
    small, positive = float((np.abs(weight) < _SMALL).mean()), float((weight > 0).mean())
    if small >= max(_LEVEL, positive, 1 - positive):
        return Finding(f"speed hardly depends on {name}", small)
    if positive >= 0.5:
        return Finding(f"speed grows with {name}", positive)
    return Finding(f"speed falls with {name}", 1 - positive)


def _orders(names: Sequence[str], sizes: Array) -> Iterator[Finding]:
    """Of neighbours of which at least one matters; `sizes` (k, d) fall."""
    for name, other, first, second in zip(names, names[1:], sizes, sizes[1:], strict=False):
        if np.mean(first < _SMALL) >= _LEVEL:
            return
        larger, equal = float((first > second).mean()), float((np.abs(first - second) < _EQUAL).mean())
        if equal >= max(_LEVEL, larger):
            yield Finding(f"{name} matters as much as {other}", equal)
        else:
            yield Finding(f"{name} matters more than {other}", larger)


def growth_until_settled(found: Sequence[Finding]) -> float:
    """About how many times more points it takes until all of them stand.

    A conclusion that holds in a share of the draws lies z = Phi^-1(share) standard deviations from the other; these
    shrink with the root of the number of points. At most ninefold: what is that unsure may turn.
    """
    least = min((finding.share for finding in found if not finding.settled), default=1.0)
    return float(np.clip((ndtri(_LEVEL) / max(ndtri(least), 1e-9)) ** 2, 1.0, 9.0)) if least < 1 else 1.0


@dataclass(frozen=True)
class Rule:
    """What ends an adaptive sweep, whichever comes first; None: that does not.

    points: measured ones, of all drivers and sessions. minutes: of this command. error: median relative error expected
    of predicted step times. settled: every finding stands.
    """

    points: int | None = None
    minutes: float | None = None
    error: float | None = None
    settled: bool = False

    @property
    def words(self) -> list[str]:
        """Each end as it is written on the command line."""
        given = {"points": self.points, "minutes": self.minutes, "error": self.error}
        shown = [f"sweep.{key}={value:g}" for key, value in given.items() if value is not None]
        return [*shown, "sweep.settled=true"] if self.settled else shown

    def reached(self, measured: int, minutes: float, error: float | None, found: Sequence[Finding]) -> str | None:
        """Why the sweep is over, in words; None while it is not. `error` is None before anything is predicted."""
        if self.points is not None and measured >= self.points:
            return f"sweep.points={self.points}"
        if self.minutes is not None and minutes >= self.minutes:
            return f"sweep.minutes={self.minutes:g}"
        if self.error is not None and error is not None and error <= self.error:
            return f"sweep.error={self.error:g}"
        if self.settled and found and all(finding.settled for finding in found):
            return "sweep.settled=true"
        return None
