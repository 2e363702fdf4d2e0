"""A robust linear regression with a prior on every coefficient: little data gives the prior back, much data forgets it.

Coefficients of groups (a family, a session) that the data do not know keep their prior spread, so a prediction
about them is as uncertain as it must be, and all points of the group err together. Errors are Student's t, fitted by
expectation and maximisation (Lange, Little, Taylor 1989), so a run that somebody disturbed does not bend the line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Fit", "fit"]

Array = NDArray[np.float64]

#: Degrees of freedom of the errors: heavy tails, and yet a variance.
_NU = 4.0
#: The errors' spread before data, as a logarithm, and how many observations that is worth.
_SPREAD, _WORTH = 0.2, 4.0
_ROUNDS = 12
#: A residual beyond so many spreads is drawn as one of so many.
_CLIP = 4.0


@dataclass(frozen=True)
class Fit:
    """Coefficients as a normal distribution, and the errors about the line.

    mean: (m,). root: (m, m) with root @ root.T their covariance. residuals: (n,) of the observations, in their order.
    spread: standard deviation of an error, tails included. freedom: observations behind the spread.
    """

    mean: Array
    root: Array
    residuals: Array
    spread: float
    freedom: float

    def lines(self, features: Array, draws: int, random: np.random.Generator) -> Array:
        """(points, draws) of the line at `features` (points, m), each draw one set of coefficients for all points."""
        coefficients = self.mean[:, None] + self.root @ random.standard_normal((len(self.mean), draws))
        return np.asarray(features @ coefficients)

    def errors(self, count: int, draws: int, random: np.random.Generator) -> Array:
        """(count, draws) of independent errors; a draw's spread is as uncertain as the data leave it."""
        scale = self.spread * np.sqrt(self.freedom / random.chisquare(self.freedom, draws))
        return np.asarray(random.standard_normal((count, draws)) * np.minimum(scale, 2 * self.spread))


def fit(features: Array, values: Array, prior: Array, weights: Array | None = None) -> Fit:
    """Fit `values` (n,) by `features` (n, m) whose coefficients are normal about 0 with deviations `prior` (m,).

    `weights` (n,) in 0..1 say how much of an observation each is. No observation at all gives the prior back.
    """
    count = len(values)
    given = np.ones(count) if weights is None else weights
    precision = np.diag(1.0 / prior**2)
    worth = float(given.sum()) + _WORTH
    variance, trust = _SPREAD**2, np.ones(count)
    for _ in range(_ROUNDS if count else 1):
        scaled = features * (given * trust)[:, None]
        inverse = np.asarray(np.linalg.inv(scaled.T @ features / variance + precision), dtype=np.float64)
        mean = inverse @ (scaled.T @ values) / variance
        residuals = values - features @ mean
        # What the coefficients' own uncertainty adds to a residual's square.
        about = ((features @ inverse) * features).sum(axis=1)
        square = residuals**2 + about
        trust = (_NU + 1) / (_NU + square / variance)
        variance = float(given * trust @ square + _WORTH * _SPREAD**2) / worth
    clipped = np.minimum(residuals**2, _CLIP**2 * variance)
    spread = float(np.sqrt((given @ (clipped + about) + _WORTH * _SPREAD**2) / worth))
    return Fit(mean, _root(inverse), residuals, spread, worth)


def _root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
