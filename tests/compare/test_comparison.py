"""A comparison on planted rows: rounds and their order, sides that fail, the end, the words."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest
from scipy import stats

from paradnn.compare.comparison import Comparison, Pair, pairs_of
from paradnn.compare.text import round_table
from paradnn.compare.verdict import Rule, SpeedVerdict
from paradnn.config.point import Point
from paradnn.core.errors import ConfigError
from paradnn.families.fc import FullyConnected
from paradnn.session.design import DesignPoint, RecordedPoint

LABELS = ("compile=graph", "compile=xla")
GRAPH = Point(FullyConnected())
#: A rule that twelve rounds of equal sides do not satisfy.
ENDLESS = Rule(within=0.0001, margin=0.0001, most=12)
#: What a visit measures: examples/s, or the outcome of one that fails.
Machine = Callable[[DesignPoint], float | str]


def row(visit: DesignPoint, measured: float | str) -> RecordedPoint:
    ok = not isinstance(measured, str)
    outcome, metrics = ("ok", {"examples_per_second": measured}) if ok else (measured, {})
    return RecordedPoint("id", "name", "fc", str(outcome), None if ok else "it said so", metrics, {})


def pairs(*batch_sizes: int) -> list[Pair]:
    points = [replace(GRAPH, batch_size=size) for size in batch_sizes]
    return pairs_of(points, [replace(point, compile="xla") for point in points], null=False)


def follow(comparison: Comparison, machine: Machine) -> list[list[DesignPoint]]:
    """Every batch that the comparison asks for, until it asks for none."""
    batches: list[list[DesignPoint]] = []
    rows: list[RecordedPoint] = []
    while visits := comparison.batch(rows):
        rows = [row(visit, machine(visit)) for visit in visits]
        batches.append(visits)
    return batches


def planted(ratio: float) -> Machine:
    """xla is so many times as fast; rounds scatter by turns, all by something else."""

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
        assert all(visit.tags == {"comparison": "id", "side": f"compile={visit.point.compile}"} for visit in visits)
    assert len({tuple(visit.point.batch_size for visit in visits) for visits in batches}) > 1


def test_it_ends_at_the_first_look_that_is_precise_enough() -> None:
    comparison = Comparison("id", pairs(16), LABELS, Rule())
    assert len(follow(comparison, planted(1.31))) == 5
    [found] = comparison.results
    assert found.verdict is SpeedVerdict.SLOWER
    assert found.estimate
    assert 1 / found.estimate.high < 1.31 < 1 / found.estimate.low
    [line] = comparison.sentences()
    assert line.startswith("compile=xla is 1.31")
    assert "times as fast as compile=graph (95% interval 1.30" in line
    assert line.endswith("5 rounds)")


def test_least_and_most_rounds_and_minutes_are_kept() -> None:
    assert len(follow(Comparison("id", pairs(16), LABELS, Rule(least=11)), planted(1.3))) == 14
    assert len(follow(Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=9)), planted(1.0))) == 9
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
    follow(noisy, lambda visit: 1 + 0.2 * (visit.point.replicate % 3 == 0) * (visit.point.compile == "xla"))
    [line] = noisy.sentences()
    assert line.startswith("undecided: compile=graph is 0.")
    assert line.endswith("rounds would tell")
    assert "times as fast as compile=xla (95% interval, 10 rounds); some " in line


def test_a_side_that_cannot_be_measured_ends_its_point_alone() -> None:
    comparison = Comparison("id", pairs(16, 64), LABELS, Rule())

    def machine(visit: DesignPoint) -> float | str:
        lost = visit.point.compile == "xla" and visit.point.batch_size == 64
        return "oom_host" if lost else planted(1.3)(visit)

    batches = follow(comparison, machine)
    # Beside the other side's memory first, then each alone.
    assert [len(visits) for visits in batches] == [4, 4, 2, 2, 2]
    assert [sum(visit.turns is None for visit in visits) for visits in batches] == [0, 2, 0, 0, 0]
    measured, lost = comparison.results
    assert measured.verdict is SpeedVerdict.SLOWER
    assert lost.verdict is SpeedVerdict.NOT_SETTLED
    assert lost.problem == "compile=xla is oom_host: it said so"
    assert comparison.sentences()[1].endswith(f"no verdict: {lost.problem}")
    assert comparison.overall() is measured


def test_one_crash_costs_a_round_and_a_second_one_the_point() -> None:
    def crashing(*numbers: int) -> Machine:
        return lambda visit: (
            "crash" if visit.point.replicate in numbers and visit.point.compile == "xla" else planted(1.0)(visit)
        )

    once = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=7))
    assert len(follow(once, crashing(3))) == 7
    assert once.results[0].numbers == [1, 2, 4, 5, 6, 7]
    twice = Comparison("id", pairs(16), LABELS, ENDLESS)
    assert len(follow(twice, crashing(3, 6))) == 6
    assert twice.results[0].problem == "compile=xla is crash: it said so"


@pytest.mark.parametrize(
    ("device", "kernel", "ratio"), [("one", "memory", 1.0), ("two", "memory", 0.8), ("one", "dispatch", 0.8)]
)
def test_whole_measurements_are_compared_at_one_speed_of_one_device(device: str, kernel: str, ratio: float) -> None:
    """The machine is slower whenever it is xla's turn; a kernel tells, where it is the same one of one device."""
    comparison = Comparison("id", pairs(16), LABELS, replace(ENDLESS, most=5))
    rows: list[RecordedPoint] = []
    while visits := comparison.batch(rows):
        rows = []
        for visit in visits:
            slow = visit.point.compile == "xla"
            metrics = {"examples_per_second": 80.0 if slow else 100.0, "reference_slope": 1.0, "reference_own": 0.0}
            metrics |= {"reference_memory_ms": 1.25 if slow else 1.0, "reference_dispatch_ms": 1.0}
            tags = {"device": device if slow else "one", "reference_kernel": kernel if slow else "memory"}
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


def test_sides_that_do_not_pair_are_refused() -> None:
    xla = replace(GRAPH, compile="xla")
    with pytest.raises(ConfigError, match="is the same point on both"):
        pairs_of([GRAPH], [GRAPH], null=False)
    with pytest.raises(ConfigError, match="the sides have 1 and 2 points"):
        pairs_of([GRAPH], [xla, replace(xla, batch_size=8)], null=False)
    with pytest.raises(ConfigError, match="batch_size=8: meets 16 on the other side"):
        pairs_of([replace(GRAPH, batch_size=size) for size in (8, 16)], [replace(xla, batch_size=16)] * 2, null=False)
    assert pairs_of([GRAPH], [GRAPH], null=True)[0][1] == (GRAPH, GRAPH)
    assert len(pairs_of([GRAPH, GRAPH], [xla, xla], null=False)) == 1, "an axis that names a value twice is one point"
