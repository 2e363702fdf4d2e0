"""A robust linear regression with a prior on every coefficient.

Little data leaves the prior in force, and much data overrides it. Columns have names. If the data
lacked a column, such as that of a family or a session, its coefficient keeps its prior, and all
points of that group have a common error. Errors are Student's t, fitted by expectation maximization
(Lange, Little and Taylor 1989), so that a disturbed run does not bend the line.
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
    """Limit the linear algebra of NumPy and SciPy to one thread; also a decorator."""
    with _blas().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _blas() -> ThreadpoolController:
    """Return a controller of the loaded BLAS libraries; finding them takes about 20 ms."""
    import scipy.linalg  # noqa: F401  loads its own BLAS

    return ThreadpoolController()


Array = NDArray[np.float64]
#: Name of a column -> its values (n,) and the prior standard deviation of its coefficient.
Columns = Mapping[Hashable, tuple[Array, float]]

#: Degrees of freedom of the errors: heavy tails, but a finite variance.
_ERROR_FREEDOM = 4.0
#: Prior standard deviation of the errors, in logarithms, and the number of observations it counts
#: for.
_PRIOR_SPREAD = 0.2
_PRIOR_OBSERVATIONS = 4.0
_ITERATIONS = 12
#: Squared standard deviations above which an outlier no longer counts.
_CLIPPED_SQUARE = 16.0
#: Largest factor by which the errors of a draw are scaled.
_LARGEST_SCALE = 2.0


@dataclass(frozen=True)
class Prediction:
    """n values, jointly normal except for the tails of their errors.

    Attributes:
        mean: (n,) expected values.
        root: (n, k) root of the covariance that the values share: root @ root.T.
        own: (n,) variances of the nugget, the part of an error that a group has to itself.
        group: (n,) the group of each value.
        noise: Standard deviation of a single measurement in addition to these.
        freedom: Number of observations behind `own` and `noise`.
    """

    mean: Array
    root: Array
    own: Array
    group: NDArray[np.intp]
    noise: float
    freedom: float

    @property
    def spread(self) -> Array:
        """(n,) standard deviations of a single measurement if there were many observations."""
        return np.asarray(np.sqrt((self.root**2).sum(axis=1) + self.own + self.noise**2))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """Return the ends (n,) of the interval that holds a single measurement: Student's t."""
        half = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.spread
        return self.mean - half, self.mean + half

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """Return draws (n, count) of the values.

        The errors of a draw are scaled as far as the data leave their size uncertain.
        """
        scale = np.sqrt(self.freedom / random.chisquare(self.freedom, count))
        scale = np.minimum(scale, _LARGEST_SCALE)
        normal = random.standard_normal((len(self.mean), count))
        own = normal[self.group] * np.sqrt(self.own)[:, None]
        # The same covariance with the fewest columns.
        root = np.asarray(np.linalg.qr(self.root.T, mode="r")).T
        error = root @ random.standard_normal((root.shape[1], count)) + own
        noise = self.noise * random.standard_normal(own.shape)
        return np.asarray(self.mean[:, None] + scale * (error + noise))


class RobustRegression:
    """The regression of values on named columns. Without observations it is the prior.

    Attributes:
        coefficients: The expected coefficient of every column.
        spread: Standard deviation of an error, tails included.
        freedom: Number of observations behind the spread.
    """

    def __init__(self, columns: Columns, values: Array, weights: Array | None = None) -> None:
        """Fit the regression.

        Args:
            columns: The columns with their priors.
            values: (n,) the observations.
            weights: (n,) from 0 to 1, how much of an observation each is; 1 by default.
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
        """(k, k) root of the covariance of the coefficients."""
        values, vectors = np.linalg.eigh((self._covariance + self._covariance.T) / 2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    def predict(self, columns: Columns, count: int) -> Prediction:
        """Predict `count` new values, whose errors are independent of each other."""
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
    """Stack k columns (rows,) to a matrix (rows, k); k may be 0."""
    return np.stack([np.zeros(rows), *columns], axis=1)[:, 1:]
