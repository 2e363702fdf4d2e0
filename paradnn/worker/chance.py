"""Confidence in percentiles from counts of late queries.

The module uses only the standard library; the worker and the driver both import it.

Latencies of neighboring queries are correlated, since the queries waited in one queue. N
correlated queries have the information of fewer independent ones. The scatter of batch means shows
how many fewer (Law, Simulation Modeling and Analysis, 9.5.3).
"""

import bisect
import functools
import math
from collections.abc import Sequence
from itertools import pairwise

#: Numbers of batches whose means show the correlation of neighbors. The value of each is
#: (t quantile / normal quantile)**2, with one degree of freedom less than batches.
#: A correlation that is longer than many short batches is visible between few long ones.
_BATCHES = {32: (2.0395 / 1.9600) ** 2, 16: (2.1314 / 1.9600) ** 2, 8: (2.3646 / 1.9600) ** 2}
#: Largest number of terms of the continued fraction, its relative tolerance, and the replacement of
#: zero denominators.
_TERMS = 100_000
_TOLERANCE = 1e-14
_TINY = 1e-300


def beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) for a, b > 0.

    The formula is DLMF 8.17.22, evaluated by Lentz's algorithm. For a binomial count K of n trials
    with probability p, P(K <= k) = I_(1-p)(n - k, k + 1).
    """
    if x <= 0:
        return 0.0
    if x > (a + 1) / (a + b + 2):  # the fraction of the complement converges fast
        return 1 - beta_share(1 - x, b, a)
    log_front = (
        a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    upper = 2.0
    lower = 1.0
    value = 2.0
    for term in range(1, _TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / (1 + factor * lower or _TINY)
        upper = 1 + factor / upper or _TINY
        value *= upper * lower
        if abs(upper * lower - 1) < _TOLERANCE:
            break
    return math.exp(log_front) / a * (value - 1)


@functools.lru_cache(maxsize=4096)
def required_in_time_queries(late: int, share: float, confidence: float) -> int:
    """Return the number of in-time queries that LoadGen requires for `late` late ones.

    This is LoadGen's early stopping with tolerance 0. Suppose that at most `share` of all queries
    were in time. The result is the least h for which so few late queries among h + late would then
    have a probability below 1 - confidence.

    Args:
        late: The number of late queries.
        share: The share of queries that must be in time: 0.99 for the 99th percentile.
        confidence: The confidence in 0..1.
    """
    high = 1
    while not passes(high, late, share, confidence):
        high = 2 * high + 1
    return bisect.bisect_left(
        range(high), True, key=lambda in_time: passes(in_time, late, share, confidence)
    )


def passes(in_time: float, late: float, share: float, confidence: float) -> bool:
    """Return whether counts show with `confidence` that at least `share` of queries is in time.

    Correction for correlation may have made the counts fractional.
    """
    return in_time > 0 and beta_share(share, in_time, late + 1) < 1 - confidence


def events_factor(cumulative: Sequence[int]) -> float:
    """Return the variance of the share of events relative to independent trials, at least 1.

    It is the largest value over batches of several lengths.

    Args:
        cumulative: The number of events up to and including each trial.
    """
    total = len(cumulative)
    share = cumulative[-1] / total if total else 0.0
    if total < 2 * max(_BATCHES) or not 0 < share < 1:
        return 1.0
    factors = [1.0]
    for count, caution in _BATCHES.items():
        size = total / count
        ends = [cumulative[total * part // count - 1] if part else 0 for part in range(count + 1)]
        variance = sum((after - before - share * size) ** 2 for before, after in pairwise(ends)) / (
            count - 1
        )
        factors.append(caution * variance / (size * share * (1 - share)))
    return max(factors)


def quantile_ranks(count: int, share: float, factor: float = 1.0) -> tuple[int | None, int | None]:
    """Return the 95% confidence interval of a quantile as ranks of sorted values.

    The ranks are the order statistics of count / factor independent values, the effective size of
    the `count` correlated ones. The number of values below a quantile is binomial (Conover,
    Practical Nonparametric Statistics, 3.2).

    Args:
        count: The number of values.
        share: The quantile in 0..1.
        factor: The variance relative to independent values (`events_factor`).

    Returns:
        The ranks of both ends, from 0; None for an end that lies beyond all values.
    """
    worth = max(1.0, count / factor)

    def below(rank: int) -> float:  # P(fewer than `rank` values are below the quantile)
        return beta_share(1 - share, worth - rank + 1, rank)

    ranks = range(1, math.floor(worth) + 1)
    low = bisect.bisect_right(ranks, 0.025, key=below)
    high = bisect.bisect_left(ranks, 0.975, key=below) + 1
    first = math.floor(low * count / worth) - 1 if low else None
    if high <= len(ranks):
        last = min(count, math.ceil(high * count / worth)) - 1
    else:
        last = None
    return first, last
