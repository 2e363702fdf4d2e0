"""Learning rates over the steps of a training, beside plain arithmetic."""

from __future__ import annotations

import math

import pytest

from paradnn.worker.optimizers import Course, make_optimizer

ADAM = {"name": "adam", "learning_rate": 0.1, "decay": 0.999, "momentum": 0.9, "epsilon": 1e-8}


def test_a_rate_rises_and_falls_as_its_course_says() -> None:
    def rates(shape: str) -> list[float]:
        return [float(Course(0.1, shape, rise=4, steps=12)(step)) for step in (0, 3, 4, 8, 12, 20)]

    assert rates("constant") == pytest.approx([0.025, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert rates("linear") == pytest.approx([0.025, 0.1, 0.1, 0.05, 0, 0], abs=1e-8)
    quarter = 0.05 * (1 + math.cos(math.pi / 2))
    assert rates("cosine") == pytest.approx([0.025, 0.1, 0.1, quarter, 0, 0], abs=1e-8)


def test_without_a_course_the_rate_is_a_number_as_before() -> None:
    assert float(make_optimizer(ADAM, "float32").learning_rate) == pytest.approx(0.1)
    plain = {"shape": "constant", "rise": 0, "steps": 100}
    assert not isinstance(make_optimizer({**ADAM, "course": plain}, "float32")._learning_rate, Course)
    assert isinstance(make_optimizer({**ADAM, "course": {**plain, "rise": 3}}, "float32")._learning_rate, Course)
