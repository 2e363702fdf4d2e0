"""Races of planted candidates: rounds, exclusions, limits, time limit, and answer."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paradnn.best.objective import Objective, WinnerLimits
from paradnn.best.race import (
    Candidate,
    Race,
    axis_values,
    is_combination_invalid,
    label_candidates,
)
from paradnn.best.report import RaceAnswer
from paradnn.config.point import Point
from paradnn.families.fc import FullyConnected
from paradnn.session.design import DesignPoint, RecordedPoint
from paradnn.statistics.elimination import EliminationRule

POINT = Point(FullyConnected())
THROUGHPUT = Objective("throughput", ("examples_per_second",))
#: Metrics of a measurement, or its outcome if it failed.
Measured = Mapping[str, float] | str
#: Function that measures a visit.
Machine = Callable[[DesignPoint], Measured]


def race_of(
    labels: Sequence[str],
    objective: Objective = THROUGHPUT,
    limits: WinnerLimits = WinnerLimits(),  # noqa: B008
    seconds: float = 1e9,
    **options: Any,
) -> Race:
    """Return a race of candidates with these labels and different batch sizes."""
    candidates = [
        Candidate(label, replace(POINT, batch_size=number + 1))
        for number, label in enumerate(labels)
    ]
    return Race(
        "id",
        candidates,
        objective,
        limits=limits,
        rule=EliminationRule(),
        seconds=seconds,
        **options,
    )


def follow(race: Race, machine: Machine) -> list[DesignPoint]:
    """Return all visits that the race requests until it ends."""
    visits: list[DesignPoint] = []
    rows: list[RecordedPoint] = []
    batch = race.batch(rows)
    while batch:
        [visit] = batch
        measured = machine(visit)
        if isinstance(measured, str):
            row = RecordedPoint("id", "name", "fc", measured, "it failed", {}, visit.tags)
        else:
            row = RecordedPoint("id", "name", "fc", "ok", None, measured, visit.tags)
        rows = [row]
        visits.append(visit)
        batch = race.batch(rows)
    return visits


def speeds(**values: float) -> Machine:
    """Return a machine with a planted speed per candidate, which grows by 1% per round."""
    return lambda visit: {
        "examples_per_second": values[visit.tags["candidate"]] * 1.01**visit.point.replicate
    }


def test_the_first_round_measures_all_candidates_and_the_next_the_contenders() -> None:
    race = race_of(["a", "b", "c", "d"])

    visits = follow(race, speeds(a=100.0, b=90.0, c=40.0, d=10.0))

    by_round: dict[int, list[str]] = {}
    for visit in visits:
        by_round.setdefault(visit.point.replicate, []).append(visit.tags["candidate"])

    assert sorted(by_round[1]) == ["a", "b", "c", "d"]
    assert {"a", "b"} <= set(by_round[2])
    assert "d" not in by_round[2]
    assert race.is_decided()
    assert {visit.tags["race"] for visit in visits} == {"id"}
    assert {visit.point.measure.processes for visit in visits} == {1}


def test_the_answer_names_the_winner_its_lead_and_the_interval() -> None:
    race = race_of(["a", "b", "c"])
    follow(race, speeds(a=200.0, b=100.0, c=10.0))

    document = RaceAnswer(race).document()

    first = RaceAnswer(race).sentences()[0]

    assert first.startswith("a is fastest: 203.0 examples/s (95% CI ")
    assert " 2.00x (" in first
    assert first.endswith(" ahead of b.")
    assert document["verdict"] == "best"
    assert document["best"] == "a"
    assert document["ratio"] == pytest.approx(2.0)
    assert document["low"] < 2.0 < document["high"]
    assert [entry["candidate"] for entry in document["candidates"]] == ["a", "b", "c"]


def test_a_failing_candidate_is_excluded_with_its_reason() -> None:
    race = race_of(["a", "b", "c"])
    planted = speeds(a=100.0, b=50.0)

    visits = follow(
        race, lambda visit: "oom_host" if visit.tags["candidate"] == "c" else planted(visit)
    )

    assert [visit.tags["candidate"] for visit in visits].count("c") == 1
    assert RaceAnswer(race).exclusions() == ["c: oom_host: it failed"]
    assert RaceAnswer(race).document()["best"] == "a"


def test_a_race_without_a_measurement_has_no_answer() -> None:
    race = race_of(["a", "b"])

    follow(race, lambda visit: "crash")

    answer = RaceAnswer(race)

    assert answer.verdict == "none"
    assert answer.sentences() == ["no answer: every candidate is excluded."]
    assert answer.table() == ([], [])
    assert answer.document()["best"] is None


@pytest.mark.parametrize(
    ("objective", "metrics", "best"),
    [
        pytest.param(
            Objective("latency", ("latency_p50_ms", "step_time_ms")),
            {"a": {"step_time_ms": 3.0}, "b": {"step_time_ms": 1.0}},
            "b has the lowest latency: 1.000 ms (95% CI ",
            id="latency of a step",
        ),
        pytest.param(
            Objective("memory", ("peak_memory_bytes",)),
            {"a": {"peak_memory_bytes": 2.0**30}, "b": {"peak_memory_bytes": 2.0**32}},
            "a needs the least memory: 1.00 GiB (95% CI ",
            id="memory",
        ),
        pytest.param(
            Objective("cost", ("cost_per_million_examples",)),
            {"a": {"cost_per_million_examples": 5.0}, "b": {"cost_per_million_examples": 1.0}},
            "b is cheapest: 1.000 per million examples (95% CI ",
            id="cost",
        ),
    ],
)
def test_smaller_is_better_for_latency_memory_and_cost(
    objective: Objective, metrics: Mapping[str, Measured], best: str
) -> None:
    race = race_of(["a", "b"], objective)

    follow(race, lambda visit: metrics[visit.tags["candidate"]])

    assert RaceAnswer(race).sentences()[0].startswith(best)


@pytest.mark.parametrize(
    ("objective", "metric", "comparison"),
    [
        pytest.param(
            Objective("latency", ("step_time_ms",)), "step_time_ms", "takes 2.00x", id="latency"
        ),
        pytest.param(
            Objective("memory", ("peak_memory_bytes",)),
            "peak_memory_bytes",
            "needs 2.00x",
            id="memory",
        ),
        pytest.param(
            Objective("cost", ("cost_of_learning",)), "cost_of_learning", "costs 2.00x", id="cost"
        ),
    ],
)
def test_the_closest_rival_is_compared_by_the_minimized_value(
    objective: Objective, metric: str, comparison: str
) -> None:
    race = race_of(["a", "b"], objective)

    follow(race, lambda visit: {metric: {"a": 1e9, "b": 2e9}[visit.tags["candidate"]]})

    first = RaceAnswer(race).sentences()[0]

    assert f"; b {comparison} (" in first
    assert re.search(r"\) as (long|much)\.$", first)


def test_a_slightly_costlier_rival_may_be_as_good() -> None:
    race = race_of(["a", "b"], Objective("cost", ("cost_per_million_examples",)))
    costs = {"a": 1.0, "b": 1.04}

    follow(race, lambda visit: {"cost_per_million_examples": costs[visit.tags["candidate"]]})

    second = RaceAnswer(race).sentences()[1]

    assert second.startswith("May be as good: b at 1.0")


@pytest.mark.parametrize(
    ("objective", "problem"),
    [
        pytest.param(
            Objective("cost", ("cost_per_million_examples",)),
            "V100 has no price: add it to the table, or use --price 1.5",
            id="price",
        ),
        pytest.param(
            Objective("cost", ("cost_of_learning",)),
            "its runs have no metric cost_of_learning",
            id="target that is not reached",
        ),
        pytest.param(
            Objective("latency", ("latency_p50_ms", "step_time_ms")),
            "its runs have no metric latency_p50_ms or step_time_ms",
            id="latency",
        ),
    ],
)
def test_a_candidate_without_a_score_is_excluded_with_the_reason(
    objective: Objective, problem: str
) -> None:
    race = race_of(["a"], objective)
    [visit] = race.batch([])
    tags = {**visit.tags, "device": "V100"}

    race.batch([RecordedPoint("id", "n", "fc", "ok", None, {"examples_per_second": 9.0}, tags)])

    assert RaceAnswer(race).exclusions() == [f"a: no score: {problem}"]


def test_the_currency_of_a_cost_is_named() -> None:
    race = race_of(["a", "b"], Objective("cost", ("cost_per_million_tokens",)))
    costs = {"a": 1.0, "b": 3.0}

    follow(race, lambda visit: {"cost_per_million_tokens": costs[visit.tags["candidate"]]})

    answer = RaceAnswer(race, currency="USD")

    assert answer.sentences()[0].startswith("a is cheapest: 1.000 USD per million tokens (95% CI ")
    assert answer.table()[0][1] == "cost per million tokens, USD"


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        pytest.param(
            WinnerLimits(memory_bytes=2**31), "needs 3.00 GiB, the limit is 2.00 GiB", id="memory"
        ),
        pytest.param(
            WinnerLimits(p99_ms=20.0), "has p99 30.00 ms, the limit is 20.00 ms", id="p99"
        ),
    ],
)
def test_a_candidate_over_a_limit_cannot_win(limits: WinnerLimits, problem: str) -> None:
    race = race_of(["slow", "fast"], limits=limits)
    metrics = {
        "slow": {"examples_per_second": 1.0, "peak_memory_bytes": 2.0**30, "latency_p99_ms": 9.0},
        "fast": {
            "examples_per_second": 5.0,
            "peak_memory_bytes": 3 * 2.0**30,
            "latency_p99_ms": 30.0,
        },
    }

    follow(race, lambda visit: metrics[visit.tags["candidate"]])

    answer = RaceAnswer(race)

    assert answer.exclusions() == [f"fast: over limit: {problem}"]

    [only] = answer.sentences()
    assert only.endswith(", the only candidate that is not excluded.")
    assert answer.document()["best"] == "slow"


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        pytest.param(
            {"latency_p50_ms": 15.0, "latency_p90_ms": 25.0},
            "has p90 25.00 ms, the limit of p99 is 20.00 ms",
            id="p90 exceeds the limit",
        ),
        pytest.param(
            {"latency_p50_ms": 15.0, "latency_p90_ms": 18.0},
            "has no p99, since too few steps were timed; raise measure.min_seconds",
            id="unknown",
        ),
    ],
)
def test_p90_or_a_remedy_replaces_the_p99_of_few_steps(
    metrics: Mapping[str, float], problem: str
) -> None:
    row = RecordedPoint("id", "name", "fc", "ok", None, metrics, {})

    assert WinnerLimits(p99_ms=20.0).violation([row]) == problem


def test_one_process_over_a_time_limit_by_chance_is_measured_again() -> None:
    race = race_of(["a", "b"], limits=WinnerLimits(p99_ms=20.0))
    p99 = {1: 21.0, 2: 18.0}

    def machine(visit: DesignPoint) -> Measured:
        value = p99.get(visit.point.replicate, 19.0)
        return {
            "examples_per_second": 9.0 if visit.tags["candidate"] == "a" else 1.0,
            "latency_p99_ms": value,
            "latency_p99_low_ms": 0.9 * value,
        }

    follow(race, machine)

    assert RaceAnswer(race).exclusions() == []
    assert RaceAnswer(race).document()["best"] == "a"


def test_no_measurement_starts_that_would_end_after_the_time_limit() -> None:
    now = [0.0]
    race = race_of(["a", "b", "c"], seconds=25.0, clock=lambda: now[0])

    def machine(visit: DesignPoint) -> Measured:
        now[0] += 10.0
        return {"examples_per_second": 1.0}

    visits = follow(race, machine)

    answer = RaceAnswer(race)

    assert len(visits) == 2
    assert now[0] == 20.0
    assert answer.verdict == "undecided"

    [unmeasured] = answer.exclusions()
    assert unmeasured.endswith(": not measured: the time ran out")
    assert "1 candidate not measured, the time ran out" in answer.sentences()[-1]


def test_an_undecided_race_names_rivals_and_the_time_for_a_decision() -> None:
    now = [0.0]
    race = race_of(["a", "b", "c"], seconds=65.0, clock=lambda: now[0])
    planted = speeds(a=100.0, b=99.0, c=10.0)

    def machine(visit: DesignPoint) -> Measured:
        now[0] += 10.0
        return planted(visit)

    follow(race, machine)

    first, second, last = RaceAnswer(race).sentences()

    assert first.startswith("undecided: a leads: ")
    assert second.startswith("May be as good: b at ")
    assert "c" not in second

    limit = re.search(r"A race of about (\S+) minutes would decide it; set --minutes \1\.$", last)
    assert limit is not None
    assert 60 * float(limit[1]) > 65.0


def test_an_interrupted_race_keeps_its_measurements() -> None:
    race = race_of(["a", "b"])
    planted = speeds(a=100.0, b=50.0)
    [first] = race.batch([])
    row = RecordedPoint("id", "n", "fc", "ok", None, planted(first), first.tags)  # type: ignore[arg-type]
    race.batch([row])

    answer = RaceAnswer(race)
    document = answer.document()

    assert document["best"] == first.tags["candidate"]
    assert document["verdict"] == "undecided"
    assert document["candidates"][1]["outcome"] == "not measured"
    assert "--minutes" not in document["answer"]


def test_a_single_measured_candidate_cannot_win_while_another_is_unmeasured() -> None:
    now = [0.0]
    race = race_of(["a", "b", "c"], seconds=25.0, clock=lambda: now[0])
    outcomes: Iterator[Measured] = iter(["crash", {"examples_per_second": 1.0}])

    def machine(visit: DesignPoint) -> Measured:
        now[0] += 10.0
        return next(outcomes)

    follow(race, machine)

    first, last = RaceAnswer(race).sentences()

    assert first.startswith("undecided: ")
    assert "only" not in first
    assert last.startswith("Not decided: 1 candidate not measured, the time ran out; ")


def test_one_measurement_per_candidate_decides_nothing() -> None:
    now = [0.0]
    race = race_of(["a", "b"], seconds=25.0, clock=lambda: now[0])
    planted = speeds(a=100.0, b=10.0)

    def machine(visit: DesignPoint) -> Measured:
        now[0] += 10.0
        return planted(visit)

    follow(race, machine)

    last = RaceAnswer(race).sentences()[-1]

    assert last == (
        "Not decided: the best candidates need 2 measurements each. "
        "A race of about 0.7 minutes would decide it; set --minutes 0.7."
    )


@pytest.mark.parametrize(
    ("typed", "labels"),
    [
        pytest.param(
            ["compile", "batch_size", "model"],
            ["compile=graph batch_size=1", "compile=xla batch_size=2"],
            id="in typed order",
        ),
        pytest.param(
            ["experiment"],
            ["fc 4x1024 b1 float32 cpu", "fc 4x1024 b2 float32 cpu xla"],
            id="a preset",
        ),
    ],
)
def test_labels_contain_the_settings_that_differ(
    typed: Sequence[str], labels: Sequence[str]
) -> None:
    points = [replace(POINT, batch_size=1), replace(POINT, batch_size=2, compile="xla")]
    configs = [{"batch_size": point.batch_size, "compile": point.compile} for point in points]

    assert label_candidates(axis_values(configs, typed), points) == labels


@pytest.mark.parametrize(
    ("valid", "invalid", "is_combination"),
    [
        pytest.param([(4, 2), (3, 1)], (3, 2), True, id="each value is valid elsewhere"),
        pytest.param([(4, 2), (3, 2)], (3, 7), False, id="one value is never valid"),
    ],
)
def test_an_invalid_combination_differs_from_an_invalid_value(
    valid: Sequence[tuple[int, int]], invalid: tuple[int, int], is_combination: bool
) -> None:
    configs = [{"batch_size": batch, "devices": devices} for batch, devices in [*valid, invalid]]
    axes = axis_values(configs, ["batch_size", "devices"])

    assert is_combination_invalid(len(valid), axes, len(valid)) is is_combination
