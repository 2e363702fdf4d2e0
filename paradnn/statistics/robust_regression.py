"""A robust linear regression with a prior on every coefficient: little data gives the prior back,
much data forgets it.

Columns have names: of one that the data lacked (a family, a session) the coefficient keeps its
prior, and all points of the group err together. Errors are Student's t, fitted by expectation and
maximisation (Lange, Little, Taylor 1989), so that a disturbed run does not bend the line.
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
    """NumPy's and SciPy's products take one thread in here; as a decorator, in the function."""
    with _blas().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _blas() -> ThreadpoolController:
    """The libraries that are loaded; looking for them takes some 20 ms."""
    import scipy.linalg  # noqa: F401  brings a BLAS of its own

    return ThreadpoolController()


Array = NDArray[np.float64]
#: Name of a column -> its values (n,) and the standard deviation that its coefficient has before
#: any data.
Columns = Mapping[Hashable, tuple[Array, float]]

#: Degrees of freedom of the errors: heavy tails, and yet a variance.
_NU = 4.0
#: The errors' spread before data, as a logarithm, and how many observations that is worth.
_SPREAD = 0.2
_WORTH = 4.0
_ROUNDS = 12


@dataclass(frozen=True)
class Prediction:
    """n values, jointly normal but for the tails of their errors.

    mean: (n,). root: (n, k); root @ root.T is the covariance of what the values have in common.
    own: (n,) variances of the nugget, which is a value's own, shared by all of the same `group`
    (n,). noise: standard deviation of a single measurement about all of that. freedom: observations
    behind `own` and `noise`.
    """

    mean: Array
    root: Array
    own: Array
    group: NDArray[np.intp]
    noise: float
    freedom: float

    @property
    def spread(self) -> Array:
        """(n,) standard deviations of a single measurement, were the observations many."""
        return np.asarray(np.sqrt((self.root**2).sum(axis=1) + self.own + self.noise**2))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """(n,) ends of what holds a single measurement so often: Student's t."""
        half = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.spread
        return self.mean - half, self.mean + half

    def draws(self, count: int, random: np.random.Generator) -> Array:
        """(n, count) values; a draw's errors are as large as the data leave it uncertain."""
        scale = np.minimum(np.sqrt(self.freedom / random.chisquare(self.freedom, count)), 2.0)
        own = (
            random.standard_normal((len(self.mean), count))[self.group] * np.sqrt(self.own)[:, None]
        )
        root = np.asarray(
            np.linalg.qr(self.root.T, mode="r")
        ).T  # of the same covariance, with the fewest columns
        error = root @ random.standard_normal((root.shape[1], count)) + own
        return np.asarray(
            self.mean[:, None] + scale * (error + self.noise * random.standard_normal(own.shape))
        )


class RobustRegression:
    """The regression of `values` (n,) on `columns`; `weights` (n,) in 0..1 say how much of an
    observation each is.

    spread: standard deviation of an error, tails included. freedom: observations behind the spread.
    Without any the prior comes back.
    """

    def __init__(self, columns: Columns, values: Array, weights: Array | None = None) -> None:
        features = matrix((column for column, _ in columns.values()), len(values))
        weight = np.ones(len(values)) if weights is None else weights
        precision = np.diag([prior**-2.0 for _, prior in columns.values()])
        self.freedom = float(weight.sum()) + _WORTH
        variance = _SPREAD**2
        trust = np.ones(len(values))
        for _ in range(_ROUNDS):
            scaled = features * (weight * trust)[:, None]
            self._covariance = np.asarray(
                np.linalg.inv(scaled.T @ features / variance + precision), dtype=np.float64
            )
            self._mean = self._covariance @ (scaled.T @ values) / variance
            residuals = values - features @ self._mean
            # What the coefficients' own uncertainty adds to a residual's square.
            about = ((features @ self._covariance) * features).sum(axis=1)
            square = residuals**2 + about
            trust = (_NU + 1) / (_NU + square / variance)
            variance = float(weight * trust @ square + _WORTH * _SPREAD**2) / self.freedom
        clipped = np.minimum(
            residuals**2, 16.0 * variance
        )  # an outlier counts as four standard deviations
        #: The expected coefficient of every column.
        self.coefficients: dict[Hashable, float] = dict(
            zip(columns, self._mean.tolist(), strict=True)
        )
        self.spread = float(
            np.sqrt((weight @ (clipped + about) + _WORTH * _SPREAD**2) / self.freedom)
        )

    @cached_property
    def _root(self) -> Array:
        values, vectors = np.linalg.eigh((self._covariance + self._covariance.T) / 2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    def predict(self, columns: Columns, count: int) -> Prediction:
        """`count` new values, whose errors are independent of each other."""
        known = matrix(
            (columns.get(name, (np.zeros(count), 0.0))[0] for name in self.coefficients), count
        )
        new = matrix(
            (
                prior * column
                for name, (column, prior) in columns.items()
                if name not in self.coefficients
            ),
            count,
        )
        root = np.hstack([known @ self._root, new])
        own = np.full(count, self.spread**2)
        return Prediction(known @ self._mean, root, own, np.arange(count), 0.0, self.freedom)


def matrix(columns: Iterable[Array], rows: int) -> Array:
    """(rows, k): columns (rows,), of which there may be none."""
    return np.stack([np.zeros(rows), *columns], axis=1)[:, 1:]
