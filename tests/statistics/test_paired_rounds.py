"""Paired rounds: stopping rules, replays and estimates, compared with SciPy."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from paradnn.statistics.paired_rounds import (
    LOOKS,
    Rule,
    SpeedEstimate,
    clipping_limit,
    estimate,
    false_alarms,
    orders,
    trimmed,
)
from paradnn.statistics.verdict import Verdict


@pytest.mark.parametrize(
    "pairs", [pytest.param(count, id=f"{count} pairs of blocks") for count in (1, 4, 5, 9, 10)]
)
def test_a_round_is_a_mean_trimmed_by_a_fifth_at_each_end(pairs: int) -> None:
    random = np.random.default_rng(pairs)
    blocks = random.lognormal(0, 0.3, (pairs, 2))

    found = trimmed([(first, second) for first, second in blocks])

    assert found == pytest.approx(stats.trim_mean(np.log(blocks[:, 1] / blocks[:, 0]), 0.2))


def test_the_visible_difference_has_a_power_of_80_percent() -> None:
    found = SpeedEstimate(mean=0.0, half=0.03, rounds=20, quantile=2.5)

    estimates = stats.norm(math.log1p(found.visible), 0.03 / 2.5)

    assert estimates.sf(0.03) == pytest.approx(0.8, abs=1e-4)


def test_looks_grow_by_the_square_root_of_two() -> None:
    assert LOOKS[:7] == (5, 7, 10, 14, 20, 28, 40)
    assert LOOKS[20] == 5 * 2**10


@pytest.mark.parametrize(
    ("mean", "half", "rounds"),
    [
        # The half-width is inversely proportional to the square root of the rounds. It must fall to
        # the mean, or to the distance of the mean from the margin.
        pytest.param(0.05, 0.1, 80, id="to exclude 1, four times the rounds"),
        pytest.param(-0.05, 0.1, 80, id="to exclude 1, slower side"),
        pytest.param(0.0, 2 * math.log1p(0.02), 80, id="to lie within the margin"),
        pytest.param(0.05, 0.101, 113, id="rounded up to the next look"),
    ],
)
def test_the_needed_rounds_are_the_first_look_with_a_verdict(
    mean: float, half: float, rounds: int
) -> None:
    assert SpeedEstimate(mean, half, rounds=20).rounds_needed(margin=0.02) == rounds


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        pytest.param(0.05, 0.02, Verdict.FASTER, id="faster"),
        pytest.param(-0.05, 0.02, Verdict.SLOWER, id="slower"),
        pytest.param(0.01, 0.005, Verdict.EQUAL, id="within the margin"),
        pytest.param(0.01, 0.02, Verdict.UNDECIDED, id="wide interval"),
        pytest.param(0.0, math.log1p(0.02), Verdict.EQUAL, id="interval as wide as the margin"),
    ],
)
def test_an_interval_gives_a_verdict(mean: float, half: float, verdict: Verdict) -> None:
    found = SpeedEstimate(mean, half, rounds=20)

    assert found.verdict(margin=0.02) is verdict
    assert Rule(within=0.5, margin=0.02).is_enough(found) == (verdict is not Verdict.UNDECIDED)


@pytest.mark.parametrize(
    ("mean", "half", "is_enough"),
    [
        pytest.param(0.05, 0.0099, True, id="half-width below 1%"),
        pytest.param(0.05, 0.0101, False, id="half-width above 1%"),
        pytest.param(0.5, 0.049, True, id="half-width below a tenth of the difference"),
        pytest.param(0.5, 0.051, False, id="half-width above a tenth of the difference"),
        pytest.param(-0.5, 0.049, True, id="half-width below a tenth of the negative difference"),
    ],
)
def test_a_comparison_ends_with_a_narrow_interval(
    mean: float, half: float, is_enough: bool
) -> None:
    rule = Rule(within=math.expm1(0.01), margin=0.001)

    assert rule.is_enough(SpeedEstimate(mean, half, rounds=20)) is is_enough


def test_a_rule_looks_between_its_least_and_most_rounds() -> None:
    rule = Rule(least=10, most=24)

    assert [rounds for rounds in range(26) if rule.looks(rounds)] == [10, 14, 20, 24, 25]


@pytest.mark.parametrize(
    ("rounds", "seconds", "is_over"),
    [
        pytest.param(0, 100.0, False, id="before the first round"),
        pytest.param(4, 8.0, False, id="another round ends in time"),
        pytest.param(4, 8.1, True, id="another round ends too late"),
        pytest.param(39, 1.0, False, id="one round left"),
        pytest.param(40, 1.0, True, id="no round left"),
    ],
)
def test_a_comparison_ends_at_its_limit_of_rounds_or_time(
    rounds: int, seconds: float, is_over: bool
) -> None:
    assert Rule(most=40).is_over(rounds, seconds, limit=10.0) is is_over


def test_every_second_round_reverses_the_order_of_the_previous_round() -> None:
    rounds = list(itertools.islice(orders("seed"), 200))

    assert all(sorted(order) == [0, 1] for order in rounds)
    assert all(even == odd[::-1] for even, odd in zip(rounds[::2], rounds[1::2], strict=True))
    assert 30 < sum(first for first, _ in rounds[::2]) < 70


def test_replays_raise_an_alarm_only_if_all_signs_agree() -> None:
    """Of the 32 choices of signs for five equal ratios, 2 call the sides different."""
    rule = Rule(least=5, most=5, margin=0.001)

    alarm_rate = false_alarms([0.1] * 5, rule, draws=2000)

    assert estimate([0.1] * 5, last=True).verdict(rule.margin) is Verdict.FASTER
    assert alarm_rate == pytest.approx(2 / 32, abs=3 * math.sqrt(2 / 32 / 2000))
    assert false_alarms([0.0] * 5, rule, draws=10) == 0.0


@pytest.mark.parametrize(
    ("rounds", "limit"),
    [
        pytest.param(9, math.inf, id="9 rounds are not clipped"),
        pytest.param(10, 4.2857, id="10 rounds"),
        pytest.param(40, 3.2432, id="40 rounds"),
        pytest.param(10_000, 3.0009, id="10,000 rounds"),
    ],
)
def test_short_series_are_clipped_at_a_higher_limit(rounds: int, limit: float) -> None:
    assert clipping_limit(rounds) == pytest.approx(limit, abs=1e-4)


@pytest.mark.parametrize(
    ("last", "level"),
    [pytest.param(False, 0.0025, id="a look"), pytest.param(True, 0.01, id="the last look")],
)
def test_an_outlier_is_clipped_to_the_limit_in_hubers_estimate(last: bool, level: float) -> None:
    """The variance is the mean square of clipped deviations over the squared unclipped share.

    The signs alternate, so rounds are not correlated.
    """
    logs = np.array([(-1) ** index * (0.01 + 0.0001 * index) for index in range(20)])
    logs[7] = 0.9
    limit = 3 * 20 / 17 * stats.median_abs_deviation(logs, scale="normal")

    found = estimate(logs.tolist(), last=last)

    def clipped(center: float) -> np.ndarray:
        return np.asarray(np.clip(logs - center, -limit, limit))

    center = optimize.brentq(lambda value: float(clipped(value).sum()), -0.05, 0.05)
    error = math.sqrt(float((clipped(center) ** 2).sum()) / 19 / 20) / (19 / 20)

    assert found.mean == pytest.approx(
        center, rel=1e-4
    )  # MAD x 1.4826 approximates the standard deviation
    assert found.half == pytest.approx(stats.t.isf(level / 2, 19) * error, rel=1e-4)
