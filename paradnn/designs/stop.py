"""When an adaptive sweep has learned enough: functions of predictions as plain arrays, and the rules that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from paradnn.forecast.regression import Array, Prediction

__all__ = [
    "Finding",
    "Rule",
    "drawn_weights",
    "findings",
    "growth_until_settled",
    "median_error",
    "strain",
    "weights_of",
]

#: A weight below this, in standard deviations of the response, is as good as none; two that differ by less than the
#: second are as good as equal. Without such margins what is truly equal would never be settled.
_SMALL, _ALIKE = 0.1, 0.05
#: How sure a conclusion must be.
_LEVEL = 0.95


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
        given = {"points": self.points, "minutes": self.minutes, "error": self.error, "settled": self.settled or None}
        shown = {key: "true" if value is True else f"{value:g}" for key, value in given.items() if value is not None}
        return [f"sweep.{key}={value}" for key, value in shown.items()]

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


def median_error(deviations: Array) -> float:
    """The median of |predicted / true - 1| expected over points whose log has these standard deviations (n,).

    Solves mean(P(|exp(s z) - 1| <= m)) = 1/2 for m, z standard normal, by bisection; 0 for no points.
    """
    spread = np.maximum(deviations, 1e-12)
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


def weights_of(terms: Array, values: Array) -> Array:
    """(k, d) standardised regression weights of each column of `values` (n, d) on `terms` (n, k).

    As in `python -m analysis sensitivity`: with z = (x - mean) / s for every column, least squares of z(values) on
    z(terms). Terms that vary together share their weight (the shortest solution).
    """
    centred = values - values.mean(axis=0)
    return np.asarray(_solver(terms) @ centred / np.maximum(centred.std(axis=0), 1e-12))


def drawn_weights(terms: Array, step: Prediction, offset: Array, count: int, random: np.random.Generator) -> Array:
    """(k, count) draws of the weights of `offset` - log step, (n,) each, where the step is uncertain.

    Weights are linear in the values but for their scale, which is taken from the mean; so they are jointly normal, and
    drawing them needs no draws of n values. Tails are those of `Prediction.draws`; noise of measuring is left out.
    """
    solver = _solver(terms)
    mean = offset - step.mean
    own = step.own * solver
    variance = own @ solver.T
    values, vectors = np.linalg.eigh((variance + variance.T) / 2)
    root = np.hstack([solver @ step.root, vectors * np.sqrt(np.maximum(values, 0.0))])
    scale = np.minimum(np.sqrt(step.freedom / random.chisquare(step.freedom, count)), 2.0)
    drawn = (solver @ mean)[:, None] + scale * (root @ random.standard_normal((root.shape[1], count)))
    return np.asarray(drawn / max(float(mean.std()), 1e-12))


def _solver(terms: Array) -> Array:
    """(k, n) that takes a response to its weights, but for the response's scale."""
    return np.asarray(np.linalg.pinv((terms - terms.mean(axis=0)) / np.maximum(terms.std(axis=0), 1e-12)))


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
    weighs more, or that they weigh alike.
    """
    sizes = np.abs(weights)
    order = np.argsort(-np.median(sizes, axis=1), kind="stable")
    found = [_sign(names[term], weights[term]) for term in order]
    return [*found, *_orders([names[term] for term in order], sizes[order])]


def growth_until_settled(found: Sequence[Finding]) -> float:
    """About how many times more points it takes until all of them stand.

    A conclusion that holds in a share of the draws lies z = Phi^-1(share) standard deviations from the other; these
    shrink with the root of the number of points. At most ninefold: what is that unsure may turn.
    """
    least = min((finding.share for finding in found if not finding.settled), default=1.0)
    return float(np.clip((ndtri(_LEVEL) / max(ndtri(least), 1e-9)) ** 2, 1.0, 9.0)) if least < 1 else 1.0


def _sign(name: str, weight: Array) -> Finding:
    small, positive = float((np.abs(weight) < _SMALL).mean()), float((weight > 0).mean())
    if small >= max(_LEVEL, positive, 1 - positive):
        return Finding(f"speed hardly depends on {name}", small)
    return (
        Finding(f"speed grows with {name}", positive)
        if positive >= 0.5
        else Finding(f"speed falls with {name}", 1 - positive)
    )


def _orders(names: Sequence[str], sizes: Array) -> Iterator[Finding]:
    """Of neighbours of which at least one matters; `sizes` (k, d) fall."""
    for index in range(len(names) - 1):
        first, second = sizes[index], sizes[index + 1]
        if np.mean(first < _SMALL) >= _LEVEL:
            return
        larger, alike = float((first > second).mean()), float((np.abs(first - second) < _ALIKE).mean())
        if alike >= max(_LEVEL, larger):
            yield Finding(f"{names[index]} matters as much as {names[index + 1]}", alike)
        else:
            yield Finding(f"{names[index]} matters more than {names[index + 1]}", larger)
