"""A Gaussian process with a linear part, a smooth part and a nugget, for logarithms of times.

The value of a run is the sum of four parts (Rasmussen and Williams, Gaussian Processes for Machine
Learning, 2006, section 2.7):

- the linear part, in which each coefficient has a normal prior;
- the smooth part, a function of the coordinates. It has a Matern covariance of order 3/2 with one
  length scale per coordinate;
- the nugget: an independent deviation of each step, which all replicates of the step share;
- the noise of the run.

The fit learns the standard deviations of the smooth part and of the nugget, the length scales, and
how the nugget's variance depends on the coordinates.
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

#: Expected standard deviations of the smooth part and of the nugget, in logarithms.
_SMOOTH = 0.2
_NUGGET = 0.05
#: Prior standard deviation of the logarithm of each scale, that is, of the two standard deviations
#: above and of the length scales.
_SCALE_SPREAD = 1.0
#: The search rejects scales whose logarithms deviate from the prior mean by more than this number
#: of prior standard deviations.
_MAX_SCALE_DEVIATION = 30.0
#: Value of the objective for rejected scales.
_REJECTED = 1e12
#: Prior standard deviations for the logarithm of the nugget's variance: of its level, and of its
#: slope along each coordinate.
_LEVEL_SPREAD = 0.3
_SLOPE_SPREAD = 0.5
#: The scales are learned from a random subset of at most this number of steps.
_MAX_LEARNING_STEPS = 250
#: Number of rounds that learn the scales and then detect disturbed steps.
_ROUNDS = 3
#: A step whose error exceeds this number of standard deviations counts as disturbed.
_DISTURBED = 3.5
#: Errors are clipped at this number of standard deviations when the nugget's variance is learned.
_MAX_ERROR = 12.0**0.5
#: Variance that is added to a covariance matrix to keep it invertible.
JITTER = 1e-7
#: The smooth part is represented by its values at inducing points (Snelson and Ghahramani, NIPS
#: 2006: "fully independent training conditional"). At most _MAX_OBSERVED observed steps are
#: inducing points, so up to that number of steps the smooth part is exact.
_MAX_OBSERVED = 400
#: Points to predict are added as inducing points until there are this number of inducing points in
#: total. Covariances between predicted points that are not inducing points are approximate.
_MAX_INDUCING = 256
#: Degrees of freedom of the prediction errors if there are no observed steps.
_BASE_FREEDOM = 4.0
#: Observed steps per additional degree of freedom. It exceeds 1, because the scales are fitted to
#: the same steps.
_STEPS_PER_FREEDOM = 4.0
#: Squared standardized errors are clipped at this value in `LeaveOneOutErrors.score`.
_MAX_SQUARED_ERROR = 9.0


#: Coordinates of n points: arrays (n,) by name. They contain numbers, such as decimal logarithms of
#: sizes, or texts. The distance of two different texts is 1. A missing coordinate counts as zero or
#: as the empty text.
Coordinates = Mapping[Hashable, NDArray[Any]]


def _is_text(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "U"


def _squared_distances(a: NDArray[Any], b: NDArray[Any]) -> Array:
    """Return the squared distances (n, m) between values (n,) and (m,) of one coordinate."""
    if _is_text(a):
        return np.asarray(a[:, None] != b, dtype=float)
    return np.asarray((a[:, None] - b) ** 2, dtype=float)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a Gaussian process at n points, which are past runs or planned measurements.

    The value of a point is the sum of a linear part, a smooth part, a deviation of its step (the
    nugget), and noise.

    Attributes:
        base: Prior means (n,) of the values.
        columns: Columns (n,) of the linear part by name, each with the prior standard deviation of
            its coefficient.
        coordinates: Coordinates (n,) of the smooth part by name: numbers or texts.
        steps: Identifier of the step of each point, which is equal for replicates of a step.
        reach: Prior length scale of every coordinate.
    """

    base: Array
    columns: Columns
    coordinates: Coordinates
    steps: Sequence[Hashable]
    reach: float = 1.0

    def __len__(self) -> int:
        return len(self.base)

    def rows(self, index: NDArray[np.intp]) -> Inputs:
        """Return the inputs of the points at the given indices, in the given order."""
        return Inputs(
            base=self.base[index],
            columns={
                name: (column[index], prior) for name, (column, prior) in self.columns.items()
            },
            coordinates={name: values[index] for name, values in self.coordinates.items()},
            steps=[self.steps[number] for number in index],
            reach=self.reach,
        )


def _align(a: Coordinates, b: Coordinates) -> tuple[Coordinates, Coordinates]:
    """Return two sets of coordinates after giving both sets the same coordinate names.

    A set that lacks a name gets a coordinate of zeros, or of empty texts, under this name.

    Args:
        a: Coordinates of n points, by name.
        b: Coordinates of m points, by name.
    """
    examples = {**b, **a}

    def complete(group: Coordinates) -> Coordinates:
        rows = len(next(iter(group.values())))
        return {
            name: group.get(name, np.zeros(rows, example.dtype))
            for name, example in examples.items()
        }

    return complete(a), complete(b)


def _scale_columns(columns: Iterable[tuple[Array, float]], rows: int) -> Array:
    """Return k columns (rows, k), each times the prior standard deviation of its coefficient."""
    return matrix((column * prior for column, prior in columns), rows)


def number_groups(steps: Sequence[Hashable]) -> NDArray[np.intp]:
    """Return an index (n,) that is equal for equal entries.

    The indices number the distinct entries from 0, in the order of their first appearance.

    Args:
        steps: n identifiers, such as the step of each run.
    """
    numbers = {step: number for number, step in enumerate(dict.fromkeys(steps))}
    return np.array([numbers[step] for step in steps], dtype=np.intp)


def _pool_replicates(
    inputs: Inputs, values: Array, variances: Array
) -> tuple[Inputs, Array, Array]:
    """Combine the replicates of each step into one observation.

    Values and columns are averaged with weights of 1 / `variances`. Only one kind of information is
    lost: replicates in different sessions also show by how much the sessions differ.

    Args:
        inputs: The inputs of n runs.
        values: Values (n,) of the runs.
        variances: Variances (n,) of the noise of the runs.

    Returns:
        The inputs of the g steps, their mean values (g,), and the variances (g,) of these means.
    """
    group = number_groups(inputs.steps)
    _, first = np.unique(group, return_index=True)
    precision = np.bincount(group, 1 / variances)

    def mean(column: Array) -> Array:
        return np.asarray(np.bincount(group, column / variances) / precision)

    columns = {name: (mean(column), prior) for name, (column, prior) in inputs.columns.items()}
    pooled = replace(inputs.rows(first), base=mean(inputs.base), columns=columns)
    return pooled, mean(values), 1 / precision


@dataclass(frozen=True)
class Scales:
    """Learned standard deviations and length scales of a Gaussian process.

    The process has a smooth part, a function of the coordinates, and a nugget, an independent
    deviation of each step.

    Attributes:
        smooth: Standard deviation of the smooth part.
        nugget: Standard deviation of the nugget.
        lengths: Length scales, by name, of the coordinates that vary among the observed steps.
        reach: Length scale of all other coordinates.
        slopes: Coordinate -> its center, and the slope of the logarithm of the nugget's variance
            along it.
        level: Logarithm, at the centers, of the factor that multiplies the nugget's variance.
        ends: Minimum and maximum of the logarithm of that factor at the observed steps.
    """

    smooth: float
    nugget: float
    lengths: Mapping[Hashable, float]
    reach: float
    slopes: Mapping[Hashable, tuple[float, float]]
    level: float
    ends: tuple[float, float]

    def covariance(self, a: Coordinates, b: Coordinates) -> Array:
        """Return the covariance (n, m) of the smooth part between n points and m points.

        It is a Matern covariance of order 3/2.

        Args:
            a: Coordinates of the n points by name.
            b: Coordinates of the m points by name. A name that only one set has counts as zero or
                as the empty text in the other.
        """
        a, b = _align(a, b)
        lengths = {name: self.lengths.get(name, self.reach) for name in a}
        numbers = [name for name, values in a.items() if not _is_text(values)]
        scaled_a = np.stack([a[name] / lengths[name] for name in numbers], axis=1)
        scaled_b = np.stack([b[name] / lengths[name] for name in numbers], axis=1)
        squares_a = (scaled_a**2).sum(axis=1)[:, None]
        squares_b = (scaled_b**2).sum(axis=1)
        squares = squares_a + squares_b - 2 * scaled_a @ scaled_b.T
        for name, values in a.items():
            if _is_text(values):
                squares += _squared_distances(values, b[name]) / lengths[name] ** 2
        root = np.sqrt(3.0 * np.maximum(squares, 0.0))
        return np.asarray(self.smooth**2 * (1 + root) * np.exp(-root))

    def nugget_variance(self, coordinates: Coordinates) -> Array:
        """Return the variances (n,) of the nugget, an independent deviation of each step.

        They are clipped to their range at the observed steps.

        Args:
            coordinates: Coordinates of n points by name.
        """
        change = np.full(len(next(iter(coordinates.values()))), self.level)
        for name, (center, slope) in self.slopes.items():
            change += slope * (coordinates.get(name, np.zeros(1)) - center)
        return np.asarray(self.nugget**2 * np.exp(np.clip(change, *self.ends)))


def _learn_scales(inputs: Inputs, values: Array, noise: Array) -> tuple[Scales, Array]:
    """Learn the scales, and detect disturbed steps (outliers).

    Args:
        inputs: The inputs of n steps.
        values: Values (n,) of the steps, minus the base.
        noise: Variances (n,) of the noise of the values.

    Returns:
        The scales, and a factor (n,) that multiplies the nugget's variance of each step: above 1
        for a disturbed step, else 1.
    """
    varying = {
        name: column for name, column in inputs.coordinates.items() if len(np.unique(column)) > 1
    }
    slopes = {
        name: (float(np.mean(column)), 0.0)
        for name, column in varying.items()
        if not _is_text(column)
    }
    scales = Scales(
        smooth=_SMOOTH,
        nugget=_NUGGET,
        lengths=dict.fromkeys(varying, inputs.reach),
        reach=inputs.reach,
        slopes=slopes,
        level=0.0,
        ends=(0.0, 0.0),
    )
    disturbed = np.ones(len(values))
    if len(values) < 2:
        return scales, disturbed
    subset = np.sort(np.random.default_rng(0).permutation(len(values))[:_MAX_LEARNING_STEPS])
    part = inputs.rows(subset)
    columns = _scale_columns(part.columns.values(), len(part))
    for _ in range(_ROUNDS):
        weight = scales.nugget_variance(part.coordinates) / scales.nugget**2 * disturbed[subset]
        scales, error, variance = _maximize_posterior(
            scales,
            line=columns @ columns.T,
            inputs=part,
            values=values[subset],
            weight=weight,
            noise=noise[subset],
        )
        ratio = error / np.sqrt(variance)
        disturbed[subset] *= np.maximum(1.0, np.abs(ratio) / _DISTURBED) ** 2
        share = scales.nugget**2 * weight / variance
        squares = np.minimum(np.abs(ratio), _MAX_ERROR) ** 2
        scales = _learn_nugget_variance(scales, part, squares, share)
    return scales, disturbed


def _maximize_posterior(
    scales: Scales, *, line: Array, inputs: Inputs, values: Array, weight: Array, noise: Array
) -> tuple[Scales, Array, Array]:
    """Find the most probable standard deviations and length scales of a Gaussian process.

    Args:
        scales: Start of the search.
        line: Prior covariance (n, n) of the linear part.
        inputs: The inputs of n steps.
        values: Values (n,) of the steps, minus the base.
        weight: Factors (n,) that multiply the nugget's variance.
        noise: Variances (n,) of the noise of the values.

    Returns:
        The scales, the leave-one-out errors (n,) of the values, and the variances (n,) of these
        errors.
    """
    names = list(scales.lengths)
    count = len(weight)
    distances = [
        _squared_distances(inputs.coordinates[name], inputs.coordinates[name]) for name in names
    ]
    squares = np.array(distances).reshape(len(names), count, count)
    prior = np.log([_SMOOTH, _NUGGET, *[inputs.reach] * len(names)])
    start = np.log([scales.smooth, scales.nugget, *scales.lengths.values()])
    diagonal = np.diag_indices_from(line)

    def objective(logs: Array) -> tuple[float, Array]:
        """Return the negative log posterior and its gradient for logarithms of the scales."""
        deviations = (logs - prior) / _SCALE_SPREAD
        if np.abs(deviations).max() > _MAX_SCALE_DEVIATION:  # the first search step may be too long
            return _REJECTED, np.zeros_like(logs)
        smooth, nugget, *_ = np.exp(2 * logs)
        inverse_lengths = np.exp(-2 * logs[2:])
        root = np.sqrt(3.0 * np.tensordot(inverse_lengths, squares, 1)) + np.zeros_like(line)
        decay = np.exp(-root)
        covariance = line + smooth * (1 + root) * decay
        covariance[diagonal] += nugget * weight + noise + JITTER
        try:
            inverse, half_log_determinant = _invert(covariance)
        except LinAlgError:
            return _REJECTED, np.zeros_like(logs)
        solved = inverse @ values
        # Twice the derivative of the log likelihood with respect to each entry of the covariance.
        sensitivity = np.outer(solved, solved) - inverse
        by_smooth = smooth * (sensitivity * (1 + root) * decay).sum()
        by_nugget = nugget * (np.diag(sensitivity) @ weight)
        by_length = 1.5 * smooth * np.tensordot(squares, sensitivity * decay, 2) * inverse_lengths
        gradient = np.array([by_smooth, by_nugget, *by_length])
        value = 0.5 * values @ solved + half_log_determinant + 0.5 * deviations @ deviations
        return float(value), deviations / _SCALE_SPREAD - gradient

    optimum = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    smooth, nugget, *lengths = map(float, np.exp(optimum))
    best = replace(
        scales, smooth=smooth, nugget=nugget, lengths=dict(zip(names, lengths, strict=True))
    )
    covariance = line + best.covariance(inputs.coordinates, inputs.coordinates)
    covariance[diagonal] += nugget**2 * weight + noise + JITTER
    inverse, _ = _invert(covariance)
    return best, inverse @ values / np.diag(inverse), 1 / np.diag(inverse)


def _invert(covariance: Array) -> tuple[Array, float]:
    """Return the inverse of a covariance matrix, and half the logarithm of its determinant.

    Raises:
        LinAlgError: If the matrix is not positive definite.
    """
    lower = cholesky(covariance, lower=True, check_finite=False)
    half, failed = dpotri(lower, lower=1)
    if failed:
        raise LinAlgError
    return np.tril(half) + np.tril(half, -1).T, float(np.log(np.diag(lower)).sum())


def _learn_nugget_variance(scales: Scales, inputs: Inputs, squares: Array, share: Array) -> Scales:
    """Return the scales with a nugget variance that depends on the coordinates.

    The nugget is an independent deviation of each step from the smooth part of the model. Squared
    normal errors follow a gamma distribution. In this gamma regression, the logarithm of the
    nugget's variance is linear in the coordinates. Level and slopes have normal priors.

    Args:
        scales: The scales so far.
        inputs: The inputs of n steps.
        squares: Squared errors (n,), divided by their variances.
        share: Share (n,) of the nugget in the variance of each error. If it is small, the error
            contains little information about the nugget.
    """
    offsets = [inputs.coordinates[name] - center for name, (center, _) in scales.slopes.items()]
    design = np.stack([np.ones(len(squares)), *offsets], axis=1)
    known = np.array([scales.level, *(slope for _, slope in scales.slopes.values())])
    prior = np.array([_LEVEL_SPREAD, *[_SLOPE_SPREAD] * len(offsets)])

    def objective(change: Array) -> tuple[float, Array]:
        """Return the negative log posterior and its gradient at a change of the coefficients."""
        nugget = share * np.exp(design @ change)
        deviations = (known + change) / prior
        variance = 1 - share + nugget
        slope = 0.5 * (1 - squares / variance) * nugget / variance
        value = 0.5 * (np.log(variance) + squares / variance).sum() + 0.5 * deviations @ deviations
        return float(value), slope @ design + deviations / prior

    start = np.zeros(len(prior))
    level, *learned = known + minimize(objective, start, jac=True, method="L-BFGS-B").x
    slopes = {
        name: (center, float(slope))
        for (name, (center, _)), slope in zip(scales.slopes.items(), learned, strict=True)
    }
    unclipped = replace(scales, slopes=slopes, level=float(level), ends=(-np.inf, np.inf))
    logs = np.log(unclipped.nugget_variance(inputs.coordinates)) - 2 * np.log(unclipped.nugget)
    return replace(unclipped, ends=(float(logs.min()), float(logs.max())))


@dataclass(frozen=True)
class LeaveOneOutErrors:
    """Prediction errors of g observed steps, each predicted from the other steps.

    Attributes:
        error: Observed minus predicted values (g,), usually logarithms of seconds.
        spread: Predicted standard deviations (g,) of the errors.
        freedom: Degrees of freedom of the t distribution of the standardized errors.
    """

    error: Array
    spread: Array
    freedom: float

    def select(self, chosen: NDArray[np.bool_]) -> LeaveOneOutErrors:
        """Return the errors of some steps.

        Args:
            chosen: Mask (g,) that is True for the selected steps.
        """
        return LeaveOneOutErrors(self.error[chosen], self.spread[chosen], self.freedom)

    @property
    def median_error(self) -> float:
        """Median relative error of the predicted seconds (0.1: 10%); NaN for fewer than two steps.

        The values of the process must be natural logarithms of seconds.
        """
        if len(self.error) < 2:
            return float("nan")
        return float(np.median(np.abs(np.expm1(-self.error))))

    @property
    def score(self) -> float:
        """Mean log density of the errors under the normal predictions, up to a constant.

        A higher score is better. An error counts as at most three standard deviations. Scores are
        comparable only between fits of the same steps.
        """
        squares = np.minimum((self.error / self.spread) ** 2, _MAX_SQUARED_ERROR)
        return float(-np.mean(np.log(self.spread) + 0.5 * squares))

    def coverage(self, level: float = 0.95) -> float:
        """Return the share of steps whose observed value is inside the step's prediction interval.

        Args:
            level: Confidence level of the intervals, from 0 to 1.

        Returns:
            The share (0..1); NaN for fewer than two steps.
        """
        if len(self.error) < 2:
            return float("nan")
        half_widths = stdtrit(self.freedom, 0.5 + level / 2) * self.spread
        return float((np.abs(self.error) <= half_widths).mean())


class _InducingPoints(NamedTuple):
    """The k points at which the values of the smooth part represent the whole smooth part.

    Attributes:
        coordinates: Coordinates of the points.
        lower: Lower Cholesky factor (k, k) of the covariance of the smooth part at the points.
    """

    coordinates: Coordinates
    lower: Array


class _Posterior(NamedTuple):
    """The posterior of the weights of k features, and the features of the g observed steps.

    The features are the scaled columns of the linear part and the values at the inducing points.

    Attributes:
        weights: Posterior means (k,) of the weights.
        root: Square root (k, k) of the posterior covariance of the weights: root @ root.T.
        features: Features (g, k) of the observed steps.
        unexplained: Prior variances (g,) of the observed steps that the features do not explain:
            mainly nuggets.
        inducing: The inducing points of the features.
    """

    weights: Array
    root: Array
    features: Array
    unexplained: Array
    inducing: _InducingPoints


@dataclass(frozen=True)
class Process:
    """A Gaussian process that is fitted to measurements of g distinct steps.

    Attributes:
        inputs: The inputs of the steps: columns of the linear part and coordinates.
        values: Values (g,) of the steps minus the prior means. Each value is a mean over runs.
        noise: Variances (g,) of the noise of these means.
        disturbed: Factors (g,) that multiply the nugget variances; above 1 for disturbed steps.
        scales: The learned scales.
        run: Standard deviation of the noise of a single future run.
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
        """Fit the process to m runs. Several runs may have measured the same step.

        Args:
            inputs: The inputs of the runs: columns of the linear part and coordinates.
            values: Measured values (m,) of the runs, such as logarithms of step times.
            noise: Standard deviations (m,) of the runs about the means of their steps.
            run: Standard deviation of a future run about the mean of its step.
        """
        steps, means, variances = _pool_replicates(inputs, values - inputs.base, noise**2)
        scales, disturbed = _learn_scales(steps, means, variances)
        return cls(
            inputs=steps,
            values=means,
            noise=variances,
            disturbed=disturbed,
            scales=scales,
            run=run,
        )

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the t distribution of the standardized prediction errors."""
        return _BASE_FREEDOM + len(self.values) / _STEPS_PER_FREEDOM

    @property
    def allowance(self) -> float:
        """Factor that multiplies all predicted variances.

        It accounts for the uncertainty of the length scales, which are fitted to the observed
        steps.
        """
        return 1 + len(self.scales.lengths) / max(len(self.values), 1)

    @one_thread()
    def predict(self, points: Inputs) -> Prediction:
        """Return the joint distribution of the values at some points.

        If the step of a point was observed, the deviation of this step from the smooth part is
        known up to the noise of the observed runs.

        Args:
            points: The inputs of the points to predict: columns of the linear part and coordinates.
        """
        if len(self.values) >= _MAX_INDUCING:
            posterior = self._data_posterior
        else:
            posterior = self._condition(self._choose_inducing(points))
        count = len(points)
        known = self.inputs.columns
        line = (
            (points.columns.get(name, (np.zeros(count), 0.0))[0], prior)
            for name, (_, prior) in known.items()
        )
        unknown = (column for name, column in points.columns.items() if name not in known)
        features, unexplained = self._features(
            points.coordinates, _scale_columns(line, count), posterior.inducing
        )
        group = number_groups([*self.inputs.steps, *points.steps])[len(self.values) :]
        is_observed = group < len(self.values)
        # The runs of an observed step determine its nugget, given the features.
        step = group[is_observed]
        kept = posterior.unexplained[step] / (posterior.unexplained[step] + self.noise[step])
        base = points.base.copy()
        base[is_observed] += kept * self.values[step]
        features[is_observed] -= kept[:, None] * posterior.features[step]
        unexplained[is_observed] = posterior.unexplained[step] * (1 - kept)
        known_root = features @ posterior.root * np.sqrt(self.allowance)
        return Prediction(
            mean=base + features @ posterior.weights,
            root=np.hstack([known_root, _scale_columns(unknown, count)]),
            own=unexplained * self.allowance,
            group=number_groups(points.steps),
            noise=self.run,
            freedom=self.freedom,
        )

    @cached_property
    @one_thread()
    def leave_one_out(self) -> LeaveOneOutErrors:
        """Error of each observed step if it is predicted from the other steps.

        It is computed in closed form: the residual and its variance are divided by one minus the
        leverage of the step.
        """
        posterior = self._data_posterior
        spread = posterior.unexplained + self.noise
        leverage = ((posterior.features @ posterior.root) ** 2).sum(axis=1) / spread
        complement = 1 - leverage
        error = (self.values - posterior.features @ posterior.weights) / complement
        return LeaveOneOutErrors(
            error=error, spread=np.sqrt(self.allowance * spread / complement), freedom=self.freedom
        )

    @cached_property
    def _data_posterior(self) -> _Posterior:
        """Posterior whose inducing points are observed steps only, at most `_MAX_OBSERVED`."""
        return self._condition(self._choose_inducing(None))

    def _features(
        self, points: Coordinates, line: Array, inducing: _InducingPoints
    ) -> tuple[Array, Array]:
        """Return the features of points, and the variances that the features do not explain.

        Features are the scaled columns of the linear part, and values at the inducing points.

        Args:
            points: Coordinates of n points.
            line: Scaled columns of the linear part, as `_scale_columns` returns them.
            inducing: The inducing points.

        Returns:
            The features (n, k), whose weights have a prior variance of 1, and the unexplained
            variances (n,). The latter are sums of the nugget's variance and of the variance of the
            smooth part that the inducing points do not determine.
        """
        covariance = self.scales.covariance(inducing.coordinates, points)
        smooth = solve_triangular(inducing.lower, covariance, lower=True, check_finite=False).T
        rest = np.maximum(self.scales.smooth**2 - (smooth**2).sum(axis=1), 0.0)
        return np.hstack([line, smooth]), self.scales.nugget_variance(points) + rest

    def _choose_inducing(self, points: Inputs | None) -> _InducingPoints:
        """Choose inducing points among the observed steps and the points to predict.

        The values at the inducing points represent the whole smooth part of the process.

        Args:
            points: The points to predict; None to choose only observed steps.
        """
        random = np.random.default_rng(0)
        observed = random.permutation(len(self.values))[:_MAX_OBSERVED]
        coordinates = self.inputs.rows(observed).coordinates
        free = _MAX_INDUCING - len(self.values)
        if points is not None and free > 0:
            added = points.rows(random.permutation(len(points))[:free])
            old, new = _align(coordinates, added.coordinates)
            coordinates = {
                name: np.concatenate([values, new[name]]) for name, values in old.items()
            }
        covariance = self.scales.covariance(coordinates, coordinates)
        covariance[np.diag_indices_from(covariance)] += JITTER
        return _InducingPoints(coordinates, cholesky(covariance, lower=True))

    def _condition(self, inducing: _InducingPoints) -> _Posterior:
        """Return the posterior of the feature weights, given the observed steps."""
        inputs = self.inputs
        line = _scale_columns(inputs.columns.values(), len(inputs))
        features, unexplained = self._features(inputs.coordinates, line, inducing)
        unexplained = unexplained + self.scales.nugget_variance(inputs.coordinates) * (
            self.disturbed - 1
        )
        deviations = np.sqrt(unexplained + self.noise)
        scaled = features / deviations[:, None]
        lower = cholesky(scaled.T @ scaled + np.eye(features.shape[1]), lower=True)
        root = solve_triangular(lower, np.eye(len(lower)), lower=True).T
        return _Posterior(
            weights=root @ (root.T @ (scaled.T @ (self.values / deviations))),
            root=root,
            features=features,
            unexplained=unexplained,
            inducing=inducing,
        )
