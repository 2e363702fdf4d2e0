"""What counts of late queries say of a percentile: standard library alone, for worker and driver.

Latencies of neighbouring queries resemble each other, since they waited in one queue. So many of
them say as much as fewer independent ones; how many fewer, the scatter of batch means says (Law,
Simulation Modeling and Analysis, 9.5.3).
"""

import bisect
import functools
import math
from collections.abc import Sequence
from itertools import pairwise

#: Numbers of batches whose means tell how correlated neighbours are, with (t quantile of one degree
#: less / normal quantile)**2. A correlation that reaches beyond many short batches shows between
#: few long ones.
_BATCHES = {32: (2.0395 / 1.9600) ** 2, 16: (2.1314 / 1.9600) ** 2, 8: (2.3646 / 1.9600) ** 2}
#: Terms of a continued fraction, and how near its value must be.
_TERMS = 100_000
_NEAR = 1e-14
_TINY = 1e-300


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), a, b > 0: DLMF 8.17.22, by Lentz's
    algorithm. Of a binomial count K of n trials with probability p it gives P(K <= k) = I_(1-p)(n -
    k, k + 1).
    """
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast
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
        if abs(upper * lower - 1) < _NEAR:
            break
    return math.exp(log_front) / a * (value - 1)


@functools.lru_cache(maxsize=4096)
def required_in_time_queries(late: int, share: float, confidence: float) -> int:
    """How many queries in time LoadGen asks for beside `late` late ones (its early stopping,
    tolerance 0): the least h for which so few late queries among h + late would have a chance below
    1 - confidence if no more than `share` (0.99 for the 99th percentile) of all were in time.
    """
    high = 1
    while not passes(high, late, share, confidence):
        high = 2 * high + 1
    return bisect.bisect_left(
        range(high), True, key=lambda in_time: passes(in_time, late, share, confidence)
    )


def passes(in_time: float, late: float, share: float, confidence: float) -> bool:
    """Whether counts, which correlation may have made fractions, show `share` to be in time with
    `confidence`.
    """
    return in_time > 0 and beta_share(share, in_time, late + 1) < 1 - confidence


def events_factor(cumulative: Sequence[int]) -> float:
    """By how much more the share of events among trials scatters than that of independent ones, at
    least 1: the most that parts of several lengths show. `cumulative`: how many of the trials were
    events up to each.
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
    """Places, from 0, in `count` sorted values between which their quantile `share` lies with 95%.
    Order statistics of as many independent values as the `count` correlated ones are worth (count /
    factor): the values below a quantile are binomial (Conover, Practical Nonparametric Statistics,
    3.2). None: no value is that far.
    """
    worth = max(1.0, count / factor)

    def below(rank: int) -> float:  # P(fewer than `rank` of them are below the quantile)
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
