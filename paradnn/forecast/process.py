"""A Gaussian process about a line: what the line cannot say is smooth, and the rest is peculiar to a step.

    process = Process.fit(inputs, values, noise)      # values (m,), such as logarithms of seconds
    posterior = process.predict(candidates)           # a `Prediction`: means, and what candidates err in together
    process.left_out                                  # each observation predicted from all others, in closed form

A value is the sum of four parts (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.7):
the line, whose coefficients have a prior each; a smooth function of the coordinates with Matern's covariance of order
3/2 and a length for every coordinate; what is peculiar to a step, which its replicates share; and the noise of a run.
How large the second and third are, how long the lengths, and where steps are more peculiar than elsewhere, is learnt
(`paradnn.forecast.process`). Nothing here knows of ParaDnn's points: `paradnn.forecast.predict` makes the inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize
from scipy.special import stdtrit

from paradnn.forecast.regression import Array, Columns, Prediction

__all__ = [
    "JITTER",
    "Coordinate",
    "Coordinates",
    "Inputs",
    "LeftOut",
    "Process",
    "Scales",
    "aligned",
    "joined",
    "learn",
    "matrix",
    "places",
    "pooled",
]


@dataclass(frozen=True)
class Coordinate:
    """values: (n,) numbers, such as decimal logarithms of sizes, or words, which are equal or are not. reach: before
    data, the distance over which the smooth part changes; two words are at distance 1."""

    values: NDArray[Any]
    reach: float

    @property
    def is_word(self) -> bool:
        """Whether values are equal or not, and no more."""
        return self.values.dtype.kind == "U"

    def squares(self, other: Coordinate) -> Array:
        """(n, m) squared distances."""
        if not self.is_word:
            return np.asarray((self.values[:, None] - other.values) ** 2)
        _, codes = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        return np.asarray(codes[: len(self.values), None] != codes[len(self.values) :], dtype=float)


#: By name; what is missing is zero, or a word of its own.
Coordinates = Mapping[Hashable, Coordinate]


@dataclass(frozen=True)
class Inputs:
    """n points. base: (n,) what is known of a value without data. columns: of the line, with their priors. coordinates:
    of the smooth part. steps: equal for replicates of one step."""

    base: Array
    columns: Columns
    coordinates: Coordinates
    steps: Sequence[Hashable]

    def __len__(self) -> int:
        return len(self.base)

    def rows(self, index: NDArray[np.intp]) -> Inputs:
        """Some of the points."""
        return Inputs(
            self.base[index],
            {name: (column[index], prior) for name, (column, prior) in self.columns.items()},
            {name: replace(one, values=one.values[index]) for name, one in self.coordinates.items()},
            [self.steps[place] for place in index],
        )


def aligned(one: Coordinates, other: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Both with the names of both."""
    known = {**other, **one}
    sizes = (len(next(iter(group.values())).values) for group in (one, other))
    first, second = (
        {name: group.get(name, replace(like, values=np.zeros(size, like.values.dtype))) for name, like in known.items()}
        for group, size in zip((one, other), sizes, strict=True)
    )
    return first, second


def joined(one: Coordinates, other: Coordinates) -> Coordinates:
    """The points of both."""
    first, second = aligned(one, other)
    return {
        name: replace(coordinate, values=np.concatenate([coordinate.values, second[name].values]))
        for name, coordinate in first.items()
    }


def matrix(columns: Sequence[tuple[Array, float]], rows: int) -> Array:
    """(rows, k): columns in units of their priors."""
    return np.stack([column * prior for column, prior in columns], axis=1) if columns else np.zeros((rows, 0))


def places(steps: Sequence[Hashable]) -> NDArray[np.intp]:
    """(n,) the number of each step, in the order in which they first appear."""
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    return np.array([numbers[step] for step in steps], dtype=np.intp)


def pooled(inputs: Inputs, values: Array, noise: Array) -> tuple[Inputs, Array, Array]:
    """Replicates as one observation of their step each, weighted by their `noise` (n,), which are variances.

    Columns are averaged like the values, so that this loses nothing but what replicates in different sessions say of
    the sessions.
    """
    place = places(inputs.steps)
    _, first = np.unique(place, return_index=True)
    total = np.bincount(place, 1 / noise)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(place, column / noise) / total)

    columns = {name: (mean(column), prior) for name, (column, prior) in inputs.columns.items()}
    return replace(inputs.rows(first), base=mean(inputs.base), columns=columns), mean(values), 1 / total


#: Before data: the smooth part, what is peculiar to a step (standard deviations of a logarithm), and by what factor
#: these and the lengths may be off (standard deviation of its logarithm).
_SMOOTH, _PECULIAR, _OFF = 0.2, 0.05, 1.0
#: Beyond so many of these no scale is looked at.
_FARTHEST = 30.0
#: The logarithm of the variance of what is peculiar: how it may differ in all, and for each unit of a coordinate.
_LEVEL, _SLOPE = 0.3, 0.5
#: Steps that scales are learnt from at most; rounds of scales and errors in turn; errors, in standard deviations,
#: beyond which a step counts as disturbed, and as far as which they tell where others are peculiar.
_MOST_STEPS, _ROUNDS, _DISTURBED, _TOLD = 250, 3, 3.5, 12.0**0.5
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
            off = (logs - before) / _OFF
            if np.abs(off).max() > _FARTHEST:  # a first stride may be that long
                return 1e12, np.zeros_like(logs)
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


#: Steps, and with candidates beside them points, that carry the smooth part of a prediction at most. Up to the
#: first number it is exact, beyond it what carriers span (Snelson and Ghahramani, NIPS 2006: "fully independent
#: training conditional"); the second bounds how finely it is known what candidates have in common.
_MOST_OBSERVED, _MOST_CARRIERS = 400, 256
#: Degrees of freedom without data, and steps for each further one: scales were chosen from the same steps.
_WORTH, _EACH = 4.0, 4.0


@dataclass(frozen=True)
class LeftOut:
    """Every observed step predicted from the others. error: (g,) observed minus predicted. spread: (g,) standard
    deviation that was stated. freedom: degrees of freedom of the errors' distribution."""

    error: Array
    spread: Array
    freedom: float

    @property
    def median_error(self) -> float:
        """Median relative error of a value's exponential; NaN where there are no others."""
        return float(np.median(np.abs(np.expm1(-self.error)))) if len(self.error) > 1 else float("nan")

    def coverage(self, level: float = 0.95) -> float:
        """The share of steps that their interval holds; NaN where there are no others."""
        held = np.abs(self.error) <= stdtrit(self.freedom, 0.5 + level / 2) * self.spread
        return float(held.mean()) if len(self.error) > 1 else float("nan")


@dataclass(frozen=True)
class Process:
    """The fit of g steps. values: (g,) beyond the base. noise, disturbed: (g,) the variance of a step's mean over its
    runs, and how many times larger the variance of what is peculiar to it was found. run: a single run's noise."""

    inputs: Inputs
    values: Array
    noise: Array
    disturbed: Array
    scales: Scales
    run: float

    @classmethod
    def fit(cls, inputs: Inputs, values: Array, noise: Array, run: float) -> Process:
        """From `values` (m,) of single runs, with `noise` (m,), the standard deviation of each beside other runs of
        its step, and `run`, that of a run to come."""
        steps, means, variances = pooled(inputs, values - inputs.base, noise**2)
        scales, disturbed = learn(steps, means, variances)
        return cls(steps, means, variances, disturbed, scales, run)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the errors' distribution."""
        return _WORTH + len(self.values) / _EACH

    @property
    def allowance(self) -> float:
        """By what factor variances are larger, since lengths were chosen to make these very steps probable."""
        return 1 + len(self.scales.lengths) / max(len(self.values), 1)

    def predict(self, points: Inputs) -> Prediction:
        """The joint distribution of a value at each of the points; a step that was observed is nearly known."""
        carriers = self._carriers(points)
        count, known = len(points), self.inputs.columns
        absent = np.zeros(count)
        line = [(points.columns.get(name, (absent, 0.0))[0], prior) for name, (_, prior) in known.items()]
        unseen = [column for name, column in points.columns.items() if name not in known]
        features, own = self._features(points.coordinates, matrix(line, count), carriers)
        fit = _Posterior.of(self, carriers)
        place = places([*self.inputs.steps, *points.steps])
        group = place[len(self.values) :]
        again = group < len(self.values)
        # Of an observed step the peculiar part is known as well as its runs tell, given what all steps have in common.
        step, base = group[again], points.base.copy()
        kept = fit.own[step] / (fit.own[step] + self.noise[step])
        base[again] += kept * self.values[step]
        features[again] -= kept[:, None] * fit.features[step]
        own[again] = fit.own[step] * (1 - kept)
        root = np.hstack([features @ fit.root * np.sqrt(self.allowance), matrix(unseen, count)])
        return Prediction(
            base + features @ fit.weights, root, own * self.allowance, places(points.steps), self.run, self.freedom
        )

    @cached_property
    def left_out(self) -> LeftOut:
        """Every step predicted from the others: its residual and variance grow by how far it pulled the line itself."""
        fit = _Posterior.of(self, self._carriers(None))
        spread = fit.own + self.noise
        apart = 1 - ((fit.features @ fit.root) ** 2).sum(axis=1) / spread
        error = (self.values - fit.features @ fit.weights) / apart
        return LeftOut(error, np.sqrt(self.allowance * spread / apart), self.freedom)

    def _features(self, points: Coordinates, line: Array, carriers: tuple[Coordinates, Array]) -> tuple[Array, Array]:
        """(n, k) features whose weights have variance 1 before data; (n,) variances of what is peculiar to a step,
        and so what carriers do not span of the smooth part."""
        chosen, lower = carriers
        smooth = solve_triangular(lower, self.scales.covariance(chosen, points), lower=True, check_finite=False).T
        rest = np.maximum(self.scales.smooth**2 - (smooth**2).sum(axis=1), 0.0)
        return np.hstack([line, smooth]), self.scales.peculiar_variance(points) + rest

    def _carriers(self, points: Inputs | None) -> tuple[Coordinates, Array]:
        """Points that carry the smooth part, and the Cholesky factor of its covariance among them."""
        random = np.random.default_rng(0)
        chosen = self.inputs.rows(random.permutation(len(self.values))[:_MOST_OBSERVED]).coordinates
        if points is not None and len(self.values) < _MOST_CARRIERS:
            more = random.permutation(len(points))[: _MOST_CARRIERS - len(self.values)]
            chosen = joined(chosen, points.rows(more).coordinates)
        covariance = self.scales.covariance(chosen, chosen)
        covariance[np.diag_indices_from(covariance)] += JITTER
        return chosen, cholesky(covariance, lower=True)


@dataclass(frozen=True)
class _Posterior:
    """weights: (k,) of the features; root: (k, k), root @ root.T is their covariance. Of the g observed steps:
    features (g, k), own (g,) variance of what is peculiar before it was observed."""

    weights: Array
    root: Array
    features: Array
    own: Array

    @classmethod
    def of(cls, process: Process, carriers: tuple[Coordinates, Array]) -> _Posterior:
        inputs = process.inputs
        line = matrix(list(inputs.columns.values()), len(inputs))
        features, own = process._features(inputs.coordinates, line, carriers)
        own = own + process.scales.peculiar_variance(inputs.coordinates) * (process.disturbed - 1)
        precise = features / np.sqrt(own + process.noise)[:, None]
        lower = cholesky(precise.T @ precise + np.eye(features.shape[1]), lower=True)
        root = solve_triangular(lower, np.eye(len(lower)), lower=True).T
        weights = root @ (root.T @ (precise.T @ (process.values / np.sqrt(own + process.noise))))
        return cls(weights, root, features, own)
