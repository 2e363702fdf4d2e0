"""What a point that learns must be: one line for the first thing that is wrong, and identities of before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paradnn.config.identity import point_id, request_of, texts
from paradnn.config.point import Point, read_point
from paradnn.errors import ConfigError
from paradnn.workloads.learn.sets import list_pictures

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
            {"data": {"name": "topics"}},
            "data=topics: model=fc says of no token which one comes next; choose model=gpt, lstm, gru or rnn",
        ),
        (
            {"data": {"name": "topics"}, "model": {"name": "lstm"}},
            "model.vocab_size=32: data=topics has 128 different bytes; set model.vocab_size=128",
        ),
        ({"data": {"name": "folder"}}, "data.path=null: data=folder is read from files; name the folder that holds"),
        (
            {"data": {"name": "folder", "path": "/none"}},
            "data.path=/none: is no folder; name the folder whose sub-fold",
        ),
        (
            {"learn": {"epochs": 3, "warmup_epochs": 3}},
            "learn.warmup_epochs=3: leaves none of learn.epochs=3; choose fewer",
        ),
        ({"learn": {"target": 0}}, "learn.target=0.0: must be at least 0.001"),
        ({"learn": {"target": 97}}, "learn.target=97.0: must be at most 1.0"),
        (
            {"data": {"name": "generated", "best": 0.05}},
            "data.best=0.05: is not between the chance of a guess, 0.1, and",
        ),
        (
            {"data": {"name": "mnist"}, "model": {**FC, "input_size": 784}},
            "data.path=null: data=mnist is read from files; name the folder that holds them",
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


def test_a_folder_of_pictures_is_counted(tmp_path: Path) -> None:
    for name in ("cat", "dog", "eel"):
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.PNG").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").touch()
    data = {"name": "folder", "path": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"an example of data=folder has 3072 values; set model.input_size=3072"):
        learner(data=data)
    with pytest.raises(ConfigError, match=r"batch_size=64: is more than the 24 training examples of data=folder"):
        learner(data=data, model={**FC, "input_size": 3072})
    residual = {"name": "residual", "image_size": 32, "output_size": 2}
    with pytest.raises(ConfigError, match=r"data=folder has 3 classes; set model.output_size=3"):
        learner(data=data, model=residual, batch_size=8)
    assert learner(data=data, model={**residual, "output_size": 3}, batch_size=8).data.counts(None) == (24, 6, 3)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has pictures .jpg, jpeg, png. in 0 sub-folders; name a folder with a sub-folder of pictures for each"),
        (["a/1.png", "b.png"], "has pictures .jpg, jpeg, png. in 1 sub-folders"),
        (["train/a/1.png", "train/b/1.png"], "has train/ and no val/; add it, or name the other"),
        (["train/a/1.png", "train/b/1.png", "val/c/1.png"], "val/c is no class of train/; give both the same"),
        (["a/1.png", "b/1.png"], "no picture of .* is held out; choose another share, or add val/"),
    ],
)
def test_a_folder_without_what_it_needs_is_one_line(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=message):
        list_pictures(str(tmp_path), 0.2)


def test_trained_with_and_held_out_are_the_users_where_there_are_both(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/a/2.jpg", "train/b/deep/1.jpeg", "val/b/9.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = list_pictures(str(tmp_path), 0.2)
    assert [(path.name, label) for path, label in found.training] == [("1.png", 0), ("2.jpg", 0), ("1.jpeg", 1)]
    assert [(path.name, label) for path, label in found.heldout] == [("9.png", 1)]
