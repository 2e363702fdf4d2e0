"""What a run holds of planted epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paradnn.config.costs import costs_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, read_point
from paradnn.platform.environment import Environment
from paradnn.record.measured import Measured
from paradnn.record.record import Record, make_record
from paradnn.worker.messages import Answer
from paradnn.workloads.learn import LEARN, Learn
from paradnn.workloads.learn.messages import Epoch, Epochs

ACCURACIES = (0.5, 0.9, 0.97, 0.96, 0.98)


def learner(**learn: Any) -> Point:
    model = {"name": "fc", "layers": 2, "nodes": 32, "input_size": 64, "output_size": 10}
    config = {"model": model, "batch_size": 64, "task": "learn", "data": {"name": "digits"}}
    return read_point({**config, "learn": {"target": 0.97, **learn}})


def epochs(joules: float | None = None) -> list[Epoch]:
    """An epoch of 22 steps takes 2 s and 0.5 s of evaluation."""
    return [
        Epoch(number, 22, 1000.0 + 2.5 * number, 2.0, 0.5, 0.2, 0.3, accuracy, joules)
        for number, accuracy in enumerate(ACCURACIES, 1)
    ]


def recorded(point: Point, answer: Answer) -> Record:
    result = PointResult(answer.outcome, answer.reason, answer)
    environment, costs = Environment("a processor", {}, {}, {}), costs_of(point)
    return make_record(Measured(point, environment, costs, [result], {}, {}, None, 0, 1))


def test_the_first_crossing_counts_and_what_came_after_is_kept() -> None:
    record = recorded(learner(), Answer("timeout", "too long", {}, work=Epochs(epochs(joules=3.0))))
    expected = {
        "seconds_to_target": 6.0,
        "epochs_to_target": 3,
        "steps_to_target": 66,
        "examples_to_target": 66 * 64,
        "energy_to_target_joules": 9.0,
        "best_accuracy": 0.98,
        "epochs": 5,
        "epochs_below_target": 1,
        "evaluation_seconds": 2.5,
    }
    assert {name: record.metrics[name] for name in expected} == pytest.approx(expected)
    assert "; ".join(LEARN.words(record.metrics, {}).clauses) == (
        "target reached in 6.000 s, 3 epochs, 66 steps; "
        "best accuracy 0.9800 in 5 epochs, 1 of them below the target after it was reached"
    )


def test_evaluation_counts_where_it_is_asked_for() -> None:
    record = recorded(learner(evaluate_inside=True), Answer("timeout", "too long", {}, work=Epochs(epochs())))
    assert record.metrics["seconds_to_target"] == pytest.approx(7.5)
    assert "energy_to_target_joules" not in record.metrics
    assert record.history[-1].metrics["learning_seconds"] == pytest.approx(12.5)


def test_every_epoch_is_a_step_of_the_curve() -> None:
    record = recorded(learner(), Answer("timeout", "too long", {}, work=Epochs(epochs())))
    assert [(moment.step, moment.metrics["heldout_accuracy"]) for moment in record.history] == list(
        enumerate(ACCURACIES, 1)
    )
    assert [moment.time for moment in record.history] == [1_002_500, 1_005_000, 1_007_500, 1_010_000, 1_012_500]
    assert len(record.artifacts["epochs.json"]["epochs"]) == 5


def test_a_target_that_was_not_reached_leaves_no_time_to_it() -> None:
    record = recorded(learner(target=0.99), Answer("timeout", "too long", {}, work=Epochs(epochs())))
    assert record.outcome == "timeout"
    assert "seconds_to_target" not in record.metrics
    assert "; ".join(LEARN.words(record.metrics, {}).clauses) == "best accuracy 0.9800 in 5 epochs"


def test_a_training_that_was_resumed_says_so() -> None:
    known = [replace(epoch, resumed=epoch.number in (3, 5)) for epoch in epochs()]
    record = recorded(learner(), Answer("timeout", "too long", {}, work=Epochs(known)))
    assert record.tags["resumed_after_epoch"] == "2, 4"
    assert record.metrics["seconds_to_target"] == 6.0, "whichever process had them"
    whole = recorded(learner(), Answer("timeout", "too long", {}, work=Epochs(epochs())))
    assert "resumed_after_epoch" not in whole.tags


def test_what_was_cut_short_may_go_on() -> None:
    def ended(outcome: str, settings: Learn, count: int) -> bool:
        answer = Answer(outcome, None, {}, work=Epochs(epochs()[:count])) if count else None
        return settings.ended(PointResult(outcome, None, answer))

    assert not ended("crash", Learn(epochs=100), 2)
    assert not ended("unavailable", Learn(epochs=100), 0)
    assert not ended("timeout", Learn(epochs_after=3), 5), "one epoch after the target is missing"
    assert ended("timeout", Learn(epochs=2), 2), "the target was not reached"
    assert ended("crash", Learn(epochs_after=2), 5)
    assert ended("nan", Learn(), 2)
