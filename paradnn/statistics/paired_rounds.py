"""Inference from paired rounds of two sides: ratio, interval, verdict, and when to stop.

In each round both sides are measured one right after the other, and the logarithm of their ratio is
one value. What both share cancels in it: the session, a drift, a slow neighbor. The order within
the rounds is random (`orders`), so between equal sides each value is as likely as its opposite,
however the state of the machine correlates in time. The interval holds whenever a comparison stops.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from paradnn.statistics.verdict import Verdict

#: Rounds that an interval needs.
MIN_ROUNDS = 5
#: Rounds after which an interval is computed: 5, 7, 10, 14, 20, 28, 40, ..., each sqrt(2) times the
#: last.
LOOKS = tuple(round(MIN_ROUNDS * 2 ** (step / 2)) for step in range(100))
#: Default maximum of rounds for two commands, which may be short.
COMMAND_ROUNDS = 640


@dataclass(frozen=True)
class SpeedEstimate:
    """Estimated speed of the first side relative to the second.

    Attributes:
        mean: Logarithm of the ratio.
        half: Half width of its 95% interval, in logarithms.
        rounds: Number of rounds.
        quantile: Number of standard errors in `half`.
    """

    mean: float
    half: float
    rounds: int
    quantile: float = 2.75

    @property
    def visible(self) -> float:
        """The smallest difference, as a share, that four of five such comparisons would find.

        An interval excludes 1 with a probability of 80% if the difference is its half width and
        0.84 standard errors more.
        """
        return math.expm1(self.half * (1 + 0.8416 / self.quantile))

    @property
    def ratio(self) -> float:
        """Geometric mean of the rounds' ratios, in which outliers are clipped."""
        return math.exp(self.mean)

    @property
    def low(self) -> float:
        """The lower end of the 95% interval of the ratio."""
        return math.exp(self.mean - self.half)

    @property
    def high(self) -> float:
        """The upper end of the 95% interval of the ratio."""
        return math.exp(self.mean + self.half)

    def inverse(self) -> Self:
        """Return the estimate of the second side over the first."""
        return replace(self, mean=-self.mean)

    def verdict(self, margin: float) -> Verdict:
        """Return the verdict if differences below `margin` (0.02: 2%) do not matter.

        An interval that lies within the margin means no difference, even if it excludes 1.
        """
        if abs(self.mean) + self.half <= math.log1p(margin):
            return Verdict.EQUAL
        if self.mean > self.half:
            return Verdict.FASTER
        if self.mean < -self.half:
            return Verdict.SLOWER
        return Verdict.UNDECIDED

    def rounds_needed(self, margin: float) -> int:
        """Return about how many rounds would give a verdict if the ratio is as estimated.

        The interval narrows with the square root of the number of rounds.
        """
        wanted = max(abs(self.mean), math.log1p(margin) - abs(self.mean))
        needed = self.rounds * (self.half / wanted) ** 2
        return next((look for look in LOOKS if look >= needed), LOOKS[-1])


@dataclass(frozen=True)
class Rule:
    """Stopping rule of a comparison.

    Attributes:
        within: Half width of the interval to reach, as a share of the ratio (0.02: 2%).
        margin: Difference that does not matter, as a share.
        least: Minimum of rounds.
        most: Maximum of rounds.
        misses: Probability that an interval misses the true ratio.
    """

    within: float = 0.02
    margin: float = 0.02
    least: int = MIN_ROUNDS
    most: int = 40
    misses: float = 0.05

    def is_enough(self, found: SpeedEstimate) -> bool:
        """Return whether an estimate may end the comparison.

        It does if it gives a verdict and its half width is at most `within`, or a tenth of a large
        difference, in logarithms.
        """
        is_precise = found.half <= max(math.log1p(self.within), abs(found.mean) / 10)
        return is_precise and found.verdict(self.margin) is not Verdict.UNDECIDED

    def looks(self, rounds: int) -> bool:
        """Return whether an interval is computed after a number of rounds."""
        return rounds >= self.most or (rounds >= self.least and rounds in LOOKS)

    def is_over(self, rounds: int, seconds: float, limit: float) -> bool:
        """Return whether there is no round left.

        Args:
            rounds: Rounds so far.
            seconds: Time they took.
            limit: Time that all rounds may take, in seconds. Another round of average length must
                end within it.
        """
        return rounds >= self.most or (rounds > 0 and seconds * (1 + 1 / rounds) > limit)


def orders(seed: object) -> Iterator[tuple[int, int]]:
    """Yield the order of the sides in each round, endlessly.

    The order is random in every other round and reversed in the next. So what the position within a
    round does to the time, such as a warmer chip, cancels over two rounds.
    """
    draw = random.Random(str(seed))
    while True:
        first = draw.randrange(2)
        yield first, 1 - first
        yield 1 - first, first


def false_alarms(logs: Sequence[float], rule: Rule, draws: int) -> float:
    """Return the share of comparisons of equal sides that call them different.

    Replays rounds of a side that was compared with itself. The two measurements of each round are
    exchanged at random, which changes nothing if the sides are equal.

    Args:
        logs: Logarithms of the ratios, one per round, in order.
        rule: When a comparison stops.
        draws: Number of replayed comparisons.
    """
    random_signs = random.Random(0)
    alarms = 0
    for _ in range(draws):
        exchanged = [log * random_signs.choice((-1, 1)) for log in logs]
        verdict = _replay(exchanged, rule).verdict(rule.margin)
        if verdict in (Verdict.FASTER, Verdict.SLOWER):
            alarms += 1
    return alarms / draws


def _replay(logs: Sequence[float], rule: Rule) -> SpeedEstimate:
    """Return the estimate at which a comparison with these rounds would have stopped."""
    for rounds in range(MIN_ROUNDS, len(logs)):
        if rule.looks(rounds):
            result = estimate(logs[:rounds], rule.misses)
            if rule.is_enough(result):
                return result
    return estimate(logs, rule.misses, last=True)


def trimmed(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the value of a round: a trimmed mean of the log ratios of its pairs of blocks.

    A ratio is the second side's seconds over the first's. The largest and the smallest fifth of the
    ratios are omitted.
    """
    logs = sorted(math.log(second / first) for first, second in pairs)
    cut = len(logs) // 5
    return statistics.fmean(logs[cut : len(logs) - cut])


#: Scaled median absolute deviations from the center beyond which a round is an outlier, in a long
#: series. `clipping_limit` raises it for short ones.
CLIPPING_LIMIT = 3.0
#: Shorter series are not clipped: their scale is often far too small by chance.
MIN_ROUNDS_TO_CLIP = 10
#: The median absolute deviation of normal values times this is their standard deviation.
_MAD_TO_SIGMA = 1.4826
_MAX_ITERATIONS = 50


def clipping_limit(rounds: int) -> float:
    """Scaled median absolute deviations beyond which a round is an outlier.

    It is 4.3 for 10 rounds, 3.2 for 40 and infinite for fewer than `MIN_ROUNDS_TO_CLIP`.
    """
    if rounds < MIN_ROUNDS_TO_CLIP:
        return math.inf
    return CLIPPING_LIMIT * rounds / (rounds - 3)


@dataclass(frozen=True)
class _RobustCenter:
    """Huber's estimate of location of a series.

    Attributes:
        location: The value about which the clipped deviations sum to 0.
        deviations: Deviations from `location`, clipped at the limit, in the order of the series.
        lag_one: Correlation of neighboring rounds at lag one, without the outliers.
        inlier_share: Share of rounds within the limit.
    """

    location: float
    deviations: list[float]
    lag_one: float
    inlier_share: float


def _robust_center(values: Sequence[float]) -> _RobustCenter:
    """Estimate location by Huber's M-estimator with the median absolute deviation as scale.

    If more than half of the values are equal, the scale is 0 and no value is clipped. Source:
    Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35, 1964.
    """
    location = statistics.median(values)
    scale = _MAD_TO_SIGMA * statistics.median(abs(value - location) for value in values)
    limit = clipping_limit(len(values)) * scale if scale else math.inf
    for _ in range(_MAX_ITERATIONS):
        clipped = [min(max(value - location, -limit), limit) for value in values]
        is_inlier = [abs(value - location) <= limit for value in values]
        step = sum(clipped) / sum(is_inlier)
        location += step
        if abs(step) <= 1e-12 * scale:
            break
    inliers = [value for value, inside in zip(values, is_inlier, strict=True) if inside]
    inlier_mean = statistics.fmean(inliers)
    centered = [
        value - inlier_mean if inside else 0.0
        for value, inside in zip(values, is_inlier, strict=True)
    ]
    power = sum(value**2 for value in centered)
    products = sum(first * second for first, second in pairwise(centered))
    return _RobustCenter(
        location=location,
        deviations=clipped,
        lag_one=products / power if power else 0.0,
        inlier_share=len(inliers) / len(values),
    )


def estimate(logs: Sequence[float], misses: float = 0.05, *, last: bool = False) -> SpeedEstimate:
    """Estimate the ratio of two speeds, with an interval that holds whenever the comparison stops.

    The location is Huber's M-estimate: rounds far from the others count as if they were at the
    limit (`clipping_limit`), so a few disturbed rounds hardly shift the ratio or widen its
    interval. The interval is Student's t of that location, widened for two reasons.

    1. It is looked at again and again, and all looks together may miss in 5% only. A look that may
       end the comparison early would end it when the scatter seems small by chance. So it may miss
       in rounds / 8000 and at most 0.004. The last look, after which time or rounds are over, has
       the rest: rounds / 2000 and at most 0.012. The idea is that of O'Brien and Fleming's
       boundaries (Biometrics 35, 1979).
    2. A side may be disturbed for several rounds by something that the other does not meet. So the
       error of the location is that of an AR(1) series, larger by sqrt((1 + r) / (1 - r)). `r` is
       the correlation at lag one without outliers, raised by what a short series underestimates:
       (n r + 7) / (n - 8), at the last look (n r + 5) / (n - 6), less for n under 20, and at most
       1 - 1.5 / n.

    The constants come from simulation (`python -m benchmarks.compare_verdicts`,
    docs/validation/comparisons.md).

    Args:
        logs: Logarithm of the ratio of speeds, one per round, in order; at least `MIN_ROUNDS`.
        misses: How often intervals may miss the true ratio.
        last: Whether this is the last look, because time or rounds are over.
    """
    from scipy.special import stdtrit

    n = len(logs)
    center = _robust_center(logs)
    power = sum(value**2 for value in center.deviations)
    if not power:
        return SpeedEstimate(center.location, 0.0, n)
    if last:
        raised = 5.0
        fewer = 6.0
        level = min(n / 2000, 0.012)
    else:
        raised = 7.0
        fewer = 8.0
        level = min(n / 8000, 0.004)
    correlation = (n * center.lag_one + min(raised, 0.4 * n)) / (n - min(fewer, 0.4 * n))
    correlation = min(max(correlation, 0.0), 1 - 1.5 / n)
    variance = power / (n - 1) / n / center.inlier_share**2
    error = math.sqrt(variance * (1 + correlation) / (1 - correlation))
    quantile = float(stdtrit(n - 1, 1 - level * misses / 0.05 / 2))
    return SpeedEstimate(center.location, quantile * error, n, quantile)
