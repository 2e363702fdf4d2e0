"""Inference from paired rounds of two sides: ratio, interval, verdict, and when to stop.

A side is one of two compared settings, commands or functions. Each round measures both sides, one
right after the other, and yields one value: the logarithm of the ratio of their speeds. Influences
that affect both sides cancel in the ratio: the session, a drift, the load of other tenants. The
order within the rounds is random (`orders`). If the sides are equal, a value and its negative are
therefore equally likely, even if the state of the machine correlates in time. The interval is valid
whenever a comparison stops.
"""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from paradnn.statistics.verdict import Verdict

#: Minimum number of rounds for an interval.
MIN_ROUNDS = 5
#: Numbers of rounds after which an interval is computed: 5, 7, 10, 14, 20, 28, 40, ... Each is
#: about sqrt(2) times the previous number.
LOOKS = tuple(round(MIN_ROUNDS * 2 ** (step / 2)) for step in range(100))
#: Default maximum number of rounds for two commands, which may be short.
COMMAND_ROUNDS = 640


@dataclass(frozen=True)
class SpeedEstimate:
    """Estimated ratio of the speeds of two compared commands or settings.

    The two are called the first and the second side. A round measures both once.

    Attributes:
        mean: Natural logarithm of the first side's speed divided by the second side's.
        half: Half width of the 95% interval of `mean`.
        rounds: Number of rounds.
        quantile: `half` divided by the standard error of `mean`.
    """

    mean: float
    half: float
    rounds: int
    quantile: float = 2.75

    @property
    def visible(self) -> float:
        """Smallest difference, as a share, that a comparison of this precision detects.

        The power is 80%: the interval excludes 1 with a probability of 80% if the true difference
        exceeds the half width by 0.84 standard errors.
        """
        return math.expm1(self.half * (1 + 0.8416 / self.quantile))

    @property
    def ratio(self) -> float:
        """First side's speed divided by the second side's.

        It is the geometric mean over the rounds, with clipped outliers.
        """
        return math.exp(self.mean)

    @property
    def low(self) -> float:
        """Lower end of the 95% interval of the ratio."""
        return math.exp(self.mean - self.half)

    @property
    def high(self) -> float:
        """Upper end of the 95% interval of the ratio."""
        return math.exp(self.mean + self.half)

    def inverse(self) -> Self:
        """Return the estimated speed of the second side relative to the first side."""
        return replace(self, mean=-self.mean)

    def verdict(self, margin: float) -> Verdict:
        """Return whether the first side is faster, slower, equal, or undecided.

        If the interval of the ratio lies within the margin around 1, the verdict is "equal", even
        if the interval excludes 1.

        Args:
            margin: Largest difference that does not matter, as a share (0.02: 2%).
        """
        if abs(self.mean) + self.half <= math.log1p(margin):
            return Verdict.EQUAL
        if self.mean > self.half:
            return Verdict.FASTER
        if self.mean < -self.half:
            return Verdict.SLOWER
        return Verdict.UNDECIDED

    def rounds_needed(self, margin: float) -> int:
        """Estimate the total number of rounds, including past rounds, that a verdict needs.

        The estimate assumes that the estimated ratio is the true ratio, and that the half width of
        the interval falls with the square root of the number of rounds.

        Args:
            margin: Largest difference that does not matter, as a share (0.02: 2%).
        """
        wanted = max(abs(self.mean), math.log1p(margin) - abs(self.mean))
        needed = self.rounds * (self.half / wanted) ** 2
        return next((look for look in LOOKS if look >= needed), LOOKS[-1])


@dataclass(frozen=True)
class Rule:
    """Stopping rule of a comparison that measures two sides in rounds.

    Attributes:
        within: Largest half width of the 95% interval, as a share of the ratio (0.02: 2%), at which
            the comparison may stop.
        margin: Largest difference in speed that does not matter, as a share (0.02: 2%).
        least: Minimum number of rounds.
        most: Maximum number of rounds.
        misses: Permitted probability that the interval misses the true ratio.
    """

    within: float = 0.02
    margin: float = 0.02
    least: int = MIN_ROUNDS
    most: int = 40
    misses: float = 0.05

    def is_enough(self, found: SpeedEstimate) -> bool:
        """Return whether the comparison may stop with an estimate.

        The estimate must yield a verdict other than undecided. Its half width must be at most
        `within`, or at most a tenth of the estimated log ratio.

        Args:
            found: The estimate after the rounds so far.
        """
        is_precise = found.half <= max(math.log1p(self.within), abs(found.mean) / 10)
        return is_precise and found.verdict(self.margin) is not Verdict.UNDECIDED

    def looks(self, rounds: int) -> bool:
        """Return whether an interval is computed after the given number of rounds.

        Intervals are computed only after the numbers of rounds in `LOOKS` that are at least
        `least`, and from `most` rounds on.
        """
        return rounds >= self.most or (rounds >= self.least and rounds in LOOKS)

    def is_over(self, rounds: int, seconds: float, limit: float) -> bool:
        """Return whether the comparison must stop, because rounds or time are used up.

        Time is used up if a further round of average duration would exceed the limit.

        Args:
            rounds: Number of rounds so far.
            seconds: Duration of these rounds, in seconds.
            limit: Time limit of all rounds, in seconds.
        """
        return rounds >= self.most or (rounds > 0 and seconds * (1 + 1 / rounds) > limit)


def orders(seed: object) -> Iterator[tuple[int, int]]:
    """Yield the order of the sides in each round, endlessly.

    The order is random in every other round, and is reversed in the following round. An effect of
    the position within a round, such as a warmer chip, therefore cancels over two rounds.

    Args:
        seed: Seed of the random order, which is converted to text by `str`.

    Yields:
        The numbers of the first and the second side: (0, 1) or (1, 0).
    """
    draw = random.Random(str(seed))
    while True:
        first = draw.randrange(2)
        yield first, 1 - first
        yield 1 - first, first


def false_alarms(logs: Sequence[float], rule: Rule, draws: int) -> float:
    """Return the share of comparisons of equal sides that report a difference, from 0 to 1.

    The function replays the rounds of a side that was compared with itself. Each replay swaps the
    two measurements of each round at random, which is valid because the sides are equal.

    Args:
        logs: Logarithms of the ratios, one per round, in the order of measurement.
        rule: Stopping rule of the comparisons.
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
    """Return the estimate with which a comparison would have stopped.

    Args:
        logs: Logarithm of the ratio of speeds in each round, in the order of measurement.
        rule: Stopping rule of the comparison.
    """
    for rounds in range(MIN_ROUNDS, len(logs)):
        if rule.looks(rounds):
            result = estimate(logs[:rounds], rule.misses)
            if rule.is_enough(result):
                return result
    return estimate(logs, rule.misses, last=True)


def trimmed(pairs: Sequence[tuple[float, float]]) -> float:
    """Return a trimmed mean of the log ratios of the times of two sides.

    A block is a number of steps or calls that are timed together. Blocks of the two sides
    alternate, which forms pairs. A ratio is the time of the second side divided by the time of the
    first side. The mean omits the largest fifth and the smallest fifth of the ratios.

    Args:
        pairs: For each pair of blocks, the times of the first and of the second side in seconds.
    """
    logs = sorted(math.log(second / first) for first, second in pairs)
    cut = len(logs) // 5
    return statistics.fmean(logs[cut : len(logs) - cut])


#: Distance from the center beyond which a round of a long series is an outlier, in scaled median
#: absolute deviations. `clipping_limit` raises it for short series.
CLIPPING_LIMIT = 3.0
#: Minimum number of rounds for clipping outliers. In shorter series, the median absolute deviation
#: is often far too small by chance.
MIN_ROUNDS_TO_CLIP = 10
#: Standard deviation of normal values per median absolute deviation.
_MAD_TO_SIGMA = 1.4826
_MAX_ITERATIONS = 50


def clipping_limit(rounds: int) -> float:
    """Return the distance from the center, in scaled MADs, beyond which a round is an outlier.

    A scaled MAD is a median absolute deviation times 1.4826. The distance is 4.3 for 10 rounds, 3.2
    for 40 rounds, and infinite for fewer than `MIN_ROUNDS_TO_CLIP` rounds.

    Args:
        rounds: Number of rounds of the comparison.
    """
    if rounds < MIN_ROUNDS_TO_CLIP:
        return math.inf
    return CLIPPING_LIMIT * rounds / (rounds - 3)


@dataclass(frozen=True)
class _RobustCenter:
    """Huber's robust estimate of the center of a series that has one value per round.

    Values whose deviation from the center exceeds the limit of `_robust_center` are outliers.

    Attributes:
        location: The center, about which the clipped deviations sum to 0.
        deviations: Deviations of the values from `location`, clipped to the range from -limit to
            limit, in the order of the series.
        lag_one: Autocorrelation of the values at lag one. Outliers count as the mean of the
            remaining values.
        inlier_share: Share of values that are not outliers, from 0 to 1.
    """

    location: float
    deviations: list[float]
    lag_one: float
    inlier_share: float


def _robust_center(values: Sequence[float]) -> _RobustCenter:
    """Estimate the center of a series by Huber's M-estimator.

    The scale is the median absolute deviation from the median, times 1.4826. Deviations from the
    center are clipped at a limit, which is `clipping_limit` times the scale. If more than half of
    the values are equal, the scale is 0 and no value is clipped.

    Source: Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35,
    1964.

    Args:
        values: One value per round, in the order of the rounds; not empty.
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
    """Estimate the ratio of two speeds, with an interval that is valid whenever the rounds stop.

    The center is Huber's M-estimate: outlying rounds are clipped at `clipping_limit`, so a few
    disturbed rounds hardly shift the ratio or widen its interval. The interval is Student's t
    interval about the center, widened for two reasons.

    1. A comparison computes intervals repeatedly; each computation is a "look". Taken together, the
       looks may miss the true ratio in only 5% of comparisons. An early look ends a comparison if
       the scatter is small by chance, so it may miss with a probability of only rounds / 8000, at
       most 0.004. The last look, when time or rounds are used up, may miss with a probability of
       rounds / 2000, at most 0.012. O'Brien and Fleming's boundaries (Biometrics 35, 1979) follow
       the same idea.
    2. A disturbance may affect one side for several rounds. The standard error is therefore that of
       an AR(1) series, which is larger by the factor sqrt((1 + r) / (1 - r)). Here r is the
       autocorrelation at lag one without outliers. A short series underestimates r, so r is
       replaced by (n r + 7) / (n - 8), or by (n r + 5) / (n - 6) at the last look. The constants
       are smaller for n below 20, and r is at most 1 - 1.5 / n.

    The constants were determined by simulation (`python -m benchmarks.compare_verdicts`,
    docs/validation/comparisons.md). The probabilities above are for `misses` = 0.05.

    Args:
        logs: Logarithms of the ratio of speeds, one per round, in the order of measurement; at
            least `MIN_ROUNDS`.
        misses: Permitted probability that the interval of a comparison misses the true ratio.
        last: Whether this is the last look, because time or rounds are used up.
    """
    from scipy.special import stdtrit

    n = len(logs)
    center = _robust_center(logs)
    power = sum(value**2 for value in center.deviations)
    if not power:
        return SpeedEstimate(center.location, 0.0, n)
    if last:
        added = 5.0
        subtracted = 6.0
        level = min(n / 2000, 0.012)
    else:
        added = 7.0
        subtracted = 8.0
        level = min(n / 8000, 0.004)
    correlation = (n * center.lag_one + min(added, 0.4 * n)) / (n - min(subtracted, 0.4 * n))
    correlation = min(max(correlation, 0.0), 1 - 1.5 / n)
    variance = power / (n - 1) / n / center.inlier_share**2
    error = math.sqrt(variance * (1 + correlation) / (1 - correlation))
    quantile = float(stdtrit(n - 1, 1 - level * misses / 0.05 / 2))
    return SpeedEstimate(center.location, quantile * error, n, quantile)
