"""What a point that learns must be: one line for the first thing that is wrong, and identities of before."""

from typing import Any

import pytest

from paradnn.config.identity import point_id, request_of, texts
from paradnn.config.point import Point, read_point
from paradnn.core.errors import ConfigError

FC = {"name": "fc", "layers": 2, "nodes": 32, "input_size": 64, "output_size": 10}


def learner(**keys: Any) -> Point:
    config = {"model": FC, "batch_size": 64, "task": "learn", "data": {"name": "digits"}, "measure": {"processes": 1}}
    return read_point({**config, **keys})


def test_the_usual_task_has_the_identity_and_the_request_of_before() -> None:
    plain, named = read_point({"model": FC}), read_point({"model": FC, "task": "step"})
    # Written down when there was no task.
    assert point_id(plain) == point_id(named) == "c7e7c4a3df9641cf"
    assert "learn" not in request_of(plain)


def test_what_is_learnt_is_part_of_the_identity() -> None:
    point = learner(learn={"target": 0.9})
    assert texts(request_of(point))["learn.target"] == "0.9"
    assert len({point_id(entry) for entry in (point, learner(), learner(seed=1))}) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "step"}, "data=digits: is a set to learn from; add task=learn, or use data=synthetic"),
        (
            {"data": {"name": "synthetic"}},
            "data=synthetic: has no held-out examples to learn for; choose one of digits",
        ),
        (
            {"model": {**FC, "input_size": 100}},
            "model.input_size=100: an example of data=digits has 64 values; set model",
        ),
        (
            {"model": {**FC, "output_size": 5}},
            "model.output_size=5: data=digits has 10 classes; set model.output_size=10",
        ),
        ({"model": {"name": "lstm"}}, "data=digits: model=lstm tells no classes apart; choose another model"),
        ({"model": {"name": "residual", "image_size": 30}}, "model.image_size=30: data=digits has 8 x 8 pixels, which"),
        ({"mode": "inference"}, "mode=inference: task=learn trains; set mode=train"),
        ({"batch_size": 2000}, "batch_size=2000: is more than the 1,438 training examples of data=digits"),
        (
            {"measure": {"processes": 5}},
            "measure.processes=5: task=learn trains once; set measure.processes=1; sweep seed",
        ),
        (
            {"learn": {"epochs": 3, "warmup_epochs": 3}},
            "learn.warmup_epochs=3: leaves none of learn.epochs=3; choose fewer",
        ),
        ({"learn": {"target": 0}}, "learn.target=0.0: must be at least 0.001"),
        ({"learn": {"target": 97}}, "learn.target=97.0: must be at most 1.0"),
        (
            {"data": {"name": "cifar10"}, "model": {**FC, "input_size": 3072}},
            "data.path=null: data=cifar10 is read from files; name the folder that holds them",
        ),
    ],
)
def test_what_cannot_learn_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        learner(**keys)
    assert str(error.value).startswith(message)


def test_schedules_that_came_later_leave_identities_as_they_were() -> None:
    usual = learner()
    # Written down when there was no schedule.
    assert point_id(usual) == point_id(learner(learn={"schedule": "constant", "warmup_epochs": 0}))
    assert len({point_id(entry) for entry in (usual, learner(learn={"schedule": "cosine"}))}) == 2
