"""A Gaussian process about a line: what the line cannot say is smooth, and the rest is a step's
own.

A value is the sum of four parts (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, section 2.7): the line, whose coefficients have a prior each; a smooth function of the
coordinates with Matern's covariance of order 3/2 and a length for every coordinate; the nugget,
which is a step's own and which its replicates share; and the noise of a run. How large the second
and third are, how long the lengths, and where the nugget is larger, is learnt.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize
from scipy.special import stdtrit

from paradnn.statistics.robust_regression import Array, Columns, Prediction, matrix, one_thread

#: Before data: the smooth part and the nugget (standard deviations of a logarithm), and by what
#: factor these and the lengths may be off (standard deviation of its logarithm).
_SMOOTH = 0.2
_NUGGET = 0.05
_OFF = 1.0
#: Beyond so many of these no scale is looked at.
_FARTHEST = 30.0
#: The logarithm of the nugget's variance: how it may differ in all, and for each unit of a
#: coordinate.
_LEVEL = 0.3
_SLOPE = 0.5
#: Steps that scales are learnt from at most; rounds of scales and errors in turn; errors, in
#: standard deviations, beyond which a step counts as disturbed, and as far as which they say where
#: the nugget is large.
_MOST_STEPS = 250
_ROUNDS = 3
_DISTURBED = 3.5
_FAR = 12.0**0.5
#: Variance that keeps a covariance invertible.
JITTER = 1e-7
#: Steps, and with candidates beside them points, that carry the smooth part of a prediction at
#: most. Up to the first number it is exact, beyond it what carriers span (Snelson and Ghahramani,
#: NIPS 2006: "fully independent training conditional"); the second bounds how finely it is known
#: what candidates have in common.
_MOST_OBSERVED = 400
_MOST_CARRIERS = 256
#: Degrees of freedom without data, and steps for each further one: scales were chosen from the same
#: steps.
_WORTH = 4.0
_EACH = 4.0


#: By name (n,) numbers, such as decimal logarithms of sizes, or words, which are at distance 1
#: where they differ; what is missing is zero, or a word of its own.
Coordinates = Mapping[Hashable, NDArray[Any]]


def _is_word(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "U"


def _squares(one: NDArray[Any], other: NDArray[Any]) -> Array:
    """(n, m) squared distances along a coordinate."""
    return np.asarray(
        one[:, None] != other if _is_word(one) else (one[:, None] - other) ** 2, dtype=float
    )


@dataclass(frozen=True)
class Inputs:
    """n points. base: (n,) what is known of a value without data. columns: of the line, with their
    priors. coordinates: of the smooth part, which changes over `reach` of each before data. steps:
    equal for replicates of one step.
    """

    base: Array
    columns: Columns
    coordinates: Coordinates
    steps: Sequence[Hashable]
    reach: float = 1.0

    def __len__(self) -> int:
        return len(self.base)

    def rows(self, index: NDArray[np.intp]) -> Inputs:
        """Some of the points."""
        return Inputs(
            self.base[index],
            {name: (column[index], prior) for name, (column, prior) in self.columns.items()},
            {name: values[index] for name, values in self.coordinates.items()},
            [self.steps[place] for place in index],
            self.reach,
        )


def _aligned(one: Coordinates, other: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Both with the names of both."""
    known = {**other, **one}

    def whole(group: Coordinates) -> Coordinates:
        lacking = len(next(iter(group.values())))
        return {
            name: group.get(name, np.zeros(lacking, like.dtype)) for name, like in known.items()
        }

    return whole(one), whole(other)


def _line(columns: Iterable[tuple[Array, float]], rows: int) -> Array:
    """(rows, k): columns in units of their priors."""
    return matrix((column * prior for column, prior in columns), rows)


def places(steps: Sequence[Hashable]) -> NDArray[np.intp]:
    """(n,) the number of each step, in the order in which they first appear."""
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    return np.array([numbers[step] for step in steps], dtype=np.intp)


def _pooled(inputs: Inputs, values: Array, noise: Array) -> tuple[Inputs, Array, Array]:
    """Replicates as one observation of their step each, weighted by their `noise` (n,), which are
    variances.

    Columns are averaged like the values, so that this loses nothing but what replicates in
    different sessions say of the sessions.
    """
    place = places(inputs.steps)
    _, first = np.unique(place, return_index=True)
    total = np.bincount(place, 1 / noise)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(place, column / noise) / total)

    columns = {name: (mean(column), prior) for name, (column, prior) in inputs.columns.items()}
    return (
        replace(inputs.rows(first), base=mean(inputs.base), columns=columns),
        mean(values),
        1 / total,
    )


@dataclass(frozen=True)
class Scales:
    """smooth, nugget: standard deviations. lengths: of the coordinates that vary, `reach` of
    others. slopes: name -> (centre, change of the logarithm of the nugget's variance for a unit);
    level: that logarithm at the centres; ends: its least and most.
    """

    smooth: float
    nugget: float
    lengths: Mapping[Hashable, float]
    reach: float
    slopes: Mapping[Hashable, tuple[float, float]]
    level: float
    ends: tuple[float, float]

    def covariance(self, one: Coordinates, other: Coordinates) -> Array:
        """(n, m) of the smooth part: Matern's of order 3/2."""
        one, other = _aligned(one, other)
        lengths = {name: self.lengths.get(name, self.reach) for name in one}
        numbers = [name for name, values in one.items() if not _is_word(values)]
        scaled, others = (
            np.stack([group[name] / lengths[name] for name in numbers], axis=1)
            for group in (one, other)
        )
        squares = (scaled**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * scaled @ others.T
        for name, values in one.items():
            if _is_word(values):
                squares += _squares(values, other[name]) / lengths[name] ** 2
        root = np.sqrt(3.0 * np.maximum(squares, 0.0))
        return np.asarray(self.smooth**2 * (1 + root) * np.exp(-root))

    def nugget_variance(self, coordinates: Coordinates) -> Array:
        """(n,) of the nugget, no further off than where steps were observed."""
        change = np.full(len(next(iter(coordinates.values()))), self.level)
        for name, (centre, slope) in self.slopes.items():
            change += slope * (coordinates.get(name, np.zeros(1)) - centre)
        return np.asarray(self.nugget**2 * np.exp(np.clip(change, *self.ends)))


def _learn(inputs: Inputs, values: Array, noise: Array) -> tuple[Scales, Array]:
    """The scales of steps (n,) with `values` beyond their base and variances `noise` of these; and
    (n,) by what factor the nugget's variance of each is larger because it was disturbed.
    """
    varying = {name: one for name, one in inputs.coordinates.items() if len(np.unique(one)) > 1}
    slopes = {
        name: (float(np.mean(one)), 0.0) for name, one in varying.items() if not _is_word(one)
    }
    lengths = dict.fromkeys(varying, inputs.reach)
    scales = Scales(_SMOOTH, _NUGGET, lengths, inputs.reach, slopes, 0.0, (0.0, 0.0))
    disturbed = np.ones(len(values))
    if len(values) < 2:
        return scales, disturbed
    subset = np.sort(np.random.default_rng(0).permutation(len(values))[:_MOST_STEPS])
    part = inputs.rows(subset)
    line = _line(part.columns.values(), len(part))
    for _ in range(_ROUNDS):
        weight = scales.nugget_variance(part.coordinates) / scales.nugget**2 * disturbed[subset]
        scales, error, variance = _climbed(
            scales, line @ line.T, part, values[subset], weight, noise[subset]
        )
        ratio = error / np.sqrt(variance)
        disturbed[subset] *= np.maximum(1.0, np.abs(ratio) / _DISTURBED) ** 2
        share = scales.nugget**2 * weight / variance
        scales = _uneven(scales, part, np.minimum(np.abs(ratio), _FAR) ** 2, share)
    return scales, disturbed


def _climbed(
    scales: Scales, line: Array, inputs: Inputs, values: Array, weight: Array, noise: Array
) -> tuple[Scales, Array, Array]:
    """The most probable scales from those given, and the error and variance with which each value
    is predicted from the others. line: (n, n) covariance of the line's coefficients before data;
    `weight` (n,) is how many times larger the nugget's variance is.
    """
    names = list(scales.lengths)
    chosen = [inputs.coordinates[name] for name in names]
    squares = np.array([_squares(one, one) for one in chosen]).reshape(
        len(chosen), len(weight), len(weight)
    )
    before = np.log([_SMOOTH, _NUGGET, *[inputs.reach] * len(chosen)])
    start = np.log([scales.smooth, scales.nugget, *scales.lengths.values()])
    diagonal = np.diag_indices_from(line)

    def height(logs: Array) -> tuple[float, Array]:
        off = (logs - before) / _OFF
        if np.abs(off).max() > _FARTHEST:  # a first stride may be that long
            return 1e12, np.zeros_like(logs)
        smooth, nugget, *_ = np.exp(2 * logs)
        shorter = np.exp(-2 * logs[2:])
        root = np.sqrt(3.0 * np.tensordot(shorter, squares, 1)) + np.zeros_like(line)
        decay = np.exp(-root)
        covariance = line + smooth * (1 + root) * decay
        covariance[diagonal] += nugget * weight + noise + JITTER
        try:
            inverse, log_root = _inverse(covariance)
        except LinAlgError:
            return 1e12, np.zeros_like(logs)
        pulled = inverse @ values
        rise = np.outer(pulled, pulled) - inverse
        by_length = 1.5 * smooth * np.tensordot(squares, rise * decay, 2) * shorter
        slope = np.array(
            [
                smooth * (rise * (1 + root) * decay).sum(),
                nugget * (np.diag(rise) @ weight),
                *by_length,
            ]
        )
        return float(0.5 * values @ pulled + log_root + 0.5 * off @ off), off / _OFF - slope

    found = minimize(height, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    smooth, nugget, *lengths = map(float, np.exp(found))
    climbed = replace(
        scales, smooth=smooth, nugget=nugget, lengths=dict(zip(names, lengths, strict=True))
    )
    covariance = line + climbed.covariance(inputs.coordinates, inputs.coordinates)
    covariance[diagonal] += nugget**2 * weight + noise + JITTER
    inverse, _ = _inverse(covariance)
    return climbed, inverse @ values / np.diag(inverse), 1 / np.diag(inverse)


def _inverse(covariance: Array) -> tuple[Array, float]:
    """The inverse, and half of the logarithm of the determinant; LinAlgError where there is none."""
    lower = cholesky(covariance, lower=True, check_finite=False)
    half, failed = dpotri(lower, lower=1)
    if failed:
        raise LinAlgError
    return np.tril(half) + np.tril(half, -1).T, float(np.log(np.diag(lower)).sum())


def _uneven(scales: Scales, inputs: Inputs, squares: Array, share: Array) -> Scales:
    """How the nugget's variance depends on the coordinates, from `squares` (n,) of errors in units
    of their variance, of which the nugget's is a `share` (n,): where it is little, errors say
    little of it.

    Squared normal errors are gamma distributed: a regression of their logarithm with a normal prior
    on each slope.
    """
    offsets = [inputs.coordinates[name] - centre for name, (centre, _) in scales.slopes.items()]
    design = np.stack([np.ones(len(squares)), *offsets], axis=1)
    known = np.array([scales.level, *(slope for _, slope in scales.slopes.values())])
    prior = np.array([_LEVEL, *[_SLOPE] * len(offsets)])

    def height(change: Array) -> tuple[float, Array]:
        nugget = share * np.exp(design @ change)
        off = (known + change) / prior
        variance = 1 - share + nugget
        slope = 0.5 * (1 - squares / variance) * nugget / variance
        unlikely = 0.5 * (np.log(variance) + squares / variance).sum() + 0.5 * off @ off
        return float(unlikely), slope @ design + off / prior

    level, *found = known + minimize(height, np.zeros(len(prior)), jac=True, method="L-BFGS-B").x
    centres = ((name, centre) for name, (centre, _) in scales.slopes.items())
    slopes = {
        name: (centre, float(slope)) for (name, centre), slope in zip(centres, found, strict=True)
    }
    new = replace(scales, slopes=slopes, level=float(level), ends=(-np.inf, np.inf))
    logs = np.log(new.nugget_variance(inputs.coordinates)) - 2 * np.log(new.nugget)
    return replace(new, ends=(float(logs.min()), float(logs.max())))


@dataclass(frozen=True)
class LeaveOneOutErrors:
    """Every observed step predicted from the others. error: (g,) observed minus predicted. spread:
    (g,) standard deviation that was stated. freedom: degrees of freedom of the errors'
    distribution.
    """

    error: Array
    spread: Array
    freedom: float

    def of(self, chosen: NDArray[np.bool_]) -> LeaveOneOutErrors:
        """Some of the steps."""
        return LeaveOneOutErrors(self.error[chosen], self.spread[chosen], self.freedom)

    @property
    def median_error(self) -> float:
        """Median relative error of a value's exponential; NaN where there are no others."""
        if len(self.error) > 1:
            return float(np.median(np.abs(np.expm1(-self.error))))
        return float("nan")

    @property
    def score(self) -> float:
        """Mean logarithm of the normal density that was stated of each, an error counted as three
        deviations at most; for comparing fits of the same steps.
        """
        return float(
            -np.mean(np.log(self.spread) + 0.5 * np.minimum((self.error / self.spread) ** 2, 9.0))
        )

    def coverage(self, level: float = 0.95) -> float:
        """The share of steps that their interval holds; NaN where there are no others."""
        held = np.abs(self.error) <= stdtrit(self.freedom, 0.5 + level / 2) * self.spread
        return float(held.mean()) if len(self.error) > 1 else float("nan")


class _Posterior(NamedTuple):
    """weights: (k,) of the features; root: (k, k), root @ root.T is their covariance. Of the g
    observed steps: features (g, k), own (g,) variance of the nugget before it was observed.
    """

    weights: Array
    root: Array
    features: Array
    own: Array
    carriers: tuple[Coordinates, Array]


@dataclass(frozen=True)
class Process:
    """The fit of g steps. values: (g,) beyond the base. noise, disturbed: (g,) the variance of a
    step's mean over its runs, and how many times larger the variance of its nugget was found. run:
    a single run's noise.
    """

    inputs: Inputs
    values: Array
    noise: Array
    disturbed: Array
    scales: Scales
    run: float

    @classmethod
    @one_thread()
    def fit(cls, inputs: Inputs, values: Array, noise: Array, run: float) -> Process:
        """From `values` (m,) of single runs, with `noise` (m,), the standard deviation of each
        beside other runs of its step, and `run`, that of a run to come.
        """
        steps, means, variances = _pooled(inputs, values - inputs.base, noise**2)
        scales, disturbed = _learn(steps, means, variances)
        return cls(steps, means, variances, disturbed, scales, run)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the errors' distribution."""
        return _WORTH + len(self.values) / _EACH

    @property
    def allowance(self) -> float:
        """By what factor variances are larger, since lengths were chosen to make these very steps
        probable.
        """
        return 1 + len(self.scales.lengths) / max(len(self.values), 1)

    @one_thread()
    def predict(self, points: Inputs) -> Prediction:
        """The joint distribution of a value at each of the points; a step that was observed is
        nearly known.
        """
        if len(self.values) >= _MOST_CARRIERS:
            fit = self._alone
        else:
            fit = self._posterior(self._carriers(points))
        count = len(points)
        known = self.inputs.columns
        line = (
            (points.columns.get(name, (np.zeros(count), 0.0))[0], prior)
            for name, (_, prior) in known.items()
        )
        unseen = (column for name, column in points.columns.items() if name not in known)
        features, own = self._features(points.coordinates, _line(line, count), fit.carriers)
        group = places([*self.inputs.steps, *points.steps])[len(self.values) :]
        again = group < len(self.values)
        # Of an observed step the nugget is known as well as its runs tell, given what all steps
        # have in common.
        step = group[again]
        base = points.base.copy()
        kept = fit.own[step] / (fit.own[step] + self.noise[step])
        base[again] += kept * self.values[step]
        features[again] -= kept[:, None] * fit.features[step]
        own[again] = fit.own[step] * (1 - kept)
        root = np.hstack([features @ fit.root * np.sqrt(self.allowance), _line(unseen, count)])
        mean = base + features @ fit.weights
        return Prediction(
            mean, root, own * self.allowance, places(points.steps), self.run, self.freedom
        )

    @cached_property
    @one_thread()
    def left_out(self) -> LeaveOneOutErrors:
        """Every step predicted from the others: its residual and variance grow by how far it pulled
        the line itself.
        """
        fit = self._alone
        spread = fit.own + self.noise
        apart = 1 - ((fit.features @ fit.root) ** 2).sum(axis=1) / spread
        error = (self.values - fit.features @ fit.weights) / apart
        return LeaveOneOutErrors(error, np.sqrt(self.allowance * spread / apart), self.freedom)

    @cached_property
    def _alone(self) -> _Posterior:
        return self._posterior(self._carriers(None))

    def _features(
        self, points: Coordinates, line: Array, carriers: tuple[Coordinates, Array]
    ) -> tuple[Array, Array]:
        """(n, k) features whose weights have variance 1 before data; (n,) variances of the nugget,
        and so what carriers do not span of the smooth part.
        """
        chosen, lower = carriers
        smooth = solve_triangular(
            lower, self.scales.covariance(chosen, points), lower=True, check_finite=False
        ).T
        rest = np.maximum(self.scales.smooth**2 - (smooth**2).sum(axis=1), 0.0)
        return np.hstack([line, smooth]), self.scales.nugget_variance(points) + rest

    def _carriers(self, points: Inputs | None) -> tuple[Coordinates, Array]:
        """Points that carry the smooth part, and the Cholesky factor of its covariance among them."""
        random = np.random.default_rng(0)
        chosen = self.inputs.rows(random.permutation(len(self.values))[:_MOST_OBSERVED]).coordinates
        if points is not None and len(self.values) < _MOST_CARRIERS:
            more = points.rows(random.permutation(len(points))[: _MOST_CARRIERS - len(self.values)])
            own, others = _aligned(chosen, more.coordinates)
            chosen = {name: np.concatenate([values, others[name]]) for name, values in own.items()}
        covariance = self.scales.covariance(chosen, chosen)
        covariance[np.diag_indices_from(covariance)] += JITTER
        return chosen, cholesky(covariance, lower=True)

    def _posterior(self, carriers: tuple[Coordinates, Array]) -> _Posterior:
        inputs = self.inputs
        line = _line(self.inputs.columns.values(), len(self.inputs))
        features, own = self._features(inputs.coordinates, line, carriers)
        own = own + self.scales.nugget_variance(inputs.coordinates) * (self.disturbed - 1)
        deviations = np.sqrt(own + self.noise)
        precise = features / deviations[:, None]
        lower = cholesky(precise.T @ precise + np.eye(features.shape[1]), lower=True)
        root = solve_triangular(lower, np.eye(len(lower)), lower=True).T
        return _Posterior(
            root @ (root.T @ (precise.T @ (self.values / deviations))),
            root,
            features,
            own,
            carriers,
        )
