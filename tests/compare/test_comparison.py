"""Comparisons of planted points: order of rounds, failing sides, stopping and messages.

SciPy, statsmodels and planted machines give the expected statistics.
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
#: Rule under which equal sides are measured for all of its twelve rounds.
ENDLESS = Rule(within=0.0001, margin=0.0001, most=12)
#: Function that returns the rate of a visit in examples/s, or the outcome of a failed visit.
Machine = Callable[[DesignPoint], float | str]


def row(measured: float | str) -> RecordedPoint:
    """Return the record of a visit with this rate or this failed outcome."""
    if isinstance(measured, str):
        return RecordedPoint("id", "name", "fc", measured, "it said so", {}, {})
    metrics = {"examples_per_second": measured}
    return RecordedPoint("id", "name", "fc", "ok", None, metrics, {})


def pairs(*batch_sizes: int) -> list[Pair]:
    points = [replace(GRAPH, batch_size=size) for size in batch_sizes]
    return pairs_of(points, [replace(point, compile="xla") for point in points], null=False)


def follow(comparison: Comparison, machine: Machine) -> list[list[DesignPoint]]:
    """Return all batches of visits that the comparison requests until it ends."""
    batches: list[list[DesignPoint]] = []
    rows: list[RecordedPoint] = []
    visits = comparison.batch(rows)
    while visits:
        rows = [row(machine(visit)) for visit in visits]
        batches.append(visits)
        visits = comparison.batch(rows)
    return batches


def planted(ratio: float) -> Machine:
    """Return a machine on which xla is faster than graph by the factor `ratio`.

    The noise alternates in sign and differs between rounds.
    """

    def measure(visit: DesignPoint) -> float:
        number = visit.point.replicate
        noise = 1 + (-1) ** number * (0.001 + 0.0001 * number)
        return visit.point.batch_size * (ratio * noise if visit.point.compile == "xla" else 1.0)

    return measure


def test_every_round_measures_both_sides_of_each_point_in_succession() -> None:
    comparison = Comparison("id", pairs(16, 64, 256), LABELS, ENDLESS)
    batches = follow(comparison, planted(1.0))

    assert len(batches) == 12

    for number, visits in enumerate(batches, start=1):
        assert {visit.point.replicate for visit in visits} == {number}
        sizes = [visit.point.batch_size for visit in visits]
        assert sorted(sizes) == [16, 16, 64, 64, 256, 256]
        assert sizes[::2] == sizes[1::2]
        for first, second in zip(visits[::2], visits[1::2], strict=True):
            assert {first.point.compile, second.point.compile} == {"graph", "xla"}
        assert all(
            visit.tags == {"comparison": "id", "side": f"compile={visit.point.compile}"}
            for visit in visits
        )
    assert len({tuple(visit.point.batch_size for visit in visits) for visits in batches}) > 1


def test_a_comparison_ends_at_the_first_look_that_is_precise_enough() -> None:
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


def test_a_decided_comparison_continues_to_the_first_look_after_the_least_rounds() -> None:
    comparison = Comparison("id", pairs(16), LABELS, Rule(least=11))

    assert len(follow(comparison, planted(1.3))) == 14


def test_a_comparison_ends_at_its_most_rounds() -> None:
    comparison = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=9))

    assert len(follow(comparison, planted(1.0))) == 9


def test_a_comparison_ends_at_its_limit_in_minutes() -> None:
    clock: Iterator[float] = (60.0 * step for step in count())  # a round takes a minute
    comparison = Comparison("id", pairs(16), LABELS, ENDLESS, 6.0, clock.__next__)

    assert len(follow(comparison, planted(1.0))) == 6


def test_equal_sides_are_called_equal() -> None:
    equal = Comparison("id", pairs(16), LABELS, Rule())

    follow(equal, planted(1.0))

    assert equal.sentences()[0].startswith(
        "no difference: compile=graph and compile=xla are equally fast within 2% (ratio 1.00"
    )


def test_a_wide_interval_is_called_undecided() -> None:
    noisy = Comparison("id", pairs(16), LABELS, Rule(most=10))

    follow(
        noisy,
        lambda visit: 1 + 0.2 * (visit.point.replicate % 3 == 0) * (visit.point.compile == "xla"),
    )

    [line] = noisy.sentences()
    estimate_pattern = (
        r"undecided: compile=graph is ([\d.]+) times as fast as compile=xla "
        r"\(95% interval ([\d.]+) \.\. ([\d.]+), 10 rounds\); about \d+ rounds would decide"
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
    students = stats.ttest_1samp(disturbed, 0).confidence_interval(0.95)

    assert found.half < 3 * clean.half
    assert abs(found.mean - clean.mean) < clean.half / 2
    assert abs(found.mean - clean.mean) < abs(np.mean(disturbed) - np.mean(quiet)) / 1.5
    assert students.low < found.mean < students.high


@pytest.mark.parametrize("rounds", [5, 7, 10, 20, 40])
def test_intervals_of_clipped_rounds_have_the_nominal_coverage(rounds: int) -> None:
    """One of twenty visits is slowed down by up to 50%, and the coverage stays nominal."""
    random = np.random.default_rng(rounds)
    draws = 1000
    visits = 0.01 * random.standard_normal((draws, rounds, 2))
    visits -= 0.5 * random.random(visits.shape) * (random.random(visits.shape) < 0.05)
    logs = visits[:, :, 0] - visits[:, :, 1]
    found = [estimate([*series], last=True) for series in logs]
    missed = sum(abs(entry.mean) > entry.half for entry in found)

    assert missed <= stats.binom.ppf(0.999, draws, min(rounds / 2000, 0.012))


def test_a_series_whose_values_are_mostly_equal_is_not_clipped() -> None:
    found = estimate([0.0] * 11 + [0.6])
    assert found.mean == pytest.approx(0.05)


def test_a_side_that_cannot_be_measured_ends_only_its_point() -> None:
    comparison = Comparison("id", pairs(16, 64), LABELS, Rule())

    def machine(visit: DesignPoint) -> float | str:
        does_not_fit = visit.point.compile == "xla" and visit.point.batch_size == 64
        return "oom_host" if does_not_fit else planted(1.3)(visit)

    batches = follow(comparison, machine)

    # The failed visit is repeated alone, while the other side uses no memory.
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
        pytest.param(0, "", id="no round"),
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
            id="enough for an interval",
        ),
    ],
)
def test_a_failed_comparison_reports_the_successful_rounds(rounds: int, rest: str) -> None:
    result = PairedResult(LABELS, Rule(), problem="compile=xla is oom_host")
    for number in range(rounds):
        result.add(number, math.log(1.3), (1.3, 1.0))

    assert str(result) == f"undecided: compile=xla is oom_host{rest}"
    assert result.verdict is Verdict.UNDECIDED


def crashing(*rounds: int) -> Machine:
    """Return a machine on which both sides are equally fast, but xla crashes in some rounds."""
    return lambda visit: (
        "crash"
        if visit.point.replicate in rounds and visit.point.compile == "xla"
        else planted(1.0)(visit)
    )


def test_a_first_crash_excludes_a_round() -> None:
    one_crash = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=7))

    assert len(follow(one_crash, crashing(3))) == 7
    assert one_crash.results[0].numbers == [1, 2, 4, 5, 6, 7]


def test_a_second_crash_excludes_the_point() -> None:
    two_crashes = Comparison("id", pairs(16), LABELS, ENDLESS)

    assert len(follow(two_crashes, crashing(3, 6))) == 6
    assert two_crashes.results[0].problem == "compile=xla is crash: it said so"


@pytest.mark.parametrize(
    ("device", "kernel", "ratio"),
    [
        pytest.param("one", "memory", 1.0, id="same device and kernel"),
        pytest.param("two", "memory", 0.8, id="different devices"),
        pytest.param("one", "dispatch", 0.8, id="different kernels"),
    ],
)
def test_measurements_on_one_device_are_compared_at_one_machine_speed(
    device: str, kernel: str, ratio: float
) -> None:
    """The machine is slower whenever xla is measured.

    A reference kernel shows this if both sides ran the same kernel on the same device.
    """
    comparison = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=5))
    rows: list[RecordedPoint] = []
    visits = comparison.batch(rows)
    while visits:
        rows = []
        for visit in visits:
            is_slow = visit.point.compile == "xla"
            metrics = {
                "examples_per_second": 80.0 if is_slow else 100.0,
                "reference_slope": 1.0,
                "reference_own": 0.0,
            }
            metrics |= {
                "reference_memory_ms": 1.25 if is_slow else 1.0,
                "reference_dispatch_ms": 1.0,
            }
            tags = {
                "device": device if is_slow else "one",
                "reference_kernel": kernel if is_slow else "memory",
            }
            rows.append(RecordedPoint("id", "name", "fc", "ok", None, metrics, tags))
        visits = comparison.batch(rows)

    assert comparison.results[0].ratio == pytest.approx(1 / ratio)


def test_the_overall_ratio_is_the_geometric_mean_over_points() -> None:
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
    with pytest.raises(ConfigError, match="is the configuration of both sides"):
        pairs_of([GRAPH], [GRAPH], null=False)
    with pytest.raises(ConfigError, match="one side has 1 point, and the other has 2"):
        pairs_of([GRAPH], [xla, replace(xla, batch_size=8)], null=False)
    with pytest.raises(
        ConfigError,
        match="batch_size=8: varies in the sweep, but the other side has batch_size=16",
    ):
        pairs_of(
            [replace(GRAPH, batch_size=size) for size in (8, 16)],
            [replace(xla, batch_size=16)] * 2,
            null=False,
        )
    assert pairs_of([GRAPH], [GRAPH], null=True)[0][1] == (GRAPH, GRAPH)
    assert len(pairs_of([GRAPH, GRAPH], [xla, xla], null=False)) == 1, (
        "a repeated value of an axis is one point"
    )


def series(n: int, seed: int, rho: float = 0.0) -> list[float]:
    """Return an AR(1) series of `n` values with the coefficient `rho`."""
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
def test_alternating_rounds_have_students_interval_at_the_level_of_the_look(
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
def test_correlated_rounds_widen_the_interval_like_an_ar1_series(
    n: int, rho: float, last: bool
) -> None:
    logs = series(n, seed=n, rho=rho)
    correlation = acf(logs, nlags=1)[1]
    if last:
        added = min(5, 0.4 * n)
        removed = min(6, 0.4 * n)
        level = min(n / 2000, 0.012)
    else:
        added = min(7, 0.4 * n)
        removed = min(8, 0.4 * n)
        level = min(n / 8000, 0.004)
    r = np.clip((n * correlation + added) / (n - removed), 0, 1 - 1.5 / n)
    students = stats.ttest_1samp(logs, 0).confidence_interval(1 - level)
    factor = math.sqrt((1 + r) / (1 - r))

    assert estimate(logs, last=last).half == pytest.approx(
        (students.high - students.low) / 2 * factor
    )


def test_equal_rounds_have_an_interval_of_width_zero() -> None:
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
def test_the_verdict_follows_from_the_interval(low: float, high: float, verdict: str) -> None:
    found = SpeedEstimate(
        (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2, 10
    )
    assert found.verdict(0.02) == verdict
    assert found.inverse().verdict(0.02) == {"faster": "slower", "slower": "faster"}.get(
        verdict, verdict
    )
    assert low != 1.0004 or "1.0004 .. 1.0500" in sentence(found, LABELS, 0.02), (
        "an end above 1 must not be rounded to 1"
    )


@pytest.mark.parametrize(
    ("mean", "half_width"),
    [
        pytest.param(0.01, 0.03, id="within the margin"),
        pytest.param(0.0, 0.05, id="no difference"),
        pytest.param(0.03, 0.04, id="beyond the margin"),
        pytest.param(-0.015, 0.02, id="slower, within the margin"),
    ],
)
def test_the_needed_rounds_are_a_look_that_would_decide(mean: float, half_width: float) -> None:
    found = SpeedEstimate(mean, half_width, 40)
    needed = found.rounds_needed(0.02)

    assert found.verdict(0.02) is Verdict.UNDECIDED
    assert needed in LOOKS

    narrower = half_width * math.sqrt(40 / needed)
    assert SpeedEstimate(mean, narrower * 0.999, needed).verdict(0.02) is not Verdict.UNDECIDED
    assert SpeedEstimate(mean, narrower * 1.5, needed).verdict(0.02) is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("mean", "half_width", "is_enough"),
    [
        pytest.param(0.03, 0.0198, True, id="a verdict and a precise interval"),
        pytest.param(0.03, 0.025, False, id="a verdict but a wide interval"),
        pytest.param(0.01, 0.0198, False, id="a precise interval but no verdict"),
        pytest.param(math.log(2), 0.06, True, id="a half-width of a tenth of a large difference"),
        pytest.param(0.001, 0.015, True, id="within the margin"),
    ],
)
def test_a_rule_needs_a_verdict_and_a_precise_interval(
    mean: float, half_width: float, is_enough: bool
) -> None:
    rule = Rule(within=0.02, margin=0.02)

    assert rule.is_enough(SpeedEstimate(mean, half_width, 10)) == is_enough


#: Planted machines, and the coefficient of the AR(1) series of each side.
OWN = {"independent": 0.7, "bimodal, 8%": 0.0, "second place 3% slower": 0.0, "state 0.7": 0.0}


@pytest.mark.parametrize(("machine", "own"), OWN.items())
def test_equal_sides_of_planted_machines_are_rarely_called_different(
    machine: str, own: float
) -> None:
    """With `own` above 0, each side adds an AR(1) series over rounds with this coefficient."""
    outcomes = tally(200, 1.0, 0.01, Rule(), MACHINES[machine], own=own)
    false_verdicts = sum(
        outcome.verdict in (Verdict.FASTER, Verdict.SLOWER) for outcome in outcomes
    )

    assert false_verdicts <= stats.binom.ppf(0.999, 200, 0.05)
    assert sum(not outcome.is_covered for outcome in outcomes) <= stats.binom.ppf(0.999, 200, 0.05)


def test_a_difference_of_five_percent_is_found_in_few_rounds() -> None:
    outcomes = tally(100, 1.05, 0.01, Rule())
    assert sum(outcome.verdict is Verdict.FASTER for outcome in outcomes) >= 95
    assert np.median([outcome.rounds for outcome in outcomes]) <= 20
    assert all(abs(outcome.found.ratio - 1.05) < 0.03 for outcome in outcomes)


def test_replays_of_rounds_estimate_the_rate_of_false_alarms() -> None:
    random = np.random.default_rng(3)
    noise = 0.01 * random.standard_normal(40)

    assert false_alarms([*noise], Rule(), 200) <= 0.02

    shifted = 0.02 + noise
    assert estimate([*shifted]).verdict(0.01) is Verdict.FASTER
    assert (
        false_alarms([*shifted], Rule(), 200) <= 0.02
    )  # exchanging sides at random makes it noise

    # Each look of this rule errs far more often than allowed.
    inflated = Rule(within=1.0, margin=0.0001, misses=6.0)
    assert false_alarms([*noise], inflated, 200) > 0.05


def test_a_difference_at_the_margin_is_never_decided() -> None:
    """A verdict would need more rounds than the last look has."""
    on_margin = SpeedEstimate(math.log1p(0.02) / 2, 1e8, 5)

    assert on_margin.rounds_needed(0.02) == LOOKS[-1]


def test_the_default_rule_has_the_error_rate_of_the_default_interval() -> None:
    logs = np.random.default_rng(1).normal(0.1, 0.02, 10).tolist()

    assert estimate(logs, Rule().misses) == estimate(logs)
