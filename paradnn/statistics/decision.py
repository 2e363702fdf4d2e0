"""Verdicts on two sides A and B from the interval of their log ratio."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paradnn.statistics.dependence import Component
from paradnn.statistics.effects import combine
from paradnn.statistics.lazy import np, stats
from paradnn.statistics.verdict import Verdict

#: Largest relative difference that counts as equal.
MARGIN = 0.05
_TINY = 1e-300


@dataclass(frozen=True)
class Decision:
    """Result of a comparison of two measured quantities A and B.

    Attributes:
        ratio: The ratio of A over B; above 1 if A is better.
        low: Lower end of the 95% interval of the ratio.
        high: Upper end of the interval.
        p_different: Two-sided p-value of the hypothesis that the ratio is 1.
        p_equal: p-value of the hypothesis that the ratio differs from 1 by more than the margin,
            the largest difference that counts as equal (two one-sided tests; Schuirmann, J.
            Pharmacokinetics and Biopharmaceutics 15, 1987).
        verdict: The verdict on A at a significance level of 5%.
    """

    ratio: float
    low: float
    high: float
    p_different: float
    p_equal: float
    verdict: Verdict


def decide(
    log_ratio: float, parts: Sequence[Component], margin: float = MARGIN, bias: float = 0.0
) -> Decision:
    """Decide whether A is better than B, worse than B, or equal to B.

    EQUAL has precedence: a difference within the margin does not matter, even if it is significant.
    Without a significant result, the verdict is UNDECIDED.

    Args:
        log_ratio: Natural logarithm of the estimated ratio of A over B, where larger is better.
        parts: Independent variances of the estimate with their degrees of freedom, such as
            `Effect.component` of `paradnn.statistics.effects.side_effects`. If empty, the ratio is
            exact.
        margin: Largest relative difference that counts as equal (0.02: 2%).
        bias: Largest systematic error of `log_ratio` in either direction.
    """
    error = 0.0
    freedom = np.inf
    half_width = 0.0
    if parts:
        total = combine(parts)
        error = math.sqrt(total.variance)
        freedom = float(total.freedom)
        half_width = float(total.half_width)
    half_width += bias
    distance = np.array([max(abs(log_ratio) - bias, 0.0)])
    p_different = float(2 * stats.t.sf(distance / max(error, _TINY), freedom)[0])
    least, most = np.array([log_ratio - bias]), np.array([log_ratio + bias])
    scatter = np.array([max(error, _TINY)])
    p_equal = float(equivalent(least, most, scatter, np.array([freedom]), margin)[0])
    if p_equal <= 0.05:
        verdict = Verdict.EQUAL
    elif p_different > 0.05:
        verdict = Verdict.UNDECIDED
    elif log_ratio > 0:
        verdict = Verdict.FASTER
    else:
        verdict = Verdict.SLOWER
    return Decision(
        ratio=math.exp(log_ratio),
        low=math.exp(log_ratio - half_width),
        high=math.exp(log_ratio + half_width),
        p_different=p_different,
        p_equal=p_equal,
        verdict=verdict,
    )


def adjust_p_values(p_values: np.ndarray, *, discoveries: bool = False) -> np.ndarray:
    """Return p-values adjusted for the number of tests.

    Args:
        p_values: (n,) p-values; NaN if there is no test.
        discoveries: False controls the familywise error rate: with a probability of 95%, no
            adjusted p-value below 0.05 is a false positive (Holm, Scandinavian J. of Statistics 6,
            1979). True controls the false discovery rate: at most 5% of the adjusted p-values below
            0.05 are expected to be false positives (Benjamini and Hochberg, J. Royal Statistical
            Society B 57, 1995). The latter requires tests that are independent or positively
            dependent, such as comparisons on one machine.

    Returns:
        (n,) adjusted p-values; NaN where the p-value is NaN.
    """
    result = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    if not len(known):
        return result
    if discoveries:
        result[known] = stats.false_discovery_control(p_values[known], method="bh")
        return result
    # Do not call multipletests of statsmodels: it runs a full garbage collection, 0.1 s per call.
    order = known[np.argsort(p_values[known])]
    remaining = np.arange(len(order), 0, -1)
    result[order] = np.minimum(np.maximum.accumulate(p_values[order] * remaining), 1)
    return result


def equivalent(
    least: np.ndarray, most: np.ndarray, error: np.ndarray, freedom: np.ndarray, margin: float
) -> np.ndarray:
    """Test whether log ratios are close to 0, within a margin, by two one-sided tests.

    Args:
        least: (n,) lower bounds of the log ratios, such as the estimates minus their bias.
        most: (n,) upper bounds of the log ratios, such as the estimates plus their bias.
        error: (n,) standard errors of the log ratios.
        freedom: (n,) degrees of freedom of the standard errors.
        margin: Largest relative difference that counts as equal (0.02: 2%).

    Returns:
        (n,) the larger p-value of the two tests. It is small if a log ratio is clearly within
        +-log(1 + margin), and NaN if the standard error is NaN.
    """
    bound = math.log1p(margin)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_below = stats.t.sf((least + bound) / error, freedom)
        p_above = stats.t.sf((bound - most) / error, freedom)
    p_values: np.ndarray = np.maximum(p_below, p_above)
    return p_values
