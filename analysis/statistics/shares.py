"""Which hyperparameters the variance of a metric is due to, interactions included: Shapley values of adjusted R2.

A standardised weight says how much a straight line rises. A share says how much of what varies a hyperparameter
explains, whatever the shape and whatever it does together with others. Shares add up to what all explain together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.lazy import np, pd, stats
from analysis.statistics.dependence import Levels, jackknifed
from paradnn.errors import NotEnoughData
from paradnn.forecast.estimate import LEVEL, Estimate

_VALUES = 12  # of a number that are taken one by one; more are cut into ranges
_ROWS_PER_COLUMN = 3
_MOST = 10  # hyperparameters: each more doubles the work
_DETERMINED = 1e-8  # of 1: a leverage nearer to it is that of rows which alone settle a coefficient


@dataclass(frozen=True)
class Shares:
    """The shares of the variance of a response over `points` points.

    `table`: a row for each hyperparameter, the largest first, with `share` (of 1), its interval `low` and `high`, and
    `alone`, what it explains without the others. `together` is what all of them explain; the rest is scatter, and what
    three and more do together. `ranges` says into how many ranges a hyperparameter of more values was cut.
    """

    table: pd.DataFrame
    together: Estimate
    points: int
    ranges: Mapping[str, int]


def variance_shares(columns: pd.DataFrame, response: np.ndarray, levels: Levels, level: float = LEVEL) -> Shares:
    """The shares of k hyperparameters (columns) in the variance of a response (n,).

    For each set of hyperparameters v is the adjusted R2 of least squares on indicators of their values and the products
    of those of each two, so that it holds interactions of two. A share is the Shapley value of v: what the
    hyperparameter adds to v, over all orders in which they may be added (Lindeman, Merenda and Gold, Introduction to
    Bivariate and Multivariate Analysis, 1980; Owen, SIAM/ASA J. Uncertainty Quantification 2, 2014). Where the
    hyperparameters are independent it lies between their first-order and their total Sobol index. Numbers of more than
    twelve values are cut into ranges of as many points, all of fewer where points are too few.

    Intervals: Student's t with the variance of pseudo-values, jackknifed over each level of each factor of `levels`
    and combined as in `crossed_variance`. NotEnoughData below three points for each column of the least squares.
    """
    y = np.asarray(response, dtype="float64")
    names = [str(name) for name in columns if columns[name].nunique() > 1]
    if not names or len(y) < 2 or np.ptp(y) <= 1e-12 * np.abs(y).max():
        raise NotEnoughData("no hyperparameter varies" if not names else f"the metric is the same in all {len(y)} rows")
    if len(names) > _MOST:
        raise NotEnoughData(f"{len(names)} hyperparameters, shares are of at most {_MOST}; choose with --on")
    codes, ranges = _codes(columns[names], len(y))
    fits = [_Fit.of([codes[i] for i in chosen], y - y.mean()) for chosen in _subsets(len(names))]
    of_fits = _statistics(len(names))
    value = of_fits @ np.array([0.0, *(fit.adjusted() for fit in fits)])

    def without(code: np.ndarray) -> np.ndarray:
        explained = np.column_stack([fit.without(code) for fit in fits])
        changed: np.ndarray = explained @ of_fits[:, 1:].T
        return changed

    found = jackknifed(value, without, levels)
    reach = stats.t.ppf((1 + level) / 2, found.freedom) * np.sqrt(found.variance)
    ends = np.clip([value - reach, value + reach], np.minimum(value, 0.0), 1.0)
    count = len(names)
    table = pd.DataFrame(
        {"share": value[:count], "low": ends[0, :count], "high": ends[1, :count], "alone": value[count:-1]},
        index=pd.Index(names, name="hyperparameter"),
    )
    together = Estimate(float(value[-1]), float(ends[0, -1]), float(ends[1, -1]))
    return Shares(table.sort_values("share", ascending=False, kind="stable"), together, len(y), ranges)


@dataclass(frozen=True)
class _Fit:
    """Least squares of a response (n,), mean zero, on some columns: an orthonormal basis of these, n x rank."""

    response: np.ndarray
    basis: np.ndarray
    residual: np.ndarray

    @classmethod
    def of(cls, codes: Sequence[np.ndarray], response: np.ndarray) -> _Fit:
        """On indicators of the values (n,) of each hyperparameter, and of the pairs of values of each two."""
        cells = [np.unique(a * (b.max() + 1) + b, return_inverse=True)[1] for a, b in itertools.combinations(codes, 2)]
        blocks = [np.eye(cell.max() + 1)[cell] for cell in cells or codes]
        columns = np.hstack(blocks)
        size, direction = np.linalg.eigh(columns.T @ columns)
        kept = size > 1e-9 * size.max()
        basis = columns @ (direction[:, kept] / np.sqrt(size[kept]))
        return cls(response, basis, response - basis @ (basis.T @ response))

    def adjusted(self) -> float:
        """Adjusted R2 over all rows."""
        rows, rank = self.basis.shape
        return float(_adjusted(self.residual @ self.residual, self.response @ self.response, rows, rank))

    def without(self, code: np.ndarray) -> np.ndarray:
        """Adjusted R2 with the rows of each level left out, (levels,).

        What is left of the sum of squares is e'e - e_g' (I - H_g)^-1 e_g, H_g the rows' part of the hat matrix (Cook
        and Weisberg, Residuals and Influence in Regression, 1982); a direction with a leverage of 1 leaves the fit.
        """
        rows, rank = self.basis.shape
        sizes, sums = np.bincount(code), np.bincount(code, self.response)
        left = self.response @ self.response - np.bincount(code, self.response**2)
        left -= sums**2 / (rows - sizes)  # the mean of all rows is zero
        removed, lost = np.zeros(len(sizes)), np.zeros(len(sizes))
        if len(sizes) == rows:
            room = 1 - (self.basis**2).sum(axis=1)
            free = room > _DETERMINED
            removed[code] = np.where(free, self.residual**2 / np.where(free, room, 1.0), 0.0)
            lost[code] = ~free
        else:
            order = np.argsort(code, kind="stable")
            for level, part in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
                removed[level], lost[level] = self._removed(part)
        return _adjusted(self.residual @ self.residual - removed, left, rows - sizes, rank - lost)

    def _removed(self, part: np.ndarray) -> tuple[float, float]:
        """(what leaving some rows out takes from the residual sum of squares, how many columns lose all their rows)."""
        basis, residual = self.basis[part], self.residual[part]
        if len(part) <= basis.shape[1]:
            room, direction = np.linalg.eigh(np.eye(len(part)) - basis @ basis.T)
            free = room > _DETERMINED
            return float(((residual @ direction[:, free]) ** 2 / room[free]).sum()), float((~free).sum())
        room, direction = np.linalg.eigh(np.eye(basis.shape[1]) - basis.T @ basis)
        free = room > _DETERMINED
        moved = (residual @ basis) @ direction[:, free]
        return float(residual @ residual + (moved**2 / room[free]).sum()), float((~free).sum())


def _adjusted(residual: Any, total: Any, rows: Any, rank: Any) -> np.ndarray:
    """1 - (RSS / (n - rank)) / (TSS / (n - 1)); nothing where no degree of freedom is left or nothing varies."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 1 - residual / (rows - rank) * (rows - 1) / total
    return np.where((rows > rank) & (total > 0), found, 0.0)


def _subsets(count: int) -> list[tuple[int, ...]]:
    """All sets of some of so many, but the empty one."""
    return [chosen for size in range(1, count + 1) for chosen in itertools.combinations(range(count), size)]


def _statistics(count: int) -> np.ndarray:
    """What turns what the empty set and each of `_subsets` explain into Shapley values, each alone, and all
    together."""
    subsets = [(), *_subsets(count)]
    place = {chosen: number for number, chosen in enumerate(subsets)}
    found = np.zeros((2 * count + 1, len(subsets)))
    for chosen in subsets:
        for one in set(range(count)) - set(chosen):
            orders = math.factorial(len(chosen)) * math.factorial(count - len(chosen) - 1) / math.factorial(count)
            found[one, place[tuple(sorted((*chosen, one)))]] += orders
            found[one, place[chosen]] -= orders
    for one in range(count):
        found[count + one, place[(one,)]] = 1.0
    found[-1, -1] = 1.0
    return found


def _codes(columns: pd.DataFrame, points: int) -> tuple[list[np.ndarray], dict[str, int]]:
    """(the value or range of each row (n,) by hyperparameter, how many ranges those that are cut have)."""
    distinct = [np.unique(columns[name].to_numpy(), return_inverse=True) for name in columns]
    numeric = [pd.api.types.is_numeric_dtype(columns[name]) for name in columns]
    for most in range(_VALUES, 1, -1):
        sizes = [len(values) for values, _ in distinct]
        counts = [min(most, size) if number else size for number, size in zip(numeric, sizes, strict=True)]
        free = [count - 1 for count in counts]
        needed = 1 + sum(free) + sum(a * b for a, b in itertools.combinations(free, 2))
        if points >= _ROWS_PER_COLUMN * needed:
            found = [code * count // len(values) for count, (values, code) in zip(counts, distinct, strict=True)]
            cut = {str(n): c for n, c, (values, _) in zip(columns, counts, distinct, strict=True) if c < len(values)}
            return found, cut
    least = _ROWS_PER_COLUMN * needed
    raise NotEnoughData(f"{points} points for shares of {len(counts)} hyperparameters, at least {least} are needed")
