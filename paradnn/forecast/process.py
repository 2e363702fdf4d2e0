"""A Gaussian process about a line: what the line cannot say is smooth, and the rest is peculiar to a step.

    process = Process.fit(inputs, values, noise)      # values (m,), such as logarithms of seconds
    posterior = process.predict(candidates)           # a `Prediction`: means, and what candidates err in together
    process.left_out                                  # each observation predicted from all others, in closed form

A value is the sum of four parts (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.7):
the line, whose coefficients have a prior each; a smooth function of the coordinates with Matern's covariance of order
3/2 and a length for every coordinate; what is peculiar to a step, which its replicates share; and the noise of a run.
How large the second and third are, how long the lengths, and where steps are more peculiar than elsewhere, is learnt
(`paradnn.forecast.evidence`). Nothing here knows of ParaDnn's points: `paradnn.forecast.features` makes the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import stdtrit

from paradnn.forecast.evidence import JITTER, Scales, learn
from paradnn.forecast.inputs import Coordinates, Inputs, joined, matrix, places, pooled
from paradnn.forecast.regression import Array, Prediction

__all__ = ["LeftOut", "Process"]

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
