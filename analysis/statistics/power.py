"""What a comparison could have found: the smallest difference, and the replicates that a difference takes.

"No difference shown" is worth what the test could have shown. Differences are of logarithms, and told as factors:
0.05 is 5%. All of Student's t with equal groups; power by the noncentral t.
"""

from __future__ import annotations

import functools
import math

from analysis.lazy import np, optimize, pd, stats

#: How often a difference is to be found: the convention of four times in five (Cohen 1988).
POWER = 0.8

_MOST = 1000  # replicates that are tried
_LARGEST = 50.0  # standard errors


def detectable(spread: float, replicates: int, rate: float = 0.05, tests: int = 1, power: float = POWER) -> float:
    """The smallest difference (0.05 is 5%) of one point that so many replicates a side find with `power`.

    `spread` is the standard deviation of a side's logarithms. Of `tests` tests one alone differs, so its p must be at
    most rate / tests (Benjamini and Hochberg's first step). Infinite below two replicates.
    """
    if replicates < 2 or not np.isfinite(spread):
        return math.inf
    freedom = 2 * replicates - 2
    return math.expm1(spread * math.sqrt(2 / replicates) * _noncentrality(rate / tests, freedom, power))


def detectable_mean(error: float, freedom: float, rate: float = 0.05, power: float = POWER) -> float:
    """The smallest difference of a mean log ratio with this standard error that is found with `power`."""
    if not np.isfinite(error) or not freedom > 0:
        return math.inf
    return math.expm1(min(error * _noncentrality(rate, freedom, power), 700.0))


def replicates_for(
    margin: float, spread: float, rate: float = 0.05, tests: int = 1, power: float = POWER, least: int = 3
) -> int | None:
    """The replicates a side that find a difference of `margin` in one of `tests` points; None for over a thousand."""
    low, high = least, _MOST
    if detectable(spread, high, rate, tests, power) > margin:
        return None
    while low < high:
        middle = (low + high) // 2
        enough = detectable(spread, middle, rate, tests, power) <= margin
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def spread_of(pairs: pd.DataFrame) -> float:
    """The typical standard deviation of a point's independent measurements on one side (`pairing.pair`'s rows), from
    the standard errors of the log ratios; NaN where no point has two on both sides."""
    units = pairs[["a_units", "b_units"]].min(axis=1)
    known = pairs["log_error"].notna() & (units >= 2)
    return float(np.sqrt((pairs["log_error"] ** 2 * units / 2)[known].mean())) if known.any() else math.nan


def equivalent(log_ratio: np.ndarray, error: np.ndarray, freedom: np.ndarray, margin: float) -> np.ndarray:
    """p of the two one-sided tests that log ratios lie beyond +-log(1 + margin): small where the sides are the same
    within the margin (Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987). NaN without an error."""
    bound = math.log1p(margin)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = stats.t.sf((log_ratio + bound) / error, freedom)
        above = stats.t.sf((bound - log_ratio) / error, freedom)
    worse: np.ndarray = np.maximum(below, above)
    return worse


@functools.lru_cache(maxsize=4096)
def _noncentrality(rate: float, freedom: float, power: float) -> float:
    """How many standard errors a difference must have to be found with `power` by a two-sided t test."""
    freedom = min(freedom, 1e4)
    limit = stats.t.ppf(1 - rate / 2, freedom)

    def lacking(shift: float) -> float:
        return float(stats.nct.sf(limit, freedom, shift)) - power

    most = 4 * limit + 20
    return float(optimize.brentq(lacking, 0.0, most, xtol=1e-4)) if lacking(most) > 0 else math.inf
