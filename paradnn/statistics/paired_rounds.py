"""What paired rounds say of two sides: a ratio, an interval that holds whenever one stops, a
verdict, when to stop.

In each round both sides are measured one right after the other, and the logarithm of their ratio is
one value. What both share cancels in it: the session, a drift, a slow neighbour. The order within
the rounds is random (`orders`), so between equal sides each value is as likely as its opposite,
however the machine's state correlates in time.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Self

#: Fewer rounds than this carry no interval.
FEWEST = 5
#: Rounds after which intervals are looked at: 5, 7, 10, 14, 20, 28, 40, ..., each sqrt(2) of the
#: last.
LOOKS = tuple(round(FEWEST * 2 ** (step / 2)) for step in range(100))
#: Rounds of two commands, which may be short, unless --most says another number.
COMMAND_ROUNDS = 640


class SpeedVerdict(StrEnum):
    """What is said of the first side at one point."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equal"
    NOT_SETTLED = "undecided"


@dataclass(frozen=True)
class SpeedEstimate:
    """How many times as fast the first side is as the second: mean and half the 95% interval, in
    logarithms.

    `quantile`: how many standard errors that half is.
    """

    mean: float
    half: float
    rounds: int
    quantile: float = 2.75

    @property
    def visible(self) -> float:
        """The share by which a side must be faster to be found so in four of five such comparisons:
        its interval leaves out 1 with a probability of 80%, half of it and 0.84 standard errors
        more.
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
        """The same of the second side over the first."""
        return replace(self, mean=-self.mean)

    def verdict(self, margin: float) -> SpeedVerdict:
        """What the interval says where less than `margin` (0.02: 2%) does not matter: no difference
        where it is within the margin as a whole, even without 1.
        """
        if abs(self.mean) + self.half <= math.log1p(margin):
            return SpeedVerdict.EQUIVALENT
        if abs(self.mean) > self.half:
            return SpeedVerdict.FASTER if self.mean > 0 else SpeedVerdict.SLOWER
        return SpeedVerdict.NOT_SETTLED

    def rounds_needed(self, margin: float) -> int:
        """About how many rounds would settle it, were the ratio what it seems: the interval narrows
        as their root.
        """
        wanted = max(abs(self.mean), math.log1p(margin) - abs(self.mean))
        needed = self.rounds * (self.half / wanted) ** 2
        return next((look for look in LOOKS if look >= needed), LOOKS[-1])


@dataclass(frozen=True)
class Rule:
    """When to stop; shares of the ratio, such as 0.02. `most` caps the rounds; `misses`: how often
    intervals may.
    """

    within: float = 0.02
    margin: float = 0.02
    least: int = FEWEST
    most: int = 40
    misses: float = 0.05

    def is_enough(self, found: SpeedEstimate) -> bool:
        """Whether a look may end it: there is a verdict, and half the interval is at most `within`,
        or a tenth of a large difference, in logarithms.
        """
        precise = found.half <= max(math.log1p(self.within), abs(found.mean) / 10)
        return precise and found.verdict(self.margin) is not SpeedVerdict.NOT_SETTLED

    def looks(self, rounds: int) -> bool:
        """Whether the rounds so far are looked at."""
        return rounds >= self.most or (rounds >= self.least and rounds in LOOKS)

    def is_over(self, rounds: int, seconds: float, limit: float) -> bool:
        """Whether these are the most, or one more, as long as they were, would end later than
        `limit` s.
        """
        return rounds >= self.most or (rounds > 0 and seconds * (1 + 1 / rounds) > limit)


def orders(seed: object) -> Iterator[tuple[int, int]]:
    """Which side goes first in each round, endlessly: random in every other round, the other way in
    the next.

    So what the place within a round does to the time, such as a warmer chip, cancels over two
    rounds.
    """
    draw = random.Random(str(seed))
    while True:
        first = draw.randrange(2)
        yield first, 1 - first
        yield 1 - first, first


def false_alarms(logs: Sequence[float], rule: Rule, draws: int) -> float:
    """The share of comparisons of equal sides that call them different: rounds of one side against
    itself are played again so many times, those of each exchanged at random, which equal sides do
    not show.
    """
    draw = random.Random(0)
    false = 0
    for _ in range(draws):
        turned = [log * draw.choice((-1, 1)) for log in logs]
        ends = [n for n in range(FEWEST, len(logs)) if rule.looks(n)]
        looked = (found for n in ends if rule.is_enough(found := estimate(turned[:n], rule.misses)))
        said = next(looked, None) or estimate(turned, rule.misses, last=True)
        false += said.verdict(rule.margin) in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER)
    return false / draws


def trimmed(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean logarithm of the second side's seconds over the first's, of blocks pair by pair,
    without the fifth of them that are largest and the fifth that are smallest: a round's value.
    """
    logs = sorted(math.log(second / first) for first, second in pairs)
    cut = len(logs) // 5
    return statistics.fmean(logs[cut : len(logs) - cut])


#: Scaled median absolute deviations from the centre beyond which a round is an outlier, in a long
#: series. `clipping_limit` raises it for short ones.
CLIPPING_LIMIT = 3.0
#: Shorter series are not clipped: their scale is often far too small by chance.
FEWEST_TO_CLIP = 10
#: The median absolute deviation of normal values times this is their standard deviation.
_MAD_TO_SIGMA = 1.4826
_MAX_ITERATIONS = 50


def clipping_limit(rounds: int) -> float:
    """Scaled median absolute deviations beyond which a round is an outlier.

    It is 4.3 for 10 rounds, 3.2 for 40 and infinite for fewer than `FEWEST_TO_CLIP`.
    """
    if rounds < FEWEST_TO_CLIP:
        return math.inf
    return CLIPPING_LIMIT * rounds / (rounds - 3)


@dataclass(frozen=True)
class _RobustCentre:
    """Huber's estimate of location of a series.

    Attributes:
        location: the value about which the clipped deviations sum to 0.
        deviations: deviations from `location`, clipped at the limit, in the order of the series.
        lag_one: correlation of neighbouring rounds at lag one, without the outliers.
        inlier_share: share of rounds within the limit.
    """

    location: float
    deviations: list[float]
    lag_one: float
    inlier_share: float


def _robust_centre(values: Sequence[float]) -> _RobustCentre:
    """Estimate location by Huber's M-estimator with the scale held at the median absolute deviation.

    A series of which more than half of the values are equal has scale 0 and is not clipped. Source:
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
    centred = [
        value - inlier_mean if inside else 0.0
        for value, inside in zip(values, is_inlier, strict=True)
    ]
    power = sum(value**2 for value in centred)
    products = sum(first * second for first, second in pairwise(centred))
    return _RobustCentre(
        location=location,
        deviations=clipped,
        lag_one=products / power if power else 0.0,
        inlier_share=len(inliers) / len(values),
    )


def estimate(logs: Sequence[float], misses: float = 0.05, last: bool = False) -> SpeedEstimate:
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

    The constants come from simulation (`python -m benchmarks.compare_verdicts`, docs/validation/comparisons.md).

    Args:
        logs: logarithm of the ratio of speeds, one per round, in order; at least `FEWEST`.
        misses: how often intervals may miss the true ratio.
        last: whether this is the last look, because time or rounds are over.
    """
    from scipy.special import stdtrit

    n = len(logs)
    centre = _robust_centre(logs)
    power = sum(value**2 for value in centre.deviations)
    if not power:
        return SpeedEstimate(centre.location, 0.0, n)
    if last:
        raised = 5.0
        fewer = 6.0
        level = min(n / 2000, 0.012)
    else:
        raised = 7.0
        fewer = 8.0
        level = min(n / 8000, 0.004)
    correlation = (n * centre.lag_one + min(raised, 0.4 * n)) / (n - min(fewer, 0.4 * n))
    correlation = min(max(correlation, 0.0), 1 - 1.5 / n)
    variance = power / (n - 1) / n / centre.inlier_share**2
    error = math.sqrt(variance * (1 + correlation) / (1 - correlation))
    quantile = float(stdtrit(n - 1, 1 - level * misses / 0.05 / 2))
    return SpeedEstimate(centre.location, quantile * error, n, quantile)
