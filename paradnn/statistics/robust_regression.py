"""A robust linear regression with a prior on every coefficient.

With little data, a coefficient stays near its prior; with much data, it follows the data. Columns
have names. If the data lack a column, such as the indicator of a family or of a session, the
coefficient has its prior. In predictions, all points of this family or session then share an error.
Errors have Student's t distribution and are fitted by expectation maximization (Lange, Little and
Taylor 1989), so a disturbed run hardly changes the fit.
"""

import contextlib
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit
from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit the linear algebra of NumPy and SciPy to one thread.

    Use the function as a context manager or as a decorator.
    """
    with _blas().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _blas() -> ThreadpoolController:
    """Return a cached controller of the loaded BLAS libraries; finding them takes about 20 ms."""
    import scipy.linalg  # noqa: F401  load the BLAS of SciPy, so that the controller finds it

    return ThreadpoolController()


Array = NDArray[np.float64]
#: Name of a column -> its values (n,) and the prior standard deviation of its coefficient.
Columns = Mapping[Hashable, tuple[Array, float]]

#: Degrees of freedom of the errors. With 4, they have heavy tails, but a finite variance.
_ERROR_FREEDOM = 4.0
#: Prior standard deviation of the errors, in logarithms.
_PRIOR_SPREAD = 0.2
#: Weight of the prior standard deviation, in observations.
_PRIOR_OBSERVATIONS = 4.0
#: Number of iterations of expectation maximization.
_ITERATIONS = 12
#: To compute the standard deviation of an error, squared residuals are clipped at this multiple of
#: the variance.
_CLIPPED_SQUARE = 16.0
#: Largest random factor by which the errors of a draw are scaled.
_LARGEST_SCALE = 2.0


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of n values: jointly normal except for heavier tails of the errors.

    Attributes:
        mean: (n,) expected values.
        root: (n, k) root of the covariance from uncertain coefficients: root @ root.T is the
            covariance.
        own: (n,) variances of the errors that all values of a group share, but no values of
            different groups (the nugget).
        group: (n,) number of each value's group, such as the configuration that is measured.
        noise: Standard deviation of a single measurement, in addition to `root` and `own`.
        freedom: Number of observations from which `own` and `noise` were estimated.
    """

    mean: Array
    root: Array
    own: Array
    group: NDArray[np.intp]
    noise: float
    freedom: float

    @property
    def spread(self) -> Array:
        """(n,) standard deviations of a single measurement, without the tails of Student's t."""
        return np.asarray(np.sqrt((self.root**2).sum(axis=1) + self.own + self.noise**2))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the lower and upper ends (n,) of Student's t prediction interval.

        Args:
            level: Coverage of the interval, from 0 to 1.
        """
        half = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.spread
        return self.mean - half, self.mean + half

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """Return random draws (n, count) of the values.

        All errors of a draw are multiplied by a common random scale, because the data leave the
        size of errors uncertain.

        Args:
            count: Number of draws.
            random: Source of the draws.
        """
        scale = np.sqrt(self.freedom / random.chisquare(self.freedom, count))
        scale = np.minimum(scale, _LARGEST_SCALE)
        normal = random.standard_normal((len(self.mean), count))
        own = normal[self.group] * np.sqrt(self.own)[:, None]
        # Replace the root by a root of the same covariance with the fewest columns.
        root = np.asarray(np.linalg.qr(self.root.T, mode="r")).T
        error = root @ random.standard_normal((root.shape[1], count)) + own
        noise = self.noise * random.standard_normal(own.shape)
        return np.asarray(self.mean[:, None] + scale * (error + noise))


class RobustRegression:
    """Linear regression of values on named columns, with a prior on every coefficient.

    Disturbed values hardly change the fit, because errors have heavy tails. Without observations,
    the regression equals the prior.

    Attributes:
        coefficients: Name of a column -> its expected coefficient.
        spread: Standard deviation of an error, including the tails.
        freedom: Number of observations from which `spread` was estimated, including the weight of
            its prior in observations.
    """

    def __init__(self, columns: Columns, values: Array, weights: Array | None = None) -> None:
        """Fit the regression.

        Args:
            columns: Name of a column -> its values (n,), and the prior standard deviation of its
                coefficient. The prior mean is 0.
            values: (n,) the observations.
            weights: (n,) weight of each observation, from 0 to 1; None for weights of 1.
        """
        features = matrix((column for column, _ in columns.values()), len(values))
        weight = np.ones(len(values)) if weights is None else weights
        precision = np.diag([prior**-2.0 for _, prior in columns.values()])
        prior_squares = _PRIOR_OBSERVATIONS * _PRIOR_SPREAD**2
        self.freedom = float(weight.sum()) + _PRIOR_OBSERVATIONS
        variance = _PRIOR_SPREAD**2
        trust = np.ones(len(values))
        for _ in range(_ITERATIONS):
            scaled = features * (weight * trust)[:, None]
            self._covariance = np.asarray(
                np.linalg.inv(scaled.T @ features / variance + precision), dtype=np.float64
            )
            self._mean = self._covariance @ (scaled.T @ values) / variance
            residuals = values - features @ self._mean
            # Contribution of the coefficients' uncertainty to the square of a residual.
            uncertainty = ((features @ self._covariance) * features).sum(axis=1)
            squares = residuals**2 + uncertainty
            trust = (_ERROR_FREEDOM + 1) / (_ERROR_FREEDOM + squares / variance)
            variance = float(weight * trust @ squares + prior_squares) / self.freedom
        clipped = np.minimum(residuals**2, _CLIPPED_SQUARE * variance)
        self.coefficients: dict[Hashable, float] = dict(
            zip(columns, self._mean.tolist(), strict=True)
        )
        total = weight @ (clipped + uncertainty) + prior_squares
        self.spread = float(np.sqrt(total / self.freedom))

    @cached_property
    def _root(self) -> Array:
        """(k, k) matrix R such that R @ R.T is the covariance of the coefficients."""
        values, vectors = np.linalg.eigh((self._covariance + self._covariance.T) / 2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    def predict(self, columns: Columns, count: int) -> Prediction:
        """Predict new values, whose errors are independent of each other.

        Args:
            columns: Name of a column -> its values (count,) and the prior standard deviation of its
                coefficient. The prior is used only if the fitted data lacked the column. A fitted
                column that is missing here counts as 0.
            count: Number of new values.
        """
        zeros = np.zeros(count)
        known = matrix((columns.get(name, (zeros, 0.0))[0] for name in self.coefficients), count)
        new = matrix(
            (
                prior * column
                for name, (column, prior) in columns.items()
                if name not in self.coefficients
            ),
            count,
        )
        return Prediction(
            mean=known @ self._mean,
            root=np.hstack([known @ self._root, new]),
            own=np.full(count, self.spread**2),
            group=np.arange(count),
            noise=0.0,
            freedom=self.freedom,
        )


def matrix(columns: Iterable[Array], rows: int) -> Array:
    """Return k columns, each of shape (rows,), as a matrix (rows, k); k may be 0."""
    return np.stack([np.zeros(rows), *columns], axis=1)[:, 1:]
