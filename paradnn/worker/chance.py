"""Confidence in latency percentiles, from the number of queries that exceed a latency limit.

Queries that exceed the limit are called late; all others are in time.

Latencies of neighboring queries are correlated, since the queries waited in one queue. N correlated
queries carry as much information as a smaller number of independent queries. The variance of batch
means gives that number (Law, Simulation Modeling and Analysis, 9.5.3).

The worker and the driver both import this module. It uses only the standard library.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from itertools import pairwise

#: Numbers of batches, each with a safety factor for the estimated variance of the batch means. The
#: factor is (t quantile / normal quantile)**2, with one degree of freedom less than batches. Few
#: long batches reveal correlations that extend over many queries.
_BATCHES = {32: (2.0395 / 1.9600) ** 2, 16: (2.1314 / 1.9600) ** 2, 8: (2.3646 / 1.9600) ** 2}
#: For the continued fraction of `beta_share`: largest number of terms, relative tolerance, and
#: replacement for a denominator of zero.
_TERMS = 100_000
_TOLERANCE = 1e-14
_TINY = 1e-300


def beta_share(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) for a, b > 0.

    The formula is DLMF 8.17.22, evaluated by Lentz's algorithm. For a binomial count K of n trials
    with probability p, P(K <= k) = I_(1-p)(n - k, k + 1).

    Args:
        x: The upper limit of the integral, from 0 to 1.
        a: The first parameter.
        b: The second parameter.
    """
    if x <= 0:
        return 0.0
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges faster for 1 - x
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
    """Return the number of in-time queries that MLPerf LoadGen requires for `late` late queries.

    A query is late if its latency exceeds a limit; otherwise it is in time. This is LoadGen's early
    stopping criterion with tolerance 0. The null hypothesis is that at most `share` of all queries
    are in time. The result is the smallest number of in-time queries that, together with `late`
    late queries, rejects the hypothesis. To reject it, `late` or fewer late queries must have a
    probability below 1 - `confidence` under the hypothesis.

    Args:
        late: The number of late queries.
        share: The fraction of queries that must be in time: 0.99 for the 99th percentile.
        confidence: The confidence level, from 0 to 1.
    """
    high = 1
    while not passes(high, late, share, confidence):
        high = 2 * high + 1
    return bisect.bisect_left(
        range(high), True, key=lambda in_time: passes(in_time, late, share, confidence)
    )


def passes(in_time: float, late: float, share: float, confidence: float) -> bool:
    """Return whether enough queries were in time to accept a latency limit.

    The result is True if the counts show, with the given confidence, that at least `share` of all
    queries is in time. A count may be fractional, because it may be corrected for correlation.

    Args:
        in_time: Number of queries that met the latency limit.
        late: Number of queries that exceeded the latency limit.
        share: The fraction of queries that must be in time.
        confidence: The confidence level, from 0 to 1.
    """
    return in_time > 0 and beta_share(share, in_time, late + 1) < 1 - confidence


def events_factor(cumulative: Sequence[int]) -> float:
    """Return the factor by which correlated trials increase the variance of an event's rate.

    The rate is the fraction of trials with the event, such as the fraction of late queries. The
    variance is estimated from batches of consecutive trials. The factor is the largest estimate
    over several numbers of batches.

    Args:
        cumulative: For each trial, the number of events up to and including this trial.

    Returns:
        The variance relative to the variance for independent trials, at least 1. It is 1 if there
        are too few trials for an estimate, or if no trial or every trial has the event.
    """
    total = len(cumulative)
    share = cumulative[-1] / total if total else 0.0
    if total < 2 * max(_BATCHES) or not 0 < share < 1:
        return 1.0
    factors = [1.0]
    for count, safety_factor in _BATCHES.items():
        size = total / count
        ends = [cumulative[total * part // count - 1] if part else 0 for part in range(count + 1)]
        variance = sum((after - before - share * size) ** 2 for before, after in pairwise(ends)) / (
            count - 1
        )
        factors.append(safety_factor * variance / (size * share * (1 - share)))
    return max(factors)


def quantile_ranks(count: int, share: float, factor: float = 1.0) -> tuple[int | None, int | None]:
    """Return the 95% confidence interval of a quantile as ranks of sorted values.

    The number of values below a quantile is binomially distributed (Conover, Practical
    Nonparametric Statistics, 3.2). The effective number of values is count / factor.

    Args:
        count: The number of values.
        share: The quantile, from 0 to 1.
        factor: The factor by which correlation between the values increases the variance
            (`events_factor`); 1 for independent values.

    Returns:
        The ranks of the lower and the upper end, counted from 0. An end that lies beyond all values
        is None.
    """
    effective_count = max(1.0, count / factor)

    def below(rank: int) -> float:  # P(fewer than `rank` values are below the quantile)
        return beta_share(1 - share, effective_count - rank + 1, rank)

    ranks = range(1, math.floor(effective_count) + 1)
    low = bisect.bisect_right(ranks, 0.025, key=below)
    high = bisect.bisect_left(ranks, 0.975, key=below) + 1
    first = math.floor(low * count / effective_count) - 1 if low else None
    if high <= len(ranks):
        last = min(count, math.ceil(high * count / effective_count)) - 1
    else:
        last = None
    return first, last
