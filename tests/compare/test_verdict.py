"""The statistics of a comparison against SciPy and statsmodels, and on planted machines."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.tsa.stattools import acf

from benchmarks.compare_verdicts import MACHINES, tally
from paradnn.compare.verdict import LOOKS, Rule, SpeedEstimate, SpeedVerdict, estimate, false_alarms


def series(n: int, seed: int, rho: float = 0.0) -> list[float]:
    random = np.random.default_rng(seed)
    values = [random.standard_normal()]
    for shock in random.standard_normal(n - 1):
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * shock)
    return [0.05 + 0.01 * value for value in values]


@pytest.mark.parametrize(
    ("n", "missing", "last"),
    [
        (5, 0.000625, False),
        (20, 0.0025, False),
        (160, 0.004, False),
        (5, 0.0025, True),
        (20, 0.01, True),
        (40, 0.012, True),
    ],
)
def test_alternating_rounds_have_students_interval_at_the_looks_own_level(n: int, missing: float, last: bool) -> None:
    logs = [0.05 + (-1) ** index * (0.01 + 0.0001 * index) for index in range(n)]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(1 - missing)
    found = estimate(logs, last=last)
    assert found.rounds == n
    assert math.log(found.ratio) == pytest.approx(np.mean(logs))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [10, 20, 57])
@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
@pytest.mark.parametrize("last", [False, True])
def test_correlated_rounds_widen_it_as_an_ar1_series(n: int, rho: float, last: bool) -> None:
    logs = series(n, seed=n, rho=rho)
    seen = acf(logs, nlags=1)[1]
    raised, fewer, level = (5, 6, min(n / 2000, 0.012)) if last else (7, 8, min(n / 8000, 0.004))
    r = np.clip((n * seen + min(raised, 0.4 * n)) / (n - min(fewer, 0.4 * n)), 0, 1 - 1.5 / n)
    plain = stats.ttest_1samp(logs, 0).confidence_interval(1 - level)
    wider = math.sqrt((1 + r) / (1 - r))
    assert estimate(logs, last=last).half == pytest.approx((plain.high - plain.low) / 2 * wider)


def test_rounds_without_any_scatter_have_an_interval_without_width() -> None:
    found = estimate([math.log(1.5)] * 5)
    assert (found.low, found.ratio, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.verdict(0.02) is SpeedVerdict.FASTER


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.40, SpeedVerdict.FASTER),
        (1.001, 1.01, SpeedVerdict.EQUIVALENT),
        (1.001, 1.021, SpeedVerdict.FASTER),
        (0.5, 0.99, SpeedVerdict.SLOWER),
        (0.985, 1.019, SpeedVerdict.EQUIVALENT),
        (0.985, 1.021, SpeedVerdict.NOT_SETTLED),
        (0.979, 1.001, SpeedVerdict.NOT_SETTLED),
    ],
)
def test_the_verdict_is_the_intervals(low: float, high: float, verdict: SpeedVerdict) -> None:
    found = SpeedEstimate((math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2, 10)
    assert found.verdict(0.02) is verdict
    opposite = {SpeedVerdict.FASTER: SpeedVerdict.SLOWER, SpeedVerdict.SLOWER: SpeedVerdict.FASTER}
    assert found.inverse().verdict(0.02) is opposite.get(verdict, verdict)


@pytest.mark.parametrize(("mean", "half"), [(0.01, 0.03), (0.0, 0.05), (0.03, 0.04), (-0.015, 0.02)])
def test_the_rounds_that_would_tell_are_a_look_and_would(mean: float, half: float) -> None:
    found = SpeedEstimate(mean, half, 40)
    needed = found.rounds_needed(0.02)
    assert found.verdict(0.02) is SpeedVerdict.NOT_SETTLED
    assert needed in LOOKS
    narrower = half * math.sqrt(40 / needed)
    assert SpeedEstimate(mean, narrower * 0.999, needed).verdict(0.02) is not SpeedVerdict.NOT_SETTLED
    assert SpeedEstimate(mean, narrower * 1.5, needed).verdict(0.02) is SpeedVerdict.NOT_SETTLED


def test_it_ends_with_a_verdict_that_is_precise_enough() -> None:
    rule = Rule(within=0.02, margin=0.02)
    assert rule.is_enough(SpeedEstimate(0.03, 0.0198, 10))
    assert not rule.is_enough(SpeedEstimate(0.03, 0.025, 10)), "a verdict, but not precise"
    assert not rule.is_enough(SpeedEstimate(0.01, 0.0198, 10)), "precise, but no verdict"
    assert rule.is_enough(SpeedEstimate(math.log(2), 0.06, 10)), "a tenth of a large difference is enough"
    assert rule.is_enough(SpeedEstimate(0.001, 0.015, 10))


def test_looks_are_few_and_end_at_the_cap() -> None:
    assert [n for n in range(1, 60) if n in LOOKS] == [5, 7, 10, 14, 20, 28, 40, 57]
    assert [n for n in range(1, 13) if Rule(least=6, most=12).looks(n)] == [7, 10, 12]


OWN = {"independent": 0.7, "bimodal, 8%": 0.0, "second place 3% slower": 0.0, "state 0.7": 0.0}


@pytest.mark.parametrize(("machine", "own"), OWN.items())
def test_equal_sides_of_planted_machines_are_hardly_ever_called_different(machine: str, own: float) -> None:
    """Noise of a side's `own` lasts, too."""
    outcomes = tally(200, 1.0, 0.01, Rule(), MACHINES[machine], own=own)
    false = sum(outcome.verdict in (SpeedVerdict.FASTER, SpeedVerdict.SLOWER) for outcome in outcomes)
    assert false <= stats.binom.ppf(0.999, 200, 0.05)
    assert sum(not outcome.held for outcome in outcomes) <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_difference_is_found_in_few_rounds() -> None:
    outcomes = tally(100, 1.05, 0.01, Rule())
    assert sum(outcome.verdict is SpeedVerdict.FASTER for outcome in outcomes) >= 95
    assert np.median([outcome.rounds for outcome in outcomes]) <= 20
    assert all(abs(outcome.found.ratio - 1.05) < 0.03 for outcome in outcomes)


def test_rounds_of_one_side_against_itself_say_how_often_equals_would_be_called_different() -> None:
    random = np.random.default_rng(3)
    noise = 0.01 * random.standard_normal(40)
    assert false_alarms([*noise], Rule(), 200) <= 0.02
    lucky = 0.02 + noise
    assert estimate([*lucky]).verdict(0.01) is SpeedVerdict.FASTER
    assert false_alarms([*lucky], Rule(), 200) <= 0.02  # exchanged at random it is noise
    often = Rule(within=1.0, margin=0.0001, misses=6.0)  # each look misses far more often than it may
    assert false_alarms([*noise], often, 200) > 0.05
