"""Comparisons of planted rows: order of rounds, failing sides, stopping and messages.

Statistics are compared with SciPy and statsmodels, and tested on planted machines.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from scipy import stats
from statsmodels.tsa.stattools import acf

from benchmarks.compare_verdicts import MACHINES, tally
from paradnn.compare.comparison import Comparison, Pair, pairs_of
from paradnn.compare.result import PairedResult, round_table, sentence
from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.families.fc import FullyConnected
from paradnn.session.design import DesignPoint, RecordedPoint
from paradnn.statistics.paired_rounds import LOOKS, Rule, SpeedEstimate, estimate, false_alarms
from paradnn.statistics.verdict import Verdict

LABELS = ("compile=graph", "compile=xla")
GRAPH = Point(FullyConnected())
#: A rule that twelve rounds of equal sides do not satisfy.
ENDLESS = Rule(within=0.0001, margin=0.0001, most=12)
#: A visit's result: examples/s, or the outcome of a failed visit.
Machine = Callable[[DesignPoint], float | str]


def row(visit: DesignPoint, measured: float | str) -> RecordedPoint:
    ok = not isinstance(measured, str)
    outcome, metrics = ("ok", {"examples_per_second": measured}) if ok else (measured, {})
    return RecordedPoint(
        "id", "name", "fc", str(outcome), None if ok else "it said so", metrics, {}
    )


def pairs(*batch_sizes: int) -> list[Pair]:
    points = [replace(GRAPH, batch_size=size) for size in batch_sizes]
    return pairs_of(points, [replace(point, compile="xla") for point in points], null=False)


def follow(comparison: Comparison, machine: Machine) -> list[list[DesignPoint]]:
    """Return every batch that the comparison requests until it ends."""
    batches: list[list[DesignPoint]] = []
    rows: list[RecordedPoint] = []
    while visits := comparison.batch(rows):
        rows = [row(visit, machine(visit)) for visit in visits]
        batches.append(visits)
    return batches


def planted(ratio: float) -> Machine:
    """Return a machine on which xla is faster by the factor `ratio`.

    Its noise alternates in sign and differs per round.
    """

    def measure(visit: DesignPoint) -> float:
        number = visit.point.replicate
        noise = 1 + (-1) ** number * (0.001 + 0.0001 * number)
        return visit.point.batch_size * (ratio * noise if visit.point.compile == "xla" else 1.0)

    return measure


def test_every_round_measures_both_sides_of_each_point_side_by_side() -> None:
    comparison = Comparison("id", pairs(16, 64, 256), LABELS, ENDLESS)
    batches = follow(comparison, planted(1.0))
    assert len(batches) == 12
    for number, visits in enumerate(batches, start=1):
        assert {visit.point.replicate for visit in visits} == {number}
        sizes = [visit.point.batch_size for visit in visits]
        assert sorted(sizes) == [16, 16, 64, 64, 256, 256]
        assert sizes[::2] == sizes[1::2]
        for one, two in zip(visits[::2], visits[1::2], strict=True):
            assert {one.point.compile, two.point.compile} == {"graph", "xla"}
        assert all(
            visit.tags == {"comparison": "id", "side": f"compile={visit.point.compile}"}
            for visit in visits
        )
    assert len({tuple(visit.point.batch_size for visit in visits) for visits in batches}) > 1


def test_it_ends_at_the_first_look_that_is_precise_enough() -> None:
    comparison = Comparison("id", pairs(16), LABELS, Rule())
    assert len(follow(comparison, planted(1.31))) == 5
    [found] = comparison.results
    assert found.verdict is Verdict.SLOWER
    assert found.estimate
    assert 1 / found.estimate.high < 1.31 < 1 / found.estimate.low
    [line] = comparison.sentences()
    assert line.startswith("compile=xla is 1.31")
    assert "times as fast as compile=graph (95% interval 1.30" in line
    assert line.endswith("5 rounds)")


def test_least_and_most_rounds_and_minutes_are_kept() -> None:
    assert len(follow(Comparison("id", pairs(16), LABELS, Rule(least=11)), planted(1.3))) == 14
    assert (
        len(follow(Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=9)), planted(1.0)))
        == 9
    )
    clock: Iterator[float] = (60.0 * step for step in count())  # a round takes a minute
    timed = Comparison("id", pairs(16), LABELS, ENDLESS, 6.0, clock.__next__)
    assert len(follow(timed, planted(1.0))) == 6


def test_equal_sides_are_called_equivalent_and_wide_intervals_not_settled() -> None:
    equal = Comparison("id", pairs(16), LABELS, Rule())
    follow(equal, planted(1.0))
    assert equal.sentences()[0].startswith(
        "no difference: compile=graph and compile=xla are equally fast within 2% (ratio 1.00"
    )
    noisy = Comparison("id", pairs(16), LABELS, Rule(most=10))
    follow(
        noisy,
        lambda visit: 1 + 0.2 * (visit.point.replicate % 3 == 0) * (visit.point.compile == "xla"),
    )
    [line] = noisy.sentences()
    estimate_pattern = (
        r"undecided: compile=graph is ([\d.]+) times as fast as compile=xla "
        r"\(95% interval ([\d.]+) \.\. ([\d.]+), 10 rounds\); about \d+ rounds would settle it"
    )
    match = re.fullmatch(estimate_pattern, line)
    assert match, line
    ratio, low, high = map(float, match.groups())
    assert low < ratio < high


def test_two_late_slow_rounds_hardly_widen_the_interval() -> None:
    random = np.random.default_rng(5)
    quiet = [0.08 + 0.12 * float(value) for value in random.standard_normal(16)]
    disturbed = [*quiet[:-2], quiet[-2] - 1.1, quiet[-1] - 1.3]
    clean = estimate(quiet, last=True)
    found = estimate(disturbed, last=True)
    plain = stats.ttest_1samp(disturbed, 0).confidence_interval(0.95)
    assert found.half < 3 * clean.half
    assert abs(found.mean - clean.mean) < clean.half / 2
    assert abs(found.mean - clean.mean) < abs(np.mean(disturbed) - np.mean(quiet)) / 1.5
    assert plain.low < found.mean < plain.high


@pytest.mark.parametrize("rounds", [5, 7, 10, 20, 40])
def test_clipped_rounds_keep_the_stated_coverage(rounds: int) -> None:
    """A disturbance of up to 50% in one of twenty visits keeps the interval's coverage."""
    random = np.random.default_rng(rounds)
    draws = 1000
    visits = 0.01 * random.standard_normal((draws, rounds, 2))
    visits -= 0.5 * random.random(visits.shape) * (random.random(visits.shape) < 0.05)
    logs = visits[:, :, 0] - visits[:, :, 1]
    found = [estimate([*series], last=True) for series in logs]
    missed = sum(abs(one.mean) > one.half for one in found)
    assert missed <= stats.binom.ppf(0.999, draws, min(rounds / 2000, 0.012))


def test_a_series_whose_values_are_mostly_equal_is_not_clipped() -> None:
    found = estimate([0.0] * 11 + [0.6])
    assert found.mean == pytest.approx(0.05)


def test_a_side_that_cannot_be_measured_ends_its_point_alone() -> None:
    comparison = Comparison("id", pairs(16, 64), LABELS, Rule())

    def machine(visit: DesignPoint) -> float | str:
        lost = visit.point.compile == "xla" and visit.point.batch_size == 64
        return "oom_host" if lost else planted(1.3)(visit)

    batches = follow(comparison, machine)
    # First while the other side's memory is in use, then each side alone.
    assert [len(visits) for visits in batches] == [4, 4, 2, 2, 2]
    assert [sum(visit.turns is None for visit in visits) for visits in batches] == [0, 2, 0, 0, 0]
    measured, lost = comparison.results
    assert measured.verdict is Verdict.SLOWER
    assert lost.verdict is Verdict.UNDECIDED
    assert lost.problem == "compile=xla is oom_host: it said so"
    assert comparison.sentences()[1].endswith(f"undecided: {lost.problem}")
    assert comparison.overall() is measured


@pytest.mark.parametrize(
    ("rounds", "rest"),
    [
        pytest.param(0, "", id="none"),
        pytest.param(
            2,
            ". In the only 2 rounds in which both succeeded, compile=graph was about 1.3 times as "
            "fast as compile=xla",
            id="too few for an interval",
        ),
        pytest.param(
            6,
            ". In the 6 rounds in which both succeeded: compile=graph is 1.3000 times as fast as "
            "compile=xla (95% interval 1.3000 .. 1.3000, 6 rounds)",
            id="an interval",
        ),
    ],
)
def test_a_failed_comparison_reports_the_successful_rounds(rounds: int, rest: str) -> None:
    result = PairedResult(LABELS, Rule(), problem="compile=xla is oom_host")
    for number in range(rounds):
        result.add(number, math.log(1.3), (1.3, 1.0))

    assert str(result) == f"undecided: compile=xla is oom_host{rest}"
    assert result.verdict is Verdict.UNDECIDED


def test_one_crash_costs_a_round_and_a_second_one_the_point() -> None:
    def crashing(*numbers: int) -> Machine:
        return lambda visit: (
            "crash"
            if visit.point.replicate in numbers and visit.point.compile == "xla"
            else planted(1.0)(visit)
        )

    once = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=7))
    assert len(follow(once, crashing(3))) == 7
    assert once.results[0].numbers == [1, 2, 4, 5, 6, 7]
    twice = Comparison("id", pairs(16), LABELS, ENDLESS)
    assert len(follow(twice, crashing(3, 6))) == 6
    assert twice.results[0].problem == "compile=xla is crash: it said so"


@pytest.mark.parametrize(
    ("device", "kernel", "ratio"),
    [("one", "memory", 1.0), ("two", "memory", 0.8), ("one", "dispatch", 0.8)],
)
def test_whole_measurements_are_compared_at_one_speed_of_one_device(
    device: str, kernel: str, ratio: float
) -> None:
    """The machine is slower during each of xla's turns.

    A reference kernel reveals that if both sides ran the same kernel on the same device.
    """
    comparison = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=5))
    rows: list[RecordedPoint] = []
    while visits := comparison.batch(rows):
        rows = []
        for visit in visits:
            slow = visit.point.compile == "xla"
            metrics = {
                "examples_per_second": 80.0 if slow else 100.0,
                "reference_slope": 1.0,
                "reference_own": 0.0,
            }
            metrics |= {"reference_memory_ms": 1.25 if slow else 1.0, "reference_dispatch_ms": 1.0}
            tags = {
                "device": device if slow else "one",
                "reference_kernel": kernel if slow else "memory",
            }
            rows.append(RecordedPoint("id", "name", "fc", "ok", None, metrics, tags))
    assert comparison.results[0].ratio == pytest.approx(1 / ratio)


def test_all_points_together_are_the_geometric_mean_of_their_ratios() -> None:
    comparison = Comparison("id", pairs(16, 64, 256), LABELS, Rule())
    ratios = {16: 1.3, 64: 0.9, 256: 1.1}
    follow(comparison, lambda visit: planted(ratios[visit.point.batch_size])(visit))
    overall = comparison.overall()
    assert overall.estimate
    rows = round_table(comparison.results)["data"]
    means = [stats.gmean([row[-1] for row in rows if row[1] == number]) for number in range(1, 6)]
    assert overall.estimate.ratio == pytest.approx(stats.gmean(means))
    assert overall.estimate.ratio == pytest.approx(1 / stats.gmean([*ratios.values()]), rel=2e-3)


def test_sides_that_do_not_pair_are_rejected() -> None:
    xla = replace(GRAPH, compile="xla")
    with pytest.raises(ConfigError, match="is the same point on both"):
        pairs_of([GRAPH], [GRAPH], null=False)
    with pytest.raises(ConfigError, match="the sides have 1 and 2 points"):
        pairs_of([GRAPH], [xla, replace(xla, batch_size=8)], null=False)
    with pytest.raises(ConfigError, match="batch_size=8: is paired with 16 of the other side"):
        pairs_of(
            [replace(GRAPH, batch_size=size) for size in (8, 16)],
            [replace(xla, batch_size=16)] * 2,
            null=False,
        )
    assert pairs_of([GRAPH], [GRAPH], null=True)[0][1] == (GRAPH, GRAPH)
    assert len(pairs_of([GRAPH, GRAPH], [xla, xla], null=False)) == 1, (
        "an axis that names a value twice is one point"
    )


def series(n: int, seed: int, rho: float = 0.0) -> list[float]:
    random = np.random.default_rng(seed)
    values = [random.standard_normal()]
    for shock in random.standard_normal(n - 1):
        values.append(rho * values[-1] + math.sqrt(1 - rho**2) * shock)
    return [0.05 + 0.01 * value for value in values]


@pytest.mark.parametrize(
    ("n", "missing", "last"),
    [
        pytest.param(5, 0.000625, False, id="first look"),
        pytest.param(20, 0.0025, False, id="look at 20 rounds"),
        pytest.param(160, 0.004, False, id="largest level of a look"),
        pytest.param(5, 0.0025, True, id="last look at 5 rounds"),
        pytest.param(20, 0.01, True, id="last look at 20 rounds"),
        pytest.param(40, 0.012, True, id="largest level of the last look"),
    ],
)
def test_alternating_rounds_have_students_interval_at_the_looks_own_level(
    n: int, missing: float, last: bool
) -> None:
    logs = [0.05 + (-1) ** index * (0.01 + 0.0001 * index) for index in range(n)]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(1 - missing)
    found = estimate(logs, last=last)
    assert found.rounds == n
    assert math.log(found.ratio) == pytest.approx(np.mean(logs))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(
        (expected.low, expected.high)
    )


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
    assert found.verdict(0.02) is Verdict.FASTER


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.40, "faster"),
        (1.0004, 1.05, "faster"),
        (1.001, 1.01, "equal"),
        (1.001, 1.021, "faster"),
        (0.5, 0.99, "slower"),
        (0.985, 1.019, "equal"),
        (0.985, 1.021, "undecided"),
        (0.979, 1.001, "undecided"),
    ],
)
def test_the_verdict_is_the_intervals(low: float, high: float, verdict: str) -> None:
    found = SpeedEstimate(
        (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2, 10
    )
    assert found.verdict(0.02) == verdict
    assert found.inverse().verdict(0.02) == {"faster": "slower", "slower": "faster"}.get(
        verdict, verdict
    )
    assert low != 1.0004 or "1.0004 .. 1.0500" in sentence(found, LABELS, 0.02), (
        "an end is not rounded onto 1"
    )


@pytest.mark.parametrize(
    ("mean", "half"), [(0.01, 0.03), (0.0, 0.05), (0.03, 0.04), (-0.015, 0.02)]
)
def test_the_rounds_that_would_tell_are_a_look_and_would(mean: float, half: float) -> None:
    found = SpeedEstimate(mean, half, 40)
    needed = found.rounds_needed(0.02)
    assert found.verdict(0.02) is Verdict.UNDECIDED
    assert needed in LOOKS
    narrower = half * math.sqrt(40 / needed)
    assert SpeedEstimate(mean, narrower * 0.999, needed).verdict(0.02) is not Verdict.UNDECIDED
    assert SpeedEstimate(mean, narrower * 1.5, needed).verdict(0.02) is Verdict.UNDECIDED


def test_it_ends_with_a_verdict_that_is_precise_enough() -> None:
    rule = Rule(within=0.02, margin=0.02)
    assert rule.is_enough(SpeedEstimate(0.03, 0.0198, 10))
    assert not rule.is_enough(SpeedEstimate(0.03, 0.025, 10)), "a verdict, but not precise"
    assert not rule.is_enough(SpeedEstimate(0.01, 0.0198, 10)), "precise, but no verdict"
    assert rule.is_enough(SpeedEstimate(math.log(2), 0.06, 10)), (
        "a tenth of a large difference is enough"
    )
    assert rule.is_enough(SpeedEstimate(0.001, 0.015, 10))


OWN = {"independent": 0.7, "bimodal, 8%": 0.0, "second place 3% slower": 0.0, "state 0.7": 0.0}


@pytest.mark.parametrize(("machine", "own"), OWN.items())
def test_equal_sides_of_planted_machines_are_hardly_ever_called_different(
    machine: str, own: float
) -> None:
    """With `own`, each side adds a separate AR(1) series with that coefficient over the rounds."""
    outcomes = tally(200, 1.0, 0.01, Rule(), MACHINES[machine], own=own)
    false = sum(outcome.verdict in (Verdict.FASTER, Verdict.SLOWER) for outcome in outcomes)
    assert false <= stats.binom.ppf(0.999, 200, 0.05)
    assert sum(not outcome.held for outcome in outcomes) <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_difference_is_found_in_few_rounds() -> None:
    outcomes = tally(100, 1.05, 0.01, Rule())
    assert sum(outcome.verdict is Verdict.FASTER for outcome in outcomes) >= 95
    assert np.median([outcome.rounds for outcome in outcomes]) <= 20
    assert all(abs(outcome.found.ratio - 1.05) < 0.03 for outcome in outcomes)


def test_rounds_of_one_side_against_itself_say_how_often_equals_would_be_called_different() -> None:
    random = np.random.default_rng(3)
    noise = 0.01 * random.standard_normal(40)
    assert false_alarms([*noise], Rule(), 200) <= 0.02
    lucky = 0.02 + noise
    assert estimate([*lucky]).verdict(0.01) is Verdict.FASTER
    assert false_alarms([*lucky], Rule(), 200) <= 0.02  # noise if sides are exchanged at random
    often = Rule(
        within=1.0, margin=0.0001, misses=6.0
    )  # each look misses far more often than allowed
    assert false_alarms([*noise], often, 200) > 0.05


def test_a_difference_on_the_margin_is_never_settled() -> None:
    """More rounds than the last look would be needed."""
    on_margin = SpeedEstimate(math.log1p(0.02) / 2, 1e8, 5)

    assert on_margin.rounds_needed(0.02) == LOOKS[-1]


def test_a_rule_misses_as_often_as_an_interval_by_default() -> None:
    logs = np.random.default_rng(1).normal(0.1, 0.02, 10).tolist()

    assert estimate(logs, Rule().misses) == estimate(logs)
