"""The effect of faster hardware on operations: an explicit model, fitted to measured times.

An operation with F floating-point operations and B bytes of memory traffic takes the time

    t = ((F / f)^p + (B / b)^p + o^p)^(1/p)

with the achieved arithmetic rate f, the achieved memory bandwidth b, the overhead o and the
exponent p of a smooth maximum. With p = 1, the three terms do not overlap; with a large p, the
longest term hides the others. A measured time is the sum over the operations of a step, or the time
of one operation. f, b, o and p are fitted per device and group of work. The priors expect f and b
at a certain share of the peaks.

An upgrade multiplies f and b, and divides o. A predicted speedup has three sources of uncertainty:

- the error of the fit;
- the residual of each measured time, which may be due to any of the three terms;
- the difference between the specified and the achieved gain, which all operations share.

The model ignores overlap between operations, caches, and clocks that depend on the load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from paradnn.statistics.robust_regression import Array, one_thread

#: The possible limits of an operation, in the order of all array axes of length 3.
LIMITS = ("compute", "memory", "overhead")

#: Expected shares of the peak rate and of the bandwidth that operations achieve.
_PEAK_SHARE = 0.7
_BANDWIDTH_SHARE = 0.8
#: Maximum of these shares. They exceed 1, because clocks may exceed the specified clock, and caches
#: reduce traffic.
_MAX_PEAK_SHARE = 1.1
_MAX_BANDWIDTH_SHARE = 2.0
#: Expected overhead of an operation, in seconds.
_OVERHEAD = 5e-6
#: Expected p - 1.
_EXPONENT = 1.0
#: Prior standard deviations of the logarithms of f, b, o and p - 1.
_PRIOR_SPREADS = np.array([0.5, 0.5, 1.5, 0.7])
#: Residuals (in logarithms) above about this size have a reduced weight in the fit, as outliers.
_OUTLIER_SCALE = 0.1
#: Prior of the standard deviation of residuals, in logarithms.
_PRIOR_RESIDUAL = 0.15
#: Weight of this prior, as a number of measured times.
_PRIOR_COUNT = 4.0
#: Minimum number of floating-point operations or bytes, to keep logarithms finite.
_MIN_WORK = 1e-9
#: Largest factor by which the heavy tails of Student's t scale a draw of the gains.
_LARGEST_SCALE = 3.0
#: Default number of draws of a predicted speedup.
DRAWS = 200


@dataclass(frozen=True, eq=False)
class TimedWork:
    """Measured times, and the operations that were executed in each of them.

    There are m measured times and n operations. A measured time is the time of a single operation,
    or of a step with several operations.

    Attributes:
        flops: Floating-point operations (n,) per call.
        bytes: Bytes (n,) that one call moves to and from memory.
        calls: Numbers (n,) of calls.
        owner: Index (n,) of the measured time to which each operation belongs, ascending.
        seconds: The measured times (m,) in seconds.
    """

    flops: Array
    bytes: Array
    calls: Array
    owner: NDArray[np.intp]
    seconds: Array

    @classmethod
    def single(cls, flops: Array, moved_bytes: Array, seconds: Array) -> TimedWork:
        """Return the work of n operations that were timed separately, each in one call.

        Args:
            flops: Floating-point operations (n,).
            moved_bytes: Bytes (n,) that are moved to and from memory.
            seconds: The measured times (n,) in seconds.
        """
        return cls(
            flops=flops,
            bytes=moved_bytes,
            calls=np.ones(len(seconds)),
            owner=np.arange(len(seconds)),
            seconds=seconds,
        )

    def log_terms(self, logs: Array) -> Array:
        """Return the logarithms (3, n) of the arithmetic, memory and overhead times of operations.

        Each time is that of one call, in seconds.

        Args:
            logs: Logarithms (4,) of four parameters: arithmetic rate in FLOP/s, memory bandwidth in
                B/s, overhead in seconds, and the exponent of the smooth maximum minus 1. The
                exponent is not used.
        """
        return np.stack(
            [
                np.log(np.maximum(self.flops, _MIN_WORK)) - logs[0],
                np.log(np.maximum(self.bytes, _MIN_WORK)) - logs[1],
                np.full(len(self.flops), logs[2]),
            ]
        )

    def sum_by_owner(self, seconds: Array) -> Array:
        """Return, for each measured time, the sum (m,) over all calls of its operations.

        Args:
            seconds: Seconds (n,) of one call of each operation, or another amount per call.
        """
        totals = np.bincount(self.owner, self.calls * seconds, len(self.seconds))
        return np.asarray(totals, dtype="float64")


def smooth_maximum(log_terms: Array, exponent: Array | float) -> tuple[Array, Array]:
    """Combine three times into a smooth maximum, the p-norm over the first axis.

    Args:
        log_terms: Logarithms (3, ...) of the terms: times of arithmetic, memory and overhead.
        exponent: The exponent p of the p-norm, which broadcasts over the other axes.

    Returns:
        The logarithms (...) of the p-norm, and the shares (3, ...). A share is the elasticity of
        the p-norm with respect to a term; the three shares add up to 1.
    """
    largest = log_terms.max(axis=0)
    powers = np.exp(exponent * (log_terms - largest))
    total = powers.sum(axis=0)
    return largest + np.log(total) / exponent, powers / total


@dataclass(frozen=True, eq=False)
class OperationLimits:
    """Achieved arithmetic rate, memory bandwidth and overhead of a device, fitted to times.

    The time of an operation is a smooth maximum (p-norm) of three terms: FLOPs / f, bytes / b, and
    o.

    Attributes:
        logs: Logarithms (4,) of the arithmetic rate f in FLOP/s, the bandwidth b in B/s, the
            overhead o in seconds, and p - 1.
        covariance: Covariance (4, 4) of `logs`.
        spread: Standard deviation of the logarithms of measured times around the fit.
    """

    logs: Array
    covariance: Array
    spread: float

    @classmethod
    def fit(
        cls, work: TimedWork, peak: float | None = None, bandwidth: float | None = None
    ) -> OperationLimits:
        """Fit the model to measured times.

        Args:
            work: The operations with their measured times.
            peak: Peak arithmetic rate in FLOP/s. A share of it is the prior of the achieved rate.
                If None, the highest measured rate is the prior.
            bandwidth: Peak memory bandwidth in B/s. A share of it is the prior of the achieved
                bandwidth. If None, the highest measured rate is the prior.
        """
        measured = np.log(work.seconds)
        expected = np.log(
            [
                _expected_rate(work, work.flops, peak, _PEAK_SHARE),
                _expected_rate(work, work.bytes, bandwidth, _BANDWIDTH_SHARE),
                _OVERHEAD,
                _EXPONENT,
            ]
        )

        def residuals(logs: Array) -> Array:
            error = _log_seconds(work, logs) - measured
            return np.concatenate(
                [error / _OUTLIER_SCALE, (logs - expected) / _PRIOR_SPREADS],
            )

        bounds = (np.full(4, -np.inf), _highest_logs(peak, bandwidth))
        # A second start of the search finds an overhead far above its prior, if the times of small
        # operations show such an overhead.
        shortest_call = expected.copy()
        shortest_call[2] = np.log(
            np.min(work.seconds / work.sum_by_owner(np.ones(len(work.flops))))
        )
        with one_thread():
            found = min(
                (
                    least_squares(residuals, start, bounds=bounds, loss="soft_l1", max_nfev=100)
                    for start in (expected, shortest_call)
                ),
                key=lambda result: float(result.cost),
            )
        error = _log_seconds(work, found.x) - measured
        spread = _robust_spread(error)
        slopes = found.jac[: len(measured)] * _OUTLIER_SCALE / spread
        precision = slopes.T @ slopes + np.diag(_PRIOR_SPREADS**-2.0)
        return cls(logs=found.x, covariance=np.linalg.inv(precision), spread=spread)

    def log_seconds(self, work: TimedWork) -> Array:
        """Return the logarithms (m,) of the predicted times in seconds for each time in `work`."""
        return _log_seconds(work, self.logs)

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """Return `count` random draws (4, count) of `logs`, according to their covariance."""
        return random.multivariate_normal(self.logs, self.covariance, count, method="eigh").T


def _highest_logs(peak: float | None, bandwidth: float | None) -> Array:
    """Return the upper bounds (4,) of `OperationLimits.logs`.

    Args:
        peak: Peak arithmetic rate in FLOP/s; None for no bound.
        bandwidth: Peak memory bandwidth in B/s; None for no bound.
    """
    highest = np.full(4, np.inf)
    if peak:
        highest[0] = math.log(_MAX_PEAK_SHARE * peak)
    if bandwidth:
        highest[1] = math.log(_MAX_BANDWIDTH_SHARE * bandwidth)
    return highest


def _expected_rate(work: TimedWork, amounts: Array, peak: float | None, share: float) -> float:
    if peak:
        return share * peak
    rates = work.sum_by_owner(amounts) / work.seconds
    return max(float(rates.max()), _MIN_WORK)


def _exponent(logs: Array) -> float:
    return 1.0 + math.exp(logs[3])


def _log_seconds(work: TimedWork, logs: Array) -> Array:
    each, _ = smooth_maximum(work.log_terms(logs), _exponent(logs))
    return np.log(work.sum_by_owner(np.exp(each)))


def _robust_spread(errors: Array) -> float:
    """Estimate the standard deviation of errors from their median absolute value and a prior."""
    deviation = 1.4826 * float(np.median(np.abs(errors)))
    count = len(errors)
    squares = count * deviation**2 + _PRIOR_COUNT * _PRIOR_RESIDUAL**2
    return math.sqrt(squares / (count + _PRIOR_COUNT))


@dataclass(frozen=True, eq=False)
class Upgrade:
    """The gains of a new or changed device over the present device, with their uncertainty.

    Attributes:
        gains: Expected logarithms (3,) of the factors by which arithmetic, memory and overhead
            become faster.
        spreads: Standard deviations (3,) of the errors of `gains`, which all operations share.
        scatter: Standard deviation of the independent error of each log speedup.
        freedom: Degrees of freedom of Student's t for the errors of the gains; infinite for normal
            errors.
        most: Bounds (3,) of the log gains: each gain is limited to the range from 0 to its bound.
            None for no bounds.
        correlations: Correlations (3,) of the errors of `gains` with those of another upgrade, with
            which this upgrade is compared. None for an upgrade without such correlations.
        scatter_correlation: Correlation of the independent errors with those of the other upgrade.
    """

    gains: Array
    spreads: Array
    scatter: float
    freedom: float = math.inf
    most: Array | None = None
    correlations: Array | None = None
    scatter_correlation: float = 1.0

    def draws(self, count: int) -> Array:
        """Return random draws (count, 3) of the log gains. Every call returns the same draws.

        If `correlations` is set, the draws are correlated with those of the other upgrade, which
        must have no `correlations`.

        Args:
            count: Number of draws.
        """
        random = np.random.default_rng(0)
        normal = random.standard_normal((count, 3))
        scale = np.ones(count)
        if math.isfinite(self.freedom):
            scale = np.sqrt(self.freedom / random.chisquare(self.freedom, count))
        if self.correlations is not None:
            normal = correlated(normal, self.correlations, np.random.default_rng(2))
        gains = self.gains + self.spreads * normal * np.minimum(scale, _LARGEST_SCALE)[:, None]
        if self.most is not None:
            gains = np.clip(gains, np.minimum(self.most, 0.0), np.maximum(self.most, 0.0))
        return np.asarray(gains)


def correlated(normal: Array, correlations: Array | float, random: np.random.Generator) -> Array:
    """Return standard normal deviates that are correlated with given deviates.

    Args:
        normal: The given standard normal deviates, an array of any shape.
        correlations: Correlations of the result with `normal`, which broadcast with it.
        random: Source of the independent part.
    """
    independent = random.standard_normal(normal.shape)
    return np.asarray(correlations * normal + np.sqrt(1 - np.square(correlations)) * independent)


@dataclass(frozen=True, eq=False)
class SpeedupPrediction:
    """Predicted speedups of m measured times.

    Attributes:
        log_speedups: Random draws (m, draws) of the logarithms of the speedups.
        seconds: The measured times (m,) in seconds.
        before: Shares (3, m) of arithmetic, memory and overhead in the times before the upgrade.
        after: Expected shares (3, m) of arithmetic, memory and overhead in the times after the
            upgrade.
    """

    log_speedups: Array
    seconds: Array
    before: Array
    after: Array


@one_thread()
def predict_speedups(
    work: TimedWork, fit: OperationLimits, upgrade: Upgrade, draws: int = DRAWS, seed: int = 0
) -> SpeedupPrediction:
    """Predict the speedups of measured times by an upgrade, as random draws.

    The terms of a time are arithmetic, memory and overhead. The residual of a time, its deviation
    from the fit, is divided among these terms: in proportion to their elasticities, plus a random
    part. Every draw reproduces the measured time.

    Draws for different work can be added if they use the same upgrade, because each draw has the
    same gains. Draws for two upgrades can be subtracted if they use the same seed. Their fits and
    residuals are then equal, and their gains are correlated as `Upgrade.correlations` states.

    Args:
        work: The operations with their measured times on the present device.
        fit: The fit of the present device to these times.
        upgrade: The expected gains of the new device, with their uncertainty.
        draws: Number of random draws.
        seed: Seed of all random numbers except the gains, whose draws are fixed.
    """
    gains = upgrade.draws(draws)
    random = np.random.default_rng((1, seed))
    residual = _Residual.of(work, fit)
    own_spread = fit.spread / math.sqrt(float(residual.squares.mean()))
    count = len(work.seconds)
    log_speedups = np.empty((count, draws))
    after = np.zeros((3, count))
    for draw, logs in enumerate(fit.draws(draws, random).T):
        deviations = residual.split(own_spread * random.standard_normal((3, count)))
        log_speedups[:, draw], shares = _upgraded(work, logs, deviations, gains[draw])
        after += shares
    scatter = correlated(
        random.standard_normal((count, draws)),
        upgrade.scatter_correlation,
        np.random.default_rng((2, seed)),
    )
    log_speedups += upgrade.scatter * scatter
    return SpeedupPrediction(
        log_speedups=log_speedups,
        seconds=work.seconds,
        before=residual.weights,
        after=after / draws,
    )


def expected_speedups(work: TimedWork, fit: OperationLimits, gains: Array) -> Array:
    """Return the expected speedups (m,) of measured times by an upgrade, without uncertainty.

    It is fast enough for maps of many upgrades.

    Args:
        work: The operations with their m measured times on the present device.
        fit: The fit of the present device to these times.
        gains: Logarithms (3,) of the factors by which arithmetic, memory and overhead become
            faster.
    """
    deviations = _Residual.of(work, fit).split(np.zeros((3, len(work.seconds))))
    log_speedups, _ = _upgraded(work, fit.logs, deviations, gains)
    return np.asarray(np.exp(log_speedups))


@dataclass(frozen=True, eq=False)
class _Residual:
    """Deviations of m measured times from the fit.

    Attributes:
        logs: Logarithms (m,) of the ratios measured time / fitted time.
        weights: Elasticities (3, m) of the times with respect to the terms arithmetic, memory and
            overhead.
        squares: Sums (m,) of the squared elasticities.
    """

    logs: Array
    weights: Array
    squares: Array

    @classmethod
    def of(cls, work: TimedWork, fit: OperationLimits) -> _Residual:
        weights = limit_shares(work, fit.logs)
        return cls(
            logs=np.log(work.seconds) - fit.log_seconds(work),
            weights=weights,
            squares=(weights**2).sum(axis=0),
        )

    def split(self, deviations: Array) -> Array:
        """Adjust deviations of arithmetic, memory and overhead so that they explain the residuals.

        For normal deviations of equal variance, the result is a draw conditional on the residuals.

        Args:
            deviations: Deviations (3, m) of the logarithms of these three times before the
                adjustment.

        Returns:
            The adjusted deviations (3, m).
        """
        unexplained = self.logs - (self.weights * deviations).sum(axis=0)
        return np.asarray(deviations + self.weights * unexplained / self.squares)


def _upgraded(work: TimedWork, logs: Array, deviations: Array, gains: Array) -> tuple[Array, Array]:
    """Return the speedups by an upgrade, and the shares of the terms in the new times.

    The terms of a time are arithmetic, memory and overhead.

    Args:
        work: The operations with their m measured times.
        logs: Fitted parameters (4,), as in `OperationLimits.logs`.
        deviations: Deviations (3, m) of the logarithms of the terms of each measured time.
        gains: Logarithms (3,) of the gains.

    Returns:
        The logarithms (m,) of the speedups, and the shares (3, m) of the terms.
    """
    terms = work.log_terms(logs) + deviations[:, work.owner]
    exponent = _exponent(logs)
    old, _ = smooth_maximum(terms, exponent)
    new, shares = smooth_maximum(terms - gains[:, None], exponent)
    seconds = np.exp(new)
    total = work.sum_by_owner(seconds)
    log_speedups = np.log(work.sum_by_owner(np.exp(old)) / total)
    return log_speedups, np.stack([work.sum_by_owner(seconds * share) for share in shares]) / total


def limit_shares(work: TimedWork, logs: Array) -> Array:
    """Return the shares (3, m) of arithmetic, memory and overhead in the fitted times.

    Args:
        work: The operations of the m times.
        logs: Fitted parameters (4,), as in `OperationLimits.logs`.
    """
    each, shares = smooth_maximum(work.log_terms(logs), _exponent(logs))
    seconds = np.exp(each)
    total = work.sum_by_owner(seconds)
    return np.stack([work.sum_by_owner(seconds * share) for share in shares]) / total


def fit_gains(
    work: TimedWork, fit: OperationLimits, new_seconds: Array, expected: Array, spreads: Array
) -> tuple[Array, float]:
    """Fit the gains in arithmetic, memory and overhead between two devices.

    Both devices ran the same operations.

    Args:
        work: The operations with their m times on the older device.
        fit: The fit of the older device to these times.
        new_seconds: Times (m,) of the same operations on the newer device, in seconds.
        expected: Prior means (3,) of the logarithms of the gains.
        spreads: Prior standard deviations (3,) of the logarithms of the gains.

    Returns:
        The logarithms (3,) of the gains, and the standard deviation of the measured log speedups
        around the log speedups that the gains predict.
    """
    measured = np.log(work.seconds / new_seconds)
    before = fit.log_seconds(work)

    def error(gains: Array) -> Array:
        terms = work.log_terms(fit.logs) - gains[:, None]
        each, _ = smooth_maximum(terms, _exponent(fit.logs))
        return before - np.log(work.sum_by_owner(np.exp(each))) - measured

    def residuals(gains: Array) -> Array:
        return np.concatenate([error(gains) / _OUTLIER_SCALE, (gains - expected) / spreads])

    with one_thread():
        found = least_squares(residuals, expected, loss="soft_l1", max_nfev=100)
    return found.x, _robust_spread(error(found.x))
