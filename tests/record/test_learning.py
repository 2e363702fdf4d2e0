"""What a run holds of planted epochs."""

from __future__ import annotations

from typing import Any

import pytest

from paradnn.config.costs import costs_of
from paradnn.config.outcome import PointResult
from paradnn.config.point import Point, read_point
from paradnn.core.messages import Answer
from paradnn.platform.environment import Environment
from paradnn.session.measured import Measured
from paradnn.session.record import make_record
from paradnn.store.runs import Record
from paradnn.workloads.learn import LEARN, Epoch, Epochs, Learn

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
