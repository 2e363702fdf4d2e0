"""Runs of one size, and of one session, are no independent measurements of a line.

What a size has of its own (a buffer that just fits a cache, a boundary of packets) all runs of it have, and a session
shifts all sizes alike. So a size counts once, however often it was measured, and the scatter of sessions is added to
every interval where several sessions measured the same sizes; one session says nothing of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from paradnn.forecast.estimate import LEVEL

__all__ = ["LineError", "Shared", "by_size", "shared_by_sessions"]

Array = NDArray[np.float64]


class Shared(NamedTuple):
    """What sessions add to the relative variance of every time, and its degrees of freedom; `within`, the part of it
    that the scatter within sessions explains."""

    variance: float = 0.0
    within: float = 0.0
    freedom: float = 1.0


@dataclass(frozen=True)
class LineError:
    """How far a line alpha + beta x may be off: `covariance` (2, 2) of alpha and beta x `unit` with its degrees of
    freedom, from the sizes, and what sessions add."""

    unit: float
    covariance: Array
    freedom: float
    shared: Shared

    def reach(self, alpha: float, beta: float, value: float) -> float:
        """us to either end of the 95% interval of alpha x (start-up) + beta x (time of a byte), which is `value`."""
        place = np.array([alpha, beta / self.unit])
        own = float(place @ self.covariance @ place)
        sessions = value**2 * self.shared.variance
        variance = max(own + sessions - value**2 * self.shared.within, own)
        if variance <= 0:
            return 0.0
        freedom = self.freedom
        if variance > own:
            freedom = variance**2 / (own**2 / self.freedom + sessions**2 / self.shared.freedom)
        return float(stats.t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance))


def by_size(sizes: ArrayLike, times: ArrayLike) -> tuple[Array, Array]:
    """The sizes that there are, in order, and the geometric mean of the times of each."""
    x, y = (np.asarray(values, dtype="float64") for values in (sizes, times))
    distinct, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return distinct, np.exp(np.bincount(place, np.log(y)) / count)


def shared_by_sessions(sizes: ArrayLike, times: ArrayLike, sessions: ArrayLike | None) -> Shared:
    """What sessions (n labels; runs without one are of one together) have in common, over the sizes that all of them
    measured; nothing where there is one alone, or no such size."""
    if sessions is None:
        return Shared()
    names = pd.Series(np.asarray(sessions, dtype=object)).fillna("").astype(str)
    table = pd.DataFrame({"size": np.asarray(sizes, float), "log": np.log(np.asarray(times, float)), "name": names})
    cells = table.groupby(["size", "name"])["log"].mean().unstack("name").dropna().to_numpy()
    count, several = cells.shape
    if several < 2 or count < 1:
        return Shared()
    means = cells.mean(axis=0)
    left = cells - cells.mean(axis=1, keepdims=True) - means + means.mean()
    within = float((left**2).sum()) / ((count - 1) * (several - 1)) / count if count > 1 else 0.0
    return Shared(float(means.var(ddof=1)) / several, within / several, several - 1.0)
