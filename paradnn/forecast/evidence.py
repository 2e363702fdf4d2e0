"""How large the parts of a Gaussian process are, and how far each coordinate reaches: what makes the data probable.

The logarithm of the marginal likelihood (Rasmussen and Williams, 2006, equation 5.9) and of a normal prior on the
logarithm of every scale, climbed with its gradient. Where steps are more peculiar than elsewhere, and which were
disturbed, follows from the errors with which each is predicted from the others (their section 5.4.2).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from paradnn.forecast.inputs import Coordinate, Coordinates, Inputs, aligned, matrix
from paradnn.forecast.regression import Array

__all__ = ["JITTER", "Scales", "learn"]

#: Before data: the smooth part, what is peculiar to a step (standard deviations of a logarithm), and by what factor
#: these and the lengths may be off (standard deviation of its logarithm).
_SMOOTH, _PECULIAR, _OFF = 0.2, 0.05, 1.0
#: The logarithm of the variance of what is peculiar: how it may differ in all, and for each unit of a coordinate.
_LEVEL, _SLOPE = 0.3, 0.5
#: Steps that scales are learnt from at most; rounds of scales and errors in turn; errors, in standard deviations,
#: beyond which a step counts as disturbed, and as far as which they tell where others are peculiar.
_MOST_STEPS, _ROUNDS, _DISTURBED, _TOLD = 250, 3, 3.5, 12.0**0.5
#: Logarithms of scales are tried no further off than this.
_FURTHEST = 30.0
#: Variance that keeps a covariance invertible.
JITTER = 1e-7


@dataclass(frozen=True)
class Scales:
    """smooth, peculiar: standard deviations. lengths: of every coordinate. slopes: name -> (centre, change of the
    logarithm of the peculiar variance for a unit); level: that logarithm at the centres; ends: its least and most."""

    smooth: float
    peculiar: float
    lengths: Mapping[Hashable, float]
    slopes: Mapping[Hashable, tuple[float, float]]
    level: float
    ends: tuple[float, float]

    def covariance(self, one: Coordinates, other: Coordinates) -> Array:
        """(n, m) of the smooth part: Matern's of order 3/2."""
        one, other = aligned(one, other)
        scaled, other_scaled = self._scaled(one), self._scaled(other)
        squares = (scaled**2).sum(axis=1)[:, None] + (other_scaled**2).sum(axis=1) - 2 * scaled @ other_scaled.T
        for name, word in one.items():
            if word.is_word and len(np.unique([*word.values, *other[name].values])) > 1:
                squares += word.squares(other[name]) / self._length(name, word) ** 2
        root = np.sqrt(3.0 * np.maximum(squares, 0.0))
        return np.asarray(self.smooth**2 * (1 + root) * np.exp(-root))

    def _length(self, name: Hashable, coordinate: Coordinate) -> float:
        return self.lengths.get(name, coordinate.reach)

    def _scaled(self, coordinates: Coordinates) -> Array:
        """(n, k) numbers in units of their lengths, about what is common so that squares keep their digits."""
        numbers = [one.values / self._length(name, one) for name, one in coordinates.items() if not one.is_word]
        return np.stack(numbers, axis=1)

    def peculiar_variance(self, coordinates: Coordinates) -> Array:
        """(n,) of what is peculiar to a step, no further off than where steps were observed."""
        change = np.full(len(next(iter(coordinates.values())).values), self.level)
        for name, (centre, slope) in self.slopes.items():
            change += slope * ((coordinates[name].values if name in coordinates else 0.0) - centre)
        return np.asarray(self.peculiar**2 * np.exp(np.clip(change, *self.ends)))


def learn(inputs: Inputs, values: Array, noise: Array) -> tuple[Scales, Array]:
    """The scales of steps (n,) with `values` beyond their base and variances `noise` of these; and (n,) by what factor
    the peculiar variance of each is larger because it was disturbed."""
    varying = {name: one for name, one in inputs.coordinates.items() if len(np.unique(one.values)) > 1}
    numbers = {name: float(np.mean(one.values)) for name, one in varying.items() if not one.is_word}
    slopes = {name: (centre, 0.0) for name, centre in numbers.items()}
    lengths = {name: one.reach for name, one in varying.items()}
    scales, disturbed = Scales(_SMOOTH, _PECULIAR, lengths, slopes, 0.0, (0.0, 0.0)), np.ones(len(values))
    if len(values) < 2:
        return scales, disturbed
    subset = np.sort(np.random.default_rng(0).permutation(len(values))[:_MOST_STEPS])
    part, some = inputs.rows(subset), np.zeros(len(values), dtype=bool)
    some[subset] = True
    line = matrix(list(part.columns.values()), len(part))
    problem = _Problem(line @ line.T, part, tuple(varying), values[subset])
    for _ in range(_ROUNDS):
        weight = scales.peculiar_variance(part.coordinates) / scales.peculiar**2 * disturbed[subset]
        scales, error, variance = problem.climbed(scales, weight, noise[subset])
        ratio = error / np.sqrt(variance)
        disturbed[subset] *= np.maximum(1.0, np.abs(ratio) / _DISTURBED) ** 2
        scales = _uneven(scales, part, np.minimum(np.abs(ratio), _TOLD) ** 2)
    return scales, disturbed


@dataclass(frozen=True)
class _Problem:
    """line: (n, n) covariance of the line's coefficients before data."""

    line: Array
    inputs: Inputs
    names: tuple[Hashable, ...]
    values: Array

    def climbed(self, scales: Scales, weight: Array, noise: Array) -> tuple[Scales, Array, Array]:
        """The most probable scales from those given, and the error and variance with which each value is predicted
        from the others; `weight` (n,) is how many times larger the peculiar variance is."""
        chosen = [self.inputs.coordinates[name] for name in self.names]
        squares = np.array([one.squares(one) for one in chosen]).reshape(len(chosen), len(weight), len(weight))
        before = np.log([_SMOOTH, _PECULIAR, *(one.reach for one in chosen)])
        start = np.log([scales.smooth, scales.peculiar, *(scales.lengths[name] for name in self.names)])

        def height(logs: Array) -> tuple[float, Array]:
            logs = np.clip(logs, -_FURTHEST, _FURTHEST)  # a line search may step anywhere
            smooth, peculiar, *_ = np.exp(2 * logs)
            shorter = np.exp(-2 * logs[2:])
            root = np.sqrt(3.0 * np.tensordot(shorter, squares, 1)) + np.zeros_like(self.line)
            decay = np.exp(-root)
            covariance = self.line + smooth * (1 + root) * decay
            covariance[np.diag_indices_from(covariance)] += peculiar * weight + noise + JITTER
            try:
                inverse, log_root = _inverse(covariance)
            except LinAlgError:
                return 1e12, np.zeros_like(logs)
            pulled = inverse @ self.values
            rise = np.outer(pulled, pulled) - inverse
            off = (logs - before) / _OFF
            by_length = 1.5 * smooth * np.tensordot(squares, rise * decay, 2) * shorter
            slope = np.array(
                [smooth * (rise * (1 + root) * decay).sum(), peculiar * (np.diag(rise) @ weight), *by_length]
            )
            return float(0.5 * self.values @ pulled + log_root + 0.5 * off @ off), off / _OFF - slope

        found = minimize(height, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
        smooth, peculiar, *lengths = map(float, np.exp(found))
        climbed = replace(scales, smooth=smooth, peculiar=peculiar, lengths=dict(zip(self.names, lengths, strict=True)))
        covariance = self.line + climbed.covariance(self.inputs.coordinates, self.inputs.coordinates)
        covariance[np.diag_indices_from(covariance)] += peculiar**2 * weight + noise + JITTER
        inverse, _ = _inverse(covariance)
        return climbed, inverse @ self.values / np.diag(inverse), 1 / np.diag(inverse)


def _inverse(covariance: Array) -> tuple[Array, float]:
    """The inverse, and half of the logarithm of the determinant; LinAlgError where there is none."""
    lower = cholesky(covariance, lower=True, check_finite=False)
    half, failed = dpotri(lower, lower=1)
    if failed:
        raise LinAlgError
    return np.tril(half) + np.tril(half, -1).T, float(np.log(np.diag(lower)).sum())


def _uneven(scales: Scales, inputs: Inputs, squares: Array) -> Scales:
    """How the peculiar variance depends on the coordinates, from `squares` (n,) of errors in units of their variance.

    Squared normal errors are gamma distributed: a regression of their logarithm with a normal prior on each slope.
    """
    offsets = [inputs.coordinates[name].values - centre for name, (centre, _) in scales.slopes.items()]
    design = np.stack([np.ones(len(squares)), *offsets], axis=1)
    prior = np.array([_LEVEL, *[_SLOPE] * len(offsets)])

    def height(change: Array) -> tuple[float, Array]:
        logs = design @ change
        ratio = squares * np.exp(-logs)
        off = change / prior
        return float(0.5 * (logs + ratio).sum() + 0.5 * off @ off), 0.5 * (1 - ratio) @ design + off / prior

    level, *changes = minimize(height, np.zeros(len(prior)), jac=True, method="L-BFGS-B").x
    slopes = {
        name: (centre, slope + float(change))
        for (name, (centre, slope)), change in zip(scales.slopes.items(), changes, strict=True)
    }
    new = replace(scales, slopes=slopes, level=scales.level + float(level), ends=(-np.inf, np.inf))
    logs = np.log(new.peculiar_variance(inputs.coordinates)) - 2 * np.log(new.peculiar)
    return replace(new, ends=(float(logs.min()), float(logs.max())))
